"""How to enable what a source does not tell: per counter and source, as a sentence and in a few words for a screen.

Sources: `etc/default-counters.csv` and `etc/dcp-metrics-included.csv` of dcgm-exporter, NVIDIA's guide to DCGM
(profiling metrics, MIG), nvml.h (GPM needs compute capability 9.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS_BY_NAME, DCGM_PREFIX, CounterKind

if TYPE_CHECKING:
    from tachograph.live.snapshot import SourceInfo

# sources by what makes them tell more
_EXPORTERS: Final = ("dcgm-exporter", "prometheus")
_DMON: Final = "dmon"
_NVML: Final = "nvml"

# lines that both files of dcgm-exporter hold, but as comments
_COMMENTED: Final = frozenset({"sm_active", "sm_occupancy", "fp16_active", "fp32_active", "fp64_active"})
# lines that neither file holds
_ABSENT: Final = frozenset(
    {
        *("tensor_hmma_active", "tensor_imma_active", "tensor_dfma_active"),
        *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "throttle_reasons"),
    }
)
# of a whole GPU only: no slice has them, whatever is asked
_WHOLE_GPU: Final = frozenset(
    {
        *("gpu_util", "mem_copy_util", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
        *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
    }
)
_PROFILED = "PROF_"  # DCGM fields of the profiling module, GPM metrics of NVML


class CounterFix(StrEnum):
    """What can be done about a counter that is not told."""

    CSV = "csv"  # a line for the exporter
    PROFILING = "profiling"  # DCGM is asked for it, and its profiling module gives nothing
    UNCOUNTED = "uncounted"  # DCGM is asked for it, and its profiling module gives others
    HOPPER = "hopper"  # GPM of newer GPUs, else DCGM
    NONE = "none"  # nothing


@dataclass(frozen=True, slots=True)
class _FixText:
    """What is said of a remedy: for a line with several counters, for one, for a screen. {lines}: names at DCGM."""

    said: str
    brief: str


_FIX_TEXTS: Mapping[CounterFix, _FixText] = {
    CounterFix.CSV: _FixText("add {lines} to the CSV file of dcgm-exporter (option -f) and restart it", "exporter CSV"),
    CounterFix.PROFILING: _FixText(
        "DCGM's profiling gives nothing: it needs a data-centre GPU (Volta or newer), the host engine running as root "
        "(a container: capability SYS_ADMIN), and no other profiler at work (ncu, nsys, `dcgmi profile --pause`)",
        "no profiling",
    ),
    CounterFix.UNCOUNTED: _FixText(
        "DCGM's profiling works, as it tells others: this GPU, or this DCGM, does not count {lines}", "not counted"
    ),
    CounterFix.HOPPER: _FixText(
        "NVML tells it of Hopper and newer GPUs only; elsewhere run dcgm-exporter", "needs Hopper"
    ),
    CounterFix.NONE: _FixText("", "not told"),
}


def counter_fix(counter: str, source: str, *, mig: bool = False, profiles: bool = False) -> CounterFix:
    """Return what can be done about a counter that a source does not tell.

    mig: of a slice of a GPU. profiles: the source tells others that DCGM's profiling module counts.

    >>> remedy("sm_active", "dcgm-exporter").name, remedy("sm_active", "nvml").name, remedy("gpu_util", "dmon").name
    ('CSV', 'HOPPER', 'NONE')
    >>> remedy("tensor_active", "dmon").name, remedy("tensor_active", "dmon", profiles=True).name
    ('PROFILING', 'UNCOUNTED')
    """
    if mig and counter in _WHOLE_GPU:
        return CounterFix.NONE
    row = COUNTERS_BY_NAME.get(counter)
    if row is None or row.dcgm_name is None:
        return CounterFix.NONE
    profiled = _profiled(counter)
    if source in _EXPORTERS:  # where others are told, the file of the site lacks this line
        asked = profiled and not profiles and counter not in (_COMMENTED | _ABSENT)
        return CounterFix.PROFILING if asked else CounterFix.CSV
    if source == _DMON:
        working = CounterFix.UNCOUNTED if profiles else CounterFix.PROFILING
        return working if profiled else CounterFix.NONE
    if source == _NVML:
        return CounterFix.HOPPER if profiled else CounterFix.NONE
    return CounterFix.NONE


def has_profiling(about: SourceInfo) -> bool:
    """Return whether a source tells a counter of DCGM's profiling module; False while it is not known what it tells."""
    return bool(about.blind) and any(_profiled(name) for name in COUNTER_NAMES if name not in about.blind)


