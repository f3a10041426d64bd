"""Host samplers of LDMS: columns as the samplers name them, sums over cores, interfaces and
mounts in plain Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import HOST_COUNTERS
from tachograph.catalog.tables import NODE_SAMPLES
from tachograph.lake.conform import conform
from tachograph.sources.columns import HostColumns, host_column_meaning, host_values, sampler_of
from tachograph.sources.ldms import add_options, read

NOW = datetime(2026, 11, 1, tzinfo=UTC)
START_S = 1_772_000_000
Row = Mapping[str, object]


def _csv(file: Path, rows: Sequence[Row]) -> Path:
    """A file as store_csv writes it: its time column is called #Time, its path ends in the
    sampler's schema.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        ",".join(names),
        *(",".join("" if row.get(n) is None else str(row[n]) for n in names) for row in rows),
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


def _base(step: int, node: str, *, late_us: int = 0) -> dict[str, object]:
    """The columns that every set begins with."""
    time = START_S + 10 * step
    return {
        "#Time": f"{time}.{late_us:06d}", "Time_usec": late_us, "ProducerName": f"{node}.chn.example.org",
        "component_id": 7, "job_id": 0, "app_id": 0,
    }  # fmt: skip


def _chunks(*files: Path) -> list[Chunk]:
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args([str(file) for file in files])
    return list(read(options, configuration=Configuration(), now=NOW))


def _node_part(*files: Path) -> ChunkPart:
    (part,) = (
        part for chunk in _chunks(*files) for part in chunk.parts if part.table == "node_samples"
    )
    return part


def _rows(*files: Path) -> list[dict[str, Any]]:
    """The rows of node_samples, conformed, by time and node; columns that are null everywhere
    left out.
    """
    part = _node_part(*files)
    frame = conform(part.frame, NODE_SAMPLES, now=NOW, units=part.units).frame.sort("t", "node")
    return frame.select(
        column for column in frame.get_columns() if column.null_count() < frame.height
    ).to_dicts()


def _time(step: int, *, us: int = 0) -> datetime:
    return datetime.fromtimestamp(START_S + 10 * step, UTC).replace(microsecond=us)


def test_interfaces_are_added_up_without_the_loopback(tmp_path: Path) -> None:
    """`rx_bytes#hsn0`; an interface that a node does not have is empty, and no reason to know
    nothing.
    """
    rows = []
    for step in range(4):
        for node, slow in (("n1", 1), ("n2", 0)):
            sent = {
                "hsn0": 10**15 + step * 997,
                "hsn1": 5 * step,
                "lo": 10**9 * step,
                "eth0": 44 if slow else None,
            }
            ways = (("rx_bytes", 2), ("tx_bytes", 1), ("rx_packets", 3), ("tx_packets", 4))
            counts = {
                f"{name}#{face}": None if value is None else value * scale
                for face, value in sent.items()
                for name, scale in ways
            }
            rows.append({**_base(step, node), **counts, "rx_errs#hsn0": 1})
    part = _node_part(_csv(tmp_path / "procnetdev-1772000000.csv", rows))
    assert [(reject.reason, reject.column) for reject in part.rejects] == [
        ("unknown_column", "rx_errs#hsn0")
    ]
    found = _rows(_csv(tmp_path / "procnetdev-1772000000.csv", rows))
    for place, row in enumerate(found):
        step, slow = divmod(place, 2)
        total = 10**15 + step * 997 + 5 * step + (44 if slow == 0 else 0)
        assert (row["network_tx_bytes"], row["network_rx_bytes"]) == (total, 2 * total)
        assert (row["network_tx_packets"], row["network_rx_packets"]) == (4 * total, 3 * total)


