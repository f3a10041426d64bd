"""The jobs of a lake that can be played again: those that are over, on one model, of which DCGM's means are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

import numpy as np
import polars as pl

from tachograph.arrays import Flags, Floats, Longs
from tachograph.config import Thresholds
from tachograph.counters import BY_NAME
from tachograph.devices import Device, match
from tachograph.errors import NotFoundError, UsageError
from tachograph.interference.day.drawn import COUNTERS, distances
from tachograph.interference.day.world import ACHIEVABLE
from tachograph.units import MI, plural

MOST_KINDS = 1000  # every pair of kinds is looked at, in each draw
ALIKE = 0.05  # runs of one user and name are of one kind if no counter is farther from their mean
FARTHEST = 0.10  # from its job that a drawn mix may be
# why a job is not played, in the order in which it is asked
NOT_PLAYED: Mapping[str, str] = MappingProxyType(
    {
        "other_model": "ran on another model",
        "running": "still running",
        "times": "not known when they came, or how long they ran",
        "ambiguous": "not known which GPUs were their own",
        "no_samples": "no samples",
        "coverage": "too few of the expected samples",
        "no_counters": "counters that tell what they did were not measured",
        "model": "GPUs of several models, or of one that is not in the catalogue",
        "too_wide": "want more GPUs than there are",
        "far": f"no drawn mix comes within {100 * FARTHEST:g} points of their means",
    }
)
_NEEDED = ("gr_engine_active_mean", "sm_active_mean", "dram_active_mean", "hbm_used_mib_max")
_PIPES = ("fp32_active_mean", "fp64_active_mean", "tensor_active_mean")  # of which one is needed
_OF_USE = ("sm_occupancy_mean", *_PIPES)  # not compared where no job of the model has them


@dataclass(frozen=True, slots=True)
class Recorded:
    """Jobs as they were recorded, in order of arrival; arrays have a row per job but those of kinds.

    Runs of one user and name that hardly differ are of one kind. gpus: of the cluster. counters: those of COUNTERS that
    were measured. means: (job, counter), of dram_active as a share of what can be achieved. kind_means: the same per
    kind. kind: the place of a job's kind. hbm_bytes: of a kind, the most of any run. left_out: {reason of NOT_PLAYED:
    (jobs, GPU-hours)}.
    """

    device: Device
    gpus: int
    first: datetime
    last: datetime
    arrives_s: Floats
    alone_s: Floats
    wants: Longs
    counters: tuple[str, ...]
    means: Floats
    kind: Longs
    kind_means: Floats
    names: tuple[str, ...]
    hbm_bytes: tuple[float, ...]
    left_out: Mapping[str, tuple[int, float]]

    @property
    def load(self) -> float:
        """GPU-hours of the jobs over those that the GPUs have from the first arrival to the last recorded end."""
        return float(self.alone_s @ self.wants) / (self.gpus * max((self.last - self.first).total_seconds(), 1.0))

    @property
    def not_measured(self) -> tuple[str, ...]:
        """Counters that no job has, and that no mix is therefore compared by."""
        return tuple(name for name in COUNTERS if name not in self.counters)

    def without(self, far: Flags) -> Recorded:
        """Return the same without the jobs that no mix comes near. Errors: UsageError where none is left."""
        if not far.any():
            return self
        if far.all():
            raise UsageError(f"{plural(far.size, 'job')} cannot be played: {NOT_PLAYED['far']}", do="play others")
        jobs = {name: getattr(self, name)[~far] for name in ("arrives_s", "alone_s", "wants", "means", "kind")}
        hours = float(self.alone_s[far] @ self.wants[far]) / 3600
        return replace(self, **jobs, left_out={**self.left_out, "far": (int(far.sum()), hours)})

    def means_of_kind(self, kind: int) -> dict[str, float]:
        """Return its means as columns of job_summaries, in the world of the day: its GPU reaches ACHIEVABLE."""
        names = (f"{name}_mean" for name in self.counters)
        means = dict(zip(names, self.kind_means[kind].tolist(), strict=True))
        return means | {"dram_active_mean": means["dram_active_mean"] * ACHIEVABLE}


def recorded(
    summaries: pl.DataFrame,
    devices: pl.DataFrame,
    *,
    thresholds: Thresholds,
    achievable: float,
    model: str | None = None,
    gpus: int | None = None,
) -> Recorded:
    """Return the jobs among (already filtered) rows of job_summaries that can be played again.

    model: None is the one of most GPU-hours. gpus: None is as many as `devices` has of it. achievable: share of the
    peak bandwidth of memory that can be achieved, at least.
    Errors: NotFoundError for a model that no job ran on; UsageError where no job can be played.
    """
    if summaries.is_empty():
        raise UsageError("the lake has no jobs to play, or the filters leave none", do="see `tachograph jobs`")
    told = summaries.with_columns(device=_devices(summaries.get_column("gpu_model")))
    told = told.with_columns(reason=_reason(thresholds))
    device = _device(told, model)
    cluster = _gpus_of(devices, device) if gpus is None else gpus
    wide = pl.when(pl.col("gpus") > cluster).then(pl.lit("too_wide"))
    elsewhere = pl.when(pl.col("device") != device.name).then(pl.lit("other_model"))
    told = told.with_columns(reason=pl.coalesce(elsewhere, "reason", wide))  # what others lack is of no interest
    played = told.filter(pl.col("reason").is_null()).sort("submit", "start", "job_key")
    left_out = {
        reason: (jobs, hours or 0.0)
        for reason, jobs, hours in told.filter(pl.col("reason").is_not_null())
        .group_by("reason")
        .agg(pl.len(), pl.col("gpu_hours").sum())
        .iter_rows()
    }
    if played.is_empty():
        raise _nothing(told, left_out)
    return _recorded(played, device, cluster, achievable, left_out)


def _devices(models: pl.Series) -> pl.Expr:
    known = {name: device.name for name in models.drop_nulls().unique() if (device := match(name)) is not None}
    return pl.col("gpu_model").replace_strict(known, default=None, return_dtype=pl.String)


def _reason(thresholds: Thresholds) -> pl.Expr:
    reasons = {
        "running": pl.col("end").is_null() | (pl.col("state") == "RUNNING"),
        "times": pl.col("submit").is_null() | ~(pl.col("elapsed_s") > 0).fill_null(value=False),
        "ambiguous": pl.col("attribution") == "ambiguous",
        "no_samples": pl.col("samples").fill_null(0) == 0,
        "coverage": pl.col("coverage") < thresholds.low_coverage,
        "no_counters": pl.any_horizontal(
            *(_absent(name) for name in _NEEDED),
            *(_absent(name) & ~_absent(name).all().over("device") for name in _OF_USE),
            pl.all_horizontal(_absent(name) for name in _PIPES),
        ),
        "model": pl.col("device").is_null() | pl.col("gpus").is_null(),
    }
    return pl.coalesce(pl.when(holds).then(pl.lit(reason)) for reason, holds in reasons.items())


def _absent(name: str) -> pl.Expr:
    return pl.col(name).fill_nan(None).is_null()


def _device(told: pl.DataFrame, model: str | None) -> Device:
    """The model that was asked for, else that of most GPU-hours of those whose jobs can be played."""
    by_hours = (
        told.filter(pl.col("device").is_not_null())
        .group_by("device")
        .agg(pl.col("reason").is_null().any(), pl.col("gpu_hours").sum())
        .sort("reason", "gpu_hours", "device", descending=[True, True, False])
    )
    names = by_hours.get_column("device").to_list()
    if model is None:
        if not names:
            raise _nothing(told, {})
        return _known(names[0])
    wanted = match(model)
    if wanted is None or wanted.name not in names:
        raise NotFoundError(f"no job ran on {model}", do=f"name one of {', '.join(names)}" if names else "")
    return wanted


def _known(name: str) -> Device:
    device = match(name)
    assert device is not None  # its name came from the catalogue
    return device


def _gpus_of(devices: pl.DataFrame, device: Device) -> int:
    models = devices.select("node", "gpu", "model", "hbm_mib").unique(["node", "gpu"]).iter_rows()
    found = sum(1 for _, _, model, hbm in models if (one := match(model, hbm)) is not None and one.name == device.name)
    if not found:
        raise UsageError(f"the lake does not tell how many GPUs {device.name} there are", do="give --gpus")
    return found


def _nothing(told: pl.DataFrame, left_out: Mapping[str, tuple[int, float]]) -> UsageError:
    """The error that says why no job can be played: what nobody measured, or what each lacks."""
    absent = told.select(_absent(name).all() for name in (*_NEEDED, *_PIPES)).row(0, named=True)
    missing = [name for name in _NEEDED if absent[name]]
    if all(absent[name] for name in _PIPES):
        missing += _PIPES
    if missing:
        listed = counters_told(name.removesuffix("_mean").removesuffix("_max") for name in missing)
        return UsageError(
            f"none of {told.height:,} jobs can be played: no samples of {listed}", do="record these counters"
        )
    why = [f"{left_out[reason][0]:,} {words}" for reason, words in NOT_PLAYED.items() if reason in left_out]
    words = "; ".join(why or [NOT_PLAYED["model"]])
    return UsageError(f"none of {told.height:,} jobs can be played: {words}")


def counters_told(names: Iterable[str]) -> str:
    """Return counters as those know them who record them.

    >>> counters_told(["sm_active"])
    'sm_active (DCGM_FI_PROF_SM_ACTIVE, 1002)'
    """
    return ", ".join(f"{name} (DCGM_FI_{BY_NAME[name].dcgm_name}, {BY_NAME[name].dcgm_id})" for name in names)


def _recorded(
    played: pl.DataFrame, device: Device, gpus: int, achievable: float, left_out: Mapping[str, tuple[int, float]]
) -> Recorded:
    first, last = played.get_column("submit").min(), played.get_column("end").max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    most = played.get_column("dram_active_max").max()
    reached = max(achievable, min(1.0, most if isinstance(most, float) else 0.0))
    counters = tuple(name for name in COUNTERS if not played.select(_absent(f"{name}_mean").all()).item())
    of_peak = [reached if name == "dram_active" else 1.0 for name in counters]
    means = np.minimum(played.select(f"{name}_mean" for name in counters).to_numpy() / of_peak, 1.0)
    kind = _kinds(played, means)
    kinds = int(kind.max()) + 1
    if kinds > MOST_KINDS:
        raise UsageError(
            f"{kinds:,} kinds of jobs are more than the {MOST_KINDS:,} that can be played at once",
            do="play fewer: --since, --until, --partition, --user",
        )
    memory = played.get_column("hbm_used_mib_max").to_numpy() * MI
    users, names = (played.get_column(name).fill_null("?").to_list() for name in ("user", "name"))
    begins = [int(np.flatnonzero(kind == one)[0]) for one in range(kinds)]
    return Recorded(
        device=device,
        gpus=gpus,
        first=first,
        last=last,
        arrives_s=(played.get_column("submit") - first).dt.total_microseconds().to_numpy() / 1e6,
        alone_s=played.get_column("elapsed_s").to_numpy().astype(np.float64),
        wants=played.get_column("gpus").to_numpy().astype(np.int64),
        counters=counters,
        means=means,
        kind=kind,
        kind_means=np.stack([means[kind == one].mean(axis=0) for one in range(kinds)]),
        names=tuple(f"{users[at]}/{names[at]}" for at in begins),
        hbm_bytes=tuple(float(memory[kind == one].max()) for one in range(kinds)),
        left_out=left_out,
    )


def _kinds(played: pl.DataFrame, means: Floats) -> Longs:
    """Place of each job's kind: runs of one user and name that hardly differ; else each is a kind of its own."""
    runs: dict[tuple[object, ...], list[int]] = {}
    for at, (key, user, name) in enumerate(played.select("job_key", "user", "name").iter_rows()):
        runs.setdefault((user, name) if name else (key,), []).append(at)
    kind = np.zeros(played.height, np.int64)
    place = 0
    for places in runs.values():
        of = means[places]
        alike = bool((distances(of, of.mean(axis=0)[None]) <= ALIKE).all())
        for at in places:
            kind[at] = place
            place += not alike
        place += alike
    return kind
