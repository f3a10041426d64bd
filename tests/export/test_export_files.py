"""Tables into files: every row and column, the form of each, and files that appear whole."""

from __future__ import annotations

import csv
import json
import os
from argparse import Namespace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from exported_lake import END, START, UGLY, busy, content_of, export, in_lake, one_line, run

import tachograph
from madelake import fill, held, job, make_lake, summarized
from tachograph.catalog.errors import ExportError
from tachograph.catalog.tables import COMPUTED, JOB_MINUTES, JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.catalog.units import printable
from tachograph.export.registry import TARGETS
from tachograph.export.tables import PARQUET, FileFormat, json_lines, outside
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter


def test_parquet_holds_the_rows_of_the_lake(exported: Lake, tmp_path: Path) -> None:
    written = export(exported, "parquet", "--to", tmp_path)
    for name, rows in in_lake(exported).items():
        read = pl.read_parquet(tmp_path / f"{name}.parquet")
        assert read.schema == {
            column: t for column, t in COMPUTED[name].schema.items() if column != "seq"
        }
        key = list(COMPUTED[name].key)
        expected = pl.DataFrame(rows, schema=COMPUTED[name].schema).drop("seq").sort(key)
        assert read.sort(key).equals(expected)
    assert {one["what"]: one["written"] for one in written} == {
        n: len(rows) for n, rows in in_lake(exported).items()
    }


