"""Slowdown of two kernels that are launched again and again on one GPU: turns, and what runs beside.

The hardware deals out all blocks of a launch before those of another stream's. A launch that fills
the SMs lets the next one in only in its last wave: both take turns, launch by launch, and overlap
in what the last wave leaves idle. Only blocks that find a place beside those that are there contend
with them. So the share of a launch in which the other can run, from nothing to all of its time,
leads from turns to contention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tachograph.annexes.share.calibration import measured_on
from tachograph.annexes.share.contention import RESOURCES, contention
from tachograph.annexes.share.demand import Calibration, GpuCapacity
from tachograph.annexes.share.kernel_arrays import (
    KernelArrays,
    blocks_that_fit,
    capacity_of_sm,
    l2_bandwidth_unsure,
    launch_known,
    may_thrash_l2,
    measured_in_sm,
    number,
)
from tachograph.catalog.arrays import Flags, Floats, Longs

# The interval has been set by what ran together on the recorded H100 (docs/interference.md).
# Demands and footprints: as they are, and so many times as high, or as low.
_FACTORS = np.array([1.0, 1.25, 1.0 / 1.25])
_MARGIN = 1.06  # a step takes so many times as long, or as short, from run to run
# Slowdown that two kernels may cause each other in an SM though they need different things of it,
# each all of its own: ports and registers that no counter shows.
_UNSEEN = 0.45
_LEAST = 1e-9


class PairSlowdowns(NamedTuple):
    """Of the kernel of a row beside that of a column: expected, and the interval that holds 90 %.

    binding: place in RESOURCES of what slows it most. in_turn: share 0..1 of the longer launch in
    which the other cannot run. may_thrash: both use an L2 of which it was not measured what stays.
    """

    slowdown: Floats
    low: Floats
    high: Floats
    binding: Longs
    in_turn: Floats
    may_thrash: Flags


@dataclass(frozen=True, slots=True)
class _Together:
    """Two kernels, and how much room each finds beside the other.

    own_room, other_room: share 0..1 of its blocks that run while those of the other are there.
    """

    own: KernelArrays
    other: KernelArrays
    own_room: Floats
    other_room: Floats
    meet: Floats
    gpu: GpuCapacity
    calibration: Calibration

    def slowdowns(self) -> tuple[tuple[Floats, Longs], tuple[Floats, Longs], Floats]:
        """Return slowdown and what binds of each, and the share of the longer launch with both."""
        own_s, other_s = _times(self.own, self.other)
        slowed = contention(self.own, self.other, self.calibration, self.meet)
        (own_slower, own_binding), (other_slower, other_binding) = slowed
        beside_own, other_rate = self._open(self.own, self.other, self.other_room)
        beside_other, own_rate = self._open(self.other, self.own, self.own_room)
        own_longer = own_s >= other_s
        long_s, short_s = np.maximum(own_s, other_s), np.minimum(own_s, other_s)
        open_share = np.where(own_longer, beside_own, beside_other)
        short_open = np.where(own_longer, beside_other, beside_own)
        long_slower = np.where(own_longer, own_slower, other_slower)
        short_slower = np.where(own_longer, other_slower, own_slower)
        rate = np.where(own_longer, other_rate, own_rate) / short_slower
        # Launches of the shorter one that end beside a launch of the longer one. One has its turn
        # in any case; of more, half a launch on the mean is under way when the longer one ends.
        done = open_share * long_s * long_slower * rate / short_s
        count = np.maximum(1.0, done + 0.5)
        waits = np.maximum(count - done, 0.0) * short_s * (1.0 - short_open)
        period = long_s * (1.0 + open_share * (long_slower - 1.0)) + waits
        of_longer, of_shorter = period / long_s, period / (count * short_s)
        of_own = np.where(own_longer, of_longer, of_shorter)
        of_other = np.where(own_longer, of_shorter, of_longer)
        of_own = np.maximum(of_own, 1.0 + open_share * (own_slower - 1.0))
        of_other = np.maximum(of_other, 1.0 + open_share * (other_slower - 1.0))
        turns = RESOURCES.index("blocks")
        own_binding = np.where(open_share < 0.5, turns, own_binding)
        other_binding = np.where(open_share < 0.5, turns, other_binding)
        return (of_own, own_binding), (of_other, other_binding), open_share

    def _open(
        self, there: KernelArrays, beside: KernelArrays, room: Floats
    ) -> tuple[Floats, Floats]:
        """Share of a launch in which blocks of `beside` can run, and their rate 0..1 then.

        That is its last wave, where there is room beside its blocks, or where SMs are idle because
        some blocks end sooner. These help only one that needs few of them, or where the blocks of
        one of both come in several waves: two that fill the GPU once end as late as the last block.
        """
        last_wave = 1.0 / np.nan_to_num(there.waves, nan=1.0)
        most_waves = np.nan_to_num(np.fmax(there.waves, beside.waves), nan=1.0)
        filled = np.nan_to_num(beside.running / _blocks_held(beside, self.gpu), nan=1.0)
        idle = (1.0 - there.active) / np.maximum(last_wave, _LEAST)
        empty = 1.0 - there.last_wave / np.maximum(there.running, there.last_wave)
        uneven = np.clip(np.nan_to_num(idle - empty), 0.0, 1.0)
        helps = (1.0 - filled / most_waves) * uneven * np.minimum(1.0 / filled, 2.0)
        share = room + (1.0 - room) * np.minimum(helps, 1.0)
        rate = rate_of(beside, share, self.calibration) / np.maximum(share, _LEAST)
        return last_wave * share, np.where(share > 0.0, rate, 0.0)


def _times(own: KernelArrays, other: KernelArrays) -> tuple[Floats, Floats]:
    """Seconds of a launch of each; equal ones where either is unknown."""
    both_known = np.isfinite(own.launch_s) & np.isfinite(other.launch_s)
    return np.where(both_known, own.launch_s, 1.0), np.where(both_known, other.launch_s, 1.0)


def rate_of(kernels: KernelArrays, share: Floats, calibration: Calibration) -> Floats:
    """Return the rate 0..1 of kernels with a `share` 0..1 of their blocks at work.

    Fewer blocks have fewer loads under way, and the latency of DRAM falls with the load that they
    cause, so that the rate is higher than the share where DRAM limits: x (1 + c x^2) is the share
    of what it is alone, a cubic equation with one real root.
    """
    dram, curvature = np.nan_to_num(kernels.dram), max(calibration.dram_curvature, _LEAST)
    loads = share * dram * (1.0 + curvature * dram * dram)
    steep = np.sqrt(3.0 * curvature)
    load = 2.0 / steep * np.sinh(np.arcsinh(1.5 * loads * steep) / 3.0)
    rate: Floats = np.clip(load / np.maximum(dram, _LEAST), share, 1.0)
    return rate


def slower_on(
    kernels: KernelArrays, share: float, gpu: GpuCapacity, calibration: Calibration
) -> Floats:
    """Return the slowdown of kernels alone on a `share` 0..1 of the SMs.

    Fewer of their blocks run at a time, or those that run need more cycles than these SMs have.
    Where the launch is not known, as many blocks as the share says.
    """
    if share >= 1.0:
        return np.ones(len(kernels.launch_s))
    if gpu.sms is not None:
        share = max(1.0, np.floor(share * gpu.sms)) / gpu.sms  # whole SMs
    # all its blocks run on these SMs, too, or as many as the share says
    roomy = (kernels.waves == 1.0) & (kernels.running <= share * _blocks_held(kernels, gpu))
    at_work = np.where(roomy, 1.0, share)
    by_cycles = kernels.busiest * np.nan_to_num(kernels.active, nan=1.0) / share
    longer: Floats = np.maximum(1.0 / rate_of(kernels, at_work, calibration), by_cycles)
    return np.maximum(longer, 1.0)


def _blocks_held(kernels: KernelArrays, gpu: GpuCapacity) -> Floats:
    """Blocks that the GPU holds at a time."""
    blocks: Floats = kernels.fit * number(gpu.sms)
    return blocks


def pair_slowdowns(
    own: KernelArrays,
    other: KernelArrays,
    gpu: GpuCapacity,
    calibration: Calibration,
    *,
    apart: bool = False,
) -> tuple[PairSlowdowns, PairSlowdowns]:
    """Return what happens to `own` (rows, 1) beside `other` (1, columns), and to `other`.

    `apart`: each has SMs of its own, so that they share L2, DRAM and power alone. Where the launch
    of one is not known, nothing is known about room: what is expected lies halfway, as a ratio,
    between that of all blocks beside each other and turns, and the interval holds both.
    """
    room_known = (launch_known(own, gpu) & launch_known(other, gpu)) | apart
    rooms = _rooms(own, other, gpu, apart)
    cases = 1 if room_known.all() else 2  # without any room, and with room for all
    own_room, other_room = (
        np.stack([np.where(room_known, room, without) for without in (0.0, 1.0)][:cases])[:, None]
        for room in rooms
    )
    meet = np.zeros(()) if apart else _meet(own, other, gpu)
    scaled = (own.times(_FACTORS), other.times(_FACTORS))
    together = _Together(*scaled, own_room, other_room, meet, gpu, calibration)
    of_own, of_other, open_share = together.slowdowns()
    unseen = _UNSEEN * open_share[:, 0] * meet * own.busiest * other.busiest
    in_turn = 1.0 - open_share[:, 0].mean(axis=0)
    calibrated = measured_on(calibration, gpu)
    thrashed = may_thrash_l2(own, other, calibration, calibrated=calibrated)
    l2_measured = (calibration.l2_bytes_per_s or gpu.l2_bytes_per_s) is not None
    unsure = thrashed | np.isnan(own.dram) | np.isnan(other.dram)
    unsure = unsure | l2_bandwidth_unsure(own, other, measured=l2_measured)
    unsure = unsure | ((meet > 0.0) & ~(measured_in_sm(own) & measured_in_sm(other)))
    own_s, other_s = _times(own, other)
    pairs = []
    for (slowdowns, binding), in_turns in (
        (of_own, 1.0 + other_s / own_s),
        (of_other, 1.0 + own_s / other_s),
    ):
        expected, highest, least = (slowdowns[:, index] for index in range(len(_FACTORS)))
        slowdown = np.exp(np.log(expected).mean(axis=0))
        low = np.minimum(least, expected).min(axis=0) / _MARGIN
        high = np.maximum(((highest + unseen) * _MARGIN).max(axis=0), slowdown)
        high = np.where(unsure, np.maximum(high, in_turns * _MARGIN), high)
        pairs.append(
            PairSlowdowns(
                slowdown=slowdown,
                low=np.clip(low, 1.0, slowdown),
                high=high,
                binding=binding[0, 0],
                in_turn=in_turn,
                may_thrash=thrashed,
            )
        )
    return pairs[0], pairs[1]


def _meet(own: KernelArrays, other: KernelArrays, gpu: GpuCapacity) -> Floats:
    """Share of the SMs of the narrower one on which the other is, too; 1 where unknown."""
    sms = number(gpu.sms)
    widths = [
        np.nan_to_num(np.minimum(kernels.running / sms, 1.0), nan=1.0) for kernels in (own, other)
    ]
    both = np.maximum(widths[0] + widths[1] - 1.0, 0.0)
    met: Floats = both / np.minimum(widths[0], widths[1])
    return met


def _rooms(
    own: KernelArrays, other: KernelArrays, gpu: GpuCapacity, apart: bool
) -> tuple[Floats, Floats]:
    """Share of the blocks of each that find a place while all of the other's are there."""
    if apart:
        return np.ones(()), np.ones(())
    return _room(own, other, gpu), _room(other, own, gpu)


