"""From a file of `ncu --csv` to what its kernel asks of the GPU: units of the page, demand of
the kernel.
"""

from __future__ import annotations

import json
from pathlib import Path

from in_process import run_here

DETAILS = (
    ("GPU Speed Of Light Throughput", "DRAM Throughput", "%", "40"),
    ("GPU Speed Of Light Throughput", "Duration", "us", "250"),
    ("Launch Statistics", "# SMs", "SM", "108"),
    ("Occupancy", "Achieved Occupancy", "%", "50"),
    ("Compute Workload Analysis", "Issued Ipc Active", "inst/cycle", "1.5"),
    ("Memory Workload Analysis", "L2 Hit Rate", "%", "62.5"),
)


def line(cells: list[str]) -> str:
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


def test_reports_that_name_no_gpu_are_put_together_where_it_is_told(tmp_path: Path) -> None:
    """Each is a GPU of its own else, for two files may be of two machines."""
    head = ["ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC"]
    head += ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    for name in ("axpy", "dot"):
        rows = (
            line(["0", name, "(1024, 1, 1)", "(216, 1, 1)", "0", "8.0", *row]) for row in DETAILS
        )
        (tmp_path / f"{name}.csv").write_text(line(head) + "".join(rows), encoding="utf-8")
    both = ["share", "kernels", "axpy.csv", "dot.csv", "--json"]
    apart = json.loads(run_here(both, tmp_path, {}).stdout)
    assert len(apart["gpus"]) == 2
    together = ["--together", "axpy", "dot"]
    assert run_here([*both, *together], tmp_path, {}).returncode != 0
    options = ["--gpu", "A100 SXM 40GB"]
    (gpu,) = json.loads(run_here([*both, *options], tmp_path, {}).stdout)["gpus"]
    assert (gpu["gpu"]["name"], gpu["gpu"]["dram_bytes_per_s"]) == (
        "NVIDIA A100 SXM 40GB",
        1.555e12,
    )
    assert {kernel["name"] for kernel in gpu["kernels"]} == {"axpy", "dot"}
    assert run_here([*both, *options, *together], tmp_path, {}).returncode == 0
    for name, message in (
        (
            "NVIDIA A100",
            (
                "4 GPUs may be meant by 'NVIDIA A100'; name one: A100 SXM 40GB, A100 SXM 80GB, "
                "A100 PCIe"
            ),
        ),
        ("MI300X", "no NVIDIA GPU in the catalogue is called 'MI300X'"),
        ("", "no NVIDIA GPU in the catalogue is called ''"),
    ):
        wrong = run_here([*both, "--gpu", name], tmp_path, {})
        assert (wrong.returncode, message in wrong.stderr) == (6, True)
