# SPDX-License-Identifier: Apache-2.0
"""The discrete-event model of the scheduler's loop, and what is computed from its runs."""

from __future__ import annotations

import pytest

from common.cli import BenchError
from overlap import calibrate, grid
from overlap.costs import Line, StepCosts, fit
from overlap.loop import Traffic, simulate

COSTS = StepCosts(
    schedule=Line(0.001, 0), launch=Line(0.002, 0), process=Line(0.003, 0), forward=Line(0.02, 0)
)


def play(costs=COSTS, overlap=True, mean_tokens=400, foreseen=0.0, clients=4, slots=4, **more):
    traffic = Traffic(clients, slots, mean_tokens, foreseen, round_trip_s=0.0005)
    return simulate(costs, traffic, lambda *_: overlap, tokens=8000, seed=3, noise=0.0, **more)


@pytest.mark.parametrize(
    ("forward", "overlapped", "drained"),
    # Host: 1 ms to schedule, 2 to launch, 3 to process.
    [(0.020, 0.020, 0.024), (0.004, 0.006, 0.008), (0.001, 0.006, 0.006)],
)
def test_long_outputs_take_a_period_a_step(forward, overlapped, drained):
    costs = StepCosts(COSTS.schedule, COSTS.launch, COSTS.process, Line(forward, 0))
    for overlap, period in ((True, overlapped), (False, drained)):
        rate = play(costs, overlap).tokens_per_s
        # A few prefill steps, the ends, and a batch that is not always full.
        assert rate == pytest.approx(4 / period, rel=0.05)
        assert rate < 4 / period


def test_rows_are_wasted_only_for_ends_that_come_late_and_unforeseen():
    assert play(overlap=True, mean_tokens=8).wasted > 0.05
    assert play(overlap=False, mean_tokens=8).wasted == 0
    assert play(overlap=True, mean_tokens=8, foreseen=1.0).wasted == 0


def test_every_policy_is_given_the_same_requests():
    asked = []
    for overlap in (True, False):
        seen = []
        play(
            overlap=overlap,
            mean_tokens=8,
            clients=1,
            slots=1,
            observe=lambda phase, *_, seen=seen: seen.append(phase),
        )
        # One client: the tokens between two prefills are an output's length.
        lengths, length = [], 0
        for phase in seen[1:]:
            length += 1
            if phase == 0:
                lengths.append(length)
                length = 0
        asked.append(lengths)
    overlapped, drained = asked
    # A late end adds the wasted step.
    assert [length - 1 for length in overlapped[:200]] == drained[:200]


def test_a_blocking_launch_leaves_nothing_to_overlap():
    costs = StepCosts(COSTS.schedule, COSTS.launch, COSTS.process, Line(0.02, 0))
    always = play(costs, True, mean_tokens=8, synchronous=True)
    never = play(costs, False, mean_tokens=8, synchronous=True)
    assert never.tokens_per_s > always.tokens_per_s
    assert never.ttft_s < always.ttft_s


def test_a_line_through_measured_points():
    assert fit([(1, 3.0), (3, 7.0)]) == Line(1.0, 2.0)
    assert fit([(1, 5.0), (3, 1.0)]) == Line(3.0, 0.0)
    through_zero = fit([(1, 0.5), (3, 3.5)])
    assert through_zero.fixed == 0.0 and through_zero.per_row > 0


def test_a_cell_reports_dynamic_against_what_is_best():
    pytest.importorskip(
        "sglang.srt.managers.dynamic_overlap", reason="topic dynamic-overlap is not in this build"
    )
    row = grid.run_cell(grid.Cell("chat", 8, 1.0, 0.008), COSTS, steps=600, seed=1)
    assert row["oracle"] >= max(row["always"], row["never"])
    assert row["dynamic"] > 0.97 * row["always"]
    assert row["always"] > row["never"]
    assert row["overlapped"] > 0.9


def test_a_file_without_calibration_is_refused(tmp_path):
    path = tmp_path / "other.json"
    for text in (
        "{}",
        "[",
        "[1]",
        '{"settings": [1]}',
        '{"settings": {"calibration": {"schedule": {}}}}',
    ):
        path.write_text(text)
        with pytest.raises(BenchError, match=r"other\.json"):
            calibrate.load(path)
