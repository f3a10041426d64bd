"""Resources of a GPU, and a launch's use of an SM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, nan, prod
from types import MappingProxyType
from typing import Any

from tachograph.annexes.share.demand import Footprint, GpuCapacity
from tachograph.annexes.share.kernel_metrics import SECTOR, WARP
from tachograph.annexes.share.nsight.launches import Chip, Launch, capability_of
from tachograph.catalog import devices
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.units import MI, plural

_KIB = 1024.0
_BITS = 8.0
# Of the memory clock: all memory of GPUs moves data on both, deviceQuery calculates the same way.
_EDGES = 2.0
_NAMELESS = "a GPU that the report does not name"

# field of GpuCapacity -> name of its device__attribute_*
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


def _limits(threads: int, blocks: int, shared_kib: float, l1_kib: float) -> Mapping[str, float]:
    """SM limits of a compute capability, from the CUDA C++ Programming Guide.

    `l1_kib`: together with shared memory.
    """
    return {
        "threads_per_sm": threads,
        "blocks_per_sm": blocks,
        "registers_per_sm": 65536,
        "shared_bytes_per_sm": shared_kib * _KIB,
        "l1_bytes": l1_kib * _KIB,
    }


_CAPABILITIES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "7.0": _limits(2048, 32, 96, 128),
        "7.5": _limits(1024, 16, 64, 96),
        "8.0": _limits(2048, 32, 164, 192),
        "8.6": _limits(1536, 16, 100, 128),
        "8.7": _limits(1536, 16, 164, 192),
        **dict.fromkeys(("8.9", "12.0", "12.1"), _limits(1536, 24, 100, 128)),
        **dict.fromkeys(("9.0", "10.0"), _limits(2048, 32, 228, 256)),
    }
)
# architecture -> compute capability of its models, but for those of data centres that have one of
# their own
_OF_ARCHITECTURE: Mapping[str, str] = MappingProxyType(
    {
        "Volta": "7.0",
        "Turing": "7.5",
        "Ampere": "8.6",
        "Ada": "8.9",
        "Hopper": "9.0",
        "Blackwell": "10.0",
    }
)
_OF_MODELS: Mapping[str, str] = MappingProxyType(
    {"A100": "8.0", "A30": "8.0", "A800": "8.0", "GB10": "12.1", "RTX 5": "12.0", "RTX PRO": "12.0"}
)


def gpu_of(chip: Chip, metrics: Mapping[str, float] | None = None) -> GpuCapacity:
    """Return the resources of the GPU of a report; None: unknown.

    The report comes first: attributes of its device, of a details page the number of SMs. Then
    the published limits of the compute capability, then the catalogue of devices, unless the report
    contradicts it: a slice of a GPU has fewer SMs than a GPU of that name, and less of all other
    resources.

    >>> gpu = gpu_of(Chip("NVIDIA H100 PCIe", "9.0", {"multiprocessor_count": 114.0}))
    >>> gpu.sms, gpu.threads_per_sm
    (114, 2048)
    >>> gpu_of(Chip()).sms is None
    True
    """
    capability = chip.compute_capability or capability_of(chip.attributes)
    published = {**_catalogued(device_of(chip)), **_CAPABILITIES.get(capability or "", {})}
    by_report = _reported(chip.attributes, metrics or {})
    return _gpu(chip.name or _NAMELESS, capability, published | by_report)


def _gpu(name: str, capability: str | None, resources: Mapping[str, float]) -> GpuCapacity:
    values: dict[str, Any] = {
        field: int(value) if field in _COUNTS else value for field, value in resources.items()
    }
    return GpuCapacity(name=name, compute_capability=capability, **values)


def _reported(attributes: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Reported values of the device: a value of 0, or a count below 1, is unknown."""
    values = {field: _positive(attributes, name) for field, name in _ATTRIBUTES.items()}
    # The details page has no attributes. A launch may run on part of the GPU.
    parts = ("launch__uses_green_context", "launch__uses_mps", "launch__uses_vgpu")
    if not (values["sms"] or any(metrics.get(part) for part in parts)):
        values["sms"] = _positive(metrics, "launch__sm_count")
    width, clock_khz = _positive(attributes, *_WIDTHS), _positive(attributes, *_CLOCKS)
    if width is not None and clock_khz is not None:
        values["dram_bytes_per_s"] = _EDGES * clock_khz * 1e3 * width / _BITS
    return {
        field: value
        for field, value in values.items()
        if value is not None and (value >= 1 or field not in _COUNTS)
    }


def device_of(chip: Chip) -> devices.Device | None:
    """Return the catalogue row of a report's GPU; None if unknown, or the report contradicts it."""
    memory = _positive(chip.attributes, "total_memory")
    device = devices.match_device(chip.name, None if memory is None else memory / MI)
    sms = _positive(chip.attributes, "multiprocessor_count")
    return None if device is None or (sms is not None and sms != device.sms) else device


