# SPDX-License-Identifier: Apache-2.0
"""The scheduling benchmark: the real ``SchedulePolicy`` on the real tree, no model.

Where does my code go?

* ``jobs``       what a request is; built-in workloads and traces as streams of them
* ``arms``       names and settings of what ``--policies`` accepts
* ``world``      a ``SchedulePolicy``, a cache and an allocator, built as a server does
* ``engine``     passes: order the queue, admit, prefill, decode, finish; virtual time
* ``outcome``    what one run measured, and the figures derived from it
* ``report``     derived columns, tables, findings and plots
* ``command``    options to runs, runs to rows

``jobs`` and ``outcome`` need neither torch nor sglang.
"""
