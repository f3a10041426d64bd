"""Mixes of kernels drawn for jobs of which only means of DCGM's counters are known, so that the means are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from numpy.random import Generator

from tachograph.arrays import Floats, Longs
from tachograph.interference.day.kernels import KERNELS
from tachograph.interference.day.world import NAMES, alone

# what a mix is to have as the job had, means over all of its time. dram_active: of the achievable bandwidth
COUNTERS = (
    "gr_engine_active",
    "sm_active",
    "sm_occupancy",
    "fp32_active",
    "fp64_active",
    "tensor_active",
    "dram_active",
)
DRAWS = 400  # mixes that are tried
KERNELS_OF_MIX = 3
NEAR = 0.01  # of mixes that are as near as the nearest but for this, any is drawn: nothing tells them apart
_WARPS_PER_SCHEDULER = 16  # of the H100
_LEAST_SHARE = 1e-3  # of the time: a phase that is shorter is none


@dataclass(frozen=True, slots=True)
class Drawn:
    """Mixes, a row each. shares: (mix, kernel of NAMES), of the time. means: (mix, counter that was compared)."""

    shares: Floats
    means: Floats

    def phases(self, mix: int) -> tuple[tuple[float, str | None], ...]:
        """Return the phases of a mix: (share of the time, kernel), None while there is none."""
        of = self.shares[mix]
        phases: list[tuple[float, str | None]] = [(float(of[place]), NAMES[place]) for place in np.flatnonzero(of)]
        idle = 1 - sum(share for share, _ in phases)
        return (*phases, *([(idle, None)] if idle >= _LEAST_SHARE or not phases else []))


@cache
def counted_means() -> Floats:
    """Return what DCGM would tell of each kernel of NAMES while it runs alone, (kernel, counter of COUNTERS)."""
    rows = []
    for name in NAMES:
        kernel, counted = KERNELS[name], alone(name)
        on = kernel.sm_share
        occupancy = on * kernel.warps_of(kernel.resident) / _WARPS_PER_SCHEDULER
        pipes = [on * counted.pipes[pipe] for pipe in ("fma", "fp64", "tensor")]
        rows.append([1.0, on, occupancy, *pipes, counted.dram])
    return np.array(rows)


def draw(means: Floats, random: Generator, *, counters: Sequence[str] = COUNTERS) -> Drawn:
    """Return a mix of up to three kernels and idle time for each row of `means` (job, counter of `counters`).

    Only these counters are compared: what the others would be nobody knows. Of DRAWS sets of kernels each gets the
    shares whose means are nearest by least squares; of the mixes that are nearest to a job, one is drawn. How far it is
    from the job: `distances`.
    """
    told = counted_means()[:, [COUNTERS.index(counter) for counter in counters]]
    kernels = np.stack([random.choice(len(NAMES), KERNELS_OF_MIX, replace=False) for _ in range(DRAWS)])
    weights, off = _nearest(told[kernels], means)
    near = off <= off.min(axis=0) + NEAR
    chosen = np.where(near, random.random(off.shape), -1.0).argmax(axis=0)
    jobs = np.arange(len(means))
    shares = _spread(kernels[chosen], weights[chosen, jobs])
    return Drawn(shares, shares @ told)


def distances(means: Floats, others: Floats) -> Floats:
    """Return the largest difference of any counter, of each row, as a fraction: 0.01 is a point.

    >>> distances(np.array([[0.5, 0.2]]), np.array([[0.4, 0.25]])).round(3).tolist()
    [0.1]
    """
    return np.asarray(np.abs(means - others).max(axis=1, initial=0.0), np.float64)


def _spread(kernels: Longs, weights: Floats) -> Floats:
    shares = np.zeros((len(kernels), len(NAMES)))
    np.put_along_axis(shares, kernels, np.where(weights < _LEAST_SHARE, 0.0, weights), axis=1)
    return shares


def _nearest(corners: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Return shares (set, point, corner) of the nearest point of each simplex, and how far it is: (set, point).

    A mix is a point of the simplex of its kernels and of nothing. The nearest is the projection on one of its faces:
    all are tried, and those that have no negative share count. How far: the largest difference.
    """
    sets, size, dimensions = corners.shape
    vertices = np.concatenate([corners, np.zeros((sets, 1, dimensions))], axis=1)
    best = np.full((sets, len(points)), np.inf)
    shares = np.zeros((sets, len(points), size + 1))
    for number in range(1, size + 2):
        for face in map(list, combinations(range(size + 1), number)):
            origin = vertices[:, face[-1:]]
            axes = vertices[:, face[:-1]] - origin
            beside = points[None] - origin
            along = beside @ np.linalg.pinv(axes)
            squares = ((beside - along @ axes) ** 2).sum(-1)
            last = 1 - along.sum(-1)
            better = (squares < best) & (np.min(along, axis=-1, initial=0.0) >= -1e-9) & (last >= -1e-9)
            best = np.where(better, squares, best)
            found = np.zeros_like(shares)
            found[:, :, face] = np.concatenate([along, last[:, :, None]], axis=-1)
            shares = np.where(better[:, :, None], found, shares)
    kept = np.clip(shares[:, :, :size], 0.0, 1.0)
    return kept, np.abs(kept @ corners - points[None]).max(axis=-1)
