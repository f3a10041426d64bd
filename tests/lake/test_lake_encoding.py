"""Compacted samples: every bit as it was, smaller than before, readable by others, nothing left
lying about.
"""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from lake_rows import START

from tachograph.catalog.tables import GPU_SAMPLES, JOB_MINUTES, NODE_SAMPLES, LakeTable
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.store import write_compact

ODD = (0.0, -0.0, 1e-45, -1e-38, 3.4028235e38, 0.1, 1 / 3, 16777217.0)


def _folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _bits(frame: pl.DataFrame) -> list[list[object]]:
    """Values by column, numbers as the bytes they are: -0.0 is not 0.0."""
    found: list[list[object]] = []
    for column in frame.get_columns():
        form = "<f" if column.dtype == pl.Float32 else "<d" if column.dtype == pl.Float64 else ""
        values = column.to_list()
        found.append(
            [struct.pack(form, value) if form and value is not None else value for value in values]
        )
    return found


def _exporter_rows(hours: float, *, gpus: int = 2) -> pl.DataFrame:
    """GPUs every 10 s as an exporter prints them: ratios with six decimals, bytes and
    millijoules whole.
    """
    rng = np.random.default_rng(5)
    steps = int(hours * 360)
    pieces = []
    for gpu in range(gpus):
        power = np.round(rng.uniform(80, 400, steps), 3)
        pieces.append(
            pl.DataFrame(
                {
                    "t": [START + timedelta(seconds=10 * step) for step in range(steps)],
                    "node": "n1",
                    "gpu": gpu,
                    "gpu_util": rng.integers(0, 101, steps) / 100,
                    "sm_active": np.round(rng.random(steps), 6),
                    "pcie_rx_bytes_per_s": rng.integers(10**7, 10**9, steps),
                    "power_w": power,
                    "energy_j": np.round(np.cumsum(power * 10) * 1000) / 1000 + 3e8,
                    "hbm_used_mib": np.repeat(rng.integers(0, 81920, steps // 100 + 1), 100)[
                        :steps
                    ],
                    "xid": 0,
                    "seq": 1,
                }
            )
        )
    return _in_schema(pl.concat(pieces), GPU_SAMPLES)


def _in_schema(frame: pl.DataFrame, table: LakeTable) -> pl.DataFrame:
    missing = [
        pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in table.schema.items()
        if name not in frame
    ]
    return frame.with_columns(missing).select(
        pl.col(name).cast(dtype) for name, dtype in table.schema.items()
    )


@pytest.mark.parametrize(
    "table", [GPU_SAMPLES, NODE_SAMPLES, JOB_MINUTES], ids=lambda table: table.name
)
def test_every_bit_is_read_back(table: LakeTable, tmp_path: Path) -> None:
    """Odd numbers, nulls between them, columns of nulls alone; every type that a table of days
    has.
    """
    values: dict[str, list[Any]] = {}
    for place, (name, dtype) in enumerate(table.schema.items()):
        if dtype.is_float() and place % 5:
            values[name] = [
                None if (row + place) % 7 == 0 else ODD[(row + place) % len(ODD)]
                for row in range(500)
            ]
        elif dtype.is_integer() and place % 4:
            values[name] = [
                None if row % 11 == place % 11 else (row * 7919) % 30000 - 15000
                for row in range(500)
            ]
        elif dtype == pl.String:
            values[name] = [f"nid{row // 100:03d}" for row in range(500)]
        elif isinstance(dtype, pl.Datetime):
            values[name] = [START + timedelta(microseconds=row * 9_999_991) for row in range(500)]
        else:
            values[name] = [None] * 500
    frame = pl.DataFrame(
        [pl.Series(name, values[name], dtype=dtype) for name, dtype in table.schema.items()]
    )
    file = write_compact(frame, table, _folder(tmp_path / "made"), row_group_rows=1 << 17)
    again = pl.read_parquet(file, hive_partitioning=False).select(*table.schema)
    assert again.schema == frame.schema
    assert _bits(again) == _bits(frame)


def test_compaction_makes_samples_smaller(tmp_path: Path) -> None:
    """The file after compaction is smaller than the same rows as they were appended, by a
    twentieth at least.
    """
    lake = Lake.create(str(tmp_path / "lake"))
    rows = _exporter_rows(12, gpus=8)
    half = rows.height // 2
    lake.append(GPU_SAMPLES, rows.drop("seq"), app_id="whole")
    one = sum(file.size for file in lake.files(GPU_SAMPLES))
    split = Lake.create(str(tmp_path / "split"))
    for number, piece in enumerate((rows[:half], rows[half:], rows[:10])):
        split.append(GPU_SAMPLES, piece.drop("seq"), app_id=str(number))
    compact(split, [GPU_SAMPLES])
    files = split.files(GPU_SAMPLES)
    assert all(
        (tmp_path / "split" / "gpu_samples" / file.path).stat().st_size == file.size
        for file in files
    )
    assert sum(file.size for file in files) < one * 19 / 20
    assert (
        split.scan(GPU_SAMPLES)
        .drop("seq")
        .collect()
        .sort("gpu", "t")
        .equals(rows.drop("seq").sort("gpu", "t"))
    )


def test_duckdb_reads_what_was_compacted(tmp_path: Path) -> None:
    """Another program's own reader finds the same sums."""
    rows = _exporter_rows(3)
    file = write_compact(rows, GPU_SAMPLES, _folder(tmp_path / "made"), row_group_rows=1 << 22)
    query = (
        "SELECT count(*), sum(energy_j), sum(sm_active::DOUBLE), max(t)::VARCHAR FROM "
        "read_parquet(?)"
    )
    found = duckdb.execute(query, [str(file)]).fetchone()
    assert found is not None
    assert found[0] == rows.height
    assert found[1] == pytest.approx(rows["energy_j"].sum(), rel=1e-12)
    assert found[2] == pytest.approx(rows["sm_active"].cast(pl.Float64).sum(), rel=1e-12)