def _room(beside: KernelArrays, there: KernelArrays, gpu: GpuCapacity) -> Floats:
    """Share of the blocks of one kernel that find a place beside the other's last wave.

    That is spread over the SMs as evenly as possible, or, where it started while the other's blocks
    were there, on the SMs that these left first, as many on each as fit and have cycles: what
    leaves more room.
    """
    sms = number(gpu.sms)
    on_each = there.running / np.minimum(sms, there.running)
    packed = np.clip(on_each / np.maximum(there.busiest, _LEAST), on_each, there.fit)
    evenly = there.last_wave / sms - np.floor(there.last_wave / sms)
    filled = there.last_wave / (sms * packed)
    room = np.zeros(())
    for blocks, fewer, share_of_sms in (
        (np.ceil(there.last_wave / sms), np.floor(there.last_wave / sms), evenly),
        (packed, np.zeros(np.shape(filled)), np.minimum(filled, 1.0)),
    ):
        fit_more, fit_fewer = (
            np.minimum(
                blocks_that_fit(capacity_of_sm(gpu) - count[..., None] * there.block, beside.block),
                beside.fit,
            )
            for count in (blocks, fewer)
        )
        blocks_placed = sms * (share_of_sms * fit_more + (1.0 - share_of_sms) * fit_fewer)
        room = np.fmax(room, blocks_placed / beside.running)
    share: Floats = np.clip(np.nan_to_num(room), 0.0, 1.0)
    return share
