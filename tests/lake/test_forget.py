"""A forgotten name is in no byte of the lake and of the files beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from in_process import run_here
from madelake import fill, held, job, summarized, utc
from tachograph.annexes.act.ledger import ActionLedger, read_ledger
from tachograph.catalog import tables
from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.catalog.pseudonyms import NameReplacer, PseudonymKey
from tachograph.catalog.table_columns import text
from tachograph.catalog.tables import ALL_TABLES, JOBS, LABELS, LakeTable
from tachograph.lake.delta import Lake
from tachograph.lake.forget import VOCABULARY, covered_columns, delete_replaced, files_with, forget
from tachograph.lake.labels import write_label
from tachograph.lake.query import read_findings, read_summaries

NAME = "qzwuser"
NOW = utc(10)
KEY = PseudonymKey(b"0" * 64, Path("key"))
STANDS = KEY.pseudonym("user", NAME)


@pytest.fixture
def lake(named: Path, tmp_path: Path) -> Lake:
    """A copy of the lake with the name."""
    return Lake.open(str(shutil.copytree(named, tmp_path / "lake")))


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake in which the name is in every column of text that may have it, and two jobs of that
    user.
    """
    folder = tmp_path_factory.mktemp("named") / "lake"
    lake = Lake.create(str(folder))
    samples = [
        {"t": utc(1, 0, minute), "node": node, "gpu": 0, "gpu_util": 0.5, "power_w": 100.0}
        for node in ("n1", "n2")
        for minute in range(30)
    ]
    jobs = [
        job("1", utc(1), utc(1, 0, 30), cluster="c", user=NAME, account=NAME, name=f"{NAME}_train", gpus=1,
            submit_line=f"sbatch /home/{NAME}/run.sh"),
        job("2", utc(1), utc(1, 0, 30), cluster="c", user="ben", account="chem", name=f"copy of {NAME}", gpus=1),
    ]  # fmt: skip
    maps = [
        *held("1", "n1", (0,), utc(1), utc(1, 0, 30)),
        *held("2", "n2", (0,), utc(1), utc(1, 0, 30)),
    ]
    fill(lake, {"jobs": jobs, "allocations": maps, "gpu_samples": samples}, now=NOW)
    summarized(lake, now=NOW)
    for one, code in zip(
        read_summaries(lake).iter_rows(named=True), ("job_hang", "idle_job"), strict=True
    ):
        write_label(
            lake,
            one["job_key"],
            one["job_id"],
            code,
            holds=True,
            by=NAME,
            at=NOW,
            comment=f"by {NAME}, see",
        )
    for table in ALL_TABLES:
        if covered_columns(table):
            row = {
                name: f"a {NAME}, b" if name in covered_columns(table) else None
                for name in table.schema
            }
            row |= (
                {"job_key": "c:9:9", "job_id": "9"}
                if "job_key" in table.schema
                else {"job_id": "9"}
            )
            made = pl.DataFrame(
                [{name: row.get(name) for name in table.schema}], schema=table.schema
            ).drop("seq")
            lake.append(table, made, app_id="planted", seq=1)
    return folder


