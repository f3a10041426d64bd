"""Tables by a mapping: invented recordings of every shape."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.sources.table import add_options, read, read_file
from tachograph.sources.table.mapping import parse
from tachograph.sources.table.suggest import suggest

NOW = datetime(2026, 11, 21, tzinfo=UTC)
Reasons = set[tuple[str, str | None, int]]


def _made(
    path: Path, mapping: str, site: SiteOptions | None = None
) -> tuple[pl.DataFrame, Reasons, int]:
    """Conformed rows, reasons of removal, rows read."""
    mapping_path = path.with_suffix(".toml")
    mapping_path.write_text(mapping)
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args([str(path), "--mapping", str(mapping_path)])
    (chunk,) = read(options, configuration=Configuration(site=site or SiteOptions()), now=NOW)
    (part,) = chunk.parts
    done = conform(part.frame, TABLES[part.table], now=NOW, units=part.units, origin=chunk.origin)
    total: Counter[tuple[str, str | None]] = Counter()
    for reject in (*part.rejects, *done.rejects):
        total[reject.reason, reject.column] += reject.count
    return done.frame, {(*key, count) for key, count in total.items()}, chunk.rows_read


def _csv(folder: Path, text: str) -> Path:
    path = folder / "recording.csv"
    path.write_text(text)
    return path


def test_a_german_spreadsheet(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "# Auszug\nZeit;Rechner;Karte;GPU Util [%];Leistung\n"
        "25.10.2026 02:20:00;gpu-01.uni.example;GPU-3;0;1\n"
        "25.10.2026 02:50:00;gpu-01.uni.example;GPU-3;45,5;1.234,5\n"
        "25.10.2026 02:10:00;gpu-01.uni.example;GPU-3;-;200\n"
        "29.03.2026 02:30:00;gpu-02;GPU-0;1;1\n"
        "25.10.2026 03:10:00;gpu-01;Karte;1;1\n",
    )
    frame, reasons, read_rows = _made(
        path,
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
    )
    assert frame.select("t", "node", "gpu", "gpu_util", "power_w").rows() == [
        (datetime(2026, 10, 25, 0, 20, tzinfo=UTC), "gpu-01", 3, 0.0, 1.0),
        (
            datetime(2026, 10, 25, 0, 50, tzinfo=UTC),
            "gpu-01",
            3,
            pytest.approx(0.455),
            pytest.approx(1234.5),
        ),
        (datetime(2026, 10, 25, 1, 10, tzinfo=UTC), "gpu-01", 3, None, pytest.approx(200.0)),
    ]
    assert reasons == {
        ("nonexistent_time", None, 1),
        ("no_match", None, 1),
        ("missing_mark", "gpu_util", 1),
    }
    assert read_rows == 5


def test_cells_with_units_hexadecimal_and_marks(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "timestamp, index, util, mem, power, why\n"
        "2026/04/23 04:47:50.551, 0, 45 %, 1.5 GiB, 123.40 W, 0x0000000000000044\n"
        "2026/04/23 04:47:51.551, 0, 0.5%, 512 MiB, [Not Supported], 4\n"
        "2026/04/23 04:47:52.551, 0, 12 W, x, 140737488355328, 0x1\n",
    )
    frame, reasons, _ = _made(
        path,
        """
        time.column = "timestamp"
        node.constant = "login1.example"
        gpu.column = "index"
        columns.util = "gpu_util"
        columns.mem = "hbm_used_mib"
        columns.power = "power_w"
        columns.why = "throttle_reasons"
        """,
    )
    assert frame.get_column("gpu_util").to_list() == [
        pytest.approx(0.45),
        pytest.approx(0.005),
        None,
    ]
    assert frame.get_column("hbm_used_mib").to_list() == [1536.0, 512.0, None]
    assert frame.get_column("power_w").to_list() == [pytest.approx(123.4), None, None]
    assert frame.get_column("throttle_reasons").to_list() == [0x44, 4, 1]
    assert frame.get_column("t").dt.millisecond().to_list() == [551] * 3
    assert reasons == {
        ("wrong_unit", "gpu_util", 1),
        ("not_a_number", "hbm_used_mib", 1),
        ("missing_mark", "power_w", 2),  # one by the reader, DCGM's number by the schema
    }


def test_one_column_per_gpu(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "t,n,gpu0_util,gpu1_util,gpu10_util,gpu1_w,total\n1776204532,a,10,20,30,100,1\n1776204542,a,,,50,,1\n",
    )
    frame, reasons, read_rows = _made(
        path,
        """
        time.column = "t"
        node.column = "n"
        [columns]
        "gpu{gpu}_util" = { to = "gpu_util", unit = "percent" }
        "gpu1_w" = { to = "power_w", gpu = 1 }
        """,
    )
    rows = frame.select(
        pl.col("t").dt.epoch("s"), "gpu", pl.col("gpu_util").round(3).cast(pl.Float64), "power_w"
    ).sort("t", "gpu")
    assert [(t, g, u and round(u, 3), w) for t, g, u, w in rows.rows()] == [
        (1776204532, 0, 0.1, None),
        (1776204532, 1, 0.2, 100.0),
        (1776204532, 10, 0.3, None),
        (1776204542, 10, 0.5, None),
    ]
    assert (reasons, read_rows) == ({("unmapped_column", "total", 2)}, 2)


LONG = """
time.column = "ts"
node.column = "host"
gpu.column = "gpu"
metric = { column = "metric", value = "value" }
columns.UTIL = { to = "gpu_util", unit = "percent" }
columns.POWER = "power_w"
"""


def test_one_value_per_row(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "ts,host,gpu,metric,value\n1776204532,a,0,UTIL,45\n1776204532,a,0,POWER,100\n1776204532,a,1,POWER,N/A\n"
        "1776204542,a,0,UTIL,50\n1776204542,a,0,UTIL,60\n1776204542,a,0,FAN,7\nx,a,0,UTIL,1\n",
    )
    frame, reasons, read_rows = _made(path, LONG)
    assert frame.select(pl.col("t").dt.epoch("s"), "gpu", "gpu_util", "power_w").rows() == [
        (1776204532, 0, pytest.approx(0.45), 100.0),
        (1776204532, 1, None, None),
        (1776204542, 0, pytest.approx(0.6), None),
    ]
    assert reasons == {
        ("repeated_value", "gpu_util", 1),
        ("missing_mark", "power_w", 1),
        ("unreadable_time", None, 1),
        ("unmapped_metric", "FAN", 1),
    }
    assert read_rows == 7


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


def test_facts_of_gpus_beside_their_samples(tmp_path: Path) -> None:
    """One row per GPU, with what was last said; wide and long."""
    path = _csv(
        tmp_path,
        "ts,n,g,w,card,id\n1776204532,a,0,1,A100,\n1776204533,a,0,2,,u0\n1776204533,a,1,2,A100,N/A\n",
    )
    mapping = "time.column='ts'\nnode.column='n'\ngpu.column='g'\ncolumns.w='power_w'\ndevices={card='model',id='uuid'}"
    (chunk,) = read_file(path, parse(mapping))
    samples, devices = chunk.parts
    assert (samples.table, samples.frame.height, devices.table) == ("gpu_samples", 3, "devices")
    assert devices.frame.select("node", pl.col("gpu").cast(pl.Int16), "model", "uuid").sort(
        "gpu"
    ).rows() == [
        ("a", 0, "A100", "u0"),
        ("a", 1, "A100", None),
    ]
    path = _csv(
        tmp_path,
        "ts,host,gpu,metric,value,card\n1776204532,a,0,UTIL,45,H100\n1776204532,a,0,POWER,100,H100\n",
    )
    (chunk,) = read_file(path, parse(LONG + "devices.card = 'model'"))
    assert [(part.table, part.frame.height, part.rows_used) for part in chunk.parts] == [
        ("gpu_samples", 1, 2),
        ("devices", 1, None),
    ]
    assert not any(part.rejects for part in chunk.parts)


def test_long_files_over_the_repeated_hour(tmp_path: Path) -> None:
    """Each counter is written on its own, so the rows of each follow one another, not the rows
    of the file.
    """
    wall = ["02:20", "02:50", "02:10", "02:40"]
    lines = [f"2026-10-25 {w}:00,a,0,{metric},1" for metric in ("UTIL", "POWER") for w in wall]
    path = _csv(tmp_path, "ts,host,gpu,metric,value\n" + "\n".join(lines) + "\n")
    frame, _, _ = _made(path, LONG, SiteOptions(time_zone="Europe/Berlin"))
    assert frame.get_column("t").dt.strftime("%H:%M").to_list() == [
        "00:20",
        "00:50",
        "01:10",
        "01:40",
    ]
    assert frame.get_column("power_w").null_count() == 0


def test_jobs_of_another_scheduler(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "id,owner,began,ended,took,state,alone,quota\n"
        "7,ann,2026-07-01 12:00,2026-07-01 13:00,01:00:00,CANCELLED by 12,yes,2\n"
        "8,ben,2026-07-01 12:00,Unknown,1-00:00:00,running,no,60\n"
        "9,cem,2026-07-01 12:00,later,00:10,done,perhaps,1\n",
    )
    frame, reasons, _ = _made(
        path,
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
        SiteOptions(cluster="big"),
    )
    start = datetime(2026, 7, 1, 19, tzinfo=UTC)
    assert frame.select(
        "cluster", "job_id", "start", "end", "elapsed_s", "state", "exclusive", "timelimit_s"
    ).rows() == [
        ("big", "7", start, datetime(2026, 7, 1, 20, tzinfo=UTC), 3600.0, "CANCELLED", True, 120.0),
        ("big", "8", start, None, 86400.0, "RUNNING", False, 3600.0),
    ]
    assert ("unreadable_time", None, 1) in reasons
    assert ("missing_mark", "end", 1) not in reasons


def test_jobs_are_found_by_their_node_lists(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "id,began,ended,hosts,gpus,state\n"
        '7,2026-07-01 12:00,2026-07-01 13:00,"n[1-2],login.example.org",4,DONE\n'
        "8,2026-07-01 12:00,,n3,,RUNNING\n"
        "9,2026-07-01 12:00,,n3,0,RUNNING\n"
        "10,,,n3,1,RUNNING\n"
        "11,2026-07-01 12:00,,n[3-1],1,RUNNING\n"
        "12,2026-07-01 12:00,,n3,1,PENDING\n"
        "13,2026-07-01 12:00,,None assigned,1,CANCELLED\n",
    )
    mapping = parse("""
        table = "jobs"
        [columns]
        id = "job_id"
        began = "start"
        ended = "end"
        hosts = "node_list"
        gpus = "gpus"
        state = "state"
    """)
    (chunk,) = read_file(path, mapping, cluster="big")
    jobs, held = chunk.parts
    assert held.table == "allocations"
    start, end = (datetime(2026, 7, 1, hour, tzinfo=UTC) for hour in (12, 13))
    rows = conform(held.frame, TABLES["allocations"], now=NOW).frame
    assert rows.select("cluster", "job_id", "node", "gpu", "start", "end", "provenance").rows() == [
        *(("big", "7", node, None, start, end, "node_list") for node in ("n1", "n2", "login")),
        ("big", "8", "n3", None, start, None, "node_list"),
    ]
    counted = [(reject.reason, reject.column, reject.count) for reject in jobs.rejects]
    assert ("bad_node_list", "node_list", 1) in counted


def test_parquet_devices_and_allocations(tmp_path: Path) -> None:
    path = tmp_path / "inventory.parquet"
    pl.DataFrame(
        {"h": ["a.x.org"], "i": [3.0], "m": ["H100"], "gb": [80.0], "job": [51.0]}
    ).write_parquet(path)
    keys = "node.column = 'h'\ngpu.column = 'i'\n"
    devices, _, _ = _made(
        path,
        (
            f"table = 'devices'\n{keys}columns.m = 'model'\ncolumns.gb = {{ to = 'hbm_mib', unit = "
            "'GiB' }"
        ),
    )
    assert devices.select("node", "gpu", "model", "hbm_mib").rows() == [("a", 3, "H100", 81920.0)]
    held, _, _ = _made(path, f"table = 'allocations'\n{keys}columns.job = 'job_id'")
    assert held.select("job_id", "node", "gpu", "provenance").rows() == [("51", "a", 3, "explicit")]


def test_json_records_under_a_key(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"result": {"rows": [{"t": 1776204532, "u": 0.5}, {"t": 1776204542}]}}')
    keys = "time.column = 't'\nnode.constant = 'n'\ngpu.constant = 2\ncolumns.u = 'gpu_util'\n"
    frame, _, _ = _made(path, keys + "records = 'result.rows'")
    assert frame.select("gpu", "gpu_util").rows() == [(2, 0.5), (2, None)]
    for records, said in (
        ("result", "its keys are: rows"),
        ("results", "no key 'results'.*it has: result"),
    ):
        with pytest.raises(InputError, match=said):
            _made(path, keys + f"records = '{records}'")


def test_missing_columns_are_named_with_those_there_are(tmp_path: Path) -> None:
    path = _csv(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError, match=r"no column 't', 'gpu\{gpu\}'; it has: a, b"):
        _made(path, "time.column = 't'\nnode.column = 'a'\n[columns]\n'gpu{gpu}' = 'power_w'")


NAMED_JOBS = """time,host,gpu,JobID,step,metric,value
1741082400,n1,0,7.0,0,gpu_util,50
1741082400,n1,0,7.0,0,power_w,200
1741082410,n1,0,7.0,1,gpu_util,60
1741082420,n1,0,7.0,1,gpu_util,60
1741082420,n1,1,N/A,,gpu_util,5
"""


def test_jobs_and_steps_that_samples_name(tmp_path: Path) -> None:
    mapping = parse(suggest(_csv(tmp_path, NAMED_JOBS)).text)
    (chunk,) = read_file(tmp_path / "recording.csv", mapping, cluster="home")
    samples, held = chunk.parts
    assert (samples.table, samples.frame.height, held.table) == ("gpu_samples", 4, "allocations")
    assert "job" not in samples.frame.columns
    begin = datetime(2025, 3, 4, 10, tzinfo=UTC)
    rows = conform(held.frame, TABLES["allocations"], now=datetime.now(UTC)).frame
    assert rows.select("cluster", "job_id", "step", "node", "gpu", "start", "end").rows() == [
        ("home", "7", "0", "n1", 0, begin, begin.replace(second=10)),
        ("home", "7", "1", "n1", 0, begin.replace(second=10), begin.replace(second=30)),
    ]


def test_units_may_differ_between_the_columns_of_one_counter(tmp_path: Path) -> None:
    path = _csv(tmp_path, "t,a,b,c\n1776204532,50,0.5,50 %\n")
    for order in ("a b c", "b a c", "c b a"):
        entries = {
            "a": "{ to = 'gpu_util', unit = 'percent', gpu = 0 }",
            "b": "{ to = 'gpu_util', gpu = 1 }",
            "c": "{ to = 'gpu_util', gpu = 2 }",
        }
        columns = "\n".join(f"columns.{name} = {entries[name]}" for name in order.split())
        frame, reasons, _ = _made(path, f"time.column = 't'\nnode.constant = 'n'\n{columns}")
        assert frame.get_column("gpu_util").to_list() == [pytest.approx(0.5)] * 3
        assert reasons == set()


def test_node_and_gpu_in_the_name(tmp_path: Path) -> None:
    path = _csv(tmp_path, "t,n1/0,n1/1,n2/0\n1776204532,1,2,3\n")
    frame, _, _ = _made(path, "time.column = 't'\n[columns]\n'{node}/{gpu}' = 'power_w'")
    assert sorted(frame.select("node", "gpu", "power_w").rows()) == [
        ("n1", 0, 1.0),
        ("n1", 1, 2.0),
        ("n2", 0, 3.0),
    ]
