# SPDX-License-Identifier: Apache-2.0
"""``/prefix_registry``: what prefill instances have cached, for routers.

Under the server's API key where one is set, as every ordinary endpoint.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Optional

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sglang.srt.disaggregation.prefix_registry.registry import Prompt
from sglang.srt.disaggregation.prefix_registry.settings import FLAG

PATH = "/prefix_registry"
_U32_MAX = 2**32 - 1


class EstimateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A prompt, as text or as token ids, and its namespace as in ``/generate``."""

    text: Optional[str] = None
    input_ids: Optional[list[int]] = None
    extra_key: Optional[str] = None
    cache_salt: Optional[str] = None
    lora_path: Optional[str] = None


def add_routes(app: FastAPI) -> None:
    """Add the endpoints to the server's application.

    Directly, not as a router: see ``mem_cache/cache_warming/http_api.py``.
    """
    app.add_api_route(PATH, show, methods=["GET"])
    app.add_api_route(f"{PATH}/estimate", estimate, methods=["POST"])


async def show() -> JSONResponse:
    """State of the registry of every known prefill instance."""
    registry = _registry()
    if registry is None:
        return _refusal(_why_not())
    return JSONResponse({"instances": registry.describe()})


async def estimate(request: Request) -> JSONResponse:
    """For each known prefill instance the tokens of a prompt that it has cached."""
    registry = _registry()
    if registry is None:
        return _refusal(_why_not())
    try:
        asked = msgspec.json.decode(await request.body(), type=EstimateRequest)
        token_ids = await _token_ids(asked)
    except (msgspec.MsgspecError, ValueError) as error:
        return _refusal(
            f'{error}; send {{"text": "..."}} or {{"input_ids": [...]}}, optionally '
            "with extra_key, cache_salt, lora_path"
        )
    prompt = Prompt(
        token_ids,
        extra_key=asked.extra_key,
        # As a request's constructor does.
        cache_salt=asked.cache_salt or None,
        lora_name=asked.lora_path,
    )
    # Hashing releases the interpreter lock: a long prompt must not hold the loop up.
    found = await asyncio.get_running_loop().run_in_executor(
        None, registry.estimate_all, prompt
    )
    return JSONResponse({"prompt_tokens": len(token_ids), "instances": found})


async def _token_ids(asked: EstimateRequest) -> list[int]:
    if (asked.text is None) == (asked.input_ids is None):
        raise ValueError("exactly one of text and input_ids is needed")
    if asked.input_ids is not None:
        if not asked.input_ids:
            raise ValueError("input_ids is empty")
        if not 0 <= min(asked.input_ids) <= max(asked.input_ids) <= _U32_MAX:
            raise ValueError(f"input_ids must lie between 0 and {_U32_MAX}")
        return asked.input_ids
    if not asked.text:
        raise ValueError("text is empty")
    manager = _manager()
    if manager.tokenizer is None:
        raise ValueError("this server has no tokenizer (--skip-tokenizer-init)")
    # As /generate does, so that the estimate is for the tokens it would use.
    token_ids, _ = await manager._tokenize_texts(asked.text)
    return token_ids


def _manager() -> Any:
    from sglang.srt.entrypoints.http_server import get_global_state

    return get_global_state().tokenizer_manager


def _registry() -> Any:
    return _manager().prefix_registry


def _why_not() -> str:
    from sglang.srt.runtime_context import get_disagg

    disagg = get_disagg()
    if disagg.enable_cross_instance_cache_sync:
        return (
            f"this is a {disagg.disaggregation_mode} instance; decode instances keep "
            "the registry"
        )
    return f"the prefix registry is off; start prefill and decode instances with {FLAG}"


def _refusal(message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=HTTPStatus.BAD_REQUEST)
