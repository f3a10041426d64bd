"""All GPUs of one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import BindingType

from tachograph.annexes.watch.live.selection import jobs_in_view
from tachograph.annexes.watch.live.snapshot import GpuId
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours, keys
from tachograph.annexes.watch.tui.job_table import (
    JobFacts,
    gpu_row,
    job_facts,
    job_gpu_table,
    job_title,
    stragglers_first,
    table_head,
)
from tachograph.annexes.watch.tui.page import Page, PageRows, Row, heading, paragraph, under_cursor
from tachograph.annexes.watch.tui.screens import OpenScreen
from tachograph.catalog.units import printable


class JobScreen(Page):
    """The GPUs of a job."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("job")]

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.cursor = 0
        self._lines = JobLines()

    @property
    def chosen(self) -> GpuId | None:
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
        self._lines = job_lines(view, job, self.cursor, width=width)
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
        if self.chosen is not None:
            self.post_message(OpenScreen("focus", self.chosen))


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

    def __getitem__(self, place: int) -> Row:
        line = place - len(self.above)
        return self.above[place] if line < 0 else self._draw(line)


def job_lines(view: FleetView, job: JobFacts, cursor: int, *, width: int) -> JobLines:
    """Return the rows of a job."""
    columns, places = job_gpu_table(view, job, width=width), stragglers_first(view, job)
    above = [*job_title(view, job, width=width), heading("GPUs", width), table_head(columns)]

    def draw(line: int) -> Row:
        row = gpu_row(view, job, places[line], columns)
        return under_cursor(row) if line == cursor else row

    gpus = [view.snapshot.gpus[job.rows[place]] for place in places]
    return JobLines(above, gpus, draw=draw)


def nothing(view: FleetView, job_id: str, *, width: int) -> list[Row]:
    """Return the message for a job that holds no GPU here, with the jobs that do."""
    jobs = sorted(jobs_in_view(view.snapshot))
    rows = paragraph(
        f"job {printable(job_id)} has no GPU in view: it may have ended", width, colours.NOTICE
    )
    known = (
        f"jobs in view: {printable(', '.join(jobs[:30]))}"
        if jobs
        else "no job with an allocation is known"
    )
    return rows + paragraph(known, width, indent=2)
