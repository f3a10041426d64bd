"""Options of sbatch for the next run that the job's own record supports, with reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tachograph.catalog.units import capitalized, plural, slurm_duration, text
from tachograph.judge.activity import number
from tachograph.judge.advice.bounds import (
    GIB,
    LEAST_S,
    MEMORY_MARGIN,
    TIME_MARGIN,
    WORTH,
    memory_bound_mib,
    time_bound_s,
)
from tachograph.judge.checks.idle_job import HELD_MIB
from tachograph.judge.finding import Finding
from tachograph.judge.partitions import NOT_RECORDED, Freed, SitePartitions
from tachograph.report.job_end import memory_of_node_mib, out_of_memory


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory per node (MiB) of the user's jobs of this name and size, this one included.

    own: peak of this job's tasks, None: unknown. peaks: the same of the last jobs that completed
    after `LEAST_S` or more, with this one. killed: requests of jobs killed for lack of memory.
    most: largest request of any job of the partition.
    """

    own: float | None = None
    peaks: Sequence[float] = ()
    killed: Sequence[float] = ()
    most: float | None = None


@dataclass(frozen=True, slots=True)
class NextTime:
    """Options to paste with reasons, in order. `note`: advice that is no option to paste."""

    options: tuple[str, ...]
    reasons: tuple[str, ...]
    note: str | None = None

    @property
    def line(self) -> str:
        """Line for a job script; empty if there is only a `note`."""
        return f"#SBATCH {' '.join(self.options)}" if self.options else ""

    @property
    def why(self) -> str:
        """The reasons in one sentence."""
        message = "; ".join([*self.reasons, *([self.note] if self.note else [])])
        return f"{capitalized(message)}."


def next_time(
    row: Mapping[str, Any],
    findings: Sequence[Finding],
    runs_s: Sequence[float] = (),
    memory: HostMemory | None = None,
    site: SitePartitions = NOT_RECORDED,
) -> NextTime | None:
    """Return the request for the next run; None if no change gains anybody anything.

    `runs_s`: run times of the user's jobs of this name on as many GPUs, this one too; of a job
    stopped at its time limit only of those that completed. `memory`: their host memory. `site`:
    what partitions give. Fewer GPUs, or less memory, of a node are proposed where GPUs are given
    singly: elsewhere they free nothing.

    >>> from tachograph.catalog.config import SlurmOptions
    >>> unused = {"gpus_unused": 7.0, "gpus_seen": 8.0}
    >>> job = {"gpus": 8, "nodes": 1, "elapsed_s": 42732.0, "timelimit_s": 90000.0}
    >>> job |= {"state": "COMPLETED", "partition": "gpu"}
    >>> site = SitePartitions(SlurmOptions(shared=("gpu",)))
    >>> finding = Finding("one_gpu_of_many", "problem", "", "", evidence=unused)
    >>> made = next_time(job, [finding], site=site)
    >>> made.line
    '#SBATCH --gpus=1 --time=15:00:00'
    >>> made.why
    '1 of 8 GPUs worked, this frees 7 GPUs for others; it ran for 11 h 52 min, 25 % on top.'
    >>> next_time(job, [], [42732.0, 48000.0]).why
    'The longest of 2 jobs of this name and size ran for 13 h 20 min, 25 % on top.'
    >>> next_time(job, [], [42732.0, 90000.0]) is None
    True
    >>> job |= {"nodes": 2, "mem_requested_mib": 2 * 245760.0}
    >>> made = next_time(job, [], [90000.0], HostMemory(9000.0, [9000.0]), site)
    >>> made.line
    '#SBATCH --mem=14G'
    >>> made.why
    'Its tasks held at most 8.8 GiB of host memory on a node when polled, 50 % on top.'
    """
    found = {finding.code: finding for finding in findings if finding.verdict == "yes"}
    used = _gpus_used(row, found)
    change = None if used is None else site.freed(_as_needed(row, memory), used)
    target = row
    if change is not None and change.partition is not None:
        target = {**row, "partition": change.partition}
        if _exceeds(target, memory, runs_s, site):
            change, target = None, row
    divided = change and number(row, "nodes") != 1  # how many tasks a node will have is not known
    singly = site.whole_nodes(row) is False or (change is not None and change.partition is not None)
    more_time, how_long = _after_limit(row, runs_s, found, site.most_time_s(target))
    chosen = [
        *(_gpus(row, used, change) if used is not None and change is not None else []),
        *_time(row, runs_s),
        *more_time,
        *(_memory(target, memory, site, singly=singly) if memory and not divided else []),
    ]
    if change is not None and not any(option.startswith("--mem=") for option, _ in chosen):
        chosen += _kept_memory(row, memory, site, change)
    note = _without_gpus(row, found) or how_long
    if note is None and used and change is None and site.whole_nodes(row) is None:
        note = (
            f"{used} of {plural(row['gpus'], 'GPU')} worked: request fewer if the partition gives "
            "GPUs singly, which is not recorded"
        )
    if note is None and "low_memory" in found:
        peak = text(number(row, "hbm_peak_fraction"), "fraction")
        note = f"leave out the request for {row.get('hbm_request')}: {peak} of the memory was used"
    if not chosen and note is None:
        return None
    return NextTime(tuple(option for option, _ in chosen), tuple(why for _, why in chosen), note)


