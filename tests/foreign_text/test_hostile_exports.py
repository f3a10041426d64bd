"""Every target of `tachograph export`, read back by a reader of its format: all texts arrive, none
of them acts.

A target of the registry needs an entry here: what it is called with, and how it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hostile_lake import ENVIRONMENT, NODES, PAYLOADS
from written import assert_metrics, assert_plain, assert_table, texts_of

from in_process import run_here
from servers.postgresql import postgresql_server
from tachograph.catalog.columns import joined_lists
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import COMPUTED
from tachograph.catalog.units import harmless_cell, printable
from tachograph.export.clustercockpit import job_folder
from tachograph.export.openmetrics import JOB_LABELS, LABELS
from tachograph.export.registry import TARGETS
from tachograph.export.tables import outside
from tachograph.export.xdmod import FIELDS
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import (
    read_gpus,
    read_minutes,
    read_node_minutes,
    read_verdicts,
    select_jobs,
)

_OF_JOBS = {"findings": read_verdicts, "job_gpus": read_gpus, "job_minutes": read_minutes}
_OF_JOBS["job_node_minutes"] = read_node_minutes
NAMES = set(PAYLOADS.values())
TABLES = [word for name in ("job_summaries", *_OF_JOBS) for word in ("--table", name)]


def recorded(site: Path, table: str) -> pl.DataFrame:
    """Rows of a table of the site's lake as other programs get them."""
    lake = Lake.open(str(site / "lake"))
    jobs = select_jobs(lake, JobFilter()).jobs.sort("start", "job_key")
    rows = jobs if table == "job_summaries" else _OF_JOBS[table](lake, jobs)
    return outside(rows, COMPUTED[table])


