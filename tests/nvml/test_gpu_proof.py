"""The proof on a real GPU, as far as it goes without one: its numbers, its labels, a rehearsal
through the library.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from servers.process import program
from tachograph.judge.workload.rules import classify, reading_of

REPOSITORY = Path(__file__).resolve().parents[2]
PROOF = REPOSITORY / "research" / "gpu-day"
sys.path.insert(0, str(PROOF))

import proof as run_proof  # noqa: E402
import proof_numbers  # noqa: E402
from proof_labels import BY_NAME, LABELS, Check, Label  # noqa: E402


class Counting(run_proof.Proof):
    """Runs nothing: a program does 100 units a second, one that is recorded 99."""

    def run(self, command: Sequence[str], seconds: float) -> None:
        words = list(command)
        file = Path(words[words.index("--result") + 1])
        file.write_text(json.dumps({"rate": 99.0 if "record" in words else 100.0}))
        self.environment[f"{len(self.environment)}"] = "recorded" if "record" in words else "alone"  # type: ignore[index]


@pytest.mark.parametrize("label", LABELS, ids=lambda label: str(label.name))
def test_what_is_pretended_has_the_class_of_its_label(label: Label) -> None:
    reading = dict.fromkeys(
        ("gpu_util", "sm_active", "tensor_active", "dram_active", "gr_engine_active"), 0.0
    )
    reading |= dict.fromkeys(
        ("fp64_active", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "mem_copy_util"), 0.0
    )
    if label.name != "hang":  # which ends idle
        reading |= label.typical
    assert classify(reading_of(reading)).label in label.classes


def test_the_overhead_is_that_of_pairs() -> None:
    without = [100.0, 104.0, 96.0, 101.0]
    recorded = [99.5, 103.0, 96.2, 100.0]
    found = proof_numbers.overhead(without, recorded)
    logarithms = [math.log(a / b) for a, b in zip(without, recorded, strict=True)]
    mean, half = statistics.fmean(logarithms), 3.182 * statistics.stdev(logarithms) / 2
    assert found is not None
    assert found.pairs == 4
    assert found.fraction == pytest.approx(math.exp(mean) - 1)
    assert found.low == pytest.approx(math.exp(mean - half) - 1)
    assert found.high == pytest.approx(math.exp(mean + half) - 1)


def test_readings_without_a_sample_near_them_are_left_out() -> None:
    t = np.array([10.0, 10.1, 11.0])
    here = np.array([0.5, math.nan, 0.9])
    found = proof_numbers.agreement(t, here, [(10.12, 51.0), (11.2, 80.0), (20.0, 0.0)])
    assert found == proof_numbers.Agreement(2, 70.0, 65.5, 5.5, 10.0)
    assert proof_numbers.agreement(t, here, []) is None
    assert proof_numbers.agreement(t[:0], here[:0], [(1.0, 1.0)]) is None


def test_a_share_above_a_level_and_what_was_not_measured() -> None:
    check = Check("gr_engine_active", 0.4, 0.6, "share above", 0.5)
    assert proof_numbers.checked(check, np.array([0.0, 0.9, 0.51, 0.5])) == (0.5, True)
    assert proof_numbers.checked(check, np.array([math.nan])) == (None, False)
    assert proof_numbers.checked(check, None) == (None, False)


def test_runs_with_and_without_a_recording_take_turns(tmp_path: Path) -> None:
    ran: dict[str, str] = {}
    proof = Counting(tmp_path, 0, 60.0, 8.0, 3, 10.0, False, ran, ())
    found = run_proof.weigh(proof, BY_NAME["fp32"])
    assert found is not None
    assert found["fraction"] == pytest.approx(100 / 99 - 1)
    assert found["rates_recorded"] == [99.0] * 3
    assert list(ran.values()) == ["alone", "recorded", "recorded", "alone", "alone", "recorded"]
    assert run_proof.weigh(proof, BY_NAME["hang"]) is None  # which does nothing to be counted


@pytest.mark.slow
def test_a_rehearsal_comes_out_as_expected(tmp_path: Path) -> None:
    program("gcc", package="gcc libc6-dev")
    out = tmp_path / "proof"
    command = [
        sys.executable,
        str(PROOF / "proof.py"),
        "--rehearse",
        "--out",
        str(out),
        "--only",
        "fp16",
    ]
    command += ["--seconds", "6", "--repeats", "0"]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")
    }
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "results.json").read_text())
    reported = results["workloads"]["fp16"]
    assert results["failures"] == []
    assert reported["shares"] == {"tensor-heavy compute": 1.0}
    assert reported["means"]["tensor_active"] == pytest.approx(0.8)
    assert reported["means"]["power_w"] == pytest.approx(300)
    assert reported["samples"] > 3
    assert reported["nvidia_smi"]["mean_difference"] < 1
    again = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=300)
    assert (again.returncode, again.stderr) == (0, "")  # nothing is left to do
    import polars as pl

    kept = pl.read_parquet(out / "samples/fp16.parquet")
    assert kept["label"].unique().to_list() == ["fp16"]
    assert kept["node"].unique().to_list() == ["node1"]  # whose it was is not told
    assert (out / "samples/fp16.parquet").stat().st_size < 50_000
    assert not (out / "scratch").exists()
