"""Files that are not what they claim: each is one line on stderr, the others are committed, the
exit code shows it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from bad_input import (
    HEADER,
    SACCT,
    assert_one_line,
    contents,
    csv,
    job,
    listed,
    rejected,
    rows,
    tachograph,
)

MAPPING = """
table = "gpu_samples"
[time]
column = "timestamp"
[node]
column = "hostname"
[gpu]
column = "gpu_id"
[columns]
nersc_ldms_dcgm_gpu_utilization = {to = "gpu_util", unit = "percent"}
"""
FRAME: dict[str, list[Any]] = {
    "timestamp": ["2026-03-01T10:00:00"],
    "hostname": ["n9"],
    "gpu_id": [0],
    "nersc_ldms_dcgm_gpu_utilization": [50.0],
}


def unreadable(folder: Path) -> dict[str, str]:
    """Write files that hold no samples; return {name: what is reported of it}."""
    whole = folder / "whole.bin"
    pl.DataFrame({name: values * 3000 for name, values in FRAME.items()}).write_parquet(whole)
    packed = whole.read_bytes()
    (folder / "cut.parquet").write_bytes(packed[: len(packed) // 2])
    (folder / "foot.parquet").write_bytes(packed[:-4])
    (folder / "text.parquet").write_text(HEADER + rows(3))
    (folder / "empty.csv").write_bytes(b"")
    (folder / "empty.json").write_bytes(b" \n")
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "binary.csv").write_bytes(random.Random(1).randbytes(20_000))
    (folder / "cut.json").write_text('[{"timestamp": "2026-03-01T10:00:00", "hostname": "n')
    (folder / "cut.csv.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48")
    (folder / "number.json").write_text("42")
    (folder / "long-header.csv").write_text("x" * 10**6 + "\n" + rows(2))
    pl.DataFrame(FRAME | {"hostname": [[1, 2]]}).write_parquet(folder / "nested.parquet")
    pl.DataFrame(FRAME | {"timestamp": [True]}).write_parquet(folder / "truth.parquet")
    pl.DataFrame(FRAME | {"gpu_id": [b"\xff"]}).write_parquet(folder / "bytes.parquet")
    return {
        "cut.parquet": "damaged Parquet",
        "foot.parquet": "damaged Parquet",
        "text.parquet": "this is not Parquet",
        "empty.csv": "the file is empty",
        "empty.json": "the file is empty",
        "empty.parquet": "the file is empty",
        "binary.csv": "this is not a text table",
        "cut.json": "not valid JSON, perhaps cut off",
        "cut.csv.gz": "damaged gzip",
        "number.json": "",
        "long-header.csv": "no header line",
        "nested.parquet": "column hostname is List(Int64)",
        "truth.parquet": "column timestamp is Boolean",
        "bytes.parquet": "column gpu_id is Binary",
        "absent.csv": "no such file",
    }


@pytest.mark.parametrize("source", ["ldms", "table"])
def test_every_unreadable_file_is_named_and_the_others_land(tmp_path: Path, source: str) -> None:
    printed = unreadable(tmp_path)
    csv(tmp_path, "first.csv", rows(5))
    csv(tmp_path, "last.csv", rows(5, node="n2"))
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(MAPPING)
    options = ["--mapping", str(mapping)] if source == "table" else []
    files = listed([tmp_path / name for name in ("first.csv", *printed, "last.csv")])
    done = tachograph("ingest", source, *options, "--json", "--lake", tmp_path / "lake", *files)
    assert done.code == 4
    assert done.json["rows"] == {"gpu_samples": 10}
    assert [Path(one["file"]).name for one in done.json["unread"]] == list(printed)
    lines = [line for line in done.lines if not line.startswith(("thread ", "note: "))]
    assert len(lines) == len(printed), lines
    for line, one, (name, what) in zip(lines, done.json["unread"], printed.items(), strict=True):
        assert line == f"tachograph: {one['reason']}"
        assert line.startswith(f"tachograph: {tmp_path / name}: {what}")
        assert "; " in line
        assert len(line) < 700
    unmapped = 2 if source == "table" else 0  # of each whole file, the column of the power
    assert contents(tmp_path / "lake") == {"gpu_samples": 10, "devices": 2, "rejects": unmapped}


def test_one_file_that_cannot_be_read_is_one_line_and_nothing_else(tmp_path: Path) -> None:
    done = tachograph("ingest", "ldms", "nope.csv", "--lake", "lake", cwd=tmp_path)
    assert_one_line(done, 4, "nope.csv: no such file")


def test_a_folder_with_a_bad_file_gives_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    csv(folder, "a.csv", rows(3))
    (folder / "b.parquet").write_text("no Parquet")
    (folder / "c.csv").write_text("a,b,c\n1,2,3\n")  # holds no samples: counted, no failure
    csv(folder, "d.csv", rows(3, node="n2"))
    empty = tmp_path / "nothing"
    empty.mkdir()
    done = tachograph("ingest", "ldms", folder, empty, "--lake", tmp_path / "lake")
    assert done.code == 4
    assert [line.split(": ")[1] for line in done.lines] == [str(folder / "b.parquet"), str(empty)]
    assert done.out.splitlines() == [
        f"6 rows read; 6 gpu_samples committed to {tmp_path / 'lake'}",
        "2 files could not be read",
        "rejected: 1 row of gpu_samples: no counter",
    ]


def test_the_same_complaint_is_made_once(tmp_path: Path) -> None:
    files = [csv(tmp_path, f"{name}.csv", rows(1)) for name in "abc"]
    done = tachograph(
        "ingest", "ldms", "--job-start", "someday", *files, "--lake", tmp_path / "lake"
    )
    assert_one_line(done, 2, "invalid time: 'someday'")


def test_ugly_rows_are_counted_and_the_rest_lands(tmp_path: Path) -> None:
    file = tmp_path / "ugly.csv"
    time = "2026-03-01T10:00:{:02},n1,0,{},{}\n"
    lines = [
        *(time.format(second, 50, 100) for second in range(5)),
        time.format(10, -5, "NaN"),
        time.format(11, "inf", -3),
        time.format(12, 2147483632, 140737488355328),  # DCGM's marks for no value
        time.format(13, "N/A", "<<<NOT_SUPPORTED>>>"),
        time.format(14, 4294967295, "hot"),
        time.format(15, "9" * 10**6, 100),
        "2099-03-01T10:00:00,n1,0,50,100\n",
        "1999-03-01T10:00:00,n1,0,50,100\n",
        "yesterday,n1,0,50,100\n",
        "2026-03-01T10:00:20,,0,50,100\n",
        "2026-03-01T10:00:20,n1,,50,100\n",
        "2026-03-01T10:00:20,n1,-1,50,100\n",
        "2026-03-01T10:00:20,n1,first,50,100\n",
        "2026-03-01T10:00:20,n1,0\n",
        "x" * 10**6 + "\n",
        time.format(4, 50, 100),
    ]
    garbage = b"2026-03-01T10:00:30,n1,0,\xff\xfe\x00,1\n"
    file.write_bytes((HEADER + "".join(lines)).encode() + garbage)
    done = tachograph("ingest", "ldms", file, "--json", "--lake", tmp_path / "lake")
    assert (done.code, done.printed) == (0, "")
    assert rejected(done.json) == {
        ("out_of_range", "gpu_util"): 2,
        ("not_finite", "gpu_util"): 2,
        ("missing_mark", "gpu_util"): 2,
        ("not_finite", "power_w"): 1,
        ("out_of_range", "power_w"): 1,
        ("missing_mark", "power_w"): 2,
        ("not_a_number", "power_w"): 1,
        ("not_a_number", "gpu"): 1,
        ("time_in_future", None): 1,
        ("time_too_early", None): 1,
        ("unreadable_time", None): 1,
        ("no_node", None): 1,
        ("no_gpu", None): 2,
        ("negative_gpu", None): 1,
        ("ragged_row", None): 2,
        ("not_text", None): 1,
        ("duplicate", None): 1,
    }
    whole_rows = sum(count for (_, column), count in rejected(done.json).items() if column is None)
    committed = contents(tmp_path / "lake")["gpu_samples"]
    assert (committed, done.json["rows_read"]) == (11, committed + whole_rows)
    shown = tachograph("ingest", "ldms", file, "--show-rejected", "--lake", tmp_path / "other")
    assert max(map(len, shown.out.splitlines())) < 400


def test_accounting_that_cannot_be_is_counted(tmp_path: Path) -> None:
    lines = [
        job(1),
        job(2, end="2026-03-01T09:59:00"),
        job(3, start="2099-01-01T00:00:00", end="2099-01-01T01:00:00"),
        job(4, start="someday"),
        "5|5|c\n",
        job(6, node="n[1-"),
        "7|7|c|" + "x" * 10**6 + "\n",
        job(8),
    ]
    file = csv(tmp_path, "jobs.txt", *lines, header=SACCT)
    done = tachograph("ingest", "sacct", file, "--trusted", "--json", "--lake", tmp_path / "lake")
    assert (done.code, done.printed) == (0, "")
    counted = sum(
        one["removed"]
        for one in done.json["rejects"]
        if one["table"] == "jobs" and one["column"] is None
    )
    committed = contents(tmp_path / "lake")["jobs"]
    assert committed + counted == done.json["rows_read"] == 8
    assert 2 <= committed <= 3
    assert {"end_before_start", "start_in_future"} & {one["reason"] for one in done.json["rejects"]}
    assert all(one["example"] and len(one["example"]) <= 200 for one in done.json["rejects"])


@pytest.mark.parametrize("source", ["sacct", "allocation-map"])
def test_what_is_no_accounting_is_named(tmp_path: Path, source: str) -> None:
    files = unreadable(tmp_path)
    names = ["cut.parquet", "empty.csv", "binary.csv", "cut.json", "absent.csv", "number.json"]
    assert set(names) <= set(files)
    done = tachograph(
        "ingest", source, *(tmp_path / name for name in names), "--lake", tmp_path / "lake"
    )
    assert (done.code, done.out) == (4, "")
    for line, name in zip(done.lines, names, strict=True):
        assert line.startswith(f"tachograph: {tmp_path / name}: ")


@pytest.mark.parametrize(
    ("arguments", "environment", "parts"),
    [
        (
            (),
            {"TACHOGRAPH_SITE_TIME_ZONE": "Atlantis"},
            ("unknown time zone 'Atlantis'", "$TACHOGRAPH_SITE_TIME_ZONE"),
        ),
        (
            ("--config", "site.toml"),
            {},
            ("site.toml", "site.time_zone", "unknown time zone 'Europe/Bärlin'"),
        ),
        (("--config", "broken.toml"), {}, ("broken.toml", "not valid TOML")),
        (("--config", "binary.toml"), {}, ("binary.toml", "not valid TOML")),
        (("--config", "key.toml"), {}, ("key.toml", "colour")),
        (("--config", "absent.toml"), {}, ("absent.toml", "No such file")),
    ],
)
def test_a_wrong_setting_is_named(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], parts: tuple[str, ...]
) -> None:
    csv(tmp_path, "a.csv", rows(1))
    (tmp_path / "site.toml").write_text('[site]\ntime_zone = "Europe/Bärlin"\n')
    (tmp_path / "broken.toml").write_text("[site\n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "key.toml").write_text('[site]\ncolour = "red"\n')
    done = tachograph(
        "ingest",
        "ldms",
        "a.csv",
        "--lake",
        "lake",
        *arguments,
        cwd=tmp_path,
        environment=environment,
    )
    assert_one_line(done, 3, *parts)
