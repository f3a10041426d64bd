"""Proposed mappings: typical recordings can be read with what is proposed for them, and give
what they say.
"""

from __future__ import annotations

import gzip
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

from row_lines import frame_lines
from tachograph.catalog.counters import COUNTERS_BY_NAME
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.sources import ldms
from tachograph.sources.table import read_file
from tachograph.sources.table.mapping import parse
from tachograph.sources.table.names import counter_meaning
from tachograph.sources.table.suggest import suggest

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _fed_back(path: Path) -> tuple[str, pl.DataFrame]:
    """Table and conformed rows of a file read by the mapping proposed for it."""
    proposed = suggest(path)
    assert not proposed.missing
    (chunk,) = read_file(
        path, parse(proposed.text, node="login1" if "--node NAME" in proposed.text else None)
    )
    part = chunk.parts[0]
    return part.table, conform(part.frame, TABLES[part.table], now=NOW, units=part.units).frame


def _csv(folder: Path, text: str) -> Path:
    path = folder / "recording.csv"
    path.write_text(text, encoding="utf-8")
    return path


RECORDINGS: Mapping[str, str] = {
    "nvidia-smi": (
        "timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W], "
        "temperature.gpu\n"
        "2026/04/23 04:47:50.551, 0, NVIDIA A100, 45 %, 1024 MiB, 123.40 W, 40\n"
        "2026/04/23 04:47:50.552, 1, NVIDIA A100, 0 %, 3 MiB, [N/A], 33\n"
    ),
    "names of DCGM, milliseconds since 1970": (
        "Time,Hostname,gpu,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_PROF_SM_ACTIVE,DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION\n"
        "1776919670551,n1.example.org,GPU-2,45,0.33,5000\n"
    ),
    "a column per GPU, decimal commas, days before months": (
        "time;host;gpu0_util;gpu1_util;gpu0_mem_gib;gpu1_mem_gib;fan\n"
        "23.04.2026 04:47:50;n1;45,5;12,0;1,5;2,0;1\n"
    ),
    "a value per row, the column of fields called as that of names": (
        "name,time,host,gpu_id,field,value\n"
        "smi,1776919670,n1,0,DCGM_FI_DEV_GPU_UTIL,45\nsmi,1776919670,n1,0,fan,5\n"
        "smi,1776919670,n1,0,DCGM_FI_DEV_POWER_USAGE,145\n"
    ),
    "percent by its values": "time,util\n1776919670,97\n1776919680,0\n",
    "quotes in names": 'time,gpu,"GPU ""A"" util\\x",util [%]\n1776919670,0,1,50\n',
    "jobs": (
        "job_id,user,node_num,gpu_num,state,submit_time,start_time,end_time,queue,duration,gpu_time\n"
        "a1,u1,1,8,COMPLETED,2023-03-01 10:00:00,2023-03-01 10:00:30,2023-03-01 11:00:30,30,60,28800\n"
        "a2,u2,4,32,FAILED,2023-03-01 12:00:00,2023-03-01 12:05:00,2023-03-01 13:05:00,300,60,115200\n"
        "a3,u2,0,0,CANCELLED,2023-03-01 12:00:00,,2023-03-01 13:05:00,3900,,0\n"
    ),
}


