"""Common part of idle_nodes and idle_gpus: the busiest and the least busy unit of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from tachograph.catalog.units import plural, text
from tachograph.judge.activity import GpuKeyRow, gpu_label, so_far
from tachograph.judge.classes.inputs import ClassInput, ClassVerdicts, JobClass, too_few, voted
from tachograph.judge.classes.kernel import MISSING, NO, UNDECIDED, YES, Votes
from tachograph.judge.classes.series import Extremes, Units, extremes
from tachograph.judge.finding import CheckedValue, Finding

TIMES = 2.0  # least ratio of the busiest to the least busy; source: TASC


def idle_class(
    noun: Literal["node", "GPU"], code: str, title: str, *, host: tuple[str, ...] = ()
) -> JobClass:
    """Return the class that compares nodes or GPUs; `host`: it votes from host metrics."""
    gpu = ("gpu_util", "sm_active", "dram_active", "power")
    return JobClass(code, "hint", title, partial(judge_idle, noun), gpu=gpu, host=host)


def idle_votes(found: Extremes, *, busy: float) -> Votes:
    """Return votes: YES if the busiest unit exceeds `busy` and does TIMES the least busy.

    MISSING where fewer than two units report it.

    >>> nodes = Extremes(np.array([0.9, 0.9], np.float32), np.array([0.1, 0.8], np.float32), np.array([2, 2]))
    >>> idle_votes(nodes, busy=0.5)
    array([1, 0], dtype=int8)
    """
    vote = np.where(
        (found.busiest > busy) & (found.busiest >= TIMES * found.least), YES, NO
    ).astype(np.int8)
    vote[found.measured < 2] = MISSING
    return vote


def idle_answers(votes: Sequence[Votes]) -> Votes:
    """Return YES if half of the votes are YES; UNDECIDED if fewer than half are measured.

    >>> idle_answers([np.array([1, 1], np.int8), np.array([0, -1], np.int8), np.array([0, -1], np.int8)])
    array([0, 2], dtype=int8)
    """
    table = np.stack(votes)
    voters, yes = (table != MISSING).sum(axis=0), (table == YES).sum(axis=0)
    answer = np.where((yes * 2 >= voters) & (yes > 0), YES, NO).astype(np.int8)
    answer[voters * 2 < len(votes)] = UNDECIDED
    return answer


def judge_idle(
    noun: Literal["node", "GPU"], job_class: JobClass, form: ClassInput
) -> ClassVerdicts:
    """Return the verdict of every job that has two units or more."""
    limits, units = form.limits, form.nodes if noun == "node" else form.gpus
    names = tuple(name for name in job_class.names(form) if limits.busy[name] is not None)
    found = {name: extremes(units, name) for name in names}
    votes = {name: idle_votes(found[name], busy=limits.busy[name] or 0.0) for name in names}
    answers = idle_answers(list(votes.values()))
    counts = np.diff(units.offset)
    unseen = counts - np.max([each.measured for each in found.values()], axis=0)
    # one that was not measured may be the idle one
    answers[(answers == NO) & (unseen > 0)] = UNDECIDED

    def finding(at: int, answer: int) -> Finding:
        voted_yes = [name for name in names if votes[name][at] == YES]
        missing = [name for name in names if votes[name][at] == MISSING]
        few = len(missing) * 2 > len(names)
        case = IdleCase(form, at, units, found, names, voted_yes)
        evidence: dict[str, float] = {}
        if answer == UNDECIDED and few:
            sentence = too_few(form, names, missing)
        elif answer == UNDECIDED:
            sentence = _unseen(noun, int(unseen[at]), int(counts[at]))
        elif answer == NO:
            sentence = _none(noun, case)
            if missing:
                sentence += f" Not all characteristics had a vote{voted(form, names, missing)}."
        else:
            affected = case.affected()
            sentence = _found(noun, case, affected)
            evidence = _evidence(case, len(affected))
        return job_class.finding(
            form,
            answer,
            sentence,
            missing=missing,
            checks=_checks(case, votes),
            evidence=evidence,
        )

    places = np.flatnonzero(counts > 1)
    return ClassVerdicts(places, answers[places], finding)


@dataclass(frozen=True, slots=True)
class IdleCase:
    """Units of one job of which some may be idle."""

    form: ClassInput
    place: int
    units: Units
    found: Mapping[str, Extremes]
    names: Sequence[str]
    voted_yes: Sequence[str]

    def affected(self) -> list[str]:
        """Labels of units with at most half of the busiest's work, by half of the YES votes."""
        first, last = self.units.offset[self.place], self.units.offset[self.place + 1]
        table = np.stack([
            self.units.values[name][first:last] * np.float32(TIMES) <= self.found[name].busiest[self.place]
            for name in self.voted_yes
        ])  # fmt: skip
        low = np.flatnonzero(table.sum(axis=0) * 2 >= len(self.voted_yes))
        nodes = {label[0] for label in self.units.labels[first:last]}
        names: list[str] = []
        for place in low.tolist():
            node, gpu, mig = self.units.labels[first + place]
            name = str(node)
            if gpu is not None:
                row: GpuKeyRow = {"node": name, "gpu": gpu, "mig": mig}
                name = gpu_label(row, with_node=len(nodes) > 1)
            names.append(name)
        return names


