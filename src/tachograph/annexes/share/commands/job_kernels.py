"""Reports of Nsight Compute that are attached to a job of the lake: attach, detach, read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.units import plural, printable, whole_number
from tachograph.cli import output
from tachograph.cli.narrate import remark
from tachograph.cli.options import Arguments, Parser, open_lake

if TYPE_CHECKING:
    from tachograph.annexes.share.nsight.launches import NcuReport
    from tachograph.annexes.share.profiles import AttachedProfile
    from tachograph.catalog.rows import JobSummaryRow
    from tachograph.lake.delta import Lake

# options that choose what is shown, and have no meaning where reports are attached or detached
_SHOWING = ("kernel", "top", "explain", "together", "matrix", "mps_share", "csv", "html")


def add_job_options(parser: Parser) -> None:
    """Declare the job, its run, and actions on its reports."""
    group = parser.add_argument_group("job of the lake")
    group.add_argument(
        "--job",
        metavar="ID",
        help="attach the reports to this job; without a REPORT: the kernels attached to it",
    )
    group.add_argument("--cluster", metavar="NAME", help="cluster, if several have this job id")
    group.add_argument(
        "--run",
        type=whole_number(1),
        dest="nth",
        metavar="N",
        help="N-th run of a requeued job (default: last)",
    )
    group.add_argument(
        "--detach",
        action="store_true",
        help="remove attached reports: those called REPORT, or all of the job",
    )


def changes_job(arguments: Arguments) -> bool:
    """Return whether reports are to be attached or detached.

    Errors: UsageError for options that do not fit together.
    """
    if arguments.job is None:
        for option, value in (
            ("--cluster", arguments.cluster),
            ("--run", arguments.nth),
            ("--detach", arguments.detach),
        ):
            if value:
                raise UsageError(f"{option} without a job", do="name it with --job ID")
        if not arguments.reports:
            raise UsageError(
                "no report", do="name a report of Nsight Compute, or a job with --job ID"
            )
        return False
    changes = arguments.detach or bool(arguments.reports)
    for name in _SHOWING if changes else ():
        if getattr(arguments, name):
            what = "--detach" if arguments.detach else "attaching a report"
            raise UsageError(
                f"--{name.replace('_', '-')} does not go with {what}",
                do="show the kernels of a job without a REPORT",
            )
    return changes


def _run_of(arguments: Arguments) -> tuple[Lake, JobSummaryRow, str]:
    """The lake, the run in the options, and how people call it. Errors: those of read_job_row."""
    from tachograph.lake.query import read_job_row

    lake = open_lake(arguments).lake
    row = read_job_row(lake, arguments.job, cluster=arguments.cluster, run=arguments.nth).row
    return lake, row, str(row["display_id"] or row["job_id"])


def read_job_kernels(arguments: Arguments) -> tuple[NcuReport, ...]:
    """Return the reports attached to the job. Errors: NotFoundError without any."""
    from tachograph.annexes.share.profiles import read_attached

    lake, row, job = _run_of(arguments)
    attached = read_attached(lake, row["job_key"])
    if not attached:
        do = f"attach one with `tachograph share kernels REPORT --job {job}`"
        raise NotFoundError(f"no report is attached to job {job}", do=do)
    return tuple(profile.report for profile in attached)


def detach_reports(arguments: Arguments) -> int:
    """Remove attached reports and print which."""
    from tachograph.annexes.share.profiles import detach_profiles

    lake, row, job = _run_of(arguments)
    gone = detach_profiles(lake, row["job_key"], arguments.reports, at=datetime.now(UTC))
    if arguments.json:
        output.print_json({"job_key": row["job_key"], "detached": list(gone)})
        return 0
    names = f": {', '.join(map(printable, gone))}" if gone else ""
    output.print_text(f"Detached {plural(len(gone), 'report')} from job {job}{names}\n")
    return 0


def attach_reports(arguments: Arguments, read: Callable[[], Sequence[NcuReport]]) -> int:
    """Read reports, attach their launches to the job, and print the result."""
    from tachograph.annexes.share.attached import to_attach
    from tachograph.annexes.share.profiles import attach_profiles

    lake, row, job = _run_of(arguments)
    profiles = []
    for report in read():
        if report.launches:
            profiles.append(to_attach(report, datetime.now(UTC)))
        else:
            problems = "; ".join(report.problems) or "no kernel was profiled"
            remark(printable(f"{report.file}: not attached, {problems}"))
    for profile in profiles:
        _remark_differences(profile, row["gpu_model"])
    new = attach_profiles(lake, row["job_key"], row["job_id"], profiles)
    if arguments.json:
        rows = [_json(profile, profile.report.digest in new) for profile in profiles]
        output.print_json({"job_key": row["job_key"], "attached": rows})
        return 0
    attached = [profile for profile in profiles if profile.report.digest in new]
    before = [profile for profile in profiles if profile.report.digest not in new]
    parts = [f"Attached {_counts(attached)} to job {job}"] if attached else []
    if before:
        parts.append(f"Already attached to job {job}: {_counts(before)}")
    output.print_text(f"{'; '.join(parts)}\n")
    return 0


def _remark_differences(profile: AttachedProfile, gpu_model: str | None) -> None:
    """Remark launches that are not attached, and a GPU that is not the job's."""
    from tachograph.annexes.share.capacity import device_of
    from tachograph.catalog.devices import match_device

    report, gpu_of_job = profile.report, match_device(gpu_model)
    devices = {device_of(launch.chip) for launch in report.launches}
    others = sorted(device.name for device in devices if device not in (None, gpu_of_job))
    if gpu_of_job is not None and others:
        ran = f"its kernels ran on {', '.join(others)}, the job on {gpu_of_job.name}"
        remark(printable(f"{Path(report.file).name}: {ran}"))
    attached = len(report.launches)
    if profile.launches > attached:
        left_out = f"{profile.launches - attached:,} of {profile.launches:,} launches left out"
        remark(printable(f"{report.file}: {left_out}, the longest {attached:,} are attached"))


def _json(profile: AttachedProfile, new: bool) -> dict[str, Any]:
    report = profile.report
    return {
        "report": Path(report.file).name,
        "digest": report.digest,
        "new": new,
        "kernels": _kernels([profile]),
        "launches": profile.launches,
        "launches_kept": len(report.launches),
    }


def _counts(profiles: Sequence[AttachedProfile]) -> str:
    from tachograph.annexes.share.kernels_sentences import launches_text

    launches = launches_text(sum(len(profile.report.launches) for profile in profiles))
    names = [printable(Path(profile.report.file).name) for profile in profiles]
    of = names[0] if len(names) == 1 else plural(len(names), "report")
    return f"{plural(_kernels(profiles), 'kernel')}, {launches} of {of}"


def _kernels(profiles: Sequence[AttachedProfile]) -> int:
    from tachograph.annexes.share.kernels import kernels_of

    return len(kernels_of(launch for profile in profiles for launch in profile.report.launches))
