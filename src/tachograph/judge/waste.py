"""GPU-hours and energy of jobs by cause of waste and use, their cost, the recoverable part."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import polars as pl

from tachograph.catalog.arrays import Floats
from tachograph.catalog.codes import CAUSE_OF_CLASS, SURE
from tachograph.catalog.config import WasteOptions
from tachograph.catalog.tables import IN_USE, WASTE, WASTE_ENERGY
from tachograph.catalog.units import text
from tachograph.judge.classes.characteristics import SM_BUSY, SPINNING, WORK
from tachograph.pipeline.timelines import ACTIVITY

if TYPE_CHECKING:
    from tachograph.judge.check import Check

HOURS = tuple(f"gpu_hours_{cause}" for cause in WASTE)
ENERGIES = tuple(f"energy_j_{cause}" for cause in WASTE_ENERGY)
LEAST_HOURS = 1e-3  # of a finding that names them: 3.6 s of a GPU
UNMEASURED, IDLE_LONG = "gpu_hours_unmeasured", "gpu_hours_idle_long"
_BOOKED = (*WASTE, *IN_USE)  # what measured time is given to
_PARTS = (
    *_BOOKED,
    "idle_long",
    "measured",
    *(f"energy_{cause}" for cause in WASTE_ENERGY),
    "energy",
    "powered",
)


def judge_waste(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    findings: pl.DataFrame,
    *,
    uneven: Collection[str],
    idle_util: float,
    idle_minutes: float,
) -> pl.DataFrame:
    """Return rows of job_summaries with the hours of each cause and use, and the energy of causes.

    `timelines`: one row per (job_key, minute), in order. `findings`: those of classes give the
    times when a job hung, stalled or had not begun; where one of the codes `uneven` holds, what
    GPUs lag behind the busiest is lost, else it is in use. `idle_util`: activity below is idle.
    `gpu_hours_idle_long`: what lies behind the first `idle_minutes` of periods without work. Null
    where no activity was measured, and for ambiguous jobs; energy also where the job's is unknown.
    """
    facts = _facts(jobs, _never_used(gpus, idle_util), _intervals(findings, uneven))
    minutes = _minutes(timelines, facts, idle_minutes).collect()
    place = minutes.get_column("place").to_numpy()
    # added up one by one, in order: however many jobs are judged at a time, each has the same sums
    sums: dict[str, Floats] = {}
    for name in _PARTS:
        added = np.bincount(place, minutes.get_column(name).to_numpy(), jobs.height)
        sums[name] = added.astype(np.float64)  # of none: counts
    known = pl.Series(np.bincount(place, minlength=jobs.height) > 0)
    powered = pl.Series(sums["powered"] > 0) & known
    # minutes count whole where they were measured in part: what was measured in all of them is
    # shared out
    energy = jobs.get_column("energy_j")
    part = (energy / pl.Series(sums["energy"])).clip(upper_bound=1.0).fill_nan(1.0)
    has_energy = energy.is_not_null() & powered
    unmeasured = jobs.get_column("gpu_hours") - pl.Series(sums["measured"] / 3600)
    columns: dict[str, pl.Expr] = {}
    for name in (*_BOOKED, "idle_long"):
        columns[f"gpu_hours_{name}"] = pl.when(known).then(pl.Series(sums[name] / 3600))
    columns[UNMEASURED] = pl.when(known).then(unmeasured.clip(lower_bound=0.0))
    for cause in WASTE_ENERGY:
        spent = pl.Series(sums[f"energy_{cause}"]) * part
        columns[f"energy_j_{cause}"] = pl.when(has_energy).then(spent)
    return jobs.with_columns(**columns)


def work_seen() -> pl.Expr:
    """Whether a counter shows work in a minute of the timelines; else null or False: not known.

    Full utilisation is no sign of work: a hung collective shows it, too. Without a sign there may
    be work: few sites record all pipes, and none records those of integers.

    >>> minutes = {"work": [0.3, None, 0.0], "mean_tensor_active": [None, None, 0.0]}
    >>> minutes |= {"mean_dram_active": [None, 0.1, 0.0], "sm_active": [None, None, 0.2]}
    >>> pl.DataFrame(minutes).select(work_seen()).to_series().to_list()
    [True, True, False]
    """
    work = pl.max_horizontal("work", "mean_tensor_active", "mean_dram_active") >= WORK
    return pl.any_horizontal(work, pl.col("sm_active") >= SM_BUSY)


def _never_used(gpus: pl.DataFrame, idle_util: float) -> pl.DataFrame:
    """GPUs of each job whose activity stayed below `idle_util` in every sample."""
    most = pl.coalesce(f"{name}_max" for name in ACTIVITY)
    return gpus.group_by("job_key").agg(never=(most < idle_util).sum().cast(pl.Int64))


def _intervals(findings: pl.DataFrame, uneven: Collection[str]) -> pl.DataFrame:
    """One row per job: whether each of CLASSES holds, its begin and end; whether work is uneven."""
    of_interval = pl.col("code").is_in(list(CAUSE_OF_CLASS)) & SURE
    of_imbalance = pl.col("code").is_in(list(uneven))
    holds = findings.filter(pl.col("verdict") == "yes", of_interval | of_imbalance)
    columns = [of_imbalance.any().alias("uneven")]
    for code in CAUSE_OF_CLASS:
        mine = pl.col("code") == code
        columns += [mine.any().alias(code)]
        columns += [
            pl.col(end).filter(mine).first().alias(f"{code}_{end}") for end in ("begin", "end")
        ]
    return holds.group_by("job_key").agg(columns)


def _facts(jobs: pl.DataFrame, never: pl.DataFrame, intervals: pl.DataFrame) -> pl.DataFrame:
    """One row per job with attributable hours: index, GPUs, seconds, intervals (s)."""
    chosen = jobs.select(
        "job_key", "start", "as_of", "gpus", "gpu_hours", "elapsed_s", "attribution"
    )
    joined = chosen.with_row_index("place").join(never, on="job_key", how="left")
    joined = joined.join(intervals, on="job_key", how="left")
    joined = joined.filter(pl.col("attribution") != "ambiguous", pl.col("gpu_hours").is_not_null())
    span_s = _seconds_to("as_of")
    held_h = pl.col("gpus") * pl.col("elapsed_s") / 3600
    limits = {}
    for code in CAUSE_OF_CLASS:
        text = pl.when(code)
        limits[f"{code}_from"] = text.then(_seconds_to(f"{code}_begin").fill_null(0.0))
        limits[f"{code}_to"] = text.then(_seconds_to(f"{code}_end").fill_null(span_s))
    return joined.select(
        "job_key",
        pl.col("place").cast(pl.Int64),
        pl.col("gpus").cast(pl.Float64).alias("allocated"),
        pl.col("never").fill_null(0),
        pl.col("uneven").fill_null(value=False),
        span_s=span_s,
        # a job that was suspended, or whose times are known to the minute only, ran for less than
        # from start to end; a MIG slice counts by its share of the GPU
        scale=pl.min_horizontal(1.0, pl.col("elapsed_s") / pl.when(span_s > 0).then(span_s))
        * (pl.col("gpu_hours") / held_h).fill_nan(1.0).fill_null(1.0).clip(upper_bound=1.0),
        **limits,
    )


def _seconds_to(name: str) -> pl.Expr:
    return (pl.col(name) - pl.col("start")).dt.total_microseconds() / 1e6


def _minutes(timelines: pl.DataFrame, facts: pl.DataFrame, idle_minutes: float) -> pl.LazyFrame:
    """Return one row per measured minute: `place` of the job, and _PARTS in GPU-seconds and J."""
    known = timelines.lazy().select(
        "job_key", "minute", "active_sum", "idle_power_w", gpus="measured_gpus", idle="idle_gpus",
        most=pl.coalesce(ACTIVITY), watts=pl.col("mean_power_w").cast(pl.Float64),
        works=work_seen(),
    )  # fmt: skip
    rows = known.filter(pl.col("gpus") > 0).join(
        facts.lazy(), on="job_key", how="inner", maintain_order="left"
    )
    begin = pl.col("minute") * 60.0
    rows = rows.with_columns(
        seconds=(pl.min_horizontal(begin + 60, "span_s") - begin).clip(lower_bound=0.0),
        idle_never=pl.min_horizontal("never", "idle"),
    )
    hung_s = pl.min_horizontal("seconds", _overlap(begin, "hung"))
    rows = rows.with_columns(
        hung_s=hung_s, cold_s=pl.min_horizontal(_overlap(begin, "cold_start"), _left(hung_s))
    )
    return _with_parts(_with_counted(rows), idle_minutes)


def _left(taken: pl.Expr) -> pl.Expr:
    return pl.col("seconds") - taken


def _overlap(begin: pl.Expr, cause: str) -> pl.Expr:
    """Seconds of the minute that lie in the job's intervals of a cause; 0 where it has none."""
    seconds = []
    for code in (code for code, of in CAUSE_OF_CLASS.items() if of == cause):
        first, last = (
            pl.max_horizontal(begin, f"{code}_from"),
            pl.min_horizontal(begin + pl.col("seconds"), f"{code}_to"),
        )
        inside = (last - first).clip(lower_bound=0.0)
        seconds.append(pl.when(pl.col(f"{code}_from").is_not_null()).then(inside).otherwise(0.0))
    return pl.sum_horizontal(seconds)


