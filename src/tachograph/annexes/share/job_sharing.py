"""Which jobs of a lake could share a GPU, by the project's estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from tachograph.annexes.share.calibration import calibration_of
from tachograph.annexes.share.colocation import ColocateReport, build_colocate_report
from tachograph.annexes.share.corun import least_on_sms
from tachograph.annexes.share.demand import (
    Calibration,
    Demand,
    Estimate,
    GpuCapacity,
    Matrix,
    Sharing,
)
from tachograph.annexes.share.estimate import estimate, matrix
from tachograph.annexes.share.job_groups import LEAST_RUNS, GivenProfile
from tachograph.annexes.share.kernel_facts import KernelsReport, KernelsRequest
from tachograph.annexes.share.kernel_report import build_kernels_report
from tachograph.annexes.share.nsight.launches import Launch, NcuReport
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.annexes.share.profiles import read_attached, read_profiles
from tachograph.annexes.share.proposals import Estimator, EstimatorOf
from tachograph.catalog.arrays import Floats
from tachograph.catalog.config import Configuration, InterferenceOptions
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import jobs_and_intervals
from tachograph.report.job_kernels import MOST_KERNELS


def read_sharing(
    lake: Lake,
    configuration: Configuration,
    wanted: JobFilter,
    *,
    least_runs: int = LEAST_RUNS,
    every: bool = False,
    top: int | None = None,
    pair: tuple[str, str] | None = None,
    matrix: bool = False,
    profiles: Sequence[GivenProfile] = (),
    remark: Callable[[str], None] = lambda _: None,
) -> ColocateReport:
    """Return the report on co-location of the selected jobs.

    Options are those of build_colocate_report.

    `profiles`: added to those of the configuration. Groups without either use the reports attached
    to their jobs. `remark` is called with problems of files. Errors: those of filter_jobs and
    build_colocate_report.
    """
    settings = configuration.interference
    jobs, verdicts = jobs_and_intervals(lake, wanted, ("stable",))
    kept = [
        GivenProfile(group, report, "configuration") for group, report in settings.profiles.items()
    ]
    attached = _AttachedReports.of(lake, jobs)
    return build_colocate_report(
        jobs,
        verdicts,
        settings=settings,
        thresholds=configuration.thresholds,
        calibration=calibration_of(configuration),
        estimator_of=estimators(settings),
        least_runs=least_runs,
        every=every,
        top=top,
        pair=pair,
        matrix=matrix,
        profiles=[*profiles, *kept, *attached.given],
        read=lambda report: (
            attached.launches(report) if report in attached.keys else _launches(report, remark)
        ),
        zone_name=configuration.site.time_zone,
    )


def read_kernels(reports: Sequence[str], configuration: Configuration) -> KernelsReport:
    """Return the kernels of Nsight Compute reports, with every pair of them.

    Unreadable reports are in its `problems`.

    A report has the last part of its name. Errors: InputError if none can be read, or none holds a
    kernel.
    """
    problems: list[str] = []
    found = read_reports([Path(report) for report in reports], remark=problems.append)
    found = tuple(report.named(Path(report.file).name) for report in found)
    report = _shown(found, configuration)
    return replace(report, problems=(*problems, *report.problems))


def read_attached_kernels(lake: Lake, job_key: str, configuration: Configuration) -> KernelsReport:
    """Return the kernels of reports attached to a run, each paired with each other.

    Errors: InputError if none holds a kernel.
    """
    return _shown([profile.report for profile in read_attached(lake, job_key)], configuration)


def _shown(found: Sequence[NcuReport], configuration: Configuration) -> KernelsReport:
    return build_kernels_report(
        found, KernelsRequest(top=MOST_KERNELS, matrix=True), configuration=configuration
    )


@dataclass(frozen=True, slots=True)
class _AttachedReports:
    """Reports attached to jobs. given: one name per job id; keys: {name: job_keys}."""

    lake: Lake
    given: tuple[GivenProfile, ...]
    keys: Mapping[str, list[str]]

    @classmethod
    def of(cls, lake: Lake, jobs: pl.DataFrame) -> _AttachedReports:
        attached = read_profiles(lake).select("job_key").unique()
        rows = jobs.select(pl.coalesce("display_id", "job_id").alias("job"), "job_key")
        of_job = (
            rows.join(attached, on="job_key", how="semi").sort("job", "job_key").rows_by_key("job")
        )
        keys: dict[str, list[str]] = {}
        profiles = []
        for job, runs in of_job.items():
            name = f"reports of job {job}"
            keys[name] = [key for (key,) in runs]
            profiles.append(GivenProfile(job, name, "job"))
        return cls(lake, tuple(profiles), keys)

    def launches(self, name: str) -> list[Launch]:
        """Return the launches of all reports that `name` refers to."""
        launches: list[Launch] = []
        for key in self.keys[name]:
            for profile in read_attached(self.lake, key):
                launches += profile.report.launches
        return launches


def _launches(report: str, remark: Callable[[str], None]) -> list[Launch]:
    """The launches of a file, or of all reports in a folder; unreadable ones are reported.

    Errors: InputError where nothing could be read.
    """
    launches: list[Launch] = []
    for part in read_reports([Path(report)], remark=remark):
        for problem in part.problems:
            remark(f"{part.file}: {problem}")
        launches += part.launches
    return launches


def estimators(settings: InterferenceOptions) -> EstimatorOf:
    """Return the estimator of the project."""

    def of(gpu: GpuCapacity, calibration: Calibration) -> Estimator:
        def pairs(rows: Sequence[Demand], columns: Sequence[Demand], sharing: Sharing) -> Matrix:
            others = None if columns is rows else columns
            return matrix(
                rows, others, gpu=gpu, calibration=calibration, sharing=sharing, settings=settings
            )

        def together(demands: Sequence[Demand], sharing: Sharing) -> Estimate:
            return estimate(
                demands, gpu=gpu, calibration=calibration, sharing=sharing, settings=settings
            )

        def alone(demands: Sequence[Demand]) -> Floats:
            return least_on_sms(demands, gpu, calibration)

        return Estimator(pairs, together, alone)

    return of
