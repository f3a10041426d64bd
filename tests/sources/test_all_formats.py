"""Every counter in every format that has a name for it: the lake holds what was written, in the
unit of its column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from in_process import run_well
from tachograph.catalog.counters import (
    COUNTERS,
    DCGM_PREFIX,
    HOST_COUNTERS,
    LDMS_PREFIX,
    Counter,
    HostCounter,
)
from tachograph.catalog.tables import ALLOCATIONS, GPU_SAMPLES, NODE_SAMPLES
from tachograph.lake.delta import Lake
from tachograph.sources.exporters import exporter_mappings
from tachograph.sources.gpu_tool_names import DMON_COLUMNS, GPU_TOOLS, QUERY_FIELDS

BOTH: Final[tuple[Counter | HostCounter, ...]] = (*COUNTERS, *HOST_COUNTERS)
NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
STAMP: Final = int(NOON.timestamp())
# what a producer writes for one of the unit of the column, counted by hand
WRITTEN_PER_UNIT: Final[Mapping[tuple[str, str], float]] = {
    ("percent", "fraction"): 100,
    ("mJ", "J"): 1000,
    ("mW", "W"): 1000,
    ("MiB", "B"): 1 / 2**20,
    ("B", "MiB"): 2**20,
    ("KiB", "MiB"): 1024,
    ("MB/s", "B/s"): 1e-6,
    ("kB/s", "B/s"): 1e-3,
    ("uJ", "J"): 1e6,
    ("jiffy", "s"): 100,
}


@dataclass(frozen=True, slots=True)
class WrittenCounter:
    """A counter under the name of a producer, with the labels of its series."""

    name: str
    column: str
    unit: str
    labels: tuple[tuple[str, str], ...] = ()


def value_of(column: str) -> float:
    """A valid value of a column, in its unit; exact in single precision."""
    place = next(number for number, counter in enumerate(BOTH, 1) if counter.name == column)
    unit = BOTH[place - 1].unit
    if column == "load_average":  # LDMS writes hundredths where it is whole
        return place + 0.5
    return {"fraction": place / 64, "flag": 1.0, "C": 20.0 + place}.get(unit, 64.0 * place)


def written(entry: WrittenCounter) -> str:
    unit = next(counter.unit for counter in BOTH if counter.name == entry.column)
    number = value_of(entry.column) * WRITTEN_PER_UNIT.get((entry.unit, unit), 1.0)
    return repr(int(number) if number == int(number) else number)


def dcgm() -> Iterator[list[WrittenCounter]]:
    """By the names of DCGM before 4.6, those since, its aliases, and those of jobstats."""
    named = ("dcgm_name", "dcgm_name_46")
    for attribute in named:
        found = [(getattr(counter, attribute), counter) for counter in COUNTERS]
        yield [
            WrittenCounter(DCGM_PREFIX + name, one.name, str(one.dcgm_unit))
            for name, one in found
            if name
        ]
    aliases = [(name, counter) for counter in COUNTERS for name in counter.dcgm_aliases]
    yield [
        WrittenCounter(DCGM_PREFIX + name, one.name, str(one.dcgm_unit)) for name, one in aliases
    ]
    yield [
        WrittenCounter(one.jobstats[0], one.name, one.jobstats[1])
        for one in COUNTERS
        if one.jobstats
    ]


def node_exporter() -> list[WrittenCounter]:
    """The first series of each host counter."""
    return [
        WrittenCounter(metric, counter.name, str(counter.node_exporter_unit), tuple(labels.items()))
        for counter in HOST_COUNTERS
        for metric, labels in counter.node_exporter[:1]
    ]


def labels_of(entry: WrittenCounter) -> dict[str, str]:
    """Of a series: GPU 3 of n1, which job 7 holds; job 0 is none."""
    return {"gpu": "3", "Hostname": "n1.example.org", "hpc_job": "7", **dict(entry.labels)}


def page(entries: list[WrittenCounter]) -> str:
    lines = []
    for entry in entries:
        block = ",".join(f'{name}="{text}"' for name, text in labels_of(entry).items())
        lines.append(f"{entry.name}{{{block}}} {written(entry)}\n")
    lines.append('nvidia_gpu_jobId{gpu="4",Hostname="n1.example.org"} 0\n')
    return "".join(lines)


def answer(entries: list[WrittenCounter]) -> str:
    """The same as a saved answer of Prometheus."""
    series: list[dict[str, object]] = [
        {"metric": labels_of(entry) | {"__name__": entry.name}, "value": [STAMP, written(entry)]}
        for entry in entries
    ]
    none = {"__name__": "nvidia_gpu_jobId", "gpu": "4", "Hostname": "n1.example.org"}
    series.append({"metric": none, "value": [STAMP, "0"]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}})


def table(entries: list[WrittenCounter], time: str, keys: Mapping[str, str]) -> str:
    names = [time, *keys, *(entry.name for entry in entries)]
    values = [str(STAMP), *keys.values(), *(written(entry) for entry in entries)]
    return f"{','.join(names)}\n{','.join(values)}\n"


@dataclass(frozen=True, slots=True)
class Format:
    """A file, the words that ingest it, the counters in it."""

    entries: list[WrittenCounter]
    file: str
    content: str
    words: tuple[str, ...]


def formats() -> Iterator[tuple[str, Format]]:
    """All of them, with what each can name."""
    gpu = {"hostname": "n1", "gpu_id": "3"}
    for place, entries in enumerate([*dcgm(), node_exporter()]):
        words = ("dcgm-exporter", "a.prom", "--time", NOON.isoformat())
        yield f"page-{place}", Format(entries, "a.prom", page(entries), words)
        yield (
            f"answer-{place}",
            Format(entries, "a.json", answer(entries), ("prometheus", "a.json")),
        )
    of_ldms = [
        WrittenCounter(LDMS_PREFIX + counter.ldms_name, counter.name, str(counter.ldms_unit))
        for counter in COUNTERS
        if counter.ldms_name
    ]
    yield "ldms", Format(of_ldms, "a.csv", table(of_ldms, "timestamp", gpu), ("ldms", "a.csv"))
    of_host = [
        WrittenCounter(f"{sampler}_{metric}", counter.name, str(counter.ldms_unit))
        for counter in HOST_COUNTERS
        for sampler, metric in counter.ldms[:1]
    ]
    of_node = table(of_host, "timestamp", {"hostname": "n1"})
    yield "ldms of hosts", Format(of_host, "a.csv", of_node, ("ldms", "a.csv"))
    for kind, known in (("query", QUERY_FIELDS), ("dmon", DMON_COLUMNS)):
        of_smi = [WrittenCounter(name, column, unit) for name, (column, unit) in known.items()]
        of_smi = list({entry.column: entry for entry in of_smi}.values())
        text = table(of_smi, "timestamp" if kind == "query" else "date", {"index": "3"})
        if kind == "dmon":
            head = " ".join(entry.name for entry in of_smi)
            cells = " ".join(written(entry) for entry in of_smi)
            text = (
                f"#Date Time gpu {head}\n#YYYYMMDD HH:MM:SS Idx {'W ' * len(of_smi)}\n "
                f"20260301 12:00:00 3 {cells}\n"
            )
        yield (
            f"nvidia-smi {kind}",
            Format(of_smi, "a.txt", text, ("nvidia-smi", "a.txt", "--node", "n1")),
        )
    for tool in GPU_TOOLS:
        of_tool = [
            WrittenCounter(name, column, unit) for name, (column, unit) in tool.columns.items()
        ]
        of_tool = list({entry.column: entry for entry in reversed(of_tool)}.values())
        named = {tool.time, *(entry.name for entry in of_tool)}
        marks = dict.fromkeys([mark for mark in tool.marks if mark not in named], "")
        host = {tool.node: "n1"} if tool.node else {}
        text = table(of_tool, tool.time or "t", {tool.gpu: "3", **host, **marks})
        options: tuple[str, ...] = () if tool.node else ("--node", "n1")
        if not tool.time:
            options = (*options, "--time", NOON.isoformat())
        yield tool.name, Format(of_tool, "a.csv", text, ("gpu-tools", "a.csv", *options))
    own = [
        WrittenCounter(f"column {counter.name}", counter.name, counter.unit) for counter in COUNTERS
    ]
    keys = "time.column = 't'\nnode.column = 'hostname'\ngpu.column = 'gpu_id'\n[columns]\n"
    mapping = keys + "".join(f'"{entry.name}" = "{entry.column}"\n' for entry in own)
    yield (
        "table",
        Format(own, "a.csv", table(own, "t", gpu), ("table", "a.csv", "--mapping", mapping)),
    )


FORMATS: Final = dict(formats())


@pytest.mark.parametrize("name", FORMATS)
def test_every_counter_of_a_format_is_in_its_column_and_its_unit(name: str, tmp_path: Path) -> None:
    given = FORMATS[name]
    (tmp_path / given.file).write_text(given.content, encoding="utf-8")
    words = list(given.words)
    if words[0] == "table":
        (tmp_path / "m.toml").write_text(words[-1], encoding="utf-8")
        words[-1] = "m.toml"
    done = run_well(tmp_path, "ingest", *words)
    assert "rejected" not in done.stdout
    lake = Lake.open(str(tmp_path / "lake"))
    found: dict[str, object] = {}
    for rows in (lake.latest(GPU_SAMPLES), lake.latest(NODE_SAMPLES)):
        for row in rows.iter_rows(named=True):
            assert (row["t"], row["node"], row.get("gpu", 3)) == (NOON, "n1", 3)
            found |= {key: value for key, value in row.items() if value is not None}
    expected = {entry.column: value_of(entry.column) for entry in given.entries}
    keys = {"t", "node", "gpu", "seq"}
    assert {key: value for key, value in found.items() if key not in keys} == pytest.approx(
        expected, rel=1e-6
    )
    # Job 7 has GPU 3, and none has GPU 4.
    if name.startswith(("page", "answer")) and "gpu_samples" in done.stdout:
        held = lake.latest(ALLOCATIONS).select("job_id", "gpu").rows()
        assert held == [("7", 3)]


def test_counters_are_named_by_a_format() -> None:
    """Each by those that publish it: a row of the catalogue that no reader knows is a mistake."""
    named = {entry.column for given in FORMATS.values() for entry in given.entries}
    named |= {column for mapping in exporter_mappings() for column, *_ in mapping.metrics.values()}
    # NERSC's exports, recorded in test_ldms.
    power = {"cpu_power_w", "memory_power_w", "node_power_w"}
    assert {counter.name for counter in BOTH} - named <= power


def test_a_statistic_of_what_was_never_measured_is_null(tmp_path: Path) -> None:
    """Means, maxima and shares of a job that a page with two counters is about: null, never NaN."""
    for minute in range(4):
        text = "".join(
            f'DCGM_FI_{name}{{gpu="0",Hostname="n1",hpc_job="7"}} {40 + minute}\n'
            for name in ("DEV_GPU_UTIL", "DEV_POWER_USAGE")
        )
        (tmp_path / f"{minute}.prom").write_text(text)
        at = (NOON + timedelta(minutes=minute)).isoformat()
        run_well(tmp_path, f"ingest dcgm-exporter {minute}.prom --time {at}")
    (tmp_path / "sacct.txt").write_text(
        "JobID|JobIDRaw|State|Start|End|NNodes|NodeList|AllocTRES\n"
        "7|7|COMPLETED|2026-03-01T12:00:00|2026-03-01T12:10:00|1|n1|cpu=4,gres/gpu=1\n"
    )
    run_well(tmp_path, "ingest sacct sacct.txt")
    run_well(tmp_path, "analyze")
    done = run_well(tmp_path, "jobs --json")
    (job,) = json.loads(done.stdout, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    assert job["gpu_util_mean"] == pytest.approx(0.415)
    measured = {"gpu_util", "power_w", "energy_j"}  # energy is estimated from power
    for counter in COUNTERS:
        statistics = {
            key: value for key, value in job.items() if key.startswith(f"{counter.name}_")
        }
        if counter.name not in measured:
            assert set(statistics.values()) <= {None}, counter.name
    assert not [key for key, value in job.items() if isinstance(value, float) and math.isnan(value)]
