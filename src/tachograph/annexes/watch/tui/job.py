"""All GPUs of one job: the screen, and its findings, evaluated in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType

from tachograph.annexes.watch.live.selection import jobs_in_view
from tachograph.annexes.watch.live.snapshot import GpuId, Snapshot
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours, keys
from tachograph.annexes.watch.tui.job_table import (
    ORDERS,
    JobFacts,
    gpu_row,
    job_facts,
    job_gpu_table,
    job_title,
    ordered,
    rows_of_job,
    table_head,
)
from tachograph.annexes.watch.tui.page import Page, PageRows, Row, heading, paragraph, under_cursor
from tachograph.annexes.watch.tui.screens import OpenScreen
from tachograph.catalog.config import Configuration
from tachograph.catalog.units import printable

if TYPE_CHECKING:
    from tachograph.judge.finding import Finding


WAIT_S = 5.0  # from opening the screen to the first evaluation
_WAITING = 4  # views queued for evaluation; others are skipped
_STYLES = {"problem": colours.ALARM, "hint": colours.NOTICE}


@dataclass(frozen=True, slots=True)
class JobFindings:
    """Current results of a job. findings: None before the first; trouble: error message."""

    findings: tuple[Finding, ...] | None = None
    trouble: str = ""


NOT_YET = JobFindings()


class LiveJobJudge:
    """Evaluates one job from views, in a thread of its own."""

    def __init__(
        self, job_id: str, configuration: Configuration, *, wait_s: float = WAIT_S
    ) -> None:
        self.reported = NOT_YET
        self._job_id, self._configuration, self._wait_s = job_id, configuration, wait_s
        self._began: float | None = None
        self._ended = False
        self._views: queue.Queue[FleetView | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None

    def take(self, view: FleetView) -> None:
        """Queue another view; returns at once. Called while the history does not change."""
        if self._began is None:
            self._began = view.snapshot.t
        if self._thread is None and view.snapshot.t - self._began >= self._wait_s:
            before = list(past(view, self._job_id))
            self._thread = threading.Thread(
                target=self._run, args=(before,), name="job", daemon=True
            )
            self._thread.start()
        if self._thread is not None and not self._views.full():
            self._views.put_nowait(view)

    @property
    def at_work(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, wait_s: float = 0.0) -> None:
        """Stop the evaluation. wait_s: limit to wait for a running one."""
        self._ended = True
        if self._thread is not None:
            with suppress(queue.Full):  # then the thread ends after a queued view
                self._views.put_nowait(None)
            self._thread.join(wait_s)

    def _run(self, before: Sequence[FleetView]) -> None:
        try:
            from tachograph.annexes.watch.live.job_classes import LiveJobClasses

            judged = LiveJobClasses(self._configuration)
            for view in before:
                if self._ended:
                    return
                judged.step(view, ())
            while (now := self._views.get()) is not None and not self._ended:
                findings = judged.step(now, (self._job_id,))
                self.reported = JobFindings(tuple(findings.get(self._job_id, ())))
        except Exception as error:  # noqa: BLE001 the boundary: the screen goes on
            self.reported = JobFindings(trouble=f"{type(error).__name__}: {error}")


def past(view: FleetView, job_id: str) -> Iterator[FleetView]:
    """Yield views of the past of a job's GPUs, oldest first, as far as stored: constant copies."""
    from tachograph.annexes.watch.live.job_classes import JOB_CLASS_COUNTERS

    rows = rows_of_job(view.snapshot, job_id)
    gpus = tuple(view.snapshot.gpus[row] for row in rows)
    allocations = {gpu: view.snapshot.allocations[gpu] for gpu in gpus}
    devices = {gpu: view.snapshot.devices[gpu] for gpu in gpus if gpu in view.snapshot.devices}
    times = view.history.times()
    blocks = {
        name: view.history.block(name, rows)
        for name in JOB_CLASS_COUNTERS
        if name in view.snapshot.values
    }
    since = min(
        (allocation.since for allocation in allocations.values() if allocation.since is not None),
        default=None,
    )
    for index in np.flatnonzero(times < view.snapshot.t).tolist():
        t = float(times[index])
        if since is not None and t < since:
            continue
        values = {name: block[index].astype(np.float64) for name, block in blocks.items()}
        snapshot = Snapshot(t, gpus, np.full(len(gpus), t), values, devices, allocations)
        current = snapshot.has_values()
        snapshot = replace(snapshot, measured=np.where(current, t, np.nan))
        yield replace(view, snapshot=snapshot, current=current)


