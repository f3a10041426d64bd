"""The analysis: tables of what was measured in one report. Needs no GPU, and is done again at
will.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from day_tools import DayTools
from step_document import Cell, ResultTable, StepDocument, load, markdown, write_whole


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def report(tools: DayTools, document: StepDocument, steps: tuple[str, ...]) -> None:
    """Analyze what was measured; write `report.md`: all tables, and what was not measured."""
    for name in steps:
        measured = load(tools.out, name)
        if measured is not None:
            _analyze(tools.out, measured)
            document.device = document.device or measured.device
            document.driver = document.driver or measured.driver
    table = ResultTable("Steps", ["step", "state", "tables", "not measured"])
    parts: list[str] = []
    for name in steps:
        found = load(tools.out, name)
        row: list[Cell] = [name, "not begun", 0, None]
        if found is not None:
            row = [name, found.state, len(found.tables), len(found.not_measured)]
            parts.append(markdown(found))
        table.rows.append(row)
    document.tables, document.state = [table], "done"
    document.not_measured = [
        f"step {row[0]}: {row[1]}" for row in table.rows if row[1] not in ("done", "skipped")
    ]
    text = "\n".join(["# A day on a GPU", "", markdown(document), *parts])
    write_whole(tools.out / "report.md", text)


def _analyze(out: Path, document: StepDocument) -> None:
    import step_overhead
    import step_pairs
    import step_pm

    match document.step:
        case "pm":
            step_pm.analyze(out, document)
        case "pairs":
            step_pairs.analyze(out, document)
        case "overhead":
            step_overhead.analyze(document)
    document.save(out)


def bundle(out: Path, target: Path) -> None:
    """Write all results, without scratch files, into one archive: `target`, whole or not at all."""
    new = target.with_name(target.name + ".new")
    with tarfile.open(new, "w:gz") as archive:
        for file in sorted(out.rglob("*")):
            parts = file.relative_to(out).parts
            if file.is_file() and parts[0] not in ("scratch", "mps") and "scratch" not in parts:
                archive.add(file, str(Path("gpu-day", *parts)), filter=_anonymous)
    new.replace(target)


def unbundle(archive: Path, out: Path) -> None:
    """Take results of an earlier machine as they were."""
    with tarfile.open(archive) as packed:
        # Before Python 3.11.4.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda one, path: one)
        for member in packed:
            member.name = str(Path(*Path(member.name).parts[1:]))
            if member.isfile() and not (out / member.name).exists():
                packed.extract(member, out)
