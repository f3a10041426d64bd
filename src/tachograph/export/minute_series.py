"""Stored minutes as series of Prometheus: their names and labels, and answers to queries of them.

A series is one counter of one GPU in one job, or of one node in one job. A sample stands at the begin of its minute and
holds for that minute; it is no longer there afterwards, whatever the step of a query.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

import polars as pl

from tachograph.catalog import counters
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import (
    HOST_CHARACTERISTICS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    MINUTE_MAXIMA,
    MINUTE_MEANS,
    LakeTable,
)
from tachograph.export.promql import (
    Aggregation,
    Arithmetic,
    LabelMatcher,
    OverTime,
    PromExpression,
    SeriesSelector,
)
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import scan_rows

NAME = "__name__"
MINUTE_MS = 60_000
MOST_ROWS = 3_000_000  # that a query may read
MOST_POINTS = 5_000_000  # of all series before they are aggregated
_LONGEST_MS = 366 * 86_400_000
MOST_STEPS = 11_000  # as Prometheus has it
MOST_SERIES = 10_000  # of an answer
# labels of jobs, of both tables; the others are columns of the minutes
JOB_LABELS = ("cluster", "job", "job_key", "user", "account", "partition")
_JOBS = ("job_key", "seq", "start", "as_of", "gpus", "nodes")  # beside the labels, what is needed of a job
_NARROW = "narrow it by job, user or node, or take a shorter time"


@dataclass(frozen=True, slots=True)
class MinuteMetric:
    """A metric: its name, the column of the minutes that it is, its unit, what it means."""

    name: str
    column: str
    table: LakeTable
    unit: str
    sentence: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that are columns of the minutes."""
        return ("node", "gpu", "mig") if self.table is JOB_MINUTES else ("node",)


def _metrics() -> Iterator[MinuteMetric]:
    for column in (*MINUTE_MEANS, *MINUTE_MAXIMA):
        counter = counters.get(column)
        what = "Maximum" if column in MINUTE_MAXIMA else "Mean"
        sentence = f"{what} in the minute: {counter.sentence}"
        yield MinuteMetric(f"tachograph_job_{column}", column, JOB_MINUTES, counter.unit, sentence)
    for column, (unit, counter_name) in HOST_CHARACTERISTICS.items():
        sentence = f"Of the node in the minute, from {counter_name}."
        yield MinuteMetric(f"tachograph_node_{column}", column, JOB_NODE_MINUTES, unit, sentence)


MINUTE_METRICS: Mapping[str, MinuteMetric] = MappingProxyType({metric.name: metric for metric in _metrics()})
LABELS = (NAME, *JOB_LABELS, "node", "gpu", "mig")


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """The instants at which a query is evaluated: `steps` of them, in ms since 1970."""

    start_ms: int
    step_ms: int = MINUTE_MS
    steps: int = 1

    @classmethod
    def between(cls, start_ms: int, end_ms: int, step_ms: int) -> TimeGrid:
        """Return the instants from start to end. Errors: UsageError where there is none, or too many."""
        if step_ms < 1:
            raise UsageError("zero or negative query resolution step widths are not accepted", do="give a step above 0")
        if end_ms < start_ms:
            raise UsageError("end timestamp must not be before start time", do="exchange them")
        steps = (end_ms - start_ms) // step_ms + 1
        if steps > MOST_STEPS:
            raise UsageError(
                f"exceeded maximum resolution of {MOST_STEPS:,} points per timeseries", do="give a longer step"
            )
        return cls(start_ms, step_ms, steps)

    @property
    def end_ms(self) -> int:
        """The last instant."""
        return self.start_ms + (self.steps - 1) * self.step_ms


@dataclass(frozen=True, slots=True)
class SeriesVector:
    """Values of series on a grid: a row per series and step `k`, with columns `labels` (null: absent) and `value`."""

    frame: pl.DataFrame
    labels: tuple[str, ...]

    def series(self) -> Iterator[tuple[dict[str, str], list[int], list[float]]]:
        """Yield (labels, steps, values) of each series, in order of labels.

        Errors: UsageError for more series than are returned.
        """
        if self.frame.is_empty():
            return
        names = list(self.labels)
        ordered = self.frame.sort(*names, "k", nulls_last=False)
        grouped = ordered.group_by(names or [pl.lit(0)], maintain_order=True).agg("k", "value")
        if grouped.height > MOST_SERIES:
            raise UsageError(f"{grouped.height:,} series, at most {MOST_SERIES:,} are returned", do=_NARROW)
        for row in grouped.iter_rows(named=True):
            yield {name: row[name] for name in sorted(names) if row[name] is not None}, row["k"], row["value"]


