"""Numbers of the proof: pure functions of what was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from proof_labels import Check, Label

# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom (NIST/SEMATECH
# e-Handbook, 1.3.6.7.2)
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NEAR_S = 0.5  # between a reading of nvidia-smi and the sample it is compared with

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Overhead:
    """What recording costs: rate of work without it over the rate with it, less one. pairs: of
    runs; 95 % interval.
    """

    pairs: int
    fraction: float
    low: float
    high: float


def overhead(without: Sequence[float], recorded: Sequence[float]) -> Overhead | None:
    """Return the overhead from pairs of rates, run one after the other; None of less than two
    pairs.

    The mean of the logarithms of the ratios, and Student's interval around it.

    >>> found = overhead([100, 102, 98, 100], [99, 101, 97, 99])
    >>> round(found.fraction, 4), found.low < found.fraction < found.high
    (0.0101, True)
    """
    pairs = [(a, b) for a, b in zip(without, recorded, strict=False) if a > 0 and b > 0]
    if len(pairs) < 2:
        return None
    ratios = [math.log(a / b) for a, b in pairs]
    mean = sum(ratios) / len(ratios)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in ratios) / (len(ratios) - 1))
    free = len(ratios) - 1
    half = (_T[free - 1] if free <= len(_T) else 1.96) * deviation / math.sqrt(len(ratios))
    return Overhead(len(pairs), math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half))


def order(repeat: int) -> tuple[bool, bool]:
    """Return whether the first and the second run of a pair are recorded: by turns, so that warmth
    favours neither.

    >>> order(0), order(1)
    ((False, True), (True, False))
    """
    return (False, True) if repeat % 2 == 0 else (True, False)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Utilization here beside nvidia-smi, in percent points, over readings that have a sample
    near them.
    """

    readings: int
    mean_here: float
    mean_smi: float
    mean_difference: float
    largest_difference: float


def agreement(t: Column, here: Column, smi: Sequence[tuple[float, float]]) -> Agreement | None:
    """Return how far utilization (0..1, at times t) is from nvidia-smi's (time, percent); None
    without a pair.

    >>> agreement(np.array([0.0, 1.0]), np.array([0.5, 0.7]), [(0.1, 50.0), (1.1, 68.0), (9.0, 0.0)]).mean_difference
    1.0
    """
    known = np.isfinite(here)
    t, here = t[known], here[known]
    pairs = []
    for moment, percent in smi:
        if not t.size:
            break
        nearest = int(np.abs(t - moment).argmin())
        if abs(t[nearest] - moment) <= _NEAR_S:
            pairs.append((float(here[nearest]) * 100, percent))
    if not pairs:
        return None
    differences = [abs(ours - theirs) for ours, theirs in pairs]
    count = len(pairs)
    return Agreement(
        count,
        sum(ours for ours, _ in pairs) / count,
        sum(theirs for _, theirs in pairs) / count,
        round(sum(differences) / count, 6),
        max(differences),
    )


@dataclass(frozen=True, slots=True)
class DrawnEnergy:
    """Energy from power readings beside that of the driver's counter, both in J over the same time.

    difference: what the readings add for each J of the counter, less 1, by all readings and not by
    the two at the ends: one that came late says little. resolution: by how much `difference` may be
    off, as each change of the counter is seen up to a reading late.
    """

    seconds: float
    from_power_j: float
    counter_j: float
    difference: float
    resolution: float


def energy(t: Column, power_w: Column, energy_j: Column) -> DrawnEnergy | None:
    """Return the energy between the first and the last reading of the counter; None where it did
    not advance.

    Power is integrated by trapezoids between readings. The driver advances its counter about ten
    times a second or less often, so the time between two of its values counts, not that between two
    samples.

    >>> t = np.arange(5.0)
    >>> round(energy(t, np.full(5, 300.0), np.array([1000.0, 1300.0, 1600.0, 1900.0, 2206.0])).difference, 5)
    -0.00599
    """
    known = np.isfinite(power_w) & np.isfinite(energy_j)
    t, power_w, energy_j = t[known], power_w[known], energy_j[known]
    # Samples that are the first to have a new value.
    moved = np.flatnonzero(np.diff(energy_j) > 0) + 1
    if moved.size < 2:
        return None
    first, last = moved[0], moved[-1]
    steps = (power_w[1:] + power_w[:-1]) / 2 * np.diff(t)
    drawn = np.concatenate([[0.0], np.cumsum(steps)])
    slope = float(np.polyfit(energy_j[moved] - energy_j[first], drawn[moved], 1)[0])
    from_power, counter = float(drawn[last] - drawn[first]), float(energy_j[last] - energy_j[first])
    seconds, longest = float(t[last] - t[first]), float(np.diff(t[first : last + 1]).max())
    return DrawnEnergy(seconds, from_power, counter, slope - 1.0, 2 * longest / seconds)


def smi_readings(lines: Iterable[tuple[float, str]]) -> list[tuple[float, float]]:
    """Return (time, percent) of lines of nvidia-smi with the time they came; what is no number is
    left out.

    >>> smi_readings([(1.0, " 97"), (2.0, "[N/A]"), (3.0, "")])
    [(1.0, 97.0)]
    """
    found = []
    for moment, line in lines:
        try:
            found.append((moment, float(line.strip())))
        except ValueError:
            continue
    return found


def steady(begin: float, end: float, label: Label, *, settle_s: float) -> tuple[float, float]:
    """Return the part of a run that is judged: that of the label, without the time in which means
    settle.

    >>> from proof_labels import BY_NAME
    >>> steady(100.0, 160.0, BY_NAME["hang"], settle_s=5.0)
    (141.0, 160.0)
    """
    length = end - begin
    first = begin + label.steady[0] * length
    return min(first + settle_s, end), begin + label.steady[1] * length


def shares(classes: Iterable[str]) -> dict[str, float]:
    """Return {class: share of looks}, the largest first.

    >>> shares(["idle", "idle", "unknown", "idle"])
    {'idle': 0.75, 'unknown': 0.25}
    """
    counted = Counter(classes)
    return {name: count / counted.total() for name, count in counted.most_common()}


def verdict(label: Label, found: Mapping[str, float]) -> bool:
    """Return whether enough looks show a class that the label accepts."""
    return sum(found.get(name, 0.0) for name in label.classes) >= label.share


def checked(check: Check, column: Column | None) -> tuple[float | None, bool]:
    """Return the statistic that a check asks for, and whether it holds; None and False where
    nothing was measured.

    >>> checked(Check("sm_active", 0.5, 1), np.array([0.5, 0.9, float("nan")]))
    (0.7, True)
    """
    known = np.zeros(0) if column is None else column[np.isfinite(column)]
    if not known.size:
        return None, False
    value = float(known.mean() if check.statistic == "mean" else (known > check.level).mean())
    return round(value, 9), check.low <= value <= check.high


def failures(workloads: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what did not come out as expected, one sentence each.

    >>> failures({"idle": {"ok": False, "class_ok": False, "shares": {"mixed": 1.0}, "checks": []}})
    ["idle: live classes were {'mixed': 1.0}"]
    """
    printed = []
    for name, reported in workloads.items():
        if reported.get("error"):
            printed.append(f"{name}: {reported['error']}")
        elif not reported.get("class_ok", True):
            printed.append(f"{name}: live classes were {reported['shares']}")
        printed += [
            f"{name}: {one['expected']}, found {one['found']}"
            for one in reported.get("checks", ())
            if not one["ok"]
        ]
    return printed
