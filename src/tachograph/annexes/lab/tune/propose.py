"""Thresholds from unlabelled history: between the values when idle and at work.

Whether a minute is idle is determined by the utilisation of the busiest GPU alone (nothing runs),
and whether it is one of work by arithmetic, memory traffic and SM activity; a minute that looks
busy and shows none of them is neither: it may be a hung collective. Both are the marks that the
classes use themselves. Of a characteristic, only jobs count that use it: their median at work is
above all but one in a hundred of the idle minutes.

    level   geometric mean of the 99th percentile when idle and the 5th percentile at work
    theta   geometric mean of the 99th percentile of the spreads of idle windows and the median of those at work;
            where there is a level at least a tenth of it, because busy-waiting varies a little
    busy    half of the median over jobs of the mean of the busiest GPU (hosts: of the busiest node)

If values when idle and at work overlap, nothing is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.arrays import Longs
from tachograph.catalog.config import ClassOptions
from tachograph.catalog.errors import UsageError
from tachograph.judge.classes.characteristics import FIRST_WORK, GPU, HOST, Characteristic
from tachograph.judge.classes.inputs import HOST_SUFFIX, ClassInput
from tachograph.judge.classes.series import Units, extremes
from tachograph.judge.job_classes import JOB_CLASSES, class_inputs

IDLE, WORK, MEDIAN = 99.0, 5.0, 50.0  # percentiles
LEAST_MINUTES = 1000  # idle and at work: fewer give no distribution
# An idle value counts as no less than this part of that at work: busy-waiting shows a little.
FLOOR = 10.0
_UNUSED = "not measured, or not used"
Values = NDArray[np.floating[Any]]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ThresholdProposal:
    """One threshold, between `rest` and `work`; None: see `why`; busy: `work` alone.

    `rest_minutes`, `work_minutes`: minutes (theta: windows) behind them; `jobs` that use the
    characteristic.
    """

    key: str
    name: str
    unit: str
    built_in: float
    value: float | None
    rest: float | None
    work: float | None
    rest_minutes: int
    work_minutes: int
    jobs: int
    why: str = ""


def forms_of(
    jobs: pl.DataFrame,
    stored: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
    *,
    window_minutes: int,
) -> tuple[ClassInput, ...]:
    """Return the GPU form of jobs and, with node minutes, the host form, without empty ones.

    `stored`: as of `read_stored`. Every characteristic may get a threshold, so both have the
    windows of all of them.
    """
    characteristics = {
        code: tuple(HOST if code.endswith(HOST_SUFFIX) else GPU)
        for job_class in JOB_CLASSES
        if job_class.where is not None  # these detect an interval in which nothing changes
        for code in job_class.codes
    }
    widest = ClassOptions(
        window_minutes=window_minutes,
        hang_minutes=window_minutes,
        characteristics=characteristics,
    )
    forms = class_inputs(jobs, *stored, widest)
    return tuple(form for form in forms if form.series.job_keys)


def propose(forms: Sequence[ClassInput]) -> tuple[ThresholdProposal, ...]:
    """Return a proposal per threshold, of GPUs and, with node minutes, of hosts.

    Errors: UsageError for too few minutes idle or at work.
    """
    if not forms:
        raise UsageError(
            "no job has minutes to propose thresholds from", do="run `tachograph analyze` first"
        )
    gpus, *more = forms
    marked = MarkedMinutes(
        gpus, gpus.series.looks_busy < FIRST_WORK, gpus.series.works.astype(np.bool_)
    )
    if min(int(marked.idle.sum()), int(marked.work.sum())) < LEAST_MINUTES:
        raise UsageError(
            f"{int(marked.idle.sum())} idle minutes and {int(marked.work.sum())} at work are too "
            "few",
            do=f"use more jobs: {LEAST_MINUTES} minutes of each are needed",
        )
    proposals = _of_all(marked, GPU)
    for hosts in more:
        on_hosts = MarkedMinutes(
            hosts, _carried(marked.idle, gpus, hosts), _carried(marked.work, gpus, hosts)
        )
        proposals += _of_all(on_hosts, HOST)
    return tuple(proposals)


@dataclass(frozen=True, slots=True)
class MarkedMinutes:
    """A form, and which of its minutes are idle, and which at work."""

    form: ClassInput
    idle: Marks
    work: Marks


def _of_all(
    marked: MarkedMinutes, characteristics: Mapping[str, Characteristic]
) -> list[ThresholdProposal]:
    proposals: list[ThresholdProposal] = []
    for name, characteristic in characteristics.items():
        if name != "gpu_util":
            proposals += _of(marked, characteristic)
    return proposals


def _of(marked: MarkedMinutes, c: Characteristic) -> Iterator[ThresholdProposal]:
    """The proposals for one characteristic."""
    uses = _uses(marked, c.name)
    level = None
    if c.level is not None:
        values, mine = (
            marked.form.series.of(c.name),
            marked.work & np.repeat(uses, marked.form.series.minutes),
        )
        level = _between("level", c, values[marked.idle], values[mine], WORK, int(uses.sum()))
        yield level
    if c.name in marked.form.windows.of:
        theta = _theta(marked, c, uses)
        least = 0.0 if level is None or level.value is None else level.value / 10
        yield (
            theta
            if theta.value is None or theta.value >= least
            else replace(theta, value=_rounded(least))
        )
    units = marked.form.nodes if marked.form.host else marked.form.gpus
    if c.busy is not None and c.name in units.values:
        yield _busy(units, c)


def _carried(marks: Marks, gpus: ClassInput, hosts: ClassInput) -> Marks:
    """Marks of minutes of the GPU form at their places in the host form, which has fewer jobs."""
    begin = dict(zip(gpus.series.job_keys, gpus.series.offset.tolist(), strict=False))
    length = dict(zip(gpus.series.job_keys, gpus.series.minutes.tolist(), strict=True))
    carried = np.zeros(int(hosts.series.offset[-1]), np.bool_)
    for key, to, room in zip(
        hosts.series.job_keys, hosts.series.offset.tolist(), hosts.series.minutes, strict=False
    ):
        both = min(length.get(key, 0), int(room))
        carried[to : to + both] = marks[begin.get(key, 0) : begin.get(key, 0) + both]
    return carried


def settings(proposals: tuple[ThresholdProposal, ...], configured: ClassOptions) -> ClassOptions:
    """Return the configured window and T with the thresholds that are proposed."""
    values: dict[str, dict[str, float]] = {"theta": {}, "level": {}, "busy": {}}
    for proposal in proposals:
        if proposal.value is not None:
            values[proposal.key][proposal.name] = proposal.value
    return msgspec.structs.replace(configured, **values, characteristics={})


def _uses(marked: MarkedMinutes, name: str) -> Marks:
    """Which jobs use a characteristic."""
    values, offset = marked.form.series.of(name), marked.form.series.offset
    idle_high = _percentile(values[marked.idle], IDLE)
    middles = [_percentile(values[a:b][marked.work[a:b]], MEDIAN) for a, b in pairwise(offset)]
    return np.array(
        [m is not None and m > 0 and (idle_high is None or m > idle_high) for m in middles],
        np.bool_,
    )


def _theta(marked: MarkedMinutes, c: Characteristic, uses: Marks) -> ThresholdProposal:
    """Propose theta from windows with only idle minutes, or only work."""
    windows, offset = marked.form.windows, marked.form.series.offset
    spread = windows.of[c.name].spread
    idle, work = (
        _windows_of(marks, offset, windows.windows, windows.width)
        for marks in (marked.idle, marked.work)
    )
    of_users = np.repeat(uses, np.diff(windows.windows))
    return _between("theta", c, spread[idle], spread[work & of_users], MEDIAN, int(uses.sum()))


def _windows_of(marked: Marks, offset: Longs, windows: Longs, width: int) -> Marks:
    """Which windows have only minutes that are marked."""
    until = np.concatenate(([0], np.cumsum(marked)))
    first = np.arange(int(windows[-1])) + np.repeat(offset[:-1] - windows[:-1], np.diff(windows))
    return np.asarray(until[first + width] - until[first] == width)


def _busy(units: Units, c: Characteristic) -> ThresholdProposal:
    busiest = extremes(units, c.name).busiest
    there = busiest[~np.isnan(busiest) & (busiest > (c.level or 0.0))].astype(np.float64)
    middle = _percentile(there, MEDIAN)
    value, why = (None, _UNUSED) if middle is None else (_rounded(middle / 2), "")
    return ThresholdProposal(
        "busy", c.name, c.unit, c.busy or 0.0, value, None, middle, 0, 0, len(there), why
    )


def _between(
    key: str, c: Characteristic, idle: Values, work: Values, percentile: float, jobs: int
) -> ThresholdProposal:
    """A threshold between the idle values and those at work."""
    idle, work = (part[~np.isnan(part)].astype(np.float64) for part in (idle, work))
    low, high = _percentile(idle, IDLE), _percentile(work, percentile)
    value, why = None, ""
    if low is None or high is None:
        why = _UNUSED
    elif high <= low:
        why = "values when idle and at work overlap"
    elif min(len(idle), len(work)) < LEAST_MINUTES:
        why = "too few minutes"
    else:
        value = _rounded(float(np.sqrt(max(low, high / FLOOR) * high)))
    built_in = (c.theta if key == "theta" else c.level) or 0.0
    return ThresholdProposal(
        key, c.name, c.unit, built_in, value, low, high, len(idle), len(work), jobs, why
    )


def _percentile(values: Values, percentile: float) -> float | None:
    measured = values[~np.isnan(values)]
    return float(np.percentile(measured, percentile)) if measured.size else None


def _rounded(value: float) -> float:
    """Round to two significant digits; more digits would suggest precision that is not there."""
    return float(f"{value:.2g}")
