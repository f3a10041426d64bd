"""The report of one job: everything a renderer needs, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl
from ClusterShell.NodeSet import NodeSet, NodeSetException

from tachograph.advice import EVIDENCE, Finding, read_findings
from tachograph.advice.reading import activity_counter, gpu_label, number
from tachograph.report import words
from tachograph.report.columns import UNITS, local_time
from tachograph.report.timeline import Series, Timeline, build_timeline
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

    def local(self, moment: datetime | None) -> str:
        """Return a time in the site's zone, a dash for none."""
        return text(None) if moment is None else local_time(moment, self.zone_name)


def build_job_report(
    summary: Mapping[str, Any],
    gpus: pl.DataFrame,
    minutes: pl.DataFrame,
    findings: Sequence[Finding] | pl.DataFrame,
    now: datetime,
    *,
    zone_name: str = "UTC",
    other_runs: Sequence[Mapping[str, Any]] = (),
) -> JobReport:
    """Return the report of one job from its rows of job_summaries, job_gpus, job_minutes and findings.

    `zone_name` is the site's time zone; `other_runs` are the summaries of its other runs, where it was requeued.
    """
    told = read_findings(findings) if isinstance(findings, pl.DataFrame) else tuple(findings)
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


def evidence_texts(finding: Finding, zone_name: str) -> tuple[tuple[str, str], ...]:
    """Return the numbers behind a finding as (label, text)."""
    return tuple(
        (EVIDENCE[name][0], _evidence_text(name, value, zone_name))
        for name, value in finding.evidence.items()
        if name in EVIDENCE
    )


def _evidence_text(name: str, value: float, zone_name: str) -> str:
    unit = EVIDENCE[name][1]
    if unit == "time":
        return local_time(datetime.fromtimestamp(value, UTC), zone_name)
    return f"{value:.0f}" if unit == "code" else text(value, unit)


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
