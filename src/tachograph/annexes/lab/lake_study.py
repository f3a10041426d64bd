"""The study of a lake in Python: its figures, their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
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
from tachograph.api.choices import JobChoice, Names, check_names, described, job_filter, several
from tachograph.api.representation import preformatted
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.tables import GPU_SAMPLES, JOB_GPUS, JOB_MINUTES, PIPES
from tachograph.judge.digest import judge_digest
from tachograph.lake import query
from tachograph.lake.delta import Lake
from tachograph.lake.describe import describe_tables
from tachograph.lake.filters import JobFilter
from tachograph.lake.problems import lake_errors
from tachograph.pipeline.state import is_stale
from tachograph.pipeline.windows import WINDOW_GPU_COLUMNS, spatial_imbalances, with_gpus_measured
from tachograph.report.lines import to_text

WINDOWS_MIN = (1, 5, 15, 30)
_GPU_COLUMNS = ("gpu_model", *WINDOW_GPU_COLUMNS)  # of job_gpus


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
    for what, value, values in (
        ("pipe", pipe, tuple(PIPES)),
        ("variant", variant, tuple(VARIANTS)),
        ("whiskers", whiskers, tuple(WHISKERS)),
        ("window (min)", window, (None, *WINDOWS_MIN)),
    ):
        if value not in values:
            raise UsageError(
                f"no {what} {value!r}", do=f"use {', '.join(str(name) for name in values if name)}"
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
    """Methods of an open lake for the study; OpenLake has them too.

    It does not need an OpenLake, whose reports of jobs and checks take long to import. Attributes:
    `lake`; `configuration`; `now`, from which times such as "7d" are counted back.
    """

    lake: Lake
    configuration: Configuration
    now: datetime

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
        settings, job_set, gpus, study = self._studied(entries, wanted, options)
        site = self.configuration.site
        report = build_study(
            study,
            describe_dataset(
                job_set,
                gpus,
                lake=self.lake.name,
                recorded=self._recorded(),
                # Whether the last analysis used another configuration.
                stale=is_stale(self.lake, self.configuration, judge_digest(self.configuration)),
            ),
            settings,
            site=site.cluster,
            now=self.now,
            zone_name=site.time_zone,
            figures=entries,
            progress=progress,
        )
        return StudyPage(report)

    def numbers(self, figure: str, **options: Unpack[StudyChoice]) -> FigureNumbers:
        """Return a figure's numbers: tables, facts, gaps."""
        return self._result_of(figure, options).numbers

    def figure(self, figure: str, **options: Unpack[StudyChoice]) -> Figure:
        """Return the drawing of one figure of the study.

        Errors: NotFoundError where nothing of it can be drawn.
        """
        result = self._result_of(figure, options)
        if not result.drawn:
            raise NotFoundError(
                f"figure {result.entry.name}: {result.status}",
                do="choose jobs in which it was measured",
            )
        return result.draw()

    def _result_of(self, figure: str, options: StudyChoice) -> MadeFigure:
        entry = find_figure(figure)
        *_, study = self._studied([entry], None, options)
        return make_figure(entry, study)

    def _studied(
        self, entries: Sequence[FigureEntry], wanted: JobFilter | None, options: StudyChoice
    ) -> tuple[StudySettings, JobSet, pl.DataFrame, Study]:
        """Settings, the jobs they select, the GPUs of these jobs, and what figures compute from.

        All tables are read here, each once but for job_minutes, of which only a day is in memory.
        """
        check_names(options, StudyChoice)
        if wanted is None:
            zone_name = self.configuration.site.time_zone
            wanted = job_filter(options, now=self.now, zone_name=zone_name)
        settings = settings_of(options, wanted, self.configuration)
        compared = any(entry.name == "window_lengths" for entry in entries)

        def read() -> tuple[StudySettings, JobSet, pl.DataFrame, Study]:
            summaries = query.read_summaries(self.lake)
            job_set = choose_jobs(
                summaries,
                query.read_answers(self.lake, summaries, wanted.findings),
                wanted,
                filters=settings.filters,
                no_filter=settings.no_filter,
            )
            gpus = query.read_rows(self.lake, JOB_GPUS, job_set.jobs, _GPU_COLUMNS)
            jobs = self._defined(job_set.jobs, gpus, settings)
            windows = self._compared_windows(job_set.jobs, gpus, settings) if compared else None
            return settings, job_set, gpus, Study(jobs, settings.options, windows)

        return query.read_consistently(self.lake, read)

    def _compared_windows(
        self, jobs: pl.DataFrame, gpus: pl.DataFrame, settings: StudySettings
    ) -> pl.DataFrame:
        """Spatial imbalance over windows of every length that can be chosen."""
        # Jobs with one GPU have none, and their minutes need not be read.
        of_several = gpus.filter(pl.col("job_key").is_duplicated())
        jobs = jobs.join(of_several, on="job_key", how="semi", maintain_order="left")
        lengths_s = [60 * minutes for minutes in WINDOWS_MIN]
        of_lengths = self._defined_over(jobs, gpus, settings, lengths_s)
        return pl.concat(
            of_lengths[length_s].select("job_key", "spatial_imbalance", window_s=length_s)
            for length_s in lengths_s
        )

    def _defined(
        self, jobs: pl.DataFrame, gpus: pl.DataFrame, settings: StudySettings
    ) -> pl.DataFrame:
        """Rows of job_summaries with metrics as the settings define them, in windows, too."""
        window_s = settings.options.window_s
        return self._defined_over(jobs, gpus, settings, [window_s])[window_s]

    def _defined_over(
        self,
        jobs: pl.DataFrame,
        gpus: pl.DataFrame,
        settings: StudySettings,
        windows_s: Sequence[int],
    ) -> dict[int, pl.DataFrame]:
        """Return `_defined` over windows of several lengths (s).

        Minutes are read once for all lengths but that of the analysis, which is stored.
        """
        analysis = settings.analysis
        of_minutes = [window_s for window_s in windows_s if window_s != analysis.window_s]
        windows: Mapping[int, pl.DataFrame] = {}
        if of_minutes:
            with lake_errors(self.lake.location):
                windows = spatial_imbalances(
                    query.scan_rows(self.lake, JOB_MINUTES, jobs),
                    with_gpus_measured(jobs, gpus),
                    gpus,
                    windows_s=of_minutes,
                    count_zero_windows=analysis.count_zero_windows,
                )
        defined = {}
        for window_s in windows_s:
            options = replace(settings.options, window_s=window_s)
            of_length = replace(settings, options=options)
            defined[window_s] = as_defined(jobs, of_length, windows.get(window_s))
        return defined

    def _recorded(self) -> RecordedSamples:
        """Facts on the samples from the log."""
        facts = describe_tables(self.lake, [GPU_SAMPLES])
        return (
            RecordedSamples(facts[0].rows, facts[0].first, facts[0].last)
            if facts
            else RecordedSamples(0)
        )
