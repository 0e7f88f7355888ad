# SPDX-License-Identifier: Apache-2.0
"""Runs the real scheduler's own loop with input that arrives at chosen passes.

    python scheduler_by_hand.py MODEL RESULT.json [server flags]

No HTTP, no tokenizer process: input is handed to the loop where it is received, output
is collected where it is sent. So a request or a flush can be made to arrive while a
warming chunk is on its way, which a client cannot time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from array import array

GIVE_UP_S = 240.0
TEXT = list(b"The quick brown fox jumps over the lazy dog. " * 3)
PROMPTS = {
    "first": [*TEXT, *b"Now what?"],
    "second": [*TEXT, *b"And then?"],
    "tenant": [*range(10, 34), 50, 51],
    "other": list(b"something else"),
}
NAMESPACE = {"tenant": {"extra_key": "tenant", "cache_salt": "pepper"}}


class Sink:
    """Stands where output is sent."""

    def __init__(self, run):
        self.run = run

    def send_output(self, output, *_):
        if hasattr(output, "finished_reasons"):
            for i, rid in enumerate(output.rids):
                self.run.output.setdefault(rid, []).extend(output.output_ids[i])
                self.run.cached[rid] = output.cached_tokens[i]
                if output.finished_reasons[i] is not None:
                    self.run.ended.add(rid)
        else:
            self.run.control.append(output)


class Run:
    """One scheduler and what came out of it."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.warmer = scheduler.cache_warmer
        self.output, self.cached, self.ended, self.control = {}, {}, set(), []
        self.arrived_during_chunk = {}
        self.script = self.inputs()
        scheduler.request_receiver = self
        scheduler.output_streamer.send_to_detokenizer = Sink(self)
        for name in ("send_to_tokenizer", "send_to_detokenizer"):
            object.__setattr__(scheduler.ipc_channels, name, Sink(self))

    def recv_requests(self, local_reqs=None):
        """In place of the receiver's: the script's next input, then the local one."""
        try:
            new = next(self.script)
        except StopIteration:
            self.scheduler.gracefully_exit = True
            new = []
        return [*new, *(local_reqs or [])]

    def chunk_runs(self):
        """Whether a chunk was launched and no real request keeps the engine busy."""
        if self.warmer is None or self.warmer._req is None:
            return False
        live = self.scheduler.collect_inflight_reqs()
        return bool(live) and all(req.is_cache_warming for req in live)

    def until(self, condition):
        while not condition():
            yield []

    def inputs(self):
        from sglang.srt.managers.io_struct import FlushCacheReqInput

        computes = self.warmer is not None and self.warmer.hints is None
        if computes:
            yield from self.until(self.chunk_runs)
        yield from self.answer("during a chunk", "first")
        if computes:
            yield from self.until(self.chunk_runs)
            self.arrived_during_chunk["flush"] = True
        else:
            yield from self.until(self.scheduler.is_fully_idle)
        yield [FlushCacheReqInput()]
        yield from self.until(lambda: self.control)
        if self.warmer is not None:
            yield from self.until(lambda: not self.warmer.has_work())
        for name in PROMPTS:
            yield from self.answer(name, name)
        yield [self.request(f"{name} again", name) for name in PROMPTS]
        yield from self.until(lambda: all(f"{name} again" in self.ended for name in PROMPTS))
        yield from self.until(self.scheduler.is_fully_idle)

    def answer(self, rid, name):
        self.arrived_during_chunk[rid] = self.chunk_runs()
        yield [self.request(rid, name)]
        yield from self.until(lambda: rid in self.ended)

    def request(self, rid, name):
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        return TokenizedGenerateReqInput(
            rid=rid,
            input_text="",
            input_ids=array("q", PROMPTS[name]),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            **NAMESPACE.get(name, {}),
        )

    def result(self):
        found = {
            "output": {rid: list(map(int, ids)) for rid, ids in sorted(self.output.items())},
            "cached": self.cached,
            "flushed": [o.success for o in self.control if hasattr(o, "success")],
            "control": [type(o).__name__ for o in self.control],
            "arrived_during_chunk": self.arrived_during_chunk,
            "core": type(self.scheduler.tree_cache.tree_core).__name__,
            "overlap": self.scheduler.enable_overlap,
        }
        if self.warmer is not None:
            found["prompts"] = self.warmer.planner.describe()["prompts"]
        return found


def main(model, path, flags):
    threading.Timer(GIVE_UP_S, lambda: os._exit(3)).start()
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, prepare_server_args

    arguments = prepare_server_args(
        ["--model-path", model, "--max-total-tokens", "4096", "--schedule-policy", "lpm", *flags]
    )
    ports = PortArgs.init_new(arguments)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    run = Run(Scheduler(arguments, ports))
    run.scheduler.run_event_loop()
    with open(path, "w") as file:
        json.dump(run.result(), file)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
