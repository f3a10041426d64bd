"""`dcgmi dmon` as a live source, with a real program in its place: what it prints, and that it
never stays a corpse.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tachograph.annexes.watch.live.snapshot import GpuId, Snapshot
from tachograph.annexes.watch.live.sources.dmon import DmonSource, connect
from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.errors import InputError
from tachograph.sources.dcgmi import (
    DcgmEntity,
    DmonRow,
    DmonStream,
)

FAKE = Path(__file__).with_name("fake_dcgmi.py")
VALUES = {
    "203": "85",
    "155": "350.500",
    "156": "123456789",
    "1002": "0.910",
    "140": "0",
    "230": "0",
    "395": "1",
}
VALUES |= {"393": "2", "112": "4", "250": "81559", "158": "89"}
PRINTED = {
    "gpu_util": 0.85,
    "power_w": 350.5,
    "energy_j": 123456.789,
    "sm_active": 0.91,
    "xid": 0,
    "row_remap_failure": 1,
}
PRINTED |= {"remapped_rows_uncorrectable": 2, "throttle_reasons": 4}
IDS = [counter.dcgm_id for counter in COUNTERS if counter.dcgm_id]
KNOWN = [counter.dcgm_id for counter in COUNTERS if not 1013 <= (counter.dcgm_id or 0) <= 1015] + [
    158,
    250,
]
TWO = {"GPU 0": VALUES, "GPU 1": {**VALUES, "203": "5"}}


@dataclass
class Fake:
    """The program and what it is to do."""

    folder: Path
    state: dict[str, Any] = field(
        default_factory=lambda: {"gpus": 2, "values": TWO, "mode": "", "ids": IDS}
    )

    @property
    def program(self) -> tuple[str, ...]:
        return (str(self.folder / "dcgmi"),)

    def set(self, **state: Any) -> None:
        self.state |= state
        file = self.folder / "state.new"
        file.write_text(json.dumps(self.state))
        file.rename(self.folder / "state.json")

    def runs(self) -> list[tuple[int, list[str]]]:
        """(pid, arguments) of every `dmon -e` so far."""
        log = (
            (self.folder / "log").read_text().splitlines() if (self.folder / "log").exists() else []
        )
        return [(pid, rest) for pid, *rest in map(json.loads, log) if rest[:2] == ["dmon", "-e"]]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    shutil.copy(FAKE, tmp_path / "fake_dcgmi.py")
    (tmp_path / "dcgmi").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -S -E "{tmp_path}/fake_dcgmi.py" "$@"\n'
    )
    (tmp_path / "dcgmi").chmod(0o755)
    made = Fake(tmp_path)
    made.set()
    return made


@contextmanager
def watching(fake: Fake, interval_s: float = 0.1) -> Iterator[DmonSource]:
    source = DmonSource(interval_s=interval_s, program=fake.program, node="n1", retry_s=0.2)
    try:
        source.begin()
        yield source
    finally:
        source.close()
        for pid, _ in fake.runs():
            assert not Path(f"/proc/{pid}").exists(), "it still runs, or is a zombie"


def read_until(
    source: DmonSource, true: Callable[[Snapshot], bool], within_s: float = 60.0
) -> Snapshot:
    until = time.monotonic() + within_s
    while not true(snapshot := source.read()):
        assert time.monotonic() < until, (snapshot, source.about)
        time.sleep(0.02)
    return snapshot


def values_of(snapshot: Snapshot, row: int) -> dict[str, float]:
    return {
        name: value for name in snapshot.values if (value := snapshot.value(name, row)) is not None
    }


def reported(snapshot: Snapshot) -> bool:
    return snapshot.value("gpu_util", 0) is not None


def test_the_stream_is_read(fake: Fake) -> None:
    with watching(fake) as source:
        began = time.time()
        first = source.read()
        assert [gpu.name for gpu in first.gpus] == ["n1:0", "n1:1"]
        snapshot = read_until(source, reported)
        assert values_of(snapshot, 0) == pytest.approx(PRINTED)
        assert values_of(snapshot, 1) == pytest.approx({**PRINTED, "gpu_util": 0.05})
        assert began - 1 < snapshot.measured[0] <= time.time()
        device = snapshot.devices[GpuId("n1", 1)]
        assert (device.model, device.uuid, device.pci) == (
            "NVIDIA A100-SXM4-40GB",
            "GPU-1-uuid",
            "00000000:01:00.0",
        )
        assert (device.hbm_mib, device.slowdown_c) == (81559, 89)
        fake.set(values={"GPU 0": {**VALUES, "203": "42"}, "GPU 1": VALUES})
        assert (
            read_until(source, lambda s: s.value("gpu_util", 0) == pytest.approx(0.42)).problems
            == ()
        )
        read_until(source, lambda s: len(source.about.unsupported) > 5)
        assert {"fp16_active", "gpu_temp_c"} <= set(source.about.unsupported)
        assert not {"gpu_util", "sm_active"} & set(source.about.unsupported)
    ((_, arguments),) = fake.runs()
    requested = set(arguments[2].split(","))
    assert {str(counter.dcgm_id) for counter in COUNTERS if counter.dcgm_id} <= requested
    assert {"393", "395", "202", "150", "140", "112", "230", "156"} <= requested
    assert arguments[3:] == ["-d", "100"]


def test_fields_that_take_turns_are_carried_on_for_a_while(fake: Fake) -> None:
    fake.set(taking_turns=[1002])
    with watching(fake) as source:
        read_until(source, lambda s: s.value("sm_active", 0) is not None)
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            assert source.read().value("sm_active", 0) == 0.91
            time.sleep(0.03)


def test_a_value_is_not_carried_on_for_ever(fake: Fake) -> None:
    later = [0.0]
    source = DmonSource(
        interval_s=0.1, program=fake.program, node="n1", clock=lambda: time.time() + later[0]
    )
    try:
        source.begin()
        read_until(source, reported)
        fake.set(values={"GPU 0": {"203": "85"}})
        read_until(source, lambda s: s.measured[0] > s.measured[1])
        later[0] = 6.0
        snapshot = read_until(source, lambda s: s.value("power_w", 0) is None)
        assert read_until(source, reported).value("power_w", 0) is None
        assert math.isnan(snapshot.measured[1])
        assert len(snapshot.gpus) == 2
    finally:
        source.close()


def test_fields_that_this_version_does_not_know_are_left_out(fake: Fake) -> None:
    fake.set(known=KNOWN, lists=False)
    with watching(fake) as source:
        assert values_of(read_until(source, reported), 0) == pytest.approx(PRINTED)
        assert source.about.unsupported["tensor_hmma_active"] == "unknown to this DCGM"
        assert "gpu_util" not in source.about.unsupported


def test_profiling_that_is_refused_leaves_the_rest(fake: Fake) -> None:
    fake.set(mode="no_profiling")
    with watching(fake) as source:
        found = values_of(read_until(source, reported), 0)
        assert found["power_w"] == 350.5
        assert "sm_active" not in found
        assert "profiling" in source.about.unsupported["sm_active"]


def test_slices_are_rows_of_their_gpu(fake: Fake) -> None:
    fake.set(
        slices={"21": [0, 2], "7": [1, 5]},
        values={**TWO, "GPU-I 21": {"1002": "0.25"}, "GPU-I 7": {"1002": "0.75"}},
    )
    with watching(fake) as source:
        snapshot = read_until(source, lambda s: s.value("sm_active", 1) is not None)
        assert [gpu.name for gpu in snapshot.gpus] == ["n1:0", "n1:0.2", "n1:1", "n1:1.5"]
        assert [snapshot.value("sm_active", row) for row in range(4)] == [0.91, 0.25, 0.91, 0.75]
    assert fake.runs()[0][1][5:] == ["-i", "0,1,0/2,1/5"]


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        (
            "die",
            (
                "ended with exit code 1: Error getting values information. Return -16: Host engine "
                "connection"
            ),
        ),
        ("killed", "was ended by signal 9"),
        ("cut", "ended with exit code 3"),
    ],
)
def test_a_death_is_told_and_it_is_started_anew(fake: Fake, mode: str, what: str) -> None:
    with watching(fake) as source:
        read_until(source, reported)
        fake.set(mode=mode)
        snapshot = read_until(source, lambda s: bool(s.problems))
        assert snapshot.problems[0].what.startswith(what)
        assert (snapshot.problems[0].where, bool(snapshot.problems[0].do)) == ("dcgmi dmon", True)
        assert values_of(snapshot, 0) == pytest.approx(PRINTED), "the last values stay for a while"
        fake.set(mode="")
        assert reported(read_until(source, lambda s: not s.problems))
    assert len(fake.runs()) >= 2


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_even_if_it_will_not(fake: Fake) -> None:
    later = [0.0]
    source = DmonSource(
        interval_s=0.1,
        program=fake.program,
        node="n1",
        retry_s=0.2,
        steady=lambda: time.monotonic() + later[0],
    )
    try:
        source.begin()
        read_until(source, reported)
        fake.set(mode="hang")
        time.sleep(0.3)
        later[0] = 6.0
        (problem,) = read_until(source, lambda s: bool(s.problems)).problems
        assert problem.what == "stopped printing"
        fake.set(mode="")
        later[0] = 8.0
        assert read_until(source, lambda s: not s.problems).gpus
    finally:
        source.close()
    assert [pid for pid, _ in fake.runs() if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize(
    ("state", "what", "do"),
    [
        ({"mode": "no_engine"}, "Unable to connect to host engine", "systemctl start nvidia-dcgm"),
        ({"mode": "no_root"}, "running as root", "run nv-hostengine as root"),
        ({"gpus": 0}, "DCGM lists no GPU", "dcgmi discovery -l"),
        ({"mode": "die"}, "Host engine connection invalid", "systemctl start nvidia-dcgm"),
    ],
)
def test_why_it_cannot_be_used_is_reported(
    fake: Fake, state: dict[str, Any], what: str, do: str
) -> None:
    fake.set(**state)
    with pytest.raises(InputError) as error:
        connect(Configuration(), program=fake.program)
    assert what in error.value.what
    assert do in error.value.do


def test_a_program_that_is_not_there_or_may_not_be_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dcgmi dmon: program not found; install DCGM"):
        connect(Configuration(), program=(str(tmp_path / "dcgmi"),))
    (tmp_path / "dcgmi").write_text("#!/bin/sh\n")
    with pytest.raises(InputError, match="cannot be run: permission denied; request permission"):
        connect(Configuration(), program=(str(tmp_path / "dcgmi"),))


def rows(*lines: str) -> list[DmonRow]:
    stream = DmonStream()
    return [row for line in lines if (row := stream.line(line)) is not None]


HEADER = "#Entity   GPUTL        SMACT        TOTEC"
UNITS = "ID                              mJ"
OTHER_ORDER = "#Entity   TOTEC        GPUTL        SMACT"


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("GPU 3     85           0.910        123", {"GPUTL": 85, "SMACT": 0.91, "TOTEC": 123}),
        ("GPU-I 21               0.910", {"SMACT": 0.91}),
        ("GPU 0     N/A                       123", {"TOTEC": 123}),
        # a number that was cut is none
        ("GPU 0     1234567890...   0.5       7", {"SMACT": 0.5, "TOTEC": 7}),
        ("GPU 0     1  2  3  4", {}),
        ("GPU 0     0x10         nan          1_0", {}),
    ],
)
def test_columns_go_by_name_and_place(line: str, values: dict[str, float]) -> None:
    kind, number = line.split()[:2]
    assert rows(HEADER, UNITS, line) == [DmonRow(DcgmEntity(kind, int(number)), values)]
    assert rows(line) == []  # what the columns are is not known yet


def test_a_later_header_counts() -> None:
    (row,) = rows(HEADER, OTHER_ORDER, "GPU 0     7            8            9")
    assert row.values == {"TOTEC": 7, "GPUTL": 8, "SMACT": 9}


def test_old_versions_write_columns_flush_right() -> None:
    (full,) = rows("# Entity  GRACT  TENSO  DRAMA", "      Id", "   GPU 0  0.552  0.539  0.000")
    assert full.values == {"GRACT": 0.552, "TENSO": 0.539, "DRAMA": 0.0}
    (gap,) = rows("# Entity  GRACT  TENSO  DRAMA", "      Id", "   GPU 0  0.552         0.000")
    assert gap.values == {"GRACT": 0.552, "DRAMA": 0.0}
