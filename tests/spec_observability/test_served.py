# SPDX-License-Identifier: Apache-2.0
"""On real servers of every algorithm: the exported sums are true and agree with each other.

With RECORD_SCRAPES=1 in the environment the scrapes of ``recorded/`` are written anew.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.draft_heads import make_eagle3_head, make_eagle_head

pytest.importorskip(
    "sglang.srt.speculative.observability", reason="topic spec-observability is not in this build"
)
pytestmark = pytest.mark.e2e

NEW_TOKENS = 24
COMMON = {"chunked_prefill_size": 64, "max_total_tokens": 2048}
SPECULATE = {
    # The flags of tests/platform/test_speculation.py and tests/suffix_automaton/test_engine.py,
    # so that their servers are used again where they still run.
    "ngram": {**COMMON, "speculative_algorithm": "NGRAM", "schedule_conservativeness": 0.1},
    "standalone": {
        **COMMON,
        "speculative_algorithm": "STANDALONE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "page_size": 4,
    },
    "eagle": {
        **COMMON,
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
    },
    "eagle3": {
        **COMMON,
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 9,
    },
    "sam": {
        "chunked_prefill_size": 64,
        "speculative_algorithm": "NGRAM",
        "speculative_ngram_use_sam": True,
        "max_total_tokens": 1024,
        "schedule_conservativeness": 0.1,
    },
}
HEADS = {"eagle": make_eagle_head, "eagle3": make_eagle3_head}
STAGES = {
    "ngram": {"lookup", "tree_build", "verify", "index_update"},
    "sam": {"lookup", "tree_build", "verify"},
    "standalone": {"draft", "tree_build", "verify", "draft_extend", "draft_prefill"},
    "eagle": {"draft", "tree_build", "verify", "draft_extend", "draft_prefill"},
    "eagle3": {"draft", "tree_build", "verify", "draft_extend", "draft_prefill"},
}
SOURCES = {
    "ngram": {"ngram", "padding"},
    "sam": {"own", "shared", "padding"},
    "standalone": {"draft_model"},
    "eagle": {"draft_model"},
    "eagle3": {"draft_model"},
}
META = "spec_observability"
P = "sglang:spec_"


def prompts() -> list[list[int]]:
    """Repetitive and random prompts of 1 to 150 tokens: long, short and failed drafts."""
    rng = random.Random(11)
    out = []
    for length in (1, 3, 17, 30, 64, 65, 100, 150, 40, 90):
        phrase = [rng.randrange(33, 127) for _ in range(rng.choice((1, 4, 300)))]
        out.append((phrase * 200)[:length])
    return out


@pytest.fixture(scope="module", params=list(SPECULATE))
def speculating(request, serve_with, tiny_model, tmp_path_factory):
    """A server a algorithm."""
    flags = dict(SPECULATE[request.param])
    if request.param == "standalone":
        flags["speculative_draft_model_path"] = str(tiny_model)
    elif request.param in HEADS:
        head = HEADS[request.param](tiny_model, tmp_path_factory.mktemp(request.param))
        flags["speculative_draft_model_path"] = str(head)
    elif request.param == "sam" and importlib.util.find_spec("sgl_kernel_ext") is None:
        pytest.skip("needs sgl-kernel-ext")
    return request.param, serve_with(flags, name=request.param)


def run(server, bodies, at_once):
    """Answers of ``/generate``, ``at_once`` requests at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda body: server.post("/generate", body, timeout=300), bodies))


def body(prompt, new_tokens=NEW_TOKENS, **sampling):
    key = "text" if isinstance(prompt, str) else "input_ids"
    parameters = {"temperature": 0, "max_new_tokens": new_tokens, **sampling}
    return {key: prompt, "sampling_params": parameters}


def positions(interval, name):
    """Counts by position, as a list from position 1."""
    by = {int(k): v for k, v in interval.by(f"{P}position_{name}_total", "position").items()}
    return [by.get(i, 0) for i in range(1, max(by, default=0) + 1)]


