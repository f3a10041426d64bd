"""Compiled loops over segments: rows of one job and one GPU. Each column is read once.

Rows are sorted by (node, gpu, mig, t). A *stripe* is the rows of one GPU; a *segment* the part of a
stripe that one run of a job owns; a *slot* the part of a segment inside one minute counted from the
job's start. Missing is NaN. All loops release the GIL. Sums are double precision, so their error
stays below 1e-12 of the sum.
"""

from __future__ import annotations

import numpy as np

from tachograph.catalog.arrays import Bytes, Flags, Floats, Ints, Longs, Singles
from tachograph.catalog.compiled import compiled, reordered

MINUTE_US = 60_000_000

DISTANCE_BINS = 1 << 10
STEADY = 10  # as many like distances, one after the other, show a sampling interval
BACK = 3  # as many show the one that was there before
CHANGED = 1.5  # times as long or as short is another sampling interval
LIKE = 1.4  # times as long or as short is a like distance; two and three lost intervals are not
APART = 1.02  # times as long: intervals that many distances show differ, by more than jitter


@compiled
def spacing(t: Longs, stripes: Longs, intervals: Floats, regular: Longs, regular_us: Longs) -> None:
    """Fill `intervals` with the sampling interval (us) of each stripe.

    Distances are counted in bins of about a quarter octave (the upper bits of a single-precision
    number); the mean is over the median's bin and its neighbours, so jitter does not move it and
    gaps do not count. NaN for one sample. `regular`, `regular_us`: how many distances the mean is
    of, and their sum.
    """
    counts = np.zeros(DISTANCE_BINS, np.int64)
    sums = np.zeros(DISTANCE_BINS, np.int64)
    single = np.empty(1, np.float32)
    pattern = single.view(np.int32)
    for s in range(stripes.shape[0] - 1):
        a, b = stripes[s], stripes[s + 1]
        if b - a < 2:
            intervals[s], regular[s], regular_us[s] = np.nan, 0, 0
            continue
        counts[:] = 0
        sums[:] = 0
        for i in range(a + 1, b):
            d = t[i] - t[i - 1]
            single[0] = np.float32(d)
            k = pattern[0] >> 21
            counts[k] += 1
            sums[k] += d
        middle, below = 0, counts[0]
        while below * 2 < b - a - 1:
            middle += 1
            below += counts[middle]
        n, total = 0, 0.0
        for k in range(max(middle - 1, 0), min(middle + 2, DISTANCE_BINS)):
            n += counts[k]
            total += sums[k]
        intervals[s], regular[s], regular_us[s] = total / n, n, np.int64(total)


@compiled
def steady_pieces(t: Longs, first: Longs, interval: Floats) -> int:
    """Return how many pieces of constant sampling interval the times of a GPU have.

    Fill the `first` row of each and its `interval` (us). Shorter runs of like distances, and gaps,
    belong to the piece before them, unless they show the interval of the piece before that again.
    """
    pieces, begin = 0, 0
    n, total = 0, np.int64(0)  # of the run of like distances
    piece_n, piece_total = 0, np.int64(0)
    for i in range(1, t.shape[0] + 1):
        d = t[i] - t[i - 1] if i < t.shape[0] else np.int64(0)
        if n > 0 and d * n <= total * LIKE and total <= d * n * LIKE:
            n += 1
            total += d
            continue
        mean = total / max(n, 1)
        usual = interval[pieces - 2] if n >= BACK and pieces > 1 else np.nan
        if n >= STEADY or (mean <= usual * CHANGED and usual <= mean * CHANGED):
            of_piece = piece_total / max(piece_n, 1)
            if pieces == 0 or mean > of_piece * CHANGED or of_piece > mean * CHANGED:
                first[pieces] = begin
                pieces += 1
                piece_n, piece_total = 0, np.int64(0)
            piece_n += n
            piece_total += total
            interval[pieces - 1] = piece_total / piece_n
        n, total, begin = 1, d, i - 1
    return pieces


