"""How a job ended, in words: its state, exit code and signal, the step that failed, host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tachograph.catalog.units import text
from tachograph.judge.activity import number
from tachograph.judge.steps import WITHOUT_SRUN
from tachograph.report.job_sentences import HIGH

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow, StepSummaryRow


KILLED = 9  # SIGKILL
# Of the host memory requested. What a job held is polled, so the last of it may be missing; Slurm
# may kill a little below the request.
AT_REQUEST = 0.95
_ENDED: Mapping[str, str] = {
    "OUT_OF_MEMORY": "Killed: out of host memory",
    "TIMEOUT": "Stopped at its time limit",
    "DEADLINE": "Stopped at its deadline",
    "NODE_FAIL": "Ended because a node failed",
    "BOOT_FAIL": "Ended because a node did not boot",
    "LAUNCH_FAILED": "Its launch failed",
    "RECONFIG_FAIL": "Its reconfiguration failed",
    "PREEMPTED": "Preempted: another job took its nodes",
    "CANCELLED": "Cancelled by its user or an administrator",
    "REVOKED": "Revoked: another cluster of the federation ran it",
    "FAILED": "Failed",
}
_FAILED_STATES = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL")
_SIGNALS: Mapping[int, str] = {
    2: "SIGINT, interrupted",
    6: "SIGABRT, aborted by the program",
    7: "SIGBUS, invalid memory access",
    8: "SIGFPE, invalid arithmetic",
    9: "SIGKILL, killed",
    11: "SIGSEGV, invalid memory access",
    15: "SIGTERM, a request to end",
}


def exit_text(row: JobSummaryRow | StepSummaryRow) -> str:
    """Return the signal or the exit code of a job or step; empty if there is none but 0.

    >>> exit_text({"exit_code": 3}), exit_text({"exit_code": 0, "exit_signal": 12})
    ('exit code 3', 'signal 12')
    >>> exit_text({"exit_code": 0, "exit_signal": 11})
    'signal 11 (SIGSEGV, invalid memory access)'
    """
    code, signal = (number(row, name) for name in ("exit_code", "exit_signal"))
    if signal:
        meaning = _SIGNALS.get(int(signal))
        return f"signal {signal:.0f} ({meaning})" if meaning else f"signal {signal:.0f}"
    return f"exit code {code:.0f}" if code else ""


def out_of_memory(
    row: JobSummaryRow,
    held_mib: float | None,
    steps: Sequence[StepSummaryRow] = (),
) -> bool:
    """Return whether a job was killed for lack of host memory, by all that is recorded.

    `held_mib`: peak of its tasks on a node. A shell that reports signal 9 of a program ends with
    exit code 137, which is recorded as 9.

    >>> row = {"state": "FAILED", "exit_code": 9, "mem_requested_mib": 100.0, "nodes": 1}
    >>> out_of_memory(row, 95.0), out_of_memory(row, 94.0), out_of_memory(row, None)
    (True, False, False)
    """
    of_steps = {step.get("state") for step in steps}
    if row.get("state") == "OUT_OF_MEMORY":
        return True
    if row.get("state") == "FAILED" and "OUT_OF_MEMORY" in of_steps:
        return True
    requested = memory_of_node_mib(row)
    codes = (row.get("exit_signal"), row.get("exit_code"))
    killed = KILLED in (*codes, *(step.get("exit_signal") for step in steps))
    if row.get("state") != "FAILED" or not killed or requested is None or held_mib is None:
        return False
    return held_mib >= AT_REQUEST * requested


def memory_of_node_mib(row: JobSummaryRow) -> float | None:
    """Return the requested host memory per node, MiB."""
    total, nodes = number(row, "mem_requested_mib"), number(row, "nodes")
    return total / nodes if total is not None and nodes else None


def end_cause(
    row: JobSummaryRow,
    steps: Sequence[StepSummaryRow] = (),
    held_mib: float | None = None,
) -> str | None:
    """Return how an uncompleted job ended, with the known cause; None for others.

    `steps`: its rows of step_summaries; `held_mib`: peak host memory of its tasks on a node.

    >>> end_cause({"state": "OUT_OF_MEMORY", "hbm_peak_fraction": 0.37})
    'Killed: out of host memory; GPU memory peaked at 37 %'
    >>> end_cause({"state": "FAILED", "exit_code": 1}), end_cause({"state": "COMPLETED"})
    ('Failed with exit code 1', None)
    >>> step = {"step": "0", "name": "bash", "state": "CANCELLED", "exit_signal": 12}
    >>> end_cause({"state": "FAILED", "exit_code": 3}, [step])
    'Failed with exit code 3; step 0 (bash) ended with signal 12'
    """
    state = str(row.get("state") or "")
    ended = _ENDED.get(state)
    if ended is None:
        return None
    of_memory = out_of_memory(row, held_mib, steps)
    recorded = _step_out_of_memory(steps) is not None
    if state == "FAILED" and of_memory and not recorded:
        ended = "Killed with signal 9 (SIGKILL), most likely out of host memory"
    elif state == "FAILED":
        ended = _failed(row, steps)
    elif of_memory and (step := _failed_step(row, steps)):
        ended += f", in {_label(step)}"
    notes = [ended]
    requested = memory_of_node_mib(row)
    if of_memory and held_mib is not None and requested is not None:
        per_node = "" if row.get("nodes") == 1 else " on a node"
        notes.append(
            f"its tasks held {text(held_mib, 'MiB')}{per_node} when polled, "
            f"{text(requested, 'MiB')} were requested"
        )
    if row.get("xid_events"):
        notes.append(f"the driver reported XID {number(row, 'xid_event_max') or 0:.0f}")
    peak = number(row, "hbm_peak_fraction")
    if peak is not None and (state == "OUT_OF_MEMORY" or (state == "FAILED" and peak >= HIGH)):
        notes.append(f"GPU memory peaked at {text(peak, 'fraction')}")
    return "; ".join(notes)


def _failed(row: JobSummaryRow, steps: Sequence[StepSummaryRow]) -> str:
    """How a job failed, and which of its steps did."""
    # what Slurm recorded as the cause goes before a step that failed after it
    killed = _step_out_of_memory(steps)
    of_job, step = exit_text(row), killed or _failed_step(row, steps)
    of_step = exit_text(step) if step else ""
    # an exit code that is the signal of the step comes from the shell that ran it (128 + signal)
    if step and _code(row) in (0.0, _code(step)):
        of_job = of_step
    ended = f"Failed with {of_job}" if of_job else "Failed"
    if step is None:
        return ended
    if killed is not None:
        return f"{ended}; {_label(killed)} was killed: out of host memory"
    if of_step in ("", of_job):
        return f"{ended}, in {_label(step)}"
    return f"{ended}; {_label(step)} ended with {of_step}"


def _step_out_of_memory(steps: Sequence[StepSummaryRow]) -> StepSummaryRow | None:
    """The first step that Slurm recorded as out of memory; one of srun names the program."""
    killed = [step for step in steps if step.get("state") == "OUT_OF_MEMORY"]
    return min(killed, key=lambda step: step["step"] in WITHOUT_SRUN, default=None)


def _code(row: JobSummaryRow | StepSummaryRow) -> float:
    return number(row, "exit_signal") or number(row, "exit_code") or 0.0


def _failed_step(row: JobSummaryRow, steps: Sequence[StepSummaryRow]) -> StepSummaryRow | None:
    """The srun step that failed: the first that ended as the job did, else the first of all."""
    failed = [
        step
        for step in steps
        if step["step"] not in WITHOUT_SRUN and (step.get("state") in _FAILED_STATES or _code(step))
    ]
    alike = (step for step in failed if _code(step) == _code(row))
    return next(alike, failed[0] if failed else None)


def _label(step: StepSummaryRow) -> str:
    name = step.get("name")
    return f"step {step['step']} ({name})" if name else f"step {step['step']}"
