"""The catalogue of GPU models: one row per model with the published values, null if unpublished.

`match` finds the row of a name that a driver, an exporter or a site writes; a name that fits
several models is decided by the measured memory capacity, or not at all. A device is added by one
row (and its name in `_NAMES`).
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Annotated

import msgspec

from tachograph.catalog.errors import ConfigError

GIB_IN_MIB = 1024.0

_SHEET = "datasheet"
_PAPER = "whitepaper"
_CUDA = "CUDA C++ Programming Guide, compute capabilities and arithmetic throughput"
_RATE = f"rate relative to FP32 in the {_CUDA}"
_MEASURED = "measured on the device by the project: copies in its memory, FP64 vector kernels"
_DEVICE = "attribute of the device as its driver reports it"

DEVICE_PIPES = ("fp64", "fp32", "fp16", "tensor", "fp64_tensor")

# where a value comes from unless its device names another source (Device.elsewhere)
_ORIGIN: Mapping[str, str] = MappingProxyType(
    {
        "fp64_flop_per_s": _SHEET,
        "fp32_flop_per_s": _SHEET,
        "fp16_flop_per_s": _PAPER,
        "tensor_flop_per_s": _SHEET,
        "fp64_tensor_flop_per_s": _SHEET,
        "hbm_bytes_per_s": _SHEET,
        "hbm_mib": _SHEET,
        "l2_bytes": _PAPER,
        "sms": _PAPER,
        "max_warps_per_sm": _CUDA,
        "slowdown_temp_c": _SHEET,
        "shutdown_temp_c": _SHEET,
        "board_power_w": _SHEET,
        "nvlink_bytes_per_s": _SHEET,
        "pcie_bytes_per_s": _SHEET,
        "practical_dram_active": _MEASURED,
        "practical_hbm_bytes_per_s": _MEASURED,
        "practical_pipe_active": _MEASURED,
    }
)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU model. None: the vendor does not publish the value, or the model has no such pipe.

    Tensor peaks are dense FP16/BF16. `hbm_mib` is the capacity it is sold with; drivers report down
    to `hbm_tolerance` (fraction) less: error correction and reserved memory. `sms` are compute
    units for AMD, a warp is then a wavefront. Temperatures are null where only the device itself
    reports them (DCGM fields 158 and 159).
    """

    name: str
    vendor: str
    architecture: str
    form: str  # sxm, pcie, nvl, superchip, oam, vgpu
    fp64_flop_per_s: float | None
    fp32_flop_per_s: float | None
    fp16_flop_per_s: float | None
    tensor_flop_per_s: float | None
    fp64_tensor_flop_per_s: float | None
    hbm_bytes_per_s: float
    hbm_mib: float
    l2_bytes: int | None
    sms: int
    max_warps_per_sm: int
    board_power_w: float | None
    datasheet: str
    whitepaper: str
    hbm_tolerance: float = 0.04
    slowdown_temp_c: float | None = None
    shutdown_temp_c: float | None = None
    nvlink_bytes_per_s: float | None = None  # one direction, all links of the GPU
    pcie_bytes_per_s: float | None = None  # one direction
    # what code that does nothing else reaches: counters, and bytes read and written
    practical_dram_active: float | None = None
    practical_hbm_bytes_per_s: float | None = None
    practical_pipe_active: float | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict, hash=False)

    def peak_flop_per_s(self, pipe: str) -> float | None:
        """Return the peak of `pipe` in FLOP/s; None if unpublished.

        Pipes: fp64, fp32, fp16, tensor, fp64_tensor.

        Errors: ValueError for another pipe.
        """
        if pipe not in DEVICE_PIPES:
            raise ValueError(f"no pipe {pipe!r}: it is one of {', '.join(DEVICE_PIPES)}")
        peak: float | None = getattr(self, f"{pipe}_flop_per_s")
        return peak

    def source(self, name: str) -> str | None:
        """Return the document that gives the value of field `name`; None where the value is null.

        >>> DEVICES_BY_NAME["A100 SXM 40GB"].source("hbm_bytes_per_s")
        'NVIDIA A100 datasheet'
        """
        if getattr(self, name) is None:
            return None
        origin = self.elsewhere.get(name, _ORIGIN[name])
        return {_SHEET: self.datasheet, _PAPER: self.whitepaper}.get(origin, origin)

    def fits(self, hbm_mib: float) -> bool:
        """Return whether a measured capacity is one that a driver reports for this model."""
        return self.hbm_mib * (1 - self.hbm_tolerance) <= hbm_mib <= self.hbm_mib * 1.005


