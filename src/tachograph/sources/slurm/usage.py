"""Host resources of a job as accounted: CPU time, memory requested, memory of its largest task.

CPU time is `TotalCPU`, which a step reports as its processes end. What of a step was killed is
missing in it, so `TRESUsageInTot` counts, too, which is polled while the step runs; both are lower
bounds, and the larger one is used. https://slurm.schedmd.com/sacct.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tachograph.catalog.units import slurm_duration_s
from tachograph.sources.slurm.fields import (
    BadRowError,
    absent,
    json_number,
    json_objects,
    json_value,
    whole,
)

_SIZE = re.compile(
    r"(\d{1,20}(?:\.\d{1,12})?)\s?(?:([KMGTPE])(?:i?B)?)?([nc]?)", re.ASCII | re.IGNORECASE
)
_MIB: Final[Mapping[str, float]] = {
    "k": 2.0**-10,
    "m": 1.0,
    "g": 2.0**10,
    "t": 2.0**20,
    "p": 2.0**30,
    "e": 2.0**40,
}
_BYTE = 2.0**-20  # MiB
# MEM_PER_CPU of Slurm with sizes of 32 bits: later versions print it as a part of the MiB.
_PER_CPU_FLAG = 2.0**31
_LARGEST_MIB = 2.0**42
_NO_VALUE = (2.0**32 - 2, 2.0**32 - 1)  # NO_VAL and INFINITE of 32 bits; those of 64 are too large
_LARGEST_J = 1e15  # a day of ten gigawatts
# of other states steps were killed: their processes did not hand on what they had used
_ENDED_BY_THEMSELVES = frozenset({"COMPLETED", "FAILED", None})


@dataclass(frozen=True, slots=True)
class UnreadValue:
    """A value that could not be read: it is left out, its row is kept."""

    reason: str
    column: str
    text: str


@dataclass(frozen=True, slots=True)
class HostUsage:
    """Usage of a job or step. None: not accounted.

    counted_s: CPU time, user and system, as its processes ended. polled_s: the same as polled while
    it ran. gpu_util_max, gpu_mem_mib_max: highest polled of a task, over its GPUs (fraction, MiB).
    energy_j: of its nodes.
    """

    counted_s: float | None = None
    polled_s: float | None = None
    max_rss_mib: float | None = None
    gpu_util_max: float | None = None
    gpu_mem_mib_max: float | None = None
    energy_j: float | None = None

    def cpu_time_s(self, state: str | None) -> float | None:
        """Return the CPU time; None: not accounted, or the processes died before a poll.

        >>> HostUsage(0.02, 0.47).cpu_time_s("OUT_OF_MEMORY"), HostUsage(0.02).cpu_time_s("TIMEOUT")
        (0.47, None)
        """
        if self.polled_s is not None:
            return max(self.polled_s, self.counted_s or 0.0)
        return self.counted_s if state in _ENDED_BY_THEMSELVES else None


@dataclass(frozen=True, slots=True)
class EndedUsage:
    """Usage of a job or a step, and the state in which it ended."""

    usage: HostUsage
    state: str | None

    @property
    def is_lost(self) -> bool:
        """Whether it was killed before its CPU time was polled."""
        return self.usage.polled_s is None and self.state not in _ENDED_BY_THEMSELVES


def usage_of_run(job: EndedUsage, steps: Sequence[EndedUsage]) -> tuple[float | None, float | None]:
    """Return CPU time (s) and memory of the largest task (MiB) of a run that has ended.

    The CPU time is that of its record or the sum of its steps, whichever is larger; unknown where
    that of a step was lost. 0 is no measurement: every process takes some time.

    >>> steps = [EndedUsage(HostUsage(4.0, 3.0, 10.0), "COMPLETED"), EndedUsage(HostUsage(0.5, None, 7.0), "COMPLETED")]
    >>> usage_of_run(EndedUsage(HostUsage(0.0), "COMPLETED"), steps)
    (4.5, 10.0)
    >>> usage_of_run(EndedUsage(HostUsage(4.0), "FAILED"), [EndedUsage(HostUsage(4.0), "CANCELLED")])
    (None, None)
    """
    largest = max((step.usage.max_rss_mib or 0.0 for step in (job, *steps)), default=0.0)
    if any(step.is_lost for step in steps):
        return None, largest or None
    of_steps = [step.usage.cpu_time_s(step.state) for step in steps]
    times = [seconds for seconds in of_steps if seconds is not None]
    total = sum(times) if len(times) == len(of_steps) else 0.0
    return _whole_ms(max(total, job.usage.cpu_time_s(job.state) or 0.0)) or None, largest or None


def _whole_ms(seconds: float) -> float:
    """Round to ms, the precision of sacct's text, so that text and JSON agree."""
    return math.floor(seconds * 1e3 + 1e-6) / 1e3


