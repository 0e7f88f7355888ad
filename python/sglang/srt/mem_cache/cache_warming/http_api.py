# SPDX-License-Identifier: Apache-2.0
"""The endpoint ``/cache_warming``: list, add and remove prompts while serving.

An admin endpoint: open without API keys, else under the server's rules for those
(``AuthLevel.ADMIN_OPTIONAL``).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Mapping

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sglang.srt.managers.io_struct import CacheWarmingReqInput
from sglang.srt.mem_cache.cache_warming.control import as_token_ids
from sglang.srt.mem_cache.cache_warming.prompt_file import PromptError, parse_prompts
from sglang.srt.mem_cache.cache_warming.render import PromptRenderer
from sglang.srt.mem_cache.cache_warming.settings import FLAG
from sglang.srt.runtime_context import get_memory
from sglang.srt.utils.auth import AuthLevel, auth_level

PATH = "/cache_warming"


def add_routes(app: FastAPI) -> None:
    """Add the endpoint to the server's application.

    Directly, not as a router: upstream's key check looks at the application's own
    routes, and FastAPI no longer copies an included router's routes there, so that
    their level would read as that of an ordinary endpoint.
    """
    app.add_api_route(PATH, list_prompts, methods=["GET"])
    app.add_api_route(PATH, add_prompts, methods=["POST"])
    app.add_api_route(PATH, remove_prompts, methods=["DELETE"])


@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def list_prompts() -> JSONResponse:
    """The prompts with their state, for each data-parallel rank."""
    return await _ask(CacheWarmingReqInput(action="list"))


@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def add_prompts(request: Request) -> JSONResponse:
    """Add ``{"prompts": [...]}``, entries as in the prompts file."""
    try:
        raw = await _body(request, "prompts")
        items = await asyncio.get_running_loop().run_in_executor(
            None, _tokenize, request.app, raw
        )
    except PromptError as error:
        return _refusal(str(error))
    return await _ask(CacheWarmingReqInput(action="add", prompts=items))


@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def remove_prompts(request: Request) -> JSONResponse:
    """Remove ``{"names": [...]}``. What is cached of them stays ordinary cache."""
    try:
        names = await _body(request, "names")
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise PromptError('request: "names" must be a list of strings')
    except PromptError as error:
        return _refusal(str(error))
    return await _ask(CacheWarmingReqInput(action="remove", names=names))


async def _body(request: Request, key: str) -> Any:
    example = f'{{"{key}": [...]}}'
    try:
        body = await request.json()
    except ValueError as error:
        raise PromptError(
            f"request: the body is not JSON ({error}); send {example}"
        ) from None
    if not isinstance(body, Mapping) or set(body) != {key}:
        raise PromptError(f"request: the body must be an object of the form {example}")
    return body[key]


def _tokenize(app: Any, raw: Any) -> list[dict[str, Any]]:
    specs = parse_prompts(raw, where="request")
    from sglang.srt.entrypoints.http_server import get_global_state

    manager = get_global_state().tokenizer_manager
    renderer = PromptRenderer(
        manager.tokenizer,
        lambda: app.state.openai_serving_chat,
        manager.model_config.vocab_size,
    )
    items = [as_token_ids(spec, renderer.render(spec)) for spec in specs]
    for item, given in zip(items, raw, strict=True):
        if "name" not in given:
            # Only the scheduler knows which names are free.
            del item["name"]
    return items


async def _ask(req: CacheWarmingReqInput) -> JSONResponse:
    from sglang.srt.entrypoints.http_server import get_global_state

    if get_memory().cache_warming_prompts is None:
        return _refusal(
            f"cache warming is off; start the server with {FLAG} FILE (the file may "
            'hold {"prompts": []})'
        )
    manager = get_global_state().tokenizer_manager
    manager.auto_create_handle_loop()
    results = await manager.cache_warming_communicator(req)
    failed = [result.message for result in results if not result.success]
    if failed:
        return _refusal("; ".join(dict.fromkeys(failed)))
    return JSONResponse(
        {
            "message": results[0].message,
            "ranks": sorted(
                (result.state for result in results), key=lambda state: state["dp_rank"]
            ),
        }
    )


def _refusal(message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=HTTPStatus.BAD_REQUEST)
