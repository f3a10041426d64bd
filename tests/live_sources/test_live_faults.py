"""Pages, answers and streams damaged at random: no crash, and never a value that was not written there."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_expected import METRICS, expected

from servers.exporter import Gpu, Node, page
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS_BY_NAME
from tachograph.catalog.errors import InputError
from tachograph.live.snapshot import Snapshot
from tachograph.live.sources.exporter import ExporterSource, Pollable
from tachograph.live.sources.prometheus import VectorReader
from tachograph.live.sources.series import LivePageReader, wanted_metrics
from tachograph.sources.dcgmi import DmonStream
from tachograph.sources.endpoints import ExporterEndpoint, ExporterSettings
from tachograph.sources.http import HttpAnswer, RequestError
from tachograph.sources.metrics import NO_SITE_METRICS
from tachograph.sources.prometheus_query import read_vector
from tachograph.sources.series import SeriesVocabulary

READS = 500
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
JUNK = (
    b"",
    b"\n",
    b"}",
    b'"',
    b"{",
    b" ",
    b"\xff",
    b"\x00",
    b"NaN",
    b"+Inf",
    b"9223372036854775794",
    b"GPU",
    b"\\",
    b"#",
)


def made_page(random_: random.Random, *, stamped: bool = False) -> str:
    units = [
        Gpu(
            gpu,
            {
                name: round(random_.uniform(0, high if high <= 150 else 3000), 3)
                for name, (_, _, _, high) in METRICS.items()
            },
            jobs=random_.choice([(), ("7",), ("7", "8"), ("0",)]),
            labels=random_.choice([{}, {"GPU_I_ID": "3"}, {"container": "a } b, \\n"}]),
        )
        for gpu in range(3)
    ]
    return page(random_.choice(["n1", "n2.example.org"]), Node(units, stamp=stamped), 1_790_000_000.0)


def damaged(random_: random.Random, text: bytes) -> bytes:
    """The text with a few random injuries, or none."""
    for _ in range(random_.choice([0, 0, 1, 1, 2, 5])):
        at, until = sorted(random_.randrange(len(text) + 1) for _ in range(2))
        match random_.randrange(6):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + random_.choice(JUNK) + text[at:]
            case 2:
                text = text[:at] + bytes([random_.randrange(256)]) + text[at + 1 :]
            case 3:
                text = text[:at] + text[min(until, at + 200) :]
            case 4:
                text = text[:until] + text[at : at + 300] + text[until:]
            case 5:
                lines = text.split(b"\n")
                random_.shuffle(lines)
                text = b"\n".join(lines)
        if not text:
            return b""
    return text


def written(text: bytes) -> set[float]:
    """Every number that can be read off a text, at each beginning and end of one."""
    found: set[float] = set()
    for one in NUMBER.findall(text.decode("latin-1")):
        found.add(float(one))
        found |= {float(part) for part in re.findall(r"\d+\.?\d*", one)}
    return found


def assert_written(values: Iterator[tuple[str, float]], numbers: set[float], factors: dict[str, set[float]]) -> None:
    for name, value in values:
        counter = COUNTERS_BY_NAME[name]
        assert counter.low <= value <= counter.high
        from_any = {round(number * factor, 9) for number in numbers for factor in factors[name]}
        whole = {float(round(one)) for one in from_any if abs(one) < 1e15} if counter.storage == "i64" else set()
        assert round(value, 9) in from_any | whole, (name, value)


FACTORS: dict[str, set[float]] = {name: {1.0} for name in COUNTER_NAMES}
for _counter, _factor, _, _ in METRICS.values():
    FACTORS[_counter].add(float(_factor))


def test_hundreds_of_pages_tell_only_what_is_written_on_them() -> None:
    random_ = random.Random(20261121)
    reader = LivePageReader(SeriesVocabulary(), wanted_metrics(NO_SITE_METRICS), "n9")
    again = 0
    text = made_page(random_)
    for turn in range(READS):
        if turn % 8 == 0:
            text = made_page(random_, stamped=turn % 40 == 0)
        given = damaged(random_, text.encode())
        found = reader.read(given)
        if given == text.encode():
            again += 1
            if again % 3:  # the others are read, which is what may fail
                continue
            rows = {(gpu.node, gpu.gpu, gpu.mig): row for row, gpu in enumerate(found.layout.gpus)}
            wanted = expected(text)
            assert rows.keys() == wanted.keys()
            for unit, values in wanted.items():
                reported = {
                    name: value
                    for k, name in enumerate(COUNTER_NAMES)
                    if not math.isnan(value := found.table[k, rows[unit]])
                }
                assert reported == pytest.approx(values)
        elif turn % 10 == 0:
            table = found.table[: len(COUNTER_NAMES)]
            of_all = (
                (COUNTER_NAMES[k], float(value))
                for k, line in enumerate(table)
                for value in line
                if not math.isnan(value)
            )
            assert_written(of_all, written(given), FACTORS)
    assert again > READS / 5


class Server:
    """Stands in for a server: answers pages, or fails."""

    def __init__(self) -> None:
        self.where, self.next = "http://n1:9400/metrics", b""
        self.skew_s = None

    def get(self, path: str) -> HttpAnswer:
        if self.next == b"fail":
            raise RequestError("answered 500", where=self.where, do="look")
        return HttpAnswer(self.next, self.where)

    def close(self) -> None:
        pass


def test_a_source_survives_whatever_its_exporter_answers() -> None:
    random_, server, now = random.Random(7), Server(), [0.0]
    polled: Pollable = server
    endpoint = ExporterEndpoint("n1:9400", "n1", polled)  # type: ignore[arg-type]
    source = ExporterSource(
        [(endpoint, ExporterSettings(source="dcgm-exporter"))],
        clock=lambda: 1.79e9 + now[0],
        steady=lambda: now[0],
        wait_s=0.0,
    )
    good, reported = 0, 0
    for _ in range(READS // 8):
        now[0] += random_.choice([0.1, 1.0, 15.0, 100.0])
        server.next = random_.choice([b"", b"fail", damaged(random_, made_page(random_).encode())])
        snapshot = settled(source)
        reported += bool(snapshot.problems)
        good += not snapshot.problems
        assert all(len(column) == len(snapshot.gpus) for column in snapshot.values.values())
        assert len(snapshot.measured) == len(snapshot.gpus)
        for problem in snapshot.problems:
            assert problem.what
            assert problem.where
            assert problem.do
    source.close()
    assert good > READS // 50
    assert reported > READS // 50


def settled(source: ExporterSource) -> Snapshot:
    """The snapshot once the answer to its poll has come."""
    snapshot = source.read()
    while source._poller.waiting:
        snapshot = source.read()
    return snapshot


def test_answers_of_prometheus_tell_only_what_is_written_in_them(recorded: Path) -> None:
    random_ = random.Random(3)
    texts = [file.read_bytes() for file in sorted((recorded / "prometheus_h100").glob("query_*.json"))]
    reader = VectorReader(SeriesVocabulary())
    read = 0
    for _ in range(READS // 4):
        given = damaged(random_, random_.choice(texts))
        try:
            vector = read_vector(HttpAnswer(given, "http://p"))
        except InputError:
            continue
        read += 1
        layout = reader.layout(vector.labels)
        table = layout.table(vector.values[layout.kept])[: len(COUNTER_NAMES)]
        if read % 40 == 0:
            reported = (
                (COUNTER_NAMES[k], float(value))
                for k, line in enumerate(table)
                for value in line
                if not math.isnan(value)
            )
            assert_written(reported, written(given), FACTORS)
    assert read > READS / 20


def test_recorded_answers_are_read_as_they_are(recorded: Path) -> None:
    for file in sorted((recorded / "prometheus_h100").glob("query_*.json")):
        message = json.loads(file.read_text())["data"]["result"]
        vector = read_vector(HttpAnswer(file.read_bytes(), str(file)))
        layout = VectorReader(SeriesVocabulary()).layout(vector.labels)
        table = layout.table(vector.values[layout.kept])
        metric = message[0]["metric"]["__name__"]
        counter, factor, _, _ = METRICS[metric]
        wanted = {
            (one["metric"]["Hostname"], int(one["metric"]["gpu"])): float(one["value"][1]) * factor for one in message
        }
        line = table[COUNTER_NAMES.index(counter)]
        assert {(gpu.node, gpu.gpu): line[row] for row, gpu in enumerate(layout.gpus)} == pytest.approx(wanted)


def test_streams_tell_only_what_is_written_in_them() -> None:
    random_ = random.Random(11)
    header = "#Entity   GPUTL        SMACT        POWER        TOTEC"
    lines = [header, "ID                                      W          mJ"]
    for tick in range(40):
        for gpu in range(2):
            cells = [str(tick), f"{tick / 100:.3f}", "350.500", "123456789"]
            cells = [random_.choice([cell, cell, "N/A", ""]) for cell in cells]
            lines.append(f"GPU {gpu:<6}" + "".join(f"{cell:<13}" for cell in cells))
    for _ in range(READS // 10):
        stream = DmonStream()
        for line in damaged(random_, "\n".join(lines).encode()).decode("latin-1").split("\n"):
            row = stream.line(line)
            if row is not None:
                assert set(row.values.values()) <= {float(one) for one in line.split() if NUMBER.fullmatch(one)}
                assert set(row.values) <= set(stream.columns)
