# SPDX-License-Identifier: Apache-2.0
"""Prometheus samples of a server, and the difference between two scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
CUMULATIVE = {"counter", "histogram", "summary"}


@dataclass(frozen=True)
class Metrics:
    """All samples of one scrape, or of one interval when made by subtraction.

    ``samples`` maps (sample name, labels) to a value; sample names carry their suffix, as in
    ``sglang:cached_tokens_total`` or ``sglang:time_to_first_token_seconds_bucket``.
    ``kinds`` maps a sample name to the type its family declares.
    """

    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Reads the Prometheus text format.

        Raises:
            ValueError: the text is not in that format.
        """
        samples: dict[tuple[str, Labels], float] = {}
        kinds: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                kinds[sample.name] = family.type
                key = (sample.name, frozenset(sample.labels.items()))
                samples[key] = samples.get(key, 0.0) + sample.value
        return cls(samples, kinds)

    def __sub__(self, before: Metrics) -> Metrics:
        """Returns what happened since ``before``.

        Counters, histograms and summaries are subtracted; a gauge keeps its later value. A
        counter that went down was reset by a restart and counts from zero.
        """
        changed = {}
        for key, value in self.samples.items():
            if self.kinds[key[0]] in CUMULATIVE:
                earlier = before.samples.get(key, 0.0)
                value = value - earlier if value >= earlier else value
            changed[key] = value
        return Metrics(changed, dict(self.kinds))

    def matching(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yields (labels, value) of the samples called ``name`` that carry ``labels``."""
        wanted = set(labels.items())
        for (sample, have), value in self.samples.items():
            if sample == name and wanted <= have:
                yield dict(have), value

    def __contains__(self, name: object) -> bool:
        return name in self.kinds

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of the matching samples.

        Raises:
            KeyError: the server exposes no sample of that name; similar names are listed.
        """
        if name not in self.kinds:
            stem = name.split(":")[-1].split("_")[0]
            near = sorted(known for known in self.kinds if stem in known)
            raise KeyError(f"no metric {name!r}; similar: {', '.join(near[:12]) or 'none'}")
        return sum(value for _, value in self.matching(name, **labels))

    def get(self, name: str, *, default: float = 0.0, **labels: str) -> float:
        """Like :meth:`total`, with ``default`` for a metric that was never made.

        The multi-process registry shows a labelled counter only after its first increment.
        """
        return self.total(name, **labels) if name in self.kinds else default

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Returns the totals of ``name`` for each value of ``label``."""
        totals: dict[str, float] = {}
        for have, value in self.matching(name, **labels):
            group = have.get(label, "")
            totals[group] = totals.get(group, 0.0) + value
        return totals

    def mean(self, histogram: str, **labels: str) -> float | None:
        """Returns a histogram's or summary's mean, in its own unit; ``None`` without samples."""
        count = sum(value for _, value in self.matching(f"{histogram}_count", **labels))
        total = sum(value for _, value in self.matching(f"{histogram}_sum", **labels))
        return total / count if count else None
