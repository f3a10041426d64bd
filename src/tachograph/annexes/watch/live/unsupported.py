"""How to enable unsupported counters, one sentence per counter and source.

Sources: `etc/default-counters.csv` and `etc/dcp-metrics-included.csv` of dcgm-exporter, NVIDIA's
guide to DCGM (profiling metrics, MIG), nvml.h (GPM needs compute capability 9.0).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS_BY_NAME, DCGM_PREFIX
from tachograph.catalog.units import plural
from tachograph.judge.workload.classes import DECIDING
from tachograph.sources.metrics import exporter_metrics

if TYPE_CHECKING:
    from tachograph.annexes.watch.live.snapshot import SourceInfo

# sources by how more counters are enabled
DCGM_EXPORTER: Final = "dcgm-exporter"
_EXPORTERS: Final = (DCGM_EXPORTER, "prometheus")
_DMON: Final = "dmon"
_NVML: Final = "nvml"

# lines that both files of dcgm-exporter hold, but as comments
_COMMENTED: Final = frozenset(
    {"sm_active", "sm_occupancy", "fp16_active", "fp32_active", "fp64_active"}
)
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
# of a counter that the source names without any usable value: it is enabled already
NO_VALUE: Final = "no usable value in its metric"
_PROFILED = "PROF_"  # DCGM fields of the profiling module, GPM metrics of NVML


class CounterFix(StrEnum):
    """Ways to enable a counter that is not reported."""

    CSV = "csv"  # a line for dcgm-exporter
    METRIC = "metric"  # a metric that another exporter may write
    PROFILING = "profiling"  # DCGM requests it, and its profiling module reports nothing
    UNCOUNTED = "uncounted"  # DCGM requests it, and its profiling module reports others
    HOPPER = "hopper"  # GPM of newer GPUs, else DCGM
    NONE = "none"  # nothing


# {lines}: names in DCGM or of metrics; {source}; {csv}
_FIX_TEXTS: Mapping[CounterFix, str] = {
    CounterFix.CSV: "add {lines} to the CSV file of dcgm-exporter (option -f) and restart it",
    CounterFix.METRIC: "have {source} report {lines}",
    CounterFix.PROFILING: (
        "DCGM profiling reports nothing; it needs {csv}a data-centre GPU (Volta or newer), a "
        "host engine running as "
        "root (container: SYS_ADMIN), and no other active profiler (ncu, nsys)"
    ),
    CounterFix.UNCOUNTED: (
        "DCGM profiling works for other counters: this GPU or DCGM does not count {lines}"
    ),
    CounterFix.HOPPER: "NVML reports it on Hopper and newer only; elsewhere run dcgm-exporter",
    CounterFix.NONE: "",
}
_NAMING: Final = (CounterFix.CSV, CounterFix.METRIC)  # their sentences name the counters
# the ways in which a summary names them: profiling first, which the lines of the CSV file need
_ORDER: Final = (CounterFix.PROFILING, *_NAMING, CounterFix.UNCOUNTED, CounterFix.HOPPER)


def advised_source(source: str, exporters: Collection[str]) -> str:
    """Return the source to advise on: the exporter by name if none is a dcgm-exporter.

    >>> advised_source("prometheus", ["omnistat"]), advised_source("prometheus", ["dcgm-exporter", "omnistat"])
    ('omnistat', 'prometheus')
    """
    others = sorted(name for name in exporters if exporter_metrics(name))
    return (
        others[0] if others and source in _EXPORTERS and DCGM_EXPORTER not in exporters else source
    )


def counter_fix(
    counter: str, source: str, *, mig: bool = False, profiles: bool = False
) -> CounterFix:
    """Return how a counter that a source does not report can be enabled.

    mig: of a slice of a GPU. profiles: the source reports others that DCGM's profiling module
    counts.

    >>> [counter_fix("sm_active", source).name for source in ("dcgm-exporter", "nvml")]
    ['CSV', 'HOPPER']
    >>> counter_fix("gpu_util", "dmon").name, counter_fix("tensor_active", "dmon").name
    ('NONE', 'PROFILING')
    >>> counter_fix("tensor_active", "dmon", profiles=True).name
    'UNCOUNTED'
    >>> [counter_fix(name, "omnistat").name for name in ("tensor_active", "xid")]
    ['METRIC', 'NONE']
    """
    if mig and counter in _WHOLE_GPU:
        return CounterFix.NONE
    if metrics := exporter_metrics(source):
        return CounterFix.METRIC if counter in metrics else CounterFix.NONE
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
    """Return whether a source has DCGM profiling counters; False while unknown."""
    return bool(about.unsupported) and any(
        _profiled(name) for name in COUNTER_NAMES if name not in about.unsupported
    )


def _profiled(counter: str) -> bool:
    return (COUNTERS_BY_NAME[counter].dcgm_name or "").startswith(_PROFILED)


def how_to_enable(counter: str, source: str, *, mig: bool = False, profiles: bool = False) -> str:
    """Return how to enable a counter, as the end of a sentence, or "".

    >>> how_to_enable("sm_active", "dcgm-exporter")
    'add DCGM_FI_PROF_SM_ACTIVE to the CSV file of dcgm-exporter (option -f) and restart it'
    >>> how_to_enable("pcie_rx_bytes_per_s", "dcgm-exporter", mig=True), how_to_enable("sm_active", "recording")
    ('', '')
    """
    return _fix_sentence(
        counter_fix(counter, source, mig=mig, profiles=profiles), [counter], source
    )


def absent_counters(about: SourceInfo) -> frozenset[str]:
    """Return unsupported counters that cannot be enabled: the exporter has no metric."""
    metrics = exporter_metrics(advised_source(about.name, about.exporters))
    return frozenset(
        name
        for name, how in about.unsupported.items()
        if metrics and not how and name not in metrics
    )


def unsupported_counters(
    supported: Iterable[str],
    source: str,
    *,
    mig: bool = False,
    named: Collection[str] = (),
    exporters: Collection[str] = (),
) -> dict[str, str]:
    """Return {counter not among `supported`: how to enable it}, as `SourceInfo.unsupported`.

    named: counters that the source names, with or without a value. exporters: as
    `SourceInfo.exporters`.

    >>> from tachograph.catalog.counters import COUNTER_NAMES
    >>> unsupported_counters([name for name in COUNTER_NAMES if name != "sm_active"], "nvml")
    {'sm_active': 'NVML reports it on Hopper and newer only; elsewhere run dcgm-exporter'}
    """
    available = frozenset(supported)
    working = any(map(_profiled, available & frozenset(COUNTER_NAMES)))
    of = advised_source(source, exporters)
    return {
        name: NO_VALUE if name in named else how_to_enable(name, of, mig=mig, profiles=working)
        for name in COUNTER_NAMES
        if name not in available
    }


def unsupported_lines(about: SourceInfo, *, begin: str = "unsupported: ") -> list[str]:
    """Return the unsupported counters of a source and how to enable them: a line for each way.

    Counters that the exporter has no metric for are counted.

    >>> from tachograph.annexes.watch.live.snapshot import SourceInfo
    >>> missing = unsupported_counters([name for name in COUNTER_NAMES if name != "fp64_active"], "nvml")
    >>> unsupported_lines(SourceInfo("nvml", "NVML", unsupported=missing))
    ['unsupported: fp64_active; NVML reports it on Hopper and newer only; elsewhere run dcgm-exporter']
    """
    absent = absent_counters(about)
    others = [name for name in about.unsupported if name not in absent]
    lines = []
    for _, counters, message in _ways(about, others):
        line = f"{begin}{', '.join(counters)}"
        lines.append(f"{line}; {message}" if message else line)
    if absent:
        source = advised_source(about.name, about.exporters)
        lines.append(f"{begin}{plural(len(absent), 'counter')} that {source} has no metric for")
    return lines


def unsupported_summary(about: SourceInfo) -> list[str]:
    """Return the number of unsupported counters, and how to enable those that classes need.

    >>> missing = unsupported_counters([name for name in COUNTER_NAMES if name != "fp64_active"], "nvml")
    >>> from tachograph.annexes.watch.live.snapshot import SourceInfo
    >>> unsupported_summary(SourceInfo("nvml", "", unsupported=missing))[0][:67]
    '1 counter unsupported; for workload classes: fp64_active: NVML repo'
    """
    if not about.unsupported:
        return []
    source = advised_source(about.name, about.exporters)
    sentences, ways = [], _ways(about, deciding_counters(about))
    for fix, counters, message in sorted(
        ways, key=lambda way: _ORDER.index(way[0]) if way[0] in _ORDER else len(_ORDER)
    ):
        named = (
            f"{', '.join(counters)}: {message}"
            if message
            else f"{source} does not report {', '.join(counters)}"
        )
        sentences.append(message if fix in (CounterFix.PROFILING, *_NAMING) else named)
    count = f"{plural(len(about.unsupported), 'counter')} unsupported"
    if not sentences:
        return [f"{count}, none that workload classes need"]
    return [
        f"{count}; for workload classes: {sentences[0]}",
        *(f"and {sentence}" for sentence in sentences[1:]),
    ]


def deciding_counters(about: SourceInfo) -> tuple[str, ...]:
    """Return unsupported counters that workload classes need, most important first."""
    return tuple(name for name in DECIDING if name in about.unsupported)


def _ways(
    about: SourceInfo, counters: Iterable[str]
) -> list[tuple[CounterFix | None, list[str], str]]:
    """Counters by the way to enable them: (usual way or None, counters, message)."""
    working, source = has_profiling(about), advised_source(about.name, about.exporters)
    groups: dict[tuple[CounterFix | None, str], list[str]] = {}
    for counter in counters:
        message = about.unsupported[counter]
        usual = counter_fix(counter, source, profiles=working)
        is_special = message != how_to_enable(counter, source, profiles=working)
        groups.setdefault((None, message) if is_special else (usual, ""), []).append(counter)
    return [
        (usual, names, message if usual is None else _fix_sentence(usual, names, source))
        for (usual, message), names in groups.items()
    ]


def _fix_sentence(usual: CounterFix, counters: list[str], source: str) -> str:
    metrics = exporter_metrics(source)
    fields = dict.fromkeys(
        metrics.get(name) or f"{DCGM_PREFIX}{COUNTERS_BY_NAME[name].dcgm_name}"
        for name in counters
        if name in COUNTERS_BY_NAME
    )
    csv = "its lines in the CSV file, " if source in _EXPORTERS else ""
    message = _FIX_TEXTS[usual].format(lines=", ".join(fields), source=source, csv=csv)
    if source == "prometheus" and usual is CounterFix.CSV:
        return f"{message}; or let Prometheus keep it (metric_relabel_configs)"
    return message
