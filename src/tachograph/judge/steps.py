"""What the steps of a job did with its GPUs: idle steps, and gaps without a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.judge.activity import activity_counter, number
from tachograph.pipeline.timelines import ACTIVITY

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow, StepSummaryRow


# Slurm starts them with the job, all others are of srun.
WITHOUT_SRUN = ("batch", "extern", "interactive")
_LEAST_COVERAGE = 0.5  # share of the expected samples that a verdict about a step needs
_LEAST_GAP_S = 60.0  # shorter gaps hold no whole minute


@dataclass(frozen=True, slots=True)
class StepUse:
    """A step. `begin_s`, `end_s`: seconds from the job's start, None: unknown.

    `activity_mean` None: ambiguous or not measured; `idle` None: undetermined.
    """

    row: StepSummaryRow
    begin_s: float | None
    end_s: float | None
    activity_mean: float | None
    idle: bool | None

    @property
    def by_srun(self) -> bool:
        """It was started by srun, not by Slurm with the job."""
        return self.row["step"] not in WITHOUT_SRUN

    @property
    def ambiguous(self) -> bool:
        """Which GPUs of the job it used is not recorded."""
        return self.row.get("attribution") == "ambiguous"

    @property
    def without_gpus(self) -> bool:
        """No GPU was allocated to it."""
        return not self.ambiguous and self.row.get("gpus") == 0

    @property
    def label(self) -> str:
        """Its id and its name."""
        name = self.row.get("name")
        return f"step {self.row['step']}" + (
            f" ({name})" if name and name != self.row["step"] else ""
        )

    @property
    def gpu_seconds(self) -> float:
        """Run time times GPUs, as far as they are known: the weight of a step among others."""
        row = self.row
        return (number(row, "elapsed_s") or 0.0) * (
            number(row, "gpus") or number(row, "nodes") or 1.0
        )


@dataclass(frozen=True, slots=True)
class StepGap:
    """Time without srun steps; within its whole minutes: measured and idle seconds."""

    begin: datetime
    end: datetime
    measured_s: float
    idle_s: float

    @property
    def elapsed_s(self) -> float:
        """Its length."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Steps of a job by start, gaps of a minute or more without srun steps, and the start."""

    steps: tuple[StepUse, ...] = ()
    gaps: tuple[StepGap, ...] = ()
    start: datetime | None = None

    @property
    def by_srun(self) -> tuple[StepUse, ...]:
        """The steps that srun started."""
        return tuple(step for step in self.steps if step.by_srun)

    @property
    def idle(self) -> tuple[StepUse, ...]:
        """The srun steps that were idle, most GPU time first."""
        return tuple(
            sorted((step for step in self.by_srun if step.idle), key=lambda step: -step.gpu_seconds)
        )

    @property
    def waited(self) -> tuple[StepGap, ...]:
        """The gaps in which GPUs were idle, longest first."""
        return tuple(sorted((gap for gap in self.gaps if gap.idle_s), key=lambda gap: -gap.idle_s))

    @property
    def divide_job(self) -> bool:
        """There is more to show than one srun step as long as the job."""
        return len(self.by_srun) > 1 or bool(self.gaps)

    @property
    def node_memory_mib(self) -> float | None:
        """Peak host memory of the tasks on a node, MiB; None if unknown."""
        facts = [{name: step.row.get(name) for name in NODE_MEMORY_COLUMNS} for step in self.steps]
        if all(row["max_rss_mib"] is None for row in facts):
            return None
        # all steps are of one job
        rows = pl.DataFrame(facts, infer_schema_length=None).with_columns(job_key=pl.lit(""))
        return node_memory_mib(rows).get("")

    def largest(self, count: int) -> tuple[StepUse, ...]:
        """Return the `count` steps of most GPU time, in order of start."""
        kept = sorted(range(len(self.steps)), key=lambda place: -self.steps[place].gpu_seconds)[
            :count
        ]
        return tuple(self.steps[place] for place in sorted(kept))


def job_steps(
    summary: JobSummaryRow, rows: pl.DataFrame, minutes: pl.DataFrame, *, idle_util: float
) -> JobSteps:
    """Return the steps of a job from its rows of job_summaries, step_summaries and job_minutes.

    A step is idle with mean activity below `idle_util`; undetermined where it is ambiguous,
    activity was not measured, or less than half of the expected samples are there. There are gaps
    only where srun started a step.
    """
    start, until = summary.get("start"), summary.get("end") or summary.get("as_of")
    ordered = rows.sort("start", "step", nulls_last=True)
    step_rows = cast("list[StepSummaryRow]", ordered.to_dicts())
    steps = tuple(_step_use(row, start, until, idle_util) for row in step_rows)
    spans = [(step.begin_s, step.end_s) for step in steps if step.by_srun]
    known = [(begin, end) for begin, end in spans if begin is not None and end is not None]
    if start is None or until is None or not known or len(known) < len(spans):
        return JobSteps(steps, start=start)
    idle = _idle_minutes(minutes, idle_util)
    gaps = gaps_between(known, (until - start).total_seconds(), at_least_s=_LEAST_GAP_S)
    return JobSteps(steps, tuple(_step_gap(start, begin, end, idle) for begin, end in gaps), start)


