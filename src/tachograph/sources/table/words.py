"""What people and tools call counters, keys and the columns of job lists, besides the names of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tachograph.counters import BY_NAME
from tachograph.sources.columns import GPU_NAMES, NODE_NAMES, TIME_NAMES, counter_names
from tachograph.sources.table.cells import UNITS

# names that tools and people use, lower case, without unit; {counter} of the catalogue
_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("util", "utilization", "utilisation", "gpu util", "gpu utilization", "usage"), "gpu_util"),
        **dict.fromkeys(("utilization.gpu", "gpu_usage", "gpu usage", "gpu load", "load"), "gpu_util"),
        **dict.fromkeys(("utilization.memory", "mem_util", "memory utilization"), "mem_copy_util"),
        **dict.fromkeys(("memory.used", "mem_used", "memory_used", "memory used"), "hbm_used_mib"),
        **dict.fromkeys(("mem", "memory", "fb_used"), "hbm_used_mib"),
        **dict.fromkeys(("memory.free", "mem_free", "memory_free", "memory free"), "hbm_free_mib"),
        **dict.fromkeys(("power.draw", "power.draw.instant", "power.draw.average", "power", "watts"), "power_w"),
        **dict.fromkeys(("power_draw", "power draw", "power usage"), "power_w"),
        **dict.fromkeys(("temperature.gpu", "temp", "temperature", "gpu temp", "gpu temperature"), "gpu_temp_c"),
        **dict.fromkeys(("temperature.memory", "mem_temp", "memory temp"), "mem_temp_c"),
        **dict.fromkeys(("clocks.sm", "clocks.current.sm", "sm_clock", "sm clock"), "sm_clock_mhz"),
        **dict.fromkeys(("clocks.mem", "clocks.current.memory", "mem_clock", "memory clock"), "mem_clock_mhz"),
        **dict.fromkeys(("clocks_throttle_reasons.active", "clocks_event_reasons.active"), "throttle_reasons"),
        **dict.fromkeys(("energy", "total_energy_consumption"), "energy_j"),
    }
)  # fmt: skip
TIME_WORDS = (*TIME_NAMES, "date", "when", "epoch", "zeit", "zeitstempel", "uhrzeit")
NODE_WORDS = (
    *NODE_NAMES,
    "nodename",
    "node_name",
    "node name",
    "host name",
    "instance",
    "server",
    "rechner",
    "knoten",
)
GPU_WORDS = (*GPU_NAMES, "idx", "gpu id", "gpu index", "device", "device_id", "minor_number", "index")
GPU_IN_NAME = re.compile(r"(?i)gpu[ _.\-\[]?(\d+)\]?")
_UNIT_BEHIND = re.compile(r"^(.*?)[ _]*[\[(]([^\])]+)[\])]$")
_LONGEST = 200  # characters of a name that may mean something; the pattern's time grows with their square
_UNIT_ENDS = {
    "_pct": "percent", "_percent": "percent", "_mib": "MiB", "_gib": "GiB", "_gb": "GB", "_mb": "MB", "_mw": "mW",
    "_w": "W", "_mhz": "MHz", "_c": "C", "_bytes": "B", "_kib": "KiB", "_ms": "ms", "_jiffies": "jiffy",
}  # fmt: skip
JOB_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("jobid", "job id", "job_id", "jobidraw"), "job_id"),
        **dict.fromkeys(("jobname", "job name", "name"), "name"),
        **dict.fromkeys(("user", "username", "user name"), "user"),
        **dict.fromkeys(("account", "project"), "account"),
        **dict.fromkeys(("partition", "queue"), "partition"),
        **dict.fromkeys(("submit", "submit time", "submit_time"), "submit"),
        **dict.fromkeys(("start", "start time", "start_time"), "start"),
        **dict.fromkeys(("end", "end time", "end_time"), "end"),
        **dict.fromkeys(("elapsed", "elapsed secs", "elapsed_s"), "elapsed_s"),
        **dict.fromkeys(("nodelist", "node list", "node_list", "nodes list"), "node_list"),
        **dict.fromkeys(("no. of nodes allocated", "nnodes", "nodes"), "nodes"),
        **dict.fromkeys(("gpus", "ngpus", "no. of gpus"), "gpus"),
        "qos": "qos", "state": "state", "cluster": "cluster",
    }
)  # fmt: skip


def meaning(name: str) -> tuple[str, str] | None:
    """Return (counter, unit) of a column name, or None. The unit is "" where neither name nor producer tells it.

    >>> meaning("utilization.gpu [%]"), meaning("DCGM_FI_DEV_GPU_UTIL"), meaning("fan")
    (('gpu_util', 'percent'), ('gpu_util', 'percent'), None)
    """
    known = counter_names().get(name.lower().strip())
    if known:
        return known
    bare, unit = bare_name(name)
    if counter := _SYNONYMS.get(bare) or (bare if bare in BY_NAME else None):
        return counter, unit
    if found := counter_names().get(bare):
        return found[0], unit or found[1]
    return None


def bare_name(name: str) -> tuple[str, str]:
    """A name in lower case without the unit in or behind it, and that unit ("": none).

    >>> bare_name("utilization.gpu [%]"), bare_name("mem_used_mib")
    (('utilization.gpu', 'percent'), ('mem_used', 'MiB'))
    """
    text = name.strip()
    if len(text) <= _LONGEST and (found := _UNIT_BEHIND.match(text)):
        return found[1].lower().strip(), UNITS.get(found[2].strip(), "")
    lower = text.lower()
    for end, unit in _UNIT_ENDS.items():
        if lower.endswith(end) and lower not in _SYNONYMS:
            return lower.removesuffix(end), unit
    return lower, ""


def wide_meaning(template: str) -> tuple[str, str] | None:
    """Return the (counter, unit) of a column name in which `{gpu}` stands for the index, or None.

    >>> wide_meaning("gpu{gpu}_power_w")
    ('power_w', 'W')
    """
    rest = re.sub(r"(?i)gpu[ _.\-\[]?\{gpu\}\]?", "", template).strip(" _.-:/")
    return meaning(rest) or meaning(f"gpu_{rest}")
