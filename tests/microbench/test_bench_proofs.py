"""What a report of Nsight Compute proves of the kernels: metrics, verdicts, exit codes; the
launches it profiles.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

import calibrate
from microbench.proofs import PROOFS
from microbench.workloads import KERNELS

ENOUGH = {
    kernel: {claim.metrics[0]: claim.least + 1 for claim in claims}
    for kernel, claims in PROOFS.items()
}


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


def test_a_report_where_all_is_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(report(tmp_path / "bench.csv", list(ENOUGH.items()))) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == sum(map(len, PROOFS.values()))
    assert all(line.split()[-1] == "reached" for line in lines)
    line = next(line for line in lines if line.startswith("read_l2"))
    assert line.split() == [
        "read_l2",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "71.0",
        "70",
        "reached",
    ]


def test_every_kernel_has_a_claim() -> None:
    assert set(PROOFS) == set(KERNELS)


@pytest.mark.parametrize("kernel", ["copy_1", "dmul_4"])
def test_one_that_is_below_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kernel: str
) -> None:
    poor = {name: value - 2 for name, value in ENOUGH[kernel].items()}
    assert prove(report(tmp_path / "bench.csv", list((ENOUGH | {kernel: poor}).items()))) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {line[0] for line in lines if line[-1] == "below"} == {kernel}


def test_reports_of_other_programs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        prove(report(tmp_path / "other.csv", [("gemm", {"sm__inst_executed.sum.pct": 3.0})])) != 0
    )
    assert (
        "no kernel of the bench was measured; profile it: ncu --set full" in capsys.readouterr().err
    )
    assert prove(tmp_path / "gone.csv") != 0