# GDDR6 keeps its check bits in the same memory: one part in sixteen, and reserved memory.
_GDDR_ECC = 0.1
_T, _MB = 1e12, 1 << 20
_GB = 1e9 / (1 << 30)  # a decimal GB in GiB
_PASCAL = ("NVIDIA Tesla P100 datasheet", "NVIDIA Tesla P100 whitepaper (Pascal)")
_VOLTA = ("NVIDIA V100 datasheet", "NVIDIA Tesla V100 GPU Architecture whitepaper")
_TURING = ("NVIDIA Quadro RTX 6000 datasheet", "NVIDIA Turing GPU Architecture whitepaper")
_GA100 = ("NVIDIA A100 datasheet", "NVIDIA A100 Tensor Core GPU Architecture whitepaper")
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
_ADA = "NVIDIA Ada GPU Architecture whitepaper"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_BLACKWELL = ("NVIDIA HGX B200 datasheet", "NVIDIA Blackwell Architecture technical brief")
_RTX_PRO = (
    "NVIDIA RTX PRO 6000 Blackwell datasheet",
    "NVIDIA RTX PRO Blackwell GPU Architecture whitepaper",
)
_BY_RATE = MappingProxyType({"fp64_flop_per_s": _RATE, "fp16_flop_per_s": _RATE})
_FP16_BY_RATE = MappingProxyType({"fp16_flop_per_s": _RATE})
_L2_OF_DEVICE = MappingProxyType({"fp16_flop_per_s": _RATE, "l2_bytes": _DEVICE})


def _nvidia(
    name: str,
    architecture: str,
    form: str,
    peaks: tuple[float | None, float | None, float | None, float | None, float | None],
    memory: tuple[float, float, float],
    chip: tuple[float | None, int, int],
    board_power_w: float | None,
    documents: tuple[str, str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
    vendor: str = "NVIDIA",
) -> Device:
    """Return a row of the catalogue for an NVIDIA GPU.

    Peaks in TFLOP/s (fp64, fp32, fp16, tensor, fp64 tensor), memory as GB/s, GiB and tolerance,
    chip as L2 in MiB, SMs and warps per SM.
    """
    fp64, fp32, fp16, tensor, fp64_tensor = (None if peak is None else peak * _T for peak in peaks)
    bandwidth, capacity, tolerance = memory
    l2, sms, warps = chip
    return Device(
        name,
        vendor,
        architecture,
        form,
        fp64,
        fp32,
        fp16,
        tensor,
        fp64_tensor,
        bandwidth * 1e9,
        capacity * GIB_IN_MIB,
        None if l2 is None else int(l2 * _MB),
        sms,
        warps,
        board_power_w,
        *documents,
        hbm_tolerance=tolerance,
        elsewhere=elsewhere,
    )


_amd = partial(_nvidia, vendor="AMD")

_CDNA2 = ("AMD Instinct MI250X datasheet", "AMD CDNA 2 Architecture whitepaper")
_CDNA4 = ("AMD Instinct MI350X datasheet", "AMD CDNA 4 Architecture whitepaper")
_CDNA3 = ("AMD Instinct MI300X datasheet", "AMD CDNA 3 Architecture whitepaper")
_WAVES = MappingProxyType({"max_warps_per_sm": _DEVICE})
_ONE_DIE = MappingProxyType(
    dict.fromkeys(_ORIGIN, "half of the AMD Instinct MI250X datasheet's value: one of two dies")
    | {"max_warps_per_sm": _DEVICE}
)
_H100_SHEET = ("NVIDIA H100 datasheet", _HOPPER)
_H200_SHEET = ("NVIDIA H200 datasheet", _HOPPER)
_GH200_SHEET = ("NVIDIA GH200 Grace Hopper Superchip datasheet", _HOPPER)
_HBM, _GDDR = 0.04, _GDDR_ECC

# slowdown and shutdown (C) where a public record has them; newer drivers report only the margin to
# them
_REPORTED = "`nvidia-smi -q -d TEMPERATURE` of the device"
_LIMITS: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "V100 SXM2 16GB": (87, 90, _REPORTED),
        "V100 SXM2 32GB": (87, 90, _REPORTED),
        "V100 PCIe 16GB": (87, 90, _REPORTED),
        "V100 PCIe 32GB": (87, 90, _REPORTED),
        "A100 SXM 80GB": (89, 92, _REPORTED),
        "H100 PCIe 80GB": (89, 92, "NVIDIA H100 PCIe GPU product brief"),
    }
)


# GB/s of both directions together, as datasheets write them: NVLink (bridges included) and PCIe
_LINKS: Mapping[str, tuple[float | None, float | None]] = MappingProxyType(
    {
        "P100 SXM2 16GB": (160, 32),
        "P100 PCIe 16GB": (None, 32),
        "P100 PCIe 12GB": (None, 32),
        "V100 SXM2 16GB": (300, 32),
        "V100 SXM2 32GB": (300, 32),
        "V100 PCIe 16GB": (None, 32),
        "V100 PCIe 32GB": (None, 32),
        "Quadro RTX 6000": (100, 32),
        "A100 SXM 40GB": (600, 64),
        "A100 SXM 80GB": (600, 64),
        "A100 PCIe 40GB": (600, 64),
        "A100 PCIe 80GB": (600, 64),
        "T4": (None, 32),
        "A2": (None, 32),
        "A30": (200, 64),
        "A40": (112.5, 64),
        "RTX A6000": (112.5, 64),
        "L4": (None, 64),
        "L40": (None, 64),
        "L40S": (None, 64),
        "RTX 6000 Ada": (None, 64),
        "H100 SXM 80GB": (900, 128),
        "H100 PCIe 80GB": (600, 128),
        "H100 NVL 94GB": (600, 128),
        "H200 SXM 141GB": (900, 128),
        "H200 NVL 141GB": (900, 128),
        "GH200 96GB": (900, None),
        "GH200 144GB": (900, None),
        "B200": (1800, 128),
        "GB200": (1800, None),
        "RTX 5090": (None, 128),
        "RTX 2080 Ti": (100, 32),
        "A800 SXM 80GB": (400, 64),
        "A800 PCIe 80GB": (400, 64),
        "A10": (None, 64),
        "RTX A4000": (None, 64),
        "RTX A5000": (112.5, 64),
        "RTX 3090": (112.5, 64),
        "RTX 4090": (None, 64),
        "L20": (None, 64),
        "H20": (900, 128),
        "H800 SXM 80GB": (400, 128),
        "H800 PCIe 80GB": (400, 128),
        "B300": (1800, 128),
        "GB300": (1800, None),
        "RTX PRO 6000 Server": (None, 128),
        "RTX PRO 6000 Workstation": (None, 128),
        "RTX PRO 6000 Max-Q": (None, 128),
    }
)

