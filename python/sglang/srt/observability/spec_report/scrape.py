# SPDX-License-Identifier: Apache-2.0
"""Reads ``/metrics`` of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Iterable, Mapping
from urllib.parse import urlsplit

PREFIX = "sglang:spec_"
# Present as soon as a server with these metrics verified one step.
MARKER = f"{PREFIX}steps_total"

Labels = frozenset[tuple[str, str]]


class ReportError(Exception):
    """Nothing can be reported; the message says why and what to do."""


@dataclass(frozen=True)
class Scrape:
    """Cumulative samples of the speculative metrics: (name, labels) -> value.

    ``gauges`` are the samples that are no sums.
    """

    samples: Mapping[tuple[str, Labels], float] = field(default_factory=dict)
    gauges: Mapping[tuple[str, Labels], float] = field(default_factory=dict)

    def since(self, before: Scrape) -> Scrape:
        """What happened after ``before``.

        Raises:
            ReportError: a sum went down: the server was restarted in between.
        """
        changed = {}
        for key, value in self.samples.items():
            change = value - before.samples.get(key, 0.0)
            if change < 0:
                raise ReportError(
                    "the server was restarted between the two scrapes "
                    f"({key[0]} went down); run the report again"
                )
            changed[key] = change
        return Scrape(changed, dict(self.gauges))

    def total(self, name: str, **labels: str) -> float:
        """Sum of ``sglang:spec_<name>`` over all samples with these labels."""
        return sum(self.by((), name, **labels).values())

    def by(self, keys: Iterable[str], name: str, **labels: str) -> dict:
        """Sums of ``sglang:spec_<name>`` by the values of the labels ``keys``."""
        keys, wanted, out = tuple(keys), set(labels.items()), {}
        for (sample, have), value in self.samples.items():
            if sample == PREFIX + name and wanted <= have:
                values = dict(have)
                group = tuple(values.get(key, "") for key in keys)
                out[group] = out.get(group, 0.0) + value
        return out


def parse(text: str, model: str | None = None) -> Scrape:
    """Speculative metrics of a scrape; ``model`` keeps those of one ``model_name``.

    Raises:
        ReportError: not the Prometheus text format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    samples: dict[tuple[str, Labels], float] = {}
    gauges: dict[tuple[str, Labels], float] = {}
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith(PREFIX):
                continue
            into = gauges if family.type == "gauge" else samples
            for sample in family.samples:
                if model is not None and sample.labels.get("model_name") != model:
                    continue
                key = (sample.name, frozenset(sample.labels.items()))
                into[key] = into.get(key, 0.0) + sample.value
    except ValueError as error:
        raise ReportError(
            f"the answer is not in Prometheus' text format ({error}); is this an "
            "SGLang server's URL?"
        ) from None
    return Scrape(samples, gauges)


def metrics_url(url: str) -> str:
    """The address of ``/metrics`` for a server's URL, host:port, or that address.

    Raises:
        ReportError: not an http URL.
    """
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_valid = None, False
    if (
        parts is None
        or not port_is_valid
        or parts.scheme not in ("http", "https")
        or not parts.hostname
    ):
        raise ReportError(
            f"{url!r} is not a server's URL; write http://HOST:PORT or HOST:PORT"
        )
    path = parts.path.rstrip("/")
    if not path.endswith("/metrics"):
        path += "/metrics"
    return f"{parts.scheme}://{parts.netloc}{path}"


def fetch(url: str, timeout_s: float = 10.0) -> str:
    """The text of ``/metrics``.

    Raises:
        ReportError: no server there, or one without metrics.
    """
    import requests

    address = metrics_url(url)
    try:
        answer = requests.get(address, timeout=timeout_s)
    except requests.Timeout:
        raise ReportError(
            f"{address} did not answer within {timeout_s:g} seconds"
        ) from None
    except requests.RequestException as error:
        raise ReportError(f"cannot reach {address}: {error}") from None
    if answer.status_code == 404:
        raise ReportError(
            f"{address} does not exist: start the server with --enable-metrics"
        )
    if answer.status_code != 200:
        raise ReportError(
            f"{address} answered with status {answer.status_code} "
            f"({answer.reason}); 200 is expected"
        )
    return answer.text


def two_scrapes(
    read: Callable[[], str],
    interval_s: float,
    sleep: Callable[[float], None],
    model: str | None = None,
) -> Scrape:
    """What happened within ``interval_s`` seconds; 0: since the server's start.

    Raises:
        ReportError: no speculative metrics, or nothing was decoded.
    """
    now = parse(read(), model)
    if interval_s > 0:
        before = now
        sleep(interval_s)
        now = parse(read(), model)
        found = now.since(before)
    else:
        found = now
    names = {name for name, _ in now.samples}
    if MARKER not in names:
        of_model = "" if model is None else f" of model {model!r}"
        raise ReportError(
            f"the server exports no {MARKER}{of_model}: it runs without "
            "--speculative-algorithm or --enable-metrics, without this fork, or has "
            "not decoded anything yet"
        )
    if not found.total("steps_total"):
        raise ReportError(
            f"nothing was decoded with speculation within {interval_s:g} seconds; send "
            "requests, choose a longer --interval, or use --interval 0 for everything "
            "since the server's start"
        )
    return found
