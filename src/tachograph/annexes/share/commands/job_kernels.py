"""Reports of Nsight Compute that are attached to a job of the lake: attach, detach, read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
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
    from tachograph.lake.delta import Lake

# options that choose what is shown, and have no meaning where reports are attached or detached
_SHOWING = ("kernel", "top", "device", "explain", "together", "matrix", "mps_share", "csv", "html")


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
        given = [
            name
            for name, value in (("--cluster", arguments.cluster), ("--run", arguments.nth))
            if value
        ]
        given += ["--detach"] if arguments.detach else []
        if given:
            raise UsageError(f"{given[0]} without a job", do="name it with --job ID")
        if not arguments.reports:
            raise UsageError(
                "no report", do="name a report of Nsight Compute, or a job with --job ID"
            )
        return False
    changes = arguments.detach or bool(arguments.reports)
    shown = [name for name in _SHOWING if getattr(arguments, name)]
    if changes and shown:
        option = f"--{shown[0].replace('_', '-')}"
        what = "--detach" if arguments.detach else "attaching a report"
        raise UsageError(
            f"{option} does not go with {what}", do="show the kernels of a job without a REPORT"
        )
    return changes


@dataclass(frozen=True, slots=True)
class _JobOfLake:
    """A run of a job."""

    lake: Lake
    key: str
    id: str
    name: str
    gpu_model: str | None

    @classmethod
    def of(cls, arguments: Arguments) -> _JobOfLake:
        """Return the run in the options. Errors: those of read_job_row."""
        from tachograph.lake.query import read_job_row

        lake = open_lake(arguments).lake
        row = read_job_row(lake, arguments.job, cluster=arguments.cluster, run=arguments.nth).row
        return cls(
            lake,
            row["job_key"],
            row["job_id"],
            str(row["display_id"] or row["job_id"]),
            row["gpu_model"],
        )


def read_job_kernels(arguments: Arguments) -> tuple[NcuReport, ...]:
    """Return the reports attached to the job. Errors: NotFoundError without any."""
    from tachograph.annexes.share.profiles import read_attached

    job = _JobOfLake.of(arguments)
    attached = read_attached(job.lake, job.key)
    if not attached:
        do = f"attach one with `tachograph share kernels REPORT --job {job.name}`"
        raise NotFoundError(f"no report is attached to job {job.name}", do=do)
    return tuple(profile.report for profile in attached)


def detach_reports(arguments: Arguments) -> int:
    """Remove attached reports and print which."""
    from tachograph.annexes.share.profiles import detach_profiles

    job = _JobOfLake.of(arguments)
    gone = detach_profiles(job.lake, job.key, arguments.reports, at=datetime.now(UTC))
    if arguments.json:
        output.print_json({"job_key": job.key, "detached": list(gone)})
        return 0
    names = f": {', '.join(map(printable, gone))}" if gone else ""
    output.print_text(f"Detached {plural(len(gone), 'report')} from job {job.name}{names}\n")
    return 0


def attach_reports(arguments: Arguments, read: Callable[[], Sequence[NcuReport]]) -> int:
    """Read reports, attach their launches to the job, and print the result."""
    from tachograph.annexes.share.attached import to_attach
    from tachograph.annexes.share.nsight.launches import encodable
    from tachograph.annexes.share.profiles import attach_profiles

    job, now = _JobOfLake.of(arguments), datetime.now(UTC)
    given = []
    for report in read():
        if report.launches:
            given.append(to_attach(report, now))
        else:
            remark(
                encodable(
                    f"{report.file}: not attached, "
                    f"{'; '.join(report.problems) or 'no kernel was profiled'}"
                )
            )
    for line in _elsewhere(given, job.gpu_model):
        remark(line)
    new = frozenset(attach_profiles(job.lake, job.key, job.id, given))
    for profile in given:
        if left_out := profile.launches - len(profile.report.launches):
            kept = f"the longest {len(profile.report.launches):,} are attached"
            remark(
                encodable(
                    f"{profile.report.file}: {left_out:,} of {profile.launches:,} launches "
                    f"left out, {kept}"
                )
            )
    if arguments.json:
        output.print_json(
            {"job_key": job.key, "attached": [_json(profile, new) for profile in given]}
        )
    else:
        output.print_text(f"{_sentence(given, new, job.name)}\n")
    return 0


def _elsewhere(given: Sequence[AttachedProfile], gpu_model: str | None) -> Iterator[str]:
    """Yield one line per report of another GPU model than the job's."""
    from tachograph.annexes.share.capacity import device_of
    from tachograph.annexes.share.nsight.launches import encodable
    from tachograph.catalog.devices import match_device

    own = match_device(gpu_model)
    for profile in given:
        chips = {launch.chip.name: launch.chip for launch in profile.report.launches}
        devices = {device.name for device in map(device_of, chips.values()) if device is not None}
        if own is not None and devices - {own.name}:
            name = Path(profile.report.file).name
            yield encodable(
                f"{name}: its kernels ran on {', '.join(sorted(devices))}, the job on {own.name}"
            )


def _json(profile: AttachedProfile, new: frozenset[str]) -> dict[str, Any]:
    report = profile.report
    return {
        "report": Path(report.file).name,
        "digest": report.digest,
        "new": report.digest in new,
        "kernels": _kernels([profile]),
        "launches": profile.launches,
        "launches_kept": len(report.launches),
    }


def _sentence(given: Sequence[AttachedProfile], new: frozenset[str], job: str) -> str:
    """Return a sentence: which reports are newly attached, and which already were."""
    fresh = [profile for profile in given if profile.report.digest in new]
    before = [profile for profile in given if profile.report.digest not in new]
    parts = []
    if fresh:
        parts.append(f"Attached {_counts(fresh)} to job {job}")
    if before:
        parts.append(f"Already attached to job {job}: {_counts(before)}")
    return "; ".join(parts)


def _counts(profiles: Sequence[AttachedProfile]) -> str:
    from tachograph.annexes.share.kernels_sentences import launches_text

    launches = launches_text(sum(len(profile.report.launches) for profile in profiles))
    names = [printable(Path(profile.report.file).name) for profile in profiles]
    of = names[0] if len(names) == 1 else plural(len(names), "report")
    return f"{plural(_kernels(profiles), 'kernel')}, {launches} of {of}"


def _kernels(profiles: Sequence[AttachedProfile]) -> int:
    from tachograph.annexes.share.kernels import kernels_of

    return len(kernels_of(chain.from_iterable(profile.report.launches for profile in profiles)))
