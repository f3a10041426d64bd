"""The report of one job: everything a renderer needs, as values and sentences.

A sentence about something that was not measured names that.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import polars as pl
from ClusterShell.NodeSet import NodeSet, NodeSetException

from tachograph.catalog.codes import known_codes
from tachograph.catalog.columns import COLUMN_UNITS, local_time
from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import plural, text
from tachograph.judge.activity import PIPE_NAMES, activity_counter, gpu_label, number
from tachograph.judge.bounds import HostMemory
from tachograph.judge.culprit import Culprit, hang_culprit, with_culprit
from tachograph.judge.finding import Finding, read_findings
from tachograph.judge.limiter import WITHOUT_WORK, shares_of_job
from tachograph.judge.partitions import NOT_RECORDED, SitePartitions
from tachograph.judge.steps import JobSteps
from tachograph.judge.waste import EnergyEstimate
from tachograph.report.company import NO_COMPANY, GpuCompany
from tachograph.report.findings import (
    FACTS,
    SHOWN_COUNTERS,
    as_listed,
    as_reported,
    by_group,
    group_of,
    interval_text,
    missing_counters,
    worth_knowing,
)
from tachograph.report.job_kernels import NO_KERNELS, JobKernels
from tachograph.report.job_sentences import (
    balance_sentences,
    caveat_sentences,
    energy_sentence,
    estimate_sentence,
    host_sentence,
    limiter_sentence,
    means_sentence,
    memory_sentence,
    node_energy_sentence,
    recorded_sentence,
    sampled_power,
    shares_of_work,
    use_sentence,
)
from tachograph.report.json_values import json_values, public_row
from tachograph.report.next_time import NextTime, next_time
from tachograph.report.steps import steps_json
from tachograph.report.timeline import JobTimeline, Series, build_timeline
from tachograph.report.verdict import verdict_sentence, worst_first

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobGpuRow, JobNodeRow, JobSummaryRow
    from tachograph.judge.ranks import RanksCulprit

FEW_GPUS = 8  # up to here each GPU is shown by itself
EXTREMES = 4  # if there are more GPUs: this many least and most busy ones


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a column with unit; None: unknown."""

    name: str
    label: str
    value: float | None
    unit: str

    @property
    def text(self) -> str:
        """The number as people read it."""
        return text(self.value, self.unit)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Activity of one GPU; `series`: over the bins of the timeline."""

    label: str
    row: JobGpuRow
    activity_mean: float | None
    activity_max: float | None
    series: Series


@dataclass(frozen=True, slots=True)
class PipeUse:
    """Activity of one pipe and what bound its samples. None: not measured or not labelled."""

    pipe: str
    name: str
    active_mean: float | None
    bound: str | None
    compute_fraction: float | None
    memory_fraction: float | None
    idle_fraction: float | None


@dataclass(frozen=True, slots=True)
class JobReport:
    """Report of a run: GPU use, findings, fixes.

    `summary` is its row of job_summaries, the numbers' one source; `tiles` are the most important
    of them; `culprit`: that of a hang, or why none is named; None: no hang of several GPUs was
    found; `ranks`: that by records of its ranks, where given; `lake`: the one that commands on the
    job must name, "": the default; `verdicts` are those of all checks,
    `findings` the reported ones; `gpus` are in order of node and index; the sentences are those of
    this module.
    """

    summary: JobSummaryRow
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
    means: str | None
    limiter: str | None
    host: str | None
    recorded: str | None
    balance: tuple[str, ...]
    memory: str
    energy: str
    caveats: tuple[str, ...]
    next_time: NextTime | None
    culprit: Culprit | None
    timeline: JobTimeline
    steps: JobSteps
    other_runs: tuple[JobSummaryRow, ...] = ()
    kernels: JobKernels = NO_KERNELS
    company: GpuCompany = NO_COMPANY
    estimate: EnergyEstimate | None = None
    nodes: tuple[JobNodeRow, ...] = ()
    ranks: RanksCulprit | None = None
    lake: str = ""

    @property
    def command(self) -> str:
        """The command that prints this report."""
        lake = f" --lake {shlex.quote(self.lake)}" if self.lake else ""
        return f"tachograph job {self.job}{lake}"

    @property
    def running(self) -> bool:
        """The job has not ended yet."""
        return self.summary.get("state") == "RUNNING"

    @property
    def ran(self) -> str:
        """Return from when to when the job ran; up to when that is known while it runs."""
        start = self.local(self.summary.get("start"))
        if self.running:
            return f"{start} to {self.local(self.summary.get('as_of'))}, still running"
        return f"{start} to {self.local(self.summary.get('end'))}"

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
        """Number of GPUs in four bands of mean activity."""
        means = [gpu.activity_mean or 0.0 for gpu in self.by_activity]
        limits = (
            (0.0, 0.1, "under 10 %"),
            (0.1, 0.3, "10 to 30 %"),
            (0.3, 0.7, "30 to 70 %"),
            (0.7, 1.1, "70 % or more"),
        )
        return tuple(
            (name, sum(low <= mean < high for mean in means)) for low, high, name in limits
        )

    @property
    def facts(self) -> str | None:
        """The facts that checks found, in short: the nature of the code, nothing to fix."""
        titles = [
            finding.title
            for finding in self.verdicts
            if finding.kind == "check" and group_of(finding) == FACTS
        ]
        return f"{'. '.join(titles)}." if titles else None

    @property
    def checks(self) -> tuple[tuple[str, tuple[Finding, ...]], ...]:
        """All checks by result: (name of the group, its findings as listed there)."""
        groups = groupby(self.verdicts, key=group_of)
        return tuple((name, tuple(map(as_listed, findings))) for name, findings in groups)

    @property
    def missing(self) -> tuple[str, ...]:
        """Missing counters that most checks need, and how to record them; empty without any
        data.
        """
        return self.all_missing(SHOWN_COUNTERS)

    def all_missing(self, at_most: int | None = None) -> tuple[str, ...]:
        """All missing counters, or `at_most` of them per source."""
        return (
            missing_counters(
                self.verdicts, recorded=lambda name: not self._lacks(name), at_most=at_most
            )
            if number(self.summary, "samples")
            else ()
        )

    @property
    def unchecked(self) -> str | None:
        """Checks without the needed counters, in one line; None if there are none."""
        if not number(self.summary, "samples"):
            return None
        waiting = self.checks_without_counters
        names: Counter[str] = Counter()
        for finding in self.verdicts:
            if _lacks_counters(finding):
                names.update(filter(self._lacks, dict.fromkeys(finding.needs)))
        if not names:
            return None
        listed = ", ".join(name for name, _ in names.most_common(SHOWN_COUNTERS))
        if len(names) > SHOWN_COUNTERS:
            listed += f" and {len(names) - SHOWN_COUNTERS} more"
        need = "needs" if waiting == 1 else "need"
        return f"{plural(waiting, 'check')} {need} what is not recorded: {listed}, see --checks."

    @property
    def checks_without_counters(self) -> int:
        """Number of checks that are unknown because something they need was not recorded."""
        return sum(_lacks_counters(finding) for finding in self.verdicts)

    def _lacks(self, counter: str) -> bool:
        """Whether a counter was not recorded of this job."""
        return all(
            self.summary.get(f"{counter}{end}") is None for end in ("_mean", "_max", "_events")
        )

    @property
    def until(self) -> datetime | None:
        """End of the job, or of the analyzed data."""
        end: datetime | None = self.summary.get("end") or self.summary.get("as_of")
        return end

    @property
    def work(self) -> tuple[tuple[str, float], ...]:
        """Workload classes and the share of GPU time in each; empty: unknown."""
        return shares_of_work(self.summary)

    def interval(self, finding: Finding) -> str | None:
        """Return the interval a finding is about, None for the whole job."""
        return interval_text(
            finding, self.summary.get("start"), self.until, zone_name=self.zone_name
        )

    def local(self, moment: datetime | None) -> str:
        """Return a time in the site's zone, a dash for None."""
        return text(None) if moment is None else local_time(moment, self.zone_name)


