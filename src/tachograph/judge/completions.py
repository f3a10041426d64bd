"""What a job that was measured in part may have done in the time without samples.

A verdict holds if it could not be the other way, whatever the unmeasured time held. So a job is
judged as it was measured, and again for each of FILLS: as if its GPUs had done that in all of the
unmeasured time. Whatever decides (checks, classes, rules, scores) sees tables of the same form and
need not know. `refuted` compares the verdicts, of which `families.settled` makes unknown ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import TypedDict

import polars as pl
import polars.selectors as cs

from tachograph.catalog.counters import COUNTERS, Counter, CounterKind
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.tables import HOST_CHARACTERISTICS
from tachograph.judge.fills import (
    FILLS,
    IDLE,
    PIECE_MINUTES,
    Fill,
    for_each,
    gpus_in_state,
    part_in_state,
    read_by,
    settings_of,
)
from tachograph.judge.lacking import (
    IMBALANCES,
    at_work,
    counters_of_some,
    imbalances,
    lacking_in_minutes,
    lacks,
    part_of,
    share_of,
    sums_at_work,
    sums_for_imbalance,
)
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import ACTIVITY, AVERAGED
from tachograph.pipeline.timelines import WORK as WORK_COUNTERS

_MINUTE_S = 60.0
_LATE_S = 900.0  # a sample of a running job may be so old
_LINK_BYTES_PER_S = 1e13
# before the first and after the last sample of a job that are judged: more would change no verdict
_MOST_MINUTES = 1440
MOST_ROWS = 200_000  # minutes of completed jobs that are in memory at a time
_ROLES = ("_state", "_rest")  # of a fill's states, in the names of columns


def carried(jobs: pl.DataFrame, timelines: pl.DataFrame) -> pl.DataFrame:
    """Return minutes of jobs, of those sampled less often than once a minute also those between.

    A minute is repeated up to the next one with samples, for the interval at most. `timelines`: one
    row per (job_key, minute), in order.
    """
    coarse = jobs.filter(pl.col("interval_s") > _MINUTE_S).select(
        "job_key",
        _every=(pl.col("interval_s") / _MINUTE_S).ceil().cast(pl.Int32),
        _ran=_minutes_of_run().cast(pl.Int32),
    )
    if not coarse.height:
        return timelines
    rows = timelines.join(coarse, on="job_key", how="left", maintain_order="left")
    following = pl.coalesce(pl.col("minute").shift(-1).over("job_key"), "_ran")
    end = pl.min_horizontal(following, pl.col("minute") + pl.col("_every"))
    end = pl.max_horizontal(end.fill_null(0), pl.col("minute") + 1)
    last = pl.when(pl.col("_every").is_not_null()).then(end).otherwise(pl.col("minute") + 1)
    repeated = rows.with_columns(minute=pl.int_ranges("minute", last, dtype=pl.Int32))
    return repeated.explode("minute", empty_as_null=False).select(
        pl.col(name).cast(dtype) for name, dtype in timelines.schema.items()
    )


def _minutes_of_run() -> pl.Expr:
    return ((pl.col("as_of") - pl.col("start")).dt.total_seconds() / _MINUTE_S).ceil()


def until_last_sample(tables: JobTables) -> JobTables:
    """Return tables in which a running job was judged at its last sample, where that is recent.

    Samples come later than they were measured. Where the last one is older than _LATE_S and than
    three intervals, the time since then was not measured.
    """
    running = tables.jobs.filter(state="RUNNING").select("job_key")
    if not running.height:
        return tables
    last = tables.gpus.group_by("job_key").agg(_last=pl.col("last_t").max())
    minutes = tables.timelines.filter(pl.col("measured_gpus") > 0).group_by("job_key")
    last_minute = minutes.agg(_minute=pl.col("minute").max())
    jobs = tables.jobs.join(last, on="job_key", how="left", maintain_order="left")
    jobs = jobs.join(last_minute, on="job_key", how="left", maintain_order="left")
    end_of_minute = pl.col("start") + pl.duration(minutes=pl.col("_minute").cast(pl.Int64) + 1)
    lag = pl.col("as_of") - pl.coalesce("_last", end_of_minute)
    lag_s = lag.dt.total_microseconds() / 1e6
    late_s = pl.max_horizontal(_LATE_S, 3 * pl.col("interval_s"))
    is_recent = (pl.col("state") == "RUNNING") & lag_s.is_between(0, late_s)
    jobs = jobs.with_columns(_lag_s=pl.when(is_recent).then(lag_s).fill_null(0.0))
    elapsed_s = (pl.col("elapsed_s") - pl.col("_lag_s")).clip(lower_bound=0.0)
    coverage = pl.col("coverage") * pl.col("elapsed_s") / elapsed_s
    changed = jobs.with_columns(
        as_of=pl.col("as_of") - pl.duration(microseconds=(1e6 * pl.col("_lag_s")).cast(pl.Int64)),
        elapsed_s=elapsed_s,
        coverage=pl.when(pl.col("_lag_s") > 0)
        .then(coverage.clip(upper_bound=1.0))
        .otherwise("coverage"),
    )
    return replace(tables, jobs=_like(tables.jobs, changed))


def missing_samples() -> pl.Expr:
    """Return the share of expected samples that a job lacks; null: its interval is unknown.

    The first and last sample of a run may lie up to an interval away from its begin and end, so one
    of each GPU may be missing.
    """
    edge = (pl.col("interval_s") / pl.col("elapsed_s")).fill_null(0.0)
    return 1.0 - pl.col("coverage") - edge


class GapRow(TypedDict, total=False):
    """A job and its time without samples, see `unmeasured`."""

    job_key: str
    elapsed_s: float | None
    share: float
    begin: int | None
    end: int | None
    within: int | None
    lacking: str


def unmeasured(jobs: pl.DataFrame, timelines: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job: the `share` of its GPU time without samples, and the longest gaps.

    `elapsed_s`: its run time. `interval_s`: between samples of a GPU. `begin`, `end`: minutes
    before the first and after the last measured one; `within`: the longest between two. Null where
    nothing was measured. Where the interval is unknown, minutes are counted. `lacking`: counters
    that only some of its GPUs have, joined with a comma. `timelines`: one row per (job_key,
    minute), in order. `gpus`: rows of job_gpus.
    """
    minutes = (
        timelines.lazy()
        .filter(pl.col("measured_gpus") > 0)
        .select("job_key", "measured_gpus", pl.col("minute").cast(pl.Int64))
    )
    stretches = minutes.group_by("job_key").agg(
        gpu_minutes=pl.col("measured_gpus").sum(),
        begin=pl.col("minute").min(),
        last=pl.col("minute").max(),
        within=pl.col("minute").sort().diff().max().fill_null(1) - 1,
    )
    ran = _minutes_of_run().cast(pl.Int64)
    by_minutes = 1.0 - pl.col("gpu_minutes") / (pl.col("gpus") * pl.col("ran"))
    by_samples = pl.coalesce(missing_samples(), by_minutes)
    suspended = pl.col("elapsed_s") < (pl.col("ran") - 1) * _MINUTE_S  # samples of it count, too
    share = pl.max_horizontal(
        by_samples,
        1.0 - pl.col("gpus_seen") / pl.col("gpus"),  # coverage is that of the GPUs that are known
        pl.when(suspended & (pl.col("interval_s") <= _MINUTE_S)).then(by_minutes),
    )
    return (
        jobs.lazy()
        .with_columns(ran=ran)
        .join(stretches, on="job_key", how="left", maintain_order="left")
        .join(counters_of_some(gpus).lazy(), on="job_key", how="left", maintain_order="left")
        .select(
            "job_key",
            "elapsed_s",
            "begin",
            "within",
            "lacking",
            interval_s=pl.coalesce(
                "interval_s", _MINUTE_S * pl.col("gpu_minutes") / pl.col("samples")
            ),
            # of a job without any sample nothing is known, and nothing is to be completed
            share=pl.when(pl.col("gpu_minutes") > 0)
            .then(share.fill_nan(None).clip(0.0, 1.0).round(9))
            .fill_null(0.0),
            end=(pl.col("ran") - 1 - pl.col("last")).clip(lower_bound=0),
        )
        .collect()
    )


