# SPDX-License-Identifier: Apache-2.0
"""Measures host costs of a step on a real scheduler in this process, in half a minute.

    python benchmark/sglang_optimization/overlap/in_process.py MODEL RESULT.json

No HTTP and no tokenizer process: requests are handed to the loop where it receives them,
1, 2, 4, ... at a time, and what it sends is dropped. Written are the averages that the
server would decide by, as lines over the batch size.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from overlap.costs import fit

BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 48
DECODE = 1
FLAGS = ["--max-total-tokens", "8192", "--random-seed", "1", "--enable-dynamic-overlap"]


class Feed:
    """Stands where the scheduler receives and sends."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.open: set[str] = set()
        self.input = self._waves()
        scheduler.request_receiver = self
        scheduler.output_streamer.send_to_detokenizer = self
        for name in ("send_to_tokenizer", "send_to_detokenizer"):
            object.__setattr__(scheduler.ipc_channels, name, self)

    def send_output(self, output: Any, *_: Any) -> None:
        """Takes note of what has ended."""
        for rid, reason in zip(
            getattr(output, "rids", ()), getattr(output, "finished_reasons", ()), strict=False
        ):
            if reason is not None:
                self.open.discard(rid)

    def recv_requests(self, local_reqs: list[Any] | None = None) -> list[Any]:
        """The next input of the plan, then the scheduler's own."""
        new = next(self.input, None)
        if new is None:
            self.scheduler.gracefully_exit = True
        return [*(new or ()), *(local_reqs or ())]

    def _waves(self) -> Iterator[list[Any]]:
        for size in BATCHES:
            requests = [self._request(f"{size}-{number}", number) for number in range(size)]
            self.open = {request.rid for request in requests}
            yield requests
            while self.open:
                yield []

    @staticmethod
    def _request(rid: str, number: int) -> Any:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        return TokenizedGenerateReqInput(
            rid=rid,
            input_text="",
            input_ids=array("q", [40 + number, *range(40, 40 + PROMPT_TOKENS)]),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=True,
        )


def main(model: str, path: str) -> None:
    """Runs the waves and writes the calibration."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, prepare_server_args

    arguments = prepare_server_args(["--model-path", model, *FLAGS])
    ports = PortArgs.init_new(arguments)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    scheduler = Scheduler(arguments, ports)
    Feed(scheduler)
    scheduler.run_event_loop()
    maker = scheduler.dynamic_overlap.maker
    known = {size: maker.averages(DECODE, size) for size in BATCHES}
    found: dict[str, Any] = {
        part: asdict(fit([(size, getattr(a, part)) for size, a in known.items() if a]))
        for part in ("schedule", "launch", "process")
    }
    found["sizes"] = [size for size, averages in known.items() if averages]
    found["averages_us"] = {
        size: {part: round(1e6 * getattr(a, part)) for part in ("schedule", "launch", "process")}
        for size, a in known.items()
        if a
    }
    Path(path).write_text(json.dumps(found, indent=1) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