# measured peaks; of other models the general ones of judge.limiter count
_PRACTICAL: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {"H100 SXM 80GB": (0.90, 2842e9, 0.95)}  # DRAM activity, B/s of a copy, pipe activity
)


def _completed(device: Device) -> Device:
    """Add links, measured peaks, and temperatures with their source."""
    nvlink, pcie = (
        None if both is None else both / 2 * 1e9 for both in _LINKS.get(device.name, (None, None))
    )
    dram, bandwidth, pipe = _PRACTICAL.get(device.name, (None, None, None))
    slowdown, shutdown, source = _LIMITS.get(device.name, (None, None, ""))
    return replace(
        device,
        slowdown_temp_c=slowdown,
        shutdown_temp_c=shutdown,
        nvlink_bytes_per_s=nvlink,
        pcie_bytes_per_s=pcie,
        practical_dram_active=dram,
        practical_hbm_bytes_per_s=bandwidth,
        practical_pipe_active=pipe,
        elsewhere={**device.elsewhere, "slowdown_temp_c": source, "shutdown_temp_c": source},
    )


# values of a chip's whitepaper where the model has no datasheet with them
_ALL_OF_PAPER = MappingProxyType(
    dict.fromkeys(("fp32_flop_per_s", "fp16_flop_per_s", "tensor_flop_per_s"), _PAPER)
    | dict.fromkeys(("hbm_bytes_per_s", "hbm_mib", "board_power_w"), _PAPER)
    | {"fp64_flop_per_s": _RATE}
)
_XE = MappingProxyType({"max_warps_per_sm": "Intel oneAPI GPU optimization guide: Xe HPC"})


