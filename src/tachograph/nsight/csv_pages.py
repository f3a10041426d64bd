"""The two pages of a CSV of Nsight Compute: details and raw."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isclose, isfinite, nan
from operator import itemgetter, mul
from typing import NamedTuple

from tachograph.nsight.csv_cells import (
    NO_ID,
    NO_UNIT,
    NOT_A_NUMBER,
    SURELY_BASE,
    TOO_FEW,
    TOO_MANY,
    UNKNOWN_UNIT,
    GatheredLaunches,
    LaunchIdentity,
    attribute_factor,
    attribute_of,
    cell_at,
    chip_of,
    dimensions,
    fitted,
    is_range,
)
from tachograph.nsight.launches import (
    DEVICE_ATTRIBUTE,
    RULES_MAX,
    Chip,
    Launch,
    LaunchMetrics,
    RuleResult,
    encodable,
    size_from_metrics,
)
from tachograph.nsight.metrics import TEXT_METRICS, TEXTS, fits, is_whole, may_be_scaled, metric_of, unit_factor, varies

UNKNOWN_LABEL = "a label that is not known"
VARYING_LABEL = "a label that stands for another metric from version to version of ncu"
TWICE = "a metric with two different values"
_DISPLAY_NAME = "display_name"  # attribute
_SAME = 0.02  # of the value: one is scaled and rounded, the other not


@dataclass(slots=True)
class _Building:
    """A launch of which rows are still to come. `copies`: launches that the row is the mean of."""

    number: int
    number_cell: str | None
    copies: int
    kernel: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    ranges: tuple[str, ...]
    device: str | None
    capability: str | None
    numbers: array[float] = field(default_factory=lambda: array("d"))  # in the table's order of metrics; NaN: unknown
    attributes: dict[str, float] = field(default_factory=dict)
    rules: list[RuleResult] = field(default_factory=list)


_RULE_COLUMNS = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
_SPEEDUP = re.compile(r"[0-9]{1,3}(?:[.,][0-9]{1,18})?")  # a percentage: a comma groups nothing, it is decimal


@dataclass(frozen=True, slots=True)
class _RuleColumns:
    """Places of the columns of rules; those of speedups are missing in files of older versions."""

    section: int | None
    name: int
    others: tuple[int | None, ...]  # type, description, type of speedup, speedup

    @classmethod
    def of(cls, names: Sequence[str]) -> _RuleColumns | None:
        """Return the places in these names of columns; None: rules are not among them."""
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        if _RULE_COLUMNS[0] not in places:
            return None
        others = tuple(places.get(column) for column in _RULE_COLUMNS[1:])
        return cls(places.get("Section Name"), places[_RULE_COLUMNS[0]], others)

    def result_in(self, row: Sequence[str]) -> RuleResult | None:
        """Return what a rule says in this row; None: nothing, as in rows of metrics, which may end before."""
        if len(row) <= self.name or not row[self.name].strip():
            return None
        section, kind, text, of, percent = (
            row[place] if place is not None and place < len(row) else "" for place in (self.section, *self.others)
        )
        known = _SPEEDUP.fullmatch(percent.strip())
        speedup = float(known[0].replace(",", ".")) if known else None
        return RuleResult.of(row[self.name], section, kind, text, speedup=speedup, speedup_type=of)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """Meaning of rows with one section, label and unit. `factor` None: not in this unit."""

    metric: str
    factor: float | None
    attribute: str | None
    place: int  # among the metrics of a launch
    whole: bool


class DetailsPage:
    """A table of the details page: rows of metrics, and rows of what the rules of ncu say.

    The summary of a kernel over its launches (`--print-summary`) has means in place of values: it counts as that many
    equal launches.
    """

    def __init__(self, names: list[str], gathered: GatheredLaunches) -> None:
        self._names = names
        self._gathered = gathered
        self._identity = LaunchIdentity.of(names)
        self._key = itemgetter(*self._identity.all)
        self._metric = names.index("Metric Name")
        self._value = names.index("Metric Value" if "Metric Value" in names else "Average")
        self._unit = names.index("Metric Unit") if "Metric Unit" in names else None
        self._section = names.index("Section Name") if "Section Name" in names else None
        self._invocations = names.index("Invocations") if "Invocations" in names else None
        self._rules = _RuleColumns.of(names)
        places = (self._metric, self._value, self._unit or 0, self._section or 0, self._invocations or 0)
        self.needed = 1 + max(*places, *self._identity.all)
        self._building: dict[object, _Building] = {}
        self._last: tuple[object, _Building] | None = None
        self._meant: dict[tuple[str, str, str], _Meaning | str | None] = {}
        self._places: dict[str, int] = {}

    def take(self, row: list[str]) -> None:
        """Read a row."""
        if len(row) < self.needed or not fitted(row, len(self._names)):
            self._gathered.counted.add(TOO_FEW if len(row) < self.needed else TOO_MANY, None, ",".join(row))
            return
        launch = self._launch(row)
        if launch is None:
            self._gathered.counted.add(NO_ID, None, ",".join(row))
            return
        label = row[self._metric].strip()
        if label:
            self._read(launch, label, row)
        elif self._rules is not None and len(launch.rules) < RULES_MAX and (said := self._rules.result_in(row)):
            launch.rules.append(self._gathered.same_rule(said))

    def finish(self, cut: Sequence[str] | None) -> None:
        """Hand over the launches, without the one that was cut."""
        if cut is not None:
            self._gathered.lost += 1
        lost = self._last[1] if cut is not None and self._last is not None and self._same(cut, self._last[1]) else None
        chips: dict[object, Chip] = {}
        for building in self._building.values():
            if building is not lost:
                self._gathered.launches.extend([self._built(building, chips)] * building.copies)
        self._building = {}

    def _launch(self, row: list[str]) -> _Building | None:
        """Return the launch of the row, a new one with its first row."""
        key = self._key(row)
        if self._last is not None and self._last[0] == key:  # rows of one launch are contiguous
            return self._last[1]
        found = self._building.get(key)
        if found is None:
            found = self._begun(row)
            if found is None:
                return None
            # of a launch the key is kept: all cells but its ID are the same objects in others
            key = tuple(map(self._gathered.same, key)) if isinstance(key, tuple) else key
            self._building[key] = found
        self._last = key, found
        return found

    def _begun(self, row: list[str]) -> _Building | None:
        """Return a launch that begins with this row; None where it has no ID or no name."""
        identity = self._identity
        number = identity.number_in(row) if identity.number is not None else len(self._building)
        kernel = row[identity.kernel].strip()
        if number is None or not kernel:
            return None
        copies = 1
        if self._invocations is not None:
            known = row[self._invocations].strip()
            copies = int(known) if known.isdecimal() and len(known) < 7 else 1
            self._gathered.summarised += 1
        return _Building(
            number=number,
            number_cell=row[identity.number] if identity.number is not None else None,
            copies=max(copies, 1),
            kernel=self._gathered.same(encodable(kernel)),
            grid=dimensions(cell_at(row, identity.grid)),
            block=dimensions(cell_at(row, identity.block)),
            ranges=tuple(self._gathered.same(encodable(name)) for name in identity.ranges_in(row)),
            device=cell_at(row, identity.device),
            capability=cell_at(row, identity.capability),
        )

    def _read(self, launch: _Building, label: str, row: list[str]) -> None:
        """Take the metric of a row."""
        section = row[self._section].strip() if self._section is not None else ""
        unit = row[self._unit] if self._unit is not None else ""
        key = (section, label, unit)
        if key not in self._meant:
            self._meant[key] = self._meaning(*key)
        meaning, cell = self._meant[key], row[self._value].strip()
        if not isinstance(meaning, _Meaning):
            if meaning is not None:
                self._gathered.counted.add(meaning, f"{section}: {label}" if section else label, cell)
        elif meaning.attribute == _DISPLAY_NAME:
            launch.device = encodable(cell) or launch.device
        elif meaning.factor is None:
            self._gathered.counted.add(UNKNOWN_UNIT, meaning.metric, f"{cell} {unit}")
        elif (value := self._gathered.numbers.quick(cell)) is not None:
            self._put(launch, meaning, meaning.factor, value)
        else:
            put = partial(self._put, launch, meaning, meaning.factor)
            self._gathered.numbers.read(cell, meaning.metric, put, whole=meaning.whole)

    def _put(self, launch: _Building, meaning: _Meaning, factor: float, value: float) -> None:
        if self._unit is None and 0 < abs(value) < SURELY_BASE and may_be_scaled(meaning.metric):
            self._gathered.counted.add(NO_UNIT, meaning.metric, str(value))
            return
        scaled = value * factor
        if not isfinite(scaled):
            self._gathered.counted.add(NOT_A_NUMBER, meaning.metric, f"{value:g}")
            return
        before = _kept(launch, meaning, scaled)
        if not isclose(before, scaled, rel_tol=_SAME):
            self._gathered.counted.add(TWICE, meaning.metric, f"{before:g} and {scaled:g}")

    def _meaning(self, section: str, label: str, unit: str) -> _Meaning | str | None:
        """Return the meaning of such rows, or why they have none; None for text in place of numbers."""
        metric, reason = _metric_or_reason(encodable(section), encodable(label))
        if metric is None:
            return reason
        attribute = attribute_of(metric)
        factor = attribute_factor(attribute, unit) if attribute else unit_factor(unit)
        place = -1 if attribute else self._places.setdefault(metric, len(self._places))
        return _Meaning(metric, factor if fits(metric, unit) else None, attribute, place, is_whole(metric, unit))

    def _same(self, cut: Sequence[str], last: _Building) -> bool:
        """Whether what is left of a row may be of the launch `last`."""
        place, known = self._identity.number, last.number_cell
        if place is None or known is None or place >= len(cut):
            return True
        return cut[place] == known if place < len(cut) - 1 else known.startswith(cut[place])

    def _built(self, building: _Building, chips: dict[object, Chip]) -> Launch:
        key = (building.device, building.capability, id(building) if building.attributes else None)
        if key not in chips:
            chips[key] = chip_of(building.device, building.capability, building.attributes)
        return Launch(
            kernel=building.kernel,
            metrics=LaunchMetrics(self._places, building.numbers),
            chip=chips[key],
            report=self._gathered.file,
            number=building.number,
            grid=building.grid,
            block=building.block,
            ranges=building.ranges,
            rules=tuple(building.rules),
        )


def _kept(launch: _Building, meaning: _Meaning, value: float) -> float:
    """Return the value that a launch has from now on: the one that was recorded first."""
    if meaning.attribute is not None:
        return launch.attributes.setdefault(meaning.attribute, value)
    numbers, place = launch.numbers, meaning.place
    if place < len(numbers) and numbers[place] == numbers[place]:  # not NaN
        return numbers[place]
    if place >= len(numbers):
        numbers.extend([nan] * (place + 1 - len(numbers)))
    numbers[place] = value
    return value


def _metric_or_reason(section: str, label: str) -> tuple[str | None, str | None]:
    """Return the metric behind a label, and why there is none; (None, None) for text in place of numbers."""
    metric = metric_of(section, label)
    if label in TEXTS or metric in TEXT_METRICS:
        return None, None
    if metric is None:
        return None, VARYING_LABEL if varies(section, label) else UNKNOWN_LABEL
    return metric, None


UNKNOWN_COLUMN = "a column that is not known"
# columns that identify the launch, and those that other tools add
_OF_LAUNCH = frozenset(
    {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size"}
    | {"Grid Size", "Device", "CC", "Invocations", "API Call ID", "API Name", "", "Unnamed: 0"}
)


class _RawColumn(NamedTuple):
    place: int  # in the row
    name: str
    slot: int  # among the values
    factor: float


class RawPage:
    """A table of the raw page."""

    def __init__(self, names: list[str], gathered: GatheredLaunches) -> None:
        self.needed = len(names)
        self._gathered = gathered
        self._identity = LaunchIdentity.of(names)
        self._metrics, self._attributes, self._name_place = self._sorted(names)
        self._slots: dict[str, int] = {}
        self._columns: list[_RawColumn] | None = None
        self._unitless = False
        self._places: list[int] = []
        self._times: list[float] = []
        self._attribute_times: dict[str, float] = {}
        self._whole: set[str] = set()
        self._unknown: dict[str, str] = {}
        self._chips: dict[object, Chip] = {}
        self._rows = 0

    def take(self, row: list[str]) -> None:
        """Read a row: units, or a launch."""
        if len(row) < self.needed or not fitted(row, self.needed):
            self._gathered.counted.add(TOO_FEW if len(row) < self.needed else TOO_MANY, None, ",".join(row[:8]))
            return
        kernel = row[self._identity.kernel].strip()
        if self._columns is None:
            units = not kernel
            self._begin(row if units else None)
            if units:
                return
        number = self._identity.number_in(row) if self._identity.number is not None else self._rows
        if not kernel or number is None:
            self._gathered.counted.add(NO_ID, None, ",".join(row[:8]))
            return
        self._rows += 1
        self._gathered.launches.append(self._launch(row, kernel, number))

    def finish(self, cut: Sequence[str] | None) -> None:
        """Count the launch that was cut."""
        if cut:
            self._gathered.lost += 1

    def _sorted(self, names: list[str]) -> tuple[dict[str, int], dict[str, int], int | None]:
        """Return the places of metrics and attributes, and that of the name of the device."""
        metrics: dict[str, int] = {}
        attributes: dict[str, int] = {}
        for place, name in enumerate(names):
            attribute = attribute_of(name)
            if attribute is not None:
                attributes.setdefault(attribute, place)
            elif name in _OF_LAUNCH or is_range(name) or name in TEXT_METRICS:
                continue
            elif " " in name:
                self._gathered.counted.add(UNKNOWN_COLUMN, name, "")
            else:
                metrics.setdefault(name, place)
        named = attributes.pop(_DISPLAY_NAME, None)
        return metrics, attributes, named

    def _begin(self, units: list[str] | None) -> None:
        """Prepare the columns. `units` None: there is no row of units; values that may be scaled are rejected."""
        self._unitless = units is None
        self._columns = []
        for name, place in self._metrics.items():
            unit = units[place] if units else ""
            if is_whole(name, unit):
                self._whole.add(name)
            factor = unit_factor(unit)
            if factor is None or not fits(name, unit):
                self._unknown[name] = unit
            else:
                slot = self._slots.setdefault(name, len(self._slots))
                self._columns.append(_RawColumn(place, name, slot, factor))
        self._places = [column.place for column in self._columns]
        self._times = [column.factor for column in self._columns]
        for name, place in self._attributes.items():
            unit = units[place] if units else ""
            if is_whole(f"{DEVICE_ATTRIBUTE}{name}", unit):
                self._whole.add(name)
            factor = attribute_factor(name, unit)
            if factor is not None:
                self._attribute_times[name] = factor
            else:
                self._gathered.counted.add(UNKNOWN_UNIT, f"{DEVICE_ATTRIBUTE}{name}", unit)

    def _launch(self, row: list[str], kernel: str, number: int) -> Launch:
        identity = self._identity
        metrics = self._measured(row)
        return Launch(
            kernel=self._gathered.same(encodable(kernel)),
            metrics=metrics,
            chip=self._chip(row),
            report=self._gathered.file,
            number=number,
            grid=dimensions(cell_at(row, identity.grid)) or size_from_metrics(metrics, "launch__grid_dim_"),
            block=dimensions(cell_at(row, identity.block)) or size_from_metrics(metrics, "launch__block_dim_"),
            ranges=tuple(self._gathered.same(encodable(name)) for name in identity.ranges_in(row)),
        )

    def _measured(self, row: list[str]) -> LaunchMetrics:
        values = self._at_once(row) or self._one_by_one(row)
        for name, unit in self._unknown.items():
            cell = row[self._metrics[name]]
            if cell:
                self._gathered.counted.add(UNKNOWN_UNIT, name, f"{cell} {unit}")
        return LaunchMetrics(self._slots, values)

    def _at_once(self, row: list[str]) -> array[float] | None:
        """Return the values of a row of plain numbers, which is most rows; None where one is not plain."""
        columns = self._columns or ()
        if self._unitless or not columns:
            return None
        numbers = self._gathered.numbers.row([row[place] for place in self._places])
        return array("d", map(mul, numbers, self._times)) if numbers is not None else None

    def _one_by_one(self, row: list[str]) -> array[float]:
        values = array("d", [nan]) * len(self._slots)
        numbers = self._gathered.numbers
        for place, name, slot, factor in self._columns or ():
            cell = row[place]
            if not cell:
                continue
            value = numbers.quick(cell)
            if value is not None:
                self._put(values, slot, name, factor, value)
            else:
                numbers.read(cell, name, partial(self._put, values, slot, name, factor), whole=name in self._whole)
        return values

    def _put(self, values: array[float], slot: int, name: str, factor: float, value: float) -> None:
        if self._unitless and 0 < abs(value) < SURELY_BASE and may_be_scaled(name):
            self._gathered.counted.add(NO_UNIT, name, str(value))
        elif isfinite(value * factor):
            values[slot] = value * factor
        else:
            self._gathered.counted.add(NOT_A_NUMBER, name, str(value))

    def _chip(self, row: list[str]) -> Chip:
        """Return the chip that the row describes, the same object for the same description."""
        device = cell_at(row, self._name_place) or cell_at(row, self._identity.device)
        capability = cell_at(row, self._identity.capability)
        key = (device, capability, *(row[place] for place in self._attributes.values()))
        if key not in self._chips:
            self._chips[key] = self._described(row, device, capability)
        return self._chips[key]

    def _described(self, row: list[str], device: str | None, capability: str | None) -> Chip:
        attributes: dict[str, float] = {}
        for name, place in self._attributes.items():
            if row[place] and name in self._attribute_times:
                put = _into(attributes, name, self._attribute_times[name])
                whole = name in self._whole
                self._gathered.numbers.read(row[place], f"{DEVICE_ATTRIBUTE}{name}", put, whole=whole)
        return chip_of(device, capability, attributes)


def _into(attributes: dict[str, float], name: str, factor: float) -> Callable[[float], None]:
    def put(value: float) -> None:
        if isfinite(value * factor):
            attributes[name] = value * factor

    return put
