"""The report of one job: everything a renderer needs, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl
from ClusterShell.NodeSet import NodeSet, NodeSetException

from tachograph.advice.reading import activity_counter, gpu_label, number
from tachograph.figures.marks import Mark
from tachograph.finding import Finding, read_findings
from tachograph.report import words
from tachograph.report.codes import known_codes
from tachograph.report.columns import UNITS, local_time
from tachograph.report.timeline import Series, Timeline, build_timeline
from tachograph.report.verdicts import (
    SHOWN_COUNTERS,
    Group,
    in_order,
    interval_text,
    looked_for,
    missing_counters,
    worth_knowing,
)
from tachograph.summarize.schema import PIPES
from tachograph.units import text

FEW_GPUS = 8  # up to here each GPU is shown by itself
EXTREMES = 4  # of more GPUs: so many least and most busy ones


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, its unit, and what it is called. Value None: not known."""

    label: str
    value: float | None
    unit: str

    @property
    def text(self) -> str:
        """The number as people read it."""
        return text(self.value, self.unit)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one GPU did. `series` is its activity over time, in the bins of the timeline."""

    label: str
    row: Mapping[str, Any]
    activity_mean: float | None
    activity_max: float | None
    series: Series


@dataclass(frozen=True, slots=True)
class PipeUse:
    """How much one pipe was used, and what bound the samples judged by it. None: not measured or not labelled."""

    pipe: str
    name: str
    active_mean: float | None
    bound: str | None
    compute_fraction: float | None
    memory_fraction: float | None
    idle_fraction: float | None


@dataclass(frozen=True, slots=True)
class JobReport:
    """What one run of a job did with its GPUs, what was wrong, what to do.

    `summary` is its row of job_summaries, the numbers' one source; `tiles` are the most important of them;
    `verdicts` is everything that was looked for, `findings` what of it holds and is worth knowing;
    `gpus` are in order of node and index; the sentences are of `words`.
    """

    summary: Mapping[str, Any]
    now: datetime
    zone_name: str
    job: str
    node_list: str
    headline: str
    tiles: tuple[Quantity, ...]
    findings: tuple[Finding, ...]
    verdicts: tuple[Finding, ...]
    gpus: tuple[GpuUse, ...]
    pipes: tuple[PipeUse, ...]
    use: str
    bound: str
    balance: tuple[str, ...]
    memory: str
    energy: str
    caveats: tuple[str, ...]
    timeline: Timeline
    other_runs: tuple[Mapping[str, Any], ...] = ()

    @property
    def running(self) -> bool:
        """The job has not ended yet."""
        return self.summary.get("state") == "RUNNING"

    @property
    def by_activity(self) -> tuple[GpuUse, ...]:
        """The measured GPUs, least busy first."""
        measured = [gpu for gpu in self.gpus if gpu.activity_mean is not None]
        return tuple(sorted(measured, key=lambda gpu: gpu.activity_mean or 0.0))

    @property
    def extremes(self) -> tuple[tuple[GpuUse, ...], tuple[GpuUse, ...]]:
        """The least busy GPUs (least first) and the most busy ones (most first)."""
        ordered = self.by_activity
        return ordered[:EXTREMES], ordered[::-1][:EXTREMES]

    @property
    def bands(self) -> tuple[tuple[str, int], ...]:
        """How many GPUs had which mean activity: four bands."""
        means = [gpu.activity_mean or 0.0 for gpu in self.by_activity]
        limits = (
            (0.0, 0.1, "under 10 %"),
            (0.1, 0.3, "10 to 30 %"),
            (0.3, 0.7, "30 to 70 %"),
            (0.7, 1.1, "70 % or more"),
        )
        return tuple((name, sum(low <= mean < high for mean in means)) for low, high, name in limits)

    @property
    def looked_for(self) -> tuple[Group, ...]:
        """What was looked for, by kind."""
        return looked_for(self.verdicts)

    @property
    def missing(self) -> tuple[str, ...]:
        """Which counters would decide most, and how to have them measured; where nothing was, that is told already."""
        return self.all_missing(SHOWN_COUNTERS)

    def all_missing(self, at_most: int | None = None) -> tuple[str, ...]:
        """The same with every counter, or `at_most` of each place that measures."""
        return missing_counters(self.verdicts, at_most=at_most) if number(self.summary, "samples") else ()

    @property
    def until(self) -> datetime | None:
        """When it ended, or up to when it was looked at."""
        end: datetime | None = self.summary.get("end") or self.summary.get("as_of")
        return end

    @property
    def work(self) -> tuple[tuple[str, float], ...]:
        """Kinds of work and the share of GPU time in each; empty where it was not told."""
        return words.shares_of_work(self.summary)

    def interval(self, finding: Finding) -> str | None:
        """Return the interval a finding is about, None for the whole job."""
        return interval_text(finding, self.summary.get("start"), self.until, zone_name=self.zone_name)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Intervals of the findings on the timeline, in seconds from its begin."""
        return _marks(self)

    def local(self, moment: datetime | None) -> str:
        """Return a time in the site's zone, a dash for none."""
        return text(None) if moment is None else local_time(moment, self.zone_name)


