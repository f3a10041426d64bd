"""Applications side by side: their phases meet, and each runs as fast as the kernels that are met let it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tachograph.arrays import Floats, Longs
from tachograph.interference.day.world import NAMES, NOTHING, company, rates

_BATCH = 2048  # pairs that are solved at once


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases of an application that follow each other in turn. kernels: places in NAMES, or NOTHING.

    seconds: how long each lasts alone, mean.
    """

    kernels: Longs
    seconds: Floats

    @classmethod
    def of(cls, shares: Sequence[tuple[float, str | None]], *, cycle_s: float) -> Phases:
        """Phases of these shares of a cycle; None: no kernel."""
        kernels = [NOTHING if name is None else NAMES.index(name) for _, name in shares]
        return cls(np.array(kernels, np.int64), np.array([share * cycle_s for share, _ in shares]))


def speeds(first: Phases, second: Phases, table: Floats) -> tuple[float, float]:
    """Return at what share of their speed alone two applications run side by side for long; `table`: see `world`.

    >>> waits = Phases.of([(1.0, None)], cycle_s=1.0)
    >>> speeds(waits, waits, np.ones((NOTHING + 1, NOTHING + 1)))
    (1.0, 1.0)
    """
    found = all_speeds([first, second], table)
    return float(found[0, 1]), float(found[1, 0])


def all_speeds(applications: Sequence[Phases], table: Floats) -> Floats:
    """Return the speed of each application (row) beside each (column), itself included; `table`: see `world`."""
    found = np.ones((len(applications), len(applications)))
    by_phases: dict[int, list[int]] = {}
    for place, one in enumerate(applications):
        by_phases.setdefault(one.kernels.size, []).append(place)
    for rows, columns in product(by_phases.values(), repeat=2):
        pairs = np.array([(row, column) for row in rows for column in columns if row <= column], np.int64)
        for at in range(0, len(pairs), _BATCH):
            a, b = pairs[at : at + _BATCH].T
            found[a, b], found[b, a] = _of_pairs([applications[i] for i in a], [applications[j] for j in b], table).T
    return found


def _of_pairs(first: Sequence[Phases], second: Sequence[Phases], table: Floats) -> Floats:
    a, b = (np.stack([one.kernels for one in side]) for side in (first, second))
    beside = table[a[:, :, None], b[:, None, :]], table[b[:, None, :], a[:, :, None]]
    lasts = [np.stack([one.seconds for one in side]) for side in (first, second)]
    return _lasting(np.stack(beside, axis=1), lasts)


def speeds_of_set(applications: Sequence[Phases], seed: int) -> tuple[float, ...]:
    """Return at what share of their speed alone several applications run side by side for long, in the world of a seed.

    What kernels keep is simulated of the whole set; company costs each what it does beside each of the others.
    """
    shape = [one.kernels.size for one in applications]
    states = product(*(one.kernels.tolist() for one in applications))
    own = np.array([_kept(state, seed) for state in states]).T.reshape(1, len(applications), *shape)
    found = _lasting(own, [one.seconds[None] for one in applications])[0]
    return tuple(float(one) for one in found)


def _kept(kernels: Sequence[int], seed: int) -> Floats:
    """Shares of their speed that these keep together; NOTHING disturbs nobody."""
    here = [place for place, kernel in enumerate(kernels) if kernel != NOTHING]
    kept = np.ones(len(kernels))
    if len(here) < 2:
        return kept
    loses = company(seed)
    for place, rate in zip(here, rates(*(NAMES[kernels[place]] for place in here)), strict=True):
        others = np.prod([loses[kernels[place], kernels[other]] for other in here if other != place])
        kept[place] = max(rate * float(others), 1e-3)
    return kept


def _lasting(own: Floats, seconds: Sequence[Floats]) -> Floats:
    """Return mean speeds (set, member) of sets that run for long.

    own: speed (set, member, phase of the first, of the second, ...). seconds: of each member, (set, phase). Phases last
    at random about their mean, and longer where others slow them: the times in which all are in certain phases are
    those of the Markov chain of all.
    """
    sets, members, *shape = own.shape
    states = np.arange(int(np.prod(shape))).reshape(shape)
    here = states.ravel()
    flow = np.zeros((sets, here.size, here.size))
    for member, lasts in enumerate(seconds):
        if shape[member] > 1:
            across = [number if place == member else 1 for place, number in enumerate(shape)]
            leaves = (own[:, member] / lasts.reshape(sets, *across)).reshape(sets, -1)
            flow[:, np.roll(states, -1, axis=member).ravel(), here] += leaves
            flow[:, here, here] -= leaves
    flow[:, 0] = 1.0
    begin = np.zeros((sets, here.size, 1))
    begin[:, 0] = 1.0
    times = np.linalg.solve(flow, begin)[:, :, 0]
    return np.asarray((own.reshape(sets, members, -1) * times[:, None]).sum(-1), np.float64)
