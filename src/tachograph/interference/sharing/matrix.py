"""What is expected of all pairs of kernels: rows against columns, in one compiled loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Bytes, Flags, Floats
from tachograph.compiled import compiled, is_made, plain
from tachograph.config import Interference
from tachograph.interference.demand import CYCLES, Calibration, Demand, Gpu
from tachograph.interference.outcome import Matrix, Sharing
from tachograph.interference.sharing import caches, dram, placement, together
from tachograph.interference.sharing.confine import confine
from tachograph.interference.sharing.estimate import shares_of
from tachograph.interference.sharing.together import BESIDE, LATENCY, LONGER, NOTHING, RESOURCES, SECONDS
from tachograph.interference.sharing.vectors import Vectors, vectors

# pairs: so many take Python less long than loading a compiler
_WORTH_COMPILING = 2000
_OWN, _OTHER = 1, 2  # whose blocks find no room beside the other: of the row, of the column


def matrix(
    rows: Sequence[Demand],
    columns: Sequence[Demand] | None = None,
    *,
    gpu: Gpu,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: Interference | None = None,
) -> Matrix:
    """Return what happens to each of `rows` beside each of `columns` (`rows` again where None).

    Of each pair it tells what `estimate` tells of the row's kernel; `sharing.shares` are of row and column.
    """
    calibration, sharing, settings = calibration or Calibration(), sharing or Sharing(), settings or Interference()
    shares = shares_of(sharing, 2)
    one = _Side.of(rows, shares[0], gpu, calibration)
    two = one if columns is None and shares[0] == shares[1] else _Side.of(columns or rows, shares[1], gpu, calibration)
    shape = (len(one.rows), len(two.rows))
    meet = _meet(one.vectors, two.vectors, sum(shares), gpu)
    answers = (np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.uint8), np.empty(shape, dtype=np.uint8))
    told = together.machine(gpu, calibration, lasting=sharing.lasting)
    fill = _fill if is_made(_fill) or shape[0] * shape[1] > _WORTH_COMPILING else plain(_fill)
    fill(one.rows, two.rows, told, caches.table(), meet, one is two, sharing.lasting, answers)
    slowdown, gain, binding, shut_out = answers
    common = one.measured @ two.measured.T > 0
    sayable, both_sayable = common | (shut_out & _OWN > 0), common | (shut_out == _OWN + _OTHER)
    timed = np.isfinite(one.vectors.seconds)[:, None] & np.isfinite(two.vectors.seconds)[None, :]
    gain[~(both_sayable & (timed | sharing.lasting))] = np.nan
    slowdown[~sayable], binding[~sayable] = np.nan, NOTHING
    room = (shut_out == 0) & (one.rows[:, LONGER] <= 1.0)[:, None] & (two.rows[:, LONGER] <= 1.0)[None, :]
    safe = (room & _below(one.vectors, two.vectors, meet, settings) & _told(one, two, meet, gpu)).astype(np.uint8)
    return Matrix(one.vectors.names, two.vectors.names, RESOURCES, slowdown, gain, binding, safe, settings.margin)


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows, or columns: demands, the numbers that pairs are computed from, and what was measured, 0 or 1."""

    vectors: Vectors
    rows: Floats
    measured: Floats

    @classmethod
    def of(cls, demands: Sequence[Demand], share: float, gpu: Gpu, calibration: Calibration) -> _Side:
        own, longer = confine(vectors(demands, gpu, calibration), share, gpu)
        return cls(own, together.rows(own, longer, gpu, calibration), own.known.astype(np.float64))


def _meet(one: Vectors, two: Vectors, shares: float, gpu: Gpu) -> Flags:
    """Which pairs meet in SMs."""
    blocks = one.launches.blocks[:, None] + two.launches.blocks[None, :]
    apart = placement.apart(0.0, shares, gpu) if gpu.sms is None or shares <= 1.0 else blocks <= gpu.sms
    return ~np.broadcast_to(apart, blocks.shape)


