"""Proposed mappings: typical recordings can be read with what is proposed for them, and give
what they say.
"""

from __future__ import annotations

import gzip
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
    (chunk,) = read_file(
        path, parse(proposed.text, node="login1" if "--node NAME" in proposed.text else None)
    )
    part = chunk.parts[0]
    return part.table, conform(part.frame, TABLES[part.table], now=NOW, units=part.units).frame


def _csv(folder: Path, text: str) -> Path:
    path = folder / "recording.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # nvidia-smi
            (
                "timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw "
                "[W], temperature.gpu\n"
                "2026/04/23 04:47:50.551, 0, NVIDIA A100, 45 %, 1024 MiB, 123.40 W, 40\n"
                "2026/04/23 04:47:50.552, 1, NVIDIA A100, 0 %, 3 MiB, [N/A], 33\n"
            ),
            {
                "gpu": [0, 1],
                "gpu_util": [0.45, 0.0],
                "hbm_used_mib": [1024.0, 3.0],
                "power_w": [123.4, None],
            },
        ),
        (  # names of DCGM, milliseconds since 1970
            (
                "Time,Hostname,gpu,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_PROF_SM_ACTIVE,DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION\n"
                "1776919670551,n1.example.org,GPU-2,45,0.33,5000\n"
            ),
            {
                "node": ["n1"],
                "gpu": [2],
                "gpu_util": [0.45],
                "sm_active": [0.33],
                "energy_j": [5.0],
            },
        ),
        (  # a column per GPU, decimal commas, days before months
            (
                "time;host;gpu0_util;gpu1_util;gpu0_mem_gib;gpu1_mem_gib;fan\n23.04.2026 "
                "04:47:50;n1;45,5;12,0;1,5;2,0;1\n"
            ),
            {"gpu": [0, 1], "gpu_util": [0.455, 0.12], "hbm_used_mib": [1536.0, 2048.0]},
        ),
        (  # a value per row, and the column of fields called as that of names
            (
                "name,time,host,gpu_id,field,value\n"
                "smi,1776919670,n1,0,DCGM_FI_DEV_GPU_UTIL,45\nsmi,1776919670,n1,0,fan,5\n"
                "smi,1776919670,n1,0,DCGM_FI_DEV_POWER_USAGE,145\n"
            ),
            {"gpu": [0], "gpu_util": [0.45], "power_w": [145.0]},
        ),
        (  # no unit: percent by its values
            "time,util\n1776919670,97\n1776919680,0\n",
            {"gpu": [0, 0], "gpu_util": [0.97, 0.0]},
        ),
        (
            'time,gpu,"GPU ""A"" util\\x",util [%]\n1776919670,0,1,50\n',
            {"gpu": [0], "gpu_util": [0.5]},
        ),
    ],
)
def test_a_recording_is_read_by_what_is_proposed(
    text: str, expected: dict[str, list[object]], tmp_path: Path
) -> None:
    table, frame = _fed_back(_csv(tmp_path, text))
    assert table == "gpu_samples"
    for column, values in expected.items():
        found = frame.sort("gpu").get_column(column)
        assert found.to_list() == [
            pytest.approx(value) if isinstance(value, float) else value for value in values
        ]


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


def test_what_is_known_is_proposed_where_something_is_missing(tmp_path: Path) -> None:
    """A commented line for each part that is missing, in a mapping that is TOML."""
    proposed = suggest(
        _csv(tmp_path, "machine,Util (%),Power [W],memory_used_pct\nn1,50,200,5\nn1,55,201,6\n")
    )
    assert [what.split(";")[0] for what in proposed.missing] == [
        "no column looks like a time",
        "no column is the number of a GPU, and rows are of several",
    ]
    assert tomllib.loads(proposed.text) == {
        "table": "gpu_samples", "time": {}, "node": {"column": "machine"}, "gpu": {},
        "columns": {"Util (%)": {"to": "gpu_util", "unit": "percent"}, "Power [W]": {"to": "power_w"}},
    }  # fmt: skip
    assert '# column = "..."  # no column looks like a time' in proposed.text
    assert "# not recognised: memory_used_pct (percent cannot be MiB)\n" in proposed.text
    proposed = suggest(
        _csv(tmp_path, "time,gpu,fan,power\n1776919670,0,1,241500\n"), zone_name="Europe/Berlin"
    )
    assert "no column looks like a counter; it has: time, gpu, fan, power" in proposed.missing
    assert '[columns]\n# "fan" = "..."\n# "power" = "..."\n' in proposed.text
    assert 'zone = "Europe/Berlin"\n' in proposed.text
    with pytest.raises(InputError, match="no rows"):
        suggest(_csv(tmp_path, "time,util\n"))


def test_models_are_facts_of_gpus(tmp_path: Path) -> None:
    assert (
        "devices"
        not in suggest(_csv(tmp_path, "time,gpu,name,util\n1776919670,0,train.py,50\n")).text
    )
    text = suggest(
        _csv(tmp_path, "time,gpu,name,uuid,util\n1776919670,0,NVIDIA L40S,GPU-1,50\n"), node="n7"
    ).text
    assert '[devices]\n"name" = "model"\n"uuid" = "uuid"\n' in text
    assert '[node]\nconstant = "n7"' in text


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
