"""Proposed mappings: typical recordings can be read with what is proposed for them, and give what they say."""

from __future__ import annotations

import gzip
import json
import tomllib
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
from tachograph.sources.table.names import counter_meaning
from tachograph.sources.table.suggest import suggest

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _fed_back(path: Path) -> tuple[str, pl.DataFrame]:
    """Table and conformed rows of a file read by the mapping proposed for it."""
    proposed = suggest(path)
    assert not proposed.missing
    (chunk,) = read_file(path, parse(proposed.text, node="login1" if "--node NAME" in proposed.text else None))
    part = chunk.parts[0]
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
    assert suggest(path).text.endswith('[devices]\n"name" = "model"\n')
    assert "ingest with --node NAME" in suggest(path).text
    assert '[node]\nconstant = "n7"' in suggest(path, node="n7").text


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
    assert 'encoding = "latin-1"' in suggest(path).text
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


def test_no_header_line_leaves_columns_open(tmp_path: Path) -> None:
    path = _csv(tmp_path, "2026-04-23 04:47:50,n1,0,45\n2026-04-23 04:48:00,n1,0,46\n")
    proposed = suggest(path)
    assert "no column looks like a counter; it has: c1, c2, c3, c4" in proposed.missing
    assert 'names = ["c1", "c2", "c3", "c4"]' in proposed.text
    assert '[columns]\n# "c1" = "..."' in proposed.text
    completed = proposed.text.replace('# "c4" = "..."', '"c4" = "power_w"')
    completed = completed.replace('# column = "..."  # no column looks like a time', 'column = "c1"')
    completed = completed.replace('# column = "..."  # no column is the number', "constant = 0 #")
    (chunk,) = read_file(path, parse(completed, node="n"))
    assert chunk.parts[0].frame.get_column("power_w").to_list() == [45.0, 46.0]


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
    assert 'to = "gpu_util" }  # no value is above 1' in suggest(util).text
    days = _csv(tmp_path, "time,gpu,util\n03/04/2026 10:00:00,0,40\n")
    assert "undetermined by the values" in suggest(days).text


def test_what_is_known_is_proposed_where_something_is_missing(tmp_path: Path) -> None:
    """A commented line for each part that is missing, in a mapping that is TOML."""
    rows = "n1,50,200\nn1,55,201\n"
    proposed = suggest(_csv(tmp_path, "machine,Util (%),Power [W]\n" + rows))
    assert [what.split(";")[0] for what in proposed.missing] == [
        "no column looks like a time",
        "no column is the number of a GPU, and rows are of several",
    ]
    assert tomllib.loads(proposed.text) == {
        "table": "gpu_samples", "time": {}, "node": {"column": "machine"}, "gpu": {},
        "columns": {"Util (%)": {"to": "gpu_util", "unit": "percent"}, "Power [W]": {"to": "power_w"}},
    }  # fmt: skip
    assert '# column = "..."  # no column looks like a time' in proposed.text


def test_rows_are_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        suggest(_csv(tmp_path, "time,util\n"))


def _sorted_by_metric(rows: int) -> pl.DataFrame:
    names = ["FAN", "DCGM_FI_DEV_GPU_UTIL", "gpu_temp_celsius", "mem_used_bytes", "pcie_tx_bytes_s", "power_mw"]
    step = pl.int_range(rows, eager=True)
    return pl.concat(
        pl.DataFrame({"ts": 1776919670 + step, "host": "n1", "gpu": step % 2, "metric": name, "value": 1e6 + step})
        for name in names
    )


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".json"])
def test_all_names_of_a_long_file_are_read(tmp_path: Path, suffix: str) -> None:
    """A file that is sorted by metric: the names come one after the other."""
    frame = _sorted_by_metric(3_000)
    path = tmp_path / f"long{suffix}"
    if suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".json":
        path.write_text(json.dumps(frame.to_dicts()))
    else:
        text = frame.write_csv().encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    found = tomllib.loads(suggest(path).text)
    assert list(found["columns"]) == ["mem_used_bytes", "pcie_tx_bytes_s", "power_mw"]
    assert "DCGM_FI_DEV_GPU_UTIL (values up to 1,002,999: too large for percent)" in suggest(path).text


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("nvlink_rx_bytes_s", ("nvlink_rx_bytes_per_s", "B/s")),
        ("PCIe TX (MB/s)", ("pcie_tx_bytes_per_s", "MB/s")),
        ("pcie_rx_kib_per_second", ("pcie_rx_bytes_per_s", "KiB/s")),
        ("Energy_mJ", ("energy_j", "mJ")),
        ("energy_joules_total", ("energy_j", "J")),
        ("SM Clock MHz", ("sm_clock_mhz", "MHz")),
        ("sm_active_pct", ("sm_active", "percent")),
        ("tensor_active_ratio", ("tensor_active", "fraction")),
        ("GPU Utilization (%)", ("gpu_util", "percent")),
        ("gpuUtilPercent", ("gpu_util", "percent")),
        ("nvidia_smi_power_draw_watts", ("power_w", "W")),
        ("POWER_W", ("power_w", "W")),
        ("powerMilliwatts", ("power_w", "mW")),
        ("temp [degC]", ("gpu_temp_c", "C")),
        ("memory_used_gib", ("hbm_used_mib", "GiB")),
        ("fb_used_bytes", ("hbm_used_mib", "B")),
        ("pcie_replays_total", ("pcie_replays", "")),
        ("Average Graphics Package Power (W)", ("power_w", "W")),
        ("Temperature (Sensor memory) (C)", ("mem_temp_c", "C")),
        ("nvlink_tx_bytes_total", None),  # a counter of bytes is no rate
        ("max_power_w", None),
        ("power.limit [W]", None),
        ("fan_speed_pct", None),
        ("job_name", None),
    ],
)
def test_words_for_counters(name: str, known: tuple[str, str] | None) -> None:
    assert counter_meaning(name) == known


