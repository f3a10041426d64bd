"""`tachograph act`: rounds of automatic actions. A step is a function and a line in STEPS."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from tachograph.annexes.act.advice_table import advise_users
from tachograph.annexes.act.alerts import send_alerts
from tachograph.annexes.act.comments import comment_ended
from tachograph.annexes.act.digests import send_digests, send_group_digests
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord, LedgerIndex
from tachograph.annexes.act.policies import apply_policies
from tachograph.catalog.config import Configuration
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import LakeError, TachographError
from tachograph.catalog.units import plural, text
from tachograph.collect.systemd import NO_NOTIFIER, SystemdNotifier
from tachograph.lake.delta import Lake

STATUS_FILE = "act-status.json"
NOTHING_ON = "no act.alert, act.comment, act.advice_folder, act.digest, [[policy]]"


class Step(Protocol):
    """Interface of a step."""

    def __call__(
        self, ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
    ) -> list[ActionRecord]:
        """Do what is due; return the ledger lines. Errors: TachographError, OSError."""
        ...


def _archive(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
) -> list[ActionRecord]:
    ledger.archive()
    return []


STEPS: tuple[tuple[str, Step], ...] = (
    ("alert", send_alerts),
    ("policy", apply_policies),
    ("comment", comment_ended),
    ("advice", advise_users),
    ("digest", send_digests),
    ("group digest", send_group_digests),
    ("ledger", _archive),
)


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
        for step in self.steps:
            counts = ", ".join(f"{count:,} {state}" for state, count in sorted(step.states.items()))
            if counts or step.problem:
                parts.append(f"{step.step}: {'; '.join(filter(None, [counts, step.problem]))}")
        return f"{'dry run: ' if self.dry_run else ''}{', '.join(parts) or 'nothing to do'}"


def is_switched_on(configuration: Configuration) -> bool:
    """Whether the configuration switches any action on."""
    options = configuration.act
    switches = (options.alert, options.comment, options.advice_folder, options.digest)
    return any(switches) or bool(configuration.policy)


def act_once(
    lake: Lake,
    configuration: Configuration,
    folder: Path,
    *,
    clock: Callable[[], datetime],
    stopping: threading.Event | None = None,
    index: LedgerIndex | None = None,
) -> RoundResult:
    """Run every step once; a failing step does not stop the others.

    folder: ledger and state. index: what earlier rounds read of the ledger.
    """
    now, results = clock(), []
    index = LedgerIndex() if index is None else index
    for name, step in STEPS:
        if stopping is not None and stopping.is_set():
            break
        try:
            # opened for a step alone: other commands act too, on the same ledger
            with ActionLedger(folder, clock=clock, index=index) as ledger:
                records = step(ledger, lake, configuration, now=now)
            results.append(StepResult(name, dict(Counter(record.state for record in records))))
        except (TachographError, OSError) as problem:
            results.append(StepResult(name, problem=str(problem)))
    result = RoundResult(now, configuration.act.dry_run, tuple(results))
    _write_status(folder, result)
    return result


def act(
    open_lake: Callable[[], Lake],
    configuration: Configuration,
    folder: Path,
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
        try:
            lake = lake or open_lake()
            result = act_once(
                lake, configuration, folder, clock=clock, stopping=stopping, index=index
            )
        except LakeError as problem:
            missing = StepResult("lake", problem=str(problem))
            result = RoundResult(clock(), configuration.act.dry_run, (missing,))
            _write_status(folder, result)
        if any(step.problem for step in result.steps):
            lake = None
        rounds += 1
        notifier.notify("WATCHDOG=1", f"STATUS={result.line}")
        if rounds == 1:
            # Later rounds without actions are not reported: the first says that this is normal.
            say(f"{result.line}; a round every {text(configuration.act.interval_s, 's')}")
        elif any(step.states or step.problem for step in result.steps):
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
