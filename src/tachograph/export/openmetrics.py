"""Target `openmetrics`: gauges for Prometheus, as a textfile or pushed to a pushgateway.

What is exported is bounded: sums over the chosen jobs by a few labels, findings by code and
verdict, and single jobs as many as chosen. Units are those of Prometheus: seconds and joules,
ratios 0..1. There are no timestamps, which both receivers refuse; `tachograph_export_time_seconds`
has the age of the values.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import httpx2
import polars as pl
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tachograph.catalog.codes import REPORTED
from tachograph.catalog.errors import ExportError, UsageError
from tachograph.catalog.units import whole_number
from tachograph.export.content import ExportContent, ExportResult, whole_file
from tachograph.export.registry import Progress
from tachograph.lake.filters import lost_hours

LABELS = ("cluster", "user", "account", "partition", "qos", "gpu_model", "state")
DEFAULT_LABELS = "user,account,partition"
JOB_LABELS = ("cluster", "job_id", "user", "partition")
PUSH_TIMEOUT_S = 30.0
_UNITS = ("seconds", "joules", "watts", "ratio")
_SECONDS = 3600.0  # per hour

# nothing where the ledger does not have the job
_WASTED = lost_hours() * _SECONDS
_RUNNING = pl.col("end").is_null().cast(pl.Float64)
# {metric: (summed column, help)}
SUMS: Mapping[str, tuple[pl.Expr, str]] = MappingProxyType(
    {
        "tachograph_jobs": (pl.lit(1.0), "Jobs."),
        "tachograph_jobs_running": (_RUNNING, "Jobs that still run."),
        "tachograph_gpu_seconds": (
            pl.col("gpu_hours") * _SECONDS,
            "GPU time allocated, idle GPUs too.",
        ),
        "tachograph_gpu_wasted_seconds": (
            _WASTED,
            "GPU time held without work, where it is known.",
        ),
        "tachograph_energy_joules": (
            pl.col("energy_j"),
            "Energy of the GPUs, while it was measured.",
        ),
        "tachograph_energy_estimated_joules": (
            pl.col("energy_j_estimated"),
            "Energy scaled to the run time.",
        ),
    }
)
# {metric: (value of one job, help)}
OF_JOBS: Mapping[str, tuple[pl.Expr, str]] = MappingProxyType(
    {
        "tachograph_job_running": (_RUNNING, "1 while the job runs."),
        "tachograph_job_gpus": (pl.col("gpus"), "GPUs allocated."),
        "tachograph_job_elapsed_seconds": (pl.col("elapsed_s"), "Run time."),
        "tachograph_job_gpu_utilization_ratio": (
            pl.col("gpu_util_mean"),
            "GPU utilisation, mean over GPUs and time.",
        ),
        "tachograph_job_gpu_wasted_seconds": (
            _WASTED,
            "GPU time held without work.",
        ),
        "tachograph_job_hbm_peak_ratio": (
            pl.col("hbm_peak_fraction"),
            "Peak of GPU memory used over capacity.",
        ),
        "tachograph_job_power_watts": (pl.col("power_w_mean"), "Power of a GPU, mean."),
        "tachograph_job_energy_joules": (
            pl.col("energy_j"),
            "Energy of the GPUs, while it was measured.",
        ),
        "tachograph_job_energy_estimated_joules": (
            pl.col("energy_j_estimated"),
            "Energy scaled to the run time.",
        ),
        "tachograph_job_findings": (pl.col("findings"), "Findings."),
    }
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare target, labels, number of jobs."""
    parser.add_argument(
        "--to", required=True, metavar="PLACE", help="a .prom file, or a pushgateway's address"
    )
    parser.add_argument(
        "--by",
        default=DEFAULT_LABELS,
        metavar="LABELS",
        help=f"labels of the sums (default {DEFAULT_LABELS})",
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="series of at most N single jobs: running ones, then the latest",
    )


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write or push the metrics; return how many series.

    Errors: UsageError for an unknown label; ExportError when file or gateway does not take them.
    """
    metrics = list(all_metrics(content, by=_labels(options.by), jobs=options.jobs))
    page = exposition(metrics)
    where = push(options.to, page) if "://" in options.to else _write(Path(options.to), page)
    return [ExportResult("series", where, sum(len(metric.samples) for metric in metrics))]


def _labels(written: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in written.split(",") if name))
    unknown = [name for name in names if name not in LABELS]
    if unknown:
        raise UsageError(f"no label {unknown[0]!r}", do=f"use some of: {', '.join(LABELS)}")
    return names


def all_metrics(content: ExportContent, *, by: Sequence[str], jobs: int = 0) -> Iterator[Metric]:
    """Yield metrics of the jobs: sums by the labels `by`, findings by code, `jobs` single jobs."""
    yield GaugeMetricFamily(
        "tachograph_export_time_seconds",
        "Time of this export, since 1970.",
        value=content.now.timestamp(),
        unit="seconds",
    )
    labelled = content.summaries.with_columns(pl.col(name).fill_null("") for name in by)
    yield from _families(SUMS, labelled, by)
    answers = content.answers()
    yield from _findings(content, answers)
    if jobs > 0:
        yield from _families(OF_JOBS, _single(content, answers, jobs), JOB_LABELS)


def _families(
    wanted: Mapping[str, tuple[pl.Expr, str]], rows: pl.DataFrame, labels: Sequence[str]
) -> Iterator[Metric]:
    """One family per metric: sums over the rows of each label set."""
    for name, (value, sentence) in wanted.items():
        known = (
            rows.with_columns(value.cast(pl.Float64).alias("value"))
            .select(*labels, "value")
            .drop_nulls("value")
        )
        sums = (
            known.group_by(*labels).agg(pl.col("value").sum()).sort(*labels)
            if labels
            else known.sum()
        )
        unit = name.rpartition("_")[2]
        family = GaugeMetricFamily(
            name, sentence, labels=tuple(labels), unit=unit if unit in _UNITS else ""
        )
        for *texts, value in sums.select(*labels, "value").iter_rows():
            family.add_metric(texts, value)
        yield family


def _findings(content: ExportContent, answers: pl.DataFrame) -> Iterator[Metric]:
    """Jobs that have each verdict on each finding, and their GPU time."""
    hours = content.summaries.select("job_key", "gpu_hours")
    found = answers.join(hours, on="job_key", how="left")
    kinds = {
        "tachograph_findings": (pl.lit(1.0), "Jobs with this verdict on this finding."),
        "tachograph_finding_gpu_seconds": (
            pl.col("gpu_hours") * _SECONDS,
            "GPU time of the jobs with this verdict on this finding.",
        ),
    }
    yield from _families(kinds, found, ("code", "kind", "severity", "verdict"))


def _single(content: ExportContent, answers: pl.DataFrame, many: int) -> pl.DataFrame:
    """Last run of each job, running first, then latest end; the first `many` of them."""
    count = answers.filter(REPORTED).group_by("job_key").len("findings")
    jobs = content.summaries.join(count, on="job_key", how="left").with_columns(
        pl.col("findings").fill_null(0)
    )
    named = jobs.with_columns(
        pl.coalesce("display_id", "job_id").alias("job_id"),
        pl.col("cluster", "user", "partition").fill_null(""),
    )
    last = named.sort("start", "job_key").unique(
        ["cluster", "job_id"], keep="last", maintain_order=True
    )
    return last.sort("end", "job_key", descending=True, nulls_last=False).head(many)


class _Families(Collector):
    """Metric families as the library collects them."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._metrics


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Return the metrics as OpenMetrics text, which is valid Prometheus text, too.

    >>> up = GaugeMetricFamily("up", "Up.", labels=("host",))
    >>> up.add_metric(['a"b'], 1.0)
    >>> exposition([up]).decode().splitlines()[2:]
    ['up{host="a\\\\"b"} 1.0', '# EOF']
    """
    encode, _ = choose_encoder("application/openmetrics-text")
    return encode(_Families(metrics))


def _write(target: Path, page: bytes) -> str:
    if target.is_dir():
        target = target / "tachograph.prom"
    with whole_file(target) as beside:
        beside.write_bytes(page)
    return str(target)


def push(address: str, page: bytes) -> str:
    """Replace the gateway's `tachograph` group by the page; return the URL.

    Errors: ExportError when it does not answer or does not take it.
    """
    parts = urlsplit(address)
    url = address if parts.path.strip("/") else f"{address.rstrip('/')}/metrics/job/tachograph"
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    try:
        answer = httpx2.put(
            url,
            content=page,
            headers={"Content-Type": "text/plain; version=0.0.4"},
            timeout=PUSH_TIMEOUT_S,
        )
    except (httpx2.TransportError, httpx2.InvalidURL) as problem:
        raise ExportError(
            f"the gateway does not respond: {problem}",
            where=shown,
            do="check that it runs, and the address given with --to",
        ) from problem
    if not answer.is_success:
        text = " ".join(answer.text.split())[:200]
        raise ExportError(
            f"the gateway rejected it: {answer.status_code} {text}",
            where=shown,
            do="check the gateway's log",
        )
    return shown