@compiled
def _fill(
    rows: Floats,
    columns: Floats,
    told: Floats,
    kept: Floats,
    meet: Flags,
    square: bool,
    lasting: bool,
    answers: tuple[Floats, Floats, Bytes, Bytes],
) -> None:
    """Fill in slowdown, gain, binding, and who finds no room, of each pair.

    `square`: columns are the rows, and each pair tells of two places.
    """
    slowdown, gain, binding, shut_out = answers
    beside, mine = np.zeros(BESIDE), np.zeros(BESIDE)
    both = np.zeros(2 * dram.PARTS)
    for i in range(len(rows)):
        own = rows[i]
        for j in range(i if square else 0, len(columns)):
            other, met = columns[j], meet[i, j]
            mine[:] = 0.0
            beside[:] = 0.0
            together.add(mine, own, other, told)
            together.add(beside, other, own, told)
            together.put_dram(both, 0, own)
            together.put_dram(both, 1, other)
            mine[LATENCY] = beside[LATENCY] = together.latency(both, 2, told)
            cycles, memory, bound = together.pace(own, mine, told, kept, met)
            their_cycles, their_memory, their_bound = together.pace(other, beside, told, kept, met)
            waits = met and together.shut_out(own, mine, told)
            other_waits = met and together.shut_out(other, beside, told)
            shut_out[i, j] = (_OWN if waits else 0) + (_OTHER if other_waits else 0)
            turn, their_turn = together.in_turn(mine, told, waits), together.in_turn(beside, told, other_waits)
            take_turns = cycles * turn <= 1.0 and their_cycles * their_turn <= 1.0
            most = together.longest(turn, told, waits, take_turns)
            their_most = together.longest(their_turn, told, other_waits, take_turns)
            slow = together.slowdown(cycles, memory, own[LONGER], most)
            their_slow = together.slowdown(their_cycles, their_memory, other[LONGER], their_most)
            slowdown[i, j] = slow
            binding[i, j] = together.bound_by(bound, cycles, memory, own[LONGER])
            going = 1.0 / turn if take_turns else cycles
            their_going = 1.0 / their_turn if take_turns else their_cycles
            seconds = (own[SECONDS], other[SECONDS])
            shared = (min(going, memory) / own[LONGER], min(their_going, their_memory) / other[LONGER])
            alone = (1.0 / own[LONGER], 1.0 / other[LONGER])
            known = seconds[0] > 0.0 and seconds[1] > 0.0
            total = seconds[0] + seconds[1]
            if lasting:
                gain[i, j] = 1.0 / slow + 1.0 / their_slow
            elif known:
                gain[i, j] = total / together.until_both_ended(seconds, shared, alone)
            if square and i != j:
                slowdown[j, i] = their_slow
                binding[j, i] = together.bound_by(their_bound, their_cycles, their_memory, other[LONGER])
                shut_out[j, i] = (_OWN if other_waits else 0) + (_OTHER if waits else 0)
                if lasting:
                    gain[j, i] = 1.0 / their_slow + 1.0 / slow
                elif known:
                    turned = (shared[1], shared[0])
                    gain[j, i] = total / together.until_both_ended(
                        (seconds[1], seconds[0]), turned, (alone[1], alone[0])
                    )


def _told(one: _Side, two: _Side, meet: Flags, gpu: Gpu) -> Flags:
    """Which pairs have all measured that decides of caches, and of room for blocks."""
    room = placement.told(one.vectors.launches, gpu)[:, None] & placement.told(two.vectors.launches, gpu)[None, :]
    within = room & ~one.vectors.in_l1.pairs_unknown(two.vectors.in_l1)
    return ~one.vectors.in_l2.pairs_unknown(two.vectors.in_l2) & (within | ~meet)


def _below(one: Vectors, two: Vectors, meet: Flags, settings: Interference) -> Flags:
    """Whether sums of pairs stay below their limits, and what decides was measured."""
    known = (one.known, two.known)
    below = known[0][:, None, -1] & known[1][None, :, -1]
    below &= _sum(one.dram, two.dram) < settings.safe_dram
    mine, theirs = np.nan_to_num(one.cycles), np.nan_to_num(two.cycles)
    for place, name in enumerate(CYCLES):
        total = _both(mine[:, place], theirs[:, place], meet)
        measured = known[0][:, None, place] & known[1][None, :, place]
        decides = meet & (total >= settings.safe_cycles / 2) if name != "issue" else meet
        below &= (total < settings.safe_cycles) & (measured | ~decides)
    below &= (_sum(one.l2, two.l2) < 1.0) & (_sum(one.l1, two.l1, meet) < 1.0)
    return below


def _sum(one: Floats, two: Floats, meet: Flags | None = None) -> Floats:
    """Sum of both, unknown as nothing; the higher of them where they do not meet."""
    return _both(np.nan_to_num(one), np.nan_to_num(two), meet)


def _both(one: Floats, two: Floats, meet: Flags | None) -> Floats:
    """The same of numbers that are known."""
    mine, theirs = one[:, None], two[None, :]
    return mine + theirs if meet is None or meet.all() else np.where(meet, mine + theirs, np.maximum(mine, theirs))
