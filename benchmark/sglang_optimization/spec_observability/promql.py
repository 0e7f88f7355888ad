# SPDX-License-Identifier: Apache-2.0
"""Evaluates the PromQL that the dashboard uses on recorded scrapes.

Parsing is ``promql-parser``'s (the grammar of Prometheus). Evaluated are selectors, ``rate`` (the
increase over the range by the time between its first and last sample; Prometheus extrapolates to
the ends of the range), ``sum``, and arithmetic between vectors with equal labels.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from harness import Metrics

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = float | Vector
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else float("nan"),
}


class Unsupported(ValueError):
    """A query uses what this evaluator lacks."""


class Series:
    """Scrapes in the order of their times."""

    def __init__(self, scrapes: Sequence[tuple[float, Metrics]]) -> None:
        self.scrapes = list(scrapes)

    def evaluate(self, query: str, at_s: float) -> Vector:
        """Value of a query at a time, by the labels it keeps.

        Raises:
            ValueError: it cannot be parsed or evaluated.
        """
        import promql_parser

        value = self._value(promql_parser.parse(query), at_s)
        return {frozenset(): value} if isinstance(value, float) else value

    def _value(self, node: Any, at_s: float) -> Value:
        kind = type(node).__name__
        if kind == "ParenExpr":
            return self._value(node.expr, at_s)
        if kind == "NumberLiteral":
            return float(node.val)
        if kind == "VectorSelector":
            latest = [metrics for t, metrics in self.scrapes if t <= at_s]
            return _select(latest[-1], node) if latest else {}
        if kind == "Call" and node.func.name == "rate":
            return self._rate(node.args[0], at_s)
        if kind == "AggregateExpr" and str(node.op).lower().endswith("sum"):
            return _sum(self._value(node.expr, at_s), _kept(node))
        if kind == "BinaryExpr" and str(node.op) in _OPERATORS:
            apply = _OPERATORS[str(node.op)]
            return _combine(self._value(node.lhs, at_s), self._value(node.rhs, at_s), apply)
        raise Unsupported(f"cannot evaluate {kind} in {node.prettify()}")

    def _rate(self, matrix: Any, at_s: float) -> Vector:
        begin = at_s - matrix.range.total_seconds()
        inside = [(t, m) for t, m in self.scrapes if begin <= t <= at_s]
        if len(inside) < 2:
            return {}
        (first_s, first), (last_s, last) = inside[0], inside[-1]
        before = _select(first, matrix.vector_selector)
        return {
            labels: (value - before.get(labels, 0.0)) / (last_s - first_s)
            for labels, value in _select(last, matrix.vector_selector).items()
        }


def metric_names(query: str) -> set[str]:
    """Names of the metrics that a query selects."""
    import promql_parser

    found: set[str] = set()

    def walk(node: Any) -> None:
        name = getattr(node, "name", None)
        if type(node).__name__ == "VectorSelector" and name:
            found.add(name)
        for attribute in ("expr", "lhs", "rhs", "vector_selector"):
            child = getattr(node, attribute, None)
            if child is not None:
                walk(child)
        for child in getattr(node, "args", None) or ():
            walk(child)

    walk(promql_parser.parse(query))
    return found


def _select(metrics: Metrics, selector: Any) -> Vector:
    out: Vector = {}
    for (name, labels), value in metrics.samples.items():
        if name == selector.name and _matches(dict(labels), selector.matchers.matchers):
            out[labels] = value
    return out


def _matches(labels: dict[str, str], matchers: Sequence[Any]) -> bool:
    for matcher in matchers:
        have, kind = labels.get(matcher.name, ""), str(matcher.op).rsplit(".", 1)[-1]
        if kind in ("Re", "NotRe"):
            same = re.fullmatch(matcher.value, have) is not None
        else:
            same = have == matcher.value
        if same == kind.startswith("Not"):
            return False
    return True


def _kept(node: Any) -> set[str]:
    modifier = node.modifier
    if modifier is None:
        return set()
    if "by" not in str(modifier.type).lower():
        raise Unsupported("sum without ...")
    return set(modifier.labels)


def _sum(value: Value, kept: set[str]) -> Vector:
    out: Vector = {}
    for labels, number in (value if isinstance(value, dict) else {}).items():
        group = frozenset((k, v) for k, v in labels if k in kept)
        out[group] = out.get(group, 0.0) + number
    return out


def _combine(left: Value, right: Value, apply: Callable[[float, float], float]) -> Value:
    if isinstance(left, float) and isinstance(right, float):
        return apply(left, right)
    if isinstance(left, float):
        return {labels: apply(left, value) for labels, value in dict(right).items()}  # type: ignore[arg-type]
    if isinstance(right, float):
        return {labels: apply(value, right) for labels, value in left.items()}
    return {labels: apply(left[labels], right[labels]) for labels in left if labels in right}
