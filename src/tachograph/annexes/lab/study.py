"""The study of a system as text and JSON: its data, its methods, its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tachograph.annexes.lab.figures.dataset import LOW_COVERAGE, Dataset
from tachograph.annexes.lab.figures.numbers import count_jobs, percent
from tachograph.annexes.lab.figures.registry import QUESTIONS
from tachograph.annexes.lab.figures.statistics import box_caption
from tachograph.annexes.lab.figures.study import VARIANTS, MadeFigure, StudyReport, StudySettings
from tachograph.catalog.columns import local_time
from tachograph.catalog.units import plural, text
from tachograph.catalog.version import __version__
from tachograph.pipeline.summaries import PIPE_THRESHOLD
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, plain, wrapped

SOURCE = (
    "Cankur, Austin, Kulkarni, Bhatele: Characterizing Production GPU Workloads using "
    "System-wide Telemetry Data, "
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
NOT_ANSWERED = "Not answered: required counters were not measured."


def tiles(report: StudyReport) -> tuple[tuple[str, str], ...]:
    """Return the main numbers of the data as (text, label)."""
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
    """Return the description of the data as (label, text)."""
    dataset = report.dataset
    return (
        *((("Lake", dataset.lake),) if dataset.lake else ()),
        ("Jobs ran", f"{_local(report, dataset.first)} to {_local(report, dataset.last)}"),
        ("Nodes", text(dataset.nodes, "count")),
        (
            "GPUs",
            (
                f"{text(dataset.gpus, 'count')}: "
                f"{', '.join(f'{m.gpus:,} {m.model}' for m in dataset.models)}"
            ),
        ),
        ("Jobs recorded", text(dataset.recorded_jobs, "count")),
        ("Jobs studied", f"{text(dataset.jobs, 'count')}, of {plural(dataset.users, 'user')}"),
        ("GPU-hours", text(dataset.gpu_hours, "count")),
        ("Energy", _energy_row(dataset)),
        ("Samples", _samples_row(report)),
        ("Coverage", _coverage_row(dataset)),
        ("Not measured", ", ".join(dataset.never_measured) or "every counter was measured"),
        ("Measured in part", _partly_measured_row(dataset)),
    )


def choice_sentence(report: StudyReport) -> str:
    """Return the reader's own restrictions."""
    dataset = report.dataset
    if not report.settings.choices:
        return f"All {count_jobs(dataset.recorded_jobs)} of the lake are considered."
    filters = "; ".join(f"{what} {value}" for what, value in report.settings.choices)
    out = dataset.recorded_jobs - dataset.chosen_jobs
    return f"Left out by choice ({filters}): {count_jobs(out)} of {dataset.recorded_jobs:,}."


def caption(figure: MadeFigure) -> str:
    """Return what stands under a figure."""
    entry, numbers = figure.entry, figure.numbers
    shown, jobs = figure.shown_jobs, numbers.jobs
    sentences = [f"Figure {entry.number}. {entry.title}."]
    if not shown:
        sentences.append(f"From none of the {count_jobs(jobs)} of the study.")
    elif shown == jobs:
        sentences.append(f"From all {count_jobs(jobs)} of the study.")
    else:
        sentences.append(f"From {shown:,} of the {count_jobs(jobs)} of the study.")
        if entry.left_out:
            sentences.append(f"Left out: {count_jobs(jobs - shown)} {entry.left_out}.")
    fewest, greatest = numbers.number("least_jobs"), numbers.number("most_jobs")
    if fewest is not None and greatest is not None and fewest < greatest:
        sentences.append(f"Each pair of counters: from the jobs with both, {fewest:,.0f} or more.")
    sentences += [f"Not drawn: {part}." for part in figure.missing]
    return " ".join(sentences)


def methods(settings: StudySettings) -> tuple[tuple[str, str], ...]:
    """Return how everything was computed as (term, definition)."""
    notebooks = settings.variant == "notebooks"
    return (
        (
            "Job mean",
            "mean over the GPUs of a job of the mean over time; missing values are left out",
        ),
        ("Spatial imbalance", _spatial_method(settings)),
        ("Temporal imbalance", _temporal_method(settings)),
        ("Compute- or memory-bound", _bound_method(settings)),
        ("Pipes used", _pipes_method(settings)),
        ("Memory peak", "largest use of one GPU over its capacity"),
        ("Energy", _ENERGY[notebooks]),
        ("GPU-hours", _HOURS[notebooks]),
        ("Coverage", "samples over expected samples at the job's own interval"),
        ("Boxes", box_caption(settings.options.whiskers).removeprefix("Boxes: ").rstrip(".")),
        (
            "Shares",
            (
                "of those jobs named in the sentence whose value is known; a missing value is "
                "never 0"
            ),
        ),
        ("Variant", VARIANTS[settings.variant]),
        ("Filters switched off", ", ".join(settings.no_filter) or "none"),
        ("Made by", f"Tachograph {__version__}; figures and questions after {SOURCE}"),
    )


def _spatial_method(settings: StudySettings) -> str:
    zero = settings.variant == "notebooks" or settings.analysis.count_zero_windows
    return (
        f"per window of {text(settings.options.window_s, 's')} from the job's start 1 - sum / "
        "(GPUs × max) of the "
        "GPUs' utilisation, mean over windows; 0: all alike. A window in which all are idle "
        f"{'counts as 0' if zero else 'is left out'}. Jobs with one GPU have none"
    )


def _temporal_method(settings: StudySettings) -> str:
    zero = settings.variant == "notebooks" or settings.analysis.zero_temporal_imbalance
    return (
        "per GPU 1 - sum / (samples × max) of utilisation, the largest of the job's GPUs; 0: "
        "constant. A GPU that was "
        f"never busy {'has 0' if zero else 'has none'}"
    )


