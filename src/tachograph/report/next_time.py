"""Options of sbatch for the next run that the job's own record supports, with reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tachograph.catalog.units import capitalized, plural, slurm_duration, text
from tachograph.judge.activity import number
from tachograph.judge.bounds import (
    GIB,
    LEAST_S,
    MEMORY_MARGIN,
    TIME_MARGIN,
    WORTH,
    HostMemory,
    memory_bound_mib,
    time_bound_s,
)
from tachograph.judge.checks.gpus_never_used import gpus_needed
from tachograph.judge.finding import Finding
from tachograph.judge.partitions import NOT_RECORDED, Freed, JobNeeds, SitePartitions, memory_option
from tachograph.report.job_end import memory_of_node_mib, out_of_memory
from tachograph.sources.job_ids import is_slurm_job

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow, StepSummaryRow


@dataclass(frozen=True, slots=True)
class NextTime:
    """Options to paste with reasons, in order. `note`: advice that is no option to paste.

    `of_slurm`: whether the job has an id as Slurm's; to others the options are shown as words.
    """

    options: tuple[str, ...]
    reasons: tuple[str, ...]
    note: str | None = None
    of_slurm: bool = True

    @property
    def line(self) -> str:
        """Line for a job script; empty if there is only a `note`."""
        options = " ".join(self.options)
        if options and not self.of_slurm:
            words = (option.removeprefix("--").replace("=", ": ") for option in options.split())
            return ", ".join(words)
        return f"#SBATCH {options}" if options else ""

    @property
    def why(self) -> str:
        """The reasons in one sentence."""
        message = "; ".join([*self.reasons, *([self.note] if self.note else [])])
        return f"{capitalized(message)}."


def next_time(
    row: JobSummaryRow,
    findings: Sequence[Finding],
    runs_s: Sequence[float] = (),
    memory: HostMemory | None = None,
    site: SitePartitions = NOT_RECORDED,
    steps: Sequence[StepSummaryRow] = (),
) -> NextTime | None:
    """Return the request for the next run; None if no change gains anybody anything.

    `runs_s`: run times of the user's jobs of this name on as many GPUs, this one too; of a job
    stopped at its time limit only of those that completed. `memory`: their host memory. `site`:
    what partitions give. `steps`: its rows of step_summaries. Fewer GPUs, or less memory, of a node
    are proposed where GPUs are given singly: elsewhere they free nothing.

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
    '1 of 8 GPUs used: this request frees 7 GPUs for others; it ran for 11 h 52 min, 25 % on top.'
    >>> next_time({**job, "job_id": "7.pbs"}, [finding], site=site).line
    'gpus: 1, time: 15:00:00'
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
    memory = memory or HostMemory()
    evidence = {code: finding.evidence for code, finding in found.items()}
    held = row.get("gpus") or 0
    used = gpus_needed(evidence, row.get("gpus"))
    change = site.freed(JobNeeds(used, runs_s, memory).beside(row))
    target = row
    if change is not None and change.partition is not None:
        target = {**row, "partition": change.partition}
    divided = change and number(row, "nodes") != 1  # how many tasks a node will have is not known
    more_time, how_long = _after_limit(row, runs_s, found, site.most_time_s(target))
    of_memory = out_of_memory(row, memory.own, steps)
    chosen = _gpus(row, used, change) if used and change else []
    if change is not None and change.time_s is not None:
        chosen += _change_time(row, runs_s, change)
    else:
        chosen += [*_time(row, runs_s), *more_time]
    no_memory = None
    if change is not None and change.memory_mib is not None:
        chosen += _change_memory(row, memory, change)
    elif of_memory and not divided:
        more_memory, no_memory = _more_memory(row, memory, site)
        chosen += more_memory
    elif not divided and site.whole_nodes(row) is False:
        chosen += _less_memory(row, memory)
    note = _without_gpus(row, used) or how_long or no_memory
    if note is None and used and change is None and site.whole_nodes(row) is None:
        note = (
            f"{used} of {plural(held, 'GPU')} used: request fewer if the partition gives "
            "GPUs singly, which is not recorded"
        )
    # other reasons for no change: nodes of unlike numbers of GPUs, or shares that are not recorded
    known, nodes = site.of(row), row.get("nodes")
    divides = known is not None and known.node is not None and nodes and held % nodes == 0
    if note is None and used and change is None and divides and site.whole_nodes(row) is False:
        note = (
            f"{used} of {plural(held, 'GPU')} used, but the CPUs or the memory that it "
            "requests leave no further one to others: request fewer of these, too"
        )
    if note is None and chosen and used and change is None and site.whole_nodes(row):
        note = (
            f"fewer GPUs than {row['gpus']} are not proposed, though {used} "
            f"{'was' if used == 1 else 'were'} used: its nodes are given whole, so fewer free "
            "nothing for others"
        )
    if note is None and "low_memory" in found:
        peak = text(number(row, "hbm_peak_fraction"), "fraction")
        note = f"leave out the request for {row.get('hbm_request')}: {peak} of the memory was used"
    if not chosen and note is None:
        return None
    options, reasons = (
        tuple(texts) for texts in (zip(*chosen, strict=True) if chosen else ((), ()))
    )
    of_slurm = is_slurm_job(str(row.get("job_id") or "1"))
    return NextTime(options, reasons, note, of_slurm)