def check_interval(interval):
    """Everything that must hold between the sums of an interval."""
    drafted = interval.total(f"{P}drafted_tokens_total")
    accepted = interval.total(f"{P}accepted_tokens_total")
    assert drafted == accepted + interval.total(f"{P}rejected_tokens_total")
    assert 0 <= accepted <= drafted
    offered, at, hit = (
        positions(interval, name) for name in ("offered_steps", "drafted_tokens", "accepted_tokens")
    )
    assert sum(at) == drafted and sum(hit) == accepted
    assert all(h <= o <= d for h, o, d in zip(hit, offered, at))
    assert all(earlier >= later for earlier, later in itertools.pairwise(hit))
    for name, total in (("drafted", drafted), ("accepted", accepted)):
        assert interval.total(f"{P}step_{name}_tokens_sum") == total
        assert interval.get(f"{P}source_{name}_tokens_total") == total
    by_drafted = interval.by(f"{P}source_drafted_tokens_total", "source")
    for source, count in interval.by(f"{P}source_accepted_tokens_total", "source").items():
        assert count <= by_drafted[source]
    written = interval.total(f"{P}kv_slots_written_total")
    assert interval.total(f"{P}kv_slots_overwritten_total") <= written
    reserved = interval.total(f"{P}kv_reserve_slot_steps_total")
    assert interval.total(f"{P}kv_reserve_unneeded_slot_steps_total") <= reserved
    return drafted, accepted


def check_meta(meta):
    """Everything that must hold within one request's sums."""
    sums = meta[META]
    assert sums["drafted_tokens"] == sums["accepted_tokens"] + sums["rejected_tokens"]
    assert sum(sums["drafted_by_position"]) == sums["drafted_tokens"]
    assert sum(sums["accepted_by_position"]) == sums["accepted_tokens"]
    assert 0 <= sums["accept_rate"] <= 1
    for key, of in (("drafted", "drafted_tokens"), ("accepted", "accepted_tokens")):
        assert sum(source[key] for source in sums["sources"].values()) == sums[of]
    assert sums["verify_steps"] == meta["spec_verify_ct"]
    return sums


def check_sums(interval, answers):
    """The requests' sums are the counters' differences."""
    sums = [check_meta(a["meta_info"]) for a in answers if META in a["meta_info"]]
    for key, counter in (
        ("drafted_tokens", "drafted_tokens_total"),
        ("accepted_tokens", "accepted_tokens_total"),
        ("rejected_tokens", "rejected_tokens_total"),
        ("kv_reserve_slot_steps", "kv_reserve_slot_steps_total"),
    ):
        assert sum(s[key] for s in sums) == interval.total(P + counter), key
    assert sum(s["verify_steps"] for s in sums) == interval.total(f"{P}step_accepted_tokens_count")
    return sums


@pytest.mark.parametrize("at_once", [1, 4])
def test_sums_agree(speculating, at_once):
    name, server = speculating
    server.flush_cache()
    before = server.metrics()
    bodies = [body(p, ignore_eos=True) for p in prompts()]
    started = time.monotonic()
    answers = run(server, bodies, at_once)
    took = time.monotonic() - started
    interval = server.metrics() - before
    drafted, accepted = check_interval(interval)
    check_sums(interval, answers)
    assert drafted > 0 and accepted > 0
    for answer in answers:
        meta = answer["meta_info"]
        assert meta[META]["accepted_tokens"] == meta["spec_num_correct_drafts"]
    used = interval.by(f"{P}source_drafted_tokens_total", "source")
    assert {source for source, count in used.items() if count} <= SOURCES[name]
    stages = interval.by(f"{P}stage_seconds_sum", "stage")
    assert {stage for stage, seconds in stages.items() if seconds} == STAGES[name]
    assert set(interval.by(f"{P}stage_seconds_sum", "clock")) == {"host"}
    # Segments do not overlap, so together they took no longer than the requests.
    assert sum(stages.values()) < took
    assert sum(stages.values()) > 0.2 * took


def test_grammar(speculating):
    _, server = speculating
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["s", "m", "l"]}, "count": {"enum": [1, 2]}},
        "required": ["size", "count"],
        "additionalProperties": False,
    }
    before = server.metrics()
    bodies = [body(f"Order {i}: ", new_tokens=80, json_schema=json.dumps(schema)) for i in range(3)]
    answers = run(server, bodies, 3)
    interval = server.metrics() - before
    check_interval(interval)
    for sums, answer in zip(check_sums(interval, answers), answers, strict=True):
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        # One token is the prefill's; a step gives one more than it accepts, except that the
        # last one's bonus token is cut where a draft ended the document.
        grown = sums["accepted_tokens"] + sums["verify_steps"] + 1
        assert grown - 1 <= answer["meta_info"]["completion_tokens"] <= grown


