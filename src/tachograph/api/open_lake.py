"""A lake in Python: jobs as Polars frames, the page of a job, figures, the study.

    import tachograph
    lake = tachograph.open("tachograph-demo/lake")
    lake.jobs(partition="gpu", where="gpu_hours>10")
    lake.figure("spatial_imbalance", since="2025-03-04")

`tachograph study` goes through the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from typing import Any, TypeVar, Unpack

import polars as pl

from tachograph.api.advice import read_advice
from tachograph.api.capacity import read_capacity
from tachograph.api.choices import (
    JobChoice,
    check_names,
    described,
    job_filter,
)
from tachograph.api.job_report import read_job
from tachograph.api.job_sums import sum_usage, sum_waste
from tachograph.api.needs import read_ledger
from tachograph.api.representation import framed, preformatted, table
from tachograph.catalog import config
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.columns import must_exist
from tachograph.catalog.config import Configuration
from tachograph.catalog.doors import annex_function
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.tables import (
    COMPUTED,
    DEVICES,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    TABLES,
    LakeTable,
)
from tachograph.catalog.units import plural, text
from tachograph.judge.advice.advise import Advice
from tachograph.judge.advice.request import JobRequest, read_script
from tachograph.judge.capacity import CapacityReport
from tachograph.judge.finding import VERDICTS, Verdict
from tachograph.judge.ledger import LEDGER_COLUMNS, WasteReport
from tachograph.judge.node_history import (
    NODE_GPU_COLUMNS,
    NODE_JOB_COLUMNS,
    NodeReport,
    build_node_report,
)
from tachograph.judge.steps import JobSteps
from tachograph.judge.usage import USAGE_COLUMNS, UsageReport
from tachograph.lake import query
from tachograph.lake.delta import Lake
from tachograph.lake.describe import describe_tables
from tachograph.lake.filters import JobFilter
from tachograph.lake.places import in_accounting, may_be_of, read_same_clusters
from tachograph.report.advice import advice_json, advice_lines, sbatch_lines
from tachograph.report.job import JobReport, job_json
from tachograph.report.job_page import job_html
from tachograph.report.job_text import job_lines
from tachograph.report.lines import to_text
from tachograph.report.node import node_headline, node_json
from tachograph.report.steps import steps_json, steps_lines
from tachograph.report.waste import waste_json, waste_lines
from tachograph.report.waste_page import waste_html

T = TypeVar("T")
_OF_JOB = ("job_key", "seq", "start", "as_of")  # what rows that belong to a job are found by


def open_lake(lake: str | None = None, config_file: str | None = None) -> OpenLake:
    """Return an open lake: `lake`, or the one that configuration or environment name.

    Errors: ConfigError, LakeError without a lake.
    """
    configuration = config.load(config_file)
    opened = Lake.open(config.lake_location(lake, configuration))
    return OpenLake(opened, configuration, query.lake_now(opened, datetime.now(UTC)))


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
        """Steps of the job: idle ones, and times without any."""
        return StepsPage(self.report.steps, self.report.zone_name)


@dataclass(frozen=True, slots=True, repr=False)
class StepsPage:
    """Steps of a job; as text, what `tachograph job ID --steps` prints."""

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
class WastePage:
    """The ledger of some jobs; printed, it is the output of `tachograph waste`.

    Its tables are those of `report`.
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
    """Advice for a job; as text, what `tachograph advise` prints."""

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

    Tables are read on demand, and nothing is written. Missing values are null, times are UTC.
    Attributes: `lake`; `configuration`; `now`, the time at which it was opened, from which times
    such as "7d" are counted back (not the end of the data).
    """

    lake: Lake
    configuration: Configuration
    now: datetime

    def __repr__(self) -> str:
        """Return location, number of analyzed jobs, and their time span."""
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
            (fact.table, f"{fact.rows:,}", _day(fact.first), _day(fact.last), text(fact.bytes, "B"))
            for fact in facts
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
        selection = self.filter(which)
        return query.select_jobs(self.lake, selection).jobs.sort("start", "job_key")

    def run_of(
        self, job: str, *, cluster: str | None = None, run: int | None = None
    ) -> pl.DataFrame:
        """Return the job_summaries row of a job's run (default: the last).

        Errors: as `job`.
        """
        chosen_job = query.read_job_row(self.lake, job, cluster=cluster, run=run)
        return pl.DataFrame([chosen_job.row], schema=JOB_SUMMARIES.schema)

    def gpus(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of job_gpus of a job (its id) or of rows of `jobs()`, one per GPU held."""
        return self.of_one_moment(lambda: query.read_gpus(self.lake, self._rows(job)))

    def steps(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of step_summaries of a job (its id) or of rows of `jobs()`, one per step."""
        return self.of_one_moment(lambda: query.read_steps(self.lake, self._rows(job)))

    def minutes(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of job_minutes of a job (its id) or of rows of `jobs()`.

        One row per GPU and minute.
        """
        return self._by_minute(JOB_MINUTES, job)

    def node_minutes(self, job: str | pl.DataFrame) -> pl.DataFrame:
        """Return rows of job_node_minutes, one per node and minute.

        Of a job (its id), or of rows of `jobs()`.

        No row where hosts were not recorded, or the node was shared in that minute.
        """
        return self._by_minute(JOB_NODE_MINUTES, job)

    def _by_minute(self, table: LakeTable, job: str | pl.DataFrame) -> pl.DataFrame:
        return self.of_one_moment(lambda: query.read_rows(self.lake, table, self._rows(job)))

    def findings(
        self, job: str | pl.DataFrame | None = None, *, verdict: Verdict | None = "yes"
    ) -> pl.DataFrame:
        """Return rows of findings: of a job (its id), of rows of `jobs()`, or of all jobs.

        `verdict`: "yes": what holds and is reported; "no": what does not hold; "unknown": not
        enough was measured; None: everything, also facts (severity `fact`) and covered findings.
        """
        must_exist([] if verdict is None else [verdict], VERDICTS, what="verdict", error=UsageError)

        def read() -> pl.DataFrame:
            where = None if verdict is None else pl.col("verdict") == verdict
            return query.read_verdicts(
                self.lake, self._rows(job), REPORTED if verdict == "yes" else where
            )

        return self.of_one_moment(read)

    def job(self, job: str, *, cluster: str | None = None, run: int | None = None) -> JobPage:
        """Return the report of a job, of its last run unless `run` names another.

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
        """Return advice for a user's next job from the user's past jobs.

        `script`: the text of the job script; explicit arguments override it.

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
        least_runs: int = 2,
        pair: tuple[str, str] | None = None,
        top: int | None = None,
        **which: Unpack[JobChoice],
    ) -> Any:
        """Return the pairs of job groups that could share a GPU, as `tachograph share colocate`.

        `pair`: the pair to explain.

        `least_runs`: minimum of runs of a group. Errors: those of `jobs`; NotFoundError for an
        unknown group of the pair, UsageError for one that cannot be compared.
        """
        check_names(which, JobChoice)
        selection = self.filter(which)
        return annex_function("sharing")(
            self.lake, self.configuration, selection, least_runs=least_runs, pair=pair, top=top
        )

    def node(self, node: str, *, cluster: str | None = None) -> NodePage:
        """Return the history of a node: jobs, and use and health of its GPUs by week and day.

        Errors: NotFoundError where no device and no job is recorded on it; UsageError where several
        clusters have a node of this name, and none is given.
        """

        def read() -> NodeReport:
            same_clusters = read_same_clusters(self.lake)
            name = None if cluster is None else same_clusters.get(cluster, cluster)
            jobs, gpus = query.read_node(
                self.lake, node, NODE_JOB_COLUMNS, NODE_GPU_COLUMNS, cluster=name
            )
            devices = in_accounting(query.read_latest(self.lake, DEVICES), same_clusters).filter(
                pl.col("node") == node, may_be_of(pl.lit(name, pl.String))
            )
            clusters = pl.concat([jobs["cluster"], devices["cluster"]]).unique().drop_nulls().sort()
            if cluster is None and clusters.len() > 1:
                raise UsageError(
                    f"clusters {', '.join(clusters)} have a node {node!r}", do="name the cluster"
                )
            zone_name = self.configuration.site.time_zone
            return build_node_report(node, jobs, gpus, devices, cluster=name, zone_name=zone_name)

        report = self.of_one_moment(read)
        if report.gpus.is_empty():
            raise NotFoundError(f"no node {node!r}", do="see the nodes of a job on its page")
        return NodePage(report)

    def waste(
        self,
        by: str = "cause",
        *,
        jobs_of: str | None = None,
        top: int | None = None,
        capacity: bool = True,
        **which: Unpack[JobChoice],
    ) -> WastePage:
        """Return the hours of GPU time by cause, and by user, account, partition or gpu_model.

        `jobs_of`: list the jobs of this cause, or all. `top`: limit of groups and jobs. `capacity`:
        with all installed GPU-hours, where they are known. Errors:
        those of `jobs`; UsageError for an unknown grouping or cause.
        """
        check_names(which, JobChoice)
        selection = self.filter(which)
        jobs, intervals, freed = read_ledger(
            self.lake, self.configuration, selection, LEDGER_COLUMNS
        )
        report = sum_waste(
            jobs,
            intervals,
            self.configuration.waste,
            freed=freed,
            by=by,
            top=top,
            jobs_of=jobs_of,
            zone_name=self.configuration.site.time_zone,
            since=selection.since,
            until=selection.until,
            capacity=self.capacity(selection) if capacity else None,
        )
        return WastePage(report)

    def capacity(self, wanted: JobFilter | None = None) -> CapacityReport | None:
        """Return where all installed GPU-hours went, by day, partition and GPU model.

        None where no node was polled, and where `wanted` chooses by anything but time.
        """
        return read_capacity(self.lake, self.configuration, wanted or JobFilter())

    def usage(self, *, top: int = 10, **which: Unpack[JobChoice]) -> UsageReport:
        """Return the usage of jobs: by week, lost and recovered hours, worst and running jobs.

        Errors: those of `jobs`; NotFoundError without such jobs.
        """
        check_names(which, JobChoice)
        selection = self.filter(which)

        def read() -> UsageReport:
            jobs, intervals, freed = read_ledger(
                self.lake, self.configuration, selection, USAGE_COLUMNS
            )
            if jobs.is_empty():
                criteria = ", ".join(
                    f"{name} {value}" for name, value in described(selection, zone_name)
                )
                raise NotFoundError(
                    f"no job of {criteria}" if criteria else "no job",
                    do="`tachograph jobs` lists them",
                )
            report = sum_usage(
                jobs,
                intervals,
                self.configuration.waste,
                lambda rows: query.read_answers(self.lake, rows, reported=True),
                freed=freed,
                top=top,
                zone_name=zone_name,
            )
            return replace(report, findings=query.with_advice(self.lake, report.findings, jobs))

        zone_name = self.configuration.site.time_zone
        return self.of_one_moment(read)

    def study(
        self,
        figures: str | Sequence[str] = (),
        *,
        wanted: JobFilter | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        **options: Any,
    ) -> Any:
        """Return the study of this system: data, figures with numbers, answers to six questions.

        `figures`: names or numbers, none for all. `options`: those of `jobs`, and pipe, window,
        variant, whiskers, no_filter as in `tachograph study`. `wanted` replaces the options of the
        job filter. `progress` is called with (current step, steps done, all steps). The method
        `write` of the result writes it into a folder. Errors: those of `jobs`; NotFoundError
        without a job to study.
        """
        return self._study().study(figures, wanted=wanted, progress=progress, **options)

    def numbers(self, figure: str, **options: Any) -> Any:
        """Return a figure's numbers: tables, facts, gaps."""
        return self._study().numbers(figure, **options)

    def figure(self, figure: str, **options: Any) -> Any:
        """Return the drawing of one figure of the study, of matplotlib.

        Errors: NotFoundError where nothing of it can be drawn.
        """
        return self._study().figure(figure, **options)

    def _study(self) -> Any:
        return annex_function("lake_study")(self.lake, self.configuration, self.now)

    def filter(self, which: JobChoice) -> JobFilter:
        """Return the job filter of the options. Errors: those of `jobs`."""
        return job_filter(which, now=self.now, zone_name=self.configuration.site.time_zone)

    def of_one_moment(self, read: Callable[[], T]) -> T:
        """Return the result of `read` over several tables of one analysis.

        Errors: those of `read`.
        """
        return query.read_consistently(self.lake, read)

    def _rows(self, job: str | pl.DataFrame | None) -> pl.DataFrame:
        """Rows of job_summaries: the given ones, a job's, or all."""
        if isinstance(job, pl.DataFrame):
            return job
        return query.read_summaries(self.lake, _OF_JOB) if job is None else self.run_of(str(job))


def _day(moment: datetime | None) -> str:
    return "–" if moment is None else f"{moment:%Y-%m-%d}"