def _with_counted(rows: pl.LazyFrame) -> pl.LazyFrame:
    """With the GPUs that count: as many as were accounted.

    A job may hold whole nodes and be accounted for fewer GPUs: then those it never used are left
    out first, and the others count by `part`.
    """
    surplus = (pl.col("gpus") - pl.col("allocated")).clip(lower_bound=0.0)
    others = pl.col("gpus") - pl.col("idle_never")
    counted = (pl.col("idle_never") - surplus).clip(lower_bound=0.0)
    part = pl.min_horizontal(
        1.0, (pl.col("allocated") - counted) / pl.when(others > 0).then(others)
    )
    return rows.with_columns(
        others=others * part,
        counted_never=counted,
        part=part.fill_null(0.0),
        rest_s=_left(pl.col("hung_s") + pl.col("cold_s")),
    )


def _with_parts(rows: pl.LazyFrame, idle_minutes: float) -> pl.LazyFrame:
    never, others, part, rest = (
        pl.col(name) for name in ("counted_never", "others", "part", "rest_s")
    )
    idling = (pl.col("idle") - pl.col("idle_never")) * part
    active = pl.col("gpus") - pl.col("idle")
    # GPUs may report different counters: the busiest is at least at the mean of those at work
    most = pl.max_horizontal("most", pl.col("active_sum") / pl.when(active > 0).then(active))
    lag = (active - pl.col("active_sum") / pl.when(most > 0).then(most)).clip(lower_bound=0.0)
    idle_w = (
        pl.when(pl.col("idle") > 0).then(pl.col("idle_power_w") / pl.col("idle")).otherwise(0.0)
    )
    never_w = idle_w * pl.col("idle_never")
    others_w = (pl.col("watts") * pl.col("gpus") - never_w).clip(lower_bound=0.0) * part
    scale = pl.col("scale")
    idle_s = idling * rest * scale
    lost_lag = pl.when(pl.col("uneven") & (active > 0)).then(lag).otherwise(0.0)
    seconds = {
        "never_used": never * pl.col("seconds") * scale,
        "hung": others * pl.col("hung_s") * scale,
        "cold_start": others * pl.col("cold_s") * scale,
        "idle": idle_s,
        "imbalance": lost_lag * part * rest * scale,
        "idle_long": pl.when(_idle_minutes() >= idle_minutes).then(idle_s).otherwise(0.0),
        "measured": (never + others) * pl.col("seconds") * scale,
    }
    # what no cause took; the condition keeps rounding errors out of minutes without use
    left_s = seconds["measured"] - pl.sum_horizontal(seconds[cause] for cause in WASTE)
    used_s = pl.when((active > 0) & (rest > 0)).then(left_s.clip(lower_bound=0.0)).otherwise(0.0)
    seconds["in_use"] = pl.when("works").then(used_s).otherwise(0.0)
    seconds["in_use_unknown"] = pl.when("works").then(0.0).otherwise(used_s)
    joules = {
        "energy_never_used": idle_w * never * pl.col("seconds"),
        "energy_hung": others_w * pl.col("hung_s"),
        "energy_cold_start": others_w * pl.col("cold_s"),
        "energy_idle": idle_w * idling * rest,
        "energy": pl.col("watts") * pl.col("gpus") * pl.col("seconds"),
    }
    powered = pl.col("watts").is_not_null()
    energies = {name: pl.when(powered).then(value).otherwise(0.0) for name, value in joules.items()}
    filled = {name: value.fill_null(0.0) for name, value in seconds.items()}
    return rows.select("place", **filled, **energies, powered=powered.cast(pl.Float64))


