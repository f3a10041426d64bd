"""Maps and the controller number GPUs by device file: translated to the index of telemetry,
where that is known.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from in_memory import with_seq
from madelake import held, utc
from tachograph.catalog.chunks import GpuNumbering
from tachograph.catalog.config import SlurmOptions
from tachograph.pipeline.gpu_numbers import with_own_indices

T = utc(23, 12)
Numbers = tuple[tuple[int | None, int | None], ...]
SWAPPED: Numbers = ((0, 1), (1, 0))  # NVML's index and minor number of GPU 0, 1, ...


def translated(
    gpus: list[int | None],
    numbers: Numbers,
    *,
    numbering: str | None = "slurm",
    config: GpuNumbering = "minor_number",
) -> list[int | None]:
    rows = [
        {**row, "numbering": numbering, "gpu": gpu, "mig": 3, "provenance": "live_index"}
        for gpu in gpus
        for row in held("7", "n", [0], T, T + timedelta(hours=1))
    ]
    devices: list[dict[str, Any]] = [
        {"node": "n", "gpu": gpu, "nvml_index": nvml, "minor_number": minor}
        for gpu, (nvml, minor) in enumerate(numbers)
    ]
    frame = with_own_indices(
        with_seq("allocations", rows),
        with_seq("devices", devices),
        slurm=SlurmOptions(gpu_numbers=config),
    )
    assert frame.columns == with_seq("allocations", rows).columns
    found = frame.get_column("gpu").to_list()
    slices = [None if gpu is None else 3 for gpu in found]  # of a GPU not known, not known either
    assert frame.get_column("mig").to_list() == slices
    return found


@pytest.mark.parametrize(
    ("gpus", "numbers", "options", "expected"),
    [
        ([0, 1], SWAPPED, {}, [1, 0]),
        ([0, 1], ((0, None), (1, None)), {}, [0, 1]),  # minor numbers are unknown, or the index
        ([0, 3], ((0, 0), (1, 1)), {}, [0, 3]),
        ([0], (), {}, [0]),
        ([0, 2], SWAPPED, {}, [None, None]),  # a number of no GPU: the job is on no known GPU
        ([0], ((0, 0), (1, 0)), {}, [None]),  # a number of two
        ([0], SWAPPED, {"config": "nvml_index"}, [0]),  # a site whose Slurm counts by PCI address
        ([0], ((1, 0), (0, 1)), {"config": "nvml_index"}, [1]),
        ([0], SWAPPED, {"numbering": "nvml_index"}, [0]),  # a CSV map counts as DCGM does
        ([0], ((1, 0), (0, 1)), {"numbering": "nvml_index"}, [1]),
        ([0, 1], SWAPPED, {"numbering": None}, [0, 1]),  # labels of telemetry have its index
        ([0, 1], SWAPPED, {"numbering": None, "config": "nvml_index"}, [0, 1]),
    ],
)
def test_numbers_are_translated_to_the_index_of_telemetry(
    gpus: list[int | None], numbers: Numbers, options: dict[str, Any], expected: list[int | None]
) -> None:
    assert translated(gpus, numbers, **options) == expected


def test_another_node_changes_nothing() -> None:
    rows = with_seq(
        "allocations", [{**row, "numbering": "slurm"} for row in held("7", "m", [0], T)]
    )
    devices = [{"node": "n", "gpu": gpu, "minor_number": 1 - gpu} for gpu in (0, 1)]
    assert with_own_indices(rows, with_seq("devices", devices), slurm=SlurmOptions())[
        "gpu"
    ].to_list() == [0]