@compiled
def times_of_samples(t: Longs, first: Longs, interval: Floats, until: Floats) -> None:
    """Fill `until` with the time (us) that the samples of a GPU before each row stand for.

    A sample stands for the sampling interval of its piece, as `steady_pieces` fills `first` and
    `interval`: no more than the time to the next one where that is denser, or is of another piece.
    A sample that came late makes the next distance short; the two stand for two intervals.
    `until` has one element more than there are rows.
    """
    piece, late = 0, 0.0
    until[0] = 0.0
    rows = t.shape[0]
    for i in range(rows):
        if piece + 1 < first.shape[0] and i >= first[piece + 1]:
            piece, late = piece + 1, 0.0
        every = interval[piece]
        d = np.float64(t[i + 1] - t[i]) if i + 1 < rows else every
        is_last = piece + 1 < first.shape[0] and i + 1 == first[piece + 1]
        is_shorter = is_last or d * CHANGED < every
        until[i + 1] = until[i] + (min(every, d + late) if is_shorter else every)
        late = min(max(d - every, 0.0), every)


@compiled
def place_segments(
    t: Longs, stripes: Longs, low: Longs, high: Longs, start: Longs, end: Longs, zero: Longs,
    seg_a: Longs, seg_b: Longs, seg_stripe: Longs, seg_interval: Longs, seg_slot: Longs,
    slot_a: Longs, slot_seg: Longs, slot_minute: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Return how many segments and slots there are. `low`/`high`: the intervals of each stripe.

    Where `seg_slot` is not empty, fill the rows [seg_a, seg_b) of each segment, its stripe,
    interval and first slot; each slot's first row, segment and minute. `seg_slot` has one element
    more than there are segments, as a guard.
    """
    fill = seg_slot.size > 0
    g, m = 0, 0
    for s in range(stripes.shape[0] - 1):
        i, b = stripes[s], stripes[s + 1]
        for k in range(low[s], high[s]):
            i += np.searchsorted(t[i:b], start[k])
            if i >= b or t[i] >= end[k]:
                continue
            if fill:
                seg_a[g], seg_stripe[g], seg_interval[g], seg_slot[g] = i, s, k, m
            edge = np.int64(-(1 << 62))
            while i < b and t[i] < end[k]:
                if t[i] >= edge:
                    minute = (t[i] - zero[k]) // MINUTE_US
                    edge = zero[k] + (minute + 1) * MINUTE_US
                    if fill:
                        slot_a[m], slot_seg[m], slot_minute[m] = i, g, minute
                    m += 1
                i += 1
            if fill:
                seg_b[g] = i
            g += 1
    if fill:
        seg_slot[g] = m
    return g, m


# A loop over a slice that begins at 0 vectorises; one from a to b does not, as a might be negative.


@reordered
def _sum(values: Singles) -> float:
    """Sum; NaN if a value is missing."""
    total = 0.0
    for i in range(values.shape[0]):
        total += np.float64(values[i])
    return total


@compiled
def _present(values: Singles) -> tuple[float, int, np.float32]:
    """Sum, number and maximum (-inf if empty) of the non-missing values."""
    total, n, highest = 0.0, 0, np.float32(-np.inf)
    for i in range(values.shape[0]):
        v = values[i]
        if v == v:
            total += np.float64(v)
            n += 1
            highest = max(highest, v)
    return total, n, highest


@compiled
def _highest(values: Singles) -> float:
    """Maximum; any value if one is missing. Integer comparison keeps the order and vectorises."""
    bits = values.view(np.int32)
    highest = np.int32(-(1 << 31))
    for i in range(bits.shape[0]):
        v = bits[i] ^ ((bits[i] >> 31) & np.int32(0x7FFFFFFF))  # negative numbers count downwards
        highest = max(highest, v)
    result = np.empty(1, np.int32)
    result[0] = highest ^ ((highest >> 31) & np.int32(0x7FFFFFFF))
    return float(result.view(np.float32)[0])


@compiled
def levels(
    col: Singles, seg_a: Longs, seg_b: Longs, n: Longs, total: Floats, highest: Floats
) -> None:
    """Return per segment the number of values, their sum and maximum (-inf if empty)."""
    for g in range(seg_a.shape[0]):
        values = col[seg_a[g] : seg_b[g]]
        total[g], n[g] = _sum(values), values.shape[0]
        if total[g] == total[g]:
            highest[g] = _highest(values)
        else:
            total[g], n[g], highest[g] = _present(values)


@compiled
def by_minute(
    col: Singles, slot_a: Longs, slot_b: Longs, n: Ints, total: Floats, highest: Singles,
    mean: Singles,
) -> None:  # fmt: skip
    """Per slot how many values, their sum, maximum and mean; without any 0, 0, -inf and NaN."""
    for m in range(slot_a.shape[0]):
        a, b = slot_a[m], slot_b[m]
        here, part, largest = b - a, 0.0, np.float32(-np.inf)
        for i in range(a, b):
            v = col[i]
            part += np.float64(v)
            largest = max(largest, v)
        if part != part:
            part, here, largest = _present(col[a:b])
        n[m], total[m], highest[m] = here, part, largest
        mean[m] = part / here if here else np.nan


@compiled
def over_minutes(
    seg_slot: Longs, slot_n: Ints, slot_total: Floats, slot_most: Singles, n: Longs,
    total: Floats, highest: Floats,
) -> None:  # fmt: skip
    """As `levels`, from slot statistics of each segment in `by_minute`."""
    for g in range(n.shape[0]):
        count, together, largest = 0, 0.0, np.float32(-np.inf)
        for m in range(seg_slot[g], seg_slot[g + 1]):
            count += slot_n[m]
            together += slot_total[m]
            largest = max(largest, slot_most[m])
        n[g], total[g], highest[g] = count, together, largest


@compiled
def add_labels(seg_slot: Longs, slot_a: Longs, slot_b: Longs, label: Bytes, counts: Longs) -> None:
    """Count the samples of each slot in its segment under the slot's label (labels x segments)."""
    for g in range(seg_slot.shape[0] - 1):
        for m in range(seg_slot[g], seg_slot[g + 1]):
            counts[label[m], g] += slot_b[m] - slot_a[m]


@reordered
def zeros(col: Singles, seg_a: Longs, seg_b: Longs, n: Longs) -> None:
    """Per segment how many values are zero."""
    for g in range(seg_a.shape[0]):
        values = col[seg_a[g] : seg_b[g]]
        count = 0
        for i in range(values.shape[0]):
            count += 1 if values[i] == 0 else 0
        n[g] = count


@reordered
def squares(col: Singles, seg_a: Longs, seg_b: Longs, square: Floats) -> None:
    """Per segment the sum of the squares; missing values add nothing.

    Over the sum it is the mean of the values weighted by themselves: that of the times at work.
    """
    for g in range(seg_a.shape[0]):
        values = col[seg_a[g] : seg_b[g]]
        total = 0.0
        for i in range(values.shape[0]):
            value = np.float64(values[i] if values[i] == values[i] else np.float32(0))
            total += value * value
        square[g] = total


@reordered
def _trapezoids(after: Singles, before: Singles, steps: Ints) -> float:
    """Twice the integral between neighbours; NaN if a value is missing."""
    total = 0.0
    for i in range(steps.shape[0]):
        total += (np.float64(after[i]) + np.float64(before[i])) * np.float64(steps[i])
    return total


@compiled
def spaces(t: Longs, seg_a: Longs, seg_b: Longs, gap: Floats, steps: Ints) -> None:
    """Fill `steps` with the distance (us) of each row to the previous one; 0 if too far."""
    for g in range(seg_a.shape[0]):
        times, here = t[seg_a[g] : seg_b[g]], steps[seg_a[g] : seg_b[g]]
        longest = min(gap[g], 2e9)
        for i in range(1, times.shape[0]):
            d = times[i] - times[i - 1]
            here[i] = d if d <= longest else 0


@compiled
def integrals(
    t: Longs, steps: Ints, col: Singles, seg_a: Longs, seg_b: Longs, gap: Floats,
    n: Longs, area: Floats, seconds: Floats, first: Floats, last: Floats,
    t_first: Longs, t_last: Longs,
) -> None:  # fmt: skip
    """Return per segment the integral over time, its duration, and the border values.

    The integral is trapezoidal, in value x seconds.

    Missing values are passed over; nothing is integrated across a distance of more than `gap` (us,
    per segment). `steps`: distances that are integrated across where no value is missing, as
    `spaces` fills them.
    """
    for g in range(seg_a.shape[0]):
        a, b = seg_a[g], seg_b[g]
        between = _trapezoids(col[a + 1 : b], col[a : b - 1], steps[a + 1 : b]) + 0 * np.float64(
            col[a]
        )
        if b > a and between == between and gap[g] <= 2e9:
            n[g], area[g], seconds[g] = b - a, between * 0.5e-6, steps[a + 1 : b].sum() * 1e-6
            first[g], last[g], t_first[g], t_last[g] = col[a], col[b - 1], t[a], t[b - 1]
            continue
        total, covered, count = 0.0, 0.0, 0
        longest = gap[g]
        before, t_before = np.nan, np.int64(0)
        first[g] = np.nan
        for i in range(seg_a[g], seg_b[g]):
            v = np.float64(col[i])
            if v == v:
                if count == 0:
                    first[g], t_first[g] = v, t[i]
                else:
                    d = np.float64(t[i] - t_before)
                    if d <= longest:
                        total += (before + v) * d
                        covered += d
                before, t_before = v, t[i]
                count += 1
        n[g], area[g], seconds[g] = count, total * 0.5e-6, covered * 1e-6
        last[g], t_last[g] = before, t_before


@compiled
def increases(
    t: Longs, col: Floats, seg_a: Longs, seg_b: Longs, n: Longs,
    first: Floats, last: Floats, grown: Floats,
    t_first: Longs, t_last: Longs,
) -> None:  # fmt: skip
    """Return per segment of a cumulative counter its values, first and last with times, increase.

    A value below the one before is a reset: it starts a new piece, and the pieces' increases add
    up.
    """
    for g in range(seg_a.shape[0]):
        count, total, before = 0, 0.0, np.nan
        first[g] = np.nan
        for i in range(seg_a[g], seg_b[g]):
            v = col[i]
            if v == v:
                if count == 0:
                    first[g], t_first[g] = v, t[i]
                elif v > before:
                    total += v - before
                before = v
                t_last[g] = t[i]
                count += 1
        n[g], last[g], grown[g] = count, before, total


@compiled
def changes(
    col: Floats, stripes: Longs, seg_stripe: Longs, seg_a: Longs, seg_b: Longs, n: Longs,
    events: Longs, highest: Floats, newest: Floats, first: Floats, last: Floats,
) -> None:  # fmt: skip
    """Return per segment of a sticky code: values, changes to nonzero, maxima, first, last.

    Maxima are over all values, and over values that a change led to.

    The value just before the segment, where the same GPU has one, counts as what it was before.
    """
    for g in range(seg_a.shape[0]):
        a = seg_a[g]
        before = col[a - 1] if a > stripes[seg_stripe[g]] else np.nan
        count, events_here, largest, came = 0, 0, -np.inf, np.nan
        first[g] = np.nan
        for i in range(a, seg_b[g]):
            v = col[i]
            if v == v:
                if count == 0:
                    first[g] = v
                if before == before and v != before and v != 0:
                    events_here += 1
                    came = v if came != came else max(came, v)
                before = v
                largest = max(largest, v)
                count += 1
        n[g], events[g], highest[g], newest[g], last[g] = count, events_here, largest, came, before


@compiled
def bits(
    col: Longs, lowering: int, seg_a: Longs, seg_b: Longs, n: Longs, lowered: Longs, any_bits: Longs
) -> None:
    """Return per segment of a bit mask (-1: missing): values, those with `lowering` bits, all
    bits.
    """
    for g in range(seg_a.shape[0]):
        count, hits, together = 0, 0, 0
        for i in range(seg_a[g], seg_b[g]):
            v = col[i]
            if v >= 0:
                count += 1
                together |= v
                if v & lowering:
                    hits += 1
        n[g], lowered[g], any_bits[g] = count, hits, together


BLOCK = 1024  # rows at a time, so that intermediate values stay in the L1 cache
MISSING, IDLE, WORKING = 0, 1, 2


@reordered
def _states(
    fp64: Singles,
    fp32: Singles,
    fp16: Singles,
    tensor: Singles,
    dram: Singles,
    uses: Singles,
    state: Bytes,
) -> None:
    """State of each row: value missing, all pipes idle, or one at work.

    `uses`: 1 measured, 0 not.
    """
    for i in range(dram.shape[0]):
        d = dram[i]
        v0 = fp64[i] if uses[0] > 0 else np.float32(0)
        v1 = fp32[i] if uses[1] > 0 else np.float32(0)
        v2 = fp16[i] if uses[2] > 0 else np.float32(0)
        v3 = tensor[i] if uses[3] > 0 else np.float32(0)
        together = v0 + v1 + v2 + v3
        there = together + d == together + d
        working = there & (together > 0)  # active pipes without a memory value give no label
        state[i] = (np.uint8(1) if there else np.uint8(0)) + (
            np.uint8(1) if working else np.uint8(0)
        )


@reordered
def _label(pipe: Singles, dram: Singles, state: Bytes, weight: Singles) -> tuple[float, float]:
    compute, memory = np.float32(0), np.float32(0)
    for i in range(dram.shape[0]):
        v, d = pipe[i], dram[i]
        w = weight[i] if state[i] == WORKING else np.float32(0)
        compute += w if (v > 0) & (v >= d) else np.float32(0)
        memory += w if d > v else np.float32(0)
    return np.float64(compute), np.float64(memory)


@reordered
def _sum_states(state: Bytes, weight: Singles, rows: int) -> tuple[float, float]:
    idle, complete = np.float32(0), np.float32(0)
    for i in range(rows):
        idle += weight[i] if state[i] == IDLE else np.float32(0)
        complete += weight[i] if state[i] != MISSING else np.float32(0)
    return np.float64(idle), np.float64(complete)


@compiled
def labels(
    fp64: Singles, fp32: Singles, fp16: Singles, tensor: Singles, dram: Singles, measured: Singles,
    seg_a: Longs, seg_b: Longs, compute: Floats, memory: Floats, idle: Floats, complete: Floats,
) -> None:  # fmt: skip
    """Return per segment and pipe the number of samples by label.

    Labels: compute-bound, memory-bound, idle, fully measured.

    The device's peaks cancel: a sample is compute-bound when the pipe's activity is at least that
    of the memory. A sample in which any pipe of `measured` (segments x 4: 1 or 0) or the memory is
    missing is not labelled; one in which all are zero is idle; one in which this pipe and the
    memory are zero while another works has no label.
    """
    state = np.empty(BLOCK, np.uint8)
    ones = np.ones(BLOCK, np.float32)  # adding these is vectorized, adding a constant is not
    for g in range(seg_a.shape[0]):
        for a in range(seg_a[g], seg_b[g], BLOCK):
            b = min(a + BLOCK, seg_b[g])
            _states(fp64[a:b], fp32[a:b], fp16[a:b], tensor[a:b], dram[a:b], measured[g], state)
            idle_rows, complete_rows = _sum_states(state, ones, b - a)
            idle[g] += idle_rows
            complete[g] += complete_rows
            for p in range(4):
                if measured[g, p] > 0:
                    pipe = fp64 if p == 0 else fp32 if p == 1 else fp16 if p == 2 else tensor
                    c, m = _label(pipe[a:b], dram[a:b], state, ones)
                    compute[g, p] += c
                    memory[g, p] += m


INTENSITY_BINS = 32  # one under, 30 between, one over
_CELL_BITS = 16


@reordered
def _intensity(pipe: Singles, dram: Singles, peak: np.float32, block: Singles) -> None:
    """Pipe activity over memory activity, times the ridge point; 0 if either is zero or missing."""
    for i in range(dram.shape[0]):
        v, d = pipe[i], dram[i]
        block[i] = v / d * peak if (v > 0) & (d > 0) else np.float32(0)


@compiled
def intensities(
    pipe: Singles,
    dram: Singles,
    ridge: Singles,
    cells: Bytes,
    edges: Singles,
    seg_a: Longs,
    seg_b: Longs,
    histogram: Longs,
) -> None:
    """Count the samples of each segment by arithmetic intensity, one pipe.

    `ridge`: FLOP/B per segment, NaN unknown. The bin is that of the number's cell (its upper 16
    bits) or the next: no logarithm, no branch. `histogram` has a last column for samples without an
    intensity.
    """
    block = np.empty(BLOCK, np.float32)
    pattern = block.view(np.int32)
    counts = np.zeros((2, INTENSITY_BINS + 1), np.int64)
    for g in range(seg_a.shape[0]):
        peak = ridge[g]
        if peak != peak:
            continue
        counts[:] = 0
        for a in range(seg_a[g], seg_b[g], BLOCK):
            b = min(a + BLOCK, seg_b[g])
            _intensity(pipe[a:b], dram[a:b], peak, block)
            for i in range(b - a):
                k = cells[pattern[i] >> _CELL_BITS]
                # Alternating: neighbours need not wait for each other.
                counts[i & 1, k + (block[i] >= edges[k])] += 1
        histogram[g, :] = counts[0] + counts[1]


def intensity_edges() -> Floats:
    """Return the 31 edges of 30 logarithmic bins, 1e-3 to 1e3 FLOP/B (IPDPS 2026, figure 4)."""
    return np.logspace(-3, 3, 31)


def intensity_bins() -> tuple[Bytes, Singles]:
    """Return each cell's bin (a cell shares the upper 16 bits), and the bins' ends.

    A cell is narrower than a bin, so the bin of any number is that of its cell or the next one.
    Zero stands for no intensity and has the last column to itself.
    """
    edges = np.append(intensity_edges(), [np.inf, np.inf]).astype(np.float32)
    with np.errstate(invalid="ignore"):  # the last cells hold no numbers
        least = (np.arange(1 << 15, dtype=np.int32) << _CELL_BITS).view(np.float32)
        least = np.where(np.isnan(least), np.float32(np.inf), least)
    cells = np.searchsorted(edges[:-2], least, side="right").astype(np.uint8)
    cells[0] = INTENSITY_BINS
    return cells, edges


@compiled
def over_gpus(
    slot_place: Longs, slot_n: Ints, slot_total: Floats, n: Longs, total: Floats, highest: Floats
) -> None:  # fmt: skip
    """Add each slot at its index (-1: none): values, sum over GPUs, largest GPU's sum."""
    for m in range(slot_place.shape[0]):
        k = slot_place[m]
        if k >= 0:
            n[k] += slot_n[m]
            total[k] += slot_total[m]
            highest[k] = max(highest[k], slot_total[m])


@compiled
def over_gpus_by_minute(
    slot_place: Longs, columns: tuple[Singles, ...], idle_util: np.float32, highest: Singles,
    sums: Floats, counts: Ints, present: Flags,
) -> None:  # fmt: skip
    """Add each slot at its index (-1: none); NaN: missing. Rows: see `timelines`.

    `columns`: three of activity, five of work, power, PCIe sent and received, NVLink sent and
    received, memory utilisation. `highest`: largest activity each; of GPUs whose first activity,
    fourth and fifth work are there, the largest of it and of their work; largest power and memory
    utilisation. Of those GPUs power is the first of `sums` and `counts`.
    """
    (
        util,
        engine,
        sm,
        fp64,
        fp32,
        fp16,
        tensor,
        dram,
        watts,
        pcie_tx,
        pcie_rx,
        nvlink_tx,
        nvlink_rx,
        copy,
    ) = columns
    for m in range(slot_place.shape[0]):
        k = slot_place[m]
        if k < 0:
            continue
        present[k] = True
        u, e, s = util[m], engine[m], sm[m]
        highest[0, k] = max(highest[0, k], u)
        highest[1, k] = max(highest[1, k], e)
        highest[2, k] = max(highest[2, k], s)
        x, d, w = tensor[m], dram[m], watts[m]
        highest[5, k] = max(highest[5, k], w)
        highest[6, k] = max(highest[6, k], copy[m])
        if u == u and x == x and d == d:
            work = max(d, x)
            work = max(work, fp64[m])
            work = max(work, fp32[m])
            work = max(work, fp16[m])
            highest[3, k] = max(highest[3, k], u)
            highest[4, k] = max(highest[4, k], work)
            _add(sums, counts, 0, k, w)
        _add(sums, counts, 1, k, u)
        _add(sums, counts, 2, k, e)
        _add(sums, counts, 3, k, s)
        _add(sums, counts, 4, k, x)
        _add(sums, counts, 5, k, d)
        _add(sums, counts, 6, k, w)
        _add(sums, counts, 7, k, _both(pcie_tx[m], pcie_rx[m]))
        _add(sums, counts, 8, k, _both(nvlink_tx[m], nvlink_rx[m]))
        activity = u if u == u else e if e == e else s
        if activity != activity:
            continue
        counts[9, k] += 1
        if activity < idle_util:
            counts[10, k] += 1
            sums[9, k] += w if w == w else np.float32(0)
        else:
            sums[10, k] += activity


@compiled
def _add(sums: Floats, counts: Ints, row: int, slot: int, value: np.float32) -> None:
    """Add and count a value unless it is missing."""
    if value == value:
        sums[row, slot] += value
        counts[row, slot] += 1


@compiled
def _both(first: np.float32, second: np.float32) -> np.float32:
    """Sum; the other value if either is NaN."""
    if first != first:
        return second
    if second != second:
        return first
    return first + second
