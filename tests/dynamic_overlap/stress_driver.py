# SPDX-License-Identifier: Apache-2.0
"""One scheduler under a seeded mix of requests; run once per way of deciding.

    python stress_driver.py MODEL RESULT.json SEED off|overlap|flip [server flags]

``flip`` decides at random at every step: process the queued result before scheduling,
just before launching, or after. Requests are long (chunked), constrained by a regular
expression, penalized, ended by a stop token, by their length or by an abort, one is
retracted every few steps, and the engine is paused now and then, in place or with all
requests retracted. Everything is drawn before the run from SEED, so that runs that
decide differently are given the same requests.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from support.scheduler_in_process import SchedulerInProcess

REQUESTS = 28
# Arrive at once, so that batches are wide.
BURST = 8
STOP_TOKENS = range(ord("a"), ord("k"))
# In passes that do something; long enough for a request to arrive meanwhile.
PAUSE_INTERVAL, PAUSED_PASSES = 11, 3


def draw(seed: int) -> list[dict[str, Any]]:
    """The requests: prompt, length, how it ends and the pass in which it arrives."""
    rng = random.Random(seed)
    drawn: list[dict[str, Any]] = []
    at = 0
    for number in range(REQUESTS):
        phrase = [rng.randrange(33, 127) for _ in range(rng.choice((1, 4, 9, 300)))]
        length = rng.choice((1, 5, 20, 63, 64, 65, 150, 200))
        kind = rng.choices(("length", "stop", "regex", "penalty", "abort"), (4, 3, 2, 1, 2))[0]
        at += rng.choice((0, 0, 0, 1, 2, 5))
        drawn.append(
            {
                "rid": f"{kind}-{number}",
                "kind": kind,
                "ids": (phrase * 200)[:length],
                "new": rng.choice((1, 2, 7, 40, 80, 80)),
                "at": at,
                "abort_after": rng.randrange(0, 25),
            }
        )
    for number in range(BURST):
        ids = [rng.randrange(33, 127) for _ in range(45)]
        drawn.append(
            {"rid": f"length-burst-{number}", "kind": "length", "ids": ids, "new": 40, "at": at}
        )
    return drawn


class FlipMaker:
    """Stands where decisions are made and tosses a coin for each."""

    switches = 0

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.proposals: dict = {}
        self.early = self.late = self.overlapped = self.plain = 0

    def decide(self, phase, size):
        early = self.random.random() < 0.4
        self.early += early
        return not early, "coin"

    def wants_times(self, phase, size):
        return True

    def observe(self, *times):
        pass

    def kinds(self):
        return ()


def install_flips(scheduler, seed: int) -> FlipMaker:
    """Replaces the decision maker, and drains at random before a launch as well."""
    overlap = scheduler.dynamic_overlap
    maker = overlap.maker = FlipMaker(seed)
    ask = scheduler.is_disable_overlap_for_batch

    def asked(batch, last_batch):
        disable = ask(batch, last_batch=last_batch)
        if not disable and last_batch and scheduler.result_queue:
            if maker.random.random() < 0.3:
                maker.late += 1
                return True
            maker.overlapped += 1
        return disable

    ended = overlap.launch_ended

    def launch_ended(result):
        maker.plain += not scheduler.enable_overlap
        ended(result)

    overlap.launch_ended = launch_ended
    scheduler.is_disable_overlap_for_batch = asked
    return maker


class Contexts:
    """What the n-gram corpus was asked for, to be compared with what was really written."""

    def __init__(self, corpus, depth: int):
        self.depth = depth
        self.asked: list[tuple[str, int, list[int]]] = []
        get = corpus.batch_get

        def batch_get(rids, contexts, lengths):
            for rid, context, length in zip(rids, contexts, lengths, strict=True):
                self.asked.append((rid, length, list(map(int, context))))
            return get(rids, contexts, lengths)

        corpus.batch_get = batch_get

    def wrong(self, texts: dict[str, list[int]]) -> list[Any]:
        """Contexts that are not the end of the request's text at that length."""
        found = []
        for rid, length, context in self.asked:
            text = texts[rid]
            # Tokens drafted beyond a stop or an abort are cut from the text.
            if length <= len(text) and context != text[:length][-self.depth :]:
                found.append([rid, length, context, text[:length][-self.depth :]])
        return found


