"""Pairs of job groups on one GPU: sharing modes, bounds of their slowdown, GPU-hours freed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from itertools import product
from types import MappingProxyType
from typing import Literal

import numpy as np

from tachograph.annexes.share.demand import Calibration, CorunBounds, GpuCapacity
from tachograph.annexes.share.job_groups import JobGroup
from tachograph.annexes.share.mixes import (
    CorunLaw,
    bounds_of_mixes,
    corun_bounds,
    worst_kernels,
)
from tachograph.catalog.arrays import Flags, Floats
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.mig import MigProfile, profiles_of
from tachograph.catalog.units import MI, text

SharingMode = Literal["time_slicing", "mps", "mps_share", "mig"]
Verdict = Literal["share", "try", "no"]
# from the least change for users and site to the largest
SHARING_MODES: Mapping[SharingMode, str] = MappingProxyType(
    {"time_slicing": "time-slicing", "mps": "MPS", "mps_share": "MPS", "mig": "MIG"}
)
# kept free beside what both used: their own contexts are in what was used, that of the MPS server
# is not. Ours
CONTEXT_BYTES = 512 * MI
SAFE_BELOW = 1.1  # upper end of the slowdown of a pair that is called safe
# Part of the SMs of each under MPS: all of them, or half. Unequal parts are left out: a part is one
# for all time, and what a job does in it is less sure than how it does on all SMs.
PARTS = (1.0, 0.5)
MOST_PROFILED = 100  # groups that are compared kernel by kernel, those of most GPU-hours
TURNS = "turns"  # what slows jobs of which no kernel is known
_SLACK = 1e-9  # differences of floats that are rounding errors
_EQUAL = 0.01  # of the hours: less does not justify another mode

Both = tuple[float, float]  # of both groups of a pair


@dataclass(frozen=True, slots=True)
class SharingOption:
    """A pair in a sharing mode: slowdown of each while it uses the GPU, and the interval it is in.

    part: of the SMs that each may use. slices: MIG profiles. binding: what slows them most.
    """

    mode: SharingMode
    slowdowns: Both
    low: Both
    high: Both
    binding: str | None
    part: float = 1.0
    slices: tuple[MigProfile, MigProfile] | None = None

    @property
    def label(self) -> str:
        """Name of the mode, with the part of the SMs, or the slices."""
        name = SHARING_MODES[self.mode]
        if self.slices is not None:
            return f"{name} {' / '.join(profile.name for profile in self.slices)}"
        return (
            name if self.part == 1.0 else f"{name}, {text(self.part, 'fraction')} of the SMs each"
        )


@dataclass(frozen=True, slots=True)
class SharingProposal:
    """Two job groups on one GPU instead of two; a group may pair with itself.

    options: every mode that memory allows, the best first. verdict: `share` where the upper ends of
    the best are within the limit, `try` where only the lower ends are, else `no`. overlap_h:
    GPU-hours of each that can overlap with the other, at most. taken: one of them is in a pair that
    frees more. worst: kernel, kernel beside it, upper end of its slowdown; None: bounds are not by
    the kernels of both.
    """

    one: JobGroup
    other: JobGroup
    options: tuple[SharingOption, ...]
    verdict: Verdict
    overlap_h: float
    memory: float  # share of the GPU's, at both peaks and with one more context
    taken: bool = False
    worst: tuple[str, str, float] | None = None

    @property
    def best(self) -> SharingOption | None:
        """The mode to use, or to try; None where memory holds both in none."""
        return self.options[0] if self.options else None

    @property
    def saved_h(self) -> float:
        """GPU-hours that are freed at the upper ends; 0 if sharing is not proposed."""
        return self._freed_h(self.best.high) if self.best and self.verdict != "no" else 0.0

    @property
    def saved_most_h(self) -> float:
        """GPU-hours that are freed at the lower ends; 0 if sharing is not proposed."""
        return self._freed_h(self.best.low) if self.best and self.verdict != "no" else 0.0

    @property
    def profiled(self) -> bool:
        """Whether the bounds are by the kernels of both."""
        return self.worst is not None

    @property
    def safe(self) -> bool:
        """Whether the kernels of both are known, and all upper ends are below SAFE_BELOW."""
        proposed = self.best is not None and self.verdict == "share" and self.profiled
        return proposed and max(self.options[0].high) < SAFE_BELOW

    @property
    def same_user(self) -> bool:
        """Whether both are of one user, who needs no other user's consent."""
        return self.one.user is not None and self.one.user == self.other.user

    def _freed_h(self, slowdowns: Both) -> float:
        """Two GPUs for the overlap, less one until the slower job ended."""
        return max(0.0, self.overlap_h * (2 - max(slowdowns)))