def build_job_report(
    summary: JobSummaryRow,
    gpus: pl.DataFrame,
    minutes: pl.DataFrame,
    verdicts: Sequence[Finding] | pl.DataFrame,
    now: datetime,
    *,
    zone_name: str = "UTC",
    steps: JobSteps | None = None,
    other_runs: Sequence[JobSummaryRow] = (),
    evidence: str = "",
    runs_s: Sequence[float] = (),
    host_memory: HostMemory | None = None,
    site: SitePartitions = NOT_RECORDED,
    unusual: Finding | None = None,
    kernels: JobKernels = NO_KERNELS,
    company: GpuCompany = NO_COMPANY,
    estimate: EnergyEstimate | None = None,
    nodes: Sequence[JobNodeRow] = (),
) -> JobReport:
    """Return the report of a job from its job_summaries, job_gpus, job_minutes and findings.

    `verdicts`: its findings with every verdict. `zone_name` is the site's time zone; `steps`: see
    job_steps; `other_runs` are the summaries of its other runs, where it was requeued. `evidence`:
    see read_evidence. `runs_s`, `host_memory`, `site`: see
    next_time. `unusual`: how it differs from earlier runs. `kernels`: of reports attached to it.
    `company`: who else had its GPUs. `estimate`: of its emissions. `nodes`: its rows of job_nodes.
    """
    judged = (
        read_findings(verdicts, known_codes())
        if isinstance(verdicts, pl.DataFrame)
        else tuple(verdicts)
    )
    if unusual is not None:
        judged = (*judged, unusual)
    culprit = hang_culprit(judged, gpus, minutes, held=number(summary, "gpus"))
    judged = tuple(with_culprit(finding, culprit) for finding in judged)
    reported = worst_first(worth_knowing(judged), summary)
    steps = steps or JobSteps()
    own_steps = [step.row for step in steps.steps]
    shares = shares_of_job(summary)
    counter = activity_counter(summary)
    timeline = build_timeline(minutes, elapsed_s=number(summary, "elapsed_s"), counter=counter)
    slices = gpus.get_column("mig").is_not_null().any()
    energy = (
        energy_sentence(summary, slices=slices),
        node_energy_sentence(summary),
        estimate_sentence(estimate),
    )
    return JobReport(
        summary=summary,
        now=now,
        zone_name=zone_name,
        job=str(summary.get("display_id") or summary["job_id"]),
        node_list=fold_nodes(gpus["node"].unique().to_list()),
        headline=verdict_sentence(summary, judged, own_steps, steps.node_memory_mib),
        tiles=_tiles(summary),
        findings=reported,
        verdicts=by_group(map(as_reported, judged)),
        gpus=_gpu_uses(gpus, counter, timeline),
        pipes=tuple(_pipe_use(summary, pipe) for pipe in PIPES),
        use=use_sentence(summary),
        means=means_sentence(summary),
        limiter=limiter_sentence(summary, shares, idle=_without_work(reported)),
        host=host_sentence(summary),
        recorded=recorded_sentence(summary),
        balance=balance_sentences(summary),
        memory=memory_sentence(summary),
        energy=" ".join(sentence for sentence in energy if sentence),
        caveats=caveat_sentences(summary, evidence, company),
        next_time=next_time(summary, judged, runs_s, host_memory, site, own_steps),
        culprit=culprit,
        timeline=timeline,
        steps=steps,
        other_runs=tuple(other_runs),
        kernels=kernels,
        company=company,
        estimate=estimate,
        nodes=tuple(nodes),
    )