def _step_use(
    row: StepSummaryRow, start: datetime | None, until: datetime | None, idle_util: float
) -> StepUse:
    counter, coverage = activity_counter(row), number(row, "coverage")
    mean = None if counter is None else number(row, f"{counter}_mean")
    enough = mean is not None and coverage is not None and coverage >= _LEAST_COVERAGE
    begun, ended = row.get("start"), row.get("end") or until
    return StepUse(
        row,
        None if start is None or begun is None else (begun - start).total_seconds(),
        None if start is None or ended is None else (ended - start).total_seconds(),
        mean,
        mean < idle_util if mean is not None and enough else None,
    )


def gaps_between(
    spans: Sequence[tuple[float, float]], length_s: float, *, at_least_s: float
) -> Iterator[tuple[float, float]]:
    """Yield the parts of 0..`length_s` that no span covers, `at_least_s` long.

    >>> list(gaps_between([(100.0, 200.0), (150.0, 180.0), (230.0, 300.0)], 500.0, at_least_s=60.0))
    [(0.0, 100.0), (300.0, 500.0)]
    """
    covered = 0.0
    for begin, end in (*sorted(spans), (length_s, length_s)):
        if min(begin, length_s) - covered >= at_least_s:
            yield covered, min(begin, length_s)
        covered = max(covered, end)


def _idle_minutes(minutes: pl.DataFrame, idle_util: float) -> dict[int, bool]:
    """Whether all GPUs were below `idle_util`, per minute; only fully measured minutes."""
    counter = next((name for name in ACTIVITY if minutes[name].null_count() < minutes.height), None)
    if counter is None:
        return {}
    by_minute = minutes.group_by("minute").agg(
        most=pl.col(counter).max(), seen=pl.col(counter).count()
    )
    whole = by_minute.filter(pl.col("seen") == pl.col("seen").max())
    return dict(whole.select("minute", pl.col("most") < idle_util).iter_rows())


def _step_gap(start: datetime, begin: float, end: float, idle: Mapping[int, bool]) -> StepGap:
    inside = [
        idle[minute] for minute in range(int(-(-begin // 60)), int(end // 60)) if minute in idle
    ]
    begun, ended = (start + timedelta(seconds=seconds) for seconds in (begin, end))
    return StepGap(begun, ended, 60.0 * len(inside), 60.0 * sum(inside))


NODE_MEMORY_COLUMNS = ("job_key", "step", "start", "end", "nodes", "tasks", "max_rss_mib")


def node_memory_mib(steps: pl.DataFrame) -> dict[str, float]:
    """Return {job_key: peak host memory of a job's tasks on one node, as polled} (MiB).

    `steps`: columns NODE_MEMORY_COLUMNS of step_summaries. Tasks of a step count with the peak of
    its largest one, as many as one node may have had: every node of a step runs one at least. Steps
    that overlap add up. Jobs are left out where a step has no peak or no number of tasks; only an
    extern step without a peak holds nothing.

    >>> from datetime import UTC
    >>> day = [datetime(2026, 4, 23, hour, tzinfo=UTC) for hour in range(4)]
    >>> times = {"start": [day[0], day[0], day[2]], "end": [day[3], day[2], day[3]]}
    >>> counts = {"nodes": [1, 2, 2], "tasks": [1, 2, 8], "max_rss_mib": [8.0, 100.0, 20.0]}
    >>> node_memory_mib(pl.DataFrame({"job_key": ["a"] * 3, "step": ["batch", "0", "1"], **times, **counts}))
    {'a': 148.0}
    """
    single = pl.col("step").is_in(["batch", "interactive"])  # one task on the first node
    tasks = (
        pl.when(single).then(1).when(pl.col("step") == "extern").then("nodes").otherwise("tasks")
    )
    nodes = pl.when(single).then(1).otherwise("nodes")
    used = (
        steps.filter((pl.col("step") != "extern") | (pl.col("max_rss_mib") > 0))
        .with_columns(held=pl.col("max_rss_mib") * (tasks - nodes + 1).clip(lower_bound=1))
        .filter(pl.col("held").is_not_null().all().over("job_key"))
    )
    own = used.filter((pl.col("step") != "extern").any().over("job_key"))
    begun = own.select("job_key", t="start", change="held")
    ended = own.filter(pl.col("end").is_not_null()).select(
        "job_key", t="end", change=-pl.col("held")
    )
    sums = (
        pl.concat([begun, ended])
        .sort("job_key", "t", "change")
        .group_by("job_key", maintain_order=True)
    )
    return dict(sums.agg(pl.col("change").cum_sum().max()).iter_rows())
