"""What a driver's codes mean in words: XID errors, and reasons for which clocks are lowered."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# source: NVIDIA, "XID Errors" (GPU Deployment and Management documentation)
XID_MEANINGS: Mapping[int, str] = MappingProxyType(
    {
        13: "graphics engine exception",
        31: "memory page fault",
        43: "GPU stopped processing",
        45: "preemptive cleanup after an earlier error",
        48: "double-bit ECC error",
        63: "row remapping event",
        64: "row remapping failure",
        74: "NVLink error",
        79: "GPU has fallen off the bus",
        92: "high rate of single-bit ECC errors",
        94: "contained ECC error",
        95: "uncontained ECC error",
        119: "timeout of the GPU system processor",
        120: "error of the GPU system processor",
    }
)
XID_OFTEN_THE_PROGRAM = frozenset({13, 31, 43, 45})
XID_CRITICAL = frozenset({48, 63, 64, 74, 79, 92, 94, 95, 119, 120})  # the device needs attention

# bits of throttle_reasons that lower clocks for heat or power. Idle (1), clocks that an application asked for (2) and
# boost in step with other GPUs (0x10) are nobody's trouble.
CLOCKS_LOWERED: Mapping[int, str] = MappingProxyType(
    {
        0x04: "the power limit",
        0x08: "a hardware slowdown",
        0x20: "heat (the driver's limit)",
        0x40: "heat (the hardware's limit)",
        0x80: "the power brake",
    }
)
HARDWARE_SLOWDOWN = 0x08 | 0x40 | 0x80


def xid_meaning(code: int) -> str:
    """Return what an XID code means.

    >>> xid_meaning(79), xid_meaning(7777)
    ('GPU has fallen off the bus', "see NVIDIA's list of XID errors")
    """
    return XID_MEANINGS.get(code, "see NVIDIA's list of XID errors")


def clock_reasons(bits: int) -> tuple[str, ...]:
    """Return why clocks are lowered, those that nobody need care about left out.

    >>> clock_reasons(0x1 | 0x4 | 0x40)
    ('the power limit', "heat (the hardware's limit)")
    """
    return tuple(name for bit, name in CLOCKS_LOWERED.items() if bits & bit)
