"""Tables by a mapping: invented recordings of every shape."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

from row_lines import frame_lines
from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.sources.table import add_options, read, read_file
from tachograph.sources.table.mapping import parse
from tachograph.sources.table.suggest import suggest

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _made(path: Path, mapping: str, site: SiteOptions | None = None) -> str:
    """Conformed rows of each table, reasons of removal, rows read."""
    mapping_path = path.with_suffix(".toml")
    mapping_path.write_text(mapping)
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args([str(path), "--mapping", str(mapping_path)])
    (chunk,) = read(options, configuration=Configuration(site=site or SiteOptions()), now=NOW)
    found = [f"{chunk.rows_read} read"]
    for part in chunk.parts:
        table = TABLES[part.table]
        done = conform(part.frame, table, now=NOW, units=part.units, origin=chunk.origin)
        frame = done.frame.sort(pl.all(), nulls_last=True)
        used = "" if part.rows_used is None else f" of {part.rows_used} rows"
        found.append(f"{part.table}{used}:\n{frame_lines(frame)}")
        found += sorted(
            f"{one.reason} {one.column} {one.count}" for one in (*part.rejects, *done.rejects)
        )
    return "\n".join(found) + "\n"


def _csv(folder: Path, text: str) -> Path:
    path = folder / "recording.csv"
    path.write_text(text)
    return path


LONG = """
time.column = "ts"
node.column = "host"
gpu.column = "gpu"
metric = { column = "metric", value = "value" }
columns.UTIL = { to = "gpu_util", unit = "percent" }
columns.POWER = "power_w"
"""
ONE_UNIT = {"a": "unit = 'percent', gpu = 0", "b": "gpu = 1", "c": "gpu = 2"}

# {what: (file, mapping)}
TABLE_FILES = {
    "a german spreadsheet": (
        (
            "# Auszug\nZeit;Rechner;Karte;GPU Util [%];Leistung\n"
            "25.10.2026 02:20:00;gpu-01.uni.example;GPU-3;0;1\n"
            "25.10.2026 02:50:00;gpu-01.uni.example;GPU-3;45,5;1.234,5\n"
            "25.10.2026 02:10:00;gpu-01.uni.example;GPU-3;-;200\n"
            "29.03.2026 02:30:00;gpu-02;GPU-0;1;1\n"
            "25.10.2026 03:10:00;gpu-01;Karte;1;1\n"
        ),
        """
        delimiter = ";"
        decimal = ","
        comment = "#"
        [time]
        column = "Zeit"
        format = "%d.%m.%Y %H:%M:%S"
        zone = "Europe/Berlin"
        [node]
        column = "Rechner"
        [gpu]
        column = "Karte"
        pattern = 'GPU-(\\d+)'
        [columns]
        "GPU Util [%]" = { to = "gpu_util", unit = "percent" }
        "Leistung" = "power_w"
        """,
    ),
    "units, hexadecimal numbers and marks in cells": (
        (
            "timestamp, index, util, mem, power, why\n"
            "2026/04/23 04:47:50.551, 0, 45 %, 1.5 GiB, 123.40 W, 0x0000000000000044\n"
            "2026/04/23 04:47:51.551, 0, 0.5%, 512 MiB, [Not Supported], 4\n"
            "2026/04/23 04:47:52.551, 0, 12 W, x, 140737488355328, 0x1\n"
        ),
        """
        time.column = "timestamp"
        node.constant = "login1.example"
        gpu.column = "index"
        columns.util = "gpu_util"
        columns.mem = "hbm_used_mib"
        columns.power = "power_w"
        columns.why = "throttle_reasons"
        """,
    ),
    "a column per gpu": (
        (
            "t,n,gpu0_util,gpu1_util,gpu10_util,gpu1_w,total\n"
            "1776204532,a,10,20,30,100,1\n1776204542,a,,,50,,1\n"
        ),
        """
        time.column = "t"
        node.column = "n"
        [columns]
        "gpu{gpu}_util" = { to = "gpu_util", unit = "percent" }
        "gpu1_w" = { to = "power_w", gpu = 1 }
        """,
    ),
    "a value per row": (
        (
            "ts,host,gpu,metric,value\n1776204532,a,0,UTIL,45\n1776204532,a,0,POWER,100\n"
            "1776204532,a,1,POWER,N/A\n1776204542,a,0,UTIL,50\n1776204542,a,0,UTIL,60\n"
            "1776204542,a,0,FAN,7\nx,a,0,UTIL,1\n"
        ),
        LONG,
    ),
    "facts of gpus beside samples": (
        (
            "ts,n,g,w,card,id\n1776204532,a,0,1,A100,\n1776204533,a,0,2,,u0\n"
            "1776204533,a,1,2,A100,N/A\n"
        ),
        (
            "time.column='ts'\nnode.column='n'\ngpu.column='g'\ncolumns.w='power_w'\n"
            "devices={card='model',id='uuid'}"
        ),
    ),
    "facts of gpus beside a value per row": (
        (
            "ts,host,gpu,metric,value,card\n1776204532,a,0,UTIL,45,H100\n"
            "1776204532,a,0,POWER,100,H100\n"
        ),
        LONG + "devices.card = 'model'",
    ),
    # Each counter is written on its own: the rows of each follow one another.
    "a value per row over the repeated hour": (
        "ts,host,gpu,metric,value\n"
        + "".join(
            f"2026-10-25 02:{minute}:00,a,0,{metric},{minute}\n"
            for metric in ("UTIL", "POWER")
            for minute in (20, 50, 10, 40)
        ),
        LONG,
    ),
    "jobs of another scheduler": (
        (
            "id,owner,began,ended,took,state,alone,quota\n"
            "7,ann,2026-07-01 12:00,2026-07-01 13:00,01:00:00,CANCELLED by 12,yes,2\n"
            "8,ben,2026-07-01 12:00,Unknown,1-00:00:00,running,no,60\n"
            "9,cem,2026-07-01 12:00,later,00:10,done,perhaps,1\n"
        ),
        """
        table = "jobs"
        [time]
        zone = "America/Los_Angeles"
        [columns]
        id = "job_id"
        owner = "user"
        began = "start"
        ended = "end"
        took = { to = "elapsed_s", unit = "duration" }
        state = "state"
        alone = "exclusive"
        quota = { to = "timelimit_s", scale = 60.0 }
        """,
    ),
    "jobs with lists of nodes": (
        (
            "id,began,ended,hosts,gpus,state\n"
            '7,2026-07-01 12:00,2026-07-01 13:00,"n[1-2],login.example.org",4,DONE\n'
            "8,2026-07-01 12:00,,n3,,RUNNING\n"
            "9,2026-07-01 12:00,,n3,0,RUNNING\n"
            "10,,,n3,1,RUNNING\n"
            "11,2026-07-01 12:00,,n[3-1],1,RUNNING\n"
            "12,2026-07-01 12:00,,n3,1,PENDING\n"
            "13,2026-07-01 12:00,,None assigned,1,CANCELLED\n"
        ),
        """
        table = "jobs"
        time.zone = "UTC"
        [columns]
        id = "job_id"
        began = "start"
        ended = "end"
        hosts = "node_list"
        gpus = "gpus"
        state = "state"
        """,
    ),
    "gpus of jobs": (
        "h,i,job\na.x.org,3.0,51\n",
        "table='allocations'\nnode.column='h'\ngpu.column='i'\ncolumns.job='job_id'",
    ),
    "node and gpu in the name": (
        "t,n1/0,n1/1,n2/0\n1776204532,1,2,3\n",
        "time.column = 't'\n[columns]\n'{node}/{gpu}' = 'power_w'",
    ),
    **{
        f"columns {order} of one counter in units of their own": (
            "t,a,b,c\n1776204532,50,0.5,50 %\n",
            "time.column = 't'\nnode.constant = 'n'\n"
            + "".join(
                f"columns.{name} = {{ to = 'gpu_util', {ONE_UNIT[name]} }}\n" for name in order
            ),
        )
        for order in ("abc", "bac", "cba")
    },
}


@pytest.mark.parametrize("what", TABLE_FILES)
def test_tables_become_rows_by_their_mapping(
    what: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    content, mapping = TABLE_FILES[what]
    site = SiteOptions(cluster="big", time_zone="Europe/Berlin")
    assert _made(_csv(tmp_path, content), mapping, site) == snapshot


def test_devices_of_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "inventory.parquet"
    pl.DataFrame({"h": ["a.x.org"], "i": [3.0], "m": ["H100"], "gb": [80.0]}).write_parquet(path)
    keys = "node.column = 'h'\ngpu.column = 'i'\ncolumns.m = 'model'\n"
    found = _made(path, f"table='devices'\n{keys}columns.gb = {{ to = 'hbm_mib', unit = 'GiB' }}")
    assert "node='a' gpu=3 model='H100' hbm_mib=81920" in found


def test_json_records_under_a_key(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"result": {"rows": [{"t": 1776204532, "u": 0.5}, {"t": 1776204542}]}}')
    keys = "time.column = 't'\nnode.constant = 'n'\ngpu.constant = 2\ncolumns.u = 'gpu_util'\n"
    assert _made(path, keys + "records = 'result.rows'").count("gpu=2") == 2
    for more, message in (
        ("records = 'result'", "its keys are: rows"),
        ("records = 'results'", "no key 'results'.*it has: result"),
        ("records = 'result.rows'\ncolumns.w = 'power_w'", "no column 'w'; it has: t, u"),
    ):
        with pytest.raises(InputError, match=message):
            _made(path, keys + more)


NAMED_JOBS = """time,host,gpu,JobID,step,metric,value
1741082400,n1,0,7.0,0,gpu_util,50
1741082400,n1,0,7.0,0,power_w,200
1741082410,n1,0,7.0,1,gpu_util,60
1741082420,n1,0,7.0,1,gpu_util,60
1741082420,n1,1,N/A,,gpu_util,5
"""


def test_jobs_and_steps_that_samples_name(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    path = _csv(tmp_path, NAMED_JOBS)
    assert _made(path, suggest(path).text, SiteOptions(cluster="home")) == snapshot


def test_rows_of_metrics_without_a_mapping_are_named_and_all_rows_add_up(tmp_path: Path) -> None:
    """Rows read: used, repeated, rejected for one reason each; the rarest of many names share
    one number.
    """
    others = [f"1776204532,a,0,OTHER{name},1" for name in range(30) for _ in range(30 - name)]
    lines = [
        "1776204532,a,0,UTIL,45",
        "1776204542,b,x,UTIL,1",
        "never,b,x,UTIL,1",
        "1776204532,a,0,,1",
        *others,
    ]
    path = _csv(tmp_path, "ts,host,gpu,metric,value\n" + "\n".join(lines) + "\n")
    (chunk,) = read_file(path, parse(LONG + "gpu.pattern = '^(\\d)$'"))
    (part,) = chunk.parts
    counts = {(reject.reason, reject.column): reject.count for reject in part.rejects}
    assert counts["no_match", None] == 2, "a row without a GPU and without a time counts once"
    assert ("unreadable_time", None) not in counts
    assert counts["no_metric", None] == 1
    assert counts["unmapped_metric", "OTHER0"] == 30
    assert counts["unmapped_metric", None] == sum(range(1, 11)), "of the ten rarest"
    assert (part.frame.height, part.rows_used) == (1, None)
    assert chunk.rows_read == 1 + sum(counts.values())
