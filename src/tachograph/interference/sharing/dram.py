"""Rates of kernels that share the bandwidth of DRAM, a resource of the whole GPU.

A kernel keeps requests on their way, n; its throughput is x = n / L (Little's law). The latency grows with the load of
all, L(U) = 1 + c U^2, one curve per GPU that is fitted from kernels that ran alone; U, the sum of throughputs, is at
most 1, the bandwidth that can be achieved: where more is asked, L is what makes it 1.

Latency stretches only the time that waits for it. Of a kernel that uses the share u of DRAM, and the share b of what it
uses most, that is m = u / b, at most all: who is busy elsewhere overlaps the rest with other work. So x = u / (1 - m +
m L / L(u)), which is n / L where m = 1, as of a copy; where m is near 0 DRAM does not slow it.
"""

from __future__ import annotations

from math import sqrt

from tachograph.arrays import Floats
from tachograph.compiled import either

PARTS = 3  # numbers of each kernel in a row of all: share used, share of its time that waits, latency alone
_STEPS = 60  # of Newton's method, at most: a handful is enough
_NONE = 1e-9  # a curvature, or a step, below this is none


@either
def latency_alone(used: float, curvature: float) -> float:
    """Return the latency under the load of one kernel, in times of that without load."""
    return 1.0 + curvature * used * used


@either
def outstanding(used: float, curvature: float) -> float:
    """Return the requests on their way that make a kernel use the share `used`, 0..1, alone."""
    return used * latency_alone(used, curvature)


@either
def load(requests: float, curvature: float) -> float:
    """Return the load, 0..1, that so many requests make.

    >>> [round(load(n, 0.571), 3) for n in (0.1, outstanding(0.5, 0.571), 3.0)]
    [0.099, 0.5, 1.0]
    """
    if requests >= 1.0 + curvature:
        return 1.0
    guess = min(requests, 1.0)
    for _ in range(_STEPS):  # from above to the root of a convex function
        square = curvature * guess * guess
        less = (guess * (1.0 + square) - requests) / (1.0 + 3.0 * square)
        guess -= less
        if less <= 1e-15 * guess:
            break
    return min(guess, 1.0)


@either
def latency(of_all: Floats | list[float], count: int, curvature: float) -> float:
    """Return the latency under the load of so many kernels together; `of_all`: `PARTS` numbers of each.

    Newton's method from below: what is asked for at a latency falls in it and is convex, the load rises and is concave.

    >>> copy = [0.6918, 1.0, latency_alone(0.6918, 0.571)]
    >>> round(latency(copy + copy, 2, 0.571) / copy[2], 3)
    1.384
    """
    most = 0.0
    for place in range(count):
        most = max(most, of_all[PARTS * place])
    if most <= 0.0:
        return 1.0
    asked, _ = _asked(of_all, count, 1.0 + curvature)
    full = asked >= 1.0
    if curvature < _NONE and not full:
        return 1.0
    above = curvature if full else curvature * most * most
    for _ in range(_STEPS):
        asked, slope = _asked(of_all, count, 1.0 + above)
        used = 1.0 if full else sqrt(above / curvature)
        step = (asked - used) / ((0.0 if full else 0.5 * used / above) - slope)
        above += max(step, 0.0)
        if step <= _NONE * _NONE + 1e-15 * above:
            break
    return 1.0 + above


@either
def _asked(of_all: Floats | list[float], count: int, at: float) -> tuple[float, float]:
    """Return the share of DRAM that all use at a latency, and how that grows with it."""
    asked, slope = 0.0, 0.0
    for place in range(count):
        used, waits, alone = of_all[PARTS * place], of_all[PARTS * place + 1], of_all[PARTS * place + 2]
        going = rate(waits, alone, at)
        asked += used * going
        slope -= used * going * going * waits / alone
    return asked, slope


@either
def rate(waits: float, alone: float, together: float) -> float:
    """Return the rate, 0..1 of that alone, of a kernel of whose time the share `waits` waits for DRAM.

    `alone`, `together`: latencies.

    >>> rate(1.0, 1.25, 2.5), rate(0.5, 1.25, 2.5), rate(0.0, 1.25, 2.5)
    (0.5, 0.6666666666666666, 1.0)
    """
    return min(1.0, 1.0 / (1.0 + waits * (together / alone - 1.0)))
