"""Reports attached to a job: what is stored, and short views of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from math import fsum
from pathlib import Path
from typing import Any

from tachograph.annexes.share.calibration import calibration_of, of_model
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.kernel_limits import limits
from tachograph.annexes.share.kernel_metrics import duration_s
from tachograph.annexes.share.kernel_names import labels
from tachograph.annexes.share.kernel_report import reject_sentences
from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.nsight.launches import Launch, NcuReport
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.annexes.share.profiles import AttachedProfile, read_attached
from tachograph.catalog.config import Configuration
from tachograph.lake.delta import Lake
from tachograph.report.job_kernels import NO_KERNELS, AttachedReport, JobKernels, ShortKernel

MOST_LAUNCHES = 1000  # of a report that are attached: the longest ones
SHOWN_KERNELS = 5  # of a report, on the page of a job


def to_attach(report: NcuReport, at: datetime, *, most: int = MOST_LAUNCHES) -> AttachedProfile:
    """Return the part of a report to attach: its `most` longest launches, in order.

    Of more launches those without a duration are left out first. What was rejected of it is among
    its problems.
    """
    launches = report.launches
    by_time = sorted(enumerate(launches), key=lambda item: -(duration_s(item[1]) or 0.0))
    longest = tuple(launch for _, launch in sorted(by_time[:most], key=lambda item: item[0]))
    problems = (*report.problems, *reject_sentences(report))
    report = replace(report, launches=longest, rejects=(), problems=problems)
    return AttachedProfile(report, len(launches), at)


def attached_job_kernels(
    lake: Lake, job_key: str, configuration: Configuration, *, most: int = SHOWN_KERNELS
) -> JobKernels:
    """Return short views of the reports attached to a run; `most`: listed kernels per report."""
    attached = read_attached(lake, job_key)
    if not attached:
        return NO_KERNELS
    calibration = calibration_of(configuration)
    reports = []
    for profile in attached:
        report = profile.report
        count, seconds, longest = _shortened(report.launches, calibration, most)
        reports.append(
            AttachedReport(
                report=report.file,
                digest=report.digest,
                attached=profile.at,
                launches=profile.launches,
                launches_kept=len(report.launches),
                kernels=count,
                seconds=seconds,
                longest=longest,
                problems=report.problems,
            )
        )
    launches = chain.from_iterable(profile.report.launches for profile in attached)
    count, _, longest = _shortened(launches, calibration, 1)
    return JobKernels(tuple(reports), count, next(iter(longest), None))


def profiled_launches(
    lake: Lake, job_key: str, reports: Sequence[Path]
) -> list[Mapping[str, Any]] | None:
    """Return launch metrics of `reports`, else of the reports attached to a run of a job.

    None without reports. Errors: those of `read_reports`.
    """
    read: Iterable[NcuReport] = (profile.report for profile in read_attached(lake, job_key))
    if reports:
        read = read_reports(reports)
    return [launch.metrics for report in read for launch in report.launches] or None


def _shortened(
    launches: Iterable[Launch], calibration: Calibration, most: int
) -> tuple[int, float | None, tuple[ShortKernel, ...]]:
    """How many kernels were launched, their time together, and the longest of them."""
    kernels = kernels_of(launches)
    whole = fsum(kernel.seconds or 0.0 for kernel in kernels)
    longest = tuple(
        ShortKernel(
            name=label,
            launches=kernel.launches,
            seconds=kernel.seconds,
            share=kernel.seconds / whole if kernel.seconds else None,
            limited_by=limits(
                kernel, calibration=of_model(calibration, kernel.gpu.name)
            ).limited_by,
        )
        for kernel, label in list(zip(kernels, labels(kernels), strict=True))[:most]
    )
    return len(kernels), whole or None, longest
