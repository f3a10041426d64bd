"""Rates of kernels that share the bandwidth of DRAM, a resource of the whole GPU.

A kernel keeps a certain number of requests on their way, n; its throughput is x = n / L (Little's law). The latency
grows with the load of all, L(U) = 1 + c U^2, one curve per GPU that is fitted from kernels that ran alone; U, the sum
of throughputs, is at most 1: the bandwidth that can be achieved.
"""

from __future__ import annotations

from tachograph.compiled import either

_STEPS = 8  # of Newton's method, which comes from above to the root of a convex function: enough for all digits


@either
def outstanding(used: float, curvature: float) -> float:
    """Return the requests on their way that make a kernel use the share `used`, 0..1, alone."""
    return used * (1.0 + curvature * used * used)


@either
def load(requests: float, curvature: float) -> float:
    """Return the load, 0..1, that so many requests make.

    >>> [round(load(n, 0.571), 3) for n in (0.1, outstanding(0.5, 0.571), 3.0)]
    [0.099, 0.5, 1.0]
    """
    if requests >= 1.0 + curvature:
        return 1.0
    guess = min(requests, 1.0)
    for _ in range(_STEPS):
        square = curvature * guess * guess
        guess -= (guess * (1.0 + square) - requests) / (1.0 + 3.0 * square)
    return min(guess, 1.0)


@either
def rate(used: float, others: float, curvature: float) -> float:
    """Return the rate, 0..1 of that alone, of a kernel that uses the share `used` alone, beside the others' requests.

    >>> round(1 / rate(0.6918, outstanding(0.6918, 0.571), 0.571), 3)
    1.384
    """
    total = outstanding(used, curvature) + others
    return min(1.0, (1.0 + curvature * used * used) * load(total, curvature) / total)
