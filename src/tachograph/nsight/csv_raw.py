"""The raw page in CSV: one row per launch, one column per metric under its own name, units in the second row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite, nan
from operator import mul
from typing import NamedTuple

from tachograph.nsight.catalogue import TEXT_METRICS, fits, is_whole, may_be_scaled, unit_factor
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
    is_range,
)
from tachograph.nsight.csv_lines import fitted
from tachograph.nsight.csv_numbers import NOT_A_NUMBER
from tachograph.nsight.launch import Chip, Launch, size_told
from tachograph.nsight.measured import Measured

UNKNOWN_COLUMN = "a column that is not known"
# columns that say which launch it is, and those that other tools put beside them
_OF_LAUNCH = frozenset(
    {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size"}
    | {"Grid Size", "Device", "CC", "Invocations", "API Call ID", "API Name", "", "Unnamed: 0"}
)
_DISPLAY_NAME = "display_name"


class _Column(NamedTuple):
    place: int  # in the row
    name: str
    slot: int  # among the values
    factor: float


class Raw:
    """A table of the raw page."""

    def __init__(self, names: list[str], gathered: Gathered) -> None:
        self.needed = len(names)
        self._gathered = gathered
        self._identity = Identity.of(names)
        self._metrics, self._attributes, self._name_place = self._sorted(names)
        self._slots: dict[str, int] = {}
        self._columns: list[_Column] | None = None
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
        """Prepare the columns. `units` None: the table has no row of units, and what may be scaled is not believed."""
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
                self._columns.append(_Column(place, name, slot, factor))
        self._places = [column.place for column in self._columns]
        self._times = [column.factor for column in self._columns]
        for name, place in self._attributes.items():
            unit = units[place] if units else ""
            if is_whole(f"device__attribute_{name}", unit):
                self._whole.add(name)
            factor = attribute_factor(name, unit)
            if factor is not None:
                self._attribute_times[name] = factor
            else:
                self._gathered.counted.add(UNKNOWN_UNIT, f"device__attribute_{name}", unit)

    def _launch(self, row: list[str], kernel: str, number: int) -> Launch:
        identity = self._identity
        metrics = self._measured(row)
        return Launch(
            kernel=self._gathered.same(encodable(kernel)),
            metrics=metrics,
            chip=self._chip(row),
            report=self._gathered.file,
            number=number,
            grid=dimensions(cell_at(row, identity.grid)) or size_told(metrics, "launch__grid_dim_"),
            block=dimensions(cell_at(row, identity.block)) or size_told(metrics, "launch__block_dim_"),
            ranges=tuple(self._gathered.same(encodable(name)) for name in identity.ranges_in(row)),
        )

    def _measured(self, row: list[str]) -> Measured:
        values = self._at_once(row) or self._one_by_one(row)
        for name, unit in self._unknown.items():
            cell = row[self._metrics[name]]
            if cell:
                self._gathered.counted.add(UNKNOWN_UNIT, name, f"{cell} {unit}")
        return Measured(self._slots, values)

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
                self._gathered.numbers.read(row[place], f"device__attribute_{name}", put, whole=whole)
        return chip_of(device, capability, attributes)


def _into(attributes: dict[str, float], name: str, factor: float) -> Callable[[float], None]:
    def put(value: float) -> None:
        if isfinite(value * factor):
            attributes[name] = value * factor

    return put
