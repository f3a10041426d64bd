"""The details page in CSV: one row per launch and metric, under the label that the section gives the metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isclose, isfinite

from tachograph.nsight.catalogue import (
    TEXT_METRICS,
    TEXTS,
    fits,
    is_whole,
    may_be_scaled,
    metric_of,
    unit_factor,
    varies,
)
from tachograph.nsight.counted import encodable
from tachograph.nsight.csv_gathered import (
    NO_ID,
    NO_UNIT,
    SURELY_BASE,
    TOO_FEW,
    TOO_MANY,
    UNKNOWN_UNIT,
    Gathered,
    Identity,
    attribute_factor,
    attribute_of,
    cell_at,
    chip_of,
    dimensions,
)
from tachograph.nsight.csv_lines import fitted
from tachograph.nsight.csv_numbers import NOT_A_NUMBER
from tachograph.nsight.launch import Chip, Launch

UNKNOWN_LABEL = "a label that is not known"
VARYING_LABEL = "a label that stands for another metric from version to version of ncu"
TWICE = "a metric told twice with different values"
_SAME = 0.02  # of the value: one is scaled and rounded, the other not


@dataclass(slots=True)
class _Building:
    """A launch of which rows are still to come. `copies`: launches that the row is the mean of."""

    row: list[str]
    number: int
    copies: int
    metrics: dict[str, float] = field(default_factory=dict)
    attributes: dict[str, float] = field(default_factory=dict)
    device_name: str | None = None


class Details:
    """A table of the details page. Rows without a metric are advice of the rules of ncu; they are left out.

    The summary of a kernel over its launches (`--print-summary`) has means in place of values: it counts as that many
    launches alike.
    """

    def __init__(self, names: list[str], gathered: Gathered) -> None:
        self._names = names
        self._gathered = gathered
        self._identity = Identity.of(names)
        self._metric = names.index("Metric Name")
        self._value = names.index("Metric Value" if "Metric Value" in names else "Average")
        self._unit = names.index("Metric Unit") if "Metric Unit" in names else None
        self._section = names.index("Section Name") if "Section Name" in names else None
        self._invocations = names.index("Invocations") if "Invocations" in names else None
        places = (self._metric, self._value, self._unit or 0, self._section or 0, self._invocations or 0)
        self.needed = 1 + max(*places, *self._identity.all)
        self._building: dict[object, _Building] = {}
        self._last: _Building | None = None
        self._meant: dict[tuple[str, str], tuple[str | None, str | None]] = {}

    def take(self, row: list[str]) -> None:
        """Read a row."""
        if len(row) < self.needed or not fitted(row, len(self._names)):
            self._gathered.counted.add(TOO_FEW if len(row) < self.needed else TOO_MANY, None, ",".join(row))
            return
        launch = self._launch(row)
        if launch is None:
            self._gathered.counted.add(NO_ID, None, ",".join(row))
            return
        self._last = launch
        label = row[self._metric].strip()
        if label:
            self._read(launch, label, row)

    def finish(self, cut: Sequence[str] | None) -> None:
        """Hand over the launches, without the one that was cut."""
        if cut is not None and self._last is not None and self._same(cut, self._last):
            self._building = {key: launch for key, launch in self._building.items() if launch is not self._last}
        if cut is not None:
            self._gathered.lost += 1
        chips: dict[object, Chip] = {}
        for building in self._building.values():
            launch = self._built(building, chips)
            self._gathered.launches.extend([launch] * building.copies)
        self._building = {}

    def _launch(self, row: list[str]) -> _Building | None:
        """Return the launch of the row, a new one with its first row."""
        key = self._identity.key(row)
        found = self._building.get(key)
        if found is not None:
            return found
        number = self._identity.number_in(row) if self._identity.number is not None else len(self._building)
        if number is None or not row[self._identity.kernel].strip():
            return None
        copies = 1
        if self._invocations is not None:
            told = row[self._invocations].strip()
            copies = int(told) if told.isdecimal() and len(told) < 7 else 1
            self._gathered.summarised += 1
        self._building[key] = _Building(row, number, max(copies, 1))
        return self._building[key]

    def _read(self, launch: _Building, label: str, row: list[str]) -> None:
        """Take the metric of a row."""
        section = row[self._section].strip() if self._section is not None else ""
        metric, reason = self._meaning(section, label)
        cell = row[self._value].strip()
        if metric is None:
            if reason is not None:
                self._gathered.counted.add(reason, f"{section}: {label}", cell)
            return
        unit = row[self._unit] if self._unit is not None else ""
        attribute = attribute_of(metric)
        if attribute == "display_name":
            launch.device_name = encodable(cell)
            return
        factor = attribute_factor(attribute, unit) if attribute else unit_factor(unit)
        if factor is None or not fits(metric, unit):
            self._gathered.counted.add(UNKNOWN_UNIT, metric, f"{cell} {unit}")
            return
        value = self._gathered.numbers.quick(cell)
        if value is None:
            put = partial(self._put, launch, metric, factor)
            self._gathered.numbers.read(cell, metric, put, whole=is_whole(metric, unit))
        else:
            self._put(launch, metric, factor, value)

    def _put(self, launch: _Building, metric: str, factor: float, value: float) -> None:
        if self._unit is None and 0 < abs(value) < SURELY_BASE and may_be_scaled(metric):
            self._gathered.counted.add(NO_UNIT, metric, str(value))
            return
        attribute = attribute_of(metric)
        target, name = (launch.metrics, metric) if attribute is None else (launch.attributes, attribute)
        value *= factor
        if not isfinite(value):
            self._gathered.counted.add(NOT_A_NUMBER, metric, f"{value / factor:g}")
            return
        if not isclose(target.setdefault(name, value), value, rel_tol=_SAME):
            self._gathered.counted.add(TWICE, metric, f"{target[name]:g} and {value:g}")

    def _meaning(self, section: str, label: str) -> tuple[str | None, str | None]:
        """Return the metric, and why there is none; (None, None) for words."""
        key = (section, label)
        if key not in self._meant:
            self._meant[key] = _meaning(encodable(section), encodable(label))
        return self._meant[key]

    def _same(self, cut: Sequence[str], last: _Building) -> bool:
        """Whether what is left of a row may be of the launch `last`."""
        place = self._identity.number
        if place is None or place >= len(cut):
            return True
        told = last.row[place]
        return cut[place] == told if place < len(cut) - 1 else told.startswith(cut[place])

    def _built(self, building: _Building, chips: dict[object, Chip]) -> Launch:
        row, identity = building.row, self._identity
        device = building.device_name or cell_at(row, identity.device)
        capability = cell_at(row, identity.capability)
        key = (device, capability, id(building) if building.attributes else None)
        if key not in chips:
            chips[key] = chip_of(device, capability, building.attributes)
        return Launch(
            kernel=encodable(row[identity.kernel].strip()),
            metrics=building.metrics,
            chip=chips[key],
            report=self._gathered.file,
            number=building.number,
            grid=dimensions(cell_at(row, identity.grid)),
            block=dimensions(cell_at(row, identity.block)),
            ranges=tuple(map(encodable, identity.ranges_in(row))),
        )


def _meaning(section: str, label: str) -> tuple[str | None, str | None]:
    """Return the metric behind a label, and why there is none; (None, None) for words in place of numbers."""
    metric = metric_of(section, label)
    if label in TEXTS or metric in TEXT_METRICS:
        return None, None
    if metric is None:
        return None, VARYING_LABEL if varies(section, label) else UNKNOWN_LABEL
    return metric, None