def text_usage(fields: Mapping[str, str]) -> tuple[HostUsage, tuple[UnreadValue, ...]]:
    """Return the usage of a sacct row ({field: text}), and unreadable fields."""
    get, unread = fields.get, list[UnreadValue]()
    counted = _read(_cpu_s, get("totalcpu", ""), "cpu_time_s", unread)
    polled = _read(_cpu_s, tres_value(get("tresusageintot", ""), "cpu"), "cpu_time_s", unread)
    largest = [
        _read(_bytes_mib, written, "max_rss_mib", unread)
        for written in (get("maxrss", ""), tres_value(get("tresusageinmax", ""), "mem"))
    ]
    rss_mib = max((size for size in largest if size), default=None)
    highest = get("tresusageinmax", "") or get("tresusageinave", "")
    gpu_mem_mib = _read(
        _bytes_mib, tres_value(highest, "gres/gpumem"), "task_gpu_mem_mib_max", unread
    )
    percent = _read(whole, tres_value(highest, "gres/gpuutil"), "task_gpu_util_max", unread)
    energy = get("consumedenergyraw") or get("consumedenergy")
    energy_j = _read(
        _joules, energy or tres_value(get("alloctres", ""), "energy"), "consumed_energy_j", unread
    )
    usage = HostUsage(counted, polled, rss_mib, *_gpu_use(percent, gpu_mem_mib), energy_j)
    return usage, tuple(unread)


def _gpu_use(percent: float | None, mem_mib: float | None) -> tuple[float | None, float | None]:
    """Utilisation as a fraction, and memory; without memory Slurm saw no process on a GPU.

    That is no measurement: of MIG slices it sees none.
    """
    if not mem_mib:
        return None, None
    return None if percent is None else percent / 100, mem_mib


def gpu_use_of_run(
    usages: Iterable[HostUsage], gpus: object
) -> tuple[float | None, float | None, tuple[UnreadValue, ...]]:
    """Return utilisation and memory of the task with the most, and a value that cannot be.

    gpus: whole GPUs of the run, where known; Slurm counts a busy GPU as 1.
    """
    all_usages = list(usages)
    busy = max(
        (use.gpu_util_max for use in all_usages if use.gpu_util_max is not None), default=None
    )
    mem_mib = max((use.gpu_mem_mib_max or 0.0 for use in all_usages), default=0.0) or None
    if busy is not None and isinstance(gpus, int) and busy > max(gpus, 1):
        text = f"{100 * busy:g}"
        return None, mem_mib, (UnreadValue("out_of_range", "task_gpu_util_max", text),)
    return busy, mem_mib, ()


def text_request(
    fields: Mapping[str, str], *, nodes: int | None, cpus: int | None
) -> tuple[float | None, tuple[UnreadValue, ...]]:
    """Return a sacct row's requested memory for the whole job (MiB), and unreadable fields.

    `nodes`, `cpus`: of the request, for amounts per node and per CPU.
    """
    get, unread = fields.get, list[UnreadValue]()

    def of_job(written: str) -> float | None:
        return requested_mib(written, nodes=nodes, cpus=cpus)

    requested = _read(of_job, tres_value(get("reqtres", ""), "mem"), "mem_requested_mib", unread)
    if requested is None:
        requested = _read(of_job, get("reqmem", ""), "mem_requested_mib", unread)
    allocated = _read(of_job, tres_value(get("alloctres", ""), "mem"), "mem_requested_mib", unread)
    return requested or allocated or None, tuple(unread)


def _read(
    parse: Callable[[str], float | None], written: str, column: str, unread: list[UnreadValue]
) -> float | None:
    try:
        return parse(written)
    except BadRowError as problem:
        unread.append(UnreadValue(problem.reason, column, written))
        return None


def _joules(written: str) -> float | None:
    """Energy as written, or with a unit of thousands; None: 0 and Slurm's words for no value.

    >>> _joules("1.50K"), _joules("0"), _joules("18446744073709551614")
    (1500.0, None, None)
    """
    if absent(written):
        return None
    number, unit, per = _amount(written)
    joules = number * 1000.0 ** ("kmgtpe".index(unit) + 1 if unit else 0)
    if per:
        raise BadRowError("bad_size")
    return joules if 0 < joules < _LARGEST_J and joules not in _NO_VALUE else None


def _cpu_s(written: str) -> float | None:
    text = written.strip()
    if absent(text):
        return None
    seconds = slurm_duration_s(text) if len(text) < 40 and ":" in text else None
    if seconds is None:
        raise BadRowError("bad_duration")
    return seconds


