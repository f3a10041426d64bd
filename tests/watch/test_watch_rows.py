"""What is seen as JSON, CSV and text: equal to the view, recomputed in plain Python; missing
stays missing.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from watching import NAN, node_of, snapshot_of, view_of

from tachograph.annexes.watch.live.render import (
    ALL_COLUMNS,
    DEFAULT_COLUMNS,
    csv_columns,
    csv_header,
    csv_row,
    json_rows,
    short_model,
    text_table,
)
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuDevice, GpuId
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import FleetView
from tachograph.catalog.errors import UsageError

KEMPNER_DEFAULT = (
    "timestamp gpu_id model gpu_util_pct mem_used_mib real_util_pct sm_active_pct "
    "tensor_active_pct dram_active_pct"
)
KEMPNER_ALL = """timestamp gpu_id model real_util_pct status health sm_active_pct tensor_active_pct dram_active_pct
gr_engine_active_pct gpu_util_pct mem_used_mib mem_total_mib mem_used_pct power_w gpu_temp_c mem_temp_c sm_occupancy_pct
fp16_pipe_pct fp32_pipe_pct fp64_pipe_pct memcpy_util_pct pcie_rx_bytes_s pcie_tx_bytes_s nvlink_gbps sm_clock_mhz
mem_clock_mhz pcie_replay_rate_s energy_j tc_hmma_pct tc_imma_pct tc_dfma_pct tc_dmma_pct tc_qmma_pct"""


def parsed(
    view: FleetView, columns: tuple[str, ...], before: FleetView | None = None
) -> list[dict[str, str]]:
    text = csv_header(columns) + "".join(
        csv_row(view, row, columns, before) for row in range(len(view.snapshot.gpus))
    )
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns_are_those_of_kempnerpulse_and_ours_behind() -> None:
    assert " ".join(DEFAULT_COLUMNS) == KEMPNER_DEFAULT
    expected = KEMPNER_ALL.split()
    assert list(ALL_COLUMNS[: len(expected)]) == expected
    assert {"node", "job_id", "user", "mig", "uuid"} <= set(ALL_COLUMNS[len(expected) :])


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
    assert [cells["pcie_replay_rate_s"] for cells in parsed(now, column, before)] == [
        "0.5",
        "0.5",
        "",
        "",
    ]
    assert {cells["pcie_replay_rate_s"] for cells in parsed(now, column)} == {""}
    assert {cells["pcie_replay_rate_s"] for cells in parsed(now, column, now)} == {""}


def test_cells_with_commas_quotes_and_lines_stay_one_cell() -> None:
    snapshot = replace(
        snapshot_of(node_of(1)), allocations={GpuId("n1", 0): GpuAllocation('a,"b"\nc', "=1+1")}
    )
    assert parsed(view_of(snapshot), ("job_id", "user"))[0] == {
        "job_id": 'a,"b"\\nc',
        "user": "'=1+1",
    }


def test_columns_are_chosen_by_name() -> None:
    assert csv_columns("") == DEFAULT_COLUMNS
    assert csv_columns("all") == ALL_COLUMNS
    assert csv_columns("node,gpu_id,node") == ("node", "gpu_id", "node")
    with pytest.raises(
        UsageError, match="unknown column 'sm_activ_pct'; did you mean sm_active_pct"
    ):
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
    assert all(
        line[at:].startswith("tensor-heavy compute ") and line[at - 1] == " " for line in lines[1:]
    )
    end = lines[0].index(" SM ") + 3
    assert all(line[end - 1] == "%" for line in lines[1:])
    for needed in ("GPU", "REAL", "SM", "TENS", "DRAM", "HEALTH", "CLASS"):
        assert needed in lines[0]


def test_of_no_gpu_there_is_a_table_without_lines() -> None:
    assert text_table(view_of(snapshot_of({})), width=80).splitlines()[0].startswith("GPU")
    assert json_rows(view_of(snapshot_of({}))) == []
