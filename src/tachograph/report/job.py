"""The report of one job: everything a renderer needs, as values and sentences.

A sentence about something that was not measured names that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import polars as pl
from ClusterShell.NodeSet import NodeSet, NodeSetException

from tachograph.catalog.codes import known_codes
from tachograph.catalog.columns import COLUMN_UNITS, local_time, share_text
from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import plural, text
from tachograph.figures.timeline import JobTimeline, Mark, Series, build_timeline
from tachograph.judge.activity import ACTIVITY_NAMES, activity_counter, gpu_label, number
from tachograph.judge.checks.memory_bound import main_pipe
from tachograph.judge.finding import Finding, read_findings
from tachograph.judge.steps import JobSteps
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.report.findings import (
    SHOWN_COUNTERS,
    by_group,
    group_of,
    interval_text,
    missing_counters,
    worth_knowing,
)
from tachograph.report.json_values import json_values, public_row
from tachograph.report.steps import steps_json

PIPE_NAMES = {"fp64": "FP64 units", "fp32": "FP32 units", "fp16": "FP16 units", "tensor": "tensor cores"}
_ATTRIBUTION = {
    "explicit": "Its GPUs are known from a map of jobs to GPUs.",
    "live_index": "Its GPUs are known from the scheduler, recorded while the job ran.",
    "whole_node": "Its GPUs are all GPUs of its nodes, which it had to itself.",
    "ambiguous": "It is not known which GPUs of its shared nodes were its own.",
}
_EVIDENCE = {  # by attribution and what records where the run was
    ("explicit", "samples"): "Its GPUs are known from samples that name it.",
    ("ambiguous", "samples"): "Samples name it on more GPUs than it was allocated: which were its own is not known.",
    (
        "ambiguous",
        "nothing",
    ): "Where it ran is unknown: its accounting has no node list, no sample or map names it.",
    ("ambiguous", "elsewhere"): "Samples or maps name it at other times only than its accounting: see site.time_zone.",
}
_OF_RECORDINGS = ("local-", "anonymous-")  # so ids begin that `tachograph record` makes
_EXCLUDED_BECAUSE = {
    "ambiguous_attribution": "its GPUs are not known",
    "still_running": "it still runs",
    "no_samples": "there are no samples",
    "short": "it was short",
    "idle": "its GPUs were idle",
    "other_partition": "it ran in another partition",
    "staff_account": "it is of a staff account",
    "login_node": "it ran on a login node",
}
_STUDIED_COUNTERS = (*ACTIVITY_NAMES, *PIPES.values(), "dram_active", "hbm_used_mib", "power_w", "energy_j")


def job_headline(row: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Return the report in one or two sentences."""
    counts = [
        plural(sum(finding.severity == severity for finding in findings), severity)
        for severity in ("problem", "hint")
        if any(finding.severity == severity for finding in findings)
    ]
    verdict = " and ".join(counts) + " below" if counts else "Nothing stands out"
    if row.get("attribution") == "ambiguous" or not number(row, "samples"):
        verdict = "Not enough data about this job; see the notes"
    return f"{use_sentence(row)} {verdict}."


def use_sentence(row: Mapping[str, Any]) -> str:
    """Return how busy the GPUs were.

    >>> use_sentence({"gpus": 4, "gpu_util_mean": 0.42})
    'The 4 GPUs were busy 42 % of the time.'
    """
    counter, count = activity_counter(row), number(row, "gpus")
    who = "The GPUs were" if count is None else "The GPU was" if count == 1 else f"The {text(count, 'count')} GPUs were"
    if counter is None:
        return f"How busy {'the GPU was' if count == 1 else 'the GPUs were'} is not known."
    mean = number(row, f"{counter}_mean")
    share = text(mean, "fraction")
    if mean is not None and mean > 1:  # normalised by the profile of a MIG slice
        return f"The mean of {ACTIVITY_NAMES.get(counter, counter)} was {share} of the MIG slice."
    how = "" if counter == "gpu_util" else f" ({ACTIVITY_NAMES[counter]})"
    return f"{who} busy {share} of the time{how}."


def bound_sentence(row: Mapping[str, Any]) -> str:
    """Return what set the speed, arithmetic or memory, and what that means; on the most used pipe."""
    if number(row, "dram_active_mean") is None or all(number(row, f"{c}_mean") is None for c in PIPES.values()):
        return "Not known: arithmetic or memory traffic was not measured."
    pipe = main_pipe(row)
    if pipe is None:
        return "No arithmetic was measured on the FP64, FP32, FP16 units or tensor cores."
    end = "" if pipe == "fp64" else f"_{pipe}"
    label = row.get(f"bound{end}")
    judged = f"(judged by the {PIPE_NAMES[pipe]}, the most used ones)"
    match label:
        case "memory":
            share = text(number(row, f"memory_fraction{end}"), "fraction")
            return (
                f"Memory-bound: in {share} of the samples with work, moving data took longer than computing {judged}. "
                "Fewer bytes per operation or faster memory would speed it up; faster arithmetic would not."
            )
        case "compute":
            share = text(number(row, f"compute_fraction{end}"), "fraction")
            return (
                f"Compute-bound: in {share} of the samples with work, computing took longer than moving data {judged}. "
                "Fewer or cheaper operations (smaller types, tensor cores) would speed it up; faster memory would not."
            )
        case _:
            return f"Neither: no type of sample is in the majority {judged}."


