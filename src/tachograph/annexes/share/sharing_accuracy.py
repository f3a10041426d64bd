"""Predicted slowdowns of jobs that share a GPU, beside those measured on the site's own jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from tachograph.annexes.share.advice import times
from tachograph.annexes.share.colocation import ColocateReport, GroupMatrix
from tachograph.annexes.share.job_groups import GivenProfile
from tachograph.annexes.share.job_sharing import read_sharing
from tachograph.annexes.share.mixes import COUNTER_OF_PIPE
from tachograph.annexes.share.shared_runs import (
    CONFIDENCE,
    LEAST_RUNS,
    MOSTLY,
    HeldGpu,
    HeldRun,
    PairKey,
    RunGroup,
    SharedPair,
    SlowdownInterval,
    caveats,
    own_counter,
    shared_runs,
    slowdown_by_rate,
    slowdown_by_time,
)
from tachograph.catalog.config import Configuration
from tachograph.catalog.devices import match_device
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, TIME
from tachograph.catalog.units import plural, printable, text
from tachograph.judge.activity import number
from tachograph.lake.conform import resolve
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.places import may_be_of
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import read_summaries, read_where, select_jobs
from tachograph.pipeline.gpu_inventory import gpu_facts, inventory
from tachograph.pipeline.gpu_numbers import with_own_indices
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


_RATES = (*COUNTER_OF_PIPE.values(), "dram_active")
_OF_RUNS = ("job_key", "cluster", "job_id", "display_id", "user", "name", "state", "start", "as_of",
            "end", "elapsed_s", "gpus", "gpu_model", "attribution", "ambiguous_because", "mps",
            "gpu_share", "cpus", *(f"{counter}_mean" for counter in _RATES))  # fmt: skip
_GPU = ("node", "gpu")


@dataclass(frozen=True, slots=True)
class PairAccuracy:
    """A job group beside another: measured, and predicted; None: unknown.

    counter: what `by_counter` was measured by. alone, beside: completed runs.
    """

    key: PairKey
    alone: int
    beside: int
    by_time: SlowdownInterval | None
    by_counter: SlowdownInterval | None
    counter: str | None
    predicted: SlowdownInterval | None
    caveats: tuple[str, ...]

    @property
    def result(self) -> str:
        """Where the slowdown by run time is: within the predicted interval, above or below it; or
        why this is unknown.
        """
        measured, predicted = self.by_time, self.predicted
        if measured is None:
            return "too few runs"
        if predicted is None:
            return "not predicted"
        if measured.slowdown > predicted.high:
            return "above"
        return "below" if measured.slowdown < predicted.low else "within"

    @property
    def is_certain(self) -> bool:
        """Whether the whole measured interval is outside of the predicted one."""
        measured, predicted = self.by_time, self.predicted
        if measured is None or predicted is None:
            return False
        return measured.low > predicted.high or measured.high < predicted.low


@dataclass(frozen=True, slots=True)
class AccuracyReport:
    """Accuracy of the advice on a site's own jobs.

    left_out: as of SharedRuns. shared: runs on GPUs that others had, too.
    """

    pairs: tuple[PairAccuracy, ...]
    left_out: Mapping[tuple[RunGroup, str], int]
    shared: int

    @property
    def measured(self) -> int:
        """Slowdowns measured by run time."""
        return sum(pair.by_time is not None for pair in self.pairs)

    @property
    def errors(self) -> list[float]:
        """Predicted less measured slowdown of each pair that has both."""
        both = [(pair.predicted, pair.by_time) for pair in self.pairs]
        return [
            predicted.slowdown - measured.slowdown
            for predicted, measured in both
            if predicted and measured
        ]

    @property
    def within(self) -> int:
        """Those of `errors` whose measured slowdown is in the predicted interval."""
        return sum(pair.result == "within" for pair in self.pairs)


def predictions(report: ColocateReport) -> Callable[[RunGroup, RunGroup], SlowdownInterval | None]:
    """Return a function of two job groups: the predicted slowdown of the first beside the other.

    This is all that is taken from the advice: `matrices` of its report.
    """
    indexes: dict[RunGroup, tuple[GroupMatrix, int]] = {}
    for matrix in report.matrices or ():
        for index, kind in enumerate(matrix.kinds):
            if kind.array is None:
                group = RunGroup(kind.user, kind.name, kind.device.name, kind.gpus)
                indexes[group] = (matrix, index)

    def predicted(group: RunGroup, partner: RunGroup) -> SlowdownInterval | None:
        if group not in indexes or partner not in indexes:
            return None
        (matrix, row), (_, column) = indexes[group], indexes[partner]
        bounds = matrix.bounds
        ends = (bounds.slowdown, bounds.low, bounds.high)
        return SlowdownInterval(*(float(end[row, column]) for end in ends))

    return predicted


def read_accuracy(
    lake: Lake,
    configuration: Configuration,
    wanted: JobFilter,
    *,
    profiles: Sequence[GivenProfile] = (),
    remark: Callable[[str], None] = lambda _: None,
) -> AccuracyReport:
    """Return what the selected jobs lost on shared GPUs, beside what our advice predicts.

    Options and errors are those of `read_sharing`.
    """
    selected = frozenset(select_jobs(lake, wanted, ("job_key",)).jobs["job_key"])
    runs = read_held_runs(lake, configuration)
    sharing = shared_runs(runs, selected)
    shared = sum(run.key in selected and not run.alone for run in runs)
    if not sharing.pairs:
        return AccuracyReport((), sharing.left_out, shared)
    advice = read_sharing(
        lake,
        configuration,
        JobFilter(),  # those beside the selected ones may be of others
        least_runs=1,
        matrix=True,
        profiles=profiles,
        remark=remark,
    )
    rates = read_rates(lake, filter(own_counter, sharing.pairs))
    predicted = predictions(advice)
    pairs = []
    for pair in sharing.pairs:
        counter = own_counter(pair)
        pairs.append(
            PairAccuracy(
                pair.key,
                len(pair.alone),
                len(pair.beside),
                slowdown_by_time(pair),
                slowdown_by_rate(pair, counter, rates) if counter else None,
                counter,
                predicted(pair.key.group, pair.key.partner),
                tuple(caveats(pair)),
            )
        )
    return AccuracyReport(tuple(pairs), sharing.left_out, shared)


def read_held_runs(lake: Lake, configuration: Configuration) -> list[HeldRun]:
    """Return all runs on shared GPUs, and those of the same users and names that were alone.

    Who was beside a run does not depend on who asks: runs of all users are read.
    """
    everyone = lake.of_all_jobs
    begun = read_summaries(everyone, _OF_RUNS).filter(pl.col("start").is_not_null())
    of_all = begun.with_columns(end=pl.coalesce("end", "as_of"))  # some still run
    shared = of_all.filter(pl.col("ambiguous_because") == "shared_gpus")
    if shared.is_empty():
        return []
    devices = everyone.latest(DEVICES)
    records = _gpu_records(everyone, shared, of_all, devices, configuration)
    facts = gpu_facts(inventory(devices, configuration.nodes))[0].filter(pl.col("mig").is_null())
    models = {(node, gpu): model for node, gpu, model in facts.select(*_GPU, "gpu_model").rows()}
    named = records.filter(pl.col("gpu").is_not_null())
    # A share of an unnamed GPU may be of any that others share on its node.
    shares = of_all.filter(pl.col("gpus").is_null())
    rest = records.join(shares, on="job_key", how="semi")
    rest = rest.join(named, on=["job_key", "node"], how="anti").drop("gpu").unique()
    there = named.select("cluster", *_GPU).unique()
    perhaps = rest.join(there, on=["cluster", "node"], nulls_equal=True)
    unnamed = set(rest["job_key"])
    gpus: dict[str, set[HeldGpu]] = {key: set() for key in unnamed}
    for key, *gpu in pl.concat([named, perhaps]).rows():
        gpus.setdefault(key, set()).add(HeldGpu(*gpu))
    names = shared.select("user", "name").unique()
    attributed = (pl.col("attribution") != "ambiguous") & (pl.col("gpus") > 0)
    alike = of_all.filter(attributed).join(names, on=["user", "name"], how="semi", nulls_equal=True)
    there = of_all.filter(pl.col("job_key").is_in(list(gpus)))
    rows = pl.concat([alike, there]).unique("job_key", maintain_order=True)
    job_rows = cast("list[JobSummaryRow]", rows.to_dicts())
    runs = [_held_run(row, gpus.get(row["job_key"], ()), models) for row in job_rows]
    unknown = RunGroup(None, None, None, 0)
    return [replace(run, group=unknown) if run.key in unnamed else run for run in runs]


def _gpu_records(
    lake: Lake,
    shared: pl.DataFrame,
    of_all: pl.DataFrame,
    devices: pl.DataFrame,
    configuration: Configuration,
) -> pl.DataFrame:
    """(job_key, cluster, node, gpu) that records name, of all runs on nodes of `shared`."""
    ids = pl.concat([shared["job_id"], shared["display_id"]]).drop_nulls().unique()
    nodes = read_where(lake, ALLOCATIONS, pl.col("job_id").is_in(ids.implode()))["node"].unique()
    rows = read_where(lake, ALLOCATIONS, pl.col("node").is_in(nodes.implode()))
    rows = with_own_indices(rows, devices, slurm=configuration.slurm)
    run = {"of_job": "cluster", "run_start": "start", "run_end": "end"}
    # Maps name tasks of arrays as people see them, the accounting by a number of their own.
    by_name = [of_all.select("job_key", job_id=name, **run) for name in ("job_id", "display_id")]
    runs = pl.concat(by_name).drop_nulls("job_id").unique()
    begun = (pl.col("start") < pl.col("run_end")).fill_null(value=True)
    not_over = (pl.col("end") > pl.col("run_start")).fill_null(value=True)
    mine = rows.join(runs, on="job_id").filter(may_be_of("of_job"), begun, not_over)
    return mine.select("job_key", pl.col("of_job").alias("cluster"), *_GPU).unique()


def _held_run(
    row: JobSummaryRow, gpus: Collection[HeldGpu], models: Mapping[tuple[str, int], str | None]
) -> HeldRun:
    alone = row["attribution"] != "ambiguous"
    model, count = row["gpu_model"], row["gpus"]
    if not alone:
        of_gpus = {models.get((gpu.node, gpu.gpu)) for gpu in gpus}
        model, count = of_gpus.pop() if len(of_gpus) == 1 else None, len(gpus)
    device = match_device(model) if model else None
    means = {counter: number(row, f"{counter}_mean") for counter in _RATES if alone}
    return HeldRun(
        key=row["job_key"],
        # without a name or a model it is like no other run
        group=RunGroup(
            row["user"],
            row["name"] if model else None,
            device.name if device else model,
            count or 0,
        ),
        start=row["start"],
        end=row["end"] or row["as_of"],
        elapsed_s=row["elapsed_s"] or 0.0,
        completed=row["state"] == "COMPLETED",
        gpus=tuple(sorted(gpus, key=str)),
        alone=alone,
        mps=row["gpu_share"] if row["mps"] else None,
        cpus=row["cpus"],
        rates={counter: mean for counter, mean in means.items() if mean is not None},
    )


def read_rates(lake: Lake, pairs: Iterable[SharedPair]) -> dict[str, dict[str, float]]:
    """{run: {counter: mean of its GPUs while others were there}}, where samples are kept."""
    rows = [
        (shared.run.key, *meeting.gpu, meeting.begin, meeting.end)
        for pair in pairs
        for shared in pair.beside
        for meeting in shared.meetings
    ]
    schema = {"run": pl.String, "of_job": pl.String, "node": pl.String, "gpu": pl.Int16}
    windows = pl.DataFrame(rows, schema={**schema, "begin": TIME, "over": TIME}, orient="row")
    parts = [pl.DataFrame(schema={"run": pl.String, **dict.fromkeys(_RATES, pl.Float64)})]
    everyone = lake.of_all_jobs
    for day in everyone.days(GPU_SAMPLES):
        today = (pl.col("begin").dt.date() <= day) & (pl.col("over").dt.date() >= day)
        here = windows.filter(today)
        if here.is_empty():
            continue
        there = pl.col("node").is_in(here["node"].unique().implode()) & pl.col("mig").is_null()
        with lake_errors(everyone.uri(GPU_SAMPLES)):
            samples = everyone.scan(GPU_SAMPLES, [day]).filter(there).collect()
        joined = resolve(samples, GPU_SAMPLES)[0].join(here, on=_GPU)
        inside = (pl.col("t") >= pl.col("begin")) & (pl.col("t") < pl.col("over"))
        means = [pl.col(counter).cast(pl.Float64) for counter in _RATES]
        parts.append(joined.filter(may_be_of("of_job") & inside).select("run", *means))
    means_of_runs = pl.concat(parts).group_by("run").agg(pl.col(_RATES).mean())
    return {
        run: {counter: rate for counter, rate in zip(_RATES, rates, strict=True) if rate}
        for run, *rates in means_of_runs.rows()
    }


def accuracy_json(report: AccuracyReport, *, top: int | None = None) -> dict[str, Any]:
    """Return JSON values: slowdowns and intervals; null where unknown. `top`: pairs at most."""
    errors = report.errors
    return json_values(
        {
            "shared_runs": report.shared,
            "measured": report.measured,
            "predicted": len(errors),
            "within": report.within,
            "error_mean": fmean(map(abs, errors)) if errors else None,
            "bias_mean": fmean(errors) if errors else None,
            "pairs": [_pair_json(pair) for pair in report.pairs[:top]],
            "left_out": [
                {"group": group, "reason": reason, "runs": runs}
                for (group, reason), runs in report.left_out.items()
            ],
        }
    )


def _pair_json(pair: PairAccuracy) -> dict[str, Any]:
    return {
        **json_values(pair.key),
        **json_values(pair, without=("key",)),
        "result": pair.result,
        "certain": pair.is_certain,
    }


_MEANING = (
    "measured: median of each completed run beside the other over each run alone, of one user, "
    f"name, number of GPUs and model, and its {text(CONFIDENCE, 'fraction')} interval; from "
    f"{LEAST_RUNS} runs on either side on, of runs beside the other for at least "
    f"{text(MOSTLY, 'fraction')} of their time. by counter: the same by a counter of the GPU that "
    "only this job moves; others are of all jobs on it. predicted: by MPS, while the job uses the "
    "GPU; shards may be time-sliced instead, and MPS with a part of the GPU limits a job, too. *: "
    "the intervals do not overlap. Not excluded: other inputs, versions, host, network."
)


def accuracy_lines(report: AccuracyReport, *, width: int = 100, top: int = 20) -> list[Line]:
    """Return the report as styled lines; `top`: at most so many pairs."""
    lines = wrapped(accuracy_headline(report), width, style="bold")
    pairs = report.pairs[:top]
    if pairs:
        lines += [plain(""), *_tables(pairs, width)]
        if len(report.pairs) > top:
            lines.append(plain(f"{top:,} of {plural(len(report.pairs), 'pair')}", "dim"))
        for pair in pairs:
            if pair.caveats:
                called = f"{printable(pair.key.group.label)} beside {_partner_label(pair)}"
                message = f"{called}: {'; '.join(pair.caveats)}."
                lines += wrapped(message, width, first="! ", indent="  ")
        lines += wrapped(_MEANING, width, style="dim")
    return [*lines, *_left_out_lines(report, width)]


def accuracy_headline(report: AccuracyReport) -> str:
    """Return the answer in a sentence."""
    errors = report.errors
    if not report.shared:
        return "No run shared a GPU with others: nothing is measured."
    if not errors:
        number = plural(report.measured, "slowdown") if report.measured else "no slowdown"
        return f"{plural(report.shared, 'run')} on shared GPUs: {number} measured, none predicted."
    bias = fmean(errors)
    return (
        f"{report.within} of {plural(len(errors), 'measured slowdown')} on shared GPUs within what "
        f"was predicted; predictions are {fmean(map(abs, errors)):.2f} off on average, "
        f"{abs(bias):.2f} too {'low' if bias < 0 else 'high'}."
    )


def _tables(pairs: Sequence[PairAccuracy], width: int) -> Iterator[Line]:
    """Yield a table for each GPU model and number of GPUs."""

    def gpus(pair: PairAccuracy) -> str:
        return f"{pair.key.group.gpus} x {pair.key.group.gpu_model}"

    for heading, rows in groupby(sorted(pairs, key=gpus), key=gpus):
        here = list(rows)
        columns = [
            TextColumn(title, [cell(pair) for pair in here], least=least, hide=hide)
            for title, cell, least, hide in _COLUMNS
        ]
        yield plain(heading, "bold")
        yield from fit_table(columns, width).with_note(width=width)
        yield plain("")


def _partner_label(pair: PairAccuracy) -> str:
    with_itself = pair.key.partner == pair.key.group
    return "itself" if with_itself else printable(pair.key.partner.label)


def _mode(pair: PairAccuracy) -> str:
    parts = dict.fromkeys((pair.key.mps, pair.key.partner_mps))
    if list(parts) == [None]:
        return "shards"
    return f"MPS {' / '.join(text(part, 'fraction') for part in parts)}"


def _interval(numbers: SlowdownInterval | None) -> str:
    if numbers is None:
        return "unknown"
    return f"{times(numbers.slowdown)} ({numbers.low:.2f}-{numbers.high:.2f})"


# (title, cell, least width, in which order columns are hidden)
_COLUMNS: tuple[tuple[str, Callable[[PairAccuracy], str], int | None, int | None], ...] = (
    ("job group", lambda pair: printable(pair.key.group.label), 16, None),
    ("beside", _partner_label, 16, None),
    ("shared by", _mode, None, 1),
    ("alone + beside", lambda pair: f"{pair.alone} + {pair.beside} runs", None, 2),
    ("measured", lambda pair: _interval(pair.by_time), None, None),
    ("by counter", lambda pair: _interval(pair.by_counter), None, 3),
    ("predicted", lambda pair: _interval(pair.predicted), None, None),
    ("result", lambda pair: pair.result + "*" * pair.is_certain, None, None),
)
_LEFT_OUT = {
    "several": "beside several job groups, or beside somebody unknown",
    "partly": f"beside another for less than {text(MOSTLY, 'fraction')} of their time",
}


def _left_out_lines(report: AccuracyReport, width: int) -> Iterator[Line]:
    """Yield how many runs of which groups count for no pair, and why."""
    for reason, meaning in _LEFT_OUT.items():
        groups: Counter[str] = Counter()
        for (group, why), count in report.left_out.items():
            if why == reason:
                groups[printable(group.label)] += count
        if groups:
            largest = ", ".join(f"{name} {count}" for name, count in groups.most_common(8))
            sentence = f"Left out: {plural(groups.total(), 'run')} {meaning}: {largest}."
            yield from wrapped(sentence, width, style="dim")
