"""Two mixes side by side, member by member: what is expected of each, and which members are worst off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Bytes, Floats
from tachograph.interference.demand import Demand
from tachograph.interference.jobs.mixes import Mix
from tachograph.interference.outcome import Matrix

Pairs = Callable[[Sequence[Demand], Sequence[Demand]], Matrix]
Worst = tuple[float, str, str]  # slowdown, the one slowed down, the one beside it
_NOTHING = 255  # in Matrix.binding


@dataclass(frozen=True, slots=True)
class Together:
    """Two mixes side by side, of each: its slowdown, what binds it, its member that is worst off.

    None: not known of a pair of their members; of `bindings`: nothing binds it. safe: all pairs of members are.
    margin: upper values over slowdowns.
    """

    slowdowns: tuple[float | None, float | None]
    bindings: tuple[str | None, str | None]
    worst_of: tuple[Worst | None, Worst | None]
    safe: bool
    margin: float = 1.0

    @property
    def uppers(self) -> tuple[float | None, float | None]:
        """What the slowdowns may be, see Outcome."""
        one, other = (None if slowdown is None else slowdown * self.margin for slowdown in self.slowdowns)
        return one, other

    @property
    def slowdown(self) -> float | None:
        """Slowdown of the first."""
        return self.slowdowns[0]

    @property
    def other_slowdown(self) -> float | None:
        """Slowdown of the second."""
        return self.slowdowns[1]

    @property
    def worst(self) -> Worst | None:
        """The pair of members worst off, over all that are known."""
        return max((found for found in self.worst_of if found), default=None)


def together(one: Mix, other: Mix, *, pairs: Pairs, turned: Pairs | None = None) -> Together:
    """Return what is expected of two mixes that run side by side and know nothing of each other.

    Then a member of one meets a member of the other for the product of their shares: slowdowns are weighted by it.
    `pairs`: the matrix of rows beside columns, such as `interference.matrix` with its settings; `turned`: the same for
    members of `other` beside those of `one`, where it is not.
    """
    mine, theirs = [demand for _, demand in one.members], [demand for _, demand in other.members]
    here, there = pairs(mine, theirs), (turned or pairs)(theirs, mine)
    of_one, of_other = shares_of([one]), shares_of([other])
    slowdowns = folded(here, of_one, of_other), folded(there, of_other, of_one)
    return Together(
        slowdowns=(_known(slowdowns[0]), _known(slowdowns[1])),
        bindings=(_binding(slowdowns[0]), _binding(slowdowns[1])),
        worst_of=(_worst(here), _worst(there)),
        safe=all(bool(found.safe.all()) for found in (here, there)),
        margin=here.margin,
    )


def shares_of(mixes: Sequence[Mix]) -> Floats:
    """Return the share of each member, of all mixes one after the other, in each mix: (mixes, members)."""
    whose = np.repeat(np.arange(len(mixes)), [len(one.members) for one in mixes])
    shares = np.zeros((len(mixes), len(whose)))
    shares[whose, np.arange(len(whose))] = [share for one in mixes for share, _ in one.members]
    return shares


def folded(found: Matrix, rows: Floats, columns: Floats) -> Matrix:
    """Return the matrix of mixes, of that of their members; see `shares_of`. Names and gains are not told.

    What binds a mix is what slows it most, over all pairs of members. Not known of one pair: not known.
    """
    unknown = rows @ np.isnan(found.slowdown) @ columns.T > 0
    slowdown: Floats = rows @ np.nan_to_num(found.slowdown, nan=1.0) @ columns.T
    more = np.nan_to_num(found.slowdown, nan=1.0) - 1
    binding = np.full(slowdown.shape, _NOTHING, np.uint8)
    most = np.zeros(slowdown.shape)
    for resource in np.unique(found.binding[found.binding != _NOTHING]).tolist():
        lost = rows @ np.where(found.binding == resource, more, 0.0) @ columns.T
        binding[lost > most] = resource
        most = np.maximum(most, lost)
    slowdown[unknown], binding[unknown] = np.nan, _NOTHING
    safe: Bytes = (rows @ (found.safe == 0) @ columns.T == 0).astype(np.uint8)
    gain = np.full(slowdown.shape, np.nan)
    return Matrix((), (), found.resources, slowdown, gain, binding, safe, found.margin)


def _known(found: Matrix) -> float | None:
    slowdown = float(found.slowdown[0, 0])
    return None if math.isnan(slowdown) else slowdown


def _binding(found: Matrix) -> str | None:
    place = int(found.binding[0, 0])
    return None if place == _NOTHING else found.resources[place]


def _worst(found: Matrix) -> Worst | None:
    cells = (
        (value, found.rows[i], found.columns[j])
        for i, row in enumerate(found.slowdown.tolist())
        for j, value in enumerate(row)
        if not math.isnan(value)
    )
    return max(cells, default=None)