def gpu_of_device(device: devices.Device) -> GpuCapacity:
    """Return the resources of a catalogue model, with the limits of its compute capability.

    >>> from tachograph.catalog.devices import DEVICES_BY_NAME
    >>> gpu_of_device(DEVICES_BY_NAME["A100 SXM 40GB"]).registers_per_sm
    65536
    """
    capability = capability_of_device(device)
    limits = _CAPABILITIES.get(capability or "", {})
    return _gpu(device.name, capability, {**limits, **_catalogued(device)})


def device_called(name: str) -> devices.Device:
    """Return the GPU of NVIDIA in the catalogue that a name means.

    >>> device_called("a100 sxm 40gb").name
    'A100 SXM 40GB'

    Errors: NotFoundError for one that is not in it, or for several.
    """
    device = devices.match_device(name) or next(
        (row for row in devices.DEVICE_CATALOGUE if row.name.casefold() == name.casefold()),
        None,
    )
    if device is not None and device.vendor == "NVIDIA":
        return device
    part = name.casefold().removeprefix("nvidia").strip()
    ours = [row.name for row in devices.DEVICE_CATALOGUE if row.vendor == "NVIDIA"]
    alike = [label for label in ours if part and part in label.casefold()]
    if alike:
        raise NotFoundError(
            f"{plural(len(alike), 'GPU')} may be meant by {name!r}",
            do=f"name one: {', '.join(alike)}",
        )
    raise NotFoundError(
        f"no NVIDIA GPU in the catalogue is called {name!r}",
        do="name one of `tachograph lake devices`, such as 'H100 NVL'",
    )


def capability_of_device(device: devices.Device) -> str | None:
    """Return the compute capability of a catalogue model; None for other vendors.

    >>> from tachograph.catalog.devices import DEVICES_BY_NAME
    >>> [capability_of_device(DEVICES_BY_NAME[name]) for name in ("A100 SXM 40GB", "RTX A6000", "RTX 5090")]
    ['8.0', '8.6', '12.0']
    """
    if device.vendor != "NVIDIA":
        return None
    of_models = (
        capability for name, capability in _OF_MODELS.items() if device.name.startswith(name)
    )
    return next(of_models, _OF_ARCHITECTURE.get(device.architecture))


def _catalogued(device: devices.Device | None) -> dict[str, float]:
    if device is None:
        return {}
    values: dict[str, float | None] = {
        "sms": device.sms,
        "threads_per_sm": device.max_warps_per_sm * WARP,
        "l2_bytes": device.l2_bytes,
        "dram_bytes_per_s": device.hbm_bytes_per_s,
        "hbm_bytes": device.hbm_mib * MI,
        "power_limit_w": device.board_power_w,
    }
    return {field: float(value) for field, value in values.items() if value is not None}


def _positive(values: Mapping[str, float], *names: str) -> float | None:
    """The first known one above 0."""
    for name in names:
        value = values.get(name)
        if value is not None and value > 0 and isfinite(value):
            return value
    return None


_REGISTER_UNIT = 256  # registers are allocated to a warp in these units, on all chips since Volta
_LIMITS = tuple(
    f"launch__occupancy_limit_{what}" for what in ("blocks", "registers", "shared_mem", "warps")
)
_SHARED = ("launch__shared_mem_per_block_allocated", "launch__shared_mem_per_block")
_SHARED_PARTS = tuple(
    f"launch__shared_mem_per_block_{part}" for part in ("static", "dynamic", "driver")
)


