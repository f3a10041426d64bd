"""LDMS recordings and NERSC's exports: every recorded file, re-computed in plain Python; and the
ugly ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

from row_lines import frame_lines
from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.counters import outside_names
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.tables import TABLES
from tachograph.catalog.units import factor
from tachograph.lake.conform import Conformed, conform
from tachograph.sources.ldms import LdmsOptions, add_options, read, read_file

NOW = datetime(2026, 11, 1, tzinfo=UTC)
# file of nersc_perlmutter -> rows
TELEMETRY = {
    "job_51566986.json": 28,
    "job_51567294.json": 4,
    "job_51569945.json": 8,
    "job_51569946.json": 16,
    "job_51570026.json": 8,
    "job_51613962.json": 8,
    "job_51906088.json": 42,
    "job_51911473.json": 112,
    "pmt-data-export-2.json": 112,
    "pmt-export-compute-51567294.json": 4,
    "pmt-export-compute-median-1n-51567294.json": 4,
    "pmt-export-compute-median-2n-51911473.json": 104,
    "pmt-export-compute-median-2n-52233732.json": 98,
    "pmt-export-cpu-power-51567294_(1).json": 5,
    "pmt-export-gpu-power-51567294.json": 20,
    "pmt-export-mem-power-51567294_(1).json": 5,
    "pmt-export-network-51567294.json": 4,
    "pmt-export-network-median-2n-52233732.json": 98,
    "pmt-export-node-power-51567294.json": 5,
}
JOB_RECORDS = ("job-data.json", "job-data-iris-export.json", "user-jobs.json")
POWER = {"cpu_power": "cpu_power_w", "memory_power": "memory_power_w", "node_power": "node_power_w"}


def _read(arguments: Sequence[str | Path], site: SiteOptions | None = None) -> list[Chunk]:
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args([str(argument) for argument in arguments])
    return list(read(options, configuration=Configuration(site=site or SiteOptions()), now=NOW))


def _conformed(part: ChunkPart) -> Conformed:
    return conform(part.frame, TABLES[part.table], now=NOW, units=part.units)


def _lines(chunk: Chunk) -> str:
    """Return the conformed rows of each table, and what was rejected."""
    lines = []
    for part in chunk.parts:
        made = _conformed(part)
        lines.append(f"{part.table}:\n{frame_lines(made.frame)}")
        lines += [f"{r.reason} {r.column} {r.count}\n" for r in (*part.rejects, *made.rejects)]
    return "".join(lines)


def _epoch_s(written: str | int) -> float:
    if isinstance(written, int):
        return written / 1000
    return datetime.fromisoformat(written).replace(tzinfo=UTC).timestamp()


def _csv(folder: Path, text: str, name: str = "store.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", TELEMETRY)
def test_recorded_exports(recorded: Path, name: str) -> None:
    path = recorded / "nersc_perlmutter" / name
    content: Any = json.loads(path.read_text())
    rows: list[dict[str, Any]] = content["data"] if isinstance(content, dict) else content
    (chunk,) = _read([path])
    part = chunk.parts[0]
    made = _conformed(part)
    assert (chunk.rows_read, made.frame.height, made.rejects, part.rejects) == (
        TELEMETRY[name],
        TELEMETRY[name],
        (),
        (),
    )
    names = {
        **outside_names(),
        "gpu_power": ("power_w", "W"),
        **{k: (v, "W") for k, v in POWER.items()},
    }
    counted = 0
    for column in rows[0].keys() - {"index", "timestamp", "hostname", "gpu_id"}:
        counter, unit = names[column]
        into = next(c.unit for c in TABLES[part.table].columns if c.name == counter)
        expected = math.fsum(row[column] for row in rows) * factor(unit, into)
        assert made.frame.get_column(counter).cast(pl.Float64).sum() == pytest.approx(
            expected, rel=1e-6
        )
        counted += 1
    assert counted == len(part.frame.columns) - (3 if part.table == "gpu_samples" else 2)
    assert made.frame.get_column("t").dt.epoch("ms").sum() == sum(
        round(_epoch_s(r["timestamp"]) * 1000) for r in rows
    )
    if part.table == "gpu_samples":
        assert made.frame.select("node", "gpu").rows() == [
            (r["hostname"], r["gpu_id"]) for r in rows
        ]


def test_one_busy_gpu_on_a_shared_node(recorded: Path) -> None:
    (chunk,) = _read(
        [recorded / "nersc_perlmutter" / "job_51906088.json"], SiteOptions(cluster="perlmutter")
    )
    samples, allocations = map(_conformed, chunk.parts)
    busy = samples.frame.group_by("gpu").agg(pl.col("gr_engine_active").max()).sort("gpu")
    assert busy.get_column("gr_engine_active").to_list()[2] == pytest.approx(0.99993, abs=1e-5)
    assert busy.get_column("gr_engine_active").drop_nulls().to_list()[3] < 0.01
    (held,) = allocations.frame.to_dicts()
    assert {name: value for name, value in held.items() if value is not None} == {
        "cluster": "perlmutter", "job_id": "51906088", "node": "nid001912", "provenance": "node_list",
    }  # fmt: skip


def test_the_folder_of_exports(recorded: Path) -> None:
    chunks = {Path(chunk.origin).name: chunk for chunk in _read([recorded / "nersc_perlmutter"])}
    assert chunks.keys() == {*TELEMETRY, *JOB_RECORDS, "metrics-data.json"}
    passed_over = {
        name: chunk.parts[0].rejects[0].reason
        for name, chunk in chunks.items()
        if not chunk.rows_read
    }
    assert passed_over == {
        **dict.fromkeys(JOB_RECORDS, "job_records"),
        "metrics-data.json": "no_job_start",
    }
    assert all(not _conformed(part).rejects for chunk in chunks.values() for part in chunk.parts)


def test_means_of_a_job_need_its_start(recorded: Path) -> None:
    path = recorded / "nersc_perlmutter" / "metrics-data.json"
    with pytest.raises(InputError, match=r"46599456.*--job-start 46599456=TIME"):
        _read([path])
    site = SiteOptions(time_zone="America/Los_Angeles")
    (chunk,) = _read([path, "--job-start", "46599456=2025-12-16T17:30"], site)
    rows = json.loads(path.read_text())["46599456"]
    samples, allocation = map(_conformed, chunk.parts)
    start = datetime(2025, 12, 17, 1, 30, tzinfo=UTC)
    assert samples.rejects == ()
    assert samples.frame.get_column("t").to_list() == [
        start + timedelta(seconds=row["Floored Relative Time"]) for row in rows
    ]
    assert set(samples.frame.select("node", "gpu").rows()) == {("job-46599456", 0)}
    busy = samples.frame.filter(pl.col("gpu_util") > 0).get_column("t").min()
    first = next(
        row["Floored Relative Time"] for row in rows if row["nersc_ldms_dcgm_gpu_utilization"] > 0
    )
    assert busy == start + timedelta(seconds=first)
    expected = math.fsum(row["nersc_ldms_dcgm_gpu_utilization"] for row in rows) / 100
    assert samples.frame.get_column("gpu_util").cast(pl.Float64).sum() == pytest.approx(
        expected, rel=1e-6
    )
    held = allocation.frame.select("job_id", "node", "gpu", "provenance").rows()
    assert held == [("46599456", "job-46599456", 0, "explicit")]
    assert (
        _read([path, "--job-start", "2025-12-16T17:30"], site)[0]
        .parts[0]
        .frame.equals(chunk.parts[0].frame)
    )


def test_csv_store(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    path = _csv(
        tmp_path,
        "#Time,Time_usec,ProducerName,component_id,job_id,gpu_id,gpu_utilization,fb_used,nersc_ldms_dcgm_new,fan\n"
        "1776204532.331000,331000,nid001.chn.example.org,17,0,0,45,21756,1,2\n"
        "1776204532.331000,331000,10.0.0.7,18,0,1,4294967295,nan,1,2\n",
    )
    (chunk,) = _read([path])
    assert _lines(chunk) == snapshot
    packed = tmp_path / "store.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert _lines(_read([packed])[0]) == _lines(chunk)


@pytest.mark.parametrize(
    ("seconds", "nodes", "pieces"),
    [
        ([0, 0, 1, 1, 1, 2, 2, 3], "abababab", [2, 3, 3]),
        ([0, 86_399, 86_399, 86_400, 86_401, 86_402], "ababab", [3, 3]),
        ([0, 1, 2, 0, 1, 0, 1, 2], "aaabbccc", [3, 2, 3]),
        ([3, 2, 1, 0, 3, 2, 1, 0], "aaaaaaaa", [4, 4]),
    ],
    ids=["times", "days", "nodes", "neither"],
)
def test_pieces_end_where_a_day_a_time_or_a_node_does(
    tmp_path: Path, seconds: list[int], nodes: str, pieces: list[int]
) -> None:
    frame = pl.DataFrame(
        {"timestamp": [1776211200 + s for s in seconds], "hostname": list(nodes), "gpu": 0}
    )
    path = tmp_path / "samples.parquet"
    frame.with_columns(power_w=pl.int_range(pl.len())).write_parquet(path)
    chunks = list(read_file(path, LdmsOptions(rows=4)))
    assert [chunk.rows_read for chunk in chunks] == pieces
    assert [v for c in chunks for v in c.parts[0].frame.get_column("power_w")] == list(
        range(len(seconds))
    )


def test_parquet_in_chunks_keeps_types_and_names_of_chunks(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    rows = 10
    frame = pl.DataFrame(
        {
            "index": range(rows),
            "ts_ns": [1776204532_000_000_000 + i * 10**10 for i in range(rows)],
            "hostname": ["nid001"] * rows,
            "gpu_id": [i % 2 for i in range(rows)],
            "nersc_ldms_dcgm_sm_active": pl.Series([i / 16 for i in range(rows)], dtype=pl.Float32),
            "modelName": ["NVIDIA A100-SXM4-80GB"] * rows,
            "UUID": [f"GPU-{i % 2}" for i in range(rows)],
        }
    )
    frame.write_parquet(path, row_group_size=2)
    chunks = list(read_file(path, LdmsOptions(rows=4)))
    # The last of four may share its time with the next.
    assert [chunk.rows_read for chunk in chunks] == [3, 3, 4]
    assert [chunk.id.rpartition(":")[2] for chunk in chunks] == ["0", "3", "6"]
    assert len({chunk.id for chunk in chunks}) == 3
    assert [chunk.id for chunk in read_file(path, LdmsOptions(rows=4))] == [
        chunk.id for chunk in chunks
    ]
    samples = pl.concat(chunk.parts[0].frame for chunk in chunks)
    assert samples.schema["sm_active"] == pl.Float32
    assert samples.get_column("sm_active").to_list() == [i / 16 for i in range(rows)]
    assert samples.get_column("t").dt.epoch("s").to_list() == [
        1776204532 + 10 * i for i in range(rows)
    ]
    devices = _conformed(chunks[0].parts[1])
    assert devices.frame.select("node", "gpu", "uuid", "model").sort("gpu").rows() == [
        ("nid001", gpu, f"GPU-{gpu}", "NVIDIA A100-SXM4-80GB") for gpu in (0, 1)
    ]


def test_local_times_are_one_chunk_over_the_repeated_hour(tmp_path: Path) -> None:
    path = tmp_path / "local.parquet"
    utc = [datetime(2026, 10, 25, 0, 10, tzinfo=UTC) + timedelta(minutes=20 * i) for i in range(6)]
    wall = [(t + timedelta(hours=2 if t.hour < 1 else 1)).replace(tzinfo=None) for t in utc]
    columns = {"timestamp": wall, "node": ["n"] * 6, "gpu": [0] * 6, "power_w": [1.0] * 6}
    pl.DataFrame(columns).write_parquet(path)
    (chunk,) = read_file(path, LdmsOptions(zone_name="Europe/Berlin", rows=2))
    assert chunk.parts[0].frame.get_column("t").to_list() == utc


def test_times_that_cannot_be_read_cost_the_row_and_are_counted_once(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = _csv(
        tmp_path,
        "timestamp,hostname,gpu_id,power_usage\n2026-03-29 02:30:00,n,0,1\n"
        "2026-03-29 03:30:00,n,0,2\nsoon,n,0,3\n,n,0,4\n",
    )
    (chunk,) = _read([path, "--time-zone", "Europe/Berlin"])
    assert _lines(chunk) == snapshot
    with pytest.raises(ConfigError, match="Mars"):
        _read([path, "--time-zone", "Mars/Olympus"])


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("when,hostname,gpu_id,power_usage", "no time column.*it has: when, hostname"),
        ("timestamp,where,gpu_id,power_usage", "no node column"),
        ("timestamp,hostname,component_id,power_usage", "no GPU column"),
        ("timestamp,hostname,gpu_id,fan", "no column is a counter.*tachograph ingest table"),
        ("JobID,User,Start Time,State", "job records"),
    ],
)
def test_a_missing_column_is_named(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        _read([_csv(tmp_path, f"{header}\n1776204532,n,0,1\n")])
    parquet = tmp_path / "a.parquet"
    pl.DataFrame({name: [1] for name in header.split(",")}).write_parquet(parquet)
    with pytest.raises(InputError, match=said):
        _read([parquet])


def test_json_that_holds_no_samples(tmp_path: Path) -> None:
    path = _csv(tmp_path, '{"version": 1, "settings": {}}', "package.json")
    with pytest.raises(InputError, match="its keys are: version, settings"):
        _read([path])
    (chunk,) = _read([tmp_path])
    assert [(r.reason, r.count) for r in chunk.parts[0].rejects] == [("no_rows", 1)]


def test_damaged_files_end_the_reading_even_in_a_folder(tmp_path: Path) -> None:
    _csv(tmp_path, "PAR1 and then nothing", "a.parquet")
    with pytest.raises(InputError, match="cut off"):
        _read([tmp_path])
    with pytest.raises(InputError, match="no such file"):
        _read([tmp_path / "absent.csv"])
    with pytest.raises(InputError, match="empty"):
        _read([_csv(tmp_path, "", "empty.csv")])


def test_power_of_the_node_beside_the_gpus(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    path = _csv(
        tmp_path, "ts,node,gpu,power_w,node_power\n1776204532,n,0,1,640\n1776204532,n,1,2,640\n"
    )
    assert _lines(_read([path])[0]) == snapshot
