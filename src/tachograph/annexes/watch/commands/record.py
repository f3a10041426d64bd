"""`tachograph record -- COMMAND`: run a command, record its GPUs, report the job.

stdout, stdin and the exit code are the command's; the report follows on stderr. No failure of the
recording keeps the command from running or changes its exit code.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tachograph.catalog.errors import LakeError, NotFoundError, TachographError, UsageError
from tachograph.catalog.units import YEAR_S, plural, real_number, text, whole_number
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json, configuration_of

if TYPE_CHECKING:
    from pathlib import Path

    from tachograph.annexes.watch.live.snapshot import LiveSource
    from tachograph.annexes.watch.record.foreground import CommandEnd
    from tachograph.annexes.watch.record.spooling import RecordPlan, SpoolResult
    from tachograph.catalog.config import Configuration
    from tachograph.report.job import JobReport

SHORTEST_S = 0.1  # between two samples: counters update no faster
_SHOWN_PROBLEMS = 3  # of the source; the note beside the recording has them all
_SHORT_S = 5.0  # a source may take so long to start


def add_arguments(parser: Parser) -> None:
    """Declare what to record, where, how often, and the command."""
    parser.usage = (
        "tachograph record [options] -- COMMAND ...\n       tachograph record "
        "--until-job-ends [options]"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="folder of the recording (default: tachograph-JOB)"
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=real_number(SHORTEST_S, 3600),
        default=1.0,
        help="seconds between samples, from 0.1",
    )
    parser.add_argument(
        "--source",
        metavar="NAME",
        help="dcgm-exporter, dmon, prometheus, nvml, pm-sampling (default: the best)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        action="append",
        default=[],
        help="address of an exporter or of Prometheus; repeatable",
    )
    parser.add_argument(
        "--gpus", metavar="WHICH", help="indices, UUIDs, PCI addresses (default: those of the job)"
    )
    parser.add_argument("--simulate", metavar="N", type=whole_number(1), help="N simulated GPUs")
    parser.add_argument(
        "--anonymous",
        action="store_true",
        help="leave user, host, command and job out of the recording",
    )
    parser.add_argument(
        "--until-job-ends",
        action="store_true",
        help="instead of a command: record the surrounding job until SIGTERM",
    )
    parser.add_argument(
        "--duration",
        metavar="S",
        type=real_number(0.001, YEAR_S),
        help="instead of a command: record for S seconds",
    )
    add_json(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, after --"
    )


def run(arguments: Arguments) -> int:
    """Record; return the exit code of the command, or end as it did."""

    command = _command(arguments)
    _check(arguments, command)
    configuration = configuration_of(arguments)
    return (
        _of_command(command, configuration, arguments)
        if command
        else _of_job(configuration, arguments)
    )


def _command(arguments: Arguments) -> list[str]:
    command: list[str] = arguments.command
    return command[1:] if command[:1] == ["--"] else command


def _check(arguments: Arguments, command: list[str]) -> None:
    alone = arguments.until_job_ends or arguments.duration is not None
    if command and alone:
        raise UsageError("--until-job-ends and --duration exclude a command", do="leave one out")
    if not command and not alone:
        raise UsageError("no command", do="write it after --: tachograph record -- python train.py")
    if arguments.lake:
        raise UsageError(
            "--lake does not apply: a recording is a lake of its own",
            do="name its folder with -o; ingest it later",
        )
    if arguments.until_job_ends and not os.environ.get("SLURM_JOB_ID"):
        raise UsageError("--until-job-ends outside of a job", do="use --duration")


def _connect(configuration: Configuration, arguments: Arguments) -> Callable[[], LiveSource]:
    def connect() -> LiveSource:
        from tachograph.annexes.watch.live.allocations import SlurmAllocations
        from tachograph.annexes.watch.live.discovery import choose_source, request_of

        request = request_of(arguments, interval_s=arguments.interval)
        # which job holds the GPUs is known without Slurm
        return choose_source(configuration, request, poll=SlurmAllocations)

    return connect


def _plan(command: list[str], configuration: Configuration, arguments: Arguments) -> RecordPlan:
    from tachograph.annexes.watch.record.recorder import plan_recording

    return plan_recording(
        command,
        folder=arguments.output,
        interval_s=arguments.interval,
        anonymous=arguments.anonymous,
        cluster=configuration.site.cluster,
    )


def _of_command(command: list[str], configuration: Configuration, arguments: Arguments) -> int:
    from tachograph.annexes.watch.record.foreground import end_alike
    from tachograph.annexes.watch.record.recorder import record_command

    plan = _plan(command, configuration, arguments)
    recorded = record_command(command, _connect(configuration, arguments), plan)
    try:
        _finish(recorded.result, recorded.ended, plan, configuration, arguments)
    except Exception as problem:  # noqa: BLE001 the boundary: the exit code is the command's
        _remark_unfinished(problem, recorded.result.spool, plan)
    except KeyboardInterrupt:
        _remark_unfinished(None, recorded.result.spool, plan)
    if recorded.ended.signal is not None:
        output.flush()
        end_alike(recorded.ended.signal)
    return recorded.ended.status


def _of_job(configuration: Configuration, arguments: Arguments) -> int:
    """Sample in this process until the end of job or time. Errors: those of the source."""
    from tachograph.annexes.watch.record.recorder import record_until

    plan = _plan([], configuration, arguments)
    source = _connect(configuration, arguments)()
    result = record_until(lambda: source, plan, duration_s=arguments.duration)
    if result.spool is None and result.problem:
        raise LakeError(f"nothing was recorded: {result.problem}")
    if not result.rows:
        raise NotFoundError(
            f"nothing was recorded: {result.problem or 'no GPU reported values'}",
            where=str(plan.folder),
        )
    _finish(result, None, plan, configuration, arguments)
    return 0


def _remark_unfinished(problem: Exception | None, spool: Path | None, plan: RecordPlan) -> None:
    what = "interrupted" if problem is None else str(problem) or type(problem).__name__
    if problem is not None and not isinstance(problem, TachographError | OSError):
        what = f"{type(problem).__name__}: {what}"
    stays = spool is not None and spool.exists()
    do = (
        (
            f"; recorded samples are kept: tachograph ingest recording {plan.folder} --lake "
            f"{plan.folder}"
        )
        if stays
        else ""
    )
    narrate.remark(f"the recording is not finished: {what}{do}")


def _finish(
    result: SpoolResult,
    ended: CommandEnd | None,
    plan: RecordPlan,
    configuration: Configuration,
    arguments: Arguments,
) -> None:
    """Commit the spool, report the job and lost samples. ended: None without a command.

    Errors: LakeError, InputError where that cannot be done: the spool stays.
    """
    from tachograph.annexes.watch.record.spooling import is_reporting_task

    if result.spool is None or not _has_samples(result.spool, ended, plan):
        narrate.remark(_nothing(result, ended, plan, _command(arguments)))
        if result.spool is not None:
            plan.discard()
        return
    reports = not arguments.quiet and is_reporting_task(os.environ)
    if reports and not arguments.json:
        Narrator.of(arguments).say(_reading(result, ended, plan, _command(arguments)))
    from tachograph.annexes.watch.record.commit import commit_spool, source_problems

    commit_spool(result.spool, plan.folder, cluster=configuration.site.cluster)
    if reports:
        _report(plan, configuration, arguments)
    for problem in source_problems(result.spool)[:_SHOWN_PROBLEMS]:
        narrate.remark(f"while it was recorded: {problem}")
    if result.problem:
        narrate.remark(f"the recording is incomplete: {result.problem}")
    if result.lost:
        narrate.remark(f"{result.lost:,} samples lost: {plan.folder} could not be written")


def _has_samples(spool: Path, ended: CommandEnd | None, plan: RecordPlan) -> bool:
    """Return whether a spool has samples; for a short command, within its run time."""
    from tachograph.catalog.spool import SpoolRows, read_spool

    parts = (record.t / 1e6 for record in read_spool(spool) if isinstance(record, SpoolRows))
    if ended is None or not _short(ended, plan):  # clocks of sources may differ
        return any(len(t) for t in parts)
    return any(bool(((t >= plan.start) & (t <= ended.at)).any()) for t in parts)


def _short(ended: CommandEnd, plan: RecordPlan) -> bool:
    return ended.at - plan.start <= _SHORT_S


def _nothing(
    result: SpoolResult, ended: CommandEnd | None, plan: RecordPlan, command: list[str]
) -> str:
    """Return the error for an empty recording, with the reason."""
    if result.problem or ended is None or not _short(ended, plan):
        return f"nothing was recorded: {result.problem or 'no GPU reported values'}"
    return f"{_end(ended, plan, command)}; nothing was recorded: it ended before the first sample"


def _reading(
    result: SpoolResult, ended: CommandEnd | None, plan: RecordPlan, command: list[str]
) -> str:
    """The line between the end of the command and its report."""
    samples = (
        f"reading {plural(result.rows, 'sample')} ..." if result.rows else "reading the samples ..."
    )
    return samples if ended is None else f"{_end(ended, plan, command)}; {samples}"


def _end(ended: CommandEnd, plan: RecordPlan, command: list[str]) -> str:
    how = f"signal {ended.signal}" if ended.code is None else f"exit code {ended.code}"
    return f"{command[0]}: {how} after {text(max(0.0, ended.at - plan.start), 's')}"


def _report(plan: RecordPlan, configuration: Configuration, arguments: Arguments) -> None:
    from tachograph.report.job import job_json
    from tachograph.report.job_text import job_lines
    from tachograph.report.lines import to_text

    report = replace(_analyzed(plan, configuration), lake=os.path.relpath(plan.folder))
    narrator = Narrator.of(arguments)
    if arguments.json:
        written = output.json_bytes(job_json(report)).decode()
    else:
        written = to_text(job_lines(report, width=min(output.width(), 100)))
    for line in written.rstrip("\n").split("\n"):
        narrator.say(line)
    if not arguments.json:
        narrator.say("")
        narrator.say(f"recorded in {os.path.relpath(plan.folder)}")


def _analyzed(plan: RecordPlan, configuration: Configuration) -> JobReport:
    """Analyze the recording; return the report of its job."""
    from datetime import UTC, datetime

    from tachograph.api.job_report import read_job
    from tachograph.judge.job_judge import JobJudge
    from tachograph.lake.delta import Lake
    from tachograph.pipeline.run import analyze

    lake = Lake.open(str(plan.folder))
    analyze(lake, configuration, judge=JobJudge, now=datetime.now(UTC), threads=1)
    return read_job(lake, plan.identity.job_id, now=datetime.now(UTC), configuration=configuration)
