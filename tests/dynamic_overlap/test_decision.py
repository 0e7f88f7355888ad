# SPDX-License-Identifier: Apache-2.0
"""The rule: measured saving, hysteresis, dwell, probes; against a simulated loop."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

decision = pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap.decision",
    reason="topic dynamic-overlap is not in this build",
)
from sglang.srt.managers.dynamic_overlap.config import (  # noqa: E402
    DynamicOverlapConfig,
    parse_config,
)
from sglang.srt.managers.dynamic_overlap.estimate import (  # noqa: E402
    SKIPPED,
    StepCost,
    saving,
)

DECODE = decision.DECODE
SIZE = 8


def maker(synchronous=False, **settings):
    return decision.OverlapDecisionMaker(parse_config(settings), synchronous)


def step(decider, forward, host=0.002, launch=0.001, size=SIZE, waste=0.0, tell=True):
    """One step: decide, measure in the state decided for, carry out what is proposed."""
    overlap, reason = decider.decide(DECODE, size)
    decider.observe(DECODE, size, overlap, host / 2, launch, forward, host / 2, waste)
    if tell:
        decider.apply(list(decider.proposals.values()))
    return overlap, reason


def steps(decider, count, **times):
    return [step(decider, **times) for _ in range(count)]


def simulated_period(schedule, launch, forward, process, overlapped, count=400):
    """Seconds a step, by playing host and device; the host is one thread, the device a queue.

    A forward pass starts once its launch has begun and the device is free, and ends no
    earlier than its launch.
    """
    host = device = 0.0
    queued: list[float] = []
    for _ in range(count):
        if not overlapped and queued:
            host = max(host, queued.pop(0)) + process
        host += schedule
        device = max(max(host, device) + forward, host + launch)
        host += launch
        queued.append(device)
        if overlapped and len(queued) > 1:
            host = max(host, queued.pop(0)) + process
    return host / count


seconds = st.floats(1e-4, 0.05)


@given(schedule=seconds, launch=seconds, left=st.floats(0, 0.1), process=seconds)
def test_saving_is_what_a_simulated_loop_saves(schedule, launch, left, process):
    cost = StepCost(1.0)
    forward = launch + left
    for _ in range(SKIPPED + 1):
        cost.add(schedule, launch, forward, process)
    drained = simulated_period(schedule, launch, forward, process, overlapped=False)
    overlapped = simulated_period(schedule, launch, forward, process, overlapped=True)
    # The first and the last steps of the simulation are not in the steady state.
    assert saving(cost, cost, 0.0) == pytest.approx(1 - overlapped / drained, abs=0.02)


def test_waste_costs_its_share():
    cost = StepCost(1.0)
    for _ in range(SKIPPED + 1):
        cost.add(0.001, 0.001, 0.001, 0.001)
    # Nothing to hide, one row in five for nobody: a useful row takes 1.25 times as long.
    assert saving(cost, cost, 0.2) == pytest.approx(-0.25)


def test_heuristic_until_there_are_samples():
    decider = maker(min_samples=5, heuristic_batch_size=4)
    assert decider.decide(DECODE, 3) == (False, "heuristic")
    assert decider.decide(DECODE, 4) == (True, "heuristic")
    reasons = [step(decider, forward=0.01)[1] for _ in range(SKIPPED + 5 + 1)]
    assert reasons == ["heuristic"] * (SKIPPED + 5) + ["measured"]


def test_sizes_the_ranks_do_not_share_overlap_until_there_are_samples():
    assert maker(heuristic_batch_size=64).decide(DECODE, 0) == (True, "heuristic")


def test_a_long_forward_pass_is_overlapped_and_a_short_one_is_not():
    decider = maker()
    assert steps(decider, 100, forward=0.010)[-1][0] is True
    assert steps(decider, 200, forward=0.001)[-1][0] is False
    assert steps(decider, 200, forward=0.010)[-1][0] is True
    assert decider.switches == 2


def test_a_synchronous_device_never_overlaps_but_to_probe():
    decider = maker(synchronous=True, probe_interval_steps=100, probe_steps=3)
    taken = steps(decider, 1000, forward=0.02, launch=0.02)
    assert {reason for overlap, reason in taken if overlap} == {"probe"}
    assert decider.switches == 0


def test_waste_switches_overlap_off():
    decider = maker(probe_interval_steps=0)
    # Overlap hides 10 % of a step; a quarter of its rows is computed for nobody.
    steps(decider, 100, forward=0.019, host=0.002, launch=0.001)
    assert decider.state(DECODE, SIZE) is True
    steps(decider, 100, forward=0.019, host=0.002, launch=0.001, waste=0.25)
    assert decider.state(DECODE, SIZE) is False


def test_between_the_thresholds_nothing_changes():
    # Saving of 0.015: below min_gain to begin, above min_gain - hysteresis to go on.
    between = {"forward": 0.098, "host": 0.0015, "launch": 0.001}
    for host, state in ((0.01, True), (0.0005, False)):
        decider = maker(min_dwell_steps=0, ema_weight=1.0)
        steps(decider, 50, forward=0.098, host=host)
        assert decider.state(DECODE, SIZE) is state
        steps(decider, 500, **between)
        assert decider.state(DECODE, SIZE) is state


def test_no_second_change_within_the_dwell():
    decider = maker(min_dwell_steps=50, ema_weight=1.0, probe_interval_steps=0)
    changes = []
    state = None
    for number in range(1000):
        step(decider, forward=0.02 if number % 7 else 0.001)
        if decider.state(DECODE, SIZE) is not state:
            state = decider.state(DECODE, SIZE)
            changes.append(number)
    assert len(changes) > 5
    gaps = [b - a for a, b in itertools.pairwise(changes)]
    assert min(gaps) >= 50


@pytest.mark.parametrize("forward", [0.02, 0.001])
def test_probes_try_the_other_state_at_their_interval(forward):
    decider = maker(probe_interval_steps=100, probe_steps=4)
    taken = steps(decider, 1015, forward=forward)
    probes = [number for number, (_, reason) in enumerate(taken) if reason == "probe"]
    assert len(probes) == 4 * 10
    starts = probes[::4]
    assert {b - a for a, b in itertools.pairwise(starts)} == {100}
    for number in probes:
        assert taken[number][0] is not (forward == 0.02)


def test_no_probes_on_request():
    decider = maker(probe_interval_steps=0)
    assert {reason for _, reason in steps(decider, 3000, forward=0.02)} == {
        "heuristic",
        "measured",
    }


def test_probes_find_that_the_other_state_has_changed():
    """Waste shows only while overlapping; a probe is how a drained state sees it end."""
    decider = maker(probe_interval_steps=50, probe_steps=10, min_dwell_steps=0)
    steps(decider, 60, forward=0.019, waste=0.25)
    assert decider.state(DECODE, SIZE) is False
    for _ in range(600):
        overlap, _ = decider.decide(DECODE, SIZE)
        decider.observe(DECODE, SIZE, overlap, 0.001, 0.001, 0.019, 0.001, 0.0)
        decider.apply(list(decider.proposals.values()))
    assert decider.state(DECODE, SIZE) is True


def test_phases_and_sizes_do_not_mix():
    decider = maker(probe_interval_steps=0)
    for _ in range(100):
        step(decider, forward=0.02, size=4)
        step(decider, forward=0.001, size=16)
    assert decider.state(DECODE, 7) is True
    assert decider.state(DECODE, 16) is False
    assert decider.decide(decision.PREFILL, 16) == (True, "heuristic")


def test_a_stray_sample_does_not_decide():
    decider = maker(probe_interval_steps=0, min_dwell_steps=0)
    step(decider, forward=30.0, launch=30.0)  # compiles
    steps(decider, 200, forward=0.02)
    step(decider, forward=0.001, host=5.0, launch=5.0)  # swapped out
    taken = steps(decider, 50, forward=0.02)
    assert all(overlap for overlap, _ in taken)


def test_nothing_takes_effect_before_it_is_told():
    decider = maker(min_samples=1)
    for _ in range(50):
        assert step(decider, forward=0.001, tell=False) == (True, "heuristic")
    told = list(decider.proposals.values())
    assert told == [(DECODE, SIZE.bit_length(), False)]
    decider.apply(told)
    decider.apply(told)
    assert decider.switches == 1
    assert not decider.proposals
    assert decider.decide(DECODE, SIZE) == (False, "measured")


def test_a_wish_that_passed_is_withdrawn():
    decider = maker(min_dwell_steps=0, ema_weight=1.0, probe_interval_steps=0)
    steps(decider, 20, forward=0.02)
    step(decider, forward=0.001, tell=False)
    assert decider.proposals
    step(decider, forward=0.02, tell=False)
    assert not decider.proposals


def test_all_steps_are_timed_until_the_kind_is_known_then_some_and_all_of_a_probe():
    decider = maker(probe_interval_steps=100, probe_steps=8)
    timed = {"heuristic": [], "measured": [], "probe": []}
    for _ in range(500):
        reason = step(decider, forward=0.02)[1]
        timed[reason].append(decider.wants_times(DECODE, SIZE))
    assert all(timed["heuristic"][:-1])  # the last one made the kind known
    assert sum(timed["measured"]) / len(timed["measured"]) == pytest.approx(0.25, abs=0.03)
    # The launch of a probe's last step is followed by one that is not probing.
    assert sum(timed["probe"]) >= 7 / 8 * len(timed["probe"])


@given(st.integers(1, 1 << 20))
def test_buckets_double(size):
    bucket = size.bit_length()
    assert decision.smallest(bucket) <= size < 2 * decision.smallest(bucket)


def test_defaults_keep_probes_rare():
    config = DynamicOverlapConfig()
    assert config.probe_steps / config.probe_interval_steps < 0.01
