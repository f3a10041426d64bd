"""What is seen as JSON, CSV and text: equal to the view, recomputed in plain Python; missing stays missing."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from watching import NAN, node_of, snapshot_of, view_of

from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS
from tachograph.catalog.errors import UsageError
from tachograph.cli.output import json_bytes
from tachograph.judge.workload.settings import WorkloadSettings
from tachograph.live.monitor import Monitor
from tachograph.live.render import (
    ALL_COLUMNS,
    DEFAULT_COLUMNS,
    csv_columns,
    csv_header,
    csv_row,
    json_rows,
    short_model,
    text_table,
)
from tachograph.live.snapshot import GpuAllocation, GpuDevice, GpuId, GpuProcess
from tachograph.live.sources.simulated import SimulatedSource
from tachograph.live.view import FREE, HELD_IDLE, IDLE, FleetView, GpuHistory

KEMPNER_DEFAULT = (
    "timestamp gpu_id model gpu_util_pct mem_used_mib real_util_pct sm_active_pct tensor_active_pct dram_active_pct"
)
KEMPNER_ALL = """timestamp gpu_id model real_util_pct status health sm_active_pct tensor_active_pct dram_active_pct
gr_engine_active_pct gpu_util_pct mem_used_mib mem_total_mib mem_used_pct power_w gpu_temp_c mem_temp_c sm_occupancy_pct
fp16_pipe_pct fp32_pipe_pct fp64_pipe_pct memcpy_util_pct pcie_rx_bytes_s pcie_tx_bytes_s nvlink_gbps sm_clock_mhz
mem_clock_mhz pcie_replay_rate_s energy_j tc_hmma_pct tc_imma_pct tc_dfma_pct tc_dmma_pct tc_qmma_pct"""
# column of KempnerPulse: counter, factor
PLAIN = {
    "sm_active_pct": ("sm_active", 100),
    "tensor_active_pct": ("tensor_active", 100),
    "dram_active_pct": ("dram_active", 100),
    "gr_engine_active_pct": ("gr_engine_active", 100),
    "gpu_util_pct": ("gpu_util", 100),
    "mem_used_mib": ("hbm_used_mib", 1),
    "power_w": ("power_w", 1),
    "gpu_temp_c": ("gpu_temp_c", 1),
    "mem_temp_c": ("mem_temp_c", 1),
    "sm_occupancy_pct": ("sm_occupancy", 100),
    "fp16_pipe_pct": ("fp16_active", 100),
    "fp32_pipe_pct": ("fp32_active", 100),
    "fp64_pipe_pct": ("fp64_active", 100),
    "memcpy_util_pct": ("mem_copy_util", 100),
    "pcie_rx_bytes_s": ("pcie_rx_bytes_per_s", 1),
    "pcie_tx_bytes_s": ("pcie_tx_bytes_per_s", 1),
    "sm_clock_mhz": ("sm_clock_mhz", 1),
    "mem_clock_mhz": ("mem_clock_mhz", 1),
    "energy_j": ("energy_j", 1),
    "tc_hmma_pct": ("tensor_hmma_active", 100),
    "tc_imma_pct": ("tensor_imma_active", 100),
    "tc_dfma_pct": ("tensor_dfma_active", 100),
}


def every_counter(count: int, seed: int = 1) -> FleetView:
    """GPUs of which every counter has some value, and some have none."""
    draw = np.random.default_rng(seed)
    values: dict[str, list[float]] = {}
    for counter in COUNTERS:
        high = 1.0 if counter.unit == "fraction" else 1000.0
        reported = draw.uniform(0, high, count)
        column = np.round(reported) if counter.storage == "i64" else reported
        values[counter.name] = np.where(draw.random(count) < 0.3, NAN, column).tolist()
    snapshot = snapshot_of(node_of(count), values)
    return view_of(snapshot, real=draw.uniform(0, 1, count).tolist())


def parsed(view: FleetView, columns: tuple[str, ...], before: FleetView | None = None) -> list[dict[str, str]]:
    text = csv_header(columns) + "".join(csv_row(view, row, columns, before) for row in range(len(view.snapshot.gpus)))
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns_are_those_of_kempnerpulse_and_ours_behind() -> None:
    assert " ".join(DEFAULT_COLUMNS) == KEMPNER_DEFAULT
    expected = KEMPNER_ALL.split()
    assert list(ALL_COLUMNS[: len(expected)]) == expected
    assert {"node", "job_id", "user", "mig", "uuid"} <= set(ALL_COLUMNS[len(expected) :])


def test_every_cell_is_the_value_of_the_view() -> None:
    view = every_counter(40)
    seen = set()
    for row, cells in enumerate(parsed(view, ALL_COLUMNS)):
        assert float(cells["timestamp"]) == view.snapshot.t
        assert (cells["gpu_id"], cells["model"], cells["node"]) == (str(row), "H100", "n1")
        assert float(cells["real_util_pct"]) == pytest.approx(100 * view.real[row], abs=0.006)
        for column, (counter, factor) in PLAIN.items():
            value = view.snapshot.values[counter][row]
            assert (cells[column] == "") == math.isnan(value)
            if cells[column]:
                assert float(cells[column]) == pytest.approx(factor * value, abs=0.51 if factor == 1 else 0.006)
                seen.add(column)
    assert seen == set(PLAIN)


def test_sums_and_shares_are_missing_where_a_part_is() -> None:
    view = every_counter(60)
    complete = 0
    for row, cells in enumerate(parsed(view, ALL_COLUMNS)):
        tx, rx = (view.snapshot.values[f"nvlink_{way}_bytes_per_s"][row] for way in ("tx", "rx"))
        used = view.snapshot.values["hbm_used_mib"][row]
        assert (cells["nvlink_gbps"] == "") == (math.isnan(tx) or math.isnan(rx))
        assert (cells["mem_used_pct"] == "") == math.isnan(used)
        assert cells["mem_total_mib"] == "81559"
        if cells["nvlink_gbps"] and cells["mem_used_pct"]:
            complete += 1
            assert float(cells["nvlink_gbps"]) == pytest.approx((tx + rx) / 1e9, abs=1e-3)
            assert float(cells["mem_used_pct"]) == pytest.approx(100 * used / 81559, abs=0.006)
    assert complete > 10


def test_memory_that_a_device_does_not_tell_is_used_and_free() -> None:
    reported = {"hbm_used_mib": [1000.0, 1000.0], "hbm_free_mib": [3000.0, NAN]}
    view = view_of(snapshot_of({gpu: GpuDevice() for gpu in node_of(2)}, reported))
    assert [cells["mem_total_mib"] for cells in parsed(view, ALL_COLUMNS)] == ["4000", ""]
    assert [cells["mem_used_pct"] for cells in parsed(view, ALL_COLUMNS)] == ["25.00", ""]


def test_the_rate_of_replays_needs_a_look_before() -> None:
    def at(t: float, *counts: float) -> FleetView:
        return view_of(snapshot_of(node_of(4), {"pcie_replays": counts}, t=t))

    before, now = at(100.0, 5, 9, NAN, 1), at(104.0, 7, 2, 3, NAN)
    column = ("pcie_replay_rate_s",)
    assert [cells["pcie_replay_rate_s"] for cells in parsed(now, column, before)] == ["0.5", "0.5", "", ""]
    assert {cells["pcie_replay_rate_s"] for cells in parsed(now, column)} == {""}
    assert {cells["pcie_replay_rate_s"] for cells in parsed(now, column, now)} == {""}


def test_what_nobody_measures_is_empty() -> None:
    for cells in parsed(every_counter(5), ALL_COLUMNS):
        assert cells["tc_dmma_pct"] == cells["tc_qmma_pct"] == ""


def test_cells_with_commas_quotes_and_lines_stay_one_cell() -> None:
    snapshot = replace(snapshot_of(node_of(1)), allocations={GpuId("n1", 0): GpuAllocation('a,"b"\nc', "=1+1")})
    assert parsed(view_of(snapshot), ("job_id", "user"))[0] == {"job_id": 'a,"b"\\nc', "user": "'=1+1"}


def test_columns_are_chosen_by_name() -> None:
    assert csv_columns("") == DEFAULT_COLUMNS
    assert csv_columns("all") == ALL_COLUMNS
    assert csv_columns("node,gpu_id,node") == ("node", "gpu_id", "node")
    with pytest.raises(UsageError, match="unknown column 'sm_activ_pct'; did you mean sm_active_pct"):
        csv_columns("gpu_id,sm_activ_pct")
    with pytest.raises(UsageError, match="there are: timestamp, gpu_id"):
        csv_columns("§")


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA H100 PCIe", "H100"),
        ("AMD Instinct MI250X", "MI250X"),
        ("Quadro RTX 6000", "RTX 6000"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_models_are_called_shortly(model: str, short: str) -> None:
    assert short_model(model) == short


def test_json_has_every_counter_under_its_name_and_null_where_it_is_missing() -> None:
    view = every_counter(20)
    allocations = {view.snapshot.gpus[3]: GpuAllocation("7", "bo", 5.0)}
    processes = {view.snapshot.gpus[3]: (GpuProcess(12, "bo", "python", None),)}
    view = replace(view, snapshot=replace(view.snapshot, allocations=allocations, processes=processes))
    reported = json.loads(json_bytes(json_rows(view)))
    assert [(one["node"], one["gpu"], one["mig"]) for one in reported] == [("n1", row, None) for row in range(20)]
    for row, one in enumerate(reported):
        assert one["t"] == "2027-01-15T08:00:00Z"
        for name in COUNTER_NAMES:
            value = view.snapshot.values[name][row]
            assert one[name] == (None if math.isnan(value) else value)
    assert isinstance(next(one["xid"] for one in reported if one["xid"] is not None), int)
    assert (reported[3]["job_id"], reported[3]["user"], reported[3]["uuid"]) == ("7", "bo", "GPU-n1-0003")
    assert reported[3]["processes"] == [{"pid": 12, "user": "bo", "command": "python", "hbm_used_mib": None}]
    assert (reported[4]["job_id"], reported[4]["processes"]) == (None, [])


def test_json_says_what_was_judged_and_what_is_needed_for_more() -> None:
    snapshot = snapshot_of(node_of(2), {"gpu_util": [1.0, 1.0], "sm_active": [NAN, 0.9]})
    view = view_of(snapshot, labels=["unknown", "compute-heavy"], states=["HOT", "unknown"], real=[NAN, 0.5])
    unsupported, busy = json.loads(json_bytes(json_rows(view)))
    assert (
        unsupported["class"],
        unsupported["bottleneck"],
        unsupported["real_utilisation"],
        unsupported["health"],
    ) == (*("unknown", "unknown", None, "HOT"),)
    assert "sm_active" in unsupported["needs"]
    assert (busy["class"], busy["bottleneck"], busy["real_utilisation"], busy["needs"]) == (
        *("compute-heavy", "compute", 0.5, []),
    )


def test_the_table_shows_what_is_seen_and_a_dash_for_what_is_missing() -> None:
    values = {"sm_active": [0.5, NAN], "power_w": [433.4, NAN], "hbm_used_mib": [40779.5, NAN]}
    snapshot = replace(snapshot_of(node_of(2), values), allocations={GpuId("n1", 0): GpuAllocation("7", "bo\x1b[2J")})
    view = view_of(snapshot, labels=["tensor-heavy compute", "unknown"], states=["OK", "unknown"], real=[0.61, NAN])
    head, busy, unsupported = (line.split() for line in text_table(view, width=200).splitlines())
    assert head == [
        *("GPU", "UTIL", "MEM", "W", "TEMP", "CLASS", "REAL", "SM", "TENS", "DRAM", "JOB", "USER", "HEALTH", "MODEL"),
    ]
    assert busy == [
        *("n1:0", "-", "50%", "433", "-", "tensor-heavy", "compute", "61%", "50%", "-", "-", "7", "bo\\x1b[2J"),
        *("OK", "H100"),
    ]
    assert unsupported == ["n1:1", "-", "-", "-", "-", "unknown", "-", "-", "-", "-", "-", "-", "unknown", "H100"]


def test_the_table_names_idle_gpus_that_are_held_or_free() -> None:
    gpus = node_of(3)
    snapshot = snapshot_of(gpus, {"gpu_util": [0.0, 0.0, 0.0]})
    held, free = {GpuId("n1", 0): GpuAllocation("7", "bo")}, frozenset({GpuId("n1", 1)})
    view = view_of(replace(snapshot, allocations=held, free=free), labels=["idle"] * 3)
    lines = text_table(view, width=200).splitlines()
    at, to = lines[0].index("CLASS"), lines[0].index("REAL")
    assert [line[at:to].strip() for line in lines[1:]] == ["idle, held", "free", "idle"]


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_the_table_fits_and_stands_straight(width: int) -> None:
    snapshot = SimulatedSource(40, clock=lambda: 1_800_000_000.0).read()
    view = view_of(snapshot, labels=["tensor-heavy compute"] * 40, real=[1.0] * 40)
    table, _, hidden = text_table(view, width=width).partition("hidden columns: ")
    lines = table.splitlines()
    assert bool(hidden) is (width < 110)
    assert len(lines) == 41
    assert max(map(len, lines)) <= width
    at = lines[0].index("CLASS")
    assert all(line[at:].startswith("tensor-heavy compute ") and line[at - 1] == " " for line in lines[1:])
    end = lines[0].index(" SM ") + 3
    assert all(line[end - 1] == "%" for line in lines[1:])
    for needed in ("GPU", "REAL", "SM", "TENS", "DRAM", "HEALTH", "CLASS"):
        assert needed in lines[0]


def test_some_simulated_gpus_are_hot_or_broken() -> None:
    now = iter(np.arange(0.0, 600.0))
    source = SimulatedSource(64, clock=lambda: float(next(now)), faults=True)
    monitor = Monitor(source.about, settings=WorkloadSettings(), history=GpuHistory(2))
    for _ in range(120):
        view = monitor.step(source.read(), source.about)
    assert Counter(view.state(row) for row in range(64)) == {"HOT": 2, "WARN": 1, "CRIT": 1, "OK": 60}
    kinds = Counter(view.idle_kinds().tolist())
    assert kinds[HELD_IDLE] > 0 < kinds[FREE]
    assert kinds[IDLE] == 0


def test_wider_terminals_see_more() -> None:
    view = view_of(SimulatedSource(2, clock=lambda: 1.0).read(), labels=["I/O or data-loading"] * 2)
    shown = [len(text_table(view, width=width).splitlines()[0].split()) for width in (60, 80, 110, 200)]
    assert shown == sorted(shown)
    assert shown[0] < shown[-1] == 14


def test_of_no_gpu_there_is_a_table_without_lines() -> None:
    assert text_table(view_of(snapshot_of({})), width=80).splitlines()[0].startswith("GPU")
    assert json_rows(view_of(snapshot_of({}))) == []
