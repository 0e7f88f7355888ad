# SPDX-License-Identifier: Apache-2.0
"""Which cached tokens are in the tree only because of early sharing.

Upstream would put a request's generated tokens into the tree when it finishes, so
a span counts from its first insertion until then.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Optional, Sequence

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


class Sharing:
    """What was shared of one request; lives on the request.

    Attributes:
        due_at: committed length at which the request is looked at again.
        start: first token that entered the tree early, None before that.
        end: end of what entered the tree early.
        duplicate: the tree has pages of its own for tokens to be inserted next.
        outdated: its KV was computed by weights that are no longer served.
    """

    __slots__ = ("due_at", "duplicate", "end", "outdated", "start")

    def __init__(self, due_at: float):
        self.due_at = due_at
        self.start: Optional[int] = None
        self.end = 0
        self.duplicate = False
        self.outdated = False

    def add(self, end: int, new_tokens: int) -> None:
        """``new_tokens`` that end at ``end`` entered the tree."""
        if new_tokens > 0 and self.start is None:
            self.start = end - new_tokens
        if self.start is not None:
            self.end = max(self.end, end)

    def covered(self, length: int) -> int:
        """Tokens of the span within the first ``length`` ones."""
        return 0 if self.start is None else max(0, min(length, self.end) - self.start)


def common_prefix(a: Sequence[int], b: Sequence[int], low: int, high: int) -> int:
    """Length of the common prefix of ``a`` and ``b``, known to be at least ``low``,
    at most ``high``, a length both have. Arrays are compared in bulk."""
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def namespace_of(req: Req) -> Any:
    """Requests of different ones never share KV."""
    return (req.extra_key, req.cache_salt)


class SpanIndex:
    """The spans of requests that have not finished.

    A look-up compares a request with each span of its namespace: one token where
    they differ early, which is the usual case.
    """

    def __init__(self) -> None:
        self._spans: dict[Any, dict[int, weakref.ref]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._spans.values()))

    def add(self, req: Req) -> None:
        """``req`` has a span; adding it again changes nothing."""
        namespace, key = namespace_of(req), id(req)
        spans = self._spans.setdefault(namespace, {})
        known = spans.get(key)
        if known is None or known() is not req:
            # Namespaces may be used once (a salt a tenant): nobody else would clean up.
            spans[key] = weakref.ref(req, lambda ref: self._drop(namespace, key, ref))

    def discard(self, req: Req) -> None:
        """Forget the span of ``req``, if there is one."""
        namespace = namespace_of(req)
        spans = self._spans.get(namespace)
        if spans is not None:
            spans.pop(id(req), None)
            if not spans:
                del self._spans[namespace]

    def _drop(self, namespace: Any, key: int, reference: weakref.ref) -> None:
        spans = self._spans.get(namespace)
        if spans is not None and spans.get(key) is reference:
            del spans[key]
            if not spans:
                del self._spans[namespace]

    def served(self, req: Req, cached: int) -> int:
        """Of the first ``cached`` tokens of ``req``, how many lie in one span.

        Forgets spans whose request has finished or is gone.
        """
        namespace = namespace_of(req)
        spans = self._spans.get(namespace)
        if not spans:
            return 0
        best, gone = 0, []
        text = req.full_untruncated_fill_ids
        for key, reference in list(spans.items()):
            owner = reference()
            if owner is None or owner.finished():
                gone.append(key)
            elif owner is not req:
                best = max(best, self._overlap(owner, text, cached))
        for key in gone:
            spans.pop(key, None)
        if not spans:
            self._spans.pop(namespace, None)
        return best

    @staticmethod
    def _overlap(owner: Req, text: Sequence[int], cached: int) -> int:
        span, other = owner.radix_sharing, owner.full_untruncated_fill_ids
        if span is None or span.start is None:
            return 0
        end = min(cached, span.end, len(other), len(text))
        # The prompts may differ, so compare from the first token on.
        if end <= span.start or text[span.start] != other[span.start]:
            return 0
        return max(0, common_prefix(text, other, 0, end) - span.start)
