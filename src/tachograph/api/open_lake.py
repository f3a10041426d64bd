"""A lake in Python, for notebooks and programs: jobs as Polars frames, the page of a job, figures,
the study.

    import tachograph
    lake = tachograph.open("tachograph-demo/lake")
    lake.jobs(partition="gpu", where="gpu_hours>10")
    lake.figure("spatial_imbalance", since="2025-03-04")

`tachograph study` goes through the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, TypeVar, Unpack

import polars as pl
from matplotlib.figure import Figure

from tachograph.api.advice import read_advice
from tachograph.api.choices import (
    WINDOWS_MIN,
    JobChoice,
    StudyChoice,
    check_names,
    described,
    job_filter,
    settings_of,
)
from tachograph.api.job_report import read_job
from tachograph.api.job_sharing import read_sharing
from tachograph.api.representation import framed, preformatted, table
from tachograph.catalog import config
from tachograph.catalog.codes import CAUSE_OF_CLASS, REPORTED
from tachograph.catalog.columns import must_exist
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.tables import (
    COMPUTED,
    DEVICES,
    GPU_SAMPLES,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    TABLES,
    LakeTable,
)
from tachograph.catalog.units import plural, text
from tachograph.figures.dataset import (
    Dataset,
    JobSet,
    RecordedSamples,
    choose_jobs,
    describe_dataset,
)
from tachograph.figures.numbers import FigureNumbers, Study
from tachograph.figures.radar import draw
from tachograph.figures.registry import FigureEntry, find_figure
from tachograph.figures.study import (
    MadeFigure,
    Progress,
    StudyReport,
    StudySettings,
    as_defined,
    build_study,
    chosen_figures,
    make_figure,
)
from tachograph.figures.style import FORMATS
from tachograph.judge.advice.advise import Advice
from tachograph.judge.advice.request import JobRequest, read_script
from tachograph.judge.finding import VERDICTS, Verdict
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.ledger import LEDGER_COLUMNS, WasteReport, build_waste_report
from tachograph.judge.node_history import (
    NODE_GPU_COLUMNS,
    NODE_JOB_COLUMNS,
    NodeReport,
    build_node_report,
)
from tachograph.judge.steps import JobSteps
from tachograph.judge.usage import USAGE_COLUMNS, UsageReport, build_usage
from tachograph.lake import query
from tachograph.lake.delta import Lake
from tachograph.lake.describe import describe_tables
from tachograph.lake.filters import JobFilter
from tachograph.lake.problems import lake_errors
from tachograph.pipeline.state import is_stale
from tachograph.pipeline.windows import spatial_imbalance, with_gpus_held
from tachograph.report.advice import advice_json, advice_lines, sbatch_lines
from tachograph.report.job import JobReport, job_json
from tachograph.report.job_page import job_html
from tachograph.report.job_text import job_lines
from tachograph.report.lines import to_text
from tachograph.report.node import node_headline, node_json
from tachograph.report.radar import build_radar
from tachograph.report.steps import steps_json, steps_lines
from tachograph.report.study import study_json, study_lines
from tachograph.report.study_files import WrittenStudy, write_study
from tachograph.report.waste import waste_json, waste_lines
from tachograph.report.waste_page import waste_html
from tachograph.sharing.colocation import ColocateReport
from tachograph.sharing.job_groups import LEAST_RUNS

T = TypeVar("T")
_OF_JOB = ("job_key", "seq", "start", "as_of")  # what rows that belong to a job are found by


def open_lake(lake: str | None = None, config_file: str | None = None) -> OpenLake:
    """Return a lake that is open: `lake`, else what the configuration or the environment names, as
    in commands.

    Errors: ConfigError, LakeError where there is no lake.
    """
    configuration = config.load(config_file)
    return OpenLake(
        Lake.open(config.lake_location(lake, configuration)), configuration, datetime.now(UTC)
    )


@dataclass(frozen=True, slots=True, repr=False)
class JobPage:
    """The report of one job; shown, it is the page that `tachograph job` prints."""

    report: JobReport

    def __repr__(self) -> str:
        """Return the page as text."""
        return to_text(job_lines(self.report, width=100)).rstrip()

    def _repr_html_(self) -> str:
        """Return the page with plots, for a notebook."""
        return framed(self.html(), f"Job {self.report.summary['display_id']}")

    def html(self) -> str:
        """Return the page with plots, self-contained."""
        return job_html(self.report)

    def json(self) -> dict[str, Any]:
        """Return the content of the page as JSON values."""
        return job_json(self.report)

    @property
    def steps(self) -> StepsPage:
        """The steps of the job: which were idle, when none ran."""
        return StepsPage(self.report.steps, self.report.zone_name)


@dataclass(frozen=True, slots=True, repr=False)
class StepsPage:
    """The steps of one job; shown, they are what `tachograph job ID --steps` prints."""

    report: JobSteps
    zone_name: str

    def __repr__(self) -> str:
        """Return headline, table and gaps as text."""
        return to_text(steps_lines(self.report, zone_name=self.zone_name, width=100)).rstrip()

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return preformatted(repr(self))

    def json(self) -> dict[str, Any]:
        """Return them as JSON values."""
        return steps_json(self.report)


@dataclass(frozen=True, slots=True, repr=False)
class StudyPage:
    """The study of a system; shown, it is what `tachograph study` prints of it: the answers to
    the questions.
    """

    report: StudyReport

    def __repr__(self) -> str:
        """Return how many jobs it is about, and the answers."""
        return to_text(study_lines(self.report, width=100)).strip()

    def _repr_html_(self) -> str:
        """Return the same for a notebook; `write` writes the page with the figures."""
        return preformatted(repr(self))

    @property
    def dataset(self) -> Dataset:
        """What it is made of."""
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


@dataclass(frozen=True, slots=True, repr=False)
class WastePage:
    """The ledger of some jobs; shown, it is what `tachograph waste` prints. Its tables are those
    of `report`.
    """

    report: WasteReport

    def __repr__(self) -> str:
        """Return the ledger as text."""
        return to_text(waste_lines(self.report, width=100)).rstrip()

    def _repr_html_(self) -> str:
        """Return the page with plots, for a notebook."""
        return framed(self.html(), "Ledger of GPU time")

    def html(self) -> str:
        """Return the page with plots, self-contained."""
        return waste_html(self.report)

    def json(self) -> dict[str, Any]:
        """Return its content as JSON values."""
        return waste_json(self.report)


@dataclass(frozen=True, slots=True, repr=False)
class NodePage:
    """The report of one node."""

    report: NodeReport

    def __repr__(self) -> str:
        """Return the answer in a line."""
        return f"{self.report.node}: {node_headline(self.report)}"

    def json(self) -> dict[str, Any]:
        """Return its content as JSON values."""
        return node_json(self.report)


@dataclass(frozen=True, slots=True, repr=False)
class AdvicePage:
    """Advice for a job; shown, it is what `tachograph advise` prints."""

    report: Advice

    def __repr__(self) -> str:
        """Return the advice as text."""
        return to_text(advice_lines(self.report, width=100)).rstrip()

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return preformatted(repr(self))

    @property
    def sbatch(self) -> list[str]:
        """The lines for the script."""
        return sbatch_lines(self.report)

    def json(self) -> dict[str, Any]:
        """Return its content as JSON values."""
        return advice_json(self.report)


@dataclass(frozen=True, slots=True, repr=False)
class OpenLake:
    """An open lake, its configuration, and the end of the period that reports cover.

    Tables are read on demand, and nothing is written. Missing values are null, times are UTC. Its
    attributes are no methods: `lake`; `configuration`; `now`, the instant at which it was opened,
    from which times such as "7d" are counted back (not the end of what was recorded).
    """

    lake: Lake
    configuration: Configuration
    now: datetime

    def __repr__(self) -> str:
        """Return where it is, how many jobs were analyzed, and when they ran."""
        jobs = self.jobs()
        first, last = jobs.select(
            pl.col("start").min().dt.date(), last=pl.col("as_of").max().dt.date()
        ).row(0)
        return (
            f"<lake {self.lake.location}: "
            f"{plural(jobs.height, 'job')}{f', {first} to {last}' if first else ''}>"
        )

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with a row per table: rows, days, size."""
        facts = describe_tables(self.lake, [*TABLES.values(), *COMPUTED.values()])
        rows = [
            (one.table, f"{one.rows:,}", _day(one.first), _day(one.last), text(one.bytes, "B"))
            for one in facts
        ]
        return (
            f"<p>{escape(repr(self))}</p>{table(('table', 'rows', 'first', 'last', 'size'), rows)}"
        )

    def jobs(self, **which: Unpack[JobChoice]) -> pl.DataFrame:
        """Return rows of job_summaries, one per run of a job, in order of start.

        Errors: LakeError where nothing was analyzed yet; UsageError, NotFoundError for a choice
        that makes no sense.
        """
        check_names(which, JobChoice)
        wanted = self._filter(which)
        return query.select_jobs(self.lake, wanted).jobs.sort("start", "job_key")

    def run_of(
        self, job: str, *, cluster: str | None = None, run: int | None = None
    ) -> pl.DataFrame:
        """Return the row of job_summaries of one run of a job, of its last unless `run` names
        another.

        Errors: as `job`.
        """
        chosen = query.read_job_row(self.lake, job, cluster=cluster, run=run)
        return pl.DataFrame([chosen.row], schema=JOB_SUMMARIES.schema)

    def gpus(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of job_gpus, one per GPU that a job held: of a job (its id), or of rows of
        `jobs()`.
        """
        return self._of_one_moment(lambda: query.read_gpus(self.lake, self._rows(job)))

    def steps(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of step_summaries, one per step: of a job (its id), or of rows of
        `jobs()`.
        """
        return self._of_one_moment(lambda: query.read_steps(self.lake, self._rows(job)))

    def minutes(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of job_minutes, one per GPU and minute: of a job (its id), or of rows of
        `jobs()`.
        """
        return self._by_minute(JOB_MINUTES, job)

    def node_minutes(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of job_node_minutes, one per node and minute: of a job (its id), or of rows
        of `jobs()`.

        No row where hosts were not recorded, or the node was shared in that minute.
        """
        return self._by_minute(JOB_NODE_MINUTES, job)

    def _by_minute(self, table: LakeTable, job: str | pl.DataFrame) -> pl.DataFrame:
        return self._of_one_moment(lambda: query.read_rows(self.lake, table, self._rows(job)))

    def findings(
        self, job: str | pl.DataFrame | None = None, *, verdict: Verdict | None = "yes"
    ) -> pl.DataFrame:
        """Return rows of findings: of a job (its id), of rows of `jobs()`, or of all jobs.

        `verdict`: "yes": what holds and is reported; "no": what does not hold; "unknown": not
        enough was measured; None: everything, also facts (severity `fact`) and covered findings.
        """
        must_exist([] if verdict is None else [verdict], VERDICTS, what="verdict", error=UsageError)

        def read() -> pl.DataFrame:
            given = None if verdict is None else pl.col("verdict") == verdict
            return query.read_verdicts(
                self.lake, self._rows(job), REPORTED if verdict == "yes" else given
            )

        return self._of_one_moment(read)

    def job(self, job: str, *, cluster: str | None = None, run: int | None = None) -> JobPage:
        """Return the report of one job, of its last run unless `run` names another.

        Errors: NotFoundError for an unknown id, UsageError for one that several clusters have.
        """
        return JobPage(
            read_job(
                self.lake,
                str(job),
                now=self.now,
                configuration=self.configuration,
                cluster=cluster,
                run=run,
            )
        )

    def advise(
        self,
        script: str = "",
        *,
        user: str | None,
        name: str | None = None,
        partition: str | None = None,
        gpus: int | None = None,
        history: bool = True,
    ) -> AdvicePage:
        """Return advice for a job of a user, from that user's past jobs. `script`: its text; what
        is given counts more.

        `history`: False as if there were no past jobs.
        Errors: LakeError where nothing was analyzed.
        """
        read = read_script(script, name=name) if script else JobRequest()
        request = replace(
            read,
            user=user,
            name=name or read.name,
            partition=partition or read.partition,
            gpus=read.gpus if gpus is None else gpus,
        )
        return AdvicePage(
            read_advice(self.lake, self.configuration, request, now=self.now, history=history)
        )

    def sharing(
        self,
        *,
        least_runs: int = LEAST_RUNS,
        pair: tuple[str, str] | None = None,
        top: int | None = None,
        **which: Unpack[JobChoice],
    ) -> ColocateReport:
        """Return the pairs of job groups that could share a GPU, as `tachograph share colocate`;
        `pair`: explained.

        `least_runs`: only groups with so many runs. Errors: those of `jobs`; NotFoundError for a
        group of the pair that there is not, UsageError for one that cannot be compared.
        """
        check_names(which, JobChoice)
        wanted = self._filter(which)
        return read_sharing(
            self.lake, self.configuration, wanted, least_runs=least_runs, pair=pair, top=top
        )

    def node(self, node: str) -> NodePage:
        """Return what is known of a node: jobs that ran there, use and health of its GPUs by week
        and day.

        Errors: NotFoundError where no device and no job is recorded on it.
        """

        def read() -> NodeReport:
            jobs, gpus = query.read_node(self.lake, node, NODE_JOB_COLUMNS, NODE_GPU_COLUMNS)
            devices = query.read_latest(self.lake, DEVICES)
            zone_name = self.configuration.site.time_zone
            return build_node_report(node, jobs, gpus, devices, zone_name=zone_name)

        report = self._of_one_moment(read)
        if report.gpus.is_empty():
            raise NotFoundError(f"no node {node!r}", do="see the nodes of a job on its page")
        return NodePage(report)

    def waste(
        self,
        by: str = "cause",
        *,
        jobs_of: str | None = None,
        top: int | None = None,
        **which: Unpack[JobChoice],
    ) -> WastePage:
        """Return the ledger of GPU time: hours by cause, and by user, account, partition or
        gpu_model.

        `jobs_of`: a cause whose jobs are requested, or all. `top`: at most so many groups and jobs.
        Errors: those of `jobs`; UsageError for an unknown grouping or cause.
        """
        check_names(which, JobChoice)
        wanted = self._filter(which)
        jobs, intervals = query.jobs_and_intervals(
            self.lake, wanted, tuple(CAUSE_OF_CLASS), LEDGER_COLUMNS, holding=True
        )
        report = build_waste_report(
            jobs,
            intervals,
            self.configuration.waste,
            by=by,
            top=top,
            jobs_of=jobs_of,
            zone_name=self.configuration.site.time_zone,
        )
        return WastePage(report)

    def usage(self, *, top: int = 10, **which: Unpack[JobChoice]) -> UsageReport:
        """Return what some jobs used: by week, what was lost and recovered, the jobs that lost
        most, those that run.

        Errors: those of `jobs`; NotFoundError where there is no such job.
        """
        check_names(which, JobChoice)
        wanted = self._filter(which)

        def read() -> UsageReport:
            jobs, intervals = query.jobs_and_intervals(
                self.lake, wanted, tuple(CAUSE_OF_CLASS), USAGE_COLUMNS, holding=True
            )
            if jobs.is_empty():
                chosen = ", ".join(
                    f"{name} {value}" for name, value in described(wanted, zone_name)
                )
                raise NotFoundError(
                    f"no job of {chosen}" if chosen else "no job", do="`tachograph jobs` lists them"
                )
            waste = build_waste_report(
                jobs, intervals, self.configuration.waste, zone_name=zone_name
            )
            reported = query.read_answers(self.lake, jobs, reported=True)
            return build_usage(jobs, reported, waste, top=top, zone_name=zone_name)

        zone_name = self.configuration.site.time_zone
        return self._of_one_moment(read)

    def study(
        self,
        figures: str | Sequence[str] = (),
        *,
        wanted: JobFilter | None = None,
        progress: Progress | None = None,
        **options: Unpack[StudyChoice],
    ) -> StudyPage:
        """Return the study of this system: its data, the figures with their numbers, answers to the
        six questions.

        `figures`: names or numbers, none for all. `wanted` stands for the options that choose jobs.
        `progress` is called with (what is done, steps done, steps in all). Its method `write`
        writes it into a folder. Errors: those of `jobs`; NotFoundError where no job is left to
        study.
        """
        entries = chosen_figures(figures)
        settings, chosen, jobs, windows = self._studied(entries, wanted, options)
        with lake_errors(self.lake.uri(JOB_GPUS)):
            units = self._held(chosen.jobs).select("node", "gpu", "gpu_model").unique().collect()
        site = self.configuration.site
        report = build_study(
            jobs,
            describe_dataset(
                chosen, units, lake=self.lake.name, recorded=self._recorded(), stale=self._stale()
            ),
            settings,
            site=site.cluster,
            now=self.now,
            zone_name=site.time_zone,
            figures=entries,
            windows=windows,
            progress=progress,
        )
        return StudyPage(report)

    def numbers(self, figure: str, **options: Unpack[StudyChoice]) -> FigureNumbers:
        """Return the numbers of one figure of the study: tables, facts, and what is missing."""
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

    def radar(self, by: str = "job", **which: Unpack[JobChoice]) -> Figure:
        """Return profiles of jobs along six axes of GPU activity, a plot each.

        `by`: one profile per job, user, account, partition, workload, or of `all`.
        Errors: UsageError for groups that there are not; NotFoundError where no job has samples.
        """
        numbers = self.radar_numbers(by, **which)
        if "profiles" not in numbers:
            raise NotFoundError("no job with samples is left to draw", do="choose other jobs")
        return draw(numbers)

    def radar_numbers(self, by: str = "job", **which: Unpack[JobChoice]) -> FigureNumbers:
        """Return what `radar` draws: a row per profile, 0..1 along each axis, null: not
        measured.
        """
        return build_radar(self.jobs(**which).filter(pl.col("samples") > 0), by=by).profiles

    def _made(self, figure: str, options: StudyChoice) -> MadeFigure:
        entry = find_figure(figure)
        settings, _, jobs, windows = self._studied([entry], None, options)
        return make_figure(entry, Study(jobs, settings.options, windows))

    def _studied(
        self, entries: Sequence[FigureEntry], wanted: JobFilter | None, options: StudyChoice
    ) -> tuple[StudySettings, JobSet, pl.DataFrame, pl.DataFrame | None]:
        """The settings, the jobs that they choose, these with the metrics that they define, and
        compared windows.
        """
        check_names(options, StudyChoice)
        wanted = self._filter(options) if wanted is None else wanted
        settings = settings_of(options, wanted, self.configuration)

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

        chosen, jobs, windows = self._of_one_moment(read)
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
        """Spatial imbalance over windows other than those of the analysis; None where they are
        the same.
        """
        window_s, analysis = settings.options.window_s, settings.analysis
        if window_s == analysis.window_s:
            return None
        with lake_errors(self.lake.location):
            held = self._held(jobs).select("job_key", "seq").collect()
            return spatial_imbalance(
                query.scan_rows(self.lake, JOB_MINUTES, jobs),
                with_gpus_held(jobs, held),
                window_s=window_s,
                count_zero_windows=analysis.count_zero_windows,
            )

    def _held(self, jobs: pl.DataFrame) -> pl.LazyFrame:
        """The rows of job_gpus of some jobs, not read yet."""
        return query.scan_rows(self.lake, JOB_GPUS, jobs)

    def _filter(self, which: JobChoice) -> JobFilter:
        return job_filter(which, now=self.now, zone_name=self.configuration.site.time_zone)

    def _of_one_moment(self, read: Callable[[], T]) -> T:
        return query.read_consistently(self.lake, read)

    def _summaries_and_answers(self, wanted: JobFilter) -> tuple[pl.DataFrame, pl.DataFrame]:
        summaries = query.read_summaries(self.lake)
        return summaries, query.read_answers(self.lake, summaries, wanted.findings)

    def _rows(self, job: str | pl.DataFrame | None) -> pl.DataFrame:
        """Rows of job_summaries: those given, of one job, or all."""
        if isinstance(job, pl.DataFrame):
            return job
        return query.read_summaries(self.lake, _OF_JOB) if job is None else self.run_of(str(job))

    def _recorded(self) -> RecordedSamples:
        """What the log records of the samples."""
        facts = describe_tables(self.lake, [GPU_SAMPLES])
        return (
            RecordedSamples(facts[0].rows, facts[0].first, facts[0].last)
            if facts
            else RecordedSamples(0)
        )

    def _stale(self) -> bool:
        """Whether the last analysis was made with another configuration."""
        return is_stale(self.lake, self.configuration, JobJudge(self.configuration).digest)


def _day(moment: datetime | None) -> str:
    return "–" if moment is None else f"{moment:%Y-%m-%d}"