@lru_cache(maxsize=8192)
def _amount(written: str) -> tuple[float, str, str]:
    """Number, unit (k, m, ... or none) and divisor (n: node, c: CPU, or none). Errors:
    BadRowError.
    """
    match = _SIZE.fullmatch(written.strip())
    if not match:
        raise BadRowError("bad_size")
    return float(match[1]), (match[2] or "").lower(), match[3].lower()


def _bytes_mib(written: str) -> float | None:
    """Size in MiB, from bytes if there is no unit; None: none, or 0."""
    if absent(written):
        return None
    number, unit, _ = _amount(written)
    return number * (_MIB[unit] if unit else _BYTE) or None


def requested_mib(written: str, *, nodes: int | None, cpus: int | None) -> float | None:
    """Return a job's requested memory in MiB; None if absent or of unknown scope.

    `4Gn` is per node, `4Gc` per CPU, `4G` of the job; 0 all that the nodes have.

    >>> requested_mib("4Gn", nodes=2, cpus=64), requested_mib("4000Mc", nodes=2, cpus=64)
    (8192.0, 256000.0)
    >>> requested_mib("62.50G", nodes=2, cpus=64), requested_mib("2147487648Mn", nodes=1, cpus=16)
    (64000.0, 64000.0)

    Errors: BadRowError `bad_size` for what is no amount of memory.
    """
    if absent(written):
        return None
    number, unit, per = _amount(written)
    size = number * _MIB[unit or "m"]
    if size >= _PER_CPU_FLAG and size == int(size) and unit in {"", "m"}:
        size, per = size - _PER_CPU_FLAG, "c"
    if size >= _LARGEST_MIB:
        raise BadRowError("bad_size")
    if not per:
        return size
    count = nodes if per == "n" else cpus
    return None if count is None else size * count


def tres_value(written: str, name: str) -> str:
    """Return the value of a name in a TRES list, or "".

    >>> tres_value("cpu=00:00:03,energy=0,mem=206472K", "mem")
    '206472K'
    """
    parts = (part.partition("=") for part in written.split(","))
    return next((value.strip() for key, _, value in parts if key.strip().lower() == name), "")


def json_usage(record: Mapping[str, object]) -> HostUsage:
    """Return usage of a job or step in JSON: `time.total`, and a step's `tres.requested`.

    >>> rows = {"max": [{"type": "mem", "count": 2097152}], "total": [{"type": "cpu", "count": 670}]}
    >>> json_usage({"time": {"total": {"seconds": 1, "microseconds": 500000}}, "tres": {"requested": rows}})
    HostUsage(counted_s=1.5, polled_s=0.67, max_rss_mib=2.0, gpu_util_max=None, gpu_mem_mib_max=None, energy_j=None)
    """
    seconds, micro = (
        json_number(record, "time", "total", unit) for unit in ("seconds", "microseconds")
    )
    polled = _json_count(json_value(record, "tres", "requested", "total"), "cpu")
    highest = json_value(record, "tres", "requested", "max")
    largest = _json_count(highest, "mem")
    gpu_bytes = _json_count(highest, "gres", "gpumem")
    gpu_mem_mib = None if gpu_bytes is None else gpu_bytes * _BYTE
    energy = _json_count(json_value(record, "tres", "allocated"), "energy")
    return HostUsage(
        None if seconds is None else seconds + (micro or 0) / 1e6,
        None if polled is None else polled / 1e3,
        largest * _BYTE if largest else None,
        *_gpu_use(_json_count(highest, "gres", "gpuutil"), gpu_mem_mib),
        None if energy is None else _joules(str(energy)),
    )


def json_request(job: Mapping[str, object], *, nodes: int | None, cpus: int | None) -> float | None:
    """Return a job's requested memory from JSON in MiB: TRES, per node or CPU, allocated."""
    requested = _json_count(json_value(job, "tres", "requested"), "mem")
    if requested is None:
        per_node, per_cpu = (
            json_number(job, "required", f"memory_per_{what}") for what in ("node", "cpu")
        )
        of_each = ((per_node, nodes), (per_cpu, cpus))
        requested = next((size * count for size, count in of_each if size and count), None)
    amount = requested or _json_count(json_value(job, "tres", "allocated"), "mem")
    return float(amount) if amount else None


def _json_count(rows: object, kind: str, name: str = "") -> int | None:
    counts: Iterable[int | None] = (
        json_number(row, "count")
        for row in json_objects(rows)
        if row.get("type") == kind and (not name or row.get("name") == name)
    )
    return next((count for count in counts if count is not None and count >= 0), None)
