"""`tachograph act`: rounds of automatic actions. A step is a function and a line in STEPS."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from tachograph.annexes.act.advice_table import WrittenAdvice
from tachograph.annexes.act.alerts import send_alerts
from tachograph.annexes.act.comments import (
    COMMENT_DELAY,
    AdminComments,
    ReportOf,
    comment_jobs,
    ended_jobs,
)
from tachograph.annexes.act.digests import send_digests
from tachograph.annexes.act.group_digests import Managers, VisibleTo, send_group_digests
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord, ActionState, LedgerIndex
from tachograph.annexes.act.policies import apply_policies
from tachograph.catalog.config import Configuration
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import LakeError, TachographError
from tachograph.catalog.units import plural
from tachograph.collect.systemd import NO_NOTIFIER, SystemdNotifier
from tachograph.lake.delta import Lake
from tachograph.report.job import JobReport

STATUS_FILE = "act-status.json"


@dataclass(frozen=True, slots=True)
class ActApi:
    """Functions from higher layers. report_of: a job's report; write_advice: all users' files.

    managers: who coordinates which accounts; visible: which jobs a manager may see.
    """

    report_of: Callable[[Lake, str], JobReport]
    write_advice: Callable[[Lake], WrittenAdvice]
    managers: Managers
    visible: VisibleTo


@dataclass(frozen=True, slots=True)
class ActRound:
    """Input of a round. folder: ledger and state; api: functions of higher layers."""

    lake: Lake
    configuration: Configuration
    folder: Path
    now: datetime
    api: ActApi


Step = Callable[[ActionLedger, ActRound], list[ActionRecord]]


def _digests(ledger: ActionLedger, this: ActRound) -> list[ActionRecord]:
    return send_digests(ledger, this.lake, this.configuration, folder=this.folder, now=this.now)


def _alerts(ledger: ActionLedger, this: ActRound) -> list[ActionRecord]:
    return send_alerts(ledger, this.lake, this.configuration, folder=this.folder, now=this.now)


def _policies(ledger: ActionLedger, this: ActRound) -> list[ActionRecord]:
    return apply_policies(ledger, this.lake, this.configuration, now=this.now)


def _comments(ledger: ActionLedger, this: ActRound) -> list[ActionRecord]:
    options = this.configuration.act
    if not options.comment:
        return []
    jobs = ended_jobs(this.lake, now=this.now, delay=COMMENT_DELAY)
    report_of: ReportOf = partial(this.api.report_of, this.lake)
    comments, url = AdminComments(options.slurm_before), this.configuration.serve.url
    return comment_jobs(
        ledger, jobs, report_of, comments, url=url, dry_run=options.dry_run, most=MOST_COMMENTS
    )


def _advice(ledger: ActionLedger, this: ActRound) -> list[ActionRecord]:
    """Write the advice files for sbatch; logged once a day, and after each failure."""
    options = this.configuration.act
    if not options.advice_folder:
        return []
    day = this.now.date().isoformat()
    if options.dry_run:
        return [
            ledger.once(f"advice:{day}", "advice", str, target=options.advice_folder, dry_run=True)
        ]
    written = this.api.write_advice(this.lake)
    last = ledger.last(f"advice:{day}")
    if (
        last is not None
        and last.state == "done"
        and not (written.written or written.removed or written.refused)
    ):
        return []
    result = (
        f"{written.written:,} written, {written.removed:,} removed, "
        f"{len(written.refused):,} refused"
    )
    if written.refused:
        result += ": only root, or a process with CAP_CHOWN, can write files for other users"
    state: ActionState = "failed" if written.refused else "done"
    return [ledger.note(f"advice:{day}", "advice", state, options.advice_folder, result=result)]


def _group_digests(ledger: ActionLedger, this: ActRound) -> list[ActionRecord]:
    return send_group_digests(
        ledger,
        this.lake,
        this.configuration,
        folder=this.folder,
        now=this.now,
        managers=this.api.managers,
        visible=this.api.visible,
    )


def _archive(ledger: ActionLedger, this: ActRound) -> list[ActionRecord]:
    ledger.archive()
    return []


STEPS: tuple[tuple[str, Step], ...] = (
    ("alert", _alerts),
    ("policy", _policies),
    ("comment", _comments),
    ("advice", _advice),
    ("digest", _digests),
    ("group digest", _group_digests),
    ("ledger", _archive),
)
MOST_COMMENTS = 200  # a round: others follow in the next one


class StepResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a step in a round: ledger lines by state; problem: why it did not finish."""

    step: str
    states: dict[str, int] = {}
    problem: str = ""


