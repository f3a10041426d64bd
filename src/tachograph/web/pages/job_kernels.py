"""The kernels of a job, where a report of Nsight Compute is given for its job group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tachograph.api.job_sharing import read_kernels
from tachograph.catalog.errors import NotFoundError
from tachograph.report.kernels_html import kernels_body
from tachograph.sharing.job_groups import reports_given
from tachograph.sharing.kernel_facts import KernelsReport
from tachograph.web.background import Pending
from tachograph.web.parameters import JobParameters
from tachograph.web.snapshot import View

PARAMETERS = JobParameters


def content(view: View, parameters: JobParameters) -> Mapping[str, Any]:
    """Return the kernels, or how far reading them is. Errors: NotFoundError for a job without a report."""
    row = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run).row(0, named=True)
    reports = reports_given(row, view.configuration.interference.profiles)
    if not reports:
        raise NotFoundError("no profile is given for this job", do="name a report in [interference.profiles]")
    changed = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in map(Path, reports))
    made = view.made("kernels", lambda _: _shown(view, reports), None, reports, changed)
    return {
        "pending": made if isinstance(made, Pending) else None,
        "body": None if isinstance(made, Pending) else kernels_body(made),
        "files": [Path(report).name for report in reports],
        "job": row["display_id"] or row["job_id"],
        "key": row["job_key"],
    }


def _shown(view: View, reports: tuple[str, ...]) -> KernelsReport:
    report = read_kernels(reports, view.configuration)
    return report if view.viewer.sees_all else replace(report, problems=())  # these name files of the server