# name, architecture, form; TFLOP/s: fp64, fp32, fp16, tensor, fp64 tensor; GB/s, GiB, tolerance; L2
# MiB, SMs, warps; W
_MODELS: tuple[Device, ...] = (
    _nvidia("P100 SXM2 16GB", "Pascal", "sxm", (5.3, 10.6, 21.2, None, None), (732, 16, _HBM), (4, 56, 64), 300,
            _PASCAL),
    _nvidia("P100 PCIe 16GB", "Pascal", "pcie", (4.7, 9.3, 18.7, None, None), (732, 16, _HBM), (4, 56, 64), 250,
            _PASCAL),
    _nvidia("P100 PCIe 12GB", "Pascal", "pcie", (4.7, 9.3, 18.7, None, None), (549, 12, _HBM), (None, 56, 64), 250,
            _PASCAL),
    _nvidia("V100 SXM2 16GB", "Volta", "sxm", (7.8, 15.7, 31.4, 125, None), (900, 16, _HBM), (6, 80, 64), 300, _VOLTA),
    _nvidia("V100 SXM2 32GB", "Volta", "sxm", (7.8, 15.7, 31.4, 125, None), (900, 32, _HBM), (6, 80, 64), 300, _VOLTA),
    _nvidia("V100 PCIe 16GB", "Volta", "pcie", (7.0, 14.0, 28.0, 112, None), (900, 16, _HBM), (6, 80, 64), 250, _VOLTA,
            _FP16_BY_RATE),
    _nvidia("V100 PCIe 32GB", "Volta", "pcie", (7.0, 14.0, 28.0, 112, None), (900, 32, _HBM), (6, 80, 64), 250, _VOLTA,
            _FP16_BY_RATE),
    _nvidia("Quadro RTX 6000", "Turing", "pcie", (16.3 / 32, 16.3, 32.6, 130.5, None), (672, 24, _GDDR), (6, 72, 32),
            295, _TURING, _BY_RATE),
    # with FP32 accumulation; the reference model, not the faster one of NVIDIA's own
    _nvidia("RTX 2080 Ti", "Turing", "pcie", (13.4 / 32, 13.4, 26.9, 53.8, None), (616, 11, _GDDR), (5.5, 68, 32), 250,
            (_TURING[1], _TURING[1]), _ALL_OF_PAPER),
    _nvidia("A100 SXM 40GB", "Ampere", "sxm", (9.7, 19.5, 78, 312, 19.5), (1555, 40, _HBM), (40, 108, 64), 400, _GA100),
    _nvidia("A100 SXM 80GB", "Ampere", "sxm", (9.7, 19.5, 78, 312, 19.5), (2039, 80, _HBM), (40, 108, 64), 400, _GA100),
    _nvidia("A100 PCIe 40GB", "Ampere", "pcie", (9.7, 19.5, 78, 312, 19.5), (1555, 40, _HBM), (40, 108, 64), 250,
            _GA100),
    _nvidia("A100 PCIe 80GB", "Ampere", "pcie", (9.7, 19.5, 78, 312, 19.5), (1935, 80, _HBM), (40, 108, 64), 300,
            _GA100),
    _nvidia("A800 SXM 80GB", "Ampere", "sxm", (9.7, 19.5, None, 312, None), (2039, 80, _HBM), (None, 108, 64), 400,
            ("NVIDIA A800 datasheet", _GA100[1]), {"sms": _DEVICE}),
    _nvidia("A800 PCIe 80GB", "Ampere", "pcie", (9.7, 19.5, None, 312, None), (1935, 80, _HBM), (None, 108, 64), 300,
            ("NVIDIA A800 datasheet", _GA100[1]), {"sms": _DEVICE}),
    _nvidia("T4", "Turing", "pcie", (8.1 / 32, 8.1, 16.2, 65, None), (320, 16, _GDDR), (4, 40, 32), 70,
            ("NVIDIA T4 datasheet", _TURING[1]), _BY_RATE | {"l2_bytes": _DEVICE, "sms": _DEVICE}),
    _nvidia("A2", "Ampere", "pcie", (4.5 / 64, 4.5, 4.5, 18, None), (200, 16, _GDDR), (2, 10, 48), 60,
            ("NVIDIA A2 datasheet", _GA102), _BY_RATE | {"l2_bytes": _DEVICE, "sms": _DEVICE}),
    _nvidia("A30", "Ampere", "pcie", (5.2, 10.3, 41.2, 165, 10.3), (933, 24, _HBM), (24, 56, 64), 165,
            ("NVIDIA A30 datasheet", _GA100[1]), _L2_OF_DEVICE | {"sms": _DEVICE}),
    _nvidia("A40", "Ampere", "pcie", (37.4 / 64, 37.4, 37.4, 149.7, None), (696, 48, _GDDR), (6, 84, 48), 300,
            ("NVIDIA A40 datasheet", _GA102), _BY_RATE),
    _nvidia("A10", "Ampere", "pcie", (31.2 / 64, 31.2, 31.2, 125, None), (600, 24, _GDDR), (6, 72, 48), 150,
            ("NVIDIA A10 datasheet", _GA102), _BY_RATE),
    _nvidia("RTX A4000", "Ampere", "pcie", (19.2 / 64, 19.2, 19.2, 76.7, None), (448, 16, _GDDR), (None, 48, 48), 140,
            ("NVIDIA RTX A4000 datasheet", _GA102), _BY_RATE | {"sms": _DEVICE}),
    _nvidia("RTX A5000", "Ampere", "pcie", (27.8 / 64, 27.8, 27.8, 111.1, None), (768, 24, _GDDR), (6, 64, 48), 230,
            ("NVIDIA RTX A5000 datasheet", _GA102), _BY_RATE | {"l2_bytes": _DEVICE, "sms": _DEVICE}),
    _nvidia("RTX 3090", "Ampere", "pcie", (35.6 / 64, 35.6, 35.6, 71, None), (936, 24, _GDDR), (6, 82, 48), 350,
            (_GA102, _GA102), _ALL_OF_PAPER),
    _nvidia("RTX A6000", "Ampere", "pcie", (38.7 / 64, 38.7, 38.7, 154.8, None), (768, 48, _GDDR), (6, 84, 48), 300,
            ("NVIDIA RTX A6000 datasheet", _GA102), _BY_RATE),
    _nvidia("L4", "Ada", "pcie", (30.3 / 64, 30.3, 30.3, 121, None), (300, 24, _GDDR), (48, 58, 48), 72,
            ("NVIDIA L4 datasheet", _ADA), _BY_RATE | {"l2_bytes": _DEVICE, "sms": _DEVICE}),
    _nvidia("L40", "Ada", "pcie", (90.5 / 64, 90.5, 90.5, 181.05, None), (864, 48, _GDDR), (96, 142, 48), 300,
            ("NVIDIA L40 datasheet", _ADA), _BY_RATE | {"l2_bytes": _DEVICE, "sms": _DEVICE}),
    _nvidia("L40S", "Ada", "pcie", (91.6 / 64, 91.6, 91.6, 362.05, None), (864, 48, _GDDR), (96, 142, 48), 350,
            ("NVIDIA L40S datasheet", _ADA), _BY_RATE | {"l2_bytes": _DEVICE, "sms": _DEVICE}),
    _nvidia("RTX 6000 Ada", "Ada", "pcie", (91.1 / 64, 91.1, 91.1, 364.2, None), (960, 48, _GDDR), (96, 142, 48), 300,
            ("NVIDIA RTX 6000 Ada Generation datasheet", _ADA), _BY_RATE | {"tensor_flop_per_s": _PAPER}),
    _nvidia("L20", "Ada", "pcie", (59.8 / 64, 59.8, 59.8, 119.5, None), (864, 48, _GDDR), (None, 92, 48), 275,
            ("NVIDIA L20 datasheet", _ADA), _BY_RATE | {"sms": _DEVICE}),
    _nvidia("RTX 4090", "Ada", "pcie", (82.6 / 64, 82.6, 82.6, 165.2, None), (1008, 24, _GDDR), (72, 128, 48), 450,
            (_ADA, _ADA), _ALL_OF_PAPER),
    _nvidia("H20", "Hopper", "sxm", (1, 44, None, 148, 1), (4000, 96, _HBM), (None, 78, 64), 400,
            ("NVIDIA H20 datasheet", _HOPPER), {"sms": _DEVICE}),
    _nvidia("H800 SXM 80GB", "Hopper", "sxm", (1, 67, None, 989.5, 1), (3350, 80, _HBM), (None, 132, 64), 700,
            ("NVIDIA H800 datasheet", _HOPPER), {"sms": _DEVICE}),
    _nvidia("H800 PCIe 80GB", "Hopper", "pcie", (0.8, 51, None, 756.5, 0.8), (2000, 80, _HBM), (None, 114, 64), 350,
            ("NVIDIA H800 datasheet", _HOPPER), {"sms": _DEVICE}),
    _nvidia("H100 SXM 80GB", "Hopper", "sxm", (33.5, 66.9, 133.8, 989.4, 66.9), (3352, 80, _HBM), (50, 132, 64), 700,
            (_HOPPER, _HOPPER)),
    _nvidia("H100 PCIe 80GB", "Hopper", "pcie", (25.6, 51.2, 102.4, 756, 51.2), (2039, 80, _HBM), (50, 114, 64), 350,
            (_HOPPER, _HOPPER)),
    _nvidia("H100 NVL 94GB", "Hopper", "nvl", (30, 60, 120, 835.5, 60), (3900, 94, _HBM), (None, 132, 64), 400,
            _H100_SHEET, _FP16_BY_RATE | {"sms": _DEVICE}),
    _nvidia("H200 SXM 141GB", "Hopper", "sxm", (34, 67, 134, 989.5, 67), (4800, 141, _HBM), (60, 132, 64), 700,
            _H200_SHEET, _L2_OF_DEVICE | {"sms": _DEVICE}),
    _nvidia("H200 NVL 141GB", "Hopper", "nvl", (30, 60, 120, 835.5, 60), (4800, 141, _HBM), (None, 132, 64), 600,
            _H200_SHEET, _FP16_BY_RATE | {"sms": _DEVICE}),
    _nvidia("GH200 96GB", "Hopper", "superchip", (34, 67, 134, 990, 67), (4000, 96, _HBM), (None, 132, 64), None,
            _GH200_SHEET, _FP16_BY_RATE | {"sms": _DEVICE}),
    _nvidia("GH200 144GB", "Hopper", "superchip", (34, 67, 134, 990, 67), (4900, 144, _HBM), (None, 132, 64), None,
            _GH200_SHEET, _FP16_BY_RATE | {"sms": _DEVICE}),
    _nvidia("B200", "Blackwell", "sxm", (37, 75, 150, 2250, 37), (7700, 180, _HBM), (126.5, 148, 64), 1000, _BLACKWELL,
            _L2_OF_DEVICE | {"sms": _DEVICE}),
    _nvidia("GB200", "Blackwell", "superchip", (40, 80, 160, 2500, 40), (8000, 186, _HBM), (None, 152, 64), 1200,
            ("NVIDIA GB200 NVL72 datasheet, per GPU", _BLACKWELL[1]), _FP16_BY_RATE | {"sms": _DEVICE}),
    # FP64 is published for the board and the rack alone, rounded
    _nvidia("B300", "Blackwell", "sxm", (None, 75, None, 2250, None), (8000, 270, _HBM), (None, 148, 64), None,
            ("NVIDIA HGX B300 datasheet, per GPU", _BLACKWELL[1]), {"sms": _DEVICE}),
    _nvidia("GB300", "Blackwell", "superchip", (None, 80, None, 2500, None), (8000, 279, _HBM), (None, 152, 64), None,
            ("NVIDIA GB300 NVL72 datasheet, per GPU", _BLACKWELL[1]), {"sms": _DEVICE}),
    # the memory is that of the CPU, too
    _nvidia("GB10", "Blackwell", "superchip", (None, None, None, None, None), (273, 128 * _GB, _HBM), (None, 48, 48),
            None, ("NVIDIA DGX Spark datasheet", _BLACKWELL[1]), {"sms": _DEVICE}),
    _nvidia("RTX PRO 6000 Server", "Blackwell", "pcie", (120 / 64, 120, 120, None, None), (1597, 96, _GDDR),
            (128, 188, 48), 600, _RTX_PRO, _BY_RATE),
    _nvidia("RTX PRO 6000 Workstation", "Blackwell", "pcie", (125 / 64, 125, 125, 503.8, None), (1792, 96, _GDDR),
            (128, 188, 48), 600, _RTX_PRO, _BY_RATE | {"tensor_flop_per_s": _PAPER}),
    _nvidia("RTX PRO 6000 Max-Q", "Blackwell", "pcie", (110 / 64, 110, 110, None, None), (1792, 96, _GDDR),
            (128, 188, 48), 300, _RTX_PRO, _BY_RATE),
    # tensor with FP32 accumulation, as of the others; FP16 accumulation is twice as fast on GeForce
    _nvidia("RTX 5090", "Blackwell", "pcie", (104.8 / 64, 104.8, 104.8, 209.5, None), (1792, 32, _GDDR), (96, 170, 48),
            575, ("NVIDIA GeForce RTX 5090 specifications", "NVIDIA RTX Blackwell GPU Architecture whitepaper"),
            _BY_RATE | {"tensor_flop_per_s": _PAPER}),
    _amd("MI100", "CDNA", "pcie", (11.5, 23.1, None, 184.6, None), (1228.8, 32, _HBM), (8, 120, 40), 300,
         ("AMD Instinct MI100 datasheet", "AMD CDNA Architecture whitepaper"), _WAVES),
    _amd("MI210", "CDNA 2", "pcie", (22.6, 22.6, None, 181, 45.3), (1638.4, 64, _HBM), (8, 104, 32), 300,
         ("AMD Instinct MI210 datasheet", _CDNA2[1]), _WAVES),
    _amd("MI250X", "CDNA 2", "oam", (47.9, 47.9, None, 383, 95.7), (3276.8, 128, _HBM), (16, 220, 32), 560,
         _CDNA2, _WAVES),
    _amd("MI250X GCD", "CDNA 2", "oam", (23.95, 23.95, None, 191.5, 47.85), (1638.4, 64, _HBM), (8, 110, 32), None,
         _CDNA2, _ONE_DIE),
    _amd("MI300X", "CDNA 3", "oam", (81.7, 163.4, None, 1307.4, 163.4), (5300, 192, _HBM), (32, 304, 32), 750,
         _CDNA3, _WAVES),
    _amd("MI300A", "CDNA 3", "superchip", (61.3, 122.6, None, 980.6, 122.6), (5300, 128, _HBM), (24, 228, 32), 550,
         ("AMD Instinct MI300A datasheet", _CDNA3[1]), _WAVES),
    _amd("MI325X", "CDNA 3", "oam", (81.7, 163.4, None, 1307.4, 163.4), (6000, 256, _HBM), (32, 304, 32), 1000,
         ("AMD Instinct MI325X datasheet", _CDNA3[1]), _WAVES),
    _amd("MI350X", "CDNA 4", "oam", (72.1, 144.2, None, 2306.9, 72.1), (8000, 288, _HBM), (32, 256, 32), 1000,
         _CDNA4, _WAVES),
    _amd("MI355X", "CDNA 4", "oam", (78.6, 157.3, None, 2516.6, 78.6), (8000, 288, _HBM), (32, 256, 32), 1400,
         ("AMD Instinct MI355X datasheet", _CDNA4[1]), _WAVES),
    _nvidia("Max 1550", "Xe HPC", "oam", (52.4, 52.4, None, 839, None), (3276.8, 128, _HBM), (408, 128, 64), 600,
            ("Intel Data Center GPU Max 1550 product brief", "Intel Xe HPC architecture overview"), _XE, "Intel"),
)  # fmt: skip

