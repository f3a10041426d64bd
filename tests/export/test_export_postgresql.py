"""A real PostgreSQL: the rows of the lake, only what changed, all or nothing, and what goes
wrong.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from exported_lake import add_job, export, exported_lake, in_lake, one_line, run
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from servers.postgresql import postgresql_server
from servers.process import free_port
from tachograph.catalog.tables import COMPUTED, JOB_SUMMARIES
from tachograph.export.postgresql_tables import TABLES, as_csv
from tachograph.lake.delta import Lake
from tachograph.pipeline.row_buffers import drop_summaries

pytestmark = pytest.mark.slow

ALL = ("job_summaries", "job_gpus", "findings")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server() as address:
        yield address


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a new database."""
    name = f"db_{abs(hash(request.node.name))}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    yield f"{server.removesuffix('/postgres')}/{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.fixture
def lake(exported: Lake, tmp_path: Path) -> Lake:
    return Lake.open(str(shutil.copytree(exported.location, tmp_path / "lake")))


def query(database: str, question: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(question.encode()).fetchall()


def in_database(
    database: str, schema: str = "tachograph", prefix: str = ""
) -> dict[str, list[dict[str, Any]]]:
    """Rows of the tables, as dictionaries, in order of their keys."""
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        return {
            name: connection.execute(
                SQL("SELECT * FROM {}").format(Identifier(schema, prefix + name))
            ).fetchall()
            for name in ALL
        }


def comparable(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Rows in one order, JSON read, and NUL written out, which PostgreSQL's text cannot hold."""
    key = COMPUTED[name].key
    plain = [
        {column: _plain(column, value) for column, value in row.items()}
        for row in sorted(rows, key=lambda row: str([row[part] for part in key]))
    ]
    assert plain
    return plain


def _plain(column: str, value: Any) -> Any:
    if column in ("evidence", "checks") and isinstance(value, str):
        return json.loads(value)
    return value.replace("\0", r"\x00") if isinstance(value, str) else value


def assert_same(database: str, lake: Lake, **place: str) -> None:
    there, here = in_database(database, **place), in_lake(lake)
    for name in ALL:
        assert comparable(there[name], name) == comparable(here[name], name)


def counts(written: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(one["written"], one["removed"], one["unchanged"]) for one in written]


def types_of(database: str, table: str) -> dict[str, str]:
    return dict(
        query(
            database,
            "SELECT column_name, data_type FROM information_schema.columns "
            f"WHERE table_schema = 'tachograph' AND table_name = '{table}' ORDER BY "
            "ordinal_position",
        )
    )


def test_the_database_holds_the_rows_of_the_lake_with_types_keys_and_comments(
    database: str, exported: Lake
) -> None:
    written = export(exported, "postgresql", "--to", database)
    assert [one["what"] for one in written] == list(ALL)
    assert counts(written)[0] == (4, 0, 0)
    assert_same(database, exported)
    [(exported_jobs, sent)] = query(database, "SELECT jobs, written FROM tachograph.exports")
    assert (exported_jobs, sent) == (4, 4)
    types = types_of(database, "job_summaries")
    assert list(types) == list(JOB_SUMMARIES.schema)
    assert types["start"] == "timestamp with time zone"
    assert (types["energy_j"], types["gpus"], types["pipes"]) == (
        "double precision",
        "bigint",
        "ARRAY",
    )
    keys = query(
        database,
        "SELECT conrelid::regclass::text, contype FROM pg_constraint "
        "WHERE connamespace = 'tachograph'::regnamespace AND contype IN ('p', 'f') ORDER BY 1, 2",
    )
    assert keys == [
        ("tachograph.exports", "p"), ("tachograph.findings", "f"), ("tachograph.findings", "p"),
        ("tachograph.job_gpus", "f"), ("tachograph.job_summaries", "p"),
    ]  # fmt: skip
    for table in TABLES:
        comments = query(
            database,
            f"SELECT a.attname, col_description(a.attrelid, a.attnum) FROM pg_attribute a "
            f"WHERE a.attrelid = 'tachograph.{table.name}'::regclass AND a.attnum > 0",
        )
        sentences = {column.name: column.sentence for column in COMPUTED[table.name].columns}
        assert {name for name, text in comments if text.startswith(sentences[name])} == set(
            table.schema
        )

    # a slice and a whole GPU are two rows, and each is one
    assert query(database, "SELECT node, mig FROM tachograph.job_gpus WHERE mig IS NOT NULL") == [
        ("n3", 7)
    ]
    with pytest.raises(psycopg.errors.UniqueViolation):
        query(
            database,
            (
                "INSERT INTO tachograph.job_gpus SELECT * FROM tachograph.job_gpus WHERE node = "
                "'n1' RETURNING 1"
            ),
        )


def test_only_what_changed_is_sent(database: str, lake: Lake) -> None:
    export(lake, "postgresql", "--to", database)
    before = query(database, "SELECT job_id, xmin::text FROM tachograph.job_summaries ORDER BY 1")
    assert counts(export(lake, "postgresql", "--to", database)) == [(0, 0, 4), (0, 0, 0), (0, 0, 0)]
    add_job(lake, "9")
    assert counts(export(lake, "postgresql", "--to", database))[0] == (1, 0, 4)
    assert_same(database, lake)
    after = query(database, "SELECT job_id, xmin::text FROM tachograph.job_summaries ORDER BY 1")
    assert after[:-1] == before  # rows that did not change were not even touched


def test_rows_that_no_longer_count_are_deleted(database: str, lake: Lake) -> None:
    export(lake, "postgresql", "--to", database)
    gone = pl.DataFrame(in_lake(lake)["job_summaries"], schema=JOB_SUMMARIES.schema).filter(
        pl.col("job_id") == "1"
    )
    drop_summaries(lake, gone, number=2**60)
    assert counts(export(lake, "postgresql", "--to", database))[0] == (0, 1, 3)
    assert_same(database, lake)
    assert counts(export(lake, "postgresql", "--to", database, "--user", "eve"))[0] == (0, 2, 1)
    assert query(database, "SELECT DISTINCT job_id FROM tachograph.job_gpus") == [("4",)]
    assert counts(export(lake, "postgresql", "--to", database))[0] == (2, 0, 1)
    assert_same(database, lake)


def test_names_are_chosen(database: str, lake: Lake, tmp_path: Path) -> None:
    other = exported_lake(tmp_path / "other")
    place = ("--schema", "Ops data", "--table-prefix", "gpu_")
    export(lake, "postgresql", "--to", database, *place)
    assert_same(database, lake, schema="Ops data", prefix="gpu_")
    refused = run(other, "postgresql", "--to", database, *place)
    one_line(refused, 2, "Ops data.gpu_* holds the jobs of another lake", "--table-prefix")
    assert_same(database, lake, schema="Ops data", prefix="gpu_")
    export(
        other, "postgresql", "--to", database, "--schema", "Ops data", "--table-prefix", "other_"
    )


def test_the_environment_names_the_database(
    database: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(database)
    for variable, name in (
        ("PGHOST", "host"),
        ("PGPORT", "port"),
        ("PGUSER", "user"),
        ("PGDATABASE", "dbname"),
    ):
        monkeypatch.setenv(variable, str(parts[name]))
    assert counts(export(lake, "postgresql"))[0] == (4, 0, 0)


def test_killed_in_the_middle_nothing_has_happened(database: str, lake: Lake) -> None:
    export(lake, "postgresql", "--to", database)
    before = in_database(database)
    add_job(lake, "9")
    command = [
        sys.executable,
        "-m",
        "tachograph",
        "export",
        "postgresql",
        "--to",
        database,
        "--lake",
        lake.location,
    ]
    with psycopg.connect(database) as holder:
        # Job_summaries come before.
        holder.execute("LOCK TABLE tachograph.findings IN ACCESS EXCLUSIVE MODE")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait_for_writer(database)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert in_database(database) == before
    assert counts(export(lake, "postgresql", "--to", database))[0] == (1, 0, 4)
    assert_same(database, lake)


def _wait_for_writer(database: str) -> None:
    """Return once an export waits for a lock."""
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tachograph export' "
        "AND wait_event_type = 'Lock' AND datname = current_database()"
    )
    until = time.monotonic() + 60
    while not query(database, waiting):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_two_exports_at_once_are_as_one(database: str, lake: Lake) -> None:
    command = [
        sys.executable,
        "-m",
        "tachograph",
        "export",
        "postgresql",
        "--to",
        database,
        "--lake",
        lake.location,
    ]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert_same(database, lake)


def test_what_goes_wrong_is_a_line(database: str, lake: Lake) -> None:
    down = f"postgresql://me:secret@127.0.0.1:{free_port()}/db"
    done = run(lake, "postgresql", "--to", down)
    one_line(done, 7, "127.0.0.1/db: the database does not respond", "PG*")
    assert "secret" not in done.stderr
    one_line(run(lake, "postgresql", "--to", "nonsense"), 2, "invalid --to", "postgresql://")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
    reader = database.replace("//postgres@", "//reader@")
    one_line(
        run(lake, "postgresql", "--to", reader), 7, "permission denied", "request CREATE and INSERT"
    )


def test_without_psycopg_a_line_says_what_to_install(lake: Lake) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None; from tachograph.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "export", "postgresql", "--lake", lake.location]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    one_line(done, 2, "PostgreSQL needs psycopg", "tachograph[postgresql]")


def test_lists_and_text_come_back_from_a_real_server(database: str) -> None:
    frame = pl.DataFrame(
        {
            "place": [0, 1, 2, 3],
            "words": [['a"b', "c,d\\", "{x}", "", "NULL", None], [], None, ["é\n"]],
            "numbers": [[1, -(2**63)], [], None, [None]],
            "text": ["", None, "NULL", '"\\N,\r\n'],
            "real": [0.1, None, float("nan"), -1e-300],
        }
    )
    with psycopg.connect(database) as connection:
        connection.execute(
            "CREATE TABLE made (place bigint, words text[], numbers bigint[], text text, real "
            "double precision)"
        )
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY made FROM STDIN (FORMAT csv)") as copy,
        ):
            copy.write(as_csv(frame))
        read = connection.execute("SELECT * FROM made ORDER BY place").fetchall()
    assert read == frame.with_columns(pl.col("real").fill_nan(None)).rows()


def test_a_database_of_an_earlier_version_is_brought_along(database: str, lake: Lake) -> None:
    """It had no verdicts; a site's view of it goes on to work."""
    export(lake, "postgresql", "--to", database)
    later = ("kind", "verdict", "begin", "end", "checks", "needs")
    with psycopg.connect(database) as connection:
        for column in later:
            connection.execute(
                SQL("ALTER TABLE tachograph.findings DROP COLUMN {}").format(Identifier(column))
            )
        connection.execute("CREATE VIEW problems AS SELECT job_id, code FROM tachograph.findings")
        connection.execute("ALTER TABLE tachograph.job_summaries DROP COLUMN gpu_util_mean")
        # The site's own.
        connection.execute("ALTER TABLE tachograph.job_summaries ADD COLUMN ticket text")
        connection.execute("UPDATE tachograph.job_summaries SET ticket = 'T-1'")
    for sent in ((4, 0, 0), (0, 0, 4)):
        assert counts(export(lake, "postgresql", "--to", database))[0] == sent
    assert query(database, "SELECT DISTINCT ticket FROM tachograph.job_summaries") == [("T-1",)]
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE tachograph.job_summaries DROP COLUMN ticket")
    assert_same(database, lake)
    types = types_of(database, "findings")
    assert [types[column] for column in later] == [
        "text", "text", "timestamp with time zone", "timestamp with time zone", "jsonb", "ARRAY",
    ]  # fmt: skip
    rows = len(in_lake(lake)["findings"])
    assert query(database, "SELECT count(*) FROM problems") == [(rows,)]
    assert query(
        database,
        (
            "SELECT DISTINCT verdict FROM tachograph.findings WHERE jsonb_typeof(checks) = 'array' "
            "ORDER BY 1"
        ),
    ) == [("no",), ("unknown",), ("yes",)]
