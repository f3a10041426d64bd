"""What a study says of itself: the data it is made of, how it was computed. Numbers go through units.text."""

from __future__ import annotations

from datetime import datetime

from tachograph import __version__
from tachograph.figures.statistics import BOX_CAPTION
from tachograph.figures.study import count_jobs, percent
from tachograph.report.columns import local_time
from tachograph.report.study.dataset import LOW_COVERAGE, Dataset
from tachograph.report.study.report import VARIANTS, MadeFigure, Settings, StudyReport
from tachograph.summarize.variants import PIPE_THRESHOLD
from tachograph.units import plural, text

SOURCE = (
    "Cankur, Austin, Kulkarni, Bhatele: Characterizing Production GPU Workloads using System-wide Telemetry Data, "
    "IPDPS 2026"
)

MWH_J = 3.6e9
# of the paper, of its notebooks
_ENERGY = (
    "increase of the energy counter, else integral of power, scaled to the job's run time",
    "increase of the energy counter over the samples, not scaled to the run time",
)
_HOURS = (
    "GPUs allocated × run time as accounted, idle ones too",
    "GPUs with samples × time from start to end, idle ones too",
)
NOT_ANSWERED = "Not answered: what it needs was not measured."


def tiles(report: StudyReport) -> tuple[tuple[str, str], ...]:
    """Return the most important numbers of the data as (text, what it is)."""
    dataset = report.dataset
    return (
        (text(dataset.jobs, "count"), "jobs studied"),
        (text(dataset.gpus, "count"), "GPUs"),
        (text(dataset.nodes, "count"), "nodes"),
        (text(dataset.gpu_hours, "count"), "GPU-hours"),
        (_joules(dataset.energy_j), "energy of the GPUs"),
        (text(dataset.samples, "count"), "samples of them"),
    )


def data_rows(report: StudyReport) -> tuple[tuple[str, str], ...]:
    """Return the description of the data as (what, text)."""
    dataset = report.dataset
    return (
        ("Lake", dataset.lake),
        ("Jobs ran", f"{_local(report, dataset.first)} to {_local(report, dataset.last)}"),
        ("Nodes", text(dataset.nodes, "count")),
        ("GPUs", f"{text(dataset.gpus, 'count')}: {', '.join(f'{m.gpus:,} {m.model}' for m in dataset.models)}"),
        ("Jobs recorded", text(dataset.recorded_jobs, "count")),
        ("Jobs studied", f"{text(dataset.jobs, 'count')}, of {plural(dataset.users, 'user')}"),
        ("GPU-hours", text(dataset.gpu_hours, "count")),
        ("Energy", _energy(dataset)),
        ("Samples", _samples(report)),
        ("Coverage", _coverage(dataset)),
        ("Not measured", ", ".join(dataset.never_measured) or "every counter was measured"),
        ("Measured in part", _partly(dataset)),
    )


def choice_sentence(report: StudyReport) -> str:
    """Return what the reader's own choice left out."""
    dataset = report.dataset
    if not report.settings.choices:
        return f"All {count_jobs(dataset.recorded_jobs)} of the lake were looked at."
    chosen = "; ".join(f"{what} {given}" for what, given in report.settings.choices)
    out = dataset.recorded_jobs - dataset.chosen_jobs
    return f"By choice ({chosen}) {count_jobs(out)} of {dataset.recorded_jobs:,} are left out."


def caption(figure: MadeFigure) -> str:
    """Return what stands under a figure."""
    missing = "".join(f" Not drawn: {one}." for one in figure.missing)
    jobs = count_jobs(figure.numbers.jobs)
    return f"Figure {figure.entry.number}. {figure.entry.title}. From {jobs} of the study.{missing}"


