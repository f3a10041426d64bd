"""What a GPU has: from the report itself, else from what its maker publishes; never a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from tachograph import devices
from tachograph.interference.demand import Gpu
from tachograph.nsight.launch import Chip, capability_of

REPORT = "the report"
_KIB, _MIB = 1024.0, float(1 << 20)
_BITS = 8.0
_WARP = 32
_EDGES = 2.0  # of the memory clock: all memory of GPUs moves data on both, deviceQuery reckons alike
_NAMELESS = "a GPU that the report does not name"

# field of Gpu -> what of device__attribute_* tells it
_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "sms": "multiprocessor_count",
        "threads_per_sm": "max_threads_per_multiprocessor",
        "blocks_per_sm": "max_blocks_per_multiprocessor",
        "registers_per_sm": "max_registers_per_multiprocessor",
        "shared_bytes_per_sm": "max_shared_memory_per_multiprocessor",
        "l2_bytes": "l2_cache_size",
        "hbm_bytes": "total_memory",
        "schedulers": "num_schedulers_per_multiprocessor",
    }
)
_COUNTS = frozenset({"sms", "threads_per_sm", "blocks_per_sm", "registers_per_sm", "schedulers"})
_WIDTHS = ("global_memory_bus_width", "fb_bus_width")  # bit
_CLOCKS = ("max_mem_frequency_khz", "memory_clock_rate")  # kHz


@dataclass(frozen=True, slots=True)
class _Limits:
    """What an SM of one compute capability has, as the CUDA C++ Programming Guide publishes it."""

    threads_per_sm: int
    blocks_per_sm: int
    shared_bytes_per_sm: float
    l1_bytes: float  # together with shared memory
    registers_per_sm: int = 65536


def _limits(threads: int, blocks: int, shared_kib: float, l1_kib: float) -> _Limits:
    return _Limits(threads, blocks, shared_kib * _KIB, l1_kib * _KIB)


_CAPABILITIES: Mapping[str, _Limits] = MappingProxyType(
    {
        "7.0": _limits(2048, 32, 96, 128),
        "7.5": _limits(1024, 16, 64, 96),
        "8.0": _limits(2048, 32, 164, 192),
        "8.6": _limits(1536, 16, 100, 128),
        "8.7": _limits(1536, 16, 164, 192),
        "8.9": _limits(1536, 24, 100, 128),
        "9.0": _limits(2048, 32, 228, 256),
        "10.0": _limits(2048, 32, 228, 256),
    }
)


def gpu_of(chip: Chip, metrics: Mapping[str, float] | None = None) -> Gpu:
    """Return what the GPU of a report has, and for each value who told it; None: nobody does.

    The report comes first: attributes of its device, and the peak of DRAM among its metrics. Then the published
    limits of the compute capability, then the catalogue of devices, unless the report contradicts it: a slice of a
    GPU has fewer SMs than its name says, and less of all else.

    >>> gpu = gpu_of(Chip("NVIDIA H100 PCIe", "9.0", {"multiprocessor_count": 114.0}))
    >>> gpu.sms, gpu.threads_per_sm, gpu.told_by["sms"]
    (114, 2048, 'the report')
    >>> gpu_of(Chip()).sms is None
    True
    """
    told: dict[str, float] = {}
    told_by: dict[str, str] = {}
    capability = chip.compute_capability or capability_of(chip.attributes)
    for values, teller in (
        (_reported(chip.attributes, metrics or {}), REPORT),
        (_of_capability(capability), f"compute capability {capability} as published"),
        (_catalogued(chip), "the catalogue of devices"),
    ):
        for name, value in values.items():
            if name not in told:
                told[name], told_by[name] = value, teller
    return _gpu(chip.name or _NAMELESS, told, told_by)


def _gpu(name: str, told: Mapping[str, float], told_by: Mapping[str, str]) -> Gpu:
    def count(field: str) -> int | None:
        return None if field not in told else int(told[field])

    return Gpu(
        name=name,
        sms=count("sms"),
        schedulers=count("schedulers") or Gpu(name=name).schedulers,
        threads_per_sm=count("threads_per_sm"),
        blocks_per_sm=count("blocks_per_sm"),
        registers_per_sm=count("registers_per_sm"),
        shared_bytes_per_sm=told.get("shared_bytes_per_sm"),
        l1_bytes=told.get("l1_bytes"),
        l2_bytes=told.get("l2_bytes"),
        dram_bytes_per_s=told.get("dram_bytes_per_s"),
        hbm_bytes=told.get("hbm_bytes"),
        told_by=MappingProxyType(dict(told_by)),
    )


def _reported(attributes: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """What the report tells of the device: a value of 0 is none, nor is a count below 1."""
    values = {field: _positive(attributes, (name,)) for field, name in _ATTRIBUTES.items()}
    values["sms"] = values["sms"] or _sms_of_launch(metrics)
    values["threads_per_sm"] = values["threads_per_sm"] or _threads_by_warps(metrics, values["schedulers"])
    values["dram_bytes_per_s"] = _measured_peak(metrics) or _peak_by_clock(attributes)
    return {
        field: value for field, value in values.items() if value is not None and (value >= 1 or field not in _COUNTS)
    }


def _sms_of_launch(metrics: Mapping[str, float]) -> float | None:
    """What a launch found, unless it was given a part of the GPU only: the details page shows no attributes."""
    parts = ("launch__uses_green_context", "launch__uses_mps", "launch__uses_vgpu")
    if any(metrics.get(part) for part in parts):
        return None
    return _positive(metrics, ("launch__sm_count",))


def _threads_by_warps(metrics: Mapping[str, float], schedulers: float | None) -> float | None:
    warps = _positive(metrics, ("smsp__warps_active.avg.peak_sustained",))
    return None if warps is None else warps * (schedulers or Gpu(name="").schedulers) * _WARP


def _measured_peak(metrics: Mapping[str, float]) -> float | None:
    per_cycle = _positive(metrics, ("dram__bytes.sum.peak_sustained",))
    clock = _positive(metrics, ("dram__cycles_elapsed.avg.per_second",))
    return None if per_cycle is None or clock is None else per_cycle * clock


def _peak_by_clock(attributes: Mapping[str, float]) -> float | None:
    width, clock_khz = _positive(attributes, _WIDTHS), _positive(attributes, _CLOCKS)
    return None if width is None or clock_khz is None else _EDGES * clock_khz * 1e3 * width / _BITS


def _of_capability(capability: str | None) -> dict[str, float]:
    limits = _CAPABILITIES.get(capability or "")
    if limits is None:
        return {}
    return {
        "threads_per_sm": limits.threads_per_sm,
        "blocks_per_sm": limits.blocks_per_sm,
        "registers_per_sm": limits.registers_per_sm,
        "shared_bytes_per_sm": limits.shared_bytes_per_sm,
        "l1_bytes": limits.l1_bytes,
    }


def device_of(chip: Chip) -> devices.Device | None:
    """Return the row of the catalogue for the GPU of a report; None: not in it, or not as the report tells."""
    memory = _positive(chip.attributes, ("total_memory",))
    device = devices.match(chip.name, None if memory is None else memory / _MIB)
    sms = _positive(chip.attributes, ("multiprocessor_count",))
    return None if device is None or (sms is not None and sms != device.sms) else device


def _catalogued(chip: Chip) -> dict[str, float]:
    device = device_of(chip)
    if device is None:
        return {}
    values: dict[str, float | None] = {
        "sms": device.sms,
        "threads_per_sm": device.max_warps_per_sm * _WARP,
        "l2_bytes": device.l2_bytes,
        "dram_bytes_per_s": device.hbm_bytes_per_s,
        "hbm_bytes": device.hbm_mib * _MIB,
    }
    return {field: float(value) for field, value in values.items() if value is not None}


def _positive(values: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """The first that is told and above 0."""
    return next(
        (value for name in names if (value := values.get(name)) is not None and value > 0 and isfinite(value)), None
    )