def balance_sentences(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how evenly the work was spread over GPUs and over time."""
    spatial, temporal = number(row, "spatial_imbalance"), number(row, "temporal_imbalance")
    sentences = []
    if number(row, "gpus") == 1:
        sentences.append("Across GPUs: there is one GPU only.")
    elif spatial is None:
        sentences.append("Across GPUs: not known.")
    else:
        sentences.append(f"Across GPUs: {text(spatial, 'ratio')}, {_evenness(spatial)} (0: all GPUs alike).")
    if temporal is None:
        sentences.append("Over time: not known.")
    else:
        sentences.append(f"Over time: {text(temporal, 'ratio')}, {_steadiness(temporal)} (0: constant).")
    return tuple(sentences)


def _evenness(imbalance: float) -> str:
    return (
        "even"
        if imbalance < 0.1
        else "mostly even"
        if imbalance < 0.3
        else "uneven"
        if imbalance < 0.5
        else "very uneven"
    )


def _steadiness(imbalance: float) -> str:
    return (
        "steady"
        if imbalance < 0.1
        else "mostly steady"
        if imbalance < 0.3
        else "varying"
        if imbalance < 0.5
        else "strongly varying"
    )


def memory_sentence(row: Mapping[str, Any]) -> str:
    """Return the peak of memory used.

    >>> memory_sentence({"hbm_peak_fraction": 0.5, "hbm_used_mib_max": 20480.0, "hbm_mib": 40960.0})
    'At the peak 50 % of the memory of a GPU was in use (20.0 GiB of 40.0 GiB).'
    """
    peak, used, capacity = (number(row, name) for name in ("hbm_peak_fraction", "hbm_used_mib_max", "hbm_mib"))
    if peak is None and used is None:
        return "Not known: memory was not measured."
    if peak is None:
        return f"At the peak {text(used, 'MiB')} of the memory of a GPU was in use; its capacity is not known."
    amounts = "" if used is None or capacity is None else f" ({text(used, 'MiB')} of {text(capacity, 'MiB')})"
    return f"At the peak {text(peak, 'fraction')} of the memory of a GPU was in use{amounts}."


def shares_of_work(row: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return workload classes and the share of GPU time in each, in their order; empty where they are not known.

    >>> shares_of_work({"workload_fractions": [1.0, *[0.0] * 12]})[0]
    ('idle', 1.0)
    """
    shares = row.get("workload_fractions")
    return tuple(zip(WORKLOAD_CLASSES, shares, strict=True)) if shares else ()


def energy_sentence(row: Mapping[str, Any]) -> str:
    """Return energy and power of the GPUs.

    >>> energy_sentence({"energy_j": 7.2e6, "power_w_mean": 250.0})
    'The GPUs used 2.00 kWh, 250 W per GPU on average.'
    """
    joules, watts = number(row, "energy_j"), number(row, "power_w_mean")
    if joules is None:
        return "Not known: neither energy nor power was measured."
    one = number(row, "gpus") == 1
    mean = "" if watts is None else f", {text(watts, 'W')} {'' if one else 'per GPU '}on average"
    return f"{'The GPU' if one else 'The GPUs'} used {text(joules, 'J')}{mean}."


def caveat_sentences(row: Mapping[str, Any], evidence: str = "") -> tuple[str, ...]:
    """Return what is to be known about the data of the report."""
    attribution = str(row.get("attribution"))
    recorded = attribution == "explicit" and str(row.get("job_id")).startswith(_OF_RECORDINGS)
    known = _EVIDENCE.get((attribution, evidence)) or _ATTRIBUTION.get(attribution, "")
    notes = ["Its GPUs are those that were recorded." if recorded else known]
    share = share_text(row)
    if share and attribution == "ambiguous":
        notes = [f"It had a share ({share}) of GPUs that other jobs held at the same time, or may have held."]
    elif share:
        if attribution == "whole_node":
            notes = ["Its nodes have one GPU each."]
        notes.append(f"It had a share of them ({share}), and no other job held them: all samples are its own.")
    if share:
        notes.append("No GPU-hours are counted: it had no whole GPU.")
    coverage, interval, samples = (number(row, name) for name in ("coverage", "interval_s", "samples"))
    if samples:
        every = "" if interval is None else f", one per GPU every {text(interval, 's')}"
        share = "" if coverage is None else f"; {text(coverage, 'fraction')} of the expected ones"
        notes.append(f"{text(samples, 'count')} samples{every}{share}.")
    if row.get("state") == "RUNNING":
        notes.append("The job still runs: all numbers are those so far, energy that of the time with samples.")
    if row.get("energy_source") == "power":
        notes.append("Energy is integrated from samples of power.")
    missing = [name for name in _STUDIED_COUNTERS if number(row, f"{name}_mean") is None]
    if samples and missing:
        notes.append(f"Not measured: {', '.join(missing)}.")
    if row.get("excluded"):
        reasons = (_EXCLUDED_BECAUSE.get(name, name) for name in row["excluded"].split(","))
        notes.append(f"Left out of studies: {', '.join(reasons)}.")
    return tuple(sentence for sentence in notes if sentence)


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
    `verdicts` are those of all checks, `findings` the reported ones;
    `gpus` are in order of node and index; the sentences are those of this module.
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
    timeline: JobTimeline
    steps: JobSteps
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
    def checks(self) -> tuple[tuple[str, tuple[Finding, ...]], ...]:
        """All checks by result: (name of the group, its findings), as in CHECK_GROUPS."""
        return tuple((name, tuple(found)) for name, found in groupby(self.verdicts, key=group_of))

    @property
    def missing(self) -> tuple[str, ...]:
        """The missing counters that most checks need, and how to record them; empty where nothing was measured."""
        return self.all_missing(SHOWN_COUNTERS)

    def all_missing(self, at_most: int | None = None) -> tuple[str, ...]:
        """The same with every counter, or `at_most` of each place that measures."""
        return missing_counters(self.verdicts, at_most=at_most) if number(self.summary, "samples") else ()

    @property
    def until(self) -> datetime | None:
        """Its end, else the end of the analyzed data."""
        end: datetime | None = self.summary.get("end") or self.summary.get("as_of")
        return end

    @property
    def work(self) -> tuple[tuple[str, float], ...]:
        """Workload classes and the share of GPU time in each; empty: not known."""
        return shares_of_work(self.summary)

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
    steps: JobSteps | None = None,
    other_runs: Sequence[Mapping[str, Any]] = (),
    evidence: str = "",
) -> JobReport:
    """Return the report of one job from its rows of job_summaries, job_gpus, job_minutes and findings.

    `verdicts`: its findings with every verdict. `zone_name` is the site's time zone; `steps`: see job_steps;
    `other_runs` are the summaries of its other runs, where it was requeued. `evidence`: see read_evidence.
    """
    judged = read_findings(verdicts, known_codes()) if isinstance(verdicts, pl.DataFrame) else tuple(verdicts)
    reported = worth_knowing(judged)
    counter = activity_counter(summary)
    timeline = build_timeline(minutes, elapsed_s=number(summary, "elapsed_s"), counter=counter)
    return JobReport(
        summary=summary,
        now=now,
        zone_name=zone_name,
        job=str(summary.get("display_id") or summary["job_id"]),
        node_list=fold_nodes(gpus["node"].unique().to_list()),
        headline=job_headline(summary, reported),
        tiles=_tiles(summary),
        findings=reported,
        verdicts=by_group(judged),
        gpus=_gpu_uses(gpus, counter, timeline),
        pipes=tuple(_pipe_use(summary, pipe) for pipe in PIPES),
        use=use_sentence(summary),
        bound=bound_sentence(summary),
        balance=balance_sentences(summary),
        memory=memory_sentence(summary),
        energy=energy_sentence(summary),
        caveats=caveat_sentences(summary, evidence),
        timeline=timeline,
        steps=steps or JobSteps(),
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
    return tuple(Quantity(label, number(row, name), COLUMN_UNITS[name]) for name, label in names.items())


def _pipe_use(row: Mapping[str, Any], pipe: str) -> PipeUse:
    end = "" if pipe == "fp64" else f"_{pipe}"
    return PipeUse(
        pipe,
        PIPE_NAMES[pipe],
        number(row, f"{PIPES[pipe]}_mean"),
        row.get(f"bound{end}"),
        number(row, f"compute_fraction{end}"),
        number(row, f"memory_fraction{end}"),
        number(row, f"idle_fraction{end}"),
    )


def _gpu_uses(gpus: pl.DataFrame, counter: str | None, timeline: JobTimeline) -> tuple[GpuUse, ...]:
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


def job_json(report: JobReport) -> dict[str, Any]:
    """Return the summary's columns and `findings`, `verdicts`, `evidence`, `per_gpu`, `timeline`, `steps`.

    `gpus` is the summary's number of GPUs; their rows are `per_gpu`. `findings`: those that are reported; `verdicts`:
    every check. `evidence` is {code: {name: number}} of `findings`. Null: not measured.
    """
    timeline = report.timeline
    units = sorted(timeline.per_gpu.items(), key=lambda item: (item[0][:2], item[0][2] or 0))
    return json_values(
        {
            **public_row(report.summary),
            "node_list": report.node_list,
            "headline": report.headline,
            "findings": report.findings,
            "verdicts": report.verdicts,
            "evidence": {finding.code: finding.evidence for finding in report.findings},
            "per_gpu": [public_row(gpu.row) for gpu in report.gpus],
            "timeline": {
                "bin_s": timeline.bin_s,
                "bins": timeline.bins,
                "counter": timeline.counter,
                "gpus": [{"node": node, "gpu": gpu, "mig": mig, "values": each} for (node, gpu, mig), each in units],
                "means": timeline.means,
            },
            "steps": steps_json(report.steps),
            "caveats": report.caveats,
            "other_runs": [other["job_key"] for other in report.other_runs],
        }
    )
