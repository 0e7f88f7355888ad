# SPDX-License-Identifier: Apache-2.0
"""The real scheduler, its loop and its model in this process, fed by a script.

No HTTP and no tokenizer: input is handed to the loop where it is received, output is
collected where it is sent. So input can arrive at a chosen pass of the loop, state can
be looked at between two passes, and thousands of operations cost seconds.

A process can hold one scheduler: run each scenario in a process of its own (``copies``).
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


class _Sink:
    """Stands where output is sent."""

    def __init__(self, owner: SchedulerInProcess):
        self.owner = owner

    def send_output(self, output, *_):
        if hasattr(output, "finished_reasons"):
            for i, rid in enumerate(output.rids):
                self.owner.output.setdefault(rid, []).extend(map(int, output.output_ids[i]))
                self.owner.cached[rid] = output.cached_tokens[i]
                if output.finished_reasons[i] is not None:
                    self.owner.ended[rid] = output.finished_reasons[i]["type"]
        elif type(output).__name__ == "AbortReq":  # of a request that was waiting
            self.owner.ended[output.rid] = "abort"
        else:
            self.owner.control.append(output)


class SchedulerInProcess:
    """A scheduler whose input is what ``script`` yields.

    Args:
        model: model folder.
        flags: server flags.
        script: called with this object; yields the list of inputs of each pass. The loop
            ends with it.
        give_up_s: ends the process after that many seconds.
        prepare: called when the arguments are in effect, before the scheduler is built.

    Attributes:
        output: output ids so far, by request id.
        cached: cached prompt tokens, by request id.
        ended: type of finish reason, by request id.
        control: what else the scheduler sent.
    """

    def __init__(
        self,
        model: str,
        flags: Sequence[str],
        script: Callable[[SchedulerInProcess], Iterator[list]],
        give_up_s: float = 500.0,
        prepare: Callable[[], Any] = lambda: None,
    ):
        timer = threading.Timer(give_up_s, lambda: os._exit(3))
        timer.daemon = True
        timer.start()
        import torch
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import PortArgs, prepare_server_args

        # The one rank meets itself: a file does, where a port that is found free now may be
        # another's when it is bound.
        meeting = Path(tempfile.mkdtemp(prefix="ranks-")) / "store"
        os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = meeting.as_uri()
        arguments = prepare_server_args(["--model-path", model, *flags])
        ports = PortArgs.init_new(arguments)
        ranks = SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
        publish(arguments, role="scheduler", ranks=ranks)
        prepare()
        self.scheduler = Scheduler(arguments, ports)
        # Small products on shared cores wait for each other's threads otherwise.
        torch.set_num_threads(1)
        self.scheduler.idle_sleeper = None  # the script knows when input comes
        self.output: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.control: list[Any] = []
        self._script = script(self)
        self.scheduler.request_receiver = self
        self.scheduler.output_streamer.send_to_detokenizer = _Sink(self)
        for name in ("send_to_tokenizer", "send_to_detokenizer"):
            object.__setattr__(self.scheduler.ipc_channels, name, _Sink(self))

    def run(self) -> None:
        """Run the loop until the script ends."""
        self.scheduler.run_event_loop()

    def recv_requests(self, local_reqs=None):
        """In place of the receiver's: the script's next input, then the local one."""
        try:
            new = next(self._script)
        except StopIteration:
            self.scheduler.gracefully_exit = True
            new = []
        return [*new, *(local_reqs or [])]

    def until(self, condition: Callable[[], bool]) -> Iterator[list]:
        """Passes without input until ``condition`` holds."""
        while not condition():
            yield []

    def running(self) -> list[Any]:
        """Requests that decode now."""
        batch = self.scheduler.running_batch
        return [] if batch is None else [req for req in batch.reqs if not req.finished()]

    def generate(self, rid: str, ids: Sequence[int], max_new_tokens: int, **more) -> Any:
        """A greedy request that runs to its length."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        return TokenizedGenerateReqInput(
            rid=rid,
            input_text="",
            input_ids=array("q", ids),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            **more,
        )


def main(make_run: Callable[[str, list[str]], Any]) -> None:
    """What a script ``MODEL RESULT.json [server flags]`` does; ends the process.

    ``make_run(model, flags)`` gives an object whose ``engine`` is run to its end and whose
    ``result()`` is written.
    """
    run = make_run(sys.argv[1], sys.argv[3:])
    run.engine.run()
    Path(sys.argv[2]).write_text(json.dumps(run.result()))
    os._exit(0)


def random_ids(rng: random.Random, count: int) -> list[int]:
    """Token ids that are bytes beyond the control characters."""
    return [40 + rng.randrange(200) for _ in range(count)]
