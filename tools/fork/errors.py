# SPDX-License-Identifier: Apache-2.0
"""Errors of the fork's build: each says where, what, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence


class ForkError(Exception):
    """One problem that stops the build.

    Args:
        problem: what is wrong, with the offending value.
        where: file the problem is in (a patch, an upstream file, a wheel), if one is known.
        anchor: the edit's anchor in words, for problems of an edit.
        remedy: what the reader can do.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        anchor: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.anchor = anchor
        self.remedy = remedy

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.where, self.anchor) if part)
        text = f"{place}: {self.problem}" if place else self.problem
        return f"{text}\n  remedy: {self.remedy}" if self.remedy else text


class Problems(ForkError):
    """Several problems found in one pass, so that one run shows all of them."""

    def __init__(self, problems: Sequence[ForkError]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def raise_all(problems: Sequence[ForkError]) -> None:
    """Raises the problems collected so far; returns where there are none."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems(problems)
