"""The result of a step: one JSON document, and the same as Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Cell = str | float | int | bool | None


@dataclass(slots=True)
class ResultTable:
    """Rows under headings. None: not measured."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)


@dataclass(slots=True)
class StepDocument:
    """What a step has measured so far.

    state: `begun` until it is `done` or `skipped`. not_measured: what is missing and why, a
    sentence each. result: raw numbers, from which the tables follow; a step that goes on finds in
    it what was done.
    """

    step: str
    title: str
    state: str = "begun"
    made: str | None = None
    device: str | None = None
    driver: str | None = None
    command: str | None = None
    rehearsal: bool = False
    tables: list[ResultTable] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in ("done", "skipped")

    def save(self, folder: Path) -> None:
        """Write NAME.json and NAME.md, each whole or not at all."""
        self.made = datetime.now(UTC).isoformat(timespec="seconds")
        write_whole(folder / f"{self.step}.md", markdown(self))
        write_whole(folder / f"{self.step}.json", json.dumps(asdict(self), indent=1) + "\n")


def write_whole(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = file.with_name(file.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def load(folder: Path, step: str) -> StepDocument | None:
    """Return the document of a step; None where there is none yet."""
    file = folder / f"{step}.json"
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return StepDocument(
        **content | {"tables": [ResultTable(**table) for table in content["tables"]]}
    )


def markdown(document: StepDocument) -> str:
    """Return a step as Markdown: device, driver, command, tables, and what was not measured.

    >>> table = ResultTable("Times", ["name", "seconds"], [["copy", 0.25], ["fft", None]])
    >>> print(markdown(StepDocument("x", "Title", "done", tables=[table])))
    ## Title
    <BLANKLINE>
    State: done. Device: unknown. Driver: unknown.
    <BLANKLINE>
    ### Times
    <BLANKLINE>
    | name | seconds |
    | --- | --- |
    | copy | 0.25 |
    | fft | – |
    <BLANKLINE>
    """
    lines = [f"## {document.title}", ""]
    device, driver = document.device or "unknown", document.driver or "unknown"
    lines += [f"State: {document.state}. Device: {device}. Driver: {driver}.", ""]
    if document.rehearsal:
        lines += ["**A rehearsal with stand-ins: no number below was measured on a GPU.**", ""]
    if document.command:
        lines += [f"Command: `{document.command}`", ""]
    for table in document.tables:
        lines += [f"### {table.title}", "", _row(table.columns), _row(["---"] * len(table.columns))]
        lines += [*map(_row, table.rows), ""]
    if document.not_measured:
        lines += ["Not measured:", "", *(f"- {sentence}" for sentence in document.not_measured), ""]
    return "\n".join(lines)


def _row(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(map(cell_text, cells)) + " |"


def cell_text(value: Cell) -> str:
    """Return a cell as text.

    >>> cell_text(None), cell_text(0.123456), cell_text(True), cell_text("a|b"), cell_text(1234567)
    ('–', '0.1235', 'yes', 'a\\\\|b', '1234567')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|")