def script(requests, retracted, pauses):
    """Yields the input of each pass: arrivals by pass, aborts by tokens written.

    Counts what is retracted, and in ``pauses`` by whether a result was queued then.
    """

    def inputs(run: SchedulerInProcess):
        from sglang.srt.managers.io_struct import (
            AbortReq,
            ContinueGenerationReqInput,
            PauseGenerationReqInput,
        )

        scheduler = run.scheduler
        add = scheduler._add_request_to_queue

        def counted(req, is_retracted=False, **more):
            retracted[0] += bool(is_retracted)
            return add(req, is_retracted=is_retracted, **more)

        scheduler._add_request_to_queue = counted
        waiting = list(requests)
        to_abort = {r["rid"]: r for r in requests if r["kind"] == "abort"}
        step = 0
        while len(run.ended) < len(requests):
            new = []
            while waiting and waiting[0]["at"] <= step:
                new.append(request(run, waiting.pop(0)))
            for rid, r in list(to_abort.items()):
                if len(run.output.get(rid, [])) >= r["abort_after"] and r not in waiting:
                    del to_abort[rid]
                    new.append(AbortReq(rid=rid))
            pause, paused = divmod(step, PAUSE_INTERVAL)
            if pause and not paused:
                mode = "retract" if pause % 2 else "in_place"
                new.append(PauseGenerationReqInput(mode=mode))
                if scheduler.last_batch and scheduler.enable_overlap and mode == "retract":
                    pauses[bool(scheduler.result_queue)] += 1
            elif pause and paused == PAUSED_PASSES:
                new.append(ContinueGenerationReqInput(torch_empty_cache=False))
            yield new
            step += 1
        yield [ContinueGenerationReqInput(torch_empty_cache=False)]
        yield from run.until(scheduler.is_fully_idle)
        yield []

    return inputs


def request(run: SchedulerInProcess, r: dict[str, Any]):
    """The request as a client's would be."""
    made = run.generate(r["rid"], r["ids"], r["new"])
    made.stream = True
    sampling = made.sampling_params
    if r["kind"] == "stop":
        sampling.ignore_eos = False
        sampling.stop_token_ids = set(STOP_TOKENS)
    elif r["kind"] == "regex":
        sampling.ignore_eos = False
        sampling.regex = "([a-f]{1,3}-){2}[0-9]{1,4}"
    elif r["kind"] == "penalty":
        sampling.frequency_penalty = 0.5
    return made


def main(model: str, path: str, seed: int, way: str, flags: list[str]) -> None:
    os.environ["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"] = "1"
    from sglang.srt.managers import scheduler as module

    # Read from the environment when the module was imported.
    module.TEST_RETRACT, module.TEST_RETRACT_INTERVAL = True, 17
    requests = draw(seed)
    retracted, pauses = [0], [0, 0]
    way_flags = {
        "off": ["--disable-overlap-schedule"],
        "overlap": [],
        "flip": ["--enable-dynamic-overlap"],
    }[way]
    base = ["--max-total-tokens", "560", "--chunked-prefill-size", "64", "--random-seed", "1"]
    base += ["--schedule-conservativeness", "0.1", "--max-running-requests", "12"]
    run = SchedulerInProcess(
        model, [*base, *way_flags, *flags], script(requests, retracted, pauses)
    )
    scheduler = run.scheduler
    maker = install_flips(scheduler, seed) if way == "flip" else None
    corpus = getattr(scheduler.draft_worker, "ngram_corpus", None)
    contexts = Contexts(corpus, scheduler.draft_worker.max_trie_depth) if corpus else None
    run.run()
    found: dict[str, Any] = {
        "output": dict(sorted(run.output.items())),
        "ended": dict(sorted(run.ended.items())),
        "retracted": retracted[0],
        "pauses": pauses,
        "overlap": scheduler.enable_overlap,
        "free": scheduler.token_to_kv_pool_allocator.available_size()
        + scheduler.tree_cache.evictable_size(),
        "pool": scheduler.max_total_num_tokens,
    }
    if maker is not None:
        found["flips"] = [maker.early, maker.late, maker.overlapped]
        found["plain_launches"] = maker.plain
    if contexts is not None:
        texts = {r["rid"]: r["ids"] + run.output.get(r["rid"], []) for r in requests}
        found["contexts"] = len(contexts.asked)
        found["wrong_contexts"] = contexts.wrong(texts)[:5]
    Path(path).write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:])
