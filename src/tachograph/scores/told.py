"""What the scores of a job say, in words.

They are facts: many warps are no aim of their own (kernels on tensor cores run at full speed with few), and what there
is to mend about little use or much memory traffic is told by the findings low_utilisation and memory_bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.finding import Check, Finding
from tachograph.units import text

AT_REST = 0.01  # SM and memory activity below it: a score of what hardly ran says little
_TITLES = {"score_gpu": "GPU score", "score_gpumem": "GPU memory score"}


def told(row: Mapping[str, Any], *, high: float) -> tuple[Finding, Finding]:
    """Return what the two scores of a job say; `row`: its inputs (`telemetry.inputs_of_jobs`) and scores.

    Verdict yes from `high` on; insufficient where a score is null, naming the counters that were not measured.
    """
    return _of_gpu(row, high), _of_memory(row, high)


def _of_gpu(row: Mapping[str, Any], high: float) -> Finding:
    score, occupancy = row["score_gpu"], row["sm_occupancy_mean"]
    if score is None:
        needed = ("sm_occupancy", *(("sm_active",) if row["limited"] else ()))
        return _unknown(row, "score_gpu", high, needed)
    rated = "there is room for many more" if score >= high else "few more would fit"
    if score < high and score >= high / 2:
        rated = "there is room for more"
    if (row["sm_active_mean"] or occupancy) < AT_REST:
        rated = "for hardly anything ran"
    limit = " (of the configured most warps)" if row["limited"] else ""
    held = f"the SMs held {text(occupancy, 'fraction')} of the warps that fit"
    sentence = f"GPU score {score:.0f} of 100 (0 best, 100 worst){limit}: on average {held}, {rated}."
    evidence = {"score_gpu": score, "sm_occupancy_mean": occupancy, "sm_active_mean": row["sm_active_mean"]}
    return _finding("score_gpu", score, high, sentence, evidence)


def _of_memory(row: Mapping[str, Any], high: float) -> Finding:
    score, dram, sm = row["score_gpumem"], row["dram_active_mean"], row["sm"]
    if score is None:
        return _unknown(row, "score_gpumem", high, ("dram_active", "sm_active"))
    rated = "memory traffic rather than the SMs" if score >= high else "the SMs at least as much as memory traffic"
    if high > score > 50:
        rated = "memory traffic somewhat more than the SMs"
    used = f"what ran used {rated}" if max(dram, sm) >= AT_REST else "hardly anything ran, so it says little"
    clocks = "" if row["clocks"] else " The clocks were not measured and are taken as equal."
    sentence = (
        f"GPU memory score {score:.0f} of 100 (0 best, 100 worst): memory was active {text(dram, 'fraction')} of the "
        f"time, the SMs {text(sm, 'fraction')}; {used}.{clocks}"
    )
    evidence = {"score_gpumem": score, "dram_active_mean": dram, "sm_active_mean": sm}
    if row["clocks"]:
        evidence |= {"sm_clock_mhz_mean": row["sm_clock"], "mem_clock_mhz_mean": row["mem_clock"]}
    return _finding("score_gpumem", score, high, sentence, evidence)


def _finding(code: str, score: float, high: float, sentence: str, evidence: Mapping[str, float | None]) -> Finding:
    return Finding(
        code,
        "fact",
        _TITLES[code],
        sentence,
        evidence={name: value for name, value in evidence.items() if value is not None},
        kind="score",
        verdict="yes" if score >= high else "no",
        checks=(Check(code, score, ">=", high, "", score >= high),),
    )


def _unknown(row: Mapping[str, Any], code: str, high: float, needed: tuple[str, ...]) -> Finding:
    missing = tuple(counter for counter in needed if not row[f"measured_{counter}"])
    if row["attribution"] == "ambiguous":
        why, missing = "it is not known which GPUs were the job's own", ()
    elif missing:
        why = f"not measured: {', '.join(missing)}"
    elif code == "score_gpumem" and row["dram_active_mean"] is not None:
        why = "neither the SMs nor memory were active"
    else:
        why = f"no GPU tells all of {', '.join(needed)}"
    return Finding(
        code,
        "fact",
        _TITLES[code],
        f"{_TITLES[code]} not known: {why}.",
        kind="score",
        verdict="insufficient",
        checks=(Check(code, None, ">=", high, "", None),),
        needs=missing,
    )
