"""Whether a job was worse than earlier runs of the same name and size, and since which run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import polars as pl

from tachograph.catalog.units import capitalized, plural, text
from tachograph.judge.bounds import LEAST_COVERAGE
from tachograph.judge.finding import Finding

LEAST_RUNS = 5  # before the change
MOST_RUNS = 30  # the last ones
# A run is beyond the spread of n others at so many standard deviations, which are estimated from
# few runs: on normal and log-normal noise a job is marked in fewer than 1 of 100 cases for n = 5,
# and 3 of 1,000 from n = 10 on (tests/advise/test_usual.py).
_DEVIATIONS, _FOR_FEW = 6.0, 30.0
_OF_MAD = 1.4826  # standard deviations of normal noise in a median absolute deviation


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A number of a run. worse: 1 where more is worse, else -1; least: the change that counts."""

    label: str
    unit: str
    worse: int
    least: float = 0.0
    least_share: float = 0.0


# {column: quantity}, in the order of the sentence
_QUANTITIES = {
    "elapsed_s": _Quantity("run time", "s", 1, least=60.0, least_share=0.25),
    "gpu_util_mean": _Quantity("GPU utilisation", "fraction", -1, least=0.1),
    "power_w_mean": _Quantity("power of a GPU", "W", -1, least_share=0.2),
    "spatial_imbalance": _Quantity("imbalance across GPUs", "fraction", 1, least=0.15),
    "gpu_hours_cold_start": _Quantity("GPU time before the first work", "h", 1, least=0.5),
}
USUAL_COLUMNS = ("display_id", "timelimit_s", "gpu_model", "attribution", "coverage", *_QUANTITIES)


def unlike_usual(runs: pl.DataFrame, job_key: str) -> Finding | None:
    """Return a hint if a completed job is worse than earlier ones, beyond their spread.

    `runs`: one row per run of a user's job of one name and size, with USUAL_COLUMNS, `state`,
    `nodes`, `start`. Those with the job's nodes, model of GPUs and time limit are compared.
    """
    done = runs.filter(pl.col("state") == "COMPLETED").sort("start", "job_key")
    last = done.filter(pl.col("job_key") == job_key)
    if last.is_empty():
        return None
    alike = pl.all_horizontal(
        pl.col(name).eq_missing(last[name].item()) for name in ("nodes", "gpu_model", "timelimit_s")
    )
    known = (pl.col("coverage") >= LEAST_COVERAGE) & (pl.col("attribution") != "ambiguous")
    measured = [
        pl.when(known).then(name).alias(name) for name in _QUANTITIES if name != "elapsed_s"
    ]
    compared = done.filter(alike, pl.col("start") <= last["start"].item()).with_columns(measured)
    parts, since = [], []
    for column, quantity in _QUANTITIES.items():
        rows = compared.filter(pl.col(column).is_not_null()).tail(MOST_RUNS)
        values = rows[column].to_list()
        if rows.is_empty() or rows["job_key"][-1] != job_key:
            continue
        begin = change_begin([quantity.worse * value for value in values], quantity)
        if begin is not None:
            usual = text(median(values[:begin]), quantity.unit)
            parts.append(f"{quantity.label} {text(values[-1], quantity.unit)}, usually {usual}")
            since.append((begin, rows["display_id"][begin]))
    if not parts:
        return None
    before, first = since[0]
    return Finding(
        "unlike_usual",
        "hint",
        "Worse than earlier runs of this name and size",
        f"{capitalized('; '.join(parts))} ({plural(before, 'run')} before). Since job {first}.",
        "Compare with the run before: its code, input, software and nodes.",
        {"runs_before": float(before)},
    )


def change_begin(values: Sequence[float], quantity: _Quantity) -> int | None:
    """Return the first index from which all values lie above the spread of those before.

    >>> change_begin([60.0, 62.0, 61.0, 60.0, 63.0, 61.0, 200.0, 190.0], _QUANTITIES["elapsed_s"])
    6
    """
    for begin in range(LEAST_RUNS, len(values)):
        before = values[:begin]
        middle = median(before)
        spread = _OF_MAD * median(abs(value - middle) for value in before)
        least = max(quantity.least, quantity.least_share * abs(middle))
        bound = middle + max(least, (_DEVIATIONS + _FOR_FEW / begin) * spread)
        if min(values[begin:]) > max(bound, *before):
            return begin
    return None
