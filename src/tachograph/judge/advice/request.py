"""What a job requests: `#SBATCH` lines and the first command of a script, or a few names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tachograph.catalog.units import slurm_duration_s
from tachograph.sources.slurm.fields import BadRowError
from tachograph.sources.slurm.gres import gpus, gres_counts
from tachograph.sources.slurm.records import hbm_tier, read_options

_LONGEST_SCRIPT = 4_000_000  # characters: sbatch refuses larger scripts
_SHORT: Mapping[str, str] = {
    "J": "job-name",
    "p": "partition",
    "t": "time",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "C": "constraint",
    "G": "gpus",
    "a": "array",
    "A": "account",
    "q": "qos",
}
_READ = frozenset(
    {
        *_SHORT.values(),
        "gres",
        "gpus-per-node",
        "gpus-per-task",
        "ntasks-per-node",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "cpus-per-gpu",
        "time-min",
        "tres-per-task",
        "exclusive",
    }
)
_LIMIT = re.compile(r"(?:\d{1,7}-)?\d{1,9}(?::\d{1,7}){0,2}", re.ASCII)
_MEMORY = re.compile(r"(\d{1,12})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_MIB = {"k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_COUNT = re.compile(r"(\d{1,7})([km]?)", re.ASCII | re.IGNORECASE)
_GPUS = re.compile(r"(?:[^\s:,]+:)?\d{1,7}(?:,(?:[^\s:,]+:)?\d{1,7})*", re.ASCII)
_THOUSANDS = {"": 1, "k": 1024, "m": 1024**2}
_HASH = re.compile(
    r"(?<![A-Za-z0-9])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,64}(?![A-Za-z0-9])", re.IGNORECASE
)
_NUMBER = re.compile(r"\d+(?:[-_.:T]\d+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job's request, for the whole job unless noted. None: not given, or not understood.

    gpu_option: the option that requests GPUs, {} for their number; "" where that of the job has no
    place. mem_mib: host memory of a node; memory_option: the option that requests it. timelimit_s:
    None also where unlimited. exclusive: it requests whole nodes. unread: options that could not be
    read, as they were written.
    """

    user: str | None = None
    name: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    exclusive: bool | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    gpu_option: str = "--gpus={}"
    nodes: int | None = None
    ntasks: int | None = None
    cpus: int | None = None
    timelimit_s: float | None = None
    mem_mib: float | None = None
    memory_option: str = "mem"
    constraint: str | None = None
    array: str | None = None
    command: str | None = None
    unread: tuple[str, ...] = ()

    @property
    def hbm_request(self) -> str | None:
        """The memory tier of GPUs that it requests, such as 80g."""
        return hbm_tier(self.constraint)

    @property
    def gpus_per_node(self) -> float | None:
        """GPUs of a node."""
        return self.gpus / (self.nodes or 1) if self.gpus is not None else None


def read_script(script: str, *, name: str | None = None) -> JobRequest:
    """Return a script's request as sbatch reads it: leading `#SBATCH` lines, the last wins.

    `name`: of the job, where the script names none: sbatch takes the name of its file. Of a
    heterogeneous job the first component that requests GPUs counts, else the first.

    >>> made = read_script("#!/bin/bash\\n#SBATCH -N 2 --gpus-per-node=4\\n#SBATCH -t 1-12\\nsrun ./md\\n#SBATCH -G 1")
    >>> made.gpus, made.nodes, made.timelimit_s, made.command
    (8, 2, 129600.0, 'srun ./md')
    """
    components: list[list[tuple[str, str]]] = [[]]
    command = None
    for line in script[:_LONGEST_SCRIPT].splitlines():
        written = line.strip()
        if line.startswith("#SBATCH"):
            words = line.removeprefix("#SBATCH").strip()
            if words.split("#")[0].strip().lower() in {"hetjob", "packjob"}:
                components.append([])
            else:
                components[-1] += read_options(words)
        elif written and not written.startswith("#"):
            command = written
            break
    requests = [_request(options) for options in components]
    chosen = next((one for one in requests if one.gpus), requests[0])
    return replace(chosen, name=chosen.name or name, command=command)


def _request(options: Sequence[tuple[str, str]]) -> JobRequest:
    given: dict[str, str] = {}
    for written, value in options:
        option = _option(written)
        if option is not None:
            given[option] = value
            if option in {"mem", "mem-per-cpu", "mem-per-gpu"}:  # they exclude each other
                for other in {"mem", "mem-per-cpu", "mem-per-gpu"} - {option}:
                    given.pop(other, None)
    unread: list[str] = []

    def number(option: str) -> int | None:
        read = _whole(given[option]) if option in given else None
        if option in given and read is None:
            unread.append(f"--{option}={given[option]}")
        return read

    nodes, ntasks, per_node = number("nodes"), number("ntasks"), number("ntasks-per-node")
    if nodes is not None and ntasks is None and per_node is not None:
        ntasks = nodes * per_node
    tasks = ntasks if ntasks is not None else nodes or 1
    held, kind, gpu_option = _gpus(given, nodes, tasks, unread)
    per_task, per_gpu = number("cpus-per-task"), number("cpus-per-gpu")
    cpus = None
    if per_gpu is not None and held:
        cpus = per_gpu * held
    elif per_task is not None or ntasks is not None:
        cpus = tasks * (per_task or 1)
    limit = time_limit_s(given["time"]) if "time" in given else None
    if "time" in given and limit is None:
        unread.append(f"--time={given['time']}")
    memory, option = _memory(given, nodes or 1, cpus, held, unread)
    return JobRequest(
        name=given.get("job-name") or None,
        partition=given.get("partition") or None,
        account=given.get("account") or None,
        qos=given.get("qos") or None,
        exclusive=given.get("exclusive") == "" or None,
        gpus=held,
        gpu_type=kind,
        gpu_option=gpu_option,
        nodes=nodes,
        ntasks=ntasks,
        cpus=cpus,
        timelimit_s=None if limit is None or math.isinf(limit) else limit,
        mem_mib=memory,
        memory_option=option,
        constraint=given.get("constraint") or None,
        array=given.get("array") or None,
        unread=tuple(unread),
    )