def _found(noun: str, case: IdleCase, affected: Sequence[str]) -> str:
    form, at = case.form, case.place
    count = int(case.units.offset[at + 1] - case.units.offset[at])
    compared: list[str] = []
    for name in case.voted_yes:
        known = form.limits.known[name]
        least = text(float(case.found[name].least[at]), known.unit)
        busiest = text(float(case.found[name].busiest[at]), known.unit)
        compared.append(f"{known.label} {least} against {busiest}")
    which = ", ".join(affected[:4])
    if len(affected) > 4:
        which += f" and {len(affected) - 4} more"
    return (
        f"{len(affected)} of {plural(count, noun)} did at most half of what the busiest did"
        f"{so_far(form.rows[at])} ({which}): {'; '.join(compared)} (least busy, busiest)."
    )


def _none(noun: str, case: IdleCase) -> str:
    voters = [name for name in case.names if case.found[name].measured[case.place] >= 2]
    limits = case.form.limits
    busiest = {name: case.found[name].busiest[case.place] for name in voters}
    if not any(level > (limits.busy[name] or 0) for name, level in busiest.items()):
        compared = ""
        for name in voters[:1]:
            known = limits.known[name]
            level = text(float(busiest[name]), known.unit)
            compared = f"{known.label} {level}, not above {text(limits.busy[name], known.unit)}"
        return f"No: even the busiest {noun} was not busy on average ({compared})."
    few = f"{len(case.voted_yes)} of {len(voters)} characteristics"
    return (
        f"No: in {few} the busiest {noun} did twice as much as the least busy one; half are needed."
    )


def _unseen(noun: str, unseen: int, count: int) -> str:
    return f"Unknown: {unseen} of {plural(count, noun)} left no samples; the others were even."


def _evidence(case: IdleCase, affected: int) -> dict[str, float]:
    row = case.form.rows[case.place]
    count = float(case.units.offset[case.place + 1] - case.units.offset[case.place])
    known = {
        "units": count,
        "units_affected": float(affected),
        "gpus": row.get("gpus"),
        "nodes": row.get("nodes"),
    }
    if "gpu_util" in case.found:
        found = case.found["gpu_util"]
        known |= {
            "busiest_gpu_mean": float(found.busiest[case.place]),
            "idlest_gpu_mean": float(found.least[case.place]),
        }
    return {
        name: float(value) for name, value in known.items() if value is not None and value == value
    }


def _checks(case: IdleCase, votes: Mapping[str, Votes]) -> Iterator[CheckedValue]:
    limits, at = case.form.limits, case.place
    for name in case.names:
        value, least = float(case.found[name].busiest[at]), float(case.found[name].least[at])
        measured, busy = votes[name][at] != MISSING, limits.busy[name] or 0.0
        holds, known = value > busy if measured else None, None if value != value else value
        yield CheckedValue(f"{name}_busiest", known, ">", busy, limits.known[name].unit, holds)
        # The other way round it may be anything.
        share = least / value if measured and value > 0 else None
        twice = value >= TIMES * least if measured else None
        yield CheckedValue(f"{name}_least_over_busiest", share, "<=", 1 / TIMES, "ratio", twice)
