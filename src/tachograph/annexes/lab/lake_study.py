"""The study of a lake in Python: its figures, their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import polars as pl
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures.dataset import (
    Dataset,
    JobSet,
    RecordedSamples,
    choose_jobs,
    describe_dataset,
)
from tachograph.annexes.lab.figures.numbers import FigureNumbers, Study, StudyOptions
from tachograph.annexes.lab.figures.registry import FORMATS, FigureEntry, find_figure
from tachograph.annexes.lab.figures.statistics import WHISKERS
from tachograph.annexes.lab.figures.study import (
    VARIANTS,
    MadeFigure,
    Progress,
    StudyReport,
    StudySettings,
    as_defined,
    build_study,
    chosen_figures,
    make_figure,
)
from tachograph.annexes.lab.study import study_json, study_lines
from tachograph.annexes.lab.study_files import WrittenStudy, write_study
from tachograph.api.choices import JobChoice, Names, check_names, described, several
from tachograph.api.open_lake import OpenLake
from tachograph.api.representation import preformatted
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.tables import GPU_SAMPLES, JOB_GPUS, JOB_MINUTES, PIPES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake import query
from tachograph.lake.describe import describe_tables
from tachograph.lake.filters import JobFilter
from tachograph.lake.problems import lake_errors
from tachograph.pipeline.state import is_stale
from tachograph.pipeline.windows import WINDOW_GPU_COLUMNS, spatial_imbalance, with_gpus_held
from tachograph.report.lines import to_text

WINDOWS_MIN = (1, 5, 15, 30)


class StudyChoice(JobChoice, total=False):
    """Settings of a study: jobs, roofline pipe, window (min), variant, whiskers, disabled
    filters.
    """

    pipe: str
    window: int | None
    variant: str
    whiskers: str
    no_filter: Names


def settings_of(
    options: StudyChoice, wanted: JobFilter, configuration: Configuration
) -> StudySettings:
    """Return the settings of a study; the configuration fills gaps.

    Errors: UsageError for a pipe, a window, a variant, whiskers or a filter that does not exist.
    """
    analysis, window = configuration.analysis, options.get("window")
    pipe, variant = options.get("pipe", "fp64"), options.get("variant", "paper")
    whiskers = options.get("whiskers", "tukey")
    for what, given, known in (
        ("pipe", pipe, tuple(PIPES)),
        ("variant", variant, tuple(VARIANTS)),
        ("whiskers", whiskers, tuple(WHISKERS)),
        ("window (min)", window, (None, *WINDOWS_MIN)),
    ):
        if given not in known:
            raise UsageError(
                f"no {what} {given!r}", do=f"use {', '.join(str(one) for one in known if one)}"
            )
    return StudySettings(
        StudyOptions(
            pipe=pipe,
            window_s=analysis.window_s if window is None else window * 60,
            whiskers=whiskers,
        ),
        variant,
        analysis,
        configuration.filters,
        described(wanted, configuration.site.time_zone),
        several(options.get("no_filter")),
    )


@dataclass(frozen=True, slots=True, repr=False)
class StudyPage:
    """The study of a system; as text it is the answers that `tachograph study` prints."""

    report: StudyReport

    def __repr__(self) -> str:
        """Return how many jobs it is about, and the answers."""
        return to_text(study_lines(self.report, width=100)).strip()

    def _repr_html_(self) -> str:
        """Return the same for a notebook; `write` writes the page with the figures."""
        return preformatted(repr(self))

    @property
    def dataset(self) -> Dataset:
        """Data set of the study."""
        return self.report.dataset

    @property
    def answers(self) -> dict[str, tuple[str, ...]]:
        """{RQ1: sentences, ...}."""
        return self.report.answers()

    def json(self) -> dict[str, Any]:
        """Return its content as JSON values."""
        return study_json(self.report)

    def write(
        self,
        folder: str | Path,
        *,
        formats: Sequence[str] = FORMATS,
        progress: Progress | None = None,
    ) -> WrittenStudy:
        """Write figures, numbers and the page into a folder; return the names of the files.

        Errors: UsageError where the folder is a file; ExportError where it cannot be written.
        """
        return write_study(self.report, Path(folder), formats=formats, progress=progress)


@dataclass(frozen=True, slots=True)
class LakeStudy:
    """Methods of an open lake for the study; OpenLake has them too."""

    opened: OpenLake

    def study(
        self,
        figures: str | Sequence[str] = (),
        *,
        wanted: JobFilter | None = None,
        progress: Progress | None = None,
        **options: Unpack[StudyChoice],
    ) -> StudyPage:
        """Return the study: its data, figures with numbers, answers to the six questions.

        `figures`: names or numbers, none for all. `wanted` replaces the options of the job filter.
        `progress` is called with (current step, steps done, all steps). The method `write` of the
        result writes it into a folder. Errors: those of `jobs`; NotFoundError without a job to
        study.
        """
        entries = chosen_figures(figures)
        settings, chosen, jobs, windows = self._studied(entries, wanted, options)
        with lake_errors(self.opened.lake.uri(JOB_GPUS)):
            units = self._held(chosen.jobs).select("node", "gpu", "gpu_model").unique().collect()
        site = self.opened.configuration.site
        report = build_study(
            jobs,
            describe_dataset(
                chosen,
                units,
                lake=self.opened.lake.name,
                recorded=self._recorded(),
                stale=self._stale(),
            ),
            settings,
            site=site.cluster,
            now=self.opened.now,
            zone_name=site.time_zone,
            figures=entries,
            windows=windows,
            progress=progress,
        )
        return StudyPage(report)

    def numbers(self, figure: str, **options: Unpack[StudyChoice]) -> FigureNumbers:
        """Return a figure's numbers: tables, facts, gaps."""
        return self._made(figure, options).numbers

    def figure(self, figure: str, **options: Unpack[StudyChoice]) -> Figure:
        """Return the drawing of one figure of the study.

        Errors: NotFoundError where nothing of it can be drawn.
        """
        made = self._made(figure, options)
        if not made.drawn:
            raise NotFoundError(
                f"figure {made.entry.name}: {made.status}",
                do="choose jobs in which it was measured",
            )
        return made.draw()

    def _made(self, figure: str, options: StudyChoice) -> MadeFigure:
        entry = find_figure(figure)
        settings, _, jobs, windows = self._studied([entry], None, options)
        return make_figure(entry, Study(jobs, settings.options, windows))

    def _studied(
        self, entries: Sequence[FigureEntry], wanted: JobFilter | None, options: StudyChoice
    ) -> tuple[StudySettings, JobSet, pl.DataFrame, pl.DataFrame | None]:
        """Settings, the jobs they select with the metrics they define, and compared windows."""
        check_names(options, StudyChoice)
        wanted = self.opened.filter(options) if wanted is None else wanted
        settings = settings_of(options, wanted, self.opened.configuration)

        compared = any(entry.name == "window_lengths" for entry in entries)

        def read() -> tuple[JobSet, pl.DataFrame, pl.DataFrame | None]:
            chosen = choose_jobs(
                *self._summaries_and_answers(wanted),
                wanted,
                filters=settings.filters,
                no_filter=settings.no_filter,
            )
            jobs = as_defined(chosen.jobs, settings, self._windows(chosen.jobs, settings))
            return chosen, jobs, self._compared_windows(chosen.jobs, settings) if compared else None

        chosen, jobs, windows = self.opened.of_one_moment(read)
        return settings, chosen, jobs, windows

    def _compared_windows(self, jobs: pl.DataFrame, settings: StudySettings) -> pl.DataFrame:
        """Spatial imbalance over windows of every length that can be chosen."""
        parts = []
        for minutes in WINDOWS_MIN:
            other = replace(settings, options=replace(settings.options, window_s=60 * minutes))
            defined = as_defined(jobs, other, self._windows(jobs, other))
            parts.append(
                defined.select(
                    "job_key", pl.lit(60 * minutes).alias("window_s"), "spatial_imbalance"
                )
            )
        return pl.concat(parts)

    def _windows(self, jobs: pl.DataFrame, settings: StudySettings) -> pl.DataFrame | None:
        """Spatial imbalance over windows unlike the analysis's; None if they are the same."""
        window_s, analysis = settings.options.window_s, settings.analysis
        if window_s == analysis.window_s:
            return None
        with lake_errors(self.opened.lake.location):
            held = self._held(jobs).select(WINDOW_GPU_COLUMNS).collect()
            return spatial_imbalance(
                query.scan_rows(self.opened.lake, JOB_MINUTES, jobs),
                with_gpus_held(jobs, held),
                held,
                window_s=window_s,
                count_zero_windows=analysis.count_zero_windows,
            )

    def _held(self, jobs: pl.DataFrame) -> pl.LazyFrame:
        """The rows of job_gpus of some jobs, not read yet."""
        return query.scan_rows(self.opened.lake, JOB_GPUS, jobs)

    def _summaries_and_answers(self, wanted: JobFilter) -> tuple[pl.DataFrame, pl.DataFrame]:
        summaries = query.read_summaries(self.opened.lake)
        return summaries, query.read_answers(self.opened.lake, summaries, wanted.findings)

    def _recorded(self) -> RecordedSamples:
        """Facts on the samples from the log."""
        facts = describe_tables(self.opened.lake, [GPU_SAMPLES])
        return (
            RecordedSamples(facts[0].rows, facts[0].first, facts[0].last)
            if facts
            else RecordedSamples(0)
        )

    def _stale(self) -> bool:
        """Whether the last analysis used another configuration."""
        return is_stale(
            self.opened.lake, self.opened.configuration, JobJudge(self.opened.configuration).digest
        )


def dataset_type() -> type[Any]:
    """Return the dataclass of `dataset` in a study's JSON."""
    return Dataset