def methods(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return how everything was computed as (term, definition)."""
    notebooks = settings.variant == "notebooks"
    return (
        ("Job mean", "mean over the GPUs of a job of the mean over time; values nobody measured are left out"),
        ("Spatial imbalance", _spatial(settings)),
        ("Temporal imbalance", _temporal(settings)),
        ("Compute- or memory-bound", _bound(settings)),
        ("Pipes used", _pipes(settings)),
        ("Memory peak", "largest use of one GPU over its capacity"),
        ("Energy", _ENERGY[notebooks]),
        ("GPU-hours", _HOURS[notebooks]),
        ("Coverage", "samples over those expected at the job's own interval"),
        ("Boxes", BOX_CAPTION.removeprefix("Boxes: ").rstrip(".")),
        ("Shares", "of the jobs that a sentence names, in which the value is known; a missing value is never 0"),
        ("Variant", VARIANTS[settings.variant]),
        ("Filters switched off", ", ".join(settings.no_filter) or "none"),
        ("Made by", f"Tachograph {__version__}; figures and questions after {SOURCE}"),
    )


def _spatial(settings: Settings) -> str:
    zero = settings.variant == "notebooks" or settings.analysis.count_zero_windows
    return (
        f"per window of {text(settings.options.window_s, 's')} from the job's start 1 - sum / (GPUs × max) of the "
        "GPUs' utilisation, mean over windows; 0: all alike. A window in which all are idle "
        f"{'counts as 0' if zero else 'is left out'}. Jobs with one GPU have none"
    )


def _temporal(settings: Settings) -> str:
    zero = settings.variant == "notebooks" or settings.analysis.zero_temporal_imbalance
    return (
        "per GPU 1 - sum / (samples × max) of utilisation, the largest of the job's GPUs; 0: constant. A GPU that was "
        f"never busy {'has 0' if zero else 'has none'}"
    )


def _bound(settings: Settings) -> str:
    pipe = "tensor" if settings.options.pipe == "tensor" else settings.options.pipe.upper()
    return (
        f"a sample is compute-bound where its arithmetic intensity on the {pipe} pipe is at least that of the ridge, "
        "which is the same as: pipe activity at least that of memory. A job is what the majority of its labelled "
        f"{'time' if settings.analysis.time_weighted_bound else 'samples'} is; a tie is neither"
    )


def _pipes(settings: Settings) -> str:
    if settings.variant == "notebooks":
        return f"job mean above {PIPE_THRESHOLD:g}"
    percentile = "the 5th percentile of the jobs studied (from 100 jobs on) and above "
    return (
        f"job mean above {percentile if settings.analysis.pipe_percentile else ''}{settings.analysis.pipe_threshold:g}"
    )


def _local(report: StudyReport, moment: datetime) -> str:
    return local_time(moment, report.zone_name)


def _energy(dataset: Dataset) -> str:
    if dataset.energy_j is None:
        return "not measured"
    all_of_them = dataset.energy_jobs == dataset.jobs
    return f"{_joules(dataset.energy_j)}{'' if all_of_them else f', of {count_jobs(dataset.energy_jobs)}'}"


def _joules(energy_j: float | None) -> str:
    """Energy of many jobs: MWh where it is that much."""
    return text(energy_j, "J") if energy_j is None or energy_j < MWH_J else text(energy_j / MWH_J, "MWh")


def _samples(report: StudyReport) -> str:
    dataset, recorded = report.dataset, report.dataset.recorded
    span = ""
    if recorded.first and recorded.last:
        span = f", from {_local(report, recorded.first)} to {_local(report, recorded.last)}"
    return f"{text(dataset.samples, 'count')} of {text(recorded.samples, 'count')} in the lake{span}"


def _coverage(dataset: Dataset) -> str:
    if dataset.coverage_median is None:
        return "not known"
    low = percent(dataset.coverage_low_share)
    return f"median {percent(dataset.coverage_median)}; under {text(LOW_COVERAGE, 'fraction')} in {low} of the jobs"


def _partly(dataset: Dataset) -> str:
    """Counters that some jobs lack, those of one share together."""
    alike: dict[int, list[str]] = {}
    for one in dataset.partly_measured:
        alike.setdefault(one.jobs, []).append(one.counter)
    told = [f"{', '.join(names)} in {percent(jobs / dataset.jobs)} of the jobs" for jobs, names in alike.items()]
    return "; ".join(told) or "none"
