"""Which jobs of a lake could share a GPU, by the project's estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from tachograph.annexes.share.calibration import calibration_of
from tachograph.annexes.share.colocation import ColocateReport, build_colocate_report
from tachograph.annexes.share.job_groups import LEAST_RUNS, GivenProfile
from tachograph.annexes.share.kernel_facts import KernelsReport, KernelsRequest
from tachograph.annexes.share.kernel_report import build_kernels_report
from tachograph.annexes.share.nsight.launches import Launch, NcuReport
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.annexes.share.profiles import read_attached, read_profiles
from tachograph.catalog.config import Configuration
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
    given = list(profiles)
    for group, report in settings.profiles.items():
        given.append(GivenProfile(group, report, "configuration"))
    runs = {
        f"reports of job {job}": (job, keys) for job, keys in _attached_runs(lake, jobs).items()
    }
    given += [GivenProfile(job, name, "job") for name, (job, _) in runs.items()]

    def read(report: str) -> list[Launch]:
        if report in runs:
            return _attached_launches(lake, runs[report][1])
        return _launches(report, remark)

    return build_colocate_report(
        jobs,
        verdicts,
        settings=settings,
        thresholds=configuration.thresholds,
        calibration=calibration_of(configuration),
        least_runs=least_runs,
        every=every,
        top=top,
        pair=pair,
        matrix=matrix,
        profiles=given,
        read=read,
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


def _attached_runs(lake: Lake, jobs: pl.DataFrame) -> dict[str, list[str]]:
    """{job: keys of its runs} of those jobs that reports are attached to."""
    attached = read_profiles(lake).select("job_key").unique()
    rows = jobs.select(pl.coalesce("display_id", "job_id").alias("job"), "job_key")
    runs: dict[str, list[str]] = {}
    for job, key in rows.join(attached, on="job_key", how="semi").sort("job", "job_key").rows():
        runs.setdefault(job, []).append(key)
    return runs


def _attached_launches(lake: Lake, job_keys: Sequence[str]) -> list[Launch]:
    """The launches of all reports that are attached to runs of a job."""
    launches: list[Launch] = []
    for key in job_keys:
        for profile in read_attached(lake, key):
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