@pytest.mark.parametrize("what", RECORDINGS)
def test_a_recording_is_read_by_what_is_proposed(
    what: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = _csv(tmp_path, RECORDINGS[what])
    assert f"{suggest(path).text}\n{frame_lines(_fed_back(path)[1])}" == snapshot


@pytest.mark.parametrize(
    "name",
    [
        "job_51906088.json",
        "pmt-export-gpu-power-51567294.json",
        "pmt-export-node-power-51567294.json",
    ],
)
def test_recorded_exports_come_back_as_by_their_own_source(recorded: Path, name: str) -> None:
    path = recorded / "nersc_perlmutter" / name
    table, frame = _fed_back(path)
    part = next(iter(ldms.read_file(path))).parts[0]
    assert table == part.table
    assert frame.equals(conform(part.frame, TABLES[table], now=NOW, units=part.units).frame)


@pytest.mark.parametrize(
    "name", ["bf16", "device-copy", "fp64-vector", "host-copy", "tiny-kernels"]
)
def test_recorded_columns_of_the_contract_are_proposed_as_they_are(
    recorded: Path, name: str
) -> None:
    path = recorded / "h100_day" / "samples" / f"{name}.parquet"
    stored = pl.read_parquet(path)
    columns = tomllib.loads(suggest(path).text)["columns"]
    counters = {column for column in stored.columns if column in COUNTERS_BY_NAME}
    assert {name: target["to"] for name, target in columns.items()} == {
        name: name for name in counters
    }


def test_what_is_known_is_proposed_where_something_is_missing(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """A commented line for each part that is missing, in a mapping that is TOML."""
    machine = "machine,Util (%),Power [W],memory_used_pct\nn1,50,200,5\nn1,55,201,6\n"
    for text in (
        machine,
        "time,gpu,fan,power\n1776919670,0,1,241500\n",
        "time,gpu,name,util\n1776919670,0,train.py,50\n",
        "time,gpu,name,uuid,util\n1776919670,0,NVIDIA L40S,GPU-1,50\n",
    ):
        proposed = suggest(_csv(tmp_path, text), zone_name="Europe/Berlin")
        assert tomllib.loads(proposed.text)
        assert "\n".join([*proposed.missing, proposed.text]) == snapshot
    given = suggest(_csv(tmp_path, "time,gpu,util\n1776919670,0,50\n"), node="n7").text
    assert '[node]\nconstant = "n7"' in given
    with pytest.raises(InputError, match="no rows"):
        suggest(_csv(tmp_path, "time,util\n"))


PHYSICS: Mapping[
    str, tuple[str, tuple[float, float], Mapping[str, float]]
] = {  # {name without a unit: (counter, truth at two times of one GPU, units it may be written in)}
    "power": ("power_w", (95.0, 412.5), {"W": 1, "kW": 1e-3, "mW": 1e3, "share": 1 / 700}),
    "temp": ("gpu_temp_c", (35.0, 71.0), {"C": 1, "share": 1 / 90, "mC": 1e3}),
    "mem used": (
        "hbm_used_mib",
        (4.0, 40125.0),
        {"MiB": 1, "GiB": 2**-10, "B": 2**20, "KiB": 2**10},
    ),
    "sm clock": ("sm_clock_mhz", (210.0, 1980.0), {"MHz": 1, "GHz": 1e-3, "kHz": 1e3}),
    "util": ("gpu_util", (0.02, 0.97), {"fraction": 1, "percent": 100}),
    "energy": ("energy_j", (1e6, 1e6 + 2000), {"J": 1, "mJ": 1e3, "kJ": 1e-3}),
}


@pytest.mark.parametrize(
    ("name", "unit"), [(name, unit) for name, planted in PHYSICS.items() for unit in planted[2]]
)
def test_a_value_is_right_or_not_proposed(name: str, unit: str, tmp_path: Path) -> None:
    """The unit is not in the name: what the proposal reads is the truth, or nothing."""
    counter, truth, scales = PHYSICS[name]
    scale = scales[unit]
    rows = "".join(
        f"{1776919670 + 10 * index},0,{round(value * scale, 9)!r},5{index}\n"
        for index, value in enumerate(truth)
    )
    path = _csv(tmp_path, f"time,gpu,{name},mem util\n{rows}")
    text = suggest(path, node="n1").text
    (chunk,) = read_file(path, parse(text))
    part = chunk.parts[0]
    frame = conform(part.frame, TABLES[part.table], now=NOW, units=part.units).frame
    if counter in part.frame.columns:
        assert frame[counter].to_list() == pytest.approx(truth)
    else:
        assert f"{name} (" in text.partition("# not recognised: ")[2]
    usual = next(iter(scales))
    assert (counter in part.frame.columns) == (unit in (usual, "percent", "mJ"))


def test_a_capacity_is_no_memory_in_use(tmp_path: Path) -> None:
    head = "timestamp,index,memory,memory.total,memory.used,util\n"
    rows = "".join(f"2026-03-01 10:00:0{t},0,81559,81559,{4 + t % 2},5{t}\n" for t in range(4))
    written = tomllib.loads(suggest(_csv(tmp_path, head + rows), node="n1").text)
    assert list(written["columns"]) == ["memory.used", "util"]
    assert written["devices"] == {"memory.total": "hbm_mib"}
    alone = suggest(_csv(tmp_path, "time,memory_total,util\n1776919670,81559,50\n"), node="n1")
    assert list(tomllib.loads(alone.text)["columns"]) == ["util"]


@pytest.mark.parametrize(
    ("header", "first", "second", "why"),
    [
        (
            "memory.used,memory.total",
            "90000,81559",
            "4,81559",
            "more than the capacity, 81,559 MiB",
        ),
        ("memory.used,model", "82800,H100 PCIe", "4,H100 PCIe", "more than the capacity, 81,920"),
        ("mem used,fan", "300000,1", "4,1", "more than the largest GPU has"),
        ("memory.total,fan", "79.6,1", "79.6,1", "no capacity in MiB"),
        ("energy,fan", "5000,1", "4000,1", "it decreases, so it is not a counter"),
        ("energy_mj,fan", "5000,1", "6000,1", "it grows by 0.05 W: no energy of a GPU in mJ"),
        ("power,fan", "1.99,1", "1,1", "too small for W"),
    ],
)
def test_what_contradicts_physics_is_left_with_the_reason(
    header: str, first: str, second: str, why: str, tmp_path: Path
) -> None:
    text = (
        f"time,gpu,util,{header}\n1776919670,0,50,{first}\n1776919680,0,51,{second}\n"
        f"1776919690,0,51,{second}\n"
    )
    proposed = suggest(_csv(tmp_path, text), node="n1").text
    name = header.partition(",")[0]
    assert f"{name} (" in proposed
    assert why in proposed
    assert name not in tomllib.loads(proposed)["columns"]


@pytest.mark.parametrize(
    ("values", "is_open"), [("0 0", True), ("0 1", True), ("0 2", False), ("0 0.5", False)]
)
def test_a_share_of_zeros_and_ones_is_left_to_a_person(
    values: str, is_open: bool, tmp_path: Path
) -> None:
    rows = "".join(f"{1776919670 + t},0,{value},200\n" for t, value in enumerate(values.split()))
    proposed = suggest(_csv(tmp_path, f"time,gpu,util,power\n{rows}"), node="n1")
    assert ("util" in tomllib.loads(proposed.text)["columns"]) is not is_open
    assert any("percent, or a fraction?" in what for what in proposed.missing) is is_open


def test_a_second_column_of_one_meaning_is_named_with_it(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "time,node,gpu,uuid,gpu_uuid,utilization.gpu,gpu_util\n"
        "2026-04-23T10:00:00Z,n1,0,GPU-a,GPU-a,50,51\n"
        "2026-04-23T10:00:10Z,n1,0,GPU-a,GPU-a,60,61\n",
    )
    proposed = suggest(path).text
    assert '"uuid" = "uuid"' in proposed
    assert "# not recognised: gpu_uuid (also uuid), gpu_util (also gpu_util)\n" in proposed
    (chunk,) = read_file(path, parse(proposed))
    samples = next(part for part in chunk.parts if part.table == "gpu_samples")
    counted = {(one.reason, one.column, one.count, one.example) for one in samples.rejects}
    assert counted == {
        ("same_meaning", "gpu_uuid", 2, "uuid"),
        ("same_meaning", "gpu_util", 2, "gpu_util"),
    }


def test_numbers_of_rows_are_no_gpus(tmp_path: Path) -> None:
    rows = "".join(f"{1776919670 + 10 * n // 2},{n},n{n % 2},5\n" for n in range(80))
    proposed = suggest(_csv(tmp_path, f"time,index,host,util\n{rows}"))
    assert (
        "gpu" not in tomllib.loads(proposed.text)
        or "column" not in tomllib.loads(proposed.text)["gpu"]
    )


@pytest.mark.parametrize(
    ("header", "cells", "expected"),
    [
        ("queue", "gpu", '"queue" = "partition"'),
        ("No. of GPUs", "4", '"No. of GPUs" = "gpus"'),
        ("duration", "1:00:00", '"duration" = { to = "elapsed_s", unit = "duration" }'),
        ("duration", "1", '"duration" = { to = "elapsed_s", scale = 3600.0 }'),
        ("submit", "1776930000", "submit (start is before submit)"),
        ("nodelist", "2", "nodelist (numbers up to 2: no node_list)"),
    ],
)
def test_values_decide_what_a_column_of_jobs_is(
    header: str, cells: str, expected: str, tmp_path: Path
) -> None:
    text = f"job_id,start,end,{header}\n7,1776919670,1776923270,{cells}\n"
    assert expected in suggest(_csv(tmp_path, text)).text


SACCT = (
    "JobID|State|Submit|Start|End|NodeList\n"
    "7|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|n1\n"
)
CONTROLLER = '{"jobs": [{"job_id": 7, "job_state": ["RUNNING"], "start_time": 1776919670}]}'


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (SACCT, "jobs.txt", "this is sacct output; tachograph ingest sacct "),
        (SACCT.replace("|", ","), "jobs.csv", "this is sacct output; tachograph ingest sacct "),
        (CONTROLLER, "q.json", "this is output of squeue or scontrol; tachograph ingest alloc"),
        ("JobId=7 JobName=x\n", "s.txt", "this is scontrol output; tachograph ingest alloc"),
    ],
)
def test_accounting_goes_to_the_source_that_reads_it(
    text: str, name: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as problem:
        suggest(path)
    assert said in str(problem.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SACCT.replace("NodeList", "GPUs"), "a count that is no field of sacct.csv"),
        (SACCT.replace("T00:00:00", " midnight"), "times that sacct does not write.csv"),
        (SACCT.replace("7|", "a7|"), "ids that Slurm does not give.csv"),
        (
            '{"jobs": [{"job_id": "a7", "start": 1776919670, "end": 1776919680}]}',
            "records that are called jobs.json",
        ),
        ("time,node,gpu,job_id,util\n1776919670,n1,0,7,50\n", "samples with a job.csv"),
    ],
)
def test_what_is_like_accounting_remains_a_table(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert "table = " in suggest(path).text


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet"])
def test_all_names_of_a_long_file_are_read(tmp_path: Path, suffix: str) -> None:
    """A file that is sorted by metric: the names come one after the other."""
    step = pl.int_range(3_000, eager=True)
    frame = pl.concat(
        pl.DataFrame(
            {
                "ts": 1776919670 + step,
                "host": "n1",
                "gpu": step % 2,
                "metric": name,
                "value": 1e6 + step,
            }
        )
        for name in ("FAN", "DCGM_FI_DEV_GPU_UTIL", "mem_used_bytes", "pcie_tx_bytes_s", "power_mw")
    )
    path = tmp_path / f"long{suffix}"
    if suffix == ".parquet":
        frame.write_parquet(path)
    else:
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    assert list(tomllib.loads(suggest(path).text)["columns"]) == [
        "mem_used_bytes",
        "pcie_tx_bytes_s",
        "power_mw",
    ]
    assert (
        "DCGM_FI_DEV_GPU_UTIL (values up to 1.003e+06: too large for percent)" in suggest(path).text
    )


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("PCIe TX (MB/s)", ("pcie_tx_bytes_per_s", "MB/s")),
        ("pcie_rx_kib_per_second", ("pcie_rx_bytes_per_s", "KiB/s")),
        ("energy_joules_total", ("energy_j", "J")),
        ("sm_active_pct", ("sm_active", "percent")),
        ("gpuUtilPercent", ("gpu_util", "percent")),
        ("nvidia_smi_power_draw_watts", ("power_w", "W")),
        ("temp [degC]", ("gpu_temp_c", "C")),
        ("Temperature (Sensor memory) (C)", ("mem_temp_c", "C")),
        ("nvlink_tx_bytes_total", None),  # a counter of bytes is no rate
        ("max_power_w", None),
        ("power.limit [W]", None),
        ("job_name", None),
    ],
)
def test_words_for_counters(name: str, known: tuple[str, str] | None) -> None:
    assert counter_meaning(name) == known
