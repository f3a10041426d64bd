"""One job: all its GPUs side by side, over all its nodes, those that are far from the others marked."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.binding import BindingType

from tachograph.config import Configuration
from tachograph.live.snapshot import Gpu
from tachograph.live.view import View
from tachograph.tui import colours, keys
from tachograph.tui.job_facts import JobFacts, facts
from tachograph.tui.job_findings import NOT_YET, JobJudge, Told, finding_rows
from tachograph.tui.job_rows import (
    MAPPED,
    ORDERS,
    Table,
    gpu_row,
    mapped,
    ordered,
    programs_rows,
    table,
    table_head,
    title,
)
from tachograph.tui.page import Page, Row, Rows, heading, paragraph
from tachograph.tui.screens import Open
from tachograph.units import printable


class JobScreen(Page):
    """The GPUs of a job."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("job")]

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.order = ORDERS[0]
        self.cursor = 0
        self._lines = JobLines()
        self._judge: JobJudge | None = None
        self._shown_t = 0.0

    def show(self, view: View) -> None:
        """Take a new view, and let it be judged."""
        if self._judge is not None and view.snapshot.t < self._shown_t:  # a recording was moved back
            self._judge.stop()
            self._judge = None
        self._shown_t = view.snapshot.t
        if self._judge is None:
            found = getattr(self.app, "configuration", None)
            self._judge = JobJudge(self.job_id, found if isinstance(found, Configuration) else Configuration())
        self._judge.take(view)
        super().show(view)

    def on_unmount(self) -> None:
        """Judge no more."""
        if self._judge is not None:
            self._judge.stop()

    @property
    def chosen(self) -> Gpu | None:
        """The GPU under the cursor."""
        gpus = self._lines.gpus
        return gpus[min(self.cursor, len(gpus) - 1)] if gpus else None

    def rows(self, view: View, width: int, height: int) -> Rows:
        """Return what the job is and does, and a line for each of its GPUs."""
        job = facts(view, self.job_id)
        self._lines = JobLines()
        if job is None:
            return nothing(view, self.job_id, width=width)
        self.cursor = min(self.cursor, len(job.rows) - 1)
        told = self._judge.told if self._judge else NOT_YET
        self._lines = lines(view, job, self.order, self.cursor, told, width=width)
        return self._lines

    def action_move(self, by: int) -> None:
        """Move the cursor by so many lines."""
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
            self.post_message(Open("focus", self.chosen))

    def action_order(self) -> None:
        """Take the next order of lines."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self.cursor = 0
        self.again()


class JobLines:
    """Rows of a job: those above its GPUs, one for each GPU, made when it is drawn, those below."""

    def __init__(self) -> None:
        self.above: list[Row] = []
        self.below: list[Row] = []
        self.gpus: list[Gpu] = []
        self.cursor = 0
        self._drawn: tuple[View, JobFacts, Table, list[int]] | None = None

    @property
    def first(self) -> int:
        """Which row is the first of the GPUs."""
        return len(self.above)

    def fill(self, view: View, job: JobFacts, columns: Table, order: list[int]) -> None:
        """Take what the lines of GPUs are made of."""
        self._drawn = (view, job, columns, order)
        self.gpus = [view.snapshot.gpus[job.rows[place]] for place in order]

    def __len__(self) -> int:
        return len(self.above) + len(self.gpus) + len(self.below)

    def __getitem__(self, place: int) -> Row:
        line = place - len(self.above)
        if line < 0:
            return self.above[place]
        if line >= len(self.gpus) or self._drawn is None:
            return self.below[line - len(self.gpus)]
        view, job, columns, order = self._drawn
        row = gpu_row(view, job, order[line], columns)
        if line == self.cursor:
            return [Segment(part.text, (part.style or colours.PLAIN) + colours.CURSOR) for part in row]
        return row


def lines(view: View, job: JobFacts, order: str, cursor: int, told: Told = NOT_YET, *, width: int) -> JobLines:
    """Return the rows of a job."""
    found = JobLines()
    columns = table(view, job, width=width)
    found.above += [*title(view, job, width=width), *finding_rows(told, width=width)]
    running = programs_rows(view, job, width=width)
    if len(job.rows) > MAPPED:
        found.above += [*mapped(view, job, width=width), *running]
    else:
        found.below += running
    found.above += [heading("GPUs", width, order), table_head(columns)]
    found.cursor = cursor
    found.fill(view, job, columns, ordered(view, job, order))
    return found


def nothing(view: View, job_id: str, *, width: int) -> list[Row]:
    """Return what is said of a job that holds no GPU here, and which jobs do."""
    held = sorted({job for one in view.snapshot.holders.values() for job in one.jobs})
    rows = paragraph(
        f"job {printable(job_id)} holds no GPU that is seen here: it may have ended", width, colours.NOTICE
    )
    known = f"jobs that do: {printable(', '.join(held[:30]))}" if held else "no job is known to hold a GPU"
    return rows + paragraph(known, width, indent=2)
