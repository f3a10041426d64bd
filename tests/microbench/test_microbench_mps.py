"""Two real processes that take orders, on simulated GPUs: what they answer, and that none stays
behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from microbench import mps
from microbench.device import LaunchError
from microbench.experiments import Experiment
from microbench.mps import MpsPairs
from microbench.run import BenchPlan
from microbench.simulated_device import SimulatedGpu
from microbench.workloads import BenchWorkload

WORKER = Path(__file__).with_name("mps_worker.py")


@pytest.fixture(autouse=True)
def research_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(mps.__file__).parents[1]))


def pairs(behaviour: str) -> MpsPairs:
    return MpsPairs((sys.executable, str(WORKER), behaviour))


def experiment(kernel: str = "fmul_4", share: float = 0.0625) -> Experiment:
    one = BenchWorkload(kernel=kernel, blocks=132, threads=128)
    return Experiment(
        name="x", group="x", question="x", first=one, second=one, shares=(share, share)
    )


def children() -> set[str]:
    """Processes of this thread: other tests of this process may keep servers, which are of no
    concern here.
    """
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def none_left() -> Iterator[None]:
    """Fails a test that leaves a process behind."""
    before = children()
    yield
    assert children() <= before


@pytest.mark.usefixtures("none_left")
def test_two_processes_are_measured_with_their_shares() -> None:
    tuned, runs = pairs("works").measure(experiment(), BenchPlan(runs=2, target_s=0.02))
    alone = SimulatedGpu().alone("fmul_4", 132, 128, (0, 0, tuned[0].rounds, 0))
    assert len(runs) == 2
    for one in runs:
        assert one.in_turn is None
        assert one.alone == pytest.approx((16 * alone, 16 * alone))
        assert one.together.first_s == pytest.approx(16 * alone)


@pytest.mark.usefixtures("none_left")
@pytest.mark.parametrize(
    ("behaviour", "kernel", "message"),
    [
        ("dies", "fmul_4", "ended before its work was done"),
        ("works", "dmul_1", "did not end within"),
        ("works", "dmul_2", "CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_a_process_that_fails_is_reported_and_gone(
    behaviour: str, kernel: str, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        pairs(behaviour).measure(experiment(kernel), BenchPlan(runs=1, target_s=0.02))


@pytest.mark.usefixtures("none_left")
def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "_START_S", 0.5)
    with pytest.raises(LaunchError, match="did not answer"):
        pairs("hangs").measure(experiment(), BenchPlan(runs=1, target_s=0.02))
