"""The kinds of jobs of a lake that could share a GPU: which jobs are looked at, why others are not, what each asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import polars as pl

from tachograph.config import Interference, Thresholds
from tachograph.counters import BY_NAME as COUNTERS
from tachograph.devices import Device, match
from tachograph.interference.demand import Demand
from tachograph.interference.jobs.mixes import COUNTER_OF_PIPE, Mix, busy_of, mix, mix_of_one, of_means
from tachograph.units import MI, printable

_WIDEST = 24  # characters of the name of a kind in a table
_Row = Mapping[str, Any]
LEAST_RUNS = 2  # of a kind: what ran once may never come again
MOST_SPREAD = 0.25  # how far a run may be from the mean of its kind, of all there is of a resource. Ours
# why a job is not looked at, in the order in which it is asked
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "running": "still running",
        "ambiguous": "not known which GPUs were their own",
        "no_samples": "no samples",
        "coverage": "too few of the expected samples",
        "model": "GPUs of several models, or of one that is not in the catalogue",
        "no_counters": "counters that tell what they need were not measured",
        "idle": "did nothing: there is nothing to share, see `tachograph waste`",
        "uneven": "left GPUs at rest, to be given back first, see `tachograph waste`",
        "short": "too short to tell whether they were steady",
        "unsteady": "not steady: the class `stable` says no",
        "few_runs": "nobody runs them often enough",
        "spread": "runs of the same name differ too much",
        "near_limit": "near the limit of a resource already alone",
    }
)
_ACTIVITY = ("gr_engine_active_mean", "gpu_util_mean")
_NEEDED = ("sm_active_mean", "dram_active_mean", "hbm_used_mib_max")
_LEFT_OUT = ("job_key", "job_id", "display_id", "user", "name", "gpu_hours", "reason")
_PIPES = tuple(f"{counter}_mean" for counter in COUNTER_OF_PIPE.values())
_WHO = ("job_key", "job_id", "display_id", "array_job_id", "user", "name")
_READ = (*_WHO, "gpu_model", "gpus", "gpu_hours", "elapsed_s", *_ACTIVITY, *_NEEDED, *_PIPES, "sm_occupancy_mean")


@dataclass(frozen=True, slots=True)
class Profile:
    """What reports of Nsight Compute tell of a kind of jobs.

    mix: its kernels, weighted by their time. kernels, launches, seconds: of all. apart: sentences on what was left
    out, and what is far from the means of the lake.
    """

    reports: tuple[str, ...]
    mix: Mix
    kernels: int
    launches: int
    seconds: float
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs of one user and name, on as many GPUs of one model: what comes again.

    Without a name a job is a kind of its own. array: where runs of one name differ too much, tasks of one array are a
    kind of their own. busy: share of the time of the busiest run in which its GPUs did anything. mix: its runs, as the
    lake tells. spread: farthest that a run is from the mean of all, and of which resource. jobs: ids, newest last.
    """

    user: str | None
    name: str | None
    device: Device
    gpus: int
    runs: int
    gpu_hours: float
    busy: float
    mix: Mix
    spread: float
    spread_of: str
    jobs: tuple[str, ...]
    array: str | None = None
    profile: Profile | None = None

    @property
    def asks(self) -> Mix:
        """What it is judged by while busy: its kernels where they were profiled, else the run that asks most.

        A run counts as long as any other, for launches are not known.
        """
        return self.profile.mix if self.profile else mix_of_one(replace(self.mix.highest, seconds=1.0))

    @property
    def issue(self) -> Literal["profile", "assumed"]:
        """Where its issue slots are known from, or that they are not."""
        return "profile" if "issue" in self.asks.mean.cycles else "assumed"

    @property
    def label(self) -> str:
        """What it is called: user/name, with the array where it is one, of a job without a name its id."""
        return _label(self.user, self.name, self.array) or self.jobs[-1]

    @property
    def name_of_all(self) -> str | None:
        """The same without the array; None for a job without a name."""
        return _label(self.user, self.name, None)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Kinds that may share, most GPU-hours first, and the jobs that are not looked at, with the reason of each.

    left_out: one row per job: job_key, job_id, display_id, user, name, gpu_hours, reason.
    """

    kinds: tuple[Kind, ...]
    left_out: pl.DataFrame

    def reasons(self) -> list[tuple[str, int, float]]:
        """Return (reason, jobs, GPU-hours as far as they are known), in the order of LEFT_OUT, where there are any."""
        found = self.left_out.group_by("reason").agg(pl.len(), pl.col("gpu_hours").sum())
        by = {reason: (jobs, hours) for reason, jobs, hours in found.iter_rows()}
        return [(reason, *by[reason]) for reason in LEFT_OUT if reason in by]


def candidates(
    summaries: pl.DataFrame,
    verdicts: pl.DataFrame,
    *,
    settings: Interference,
    thresholds: Thresholds,
    achievable: Mapping[str, float],
    least_runs: int = LEAST_RUNS,
) -> Candidates:
    """Return the kinds of jobs among (already filtered) rows of job_summaries that could share a GPU.

    `verdicts`: rows of findings with job_key, code, verdict, those of the class `stable` among them. `achievable`:
    {model: share of the peak bandwidth of memory that can be achieved}.
    """
    steady = verdicts.filter(pl.col("code") == "stable").select("job_key", steady="verdict").unique("job_key")
    told = summaries.join(steady, on="job_key", how="left", maintain_order="left")
    told = told.with_columns(reason=_reason(_known_models(told), thresholds)).sort("start", "job_key")
    kinds = []
    refused: dict[str, str] = {}
    for kind, rows in _kinds(told.filter(pl.col("reason").is_null()).select(_READ).iter_rows(named=True)):
        reason = _why_not(kind, settings, achievable[kind.device.name], least_runs)
        if reason is None:
            kinds.append(kind)
        else:
            refused |= {row["job_key"]: reason for row in rows}
    of_kind = pl.col("job_key").replace_strict(refused, default=None, return_dtype=pl.String)
    told = told.with_columns(reason=pl.coalesce("reason", of_kind)).filter(pl.col("reason").is_not_null())
    kinds.sort(key=lambda kind: (-kind.gpu_hours, kind.label, kind.device.name, kind.gpus))
    return Candidates(tuple(kinds), told.select(_LEFT_OUT))


def short_label(kind: Kind) -> str:
    """Return what a kind is called in a table: cut where it is long; a star where it was profiled."""
    name = printable(kind.label)
    return (name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…") + ("*" if kind.profile else "")


def missing_counters(summaries: pl.DataFrame) -> list[str]:
    """Return the counters that must be measured and of which no job has a value, as DCGM names and numbers them."""

    def absent(*columns: str) -> bool:
        return bool(summaries.select(pl.all_horizontal(pl.col(columns).is_null().all())).item())

    columns = [name for name in _NEEDED if absent(name)]
    columns += [name for name in _PIPES if absent(*_PIPES)]
    columns += list(_ACTIVITY[:1]) if absent(*_ACTIVITY) else []
    names = (column.removesuffix("_mean").removesuffix("_max") for column in columns)
    return [f"{name} (DCGM_FI_{COUNTERS[name].dcgm_name}, {COUNTERS[name].dcgm_id})" for name in names]


def _known_models(summaries: pl.DataFrame) -> list[str]:
    models = summaries.get_column("gpu_model").drop_nulls().unique()
    return [model for model in models if match(model) is not None]


def _reason(models: Sequence[str], thresholds: Thresholds) -> pl.Expr:
    """Why a job by itself is not looked at; null where it is."""
    busy = pl.coalesce(pl.col(name).fill_nan(None) for name in _ACTIVITY)
    unmeasured = pl.any_horizontal(pl.col(name).is_null() for name in _NEEDED)
    no_pipe = pl.all_horizontal(pl.col(name).is_null() for name in _PIPES)
    uneven = (pl.col("gpus_never_used") > 0) | (pl.col("spatial_imbalance") > thresholds.spatial_imbalance)
    reasons = {
        "running": pl.col("end").is_null() | (pl.col("state") == "RUNNING"),
        "ambiguous": pl.col("attribution") == "ambiguous",
        "no_samples": pl.col("samples").fill_null(0) == 0,
        "coverage": pl.col("coverage").fill_null(0.0) < thresholds.low_coverage,
        "model": ~pl.col("gpu_model").is_in(models).fill_null(value=False) | pl.col("gpus").is_null(),
        "no_counters": unmeasured | no_pipe | busy.is_null() | pl.col("gpu_hours").is_null(),
        "idle": busy < thresholds.idle_util,
        "uneven": uneven.fill_null(value=False),
        "short": pl.col("steady").fill_null("insufficient") == "insufficient",
        "unsteady": pl.col("steady") == "no",
    }
    return pl.coalesce(pl.when(holds).then(pl.lit(reason)) for reason, holds in reasons.items())


def _label(user: str | None, name: str | None, array: str | None) -> str | None:
    return None if not name else f"{user or '?'}/{name}" + (f"[{array}]" if array else "")


def _kinds(runs: Iterable[_Row]) -> Iterator[tuple[Kind, list[_Row]]]:
    """Kinds with their runs; those of one name that differ too much are taken apart by array."""
    for rows in _grouped(
        runs, lambda row: ((row["user"], row["name"]) if row["name"] else row["job_key"], row["gpu_model"], row["gpus"])
    ):
        whole = _kind(rows)
        if whole.spread <= MOST_SPREAD:
            yield whole, rows
            continue
        for part in _grouped(rows, lambda row: row["array_job_id"]):
            yield _kind(part, array=part[0]["array_job_id"]), part


def _grouped(rows: Iterable[_Row], key: Callable[[_Row], Any]) -> list[list[_Row]]:
    groups: dict[Any, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _kind(rows: Sequence[_Row], *, array: str | None = None) -> Kind:
    first, device = rows[0], match(rows[0]["gpu_model"])
    assert device is not None  # others are left out before
    demands = [of_means(row, device=device) for row in rows]
    busy = [busy_of(row) or 0.0 for row in rows]
    hours = math.fsum(row["gpu_hours"] for row in rows)
    label = _label(first["user"], first["name"], array) or str(first["display_id"] or first["job_id"])
    mixed = mix(demands, [row["gpu_hours"] for row in rows] if hours > 0 else None, name=label)
    spread, of = max(_spreads(mixed, demands, busy))
    return Kind(
        user=first["user"],
        name=first["name"] or None,
        device=device,
        gpus=first["gpus"],
        runs=len(rows),
        gpu_hours=hours,
        busy=max(busy),
        mix=mixed,
        spread=spread,
        spread_of=of,
        jobs=tuple(str(row["display_id"] or row["job_id"]) for row in rows),
        array=array,
    )


def _spreads(mixed: Mix, demands: Sequence[Demand], busy: Sequence[float]) -> Iterable[tuple[float, str]]:
    """(how far the farthest run is from the mean of its kind, of what)."""
    yield _farthest(busy, math.fsum(share * one for (share, _), one in zip(mixed.members, busy, strict=True))), "busy"
    for name in ("dram", "sm_share"):
        mean = getattr(mixed.mean, name)
        yield _farthest([getattr(demand, name) for demand in demands], mean), name
    for pipe, mean in mixed.mean.cycles.items():
        yield _farthest([demand.cycles.get(pipe) for demand in demands], mean), pipe


def _farthest(values: Sequence[float | None], mean: float | None) -> float:
    return max((abs(value - mean) for value in values if value is not None and mean is not None), default=0.0)


def _why_not(kind: Kind, settings: Interference, achievable: float, least_runs: int) -> str | None:
    if kind.runs < least_runs:
        return "few_runs"
    if kind.spread > MOST_SPREAD:
        return "spread"
    most = kind.mix.highest
    full = most.hbm_bytes is not None and most.hbm_bytes > settings.safe_hbm * kind.device.hbm_mib * MI
    crowded = (most.dram or 0.0) / achievable >= settings.safe_dram or max(
        most.cycles.values(), default=0.0
    ) > settings.safe_cycles
    return "near_limit" if full or crowded else None
