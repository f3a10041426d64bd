"""Words of the advice on sharing: names of resources, slowdowns and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tachograph.catalog.units import text

# what resources are called; a pipe that is not here is "<name> pipe"
RESOURCE_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "issue": "issue slots",
        "fma": "FP32 pipe",
        "fp16": "FP16 pipe",
        "fp64": "FP64 pipe",
        "tensor": "tensor cores",
        "shared": "FP64 and tensor pipe",
        "dram": "memory bandwidth",
        "l1_bandwidth": "L1 bandwidth",
        "l2_bandwidth": "L2 bandwidth",
        "l2": "L2 cache",
        "l1": "L1 cache",
        "blocks": "block slots",
        "sms": "SMs",
        "power": "power limit",
        "hbm": "memory",
        "turns": "waiting for the GPU",
        "slices": "size of the slice",
    }
)
PROFILE_THEM = (
    "profile the kernels of both with `ncu --set full -o report PROGRAM`, then `tachograph share "
    "colocate --profile GROUP=report.ncu-rep`"
)


def resource(name: str) -> str:
    """Return the label of a resource.

    >>> resource("dram"), resource("xu")
    ('memory bandwidth', 'xu pipe')
    """
    return RESOURCE_LABELS.get(name, f"{name} pipe")


def times(slowdown: float | None) -> str:
    """Return a slowdown as people read it.

    >>> times(1.1), times(15.8), times(None)
    ('1.10x', '15.8x', '–')
    """
    return text(slowdown, "times")


def span(low: float, high: float) -> str:
    """Return an interval of slowdowns; one number if both ends are printed alike.

    >>> span(1.0, 1.952), span(1.0, 1.001)
    ('1.00x to 1.95x', '1.00x')
    """
    return " to ".join(dict.fromkeys((times(low), times(high))))


def spans(low: Sequence[float], high: Sequence[float]) -> str:
    """Return the intervals of both jobs of a pair; one if they are alike.

    >>> spans((1.0, 1.0), (1.1, 1.2))
    '1.00x to 1.10x / 1.00x to 1.20x'
    """
    return " / ".join(dict.fromkeys(map(span, low, high)))
