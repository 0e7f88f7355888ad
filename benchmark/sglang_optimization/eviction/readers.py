# SPDX-License-Identifier: Apache-2.0
"""Trace files of other projects.

Two formats of one JSON object a line, told apart by their keys:

* **Mooncake** (kvcache-ai/Mooncake, FAST25 traces): ``timestamp`` in ms,
  ``input_length``, ``output_length``, ``hash_ids`` of 512-token blocks. The answer's
  blocks are not in the file; the next turn of a conversation shows up as a new
  prompt. Only prompts are inserted.
* **Qwen-Bailian** (alibaba-edu/qwen-bailian-usagetraces-anon): ``timestamp`` in s,
  16-token blocks, and ``chat_id``, ``parent_chat_id``, ``turn``. The answer's blocks
  are read from the follow-up's prompt where there is one; else they are fresh ids,
  so that the presence of an answer in the cache does not tell the future.

``.gz`` files are read as they are.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any, Iterator

from common.cli import BenchError

from .trace import Request, Trace

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
_COMMON_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_BAILIAN_KEYS = ("chat_id", "parent_chat_id", "turn")


class TraceError(BenchError):
    """A trace file that cannot be used; the message names file, line and remedy."""


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """Read the first ``limit`` requests of a Mooncake or Qwen-Bailian file.

    Requests are put in order of arrival; equal arrivals keep the file's order.
    Requests without a full block are left out, as they neither hit nor store.

    Raises:
        TraceError: unreadable file, unknown format, malformed line.
    """
    records: list[dict[str, Any]] = []
    bailian = False
    for number, record in _records(path):
        if not records:
            bailian = _is_bailian(path, number, record)
        records.append(_checked(path, number, record, bailian))
        if limit is not None and len(records) >= limit:
            break
    if not records:
        raise TraceError(f"{path.name} holds no request")
    records.sort(key=lambda record: record["timestamp"])

    requests = _bailian(records) if bailian else _mooncake(records)
    block_tokens = BAILIAN_BLOCK_TOKENS if bailian else MOONCAKE_BLOCK_TOKENS
    _check_block_tokens(path, records, block_tokens)
    if not requests:
        raise TraceError(f"{path.name}: no request has a full {block_tokens}-token block")
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    settings: dict[str, object] = {"format": "qwen-bailian" if bailian else "mooncake"}
    return Trace(name, requests, block_tokens, path.name, settings).head(limit)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise _malformed(path, number, f"not JSON ({error})") from None
                if not isinstance(record, dict):
                    raise _malformed(path, number, "not a JSON object")
                yield number, record
    except UnicodeDecodeError:
        raise _malformed(path, number + 1, "not UTF-8 text") from None
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"cannot read {path.name}: {reason}") from None


def _is_bailian(path: Path, number: int, record: dict[str, Any]) -> bool:
    missing = [key for key in _COMMON_KEYS if key not in record]
    if missing:
        raise _malformed(
            path,
            number,
            f"lacks {', '.join(missing)}; expected Mooncake (timestamp in ms, "
            "input_length, output_length, hash_ids) or Qwen-Bailian (the same with "
            "timestamp in s, chat_id, parent_chat_id, turn)",
        )
    return "chat_id" in record


def _checked(path: Path, number: int, record: dict[str, Any], bailian: bool) -> dict[str, Any]:
    for key in (*_COMMON_KEYS, *(_BAILIAN_KEYS if bailian else ())):
        if key not in record:
            raise _malformed(path, number, f"lacks {key}")
    if not _is_number(record["timestamp"]):
        raise _malformed(path, number, "timestamp must be a number of at least 0")
    for key in ("input_length", "output_length"):
        value = record[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _malformed(path, number, f"{key} must be an integer of at least 0")
    ids = record["hash_ids"]
    if not isinstance(ids, list) or not all(
        isinstance(block, (int, str)) and not isinstance(block, bool) for block in ids
    ):
        raise _malformed(path, number, "hash_ids must be a list of integers or strings")
    return record


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def _check_block_tokens(path: Path, records: list[dict[str, Any]], block_tokens: int) -> None:
    """Refuse a file whose block size is evidently another one."""
    blocks = sum(len(record["hash_ids"]) for record in records)
    tokens = sum(record["input_length"] for record in records)
    if blocks and not 0.5 <= tokens / blocks / block_tokens <= 2:
        raise TraceError(
            f"{path.name}: {tokens / blocks:.0f} prompt tokens a block, but this format "
            f"has {block_tokens}-token blocks; is it converted from another trace?"
        )


def _mooncake(records: list[dict[str, Any]]) -> list[Request]:
    number: dict[Any, int] = {}
    origin = records[0]["timestamp"]
    return [
        Request(
            arrival_s=(record["timestamp"] - origin) / 1000,
            blocks=tuple(number.setdefault(b, len(number)) for b in record["hash_ids"]),
            output_tokens=record["output_length"],
            input_tokens=record["input_length"],
        )
        for record in records
        if record["hash_ids"]
    ]


def _bailian(records: list[dict[str, Any]]) -> list[Request]:
    size = BAILIAN_BLOCK_TOKENS
    number: dict[Any, int] = {}
    prompts = []
    for record in records:
        # A partial last block is not a page of the cache, and the follow-up's
        # block at this position has another id.
        full = record["hash_ids"][: record["input_length"] // size]
        prompts.append(tuple(number.setdefault(b, len(number)) for b in full))
    follow_up: dict[Any, int] = {}
    for index in range(len(records) - 1, -1, -1):
        follow_up[records[index]["parent_chat_id"]] = index

    requests = []
    fresh = len(number)
    origin = records[0]["timestamp"]
    for index, (record, blocks) in enumerate(zip(records, prompts)):
        end = (record["input_length"] + record["output_length"]) // size
        child = follow_up.get(record["chat_id"])
        output: tuple[int, ...] = ()
        if child is not None and child > index and prompts[child][: len(blocks)] == blocks:
            output = prompts[child][len(blocks) : end]
        missing = max(0, end - len(blocks) - len(output))
        output += tuple(range(fresh, fresh + missing))
        fresh += missing
        if blocks:
            requests.append(
                Request(
                    arrival_s=float(record["timestamp"] - origin),
                    blocks=blocks,
                    output_blocks=output,
                    output_tokens=record["output_length"],
                    input_tokens=record["input_length"],
                )
            )
    return requests


def _malformed(path: Path, number: int, what: str) -> TraceError:
    return TraceError(f"{path.name}, line {number}: {what}")
