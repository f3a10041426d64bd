"""What people and tools call host counters in tables, besides the names of the catalogue and of LDMS's samplers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from tachograph.counters import Kind
from tachograph.host_counters import HOST_COUNTERS
from tachograph.sources.columns import NODE_VALUES
from tachograph.sources.host_columns import meaning
from tachograph.sources.table.cells import numbers
from tachograph.sources.table.words import bare_name

# with blanks, dots and dashes as _, without unit
_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("cpu_user", "user_cpu", "cpu_usr", "cpu_time_user"), "cpu_user_s"),
        **dict.fromkeys(("cpu_nice", "nice_cpu", "cpu_time_nice"), "cpu_nice_s"),
        **dict.fromkeys(("cpu_system", "cpu_sys", "system_cpu", "cpu_time_system"), "cpu_system_s"),
        **dict.fromkeys(("cpu_iowait", "cpu_wait", "cpu_time_iowait"), "cpu_iowait_s"),
        **dict.fromkeys(("cpu_idle", "idle_cpu", "cpu_time_idle"), "cpu_idle_s"),
        **dict.fromkeys(("load", "load1", "load_1", "load1m", "load_1m", "loadavg", "load_avg"), "load_average"),
        **dict.fromkeys(("memtotal", "mem_total", "memory_total", "total_memory"), "memory_total_mib"),
        **dict.fromkeys(("memavailable", "mem_available", "mem_avail", "memory_available"), "memory_available_mib"),
        **dict.fromkeys(("rx", "rx_bytes", "network_rx", "net_rx", "bytes_recv", "bytes_received"), "network_rx_bytes"),
        **dict.fromkeys(("tx", "tx_bytes", "network_tx", "net_tx", "bytes_sent"), "network_tx_bytes"),
        **dict.fromkeys(("rx_packets", "packets_recv", "packets_received"), "network_rx_packets"),
        **dict.fromkeys(("tx_packets", "packets_sent"), "network_tx_packets"),
        **dict.fromkeys(("lustre_read", "fs_read", "lustre_read_bytes"), "fs_read_bytes"),
        **dict.fromkeys(("lustre_write", "fs_write", "lustre_write_bytes"), "fs_write_bytes"),
    }
)
_FALLS = 0.02  # share of steps at which a counter may fall: restarts of nodes
UNITS: Mapping[str, str] = MappingProxyType({counter.name: counter.unit for counter in HOST_COUNTERS})
_CUMULATIVE = frozenset(counter.name for counter in HOST_COUNTERS if counter.kind is Kind.CUMULATIVE)


def host_word(name: str) -> tuple[str, str] | None:
    """Return the (host counter, unit) of a column name, or None. The unit is "" where the name does not tell it.

    >>> host_word("CPU user [jiffies]"), host_word("MemTotal"), host_word("rx_bytes#hsn0"), host_word("fan")
    (('cpu_user_s', 'jiffy'), ('memory_total_mib', 'KiB'), None, None)
    """
    known = meaning(name)
    if known is not None:
        return None if known.copy else (known.counter, known.unit)
    if column := NODE_VALUES.get(name.lower().strip()):
        return column, ""
    bare, unit = bare_name(name)
    counter = _SYNONYMS.get(re.sub(r"[ .\-]+", "_", bare))
    return (counter, unit) if counter else None


def only_grows(counter: str, values: pl.Series, nodes: pl.Series | None) -> bool:
    """Return whether values may be those of a counter that counts; of one that need not grow, True.

    Percentages of CPU time are called like the times themselves, and fall.
    """
    if counter not in _CUMULATIVE:
        return True
    given = numbers(values.rename("v"), wanted=UNITS[counter]).values.cast(pl.Float64)
    of = nodes if nodes is not None else pl.repeat(None, len(given), dtype=pl.String, eager=True)
    steps = pl.DataFrame([given.alias("v"), of.alias("n")]).select(pl.col("v").diff().over("n")).to_series()
    return int((steps < 0).sum() or 0) <= _FALLS * steps.count()