def _lacks_counters(finding: Finding) -> bool:
    return finding.verdict == "unknown" and bool(finding.needs)


def _without_work(reported: Sequence[Finding]) -> bool:
    return any(finding.code in WITHOUT_WORK for finding in reported)


def fold_nodes(names: Sequence[str]) -> str:
    """Return node names in short.

    >>> fold_nodes(["nid001225", "nid001224", "login1"])
    'login1,nid[001224-001225]'
    """
    try:
        return str(NodeSet.fromlist(sorted(names)))
    except NodeSetException:  # not a host name
        return ",".join(sorted(names))


def _tiles(row: JobSummaryRow) -> tuple[Quantity, ...]:
    names = {
        "gpu_util_mean": "GPU utilisation",
        "sm_active_mean": "SMs active",
        "tensor_active_mean": "Tensor cores active",
        "dram_active_mean": "DRAM active",
        "hbm_peak_fraction": "Memory peak",
        "spatial_imbalance": "Imbalance across GPUs",
        "temporal_imbalance": "Imbalance over time",
        "gpu_hours": "GPU-hours",
        "energy_j": "Energy",
        "power_w_mean": "Power per GPU",
    }
    values = {name: number(row, name) for name in names} | {"power_w_mean": sampled_power(row)}
    return tuple(
        Quantity(name, label, values[name], COLUMN_UNITS[name]) for name, label in names.items()
    )


