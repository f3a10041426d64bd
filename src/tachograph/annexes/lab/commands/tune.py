"""`tachograph lab tune`: compare thresholds of job classes with labels, and propose thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.units import plural, whole_number
from tachograph.cli import narrate, output
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from tachograph.annexes.lab.accuracy import VerdictScore
    from tachograph.annexes.lab.tune.labels import Labelled, RejectedLabel
    from tachograph.annexes.lab.tune.propose import ThresholdProposal
    from tachograph.catalog.config import ClassOptions
    from tachograph.cli.options import OpenedLake

LATEST = 4000  # jobs that thresholds are proposed from


def add_arguments(parser: Parser) -> None:
    """Declare labels, proposals, and output file."""
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument(
        "labels", nargs="?", metavar="LABELS.csv", help="job_id, class, label (yes or no), cluster"
    )
    labels.add_argument(
        "--lake-labels",
        action="store_true",
        help="findings that were confirmed or rejected on pages, instead of a file",
    )
    parser.add_argument(
        "--propose", action="store_true", help="propose thresholds from recorded minutes"
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(1),
        default=LATEST,
        metavar="N",
        help=f"with --propose: the latest N jobs (default {LATEST})",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="with --propose: write the settings as a configuration",
    )
    add_json(parser)


@dataclass(frozen=True, slots=True)
class _Agreement:
    """Labelled jobs, and agreement of verdicts: {name of settings: {class: score}}."""

    origin: str
    jobs: int
    not_used: Sequence[RejectedLabel]
    scores: Mapping[str, Mapping[str, VerdictScore]]


@dataclass(frozen=True, slots=True)
class _Proposed:
    """Proposals, the settings with them, and the jobs and minutes they are from."""

    proposals: Sequence[ThresholdProposal]
    settings: ClassOptions
    jobs: int
    minutes: int


def run(arguments: Arguments) -> int:
    """Propose thresholds, compare with labels, or both; print; write the configuration."""
    from tachograph.annexes.lab.tune.configuration import check_target, to_toml, write
    from tachograph.cli.options import open_lake

    labelled = bool(arguments.labels or arguments.lake_labels)
    if not labelled and not arguments.propose:
        raise UsageError(
            "no labels",
            do="name a CSV file of labels, or give --lake-labels or --propose",
        )
    if arguments.output:
        if not arguments.propose:
            raise UsageError("--output needs --propose", do="give --propose, or leave --output out")
        check_target(arguments.output)  # before anything is read
    opened = open_lake(arguments)
    proposed = _propose(arguments, opened) if arguments.propose else None
    agreement = _agreement(arguments, opened, proposed) if labelled else None
    if proposed is not None and arguments.output:
        comment = (
            f"Proposed by `tachograph lab tune --propose` from {plural(proposed.jobs, 'job')}, "
            f"{proposed.minutes:,} minutes, without labels."
        )
        write(arguments.output, to_toml(proposed.settings, [comment]))
    if arguments.json:
        output.print_json(_as_json(proposed, agreement))
    else:
        _show(proposed, agreement, arguments)
    return 0


def _propose(arguments: Arguments, opened: OpenedLake) -> _Proposed:
    import polars as pl

    from tachograph.annexes.lab.tune.propose import forms_of, propose, settings
    from tachograph.lake.query import read_summaries
    from tachograph.pipeline.minutes import read_stored

    measured = read_summaries(opened.lake).filter(
        (pl.col("attribution") != "ambiguous") & (pl.col("samples") > 0)
    )
    jobs = measured.sort("start", "job_key").tail(min(arguments.jobs, measured.height))
    configuration = opened.configuration
    stored = read_stored(opened.lake, jobs, idle_util=configuration.thresholds.idle_util)
    forms = forms_of(jobs, stored, window_minutes=configuration.classes.window_minutes)
    proposals = propose(forms)
    minutes = int(forms[0].series.offset[-1])
    return _Proposed(proposals, settings(proposals, configuration.classes), jobs.height, minutes)


def _agreement(arguments: Arguments, opened: OpenedLake, proposed: _Proposed | None) -> _Agreement:
    """Agreement of configured and proposed settings with the labels."""
    from msgspec.structs import replace

    from tachograph.annexes.lab.accuracy import class_scores
    from tachograph.annexes.lab.commands.classify import classified

    origin = str(arguments.labels or opened.lake.location)
    jobs, labelled = _labels(arguments, opened, origin)
    configurations = {"configured": opened.configuration}
    if proposed is not None:
        configurations["proposed"] = replace(opened.configuration, classes=proposed.settings)
    scores = {}
    for name, configuration in configurations.items():
        verdicts = classified(opened.lake, jobs, configuration, lambda *_: None)
        scores[name] = class_scores(labelled.rows, verdicts)
    return _Agreement(origin, jobs.height, labelled.refused, scores)


def _labels(arguments: Arguments, opened: OpenedLake, origin: str) -> tuple[pl.DataFrame, Labelled]:
    """The labelled jobs, and their labels."""
    import polars as pl

    from tachograph.annexes.lab.tune.labels import labels_of_lake, read_labels, reasons
    from tachograph.judge.job_classes import CLASS_CODES
    from tachograph.lake.labels import read_labels as read_labels_of_lake
    from tachograph.lake.query import read_summaries

    summaries = read_summaries(opened.lake)
    if arguments.lake_labels:
        labelled = labels_of_lake(read_labels_of_lake(opened.lake), CLASS_CODES, summaries)
    else:
        labelled = read_labels(arguments.labels, CLASS_CODES, summaries)
    for line in reasons(labelled.refused, origin):
        narrate.remark(line)
    attributed = summaries.filter(pl.col("attribution") != "ambiguous")
    jobs = attributed.join(labelled.rows, on="job_key", how="semi", maintain_order="left")
    if jobs.is_empty():
        raise InputError(
            "no labelled job has stored minutes", where=origin, do="label jobs of this lake"
        )
    return jobs, labelled


def _as_json(proposed: _Proposed | None, agreement: _Agreement | None) -> dict[str, Any]:
    from tachograph.annexes.lab.commands.accuracy import score_json

    rows: dict[str, Any] = {}
    if proposed is not None:
        rows |= {
            "jobs": proposed.jobs,
            "minutes": proposed.minutes,
            "proposals": proposed.proposals,
            "settings": proposed.settings,
        }
    if agreement is not None:
        classes: dict[str, dict[str, Any]] = {}
        for name, scores in agreement.scores.items():
            for code, score in scores.items():
                classes.setdefault(code, {})[name] = score_json(score)
        rows |= {
            "labels": agreement.origin,
            "not_used": agreement.not_used,
            "labelled_jobs": agreement.jobs,
            "classes": classes,
        }
    return rows


def _show(proposed: _Proposed | None, agreement: _Agreement | None, arguments: Arguments) -> None:
    if proposed is not None:
        _show_proposals(proposed, arguments)
    if agreement is not None:
        _show_agreement(agreement, arguments)
    if proposed is not None:
        target = (
            f"Written to {arguments.output}."
            if arguments.output
            else "Not written; name a file with -o."
        )
        output.print_text(f"\n{target}\n")


def _show_agreement(agreement: _Agreement, arguments: Arguments) -> None:
    from tachograph.annexes.lab.commands.accuracy import (
        CONFUSION_HEADINGS,
        confusion_cells,
        interval,
        percent,
    )

    output.print_text(f"{plural(agreement.jobs, 'labelled job')} of {agreement.origin}.\n\n")
    headings = ("class", "settings", ">jobs", *CONFUSION_HEADINGS, ">accuracy", ">95 % interval")
    codes = list(next(iter(agreement.scores.values())))
    rows: list[list[str | None]] = []
    for code in codes:
        for name, scores in agreement.scores.items():
            score = scores[code]
            counts = confusion_cells(score)
            rows.append(
                [code, name, f"{score.jobs:,}", *counts, percent(score.accuracy), interval(score)]
            )
    output.print_table(headings, rows, no_color=arguments.no_color)


def _show_proposals(proposed: _Proposed, arguments: Arguments) -> None:
    output.print_text(
        f"From {plural(proposed.jobs, 'job')} with {proposed.minutes:,} minutes, without "
        "labels.\n\n"
    )
    headings = (
        "key",
        ">built in",
        ">proposed",
        ">idle",
        ">busy",
        ">idle minutes",
        ">busy minutes",
        ">jobs",
        "why not proposed",
    )
    rows: list[list[str | None]] = []
    for proposal in proposed.proposals:
        values = (proposal.built_in, proposal.value, proposal.rest, proposal.work)
        counts = (proposal.rest_minutes, proposal.work_minutes, proposal.jobs)
        rows.append(
            [
                f"classes.{proposal.key}.{proposal.name}",
                *(None if value is None else f"{value:.3g}" for value in values),
                *(f"{count:,}" if count else None for count in counts),
                proposal.why,
            ]
        )
    output.print_table(headings, rows, no_color=arguments.no_color)
