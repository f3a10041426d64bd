"""What of the lost GPU-hours could be had back, each under an assumption that is said with the figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from tachograph.config import Waste
from tachograph.waste.ledger import CLASSES, IDLE_LONG

_OURS = "our assumption"


@dataclass(frozen=True, slots=True)
class Assumption:
    """What is assumed for a cause: a key of [waste], its unit, in words (with {value}), and where its default is from.

    `least`, `most`: between which the value makes sense.
    """

    cause: str
    key: str
    unit: str
    words: str
    source: str
    least: float = 0.0
    most: float = 1.0

    def value(self, settings: Waste) -> float:
        """Return the value that is configured."""
        return float(getattr(settings, self.key))


# in the order of the causes
ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption("never_used", "never_used_share", "fraction", "{value} of them are not asked for next time", _OURS),
    Assumption(
        "hung", "watchdog_minutes", "min", "a watchdog ends a hang or a stall after {value}",
        "T of the hung classes (Matveev et al. 2025)", most=float("inf"),
    ),
    Assumption(
        "cold_start", "start_minutes", "min", "what takes longer than {value} before the first work moves to a CPU job",
        _OURS, most=float("inf"),
    ),
    Assumption(
        "idle", "idle_minutes", "min", "GPUs are given back after {value} in which none of the job worked",
        _OURS, most=float("inf"),
    ),
    Assumption("imbalance", "imbalance_share", "fraction", "{value} of the imbalance is mended", _OURS),
)  # fmt: skip


def recoverable(jobs: pl.DataFrame, intervals: pl.DataFrame, settings: Waste) -> pl.DataFrame:
    """Return rows of job_summaries with `recoverable_<cause>`, GPU-hours; null where the hours are.

    `intervals`: rows of findings, in which a job hung, stood still or had not begun. Of those what lies behind the
    assumed minutes counts. `idle_minutes` was applied when the jobs were judged: it is a matter of their minutes.
    """
    lengths = _lengths(intervals)
    rows = jobs.join(lengths, on="job_key", how="left", maintain_order="left")
    shares: Mapping[str, pl.Expr] = MappingProxyType(
        {
            "never_used": pl.lit(settings.never_used_share),
            "hung": _behind("hung", settings.watchdog_minutes),
            "cold_start": _behind("cold_start", settings.start_minutes),
            "imbalance": pl.lit(settings.imbalance_share),
        }
    )
    recovered = {f"recoverable_{cause}": pl.col(f"gpu_hours_{cause}") * share for cause, share in shares.items()}
    return rows.with_columns(**recovered, recoverable_idle=pl.col(IDLE_LONG)).drop(lengths.columns[1:])


def _lengths(intervals: pl.DataFrame) -> pl.DataFrame:
    """One row per job: minutes of each of CLASSES; null where not said."""
    length = (pl.col("end") - pl.col("begin")).dt.total_microseconds() / 60e6
    return intervals.group_by("job_key").agg(
        length.filter(pl.col("code") == code).first().alias(f"{code}_min") for code in CLASSES
    )


def _behind(cause: str, minutes: float) -> pl.Expr:
    """Share of the intervals of a cause behind the first `minutes` of each; 0 where their length is not known."""
    lengths = [pl.col(f"{code}_min").clip(lower_bound=0.0) for code, of in CLASSES.items() if of == cause]
    total = pl.sum_horizontal(lengths)
    behind = pl.sum_horizontal([(length - minutes).clip(lower_bound=0.0) for length in lengths])
    return (behind / pl.when(total > 0).then(total)).fill_null(0.0)
