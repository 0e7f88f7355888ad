# SPDX-License-Identifier: Apache-2.0
"""The draft proposer, written again without an index: contexts are found by scanning texts.

Follows docs/suffix-automaton.md. Texts are lists of ints, `None` separates. Slow on purpose.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

READ = 16
SKIP_DEPTH = 8
OWN_DECAY = 0.8


@dataclass
class Context:
    """What followed one context: N, U and up to 16 tokens with their shares."""

    source: str
    k: int
    count: int
    distinct: int
    shares: dict[int, float]
    longest: bool = False

    @property
    def cell_key(self) -> tuple:
        return (
            self.source,
            length_bucket(self.k),
            floor_to((1, 2, 3, 6, 12, 24), self.count),
            floor_to((1, 2, 3, 6), self.distinct),
            self.longest,
        )


def floor_to(steps: tuple[int, ...], value: int) -> int:
    return max(step for step in steps if step <= value)


def length_bucket(k: int) -> int:
    """0 for order 0, then 1-8, 9-10, 11-12, 13-16, 17-20 and 21 or more tokens."""
    edges = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 21)
    return sum(k >= edge for edge in edges)


def ends_with(text: list, end: int, context: list) -> bool:
    """True if `context` stands in `text` so that its last token is at index `end`."""
    start = end + 1 - len(context)
    return start >= 0 and text[start : end + 1] == context


def own_occurrences(text: list, context: list, ahead: int) -> list[int]:
    """Ends of the occurrences of `context` that were followed by a token, oldest first."""
    return [
        end
        for end in range(len(text) - 1)
        if text[end + 1] is not None
        and ends_with(text, end, context)
        and (ahead == 1 or (end + 2 < len(text) and text[end + 2] is not None))
    ]


def own_shares(text: list, ends: list[int], ahead: int) -> dict[int, float]:
    """Shares of the tokens after the last 16 occurrences, each weighing .8 of the next one."""
    weights: dict[int, float] = defaultdict(float)
    for age, end in enumerate(reversed(ends[-READ:])):
        weights[text[end + ahead]] += OWN_DECAY**age
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def state_lengths(occurrences: list[list]) -> list[int]:
    """Lengths k (from 1) at which the occurrences of contexts of k and k + 1 tokens differ."""
    found = [k for k, ends in enumerate(occurrences, 1) if ends]
    last = max(found, default=0)
    return [k for k in found if k == last or occurrences[k - 1] != occurrences[k]]


def own_states(text: list, query: list, depth: int, ahead: int = 1) -> list[tuple]:
    """(k, N, shares) of the states on the suffixes of `query`, shortest first."""
    limit = min(depth, len(query))
    plain = [own_occurrences(text, query[-k:], 1) for k in range(1, limit + 1)]
    out = []
    for k in state_lengths(plain):
        ends = own_occurrences(text, query[-k:], ahead)
        out.append((k, len(ends), own_shares(text, ends, ahead) if ends else {}))
    return out


@dataclass
class SharedTexts:
    """Texts of several streams and the order in which their tokens came."""

    streams: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    events: list[tuple[int, int]] = field(default_factory=list)

    def append(self, stream: int, token: int) -> None:
        self.events.append((stream, len(self.streams[stream])))
        self.streams[stream].append(token)

    def after(self, context: list, ahead: int) -> list[tuple[int, int, int]]:
        """(stream, end, token) of what followed `context`, in the order of arrival."""
        return [
            (stream, at - ahead, self.streams[stream][at])
            for stream, at in self.events
            if at >= ahead and ends_with(self.streams[stream], at - ahead, context)
        ]

    @staticmethod
    def weigh(tokens: list[int], decay: float) -> dict[int, float]:
        weights: dict[int, float] = defaultdict(float)
        total = 0.0
        for age, token in enumerate(reversed(tokens)):
            weights[token] += decay**age
            total += decay**age
        heaviest = sorted(weights.items(), key=lambda item: -item[1])[:READ]
        return {token: weight / total for token, weight in heaviest}

    def states(self, query: list, depth: int, ahead: int = 1) -> list[tuple]:
        """(k, N, shares) of the states on the suffixes of `query`, shortest first."""
        limit = min(depth, len(query))
        plain = [self.after(query[-k:], 1) for k in range(1, limit + 1)]
        out = []
        for k in state_lengths(plain):
            tokens = [token for _, _, token in self.after(query[-k:], ahead)]
            out.append((k, len(tokens), self.weigh(tokens, 0.995)))
        return out


def logit(p: float) -> float:
    p = min(max(p, 1e-6), 1 - 1e-6)
    return math.log(p / (1 - p))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class Learned:
    """Mixing weights a cell and the logistic correction."""

    def __init__(self) -> None:
        self.cells: dict[tuple, list[float]] = {}
        self.weights = {root: [0.0, 1.0] + [0.0] * 16 for root in (True, False)}
        self.updates = {True: 0, False: 0}

    def cell(self, context: Context, root: bool) -> list[float]:
        key = (*context.cell_key, root)
        if key not in self.cells:
            _, bucket, n, u, _ = context.cell_key
            factor = {"skip": 3, "gap": 2}.get(context.source.split()[-1], 1)
            spread = 1 + 4 / (bucket**2 + 0.5)
            self.cells[key] = [min(0.98, n / (n + 4 * factor * u * spread)), 0]
        return self.cells[key]

    def move(self, cell: list[float], responsibility: float) -> None:
        rate = max(1 / (cell[1] + 8), 0.01)
        cell[0] = min(max(cell[0] + rate * (responsibility - cell[0]), 0.002), 0.998)
        cell[1] += 1


class ReferenceProposer:
    """One namespace, unbounded; `begin`, `append` and `draft` as in `DraftProposer`."""

    def __init__(self, full: bool, width: int, own_depth: int, shared_depth: int, threshold: float):
        self.full, self.width, self.threshold = full, width, threshold
        self.own_depth, self.shared_depth = own_depth, shared_depth
        self.texts: dict[int, list[int]] = {}
        self.shared = SharedTexts()
        self.learned = Learned()
        self.drafted: set[int] = set()

    def begin(self, request: int, tokens: list[int], shared_from: int) -> None:
        self.texts[request] = list(tokens)
        self.drafted.discard(request)
        for token in tokens[shared_from:]:
            self.shared.append(request, token)

    def append(self, request: int, tokens: list[int]) -> None:
        for i, token in enumerate(tokens):
            if request in self.drafted:
                self.learn(request, token, root=i == 0)
            self.texts[request].append(token)
            self.shared.append(request, token)
        self.drafted.discard(request)

    # Contexts, strongest first.

    def contexts(self, request: int, path: list[int]) -> list[Context]:
        text = self.texts[request]
        query = text + path
        own = [
            Context("own", k, n, len(s), s) for k, n, s in own_states(text, query, self.own_depth)
        ]
        shared = self.shared_contexts("shared", query, self.shared_depth, 1)
        ranked = [(c.k + 0.5, c) for c in own] + [(float(c.k), c) for c in shared]
        order0 = SharedTexts.weigh(
            [self.shared.streams[s][i] for s, i in self.shared.events], 0.999
        )
        n = len(self.shared.events)
        ranked.append((-0.99, Context("shared 0", 0, n, len(set(self.all_shared())), order0)))
        if self.full:
            ranked += self.weak_contexts(text, query)
        ranked.sort(key=lambda item: -item[0])
        kept: list[Context] = []
        last: dict[str, int] = {}
        for _, context in ranked:
            if context.shares and last.get(context.source) != context.count:
                context.longest = context.source not in last
                last[context.source] = context.count
                kept.append(context)
        return kept

    def all_shared(self) -> list[int]:
        return [token for tokens in self.shared.streams.values() for token in tokens]

    def shared_contexts(
        self, source: str, query: list[int], depth: int, ahead: int
    ) -> list[Context]:
        out = []
        for k, n, shares in self.shared.states(query, depth, ahead):
            seen = {token for _, _, token in self.shared.after(query[-k:], ahead)}
            out.append(Context(source, k, n, len(seen), shares))
        return out

    def weak_contexts(self, text: list[int], query: list[int]) -> list[tuple[float, Context]]:
        before, ranked = query[:-1], []
        if before:
            for k, n, s in first_of_eight(own_states(text, before, self.own_depth, 2)):
                ranked.append((-0.3 + 0.1 * k, Context("own skip", k, n, len(s), s)))
            long = self.shared_contexts("shared skip", before, self.shared_depth, 2)
            for context in first_of_eight_contexts(long):
                ranked.append((-0.4 + 0.1 * context.k - 1e-6, context))
        if len(query) >= 4:
            pair = (query[-1], query[-4])
            ends = [end for end in range(3, len(text) - 1) if (text[end], text[end - 3]) == pair]
            shares = own_shares(text, ends, 1) if ends else {}
            ranked.append((1.51, Context("own gap", 0, len(ends), len(shares), shares)))
            tokens = [
                self.shared.streams[stream][at]
                for stream, at in self.shared.events
                if at >= 4
                and (self.shared.streams[stream][at - 1], self.shared.streams[stream][at - 4])
                == pair
            ]
            weighed = SharedTexts.weigh(tokens, 0.995)
            ranked.append((1.499, Context("shared gap", 0, len(tokens), len(set(tokens)), weighed)))
        ranked.append((-1.0, recent_context(text)))
        return ranked

    # Probabilities.

    def blend(self, contexts: list[Context], root: bool, negligible: float) -> tuple[dict, list]:
        left, used = 1.0, []
        probability: dict[int, float] = defaultdict(float)
        for context in contexts:
            if left <= negligible:
                break
            weight = left * self.learned.cell(context, root)[0]
            left -= weight
            used.append(context)
            for token, share in context.shares.items():
                probability[token] += weight * share
        return probability, used

    def features(
        self,
        request: int,
        path: list[int],
        used: list[Context],
        root: bool,
        rank: int,
        token: int,
        p: float,
    ) -> list[float]:
        out = [1.0, logit(p), float(rank == 0), float(root)]
        for source in ("own", "shared", "own skip", "shared skip"):
            listing = [c for c in used if c.source == source and token in c.shares]
            if listing:
                c = listing[0]
                out += [
                    0.5 * logit(c.shares[token] * c.count / (c.count + 1)),
                    0.5 * math.log2(1 + c.k),
                    float(c.longest),
                ]
            else:
                out += [-1.5, 0.0, 0.0]
        query = self.texts[request] + path
        own = own_states(self.texts[request], query, self.own_depth)
        shared = self.shared.states(query, self.shared_depth)
        for states in (own, shared):
            out.append(0.3 * math.log2(1 + (states[-1][0] if states else 0)))
        return out

    def ranked(self, probability: dict[int, float]) -> list[tuple[int, float]]:
        return sorted(probability.items(), key=lambda item: -item[1])[:16]

    def children(self, request: int, path: list[int]) -> dict[int, float]:
        """Estimates of the next tokens after `path`, at most 8."""
        root = not path
        negligible = 1e-3 if self.full else 5e-3
        probability, used = self.blend(self.contexts(request, path), root, negligible)
        estimates = []
        for rank, (token, p) in enumerate(self.ranked(probability)):
            if self.full:
                f = self.features(request, path, used, root, rank, token, p)
                p = sigmoid(sum(w * x for w, x in zip(self.learned.weights[root], f, strict=True)))
            estimates.append((token, p))
        estimates.sort(key=lambda item: -item[1])
        return {token: min(p, 0.995) * 0.9 for token, p in estimates[:8]}

    def learn(self, request: int, truth: int, root: bool) -> None:
        contexts = self.contexts(request, [])
        probability, used = self.blend(contexts, root, 0.0 if self.full else 5e-3)
        ranked = self.ranked(probability)
        q = 1e-4
        for context in reversed(used):
            cell = self.learned.cell(context, root)
            explained = cell[0] * context.shares.get(truth, 0.0)
            mixed = explained + (1 - cell[0]) * q
            self.learned.move(cell, explained / mixed)
            q = mixed
        if not self.full:
            return
        rate = 0.05 / math.sqrt(1 + self.learned.updates[root] / 1000)
        self.learned.updates[root] += 1
        weights = self.learned.weights[root]
        for rank, (token, p) in enumerate(ranked):
            f = self.features(request, [], used, root, rank, token, p)
            error = float(token == truth) - sigmoid(
                sum(w * x for w, x in zip(weights, f, strict=True))
            )
            for i, x in enumerate(f):
                weights[i] += rate * error * x

    def draft(self, request: int) -> dict[tuple[int, ...], float]:
        """The tree as {path: probability}, without the root."""
        self.drafted.add(request)
        frontier = {(token,): p for token, p in self.children(request, []).items()}
        tree: dict[tuple[int, ...], float] = {}
        while len(tree) < self.width - 1 and frontier:
            path = max(frontier, key=lambda item: frontier[item])
            p = frontier.pop(path)
            if p < self.threshold:
                break
            tree[path] = p
            for token, estimate in self.children(request, list(path)).items():
                frontier[(*path, token)] = p * estimate
        return tree


def first_of_eight(states: list[tuple]) -> list[tuple]:
    """States up to the first that holds contexts of 8 tokens, whose length then counts as 8."""
    out = []
    for k, n, shares in states:
        out.append((min(k, SKIP_DEPTH), n, shares))
        if k >= SKIP_DEPTH:
            break
    return out


def first_of_eight_contexts(contexts: list[Context]) -> list[Context]:
    out = []
    for context in contexts:
        out.append(
            Context(
                context.source,
                min(context.k, SKIP_DEPTH),
                context.count,
                context.distinct,
                context.shares,
            )
        )
        if context.k >= SKIP_DEPTH:
            break
    return out


def recent_context(text: list[int]) -> Context:
    """Order 0 of a request's own text: the 16 most recent tokens with counts that decay by .995;
    a token that left the 16 starts again."""
    items: list[list] = []
    distinct = 0
    for tick, token in enumerate(text, 1):
        known = [item for item in items if item[0] == token]
        weight = 1.0
        if known:
            items.remove(known[0])
            weight += known[0][1] * 0.995 ** (tick - known[0][2])
        else:
            distinct += 1
            items = items[: READ - 1]
        items.insert(0, [token, weight, tick])
    weights = {token: weight * 0.995 ** (len(text) - tick) for token, weight, tick in items}
    total = sum(weights.values())
    return Context("own 0", 0, len(text), distinct, {t: w / total for t, w in weights.items()})
