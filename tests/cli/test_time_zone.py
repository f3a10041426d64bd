"""`--time-zone` on every command: the zone of times written without one, in place of
`site.time_zone`.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from in_process import run_here
from tachograph.catalog.tables import TABLES
from tachograph.catalog.units import zone
from tachograph.lake.delta import Lake

SACCT = (
    "JobID|Submit|Start|End|State|NodeList|AllocTRES\n"
    "7|2026-07-01T10:00:00|2026-07-01T12:00:00|2026-07-01T13:00:00|COMPLETED|n1|gres/gpu=1\n"
)
MAP = "job_id,node,gpu,start,end\n7,n1,0,2026-07-01T12:00:00,2026-07-01T13:00:00\n"
TABLE = "time,host,gpu,util\n2026-07-01 12:00:00,n1,0,50\n"
MAPPING = (
    'table = "gpu_samples"\ntime.column = "time"\nnode.column = "host"\ngpu.column = "gpu"\n'
    '[columns]\nutil = { to = "gpu_util", unit = "percent" }\n'
)
PAGE = '# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} 50\n'


def run(folder: Path, *words: str, **environment: str) -> str:
    done = run_here(words, folder, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def first_time(folder: Path, table: str, column: str) -> str:
    moment: Any = Lake.open(str(folder / "L")).latest(TABLES[table])[column][0]
    return f"{moment:%H:%M}"


@pytest.mark.parametrize(
    ("words", "table", "column"),
    [
        (("sacct", "sacct.txt"), "jobs", "start"),
        (("allocation-map", "map.csv"), "allocations", "start"),
        (("table", "table.csv", "--mapping", "mapping.toml"), "gpu_samples", "t"),
        (("dcgm-exporter", "page.prom", "--time", "2026-07-01T12:00:00"), "gpu_samples", "t"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_sources_read_times_in_it(
    tmp_path: Path, words: tuple[str, ...], table: str, column: str
) -> None:
    for name, text in (
        ("sacct.txt", SACCT),
        ("map.csv", MAP),
        ("table.csv", TABLE),
        ("page.prom", PAGE),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "mapping.toml").write_text(MAPPING)
    (tmp_path / "tachograph.toml").write_text('[site]\ntime_zone = "Asia/Tokyo"\n')
    run(tmp_path, "ingest", *words, "--lake", "L", "--time-zone", "Europe/Berlin")
    assert first_time(tmp_path, table, column) == "10:00"


def test_the_default_is_that_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    (tmp_path / "tachograph.toml").write_text('[site]\ntime_zone = "Asia/Tokyo"\n')
    run(tmp_path, "ingest", "sacct", "sacct.txt", "--lake", "L")
    assert first_time(tmp_path, "jobs", "start") == "03:00"


def test_filters_and_the_time_of_an_analysis_are_read_in_it(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    # 10 to 11 UTC.
    run(tmp_path, "ingest", "sacct", "sacct.txt", "--lake", "L", "--time-zone", "Europe/Berlin")
    run(
        tmp_path,
        "analyze",
        "--lake",
        "L",
        "--as-of",
        "2026-07-01T14:00",
        "--time-zone",
        "Europe/Berlin",
    )
    since = ("jobs", "--lake", "L", "--since", "2026-07-01T12:30", "--json")
    assert len(json.loads(run(tmp_path, *since, "--time-zone", "Europe/Berlin"))) == 1
    assert json.loads(run(tmp_path, *since)) == []
    assert "12:00" in run(tmp_path, "jobs", "--lake", "L", "--time-zone", "Europe/Berlin")


def test_an_unknown_zone_is_named(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    done = run_here(
        ("ingest", "sacct", "sacct.txt", "--lake", "L", "--time-zone", "Mars/Base"), tmp_path, {}
    )
    assert "unknown time zone 'Mars/Base'" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("name", ["Europe/Berln", "localtime", "posixrules", "posix/UTC", "../UTC"])
@pytest.mark.parametrize("option", ["--once", "--check"])
def test_collect_refuses_a_zone_that_it_cannot_read_times_in(
    name: str, option: str, tmp_path: Path
) -> None:
    text = f'[site]\ntime_zone = "{name}"\n[[sources]]\nsource = "sacct"\nevery = "60s"\n'
    (tmp_path / "tachograph.toml").write_text(text)
    done = run_here(["collect", option, "--lake", "L"], tmp_path, {})
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"tachograph: tachograph.toml: site.time_zone: unknown time zone {name!r}; use an IANA "
        "name such as Europe/Berlin, America/Los_Angeles or UTC\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tachograph.toml"]


@pytest.mark.parametrize("name", ["Europe/Berlin", "UTC", "Etc/GMT+5", "EST5EDT", "US/Pacific"])
def test_zones_of_iana_are_those_of_columns_of_times(name: str) -> None:
    assert str(zone(name)) == name
    noon = pl.Series(["2026-07-01T12:00:00"]).str.to_datetime(time_unit="us")
    assert noon.dt.replace_time_zone(name)[0] == datetime(2026, 7, 1, 12, tzinfo=zone(name))