def test_csv_has_a_header_utc_and_empty_cells(exported: Lake, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "jobs.csv"
    export(exported, "csv", "--to", target, "--table", "job_summaries")
    with target.open(newline="") as stream:
        rows = {row["job_id"]: row for row in csv.DictReader(stream)}
    assert list(rows["1"]) == [name for name in JOB_SUMMARIES.schema if name != "seq"]
    assert rows["2"]["user"] == printable(UGLY)
    export(exported, "csv", "--raw", "--to", target, "--table", "job_summaries")
    with target.open(newline="") as stream:
        assert UGLY in {row["user"] for row in csv.DictReader(stream)}
    assert (rows["1"]["start"], rows["2"]["end"]) == ("2026-04-01T12:00:00Z", "")
    assert float(rows["1"]["gpu_util_mean"]) == pytest.approx(0.4)
    assert rows["4"]["gpu_util_mean"] == ""


def test_csv_and_parquet_tell_the_same_times(tmp_path: Path) -> None:
    """A job that an exporter began to name between two seconds."""
    lake, start = Lake.create(str(tmp_path / "lake")), START + timedelta(milliseconds=250)
    maps = held("1", "n1", (0,), start, END)
    fill(lake, {"gpu_samples": busy("n1", 0, 0.5), "allocations": maps})
    summarized(lake)
    for target in ("csv", "parquet"):
        export(lake, target, "--to", tmp_path, "--table", "job_summaries")
    with (tmp_path / "job_summaries.csv").open(newline="") as stream:
        [row] = csv.DictReader(stream)
    [exact] = pl.read_parquet(tmp_path / "job_summaries.parquet").get_column("start")
    assert exact == start == datetime.fromisoformat(row["start"])
    assert row["end"] == "2026-04-01T12:30:00Z"


def test_json_lines_hold_objects(exported: Lake, tmp_path: Path) -> None:
    export(exported, "jsonl", "--to", tmp_path, "--table", "findings", "--table", "job_summaries")
    findings = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    expected = [
        row | {name: json.loads(row[name]) for name in ("evidence", "checks")}
        for row in in_lake(exported)["findings"]
    ]
    for row in expected:
        del row["seq"]
        row |= {name: row[name] and f"{row[name]:%Y-%m-%dT%H:%M:%SZ}" for name in ("begin", "end")}
    assert findings == expected
    jobs = [
        json.loads(line) for line in (tmp_path / "job_summaries.jsonl").read_text().splitlines()
    ]
    assert {row["job_id"]: (row["start"], row["end"]) for row in jobs}["2"] == (
        "2026-04-01T12:00:00Z",
        None,
    )
    assert not (tmp_path / "job_gpus.jsonl").exists()


def test_minutes_are_written_where_they_are_asked_for(exported: Lake, tmp_path: Path) -> None:
    [one] = export(exported, "parquet", "--to", tmp_path / "m.parquet", "--table", JOB_MINUTES.name)
    minutes = pl.read_parquet(tmp_path / "m.parquet")
    assert one["written"] == minutes.height
    counted = minutes.group_by("job_id").len().sort("job_id").rows()
    # 30 minutes of two GPUs, of one, of a slice.
    assert counted == [("1", 60), ("2", 30), ("3", 30)]


def test_minutes_of_nodes_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    """A node of one job receives 1000 bytes a second, 5000 in the last minute between two
    samples.
    """
    end, bytes_ = START + timedelta(minutes=5), (0, 60_000, 120_000, 180_000, 480_000)
    made = {
        "gpu_samples": busy("n1", 0, 0.5, end=end),
        "node_samples": [
            {"t": START + timedelta(minutes=minute), "node": "n1", "network_rx_bytes": value}
            for minute, value in enumerate(bytes_)
        ],
        "jobs": [job("1", START, end, cluster="c", gpus=1)],
        "allocations": held("1", "n1", (0,), START, end, cluster="c"),
    }
    lake = make_lake(tmp_path / "lake", **made)
    summarized(lake)
    [one] = export(
        lake, "parquet", "--to", tmp_path / "n.parquet", "--table", JOB_NODE_MINUTES.name
    )
    rows = pl.read_parquet(tmp_path / "n.parquet")
    assert rows.columns == [name for name in JOB_NODE_MINUTES.schema if name != "seq"]
    values = rows.select(
        "job_id", "node", "minute", "t", "network_rx_bytes_per_s", "cpu_user"
    ).rows()
    assert values == [
        ("1", "n1", minute, START + timedelta(minutes=minute), (later - sooner) / 60, None)
        for minute, (sooner, later) in enumerate(pairwise(bytes_))
    ]
    assert one["written"] == 4
    opened = tachograph.open(lake.location)
    assert opened.node_minutes("1").drop("seq").equals(rows)
    assert opened.node_minutes(opened.jobs(user="nobody")).schema == JOB_NODE_MINUTES.schema


def test_filters_choose_jobs_and_what_belongs_to_them(exported: Lake, tmp_path: Path) -> None:
    export(exported, "parquet", "--to", tmp_path, "--user", "ada", "--where", "gpus>1")
    for name in ("job_summaries", "job_gpus", "findings"):
        assert set(pl.read_parquet(tmp_path / f"{name}.parquet")["job_id"]) == {"1"}
    export(exported, "csv", "--to", tmp_path, "--user", "nobody")
    assert len((tmp_path / "job_summaries.csv").read_text().splitlines()) == 1
    empty = content_of(exported, JobFilter(users=("nobody",)))
    assert outside(empty.minutes(), JOB_MINUTES).height == 0
    assert outside(empty.node_minutes(), JOB_NODE_MINUTES).height == 0


def test_people_are_told_what_was_written_and_what_cannot_be(
    exported: Lake, tmp_path: Path
) -> None:
    done = run(exported, "csv", "--to", tmp_path / "x.csv", "--table", "job_summaries")
    assert (done.stdout, done.stderr) == (f"{tmp_path}/x.csv: 4 job_summaries written\n", "")
    (tmp_path / "file").write_text("")
    for words, code, parts in (
        (
            ("csv", "--to", tmp_path / "y.csv"),
            2,
            ("y.csv: 3 tables do not go into one file", "--table"),
        ),
        (
            ("parquet", "--to", tmp_path / "file" / "x"),
            7,
            ("cannot be written: Not a directory; name another target with --to",),
        ),
        (  # nothing is full there
            ("parquet", "--to", "/proc/x"),
            7,
            ("No such file or directory; create its folder, or name another target with --to",),
        ),
        (("excel",), 2, ("unknown target 'excel'", *(target.name for target in TARGETS))),
    ):
        one_line(run(exported, *words), code, *parts)


def test_a_file_is_replaced_whole_or_not_at_all(exported: Lake, tmp_path: Path) -> None:
    target = tmp_path / "job_summaries.parquet"
    target.write_text("old")

    def fails(frame: pl.DataFrame, beside: Path, options: Namespace) -> None:
        beside.write_text("half")
        raise OSError(28, os.strerror(28))

    options = Namespace(to=str(tmp_path), table=["job_summaries"])
    with pytest.raises(ExportError, match="No space left on device"):
        FileFormat(".parquet", fails).export(content_of(exported), options, lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.read_text() == "old"
    PARQUET.export(content_of(exported), options, lambda *_: None)
    assert pl.read_parquet(target).height == 4


def test_what_is_no_number_is_null(exported: Lake) -> None:
    odd = content_of(exported).summaries.with_columns(
        energy_j=pl.Series([float("nan"), float("inf"), 1.0, None])
    )
    frame = outside(odd, JOB_SUMMARIES)
    assert frame["energy_j"].to_list() == [None, None, 1.0, None]
    assert [json.loads(line)["energy_j"] for line in json_lines(frame)] == [None, None, 1.0, None]
