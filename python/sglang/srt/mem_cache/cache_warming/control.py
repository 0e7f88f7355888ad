# SPDX-License-Identifier: Apache-2.0
"""Answers the endpoint's requests in the scheduler that holds the entries."""

from __future__ import annotations

from array import array
from typing import Any, Optional

from sglang.srt.managers.io_struct import CacheWarmingReqInput, CacheWarmingReqOutput
from sglang.srt.mem_cache.cache_warming.planner import Planner
from sglang.srt.mem_cache.cache_warming.prompt_file import (
    PromptError,
    PromptSpec,
    parse_prompts,
)
from sglang.srt.runtime_context import get_parallel


def answer(
    planner: Optional[Planner], req: CacheWarmingReqInput
) -> CacheWarmingReqOutput:
    """Carry ``req`` out. All of its entries are taken, or none.

    ``planner`` is None on ranks that do not decide; their answer is not sent.
    """
    if planner is None:
        return CacheWarmingReqOutput(success=True)
    try:
        message = _carry_out(planner, req)
    except PromptError as error:
        return CacheWarmingReqOutput(success=False, message=str(error))
    state = {"dp_rank": get_parallel().dp_rank or 0, **planner.describe()}
    return CacheWarmingReqOutput(success=True, message=message, state=state)


def _carry_out(planner: Planner, req: CacheWarmingReqInput) -> str:
    if req.action == "list":
        return ""
    if req.action == "add":
        specs = parse_prompts(req.prompts, where="request", taken=planner.names)
        # The frontend sends token ids; the entry keeps what it was made of.
        tokens = [planner.check(spec) for spec in specs]
        planner.add(specs, [array("q", ids) for ids in tokens])
        return f"added {_listed([spec.name for spec in specs])}"
    if req.action == "remove":
        known = planner.names
        unknown = [name for name in req.names if name not in known]
        if unknown:
            raise PromptError(
                f"no prompt is called {_listed(unknown)}; the names are "
                + (_listed(sorted(known)) or "none: no prompt is listed")
            )
        for name in req.names:
            planner.remove(name)
        return f"removed {_listed(req.names)}"
    raise PromptError(
        f"unknown action {req.action!r}; allowed are 'list', 'add' and 'remove'"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def as_token_ids(spec: PromptSpec, ids: Any) -> dict[str, Any]:
    """``spec`` as an entry that lists token ids, for the scheduler."""
    item: dict[str, Any] = {"name": spec.name, "input_ids": list(ids)}
    for key in ("lora", "extra_key", "cache_salt", "priority", "pin_seconds"):
        value = getattr(spec, key)
        if value is not None:
            item[key] = value
    return item