def _profiled(counter: str) -> bool:
    return (COUNTERS_BY_NAME[counter].dcgm_name or "").startswith(_PROFILED)


def how_to_enable(counter: str, source: str, *, mig: bool = False, profiles: bool = False) -> str:
    """Return how a counter is made to be told, as the end of a sentence; "" where that cannot be done.

    >>> how("sm_active", "dcgm-exporter")
    'add DCGM_FI_PROF_SM_ACTIVE to the CSV file of dcgm-exporter (option -f) and restart it'
    >>> how("pcie_rx_bytes_per_s", "dcgm-exporter", mig=True), how("sm_active", "recording")
    ('', '')
    """
    return _said(counter_fix(counter, source, mig=mig, profiles=profiles), [counter], source)


def brief_fix(counter: str, source: str, *, mig: bool = False, profiles: bool = False) -> str:
    """Return the same in a few words, for a place on a screen where a value would stand.

    >>> brief("sm_active", "dcgm-exporter"), brief("gpu_util", "nvml", mig=True), brief("sm_active", "recording")
    ('exporter CSV', 'not of MIG', 'not recorded')
    """
    if mig and counter in _WHOLE_GPU:
        return "not of MIG"
    if source == "recording":
        return "not recorded"
    return _FIX_TEXTS[counter_fix(counter, source, mig=mig, profiles=profiles)].brief


def exporter_csv_lines(counters: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that make dcgm-exporter tell counters; none for those that DCGM does not know.

    >>> csv_lines(["sm_active"])
    ('DCGM_FI_PROF_SM_ACTIVE, gauge, Share of cycles in which an SM had a warp resident; averaged over SMs.',)
    """
    rows = [
        COUNTERS_BY_NAME[name] for name in counters if name in COUNTERS_BY_NAME and COUNTERS_BY_NAME[name].dcgm_name
    ]
    # the exporter takes a comma for the end of a field: help must have none
    return tuple(
        f"{DCGM_PREFIX}{row.dcgm_name}, {'counter' if row.kind is CounterKind.CUMULATIVE else 'gauge'}, "
        f"{row.sentence.replace(',', ';')}"
        for row in rows
    )


def unsupported_counters(told: Iterable[str], source: str, *, mig: bool = False) -> dict[str, str]:
    """Return {counter of the catalogue that is not among `told`: how to enable it}, as `About.blind` is.

    >>> from tachograph.catalog.counters import NAMES
    >>> blind([name for name in NAMES if name != "sm_active"], "nvml")
    {'sm_active': 'NVML tells it of Hopper and newer GPUs only; elsewhere run dcgm-exporter'}
    """
    known = frozenset(told)
    working = any(map(_profiled, known & frozenset(COUNTER_NAMES)))
    return {name: how_to_enable(name, source, mig=mig, profiles=working) for name in COUNTER_NAMES if name not in known}


def unsupported_lines(about: SourceInfo) -> list[str]:
    """Return what a source does not tell, and what to do about it: a line for each thing that can be done.

    >>> from tachograph.live.snapshot import About
    >>> lines(About("nvml", "NVML", blind=blind([n for n in NAMES if n != "fp64_active"], "nvml")))
    ['does not tell fp64_active: NVML tells it of Hopper and newer GPUs only; elsewhere run dcgm-exporter']
    """
    groups: dict[tuple[CounterFix | None, str], list[str]] = {}
    working = has_profiling(about)
    for counter, told in about.blind.items():
        usual = counter_fix(counter, about.name, profiles=working)
        own = told != how_to_enable(counter, about.name, profiles=working)
        groups.setdefault((None, told) if own else (usual, ""), []).append(counter)
    return [
        f"does not tell {', '.join(counters)}" + (f": {said}" if said else "")
        for (usual, told), counters in groups.items()
        for said in (told if usual is None else _said(usual, counters, about.name),)
    ]


def _said(usual: CounterFix, counters: list[str], source: str) -> str:
    fields = ", ".join(
        f"{DCGM_PREFIX}{COUNTERS_BY_NAME[name].dcgm_name}" for name in counters if name in COUNTERS_BY_NAME
    )
    said = _FIX_TEXTS[usual].said.format(lines=fields)
    if source == "prometheus" and usual is CounterFix.CSV:
        return f"{said}; or let Prometheus keep it (metric_relabel_configs)"
    return said
