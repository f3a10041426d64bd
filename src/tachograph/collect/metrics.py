"""Metrics of a collector for Prometheus, made from its journal at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tachograph.collect.metrics_server import MetricsServer
from tachograph.collect.status import CollectStatus, SourceStatus, StepStatus

MOST_HOSTS = 50  # hosts with clock skew that are named, per source
_Labels = tuple[str, ...]
_Value = float | None | Mapping[_Labels, float]


_Status = TypeVar("_Status")


@dataclass(frozen=True, slots=True)
class _MetricSpec(Generic[_Status]):
    """A metric of each source or step: name without prefix, help, its value, further labels.

    value: of a status and the time of the scrape; None: unknown; with labels {their values: value}.
    """

    name: str
    help: str
    value: Callable[[_Status, datetime], _Value]
    counter: bool = False
    labels: _Labels = ()


def _by(values: Mapping[str, float]) -> _Value:
    return {(key,): values[key] for key in sorted(values)}


def _stamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


_OF_SOURCE: tuple[_MetricSpec[SourceStatus], ...] = (
    _MetricSpec(
        "source_up",
        "1 when the last poll of the source worked, 0 when it failed.",
        lambda s, now: None if s.last_poll is None else float(not s.failures),
    ),
    _MetricSpec(
        "source_interval_seconds",
        "Seconds between polls, as configured.",
        lambda s, now: s.every_s,
    ),
    _MetricSpec(
        "lag_seconds",
        "Seconds since the instant up to which the source was read.",
        lambda s, now: s.lag_s(now),
    ),
    _MetricSpec(
        "watermark_timestamp_seconds",
        "Up to when a stream has been read into the lake.",
        lambda s, now: _by({stream: at.timestamp() for stream, at in s.watermarks.items()}),
        labels=("stream",),
    ),
    _MetricSpec(
        "last_success_timestamp_seconds",
        "Start of the last poll that was committed.",
        lambda s, now: _stamp(s.last_success),
    ),
    _MetricSpec("polls", "Polls of the source.", lambda s, now: s.polls, counter=True),
    _MetricSpec(
        "polls_skipped",
        "Polls that were due and did not take place.",
        lambda s, now: s.skipped,
        counter=True,
    ),
    _MetricSpec(
        "longest_gap_seconds",
        "Longest time between two polls in the last hour; 0: none was skipped.",
        lambda s, now: s.last_hour(now).longest_gap_s,
    ),
    _MetricSpec(
        "errors",
        "Polls and commits that failed: input, lake, schema or defect.",
        lambda s, now: _by({"input": 0, "lake": 0, "schema": 0, "defect": 0} | s.errors),
        counter=True,
        labels=("kind",),
    ),
    _MetricSpec(
        "chunks_committed", "Chunks committed to the lake.", lambda s, now: s.chunks, counter=True
    ),
    _MetricSpec(
        "chunks_waiting",
        "Chunks that were read and not yet committed.",
        lambda s, now: s.chunks_waiting,
    ),
    _MetricSpec(
        "rows_read", "Rows read from the source.", lambda s, now: s.rows_read, counter=True
    ),
    _MetricSpec(
        "rows_committed",
        "Rows committed to a table.",
        lambda s, now: _by(s.rows),
        counter=True,
        labels=("table",),
    ),
    _MetricSpec(
        "rejects",
        "Values and rows rejected by ingest.",
        lambda s, now: {
            (table, reason): count
            for table, reasons in sorted(s.rejects.items())
            for reason, count in sorted(reasons.items())
        },
        counter=True,
        labels=("table", "reason"),
    ),
    _MetricSpec(
        "unreachable_endpoints",
        "Endpoints that did not answer in the last poll, where others did.",
        lambda s, now: len(s.unreachable),
    ),
    _MetricSpec(
        "poll_seconds",
        "Time spent in polls, waiting for the writer included.",
        lambda s, now: s.poll_s,
        counter=True,
    ),
    _MetricSpec(
        "commit_seconds", "Time spent committing chunks.", lambda s, now: s.commit_s, counter=True
    ),
    _MetricSpec(
        "clock_skew_max_seconds",
        "Largest clock skew of a host, in either direction.",
        lambda s, now: max(map(abs, s.skew_s.values()), default=None),
    ),
    _MetricSpec(
        "skewed_hosts",
        "Hosts with more than a second of clock skew.",
        lambda s, now: len(s.skewed()),
    ),
    _MetricSpec(
        "clock_skew_seconds",
        "Clock of a host minus the local clock; the largest of those above a second.",
        lambda s, now: {(host,): skew for host, skew in islice(s.skewed().items(), MOST_HOSTS)},
        labels=("host",),
    ),
)
_OF_STEP: tuple[_MetricSpec[StepStatus], ...] = (
    _MetricSpec(
        "step_runs", "Analyses and compactions started.", lambda s, now: s.runs, counter=True
    ),
    _MetricSpec(
        "step_failures",
        "Analyses and compactions that failed.",
        lambda s, now: s.failures,
        counter=True,
    ),
    _MetricSpec("step_running", "1 while it runs.", lambda s, now: float(s.running)),
    _MetricSpec(
        "step_last_success_timestamp_seconds",
        "Time of the last success.",
        lambda s, now: _stamp(s.last_success),
    ),
    _MetricSpec(
        "step_last_duration_seconds",
        "Duration of the last success.",
        lambda s, now: s.last_duration_s,
    ),
)


class CollectionMetrics(Collector):
    """The metrics of a collector at each scrape."""

    def __init__(self, snapshot: Callable[[], CollectStatus]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; unknown values have no sample."""
        status = self._snapshot()
        build = GaugeMetricFamily(
            "tachograph_build_info", "Version of the collector; always 1.", labels=("version",)
        )
        build.add_metric((status.version,), 1.0)
        yield build
        for of_source in _OF_SOURCE:
            yield _family(of_source, "source", status.sources, status.updated)
        for of_step in _OF_STEP:
            yield _family(of_step, "step", status.steps, status.updated)


def _family(
    of: _MetricSpec[_Status], label: str, statuses: Mapping[str, _Status], now: datetime
) -> Metric:
    kind = CounterMetricFamily if of.counter else GaugeMetricFamily
    family = kind(f"tachograph_collect_{of.name}", of.help, labels=(label, *of.labels))
    for name, status in statuses.items():
        for labels, number in _numbers(of.value(status, now)):
            family.add_metric([name, *labels], number)
    return family


def _numbers(value: _Value) -> Iterator[tuple[_Labels, float]]:
    for labels, number in value.items() if isinstance(value, Mapping) else [((), value)]:
        if number is not None:
            yield labels, float(number)


def metric_names() -> list[str]:
    """Return the names of all metrics, as they are exposed."""
    named = [(of.name, of.counter) for of in _OF_SOURCE] + [
        (of.name, of.counter) for of in _OF_STEP
    ]
    return [
        "tachograph_build_info",
        *(f"tachograph_collect_{name}{'_total' * counter}" for name, counter in named),
    ]


def serve_metrics(listen: str, snapshot: Callable[[], CollectStatus]) -> MetricsServer:
    """Return the server of `/metrics`, listening on `listen` (host:port); start it with `serve`.

    Errors: ConfigError if the address is invalid or in use.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CollectionMetrics(snapshot))
    ProcessCollector(registry=registry)
    return MetricsServer(listen, registry)