@dataclass(frozen=True)
class GroupPairs:
    """All pairs of job groups on the same number of GPUs of one model.

    `law`: of kernels beside kernels.
    """

    groups: tuple[JobGroup, ...]
    gpu: GpuCapacity
    calibration: Calibration
    settings: InterferenceOptions
    law: CorunLaw = corun_bounds

    @cached_property
    def hbm_bytes(self) -> Floats:
        """Memory of the GPUs of each group."""
        return np.array([group.hbm_mib * MI for group in self.groups])

    @cached_property
    def busy(self) -> Floats:
        """Share of the time in which each group uses its GPU."""
        return np.array([group.busy for group in self.groups])

    @cached_property
    def hours(self) -> Floats:
        """GPU-hours of each group."""
        return np.array([group.gpu_hours for group in self.groups])

    def overlap_h(self, i: int) -> Floats:
        """Return GPU-hours of group `i` that can overlap with each; 0 with itself if it ran once."""
        overlap: Floats = np.minimum(self.hours, self.hours[i])
        overlap[i] = self.hours[i] / 2 if self.groups[i].runs > 1 else 0.0
        return overlap

    def gains(self, i: int, slowdown: Floats) -> Floats:
        """Return GPU-hours freed by group `i` with each, at a slowdown of the slower of both.

        With a group of the same user more than with any other's: nobody else has to agree.
        """
        freed = self.overlap_h(i) * (2 - np.minimum(slowdown, 2.0))
        same_user = self.owners == (self.owners[i] or math.nan)
        gains: Floats = freed + (freed > 0) * same_user * self.hours.sum()
        return gains

    @cached_property
    def owners(self) -> Floats:
        """A number above 0 for each user; 0: not known."""
        numbers: dict[str | None, float] = {None: 0.0}
        for group in self.groups:
            numbers.setdefault(group.user, float(len(numbers)))
        return np.array([numbers[group.user] for group in self.groups])

    @property
    def limit(self) -> float:
        """Highest slowdown that is allowed."""
        return self.settings.max_slowdown + _SLACK

    @cached_property
    def memory(self) -> Floats:
        """Highest share of the GPU's memory that each group used."""
        hbm_bytes_used = [group.mix.highest.hbm_bytes or 0.0 for group in self.groups]
        shares: Floats = np.array(hbm_bytes_used) / self.hbm_bytes
        return shares

    def memory_of_both(self, i: int) -> Floats:
        """Return the share of memory of group `i` with each, and one more context."""
        context = CONTEXT_BYTES / np.minimum(self.hbm_bytes, self.hbm_bytes[i])
        together: Floats = self.memory + self.memory[i] + context
        return together

    @cached_property
    def slices(self) -> tuple[MigProfile, ...]:
        """MIG profiles; none for jobs on several GPUs, as a process can use one slice only."""
        one_gpu = bool(self.groups) and self.groups[0].gpus == 1
        return profiles_of(self.gpu.name, self.gpu.hbm_bytes) if one_gpu else ()

    @cached_property
    def slice_pairs(self) -> list[tuple[int, int]]:
        """Slices (indexes) that fit on one GPU together, smallest first."""
        pairs: list[tuple[Fraction, Fraction, int, int]] = []
        for (i, first), (j, other) in product(enumerate(self.slices), repeat=2):
            sms, memory = first.sms + other.sms, first.memory + other.memory
            if sms <= 1 and memory <= 1:
                pairs.append((sms, memory, i, j))
        return [(i, j) for _, _, i, j in sorted(pairs)]

    @cached_property
    def slice_high(self) -> Floats:
        """Upper end of the slowdown of each group on each slice; infinite where it does not fit."""
        high = [[self._on_slice(group, part)[1] for part in self.slices] for group in self.groups]
        return np.array(high).reshape(len(self.groups), len(self.slices))

    def _on_slice(self, group: JobGroup, part: MigProfile) -> Both:
        """Return both ends of the slowdown on a slice.

        At most each kernel uses all SMs, or all of the bandwidth, at the time; one with fewer
        blocks than the slice has SMs does not need the others.
        """
        sms, memory = float(part.sms), float(part.memory)
        hbm_bytes = group.mix.highest.hbm_bytes or 0.0
        room = self.settings.safe_hbm * memory * group.hbm_mib * MI
        if hbm_bytes + CONTEXT_BYTES > room:
            return math.inf, math.inf
        slowest = 1 / min(sms, memory)
        members = group.profile.mix.members if group.profile else ((1.0, group.demand),)
        low = high = 0.0
        for share, demand in members:
            bandwidth = demand.bandwidth(self.calibration)
            width = 1.0 if demand.sm_share is None else demand.sm_share
            blocks = math.inf if demand.footprint is None else demand.footprint.blocks
            if blocks <= sms * (self.gpu.sms or 0):
                width = 0.0
            moved = 1.0 if bandwidth is None else min(1.0, bandwidth)
            lost = width * (1 / sms - 1) + moved * (1 / memory - 1)
            high += share * min(slowest, 1 + lost)
            low += share * max(1.0, (bandwidth or 0.0) / memory)
        return low, max(low, high)

    def fits(self, i: int) -> Flags:
        """Return with which groups the memory of one GPU holds group `i`."""
        held: Flags = self.memory_of_both(i) <= self.settings.safe_hbm
        return held

    @cached_property
    def profiled(self) -> list[int]:
        """Groups of which the kernels are known."""
        indexes = [i for i, group in enumerate(self.groups) if group.profile]
        return indexes[:MOST_PROFILED]

    @cached_property
    def by_kernels(self) -> Mapping[float, tuple[Floats, CorunBounds]]:
        """{part: (ends of each of `profiled` beside each, as in `beside`; bounds while both run)}."""
        mixes = [profile.mix for i in self.profiled if (profile := self.groups[i].profile)]
        meeting = self.busy[self.profiled][None, :]
        tables: dict[float, tuple[Floats, CorunBounds]] = {}
        for part in PARTS if mixes else ():
            bounds = bounds_of_mixes(mixes, mixes, self._law(part))
            # A part of the SMs is a part also while the other job is idle.
            always = meeting if part == 1.0 else 1.0
            ends = [
                1 + always * (bounds.slowdown - 1),
                1 + meeting * (bounds.low - 1),
                1 + always * (bounds.high - 1),
            ]
            tables[part] = np.stack(ends), bounds
        return tables

    def _law(self, part: float) -> CorunLaw:
        shares = None if part == 1.0 else (part, part)
        return partial(
            self.law,
            gpu=self.gpu,
            calibration=self.calibration,
            settings=self.settings,
            shares=shares,
        )

    def beside(self, i: int, part: float = 1.0) -> Floats:
        """Return (slowdown, low, high) of (group `i` beside each, each beside it) under MPS.

        For all time in which it uses the GPU. Where the kernels of one are not known: from not
        slowed to taking turns; on a part of the SMs infinite.
        """
        turns = np.stack([1 + self.busy, np.full(len(self.busy), 1 + self.busy[i])])
        ends = np.stack([turns, np.ones_like(turns), turns])
        if part != 1.0:
            ends[:] = np.inf
        if i in self.profiled:
            row, table = self.profiled.index(i), self.by_kernels[part][0]
            ends[:, 0, self.profiled] = table[:, row, :]
            ends[:, 1, self.profiled] = table[:, :, row]
        return ends

    def under_mps(self) -> CorunBounds:
        """Return each group beside each under MPS, for all time in which it uses the GPU."""
        slowdown, low, high = np.stack(
            [self.beside(i)[:, 0] for i in range(len(self.groups))], axis=1
        )
        resources: tuple[str, ...] = ()
        binding = np.zeros(slowdown.shape, np.uint8)
        if self.profiled:
            bounds = self.by_kernels[1.0][1]
            resources = bounds.resources
            binding[:] = len(resources)
            binding[np.ix_(self.profiled, self.profiled)] = bounds.binding
        in_turn = np.ones(slowdown.shape)
        return CorunBounds(slowdown, low, high, binding, (*resources, TURNS), in_turn)

    def least_high(self, i: int) -> Floats:
        """Return for group `i` with each the least upper end of the slower of both, of all modes.

        Infinite where memory holds both in no mode.
        """
        high: Floats = 1 + np.maximum(self.busy, self.busy[i])
        for part in PARTS if i in self.profiled else ():
            high = np.minimum(high, self.beside(i, part)[2].max(axis=0))
        high = np.where(self.fits(i), high, np.inf)
        # Beside a slice, the largest that fits is the fastest.
        for p, q in dict(sorted(self.slice_pairs)).items():
            high = np.minimum(high, np.maximum(self.slice_high[i, p], self.slice_high[:, q]))
        return high

    def trial_slowdown(self, i: int) -> Floats:
        """Return for group `i` with each the middle of the interval of the slower of both by MPS.

        Infinite where even the lower end is beyond the limit, or memory does not hold both.
        """
        _, low, high = self.beside(i).max(axis=1)
        may_be_within = self.fits(i) & (low <= self.limit)
        return np.where(may_be_within, (low + high) / 2, np.inf)

    def proposal(self, i: int, j: int, *, taken: bool = False) -> SharingProposal:
        """Return what is proposed for a pair, with all modes."""
        one, other = self.groups[i], self.groups[j]
        modes = list(SHARING_MODES)

        def preference(option: SharingOption) -> tuple[bool, bool, int, int]:
            within = max(option.high) <= self.limit
            # Outside the limit only a mode in which both can run at the same time is worth a try.
            exclusive = not within and option.mode != "mps"
            end = max(option.high if within else option.low)
            return not within, exclusive, round(end / _EQUAL), modes.index(option.mode)

        options = sorted(self._options(i, j), key=preference)
        verdict: Verdict = "no"
        if options and max(options[0].high) <= self.limit:
            verdict = "share"
        elif options and options[0].mode == "mps" and max(options[0].low) <= self.limit:
            verdict = "try"
        worst = None
        if one.profile and other.profile and {i, j} <= set(self.profiled):
            mixes = (one.profile.mix, other.profile.mix)
            ends = [worst_kernels(*both, self._law(1.0)) for both in (mixes, mixes[::-1])]
            worst = max(ends, key=lambda end: end[2])
        memory = float(self.memory_of_both(i)[j])
        overlap_h = float(self.overlap_h(i)[j])
        return SharingProposal(one, other, tuple(options), verdict, overlap_h, memory, taken, worst)

    def _options(self, i: int, j: int) -> Iterator[SharingOption]:
        """Yield every sharing mode in which memory holds both."""
        if self.fits(i)[j]:
            turns = (float(1 + self.busy[j]), float(1 + self.busy[i]))
            yield SharingOption("time_slicing", turns, (1.0, 1.0), turns, TURNS)
            both_profiled = i in self.profiled and j in self.profiled
            for part in PARTS if both_profiled else PARTS[:1]:
                slowdowns, low, high = map(_both, self.beside(i, part)[:, :, j])
                mode: SharingMode = "mps" if part == 1.0 else "mps_share"
                binding = self._binding(i, j, part) if both_profiled else TURNS
                yield SharingOption(mode, slowdowns, low, high, binding, part)
        least, p, q = min(
            (
                (max(self.slice_high[i, p], self.slice_high[j, q]), p, q)
                for p, q in self.slice_pairs
            ),
            key=lambda fit: fit[0],
            default=(math.inf, 0, 0),
        )
        if least < math.inf:
            slices = self.slices[p], self.slices[q]
            low, high = zip(
                self._on_slice(self.groups[i], slices[0]),
                self._on_slice(self.groups[j], slices[1]),
                strict=True,
            )
            yield SharingOption("mig", high, low, high, "slices", slices=slices)

    def _binding(self, i: int, j: int, part: float) -> str | None:
        """Return what slows the more slowed of two profiled groups."""
        bounds = self.by_kernels[part][1]
        cells = [(self.profiled.index(i), self.profiled.index(j))]
        cells.append(cells[0][::-1])
        return bounds.bound_by(*max(cells, key=lambda cell: bounds.slowdown[cell]))


def _both(numbers: Floats) -> Both:
    return float(numbers[0]), float(numbers[1])


def matched(gains: Callable[[int], Floats], free: Flags) -> list[tuple[int, int]]:
    """Return pairs, each of `free` in at most one, that with the largest gain first.

    gains: of a group with each, 0 where they must not share. `free` is updated: those in pairs are
    no longer free.
    """
    pairs: list[tuple[int, int]] = []

    def best(i: int) -> tuple[float, int, int]:
        gain = np.where(free, gains(i), 0.0)
        j = int(gain.argmax())
        return -float(gain[j]), i, j

    queue = [best(int(i)) for i in np.flatnonzero(free)]
    heapify(queue)
    while queue:
        loss, i, j = heappop(queue)
        if not free[i] or loss >= 0.0:
            continue
        if free[j]:
            pairs.append((i, j))
            free[i] = free[j] = False
        else:
            heappush(queue, best(i))  # its partner is in a better pair
    return pairs
