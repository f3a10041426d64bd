"""What the job classes say of the job that is looked at: judged in a thread, at most once a minute.

Judging brings the compiler and tables along, a second or two of work: it begins only when the screen of a job has been
open for some seconds, and never in the thread of the screen.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style

from tachograph.arrays import Flags, Floats
from tachograph.config import Configuration
from tachograph.live.snapshot import Snapshot
from tachograph.live.view import View
from tachograph.tui import colours
from tachograph.tui.page import Row, heading, paragraph
from tachograph.units import printable

if TYPE_CHECKING:
    from tachograph.finding import Finding

WAIT_S = 5.0  # of the screen being open, before anything is judged
_WAITING = 4  # views that wait to be judged; others are passed over
_STYLES = {"problem": colours.ALARM, "hint": colours.NOTICE}


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a job now. findings: None where it is not judged yet; trouble: why it cannot be."""

    findings: tuple[Finding, ...] | None = None
    trouble: str = ""


NOT_YET = Told()


class JobJudge:
    """Judges one job of the views it is given, in a thread of its own."""

    def __init__(self, job_id: str, configuration: Configuration, *, wait_s: float = WAIT_S) -> None:
        self.told = NOT_YET
        self._job_id, self._configuration, self._wait_s = job_id, configuration, wait_s
        self._began: float | None = None
        self._ended = False
        self._views: queue.Queue[View | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None

    def take(self, view: View) -> None:
        """Take another view; returns at once. Called with the history at rest."""
        if self._began is None:
            self._began = view.snapshot.t
        if self._thread is None and view.snapshot.t - self._began >= self._wait_s:
            before = list(past(view, self._job_id))
            self._thread = threading.Thread(target=self._run, args=(before,), name="job", daemon=True)
            self._thread.start()
        if self._thread is not None and not self._views.full():
            self._views.put_nowait(view)

    @property
    def at_work(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, wait_s: float = 0.0) -> None:
        """Judge no more; what is being judged comes to an end by itself. wait_s: how long to wait for that."""
        self._ended = True
        if self._thread is not None:
            with suppress(queue.Full):  # then it finds that it ended behind one of those that wait
                self._views.put_nowait(None)
            self._thread.join(wait_s)

    def _run(self, before: Sequence[View]) -> None:
        try:
            from tachograph.live.job_classes import JudgedJobs

            judged = JudgedJobs(self._configuration)
            for view in before:
                if self._ended:
                    return
                judged.step(view, ())
            while (now := self._views.get()) is not None and not self._ended:
                found = judged.step(now, (self._job_id,))
                self.told = Told(tuple(found.get(self._job_id, ())))
        except Exception as error:  # noqa: BLE001  one job that is judged: the screen goes on without
            self.told = Told(trouble=f"{type(error).__name__}: {error}")


def past(view: View, job_id: str) -> Iterator[View]:
    """Yield views of the past of a job's GPUs, oldest first, as far as it is kept: copies that nothing changes."""
    from tachograph.live.judged_minutes import COUNTERS

    held = {gpu: one for gpu, one in view.snapshot.holders.items() if job_id in (*one.jobs, one.job_id)}
    rows = [row for row, gpu in enumerate(view.snapshot.gpus) if gpu in held]
    gpus = tuple(view.snapshot.gpus[row] for row in rows)
    devices = {gpu: view.snapshot.devices[gpu] for gpu in gpus if gpu in view.snapshot.devices}
    times = view.history.times()
    blocks = {name: view.history.block(name, rows) for name in COUNTERS if name in view.snapshot.values}
    since = min((one.since for one in held.values() if one.since is not None), default=None)
    for place in np.flatnonzero(times < view.snapshot.t).tolist():
        t = float(times[place])
        if since is not None and t < since:
            continue
        values = {name: block[place].astype(np.float64) for name, block in blocks.items()}
        told = _any_known(list(values.values()), len(gpus))
        yield replace(
            view, snapshot=Snapshot(t, gpus, np.where(told, t, np.nan), values, devices, held), told=told, events=()
        )


def _any_known(columns: Sequence[Floats], size: int) -> Flags:
    found: Flags = np.zeros(size, np.bool_)
    for column in columns:
        found |= np.isfinite(column)
    return found


def finding_rows(told: Told, *, width: int) -> list[Row]:
    """Return what holds of a job, the most urgent first, with what to do, and what cannot be told yet."""
    if told.trouble:
        return paragraph(f"the job classes cannot be told: {told.trouble}", width, colours.NOTICE)
    if told.findings is None:
        return [heading("Job classes", width, "judging ...")]
    rows: list[Row] = [heading("Job classes", width, "judged once a minute")]
    holding = [one for one in told.findings if one.verdict == "yes" and one.severity != "fact"]
    for one in holding:
        style: Style = _STYLES.get(one.severity, colours.PLAIN)
        rows.append([Segment(f"{one.severity}: ", style), Segment(printable(one.title), colours.BOLD)])
        rows += paragraph(printable(one.sentence), width, indent=2)
    if not holding:
        rows += paragraph(f"nothing stands out of {len(told.findings)} looked for", width, colours.DIM)
    undecided = [one.code.replace("_", " ") for one in told.findings if one.verdict == "insufficient"]
    if undecided:
        rows += paragraph(f"cannot be told yet: {', '.join(undecided)}", width, colours.DIM)
    return rows
