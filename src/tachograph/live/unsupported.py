"""How to enable unsupported counters: per counter and source, as a sentence and in short form for a screen.

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

# sources by how more counters are enabled
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
# of a whole GPU only: no slice has them
_WHOLE_GPU: Final = frozenset(
    {
        *("gpu_util", "mem_copy_util", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
        *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
    }
)
_PROFILED = "PROF_"  # DCGM fields of the profiling module, GPM metrics of NVML


class CounterFix(StrEnum):
    """Ways to enable a counter that is not reported."""

    CSV = "csv"  # a line for the exporter
    PROFILING = "profiling"  # DCGM requests it, and its profiling module reports nothing
    UNCOUNTED = "uncounted"  # DCGM requests it, and its profiling module reports others
    HOPPER = "hopper"  # GPM of newer GPUs, else DCGM
    NONE = "none"  # nothing


@dataclass(frozen=True, slots=True)
class _FixText:
    """Texts of a fix: for a line with several counters, for one, for a screen. {lines}: names in DCGM."""

    message: str
    brief: str


_FIX_TEXTS: Mapping[CounterFix, _FixText] = {
    CounterFix.CSV: _FixText("add {lines} to the CSV file of dcgm-exporter (option -f) and restart it", "exporter CSV"),
    CounterFix.PROFILING: _FixText(
        "DCGM profiling reports nothing: it needs a data-centre GPU (Volta or newer), a host engine running as root "
        "(container: capability SYS_ADMIN), and no other active profiler (ncu, nsys, `dcgmi profile --pause`)",
        "no profiling",
    ),
    CounterFix.UNCOUNTED: _FixText(
        "DCGM profiling works for other counters: this GPU or DCGM does not count {lines}", "not counted"
    ),
    CounterFix.HOPPER: _FixText(
        "NVML reports it on Hopper and newer only; elsewhere run dcgm-exporter", "needs Hopper"
    ),
    CounterFix.NONE: _FixText("", "not reported"),
}


def counter_fix(counter: str, source: str, *, mig: bool = False, profiles: bool = False) -> CounterFix:
    """Return how a counter that a source does not report can be enabled.

    mig: of a slice of a GPU. profiles: the source reports others that DCGM's profiling module counts.

    >>> [counter_fix("sm_active", source).name for source in ("dcgm-exporter", "nvml")]
    ['CSV', 'HOPPER']
    >>> counter_fix("gpu_util", "dmon").name, counter_fix("tensor_active", "dmon").name
    ('NONE', 'PROFILING')
    >>> counter_fix("tensor_active", "dmon", profiles=True).name
    'UNCOUNTED'
    """
    if mig and counter in _WHOLE_GPU:
        return CounterFix.NONE
    row = COUNTERS_BY_NAME.get(counter)
    if row is None or row.dcgm_name is None:
        return CounterFix.NONE
    profiled = _profiled(counter)
    if source in _EXPORTERS:  # where others are reported, the CSV file of the site lacks this line
        requested = profiled and not profiles and counter not in (_COMMENTED | _ABSENT)
        return CounterFix.PROFILING if requested else CounterFix.CSV
    if source == _DMON:
        working = CounterFix.UNCOUNTED if profiles else CounterFix.PROFILING
        return working if profiled else CounterFix.NONE
    if source == _NVML:
        return CounterFix.HOPPER if profiled else CounterFix.NONE
    return CounterFix.NONE


def has_profiling(about: SourceInfo) -> bool:
    """Return whether a source reports a counter of DCGM's profiling module; False while that is unknown."""
    return bool(about.unsupported) and any(_profiled(name) for name in COUNTER_NAMES if name not in about.unsupported)


def _profiled(counter: str) -> bool:
    return (COUNTERS_BY_NAME[counter].dcgm_name or "").startswith(_PROFILED)


def how_to_enable(counter: str, source: str, *, mig: bool = False, profiles: bool = False) -> str:
    """Return how to enable a counter, as the end of a sentence; "" where that is not possible.

    >>> how_to_enable("sm_active", "dcgm-exporter")
    'add DCGM_FI_PROF_SM_ACTIVE to the CSV file of dcgm-exporter (option -f) and restart it'
    >>> how_to_enable("pcie_rx_bytes_per_s", "dcgm-exporter", mig=True), how_to_enable("sm_active", "recording")
    ('', '')
    """
    return _fix_sentence(counter_fix(counter, source, mig=mig, profiles=profiles), [counter], source)