def finding_rows(results: JobFindings, *, width: int) -> list[Row]:
    """Return a job's findings with fixes, most urgent first, then undetermined ones."""
    if results.trouble:
        return paragraph(f"job classes failed: {results.trouble}", width, colours.NOTICE)
    if results.findings is None:
        return [heading("Job classes", width, "judging ...")]
    rows: list[Row] = [heading("Job classes", width, "judged once a minute")]
    holding = [finding for finding in results.findings if finding.reported]
    for triggered in holding:
        style: Style = _STYLES.get(triggered.severity, colours.PLAIN)
        rows.append(
            [
                Segment(f"{triggered.severity}: ", style),
                Segment(printable(triggered.title), colours.BOLD),
            ]
        )
        rows += paragraph(printable(triggered.sentence), width, indent=2)
    if not holding:
        rows += paragraph(f"none of {len(results.findings)} triggered", width, colours.DIM)
    undecided = [
        finding.code.replace("_", " ")
        for finding in results.findings
        if finding.verdict == "unknown"
    ]
    if undecided:
        rows += paragraph(f"undetermined: {', '.join(undecided)}", width, colours.DIM)
    return rows


class JobScreen(Page):
    """The GPUs of a job."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("job")]

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.order = ORDERS[0]
        self.cursor = 0
        self._lines = JobLines()
        self._judge: LiveJobJudge | None = None

    def show(self, view: FleetView) -> None:
        """Show a new view, and queue it for evaluation."""
        if self._judge is None:
            configuration = getattr(self.app, "configuration", None)
            self._judge = LiveJobJudge(
                self.job_id,
                configuration if isinstance(configuration, Configuration) else Configuration(),
            )
        self._judge.take(view)
        super().show(view)

    def on_unmount(self) -> None:
        """Stop the evaluation."""
        if self._judge is not None:
            self._judge.stop()

    @property
    def selected_gpu(self) -> GpuId | None:
        """The GPU under the cursor."""
        gpus = self._lines.gpus
        return gpus[min(self.cursor, len(gpus) - 1)] if gpus else None

    def rows(self, view: FleetView, width: int, height: int) -> PageRows:
        """Return the facts on the job, and a line for each of its GPUs."""
        job = job_facts(view, self.job_id)
        self._lines = JobLines()
        if job is None:
            return nothing(view, self.job_id, width=width)
        self.cursor = min(self.cursor, len(job.rows) - 1)
        results = self._judge.reported if self._judge else NOT_YET
        self._lines = job_lines(view, job, self.order, self.cursor, results, width=width)
        return self._lines

    def action_move(self, by: int) -> None:
        """Move the cursor by this many lines."""
        count = len(self._lines.gpus)
        if not count:
            return
        self.cursor = min(count - 1, max(0, self.cursor + by))
        self.again()
        line = self._lines.first + self.cursor
        top = int(self.scroll_offset.y)
        if self.cursor == 0:
            self.scroll_to(y=0, animate=False)
        elif line < top:
            self.scroll_to(y=line, animate=False)
        elif line >= top + self.size.height:
            self.scroll_to(y=line - self.size.height + 1, animate=False)

    def action_choose(self) -> None:
        """Focus on the GPU under the cursor."""
        if self.selected_gpu is not None:
            self.post_message(OpenScreen("focus", self.selected_gpu))

    def action_order(self) -> None:
        """Change to the next order of lines."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self.cursor = 0
        self.again()


class JobLines:
    """Rows of a job: above its GPUs, then one per GPU (made by `draw` when visible)."""

    def __init__(
        self,
        above: Sequence[Row] = (),
        gpus: Sequence[GpuId] = (),
        *,
        draw: Callable[[int], Row] = lambda line: [],
    ) -> None:
        self.above, self.gpus = above, gpus
        self._draw = draw

    @property
    def first(self) -> int:
        """Index of the first row of the GPUs."""
        return len(self.above)

    def __len__(self) -> int:
        return len(self.above) + len(self.gpus)

    def __getitem__(self, index: int) -> Row:
        line = index - len(self.above)
        return self.above[index] if line < 0 else self._draw(line)


def job_lines(
    view: FleetView,
    job: JobFacts,
    order: str,
    cursor: int,
    results: JobFindings = NOT_YET,
    *,
    width: int,
) -> JobLines:
    """Return the rows of a job."""
    columns, order_of_gpus = job_gpu_table(view, job, width=width), ordered(view, job, order)
    above = [*job_title(view, job, width=width), *finding_rows(results, width=width)]
    above += [heading("GPUs", width, order), table_head(columns)]

    def draw(line: int) -> Row:
        row = gpu_row(view, job, order_of_gpus[line], columns)
        return under_cursor(row) if line == cursor else row

    gpus = [view.snapshot.gpus[job.rows[index]] for index in order_of_gpus]
    return JobLines(above, gpus, draw=draw)


def nothing(view: FleetView, job_id: str, *, width: int) -> list[Row]:
    """Return the message for a job that holds no GPU here, with the jobs that do."""
    jobs = sorted(jobs_in_view(view.snapshot))
    rows = paragraph(
        f"job {printable(job_id)} has no GPU in view: it may have ended", width, colours.NOTICE
    )
    jobs_text = (
        f"jobs in view: {printable(', '.join(jobs[:30]))}"
        if jobs
        else "no job with an allocation is known"
    )
    return rows + paragraph(jobs_text, width, indent=2)