class MinuteSeries:
    """The series of the jobs of a lake: `jobs` are rows of job_summaries, `lake` has their minutes and no others."""

    def __init__(self, lake: Lake, jobs: pl.DataFrame) -> None:
        self._lake = lake
        texts = [pl.col(name).replace("", None) for name in JOB_LABELS if name != "job"]
        self._jobs = jobs.select(*_JOBS[1:], *texts, job=pl.coalesce("display_id", "job_id"))

    def evaluate(self, expression: PromExpression, grid: TimeGrid) -> SeriesVector | float:
        """Return what an expression is on a grid; a number alone is one at all times.

        Errors: UsageError for what is not supported, matches too much, or is no regular expression.
        """
        match expression:
            case float():
                return expression
            case SeriesSelector():
                return self._last(expression, grid)
            case OverTime(function, selector, length_ms):
                samples, labels = self._samples(selector, grid, length_ms)
                return _nameless(_aggregated(_spread(samples, grid, length_ms), function, labels))
            case Aggregation(function, inner, labels, without):
                vector = self.evaluate(inner, grid)
                if isinstance(vector, float):
                    raise UsageError(f"expected series in {function}(), not a number", do="give a selector")
                others = tuple(name for name in vector.labels if name not in (*labels, NAME))
                kept = others if without else tuple(name for name in dict.fromkeys(labels) if name in vector.labels)
                return _aggregated(vector.frame, function, kept)
            case Arithmetic(op, left, right):
                return _calculated(op, self.evaluate(left, grid), self.evaluate(right, grid))

    def label_sets(
        self, selectors: Sequence[SeriesSelector], first_ms: int | None, last_ms: int | None
    ) -> pl.DataFrame:
        """Return the labels of the series that any selector matches, of jobs that ran meanwhile: columns LABELS.

        Errors: as `evaluate`.
        """
        parts = []
        for selector in selectors:
            jobs = self._matching(selector, first_ms, last_ms)
            for table, metrics in _by_table(_metrics_of(selector)):
                parts += self._sets_of_table(table, metrics, jobs, selector, (first_ms, last_ms))
        found = pl.concat(parts, how="diagonal") if parts else pl.DataFrame()
        schema = dict.fromkeys(LABELS, pl.String)
        return pl.DataFrame(schema=schema) if found.is_empty() else _completed(found).unique(maintain_order=True)

    def _sets_of_table(
        self,
        table: LakeTable,
        metrics: Sequence[MinuteMetric],
        jobs: pl.DataFrame,
        selector: SeriesSelector,
        between: tuple[int | None, int | None],
    ) -> list[pl.DataFrame]:
        labels = metrics[0].labels
        if table is JOB_MINUTES:  # a counter has minutes in a job where it has a mean
            read_of, columns = JOB_GPUS, [pl.col(f"{metric.column}_mean") for metric in metrics]
            rows = scan_rows(self._lake, JOB_GPUS, jobs)
            _check_rows(jobs.select(pl.col("gpus").sum()).item())
        else:
            read_of, columns = table, [pl.col(metric.column) for metric in metrics]
            _check_size(jobs, metrics, *between)
            rows = _within(scan_rows(self._lake, table, jobs), *between)
        measured = [
            column.is_not_null().any().alias(metric.column) for metric, column in zip(metrics, columns, strict=True)
        ]
        with lake_errors(self._lake.uri(read_of)):
            found = rows.group_by("job_key", *labels).agg(*measured).collect()
        found = _matched(_as_text(found, labels), _of_labels(selector, labels))
        named = found.join(jobs.select(*JOB_LABELS), on="job_key")
        return [
            named.filter(pl.col(metric.column)).select(pl.lit(metric.name).alias(NAME), *JOB_LABELS, *labels)
            for metric in metrics
        ]

    def label_values(self, name: str) -> list[str]:
        """Return the values of a label of any series, sorted."""
        if name == NAME:
            return sorted(MINUTE_METRICS)
        if name in JOB_LABELS:
            return self._jobs.get_column(name).drop_nulls().unique().sort().to_list()
        if name not in LABELS:
            return []
        with lake_errors(self._lake.uri(JOB_GPUS)):
            found = scan_rows(self._lake, JOB_GPUS, self._jobs).select(pl.col(name).cast(pl.String)).unique().collect()
        return found.get_column(name).drop_nulls().sort().to_list()

    def _last(self, selector: SeriesSelector, grid: TimeGrid) -> SeriesVector:
        samples, labels = self._samples(selector, grid, MINUTE_MS)
        spread = _spread(samples, grid, MINUTE_MS).sort("t")
        return SeriesVector(spread.group_by(*labels, "k").agg(pl.col("value").last()), labels)

    def _samples(self, selector: SeriesSelector, grid: TimeGrid, hold_ms: int) -> tuple[pl.DataFrame, tuple[str, ...]]:
        """Samples that count at some instant of the grid (t in ms, value, labels), and the names of their labels."""
        if not 0 < hold_ms <= _LONGEST_MS:
            raise UsageError("duration must be greater than 0, and at most a year", do="write for example [5m]")
        first_ms, last_ms = grid.start_ms - hold_ms, grid.end_ms
        jobs = self._matching(selector, first_ms, last_ms)
        parts = []
        for table, metrics in _by_table(_metrics_of(selector)):
            labels, columns = metrics[0].labels, [metric.column for metric in metrics]
            _check_size(jobs, metrics, first_ms, last_ms)
            with lake_errors(self._lake.uri(table)):
                rows = _within(scan_rows(self._lake, table, jobs), first_ms, last_ms)
                found = rows.select("job_key", *labels, pl.col("t").dt.epoch("ms"), *columns).collect()
            found = _matched(_as_text(found, labels), _of_labels(selector, labels)).rename(
                {metric.column: metric.name for metric in metrics}
            )
            names = [metric.name for metric in metrics]
            long = found.unpivot(names, index=["job_key", *labels, "t"], variable_name=NAME, value_name="value")
            known = long.filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan())
            parts.append(known.join(jobs.select(*JOB_LABELS), on="job_key"))
        if not parts:
            return pl.DataFrame(schema={"t": pl.Int64, "value": pl.Float64}), ()
        samples = pl.concat(parts, how="diagonal").with_columns(pl.col("value").cast(pl.Float64))
        return samples, tuple(name for name in LABELS if name in samples.columns)

    def _matching(self, selector: SeriesSelector, first_ms: int | None, last_ms: int | None) -> pl.DataFrame:
        """The jobs that a selector may match, and that ran between two instants."""
        ran = []
        if last_ms is not None:
            ran.append(pl.col("start") <= _moment(last_ms))
        if first_ms is not None:
            ran.append(pl.col("as_of") >= _moment(first_ms))
        return _matched(self._jobs.filter(*ran) if ran else self._jobs, _of_labels(selector, JOB_LABELS))


