"""Workload classes of a GPU: order, bottleneck, colour, rule, typical reading.

PUBLISHED_RULES and DEFAULT_RULES are the one definition of the rules; `arrays` evaluates them, for
one reading, live views and stored minutes. The default rules differ where recordings of known
workloads contradict the published ones: a copy in memory keeps the SMs active, and kernels of a
thread or two keep the engine busy.

Source: KempnerPulse, "Workload Classification & Health States"; thresholds there are percent, here
fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Bottleneck = Literal["idle", "compute", "io", "memory", "mixed", "unknown"]

IDLE_BELOW = 0.05  # real utilisation, engine and memory
TENSOR_HEAVY, TENSOR_HEAVY_SM = 0.50, 0.60
TENSOR, TENSOR_SM = 0.15, 0.40
FP64, FP64_SM = 0.20, 0.50
IO_BYTES_PER_S, IO_COPY, IO_SM_BELOW = 1e9, 0.40, 0.30
MEMORY_BOUND, MEMORY_BOUND_SM_BELOW = 0.50, 0.50
COMPUTE_HEAVY_SM, COMPUTE_ACTIVE_SM = 0.80, 0.50
MEMORY_ACTIVE = 0.40
BUSY, BUSY_SM_BELOW = 0.40, 0.25
LOW_BELOW = 0.15  # engine, SM and memory
BUSY_ALONE = 0.15  # engine beyond SM, default rules: at BUSY and BUSY_SM_BELOW the published rule

# six axes of a profile; `io` is 1 at so many bytes per second of the busier direction: its
# threshold is at 0.4
AXES = ("sm", "tensor", "dram", "gr", "io", "fp64")
AXIS_NAMES: Mapping[str, str] = {
    "sm": "SM",
    "tensor": "TENSOR",
    "dram": "DRAM",
    "gr": "GR",
    "io": "I/O",
    "fp64": "FP64",
}
FULL_IO_BYTES_PER_S = IO_BYTES_PER_S / IO_COPY

COLOURS: Mapping[Bottleneck, str] = {
    "idle": "dim",
    "compute": "green",
    "io": "cyan",
    "memory": "magenta",
    "mixed": "yellow",
    "unknown": "dim",
}


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """One class. rule: in percent, as published; default: where the default rule differs.

    profile: a typical reading along AXES (fractions), ours.

    code: its name in evidence.
    """

    name: str
    code: str
    bottleneck: Bottleneck
    rule: str
    profile: tuple[float, float, float, float, float, float]
    default: str = ""

    def rule_text(self, *, published: bool) -> str:
        """Return the rule in words."""
        return self.rule if published else self.default or self.rule

    @property
    def colour(self) -> str:
        """Colour of its bottleneck, as terminals name it."""
        return COLOURS[self.bottleneck]

    @property
    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """{axis: (from, to)} that the published rule requires; of `I/O`, any one of them."""
        found: dict[str, tuple[float, float]] = {}
        for condition in dict(zip(WORKLOAD_CODES, CONDITIONS, strict=False)).get(self.code, ()):
            limit = condition.threshold
            if condition.quantity == "io":
                limit /= FULL_IO_BYTES_PER_S
            if condition.quantity in AXES:
                found[condition.quantity] = (limit, 1.0) if condition.least else (0.0, limit)
        return found


RULED: tuple[WorkloadClass, ...] = (
    WorkloadClass("idle", "idle", "idle", "real < 5, GR < 5, DRAM < 5, no I/O",
                  (0.02, 0, 0.01, 0.02, 0, 0)),
    WorkloadClass("tensor-heavy compute", "tensor_heavy", "compute", "TENSOR >= 50 and SM >= 60",
                  (0.85, 0.7, 0.45, 0.95, 0.05, 0)),
    WorkloadClass("tensor compute", "tensor", "compute", "TENSOR >= 15 and SM >= 40",
                  (0.6, 0.3, 0.4, 0.9, 0.05, 0)),
    WorkloadClass("FP64 / HPC compute", "fp64", "compute", "FP64 >= 20 and SM >= 50",
                  (0.75, 0.02, 0.4, 0.95, 0.05, 0.45)),
    WorkloadClass("I/O or data-loading", "io", "io", "(MEMCPY >= 40 or max(PCIe RX, TX) >= 1e9 B/s) and SM < 30",
                  (0.12, 0.02, 0.2, 0.35, 0.8, 0)),
    WorkloadClass("memory-bound", "memory_bound", "memory", "DRAM >= 50 and SM < 50",
                  (0.35, 0.05, 0.7, 0.9, 0.1, 0.05),
                  "DRAM >= 50, and SM < 50 or every pipe < DRAM"),
    WorkloadClass("compute-heavy", "compute_heavy", "compute", "SM >= 80",
                  (0.9, 0.05, 0.3, 0.97, 0.05, 0.05)),
    WorkloadClass("compute-active", "compute_active", "compute", "SM >= 50",
                  (0.65, 0.05, 0.3, 0.9, 0.05, 0.05)),
    WorkloadClass("memory-active", "memory_active", "memory", "DRAM >= 40",
                  (0.35, 0.05, 0.45, 0.8, 0.05, 0.05),
                  "DRAM >= 40, and SM < 50 or every pipe < DRAM"),
    WorkloadClass("busy, low SM use", "busy_low_sm", "mixed", "GR >= 40 and SM < 25",
                  (0.15, 0.03, 0.2, 0.7, 0.05, 0.02),
                  "GR - SM >= 15 and SM < 25"),
    WorkloadClass("low utilization", "low", "mixed", "GR < 15 and SM < 15 and DRAM < 15",
                  (0.08, 0.01, 0.08, 0.1, 0.02, 0)),
    WorkloadClass("mixed / moderate", "mixed", "mixed", "otherwise", (0.35, 0.1, 0.25, 0.6, 0.1, 0.05)),
)  # fmt: skip

UNKNOWN = "unknown"
# names in the order of rules; the last is unknown. Lists of samples and shares have this order.
WORKLOAD_CLASSES: tuple[str, ...] = (*(one.name for one in RULED), UNKNOWN)
WORKLOAD_CODES: tuple[str, ...] = (*(one.code for one in RULED), UNKNOWN)
WORKLOAD_BY_NAME: Mapping[str, WorkloadClass] = {one.name: one for one in RULED}


def bottleneck(name: str) -> Bottleneck:
    """Return what limits a GPU of a class.

    >>> bottleneck("tensor compute"), bottleneck("unknown")
    ('compute', 'unknown')
    """
    return WORKLOAD_BY_NAME[name].bottleneck if name in WORKLOAD_BY_NAME else "unknown"


Quantity = Literal["real", "sm", "tensor", "dram", "gr", "fp64", "io", "pipe_lead", "gr_alone"]
OF_REAL = ("sm_active", "tensor_active", "dram_active", "gr_engine_active")
ALL_PIPES = ("tensor_active", "fp64_active", "fp32_active", "fp16_active")
PCIE = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
# what decides, in the order in which it is named; FP64 tensor work and utilisation only add to the
# others
DECIDING = (*OF_REAL, *ALL_PIPES[1:], *PCIE)
# counters that a quantity is made of
MADE_OF: Mapping[Quantity, tuple[str, ...]] = {
    "real": OF_REAL,
    "sm": ("sm_active",),
    "tensor": ("tensor_active",),
    "dram": ("dram_active",),
    "gr": ("gr_engine_active",),
    "fp64": ("fp64_active", "tensor_active"),
    "io": PCIE,
    "pipe_lead": (*ALL_PIPES, "dram_active"),
    "gr_alone": ("gr_engine_active", "sm_active"),
}

# AND is the lesser of two, OR the greater
NO, MAYBE, YES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class WorkloadCondition:
    """A condition of a rule: quantity at least `threshold`, or below it if `least` is False.

    `pipe_lead` is the activity of the most active pipe less that of memory, `gr_alone` that of the
    engine less that of the SMs. Of `fp64` the FP64 pipe or FP64 tensor work counts; of `io`
    either direction of PCIe (B/s), or copying from IO_COPY on as published.
    """

    quantity: Quantity
    least: bool
    threshold: float


def _at(quantity: Quantity, threshold: float) -> WorkloadCondition:
    return WorkloadCondition(quantity, True, threshold)


def _below(quantity: Quantity, threshold: float) -> WorkloadCondition:
    return WorkloadCondition(quantity, False, threshold)


@dataclass(frozen=True, slots=True)
class WorkloadRule:
    """A rule: the class (its place in RULED) of a reading for which all conditions hold."""

    place: int
    conditions: tuple[WorkloadCondition, ...]


# as published: per class but the last, in their order
CONDITIONS: tuple[tuple[WorkloadCondition, ...], ...] = (
    (
        _below("real", IDLE_BELOW),
        _below("gr", IDLE_BELOW),
        _below("dram", IDLE_BELOW),
        _below("io", IO_BYTES_PER_S),
    ),
    (_at("tensor", TENSOR_HEAVY), _at("sm", TENSOR_HEAVY_SM)),
    (_at("tensor", TENSOR), _at("sm", TENSOR_SM)),
    (_at("fp64", FP64), _at("sm", FP64_SM)),
    (_at("io", IO_BYTES_PER_S), _below("sm", IO_SM_BELOW)),
    (_at("dram", MEMORY_BOUND), _below("sm", MEMORY_BOUND_SM_BELOW)),
    (_at("sm", COMPUTE_HEAVY_SM),),
    (_at("sm", COMPUTE_ACTIVE_SM),),
    (_at("dram", MEMORY_ACTIVE),),
    (_at("gr", BUSY), _below("sm", BUSY_SM_BELOW)),
    (_below("gr", LOW_BELOW), _below("sm", LOW_BELOW), _below("dram", LOW_BELOW)),
)
PUBLISHED_RULES = tuple(WorkloadRule(place, found) for place, found in enumerate(CONDITIONS))
_BOUND_PLACE, _ACTIVE_PLACE, _BUSY_PLACE = (
    WORKLOAD_CODES.index(code) for code in ("memory_bound", "memory_active", "busy_low_sm")
)
# Where memory is more active than any pipe, active SMs are no sign of arithmetic.
_MEMORY_LEADS = (_at("sm", COMPUTE_ACTIVE_SM), _below("pipe_lead", 0.0))
DEFAULT_RULES = (
    *PUBLISHED_RULES[: _BOUND_PLACE + 1],
    WorkloadRule(_BOUND_PLACE, (_at("dram", MEMORY_BOUND), *_MEMORY_LEADS)),
    WorkloadRule(_ACTIVE_PLACE, (_at("dram", MEMORY_ACTIVE), *_MEMORY_LEADS)),
    *PUBLISHED_RULES[_BOUND_PLACE + 1 : _BUSY_PLACE],
    WorkloadRule(_BUSY_PLACE, (_at("gr_alone", BUSY_ALONE), _below("sm", BUSY_SM_BELOW))),
    *PUBLISHED_RULES[_BUSY_PLACE + 1 :],
)
MIXED_PLACE, UNKNOWN_PLACE = len(RULED) - 1, len(RULED)


def rules_of(*, published: bool) -> tuple[WorkloadRule, ...]:
    """Return the rules in their order; what none of them holds for is of the last class."""
    return PUBLISHED_RULES if published else DEFAULT_RULES
