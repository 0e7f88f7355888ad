# SPDX-License-Identifier: Apache-2.0
"""``python -m sglang.srt.observability.spec_report URL``."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import Sequence

from sglang.srt.observability.spec_report.analysis import analyse
from sglang.srt.observability.spec_report.render import as_json, print_report
from sglang.srt.observability.spec_report.scrape import (
    ReportError,
    fetch,
    two_scrapes,
)
from sglang.srt.observability.spec_report.verdicts import judge

EXIT_ERROR = 2


def seconds(text: str) -> float:
    """An interval of 0 to a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from 0 to 86400"
        )
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sglang.srt.observability.spec_report",
        description="Says where a live server's speculative decoding spends its time "
        "and its drafts. The server needs --enable-metrics.",
    )
    made.add_argument("url", metavar="URL", help="http://HOST:PORT or HOST:PORT")
    made.add_argument(
        "--interval",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds to watch; 0: everything since the server's start (default: 10)",
    )
    made.add_argument(
        "--model", metavar="NAME", help="only the samples of this model_name"
    )
    made.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 after a message on stderr."""
    options = parser().parse_args(arguments)
    try:
        interval = two_scrapes(
            lambda: fetch(options.url), options.interval, time.sleep, options.model
        )
    except ReportError as error:
        print(f"spec_report: error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("spec_report: interrupted", file=sys.stderr)
        return 130
    found = analyse(interval)
    verdicts = judge(found)
    if options.json:
        print(json.dumps(as_json(found, verdicts), indent=2))
    else:
        print_report(found, verdicts, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
