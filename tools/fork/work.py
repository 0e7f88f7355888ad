# SPDX-License-Identifier: Apache-2.0
"""Steps that several commands share: get the release, plan strictly, name the editable tree."""

from __future__ import annotations

from pathlib import Path

from fork.fetch import Log, fetch, pin_for_interpreter
from fork.plan import Plan, check_listed, make_plan, select_topics
from fork.repo import Repo, Upstream, WheelPin
from fork.wheel import pristine_dir, unpack


def obtain(repo: Repo, wheel: Path | None, *, log: Log) -> tuple[Upstream, WheelPin, Path]:
    """The pins, the one for this interpreter, and where its wheel is unpacked.

    Fetches and unpacks what is missing. A given `wheel` is verified even where it is not needed.
    """
    upstream = repo.upstream()
    pin = pin_for_interpreter(upstream)
    pristine = pristine_dir(repo, pin)
    if wheel is not None or not pristine.is_dir():
        unpack(fetch(upstream, pin, wheel=wheel, log=log), pristine)
    return upstream, pin, pristine


def strict_plan(repo: Repo, upstream: Upstream, pristine: Path) -> Plan:
    """The plan of the series, where every patch is listed and every module is claimed."""
    topics = select_topics(repo)
    check_listed(repo, topics)
    return make_plan(repo, upstream, pristine, topics)


def editable_tree(repo: Repo, pin: WheelPin) -> Path:
    """The tree that `pip install -e .` puts on the path, one for each interpreter and machine."""
    return repo.build / "editable" / pin.tags
