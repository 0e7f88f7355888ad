# SPDX-License-Identifier: Apache-2.0
"""A server with the flag: answers of a plain one, metrics, and refusals at start-up."""

from __future__ import annotations

import random
import time

import pytest

from harness import ClosedLoop, Request, drive, require_success

pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap", reason="topic dynamic-overlap is not in this build"
)

PLAIN = {"chunked_prefill_size": 64}
DYNAMIC = {
    **PLAIN,
    "enable_dynamic_overlap": True,
    "dynamic_overlap_config": {
        "probe_interval_steps": 40,
        "probe_steps": 4,
        "min_dwell_steps": 10,
    },
}
PREFIX = "sglang:dynamic_overlap_"


def requests():
    """Chunked and short prompts, ends by length and by a stop token."""
    rng = random.Random(3)
    made = []
    for number in range(16):
        ids = [rng.randrange(33, 127) for _ in range(rng.choice((3, 40, 64, 150)))]
        sampling = {"ignore_eos": True}
        if number % 3 == 0:
            sampling = {"stop_token_ids": list(range(97, 105))}
        made.append(Request(ids, 40, sampling=sampling))
    return made


def outputs(server, concurrency):
    server.flush_cache()
    results = drive(server.url, requests(), ClosedLoop(concurrency))
    require_success(results)
    return [result.output_ids for result in results]


def exported(server, decisions):
    """Metrics once all of ``decisions`` have been exported, or after two seconds."""
    deadline = time.monotonic() + 2
    while True:
        metrics = server.metrics()
        if metrics.get(PREFIX + "decisions_total") >= decisions:
            return metrics
        if time.monotonic() > deadline:
            return metrics
        time.sleep(0.1)


@pytest.mark.e2e
@pytest.mark.slow
def test_answers_are_those_of_a_plain_server_and_metrics_say_what_was_decided(serve_with):
    expected = outputs(serve_with(PLAIN, name="plain"), 1)
    server = serve_with(DYNAMIC, name="dynamic-overlap")
    before = server.metrics()
    for concurrency in (1, 6):
        assert outputs(server, concurrency) == expected
    tokens = sum(map(len, expected))
    after = exported(server, tokens)
    decisions = after - before
    by_reason = decisions.by(PREFIX + "decisions_total", "reason")
    # One decision for each result: alone, every token is one.
    assert sum(by_reason.values()) >= tokens
    assert by_reason["measured"] > by_reason["probe"] > 0
    # A launch on a CPU leaves no forward time to hide anything under.
    measured = decisions.by(PREFIX + "decisions_total", "outcome", reason="measured")
    assert set(measured) == {"drain"}
    probes = decisions.by(PREFIX + "decisions_total", "outcome", reason="probe")
    assert set(probes) == {"overlap"}
    assert after.get(PREFIX + "switches_total") == 0
    assert set(after.by(PREFIX + "forward_seconds", "phase").values()) == {0.0}
    host = after.by(PREFIX + "cpu_seconds", "part", phase="decode")
    assert set(host) == {"schedule", "launch", "process"}
    assert all(seconds > 0 for seconds in host.values())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--disable-overlap-schedule"], "--disable-overlap-schedule"),
        (["--dynamic-overlap-config", '{"min_gain": 2}'], "min_gain=2 is not allowed"),
        (["--dynamic-overlap-config", '{"gain": 2}'], "unknown key 'gain'"),
    ],
)
def test_refuses_to_start_with_the_reason(tiny_model, flags, named):
    from sglang.srt.server_args import prepare_server_args

    arguments = ["--model-path", str(tiny_model), "--enable-dynamic-overlap", *flags]
    server_args = prepare_server_args(arguments)
    server_args.resolve_once()
    with pytest.raises(ValueError, match=named):
        # What every way of launching calls before anything is loaded.
        server_args.check_server_args()