def _without_gpus(row: Mapping[str, Any], found: Mapping[str, Finding]) -> str | None:
    """Suggest no GPU if all were measured and none worked or held a loaded program."""
    idle, held = found.get("idle_job"), number(row, "gpus")
    used = number(row, "hbm_used_mib_max")
    if (
        idle is None
        or held is None
        or idle.evidence.get("gpus_seen") != held
        or used is None
        or used >= HELD_MIB
    ):
        return None
    worked = "the GPU did not work" if held == 1 else f"no GPU of {held:.0f} worked"
    return f"{worked}: request none, if the program is not meant to use any"


def _gpus_used(row: Mapping[str, Any], found: Mapping[str, Finding]) -> int | None:
    """Return how many GPUs worked, if all were measured and idle ones held nothing."""
    some = found.get("one_gpu_of_many") or found.get("gpus_never_used")
    held = number(row, "gpus")
    if (
        some is None
        or held is None
        or some.evidence.get("gpus_seen") != held
        or some.evidence.get("gpus_waiting")
    ):
        return None
    return int(held - some.evidence["gpus_unused"])


def _as_needed(row: Mapping[str, Any], memory: HostMemory | None) -> Mapping[str, Any]:
    """Return the job with the memory that it needs, where that is known: whole nodes have more."""
    nodes = number(row, "nodes")
    if memory is None or not memory.peaks or not nodes:
        return row
    needed_mib = memory_bound_mib(memory.peaks) * nodes
    return {**row, "mem_requested_mib": min(needed_mib, row.get("mem_requested_mib") or math.inf)}


def _kept_memory(
    row: Mapping[str, Any], memory: HostMemory | None, site: SitePartitions, change: Freed
) -> list[tuple[str, str]]:
    """Request what a node needs, or had, where fewer GPUs are given less than that by default."""
    default_mib = site.default_memory_mib(change.partition or row.get("partition"), change.gpus)
    own = None if memory is None else memory.own
    needed_mib = memory_of_node_mib(row) if own is None else memory_bound_mib([own])
    if needed_mib is None or needed_mib <= default_mib or number(row, "nodes") != 1:
        return []
    reason = f"without it {text(default_mib, 'MiB')} of host memory are given to so few GPUs"
    return [(f"--mem={math.ceil(needed_mib / GIB)}G", reason)]


def _exceeds(
    target: Mapping[str, Any],
    memory: HostMemory | None,
    runs_s: Sequence[float],
    site: SitePartitions,
) -> bool:
    """Whether the job needs more memory of a node, or more time, than its partition gives."""
    own = None if memory is None else memory.own
    needed_mib = memory_of_node_mib(target) if own is None else memory_bound_mib([own])
    times_s = [*runs_s, number(target, "elapsed_s") or 0.0]
    return (needed_mib or 0.0) > site.most_memory_mib(target) or time_bound_s(
        times_s
    ) > site.most_time_s(target)


def _gpus(row: Mapping[str, Any], used: int, change: Freed) -> list[tuple[str, str]]:
    """Suggest what frees GPUs for others, and say how many."""
    reason = f"{used} of {plural(row['gpus'], 'GPU')} worked, this {change.gain}"
    return [(" ".join(change.options), reason)]


def _time(row: Mapping[str, Any], runs_s: Sequence[float]) -> list[tuple[str, str]]:
    """The longest run time and a margin, of a job that completed with much of its limit left."""
    elapsed, limit = number(row, "elapsed_s"), number(row, "timelimit_s")
    if row.get("state") != "COMPLETED" or elapsed is None or limit is None:
        return []
    longest = max([elapsed, *runs_s])
    wanted = time_bound_s(runs_s if elapsed in runs_s else [elapsed, *runs_s])
    if wanted > WORTH * limit:
        return []
    ran = f"it ran for {text(elapsed, 's')}"
    if len(runs_s) > 1:
        ran = (
            f"the longest of {len(runs_s)} jobs of this name and size ran for {text(longest, 's')}"
        )
    if longest * (1 + TIME_MARGIN) < LEAST_S:
        margin = f"{text(LEAST_S, 's')} at least"
    elif wanted > time_bound_s([longest]):
        margin = f"{text(wanted / longest - 1, 'fraction')} on top: run times differ"
    else:
        margin = f"{text(TIME_MARGIN, 'fraction')} on top"
    return [(f"--time={slurm_duration(wanted)}", f"{ran}, {margin}")]


