"""Prints how long pages of exporters take to become rows, beside prometheus-client's parser alone.

`python exposition.py [GPUS]`: a page of 25 DCGM metrics per GPU, in CPU seconds, the best of
several runs; `first_s` is a first page, whose labels are new, `ours_s` one of the next rounds,
whose labels are known.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from tachograph.sources import exposition
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

GOAL_S_PER_GPU = 0.15e-3
RUNS = 5
METRICS = (
    *("DEV_SM_CLOCK", "DEV_MEM_CLOCK", "DEV_MEMORY_TEMP", "DEV_GPU_TEMP", "DEV_POWER_USAGE", "DEV_GPU_UTIL"),
    *("DEV_TOTAL_ENERGY_CONSUMPTION", "DEV_PCIE_REPLAY_COUNTER", "DEV_MEM_COPY_UTIL", "DEV_ENC_UTIL", "DEV_DEC_UTIL"),
    *("DEV_XID_ERRORS", "DEV_FB_FREE", "DEV_FB_USED", "DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_FAILURE"),
    *("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_NVLINK_BANDWIDTH_TOTAL", "DEV_VGPU_LICENSE_STATUS", "PROF_SM_ACTIVE"),
    *("PROF_GR_ENGINE_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE"),
    *("PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"),
)  # fmt: skip


def page(gpus: int, *, driver: str = "580.105.08") -> bytes:
    """Return what `gpus` GPUs, eight to a node, would print; another driver makes all labels
    new.
    """
    lines: list[str] = []
    for metric in METRICS:
        lines += [f"# HELP DCGM_FI_{metric} What it is.", f"# TYPE DCGM_FI_{metric} gauge"]
        for gpu in range(gpus):
            lines.append(
                f'DCGM_FI_{metric}{{gpu="{gpu % 8}",UUID="GPU-c4529c8d-69c4-b61d-e0bc-{gpu:012d}",'
                f'pci_bus_id="00000000:53:00.0",device="nvidia{gpu % 8}",modelName="NVIDIA H100 80GB HBM3",'
                f'Hostname="gpu{gpu // 8:05d}",DCGM_FI_DRIVER_VERSION="{driver}",hpc_job="{4000000 + gpu // 4}"}} '
                "0.347000"
            )
    return "".join(f"{line}\n" for line in lines).encode()


def best_s(work: Callable[[], object]) -> float:
    """Return the least CPU time of several runs, in seconds."""
    times = []
    for _ in range(RUNS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def into_rows(text: bytes, vocabulary: SeriesVocabulary) -> int:
    """Return the rows of a page."""
    gathering = SeriesRows(SeriesMemory(vocabulary))
    gathering.add_page(text, t=datetime(2026, 1, 1, tzinfo=UTC), node=None)
    return sum(part.frame.height for part in gathering.parts() if part.table == "gpu_samples")


def main(arguments: list[str]) -> int:
    """Print the numbers; 1 when the goal is missed."""
    gpus = int(arguments[0]) if arguments else 1000
    text = page(gpus)
    vocabulary = SeriesVocabulary()
    if into_rows(text, vocabulary) != gpus:
        raise SystemExit("not every GPU became a row")
    strange = iter([page(gpus, driver=f"580.{run}") for run in range(RUNS)])
    first_s = best_s(lambda: into_rows(next(strange), SeriesVocabulary()))
    ours_s = best_s(lambda: into_rows(text, vocabulary))
    parse_s = best_s(lambda: exposition.parse_page(text))
    reference_s = best_s(lambda: list(text_string_to_metric_families(text.decode())))
    reached = ours_s <= GOAL_S_PER_GPU * gpus
    measured = {
        "benchmark": "exposition",
        "python": platform.python_version(),
        "gpus": gpus,
        "megabytes": round(len(text) / 1e6, 2),
        "prometheus_client_s": round(reference_s, 4),
        "parse_s": round(parse_s, 4),
        "first_s": round(first_s, 4),
        "ours_s": round(ours_s, 4),
        "ratio": round(reference_s / ours_s, 1),
        "megabytes_per_s": round(len(text) / 1e6 / ours_s, 1),
        "goal_s": round(GOAL_S_PER_GPU * gpus, 4),
        "reached": reached,
    }
    print(json.dumps(measured))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
