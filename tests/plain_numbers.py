"""What live views should say, worked out again in plain Python from what producers write: nothing
of it is imported.

Units of producers: DCGM's fields as dcgm-exporter and dmon write them. Fractions here 0..1. None:
missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Values = dict[str, float | None]

# field: its name at dcgm-exporter, counter, factor to our unit, lowest, highest; by hand from
# NVIDIA's dcgm_fields.h
FIELDS: dict[int, tuple[str, str, float, float, float]] = {
    100: ("DEV_SM_CLOCK", "sm_clock_mhz", 1, 0, 10_000),
    101: ("DEV_MEM_CLOCK", "mem_clock_mhz", 1, 0, 20_000),
    112: ("DEV_CLOCK_THROTTLE_REASONS", "throttle_reasons", 1, 0, 2**32),
    140: ("DEV_MEMORY_TEMP", "mem_temp_c", 1, -40, 150),
    150: ("DEV_GPU_TEMP", "gpu_temp_c", 1, -40, 150),
    155: ("DEV_POWER_USAGE", "power_w", 1, 0, 3000),
    156: ("DEV_TOTAL_ENERGY_CONSUMPTION", "energy_j", 0.001, 0, float("inf")),
    202: ("DEV_PCIE_REPLAY_COUNTER", "pcie_replays", 1, 0, 2**53),
    203: ("DEV_GPU_UTIL", "gpu_util", 0.01, 0, 1),
    204: ("DEV_MEM_COPY_UTIL", "mem_copy_util", 0.01, 0, 1),
    230: ("DEV_XID_ERRORS", "xid", 1, 0, 100_000),
    251: ("DEV_FB_FREE", "hbm_free_mib", 1, 0, 2**21),
    252: ("DEV_FB_USED", "hbm_used_mib", 1, 0, 2**21),
    393: ("DEV_UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows_uncorrectable", 1, 0, 2**20),
    394: ("DEV_CORRECTABLE_REMAPPED_ROWS", "remapped_rows_correctable", 1, 0, 2**20),
    395: ("DEV_ROW_REMAP_FAILURE", "row_remap_failure", 1, 0, 1),
    1001: ("PROF_GR_ENGINE_ACTIVE", "gr_engine_active", 1, 0, 1),
    1002: ("PROF_SM_ACTIVE", "sm_active", 1, 0, 1),
    1003: ("PROF_SM_OCCUPANCY", "sm_occupancy", 1, 0, 1),
    1004: ("PROF_PIPE_TENSOR_ACTIVE", "tensor_active", 1, 0, 1),
    1005: ("PROF_DRAM_ACTIVE", "dram_active", 1, 0, 1),
    1006: ("PROF_PIPE_FP64_ACTIVE", "fp64_active", 1, 0, 1),
    1007: ("PROF_PIPE_FP32_ACTIVE", "fp32_active", 1, 0, 1),
    1008: ("PROF_PIPE_FP16_ACTIVE", "fp16_active", 1, 0, 1),
    1009: ("PROF_PCIE_TX_BYTES", "pcie_tx_bytes_per_s", 1, 0, 1e12),
    1010: ("PROF_PCIE_RX_BYTES", "pcie_rx_bytes_per_s", 1, 0, 1e12),
    1011: ("PROF_NVLINK_TX_BYTES", "nvlink_tx_bytes_per_s", 1, 0, 1e13),
    1012: ("PROF_NVLINK_RX_BYTES", "nvlink_rx_bytes_per_s", 1, 0, 1e13),
    1013: ("PROF_PIPE_TENSOR_IMMA_ACTIVE", "tensor_imma_active", 1, 0, 1),
    1014: ("PROF_PIPE_TENSOR_HMMA_ACTIVE", "tensor_hmma_active", 1, 0, 1),
    1015: ("PROF_PIPE_TENSOR_DFMA_ACTIVE", "tensor_dfma_active", 1, 0, 1),
}
WHOLE_NUMBERS = (112, 202, 230, 393, 394, 395)
COUNTERS = [counter for _, counter, *_ in FIELDS.values()]
WHOLE_GPU = (203, 204, 1009, 1010, 1011, 1012)  # no slice tells them
_BLANKS = {float(0x7FFFFFF0 + k) for k in range(4)} | {140737488355328.0 + k for k in range(4)}
_BLANKS |= {float(9223372036854775792 + k) for k in range(4)}

_BUSY = {100: 1755, 101: 2619, 112: 4, 140: 71, 150: 63, 155: 512.25, 156: 987654321, 202: 7, 203: 97, 204: 41, 230: 0,
         251: 20480, 252: 60928, 393: 0, 394: 2, 395: 0, 1001: 0.953, 1002: 0.8125, 1003: 0.4375, 1004: 0.5875,
         1005: 0.3625, 1006: 0.0125, 1007: 0.125, 1008: 0.0625, 1009: 123456789, 1010: 2345678901, 1011: 45000000000,
         1012: 44000000000, 1013: 0.0, 1014: 0.5625, 1015: 0.0125}  # fmt: skip
# GPU -> {field: as written}. Marks for "no value", impossible values, 0 degrees of memory, and
# fields left out
RAW: dict[int, dict[int, float]] = {
    0: dict(_BUSY),
    1: {**_BUSY, 203: 4294967295, 1002: 140737488355328.0, 140: 0, 156: 9223372036854775794, 252: float("nan"),
        155: 2147483632, 1005: 1.02, 1004: float("inf"), 150: 94, 230: 79, 1010: 0.0},
    2: {k: v for k, v in _BUSY.items() if k not in (1002, 1003, 1006, 1007, 1008, 251, 101)} | {395: 1, 1001: 0.02},
    3: {**_BUSY, 203: 0, 1001: 0.0, 1002: 0.0, 1003: 0.0, 1004: 0.0, 1005: 0.0, 1006: 0.0, 1010: 1000, 1009: 0,
        155: 71.5, 150: 34, 140: 41, 112: 1, 1014: 0.0, 1015: 0.0},
}  # fmt: skip
SLICES: dict[tuple[int, int], dict[int, float]] = {
    (4, 1): {k: v for k, v in _BUSY.items() if k not in WHOLE_GPU}
    | {252: 4321, 251: 5679, 1002: 0.3125},
    (4, 5): {k: v for k, v in _BUSY.items() if k not in WHOLE_GPU}
    | {252: 17, 251: 9983, 1002: 9.75},
}


def reported(raw: Mapping[int, float]) -> Values:
    """{counter: value in our unit}, of all counters."""
    found: Values = dict.fromkeys(COUNTERS)
    for field, value in raw.items():
        _, counter, factor, low, high = FIELDS[field]
        blank = float(value) in _BLANKS or value != value or value == float("inf")
        rounded = high * 1.01 if high == 1 else high  # a fraction up to this is rounded: 1
        if blank or not low <= value * factor <= rounded or (field == 140 and value == 0):
            continue
        found[counter] = min(value * factor, high)
    return found


NUMBERS = {f"DCGM_FI_{name}": field for field, (name, *_) in FIELDS.items()}
_LINE = re.compile(r"(\w+)\{(.*)\} ([-+.\deE]+|NaN|[-+]?Inf)( \d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def expected(page: str) -> dict[tuple[str, int, int | None], dict[str, float]]:
    """{(node, gpu, mig): {counter: value}} of a page of dcgm-exporter whose lines are all well
    written.
    """
    raw: dict[tuple[str, int, int | None], dict[int, float]] = {}
    for line in page.split("\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match and match[1] in NUMBERS:
            labels = dict(_LABEL.findall(match[2]))
            mig = labels.get("GPU_I_ID")
            unit = (
                labels["Hostname"].partition(".")[0],
                int(labels["gpu"]),
                int(mig) if mig else None,
            )
            raw.setdefault(unit, {}).setdefault(NUMBERS[match[1]], float(match[3]))
    return {
        unit: {counter: value for counter, value in reported(fields).items() if value is not None}
        for unit, fields in raw.items()
    }


PRESETS = {
    "ai": (0.35, 0.35, 0.20, 0.10),
    "hpc": (0.45, 0.15, 0.25, 0.15),
    "mem": (0.35, 0.10, 0.40, 0.15),
}


def parts(
    values: Mapping[str, float | None],
) -> tuple[float | None, float | None, float | None, float | None]:
    """SM, tensor, DRAM, and the engine or what stands in for it."""
    engine = values.get("gr_engine_active")
    engine = values.get("gpu_util") if engine is None else engine
    return values.get("sm_active"), values.get("tensor_active"), values.get("dram_active"), engine


def real(values: Mapping[str, float | None], weights: tuple[float, ...]) -> float | None:
    """Weighted activity; missing where something that weighs is."""
    if any(
        part is None and weight > 0 for part, weight in zip(parts(values), weights, strict=True)
    ):
        return None
    return sum((part or 0.0) * weight for part, weight in zip(parts(values), weights, strict=True))


def _at_least(value: float | None, threshold: float) -> bool | None:
    return None if value is None else value >= threshold


def _below(value: float | None, threshold: float) -> bool | None:
    return None if value is None else value < threshold


def _all(*message: bool | None) -> bool | None:
    return False if False in message else None if None in message else True


def _any(*message: bool | None) -> bool | None:
    return True if True in message else None if None in message else False


def _negated(message: bool | None) -> bool | None:
    return None if message is None else not message


def kind(
    values: Mapping[str, float | None], weights: tuple[float, ...], *, published: bool = False
) -> str:
    """The class by the default table, or the published one; `unknown` where the first rule that is not false cannot be
    decided.

    published: what is missing is 0, and MEM_COPY_UTIL counts as copying; there FP64 tensor work is
    tensor work.
    """
    if published:
        values = {name: values.get(name) or 0.0 for name in COUNTERS} | {
            "gr_engine_active": (parts(values)[3] or 0.0),
        }
    sm, tensor, dram, gr = parts(values)
    fp64, dfma = values.get("fp64_active"), None if published else values.get("tensor_dfma_active")
    rx, tx = values.get("pcie_rx_bytes_per_s"), values.get("pcie_tx_bytes_per_s")
    io = _any(
        _at_least(rx, 1e9),
        _at_least(tx, 1e9),
        *([_at_least(values["mem_copy_util"], 0.4)] if published else []),
    )
    least = sum((part or 0.0) * weight for part, weight in zip(parts(values), weights, strict=True))
    most = least + sum(
        weight for part, weight in zip(parts(values), weights, strict=True) if part is None
    )
    resting = True if most < 0.05 else False if least >= 0.05 else None
    other = tensor if dfma is None or tensor is None else tensor - dfma
    if published:
        double = _at_least(fp64, 0.2)
    elif dfma is None:  # it is a part of tensor work
        double = _any(_at_least(fp64, 0.2), False if tensor is not None and tensor < 0.2 else None)
    else:
        double = _any(_at_least(fp64, 0.2), _at_least(dfma, 0.2))
    pipes = [values.get(f"{pipe}_active") for pipe in ("tensor", "fp64", "fp32", "fp16")]
    behind = [None if pipe is None or dram is None else pipe < dram for pipe in pipes]
    memory_leads = False if published else _all(_at_least(sm, 0.5), *behind)
    table = [
        ("idle", _all(resting, _below(gr, 0.05), _below(dram, 0.05), _negated(io))),
        ("tensor-heavy compute", _all(_at_least(other, 0.5), _at_least(sm, 0.6))),
        ("tensor compute", _all(_at_least(other, 0.15), _at_least(sm, 0.4))),
        ("FP64 / HPC compute", _all(double, _at_least(sm, 0.5))),
        ("I/O or data-loading", _all(io, _below(sm, 0.3))),
        ("memory-bound", _all(_at_least(dram, 0.5), _below(sm, 0.5))),
        ("memory-bound", _all(_at_least(dram, 0.5), memory_leads)),
        ("memory-active", _all(_at_least(dram, 0.4), memory_leads)),
        ("compute-heavy", _at_least(sm, 0.8)),
        ("compute-active", _at_least(sm, 0.5)),
        ("memory-active", _at_least(dram, 0.4)),
        ("busy, low SM use", _all(_busy(gr, sm, published), _below(sm, 0.25))),
        ("low utilization", _all(_below(gr, 0.15), _below(sm, 0.15), _below(dram, 0.15))),
    ]
    for name, message in table:
        if message is None:
            return "unknown"
        if message:
            return name
    return "mixed / moderate"


def _busy(gr: float | None, sm: float | None, published: bool) -> bool | None:
    if published:
        return _at_least(gr, 0.4)
    if gr is None or (sm is None and gr >= 0.15):
        return None
    return gr - (sm or 0.0) >= 0.15


BOTTLENECKS = {
    "idle": "idle", "tensor-heavy compute": "compute", "tensor compute": "compute", "FP64 / HPC compute": "compute",
    "I/O or data-loading": "io", "memory-bound": "memory", "compute-heavy": "compute", "compute-active": "compute",
    "memory-active": "memory", "busy, low SM use": "mixed", "low utilization": "mixed", "mixed / moderate": "mixed",
    "unknown": "unknown",
}  # fmt: skip
# name as the driver writes it: temperature that is HOT, whether its memory tells one
MODELS: dict[str, tuple[float, bool]] = {
    "NVIDIA A100-SXM4-40GB": (93, True),
    "NVIDIA H100 80GB HBM3": (95, True),
    "NVIDIA H200": (95, True),
    "NVIDIA GH200 480GB": (93, True),
    "NVIDIA RTX 6000 Ada Generation": (92, False),
    "NVIDIA RTX A6000": (93, False),
    "NVIDIA of another kind": (93, True),
}


def health(
    values: Mapping[str, float | None], model: str, slowdown_c: float | None, replays: float | None
) -> str:
    """The state by the published order; unknown where a problem may be hidden. replays: new ones
    still visible.
    """
    hot, has_sensor = MODELS[model]
    limit = hot if slowdown_c is None else slowdown_c
    gpu, memory = values.get("gpu_temp_c"), values.get("mem_temp_c")
    failure, rows = values.get("row_remap_failure"), values.get("remapped_rows_uncorrectable")
    if (failure or 0) > 0 or (rows or 0) > 0:
        return "CRIT"
    if (replays or 0) > 0:
        return "WARN"
    if (gpu is not None and gpu >= limit) or (memory is not None and memory >= hot):
        return "HOT"
    if None in (failure, rows, replays, gpu) or (has_sensor and memory is None):
        return "unknown"
    return "OK"


# column of KempnerPulse: counter, factor, digits that are written
CSV: dict[str, tuple[str, float, int]] = {
    "sm_active_pct": ("sm_active", 100, 2),
    "tensor_active_pct": ("tensor_active", 100, 2),
    "dram_active_pct": ("dram_active", 100, 2),
    "gr_engine_active_pct": ("gr_engine_active", 100, 2),
    "gpu_util_pct": ("gpu_util", 100, 2),
    "mem_used_mib": ("hbm_used_mib", 1, 0),
    "power_w": ("power_w", 1, 2),
    "gpu_temp_c": ("gpu_temp_c", 1, 0),
    "mem_temp_c": ("mem_temp_c", 1, 0),
    "sm_occupancy_pct": ("sm_occupancy", 100, 2),
    "fp16_pipe_pct": ("fp16_active", 100, 2),
    "fp32_pipe_pct": ("fp32_active", 100, 2),
    "fp64_pipe_pct": ("fp64_active", 100, 2),
    "memcpy_util_pct": ("mem_copy_util", 100, 2),
    "pcie_rx_bytes_s": ("pcie_rx_bytes_per_s", 1, 0),
    "pcie_tx_bytes_s": ("pcie_tx_bytes_per_s", 1, 0),
    "sm_clock_mhz": ("sm_clock_mhz", 1, 0),
    "mem_clock_mhz": ("mem_clock_mhz", 1, 0),
    "energy_j": ("energy_j", 1, 3),
    "tc_hmma_pct": ("tensor_hmma_active", 100, 2),
    "tc_imma_pct": ("tensor_imma_active", 100, 2),
    "tc_dfma_pct": ("tensor_dfma_active", 100, 2),
    "throttle_reasons": ("throttle_reasons", 1, 0),
    "xid": ("xid", 1, 0),
    "pcie_replays": ("pcie_replays", 1, 0),
    "remapped_rows_uncorrectable": ("remapped_rows_uncorrectable", 1, 0),
    "remapped_rows_correctable": ("remapped_rows_correctable", 1, 0),
    "row_remap_failure": ("row_remap_failure", 1, 0),
}


def percent(value: float | None) -> str:
    """A fraction as a table shows it."""
    return "-" if value is None else f"{100 * value:.0f}%"
