"""GPU scores of jobs from recorded counters: 0 best, 100 worst.

Source: Matveev, Setyaev, Voevodin, "New approaches for automatic analysis of HPC application
performance using the TASC software suite", Num. Meth. Prog. 26(4), 2025, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.catalog.tables import SCORES
from tachograph.catalog.units import text
from tachograph.judge.finding import CheckedValue, Finding, JudgedRows, findings_frame

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow

    class ScoredRow(JobSummaryRow, total=False):
        """Row of job_summaries with what its scores are made of, see `inputs_of_jobs`."""

        sm: float | None
        sm_clock: float
        mem_clock: float
        clocks: bool


IDLE_BELOW = 0.01  # SM and memory activity below it: a score of what hardly ran means little
HIGH = 70.0  # a score from here on is a finding
SCORE_TITLES = {"score_gpu": "GPU score", "score_gpumem": "GPU memory score"}


def score_findings(row: ScoredRow) -> tuple[Finding, Finding]:
    """Return the findings on a job's two scores; `row`: inputs and scores.

    Verdict yes from HIGH on; unknown where a score is null, naming the counters that were not
    measured.
    """
    return _of_gpu(row), _of_memory(row)


def _of_gpu(row: ScoredRow) -> Finding:
    score, occupancy = row["score_gpu"], row["sm_occupancy_mean"]
    if score is None or occupancy is None:
        return _unknown(row, "score_gpu", ("sm_occupancy",))
    rated = "room for many more warps" if score >= HIGH else "few more warps would fit"
    if HIGH > score >= HIGH / 2:
        rated = "room for more warps"
    if (row["sm_active_mean"] or occupancy) < IDLE_BELOW:
        rated = "hardly anything ran"
    mean = text(occupancy, "fraction")
    sentence = (
        f"GPU score {score:.0f} of 100 (0 best, 100 worst): occupancy {mean} on average, {rated}."
    )
    evidence = {
        "score_gpu": score,
        "sm_occupancy_mean": occupancy,
        "sm_active_mean": row["sm_active_mean"],
    }
    return _finding("score_gpu", score, sentence, evidence)


def _of_memory(row: ScoredRow) -> Finding:
    score, dram, sm = row["score_gpumem"], row["dram_active_mean"], row["sm"]
    if score is None or dram is None or sm is None:
        return _unknown(row, "score_gpumem", ("dram_active", "sm_active"))
    rated = (
        "memory traffic rather than the SMs"
        if score >= HIGH
        else "the SMs at least as much as memory traffic"
    )
    if HIGH > score > 50:
        rated = "memory traffic somewhat more than the SMs"
    used = (
        f"what ran used {rated}"
        if max(dram, sm) >= IDLE_BELOW
        else "hardly anything ran, so it says little"
    )
    clocks = "" if row["clocks"] else " The clocks were not measured and are taken as equal."
    sentence = (
        f"GPU memory score {score:.0f} of 100 (0 best, 100 worst): memory was active "
        f"{text(dram, 'fraction')} of the "
        f"time, the SMs {text(sm, 'fraction')}; {used}.{clocks}"
    )
    evidence: dict[str, float | None] = {
        "score_gpumem": score,
        "dram_active_mean": dram,
        "sm_active_mean": sm,
    }
    if row["clocks"]:
        evidence |= {"sm_clock_mhz_mean": row["sm_clock"], "mem_clock_mhz_mean": row["mem_clock"]}
    return _finding("score_gpumem", score, sentence, evidence)


def _finding(
    code: str, score: float, sentence: str, evidence: Mapping[str, float | None]
) -> Finding:
    return Finding(
        code,
        "fact",
        SCORE_TITLES[code],
        sentence,
        evidence={name: value for name, value in evidence.items() if value is not None},
        kind="score",
        verdict="yes" if score >= HIGH else "no",
        checks=(CheckedValue(code, score, ">=", HIGH, "", score >= HIGH),),
    )


def _unknown(row: ScoredRow, code: str, needed: tuple[str, ...]) -> Finding:
    missing = tuple(counter for counter in needed if not row.get(f"measured_{counter}"))
    if row["attribution"] == "ambiguous":
        why, missing = "it is not known which GPUs were the job's own", ()
    elif missing:
        why = f"not measured: {', '.join(missing)}"
    elif code == "score_gpumem" and row["dram_active_mean"] is not None:
        why = "neither the SMs nor memory were active"
    else:
        why = f"no GPU reports all of {', '.join(needed)}"
    return Finding(
        code,
        "fact",
        SCORE_TITLES[code],
        f"{SCORE_TITLES[code]} not known: {why}.",
        kind="score",
        verdict="unknown",
        checks=(CheckedValue(code, None, ">=", HIGH, "", None),),
        needs=missing,
    )


_OCCUPANCY, _SM, _DRAM = "sm_occupancy_mean", "sm_active_mean", "dram_active_mean"
_SM_CLOCK, _MEM_CLOCK = "sm_clock_mhz_mean", "mem_clock_mhz_mean"


_CLOCKED = (pl.col(_SM_CLOCK) > 0) & (pl.col(_MEM_CLOCK) > 0)
# What scores are made of, per GPU.
_INPUTS: Mapping[str, pl.Expr] = {
    "sm": pl.col(_SM),
    "sm_clock": pl.when(_CLOCKED).then(pl.col(_SM_CLOCK)).otherwise(1.0),
    "mem_clock": pl.when(_CLOCKED).then(pl.col(_MEM_CLOCK)).otherwise(1.0),
    "clocks": _CLOCKED.fill_null(value=False),
}


def with_scores(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return job_gpus with `score_gpu`, `score_gpumem`, `score_gpumem_normalized`, 0..100.

    Null where an input is missing, and where neither SMs nor memory were active. Without both
    clocks they are taken as equal.

    >>> gpu = {"sm_occupancy_mean": 0.25, "sm_active_mean": 0.5, "dram_active_mean": 0.5}
    >>> gpu |= {"sm_clock_mhz_mean": 1980.0, "mem_clock_mhz_mean": 3201.0}
    >>> with_scores(pl.DataFrame([gpu])).select(pl.col("^score_.*$").round(2)).row(0)
    (75.0, 61.78, 50.0)
    """
    scored = _scored(gpus.with_columns(**_INPUTS))
    return scored.select(list(dict.fromkeys((*gpus.columns, *SCORES))))


