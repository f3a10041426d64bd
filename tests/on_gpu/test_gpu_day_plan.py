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

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DAY = REPOSITORY / "research" / "gpu-day"
sys.path.insert(0, str(DAY))

import day_pack  # noqa: E402
import gpu_day  # noqa: E402
import real_pairs  # noqa: E402
import step_collect  # noqa: E402
from day_tools import DayTools, StepError, end_session, started  # noqa: E402
from proof_numbers import energy  # noqa: E402
from rehearsal_ncu import kernel  # noqa: E402
from step_document import StepDocument, load, markdown  # noqa: E402
from step_proof import energy_within  # noqa: E402
from workloads import SITE, load_torch  # noqa: E402

import pair_numbers  # noqa: E402
from nsight_reports import raw_csv  # noqa: E402
from tachograph.annexes.share.demand import Calibration  # noqa: E402
from tachograph.annexes.share.nsight.reports import read_report  # noqa: E402

MODULES = (
    "day_pack", "day_tools", "gpu_day", "pair_numbers", "proof_numbers", "real_pairs", "step_document", "step_overhead",
    "step_pm", "step_proof",
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_all_steps_fit_into_25_minutes_and_each_into_8() -> None:
    limits = [step.limit_s for step in gpu_day.STEPS]
    assert sum(limits) <= gpu_day.TOTAL_S == 25 * 60
    assert max(limits) + gpu_day._PATIENCE_S < gpu_day.MOST_S == 8 * 60
    assert [limit for _, limit in gpu_day.plan([], gpu_day.TOTAL_S, rehearse=False)] == limits


def test_short_time_shortens_the_last_step_and_leaves_out_the_others() -> None:
    found = gpu_day.plan([], 500.0, rehearse=False)
    assert [(step.name, limit) for step, limit in found] == [("proof", 435.0), ("pairs", 65.0)]


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
    found = real_pairs.measured(device, ("copy", "reduction"))
    assert found["slowdowns"] == pytest.approx([1.8, 1.8], rel=0.02)
    assert real_pairs.measured(device, ("gemm-fp32", "copy"))["slowdowns"] == pytest.approx(
        [1.0, 1.0], rel=0.02
    )


def test_real_kernels_are_predicted_from_their_reports(tmp_path: Path) -> None:
    reports = {}
    for name in ("copy", "gemm-bf16"):
        file = tmp_path / f"{name}.csv"
        file.write_text(raw_csv([kernel(name)], launches=3))
        reports[name] = read_report(file).launches
    pairs = [
        {"pair": ["copy", "gemm-bf16"], "slowdowns": [1.2, 1.1]},
        {"pair": ["copy", "fft"], "slowdowns": [2.0, 1]},
    ]
    found = pair_numbers.checks(pairs, reports, Calibration())
    assert [(one.name, one.beside) for one in found] == [
        ("copy", "gemm-bf16"), ("gemm-bf16", "copy"), ("copy", "fft"), ("fft", "copy"),
    ]  # fmt: skip
    assert all(one.predicted is not None and one.predicted >= 1 for one in found[:2])
    assert all(one.worst is not None and one.worst >= (one.predicted or 0) for one in found[:2])
    assert [one.predicted for one in found[2:]] == [None, None]
    assert "fft was not profiled" in found[2].unknown
    assert pair_numbers.pair_errors(found).checked == 2


@pytest.mark.parametrize(
    ("factor", "within"), [(1.0, None), (0.975, True), (0.8, False), (1.25, False)]
)
def test_a_counter_seen_late_is_no_difference_of_energy(factor: float, within: bool | None) -> None:
    t = np.array(
        [0.103 * one + 1e-4 for one in range(20)]
    )  # a bit slower than the counter advances: each change is seen later
    counter = np.floor(t * 10) * 30.0  # 300 W
    drawn = energy(t, np.full(t.size, 300.0 * factor), counter)
    assert drawn is not None
    assert drawn.difference == pytest.approx(1.03 * factor - 1)
    assert energy_within(drawn.difference, drawn.resolution) is within


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


def test_an_archive_is_cut_into_parts_that_join(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    whole = day_pack.bundle(tmp_path / "pack", tmp_path / "whole.tar", 0)
    parts = day_pack.bundle(tmp_path / "pack", tmp_path / "cut.tar", 4)
    assert whole == [tmp_path / "whole.tar"]
    assert len(parts) > 1
    assert all(part.stat().st_size <= 4 << 20 for part in parts)
    joined = b"".join(part.read_bytes() for part in parts)
    assert len(joined) == whole[0].stat().st_size
    (tmp_path / "joined.tar").write_bytes(joined)
    with tarfile.open(tmp_path / "joined.tar") as archive:
        assert "gpu-day/research/gpu-day/gpu_day.py" in archive.getnames()
        assert not [name for name in archive.getnames() if "__pycache__" in name]


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
