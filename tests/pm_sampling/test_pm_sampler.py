"""The session of one GPU: nothing is lost where the reader is slow, and what is lost is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pm_node import GpuClock, PmNode, gpu

from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError
from tachograph.annexes.watch.pm_sampling.sampler import DeviceSampler, PmInterval
from tachograph.sources.score_sums import PmSums, total

RECORD = 4096  # bytes of a sample in the stand-in's buffer


@contextmanager
def sampled(
    node: PmNode, clock: GpuClock, interval_s: float = 0.05, **options: Any
) -> Iterator[DeviceSampler]:
    """A session that the test drains itself."""
    with node.library(clock.now_ns) as library:
        sampler = DeviceSampler(
            library,
            node.listed(library),
            PmInterval(interval_s),
            clock=clock.now_s,
            running=lambda kind: False,
            **options,
        )
        sampler.open()
        yield sampler
        sampler.close()


def taken(sampler: DeviceSampler) -> PmSums:
    whole = total(sampler.take())
    assert whole is not None
    return whole


def test_sums_are_those_of_the_samples(tmp_path: Path) -> None:
    clock = GpuClock()
    kernel = {"sm_active": 0.5, "warps": 16, "dram_active": 0.25}
    with sampled(PmNode(tmp_path, [gpu(kernel=kernel)]), clock) as sampler:
        clock.pass_s(1.0)
        sampler.drain()
        found = taken(sampler)
    assert (found.samples, found.lost_s, found.overflows) == (20, 0.0, 0)
    assert found.measured_s == pytest.approx(1.0)
    assert found.sums["sm__cycles_elapsed.avg"] == pytest.approx(1.98e9)
    assert found.scores(64)["score_gpu"] == pytest.approx(87.5)
    assert found.counters(64)["sm_clock_mhz"] == pytest.approx(1980)
    # Our clock.
    assert [found.begin, found.end] == pytest.approx([clock.start_s, clock.start_s + 1])


KERNEL = {
    "sm_active": 0.9, "warps": 16, "dram_active": 0.25, "tensor": 0.98, "fp64": 0.4, "fp32": 0.7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("chip", "uncounted"),
    [
        ("GH100", set()),
        ("GA100", set()),
        ("AD102", set()),
        ("GB202", set()),
        ("GR100", set()),
        ("TU102", {"tensor_active"}),
    ],
)
def test_passes_take_turns_and_together_have_all_activities(
    tmp_path: Path, chip: str, uncounted: set[str]
) -> None:
    """Two minutes of a steady kernel: every activity is that of the kernel, and what a pass does not
    count for the scores counts as lost.
    """
    clock = GpuClock()
    interval = {"interval_s": 0.05}
    with sampled(PmNode(tmp_path, [gpu(kernel=KERNEL, chip=chip)]), clock, **interval) as sampler:
        minutes: list[PmSums] = []
        for step in range(1200):
            clock.pass_s(0.1)
            sampler.drain()
            minutes += sampler.take() if step % 5 == 0 else []
        passes = sampler.chosen.passes
        scored = sampler.chosen.scored.keys()
    minutes += sampler.take()
    found = total(minutes)
    assert found is not None
    counters = found.counters(64)
    expected = {
        "sm_active": 0.9, "sm_occupancy": 0.9 * 16 / 64, "dram_active": 0.25, "tensor_active": 0.98,
        "fp64_active": 0.4, "fp32_active": 0.7, "sm_clock_mhz": 1980, "mem_clock_mhz": 3201,
    }  # fmt: skip
    for name in uncounted:
        del expected[name]
    assert counters == pytest.approx(expected)
    assert found.measured_s + found.lost_s == pytest.approx(120, abs=1.6)
    gaps = [one for one in passes if not scored <= one.keys()]
    share = 0.05 * len(gaps) / (0.95 + 0.05 * (len(passes) - 1))
    assert found.lost_s == pytest.approx(120 * share, abs=1.0)


def test_what_another_pass_counted_is_of_its_last_turn(tmp_path: Path) -> None:
    """The FP64 pipe works in the last third of the time, which its turns show with their delay."""
    clock = GpuClock()
    node = PmNode(tmp_path, [gpu(kernel=KERNEL | {"fp64": 0.0}, chip="GA100")])
    with sampled(node, clock) as sampler:
        for step in range(3000):
            if step == 2000:
                node.gpus[0]["kernel"] = KERNEL | {"fp64": 0.6}
                node.write()
            clock.pass_s(0.1)
            sampler.drain()
        found = taken(sampler)
    share = found.counters(64)["fp64_active"]
    assert share == pytest.approx(0.2, abs=0.6 * 10.5 / 300)  # a round of turns takes 10.5 s
    assert found.counters(64)["fp32_active"] == pytest.approx(0.7)


def test_a_gpu_without_cycles_has_no_shares(tmp_path: Path) -> None:
    """A clock that rests makes a share of no number; memory is still counted."""
    clock = GpuClock()
    with sampled(PmNode(tmp_path, [gpu(kernel={"sm_hz": 0.0})]), clock) as sampler:
        clock.pass_s(1.0)
        sampler.drain()
        found = taken(sampler)
    assert found.samples == 20
    assert {"sm_active", "tensor_active"}.isdisjoint(found.counters(64))
    assert found.counters(64)["dram_active"] == pytest.approx(0.25)


def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    """Three hours without a reader, drained meanwhile: one sum per minute, and every sample is
    in one of them.
    """
    clock = GpuClock()
    with sampled(PmNode(tmp_path), clock, 1.0, buffer_bytes=100 * RECORD) as sampler:
        for _ in range(3 * 60 * 2):
            clock.pass_s(30.0)
            sampler.drain()
        minutes = sampler.take()
    assert sum(one.samples for one in minutes) == 3 * 3600
    assert len(minutes) in (180, 181)
    assert {one.overflows for one in minutes} == {0}


def test_more_than_one_decode_is_needed_for_many_samples(tmp_path: Path) -> None:
    clock = GpuClock()
    with sampled(PmNode(tmp_path), clock, 0.001, buffer_bytes=30_000 * RECORD) as sampler:
        clock.pass_s(25.0)
        sampler.drain()
        assert taken(sampler).samples == 25_000


def test_an_overflow_is_counted_and_sampling_goes_on(tmp_path: Path) -> None:
    clock = GpuClock()
    with sampled(PmNode(tmp_path), clock, buffer_bytes=100 * RECORD) as sampler:
        clock.pass_s(1.0)
        sampler.drain()
        clock.pass_s(60.0)  # 1,200 samples, the buffer holds 100
        sampler.drain()
        clock.pass_s(1.0)
        sampler.drain()
        found = taken(sampler)
    assert (found.samples, found.overflows) == (40, 1)
    assert found.lost_s == pytest.approx(60.0)  # and no sample is made up for it
    assert found.measured_s == pytest.approx(2.0)


def test_a_first_sample_without_a_begin_is_left_out(tmp_path: Path) -> None:
    clock = GpuClock()
    with sampled(PmNode(tmp_path, [gpu(kernel={"first_begin": 0})]), clock) as sampler:
        clock.pass_s(1.0)
        sampler.drain()
        found = taken(sampler)
    assert (found.samples, found.lost_s) == (19, 0.0)
    assert found.measured_s == pytest.approx(0.95)


def test_a_lost_gpu_ends_its_session_and_keeps_what_was_measured(tmp_path: Path) -> None:
    node = PmNode(tmp_path)
    with node.library() as library:
        sampler = DeviceSampler(library, node.listed(library), PmInterval(0.01), drain_s=0.01)
        sampler.open()
        sampler.start()
        end = time.monotonic() + 60
        found: list[PmSums] = []
        while not found and time.monotonic() < end:
            found = sampler.take()
        node.gpus[0]["faults"] = {"decode": "ERROR_INVALID_DEVICE"}
        node.write()
        while sampler.fault is None and time.monotonic() < end:
            time.sleep(0.01)
        sampler.close()
    assert found
    assert sampler.fault is not None
    assert (sampler.fault.code, sampler.fault.is_retried) == ("lost", True)


def test_a_session_that_does_not_open_is_closed(tmp_path: Path) -> None:
    node = PmNode(tmp_path, [gpu(faults={"start": "ERROR_HARDWARE_BUSY"})])
    with node.library() as library:
        sampler = DeviceSampler(
            library, node.listed(library), PmInterval(), running=lambda kind: False
        )
        with pytest.raises(PmSamplingError, match="another process"):
            sampler.open()
        collector: Any = sampler._collector
        assert not collector._enabled
