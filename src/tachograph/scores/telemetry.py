"""Scores from the counters that DCGM records: occupancy, activity of SMs and memory, clocks.

`sm_occupancy` is resident warps over the most there can be, per elapsed cycle, so score_gpu = 100 (1 - sm_occupancy).
Averages first, clamps after: the inputs are averaged over time and GPUs, and the result is limited once.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tachograph.devices import BY_NAME
from tachograph.summarize.schema import SCORES

_OCCUPANCY, _SM, _DRAM = "sm_occupancy_mean", "sm_active_mean", "dram_active_mean"
_SM_CLOCK, _MEM_CLOCK = "sm_clock_mhz_mean", "mem_clock_mhz_mean"


def with_scores(frame: pl.DataFrame, max_warps: Mapping[str, int] | None = None) -> pl.DataFrame:
    """Return rows with `score_gpu`, `score_gpumem` and `score_gpumem_normalized`, 0..100.

    `frame`: rows of job_gpus (then `max_warps`: {device: W_max}), or what `inputs_of_jobs` returns. Null where an input
    is missing, and where neither SMs nor memory were active. Without both clocks they are taken as equal.

    >>> gpu = {"gpu_model": "H200 SXM 141GB", "sm_occupancy_mean": 0.25, "sm_active_mean": 0.5, "dram_active_mean": 0.5}
    >>> gpu |= {"sm_clock_mhz_mean": 1980.0, "mem_clock_mhz_mean": 3201.0}
    >>> with_scores(pl.DataFrame([gpu]), {}).select(pl.col("^score_.*$").round(2)).row(0)
    (75.0, 61.78, 50.0)
    """
    rows = frame if max_warps is None else frame.with_columns(**_inputs(max_warps))
    resident = pl.col("resident").clip(upper_bound=pl.col("room"))
    traffic, work = pl.col(_DRAM) * pl.col("mem_clock"), pl.col("sm") * pl.col("sm_clock")
    scored = rows.with_columns(
        score_gpu=_limited(1 - resident),
        score_gpumem=_limited(_share(traffic, work)),
        score_gpumem_normalized=_limited(_share(pl.col(_DRAM), pl.col("sm"))),
    )
    return scored.select(list(dict.fromkeys((*frame.columns, *SCORES))))


def inputs_of_jobs(gpus: pl.DataFrame, max_warps: Mapping[str, int]) -> pl.DataFrame:
    """Return one row per job: means over its GPUs of what the scores are made of.

    A job holds its GPUs equally long, so this is the mean over GPU time. `resident`, `room`: of GPUs of which both are
    known. `dram_active_mean`, `sm`: of GPUs that tell both; `sm_clock`, `mem_clock`: of those of them that tell
    both clocks, 1 where none does (`clocks` false). `measured_<counter>`: whether any GPU tells it.
    """
    rows = gpus.select("job_key", _OCCUPANCY, _SM, _DRAM, **_inputs(max_warps))
    filled, both = pl.col("resident").is_not_null(), pl.col(_DRAM).is_not_null() & pl.col("sm").is_not_null()
    clocked = both & pl.col("clocks")
    of_clocks = {
        name: pl.when(clocked.any()).then(pl.col(name).filter(clocked).mean()).otherwise(1.0)
        for name in ("sm_clock", "mem_clock")
    }
    return rows.group_by("job_key", maintain_order=True).agg(
        pl.col(_OCCUPANCY).mean(),
        pl.col(_SM).mean(),
        pl.col("resident").mean(),
        pl.col("room").filter(filled).mean(),
        pl.col(_DRAM, "sm").filter(both).mean(),
        **of_clocks,
        clocks=clocked.any(),
        limited=pl.col("limited").any(),
        measured_sm_occupancy=pl.col(_OCCUPANCY).is_not_null().any(),
        measured_sm_active=pl.col(_SM).is_not_null().any(),
        measured_dram_active=pl.col(_DRAM).is_not_null().any(),
    )


def _inputs(max_warps: Mapping[str, int]) -> dict[str, pl.Expr]:
    """What scores are made of, per GPU.

    With W_max warps instead of the device's W_hw, min(W_max, W) / W_max x sm_active where W = W_hw x occupancy /
    sm_active is min(occupancy x W_hw / W_max, sm_active): `resident` and `room`. Without a smaller W_max the occupancy
    itself, limited by 1.
    """
    ratios = {name: _ratio(name, warps) for name, warps in max_warps.items()}
    smaller = {name: ratio for name, ratio in ratios.items() if ratio > 1}
    ratio = pl.lit(1.0)
    if smaller:
        ratio = pl.col("gpu_model").replace_strict(smaller, default=1.0, return_dtype=pl.Float64)
    room = pl.when(ratio > 1).then(pl.col(_SM)).otherwise(1.0)
    known = (pl.col(_SM_CLOCK) > 0) & (pl.col(_MEM_CLOCK) > 0)
    return {
        "limited": ratio > 1,
        "resident": pl.when(room.is_not_null()).then(pl.col(_OCCUPANCY) * ratio),
        "room": room,
        "sm": pl.col(_SM),
        "sm_clock": pl.when(known).then(pl.col(_SM_CLOCK)).otherwise(1.0),
        "mem_clock": pl.when(known).then(pl.col(_MEM_CLOCK)).otherwise(1.0),
        "clocks": known.fill_null(value=False),
    }


def _ratio(model: str, warps: int) -> float:
    """W_hw over W_max; 1 for a device that the catalogue does not know, and for more warps than it has."""
    return BY_NAME[model].max_warps_per_sm / warps if model in BY_NAME and warps > 0 else 1.0


def _share(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    return pl.when(one + other > 0).then(one / (one + other))


def _limited(fraction: pl.Expr) -> pl.Expr:
    return (100 * fraction).clip(0.0, 100.0)
