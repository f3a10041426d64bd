"""Maps and the controller number GPUs by device file: translated to the index of telemetry, where that is known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from in_memory import with_seq
from madelake import held, utc
from tachograph.catalog.chunks import GpuNumbering
from tachograph.catalog.config import SlurmOptions
from tachograph.pipeline.attribution import with_own_indices

T = utc(23, 12)
SWAPPED: tuple[tuple[int | None, int | None], ...] = ((0, 1), (1, 0))  # NVML's index and minor number of GPU 0, 1, ...


def translated(
    gpus: list[int | None],
    numbers: tuple[tuple[int | None, int | None], ...] = SWAPPED,
    *,
    numbering: str | None = "slurm",
    config: GpuNumbering = "minor_number",
) -> list[int | None]:
    rows = [
        {**row, "numbering": numbering, "gpu": gpu, "provenance": "live_index"}
        for gpu in gpus
        for row in held("7", "n", [0], T, T + timedelta(hours=1))
    ]
    devices: list[dict[str, Any]] = [
        {"node": "n", "gpu": gpu, "nvml_index": nvml, "minor_number": minor}
        for gpu, (nvml, minor) in enumerate(numbers)
    ]
    frame = with_own_indices(
        with_seq("allocations", rows), with_seq("devices", devices), slurm=SlurmOptions(gpu_numbers=config)
    )
    assert frame.columns == with_seq("allocations", rows).columns
    return frame.get_column("gpu").to_list()


def test_numbers_of_slurm_are_minor_numbers() -> None:
    assert translated([0]) == [1]
    assert translated([0, 1]) == [1, 0]


def test_where_minor_numbers_are_unknown_or_the_same_they_are_the_index() -> None:
    assert translated([0, 1], ((0, None), (1, None))) == [0, 1]
    assert translated([0, 3], ((0, 0), (1, 1))) == [0, 3]
    assert translated([0], ()) == [0]


def test_a_job_with_a_number_of_no_gpu_or_of_two_is_on_no_known_gpu() -> None:
    assert translated([0, 2]) == [None, None]
    assert translated([0], ((0, 0), (1, 0))) == [None]


def test_a_site_whose_slurm_counts_by_pci_address() -> None:
    assert translated([0], config="nvml_index") == [0]
    assert translated([0], ((1, 0), (0, 1)), config="nvml_index") == [1]


def test_a_csv_map_counts_as_dcgm_does() -> None:
    assert translated([0], numbering="nvml_index") == [0]
    assert translated([0], ((1, 0), (0, 1)), numbering="nvml_index") == [1]


@pytest.mark.parametrize("config", ["minor_number", "nvml_index"])
def test_labels_of_telemetry_have_its_index(config: GpuNumbering) -> None:
    assert translated([0, 1], numbering=None, config=config) == [0, 1]


def test_another_node_changes_nothing() -> None:
    rows = with_seq("allocations", [{**row, "numbering": "slurm"} for row in held("7", "m", [0], T)])
    devices = [{"node": "n", "gpu": gpu, "minor_number": 1 - gpu} for gpu in (0, 1)]
    assert with_own_indices(rows, with_seq("devices", devices), slurm=SlurmOptions())["gpu"].to_list() == [0]
    assert isinstance(rows, pl.DataFrame)
