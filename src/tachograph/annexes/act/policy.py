"""Evidence for policies: it must hold in two consecutive windows, for all GPUs of a job.

Missing and old values, and gaps, are no evidence. Every reason for missing evidence is a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tachograph.annexes.act.alert_conditions import FRESH, GROWING_FAULTS, HANG, failing_gpus
from tachograph.catalog.policies import ON_JOBS, PolicyOptions, matches
from tachograph.catalog.units import plural, text
from tachograph.judge.activity import UNIT
from tachograph.judge.gpu_series import (
    IDLE,
    LEAST_WORK,
    POLLING,
    UNMEASURED,
    WORKING,
    GpuSeries,
    GpuStates,
)
from tachograph.judge.health import XID_CRITICAL
from tachograph.lake.places import may_be_of

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


# Of the minutes of a window, of each GPU, are measured, and as many show that it does no work.
MEASURED = 0.9
LONGEST_GAP = 3.0  # times the usual distance of two measured minutes
# {check: findings, one of which must hold in the newest result}
FINDINGS_OF: Mapping[str, tuple[str, ...]] = {"hung": (HANG,), "held_idle": ("idle_job", HANG)}
# samples of one GPU that show a fault of it; null counters show none
_HAS_FAULT = pl.any_horizontal(
    pl.col("xid").cast(pl.Int64).is_in(sorted(XID_CRITICAL)),
    pl.col("row_remap_failure") > 0,
    *(pl.col(name) > pl.col(name).drop_nulls().first() for name in GROWING_FAULTS),
).fill_null(value=False)


@dataclass(frozen=True, slots=True)
class PolicyEvidence:
    """Why a policy applies. since: work stopped or fault first seen; until: newest sample.

    gpu_hours: without work in between; None for a fault. nodes: with the fault.
    """

    sentence: str
    since: datetime
    until: datetime
    gpu_hours: float | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuietWindows:
    """Two windows without work.

    stop: minute after the last work (0: no work); measured: least share.
    """

    stop: int
    end: int
    measured: float


def exemption(policy: PolicyOptions, job: JobSummaryRow) -> str:
    """Return why a policy does not apply to a job, or "".

    job: user, account, qos, partition, het_job_id.

    >>> exemption(PolicyOptions("a", "hung", partitions=("gpu*",)), {"partition": "cpu"})
    'partition cpu is not covered by the policy'
    """
    if policy.partitions and not matches(job.get("partition"), policy.partitions):
        return f"partition {job.get('partition') or 'unknown'} is not covered by the policy"
    exempt = (
        ("user", job.get("user"), policy.exempt_users),
        ("account", job.get("account"), policy.exempt_accounts),
        ("qos", job.get("qos"), policy.exempt_qos),
    )
    for kind, name, patterns in exempt:
        if patterns and name is None:
            return f"its {kind} is not known"
        if matches(name, patterns):
            return f"{kind} {name} is exempt"
    return (
        "a heterogeneous job is left alone"
        if policy.action in ON_JOBS and job.get("het_job_id")
        else ""
    )


def uncertain(job: JobSummaryRow) -> str:
    """Return why the GPUs of a job are not known well enough to act on it, or "".

    >>> uncertain({"gpus": 4, "attribution": "ambiguous"})
    'which GPUs it holds is ambiguous'
    """
    if not job["gpus"]:
        return "its GPUs are not known"
    return "which GPUs it holds is ambiguous" if job["attribution"] == "ambiguous" else ""


def quiet_windows(series: GpuSeries, check: str, *, window: int) -> QuietWindows | str:
    """Return the two last windows of `window` minutes that were measured, without work.

    A sentence, where they show no such thing: a GPU worked, or was not measured throughout. `hung`
    takes GPUs that wait by polling for idle, and wants work before.
    """
    end = series.length
    middle, begin = end - window, end - 2 * window
    if begin < 0:
        return f"it has not run for two windows of {window} min"
    kinds = (IDLE, POLLING) if check == "hung" else (IDLE,)
    gap, least = series.gap(), 1.0
    for first, last in ((begin, middle), (middle, end)):
        for gpu in range(len(series.units)):
            row = series.state[gpu, first:last]
            if (row == WORKING).any():
                return f"{series.label(gpu)} worked in the last {2 * window} min"
            expected = max(1.0, window / gap)
            share = min(1.0, float((row != UNMEASURED).sum()) / expected)
            if share < MEASURED or _longest_gap(row) > LONGEST_GAP * gap:
                return f"{series.label(gpu)} was not measured throughout the last {2 * window} min"
            if np.isin(row, kinds).sum() / expected < MEASURED:
                return f"{series.label(gpu)} was not clearly idle in the last {2 * window} min"
            least = min(least, share)
    worked = (series.state[:, :begin] == WORKING).sum(1)
    if check == "hung" and not (worked >= LEAST_WORK).any():
        return "its GPUs never worked, so none stopped"
    at_work = np.flatnonzero((series.state[:, :begin] == WORKING).any(0))
    return QuietWindows(int(at_work[-1]) + 1 if at_work.size else 0, end, least)


def _longest_gap(row: GpuStates) -> int:
    """Longest run of minutes that were not measured.

    >>> _longest_gap(np.array([1, -1, -1, 1, -1], np.int8)), _longest_gap(np.array([1], np.int8))
    (2, 0)
    """
    measured = np.flatnonzero(row != UNMEASURED)
    return int(np.diff(measured, prepend=-1, append=len(row)).max()) - 1


def idle_evidence(
    policy: PolicyOptions,
    job: JobSummaryRow,
    gpus: pl.DataFrame,
    minutes: pl.DataFrame,
    *,
    now: datetime,
) -> PolicyEvidence | str:
    """Return the evidence that a running job is hung or held idle, or why there is none.

    job: gpus, start, attribution; gpus: its rows of job_gpus; minutes: of job_minutes.
    """
    units = gpus.select(*UNIT).rows()
    if reason := uncertain(job):
        return reason
    held = job["gpus"] or 0
    if len(units) != held:
        return f"{plural(held, 'GPU')} were allocated, samples are of {len(units)}"
    series = GpuSeries.of(units, minutes)
    if series is None:
        return "neither arithmetic nor memory traffic was measured"
    until = job["start"] + timedelta(minutes=series.length)
    if now - until > FRESH:
        return f"its newest sample is {text((now - until).total_seconds(), 's')} old"
    windows = quiet_windows(series, policy.check, window=policy.minutes)
    if isinstance(windows, str):
        return windows
    hours = (windows.end - windows.stop) / 60 * len(units)
    if hours < policy.gpu_hours:
        return f"{text(hours, 'h')} GPU time without work, less than {text(policy.gpu_hours, 'h')}"
    how = "idle or polling" if policy.check == "hung" else "idle"
    after = (
        f"from {text(windows.stop * 60, 's')} after the start on"
        if windows.stop
        else "from the start on"
    )
    sentence = (
        f"{plural(len(units), 'GPU')} did no work {after}, for "
        f"{text((windows.end - windows.stop) * 60, 's')} "
        f"({text(hours, 'h')} GPU time); {how} in both of the last two windows of "
        f"{policy.minutes} min, "
        f"{text(windows.measured, 'fraction')} measured."
    )
    return PolicyEvidence(sentence, job["start"] + timedelta(minutes=windows.stop), until, hours)


def fault_evidence(
    policy: PolicyOptions,
    job: JobSummaryRow,
    gpus: pl.DataFrame,
    samples: pl.DataFrame,
    *,
    now: datetime,
) -> PolicyEvidence | str:
    """Return the evidence that a GPU of a running job fails, or why there is none.

    job: as of `idle_evidence`; gpus: rows of job_gpus; samples: of 24 h, as `failing_gpus` takes
    them. The fault shows in both windows before the newest sample of the GPU: a failed row
    remapping, a critical XID, more remapped rows or uncorrectable errors than at the begin.
    """
    if reason := uncertain(job):
        return reason
    held = gpus.select("node", "gpu", of_job="cluster").unique()
    mine = samples.join(held, on=["node", "gpu"]).filter(may_be_of("of_job"))
    faults = []
    for alert in failing_gpus(mine, now=now).firing:
        node, gpu = alert.labels["node"], int(alert.labels["gpu"])
        of_gpu = mine.filter(pl.col("node") == node, pl.col("gpu") == gpu).sort("t")
        newest = of_gpu.get_column("t")[-1]
        if now - newest <= FRESH and _faulty_twice(
            of_gpu, newest, timedelta(minutes=policy.minutes)
        ):
            faults.append(
                (alert.sentence, node, of_gpu.filter(_HAS_FAULT).get_column("t")[0], newest)
            )
    if not faults:
        return "none of its GPUs shows a fault in two windows"
    sentence = " ".join(sentence for sentence, *_ in faults[:4])
    since, until = min(first for *_, first, _ in faults), max(last for *_, last in faults)
    return PolicyEvidence(
        sentence, since, until, nodes=tuple(sorted({node for _, node, *_ in faults}))
    )


def _faulty_twice(samples: pl.DataFrame, newest: datetime, window: timedelta) -> bool:
    faulty = samples.filter(_HAS_FAULT).get_column("t")
    age = newest - faulty
    return bool((age < window).any() and ((age >= window) & (age < 2 * window)).any())
