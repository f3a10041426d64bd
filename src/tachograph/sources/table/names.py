"""Column names that people and tools use: units, counters, device facts, keys.

Names are compared without case and word separators: `GPU Util`, `gpu_util` and `gpuUtil` are equal.
Exact names of producers are in `sources.columns`; these are proposals, which a person checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType

from tachograph.catalog.counters import (
    COUNTERS,
    HOST_COUNTERS,
    CounterKind,
)
from tachograph.catalog.units import UNITS, is_convertible
from tachograph.sources.columns import (
    DEVICE_VALUES,
    GPU_NAMES,
    IGNORED,
    JOB_NAMES,
    MIG_NAMES,
    NODE_NAMES,
    NODE_VALUES,
    STEP_NAMES,
    TIME_NAMES,
    counter_names,
    host_column_meaning,
)
from tachograph.sources.exporter_mapping import column_unit

_UNIT_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("%", "pct", "percent", "percentage"), "percent"),
        **dict.fromkeys(("ratio", "fraction"), "fraction"),
        **dict.fromkeys(("°c", "celsius", "degc", "degrees_c"), "C"),
        **dict.fromkeys(("watt", "watts"), "W"),
        **dict.fromkeys(("milliwatt", "milliwatts"), "mW"),
        **dict.fromkeys(("joule", "joules"), "J"),
        **dict.fromkeys(("millijoule", "millijoules"), "mJ"),
        **dict.fromkeys(("byte", "bytes"), "B"),
        **dict.fromkeys(("megabyte", "megabytes"), "MB"),
        **dict.fromkeys(("gigabyte", "gigabytes"), "GB"),
        **dict.fromkeys(("sec", "second", "seconds"), "s"),
        **dict.fromkeys(("jiffy", "jiffies"), "jiffy"),
    }
)
_LOWER_UNITS: Mapping[str, str] = MappingProxyType({unit.lower(): unit for unit in sorted(UNITS)})
_RATE = re.compile(r"^(.+?)(?:/|_per_|_)(?:s|sec|second)$")
_BITS = re.compile(r"^[KMG]i?b(?:/s|ps)?$")


def unit_named(text: str) -> str | None:
    """Return the project's name of a unit that people write, or None.

    Case counts only where it distinguishes units: `mJ` and `MJ`; `Gb` are bits, which nothing here
    counts.

    >>> [unit_named(text) for text in ("W", "%", "Celsius", "bytes/s", "mib_per_second", "MJ", "mj", "Gb", "rpm")]
    ['W', 'percent', 'C', 'B/s', 'MiB/s', 'MJ', 'mJ', None, None]
    """
    unit_text = text.strip()
    if unit_text in UNITS:
        return unit_text
    if _BITS.match(unit_text):
        return None
    lower = re.sub(r"[ _]+", "_", unit_text.lower())
    if rate := _RATE.match(lower):
        per_second = f"{unit_named(rate[1])}/s"
        return per_second if per_second in UNITS else None
    return _UNIT_WORDS.get(lower) or _LOWER_UNITS.get(lower)


# counters that only grow
CUMULATIVE = frozenset(
    [counter.name for counter in COUNTERS if counter.kind is CounterKind.CUMULATIVE]
    + [counter.name for counter in HOST_COUNTERS if counter.kind is CounterKind.CUMULATIVE]
)
# Characters of a name that may mean something; the patterns' time grows with their square.
_LONGEST = 200
_BRACKETS = re.compile(r"^(.*?)[ _]*[\[(]([^\])]+)[\])]$")
_SIGNS = " _.-:/"  # between words
_WORD_END = re.compile(r"[ _.\-/:]+|(?<=[a-z0-9])(?=[A-Z])")
_TOTAL = re.compile(r"(?i)[ _.\-]total$")
_MOST_WORDS_OF_UNIT = 3  # bytes per second
# words that do not change what a counter is; not "max" or "min"
_FILLERS = frozenset(
    {
        "nvidia",
        "nvml",
        "smi",
        "dcgm",
        "rocm",
        "amd",
        "gpu",
        "card",
        "avg",
        "mean",
        "average",
        "current",
        "value",
    }
)


def _key(name: str) -> str:
    """A name in the form used for comparison."""
    return re.sub(r"[\W_]+", "", name.lower())


def _readings(name: str) -> Iterator[tuple[str, str]]:
    """Yield (name, unit) in all readings of a name, with and without its unit."""
    text, behind = name.strip()[:_LONGEST], ""
    if match := _BRACKETS.match(text):
        text, behind = match[1], unit_named(match[2]) or ""
    ends = [word_end.start() for word_end in _WORD_END.finditer(text)]
    for end in ends[-_MOST_WORDS_OF_UNIT:]:
        if unit := unit_named(text[end:].strip(_SIGNS)):
            yield text[:end], behind or unit
    yield text, behind


def _known(name: str, index: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """Entry of `index` for a reading of the name, with or without fillers; its unit takes priority.

    A reading whose unit the column can have comes before one whose unit it cannot.
    """
    # Prometheus writes _total behind a counter that only grows; elsewhere a total is a capacity.
    total = _TOTAL.search(name)
    readings = [(False, *reading) for reading in _readings(name)]
    readings += [(True, *reading) for reading in _readings(name[: total.start()])] if total else []
    odd: tuple[str, str] | None = None
    for is_shortened, bare, unit in readings:
        words = [word for word in _WORD_END.split(bare) if word.lower() not in _FILLERS]
        to, usual = index.get(_key(bare)) or index.get(_key("".join(words))) or ("", "")
        if not to or (is_shortened and to not in CUMULATIVE):
            continue
        if not unit or is_convertible(unit, column_unit(to) or ""):
            return to, unit or usual
        odd = odd or (to, unit)
    return odd


def _index(synonyms: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """{key: (column, "")} of a table {column: names, a comma between}."""
    return {_key(name): (to, "") for to, names in synonyms.items() for name in names.split(",")}


_COUNTERS_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "gpu_util": (
            "util,utilization,utilisation,usage,load,utilization.gpu,utilization gpu rates,busy,use"
        ),
        "mem_copy_util": "utilization.memory,mem util,memory util,memory utilization,mem copy util",
        "sm_active": "sm active,sm activity,sm util,sm utilization",
        "sm_occupancy": "sm occupancy,occupancy",
        "gr_engine_active": "gr engine active,graphics engine active,gr active",
        "fp16_active": "fp16 active,fp16 util,pipe fp16 active",
        "fp32_active": "fp32 active,fp32 util,pipe fp32 active",
        "fp64_active": "fp64 active,fp64 util,pipe fp64 active",
        "tensor_active": "tensor active,tensor util,tensor core active,pipe tensor active",
        "dram_active": (
            "dram active,dram util,mem bw util,memory bandwidth util,memory bandwidth utilization"
        ),
        "hbm_used_mib": (
            "mem,memory,memory.used,mem used,memory usage,mem usage,used memory,fb "
            "used,hbm used,vram used"
        ),
        "hbm_free_mib": "memory.free,mem free,free memory,fb free,hbm free,vram free",
        "power_w": "power,power.draw,power.draw.instant,power.draw.average,power usage,power "
        "consumption,board power,"
        "socket power,graphics package power,current socket graphics package power",
        "energy_j": "energy,total energy,energy consumption,total energy consumption",
        "gpu_temp_c": (
            "temp,temperature,temperature.gpu,gpu temp,gpu temperature,temperature (sensor edge)"
        ),
        "mem_temp_c": (
            "temperature.memory,mem temp,memory temp,memory temperature,hbm "
            "temp,temperature (sensor memory)"
        ),
        "sm_clock_mhz": (
            "clocks.sm,clocks.current.sm,sm clock,clock sm,graphics clock,gpu clock,sclk"
        ),
        "mem_clock_mhz": "clocks.mem,clocks.current.memory,mem clock,memory clock,clock mem,mclk",
        "throttle_reasons": (
            "clocks_throttle_reasons.active,clocks_event_reasons.active,throttle reasons"
        ),
        "pcie_tx_bytes_per_s": "pcie tx,pcie tx bytes,pcie tx throughput",
        "pcie_rx_bytes_per_s": "pcie rx,pcie rx bytes,pcie rx throughput",
        "nvlink_tx_bytes_per_s": "nvlink tx,nvlink tx bytes,nvlink tx throughput",
        "nvlink_rx_bytes_per_s": "nvlink rx,nvlink rx bytes,nvlink rx throughput",
        "xid": "xid,xid error,xid errors",
        "pcie_replays": "pcie replay,pcie replays,pcie replay counter",
    }
)
_HOST_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "cpu_user_s": "cpu user,cpu usr",
        "cpu_nice_s": "cpu nice",
        "cpu_system_s": "cpu system,cpu sys",
        "cpu_iowait_s": "cpu iowait,cpu wait",
        "cpu_idle_s": "cpu idle",
        "load_average": "load,load1,loadavg,load average",
        "memory_total_mib": "mem total,memory total,total memory",
        "memory_available_mib": "mem available,mem avail,memory available,available memory",
        "network_rx_bytes": "rx,rx bytes,network rx,net rx,bytes recv,bytes received",
        "network_tx_bytes": "tx,tx bytes,network tx,net tx,bytes sent",
        "network_rx_packets": "rx packets,packets recv,packets received",
        "network_tx_packets": "tx packets,packets sent",
        "fs_read_bytes": "lustre read,fs read",
        "fs_write_bytes": "lustre write,fs write",
    }
)


@cache
def _counters() -> Mapping[str, tuple[str, str]]:
    """{key: (counter, unit)} of common, contract and exporters' names.

    Contract names are listed with and without their unit.
    """
    contract = {_key(bare): (c.name, unit) for c in COUNTERS for bare, unit in _readings(c.name)}
    producers = {_key(name): meaning for name, meaning in counter_names().items()}
    return MappingProxyType({**producers, **contract, **_index(_COUNTERS_SYNONYMS)})


@cache
def _host_counters() -> Mapping[str, tuple[str, str]]:
    contract = {
        _key(bare): (c.name, unit) for c in HOST_COUNTERS for bare, unit in _readings(c.name)
    }
    values = {_key(name): (to, "") for name, to in NODE_VALUES.items()}
    return MappingProxyType({**contract, **values, **_index(_HOST_SYNONYMS)})


def counter_meaning(name: str) -> tuple[str, str] | None:
    """Return (counter, unit) of a column name, or None; unit "" if unknown.

    >>> counter_meaning("utilization.gpu [%]"), counter_meaning("DCGM_FI_DEV_GPU_UTIL"), counter_meaning("fan")
    (('gpu_util', 'percent'), ('gpu_util', 'percent'), None)
    >>> counter_meaning("PCIe TX (MiB/s)"), counter_meaning("gpu_energy_mj"), counter_meaning("memUsedBytes")
    (('pcie_tx_bytes_per_s', 'MiB/s'), ('energy_j', 'mJ'), ('hbm_used_mib', 'B'))
    """
    return counter_names().get(name.lower().strip()) or _known(name, _counters())


def host_counter_meaning(name: str) -> tuple[str, str] | None:
    """Return (host counter, unit) of a column name, or None; unit "" if not in the name.

    >>> [host_counter_meaning(name) for name in ("CPU user [jiffies]", "MemTotal", "rx_bytes#hsn0", "fan")]
    [('cpu_user_s', 'jiffy'), ('memory_total_mib', 'KiB'), None, None]
    """
    meaning = host_column_meaning(name)
    if meaning is not None:
        return None if meaning.copy else (meaning.counter, meaning.unit)
    return None if "#" in name else _known(name, _host_counters())


GPU_IN_NAME = re.compile(r"(?i)(?:gpu|card|device)[ _.\-\[]?(\d+)\]?")


def wide_template(name: str) -> str | None:
    """Return a column name with `{gpu}` for its index, or None.

    >>> wide_template("gpu3_power_w"), wide_template("fp16_active")
    ('gpu{gpu}_power_w', None)
    """
    match = None if "{" in name else GPU_IN_NAME.search(name[:_LONGEST])
    return name[: match.start(1)] + "{gpu}" + name[match.end(1) :] if match else None


_DEVICE_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "model": "model,gpu name,gpu type,gpu model,product name,device name",
        "uuid": "uuid,gpu uuid,device uuid",
        "pci": "pci,pci bus id,pci.bus_id,bus id,pci address",
        "hbm_mib": "memory.total,mem total,memory total,total memory,fb total,hbm total,vram total",
    }
)


@cache
def _device_facts() -> Mapping[str, tuple[str, str]]:
    exact = {
        _key(name): (to, "MiB" if to == "hbm_mib" else "") for name, to in DEVICE_VALUES.items()
    }
    return MappingProxyType({**exact, **_index(_DEVICE_SYNONYMS)})


def device_meaning(name: str) -> tuple[str, str] | None:
    """Return (column of `devices`, unit) of a column name, or None.

    >>> device_meaning("modelName"), device_meaning("memory.total [MiB]"), device_meaning("pci.bus_id")
    (('model', ''), ('hbm_mib', 'MiB'), ('pci', ''))
    """
    return _known(name, _device_facts())


# in order of preference
_KEY_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "time": (*TIME_NAMES, "date", "epoch"),
        "node": (*NODE_NAMES, "node name", "host name", "instance", "server", "machine"),
        "gpu": (*GPU_NAMES, "idx", "device", "device id", "minor number", "card", "index"),
        "mig": MIG_NAMES,
        "job": JOB_NAMES,
        "step": STEP_NAMES,
        "metric": ("metric", "metric name", "counter", "field", "name"),
        "value": ("value", "values", "val"),
    }
)


def named(names: Iterable[str], key: str) -> list[str]:
    """Return the columns named like a key (time, node, gpu, ...), best first.

    >>> named(["Index", "GPU-ID", "x"], "gpu")
    ['GPU-ID', 'Index']
    """
    by_key: dict[str, str] = {}
    for name in names:
        by_key.setdefault(_key(name), name)
    return list(
        dict.fromkeys(
            by_key[key_word] for word in _KEY_NAMES[key] if (key_word := _key(word)) in by_key
        )
    )


def is_passed_over(name: str) -> bool:
    """Return whether a column is ignored silently: row numbers, bookkeeping."""
    return name.lower().strip() in IGNORED
