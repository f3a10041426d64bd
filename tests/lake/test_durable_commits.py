"""What is written and in which order, so that a power cut leaves all that was reported as
committed.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction
from lake_rows import samples

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake import commits
from tachograph.lake.commits import commit_entry, remove_unfinished, write_checkpoint
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.log_format import add_action, delta_schema, remove_action

Call = tuple[str, str]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


def log_of(lake: Lake) -> Path:
    return Path(lake.uri(GPU_SAMPLES), "_delta_log")


def append(lake: Lake, *numbers: int) -> None:
    for number in numbers:
        lake.append(GPU_SAMPLES, samples(seconds=[number * 10]), app_id="stream", mark=number + 1)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints every five versions: fifty take long to write."""
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 5)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What was synced, linked and renamed, in order: (call, where)."""
    made: list[Call] = []
    fsync, link, rename = os.fsync, os.link, Path.replace

    def note(
        name: str, real: Callable[..., Any], place: Callable[..., object]
    ) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            made.append((name, str(place(*arguments))))
            return real(*arguments, **named)

        return called

    monkeypatch.setattr(
        os, "fsync", note("fsync", fsync, lambda fd: Path(f"/proc/self/fd/{fd}").readlink())
    )
    monkeypatch.setattr(os, "link", note("link", link, lambda _, to: to))
    monkeypatch.setattr(Path, "replace", note("rename", rename, lambda _, to: to))
    return made


def place(calls: list[Call], name: str, part: str, *, first: int = 0) -> int:
    """Number of the first call of that name from `first` on whose path ends so."""
    found = [
        n
        for n, (called, path) in enumerate(calls)
        if n >= first and called == name and path.endswith(part)
    ]
    assert found, (name, part, calls)
    return found[0]


def test_data_are_synced_before_their_entry_and_the_entry_before_success(
    lake: Lake, calls: list[Call]
) -> None:
    append(lake, 0)
    calls.clear()
    append(lake, 1)
    [file] = [one.path for one in lake.files(GPU_SAMPLES) if one.seq == 2]
    entry = place(calls, "link", "_delta_log/00000000000000000002.json")
    assert place(calls, "fsync", file) < place(calls, "fsync", os.path.dirname(file)) < entry  # noqa: PTH120
    staged = [n for n, (name, path) in enumerate(calls) if name == "fsync" and "/writing-" in path]
    assert staged
    assert max(staged) < entry < place(calls, "fsync", "_delta_log", first=entry)


def test_a_new_table_and_a_new_day_are_synced_in_the_folder_above(
    lake: Lake, calls: list[Call]
) -> None:
    append(lake, 0)
    created = place(calls, "link", "_delta_log/00000000000000000000.json")
    assert (
        place(calls, "fsync", "/lake") < place(calls, "fsync", "gpu_samples/_delta_log") < created
    )
    day = place(calls, "fsync", "day=2026-03-01")
    entry = place(calls, "link", "_delta_log/00000000000000000001.json")
    assert day < place(calls, "fsync", "/gpu_samples", first=day) < entry


@pytest.mark.usefixtures("often")
def test_a_checkpoint_is_synced_before_its_name_its_name_before_its_hint(
    lake: Lake, calls: list[Call]
) -> None:
    append(lake, *range(3))
    calls.clear()
    append(lake, 3)
    name = "_delta_log/00000000000000000004.checkpoint.parquet"
    named = place(calls, "rename", name)
    assert place(calls, "fsync", "00000000000000000004.checkpoint.parquet") < named
    hint = place(calls, "rename", "_last_checkpoint")
    assert named < place(calls, "fsync", "_delta_log", first=named) < hint
    assert hint < place(calls, "fsync", "_delta_log", first=hint)
    assert json.loads((log_of(lake) / "_last_checkpoint").read_bytes())["version"] == 4


@pytest.mark.usefixtures("often")
def test_a_later_checkpoint_is_made_of_the_one_before(lake: Lake) -> None:
    append(lake, *range(11))
    for entry in log_of(lake).glob("*.json"):
        if int(entry.stem) <= 9:
            entry.unlink()
    again = Lake(lake.location)
    assert again.version(GPU_SAMPLES) == again.scan(GPU_SAMPLES).collect().height == 11
    assert again.mark(GPU_SAMPLES, "stream") == 11
    assert [path.name for path in Path(lake.uri(GPU_SAMPLES)).glob("writing-*")] == []


@pytest.mark.usefixtures("often")
def test_a_missed_checkpoint_is_made_by_the_next_commit(lake: Lake) -> None:
    append(lake, 0)
    in_the_way = log_of(lake) / "00000000000000000004.checkpoint.parquet"
    in_the_way.mkdir()
    append(lake, *range(1, 4))  # the last of them would write it
    assert lake.scan(GPU_SAMPLES).collect().height == 4
    assert lake.mark(GPU_SAMPLES, "stream") == 4
    in_the_way.rmdir()
    append(lake, 4)
    assert [path.name for path in log_of(lake).glob("*.parquet")] == [
        "00000000000000000005.checkpoint.parquet"
    ]


def test_an_entry_is_what_delta_itself_would_write(lake: Lake) -> None:
    append(lake, 0)
    delta, schema = lake.delta(GPU_SAMPLES), delta_schema(GPU_SAMPLES)
    assert delta is not None
    [old] = lake.files(GPU_SAMPLES)
    assert old.day is not None
    new = add_action("day=2026-03-01/part-new.parquet", 7, old.day, samples(), data_change=True)
    actions: list[AddAction | RemoveAction] = [new, remove_action(old.path, old.size, old.day)]
    marks = [Transaction("other", 3, 5)]
    ours = parsed(commit_entry(delta, GPU_SAMPLES, actions, marks))
    properties = CommitProperties(app_transactions=marks, max_commit_retries=0)
    delta.create_write_transaction(
        actions, mode="append", schema=schema, partition_by=["day"], commit_properties=properties
    )
    theirs = parsed((log_of(lake) / "00000000000000000002.json").read_bytes())
    assert ours == theirs


def parsed(entry: bytes) -> dict[str, Any]:
    """The actions of an entry that say something, without who made it and when."""
    found = {}
    for line in entry.splitlines():
        [(kind, action)] = json.loads(line).items()
        left = {name: value for name, value in action.items() if value is not None}
        for name in ("timestamp", "engineInfo", "clientVersion"):
            left.pop(name, None)
        found[kind] = left
    return found


def test_a_column_that_came_later_is_added_to_an_older_table(lake: Lake) -> None:
    whole = delta_schema(GPU_SAMPLES)
    fields = [field for field in whole.fields if field.name != "xid"]
    old = type(whole)(fields)
    DeltaTable.create(lake.uri(GPU_SAMPLES), schema=old, partition_by=["day"])
    append(lake, 0)
    delta = lake.delta(GPU_SAMPLES)
    assert delta is not None
    assert delta.schema() == whole
    assert lake.scan(GPU_SAMPLES).collect().height == 1


def test_a_version_that_another_writer_took_is_not_overwritten(lake: Lake) -> None:
    append(lake, 0)
    before = lake.delta(GPU_SAMPLES)
    assert before is not None
    append(lake, 1)
    taken = (log_of(lake) / "00000000000000000002.json").read_bytes()
    assert not lake._commit(before, GPU_SAMPLES, [], [Transaction("late", 1, 1)])
    assert (log_of(lake) / "00000000000000000002.json").read_bytes() == taken
    assert lake.mark(GPU_SAMPLES, "late") is None


def test_a_commit_whose_data_cannot_be_synced_is_none(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, 0)
    fsync = os.fsync

    def fails(descriptor: int) -> None:
        if ".parquet" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(LakeError, match="Input/output error"):
            append(lake, 1)
    assert lake.version(GPU_SAMPLES) == 1
    assert lake.scan(GPU_SAMPLES).collect().height == 1


def test_files_have_the_permissions_of_the_folder_of_the_lake(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir(mode=0o700)
    (tmp_path / "group").chmod(0o2770)
    for name, mode, expected in (
        ("plain", None, 0o750),
        ("given", 0o700, 0o700),
        ("group", None, 0o770),
    ):
        lake = Lake.create(str(tmp_path / name), mode=mode)
        append(lake, *range(6))
        found = {
            path: stat.S_IMODE(path.stat().st_mode)
            for path in [tmp_path / name, *(tmp_path / name).rglob("*")]
        }
        for path, bits in found.items():
            assert bits & 0o777 == (expected if path.is_dir() else expected & 0o666), path


def test_half_written_files_of_dead_writers_are_removed(lake: Lake) -> None:
    append(lake, 0)
    table = Path(lake.uri(GPU_SAMPLES))
    (table / "writing-dead" / "_delta_log").mkdir(parents=True)
    now = time.time()
    for name in ("writing-dead/part.parquet", "writing-dead/_delta_log/0.json", "writing-alone"):
        (table / name).write_bytes(b"x")
        # By the clock of this process, which may not be the kernel's.
        os.utime(table / name, (now, now))
    compact(lake, [GPU_SAMPLES], vacuum_hours=1)  # a writer of this hour may be at work
    assert (table / "writing-dead" / "part.parquet").exists()
    long_ago = (table / "writing-alone").stat().st_mtime - 2 * 3600
    for path in (table / "writing-dead").rglob("*"):
        os.utime(path, (long_ago, long_ago))
    for path in (table / "writing-dead", table / "writing-alone"):
        os.utime(path, (long_ago, long_ago))
    assert remove_unfinished(table, hours=1) == 3
    assert list(table.glob("writing-*")) == []
    assert lake.scan(GPU_SAMPLES).collect().height == 1


def test_a_vacuum_deletes_what_was_replaced_and_writes_nothing_into_the_log(lake: Lake) -> None:
    append(lake, *range(20))
    compact(lake, [GPU_SAMPLES])
    entries = sorted(path.name for path in log_of(lake).iterdir())
    compact(lake, [GPU_SAMPLES], vacuum_hours=0)
    assert sorted(path.name for path in log_of(lake).iterdir()) == entries
    there = {
        path.relative_to(lake.uri(GPU_SAMPLES))
        for path in Path(lake.uri(GPU_SAMPLES)).rglob("part-*.parquet")
    }
    assert {str(path) for path in there} == {file.path for file in lake.files(GPU_SAMPLES)}
    assert lake.scan(GPU_SAMPLES).collect().height == 20


def test_a_checkpoint_whose_hint_is_gone_is_found(lake: Lake) -> None:
    append(lake, *range(3))
    write_checkpoint(Path(lake.uri(GPU_SAMPLES)), 3)
    (log_of(lake) / "_last_checkpoint").unlink()
    for number in range(4):
        (log_of(lake) / f"{number:020}.json").unlink(missing_ok=True)  # removed if old by now
    assert lake.scan(GPU_SAMPLES).collect().height == 3


def feature(name: str) -> dict[str, Any]:
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [name],
        "writerFeatures": [name],
    }


PROTOCOLS = [
    ({"minReaderVersion": 9, "minWriterVersion": 9}, "newer", "update"),
    (feature("odd"), "odd", "update"),
    (feature("deletionVectors"), "deletionVectors", "new lake"),
    (feature("columnMapping"), "columnMapping", "new lake"),
    ({"minReaderVersion": 1, "minWriterVersion": 4}, "writer version 4", "new lake"),
]


@pytest.mark.parametrize(("protocol", "named", "do"), PROTOCOLS)
def test_features_of_delta_that_are_not_read_are_refused(
    lake: Lake, protocol: dict[str, Any], named: str, do: str
) -> None:
    append(lake, 0)
    (log_of(lake) / f"{2:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(LakeError, match=named) as problem:
        lake.delta(GPU_SAMPLES)
    assert do in str(problem.value)
    assert "backup" not in str(problem.value)


def test_a_lake_of_a_newer_program_is_refused_by_readers_and_writers(lake: Lake) -> None:
    append(lake, 0)
    delta = lake.delta(GPU_SAMPLES)
    assert delta is not None
    assert delta.metadata().configuration["tachograph.format"] == "1"
    first = log_of(lake) / f"{0:020}.json"
    first.write_bytes(
        first.read_bytes().replace(b'"tachograph.format":"1"', b'"tachograph.format":"2"')
    )
    other = Lake(lake.location)
    for work in (lambda: other.scan(GPU_SAMPLES), lambda: append(other, 1)):
        with pytest.raises(
            LakeError, match="the lake has format 2, this program reads up to 1; update"
        ):
            work()
