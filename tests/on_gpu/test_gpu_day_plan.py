"""The day on a GPU as it is planned: order and time of its steps, its numbers, its archives, its
wheels.
"""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DAY = REPOSITORY / "research" / "gpu-day"
sys.path.insert(0, str(DAY))

import day_pack  # noqa: E402
import gpu_day  # noqa: E402
import real_pairs  # noqa: E402
import step_collect  # noqa: E402
import step_overhead  # noqa: E402
import step_pairs  # noqa: E402
import step_pm  # noqa: E402
from day_tools import PROFILED, DayTools, StepError, end_session, started  # noqa: E402
from proof_numbers import energy  # noqa: E402
from rehearsal_ncu import kernel  # noqa: E402
from step_document import StepDocument, load, markdown  # noqa: E402
from workloads import SITE, load_torch  # noqa: E402

import pair_numbers  # noqa: E402
from nsight_reports import raw_csv  # noqa: E402
from tachograph.annexes.share.demand import Calibration  # noqa: E402
from tachograph.annexes.share.nsight.reports import read_report  # noqa: E402

MODULES = (
    "day_pack", "day_tools", "gpu_day", "pair_numbers", "proof_numbers", "real_pairs", "step_document", "step_overhead",
    "step_pm",
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_day_fits_into_ten_minutes_in_the_order_of_its_worth() -> None:
    steps = gpu_day.selected([])
    limits = [step.limit_s for step in steps]
    assert [step.name for step in steps] == ["pm", "pairs", "overhead", "summary"]
    assert [round(limit / 60) for limit in limits[:3]] == [3, 4, 3]
    assert sum(limits) <= gpu_day.TOTAL_S == 10 * 60
    assert [limit for _, limit in gpu_day.plan([], gpu_day.TOTAL_S, rehearse=False)] == limits


def test_short_time_shortens_the_last_step_and_leaves_out_the_others() -> None:
    found = gpu_day.plan([], 300.0, rehearse=False)
    assert [(step.name, limit) for step, limit in found] == [("pm", 175.0), ("pairs", 125.0)]


def test_six_rounds_of_the_first_observers_fit_into_their_step(tmp_path: Path) -> None:
    """PyTorch loads and clocks settle in 25 s; what has no room is named."""
    limit_s = next(step.limit_s for step in gpu_day.STEPS if step.name == "overhead")
    tools = DayTools(tmp_path, 0, time.monotonic() + limit_s - gpu_day._MARGIN_S - 25, False, {})
    document = StepDocument("overhead", "C")
    observers = list(step_overhead.OBSERVERS)
    fitting = step_overhead._fitting(tools, document, observers, step_overhead._ROUNDS)
    assert [one.kind for one in fitting] == ["nvml", "pm"]
    assert document.not_measured == ["DCGM profiling fields, 1 Hz: no time for 6 rounds"]


def test_activities_follow_from_raw_samples_and_readings(tmp_path: Path) -> None:
    """A workload of 4 s whose samples read, GPC cycles apart, what GPM reads; the clock of the GPU
    counts from another moment, and the memory of ncu's kernel was busier at its higher clock.
    """
    folder = tmp_path / "pm"
    folder.mkdir()
    begin, length_ns = 1_000.0, 10_000_000
    head = {"kind": "head", "metrics": [*PROFILED[:5], step_pm.ELAPSED]}
    lines: list[dict[str, Any]] = [head]
    for part in range(60):  # of ten samples, 1 s before the workload begins to 1 s after it
        rows = []
        for sample in range(part * 10, part * 10 + 10):
            active = 0.95 if 1.0 <= sample / 100 < 5.0 else 0.0
            cycles = [active * 1.4e7, 1.45e7, 0.0, 0.25 * 2.6e7, 2.6e7, 1.4e7]
            rows.append([5 + sample * length_ns, 5 + (sample + 1) * length_ns, *cycles])
        read = begin - 1.0 + (part + 1) / 10 + 0.02 * (part % 3)
        lines.append({"kind": "samples", "read": read, "rows": rows})
    gpm = [
        {"t": begin + half / 2, "sm_active": 0.955 if half > 0 else 0.0, "dram_active": 0.25}
        for half in range(-2, 9)
    ]
    for name, each in (("pm.jsonl", lines), ("gpm.jsonl", gpm)):
        text = "".join(json.dumps(line) + "\n" for line in each)
        (folder / name).write_text(text, encoding="utf-8")
    span = {"name": "copy", "begin": begin, "end": begin + 4.0}
    (folder / "spans.json").write_text(json.dumps([span]), encoding="utf-8")
    document = StepDocument("pm", "A")
    step_pm.analyze(tmp_path, document)
    (row,) = document.tables[0].rows
    assert (row[0], row[1], row[-1]) == ("copy", 340.0, True)
    assert row[2:5] == pytest.approx([0.95, 0.95 * 1.4 / 1.45, 0.955])
    assert row[6] == pytest.approx(100 * (0.95 / 0.955 - 1))
    assert document.tables[1].rows[0][4] == pytest.approx(1400)  # MHz


def test_pairs_that_had_no_time_are_named_and_raise_nothing(tmp_path: Path) -> None:
    environment = gpu_day.paths(tmp_path, {"PATH": "/usr/bin"})
    tools = DayTools(tmp_path, 0, time.monotonic() + 5, True, environment)
    document = StepDocument("pairs", "B")
    step_pairs._real(tools, document)  # the time of the step is up before the first pair
    assert document.not_measured == ["6 of 6 pairs of real kernels"]
    step_pairs.analyze(tmp_path, document)
    assert document.tables == []


@pytest.mark.parametrize("ends", [([], []), ([1.0], [0.5, 2.0]), ([1.0, 2.0], [3.0, 4.0])])
def test_streams_that_did_not_overlap_are_no_pair(ends: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="stream"):
        real_pairs.overlapped(*ends)


def test_a_step_that_is_finished_is_read_back_as_it_was(tmp_path: Path) -> None:
    document = StepDocument(
        "x", "X", "done", device="NVIDIA H200", not_measured=["a: b"], result={"a": [1, None]}
    )
    document.save(tmp_path)
    assert load(tmp_path, "x") == document
    assert (tmp_path / "x.md").read_text() == markdown(document)
    assert load(tmp_path, "y") is None


def test_the_rate_of_a_pair_is_that_while_both_run() -> None:
    device = real_pairs.Simulated()
    found = real_pairs.measured(device, ("copy", "spmv"))
    assert found["slowdowns"] == pytest.approx([1.8, 1.8], rel=0.02)
    assert real_pairs.measured(device, ("fp64-vector", "copy"))["slowdowns"] == pytest.approx(
        [1.0, 1.0], rel=0.02
    )


def test_real_kernels_are_predicted_from_their_reports(tmp_path: Path) -> None:
    reports = {}
    for name in ("copy", "gemm-bf16"):
        file = tmp_path / f"{name}.csv"
        file.write_text(raw_csv([kernel(name)], launches=3))
        reports[name] = read_report(file).launches
    runs = [{"alone_s": [0.001, 0.002]}]
    pairs = [
        {"pair": ["copy", "gemm-bf16"], "slowdowns": [1.2, 1.1], "runs": runs},
        {"pair": ["copy", "fft"], "slowdowns": [2.0, 1], "runs": runs},
    ]
    found = pair_numbers.checks(pairs, reports, Calibration())
    assert [(one.name, one.beside) for one in found] == [
        ("copy", "gemm-bf16"), ("gemm-bf16", "copy"), ("copy", "fft"), ("fft", "copy"),
    ]  # fmt: skip
    assert all(one.predicted is not None and one.predicted >= 1 for one in found[:2])
    assert all((one.low or 9) <= (one.predicted or 0) <= (one.high or 0) for one in found[:2])
    assert [one.predicted for one in found[2:]] == [None, None]
    assert "fft was not profiled" in found[2].unknown
    assert pair_numbers.pair_errors(found).checked == 2


@pytest.mark.parametrize("factor", [1.0, 0.975, 0.8, 1.25])
def test_a_counter_seen_late_is_no_difference_of_energy(factor: float) -> None:
    t = np.array(
        [0.103 * one + 1e-4 for one in range(20)]
    )  # a bit slower than the counter advances: each change is seen later
    counter = np.floor(t * 10) * 30.0  # 300 W
    drawn = energy(t, np.full(t.size, 300.0 * factor), counter)
    assert drawn is not None
    assert drawn.difference == pytest.approx(1.03 * factor - 1)


def test_results_travel_to_another_machine_without_overwriting(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    for folder in (out / "proof", out / "scratch", other):
        folder.mkdir(parents=True)
    (out / "proof.json").write_text("{}")
    (out / "proof" / "results.json").write_text("old")
    (out / "scratch" / "left").write_text("")
    step_collect.bundle(out, tmp_path / "all.tar.gz")
    with tarfile.open(tmp_path / "all.tar.gz") as packed:
        assert packed.getnames() == ["gpu-day/proof/results.json", "gpu-day/proof.json"] or set(packed.getnames()) == {
            "gpu-day/proof/results.json", "gpu-day/proof.json",
        }  # fmt: skip
        assert {member.uname for member in packed} == {""}
    (other / "proof.json").write_text("new")
    step_collect.unbundle(tmp_path / "all.tar.gz", other)
    assert (other / "proof.json").read_text() == "new"
    assert (other / "proof" / "results.json").read_text() == "old"


def test_the_lock_is_that_of_the_other_python() -> None:
    text = (REPOSITORY / "requirements" / "run.txt").read_text(encoding="utf-8")
    found = {
        py: [one.split()[0] for one in day_pack.locked(text, python=py)] for py in ("3.11", "3.12")
    }
    assert found["3.11"] != found["3.12"]
    for each in found.values():
        names = [one.split("==")[0] for one in each]
        assert len(names) == len(set(names))
        assert {"polars", "deltalake", "numpy"} <= set(names)
    assert all("--hash=sha256:" in one for one in day_pack.locked(text, python="3.12"))
    of_pm = list(
        day_pack.locked((DAY / "pm-sampling.txt").read_text(encoding="utf-8"), python="3.12")
    )
    assert any(one.startswith("cupti-python==") for one in of_pm)


def test_wheels_are_unpacked_once(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a/__init__.py", "b = 1")
        wheel.writestr("a-1.data/purelib/c.py", "")
        wheel.writestr("a-1.data/scripts/run", "")
    day_pack.unpack(tmp_path)
    names = {
        str(file.relative_to(tmp_path / "site"))
        for file in (tmp_path / "site").rglob("*")
        if file.is_file()
    }
    assert names == {"a/__init__.py", "c.py"}
    day_pack.unpack(tmp_path)
    assert not (tmp_path / "site.new").exists()


def test_two_archives_have_all_that_measuring_needs(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    for name in ("wheels/a.whl", "wheels-pm/b.whl", "kernels/kernels-sm_90.cubin"):
        (pack / name).parent.mkdir(parents=True)
        (pack / name).touch()
    archives = day_pack.bundle(pack, tmp_path / "gpu-day.tar")
    assert [file.name for file in archives] == ["gpu-day.tar", "gpu-day-pm.tar"]
    for file in archives:
        with tarfile.open(file) as archive:
            archive.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there" / "gpu-day"
    for name in (
        "research/gpu-day/gpu_day.py", "research/microbench/kernels-sm_90.cubin", "Makefile",
        "dist/gpu-day/wheels/a.whl", "dist/gpu-day/wheels-pm/b.whl",
    ):  # fmt: skip
        assert (there / name).exists(), name
    assert not list(there.rglob("__pycache__"))


def test_what_is_packed_is_what_measuring_imports() -> None:
    """Of the packages that run everything, the programs that measure import those of the pack alone."""
    programs = ("workloads", "pm_sample", "gpm_sample", "real_pairs", "profiled", "step_pm", "step_overhead",
                "step_pairs", "calibrate", "microbench.worker")  # fmt: skip
    packed = {name.replace("-", "_") for name in day_pack._RUN} | {"markdown_it", "pynvml"}
    code = (
        f"import sys\nfor name in {programs!r}: __import__(name)\n"
        "import importlib.metadata as m\n"
        "tops = {one.split('.')[0] for one in sys.modules}\n"
        "print(*sorted(tops & set(m.packages_distributions())))"
    )
    environment = gpu_day.paths(REPOSITORY / "none", {"PATH": "/usr/bin"})
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    imported = {name for name in done.stdout.split() if not name.startswith("_")}
    assert imported - {"tachograph", "cuda"} <= packed


def test_pytorch_keeps_its_own_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SITE, str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "torch.py").write_text("raise SystemExit('that of the pack')")
    # Stands in for an installed one.
    monkeypatch.setitem(sys.modules, "torch", importlib.import_module("json"))
    assert load_torch() is json
    assert str(tmp_path) not in sys.path


def test_a_program_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    child = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import "
        "time; time.sleep(600)'])"
    )
    tools = DayTools(tmp_path, 0, time.monotonic() + 600, True, {"PATH": "/usr/bin"})
    begun = time.monotonic()
    with pytest.raises(StepError, match="did not end within 1 s"):
        tools.run([sys.executable, "-c", f"{child}; time.sleep(600)"], 1.0)
    assert time.monotonic() - begun < 120
    with started(
        [sys.executable, "-c", f"{child}; print('up', flush=True); time.sleep(600)"], {}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        end_session(process)
        assert process.stdout.read() == ""  # nobody holds the pipe any more


def test_the_steps_are_listed(tmp_path: Path) -> None:
    command = [sys.executable, str(DAY / "gpu_day.py"), "--out", str(tmp_path), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        step.name for step in gpu_day.STEPS
    ]
