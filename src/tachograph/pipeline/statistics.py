"""The statistics kept per counter and segment: columns, and how neighbours are merged.

A segment is what a run held of one GPU in one stretch. Reduction fills the columns,
`merge_segments` puts those of neighbouring segments together, and summaries read them: all three
take the names from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

import polars as pl

from tachograph.catalog.counters import COUNTERS, Counter, CounterKind
from tachograph.catalog.tables import PIPES, RESOURCES


def seconds_between(start: str, end: str) -> pl.Expr:
    """Return the seconds between the times of two columns."""
    return (pl.col(end) - pl.col(start)).dt.total_microseconds() / 1e6


class Merge(Enum):
    """Merges of values in adjacent segments, in order of time."""

    SUM = auto()
    MAXIMUM = auto()
    FIRST = auto()
    LAST = auto()
    BITS = auto()
    MEDIAN = auto()


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic of a counter, of a pipe, or of a label."""

    stem: str
    merge: Merge
    is_count: bool = False  # a whole number
    per_sample: bool = False  # each sample adds to it, however long it stands for

    def of(self, name: str) -> str:
        """Return its column.

        >>> SAMPLES.of("gpu_util")
        'n_gpu_util'
        """
        return f"{self.stem}_{name}"


SAMPLES = Statistic("n", Merge.SUM, is_count=True, per_sample=True)  # those with a value
TOTAL = Statistic("sum", Merge.SUM, per_sample=True)
HIGHEST = Statistic("max", Merge.MAXIMUM)
SQUARE = Statistic("square", Merge.SUM, per_sample=True)  # sum of squares
# samples of exactly 0
ZEROS = Statistic("zeros", Merge.SUM, is_count=True, per_sample=True)
AREA = Statistic("area", Merge.SUM)  # integral over time by trapezoids, in the unit times seconds
SECONDS = Statistic("seconds", Merge.SUM)  # time that AREA, or GROWN, covers
FIRST = Statistic("first", Merge.FIRST)
LAST = Statistic("last", Merge.LAST)
FIRST_TIME = Statistic("t_first", Merge.FIRST)  # us, of FIRST
LAST_TIME = Statistic("t_last", Merge.LAST)
GROWN = Statistic("grown", Merge.SUM)  # sum of the steps upwards
EVENTS = Statistic("events", Merge.SUM, is_count=True)  # changes to a code that is not 0
HIGHEST_NEW = Statistic("max_new", Merge.MAXIMUM)  # of the codes that EVENTS counts
# samples with a bit that lowers clocks
LOWERED = Statistic("lowered", Merge.SUM, is_count=True, per_sample=True)
BITS = Statistic("bits", Merge.BITS, is_count=True)
# of pipes
COMPUTE = Statistic("compute", Merge.SUM, per_sample=True)
MEMORY = Statistic("memory", Merge.SUM, per_sample=True)
# of places of labels
LABEL = Statistic("label", Merge.SUM)

BORDERS = (FIRST, LAST, FIRST_TIME, LAST_TIME)
INTEGRATED = tuple(
    counter.name
    for counter in COUNTERS
    if counter.kind is CounterKind.RATE or counter.name == "power_w"
)

# counters of which the level while at work is known
SQUARED = tuple(counter for resource in RESOURCES for counter in resource.counters)


def statistics_of(counter: Counter) -> tuple[Statistic, ...]:
    """Return the statistics kept of a counter, by its kind and unit."""
    if counter.unit == "bitmask":
        return (SAMPLES, LOWERED, BITS)
    if counter.unit == "code":
        return (SAMPLES, EVENTS, HIGHEST, HIGHEST_NEW, FIRST, LAST)
    if counter.kind is CounterKind.CUMULATIVE:
        return (SAMPLES, GROWN, SECONDS, *BORDERS)
    zeros = (ZEROS,) if counter.name == "gpu_util" else ()
    integral = (AREA, SECONDS, *BORDERS) if counter.name in INTEGRATED else ()
    square = (SQUARE,) if counter.name in SQUARED else ()
    return (SAMPLES, TOTAL, HIGHEST, *square, *zeros, *integral)


_MERGES: Mapping[str, Merge] = MappingProxyType(
    {
        **dict.fromkeys(("run", "node", "gpu", "mig", "t_first"), Merge.FIRST),
        "t_last": Merge.LAST,
        "interval_us": Merge.MEDIAN,
        "steady_us": Merge.MEDIAN,
        "sampled_us": Merge.SUM,
        "continues": Merge.FIRST,
        "gap_us": Merge.MAXIMUM,
        **dict.fromkeys(("samples", "idle", "known"), Merge.SUM),
        **{
            statistic.of(counter.name): statistic.merge
            for counter in COUNTERS
            for statistic in statistics_of(counter)
        },
        **{
            statistic.of(pipe): statistic.merge for pipe in PIPES for statistic in (COMPUTE, MEMORY)
        },
    }
)


# columns to which each sample adds, however long it stands for
PER_SAMPLE = frozenset(
    statistic.of(counter.name)
    for counter in COUNTERS
    for statistic in statistics_of(counter)
    if statistic.per_sample
) | {"idle", "known", *(statistic.of(pipe) for pipe in PIPES for statistic in (COMPUTE, MEMORY))}


def merge_of(column: str) -> Merge:
    """Return how a column of segments is merged.

    Errors: KeyError for a column that is no statistic; a defect.
    """
    return LABEL.merge if column.startswith(LABEL.of("")) else _MERGES[column]
