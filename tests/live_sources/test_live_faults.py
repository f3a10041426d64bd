"""Pages and streams damaged at random: no crash, and never a value that was not written there."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from plain_numbers import FIELDS, WHOLE_NUMBERS, expected
from servers.damage import damaged
from servers.exporter import Gpu, Node, page
from tachograph.annexes.watch.live.newest_snapshot import newest_snapshot
from tachograph.annexes.watch.live.snapshot import Snapshot
from tachograph.catalog.chunks import Chunk
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS_BY_NAME
from tachograph.lake.newest_rows import NewestRows
from tachograph.sources.dcgmi import DmonStream
from tachograph.sources.series import SeriesMemory
from tachograph.sources.series_rows import SeriesRows

NOW = datetime.fromtimestamp(1_790_000_000.0, UTC)
READS = 64
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def made_page(random_: random.Random, *, stamped: bool = False) -> str:
    units = [
        Gpu(
            gpu,
            {
                f"DCGM_FI_{name}": round(
                    random_.uniform(0, high if high <= 150 else 3000),
                    0 if field in WHOLE_NUMBERS else 3,
                )
                for field, (name, _, _, _, high) in FIELDS.items()
            },
            jobs=random_.choice([(), ("7",), ("7", "8"), ("0",)]),
            labels=random_.choice([{}, {"GPU_I_ID": "3"}, {"container": "a } b, \\n"}]),
        )
        for gpu in range(3)
    ]
    return page(
        random_.choice(["n1", "n2.example.org"]), Node(units, stamp=stamped), 1_790_000_000.0
    )


def written(text: bytes) -> set[float]:
    """Every number that can be read off a text, at each beginning and end of one."""
    found: set[float] = set()
    for one in NUMBER.findall(text.decode("latin-1")):
        found.add(float(one))
        found |= {float(part) for part in re.findall(r"\d+\.?\d*", one)}
    return found


def assert_written(
    values: Iterator[tuple[str, float]], numbers: set[float], factors: dict[str, set[float]]
) -> None:
    for name, value in values:
        counter = COUNTERS_BY_NAME[name]
        assert counter.low <= value <= counter.high
        from_any = {round(number * factor, 9) for number in numbers for factor in factors[name]}
        whole = (
            {float(round(one)) for one in from_any if abs(one) < 1e15}
            if counter.storage == "i64"
            else set()
        )
        assert any(
            math.isclose(value, one, rel_tol=1e-6, abs_tol=1e-9) for one in from_any | whole
        ), (name, value)


FACTORS: dict[str, set[float]] = {name: {1.0} for name in COUNTER_NAMES}
for _row in FIELDS.values():
    FACTORS[_row[1]].add(float(_row[2]))


def snapshot_of_page(memory: SeriesMemory, content: bytes) -> Snapshot:
    """What is shown of one page."""
    series, newest = SeriesRows(memory), NewestRows(60.0)
    series.add_page(content, t=NOW, node="n9")
    newest.add(Chunk("page", "dcgm-exporter", "page", series.parts(), series.known), NOW)
    return newest_snapshot([newest.tables()], NOW.timestamp())


def numbers_of(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    for name, column in snapshot.values.items():
        for value in column.tolist():
            if not math.isnan(value):
                yield name, value


def test_damaged_pages_show_only_what_is_written_on_them() -> None:
    random_ = random.Random(20261121)
    memory = SeriesMemory()
    undamaged = 0
    text = made_page(random_)
    for turn in range(READS):
        if turn % 8 == 0:
            text = made_page(random_, stamped=turn % 40 == 0)
        given = damaged(random_, text.encode())
        snapshot = snapshot_of_page(memory, given)
        if given == text.encode():
            undamaged += 1
            wanted = {unit: values for unit, values in expected(text).items() if values}
            rows = {(gpu.node, gpu.gpu, gpu.mig): row for row, gpu in enumerate(snapshot.gpus)}
            assert rows.keys() == wanted.keys()
            for unit, values in wanted.items():
                shown = {name: snapshot.value(name, rows[unit]) for name in snapshot.values}
                assert {
                    name: value for name, value in shown.items() if value is not None
                } == pytest.approx(values)
        elif turn % 3 == 0:
            assert_written(numbers_of(snapshot), written(given), FACTORS)
    assert undamaged > READS / 5


def test_streams_tell_only_what_is_written_in_them() -> None:
    random_ = random.Random(11)
    header = "#Entity   GPUTL        SMACT        POWER        TOTEC"
    lines = [header, "ID                                      W          mJ"]
    for tick in range(40):
        for gpu in range(2):
            cells = [str(tick), f"{tick / 100:.3f}", "350.500", "123456789"]
            cells = [random_.choice([cell, cell, "N/A", ""]) for cell in cells]
            lines.append(f"GPU {gpu:<6}" + "".join(f"{cell:<13}" for cell in cells))
    for _ in range(50):
        stream = DmonStream()
        for line in damaged(random_, "\n".join(lines).encode()).decode("latin-1").split("\n"):
            row = stream.line(line)
            if row is not None:
                assert set(row.values.values()) <= {
                    float(one) for one in line.split() if NUMBER.fullmatch(one)
                }
                assert set(row.values) <= set(stream.columns)
