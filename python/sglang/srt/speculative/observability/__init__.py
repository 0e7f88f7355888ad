# SPDX-License-Identifier: Apache-2.0
"""What speculative decoding spends and what it gains, with ``--enable-metrics``.

``stages`` times the parts of a step, ``drafts`` says which nodes a step offered,
``step`` counts what became of them, ``totals`` and ``summary`` sum that for the
server and for a request, ``metrics`` exports it to Prometheus, and ``observer``
ties these to the scheduler. Upstream's code calls ``stages``, ``drafts`` and the
observer only; without ``--enable-metrics`` there is no observer and those calls
return at once. docs/observability.md says what each number means.
"""
