"""A report that lacks a column: no number appears that needs it, and none is said to be read from
it.

What a number needs is found by trial: it needs a column if it changes when the values of the column
change.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tachograph.annexes.share.kernel_facts import KernelsRequest
from tachograph.annexes.share.kernel_report import build_kernels_report
from tachograph.annexes.share.kernels_json import kernels_json
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.catalog.config import Configuration

SAMPLE = Path(__file__).resolve().parents[2] / "docs" / "samples" / "published-h100.csv"
_, NAMES, UNITS, *LINES = csv.reader(SAMPLE.read_text(encoding="utf-8").splitlines())
CHOSEN = [
    line
    for line in LINES
    if line[NAMES.index("Kernel Name")].startswith(("void mm", "void dmul<3"))
]
COLUMNS = [name for name in NAMES if "__" in name and name != "device__attribute_display_name"]
JUDGED = ("seconds", "share", "uses", "scores", "limits", "sensitivities", "demand")
SLOTS = {"sensitivities.blocks.value", "uses.slots_taken"}
BLOCKS = {*SLOTS, "uses.sms_needed", "demand.footprint.blocks_per_sm"}
DRAM = {
    *("demand.dram", "uses.dram", "sensitivities.dram.value"),
    *(f"limits.resources.dram.{part}" for part in ("demand", "head_room")),
}
# what is known without the column, for something else tells it: {start of its name: (numbers, what
# tells them)}
ELSEWHERE = {
    "device__attribute_multiprocessor_count": (SLOTS, "the catalogue"),
    "device__attribute_max_threads": ({"scores.score_gpu_practice"}, "the compute capability"),
    "dram__bytes.sum.per_second": ({"uses.dram_bytes_per_s"}, "bytes and duration"),
    "gpu__dram_throughput": (DRAM, "bytes per second, and the peak"),
    "launch__block_size": ({"demand.footprint.threads"}, "the column Block Size"),
    "launch__grid_size": ({*BLOCKS, "demand.footprint.blocks"}, "the column Grid Size"),
    "launch__occupancy_limit_": (BLOCKS, "registers, shared memory, threads"),
    "launch__shared_mem_per_block": ({"demand.footprint.shared_bytes"}, "its parts"),
    "launch__waves_per_multiprocessor": ({"uses.waves", "uses.tail"}, "grid and limits"),
    "sm__cycles_elapsed.max": ({"demand.sm_share", "uses.sm_share"}, "elapsed cycles of the GPCs"),
    "sm__maximum_warps_per_active_cycle_pct": ({"uses.occupancy_possible"}, "grid and limits"),
    "sm__warps_active.avg.pct": ({"uses.occupancy"}, "warps per cycle"),
    "smsp__average_warps_issue_stalled_imc_miss": (
        {"demand.irregular", "limits.stall.share", "scores.score_gpumem_theory"},
        "not on all chips: it adds nothing",
    ),
    "smsp__average_warps_issue_stalled_": ({"demand.irregular"}, "it touches no memory"),
}  # fmt: skip


def numbers(
    folder: Path, names: list[str], smaller: str | None = None
) -> dict[str, dict[str, Any]]:
    """{kernel: what is told of it} of a report with these columns, one of them with values 10 %
    smaller.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    places = [NAMES.index(name) for name in names]
    for line in (NAMES, UNITS, *CHOSEN):
        cells = list(line)
        if smaller is not None and line in CHOSEN:
            at = NAMES.index(smaller)
            cells[at] = repr(0.9 * float(cells[at].replace(",", "")))
        writer.writerow([cells[place] for place in places])
    file = folder / "report.csv"
    file.write_text(text.getvalue(), encoding="utf-8")
    report = build_kernels_report(
        read_reports([file]), KernelsRequest(), configuration=Configuration()
    )
    return {
        kernel["name"]: kernel for gpu in kernels_json(report)["gpus"] for kernel in gpu["kernels"]
    }


def flat(value: Any, name: str = "") -> dict[str, float]:
    """{path of names: number}; of a list by what its items call themselves."""
    if isinstance(value, list):
        value = {
            item.get("resource", item.get("name")): item for item in value if isinstance(item, dict)
        }
    if isinstance(value, dict):
        return {
            path: leaf
            for key, item in value.items()
            for path, leaf in flat(item, f"{name}.{key}").items()
        }
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {name.removeprefix("."): value}
    return {}


def judged(kernel: dict[str, Any]) -> dict[str, float]:
    return flat({part: kernel[part] for part in JUDGED})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return numbers(tmp_path_factory.mktemp("whole"), NAMES)


@pytest.mark.parametrize("column", COLUMNS)
def test_no_number_needs_what_is_gone(
    column: str, whole: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    without = numbers(tmp_path, [name for name in NAMES if name != column])
    changed = numbers(tmp_path, NAMES, smaller=column)
    allowed, _ = next(
        (found for start, found in ELSEWHERE.items() if column.startswith(start)), (set(), "")
    )
    for name, kernel in whole.items():
        before, after, less = judged(kernel), judged(changed[name]), judged(without[name])
        needs = {
            path
            for path, value in before.items()
            if after.get(path) != pytest.approx(value, rel=1e-12)
        }
        assert needs & less.keys() <= allowed
        assert less.keys() <= before.keys()
        read_from = without[name]["read_from"].values()
        assert column.startswith("launch__") or not [
            found for found in read_from if column in found.split(" / ")
        ]
