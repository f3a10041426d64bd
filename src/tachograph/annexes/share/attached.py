"""Reports attached to a job: what is stored, and short views of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from math import fsum
from pathlib import Path
from typing import Any

from tachograph.annexes.share.calibration import calibration_of
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.kernel_limits import limits
from tachograph.annexes.share.kernel_metrics import duration_s
from tachograph.annexes.share.kernel_names import labels
from tachograph.annexes.share.kernel_report import reject_sentences
from tachograph.annexes.share.kernels import Kernel, kernels_of
from tachograph.annexes.share.nsight.launches import NcuReport
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
    by_time = sorted(
        range(len(launches)), key=lambda place: (-(duration_s(launches[place]) or 0.0), place)
    )
    kept = tuple(launches[place] for place in sorted(by_time[:most]))
    problems = (*report.problems, *reject_sentences(report))
    return AttachedProfile(
        replace(report, launches=kept, rejects=(), problems=problems), len(launches), at
    )


def attached_job_kernels(
    lake: Lake, job_key: str, configuration: Configuration, *, most: int = SHOWN_KERNELS
) -> JobKernels:
    """Return short views of the reports attached to a run; reads no calibration."""
    attached = read_attached(lake, job_key)
    if not attached:
        return NO_KERNELS
    return job_kernels(attached, calibration_of(configuration), most=most)


def profiled_launches(
    lake: Lake, job_key: str, reports: Sequence[Path]
) -> list[Mapping[str, Any]] | None:
    """Return launch metrics of `reports`, else of the reports attached to a run of a job.

    None without reports. Errors: those of `read_reports`.
    """
    if reports:
        read: Sequence[NcuReport] = read_reports(reports)
    else:
        read = [profile.report for profile in read_attached(lake, job_key)]
    if not read:
        return None
    metrics: list[Mapping[str, Any]] = []
    for report in read:
        metrics += [launch.metrics for launch in report.launches]
    return metrics


def job_kernels(
    attached: Sequence[AttachedProfile], calibration: Calibration, *, most: int = SHOWN_KERNELS
) -> JobKernels:
    """Return short views of reports attached to a job; `most`: listed kernels per report."""
    reports = [_in_short(profile, calibration, most) for profile in attached]
    found = kernels_of(chain.from_iterable(profile.report.launches for profile in attached))
    return JobKernels(
        tuple(reports), len(found), next(iter(_shortened(found, calibration, 1)), None)
    )


def _in_short(profile: AttachedProfile, calibration: Calibration, most: int) -> AttachedReport:
    report = profile.report
    found = kernels_of(report.launches)
    seconds = [kernel.seconds for kernel in found if kernel.seconds is not None]
    return AttachedReport(
        report=report.file,
        digest=report.digest,
        attached=profile.at,
        launches=profile.launches,
        launches_kept=len(report.launches),
        kernels=len(found),
        seconds=fsum(seconds) if seconds else None,
        longest=_shortened(found, calibration, most),
        problems=report.problems,
    )


def _shortened(
    found: Sequence[Kernel], calibration: Calibration, most: int
) -> tuple[ShortKernel, ...]:
    """The first of some kernels, which are in the order of their time."""
    whole = fsum(kernel.seconds or 0.0 for kernel in found)
    return tuple(
        ShortKernel(
            name=label,
            launches=kernel.launches,
            seconds=kernel.seconds,
            share=kernel.seconds / whole if kernel.seconds else None,
            limited_by=limits(kernel, calibration=calibration).limited_by,
        )
        for kernel, label in list(zip(found, labels(found), strict=True))[:most]
    )