def _in_part(gaps: pl.DataFrame) -> pl.DataFrame:
    """The jobs of which something was not measured."""
    return gaps.filter((pl.col("share") > 0) | pl.col("lacking").is_not_null())


@dataclass(frozen=True, slots=True)
class Completed:
    """Jobs that were measured in part, completed with some of FILLS.

    `of`: `job_key` of each row of jobs, and `job`, the key of the job that it is of. `same_minutes`:
    {key of a completion: that whose timelines are its own, too}. No minute of such a job lacks a
    GPU, so all completions of it have the same.
    """

    tables: JobTables
    of: pl.DataFrame
    same_minutes: Mapping[str, str]


Questions = Mapping[str, frozenset[str]]  # code -> keys of the jobs whose verdict is in question


def refuted(
    tables: JobTables,
    gaps: pl.DataFrame,
    verdicts: pl.DataFrame,
    judge: Callable[[Completed, Questions], pl.DataFrame],
    *,
    idle_util: float,
    most_rows: int = MOST_ROWS,
) -> pl.DataFrame:
    """Return (job_key, code) of verdicts that the time without samples may have made otherwise.

    `gaps`: from `unmeasured`. `verdicts`: job_key, code, verdict of the jobs as they were measured,
    where it is decided. `judge`: returns those of completed jobs, at least those in question. A
    verdict is in question until a completion refutes it, and tables are completed of jobs in
    question alone, about `most_rows` minutes at a time.
    """
    partial = _in_part(gaps)
    questions = verdicts.join(partial, on="job_key", how="semi")
    found = [questions.select("job_key", "code").clear()]
    tables = _around_samples(_of_jobs(tables, questions), partial)
    for group in _groups(tables.jobs, most_rows):
        of_group = tables
        minutes = int(group.get_column("minutes").sum())
        remaining = questions.join(group, on="job_key", how="semi")
        at_a_time = max(1, most_rows // max(1, minutes))
        for place in range(0, len(FILLS), at_a_time):
            of_group = _of_jobs(of_group, remaining)
            fills = FILLS[place : place + at_a_time]
            whole = completed(of_group, gaps, fills, idle_util=idle_util)
            asked = remaining.join(whole.of, left_on="job_key", right_on="job")
            keys = asked.group_by("code").agg(pl.col("job_key_right"))
            judged = judge(whole, {code: frozenset(of) for code, of in keys.iter_rows()})
            others = asked.join(
                judged, left_on=["job_key_right", "code"], right_on=["job_key", "code"]
            )
            differing = others.filter(pl.col("verdict") != pl.col("verdict_right"))
            found.append(differing.select("job_key", "code").unique())
            remaining = remaining.join(differing, on=["job_key", "code"], how="anti")
            if not remaining.height:
                break
    return pl.concat(found)


def _of_jobs(tables: JobTables, keys: pl.DataFrame) -> JobTables:
    """Return the rows of some jobs."""
    jobs, gpus, timelines, node_minutes = (
        frame.join(keys, on="job_key", how="semi", maintain_order="left")
        for frame in (tables.jobs, tables.gpus, tables.timelines, tables.node_minutes)
    )
    return JobTables(jobs, gpus, timelines, node_minutes)


def _groups(jobs: pl.DataFrame, most_rows: int) -> Iterator[pl.DataFrame]:
    """Yield groups of jobs, each of about `most_rows` `minutes`."""
    minutes = _minutes_of_run().fill_null(0).cast(pl.Int64)
    sized = jobs.select("job_key", minutes=minutes).with_columns(
        group=pl.col("minutes").cum_sum() // most_rows
    )
    yield from sized.partition_by("group", maintain_order=True)


def _around_samples(tables: JobTables, gaps: pl.DataFrame) -> JobTables:
    """Return the tables as if jobs had begun and ended _MOST_MINUTES from their samples at most."""
    cut = gaps.select(
        "job_key",
        _first=pl.col("begin").fill_null(0) - _MOST_MINUTES,
        _last=pl.col("end").fill_null(0) - _MOST_MINUTES,
    ).with_columns(pl.col("_first", "_last").clip(lower_bound=0))
    if not cut.filter((pl.col("_first") > 0) | (pl.col("_last") > 0)).height:
        return tables
    first, last = (
        pl.duration(minutes=pl.col(name)).cast(pl.Duration("us")) for name in ("_first", "_last")
    )
    jobs = tables.jobs.join(cut, on="job_key", how="left", maintain_order="left").with_columns(
        start=pl.col("start") + first, as_of=pl.col("as_of") - last
    )
    timelines, node_minutes = (
        frame.join(cut, on="job_key", how="left", maintain_order="left")
        .with_columns((pl.col("minute") - pl.col("_first")).cast(frame.schema["minute"]))
        .select(frame.columns)
        for frame in (tables.timelines, tables.node_minutes)
    )
    return replace(
        tables,
        jobs=jobs.select(tables.jobs.columns),
        timelines=timelines,
        node_minutes=node_minutes,
    )


def completed(
    tables: JobTables, gaps: pl.DataFrame, fills: Sequence[Fill] = FILLS, *, idle_util: float
) -> Completed:
    """Return jobs that were measured in part, completed. `gaps`: from `unmeasured`."""
    partial = _in_part(gaps)
    if tables.jobs.join(partial, on="job_key", how="anti").height:
        tables = _of_jobs(tables, partial)
    known = partial.select("job_key", "interval_s", _of_job="share")
    jobs = tables.jobs.drop("interval_s").join(known, on="job_key", maintain_order="left")
    jobs = jobs.with_columns(
        _board=_highest_power(),
        _seconds=(pl.col("as_of") - pl.col("start")).dt.total_seconds(),
    )
    gpus = _with_shares(_held(tables.gpus, jobs), jobs)
    minutes = _every_minute(jobs, gpus, tables.timelines)
    host_minutes = _every_host_minute(jobs, tables.node_minutes)
    # what was on the hosts may differ where GPUs have all their samples
    whole = (
        minutes.group_by("job_key").agg(pl.col("_missing").max()).filter(pl.col("_missing") == 0)
    )
    whole = whole.join(host_minutes, on="job_key", how="anti").select("job_key")
    once, minutes = (
        minutes.join(whole, on="job_key", how=how, maintain_order="left")
        for how in ("semi", "anti")
    )
    measured = (tables.jobs, tables.gpus, tables.timelines, tables.node_minutes)
    parts: list[list[pl.DataFrame]] = []
    for steady, group in groupby(enumerate(fills), lambda pair: pair[1].steady):
        numbered = dict(group)
        settings = settings_of(numbered)
        filled = for_each(settings, gpus)
        filled = filled.with_columns(
            _part=part_in_state(pl.col("_share")), _part_of_all=part_in_state(pl.lit(1.0))
        )
        filled = filled.with_columns(**_counters(steady=steady))
        filled = filled.with_columns(**_derived(steady=steady))
        of_minutes = read_by(_of_minutes(steady=False, idle_util=idle_util).values(), settings)
        first = of_minutes.filter(_number=0)
        every = pl.concat([for_each(first, once), for_each(of_minutes, minutes)])
        rows = (
            _summaries(for_each(settings, jobs), filled, steady=steady),
            filled,
            _filled_minutes(every, steady=steady, idle_util=idle_util),
            _filled_host_minutes(host_minutes, numbered),
        )
        parts.append([_like(table, frame) for table, frame in zip(measured, rows, strict=True)])
    same_minutes = {
        f"{job_key}\n{number}": f"{job_key}\n0"
        for job_key in whole.get_column("job_key")
        for number in range(1, len(fills))
    }
    jobs, gpus, timelines, node_minutes = map(pl.concat, zip(*parts, strict=True))
    numbers = pl.DataFrame({"_number": range(len(fills))})
    keys = for_each(numbers, tables.jobs.select("job_key"))
    keys = keys.select("job_key", job="_of")
    alike = _alike(jobs, gpus, keys.join(whole, left_on="job", right_on="job_key"))
    jobs, gpus, keys = (
        frame.join(alike, on="job_key", how="anti", maintain_order="left")
        for frame in (jobs, gpus, keys)
    )
    return Completed(JobTables(jobs, gpus, timelines, node_minutes), keys, same_minutes)


def _alike(jobs: pl.DataFrame, gpus: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the completions, of `keys`, that are the same as an earlier one of their job.

    `keys`: job_key, job, of those that have the same minutes. Where little is missing, it makes no
    difference in which part of it GPUs were busy.
    """
    compared = keys
    for name, frame in (("of_job", jobs), ("of_gpus", gpus)):
        numbers = frame.select(~cs.by_name("job_key") & ~cs.list())
        rows = frame.select("job_key", pl.Series(name, numbers.hash_rows()))
        compared = compared.join(rows.group_by("job_key").agg(pl.col(name).sum()), on="job_key")
    first = compared.sort("job_key").unique(["job", "of_job", "of_gpus"], keep="first")
    return compared.join(first, on="job_key", how="anti").select("job_key")


def _like(table: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with the columns of a table."""
    dtypes = rows.schema  # made anew each time
    return rows.select(
        name if dtypes[name] == dtype else pl.col(name).cast(dtype)
        for name, dtype in table.schema.items()
    )


@cache
def _highest_power() -> pl.Expr:
    """Power that a GPU of the job may have drawn, W."""
    boards = {name: device.board_power_w for name, device in DEVICES_BY_NAME.items()}
    board = pl.col("gpu_model").replace_strict(boards, default=None, return_dtype=pl.Float64())
    return pl.max_horizontal(board, "power_w_max")


def _held(gpus: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of GPUs that jobs held.

    Where there are more than a job held (a slice and its GPU), those without samples are not its
    own.
    """
    samples = pl.col("samples").fill_null(0)
    place = samples.rank("ordinal", descending=True).over("job_key")
    surplus = (samples == 0) & (place > pl.col("_allocated"))
    allocated = jobs.select("job_key", _allocated="gpus")
    joined = gpus.join(allocated, on="job_key", how="left", maintain_order="left")
    return joined.filter(~surplus.fill_null(value=False)).drop("_allocated")


def _with_shares(gpus: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """The GPUs with their unmeasured `_share`, and what their job measured at all."""
    has = {f"_has_{c.name}": pl.col(f"{c.name}_max").is_not_null() for c in COUNTERS}
    of_job = pl.col("interval_s").alias("_interval_s")
    facts = jobs.select(
        "job_key", "_board", "_of_job", "start", "as_of", "elapsed_s", of_job, **has
    )
    joined = gpus.join(facts, on="job_key", maintain_order="left")
    interval_s = pl.coalesce("interval_s", "_interval_s")
    expected = pl.col("elapsed_s") / interval_s
    share = (1.0 - (pl.col("samples") + 1) / expected).clip(0.0, 1.0)
    joined = joined.with_columns(_share=pl.coalesce(share, "_of_job"))
    # a job may have held more GPUs than it has rows: what these did is not known, either
    measured = 1.0 - pl.col("_share")
    fewer = (1.0 - pl.col("_of_job")) / measured.mean().over("job_key")
    joined = joined.with_columns(
        _share=pl.when(fewer < 1.0).then(1.0 - measured * fewer).otherwise("_share")
    )
    gaps = [pl.col("first_t") - pl.col("start"), pl.col("as_of") - pl.col("last_t")]
    activity = pl.coalesce(f"{name}_mean" for name in ACTIVITY).fill_null(0.0)
    place = activity.rank("ordinal").over("job_key")
    return joined.with_columns(
        *(lacks(counter.name) for counter in COUNTERS),
        *(pl.col(f"{name}_mean").alias(f"_own_{name}") for name in IMBALANCES),
        _run_s=pl.col("elapsed_s"),
        _edges=pl.any_horizontal(
            gap.dt.total_microseconds().fill_null(2**62) / 1e6 > 1.5 * interval_s for gap in gaps
        ),
        _busiest=place == pl.len().over("job_key"),
        _least=place == 1,
    ).drop("start", "as_of", "elapsed_s", "_interval_s", "_of_job")


@cache
def _counters(*, steady: bool) -> Mapping[str, pl.Expr]:
    """Means and maxima of a GPU's counters over the whole time, where its job measured them."""
    found: dict[str, pl.Expr] = {}
    for counter in COUNTERS:
        share = share_of(counter.name)
        mean, most = pl.col(f"{counter.name}_mean"), pl.col(f"{counter.name}_max")
        value, peak = _then(counter, part_of(counter.name))
        if steady:
            value, peak = (own.fill_null(own.mean().over("job_key")) for own in (mean, most))
        has = pl.when(f"_has_{counter.name}")
        whole = pl.coalesce(mean * (1 - share) + value * share, value)
        if steady and counter.kind is CounterKind.FRACTION:
            most_known = mean.filter(share == share.min()).mean().over("job_key")
            known = mean.fill_null(0.0) * (1 - share)
            whole = pl.when("_alike").then(most_known.clip(known, known + share)).otherwise(whole)
        found[f"{counter.name}_mean"] = has.then(whole)
        found[f"{counter.name}_max"] = has.then(
            pl.when(share > 0).then(pl.max_horizontal(most, peak)).otherwise(most)
        )
    return found


def _then(counter: Counter, part: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Mean and maximum of a counter in the time without samples."""
    mean, most = pl.col(f"{counter.name}_mean"), pl.col(f"{counter.name}_max")
    errors = pl.when("_errors")
    if counter.kind in (CounterKind.FRACTION, CounterKind.RATE) or counter.name == "power_w":
        there, rest = (pl.col(f"{role}_{counter.name}") for role in ("_state", "_rest"))
        if counter.name == "power_w":
            there, rest = (pl.col("_board") * pl.col(f"{role}_power") for role in _ROLES)
        peak = pl.max_horizontal(pl.when(part > 0).then(there), pl.when(part < 1).then(rest))
        return part * there + (1 - part) * rest, peak
    if counter.unit == "bitmask":
        return pl.col("_errors").cast(pl.Float64), errors.then(2.0**32 - 1).otherwise(0.0)
    if counter.kind is CounterKind.CUMULATIVE or counter.unit in ("code", "flag"):
        # What happens between two samples shows in the second: only the edges hide it.
        happened = errors.then(_is_hidden(counter.name).cast(pl.Float64)).otherwise(0.0)
        return mean, most.fill_null(0.0) + happened
    return mean, errors.then(pl.lit(counter.high)).otherwise(most)


def _is_hidden(counter: str) -> pl.Expr:
    """Whether what happened to a GPU may not show in this counter."""
    return pl.col("_edges") | pl.col(f"_lacks_{counter}")


@cache
def _derived(*, steady: bool) -> Mapping[str, pl.Expr]:
    """What is made of a GPU's counters, which are completed already."""
    share, part = share_of("gpu_util"), part_of("gpu_util")
    own = pl.col("zero_util_fraction").fill_null(0.0)
    zero, zero_in_rest = ((pl.col(f"{role}_gpu_util") == 0).cast(pl.Float64) for role in _ROLES)
    zeros = own if steady else part * zero + (1 - part) * zero_in_rest
    highest = pl.col("gpu_util_max")
    events = {
        name: pl.when("_errors").then(_is_hidden(name).cast(pl.Int64)).otherwise(0)
        for name in ("remapped_rows_uncorrectable", "xid")
    }
    return {
        "zero_util_fraction": pl.when("_has_gpu_util").then(own * (1 - share) + zeros * share),
        "temporal_imbalance": pl.when(highest > 0).then(1 - pl.col("gpu_util_mean") / highest),
        "hbm_peak_fraction": (pl.col("hbm_used_mib_max") / pl.col("hbm_mib")).clip(0.0, 1.0),
        "remapped_rows_uncorrectable_last": pl.when("_has_remapped_rows_uncorrectable").then(
            pl.col("remapped_rows_uncorrectable_last").fill_null(0)
            + events["remapped_rows_uncorrectable"]
        ),
        "xid_events": pl.when("_has_xid").then(pl.col("xid_events").fill_null(0) + events["xid"]),
    }


def _summaries(jobs: pl.DataFrame, gpus: pl.DataFrame, *, steady: bool) -> pl.DataFrame:
    """Return the rows of job_summaries over the whole time; `gpus` are completed."""
    means = [pl.col(f"{c.name}_mean").mean() for c in COUNTERS]
    peaks = [pl.col(f"{c.name}_max").max() for c in COUNTERS]
    is_flat = (pl.col("_who") == "all") & pl.col("_piece_s").is_null()
    summed = gpus.group_by("job_key").agg(
        *means,
        *peaks,
        pl.col("temporal_imbalance", "hbm_peak_fraction").max(),
        pl.col("zero_util_fraction").mean(),
        pl.col("xid_events").sum(),
        gpus_never_used=(pl.col("gpu_util_max") == 0).sum().cast(pl.Int64),
        **sums_for_imbalance(),
        **sums_at_work(is_flat),
        _rows=pl.len(),
    )
    names = [name for name in summed.columns if not name.startswith("_") and name != "job_key"]
    joined = jobs.join(summed, on="job_key", how="left", suffix="_whole", maintain_order="left")
    # of what the job never measured nothing is known now
    of = {name: name for name in names} | {"temporal_imbalance": "gpu_util_max"}
    whole = joined.with_columns(
        pl.when(pl.col(of[name]).is_not_null()).then(f"{name}_whole").alias(name) for name in names
    )
    return whole.with_columns(
        coverage=1.0,
        gpus_seen=pl.coalesce("gpus", "gpus_seen"),
        **({} if steady else {**imbalances(_ROLES), **at_work()}),
    )


def _every_minute(jobs: pl.DataFrame, gpus: pl.DataFrame, timelines: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job and minute of its run, with `_missing`, its GPUs without samples, or
    without some counters.

    `_at_begin`, `_at_end`: whether a minute is among the first or last that lack samples.
    Where samples come about once a minute, those around a minute stand for it. The last
    minute counts where it is long enough for a sample.
    """
    held = gpus.group_by("job_key").agg(_held=pl.len(), _lacking=lacking_in_minutes())
    has = {
        f"_has_{name}": pl.col(name).is_not_null().any()
        for name in timelines.columns
        if name not in ("job_key", "minute")
    }
    facts = (
        jobs.select(
            "job_key",
            "_board",
            _run_s=pl.col("_seconds"),
            _interval=pl.col("interval_s"),
            _stands_for=(1.5 * pl.col("interval_s") / _MINUTE_S)
            .floor()
            .clip(upper_bound=1)
            .cast(pl.Int32),
        )
        .join(held, on="job_key", maintain_order="left")
        .join(timelines.group_by("job_key").agg(**has), on="job_key", maintain_order="left")
    )
    every = facts.with_columns(
        minute=pl.int_ranges(0, (pl.col("_run_s") / _MINUTE_S).ceil().cast(pl.Int32))
    ).explode("minute", empty_as_null=False)
    every = every.with_columns(pl.col("minute").cast(pl.Int32)).join(
        timelines, on=["job_key", "minute"], how="left", maintain_order="left"
    )
    every = every.with_columns(_missing=_missing_gpus())
    unseen = (pl.col("_missing") > 0).cast(pl.Int32)
    from_begin = unseen.cum_sum().over("job_key")
    every = every.with_columns(
        _at_begin=from_begin <= PIECE_MINUTES,
        _at_end=from_begin > unseen.sum().over("job_key") - PIECE_MINUTES,
    )
    counts = ("measured_gpus", "idle_gpus", "active_sum", "idle_power_w")
    every = every.with_columns(pl.col(*counts).fill_null(0))
    return every.filter(pl.col("measured_gpus") + pl.col("_missing") > 0)


def _missing_gpus() -> pl.Expr:
    """GPUs of a job without samples in a minute, of rows in order."""
    measured = pl.col("measured_gpus").fill_null(0)
    seen = pl.when(measured > 0).then("minute")
    nearest = pl.min_horizontal(
        pl.col("minute") - seen.forward_fill().over("job_key"),
        seen.backward_fill().over("job_key") - pl.col("minute"),
    )
    inside = pl.min_horizontal(_MINUTE_S, pl.col("_run_s") - pl.col("minute") * _MINUTE_S)
    long_enough = inside >= pl.min_horizontal("_interval", _MINUTE_S)
    # a GPU without a sample in a minute has one in a minute that it stands for, or is missing
    around = measured
    for shift in (1, -1):
        near = measured.shift(shift).over("job_key").fill_null(0)
        around = pl.max_horizontal(around, pl.when(pl.col("_stands_for") > 0).then(near))
    missing = (
        pl.when(measured > 0)
        .then(pl.max_horizontal((pl.col("_held") - around).clip(lower_bound=0), "_lacking"))
        .when((nearest > pl.col("_stands_for")) & long_enough)
        .then("_held")
        .otherwise(0)
    )
    return missing.cast(pl.Int32)


def _filled_minutes(every: pl.DataFrame, *, steady: bool, idle_util: float) -> pl.DataFrame:
    """Return the minutes as if the GPUs without samples had done what fills say."""
    every = every.with_columns(_doing=gpus_in_state())
    every = every.with_columns(_resting=pl.col("_missing") - pl.col("_doing"))
    return every.with_columns(**_of_minutes(steady=steady, idle_util=idle_util))


@cache
def _of_minutes(*, steady: bool, idle_util: float) -> Mapping[str, pl.Expr]:
    states = tuple(zip(_ROLES, (pl.col("_doing"), pl.col("_resting")), strict=True))
    missing, measured = pl.col("_missing"), pl.col("measured_gpus")
    # a GPU that lacks some of the counters is among both
    every = pl.min_horizontal(measured + missing, pl.max_horizontal("_held", measured))

    def highest(names: Iterable[str]) -> pl.Expr:
        return pl.max_horizontal(
            pl.when(gpus > 0).then(pl.max_horizontal(f"{role}_{name}" for name in names))
            for role, gpus in states
        )

    def added(name: str, factor: float = 1.0) -> pl.Expr:
        return pl.sum_horizontal(
            gpus * (factor * pl.col(f"{role}_{name}")) for role, gpus in states
        )

    most = {name: highest([name]) for name in ACTIVITY}
    most |= {"busy": highest(["gpu_util"]), "work": highest(WORK_COUNTERS)}
    watts, links = pl.col("_board") * added("power"), added("links", _LINK_BYTES_PER_S)
    totals = {"pcie": links, "nvlink": links, "power_w": watts}
    totals = {f"mean_{name}": totals.get(name, added(name)) for name in AVERAGED}
    totals["power_w"] = watts
    most["highest_power_w"] = pl.max_horizontal(
        pl.when(gpus > 0).then(pl.col("_board") * pl.col(f"{role}_power")) for role, gpus in states
    )
    whole = {name: pl.max_horizontal(name, value) for name, value in most.items()}
    for name, total in totals.items():
        known = pl.col(name).fill_null(0.0) * (every - missing)
        whole[name] = (known + total) / every
    if steady:
        as_else = pl.when(missing == 0).then
        whole = {
            name: pl.coalesce(as_else(pl.col(name)).mean().over("job_key"), name) for name in whole
        }
    levels = [(pl.col(f"{role}_{ACTIVITY[0]}"), gpus) for role, gpus in states]
    idle = pl.sum_horizontal(gpus * (level < idle_util) for level, gpus in levels)
    active = pl.sum_horizontal(
        gpus * pl.when(level >= idle_util).then(level).otherwise(0.0) for level, gpus in levels
    )
    sums = {
        "measured_gpus": every,
        "idle_gpus": pl.col("idle_gpus") + idle,
        "active_sum": pl.col("active_sum") + active,
        "idle_power_w": pl.col("idle_power_w")
        + idle * pl.col("_board").fill_null(0.0) * IDLE.power,
    }
    return {
        name: pl.when((missing > 0) & pl.col(f"_has_{name}")).then(value).otherwise(name)
        for name, value in (whole | sums).items()
    }


def _every_host_minute(jobs: pl.DataFrame, node_minutes: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job, node and minute of the run; null: not measured."""
    if not node_minutes.height:
        return node_minutes
    spans = jobs.select("job_key", _minutes=(pl.col("_seconds") / _MINUTE_S).floor().cast(pl.Int32))
    nodes = node_minutes.select("job_key", "node").unique(maintain_order=True)
    every = nodes.join(spans, on="job_key", maintain_order="left")
    every = every.with_columns(minute=pl.int_ranges(0, "_minutes"))
    every = every.explode("minute", empty_as_null=False).with_columns(
        pl.col("minute").cast(node_minutes.schema["minute"])
    )
    keys = ["job_key", "node", "minute"]
    return every.join(node_minutes, on=keys, how="full", coalesce=True, maintain_order="left").sort(
        keys
    )


def _filled_host_minutes(every: pl.DataFrame, fills: Mapping[int, Fill]) -> pl.DataFrame:
    """Return the minutes of nodes: what is missing was idle, lively, or like its neighbours."""
    if not every.height:
        return every
    node = ("job_key", "node")
    values = [pl.col(name) for name in HOST_CHARACTERISTICS if name in every.columns]
    filled = {
        "lively": [
            value.fill_null(2 * value.max().over(node) * (pl.col("minute") % 2)) for value in values
        ],
        "idle": [value.fill_null(value.min().over(node) * 0) for value in values],
        "alike": [value.forward_fill().backward_fill().over(node) for value in values],
    }
    kinds = {
        number: "lively" if fill.errors else "idle" if fill.state is IDLE else "alike"
        for number, fill in fills.items()
    }
    frames = {kind: _like(every, every.with_columns(filled[kind])) for kind in set(kinds.values())}
    key = [pl.concat_str("job_key", pl.lit(f"\n{number}")) for number in kinds]
    pairs = zip(kinds.values(), key, strict=True)
    return pl.concat([frames[kind].with_columns(of_fill) for kind, of_fill in pairs])
