"""Mappings of metrics, `METRIC{label="value"}`, to column, unit and merge rule.

The same notation serves the files of `tachograph.sources.exporters` and the key `metrics` of a
configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

import msgspec

from tachograph.catalog.counters import COUNTERS_BY_NAME, HOST_UNITS, JOB_UNITS

# columns beside the counters
CAPACITY = "hbm_mib"  # the memory of the device
# The value is nothing, the labels describe the device: model, UUID, PCI address, index.
DEVICE = "device"
INDEX = "index"  # the value is the index of the GPU that the labels name by its UUID
HOLDER = "job"  # the labels name the job that holds the GPU, or the node
JOB_NUMBER = "job_id"  # the value is the number of the job that holds the GPU, 0 for none
MAPPED_FACTS = (CAPACITY, DEVICE, INDEX, HOLDER, JOB_NUMBER)
# Unit of memory in use: percent of the capacity that the device reports.
OF_CAPACITY = "percent_of_capacity"

_KEY = re.compile(r"([^{}\s]+?)\s*(?:\{(.*)\})?\s*", re.DOTALL)
_CONDITION = re.compile(
    r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.ASCII
)
_JOINING = re.compile(
    r"(sum|max|code)(?:\s+([a-zA-Z_][a-zA-Z0-9_]*))?|(fallback)|mark\s+(\d{1,9})", re.ASCII
)


class LabelNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Label names of a site or an exporter, tried before the usual ones; `cluster`: in their
    place.
    """

    node: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    uuid: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()


USUAL_LABELS = LabelNames()
_FACT_UNITS = dict.fromkeys(MAPPED_FACTS, "") | {CAPACITY: "MiB"}


def column_unit(name: str) -> str | None:
    """Return the contract's unit of a counter, or of a fact of a device or job; None: unknown."""
    if name in COUNTERS_BY_NAME:
        return COUNTERS_BY_NAME[name].unit
    return HOST_UNITS.get(name) or JOB_UNITS.get(name) or _FACT_UNITS.get(name)


def written_unit(name: str) -> str:
    """Return the unit in which programs mostly write it: shares are in percent."""
    unit = column_unit(name) or ""
    return "percent" if unit == "fraction" else unit


@lru_cache(maxsize=256)
def joined_labels(first: LabelNames, then: LabelNames) -> LabelNames:
    """Return the names of both, the first's before the second's."""
    if USUAL_LABELS in (first, then):
        return then if first == USUAL_LABELS else first
    return LabelNames(
        **{
            struct_field: (*getattr(first, struct_field), *getattr(then, struct_field))
            for struct_field in LabelNames.__struct_fields__
        }
    )


@dataclass(frozen=True, slots=True)
class MetricKey:
    """The left side of a mapping: a metric and required labels, case-insensitive."""

    metric: str
    labels: Mapping[str, str]

    @classmethod
    def parse(cls, written: str) -> MetricKey:
        """Return the parts of `METRIC{label="value"}`.

        >>> MetricKey.parse('nvlink_bytes{direction="TX"}').labels["direction"]
        'tx'

        Errors: ValueError for another notation.
        """
        match = _KEY.fullmatch(written.strip())
        if not match:
            raise ValueError(f"no metric: {written!r}")
        labels: dict[str, str] = {}
        rest = (match[2] or "").strip()
        while rest:
            condition = _CONDITION.match(rest)
            if not condition:
                raise ValueError(f"no label: {rest!r}")
            labels[condition[1]] = condition[2].lower()
            rest = rest[condition.end() :].strip()
        return cls(match[1], MappingProxyType(labels))

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Return whether a series has these labels."""
        return all(labels.get(name, "").lower() == value for name, value in self.labels.items())


@dataclass(frozen=True, slots=True)
class MetricJoining:
    """Merging of a GPU's series: the label to merge over, by sum or maximum.

    `metrics`: instead of series of one metric, those of several metrics are parts. `code`: the
    label is a number, which is the value where that of the series is above 0. `mark`: the same with
    this number. `fallback`: read only where no other metric gives the column.
    """

    over: str = ""
    largest: bool = False
    fallback: bool = False
    metrics: bool = False
    code: bool = False
    mark: int | None = None

    @classmethod
    def parse(cls, written: Iterable[str]) -> MetricJoining:
        """Return the words after column and unit, parsed.

        They are `sum` and `max`, with a LABEL or over metrics, `code LABEL`, `mark NUMBER`,
        `fallback`.

        >>> MetricJoining.parse(["sum link"]).over, MetricJoining.parse(["sum", "mark 4"]).mark
        ('link', 4)

        Errors: ValueError for other words.
        """
        joining = cls()
        for word in written:
            match = _JOINING.fullmatch(word.strip())
            if not match or (match[1] == "code" and not match[2]):
                raise ValueError(
                    f"{word!r} is none of `sum LABEL`, `max LABEL`, `code LABEL`, `mark NUMBER`, "
                    "`fallback`"
                )
            if match[1]:
                joining = replace(
                    joining,
                    over=match[2] or "",
                    metrics=not match[2],
                    largest=match[1] != "sum",
                    code=match[1] == "code",
                )
            elif match[3]:
                joining = replace(joining, fallback=True)
            else:
                joining = replace(joining, mark=int(match[4]))
        return joining


@dataclass(frozen=True, slots=True)
class ExporterMapping:
    """The metrics of one exporter: {METRIC{label="value"}: (column, unit, joining...)}.

    Columns are counters of GPUs or hosts, or those of MAPPED_FACTS. `unread`: {metric: why},
    metrics that look like a counter and measure something else; they are counted. `source`: where
    names, units and labels are documented.
    """

    name: str
    source: str
    metrics: Mapping[str, tuple[str, ...]]
    labels: LabelNames = USUAL_LABELS
    unread: Mapping[str, str] = field(default_factory=dict)