_STOPPED = ("job_hang", "busy_waiting")  # a longer time limit gains nothing
_ALIKE = 4.0  # a time limit of so many times the old one is that of other work


def _after_limit(
    row: Mapping[str, Any],
    runs_s: Sequence[float],
    found: Mapping[str, Finding],
    most_s: float,
) -> tuple[list[tuple[str, str]], str | None]:
    """For a job stopped at its time limit: a longer limit with its reason, or what to do.

    `most_s`: what the partition allows.

    No counter records how far a program has come, so jobs that completed are the only evidence.
    """
    limit = number(row, "timelimit_s")
    if row.get("state") != "TIMEOUT" or limit is None:
        return [], None
    if any(code in found for code in _STOPPED):
        return [], "the GPUs did no more work at the end: find out why before requesting more time"
    longest = max(runs_s, default=0.0)
    if longest <= limit:
        return [], (
            "how much more time it needs is not known, as no longer job of its name and size "
            "completed: request more time, or write checkpoints and continue from them"
        )
    ran = f"a job of this name and size that completed ran for {text(longest, 's')}"
    wanted = time_bound_s(runs_s)
    if wanted > most_s:
        return [], (
            f"{ran}, and the partition allows at most {text(most_s, 's')}: write checkpoints and "
            "continue from them"
        )
    if wanted > _ALIKE * limit:
        return [], f"{ran}: request more time, or write checkpoints and continue from them"
    margin = text(wanted / longest - 1, "fraction")
    return [(f"--time={slurm_duration(wanted)}", f"{ran}, {margin} on top")], None


def may_change_memory(row: Mapping[str, Any], own: float | None) -> bool:
    """Return whether to request other host memory: it was too small, or mostly unused.

    `own`: what the tasks of the job held on a node at most, in MiB.

    >>> may_change_memory({"nodes": 1, "mem_requested_mib": 245760.0, "state": "COMPLETED"}, 9000.0)
    True
    """
    requested = memory_of_node_mib(row)
    if requested is None or out_of_memory(row, own):
        return requested is not None
    return (
        row.get("state") == "COMPLETED"
        and own is not None
        and memory_bound_mib([own]) <= WORTH * requested
    )


def _memory(
    row: Mapping[str, Any], memory: HostMemory, site: SitePartitions, *, singly: bool
) -> list[tuple[str, str]]:
    """Per node: the largest peak plus a margin; for a job killed by memory, more than it had.

    Less only where others get it: `singly`, which is where they share its nodes.
    """
    requested, nodes = memory_of_node_mib(row), number(row, "nodes")
    if requested is None or not may_change_memory(row, memory.own):
        return []
    of_memory = out_of_memory(row, memory.own)
    peak = max(memory.peaks, default=0.0)
    killed = max([*memory.killed, *([requested] if of_memory else [])], default=0.0)
    wanted = memory_bound_mib(memory.peaks if peak > killed else [max(peak, killed)])
    of_node = "" if nodes == 1 else " on a node"
    if of_memory:
        reason = f"{text(killed, 'MiB')} of host memory{of_node} did not suffice"
    elif (
        singly and row.get("state") == "COMPLETED" and peak > killed and wanted <= WORTH * requested
    ):
        count = len(memory.peaks)
        whose = f"the tasks of {count} jobs of this name and size" if count > 1 else "its tasks"
        reason = f"{whose} held at most {text(peak, 'MiB')} of host memory{of_node} when polled"
    else:
        return []
    differ = wanted > memory_bound_mib([max(peak, killed)])
    margin = wanted / max(peak, killed) - 1 if differ else MEMORY_MARGIN
    reason += f", {text(margin, 'fraction')} on top"
    if differ:
        reason += ": peaks differ"
    if wanted > site.most_memory_mib(row):
        return []  # sbatch would refuse it
    if memory.most is not None and wanted > memory.most:
        reason = (
            f"{reason} (no job of the partition requested more than "
            f"{text(memory.most, 'MiB')} of a node)"
        )
    return [(f"--mem={wanted / GIB:.0f}G", reason)]