def test_mounts_in_rows_of_their_own_are_added_up(tmp_path: Path) -> None:
    """`lustre_client` writes a set per mount, some microseconds apart; one that is late or
    missing makes no jump.
    """
    rows = []
    for step in range(6):
        for node in ("n1", "n2"):
            for place, mount in enumerate(("scratch-ffff8803", "home-ffff8804")):
                if mount.startswith("home") and (step, node) in {(0, "n1"), (3, "n1"), (5, "n2")}:
                    continue
                moved = {
                    "read_bytes.sum": 1000 * step + place,
                    "write_bytes.sum": 10 * step,
                    "open": 3,
                }
                rows.append(
                    {
                        **_base(step, node, late_us=40 * place),
                        "fs_name": mount[:4],
                        "llite": mount,
                        **moved,
                    }
                )
    found = _rows(_csv(tmp_path / "lustre_client" / "n.csv", rows))
    assert len(found) == 12
    read = {
        (row["node"], (row["t"] - _time(0)).seconds // 10): row["fs_read_bytes"] for row in found
    }
    whole = {(node, step): 2 * 1000 * step + 1 for node in ("n1", "n2") for step in range(6)}
    whole["n1", 0] = 0 + 1001  # its first value instead
    whole["n1", 3] = 3000 + 2001  # the one before instead
    whole["n2", 5] = 5000 + 4001
    assert read == whole
    for node in ("n1", "n2"):
        steps = [read[node, step] for step in range(6)]
        assert steps == sorted(steps)
    times = [row["t"] for row in found if row["node"] == "n1"]
    assert times == [_time(step, us=0 if step in (0, 3) else 40) for step in range(6)]


def test_a_row_per_cpu_beside_the_sum_takes_the_sum(tmp_path: Path) -> None:
    """`procstat2`: records called cpu, cpu0, cpu1; its word for the kernel is `system`."""
    rows = [
        {**_base(step, "n1"), "name": name, "user": user * (step + 1), "system": 50, "idle": 9}
        for step in range(3)
        for name, user in (("cpu", 300), ("cpu0", 100), ("cpu1", 200))
    ]
    found = _rows(_csv(tmp_path / "procstat2", rows))
    assert [row["cpu_user_s"] for row in found] == [3.0, 6.0, 9.0]
    assert [row["cpu_system_s"] for row in found] == [0.5, 0.5, 0.5]
    without = _rows(
        _csv(tmp_path / "b" / "procstat2", [row for row in rows if row["name"] != "cpu"])
    )
    assert [row["cpu_user_s"] for row in without] == [3.0, 6.0, 9.0]
    assert [row["cpu_system_s"] for row in without] == [1.0, 1.0, 1.0]


def test_lustre2_counts_the_mount_and_not_what_is_below_it(tmp_path: Path) -> None:
    """An OSC counts the same bytes again."""
    names = {
        "#llite.scratch": 10,
        "#llite.home": 5,
        "#osc.scratch-OST0000": 10,
        "#mdc.scratch-MDT0000": 1,
    }
    row = {f"client.lstats.read_bytes{suffix}": value for suffix, value in names.items()}
    (found,) = _rows(_csv(tmp_path / "lustre2_client", [{**_base(0, "n1"), **row}]))
    assert found["fs_read_bytes"] == 15


def test_memory_load_and_cache_misses(tmp_path: Path) -> None:
    """KiB become MiB; loads are hundredths where they are whole; processes of papi are added up."""
    memory = {"MemTotal": 263_706_624, "MemFree": 1, "MemAvailable": 52_741_324, "Active(anon)": 5}
    (found,) = _rows(_csv(tmp_path / "meminfo", [{**_base(0, "n1"), **memory}]))
    assert found["memory_total_mib"] == pytest.approx(263_706_624 / 1024)
    assert found["memory_available_mib"] == pytest.approx(52_741_324 / 1024)
    for written, load in ((["150", "6400"], [1.5, 64.0]), (["1.5", "64"], [1.5, 64.0])):
        rows = [
            {**_base(step, "n1"), "load1min": one, "load5min": 1}
            for step, one in enumerate(written)
        ]
        assert [row["load_average"] for row in _rows(_csv(tmp_path / "loadavg", rows))] == load
    papi = {f"PAPI_L1_DCM{place}": 1000 * place for place in range(3)} | {
        "PAPI_L3_TCM[0]": 7,
        "PAPI_L3_TCM[1]": 8,
    }
    (found,) = _rows(_csv(tmp_path / "papi.csv", [{**_base(0, "n1"), **papi}]))
    assert (found["l1_misses"], found["llc_misses"]) == (3000, 15)


@pytest.mark.parametrize(
    "prefix", ["procstat_", "procstat.", "procstat:", "nersc_ldms_procstat_", "LDMS_Procstat_"]
)
def test_names_that_carry_the_sampler(tmp_path: Path, prefix: str) -> None:
    """One file of several samplers needs no telling name."""
    row = {
        f"{prefix}user": 200,
        f"{prefix}sys": 100,
        "meminfo_MemTotal": 1024,
        "rx_bytes#eth0": 5,
        "cpu_power": 90,
    }
    (found,) = _rows(_csv(tmp_path / "all.csv", [{**_base(0, "n1"), **row}]))
    assert (found["cpu_user_s"], found["cpu_system_s"], found["memory_total_mib"]) == (
        2.0,
        1.0,
        1.0,
    )
    assert (found["network_rx_bytes"], found["cpu_power_w"]) == (5, 90)


def test_words_that_mean_other_things_need_their_sampler(tmp_path: Path) -> None:
    """A column `user` may be a person."""
    rows = [{**_base(0, "n1"), "user": "mary", "idle": 1, "MemTotal": 1024}]
    part = _node_part(_csv(tmp_path / "nodes.csv", rows))
    assert {reject.column for reject in part.rejects} == {"user", "idle"}
    assert part.frame.columns == ["t", "node", "memory_total_mib"]


def test_host_columns_beside_gpus_count_once_per_node(tmp_path: Path) -> None:
    """Each GPU's row repeats its node's values: they are not added up over GPUs."""
    rows = [
        {**_base(step, node), "gpu_id": gpu, "nersc_ldms_dcgm_gpu_utilization": 50, "procstat_user": 700 + step,
         "rx_bytes#hsn0": 4, "rx_bytes#hsn1": 5}
        for step in range(2) for node in ("n1", "n2") for gpu in range(4)
    ]  # fmt: skip
    file = _csv(tmp_path / "both.csv", rows)
    (chunk,) = _chunks(file)
    assert {part.table: part.frame.height for part in chunk.parts} == {
        "gpu_samples": 16,
        "node_samples": 4,
    }
    found = _rows(file)
    assert [row["network_rx_bytes"] for row in found] == [9, 9, 9, 9]
    assert [row["cpu_user_s"] for row in found] == [7.0, 7.0, 7.01, 7.01]


def test_the_file_s_name_is_part_of_what_was_read(tmp_path: Path) -> None:
    """The same bytes under the sampler's name mean more: they are another chunk, and the same
    name the same chunk.
    """
    rows = [{**_base(0, "n1"), "user": 100, "MemTotal": 1024}]
    plain, named = _csv(tmp_path / "a.csv", rows), _csv(tmp_path / "procstat.csv", rows)
    again = _csv(tmp_path / "other" / "procstat.csv", rows)
    ids = [_chunks(file)[0].id for file in (plain, named, again)]
    assert ids[0] != ids[1] == ids[2]


def test_every_counter_of_a_sampler_is_recognised_by_its_name() -> None:
    """The catalogue's names, alone in their sampler's file and with the sampler before them."""
    for counter in HOST_COUNTERS:
        for sampler, metric in counter.ldms:
            for found in (
                host_column_meaning(metric, sampler),
                host_column_meaning(f"{sampler}_{metric}"),
                host_column_meaning(f"{sampler}.{metric}"),
            ):
                assert found is not None, metric
                assert (found.counter, found.copy, found.unit) == (
                    counter.name,
                    "",
                    counter.ldms_unit,
                )


@pytest.mark.parametrize(
    ("path", "sampler"),
    [
        ("meminfo", "meminfo"), ("meminfo-1772000000", "meminfo"), ("store/procnetdev2/part.csv", "procnetdev"),
        ("nid001_lustre2_client.csv", ""), ("papi_sampler.parquet", "papi"), ("gpu.csv", ""),
    ],
)  # fmt: skip
def test_samplers_are_told_by_names_of_files(path: str, sampler: str) -> None:
    assert sampler_of(Path(path)) == sampler


COUNTS = st.lists(
    st.lists(st.integers(0, 10**9) | st.none(), min_size=3, max_size=3), min_size=1, max_size=8
)


@given(COUNTS)
def test_sums_are_those_of_last_known_values(counts: list[list[int | None]]) -> None:
    """In rows or in columns: each copy counts with its last value, before its first with its
    first.
    """
    expected: list[float | None] = []
    for step in range(len(counts)):
        known = []
        for copy in range(3):
            upto = [row[copy] for row in counts[: step + 1] if row[copy] is not None]
            after = [row[copy] for row in counts[step:] if row[copy] is not None]
            known += [upto[-1] if upto else after[0]] if upto or after else []
        expected.append(
            float(sum(value for value in known if value is not None)) if known else None
        )
    times = [_time(step) for step in range(len(counts))]
    names = [f"rx_bytes#i{copy}" for copy in range(3)]
    wide = pl.DataFrame(
        {"t": times, "node": "n", **{n: [r[c] for r in counts] for c, n in enumerate(names)}}
    )
    host = {"network_rx_bytes": HostColumns(tuple(names), "B")}
    assert host_values(wide, host, None)["network_rx_bytes"].to_list() == expected
    flat = [
        (time, "n", f"i{copy}", value)
        for time, row in zip(times, counts, strict=True)
        for copy, value in enumerate(row)
    ]
    long = pl.DataFrame(flat, schema=["t", "node", "which", "rx_bytes"], orient="row")
    one = {"network_rx_bytes": HostColumns(("rx_bytes",), "B")}
    found = host_values(long.select("t", "node", "rx_bytes"), one, long["which"])
    assert found["network_rx_bytes"].to_list() == expected


def test_procstat_gives_seconds_of_all_cores(tmp_path: Path) -> None:
    """Jiffies become seconds; the cores' own values are part of the sum and are not added to it."""
    rows = []
    for step in range(3):
        cores = [(1000 + 7 * step + core, 5 + core, 300 + step) for core in range(4)]
        modes = ("user", "nice", "sys")
        per_core = {
            f"per_core_{name}{core}": cores[core][at]
            for at, name in enumerate(modes)
            for core in range(4)
        }
        total = {name: sum(core[at] for core in cores) for at, name in enumerate(modes)}
        more = {"idle": 90_000 + step, "iowait": 12, "irq": 3, "cores_up": 4, "cpu_enabled": 0}
        rows.append({**_base(step, "nid001"), **total, **more, **per_core})
    found = _rows(_csv(tmp_path / "csv" / "procstat", rows))
    assert [row["t"] for row in found] == [_time(step) for step in range(3)]
    assert {row["node"] for row in found} == {"nid001"}
    for step, row in enumerate(found):
        assert row["cpu_user_s"] == pytest.approx(
            sum(1000 + 7 * step + core for core in range(4)) / 100
        )
        assert row["cpu_nice_s"] == pytest.approx((5 + 6 + 7 + 8) / 100)
        assert row["cpu_system_s"] == pytest.approx(4 * (300 + step) / 100)
        assert row["cpu_idle_s"] == pytest.approx((90_000 + step) / 100)
        assert row["cpu_iowait_s"] == pytest.approx(0.12)
