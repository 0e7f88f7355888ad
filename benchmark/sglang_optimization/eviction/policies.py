# SPDX-License-Identifier: Apache-2.0
"""The policies that ``--policies`` accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

from common.cli import BenchError

CORES = ("rust", "python")
UPSTREAM = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
OURS = ("adaptive", "weighted", "lru-trim")
REFERENCE = ("lhd", "gdsf", "s3fifo", "marconi")
OPTIMUM = "optimum"
BASELINE = "lru"
PYTHON_BASELINE = "lru@python"
GROUPS = {
    "upstream": (*UPSTREAM, "lru@python"),
    "ours": OURS,
    "reference": REFERENCE,
    "all": (*UPSTREAM, "lru@python", *OURS, *REFERENCE, OPTIMUM),
}

# T-LRU keeps `history + estimate - threshold` tokens of a conversation. Upstream's
# defaults (0, 0) make it plain LRU; these let it drop the last 4 blocks of a
# conversation that is expected to add 2.
TLRU_BLOCKS = {"threshold": 6, "next_prompt_estimate": 2}

# Numbers of 8 bytes that upstream's strategies keep on each tree node.
_UPSTREAM_FIELDS = {
    "lru": 1,
    "lfu": 2,
    "fifo": 1,
    "mru": 1,
    "filo": 1,
    "priority": 2,
    "slru": 2,
    "tlru": 3,
}


@dataclass(frozen=True)
class Policy:
    """One way to evict.

    Attributes:
        name: what the user writes, core suffix included where it is not the default.
        core: tree core, or None for the optimum, which has no tree.
        eviction_policy: name given to the cache.
        config: configuration given to the cache.
        reference: builds the strategy object for a capacity and block size.
        node_fields: numbers kept on each node (upstream policies).
        ours: whether it is one of this fork's, which know what a block is.
    """

    name: str
    core: str | None
    eviction_policy: str = "lru"
    config: dict[str, Any] = field(default_factory=dict)
    reference: Callable[[int, int], Any] | None = None
    node_fields: int | None = None
    ours: bool = False

    @property
    def is_optimum(self) -> bool:
        """Whether this is the offline bound instead of a policy."""
        return self.core is None


def resolve(words: list[str], configs: dict[str, dict[str, Any]]) -> list[Policy]:
    """Policies for the words of ``--policies``, groups expanded, repeats dropped.

    Args:
        words: names, ``name@core``, or groups.
        configs: configuration by policy name, from ``--policy-config``.

    Raises:
        BenchError: an unknown name, or a core that the policy does not run on.
    """
    names: dict[str, None] = {}
    for word in words:
        for name in GROUPS.get(word, (word,)):
            names.setdefault(name)
    unused = set(configs) - {name.partition("@")[0] for name in names}
    if unused:
        raise BenchError(
            f"--policy-config names {', '.join(sorted(unused))}, which --policies does not ask for"
        )
    return [_policy(name, configs) for name in names]


def _policy(name: str, configs: dict[str, dict[str, Any]]) -> Policy:
    base, at, core = name.partition("@")
    config = configs.get(base)
    if base == OPTIMUM and not at:
        return Policy(name, None)
    if base in UPSTREAM:
        if at and core not in CORES:
            raise _unknown(name)
        if config is None and base == "tlru":
            config = dict(TLRU_BLOCKS)
        return Policy(
            name if core != "rust" else base,
            core or "rust",
            base,
            config or {},
            node_fields=_UPSTREAM_FIELDS[base],
        )
    if base in (*OURS, *REFERENCE) and at and core != "python":
        raise BenchError(f"{base} runs on the python core only; write {base!r}")
    if base in REFERENCE:
        return Policy(base, "python", config=config or {}, reference=_reference(base))
    if base in OURS:
        return _ours(base, config)
    raise _unknown(name)


def _ours(base: str, config: dict[str, Any] | None) -> Policy:
    if base == "lru-trim":
        config = {"trim": True, "index": True, **(config or {})}
        return Policy(base, "python", "lru", config, ours=True)
    mode = {"adaptive": "learned"}.get(base, base)
    return Policy(base, "python", "adaptive", {"mode": mode, **(config or {})}, ours=True)


def _reference(base: str) -> Callable[[int, int], Any]:
    def build(capacity: int, block_tokens: int) -> Any:
        from .reference import gdsf, lhd, marconi, s3fifo

        classes = {
            "gdsf": gdsf.GDSF,
            "lhd": lhd.LHD,
            "marconi": marconi.Marconi,
            "s3fifo": s3fifo.S3FIFO,
        }
        return classes[base](capacity, block_tokens)

    return build


def _unknown(name: str) -> BenchError:
    return BenchError(
        f"unknown policy {name!r}; known: {', '.join((*UPSTREAM, *OURS, *REFERENCE))}, "
        f"{OPTIMUM}; groups: {', '.join(GROUPS)}; upstream's take @rust or @python"
    )
