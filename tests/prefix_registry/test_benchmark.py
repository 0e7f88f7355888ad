# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic, its options and its stopped reader, without servers."""

from __future__ import annotations

import random
import time

import pytest
from identities import identity
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
from sglang.srt.disaggregation.prefix_registry.translate import Translator

from common.cli import BenchError
from prefix_registry import command, ordering, report, scheduler_cost
from prefix_registry.pair import PROMPT_TOKENS, random_tokens
from prefix_registry.publishing import StoppedReader


def test_workload_of_the_order():
    chance = random.Random(1)
    prefixes = [random_tokens(chance, 448) for _ in range(2)]
    load = ordering.arrivals(chance, prefixes, 20, 3.0)
    assert sum(arrival.cached for arrival in load) == 10
    assert all(len(arrival.prompt) == PROMPT_TOKENS for arrival in load)
    assert [a.at_s for a in load] == sorted(a.at_s for a in load) and load[-1].at_s <= 3.0
    for arrival in load:
        assert arrival.cached == (list(arrival.prompt[:448]) in prefixes)
    assert len({tuple(arrival.prompt) for arrival in load}) == 20


def test_a_stopped_reader_costs_nothing_and_tells_what_it_missed():
    history = History(identity())
    publisher = Publisher(history, Translator(4, bigram=False), host="127.0.0.1", send_updates=4)
    reader = StoppedReader(publisher.endpoint.updates)
    try:
        time.sleep(0.5)  # it subscribes in its own time
        pages = [random.Random(1).randbytes(32).hex() for _ in range(64)]
        for _ in range(500):
            for kind in ("node_stored", "node_removed"):
                publisher.offer([(kind, 1, pages)], len(pages))
        while publisher.queued_blocks:
            time.sleep(0.01)
        assert publisher.failure is None and publisher.dropped_blocks == 0
        missed, everything = reader.missed()
        # 2 MB were published: far beyond its buffers.
        assert 500 < missed < everything <= 1000
    finally:
        reader.close()
        publisher.close()


def test_parts_by_default():
    parser = command.arguments()
    assert parser.parse_args([]).parts is None
    assert parser.parse_args(["--parts", "ordering"]).parts == ["ordering"]
    assert not set(command.SERVED_PARTS) & set(command.QUICK_PARTS)
    with pytest.raises(SystemExit):
        parser.parse_args(["--parts", "pears"])


def test_a_model_that_is_none_is_named(tmp_path):
    options = command.arguments().parse_args(["--model", str(tmp_path)])
    with pytest.raises(BenchError, match="no config.json"):
        command._model(options, "tiny")


def turn(arm, seconds, computed=100, updates=None):
    published = arm == "publishing" if updates is None else updates
    times = {"seconds": seconds, "cpu_s": 2 * seconds, "scheduler_cpu_s": seconds / 2}
    return {"arm": arm, "computed": computed, "updates": int(published), **times}


def test_turns_of_one_scheduler_are_compared_pair_by_pair():
    # The machine slows down by half; publishing takes 1 % and 3 % longer.
    rows = [turn("silent", 1.0), turn("publishing", 1.01)]
    rows += [turn("publishing", 2.06), turn("silent", 2.0)]
    found = scheduler_cost._compared(rows, prompts=10)
    assert found["rate_ratio"] == pytest.approx((1.01 * 1.03) ** -0.5)
    assert found["cpu_ratio"] == found["thread_ratio"] == pytest.approx((1.01 * 1.03) ** 0.5)
    assert found["silent_tokens_per_s"] == pytest.approx(75.0)
    assert found["added_us"] == pytest.approx((1_000 + 6_000) / 2)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([turn("silent", 1.0), turn("publishing", 1.0, computed=90)], "different numbers"),
        ([turn("silent", 1.0, updates=1), turn("publishing", 1.0)], "silent turn published"),
        ([turn("silent", 1.0), turn("publishing", 1.0, updates=0)], "silent turn published"),
    ],
)
def test_turns_that_cannot_be_compared_are_refused(rows, why):
    with pytest.raises(BenchError, match=why):
        scheduler_cost._compared(rows, prompts=10)


@pytest.mark.slow
@pytest.mark.parametrize("core", scheduler_cost.CORES)
def test_one_scheduler_publishes_in_every_other_turn(core, tiny_model):
    row = scheduler_cost.measure(
        tiny_model, core=core, rounds=2, prompts=6, seed=0, readers=scheduler_cost.STOPPED
    )
    assert row["rate_ratio"] > 0 and row["published"] > 0
    assert row["read"] > 0 and row["missed"] > 0


def served_rows():
    cost = {
        "reader": "decode",
        "rounds": 2,
        "silent_tokens_per_s": 500.0,
        "publishing_tokens_per_s": 495.0,
    }
    for key in ("rate", "cpu"):
        cost.update({f"{key}_ratio": 0.99, f"{key}_low": 0.97, f"{key}_high": 1.01})
    orders = []
    for order in ordering.ORDERS:
        kinds = {f"ttft_{kind}_mean_s": 1.0 for kind in ("all", "cached", "cold")}
        orders.append(
            {"order": order, "requests": 4, "ttft_all_p90_s": 2.0, "ttft_cold_max_s": 3.0, **kinds}
        )
    return [cost], orders


def test_report_of_the_served_part(tmp_path, capsys):
    costs, orders = served_rows()
    targets = report.findings([], [], costs)
    assert [target["met"] for target in targets] == [False], "its interval reaches below 0.98"
    assert report.findings([], [], [{**costs[0], "rate_low": 0.98}])[0]["met"]
    report.show([], [], [], [], [], costs, orders, targets)
    shown = capsys.readouterr().out
    assert "0.990" in shown and "predicted-ready" in shown and "NO" in shown
    rows = {"tables": [], "cost": [], "scheduler": [], "publishing": costs, "ordering": orders}
    report.plot(tmp_path / "plot.png", rows)
    assert (tmp_path / "plot.png").stat().st_size > 10_000