DEVICE_CATALOGUE: tuple[Device, ...] = tuple(map(_completed, _MODELS))
_OF_SITE: dict[str, Device] = {}  # by name, from the configuration
_SITE_NAMES: dict[str, str] = {}  # {name: pattern of what drivers report}
DEVICES_BY_NAME: Mapping[str, Device] = ChainMap(
    _OF_SITE, {device.name: device for device in DEVICE_CATALOGUE}
)
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(gt=0)]


class DeviceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that the catalogue lacks, with the fields of Device."""

    name: str
    hbm_bytes_per_s: _Positive
    hbm_mib: _Positive
    sms: _Count
    max_warps_per_sm: _Count
    model: str = ""  # as the driver reports it, `*` allowed; empty: the name
    vendor: str = "NVIDIA"
    architecture: str = ""
    form: str = ""
    fp64_flop_per_s: _Positive | None = None
    fp32_flop_per_s: _Positive | None = None
    fp16_flop_per_s: _Positive | None = None
    tensor_flop_per_s: _Positive | None = None
    fp64_tensor_flop_per_s: _Positive | None = None
    l2_bytes: _Count | None = None
    board_power_w: _Count | None = None
    nvlink_bytes_per_s: _Positive | None = None
    pcie_bytes_per_s: _Positive | None = None


def set_site_devices(options: Iterable[DeviceOptions], where: str = "") -> None:
    """Make these the site's devices, for this process. Errors: ConfigError for a name twice."""
    _OF_SITE.clear()
    _SITE_NAMES.clear()
    match_device.cache_clear()
    source = "[[device]] of the configuration"
    for option in options:
        if option.name in DEVICES_BY_NAME:
            do = "give it another name: `tachograph lake devices` lists them"
            raise ConfigError(f"there is a device {option.name!r}", where=where, do=do)
        values = msgspec.structs.asdict(option)
        _SITE_NAMES[option.name] = values.pop("model") or option.name
        _OF_SITE[option.name] = Device(
            **values,
            datasheet=source,
            whitepaper=source,
            hbm_tolerance=_GDDR_ECC,
            elsewhere=dict.fromkeys(_ORIGIN, source),
        )


