# SPDX-License-Identifier: Apache-2.0
"""Dynamic overlap: step by step, overlap result processing with the next forward or not.

Where things are:
    config.py     flags, settings and their start-up check
    estimate.py   averages of what a step costs, and what overlap would save
    decision.py   OverlapDecisionMaker: the rule, its dwell and its probes
    timing.py     times of one step, from host clock and device events, without stalls
    updates.py    how a changed decision reaches all ranks
    penalties.py  what penalizers count after a result that was processed early
    metrics.py    Prometheus metrics
    controller.py joins these to a scheduler; called by the patched places
    factory.py    builds the controller, or refuses with the reason

Layers import downwards only, and config.py, estimate.py and decision.py know neither
torch nor the scheduler.
"""
