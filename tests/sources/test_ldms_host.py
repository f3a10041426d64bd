"""Host samplers of LDMS: columns as the samplers name them, sums over cores, interfaces and
mounts in plain Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from row_lines import frame_lines
from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import HOST_COUNTERS
from tachograph.catalog.tables import NODE_SAMPLES
from tachograph.lake.conform import conform
from tachograph.sources.columns import (
    HostColumnMeaning,
    HostColumns,
    host_column_meaning,
    host_values,
    sampler_of,
)
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


def _lines(file: Path) -> str:
    """The conformed rows of node_samples by time and node, and what was rejected."""
    parts = [part for chunk in _chunks(file) for part in chunk.parts]
    (part,) = [part for part in parts if part.table == "node_samples"]
    frame = conform(part.frame, NODE_SAMPLES, now=NOW, units=part.units).frame.sort("t", "node")
    rejects = "".join(f"{one.reason} {one.column} {one.count}\n" for one in part.rejects)
    return frame_lines(frame) + rejects


def _interfaces() -> Sequence[Row]:
    """An interface that a node does not have is empty, and no reason to know nothing."""
    rows = []
    for step in range(4):
        for node, slow in (("n1", 44), ("n2", None)):
            sent = {"hsn0": 10**15 + step * 997, "hsn1": 5 * step, "lo": 10**9 * step, "eth0": slow}
            counts = {
                f"{name}#{face}": None if value is None else value * scale
                for face, value in sent.items()
                for scale, name in enumerate(
                    ("tx_bytes", "rx_bytes", "rx_packets", "tx_packets"), start=1
                )
            }
            rows.append({**_base(step, node), **counts, "rx_errs#hsn0": 1})
    return rows


def _mounts() -> Sequence[Row]:
    """A row per mount, some microseconds apart; one that is late or missing makes no jump."""
    missing = {(0, "n1"), (3, "n1"), (5, "n2")}
    return [
        {
            **_base(step, node, late_us=40 * place), "fs_name": mount[:4], "llite": mount,
            "read_bytes.sum": 1000 * step + place, "write_bytes.sum": 10 * step, "open": 3,
        }
        for step in range(6)
        for node in ("n1", "n2")
        for place, mount in enumerate(("scratch-ffff8803", "home-ffff8804"))
        if not place or (step, node) not in missing
    ]  # fmt: skip


def _cores() -> Sequence[Row]:
    """Jiffies of all cores beside those of each, which are part of the sum."""
    rows = []
    for step in range(3):
        cores = {"user": 1000 + 7 * step, "nice": 5, "sys": 300 + step}
        of_core = {
            f"per_core_{name}{core}": first + core
            for name, first in cores.items()
            for core in range(4)
        }
        total = {name: 4 * first + 6 for name, first in cores.items()}
        more = {"idle": 90_000 + step, "iowait": 12, "irq": 3, "cores_up": 4, "cpu_enabled": 0}
        rows.append({**_base(step, "nid001"), **total, **more, **of_core})
    return rows


def _records_of_cpus(*names: str) -> Sequence[Row]:
    """A row per CPU: its word for the kernel is `system`."""
    jiffies = {"cpu": 300, "cpu0": 100, "cpu1": 200}
    return [
        {
            **_base(step, "n1"),
            "name": name,
            "user": jiffies[name] * (step + 1),
            "system": 50,
            "idle": 9,
        }
        for step in range(3)
        for name in names
    ]


# {file: its rows}
HOST_FILES: dict[str, Sequence[Row]] = {
    "procnetdev-1772000000.csv": _interfaces(),
    "lustre_client/n.csv": _mounts(),
    "csv/procstat": _cores(),
    "procstat2": _records_of_cpus("cpu", "cpu0", "cpu1"),
    "no_sum/procstat2": _records_of_cpus("cpu0", "cpu1"),
    # An OSC counts the bytes of a mount again.
    "lustre2_client": [{**_base(0, "n1"), **{
        f"client.lstats.read_bytes#{suffix}": value
        for suffix, value in (("llite.scratch", 10), ("llite.home", 5),
                              ("osc.scratch-OST0000", 10), ("mdc.scratch-MDT0000", 1))
    }}],
    "meminfo": [{**_base(0, "n1"), "MemTotal": 263_706_624, "MemFree": 1,
                 "MemAvailable": 52_741_324, "Active(anon)": 5}],
    # Loads are hundredths where they are whole.
    "loadavg": [{**_base(step, "n1"), "load1min": one, "load5min": 1}
                for step, one in enumerate((150, 6400))],
    "decimal/loadavg": [{**_base(step, "n1"), "load1min": one, "load5min": 1}
                        for step, one in enumerate(("1.5", 64))],
    "papi.csv": [{**_base(0, "n1"), **{f"PAPI_L1_DCM{place}": 1000 * place for place in range(3)},
                  "PAPI_L3_TCM[0]": 7, "PAPI_L3_TCM[1]": 8}],
    # Names that carry their sampler need no file of its name.
    **{
        f"{prefix}/all.csv": [{**_base(0, "n1"), f"{prefix}user": 200, f"{prefix}sys": 100,
                               "meminfo_MemTotal": 1024, "rx_bytes#eth0": 5, "cpu_power": 90}]
        for prefix in ("procstat_", "procstat.", "procstat:", "nersc_ldms_procstat_", "LDMS_Procstat_")
    },
    # A column `user` may be a person.
    "nodes.csv": [{**_base(0, "n1"), "user": "mary", "idle": 1, "MemTotal": 1024}],
    # Each GPU's row repeats the values of its node.
    "both.csv": [
        {**_base(step, node), "gpu_id": gpu, "nersc_ldms_dcgm_gpu_utilization": 50,
         "procstat_user": 700 + step, "rx_bytes#hsn0": 4, "rx_bytes#hsn1": 5}
        for step in range(2) for node in ("n1", "n2") for gpu in range(4)
    ],
}  # fmt: skip


@pytest.mark.parametrize("file", HOST_FILES)
def test_columns_of_samplers_become_values_of_nodes(
    file: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert _lines(_csv(tmp_path / file, HOST_FILES[file])) == snapshot


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
                assert found == HostColumnMeaning(counter.name, "", str(counter.ldms_unit)), metric


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
    times = [NOW + timedelta(seconds=10 * step) for step in range(len(counts))]
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