_RTX_PRO_6000 = ("RTX PRO 6000 Server", "RTX PRO 6000 Workstation", "RTX PRO 6000 Max-Q")
# the chip as written (blanks between parts, no vendor) -> models it may be
_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "p100": ("P100 SXM2 16GB", "P100 PCIe 16GB", "P100 PCIe 12GB"),
        "v100": ("V100 SXM2 16GB", "V100 SXM2 32GB", "V100 PCIe 16GB", "V100 PCIe 32GB"),
        "quadro rtx 6000": ("Quadro RTX 6000",),
        "rtx 6000": ("Quadro RTX 6000", "RTX 6000 Ada"),
        "rtx 6000 ada": ("RTX 6000 Ada",),
        "a100": ("A100 SXM 40GB", "A100 SXM 80GB", "A100 PCIe 40GB", "A100 PCIe 80GB"),
        "rtx 2080 ti": ("RTX 2080 Ti",),
        "2080 ti": ("RTX 2080 Ti",),
        "a800": ("A800 SXM 80GB", "A800 PCIe 80GB"),
        "t4": ("T4",),
        "a2": ("A2",),
        "a30": ("A30",),
        "a40": ("A40",),
        "a10": ("A10",),
        "a4000": ("RTX A4000",),
        "rtx a4000": ("RTX A4000",),
        "a5000": ("RTX A5000",),
        "rtx a5000": ("RTX A5000",),
        "rtx 3090": ("RTX 3090",),
        "3090": ("RTX 3090",),
        "a6000": ("RTX A6000",),
        "rtx a6000": ("RTX A6000",),
        "l4": ("L4",),
        "l20": ("L20",),
        "rtx 4090": ("RTX 4090",),
        "4090": ("RTX 4090",),
        "l40": ("L40",),
        "l40s": ("L40S",),
        "h100": ("H100 SXM 80GB", "H100 PCIe 80GB", "H100 NVL 94GB"),
        "h20": ("H20",),
        "h800": ("H800 SXM 80GB", "H800 PCIe 80GB"),
        "h200": ("H200 SXM 141GB", "H200 NVL 141GB"),
        "gh200": ("GH200 96GB", "GH200 144GB"),
        "b200": ("B200",),
        "gb200": ("GB200",),
        "b300": ("B300",),
        "b300 ac": ("B300",),
        "gb300": ("GB300",),
        "gb10": ("GB10",),
        "rtx pro 6000 blackwell server edition": ("RTX PRO 6000 Server",),
        "rtx pro 6000 blackwell workstation edition": ("RTX PRO 6000 Workstation",),
        "rtx pro 6000 blackwell max q workstation edition": ("RTX PRO 6000 Max-Q",),
        "rtx pro 6000 blackwell": _RTX_PRO_6000,  # which of them is not said
        "rtx 5090": ("RTX 5090",),
        "5090": ("RTX 5090",),
        "mi100": ("MI100",),
        "mi210": ("MI210",),
        "mi250x": ("MI250X", "MI250X GCD"),
        "mi250x gcd": ("MI250X GCD",),
        "mi250x mi250": ("MI250X", "MI250X GCD"),  # as ROCm writes the name of both
        "mi300x": ("MI300X",),
        "mi300a": ("MI300A",),
        "mi325x": ("MI325X",),
        "mi350x": ("MI350X",),
        "mi355x": ("MI355X",),
        "max 1550": ("Max 1550",),
    }
)
# boards in the names of virtual GPUs (A100-10C), where they differ from those of the chip
_VGPU_BOARDS: Mapping[str, str] = MappingProxyType(
    {
        "v100": "V100 PCIe 16GB",
        "v100x": "V100 SXM2 16GB",
        "v100d": "V100 PCIe 32GB",
        "v100dx": "V100 SXM2 32GB",
        "a100": "A100 PCIe 40GB",
        "a100x": "A100 SXM 40GB",
        "a100d": "A100 PCIe 80GB",
        "a100dx": "A100 SXM 80GB",
        "h100": "H100 PCIe 80GB",
        "h100xm": "H100 SXM 80GB",
        "h100l": "H100 NVL 94GB",
        "h200": "H200 NVL 141GB",
        "h200x": "H200 SXM 141GB",
        "rtx6000": "Quadro RTX 6000",
    }
)
_VGPU = re.compile(r"^(\d+)[abcq]$")
# reserved in a virtual GPU: 1/16, as much again for error correction, and pages that do not depend
# on its size
_VGPU_RESERVED, _VGPU_RESERVED_MIB = 0.13, 128.0
_VENDOR_WORDS = frozenset(
    {"nvidia", "amd", "tesla", "geforce", "grid", "instinct", "gpu", "generation", "oam", "hgx"}
    | {"intel", "r", "data", "center"}
)
_FORM = re.compile(r"^(sxm)\d?$|^(pcie)$|^(nvl)$")
_CAPACITY = re.compile(r"^(?:hbm)?(\d+)(?:g|gb|gib)$|^(\d{2,3})$")
_MEMORY_TYPE = re.compile(r"^hbm\d?e?$")
_GLUED = re.compile(r"^(rtx)(a?\d{4})(ada)?$")
# "GH200 480GB" names the memory of the CPU; that superchip has 96 GB on the GPU.
_SUPERCHIP_HOST_GB = {480: 96}


