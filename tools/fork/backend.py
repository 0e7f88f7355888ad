# SPDX-License-Identifier: Apache-2.0
"""PEP 517 and PEP 660 backend. pip runs it in the root of the checkout, which it needs.

`pip install . --config-settings wheel=FILE` builds from a given upstream wheel instead of the
package index; its hash is checked all the same. An sdist is refused: what it would leave out, the
upstream wheel, is most of the distribution.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from fork.errors import ForkError
from fork.fetch import fetch
from fork.plan import Plan
from fork.repo import WheelPin, find_repo
from fork.tree import develop
from fork.wheel import write_dist_info, write_editable_wheel, write_wheel
from fork.work import editable_tree, obtain, strict_plan

Settings = Mapping[str, object] | None
_P = ParamSpec("_P")
_T = TypeVar("_T")


class UnsupportedOperation(Exception):
    """PEP 517's signal that a hook cannot do what was asked."""


def _clean(hook: Callable[_P, _T]) -> Callable[_P, _T]:
    """Shows a ForkError as its own text: pip prints what a hook writes, traceback and all."""

    @wraps(hook)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return hook(*args, **kwargs)
        except ForkError as error:
            print(f"fork: {error}", file=sys.stderr)
            raise SystemExit(1) from None

    return run


def _prepare(settings: Settings) -> tuple[Plan, WheelPin, Path]:
    unknown = sorted(set(settings or {}) - {"wheel"})
    if unknown:
        raise ForkError(f"unknown config setting {unknown[0]!r}", remedy="allowed: wheel=FILE")
    given = (settings or {}).get("wheel")
    if given is not None and not isinstance(given, str):
        raise ForkError(f"config setting wheel must be one file, not {given!r}")
    repo = find_repo()
    upstream, pin, pristine = obtain(repo, Path(given) if given else None, log=_log)
    wheel = fetch(upstream, pin, wheel=Path(given) if given else None, log=_log)
    return strict_plan(repo, upstream, pristine), pin, wheel


def _log(text: str) -> None:
    print(f"fork: {text}", flush=True)


@_clean
def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Packs the fork's wheel into `wheel_directory` and gives its file name."""
    plan, pin, wheel = _prepare(config_settings)
    return write_wheel(plan, pin, wheel, Path(wheel_directory)).name


@_clean
def build_editable(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Refreshes the editable tree, and packs the wheel that puts it on the path."""
    plan, pin, wheel = _prepare(config_settings)
    tree = editable_tree(plan.repo, pin)
    develop(plan, tree, metadata=False)
    return write_editable_wheel(plan, pin, wheel, tree, Path(wheel_directory)).name


@_clean
def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Writes the dist-info that the wheel will have and gives its name."""
    plan, _, _ = _prepare(config_settings)
    return write_dist_info(plan, Path(metadata_directory))


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """The same dist-info: an editable install has the requirements of a normal one."""
    return prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Always refused; see the module's docstring."""
    raise UnsupportedOperation(
        "this distribution has no sdist, because the upstream release has none; "
        "build a wheel: `python -m build --wheel` or `python -m fork build`"
    )