class RoundResult(msgspec.Struct, frozen=True):
    """A round, as in the status file."""

    t: datetime
    dry_run: bool
    steps: tuple[StepResult, ...]

    @property
    def line(self) -> str:
        """The round on one line."""
        parts = []
        for one in self.steps:
            counts = ", ".join(f"{count:,} {state}" for state, count in sorted(one.states.items()))
            if counts or one.problem:
                parts.append(f"{one.step}: {'; '.join(filter(None, [counts, one.problem]))}")
        return f"{'dry run: ' if self.dry_run else ''}{', '.join(parts) or 'nothing to do'}"


def act_once(
    this: ActRound,
    clock: Callable[[], datetime],
    stopping: threading.Event | None = None,
    index: LedgerIndex | None = None,
) -> RoundResult:
    """Run every step once; a failing step does not stop the others.

    index: what earlier rounds read of the ledger.
    """
    results, index = [], LedgerIndex() if index is None else index
    for name, step in STEPS:
        if stopping is not None and stopping.is_set():
            break
        try:
            # opened for a step alone: other commands act too, on the same ledger
            with ActionLedger(this.folder, clock=clock, index=index) as ledger:
                made = step(ledger, this)
            results.append(StepResult(name, dict(Counter(record.state for record in made))))
        except (TachographError, OSError) as problem:
            results.append(StepResult(name, problem=str(problem)))
    result = RoundResult(this.now, this.configuration.act.dry_run, tuple(results))
    _write_status(this.folder, result)
    return result


def act(
    open_lake: Callable[[], Lake],
    configuration: Configuration,
    folder: Path,
    api: ActApi,
    *,
    clock: Callable[[], datetime],
    stopping: threading.Event,
    say: Callable[[str], None],
    notifier: SystemdNotifier = NO_NOTIFIER,
) -> int:
    """Act in rounds until `stopping` is set; return the number of rounds.

    The lake is reopened after a round with a problem; if that fails, the next round tries again.
    """
    rounds, lake, index = 0, None, LedgerIndex()
    notifier.notify("READY=1")
    while not stopping.is_set():
        now = clock()
        try:
            lake = lake or open_lake()
            result = act_once(
                ActRound(lake, configuration, folder, now, api), clock, stopping, index
            )
        except LakeError as problem:
            result = RoundResult(
                now, configuration.act.dry_run, (StepResult("lake", problem=str(problem)),)
            )
            _write_status(folder, result)
        if any(step.problem for step in result.steps):
            lake = None
        rounds += 1
        notifier.notify("WATCHDOG=1", f"STATUS={result.line}")
        if rounds == 1 or any(step.states or step.problem for step in result.steps):
            say(result.line)
        _wait(stopping, configuration.act.interval_s, notifier)
    notifier.notify("STOPPING=1")
    say(f"stopped after {plural(rounds, 'round')}")
    return rounds


def _wait(stopping: threading.Event, seconds: float, notifier: SystemdNotifier) -> None:
    """Wait for the next round; the service manager sees that the process is alive."""
    while seconds > 0:
        part = min(seconds, notifier.watchdog_s or seconds)
        if stopping.wait(part):
            return
        seconds -= part
        notifier.notify("WATCHDOG=1")


def _write_status(folder: Path, result: RoundResult) -> None:
    """Write the status file, or remove it if that fails."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(folder / STATUS_FILE, msgspec.json.encode(result) + b"\n")