@lru_cache(maxsize=4096)
def match_device(model: str | None, hbm_mib: float | None = None) -> Device | None:
    """Return the device for a model name written by a driver, an exporter or Slurm's gres type.

    Several models fit a short name such as `a100`: a measured capacity (`hbm_mib`, the driver's
    total or used + free) decides between them. A name without form factor means the SXM module
    where there is one, because the other forms are written out (`PCIe`, `NVL`). None: no name, a
    name not in the catalogue, a slice of a GPU (MIG), a capacity that contradicts the name, or
    several capacities and none measured. A capacity without a name is never turned into a model. A
    virtual GPU (`A100-10C`) has the peaks of its board, which it has in turn with others, and its
    own memory. Devices of the site come first.

    >>> match_device("NVIDIA A100-SXM4-80GB").name, match_device("a100", 40441).name, match_device("a100")
    ('A100 SXM 80GB', 'A100 SXM 40GB', None)
    >>> match_device("NVIDIA GH200 480GB").name, match_device("NVIDIA H200").name, match_device(None, 40441)
    ('GH200 96GB', 'H200 SXM 141GB', None)
    >>> match_device("GRID A100-10C", 9600).name, match_device("GRID A100-3-20C")
    ('A100-10C', None)
    """
    if not model:
        return None
    for name, pattern in _SITE_NAMES.items():
        fits = hbm_mib is None or _OF_SITE[name].fits(hbm_mib)
        if fits and fnmatchcase(model.casefold(), pattern.casefold()):
            return _OF_SITE[name]
    virtual = _virtual_device(model)
    if virtual is not None:
        return virtual if hbm_mib is None or virtual.fits(hbm_mib) else None
    read = _read_name(model)
    if read is None:
        return None
    chip, form, capacity_gb = read
    candidates = [DEVICES_BY_NAME[name] for name in _NAMES[chip]]
    if chip == "gh200" and capacity_gb is not None:
        capacity_gb = _SUPERCHIP_HOST_GB.get(capacity_gb, capacity_gb)
    if capacity_gb is not None:
        candidates = [device for device in candidates if device.hbm_mib == capacity_gb * GIB_IN_MIB]
    if hbm_mib is not None:
        candidates = [device for device in candidates if device.fits(hbm_mib)]
    if form:
        candidates = [device for device in candidates if device.form == form]
    return _only(candidates)