def build_job_report(
    summary: Mapping[str, Any],
    gpus: pl.DataFrame,
    minutes: pl.DataFrame,
    verdicts: Sequence[Finding] | pl.DataFrame,
    now: datetime,
    *,
    zone_name: str = "UTC",
    other_runs: Sequence[Mapping[str, Any]] = (),
) -> JobReport:
    """Return the report of one job from its rows of job_summaries, job_gpus, job_minutes and findings.

    `verdicts`: its findings with every verdict. `zone_name` is the site's time zone; `other_runs` are the summaries of
    its other runs, where it was requeued.
    """
    judged = read_findings(verdicts, known_codes()) if isinstance(verdicts, pl.DataFrame) else tuple(verdicts)
    told = worth_knowing(judged)
    counter = activity_counter(summary)
    timeline = build_timeline(minutes, elapsed_s=number(summary, "elapsed_s"), counter=counter)
    return JobReport(
        summary=summary,
        now=now,
        zone_name=zone_name,
        job=str(summary.get("display_id") or summary["job_id"]),
        node_list=fold_nodes(gpus["node"].unique().to_list()),
        headline=words.headline(summary, told),
        tiles=_tiles(summary),
        findings=told,
        verdicts=in_order(judged),
        gpus=_gpu_uses(gpus, counter, timeline),
        pipes=tuple(_pipe_use(summary, pipe) for pipe in PIPES),
        use=words.use(summary),
        bound=words.bound(summary),
        balance=words.balance(summary),
        memory=words.memory(summary),
        energy=words.energy(summary),
        caveats=words.caveats(summary),
        timeline=timeline,
        other_runs=tuple(other_runs),
    )


def fold_nodes(names: Sequence[str]) -> str:
    """Return node names in short.

    >>> fold_nodes(["nid001225", "nid001224", "login1"])
    'login1,nid[001224-001225]'
    """
    try:
        return str(NodeSet.fromlist(sorted(names)))
    except NodeSetException:  # a name that is no host name
        return ",".join(sorted(names))


def _marks(report: JobReport) -> tuple[Mark, ...]:
    """One mark per interval: findings about the same one, to the bin, share it."""
    start, until, bin_s = report.summary.get("start"), report.until, report.timeline.bin_s
    titles: dict[tuple[float, float], list[str]] = {}
    for finding in report.findings:
        begin, end = finding.begin or start, finding.end or until
        if (finding.begin is None and finding.end is None) or start is None or begin is None or end is None:
            continue
        length = bin_s * report.timeline.bins
        span = (max(0.0, (begin - start).total_seconds()), min(length, (end - start).total_seconds()))
        near = (one for one in titles if abs(one[0] - span[0]) < bin_s and abs(one[1] - span[1]) < bin_s)
        if span[0] < span[1]:
            titles.setdefault(next(near, span), []).append(finding.title)
    return tuple(Mark("; ".join(dict.fromkeys(names)), *span) for span, names in sorted(titles.items()))


def _tiles(row: Mapping[str, Any]) -> tuple[Quantity, ...]:
    names = {
        "gpu_util_mean": "GPU utilisation",
        "hbm_peak_fraction": "Memory peak",
        "spatial_imbalance": "Imbalance across GPUs",
        "temporal_imbalance": "Imbalance over time",
        "gpu_hours": "GPU-hours",
        "energy_j": "Energy",
        "power_w_mean": "Power per GPU",
    }
    return tuple(Quantity(label, number(row, name), UNITS[name]) for name, label in names.items())


def _pipe_use(row: Mapping[str, Any], pipe: str) -> PipeUse:
    end = "" if pipe == "fp64" else f"_{pipe}"
    return PipeUse(
        pipe,
        words.PIPE_NAMES[pipe],
        number(row, f"{PIPES[pipe]}_mean"),
        row.get(f"bound{end}"),
        number(row, f"compute_fraction{end}"),
        number(row, f"memory_fraction{end}"),
        number(row, f"idle_fraction{end}"),
    )


def _gpu_uses(gpus: pl.DataFrame, counter: str | None, timeline: Timeline) -> tuple[GpuUse, ...]:
    several = gpus["node"].n_unique() > 1
    return tuple(
        GpuUse(
            gpu_label(row, with_node=several),
            row,
            number(row, f"{counter}_mean") if counter else None,
            number(row, f"{counter}_max") if counter else None,
            timeline.per_gpu.get((row["node"], row["gpu"], row["mig"]), ()),
        )
        for row in gpus.sort("node", "gpu", "mig").iter_rows(named=True)
    )
