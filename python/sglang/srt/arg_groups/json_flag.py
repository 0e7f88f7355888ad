# SPDX-License-Identifier: Apache-2.0
"""Flags that take settings as a JSON object: parsing and checking key by key.

Free of torch and of the scheduler: fields of ``ServerArgs`` import it while they are
being built.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping, NamedTuple


class Rule(NamedTuple):
    """What one key may hold.

    Attributes:
        types: of the value; a bool is no number.
        allowed: what an error says is allowed.
        accepts: whether a value of these types is.
    """

    types: tuple[type, ...]
    allowed: str
    accepts: Callable[[Any], bool]


def object_parser(example: str) -> Callable[[str], dict[str, Any]]:
    """Returns what argparse may call to parse a flag's text into an object.

    It raises ``argparse.ArgumentTypeError``, the one whose text argparse prints, where
    the text is not a JSON object; ``example`` is shown then.
    """

    def parse(text: str) -> dict[str, Any]:
        from argparse import ArgumentTypeError

        hint = f"pass an object, e.g. '{example}'"
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ArgumentTypeError(f"{text!r} is not JSON ({error}); {hint}") from None
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise ArgumentTypeError(f"{text!r} is a JSON {kind}; {hint}")
        return value

    return parse


def check_keys(flag: str, raw: Any, rules: Mapping[str, Rule]) -> None:
    """Checks each key of ``raw`` against its rule.

    Raises:
        ValueError: not an object, an unknown key, or a value of the wrong type or out
            of range. The text names the flag, the key, the value and what is allowed.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"{flag} takes a JSON object, got {raw!r}")
    for key, value in raw.items():
        if key not in rules:
            names = ", ".join(sorted(rules))
            raise ValueError(f"{flag}: unknown key {key!r}; allowed keys are {names}")
        rule = rules[key]
        # bool is an int to isinstance.
        wrong_type = not isinstance(value, rule.types) or (
            isinstance(value, bool) and bool not in rule.types
        )
        if wrong_type or not rule.accepts(value):
            raise ValueError(
                f"{flag}: {key}={value!r} is not allowed; use {rule.allowed}"
            )