def _without_gpus(row: JobSummaryRow, used: int | None) -> str | None:
    """Suggest no GPU if all were measured and none worked or held a loaded program."""
    if used != 0:
        return None
    unused = "the GPU was not used" if row["gpus"] == 1 else f"none of {row['gpus']} GPUs was used"
    return f"{unused}: request none if the program needs none"


def _gpus(row: JobSummaryRow, used: int, change: Freed) -> list[tuple[str, str]]:
    """Suggest what frees GPUs for others, and say how many."""
    reason = f"{used} of {plural(row['gpus'] or 0, 'GPU')} used: this request {change.gain}"
    return [(" ".join(change.options), reason)]


def _change_time(
    row: JobSummaryRow, runs_s: Sequence[float], change: Freed
) -> list[tuple[str, str]]:
    """A time limit that the other partition allows, where it does not allow that of the job."""
    longest_s = max([number(row, "elapsed_s") or 0.0, *runs_s])
    longest = text(longest_s, "s")
    reason = (
        f"{change.partition} allows no limit as long as now, and the longest run took {longest}"
    )
    return [(f"--time={slurm_duration(change.time_s or 0.0)}", reason)]


def _change_memory(row: JobSummaryRow, memory: HostMemory, change: Freed) -> list[tuple[str, str]]:
    """Request what the job needs, or had, together with fewer GPUs or in another partition.

    `change` may put the tasks of several nodes on one; the reason is of one of these nodes.
    """
    mib = change.memory_mib or 0.0
    option = memory_option({}, mib, change.gpus)
    # a move puts together the tasks of one node for each GPU that worked, at most
    nodes = 1 if change.partition is None else min(row.get("nodes") or 1, change.gpus)
    of_node = "" if number(row, "nodes") == 1 else " on a node"
    if memory.needed_mib is None:
        reason = f"{text(mib / nodes, 'MiB')} of host memory{of_node} were requested"
    elif mib / nodes < memory.needed_mib:  # no more than what a completed job had
        reason = f"{text(mib / nodes, 'MiB')} of host memory{of_node} were requested, and sufficed"
    elif max(memory.peaks, default=0.0) <= max(memory.killed, default=0.0):
        reason = f"{text(max(memory.killed), 'MiB')} of host memory did not suffice"
    else:
        reason = _held(row, memory)
    if nodes > 1:
        reason += f", for the tasks of {nodes} nodes together"
    return [(option, reason)] if option else []


def _time(row: JobSummaryRow, runs_s: Sequence[float]) -> list[tuple[str, str]]:
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
        margin = f"and no limit under {text(LEAST_S, 's')} is proposed"
    elif wanted > time_bound_s([longest]):
        margin = f"{text(wanted / longest - 1, 'fraction')} on top: run times differ"
    else:
        margin = f"{text(TIME_MARGIN, 'fraction')} on top"
    return [(f"--time={slurm_duration(wanted)}", f"{ran}, {margin}")]