def _scored(inputs: pl.DataFrame) -> pl.DataFrame:
    traffic, work = pl.col(_DRAM) * pl.col("mem_clock"), pl.col("sm") * pl.col("sm_clock")
    return inputs.with_columns(
        score_gpu=_limited(1 - pl.col(_OCCUPANCY)),
        score_gpumem=_limited(_share(traffic, work)),
        score_gpumem_normalized=_limited(_share(pl.col(_DRAM), pl.col("sm"))),
    )


def inputs_of_jobs(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job: means over its GPUs of what the scores are made of.

    A job holds its GPUs equally long, so this is the mean over GPU time. `dram_active_mean`, `sm`:
    of GPUs that report both; `sm_clock`, `mem_clock`: of those of them that report both clocks, 1
    where none does (`clocks` false). `measured_<counter>`: whether any GPU reports it.
    """
    rows = gpus.select("job_key", _OCCUPANCY, _SM, _DRAM, **_INPUTS)
    both = pl.col(_DRAM).is_not_null() & pl.col("sm").is_not_null()
    clocked = both & pl.col("clocks")
    of_clocks = {
        name: pl.when(clocked.any()).then(pl.col(name).filter(clocked).mean()).otherwise(1.0)
        for name in ("sm_clock", "mem_clock")
    }
    return rows.group_by("job_key", maintain_order=True).agg(
        pl.col(_OCCUPANCY).mean(),
        pl.col(_SM).mean(),
        pl.col(_DRAM, "sm").filter(both).mean(),
        **of_clocks,
        clocks=clocked.any(),
        measured_sm_occupancy=pl.col(_OCCUPANCY).is_not_null().any(),
        measured_sm_active=pl.col(_SM).is_not_null().any(),
        measured_dram_active=pl.col(_DRAM).is_not_null().any(),
    )


def _share(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    return pl.when(one + other > 0).then(one / (one + other))


def _limited(fraction: pl.Expr) -> pl.Expr:
    return (100 * fraction).clip(0.0, 100.0)


def judge_scores(jobs: pl.DataFrame, gpus: pl.DataFrame) -> JudgedRows:
    """Return rows of job_summaries and of job_gpus with the columns SCORES, and two findings a job.

    A score of a job is that of its GPUs' mean inputs; null where a counter it needs was not
    measured.
    """
    inputs = inputs_of_jobs(gpus)
    facts = jobs.select("job_key", "job_id", "attribution").join(
        inputs, on="job_key", how="left", maintain_order="left"
    )
    scored = _scored(facts)
    columns = [scored.get_column(name) for name in SCORES]
    rows = cast("Iterator[ScoredRow]", scored.iter_rows(named=True))
    findings = findings_frame((row, score_findings(row)) for row in rows)
    return JudgedRows(jobs.with_columns(columns), with_scores(gpus), findings)
