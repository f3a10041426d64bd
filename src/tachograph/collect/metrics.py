"""Metrics of a collector for Prometheus, made from its journal at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tachograph.collect.metrics_server import MetricsServer
from tachograph.collect.status import CollectStatus, SourceStatus, StepStatus

MOST_HOSTS = 50  # hosts with clock skew that are named, per source
_Labels = tuple[str, ...]
_Values = Iterable[tuple[_Labels, float | None]]


@dataclass(frozen=True, slots=True)
class _MetricSpec:
    """A metric of each source or step: name without prefix, help, further labels."""

    name: str
    help: str
    counter: bool = False
    labels: _Labels = field(default=(), kw_only=True)


def _one(value: float | None) -> _Values:
    return [((), value)]


def _by(values: dict[str, int]) -> _Values:
    return [((key,), float(value)) for key, value in sorted(values.items())]


def _stamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


_OF_SOURCE: tuple[tuple[_MetricSpec, Callable[[SourceStatus, datetime], _Values]], ...] = (
    (
        _MetricSpec("source_up", "1 when the last poll of the source worked, 0 when it failed."),
        lambda s, now: _one(None if s.last_poll is None else float(not s.failures)),
    ),
    (
        _MetricSpec("source_interval_seconds", "Seconds between polls, as configured."),
        lambda s, now: _one(s.every_s),
    ),
    (
        _MetricSpec("lag_seconds", "Seconds since the instant up to which the source was read."),
        lambda s, now: _one(s.lag_s(now)),
    ),
    (
        _MetricSpec(
            "watermark_timestamp_seconds",
            "Up to when a stream has been read into the lake.",
            labels=("stream",),
        ),
        lambda s, now: [((stream,), _stamp(at)) for stream, at in sorted(s.watermarks.items())],
    ),
    (
        _MetricSpec("last_success_timestamp_seconds", "Start of the last poll that was committed."),
        lambda s, now: _one(_stamp(s.last_success)),
    ),
    (_MetricSpec("polls", "Polls of the source.", counter=True), lambda s, now: _one(s.polls)),
    (
        _MetricSpec("polls_skipped", "Polls that were due and did not take place.", counter=True),
        lambda s, now: _one(s.skipped),
    ),
    (
        _MetricSpec(
            "longest_gap_seconds",
            "Longest time between two polls in the last hour; 0: none was skipped.",
        ),
        lambda s, now: _one(s.last_hour(now).longest_gap_s),
    ),
    (
        _MetricSpec(
            "errors",
            "Polls and commits that failed: input, lake, schema or defect.",
            counter=True,
            labels=("kind",),
        ),
        lambda s, now: _by({"input": 0, "lake": 0, "schema": 0, "defect": 0} | s.errors),
    ),
    (
        _MetricSpec("chunks_committed", "Chunks committed to the lake.", counter=True),
        lambda s, now: _one(s.chunks),
    ),
    (
        _MetricSpec("chunks_waiting", "Chunks that were read and not yet committed."),
        lambda s, now: _one(s.chunks_waiting),
    ),
    (
        _MetricSpec("rows_read", "Rows read from the source.", counter=True),
        lambda s, now: _one(s.rows_read),
    ),
    (
        _MetricSpec(
            "rows_committed", "Rows committed to a table.", counter=True, labels=("table",)
        ),
        lambda s, now: _by(s.rows),
    ),
    (
        _MetricSpec(
            "rejects",
            "Values and rows rejected by ingest.",
            counter=True,
            labels=("table", "reason"),
        ),
        lambda s, now: [
            ((table, reason), float(count))
            for table, reasons in sorted(s.rejects.items())
            for reason, count in sorted(reasons.items())
        ],
    ),
    (
        _MetricSpec(
            "unreachable_endpoints",
            "Endpoints that did not answer in the last poll, where others did.",
        ),
        lambda s, now: _one(len(s.unreachable)),
    ),
    (
        _MetricSpec(
            "poll_seconds", "Time spent in polls, waiting for the writer included.", counter=True
        ),
        lambda s, now: _one(s.poll_s),
    ),
    (
        _MetricSpec("commit_seconds", "Time spent committing chunks.", counter=True),
        lambda s, now: _one(s.commit_s),
    ),
    (
        _MetricSpec("clock_skew_max_seconds", "Largest clock skew of a host, in either direction."),
        lambda s, now: _one(max(map(abs, s.skew_s.values()), default=None)),
    ),
    (
        _MetricSpec("skewed_hosts", "Hosts with more than a second of clock skew."),
        lambda s, now: _one(len(s.skewed())),
    ),
    (
        _MetricSpec(
            "clock_skew_seconds",
            "Clock of a host minus the local clock; the largest of those above a second.",
            labels=("host",),
        ),
        lambda s, now: [((host,), skew) for host, skew in list(s.skewed().items())[:MOST_HOSTS]],
    ),
)
_OF_STEP: tuple[tuple[_MetricSpec, Callable[[StepStatus, datetime], _Values]], ...] = (
    (_MetricSpec("step_runs", "Analyses and compactions started.", counter=True),
     lambda s, now: _one(s.runs)),
    (_MetricSpec("step_failures", "Analyses and compactions that failed.", counter=True),
     lambda s, now: _one(s.failures)),
    (_MetricSpec("step_running", "1 while it runs."),
     lambda s, now: _one(float(s.running))),
    (_MetricSpec("step_last_success_timestamp_seconds", "Time of the last success."),
     lambda s, now: _one(_stamp(s.last_success))),
    (_MetricSpec("step_last_duration_seconds", "Duration of the last success."),
     lambda s, now: _one(s.last_duration_s)),
)  # fmt: skip


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
        for of, source_values in _OF_SOURCE:
            rows = (
                (name, source_values(one, status.updated)) for name, one in status.sources.items()
            )
            yield _family(of, "source", rows)
        for of, step_values in _OF_STEP:
            rows = ((name, step_values(one, status.updated)) for name, one in status.steps.items())
            yield _family(of, "step", rows)


def _family(of: _MetricSpec, label: str, rows: Iterable[tuple[str, _Values]]) -> Metric:
    kind = CounterMetricFamily if of.counter else GaugeMetricFamily
    family = kind(f"tachograph_collect_{of.name}", of.help, labels=(label, *of.labels))
    for name, values in rows:
        for labels, value in values:
            if value is not None:
                family.add_metric((name, *labels), value)
    return family


def metric_names() -> list[str]:
    """Return the names of all metrics, as they are exposed."""
    every = [of for of, _ in _OF_SOURCE] + [of for of, _ in _OF_STEP]
    return [
        "tachograph_build_info",
        *(f"tachograph_collect_{of.name}{'_total' * of.counter}" for of in every),
    ]


def serve_metrics(listen: str, snapshot: Callable[[], CollectStatus]) -> MetricsServer:
    """Return the server of `/metrics`, listening on `listen` (host:port); start it with `serve`.

    Errors: ConfigError if the address is invalid or in use.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CollectionMetrics(snapshot))
    ProcessCollector(registry=registry)
    return MetricsServer(listen, registry)
