"""Repair of a lake in a folder: move torn log files aside, and list lost data files.

An entry that is empty or cut off holds no rows that were reported as committed: an entry is on the
disk before that. So those at the end of a log are renamed, as are checkpoints that cannot be read
and whose entries are all there. What lies behind a damaged entry may have been reported, and is
never dropped. Killed at any moment, a second run ends alike. Data files that the log names and that
cannot be read are given up only where the user says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path

from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import BREAK, LakeError
from tachograph.catalog.tables import ALL_TABLES, LABELS, PROFILES, TABLES
from tachograph.lake.commits import writers_lock
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import accept_again
from tachograph.lake.log_files import HINT, LogFiles, added_files, damage
from tachograph.lake.problems import lake_errors
from tachograph.lake.store import is_remote

ASIDE = ".torn"  # suffix of files moved aside


@dataclass(frozen=True, slots=True)
class RepairedFile:
    """A log file that was moved aside. rows: those it would have added, as far as readable."""

    table: str
    file: str
    what: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class LostFile:
    """A data file in the log that cannot be read. rows, day, first, last: as logged."""

    table: str
    file: str
    what: str
    rows: int
    day: date | None
    first: datetime | None
    last: datetime | None

    @property
    def remedy(self) -> str:
        """How to restore the rows once the file is dropped."""
        if self.table in TABLES:
            return "ingest the recordings or the accounting that held them again"
        if self.table == LABELS.name:
            return "confirm or reject the findings again on their pages"
        if self.table == PROFILES.name:
            return "attach the reports again: tachograph share kernels REPORT --job ID"
        return "tachograph analyze --full"


@dataclass(frozen=True, slots=True)
class _TableRepair:
    """Planned repairs of a table, in order; `refused`: why there are none."""

    files: LogFiles
    aside: Sequence[tuple[Path, RepairedFile]]
    refused: str = ""


def repair(lake: Lake) -> list[RepairedFile]:
    """Move torn log files aside and return them; changes nothing if none is torn.

    Errors: LakeError for a lake in an object store, beside a process that writes, and, once all
    else is repaired, for logs that are damaged elsewhere than at their ends.
    """
    if is_remote(lake.location):
        raise LakeError(
            "an object store writes whole objects",
            where=lake.location,
            do="there is nothing to repair",
        )
    done: list[RepairedFile] = []
    refused: list[str] = []
    with lake_errors(lake.location, writing=True), writers_lock(Path(lake.location), alone=True):
        for table in ALL_TABLES:
            plan = _plan(table.name, LogFiles.of(Path(lake.uri(table))))
            if plan.refused:
                refused.append(plan.refused)
                continue
            for path, repaired in plan.aside:
                path.rename(path.with_name(path.name + ASIDE))
                sync_folder(path.parent)
                done.append(repaired)
    if refused:
        raise LakeError(
            BREAK.join(
                ["some logs are damaged where rows were committed, and were not changed:", *refused]
            ),
            where=lake.location,
            do="restore these tables from a backup; without one, ingest into a new lake",
        )
    return done


def lost_files(lake: Lake) -> list[LostFile]:
    """Return the unreadable data files of all tables; reads every file of the lake.

    Errors: LakeError for a log that cannot be read.
    """
    lost: list[LostFile] = []
    # A file that is replaced meanwhile is not lost.
    with writers_lock(Path(lake.location), alone=True):
        for table in ALL_TABLES:
            for file in lake.files(table):
                what = damage(Path(lake.uri(table), file.path), file.size, decode=True)
                if what:
                    lost.append(
                        LostFile(
                            table.name, file.path, what, file.rows, file.day, file.first, file.last
                        )
                    )
    return lost


def give_up(lake: Lake, lost: Sequence[LostFile]) -> None:
    """Remove lost files from the log, so that others can be read and sources ingested again.

    What is left of the files stays until a vacuum. Killed at any moment, a second run ends alike.
    Errors: LakeError.
    """
    if any(file.table in TABLES for file in lost):
        accept_again(lake)
    for table in ALL_TABLES:
        names = {file.file for file in lost if file.table == table.name}
        if names:
            lake.replace(table, [file for file in lake.files(table) if file.path in names], [])


def _plan(table: str, files: LogFiles) -> _TableRepair:
    torn_checkpoints = files.torn_checkpoints()
    whole = [version for version in files.checkpoints if version not in torn_checkpoints]
    base = max(whole, default=-1)
    last = max(files.entries, default=base)
    reached = max([last, *torn_checkpoints])
    missing = [version for version in range(base + 1, reached + 1) if version not in files.entries]
    if missing:
        name = files.entry(missing[0])
        return _TableRepair(
            files, (), f"{name}: missing, and no checkpoint that can be read is behind it"
        )
    usable = replace(files, checkpoints={version: files.checkpoints[version] for version in whole})
    torn = usable.torn_entries()
    if torn and torn != list(range(torn[0], last + 1)):
        return _TableRepair(
            files, (), f"{files.entry(torn[0])}: empty or cut off, and later entries are whole"
        )
    if torn and any(version >= torn[0] for version in torn_checkpoints):
        return _TableRepair(
            files,
            (),
            f"{files.entry(torn[0])}: empty or cut off, and a checkpoint of it was written",
        )
    return _TableRepair(files, list(_aside(table, files, torn_checkpoints, torn)))


def _aside(
    table: str, files: LogFiles, checkpoints: Sequence[int], entries: Sequence[int]
) -> Iterator[tuple[Path, RepairedFile]]:
    """Return the log files to move aside, in an order that never leaves a gap in the log."""
    if files.misleading_hint(checkpoints):
        yield (
            files.folder / HINT,
            RepairedFile(table, HINT, "the pointer to the last checkpoint; nothing is lost"),
        )
    for version in checkpoints:
        for name, _ in files.checkpoints[version]:
            what = f"checkpoint of version {version}, torn; nothing is lost"
            yield files.folder / name, RepairedFile(table, name, what)
    for version in reversed(entries):
        path = files.entry(version)
        rows = sum(_rows(action) for action in added_files(path))
        count = f"at least {rows:,} rows" if rows else "rows of an unknown number"
        what = f"version {version}, torn; {count} of it were never reported as committed"
        yield path, RepairedFile(table, path.name, what, rows)


def _rows(action: dict[str, object]) -> int:
    try:
        return int(json.loads(str(action.get("stats")))["numRecords"])
    except (ValueError, KeyError, TypeError):
        return 0