def _idle_minutes() -> pl.Expr:
    """Return for how many consecutive minutes no GPU of the job had worked; null while one works.

    A minute not measured is a break, and a GPU that was never used does not count.
    """
    all_idle = (pl.col("idle") == pl.col("gpus")) & (pl.col("idle") > pl.col("idle_never"))
    follows = (pl.col("place") == pl.col("place").shift()) & (
        pl.col("minute") == pl.col("minute").shift() + 1
    )
    begins = ~(all_idle & all_idle.shift() & follows).fill_null(value=False)
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    return pl.when(all_idle).then(row - pl.when(begins).then(row).forward_fill())


def with_hours(findings: pl.DataFrame, jobs: pl.DataFrame, checks: Sequence[Check]) -> pl.DataFrame:
    """Return findings with the GPU-hours of their causes, as evidence and behind the sentence.

    Those that hold have them, where the ledger has at least LEAST_HOURS. `jobs`: rows that
    `judge_waste` returned.
    """
    by_code = {code: check for check in checks if check.causes for code in check.codes}
    holding = findings.filter(pl.col("verdict") == "yes", pl.col("code").is_in(list(by_code)))
    changed = []
    ledger = jobs.select("job_key", "gpus", "elapsed_s", *HOURS)
    for row in holding.join(ledger, on="job_key").iter_rows(named=True):
        causes = causes_of(by_code[row["code"]], row["code"], row["confidence"])
        evidence = msgspec.json.decode(row["evidence"])
        booked = sum(row[f"gpu_hours_{cause}"] or 0.0 for cause in causes)
        hours = min(booked, _most_hours(row, evidence, causes))
        if hours >= LEAST_HOURS:
            evidence["gpu_hours_idle"] = hours
            sentence = row["sentence"].removesuffix(".")  # texts of rules end without
            encoded = msgspec.json.encode(evidence).decode()
            text_with_hours = f"{sentence}. {_hours_sentence(hours, causes)}"
            changed.append((row["job_key"], row["code"], encoded, text_with_hours))
    schema = {name: pl.String() for name in ("job_key", "code", "evidence", "sentence")}
    new = pl.DataFrame(changed, schema=schema, orient="row")
    both = findings.join(
        new, on=["job_key", "code"], how="left", maintain_order="left", suffix="_new"
    )
    filled = {name: pl.coalesce(f"{name}_new", name) for name in ("evidence", "sentence")}
    return both.with_columns(**filled).select(findings.columns)