def texts(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns of text, in one order; an empty text counts as none, as formats have only one
    of them.
    """
    plain = joined_lists(rows).select(pl.col(pl.String).replace("", None))
    return plain.select(sorted(plain.columns)).sort(pl.all())


def read_csv(site: Path, *, raw: bool = False) -> None:
    for table in ("job_summaries", *_OF_JOBS):
        written, rows = site / "out" / f"{table}.csv", recorded(site, table)
        cells = assert_table(written.read_bytes().decode("utf-8"), table, raw=raw)
        assert len(cells) == rows.height + 1
        read = pl.DataFrame(cells[1:], schema=dict.fromkeys(cells[0], pl.String), orient="row")
        expected = texts(rows)
        if not raw:
            expected = expected.select(
                pl.Series(
                    column.name, [None if text is None else harmless_cell(text) for text in column]
                )
                for column in expected
            ).sort(pl.all())
        assert texts(read.select(expected.columns)).equals(expected), table


def read_raw_csv(site: Path) -> None:
    read_csv(site, raw=True)


def read_parquet(site: Path) -> None:
    for table in ("job_summaries", *_OF_JOBS):
        assert texts(pl.read_parquet(site / "out" / f"{table}.parquet")).equals(
            texts(recorded(site, table))
        ), table


def read_json_lines(site: Path) -> None:
    documents = ("evidence", "checks")
    for table in ("job_summaries", *_OF_JOBS):
        lines = (
            (site / "out" / f"{table}.jsonl")
            .read_bytes()
            .decode("utf-8")
            .removesuffix("\n")
            .split("\n")
        )
        rows = recorded(site, table)
        read = [json.loads(line) for line in lines if line]
        plain = [
            name
            for name, dtype in rows.schema.items()
            if dtype == pl.String and name not in documents
        ]
        expected = rows.select(plain).to_dicts()
        assert [{name: row[name] for name in plain} for row in read] == expected, table
        for name in {*documents} & {*rows.columns}:
            assert [row[name] for row in read] == [
                text and json.loads(text) for text in rows[name]
            ], (table, name)


def read_openmetrics(site: Path) -> None:
    labels = set(assert_metrics((site / "out.prom").read_bytes().decode("utf-8"), "openmetrics"))
    summaries = recorded(site, "job_summaries")
    ids = summaries.select(job_id=pl.coalesce("display_id", "job_id"))
    for column in (*LABELS, *JOB_LABELS):
        rows = ids if column == "job_id" else summaries
        assert {text or "" for text in rows[column]} <= labels, column


def read_clustercockpit(site: Path) -> None:
    archive, found = site / "out", []
    for file in sorted(archive.rglob("*.json")):
        assert_plain(str(file.relative_to(site)), "clustercockpit")
        found.append(json.loads(file.read_bytes()))
    metas = [one for one in found if "jobId" in one]
    assert {one["user"] for one in metas} == {one["metaData"]["jobName"] for one in metas} == NAMES
    assert {one["hostname"] for meta in metas for one in meta["resources"]} == NODES
    assert set(texts_of(found)) >= NAMES


def read_xdmod(site: Path) -> None:
    """Each job is one line of as many fields; bars of texts are none of theirs."""
    content = (site / "out.log").read_bytes().decode("utf-8")
    lines = content.removesuffix("\n").split("\n")
    for line in lines:
        assert_plain(line, "xdmod")
    fields = [line.split("|") for line in lines]
    assert {len(line) for line in fields} == {len(FIELDS)}
    users = {printable(name, most=1 << 20).replace("|", "_") for name in NAMES}
    assert {line[FIELDS.index("user")] for line in fields} == users


def read_supremm(site: Path) -> None:
    """Each job is one document, in a file whose name has nothing of a text."""
    files = sorted((site / "out").rglob("*.json"))
    for file in files:
        assert_plain(str(file.relative_to(site)), "supremm")
    documents = [json.loads(file.read_bytes()) for file in files]
    assert {document["acct"]["user"] for document in documents} == NAMES
    hosts = {host for document in documents for host in document["acct"]["host_list"]}
    assert hosts == NODES


@dataclass(frozen=True)
class Walk:
    """A target with its words, and how what it wrote is read and compared."""

    target: str
    words: tuple[str, ...]
    read: Callable[[Path], None]


def read_postgresql(site: Path) -> None:
    """The database of `words`, whose text has no NUL."""
    import psycopg

    address = (site / "address").read_text(encoding="ascii")
    with psycopg.connect(address) as connection:
        for table in ("job_summaries", "job_gpus", "findings"):
            rows = recorded(site, table)
            kinds = rows.schema.items()
            names = [
                name
                for name, dtype in kinds
                if dtype == pl.String and name not in ("evidence", "checks")
            ]
            columns = ", ".join(f'"{name}"' for name in names)
            read = connection.execute(
                f"SELECT {columns} FROM tachograph.{table}".encode()
            ).fetchall()
            expected = rows.select(pl.col(names).str.replace_all("\0", r"\x00", literal=True))
            assert sorted(map(str, read)) == sorted(map(str, expected.rows())), table


WALKS: tuple[Walk, ...] = (
    Walk("csv", ("--to", "out", *TABLES), read_csv),
    Walk("csv", ("--to", "out", "--raw", *TABLES), read_raw_csv),
    Walk("parquet", ("--to", "out", *TABLES), read_parquet),
    Walk("jsonl", ("--to", "out", *TABLES), read_json_lines),
    Walk(
        "openmetrics",
        ("--to", "out.prom", "--jobs", "100", "--by", ",".join(LABELS)),
        read_openmetrics,
    ),
    Walk("clustercockpit", ("--to", "out"), read_clustercockpit),
    Walk("xdmod", ("--to", "out.log"), read_xdmod),
    Walk("supremm", ("--to", "out"), read_supremm),
    Walk("postgresql", (), read_postgresql),
)


def export(walk: Walk, site: Path, *more: str) -> list[dict[str, object]]:
    """Run the target; what it says that it wrote."""
    done = run_here(["export", walk.target, *walk.words, *more, "--json"], site, ENVIRONMENT)
    assert_plain(done.stderr, walk)
    assert done.returncode == 0, done.stderr
    written: list[dict[str, object]] = json.loads(done.stdout)["written"]
    return written


def test_every_target_is_walked() -> None:
    assert {target.name for target in TARGETS} == {walk.target for walk in WALKS}


FILES = [walk for walk in WALKS if walk.target != "postgresql"]


@pytest.mark.parametrize("walk", FILES, ids=lambda walk: walk.read.__name__)
def test_texts_arrive_and_do_nothing(walk: Walk, site: Path) -> None:
    assert sum(int(str(one["written"])) for one in export(walk, site)) >= len(PAYLOADS)
    walk.read(site)


@pytest.mark.slow
def test_texts_arrive_in_a_database(site: Path) -> None:
    walk = next(walk for walk in WALKS if walk.target == "postgresql")
    with postgresql_server() as address:
        (site / "address").write_text(address, encoding="ascii")
        first = export(walk, site, "--to", address)
        walk.read(site)
        again = export(walk, site, "--to", address)
    assert first[0]["written"] == 2 * len(PAYLOADS)
    assert [(one["written"], one.get("removed")) for one in again] == [(0, 0)] * 3


@pytest.mark.parametrize(
    "cluster", [*PAYLOADS.values(), "..", "../../etc", "/etc", "a/../../b", "\ud800"]
)
def test_a_cluster_is_one_folder_of_the_archive(cluster: str, tmp_path: Path) -> None:
    row: JobSummaryRow = {
        "cluster": cluster,
        "job_id": "1",
        "start": datetime(2026, 4, 1, tzinfo=UTC),
    }
    folder = job_folder(tmp_path, row)
    folder.mkdir(parents=True)
    assert folder.resolve().relative_to(tmp_path.resolve()).parts[1:] == ("0", "001", "1775001600")
    assert_plain(str(folder.relative_to(tmp_path)), cluster[:50])
