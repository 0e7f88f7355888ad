# SPDX-License-Identifier: Apache-2.0
"""On real servers of every algorithm: the exported sums are true and agree with each other."""

from __future__ import annotations

import importlib.util
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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
    "sam": {
        "chunked_prefill_size": 64,
        "speculative_algorithm": "NGRAM",
        "speculative_ngram_use_sam": True,
        "max_total_tokens": 1024,
        "schedule_conservativeness": 0.1,
    },
}
STAGES = {
    "ngram": {"lookup", "tree_build", "verify", "index_update"},
    "sam": {"lookup", "tree_build", "verify"},
    "standalone": {"draft", "tree_build", "verify", "draft_extend", "draft_prefill"},
    "eagle": {"draft", "tree_build", "verify", "draft_extend", "draft_prefill"},
}
SOURCES = {
    "ngram": {"ngram", "padding"},
    "sam": {"own", "shared", "padding"},
    "standalone": {"draft_model"},
    "eagle": {"draft_model"},
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


def eagle_heads():
    """The platform tests' maker of random heads; their folder has a standard module's name."""
    path = Path(__file__).parents[1] / "platform" / "eagle_head.py"
    spec = importlib.util.spec_from_file_location("eagle_head", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=list(SPECULATE))
def speculating(request, serve_with, tiny_model, tmp_path_factory):
    """A server a algorithm."""
    flags = dict(SPECULATE[request.param])
    if request.param == "standalone":
        flags["speculative_draft_model_path"] = str(tiny_model)
    elif request.param == "eagle":
        head = eagle_heads().make_eagle_head(tiny_model, tmp_path_factory.mktemp("eagle"))
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
    assert all(earlier >= later for earlier, later in zip(hit, hit[1:]))
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