def _most_hours(
    row: Mapping[str, Any], evidence: Mapping[str, float], causes: tuple[str, ...]
) -> float:
    """The hours that a finding can be about, of those that the job lost to its causes.

    GPUs that were never used can lose no more than they were held; an interval that is booked as
    idle no more than it lasted, and nothing where its GPUs looked busy.
    """
    unused, elapsed_s = evidence.get("gpus_unused"), row["elapsed_s"]
    if unused is not None and elapsed_s is not None:
        return float(unused * elapsed_s / 3600)
    if causes != ("idle",) or row["begin"] is None or row["end"] is None or row["gpus"] is None:
        return math.inf
    if evidence.get("gpu_util_then", 0.0) >= SPINNING:
        return 0.0
    return float(row["gpus"] * (row["end"] - row["begin"]).total_seconds() / 3600)


def causes_of(check: Check, code: str, confidence: str | None) -> tuple[str, ...]:
    """Return the causes of a finding.

    Minutes of an interval that is not booked as its cause are idle.
    """
    is_booked = code in CAUSE_OF_CLASS and confidence != "low"
    return check.causes if is_booked or check.code not in CAUSE_OF_CLASS else ("idle",)


def _hours_sentence(hours: float, causes: tuple[str, ...]) -> str:
    """Return the hours of a finding in a sentence.

    >>> _hours_sentence(0.05, ("idle",)), _hours_sentence(1.25, ("imbalance",))
    ('0.05 GPU-h passed without work.', '1.2 GPU-h were lost to imbalance.')
    """
    spent = "were lost to imbalance" if causes == ("imbalance",) else "passed without work"
    return f"{text(hours, 'h').removesuffix(' h')} GPU-h {spent}."