def _option(written: str) -> str | None:
    """The long name of an option, also where it is abbreviated; None for one that is not read."""
    if len(written) == 1:
        return _SHORT.get(written)
    if written in _READ:
        return written
    meant = [name for name in _READ if name.startswith(written)]
    return meant[0] if len(meant) == 1 and len(written) > 2 else None


def _gpus(
    given: Mapping[str, str], nodes: int | None, tasks: int, unread: list[str]
) -> tuple[int | None, str | None, str]:
    """GPUs of the whole job, their type, and the option that requests them (of one node)."""
    for option, times in (
        ("gpus", 1),
        ("gpus-per-node", nodes or 1),
        ("gres", nodes or 1),
        ("gpus-per-task", tasks),
        ("tres-per-task", tasks),
    ):
        if option not in given:
            continue
        written = given[option]
        try:
            if option in {"gres", "tres-per-task"}:
                counts = gres_counts(written.replace("gres/", ""))
            elif not _GPUS.fullmatch(written):
                raise BadRowError("bad_gres")
            else:
                counts = gres_counts(",".join(f"gpu:{part}" for part in written.split(",")))
            count, kind = gpus(counts)
        except BadRowError:
            count, kind = None, None
        if count is None:
            if option.startswith("gpus") or "gpu" in written:
                unread.append(f"--{option}={written}")
            continue
        typed = f"{kind}:" if kind else ""
        prefix = "gpu:" if option == "gres" else ""
        return (
            count * times,
            kind,
            "" if option.endswith("-per-task") else f"--{option}={prefix}{typed}{{}}",
        )
    return None, None, "--gpus={}"


def _memory(
    given: Mapping[str, str], nodes: int, cpus: int | None, held: int | None, unread: list[str]
) -> tuple[float | None, str]:
    """Return host memory per node, and its option; all memory of a node (0) is None."""
    for option, units in (("mem", 1.0), ("mem-per-gpu", held), ("mem-per-cpu", cpus)):
        if option not in given:
            continue
        each = memory_mib(given[option])
        if each is None:
            unread.append(f"--{option}={given[option]}")
        if not each or not units:
            return None, option
        return (each if option == "mem" else each * units / nodes), option
    return None, "mem"


def _whole(written: str) -> int | None:
    """Return a number of nodes or tasks; the minimum of a range."""
    found = _COUNT.fullmatch(written.split("-")[0].strip())
    return int(found[1]) * _THOUSANDS[found[2].lower()] if found else None


def memory_mib(written: str) -> float | None:
    """Return Slurm's memory notation in MiB (default unit: megabytes); None if invalid.

    >>> memory_mib("16G"), memory_mib("500"), memory_mib("1T"), memory_mib("16 GB")
    (16384.0, 500.0, 1048576.0, None)
    """
    found = _MEMORY.fullmatch(written.strip())
    return int(found[1]) * _MIB[found[2].lower()] if found else None


def time_limit_s(written: str) -> float | None:
    """Return a time limit in sbatch's notation in s; infinite if unlimited, None if invalid.

    >>> [time_limit_s(one) for one in ("30", "30:15", "1:30:00", "2-0", "2-1:30", "1-0:0:5")]
    [1800.0, 1815.0, 5400.0, 172800.0, 178200.0, 86405.0]
    >>> time_limit_s("UNLIMITED"), time_limit_s("soon")
    (inf, None)
    """
    if written.strip().upper() in {"UNLIMITED", "INFINITE", "-1"}:
        return math.inf
    limit = written.strip()
    if not _LIMIT.fullmatch(limit):
        return None
    # without a colon the last number is of minutes, behind days of hours
    return slurm_duration_s(limit if ":" in limit else f"{limit}:00")


def name_pattern(name: str) -> str:
    """Return a job name with numbers, dates and hashes replaced, as cli_filter.lua does.

    >>> {name_pattern(f"train_{run}_2025-03-0{run}.a1b2c3{run}") for run in (1, 2)}
    {'train_#.#'}
    >>> name_pattern("md_run"), name_pattern("relax-12")
    ('md_run', 'relax-#')
    """
    return _NUMBER.sub("#", _HASH.sub("#", name)).lower()
