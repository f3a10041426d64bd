"""Records a command, or a job as long as it lives: samples beside the work, tables when it is over."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.record.beside import Beside
from tachograph.record.foreground import Ended, NotStartedError, run_in_foreground, signals_held
from tachograph.record.identity import identify
from tachograph.record.keeping import FOREVER, Connect, Kept, Plan, keep, sleeping

if TYPE_CHECKING:
    from tachograph.live.source import LiveSource


@dataclass(frozen=True, slots=True)
class Recorded:
    """A command that was recorded: how it ended, what was kept where."""

    plan: Plan
    ended: Ended
    kept: Kept


def plan_of(
    command: Sequence[str],
    *,
    folder: str | Path | None = None,
    interval_s: float = 1.0,
    anonymous: bool = False,
    cluster: str = "",
    environment: Mapping[str, str] | None = None,
) -> Plan:
    """Return what is recorded where, from now on; no command: the job around us."""
    start = time.time()
    told = os.environ if environment is None else environment
    identity = identify(command, told, start=start, anonymous=anonymous, cluster=cluster)
    chosen = Path(folder) if folder else Path(f"tachograph-{identity.job_id}")
    return Plan(chosen.absolute(), identity, start, interval_s, anonymous)  # the command may change the directory


def record_command(command: Sequence[str], connect: Connect, plan: Plan) -> Recorded:
    """Run a command in the foreground, with a process beside it that records.

    For programs of one thread: it forks. Nothing of the recording keeps the command from running.
    Errors: NotStartedError where the command cannot be started.
    """
    with signals_held() as mask:
        try:
            beside = Beside.start(plan, connect, mask=mask)
        except OSError as problem:  # no process to be had
            return Recorded(plan, run_in_foreground(command, mask=mask), Kept(problem=str(problem)))
        try:
            ended = run_in_foreground(
                command, mask=mask, echo=beside.echo, started=lambda pid: beside.tell({"pid": pid})
            )
        except NotStartedError as problem:
            beside.finish(Ended(problem.exit_code, None, time.time()), plan)
            plan.spool.unlink(missing_ok=True)
            _leave_no_trace(plan)
            raise
        return Recorded(plan, ended, beside.finish(ended, plan))


def run(
    command: Sequence[str],
    source: LiveSource,
    *,
    folder: str | Path | None = None,
    interval_s: float = 1.0,
    anonymous: bool = False,
) -> Recorded:
    """Run a command and record what `source` tells meanwhile, in a thread of this process; its tables are in `folder`.

    The source is closed at the end. Errors: NotStartedError where the command cannot be started; LakeError, InputError
    where its tables cannot be written: the spool in `folder` holds what was recorded.
    """
    plan = plan_of(command, folder=folder, interval_s=interval_s, anonymous=anonymous)
    over, result = threading.Event(), _Result(Ended(None, None, 0.0), Kept())

    def work() -> None:
        result.kept = keep(plan, lambda: source, wait=over.wait, ended=lambda: result.ended)

    with signals_held() as mask:
        thread = threading.Thread(target=work, name="record", daemon=True)
        thread.start()
        try:
            result.ended = run_in_foreground(command, mask=mask)
        finally:
            over.set()
            thread.join()
    if result.kept.spool is not None:
        from tachograph.record.landing import land

        land(result.kept.spool, plan.folder)
    return Recorded(plan, result.ended, result.kept)


@dataclass(slots=True)
class _Result:
    """What thread and command come to."""

    ended: Ended
    kept: Kept


def record_until(connect: Connect, plan: Plan, *, over: Callable[[], bool], duration_s: float | None = None) -> Kept:
    """Sample in this process until `over` says so, the duration has passed, or SIGTERM, SIGINT or SIGHUP comes.

    Where nothing can be written, it ends at once: no command wants to go on. A second signal ends the process at once;
    what was recorded stays.
    """
    until = None if duration_s is None else time.monotonic() + duration_s
    asked = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def stop(number: int, frame: object) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    def finished() -> bool:
        return asked.is_set() or (until is not None and time.monotonic() >= until) or over()

    def wait(seconds: float) -> bool:
        return sleep(seconds) if seconds != FOREVER or plan.spool.exists() else True

    sleep = sleeping(finished)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        return keep(plan, connect, wait=wait, ended=lambda: Ended(None, None, time.time()))
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _leave_no_trace(plan: Plan) -> None:
    """Take away the folders that were made for nothing."""
    for folder in (plan.spool.parent, plan.folder):
        try:
            folder.rmdir()
        except OSError:  # not made, or not empty
            return