JOULES_PER_KWH = 3.6e6


def with_money(jobs: pl.DataFrame, settings: WasteOptions) -> pl.DataFrame:
    """Return job_summaries with `price` per GPU-hour, `price_kwh`, `gco2_kwh`; null: not
    configured.

    Of `waste.prices` the price of its partition counts, else that of its model, else that of "*".

    >>> settings = WasteOptions(prices={"*": 1.0, "L40S": 1.5, "debug": 0.5})
    >>> jobs = pl.DataFrame({"partition": ["debug", "gpu", None], "gpu_model": ["L40S", "L40S", None]})
    >>> with_money(jobs, settings)["price"].to_list()
    [0.5, 1.5, 1.0]
    """
    general = pl.lit(settings.prices.get("*") or None, dtype=pl.Float64)
    price = pl.coalesce(
        *(_of(column, settings.prices) for column in ("partition", "gpu_model")), general
    )
    return jobs.with_columns(
        price=price,
        price_kwh=pl.lit(settings.price_per_kwh or None, dtype=pl.Float64),
        gco2_kwh=pl.lit(settings.emissions_g_per_kwh * settings.pue or None, dtype=pl.Float64),
    )


@dataclass(frozen=True, slots=True)
class EnergyEstimate:
    """Energy of a job with the overhead of the site, and its emissions: estimates.

    co2_g: None without a factor. `of`: nodes, or gpus, which is less than all that it used.
    """

    energy_j: float
    co2_g: float | None
    of: Literal["nodes", "gpus"]
    pue: float
    gco2_per_kwh: float


def energy_estimate(row: Mapping[str, Any], settings: WasteOptions) -> EnergyEstimate | None:
    """Return the estimate from a row of job_summaries; None: energy unknown, or nothing to add.

    >>> energy_estimate({"node_energy_j": 7.2e6}, WasteOptions(pue=1.5, emissions_g_per_kwh=400.0)).co2_g
    1200.0
    """
    joules = row.get("node_energy_j")
    source: Literal["nodes", "gpus"] = "nodes"
    if joules is None and (row.get("energy_gpus") or 0) >= (row.get("gpus") or 1):
        joules, source = row.get("energy_j_estimated"), "gpus"
    if joules is None or (settings.pue == 1 and not settings.emissions_g_per_kwh):
        return None
    energy_j = joules * settings.pue
    co2_g = (
        energy_j / JOULES_PER_KWH * settings.emissions_g_per_kwh
        if settings.emissions_g_per_kwh
        else None
    )
    return EnergyEstimate(energy_j, co2_g, source, settings.pue, settings.emissions_g_per_kwh)


def _of(column: str, prices: dict[str, float]) -> pl.Expr:
    return (
        pl.col(column).replace_strict(prices, default=None, return_dtype=pl.Float64)
        if prices
        else pl.lit(None)
    )