def brief_fix(counter: str, source: str, *, mig: bool = False, profiles: bool = False) -> str:
    """Return the same in a few words, shown on a screen in place of a value.

    >>> brief_fix("sm_active", "dcgm-exporter"), brief_fix("gpu_util", "nvml", mig=True)
    ('exporter CSV', 'not for MIG')
    >>> brief_fix("sm_active", "recording")
    'not recorded'
    """
    if mig and counter in _WHOLE_GPU:
        return "not for MIG"
    if source == "recording":
        return "not recorded"
    return _FIX_TEXTS[counter_fix(counter, source, mig=mig, profiles=profiles)].brief


def exporter_csv_lines(counters: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that make dcgm-exporter report counters; none for those that are not in DCGM.

    >>> exporter_csv_lines(["sm_active"])
    ('DCGM_FI_PROF_SM_ACTIVE, gauge, Share of cycles in which an SM had a warp resident; averaged over SMs.',)
    """
    rows = [
        COUNTERS_BY_NAME[name] for name in counters if name in COUNTERS_BY_NAME and COUNTERS_BY_NAME[name].dcgm_name
    ]
    # the exporter splits at commas: help must have none
    return tuple(
        f"{DCGM_PREFIX}{row.dcgm_name}, {'counter' if row.kind is CounterKind.CUMULATIVE else 'gauge'}, "
        f"{row.sentence.replace(',', ';')}"
        for row in rows
    )


def unsupported_counters(reported: Iterable[str], source: str, *, mig: bool = False) -> dict[str, str]:
    """Return {counter of the catalogue that is not among `reported`: how to enable it}, as `SourceInfo.unsupported` is.

    >>> from tachograph.catalog.counters import COUNTER_NAMES
    >>> unsupported_counters([name for name in COUNTER_NAMES if name != "sm_active"], "nvml")
    {'sm_active': 'NVML reports it on Hopper and newer only; elsewhere run dcgm-exporter'}
    """
    known = frozenset(reported)
    working = any(map(_profiled, known & frozenset(COUNTER_NAMES)))
    return {name: how_to_enable(name, source, mig=mig, profiles=working) for name in COUNTER_NAMES if name not in known}


def unsupported_lines(about: SourceInfo, *, begin: str = "unsupported: ") -> list[str]:
    """Return the unsupported counters of a source and how to enable them: a line for each way.

    >>> from tachograph.live.snapshot import SourceInfo
    >>> missing = unsupported_counters([name for name in COUNTER_NAMES if name != "fp64_active"], "nvml")
    >>> unsupported_lines(SourceInfo("nvml", "NVML", unsupported=missing))
    ['unsupported: fp64_active; NVML reports it on Hopper and newer only; elsewhere run dcgm-exporter']
    """
    groups: dict[tuple[CounterFix | None, str], list[str]] = {}
    working = has_profiling(about)
    for counter, reported in about.unsupported.items():
        usual = counter_fix(counter, about.name, profiles=working)
        own = reported != how_to_enable(counter, about.name, profiles=working)
        groups.setdefault((None, reported) if own else (usual, ""), []).append(counter)
    return [
        f"{begin}{', '.join(counters)}" + (f"; {message}" if message else "")
        for (usual, reported), counters in groups.items()
        for message in (reported if usual is None else _fix_sentence(usual, counters, about.name),)
    ]


def _fix_sentence(usual: CounterFix, counters: list[str], source: str) -> str:
    fields = ", ".join(
        f"{DCGM_PREFIX}{COUNTERS_BY_NAME[name].dcgm_name}" for name in counters if name in COUNTERS_BY_NAME
    )
    message = _FIX_TEXTS[usual].message.format(lines=fields)
    if source == "prometheus" and usual is CounterFix.CSV:
        return f"{message}; or let Prometheus keep it (metric_relabel_configs)"
    return message
