"""The kernels of a job, from attached reports or those of its job group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tachograph.annexes.share.job_groups import reports_given
from tachograph.annexes.share.job_sharing import read_attached_kernels, read_kernels
from tachograph.annexes.share.kernel_facts import KernelsReport
from tachograph.annexes.share.kernels_html import kernels_body
from tachograph.annexes.share.profiles import read_profiles
from tachograph.api.pages import PageView, Pending, Progress
from tachograph.api.parameters import JobParameters
from tachograph.catalog.errors import NotFoundError

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


PARAMETERS = JobParameters


def content(view: PageView, parameters: JobParameters) -> Mapping[str, Any]:
    """Return the kernels, or the reading progress. Errors: NotFoundError without reports."""
    run = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run)
    row = cast("JobSummaryRow", run.row(0, named=True))
    key, job = row["job_key"], row["display_id"] or row["job_id"]
    attached = read_profiles(view.opened.lake, [key]).get_column("report").to_list()
    reports = () if attached else reports_given(row, view.configuration.interference.profiles)
    if attached:
        kernels = view.made(_attached, key)
    elif reports:
        kernels = view.made(_of_group, reports, tuple(map(_changed_ns, reports)))
    else:
        do = f"attach one with `tachograph share kernels REPORT --job {job}`"
        raise NotFoundError("no profile is given for this job", do=do)
    pending = kernels if isinstance(kernels, Pending) else None
    return {
        "pending": pending,
        "body": None if isinstance(kernels, Pending) else kernels_body(kernels),
        "files": attached or [Path(report).name for report in reports],
        "attached": bool(attached),
        "job": job,
        "key": key,
    }


def _changed_ns(report: str) -> int:
    path = Path(report)
    return path.stat().st_mtime_ns if path.exists() else 0


def _attached(view: PageView, _: Progress, key: str) -> KernelsReport:
    return read_attached_kernels(view.opened.lake, key, view.configuration)


def _of_group(
    view: PageView, _: Progress, reports: tuple[str, ...], changed: tuple[int, ...]
) -> KernelsReport:
    """Content of reports; `changed`: modification times, which invalidate the cache."""
    report = read_kernels(reports, view.configuration)
    # These name files of the server.
    return report if view.viewer.sees_all else replace(report, problems=())