def ridge(device: Device, pipe: str) -> float | None:
    """Return the ridge point (FLOP/B) of `pipe`: compute-bound above it; None without a peak.

    >>> round(ridge(DEVICES_BY_NAME["A100 SXM 40GB"], "fp64"), 3)
    6.238

    Errors: ValueError for an unknown pipe.
    """
    peak = device.peak_flop_per_s(pipe)
    return None if peak is None else peak / device.hbm_bytes_per_s


def value_fields() -> tuple[str, ...]:
    """Return the names of fields with a published value, in catalogue order."""
    return tuple(item.name for item in fields(Device) if item.name in _ORIGIN)


def _virtual_device(model: str) -> Device | None:
    """Return the device of a virtual GPU; None for other names and for slices (`A100-3-20C`)."""
    words = [
        word for word in re.findall(r"[a-z0-9.+]+", model.lower()) if word not in _VENDOR_WORDS
    ]
    profile = _VGPU.match(words[-1]) if len(words) > 1 else None
    if profile is None:
        return None
    chip = " ".join(words[:-1])
    board = _VGPU_BOARDS.get(chip)
    names = (board,) if board else _NAMES.get(" ".join(_words(chip)), ())
    device = DEVICES_BY_NAME[names[0]] if len(names) == 1 else None
    hbm_mib = int(profile[1]) * GIB_IN_MIB
    if device is None or hbm_mib > device.hbm_mib:
        return None
    reserved = _VGPU_RESERVED + _VGPU_RESERVED_MIB / hbm_mib if hbm_mib else 1.0
    memory = {"hbm_mib": "profile of the virtual GPU"}
    return replace(
        device,
        name=f"{chip}-{words[-1]}".upper(),
        form="vgpu",
        hbm_mib=hbm_mib,
        hbm_tolerance=reserved,
        elsewhere={**device.elsewhere, **memory},
    )


def _only(candidates: list[Device]) -> Device | None:
    """Return the single candidate, or the SXM module if all candidates have one capacity."""
    if len(candidates) > 1 and len({device.hbm_mib for device in candidates}) == 1:
        modules = [device for device in candidates if device.form == "sxm"]
        candidates = modules or candidates
    return candidates[0] if len(candidates) == 1 else None


def _read_name(model: str) -> tuple[str, str, int | None] | None:
    """(chip in _NAMES, form factor or "", capacity in GB or None); None for an unknown word."""
    form, capacity_gb, chip = "", None, []
    for word in _words(model):
        if match := _FORM.match(word):
            form = next(part for part in match.groups() if part)
        elif match := _CAPACITY.match(word):
            capacity_gb = int(match[1] or match[2])
        elif not _MEMORY_TYPE.match(word) and word not in _VENDOR_WORDS:
            chip.append(word)
    name = " ".join(chip)
    return (name, form, capacity_gb) if name in _NAMES else None


def _words(model: str) -> Iterable[str]:
    """Lower-case words of a model name; `rtx6000ada` is taken apart."""
    for word in re.findall(r"[a-z0-9.+]+", model.lower()):
        glued = _GLUED.match(word)
        yield from (part for part in glued.groups() if part) if glued else (word,)