@pytest.mark.parametrize(
    ("column", "values", "line"),
    [
        ("util", (0, 97), 'unit = "percent" }  # by its values: values up to 97'),
        ("gpu_util", (0, 97), 'unit = "percent" }  # not fraction, as the name says: values up to 97'),
        ("util_ratio", (0, 0.5), 'to = "gpu_util" }\n'),
        ("util_pct", (0, 0.5), "# no value is above 1: values up to 0.5; a fraction?"),
        ("power", (60_000, 241_500), 'unit = "mW" }  # by its values: values up to 241,500'),
        ("mem_used", (0, 80e9), 'unit = "B" }  # by its values: values up to 80,000,000,000'),
        ("sm_clock", (1.2e9, 1.41e9), 'unit = "Hz" }  # by its values'),
        ("util", (0, 4500), '# "util" = "..."  # values up to 4,500: no unit fits'),
        ("memory", (0, 50), '# "memory" = "..."  # values up to 50: MiB, GiB or percent?'),
        ("memory_used_pct", (0, 50), '# "memory_used_pct" = "..."  # percent cannot be MiB'),
    ],
)
def test_a_unit_that_values_decide_says_so(tmp_path: Path, column: str, values: tuple[float, float], line: str) -> None:
    path = _csv(tmp_path, f"time,gpu,{column}\n1776919670,0,{values[0]}\n1776919680,0,{values[1]}\n")
    assert line in suggest(path).text


def test_whether_it_is_a_fraction_is_decided_by_many_rows(tmp_path: Path) -> None:
    """A GPU that is idle at first, and busy later."""
    lines = [f"{1776919670 + row},0,{0 if row < 900 else 88}" for row in range(1000)]
    path = _csv(tmp_path, "time,gpu,util\n" + "\n".join(lines) + "\n")
    assert 'unit = "percent" }  # by its values: values up to 88' in suggest(path).text


def test_an_inventory_becomes_devices(tmp_path: Path) -> None:
    path = _csv(tmp_path, "hostname,GPU,GPU model,UUID,Memory Total [GiB]\nn1,0,NVIDIA H100 PCIe,GPU-1,80\n")
    table, frame = _fed_back(path)
    assert table == "devices"
    assert frame.select("node", "gpu", "model", "uuid", "hbm_mib").rows() == [
        ("n1", 0, "NVIDIA H100 PCIe", "GPU-1", 81920.0)
    ]


def test_a_name_is_a_model_where_its_values_are(tmp_path: Path) -> None:
    text = suggest(_csv(tmp_path, "time,gpu,name,util\n1776919670,0,train.py,50\n")).text
    assert "devices" not in text
    text = suggest(_csv(tmp_path, "time,gpu,name,util\n1776919670,0,NVIDIA L40S,50\n")).text
    assert '[devices]\n"name" = "model"' in text


def test_indices_between_words(tmp_path: Path) -> None:
    """A process's own records of all its GPUs; what is not recognised is listed once per name."""
    head = "_timestamp,system.gpu.0.powerWatts,system.gpu.1.powerWatts,system.gpu.0.odd,system.gpu.1.odd,system.cpu"
    table, frame = _fed_back(_csv(tmp_path, head + "\n1776919670.5,300,310,1,2,12\n"))
    assert (table, frame.select("gpu", "power_w").rows()) == ("gpu_samples", [(0, 300.0), (1, 310.0)])
    proposed = suggest(_csv(tmp_path, "Time,n1 GPU 0,n1 GPU 1\n2026-04-23 10:00:00,5%,6%\n"))
    assert '[columns]\n# "n1 GPU {gpu}" = "..."\n' in proposed.text
    assert "[gpu]" not in proposed.text


def test_the_column_of_fields_is_that_of_metrics(tmp_path: Path) -> None:
    """`name` holds the name of the measurement, the same in all rows."""
    rows = [f"smi,{1776919670 + t},n7,{g},{f},{v}" for t in (0, 9) for g in (0, 1) for f, v in (("power_draw", 210),)]
    table, frame = _fed_back(_csv(tmp_path, "\n".join(["name,time,host,index,_field,_value", *rows]) + "\n"))
    assert (table, frame.height, frame.get_column("power_w").unique().to_list()) == ("gpu_samples", 4, [210.0])


def test_a_list_of_jobs_without_start(tmp_path: Path) -> None:
    proposed = suggest(_csv(tmp_path, "JobID,User,NodeList,State\n1,ann,n1,COMPLETED\n"))
    assert proposed.missing == ("no column is the start of a job",)
    assert '"NodeList" = { to = "node_list" }\n' in proposed.text


def test_the_zone_of_the_command_line_is_written(tmp_path: Path) -> None:
    path = _csv(tmp_path, "time,gpu,util\n2026-04-23 10:00:00,0,50\n")
    assert 'zone = "Europe/Berlin"\n' in suggest(path, zone_name="Europe/Berlin").text


def test_strange_names_are_quoted(tmp_path: Path) -> None:
    path = _csv(tmp_path, 'time,gpu,"GPU ""A"" util\\x",util [%]\n1776919670,0,1,50\n')
    _, frame = _fed_back(path)
    assert frame.get_column("gpu_util").to_list() == [0.5]
