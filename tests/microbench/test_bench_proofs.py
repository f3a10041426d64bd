"""What a report of Nsight Compute proves of the kernels: metrics, verdicts, exit codes; the launches it profiles."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

import calibrate
from microbench.proofs import PROOFS, proofs
from microbench.simulated_device import SimulatedGpu
from microbench.workloads import KERNELS
from tachograph.nsight.launches import Chip, Launch

ENOUGH = {kernel: {claim.metrics[0]: claim.least + 1 for claim in claims} for kernel, claims in PROOFS.items()}


def report(path: Path, launches: list[tuple[str, Mapping[str, float]]]) -> Path:
    """A raw page as `ncu --csv --page raw` writes it: names, units, then a row for each launch."""
    names = sorted({name for _, metrics in launches for name in metrics})
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        rows.writerow(["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", *names])
        rows.writerow(["", "", "", "", "", *["%"] * len(names)])
        for number, (kernel, metrics) in enumerate(launches):
            cells = [f"{metrics[name]:.2f}" if name in metrics else "" for name in names]
            rows.writerow([str(number), "7", kernel, "(512, 1, 1)", "(132, 1, 1)", *cells])
    return path


def prove(path: Path) -> int:
    return calibrate.main(["--prove", str(path)])


def test_every_kernel_has_a_claim_of_a_percentage() -> None:
    assert set(PROOFS) == set(KERNELS)
    for claims in PROOFS.values():
        assert claims
        for claim in claims:
            assert 0 < claim.least < 100
            assert all("pct" in name for name in claim.metrics)


def test_the_claim_is_of_what_the_kernel_is_named_for() -> None:
    words = {"fmul": "pipe_fma", "dmul": "pipe_fp64", "alu": "pipe_alu", "xu": "pipe_xu", "tensor": "tensor",
             "copy": "dram", "read": "lts__throughput", "shared": "mem_shared", "sleep": "warps_active",
             "matmul": "pipe_fma", "sweep": "hit_rate"}  # fmt: skip
    for kernel, claims in PROOFS.items():
        assert words[kernel.partition("_")[0]] in claims[0].metrics[0]


def test_a_report_where_all_is_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(report(tmp_path / "bench.csv", list(ENOUGH.items()))) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == sum(map(len, PROOFS.values()))
    assert all(line.split()[-1] == "reached" for line in lines)
    line = next(line for line in lines if line.startswith("read_l2"))
    assert line.split() == ["read_l2", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "71.0", "70", "reached"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_that_is_below_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], kernel: str) -> None:
    poor = {name: value - 2 for name, value in ENOUGH[kernel].items()}
    assert prove(report(tmp_path / "bench.csv", list((ENOUGH | {kernel: poor}).items()))) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {line[0] for line in lines if line[-1] == "below"} == {kernel}


def test_what_is_absent_is_not_measured_and_does_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(report(tmp_path / "bench.csv", [("dmul_4", ENOUGH["dmul_4"]), ("alu_4", {"a__b.pct": 3.0})])) == 0
    found = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert found["dmul_4"].endswith("reached")
    assert found["alu_4"].endswith("not measured")
    assert " – " in found["xu_4"]


def test_of_several_launches_the_highest_counts_and_others_are_left_out(tmp_path: Path) -> None:
    """The first sleep is of one block, and goes ahead of what is timed."""
    metric = PROOFS["sleep"][0].metrics[0]
    launches = [("sleep", {metric: 1.5}), ("sleep", {metric: 50.0}), ("other", {metric: 99.0})]
    assert prove(report(tmp_path / "bench.csv", [*launches, ("sleep", {metric: 1.5})])) == 0
    found = next(one for one in proofs(Launch(name, metrics, Chip(), "x", 0) for name, metrics in launches)
                 if one.kernel == "sleep")  # fmt: skip
    assert (found.value, found.verdict) == (50.0, "reached")


def test_names_of_other_versions_and_chips() -> None:
    name = "sm__pipe_tensor_op_hmma_v2_cycles_active.avg.pct_of_peak_sustained_active"
    elapsed = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_elapsed"
    launches = [
        Launch("tensor_4", {name: 45.0}, Chip(), "x", 0),
        Launch("void alu_4(unsigned int const*, unsigned int*, long long)", {elapsed: 60.0}, Chip(), "x", 1),
    ]
    found = {one.kernel: one for one in proofs(launches)}
    assert (found["tensor_4"].metric, found["tensor_4"].verdict) == (name, "reached")
    assert (found["alu_4"].metric, found["alu_4"].value, found["alu_4"].verdict) == (elapsed, 60.0, "below")


def test_reports_of_other_programs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(report(tmp_path / "other.csv", [("gemm", {"sm__inst_executed.sum.pct": 3.0})])) != 0
    assert "no kernel of the bench was measured; profile it: ncu --set full" in capsys.readouterr().err
    assert prove(tmp_path / "gone.csv") != 0


def test_each_kernel_is_launched_once(capsys: pytest.CaptureFixture[str]) -> None:
    device = SimulatedGpu()
    calibrate._once(device)
    assert device.launched == [f"{kernel} 0" for kernel in KERNELS]
    assert device.sizes == {}
    printed = capsys.readouterr().out
    assert all(f"{kernel} " in printed for kernel in KERNELS)
    assert "profile it: ncu --set full -f -o bench.ncu-rep" in printed
