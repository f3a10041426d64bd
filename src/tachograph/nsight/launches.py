"""Launches of kernels as Nsight Compute reports them: metrics by name, and what was rejected."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isfinite, nan
from typing import Literal

from tachograph.catalog.chunks import Reject

DEVICE_ATTRIBUTE = "device__attribute_"  # before the names of metrics that describe the GPU
DEFAULT_DOMAIN = "<default domain>"  # of NVTX ranges without a domain
_LONGEST_SIDE = 1 << 31  # of a grid; no GPU takes that many blocks


@dataclass(frozen=True, slots=True)
class Launch:
    """One profiled launch of a kernel.

    `metrics`: {metric as Nsight Compute names it: value} in base units: ns, byte, hz, byte per second, instructions or
    cycles; percentages stay 0..100. What was not collected is not in it. `kernel`: the name as the report has it.
    `ranges`: NVTX ranges around the launch, outermost first. `rules`: what the rules of Nsight Compute say of it, in
    the order of the report; empty where none was applied.
    """

    kernel: str
    metrics: Mapping[str, float]
    chip: Chip
    report: str  # file it was read from
    number: int  # ID within the report
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    ranges: tuple[str, ...] = ()
    rules: tuple[RuleResult, ...] = ()


RuleType = Literal["INF", "OPT", "WRN", "ERR"]
SpeedupType = Literal["global", "local"]
RULES_MAX = 200  # results kept of a launch; those of the full set write some 30
_RULE_NAME_MAX, _RULE_TEXT_MAX = 100, 1000  # characters that are kept


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One message of a rule of Nsight Compute on a launch; a rule may write several.

    rule, section: their identifiers, such as SOLBottleneck and SpeedOfLight. type: information, optimization, warning,
    error of the rule; None: not given. speedup_percent: as estimated by the rule, 0..100; None: no estimate.
    speedup_type: global, of the run time of the kernel; local, of the use of the hardware alone.
    """

    rule: str
    section: str
    type: RuleType | None
    text: str
    speedup_percent: float | None = None
    speedup_type: SpeedupType | None = None

    @classmethod
    def of(
        cls, rule: str, section: str, kind: str, text: str, *, speedup: float | None = None, speedup_type: str = ""
    ) -> RuleResult:
        """Return the result with text cleaned and cut, and None for what is none of the known kinds or no number."""
        counts = speedup is not None and isfinite(speedup) and speedup >= 0
        return cls(
            encodable(rule.strip())[:_RULE_NAME_MAX],
            encodable(section.strip())[:_RULE_NAME_MAX],
            _RULE_TYPES.get(kind.strip()),
            rule_text(text),
            speedup if counts else None,
            _SPEEDUP_TYPES.get(speedup_type.strip().lower()) if counts else None,
        )


_RULE_TYPES: Mapping[str, RuleType] = {"INF": "INF", "OPT": "OPT", "WRN": "WRN", "ERR": "ERR"}
_SPEEDUP_TYPES: Mapping[str, SpeedupType] = {"global": "global", "local": "local"}
# links in the text of rules, as the documentation of IRuleResult.rule_message lists them
_LINK = re.compile(
    r"@(?:url:(?P<named>[^@:]*):(?P<url>[^@]*)|(?:section|sass):[^@:]*:(?P<place>[^@]*)"
    r"|source:[^@:]*:[^@:]*:(?P<line>[^@]*))@"
)


def rule_text(text: str) -> str:
    """Return the text of a rule in one line, its links as ncu writes them in CSV; long text is cut.

    >>> rule_text("Look at @section:LaunchStats:Launch Statistics@,\\n see @url:Guide:https://docs.nvidia.com/g.html@.")
    'Look at Launch Statistics, see Guide (https://docs.nvidia.com/g.html).'
    """
    raw = encodable(text[: 2 * _RULE_TEXT_MAX])
    return " ".join(_LINK.sub(_link_text, raw).split())[:_RULE_TEXT_MAX]


def _link_text(link: re.Match[str]) -> str:
    if link["url"] is not None:
        return f"{link['named']} ({link['url']})"
    return link["place"] if link["place"] is not None else link["line"]


@dataclass(frozen=True, slots=True)
class Chip:
    """The GPU of a launch as the report itself describes it; None: not recorded.

    `attributes`: {name after `device__attribute_`: value}, as reported (clocks in kHz, memory in byte).
    """

    name: str | None = None
    compute_capability: str | None = None  # such as "9.0"
    attributes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NcuReport:
    """What one file gave. `problems`: messages about the file as a whole, errors of the profiler among them.

    `digest`: SHA-256 of the file in hexadecimal digits; "" where it was not requested.
    """

    file: str
    launches: tuple[Launch, ...]
    rejects: tuple[Reject, ...] = ()
    problems: tuple[str, ...] = ()
    digest: str = ""

    def named(self, name: str) -> NcuReport:
        """Return the report as if its file were called `name`."""
        launches = tuple(replace(launch, report=name) for launch in self.launches)
        return replace(self, file=name, launches=launches)


