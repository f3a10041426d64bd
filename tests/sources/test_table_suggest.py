"""Proposed mappings: typical recordings can be read with what is proposed for them, and give what they say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.sources import ldms
from tachograph.sources.table import read_file
from tachograph.sources.table.mapping import parse
from tachograph.sources.table.suggest import suggest

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _fed_back(path: Path) -> tuple[str, pl.DataFrame]:
    """Table and conformed rows of a file read by the mapping proposed for it."""
    (chunk,) = read_file(path, parse(suggest(path)))
    (part,) = chunk.parts
    return part.table, conform(part.frame, TABLES[part.table], now=NOW, units=part.units).frame


def _csv(folder: Path, text: str | bytes) -> Path:
    path = folder / "recording.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_nvidia_smi_query(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W], temperature.gpu\n"
        "2026/04/23 04:47:50.551, 0, NVIDIA A100, 45 %, 1024 MiB, 123.40 W, 40\n"
        "2026/04/23 04:47:50.552, 1, NVIDIA A100, 0 %, 3 MiB, [N/A], 33\n",
    )
    table, frame = _fed_back(path)
    assert table == "gpu_samples"
    assert frame.select("gpu", "gpu_util", "hbm_used_mib", "power_w", "gpu_temp_c").rows() == [
        (0, pytest.approx(0.45), 1024.0, pytest.approx(123.4), 40.0),
        (1, 0.0, 3.0, None, 33.0),
    ]
    assert "# not recognised: name" in suggest(path)


def test_dcgm_names(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "Time,Hostname,gpu,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_PROF_SM_ACTIVE,DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION\n"
        "1776919670551,n1.example.org,2,45,0.33,5000\n",
    )
    _, frame = _fed_back(path)
    assert frame.select("t", "node", "gpu", "gpu_util", "sm_active", "energy_j").rows() == [
        (datetime(2026, 4, 23, 4, 47, 50, 551000, tzinfo=UTC), "n1", 2, pytest.approx(0.45), pytest.approx(0.33), 5.0)
    ]


@pytest.mark.parametrize(
    "name", ["job_51906088.json", "pmt-export-compute-51567294.json", "pmt-export-gpu-power-51567294.json",
             "pmt-export-node-power-51567294.json"],
)  # fmt: skip
def test_recorded_exports_come_back_as_by_their_own_source(recorded: Path, name: str) -> None:
    path = recorded / "nersc_perlmutter" / name
    table, frame = _fed_back(path)
    part = next(iter(ldms.read_file(path))).parts[0]
    assert table == part.table
    assert frame.equals(conform(part.frame, TABLES[table], now=NOW, units=part.units).frame)


def test_one_column_per_gpu_with_decimal_commas(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "time;host;gpu0_util;gpu1_util;gpu0_mem_used_gib;gpu1_mem_used_gib;Lüfter\n"
        "23.04.2026 04:47:50;n1;45,5;12,0;1,5;2,0;1\n".encode("latin-1"),
    )
    assert 'encoding = "latin-1"' in suggest(path)
    _, frame = _fed_back(path)
    assert frame.select("node", "gpu", "gpu_util", "hbm_used_mib").rows() == [
        ("n1", 0, pytest.approx(0.455), 1536.0),
        ("n1", 1, pytest.approx(0.12), 2048.0),
    ]


def test_one_value_per_row(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "ts,host,gpu_id,metric,value\n1776919670,n1,0,DCGM_FI_DEV_GPU_UTIL,45\n1776919670,n1,0,fan,5\n"
        "1776919670,n1,0,DCGM_FI_DEV_POWER_USAGE,145\n",
    )
    _, frame = _fed_back(path)
    assert frame.select("gpu_util", "power_w").rows() == [(pytest.approx(0.45), 145.0)]


def test_no_header_line_asks_for_names(tmp_path: Path) -> None:
    path = _csv(tmp_path, "2026-04-23 04:47:50,n1,0,45\n2026-04-23 04:48:00,n1,0,46\n")
    with pytest.raises(InputError, match=r"no column looks like a counter.*c1, c2, c3, c4"):
        suggest(path)


def test_jobs(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "JobID|User|Start|End|Elapsed|State|Comment\n12|ann|2026-04-23T10:00:00|Unknown|01:00:00|RUNNING|x\n",
    )
    table, frame = _fed_back(path)
    assert table == "jobs"
    assert frame.select("job_id", "user", "start", "end", "elapsed_s", "state").rows() == [
        ("12", "ann", datetime(2026, 4, 23, 10, tzinfo=UTC), None, 3600.0, "RUNNING")
    ]


def test_parquet_by_contract_names(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame(
        {"t": [datetime(2026, 4, 23, tzinfo=UTC)], "node": ["n"], "gpu": [1], "gpu_util": [0.5], "power_w": [99.0]}
    ).write_parquet(path)
    _, frame = _fed_back(path)
    assert frame.select("node", "gpu", "gpu_util", "power_w").rows() == [("n", 1, 0.5, 99.0)]


def test_what_cannot_be_judged_is_said(tmp_path: Path) -> None:
    util = _csv(tmp_path, "time,gpu,util\n1776919670,0,0.4\n")
    assert 'to = "gpu_util" }  # no value is above 1' in suggest(util)
    days = _csv(tmp_path, "time,gpu,util\n03/04/2026 10:00:00,0,40\n")
    assert "undetermined by the values" in suggest(days)


@pytest.mark.parametrize(
    ("text", "said"), [("a,b\n1,2\n", "no column looks like a time; it has: a, b"), ("time,util\n", "no rows")]
)
def test_nothing_to_propose(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        suggest(_csv(tmp_path, text))


def test_strange_names_are_quoted(tmp_path: Path) -> None:
    path = _csv(tmp_path, 'time,gpu,"GPU ""A"" util\\x",util [%]\n1776919670,0,1,50\n')
    _, frame = _fed_back(path)
    assert frame.get_column("gpu_util").to_list() == [0.5]
