# SPDX-License-Identifier: Apache-2.0
"""The prompts file: a JSON object whose "prompts" lists the entries.

::

    {"prompts": [
      {"name": "support", "messages": [{"role": "system", "content": "..."}]},
      {"text": "...", "lora": "adapter", "priority": 2, "pin_seconds": 600},
      {"input_ids": [1, 5, 7], "extra_key": "tenant-a", "cache_salt": "s"}
    ]}

Checked without a tokenizer, so that it can fail before the server loads anything.
"""

from __future__ import annotations

import json
import math
from typing import Any, Iterable, Mapping, Optional, Sequence

import msgspec

CONTENT_KEYS = ("text", "messages", "input_ids")
_CHAT_ONLY = ("tools", "chat_template_kwargs", "add_generation_prompt")


class PromptError(ValueError):
    """An entry or a file that cannot be used; the text says which and why."""


class PromptSpec(msgspec.Struct, frozen=True):
    """One listed prompt, as written. Exactly one of text, messages, input_ids is set.

    Attributes:
        name: unique among the entries.
        text: tokenized like the "text" of ``/generate``.
        messages: OpenAI chat messages, put through the model's chat template.
        input_ids: token ids.
        tools: OpenAI tools, for the template; only with messages.
        chat_template_kwargs: further variables of the template; only with messages.
        add_generation_prompt: end with the template's start of an answer; only
            with messages. Off, the prompt is a prefix of longer conversations.
        lora: name of a LoRA adapter, as in requests.
        extra_key: cache namespace, as in requests.
        cache_salt: cache namespace, as in requests.
        priority: entries are warmed in its order, and its tree nodes carry it.
        pin_seconds: keep it from eviction for so long after it was warmed.
    """

    name: str
    text: Optional[str] = None
    messages: Optional[list[dict[str, Any]]] = None
    input_ids: Optional[list[int]] = None
    tools: Optional[list[dict[str, Any]]] = None
    chat_template_kwargs: Optional[dict[str, Any]] = None
    add_generation_prompt: bool = False
    lora: Optional[str] = None
    extra_key: Optional[str] = None
    cache_salt: Optional[str] = None
    priority: int = 0
    pin_seconds: Optional[float] = None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_token_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(_is_int(token) and token >= 0 for token in value)
    )


def _is_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and _is_text(m.get("role")) for m in value)
    )


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


# key -> (test, what is allowed)
_KEYS = {
    "name": (_is_text, "a non-empty string"),
    "text": (_is_text, "a non-empty string"),
    "messages": (_is_messages, "a non-empty list of objects that have a role"),
    "input_ids": (_is_token_ids, "a non-empty list of integers of at least 0"),
    "tools": (_is_objects, "a list of objects"),
    "chat_template_kwargs": (lambda v: isinstance(v, dict), "an object"),
    "add_generation_prompt": (lambda v: isinstance(v, bool), "true or false"),
    "lora": (_is_text, "a non-empty string"),
    "extra_key": (_is_text, "a non-empty string"),
    "cache_salt": (_is_text, "a non-empty string"),
    "priority": (_is_int, "an integer"),
    "pin_seconds": (lambda v: _is_number(v) and v > 0, "a number above 0"),
}


def parse_prompts(
    raw: Any, *, where: str, taken: Iterable[str] = ()
) -> list[PromptSpec]:
    """Check a list of entries. An entry without a name is called "prompt-N".

    Args:
        raw: the list, as JSON gives it.
        where: what to call it in errors.
        taken: names that are in use already.

    Raises:
        PromptError: names the entry by position and name, the key, and what is
            allowed.
    """
    if not isinstance(raw, list):
        raise PromptError(
            f'{where}: "prompts" must be a list, got {type(raw).__name__}'
        )
    specs: list[PromptSpec] = []
    names = set(taken)
    given = {
        item["name"]
        for item in raw
        if isinstance(item, dict) and _is_text(item.get("name"))
    }
    for position, item in enumerate(raw):
        spec = _parse_prompt(item, f"{where}: prompt {position}", names | given)
        if spec.name in names:
            raise PromptError(
                f"{where}: prompt {position}: the name {spec.name!r} is taken by "
                "another entry; names must be unique"
            )
        names.add(spec.name)
        specs.append(spec)
    return specs


def _free_name(taken: set[str]) -> str:
    number = 0
    while f"prompt-{number}" in taken:
        number += 1
    return f"prompt-{number}"


def _parse_prompt(item: Any, where: str, taken: set[str]) -> PromptSpec:
    if not isinstance(item, Mapping):
        raise PromptError(f"{where}: must be an object, got {type(item).__name__}")
    if _is_text(item.get("name")):
        where = f"{where} ({item['name']!r})"
    for key, value in item.items():
        if key not in _KEYS:
            raise PromptError(
                f"{where}: unknown key {key!r}; allowed keys are "
                + ", ".join(sorted(_KEYS))
            )
        accepts, allowed = _KEYS[key]
        if not accepts(value):
            raise PromptError(f"{where}: {key} must be {allowed}, got {_brief(value)}")
    content = [key for key in CONTENT_KEYS if key in item]
    if len(content) != 1:
        found = f"both {' and '.join(content)}" if content else "none of them"
        raise PromptError(
            f"{where}: give exactly one of {', '.join(CONTENT_KEYS)}; found {found}"
        )
    for key in _CHAT_ONLY:
        if key in item and content != ["messages"]:
            raise PromptError(f"{where}: {key} needs messages, not {content[0]}")
    fields = dict(item)
    fields.setdefault("name", _free_name(taken))
    return PromptSpec(**fields)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def load_prompt_file(path: str) -> list[PromptSpec]:
    """Read and check a prompts file.

    Raises:
        PromptError: the file cannot be read, is not JSON or does not have the
            form above.
    """
    where = f"prompts file {path}"
    try:
        with open(path, encoding="utf-8") as file:
            raw = json.load(file)
    except OSError as error:
        raise PromptError(f"{where} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{where} is not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise PromptError(f"{where} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise PromptError(
            f'{where} must hold an object with the key "prompts", got a '
            f"{type(raw).__name__}"
        )
    unknown: Sequence[str] = sorted(set(raw) - {"prompts"})
    if unknown:
        raise PromptError(
            f'{where}: unknown key {unknown[0]!r}; the only allowed key is "prompts"'
        )
    if "prompts" not in raw:
        raise PromptError(f'{where}: the key "prompts" is missing')
    return parse_prompts(raw["prompts"], where=where)
