"""Sampling intervals of the GPUs of a partition, and the time that their samples stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tachograph.catalog.arrays import Flags, Floats, Longs
from tachograph.pipeline import kernel

# Of the time of a stripe, and of the distances of its samples: where less is of its sampling
# interval, there are gaps, or other intervals.
MOSTLY = 0.998


@dataclass(frozen=True, slots=True)
class Sampling:
    """Times of a partition, and their distances.

    interval_us, steady_us: sampling interval of each stripe; steady_us only where many distances
    show it, else NaN. pieces: of a stripe with several sampling intervals the first row of each and
    the intervals (us). until_us: of the stripes with several intervals, or denser samples, one
    after the other: the time that their samples before each row stand for, and all of them.
    timed, shift: whether a stripe is one of these, and what to add to its rows to find them there.
    """

    t: Longs
    stripes: Longs
    interval_us: Floats
    steady_us: Floats
    pieces: Mapping[int, tuple[Longs, Floats]]
    until_us: Floats
    timed: Flags
    shift: Longs

    @classmethod
    def of(cls, t: Longs, stripes: Longs) -> Sampling:
        """Return those of rows in order of stripe and time: t in us, first row of each stripe."""
        count = len(stripes) - 1
        interval_us = np.empty(count)
        regular, regular_us = np.empty(count, np.int64), np.empty(count, np.int64)
        kernel.spacing(t, stripes, interval_us, regular, regular_us)
        steady_us = np.where(regular >= kernel.STEADY, interval_us, np.nan)
        pieces = {}
        distances = np.diff(stripes) - 1
        span = t[stripes[1:] - 1] - t[stripes[:-1]] if count else regular_us
        varies = (regular_us < MOSTLY * span) | (regular < MOSTLY * distances)
        timed, shift = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        until, offset = [np.empty(0)], 0
        for stripe in np.flatnonzero(varies):
            a, b = stripes[stripe], stripes[stripe + 1]
            first, interval = np.empty(b - a, np.int64), np.empty(b - a)
            piece_count = kernel.steady_pieces(t[a:b], first, interval)
            first[0] = 0
            if piece_count > 1:
                pieces[int(stripe)] = a + first[:piece_count], interval[:piece_count]
            elif np.diff(t[a:b]).min() * kernel.CHANGED >= interval_us[stripe]:
                continue  # samples were lost, and none was denser
            else:
                piece_count, interval[0] = 1, interval_us[stripe]
            until.append(np.empty(b - a + 1))
            kernel.times_of_samples(t[a:b], first[:piece_count], interval[:piece_count], until[-1])
            timed[stripe], shift[stripe] = True, offset - a
            offset += b - a + 1
        until_us = np.concatenate(until)
        return cls(t, stripes, interval_us, steady_us, pieces, until_us, timed, shift)

    def sampled_us(self, stripe: Longs, first: Longs, behind: Longs) -> Floats:
        """Time (us) that the samples in ranges of rows stand for; NaN where it is not known."""
        sampled = (behind - first) * self.interval_us[stripe]
        varied = np.flatnonzero(self.timed[stripe])
        shift = self.shift[stripe[varied]]
        sampled[varied] = self.until_us[behind[varied] + shift]
        sampled[varied] -= self.until_us[first[varied] + shift]
        return sampled