def footprint_of(launch: Launch, gpu: GpuCapacity) -> Footprint | None:
    """Return the footprint of a launch's blocks; None if grid and block are unknown.

    The number that fits into an SM is that of the profiler, else computed from the needs of a block
    and from `gpu`.

    >>> from tachograph.annexes.share.nsight.launches import Chip
    >>> metrics = {"launch__registers_per_thread": 32.0, "launch__shared_mem_per_block": 1024.0}
    >>> sleep = Launch("sleep", metrics, Chip(), "a.csv", 0, (132, 1, 1), (1024, 1, 1))
    >>> from tachograph.annexes.share.demand import H100_NVL
    >>> footprint_of(sleep, H100_NVL).blocks_per_sm
    2
    """
    metrics = launch.metrics
    blocks = _count(metrics, "launch__grid_size") or prod(launch.grid or (0,))
    threads = _count(metrics, "launch__block_size") or prod(launch.block or (0,))
    if not blocks or not threads:
        return None
    footprint = Footprint(
        blocks, threads, _count(metrics, "launch__registers_per_thread"), _shared(metrics)
    )
    fit = _reported_fit(metrics) or computed_fit(footprint, gpu)
    return replace(footprint, blocks_per_sm=fit)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Launch of a kernel, what it takes of the GPU, and how it spreads; None: unknown.

    Of the longest launch: grid, block, footprint, and how many times it fills the GPU as profiled.
    sm_hz: mean clock of the SMs. Nsight Compute reports no power.
    """

    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    footprint: Footprint | None
    sms: int | None  # of the GPU
    waves: float | None = None
    sm_hz: float | None = None

    def placement(self) -> dict[str, float | None]:
        """Return how the blocks spread over the GPU; absent: unknown.

        waves: how many times they fill the GPU. tail: fraction 0..1 of the places that stay empty
        over all waves, the last one being short. slots_taken: fraction 0..1 of the places that they
        take. sms_needed: when each SM gets as many blocks as fit.

        >>> LaunchShape(None, None, Footprint(198, 1024, blocks_per_sm=1), 132).placement()
        {'slots_taken': 1.0, 'sms_needed': 132, 'waves': 1.5, 'tail': 0.25}
        """
        placement: dict[str, float | None] = {}
        waves, footprint = self.waves, self.footprint
        if footprint is not None and footprint.blocks_per_sm is not None and self.sms is not None:
            filled = footprint.blocks / footprint.blocks_per_sm  # SMs
            placement["slots_taken"] = min(1.0, filled / self.sms)
            placement["sms_needed"] = min(self.sms, ceil(filled))
            waves = filled / self.sms if waves is None else waves
        if waves is not None:
            placement |= {"waves": waves, "tail": 1 - waves / max(1, ceil(waves))}
        return placement


def l2_most(launches: Sequence[Launch]) -> float | None:
    """Return an upper bound of the L2 bytes a launch touches, over all launches.

    None: unknown for one of them. Data that a launch reuses went through L2 at least once: it is no
    more than the total traffic. The traffic with DRAM is less, but is a bound only where the
    profiler flushed the caches before, which no report records.

    >>> from tachograph.annexes.share.nsight.launches import Chip
    >>> metrics = {"lts__t_sectors.sum": 250_000.0}
    >>> l2_most([Launch("add", metrics, Chip(), "a.csv", 0, (132, 1, 1), (1024, 1, 1))])
    8000000.0
    """
    bound = 0.0
    for launch in launches:
        sizes = {"lts__t_bytes.sum": 1.0, "lts__t_sectors.sum": SECTOR}
        moved = [launch.metrics.get(metric, nan) * size for metric, size in sizes.items()]
        bound = max(
            bound, min((size_bytes for size_bytes in moved if 0 < size_bytes < inf), default=inf)
        )
    return bound if 0 < bound < inf else None


def computed_fit(footprint: Footprint, gpu: GpuCapacity) -> int | None:
    """Return how many blocks fit into an empty SM by threads, blocks, registers and shared memory.

    None: one of them is unknown, of the launch or of the GPU, or not even one block fits.
    """
    registers, shared = footprint.registers, footprint.shared_bytes
    slots, threads = gpu.blocks_per_sm, gpu.threads_per_sm
    of_registers, of_shared = gpu.registers_per_sm, gpu.shared_bytes_per_sm
    if registers is None or shared is None or of_registers is None or of_shared is None:
        return None
    if slots is None or threads is None:
        return None
    warps = ceil(footprint.threads / WARP)
    fits = [slots, threads // (warps * WARP)]
    if registers:
        of_warp = ceil(registers * WARP / _REGISTER_UNIT) * _REGISTER_UNIT
        # each scheduler has its own part of the registers: a warp is not split across two
        fits.append(of_registers // gpu.schedulers // of_warp * gpu.schedulers // warps)
    if shared:
        fits.append(int(of_shared // shared))
    return min(fits) or None


def _count(metrics: Mapping[str, float], metric: str) -> int | None:
    value = metrics.get(metric)
    return int(value) if value is not None and 0 <= value < inf else None


def _shared(metrics: Mapping[str, float]) -> float | None:
    """Shared memory of a block, bytes; None if unknown or invalid."""
    for whole in _SHARED:
        if 0 <= metrics.get(whole, nan) < inf:
            return metrics[whole]
    parts = [metrics.get(part, nan) for part in _SHARED_PARTS]
    return sum(parts) if all(0 <= part < inf for part in parts) else None


def _reported_fit(metrics: Mapping[str, float]) -> int | None:
    """The lowest of the profiler's limits; all four are needed, a missing one may be the lowest."""
    limits = [metrics.get(limit, nan) for limit in _LIMITS]
    barriers = metrics.get("launch__occupancy_limit_barriers", inf)
    return int(min(*limits, barriers)) if all(1 <= limit < inf for limit in limits) else None