def _bound_method(settings: StudySettings) -> str:
    pipe = "tensor" if settings.options.pipe == "tensor" else settings.options.pipe.upper()
    return (
        f"a sample is compute-bound where its arithmetic intensity on the {pipe} pipe is at "
        "least that of the ridge, "
        "which is the same as: pipe activity at least that of memory. A job is what the "
        "majority of its labelled samples is; a tie is neither"
    )


def _pipes_method(settings: StudySettings) -> str:
    if settings.variant == "notebooks":
        return f"job mean above {PIPE_THRESHOLD:g}"
    percentile = "the 5th percentile of the jobs studied (from 100 jobs on) and above "
    basis = percentile if settings.analysis.pipe_percentile else ""
    return f"job mean above {basis}{settings.analysis.pipe_threshold:g}"


def _local(report: StudyReport, moment: datetime) -> str:
    return local_time(moment, report.zone_name)


def _energy_row(dataset: Dataset) -> str:
    if dataset.energy_j is None:
        return "not measured"
    all_of_them = dataset.energy_jobs == dataset.jobs
    return f"{_joules(dataset.energy_j)}{'' if all_of_them else f', of {count_jobs(dataset.energy_jobs)}'}"


def _joules(energy_j: float | None) -> str:
    """Energy of many jobs; MWh if large."""
    return (
        text(energy_j, "J")
        if energy_j is None or energy_j < MWH_J
        else text(energy_j / MWH_J, "MWh")
    )


def _samples_row(report: StudyReport) -> str:
    dataset, recorded = report.dataset, report.dataset.recorded
    span = ""
    if recorded.first and recorded.last:
        span = f", from {_local(report, recorded.first)} to {_local(report, recorded.last)}"
    return (
        f"{text(dataset.samples, 'count')} of {text(recorded.samples, 'count')} in the lake{span}"
    )


def _coverage_row(dataset: Dataset) -> str:
    if dataset.coverage_median is None:
        return "not known"
    low = percent(dataset.coverage_low_share)
    return (
        f"median {percent(dataset.coverage_median)}; under {text(LOW_COVERAGE, 'fraction')} "
        f"in {low} of the jobs"
    )


def _partly_measured_row(dataset: Dataset) -> str:
    """Counters that some jobs lack, grouped by share."""
    alike: dict[int, list[str]] = {}
    for counter in dataset.partly_measured:
        alike.setdefault(counter.jobs, []).append(counter.counter)
    shares = [
        f"{', '.join(names)} in {percent(jobs / dataset.jobs)} of the jobs"
        for jobs, names in alike.items()
    ]
    return "; ".join(shares) or "none"


def study_json(report: StudyReport, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return a study's content: dataset, settings, {figure: facts, missing, sentences}, answers.

    `files`: the files written with it. `consequence` of a question is null if its answers have
    none. Times are ISO 8601 in UTC, fractions 0..1, missing values null.
    """
    settings, dataset = report.settings, report.dataset
    return json_values(
        {
            "title": report.title,
            "site": report.site,
            "made": report.now,
            "tachograph": __version__,
            "settings": {
                "variant": settings.variant,
                "pipe": settings.options.pipe,
                "window_s": settings.options.window_s,
                "whiskers": settings.options.whiskers,
                "chosen_by": dict(settings.choices),
                "no_filter": settings.no_filter,
                "filters": settings.filters,
                "analysis": settings.analysis,
            },
            "dataset": {
                **json_values(dataset),
                "coverage_low_share": dataset.coverage_low_share,
                "never_measured": dataset.never_measured,
            },
            "figures": {figure.entry.name: figure_json(figure) for figure in report.figures},
            "questions": {
                name: {
                    "question": QUESTIONS[name],
                    "answers": message,
                    "consequence": report.consequences().get(name),
                }
                for name, message in report.answers().items()
            },
            "files": files,
        }
    )


def figure_json(figure: MadeFigure) -> dict[str, Any]:
    """Return the numbers of one figure, without its tables, which are CSV files."""
    entry, numbers = figure.entry, figure.numbers
    return json_values(
        {
            "number": entry.number,
            "name": entry.name,
            "title": entry.title,
            "question": entry.question,
            "drawn": figure.drawn,
            "jobs": numbers.jobs,
            "facts": numbers.facts,
            "missing": numbers.missing,
            "sentences": figure.sentences,
            "tables": {part: f"{entry.stem}.{part}.csv" for part in numbers.tables},
        }
    )


def json_text(value: Mapping[str, Any]) -> str:
    """Return indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def first_sentences(figures: Sequence[MadeFigure]) -> list[str]:
    """Return the answer to a question in short: the first sentence of each figure that has one."""
    return [figure.sentences[0] for figure in figures if figure.sentences]


def study_lines(report: StudyReport, width: int) -> list[Line]:
    """Return the data of the study and, per question, the first sentence of each figure."""
    dataset, follows = report.dataset, report.consequences()
    removed = [
        f"{removal.reason} {removal.removed:,}" for removal in dataset.removals if removal.removed
    ]
    left_out = f"; filters left out {', '.join(removed)}" if removed else ""
    lines = [plain("")]
    lines += wrapped(
        f"{count_jobs(dataset.jobs)} studied{left_out}. {choice_sentence(report)}", width
    )
    for name in report.answers():
        lines += [
            plain(""),
            *wrapped(f"{name}  {QUESTIONS[name]}", width, indent="     ", first="", style="bold"),
        ]
        for sentence in first_sentences(report.of_question(name)) or [NOT_ANSWERED]:
            lines += wrapped(sentence, width, indent="     ")
        if name in follows:
            lines += wrapped(follows[name], width, indent="     ", first="  -> ")
    return [*lines, plain("")]
