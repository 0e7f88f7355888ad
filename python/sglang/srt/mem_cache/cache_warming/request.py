# SPDX-License-Identifier: Apache-2.0
"""The internal request that computes one chunk of a listed prompt.

It goes the way of any request: matched against the tree, prefilled in a batch,
inserted into the tree when it finishes with its first token. Only nobody waits for
its output: ``Req.is_cache_warming`` is what the patched places look at.
"""

from __future__ import annotations

import time
from typing import Any, Optional

from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.cache_warming.steps import PrefillStep
from sglang.srt.sampling.sampling_params import SamplingParams

RID_PREFIX = "cache-warming"


class WarmingReqInput(TokenizedGenerateReqInput, kw_only=True):
    """Input of a warming request; made and consumed within one scheduler."""


class WarmingReq(Req):
    """A request without a client."""

    is_cache_warming = True

    def __init__(self, *args: Any, **kwargs: Any):
        # Its queue and prefill times are not those of any user.
        kwargs["metrics_collector"] = None
        super().__init__(*args, **kwargs)
        # Upstream keeps requests with the fake bootstrap host, its own warm-up
        # requests, out of the tree. Entering it is what this one is for.
        self.skip_radix_cache_insert = False
        self.started_at = time.monotonic()
        self.ended_at: Optional[float] = None

    def end(self) -> None:
        """Called where its output would be sent."""
        self.finished_output = True
        if self.ended_at is None:
            self.ended_at = time.monotonic()


def request_input(
    step: PrefillStep, *, serve_priority: bool, prefill_instance: bool
) -> WarmingReqInput:
    """The step as an input of ``Scheduler.handle_generate_request``.

    Args:
        serve_priority: pass the entry's priority on; without priority scheduling
            a server may reject requests that carry one.
        prefill_instance: of prefill-decode disaggregation: send the KV nowhere.
    """
    sampling_params = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    sampling_params.normalize(None)
    return WarmingReqInput(
        rid=f"{RID_PREFIX}-{step.serial}-{len(step.tokens)}",
        input_text="",
        input_ids=step.tokens,
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=sampling_params,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
        lora_id=step.lora_id,
        extra_key=step.extra_key,
        cache_salt=step.cache_salt,
        priority=step.priority if serve_priority else None,
        bootstrap_host=FAKE_BOOTSTRAP_HOST if prefill_instance else None,
        bootstrap_room=0 if prefill_instance else None,
    )