def _moment(ms: int) -> pl.Expr:
    return pl.lit(datetime.fromtimestamp(ms / 1000, UTC))


def _metrics_of(selector: SeriesSelector) -> list[MinuteMetric]:
    """The metrics that a selector names, and can match.

    Errors: UsageError where nothing restricts it, as in Prometheus, or a label that no series has must have a value.
    """
    if all(_matches_empty(matcher) for matcher in selector.matchers):
        raise UsageError(
            "vector selector must contain at least one non-empty matcher",
            do='give a name, or a label such as user="ann"',
        )
    names = pl.DataFrame({NAME: list(MINUTE_METRICS)})
    found = _matched(names, _of_labels(selector, (NAME,))).get_column(NAME).to_list()
    unknown = [matcher for matcher in selector.matchers if matcher.name not in LABELS]
    if not all(_matches_empty(matcher) for matcher in unknown):
        return []
    metrics = [MINUTE_METRICS[name] for name in found]
    of_gpus = _of_labels(selector, ("gpu", "mig"))
    return [one for one in metrics if one.table is JOB_MINUTES or all(map(_matches_empty, of_gpus))]


def _by_table(metrics: Sequence[MinuteMetric]) -> Iterator[tuple[LakeTable, list[MinuteMetric]]]:
    for table in (JOB_MINUTES, JOB_NODE_MINUTES):
        mine = [metric for metric in metrics if metric.table is table]
        if mine:
            yield table, mine


def _of_labels(selector: SeriesSelector, labels: Sequence[str]) -> list[LabelMatcher]:
    return [matcher for matcher in selector.matchers if matcher.name in labels]


def _matches_empty(matcher: LabelMatcher) -> bool:
    return not _matched(pl.DataFrame({matcher.name: [None]}, schema={matcher.name: pl.String}), [matcher]).is_empty()


def _matched(frame: pl.DataFrame, matchers: Sequence[LabelMatcher]) -> pl.DataFrame:
    """The rows whose labels meet all matchers; null is "". The expressions are those of RE2, without backtracking.

    Errors: UsageError for what is no regular expression.
    """
    for matcher in matchers:
        column = pl.col(matcher.name).fill_null("")
        if matcher.op in ("=", "!="):
            meets = column == matcher.value
        else:
            _check_expression(matcher.value)
            meets = column.str.contains(f"^(?s:{matcher.value})$")
        frame = frame.filter(~meets if matcher.op in ("!=", "!~") else meets)
    return frame


def _check_expression(written: str) -> None:
    try:
        pl.Series([""]).str.contains(written)
        pl.Series([""]).str.contains(f"^(?s:{written})$")
    except pl.exceptions.ComputeError:
        raise UsageError(
            f"parse error: invalid regular expression {written!r}", do="write it as RE2 has it, and short"
        ) from None