def capability_of(attributes: Mapping[str, float]) -> str | None:
    """Return the compute capability from attributes of a device; None where one part is no whole number.

    >>> capability_of({"compute_capability_major": 9.0, "compute_capability_minor": 0.0})
    '9.0'
    """
    parts = [attributes.get(f"compute_capability_{part}", nan) for part in ("major", "minor")]
    return ".".join(str(int(part)) for part in parts) if all(map(_counts, parts)) else None


def _counts(value: float) -> bool:
    return value >= 0 and value.is_integer()


def size_from_metrics(metrics: Mapping[str, float], prefix: str) -> tuple[int, int, int] | None:
    """Return the size in x, y, z from metrics; None where one is missing, or is none that CUDA takes.

    >>> size_from_metrics({"grid_x": 132.0, "grid_y": 2.0, "grid_z": 1.0}, "grid_")
    (132, 2, 1)
    >>> size_from_metrics({"grid_size": 264.0}, "grid_") is None
    True
    """
    x, y, z = (metrics.get(prefix + axis, -1.0) for axis in "xyz")
    return (int(x), int(y), int(z)) if all(0 <= known < _LONGEST_SIDE for known in (x, y, z)) else None


class LaunchMetrics(Mapping[str, float]):
    """The metrics of one launch: a number per metric of its table, the names kept once per table.

    `places` may grow while `numbers` does not: places behind its end were not measured, nor was NaN.
    """

    __slots__ = ("_numbers", "_places")

    def __init__(self, places: Mapping[str, int], numbers: array[float]) -> None:
        self._places = places
        self._numbers = numbers

    def __getitem__(self, metric: str) -> float:
        place = self._places[metric]
        number = self._numbers[place] if place < len(self._numbers) else nan
        if number != number:  # NaN
            raise KeyError(metric)
        return number

    def __iter__(self) -> Iterator[str]:
        return (metric for metric, number in zip(self._places, self._numbers, strict=False) if number == number)

    def __len__(self) -> int:
        return sum(1 for number in self._numbers if number == number)

    def __repr__(self) -> str:
        return f"LaunchMetrics({dict(self)!r})"


class MetricColumns:
    """Metrics of many launches, each metric as a list of its values in their order; NaN: not measured.

    >>> columns = MetricColumns([{"a": 1.0}, {"a": 2.0, "b": 3.0}])
    >>> sorted(columns.names()), columns["a"], columns["b"]
    (['a', 'b'], [1.0, 2.0], [nan, 3.0])
    """

    def __init__(self, launches: Iterable[Mapping[str, float]]) -> None:
        self._runs = [_Run(places, list(run)) for places, run in groupby(launches, key=_places)]

    def names(self) -> set[str]:
        """Return all metrics that any launch may have."""
        return {name for run in self._runs for name in run.names()}

    def __getitem__(self, metric: str) -> list[float]:
        if len(self._runs) == 1:
            return self._runs[0].column(metric)
        return [value for run in self._runs for value in run.column(metric)]


class _Run:
    """Launches one after the other that share their places, or have none."""

    def __init__(self, places: Mapping[str, int] | None, launches: Sequence[Mapping[str, float]]) -> None:
        self._places = places
        self._launches = launches
        self._rows = [metrics._numbers for metrics in launches if isinstance(metrics, LaunchMetrics)]
        self._shortest = min(map(len, self._rows), default=0)

    def names(self) -> Iterable[str]:
        return self._places if self._places is not None else {name for metrics in self._launches for name in metrics}

    def column(self, metric: str) -> list[float]:
        if self._places is None:
            return [metrics.get(metric, nan) for metrics in self._launches]
        place = self._places.get(metric)
        if place is None:
            return [nan] * len(self._rows)
        if place < self._shortest:
            return [row[place] for row in self._rows]
        return [row[place] if place < len(row) else nan for row in self._rows]


def _places(metrics: Mapping[str, float]) -> Mapping[str, int] | None:
    return metrics._places if isinstance(metrics, LaunchMetrics) else None


_LONGEST_EXAMPLE = 80  # characters


@dataclass(slots=True)
class RejectCounter:
    """Rejects so far, each reason and column once, with the first example."""

    _counts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    _examples: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def add(self, reason: str, column: str | None, example: str) -> None:
        """Count one row (`column` None) or one value that was not used."""
        key = (reason, column if column is None else encodable(column))
        self._counts[key] = self._counts.get(key, 0) + 1
        if key not in self._examples:
            self._examples[key] = encodable(example.strip())[:_LONGEST_EXAMPLE]

    def rejects(self) -> tuple[Reject, ...]:
        """Return what was counted, in the order in which it was met."""
        return tuple(
            Reject(reason, column, count, self._examples[reason, column])
            for (reason, column), count in self._counts.items()
        )


def encodable(text: str) -> str:
    r"""Return `text` with bytes that are no text replaced by `?`, so that it can be written anywhere.

    >>> encodable("kernel\udca0")
    'kernel?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