def test_abort(speculating):
    _, server = speculating
    answer = {}
    before = server.metrics()
    long = {"rid": "gone", **body("x", new_tokens=900, ignore_eos=True)}
    thread = threading.Thread(
        target=lambda: answer.update(server.post("/generate", long, timeout=300))
    )
    thread.start()
    started = time.monotonic()
    while (server.metrics() - before).get(f"{P}steps_total") < 3:
        assert time.monotonic() < started + 60
        time.sleep(0.05)
    while thread.is_alive() and time.monotonic() < started + 120:
        server.request("POST", "/abort_request", json={"rid": "gone"})
        thread.join(0.5)
    other = run(server, [body(prompts()[4], ignore_eos=True)], 1)
    interval = server.metrics() - before
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    check_interval(interval)
    check_sums(interval, [answer, *other])


def test_retraction(speculating):
    name, server = speculating
    if name != "sam":
        pytest.skip("one server has a pool small enough")
    rng = random.Random(6)
    retracted = "sglang:num_retracted_requests_total"
    before = server.metrics()
    bodies = [body([rng.randrange(33, 127) for _ in range(60)], new_tokens=200) for _ in range(6)]
    answers = run(server, bodies, 6)
    interval = server.metrics() - before
    assert interval.get(retracted) > 0
    check_interval(interval)
    check_sums(interval, answers)
    again = [a["meta_info"] for a in answers if a["meta_info"]["num_retractions"]]
    assert again and all(m[META]["verify_steps"] > 0 for m in again)


def test_streams_carry_growing_sums(speculating):
    _, server = speculating
    import requests

    seen = []
    sent = {**body(prompts()[4], ignore_eos=True), "stream": True}
    with requests.post(f"{server.url}/generate", json=sent, stream=True, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith(b"data: {"):
                seen.append(json.loads(line[6:])["meta_info"].get(META))
    steps = [sums["verify_steps"] for sums in seen if sums]
    assert len(steps) > 1 and steps == sorted(steps) and steps[-1] > steps[0]


def test_report(speculating, capsys):
    name, server = speculating
    if os.environ.get("RECORD_SCRAPES"):
        lines = server.request("GET", "/metrics").text.splitlines(keepends=True)
        ours = "".join(line for line in lines if P in line)
        ours = re.sub(r'model_name="[^"]*"', 'model_name="tiny"', ours)  # else its path
        (Path(__file__).parent / "recorded" / f"{name}.prom").write_text(ours)
    from sglang.srt.observability.spec_report.__main__ import main

    assert main([server.url, "--interval", "0"]) == 0
    text = capsys.readouterr().out
    for stage in STAGES[name]:
        assert stage in text
    assert "Acceptance by draft position" in text
    assert main([server.url, "--interval", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drafted"] == server.metrics().total(f"{P}drafted_tokens_total")
    assert {stage["name"] for stage in found["stages"]} == STAGES[name]
    assert found["verdicts"]
    assert main([server.url, "--interval", "0.1"]) == 2  # no traffic
    assert "nothing was decoded" in capsys.readouterr().err


def test_plain_decoding_has_none_of_it(serve_with):
    server = serve_with({"chunked_prefill_size": 64}, name="plain")
    answer = server.post("/generate", body(prompts()[4]))
    assert META not in answer["meta_info"]
    from sglang.srt.speculative.observability import metrics

    tables = (metrics.COUNTERS, metrics.POSITION_COUNTERS, metrics.SOURCE_COUNTERS)
    ours = {f"{P}{name}_total" for table in tables for name in table}
    ours |= {P + name for name in metrics.GAUGES}
    ours |= {f"{P}{name}_sum" for name in (*metrics.HISTOGRAMS, metrics.STAGE_HISTOGRAM)}
    assert not ours & set(server.metrics().kinds)


def test_two_data_parallel_ranks_report_each_their_own(serve_with):
    server = serve_with(
        {**SPECULATE["ngram"], "dp_size": 2},
        env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},  # upstream wants a core for each
        name="ngram-dp2",
    )
    before = server.metrics()
    answers = run(server, [body(p, ignore_eos=True) for p in prompts()], 4)
    interval = server.metrics() - before
    check_interval(interval)
    check_sums(interval, answers)
    by_rank = interval.by(f"{P}drafted_tokens_total", "dp_rank")
    assert set(by_rank) == {"0", "1"} and all(by_rank.values())
