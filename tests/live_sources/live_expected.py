"""What a page of an exporter says, read again in plain Python: nothing is shared with what is tested."""

from __future__ import annotations

import re

Unit = tuple[str, int, int | None]

# {metric: (counter, factor, lowest, highest)}, written by hand
METRICS: dict[str, tuple[str, float, float, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util", 0.01, 0, 1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_copy_util", 0.01, 0, 1),
    "DCGM_FI_DEV_FB_USED": ("hbm_used_mib", 1, 0, 2097152),
    "DCGM_FI_DEV_FB_FREE": ("hbm_free_mib", 1, 0, 2097152),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1, 0, 3000),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 0.001, 0, float("inf")),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu_temp_c", 1, -40, 150),
    "DCGM_FI_DEV_MEMORY_TEMP": ("mem_temp_c", 1, -40, 150),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1, 0, 10000),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active", 1, 0, 1),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gr_engine_active", 1, 0, 1),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 1, 0, 1),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 1, 0, 1),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("pcie_rx_bytes_per_s", 1, 0, 1e12),
    "DCGM_FI_DEV_XID_ERRORS": ("xid", 1, 0, 100000),
}
BLANKS = {float(0x7FFFFFF0 + k) for k in range(4)} | {140737488355328.0 + k for k in range(4)}
BLANKS |= {float(9223372036854775792 + k) for k in range(4)}
LINE = re.compile(r"(\w+)\{(.*)\} ([-+.\deE]+|NaN|[-+]?Inf)( \d+)?")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def expected(page: str) -> dict[Unit, dict[str, float]]:
    """{(node, gpu, mig): {counter: value}} of a page whose lines are all well written."""
    found: dict[Unit, dict[str, float]] = {}
    for line in page.split("\n")[:-1]:
        got = LINE.fullmatch(line)
        if not got or got[1] not in METRICS:
            continue
        labels = dict(LABEL.findall(got[2]))
        mig = labels.get("GPU_I_ID")
        unit = (labels["Hostname"].partition(".")[0], int(labels["gpu"]), int(mig) if mig else None)
        counter, factor, low, high = METRICS[got[1]]
        raw = float(got[3])
        row = found.setdefault(unit, {})
        missing = raw in BLANKS or raw != raw or abs(raw) == float("inf") or not low <= raw * factor <= high
        if counter == "mem_temp_c" and raw == 0:
            missing = True
        if not missing and counter not in row:
            row[counter] = round(raw) if counter == "xid" else raw * factor
    return found
