"""Every number of `kernels --json` on the sample of the documentation, computed again from the
text of the file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from tachograph.cli import main

SAMPLE = Path(__file__).resolve().parents[2] / "docs" / "samples" / "published-h100.csv"
ACTIVE, PER_ISSUE = (
    "avg.pct_of_peak_sustained_active",
    "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio",
)
PIPES = ("alu", "fma", "fp16", "fp64", "lsu", "tensor", "uniform", "xu")
# waits of no fixed length, and those that wait for memory; both as published of the profiler
IRREGULAR = (
    *("barrier", "drain", "imc_miss", "lg_throttle", "long_scoreboard", "membar", "mio_throttle"),
    *("short_scoreboard", "sleeping", "tex_throttle"),
)
FIXED = ("math_pipe_throttle", "wait")
MEMORY = (
    *("drain", "imc_miss", "lg_throttle", "long_scoreboard", "membar", "mio_throttle"),
    *("short_scoreboard", "tex_throttle"),
)
ACHIEVABLE = 0.9
MOVING = ("lsu", "uniform")  # pipelines that do not compute


def rows() -> dict[str, dict[str, str]]:
    """{kernel: {column: cell}}: a line of text, one of names, one of units, then one for each
    kernel.
    """
    _, names, _, *lines = csv.reader(SAMPLE.read_text(encoding="utf-8").splitlines())
    return {line[names.index("Kernel Name")]: dict(zip(names, line, strict=True)) for line in lines}


ROWS = rows()


class Row:
    """Cells of a line as numbers."""

    def __init__(self, kernel: str) -> None:
        self.cells = ROWS[kernel]

    def __getitem__(self, column: str) -> float:
        return float(self.cells[column].replace(",", ""))

    @property
    def waits(self) -> dict[str, float]:
        return {reason: self[PER_ISSUE.format(reason)] for reason in (*IRREGULAR, *FIXED)}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(SAMPLE.parent)

        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main(["share", "kernels", SAMPLE.name, "--json"]) == 0
    (gpu,) = json.loads(printed.getvalue())["gpus"]
    return {kernel["name"]: {**kernel, "gpu": gpu["gpu"]} for kernel in gpu["kernels"]}


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def test_all_kernels_are_reported_and_their_shares_add_up(found: dict[str, dict[str, Any]]) -> None:
    assert found.keys() == ROWS.keys()
    whole = sum(Row(kernel)["gpu__time_duration.sum"] for kernel in ROWS)
    for name, kernel in found.items():
        assert kernel["seconds"] == close(Row(name)["gpu__time_duration.sum"] * 1e-9)
        assert kernel["share"] == close(Row(name)["gpu__time_duration.sum"] / whole)
    assert sum(kernel["share"] for kernel in found.values()) == close(1.0)


@pytest.mark.parametrize("name", ROWS)
def test_what_it_uses(name: str, found: dict[str, dict[str, Any]]) -> None:
    row, uses = Row(name), found[name]["uses"]
    fit = min(
        row[f"launch__occupancy_limit_{what}"]
        for what in ("blocks", "registers", "shared_mem", "warps")
    )
    blocks, sms = row["launch__grid_size"], row["device__attribute_multiprocessor_count"]
    waves = blocks / (fit * sms)
    # As the file rounds it.
    assert row["launch__waves_per_multiprocessor"] == pytest.approx(waves, rel=1e-5)
    expected = {
        "gpu_util": 1.0,
        "sms_needed": min(sms, ceil(blocks / fit)),
        "slots_taken": min(1.0, waves),
        "waves": row["launch__waves_per_multiprocessor"],
        "tail": 1 - row["launch__waves_per_multiprocessor"] / ceil(waves),
        "sm_share": row["sm__cycles_active.avg"] / row["sm__cycles_elapsed.max"],
        "sm_idle": 1 - row["sm__cycles_active.avg"] / row["sm__cycles_active.max"],
        "sm_least": row["sm__cycles_active.min"] / row["sm__cycles_active.max"],
        "occupancy": row[f"sm__warps_active.{ACTIVE}"] / 100,
        "occupancy_possible": fit * ceil(row["launch__block_size"] / 32) / 64,
        "ipc": row["sm__inst_issued.avg.per_cycle_active"],
        **{f"pipe_{pipe}": row[f"sm__inst_executed_pipe_{pipe}.{ACTIVE}"] / 100 for pipe in PIPES},
        "pipe_fp16": None,  # of an H100 it is part of FMA
        "pipe_tex": None,
        "pipe_shared": None,
        "l2_bandwidth": None,
        "l1_bandwidth": None,
        "threads": row["smsp__thread_inst_executed_per_inst_executed.ratio"] / 32,
        "dram": row["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] / 100,
        "dram_bytes_per_s": row["dram__bytes.sum.per_second"],
        "l2_hit": row["lts__t_sector_hit_rate.pct"] / 100,
        "l2_reuse": row["lts__t_sector_hit_rate.pct"] / 100,
        "l1_hit": row["l1tex__t_sector_hit_rate.pct"] / 100,
    }
    assert uses == {use: None if value is None else close(value) for use, value in expected.items()}


@pytest.mark.parametrize("name", ROWS)
def test_what_it_needs_and_leaves(name: str, found: dict[str, dict[str, Any]]) -> None:
    row, kernel = Row(name), found[name]
    demand = kernel["demand"]
    loads = {pipe: row[f"sm__inst_executed_pipe_{pipe}.{ACTIVE}"] / 100 for pipe in PIPES}
    loads["issue"] = row["sm__inst_issued.avg.per_cycle_active"] / 4
    assert demand["cycles"] == {load: close(value) for load, value in loads.items()}
    del loads["fp16"]  # of an H100 it is part of FMA: known to be 0, and no limit
    dram = row["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] / 100
    assert (demand["dram"], demand["dram_of"]) == (close(dram), "peak")
    waits = row.waits
    assert demand["irregular"] == close(
        sum(waits[reason] for reason in IRREGULAR) / sum(waits.values())
    )
    assert kernel["limits"]["stall"]["reason"] == max(waits, key=lambda reason: waits[reason])
    assert kernel["limits"]["stall"]["share"] == close(max(waits.values()) / sum(waits.values()))
    for unknown in ("l1_bytes", "l2_bytes", "hbm_bytes"):
        assert demand[unknown] is None
    loads["dram"] = min(1.0, dram / ACHIEVABLE)
    left = {limit["resource"]: limit for limit in kernel["limits"]["resources"]}
    assert {name: limit["demand"] for name, limit in left.items()} == {
        load: close(loads[load]) for load in loads
    }
    assert {name: limit["head_room"] for name, limit in left.items()} == {
        load: close(1 - loads[load]) for load in left
    }
    fullest = max(loads, key=lambda load: loads[load])
    assert kernel["limited_by"] == (fullest if loads[fullest] >= 0.6 else "latency")
    sensitivities = {one["resource"]: one["value"] for one in kernel["sensitivities"]}
    for resource, load in loads.items():
        assert sensitivities[resource] == close(load)


@pytest.mark.parametrize("name", ROWS)
def test_scores(name: str, found: dict[str, dict[str, Any]]) -> None:
    row = Row(name)
    resident = row["sm__warps_active.avg.per_cycle_active"]
    active = row["sm__cycles_active.avg"] / row["gpc__cycles_elapsed.max"]
    memory = row["dram__cycles_active.avg"] / row["dram__cycles_elapsed.avg"]
    efficiency = row["smsp__thread_inst_executed_per_inst_executed.ratio"] / 32
    stalled = sum(row[PER_ISSUE.format(reason)] for reason in MEMORY)
    expected = {
        "score_gpu_practice": 100 * (1 - min(64, resident) / 64 * active),
        "score_gpumem_practice": 100
        * row["dram__cycles_active.avg"]
        / (row["dram__cycles_active.avg"] + row["sm__cycles_active.avg"]),
        "score_gpumem_normalized": 100 * memory / (memory + active),
        "score_gpu_theory": 100
        * (1 - row["sm__inst_executed.avg.per_cycle_elapsed"] * efficiency / 4),
        "score_gpumem_theory": 100
        * stalled
        / row["smsp__average_warp_latency_per_inst_issued.ratio"],
    }
    assert found[name]["scores"] == {score: close(value) for score, value in expected.items()}


def test_pitfalls_are_those_of_the_numbers(found: dict[str, dict[str, Any]]) -> None:
    for name, kernel in found.items():
        row = Row(name)
        ipc, occupancy = (
            row["sm__inst_issued.avg.per_cycle_active"],
            row[f"sm__warps_active.{ACTIVE}"] / 100,
        )
        pipes = [row[f"sm__inst_executed_pipe_{pipe}.{ACTIVE}"] / 100 for pipe in PIPES]
        computing = [
            row[f"sm__inst_executed_pipe_{pipe}.{ACTIVE}"] / 100
            for pipe in PIPES
            if pipe not in MOVING
        ]
        dram = row["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] / 100
        expected = {
            "roofline_class": max(ipc / 4, *computing) >= dram and ipc + 0.61 > 4,
            "occupancy": 2 * occupancy < 1 and 2 * max(ipc / 4, *pipes) > 1,
        }
        assert {pitfall["name"] for pitfall in kernel["pitfalls"]} == {
            one for one, is_so in expected.items() if is_so
        }
