# SPDX-License-Identifier: Apache-2.0
"""The eviction benchmark: replay request traces through the real radix cache.

Where does my code go?

* ``trace``      what a request and a trace are; block identity
* ``readers``    trace files of other projects -> ``trace.Trace``
* ``workloads``  built-in seeded generators -> ``trace.Trace``
* ``policies``   names, groups and construction of what ``--policies`` accepts
* ``pool``       a ``UnifiedRadixCache`` with CPU pools and no model
* ``driver``     one trace through one cache, as the scheduler would do it
* ``reference/`` policies from the literature, only for comparison
* ``optimum``    the offline bound
* ``scale``      cost of one eviction against the number of leaves
* ``report``     rows, derived columns, tables and plots

``trace``, ``readers``, ``workloads`` and ``optimum`` need neither torch nor sglang.
"""
