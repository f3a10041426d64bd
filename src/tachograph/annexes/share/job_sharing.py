"""Which jobs of a lake could share a GPU, by the project's estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.annexes.share.calibration import calibration_of
from tachograph.annexes.share.colocation import (
    ColocateReport,
    ColocateRequest,
    build_colocate_report,
)
from tachograph.annexes.share.job_groups import GivenProfile
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
    profiles: Sequence[GivenProfile] = (),
    remark: Callable[[str], None] = lambda _: None,
    **request: Any,
) -> ColocateReport:
    """Return the report on co-location of the selected jobs; `request`: as of ColocateRequest.

    `profiles`: added to those of the configuration. Groups without either use the reports attached
    to their jobs. `remark` is called with problems of files. Errors: those of filter_jobs and
    build_colocate_report.
    """
    jobs, verdicts = jobs_and_intervals(lake, wanted, ("stable",))
    given_profiles = list(profiles)
    for group, report in configuration.interference.profiles.items():
        given_profiles.append(GivenProfile(group, report, "configuration"))
    runs = {
        f"reports of job {job}": (job, keys) for job, keys in _attached_runs(lake, jobs).items()
    }
    given_profiles += [GivenProfile(job, name, "job") for name, (job, _) in runs.items()]

    def read(report: str) -> list[Launch]:
        reports: Iterable[NcuReport]
        if report in runs:
            attached = (read_attached(lake, key) for key in runs[report][1])
            reports = (profile.report for profile in chain.from_iterable(attached))
        else:
            reports = _reports(report, remark)
        return [launch for part in reports for launch in part.launches]

    return build_colocate_report(
        jobs,
        verdicts,
        ColocateRequest(**request),
        configuration=configuration,
        calibration=calibration_of(configuration),
        profiles=given_profiles,
        read=read,
    )


def read_kernels(reports: Sequence[str], configuration: Configuration) -> KernelsReport:
    """Return the kernels of Nsight Compute reports, with every pair of them.

    Unreadable reports are in its `problems`.

    A report has the last part of its name. Errors: InputError if none can be read, or none holds a
    kernel.
    """
    problems: list[str] = []
    readable = read_reports([Path(report) for report in reports], remark=problems.append)
    readable = tuple(report.named(Path(report.file).name) for report in readable)
    report = _shown(readable, configuration)
    return replace(report, problems=(*problems, *report.problems))


def read_attached_kernels(lake: Lake, job_key: str, configuration: Configuration) -> KernelsReport:
    """Return the kernels of reports attached to a run, each paired with each other.

    Errors: InputError if none holds a kernel.
    """
    return _shown([profile.report for profile in read_attached(lake, job_key)], configuration)


def _shown(reports: Sequence[NcuReport], configuration: Configuration) -> KernelsReport:
    return build_kernels_report(
        reports, KernelsRequest(top=MOST_KERNELS, matrix=True), configuration=configuration
    )


def _attached_runs(lake: Lake, jobs: pl.DataFrame) -> dict[str, list[str]]:
    """{job: keys of its runs} of those jobs that reports are attached to."""
    attached = read_profiles(lake).select("job_key").unique()
    rows = jobs.select(pl.coalesce("display_id", "job_id").alias("job"), "job_key")
    runs: dict[str, list[str]] = {}
    for job, key in rows.join(attached, on="job_key", how="semi").sort("job", "job_key").rows():
        runs.setdefault(job, []).append(key)
    return runs


def _reports(name: str, remark: Callable[[str], None]) -> tuple[NcuReport, ...]:
    """The report in a file, or all in a folder; what cannot be read is remarked.

    Errors: InputError where nothing could be read.
    """
    reports = read_reports([Path(name)], remark=remark)
    for part in reports:
        for problem in part.problems:
            remark(f"{part.file}: {problem}")
    return reports
