"""How advice on sharing is put in words: names of ways and resources, slowdowns, sums beside their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from tachograph.config import Interference
from tachograph.interference.demand import CYCLES
from tachograph.units import text

AdvisedWay = Literal["mps", "mps_share", "mig", "time_slicing", "no"]
WAYS: Mapping[AdvisedWay, str] = MappingProxyType(
    {
        "mps": "MPS",
        "mps_share": "MPS with shares",
        "mig": "MIG",
        "time_slicing": "in turn",
        "no": "do not",
    }
)
# what resources are called; a pipe that is not here is "<name> pipe"
RESOURCES: Mapping[str, str] = MappingProxyType(
    {
        "issue": "issue slots",
        "fma": "FP32 pipe",
        "fp16": "FP16 pipe",
        "fp64": "FP64 pipe",
        "tensor": "tensor cores",
        "dram": "memory bandwidth",
        "l2": "L2 cache",
        "l1": "L1 cache",
        "blocks": "room for blocks",
        "sms": "SMs",
        "hbm": "memory",
    }
)
PROFILE_THEM = (
    "A profile of the kernels of both settles it: `ncu --set full -o report PROGRAM`, then `tachograph kernels "
    "report.ncu-rep`, and `tachograph colocate --profile KIND=report.ncu-rep`."
)
MPS_OF_ONE_USER = (
    "MPS: if one process ends with a GPU fault, those of the others end, too; a server serves one user at a time, so "
    "jobs of different users need one that is started for several, or wait for each other."
)


def resource(name: str) -> str:
    """Return what people call a resource.

    >>> resource("dram"), resource("xu")
    ('memory bandwidth', 'xu pipe')
    """
    return RESOURCES.get(name, f"{name} pipe")


def times(slowdown: float | None) -> str:
    """Return a slowdown as people read it.

    >>> times(1.1), times(15.8), times(None)
    ('1.10x', '15.8x', '–')
    """
    return text(slowdown, "times")


def each(slowdowns: Sequence[float | None]) -> str:
    """Return slowdowns of all members; one number where they are alike.

    >>> each([1.0, 1.25]), each([1.0, 1.0])
    ('1.00x and 1.25x', '1.00x each')
    """
    return _joined([times(slowdown) for slowdown in slowdowns])


def percents(shares: Sequence[float]) -> str:
    """Return shares of all members; one number where they are alike.

    >>> percents([0.4, 0.6]), percents([0.5, 0.5])
    ('40 % and 60 %', '50 % each')
    """
    return _joined([text(share, "fraction") for share in shares])


def _joined(said: Sequence[str]) -> str:
    return f"{said[0]} each" if len(set(said)) == 1 else " and ".join(said)


def limit(name: str, settings: Interference) -> float:
    """Return up to which share a resource may be asked for by all together."""
    return settings.safe_dram if name == "dram" else settings.safe_cycles if name in CYCLES else 1.0


def asked_together(sums: Mapping[str, float], settings: Interference) -> str:
    """Return the three resources that come nearest to their limits.

    >>> asked_together({"issue": 0.3, "dram": 0.35}, Interference())
    'together they ask for memory bandwidth 35 % (limit 70 %), issue slots 30 % (limit 90 %)'
    """
    near = sorted(sums.items(), key=lambda item: -item[1] / limit(item[0], settings))
    shown = [
        f"{resource(name)} {text(total, 'fraction')} (limit {text(limit(name, settings), 'fraction')})"
        for name, total in near[:3]
        if total > 0
    ]
    return f"together they ask for {', '.join(shown)}" if shown else "together they ask for nothing that was measured"