def readable(folder: Path) -> Iterator[str]:
    """Yield the bytes of every file, and every value of every Parquet file, as text."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        yield path.read_bytes().decode("latin-1")
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path, hive_partitioning=False)
            yield str(frame.to_dicts())


def assert_gone(folder: Path) -> None:
    assert not any(NAME in content for content in readable(folder))


def test_no_byte_of_a_name_stays_once_replaced_files_are_deleted(lake: Lake) -> None:
    folder = Path(lake.location)
    assert any(NAME in content for content in readable(folder))
    before = {
        table.name: lake.scan(table).collect().height
        for table in ALL_TABLES
        if lake.delta(table) is not None
    }
    done = {one.table: one for one in forget(lake, NAME, STANDS)}
    assert set(done) == {table.name for table in ALL_TABLES if covered_columns(table)}
    assert files_with(lake, NAME) != []  # replaced files, for readers that began before
    delete_replaced(lake)
    assert files_with(lake, NAME) == []
    assert_gone(folder)
    assert {
        name: lake.scan(table).collect().height
        for table in ALL_TABLES
        if (name := table.name) in before
    } == before
    row = read_summaries(lake).filter(job_id="1").row(0, named=True)
    assert (row["user"], row["account"], row["name"]) == (STANDS, STANDS, f"{STANDS}_train")
    assert (
        lake.latest(JOBS).filter(job_id="1")["submit_line"].item()
        == f"sbatch /home/{STANDS}/run.sh"
    )
    assert forget(lake, NAME, STANDS) == []


def test_a_pseudonym_changes_no_number(lake: Lake) -> None:
    before = read_summaries(lake)
    findings = read_findings(lake, before)
    forget(lake, NAME, STANDS)
    after = read_summaries(lake)
    names = ["user", "account", "name"]
    assert after.drop(names).equals(before.drop(names))
    assert read_findings(lake, after).height == findings.height
    assert summarized(lake, now=NOW)[0].jobs == 0  # nothing is new


def test_removal_takes_the_jobs_of_the_user_and_the_name_elsewhere(lake: Lake) -> None:
    key = read_summaries(lake).filter(user=NAME)["job_key"].item()
    forget(lake, NAME, None)
    delete_replaced(lake)
    assert_gone(Path(lake.location))
    for table in ALL_TABLES:
        if "job_key" in table.schema and lake.delta(table) is not None:
            assert key not in lake.scan(table).collect()["job_key"].to_list(), table.name
    assert "1" not in lake.latest(tables.ALLOCATIONS)["job_id"].to_list()
    assert lake.latest(JOBS).filter(job_id="2")["name"].item() == "copy of removed"
    assert "removed" in lake.latest(LABELS)["by"].to_list()
    summarized(lake, now=NOW)
    assert "1" not in read_summaries(lake)["job_id"].to_list()


@pytest.mark.parametrize("stands", [STANDS, None])
def test_a_dry_run_writes_nothing_and_is_right(lake: Lake, stands: str | None) -> None:
    versions = {table.name: lake.version(table) for table in ALL_TABLES}
    would = forget(lake, NAME, stands, dry_run=True)
    assert {table.name: lake.version(table) for table in ALL_TABLES} == versions
    assert forget(lake, NAME, stands) == would


def test_every_column_of_text_is_searched_or_of_a_vocabulary() -> None:
    made = {one.name: one for one in vars(tables).values() if isinstance(one, LakeTable)}
    assert set(made) == {table.name for table in ALL_TABLES}
    known = {column for table in ALL_TABLES for column in table.schema}
    assert known >= VOCABULARY
    persons = {
        "user",
        "by",
        "account",
        "name",
        "submit_line",
        "comment",
        "origin",
        "example",
        "chunk",
    }
    assert persons & VOCABULARY == set()
    assert persons <= {column for table in ALL_TABLES for column in covered_columns(table)}
    new = replace(JOBS, name="visits", columns=(*JOBS.columns, text("visitor", "Who came.")))
    assert "visitor" in covered_columns(new)


def test_a_name_within_a_word_or_a_vocabulary_is_reported(lake: Lake) -> None:
    other = job("5", utc(2), utc(3), cluster="c", user="ben", name=f"x{NAME}y", partition=NAME)
    fill(lake, {"jobs": [other]}, chunk="more", now=NOW)
    done = {one.table: one for one in forget(lake, NAME, STANDS)}["jobs"]
    assert (done.inside, done.left) == (1, {"partition": 1})
    assert lake.latest(JOBS).filter(job_id="5").select("name", "partition").row(0) == (
        f"x{NAME}y",
        NAME,
    )


def command(lake: Lake, *words: str, code: int = 0) -> str:
    done = run_here(
        ["lake", "forget", *words, "--lake", lake.location], Path(lake.location).parent, {}
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_files_of_state_change_with_the_lake(lake: Lake) -> None:
    folder = Path(lake.location)
    state = folder / "_collect"
    with ActionLedger(state, clock=lambda: datetime.now(UTC)) as ledger:
        ledger.once(f"digest:2026-W47:{NAME}", "mail", lambda: "sent", target=f"{NAME}@example.org")
        command(lake, "--user", NAME, "--remove", "--yes", code=5)  # the ledger is in use
    (state / "digest-opt-out").write_text(f"ben\n{NAME}\n")
    newest = state / "newest" / "1.newest"
    newest.parent.mkdir()
    newest.write_bytes(b"\xff" + NAME.encode())
    key = folder.parent / "key"
    assert "a new key" in command(lake, "--new-key", str(key))
    assert "dry run" in command(lake, "--user", NAME, "--key", str(key))
    printed = command(lake, "--user", NAME, "--key", str(key), "--yes", "--now", "--json")
    done = json.loads(printed)
    assert done["replaced"] == []
    assert_gone(folder)
    assert not newest.exists()
    stands = done["pseudonym"]
    assert [record.key for record in read_ledger(state)] == [f"digest:2026-W47:{stands}"] * 2
    assert (state / "digest-opt-out").read_text() == f"ben\n{stands}\n"
    assert command(lake, "--reveal", stands, "--key", str(key)) == f"{NAME}\n"
    assert (key.with_name("key.names").stat().st_mode & 0o777) == 0o600


def test_only_the_key_reveals(lake: Lake, tmp_path: Path) -> None:
    mine, theirs = (PseudonymKey.create(str(tmp_path / name)) for name in ("mine", "theirs"))
    stands = mine.pseudonym("user", "ben")
    assert stands != theirs.pseudonym("user", "ben")
    assert stands != mine.pseudonym("account", "ben")
    assert mine.reveal(stands) is None
    assert mine.reveal(stands, ["ann", "ben"]) == "ben"
    assert theirs.reveal(stands, ["ann", "ben"]) is None
    assert command(lake, "--reveal", stands, "--key", str(mine.file)) == "ben\n"
    assert "stands for no name" in command(
        lake, "--reveal", stands, "--key", str(theirs.file), code=6
    )
    mine.remember("user", "ben")
    # A list of another key is of no use.
    theirs.names_file.write_bytes(mine.names_file.read_bytes())
    assert theirs.remembered() == {}


def test_keys_that_are_short_public_or_there_are_refused(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("abc\n")
    short.chmod(0o600)
    with pytest.raises(ConfigError, match="fewer than 32"):
        PseudonymKey.read(str(short))
    short.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by every user"):
        PseudonymKey.read(str(short))
    with pytest.raises(UsageError):
        PseudonymKey.create(str(short))


@pytest.mark.parametrize(
    "words",
    [
        ["--user", NAME],
        ["--user", NAME, "--remove", "--key", "key"],
        ["--user", " ", "--remove"],
        [],
    ],
)
def test_wrong_options_are_refused(lake: Lake, words: list[str]) -> None:
    command(lake, *words, code=2)


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("ann", "X"),
        ("Ann ann", "X X"),
        ("ann,ann/ann", "X,X/X"),
        ("anna joann", "anna joann"),
        ("ann1", "ann1"),
        ("_ann_", "_X_"),
        ("éann", "éann"),
        ("", ""),
    ],
)
def test_words_are_replaced_as_they_are_found(written: str, made: str) -> None:
    from tachograph.catalog.pseudonyms import holds_word

    assert NameReplacer({"ann": "X"}).text(written) == made
    found = pl.DataFrame({"text": [written]}).select(holds_word(pl.col("text"), "ann")).item()
    assert found == (written != made)


def test_lists_of_texts_are_replaced() -> None:
    lists: list[Any] = [["ann", "b"], [], None, ["b", None]]
    replaced = NameReplacer({"ann": "X"}).column(
        pl.Series("names", lists, dtype=pl.List(pl.String))
    )
    assert replaced.to_list() == [["X", "b"], [], None, ["b", None]]
