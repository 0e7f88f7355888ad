# SPDX-License-Identifier: Apache-2.0
"""Command-line conventions of the benchmarks.

Every ``bench_*.py`` builds an ``argparse`` parser with ``parser()``, adds the
options it shares with the others through ``add_output_options()`` and runs
through ``main()``:

* no argument at all: a quick version that ends in one to two minutes;
* ``--full``: everything, for a recorded result;
* ``--json FILE``, ``--plot FILE``: where the results go (the folder must exist);
* exit code 0 success, 1 a measured requirement failed, 2 wrong usage or input,
  130 interrupted. Errors are one message on stderr, without a traceback.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, Callable, Collection, Sequence

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows a default where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default
        if shown is None or shown is False or shown in (argparse.SUPPRESS, []):
            return action.help
        if isinstance(shown, list):
            shown = ",".join(str(item) for item in shown)
        return f"{action.help} (default: {shown})"


class BenchError(Exception):
    """Wrong input or set-up. The message says what is wrong and what is allowed."""


def parser(description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser that prints defaults and keeps the line breaks of its texts."""
    return argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=_Formatter
    )


def add_output_options(target: argparse.ArgumentParser) -> None:
    """``--json``, ``--plot``, ``--full`` and ``--seed``."""
    group = target.add_argument_group("run and output")
    group.add_argument(
        "--full", action="store_true", help="measure everything; takes several minutes"
    )
    group.add_argument(
        "--seed", type=natural, default=0, metavar="N", help="seed of random workloads"
    )
    group.add_argument(
        "--json",
        type=output_file(".json"),
        metavar="FILE",
        help="write results, settings and machine facts here",
    )
    group.add_argument(
        "--plot",
        type=output_file(".png", ".svg", ".pdf"),
        metavar="FILE",
        help="write a plot here (PNG, SVG or PDF)",
    )


def natural(text: str) -> int:
    """An integer of at least 0."""
    return _integer(text, 0)


def positive(text: str) -> int:
    """An integer of at least 1. ``k`` and ``m`` stand for 1,000 and 1,000,000."""
    return _integer(text, 1)


def positive_list(text: str) -> list[int]:
    """Comma-separated integers of at least 1, ascending, without repeats."""
    return sorted({positive(part) for part in comma_list(text)})


def comma_list(text: str) -> list[str]:
    """Comma-separated words, empty ones refused."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} has an empty entry; write values separated by single commas"
        )
    return parts


def words_of(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """Comma-separated words, each one of ``known``; ``what`` names one in the error."""

    def check(text: str) -> list[str]:
        words = comma_list(text)
        unknown = [word for word in words if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown {what} {', '.join(unknown)}; known: {', '.join(known)}"
            )
        return words

    return check


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return value


def factor(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def named_json_object(text: str) -> tuple[str, dict[str, Any]]:
    """``NAME={...}``: a name and a JSON object."""
    name, equals, body = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME={{...}}, e.g. 'slru={{}}'")
    try:
        return name, json_object(body)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """A file to be written: its folder must exist, its suffix must be known."""

    def check(text: str) -> Path:
        path = Path(text)
        if path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{text!r} must end in {' or '.join(suffixes)}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(
                f"folder {str(path.parent)!r} of {text!r} does not exist; create it first"
            )
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r} is a folder")
        return path

    return check


def input_file(text: str) -> Path:
    """A file that exists and can be read."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {text!r}")
    return path


def main(
    run: Callable[[argparse.Namespace], int | None],
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
) -> int:
    """Parse, run and return the exit code; for ``raise SystemExit(main(...))``."""
    options = arguments.parse_args(argv)
    try:
        return run(options) or EXIT_OK
    except BenchError as error:
        print(f"{arguments.prog}: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f"{arguments.prog}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # fails every comparison


def _integer(text: str, least: int) -> int:
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    digits = text if scale == 1 else text[:-1]
    if not digits.isascii() or not digits.isdigit() or int(digits) * scale < least:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an integer of at least {least} (10000 or 10k)"
        )
    return int(digits) * scale