def _as_text(frame: pl.DataFrame, labels: Sequence[str]) -> pl.DataFrame:
    return frame.with_columns(pl.col(*labels).cast(pl.String))


def _completed(found: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None, dtype=pl.String).alias(name) for name in LABELS if name not in found.columns]
    return found.with_columns(missing).select(LABELS)


def _within(rows: pl.LazyFrame, first_ms: int | None, last_ms: int | None) -> pl.LazyFrame:
    conditions = []
    if first_ms is not None:
        conditions.append(pl.col("t") > _moment(first_ms))
    if last_ms is not None:
        conditions.append(pl.col("t") <= _moment(last_ms))
    return rows.filter(*conditions) if conditions else rows


def _check_size(jobs: pl.DataFrame, metrics: Sequence[MinuteMetric], first_ms: int | None, last_ms: int | None) -> None:
    """Errors: UsageError where the minutes of these jobs are more than a query may read."""
    begin = pl.col("start") if first_ms is None else pl.max_horizontal("start", _moment(first_ms))
    end = pl.col("as_of") if last_ms is None else pl.min_horizontal("as_of", _moment(last_ms))
    minutes = ((end - begin).dt.total_seconds() / 60 + 1).clip(0)
    held = pl.col("gpus" if metrics[0].table is JOB_MINUTES else "nodes").fill_null(1).clip(1)
    rows = (jobs.select((minutes * held).sum()).item() or 0) * len(metrics)
    _check_rows(rows)


def _check_rows(rows: float) -> None:
    if rows > MOST_ROWS:
        raise UsageError(f"the query reads {rows:,.0f} rows, at most {MOST_ROWS:,}", do=_NARROW)


def _spread(samples: pl.DataFrame, grid: TimeGrid, hold_ms: int) -> pl.DataFrame:
    """A row per sample and step `k` at which it counts: from its instant until `hold_ms` later, that not included."""
    since = pl.col("t") - grid.start_ms
    first = (-(-since // grid.step_ms)).clip(0)  # rounded up
    behind = (-(-(since + hold_ms) // grid.step_ms)).clip(upper_bound=grid.steps)
    counted = samples.with_columns(first=first, behind=behind).filter(pl.col("first") < pl.col("behind"))
    points = counted.select((pl.col("behind") - pl.col("first")).sum()).item() or 0
    if points > MOST_POINTS:
        raise UsageError(f"the query has {points:,} points, at most {MOST_POINTS:,}", do=_NARROW)
    return counted.with_columns(k=pl.int_ranges("first", "behind")).explode("k").drop("first", "behind")


def _aggregated(frame: pl.DataFrame, function: str, labels: tuple[str, ...]) -> SeriesVector:
    value = pl.col("value")
    made = {"sum": value.sum(), "avg": value.mean(), "min": value.min(), "max": value.max(), "count": value.len()}
    grouped = frame.group_by(*labels, "k").agg(made[function].cast(pl.Float64))
    return SeriesVector(grouped, labels)


def _nameless(vector: SeriesVector) -> SeriesVector:
    """The same series without the name of the metric. Errors: UsageError where two become one."""
    labels = tuple(name for name in vector.labels if name != NAME)
    frame = vector.frame.select(*labels, "k", "value")
    if len(labels) < len(vector.labels) and frame.select(*labels, "k").is_duplicated().any():
        raise UsageError("vector cannot contain metrics with the same labelset", do="name one metric")
    return SeriesVector(frame, labels)


def _calculated(op: str, left: SeriesVector | float, right: SeriesVector | float) -> SeriesVector | float:
    if isinstance(left, float) and isinstance(right, float):
        return float(pl.select(_operation(op, pl.lit(left), pl.lit(right))).item())
    if isinstance(left, SeriesVector) and isinstance(right, SeriesVector):
        raise UsageError("arithmetic between series is not supported", do="calculate with a number, or in the panel")
    vector = left if isinstance(left, SeriesVector) else right
    assert isinstance(vector, SeriesVector)
    sides = [pl.col("value") if isinstance(side, SeriesVector) else pl.lit(side) for side in (left, right)]
    return _nameless(SeriesVector(vector.frame.with_columns(_operation(op, *sides).alias("value")), vector.labels))


def _operation(op: str, left: pl.Expr, right: pl.Expr) -> pl.Expr:
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[op]


def number_text(value: float) -> str:
    """Return a value as Prometheus writes it.

    >>> number_text(0.25), number_text(2.0), number_text(math.inf), number_text(math.nan)
    ('0.25', '2', '+Inf', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value).removesuffix(".0")