def _pipe_use(row: JobSummaryRow, pipe: str) -> PipeUse:
    end = "" if pipe == "fp64" else f"_{pipe}"
    return PipeUse(
        pipe,
        PIPE_NAMES[pipe],
        number(row, f"{PIPES[pipe]}_mean"),
        cast("str | None", row.get(f"bound{end}")),
        number(row, f"compute_fraction{end}"),
        number(row, f"memory_fraction{end}"),
        number(row, f"idle_fraction{end}"),
    )


def _gpu_uses(gpus: pl.DataFrame, counter: str | None, timeline: JobTimeline) -> tuple[GpuUse, ...]:
    several = gpus["node"].n_unique() > 1
    uses: list[GpuUse] = []
    ordered = gpus.sort("node", "gpu", "mig")
    for row in cast("list[JobGpuRow]", ordered.to_dicts()):
        mean = number(row, f"{counter}_mean") if counter else None
        peak = number(row, f"{counter}_max") if counter else None
        series = timeline.per_gpu.get((row["node"], row["gpu"], row["mig"]), ())
        uses.append(GpuUse(gpu_label(row, with_node=several), row, mean, peak, series))
    return tuple(uses)


def job_json(report: JobReport) -> dict[str, Any]:
    """Return the report as JSON values: the summary's columns, and its lists.

    The lists are `findings`, `verdicts`, `evidence`, `per_gpu`, `timeline`, `steps`, `kernels`.

    `gpus` is the summary's number of GPUs; their rows are `per_gpu`. `findings`: those that are
    reported; `verdicts`: every check. `culprit`: likely culprit of a hang of several GPUs, or why
    none is named. `evidence` is {code: {name: number}} of `findings`. `kernels`: the attached
    reports of Nsight Compute. `company`: other jobs on its GPUs. `per_node`: rows of job_nodes.
    `energy_estimate`: with PUE and emissions. Null: not measured.
    """
    timeline = report.timeline
    units = sorted(timeline.per_gpu.items(), key=lambda item: (item[0][:2], item[0][2] or 0))
    return json_values(
        {
            **public_row(report.summary),
            "node_list": report.node_list,
            "headline": report.headline,
            "next_time": report.next_time
            and {"line": report.next_time.line, "why": report.next_time.why},
            "culprit": report.culprit,
            **({} if report.ranks is None else {"ranks": report.ranks}),
            "findings": report.findings,
            "verdicts": report.verdicts,
            "evidence": {finding.code: finding.evidence for finding in report.findings},
            "per_gpu": [public_row(gpu.row) for gpu in report.gpus],
            "per_node": [public_row(row) for row in report.nodes],
            "energy_estimate": report.estimate,
            "timeline": {
                "bin_s": timeline.bin_s,
                "bins": timeline.bins,
                "counter": timeline.counter,
                "gpus": [
                    {"node": node, "gpu": gpu, "mig": mig, "values": each}
                    for (node, gpu, mig), each in units
                ],
                "means": timeline.means,
            },
            "steps": steps_json(report.steps),
            "kernels": report.kernels.reports,
            "caveats": report.caveats,
            "other_runs": [other["job_key"] for other in report.other_runs],
            "company": report.company,
        }
    )