_STOPPED = ("job_hang", "busy_waiting")  # a longer time limit gains nothing
_ALIKE = 4.0  # a time limit of so many times the old one is that of other work


def _after_limit(
    row: JobSummaryRow,
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
            "no longer job of this name and size completed: request more time, or restart from "
            "checkpoints"
        )
    ran = f"a completed job of this name and size ran for {text(longest, 's')}"
    wanted = time_bound_s(runs_s)
    if wanted > most_s:
        return [], (
            f"{ran}, and the partition allows at most {text(most_s, 's')}: restart from checkpoints"
        )
    if wanted > _ALIKE * limit:
        return [], f"{ran}: request more time, or restart from checkpoints"
    margin = text(wanted / longest - 1, "fraction")
    return [(f"--time={slurm_duration(wanted)}", f"{ran}, {margin} on top")], None


def _held(row: JobSummaryRow, memory: HostMemory) -> str:
    """What jobs alike held of host memory, and the margin on top."""
    count, peak = len(memory.peaks), max(memory.peaks)
    of_node = "" if number(row, "nodes") == 1 else " on a node"
    whose = f"the tasks of {count} jobs of this name and size" if count > 1 else "its tasks"
    held = f"{whose} held at most {text(peak, 'MiB')} of host memory{of_node} when polled"
    return f"{held}, {_margin(memory, peak)}"


def _margin(memory: HostMemory, most_mib: float) -> str:
    wanted = memory.needed_mib or 0.0
    differ = wanted > memory_bound_mib([most_mib])
    margin = wanted / most_mib - 1 if differ else MEMORY_MARGIN
    return f"{text(margin, 'fraction')} on top" + (": peaks differ" if differ else "")


def _more_memory(
    row: JobSummaryRow, memory: HostMemory, site: SitePartitions
) -> tuple[list[tuple[str, str]], str | None]:
    """Return more host memory of a node than a killed job had, or why no node has more."""
    requested = memory_of_node_mib(row)
    if requested is None:
        return [], None
    memory = replace(memory, killed=[*memory.killed, requested])
    wanted = memory.needed_mib or 0.0
    killed, peak = max(memory.killed), max(memory.peaks, default=0.0)
    of_node = "" if number(row, "nodes") == 1 else " on a node"
    reason = f"{text(killed, 'MiB')} of host memory{of_node} did not suffice"
    most, largest = site.most_memory_mib(row), memory.most
    if wanted > most:
        return [], (
            f"{reason}, and a node of the partition has at most {text(most, 'MiB')}: divide the "
            "tasks over more nodes, or hold less"
        )
    if largest is not None and wanted > largest and math.isinf(most):
        if site.whole_nodes(row):  # with its node a job gets all memory of it
            return [], (
                f"{reason}, and no job of the partition requested more of a node: request more if "
                "its nodes have more, else divide the tasks over more nodes"
            )
        reason = (
            f"{reason}, {_margin(memory, max(peak, killed))} (no job of the partition requested more than "
            f"{text(largest, 'MiB')} of a node)"
        )
    else:
        reason = f"{reason}, {_margin(memory, max(peak, killed))}"
    return [(f"--mem={wanted / GIB:.0f}G", reason)], None


def _less_memory(row: JobSummaryRow, memory: HostMemory) -> list[tuple[str, str]]:
    """The largest peak of a node plus a margin, for a job that completed with much of it left."""
    requested, wanted = memory_of_node_mib(row), memory.needed_mib
    if requested is None or wanted is None or memory.own is None:
        return []
    if max(memory.peaks, default=0.0) <= max(memory.killed, default=0.0):
        return []
    if row.get("state") != "COMPLETED" or wanted > WORTH * requested:
        return []
    return [(f"--mem={wanted / GIB:.0f}G", _held(row, memory))]
