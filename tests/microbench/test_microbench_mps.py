"""Two real processes that take orders, on simulated GPUs: what they answer, and that none stays behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from microbench import mps
from microbench.device import LaunchError
from microbench.experiments import Experiment, chosen, experiments
from microbench.mps import MpsPairs, require_daemon
from microbench.run import BenchPlan
from microbench.simulated_device import SimulatedGpu
from microbench.worker import serve
from microbench.workloads import BenchWorkload
from tachograph.catalog.errors import UsageError
from tachograph.sharing.demand import H100_NVL

WORKER = Path(__file__).with_name("mps_worker.py")


@pytest.fixture(autouse=True)
def research_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(mps.__file__).parents[1]))


def pairs(behaviour: str) -> MpsPairs:
    return MpsPairs((sys.executable, str(WORKER), behaviour))


def experiment(kernel: str = "fmul_4", share: float = 0.0625) -> Experiment:
    one = BenchWorkload(kernel=kernel, blocks=132, threads=128)
    return Experiment(name="x", group="x", question="x", first=one, second=one, shares=(share, share))


def test_processes_are_started_where_their_module_is_found() -> None:
    command = MpsPairs.of(99).start
    done = subprocess.run([*command], cwd=mps._RESEARCH, capture_output=True, text=True, timeout=120, check=True)
    assert "no GPU 99 can be used here" in json.loads(done.stdout)["problem"]


def children() -> set[str]:
    """Processes of this thread: other tests of this process may keep servers, which are of no concern here."""
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


def test_a_process_that_is_done_leaves_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """To kill a client of MPS may take the server with it."""
    ended, kill = [], subprocess.Popen.kill

    def watched(process: subprocess.Popen[str]) -> None:
        ended.append(process.poll())
        kill(process)

    monkeypatch.setattr(subprocess.Popen, "kill", watched)
    pairs("works").measure(experiment(), BenchPlan(runs=1, target_s=0.02))
    assert ended == [0, 0]


@pytest.mark.usefixtures("none_left")
@pytest.mark.parametrize(
    ("behaviour", "kernel", "message"),
    [
        ("dies", "fmul_4", "ended before its work was done"),
        ("works", "dmul_1", "did not end within"),
        ("works", "dmul_2", "CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_a_process_that_fails_is_reported_and_gone(behaviour: str, kernel: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        pairs(behaviour).measure(experiment(kernel), BenchPlan(runs=1, target_s=0.02))


@pytest.mark.usefixtures("none_left")
def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "_START_S", 0.5)
    with pytest.raises(LaunchError, match="did not answer"):
        pairs("hangs").measure(experiment(), BenchPlan(runs=1, target_s=0.02))


def test_orders_are_lines_of_json() -> None:
    workload = {"kernel": "fmul_1", "blocks": 132, "threads": 128, "floats": 0}
    orders = [
        {"do": "load", "workload": workload},
        {"do": "tune", "target_s": 0.01},
        {"do": "run", "rounds": 100, "limit_s": 5.0},
        {"do": "load", "workload": workload | {"kernel": "dmul_1"}},
    ]
    answers, device = io.StringIO(), SimulatedGpu(noise=0.0)
    serve(device, io.StringIO("".join(json.dumps(order) + "\n" for order in orders)), answers)
    found = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert found[0] == {}
    assert found[1]["seconds"] == pytest.approx(0.01, rel=0.05)
    assert found[2]["seconds"] == pytest.approx(device.alone("fmul_1", 132, 128, (0, 0, 100, 0)))
    assert device.sizes == {}


def test_without_the_daemon_it_shows_how_to_start_it(tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    with pytest.raises(UsageError, match="nvidia-cuda-mps-control -d"):
        require_daemon(environment)
    (tmp_path / "control").touch()
    require_daemon(environment)


def test_what_runs_under_mps_has_shares_that_fit() -> None:
    shared = [one for one in chosen(experiments(H100_NVL), []) if one.shares is not None]
    assert {one.group for one in shared} == {"bandwidth", "l2", "pitfalls"}
    assert all(one.second is not None and one.shares is not None and sum(one.shares) <= 1 for one in shared)