_OURS = "our assumption"


@dataclass(frozen=True, slots=True)
class Assumption:
    """Assumption behind a cause: key of [waste], unit, text (with {value}), source of its default.

    `least`, `most`: between which the value makes sense.
    """

    cause: str
    key: str
    unit: str
    words: str
    source: str
    least: float = 0.0
    most: float = 1.0

    def value(self, settings: WasteOptions) -> float:
        """Return the value that is configured."""
        return float(getattr(settings, self.key))


# in the order of the causes
ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption("never_used", "never_used_share", "fraction", ("{value} of them are not requested next "
    "time, where others get them"), _OURS),
    Assumption(
        "hung", "watchdog_minutes", "min", "a watchdog ends a hang or a stall after {value}",
        "shortest hang in Matveev et al. 2025", most=float("inf"),
    ),
    Assumption(
        "cold_start", "start_minutes", "min", ("setup longer than {value} before the first GPU "
        "work moves to a CPU job"),
        _OURS, most=float("inf"),
    ),
    Assumption(
        "idle", "idle_minutes", "min", ("GPUs are released after {value} in which no GPU of the "
        "job worked"),
        _OURS, most=float("inf"),
    ),
    Assumption("imbalance", "imbalance_share", "fraction", "{value} of the imbalance is fixed", _OURS),
)  # fmt: skip


def recoverable(
    jobs: pl.DataFrame,
    intervals: pl.DataFrame,
    settings: WasteOptions,
    freed: Mapping[str, float] = MappingProxyType({}),
) -> pl.DataFrame:
    """Return rows of job_summaries with `recoverable_<cause>`, GPU-hours; null where the hours are.

    `intervals`: rows of findings, in which a job hung, stalled or had not begun. Of those what lies
    behind the assumed minutes counts. `idle_minutes` was applied when the jobs were judged: it is a
    matter of their minutes. `freed`: {job_key: share of the GPUs that were never used which a
    change of the request frees for others}, where there is one.
    """
    shares_freed = [freed.get(key, 0.0) for key in jobs.get_column("job_key")]
    lengths = _lengths(intervals)
    rows = jobs.join(lengths, on="job_key", how="left", maintain_order="left")
    shares: Mapping[str, pl.Expr] = MappingProxyType(
        {
            "never_used": settings.never_used_share
            * pl.lit(pl.Series(shares_freed, dtype=pl.Float64)),
            "hung": _behind("hung", settings.watchdog_minutes),
            "cold_start": _behind("cold_start", settings.start_minutes),
            "imbalance": pl.lit(settings.imbalance_share),
        }
    )
    recovered = {
        f"recoverable_{cause}": pl.col(f"gpu_hours_{cause}") * share
        for cause, share in shares.items()
    }
    return rows.with_columns(**recovered, recoverable_idle=pl.col(IDLE_LONG)).drop(
        lengths.columns[1:]
    )


def _lengths(intervals: pl.DataFrame) -> pl.DataFrame:
    """One row per job: minutes of each of CLASSES; null where not recorded."""
    length = (pl.col("end") - pl.col("begin")).dt.total_microseconds() / 60e6
    # busy-waiting at the end of a hang is a part of it
    return (
        intervals.filter(SURE, pl.col("covered_by").ne_missing("job_hang"))
        .group_by("job_key")
        .agg(
            length.filter(pl.col("code") == code).first().alias(f"{code}_min")
            for code in CAUSE_OF_CLASS
        )
    )


def _behind(cause: str, minutes: float) -> pl.Expr:
    """Return the share of a cause's intervals after the first `minutes` of each; 0: unknown
    length.
    """
    lengths = [
        pl.col(f"{code}_min").clip(lower_bound=0.0)
        for code, of in CAUSE_OF_CLASS.items()
        if of == cause
    ]
    total = pl.sum_horizontal(lengths)
    behind = pl.sum_horizontal([(length - minutes).clip(lower_bound=0.0) for length in lengths])
    return (behind / pl.when(total > 0).then(total)).fill_null(0.0)
