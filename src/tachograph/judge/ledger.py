"""The ledger of a system: GPU-hours by cause, their cost, the recoverable part, by user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

import polars as pl

from tachograph.catalog.columns import must_exist
from tachograph.catalog.config import WasteOptions
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import IN_USE, WASTE, WASTE_ENERGY
from tachograph.catalog.units import text
from tachograph.judge.capacity import CapacityReport
from tachograph.judge.waste import (
    ASSUMPTIONS,
    IDLE_LONG,
    JOULES_PER_KWH,
    UNMEASURED,
    recoverable,
    with_money,
)

WASTE_GROUPINGS = ("cause", "user", "account", "partition", "cluster", "gpu_model")
ALL_CAUSES = "all"  # of jobs: those that lost hours to any cause
# of an hour: held without work by a cause, in use, or not measured
WASTE_BUCKETS = (*WASTE, *IN_USE, "unmeasured")
WASTE_LABELS: Mapping[str, str] = {
    "never_used": "never used",
    "hung": "hung",
    "cold_start": "cold start",
    "idle": "held, idle",
    "imbalance": "imbalance",
    "in_use": "in use",
    "in_use_unknown": "in use, work not known",
    "unmeasured": "not measured",
    ALL_CAUSES: "all causes",
}
# why a job is not in the ledger, in the order of checking
WASTE_LEFT_OUT: Mapping[str, str] = {
    "running": "still running",
    "ambiguous": "not known which GPUs were their own",
    "no_samples": "no samples",
    "shares": "had shares of GPUs, of a size that is not known",
    "not_judged": "analyzed by an earlier version: run `tachograph analyze --full`",
    "no_activity": "no activity counter was measured",
}
_WHO = (
    "job_key",
    "job_id",
    "display_id",
    "user",
    "account",
    "partition",
    "gpu_model",
    "gpus",
    "elapsed_s",
)
# what of job_summaries the ledger is made of
LEDGER_COLUMNS = (
    *(
        *_WHO,
        "cluster",
        "gpu_hours",
        "start",
        "end",
        "as_of",
        "state",
        "attribution",
        "samples",
        "shards",
        "mps",
    ),
    *("gpu_util_mean", "gr_engine_active_mean", "sm_active_mean", UNMEASURED, IDLE_LONG),
    *(f"gpu_hours_{name}" for name in (*WASTE, *IN_USE)),
    *(f"energy_j_{cause}" for cause in WASTE_ENERGY),
)
LOST_SHARE = pl.when(pl.col("gpu_hours") > 0).then(pl.col("lost") / pl.col("gpu_hours"))
_AMOUNTS = (
    *("gpu_hours", "energy_j", "co2_g", "money", "energy_money"),
    *("recoverable", "recoverable_money"),
)


@dataclass(frozen=True, slots=True)
class AssumptionInUse:
    """An assumption under which hours are recoverable: cause, key, value, sentence, source."""

    cause: str
    key: str
    value: float
    unit: str
    words: str
    source: str


@dataclass(frozen=True, slots=True)
class WasteReport:
    """The ledger of some jobs that are over.

    `causes`: one row per BUCKETS: `cause`, `jobs` it concerns, `gpu_hours`, `share` of all,
    `energy_j`, `co2_g` (estimated), `money` of the GPU-hours, `energy_money`, `recoverable`
    GPU-hours,
    `recoverable_money`. `groups`: one row per value of `by`, most lost first: `jobs`, `gpu_hours`,
    a column per BUCKETS in GPU-hours, `lost` (their causes' sum), `lost_share`, `lost_energy_j`,
    `lost_money`, `recoverable`; None where `by` is cause. `concerned`: the jobs behind the cause
    `jobs_of`, most first; of ALL most recoverable first, `gpu_hours_lost` to all causes together
    and `cause`: that of most recoverable hours. Money is null where no price is configured.
    """

    jobs: int
    gpu_hours: float
    first: datetime | None
    last: datetime | None
    causes: pl.DataFrame
    left_out: pl.DataFrame
    assumptions: tuple[AssumptionInUse, ...]
    users: pl.DataFrame
    by: str
    groups: pl.DataFrame | None
    jobs_of: str | None
    concerned: pl.DataFrame | None
    concerned_jobs: int
    currency: str
    unpriced_jobs: int
    zone_name: str
    since: datetime | None  # what was asked for; jobs that ran then may begin before it
    until: datetime | None
    # of all installed GPUs in that time; None: not known, or only some jobs were chosen
    capacity: CapacityReport | None = None

    @property
    def priced(self) -> bool:
        """Whether GPU-hours of any job have a price."""
        return bool(self.causes.get_column("money").is_not_null().any())

    @property
    def energy_priced(self) -> bool:
        """Whether energy of any job has a price."""
        return bool(self.causes.get_column("energy_money").is_not_null().any())

    @property
    def co2_known(self) -> bool:
        """Whether emissions of any cause are known."""
        return bool(self.causes.get_column("co2_g").is_not_null().any())

    @property
    def concerned_hours(self) -> str:
        """Column of `concerned` with GPU-hours of the selected cause, or ALL of them."""
        return "gpu_hours_lost" if self.jobs_of == ALL_CAUSES else f"gpu_hours_{self.jobs_of}"

    def total(self, amount: str) -> float | None:
        """Return the sum of an amount over all causes; None where it is known of none."""
        known = self.causes.get_column(amount).drop_nulls()
        return None if known.is_empty() else float(known.sum())

    def hours(self, *buckets: str) -> float:
        """Return the GPU-hours of some of WASTE_BUCKETS."""
        rows = self.causes.filter(pl.col("cause").is_in(buckets))
        return float(rows.get_column("gpu_hours").sum())

    @property
    def lost(self) -> float:
        """GPU-hours of all causes."""
        return self.hours(*WASTE)

    @property
    def lost_money(self) -> float:
        """What the GPU-hours of all causes cost, as far as they have a price."""
        return float(
            self.causes.filter(pl.col("cause").is_in(WASTE)).get_column("money").drop_nulls().sum()
        )

    @property
    def recoverable(self) -> float:
        """GPU-hours that are recoverable under the assumptions."""
        return float(self.causes.get_column("recoverable").sum())


def build_waste_report(
    summaries: pl.DataFrame,
    intervals: pl.DataFrame,
    settings: WasteOptions,
    *,
    freed: Mapping[str, float] = MappingProxyType({}),
    by: str = "cause",
    top: int | None = None,
    jobs_of: str | None = None,
    zone_name: str = "UTC",
    since: datetime | None = None,
    until: datetime | None = None,
    capacity: CapacityReport | None = None,
) -> WasteReport:
    """Return the ledger of (already filtered) rows of job_summaries.

    `intervals`: rows of findings in which a job hung or had not begun. `freed`: see recoverable.
    `top`: at most so many groups, the others in one row that has no name, and at most so many jobs.
    `jobs_of`: the cause whose jobs are requested, as in BUCKETS or as in LABELS, or ALL. `since`,
    `until`: the time that was asked for. Errors: UsageError for an unknown grouping or cause, or a
    top below 1.
    """
    must_exist([by], WASTE_GROUPINGS, what="grouping", error=UsageError)
    jobs_of = _cause(jobs_of)
    if top is not None and top < 1:
        raise UsageError(f"invalid --top {top}", do="give 1 or more")
    marked = summaries.with_columns(left_out=_reason())
    ledger = marked.filter(pl.col("left_out").is_null())
    ledger = with_money(recoverable(ledger, intervals, settings, freed), settings)
    concerned = None if jobs_of is None else _concerned(ledger, jobs_of)
    return WasteReport(
        jobs=ledger.height,
        gpu_hours=float(ledger.get_column("gpu_hours").sum()),
        first=ledger.select(pl.col("start").min()).item(),
        last=ledger.select(pl.col("as_of").max()).item(),
        causes=_causes(ledger),
        left_out=_left_out(marked),
        assumptions=tuple(assumptions_in_use(settings)),
        users=_groups(ledger, "user"),
        by=by,
        groups=None if by == "cause" else _cut(_groups(ledger, by), top),
        jobs_of=jobs_of,
        concerned=concerned if concerned is None or top is None else concerned.head(top),
        concerned_jobs=0 if concerned is None else concerned.height,
        currency=settings.currency,
        unpriced_jobs=ledger.get_column("price").null_count(),
        zone_name=zone_name,
        since=since,
        until=until,
        capacity=capacity,
    )


def _cause(written: str | None) -> str | None:
    """Return ALL or one of BUCKETS for a name or its label in tables."""
    names = {words: cause for cause, words in WASTE_LABELS.items()}
    cause = names.get(written, written) if written else None
    if cause is not None and cause not in WASTE_LABELS:
        raise UsageError(
            f"no cause {cause!r}", do=f"one of {', '.join((ALL_CAUSES, *WASTE_BUCKETS))}"
        )
    return cause


def assumptions_in_use(settings: WasteOptions) -> list[AssumptionInUse]:
    """Return the assumptions with the values that are configured."""
    phrases = []
    for assumption in ASSUMPTIONS:
        value = assumption.value(settings)
        shown = text(60 * value, "s") if assumption.unit == "min" else text(value, assumption.unit)
        default = value == assumption.value(WasteOptions())
        phrases.append(
            AssumptionInUse(
                assumption.cause,
                f"waste.{assumption.key}",
                value,
                assumption.unit,
                assumption.words.format(value=shown),
                assumption.source if default else "configured",
            )
        )
    return phrases


def in_ledger() -> pl.Expr:
    """True for the rows of job_summaries that are in the ledger."""
    return _reason().is_null()


def _reason() -> pl.Expr:
    """Why a job is not in the ledger; null where it is."""
    measured = pl.any_horizontal(
        pl.col("gpu_util_mean", "gr_engine_active_mean", "sm_active_mean").is_not_null()
    )
    return (
        pl.when(pl.col("end").is_null() | (pl.col("state") == "RUNNING"))
        .then(pl.lit("running"))
        .when(pl.col("attribution") == "ambiguous")
        .then(pl.lit("ambiguous"))
        .when(pl.col("samples").fill_null(0) == 0)
        .then(pl.lit("no_samples"))
        .when(pl.col("gpu_hours").is_null() & (pl.max_horizontal("shards", "mps") > 0))
        .then(pl.lit("shares"))
        .when(pl.col("gpu_hours_in_use").is_null() & measured & pl.col("gpu_hours").is_not_null())
        .then(pl.lit("not_judged"))
        .when(pl.col("gpu_hours_in_use").is_null())
        .then(pl.lit("no_activity"))
    )


def _amounts(bucket: str) -> dict[str, pl.Expr]:
    """{amount: what a bucket took of a job}."""
    hours = pl.col(f"gpu_hours_{bucket}")
    energy = pl.lit(None, dtype=pl.Float64)
    # Of a job without such hours nothing was measured: it is not 0 J of a cause.
    if bucket in WASTE_ENERGY:
        energy = pl.when(hours > 0).then(pl.col(f"energy_j_{bucket}"))
    back = pl.col(f"recoverable_{bucket}") if bucket in WASTE else pl.lit(0.0)
    return {
        "gpu_hours": hours,
        "energy_j": energy,
        "co2_g": energy / JOULES_PER_KWH * pl.col("gco2_kwh"),
        "money": hours * pl.col("price"),
        "energy_money": energy / JOULES_PER_KWH * pl.col("price_kwh"),
        "recoverable": back,
        "recoverable_money": back * pl.col("price"),
    }


def _entries(ledger: pl.DataFrame, buckets: Sequence[str]) -> pl.DataFrame:
    """Return one row per (job, bucket) with an amount above 0."""
    some = ((bucket, ledger.filter(pl.col(f"gpu_hours_{bucket}") > 0)) for bucket in buckets)
    return pl.concat(
        [rows.select("job_key", cause=pl.lit(bucket), **_amounts(bucket)) for bucket, rows in some]
    )


def _causes(ledger: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for bucket in WASTE_BUCKETS:
        amounts = _amounts(bucket)
        sums = {name: _known_sum(amount) for name, amount in amounts.items()}
        concerned = (amounts["gpu_hours"] > 0).sum().cast(pl.Int64)
        rows.append(ledger.select(cause=pl.lit(bucket), jobs=concerned, **sums))
    filled = pl.concat(rows).with_columns(pl.col("gpu_hours", "recoverable").fill_null(0))
    total = pl.col("gpu_hours").sum()
    share = pl.when(total > 0).then(pl.col("gpu_hours") / total)
    return filled.with_columns(share=share).select(
        "cause", "jobs", "gpu_hours", "share", *_AMOUNTS[1:]
    )


def _known_sum(*amounts: pl.Expr) -> pl.Expr:
    """Return the sum of known values; null if none is known."""
    known = pl.any_horizontal(amount.is_not_null().any() for amount in amounts)
    return pl.when(known).then(pl.sum_horizontal(amount.sum() for amount in amounts))


def _groups(ledger: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return one row per user, account, ...; null: unknown."""
    hours = {bucket: pl.col(f"gpu_hours_{bucket}").sum() for bucket in WASTE_BUCKETS}
    of_causes = [_amounts(cause) for cause in WASTE]
    grouped = ledger.group_by(by, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("jobs"),
        pl.col("gpu_hours").sum(),
        **hours,
        lost=pl.sum_horizontal(hours[cause] for cause in WASTE),
        lost_energy_j=_known_sum(*(_amounts(bucket)["energy_j"] for bucket in WASTE_ENERGY)),
        lost_money=_known_sum(*(amounts["money"] for amounts in of_causes)),
        recoverable=pl.sum_horizontal(amounts["recoverable"].sum() for amounts in of_causes),
    )
    return grouped.with_columns(lost_share=LOST_SHARE, others=pl.lit(0)).sort(
        "lost", by, descending=[True, False]
    )


def _cut(groups: pl.DataFrame, top: int | None) -> pl.DataFrame:
    """Return the first `top` groups, the others summed in one row with their number in `others`."""
    if top is None or groups.height <= top:
        return groups
    name, rest = groups.columns[0], groups.slice(top)
    numbers = [column for column, dtype in groups.schema.items() if dtype.is_numeric()]
    sums = {column: _known_sum(pl.col(column)) for column in numbers}
    one = rest.select(pl.lit(None, dtype=pl.String).alias(name), **sums)
    one = one.with_columns(
        lost_share=LOST_SHARE,
        others=pl.lit(rest.height, dtype=groups.schema["others"]),
    )
    return pl.concat([groups.head(top), one.select(groups.columns)])


def _concerned(ledger: pl.DataFrame, cause: str) -> pl.DataFrame:
    """Return the jobs with losses to a cause, largest first."""
    if cause == ALL_CAUSES:
        return _wasteful(ledger)
    mine = _entries(ledger, [cause]).drop("cause").rename({"gpu_hours": f"gpu_hours_{cause}"})
    jobs = ledger.select(*_WHO, "gpu_hours").join(mine, on="job_key", maintain_order="left")
    return jobs.sort(f"gpu_hours_{cause}", "job_key", descending=[True, False])


def _wasteful(ledger: pl.DataFrame) -> pl.DataFrame:
    """Return jobs that lost hours to any cause, most recoverable first."""
    lost = _entries(ledger, WASTE)
    lost = lost.sort(
        "recoverable", "gpu_hours", descending=True, nulls_last=True, maintain_order=True
    )
    sums = {name: _known_sum(pl.col(name)) for name in _AMOUNTS}
    mine = lost.group_by("job_key", maintain_order=True).agg(**sums, cause=pl.col("cause").first())
    mine = mine.rename({"gpu_hours": "gpu_hours_lost"})
    jobs = ledger.select(*_WHO, "gpu_hours").join(mine, on="job_key", maintain_order="left")
    return jobs.sort(
        "recoverable", "gpu_hours_lost", "job_key", descending=[True, True, False], nulls_last=True
    )


def _left_out(marked: pl.DataFrame) -> pl.DataFrame:
    """One row per reason to exclude jobs: number, known GPU-hours."""
    counted = marked.filter(pl.col("left_out").is_not_null()).group_by(reason="left_out")
    found = counted.agg(jobs=pl.len().cast(pl.Int64), gpu_hours=_known_sum(pl.col("gpu_hours")))
    return pl.DataFrame({"reason": list(WASTE_LEFT_OUT)}).join(
        found, on="reason", maintain_order="left"
    )
