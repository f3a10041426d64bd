"""Invalid values of counters: marks for "no value", NaN, and physically impossible numbers.

The tables and live views apply the same limits. This module imports no table library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tachograph.catalog.arrays import Flags, Floats
from tachograph.catalog.chunks import BLANK_FLOATS, CLAMPED, SLICE_ABOVE_ONE
from tachograph.catalog.counters import Counter, CounterStorage, HostCounter
from tachograph.catalog.units import factor

_BLANKS: Final = np.array(BLANK_FLOATS)
_FLOAT32_BLANKS: Final = np.append(_BLANKS, 2.0**31)  # to which Float32 rounds the 32-bit marks up
_LEAST_BLANK: Final = min(BLANK_FLOATS)
# A fraction up to this is the end of its range: counters of two clocks are divided, and rounded
# (SM_ACTIVE 1.0000001).
LARGEST_ROUNDED: Final = 1.01
# A ratio of a MIG slice may be normalised by its profile, and be above 1 (SM_ACTIVE 1.29): eight
# slices are a GPU.
LARGEST_OF_SLICE: Final = 8.0


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """Unit and valid range of a property of a device, in place of a counter's; 0: not reported."""

    unit: str
    high: float
    low: float = 0.0
    storage: CounterStorage = "f64"
    zero_is_missing: bool = True


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """Conversion to catalogue units and valid range: one row for all values, or one per value.

    ceilings: up to these, values above their range are rounded ones: the end of the range. float32:
    the values were rounded to Float32. usual: what ceilings would be if no value were that of a MIG
    slice.
    """

    factors: Floats
    lows: Floats
    highs: Floats
    ceilings: Floats
    whole: Flags
    zero_is_missing: Flags
    float32: bool = False
    usual: Floats | None = None

    @classmethod
    def of(
        cls,
        quantities: Iterable[tuple[Counter | HostCounter | DeviceFact, str]],
        *,
        float32: bool = False,
    ) -> ValueLimits:
        """Return the limits of some quantities, each with the unit of its values."""
        rows = [
            (
                *(factor(unit, quantity.unit), quantity.low, quantity.high),
                quantity.high * (LARGEST_ROUNDED if quantity.unit == "fraction" else 1.0),
                *(quantity.storage == "i64", quantity.zero_is_missing),
            )
            for quantity, unit in quantities
        ]
        limits = np.array(rows, dtype=np.float64).reshape(len(rows), 6)
        return cls(
            limits[:, 0],
            limits[:, 1],
            limits[:, 2],
            limits[:, 3],
            limits[:, 4] > 0,
            limits[:, 5] > 0,
            float32,
        )

    def of_slices(self, slices: Flags) -> ValueLimits:
        """Return limits that allow fractions up to 8 for values of MIG slices.

        >>> fractions = ValueLimits.of([(DeviceFact("fraction", 1.0, zero_is_missing=False), "fraction")])
        >>> fractions.of_slices(np.array([True, False])).convert(np.array([1.29, 1.29])).tolist()
        [1.29, nan]
        """
        wide = slices & (self.ceilings > self.highs)
        if not wide.any():
            return self
        highs, ceilings = (
            np.where(wide, LARGEST_OF_SLICE, limit) for limit in (self.highs, self.ceilings)
        )
        return replace(self, highs=highs, ceilings=ceilings, usual=self.ceilings)

    def convert(self, raw: Floats) -> Floats:
        """Return values in units of the catalogue; NaN for what `changes` names as removed."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = raw * self.factors
            wrong = ~((values >= self.lows) & (values <= self.ceilings)) | np.isinf(raw)
            wrong |= (self.zero_is_missing & (raw == 0)) | self._marks(raw)
            np.rint(values, out=values, where=self.whole)
            np.minimum(values, self.highs, out=values)
        values[wrong] = np.nan
        return values

    def holds(self, least: float, greatest: float) -> bool:
        """Return whether all values between those of the first row are valid, and no marks."""
        if self.zero_is_missing[0] and least <= 0 <= greatest:
            return False
        marks = _FLOAT32_BLANKS if self.float32 else _BLANKS
        low, high = sorted((least * self.factors[0], greatest * self.factors[0]))
        fits = (
            self.lows[0] <= low and high <= self.highs[0] and np.isfinite([least, greatest]).all()
        )
        return bool(fits and not ((marks >= least) & (marks <= greatest)).any())

    def doubtful(self, raw: Floats) -> Flags:
        """Return the values that `convert` may remove or change beyond their unit.

        Limits of MIG slices are wider: values between them and those of a GPU are doubtful, too.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            values = raw * self.factors
            wrong = ~((values >= self.lows) & (values <= self.highs)) | np.isinf(raw)
            wrong |= (self.zero_is_missing & (raw == 0)) | self._marks(raw)
        return wrong

    def changes(self, raw: Floats) -> Mapping[str, Flags]:
        """Return the values to remove by reason, and those `clamped` or `slice_above_one`."""
        marks, not_finite = self._marks(raw), ~np.isfinite(raw)
        with np.errstate(over="ignore", invalid="ignore"):
            values = raw * self.factors
        return {
            "missing_mark": marks,
            "unsupported": self.zero_is_missing & (raw == 0),
            "not_finite": not_finite,
            "out_of_range": ~marks
            & ~not_finite
            & ~((values >= self.lows) & (values <= self.ceilings)),
            CLAMPED: self._rounded(values),
            SLICE_ABOVE_ONE: self._above(values),
        }

    def _above(self, values: Floats) -> Flags:
        if self.usual is None:
            return np.zeros(values.shape, np.bool_)
        return (values > self.usual) & (values <= self.ceilings)

    def _rounded(self, values: Floats) -> Flags:
        return (values > self.highs) & (values <= self.ceilings)

    def _marks(self, raw: Floats) -> Flags:
        marks = raw >= _LEAST_BLANK
        if marks.any():
            marks[marks] = np.isin(raw[marks], _FLOAT32_BLANKS if self.float32 else _BLANKS)
        return marks
