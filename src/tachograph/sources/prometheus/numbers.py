"""The numbers of a JSON array, read in one compiled pass: `[[1790000000.123,"0.95"],...]` and `[1,2.5,null]`.

A whole number below 2**53 and a power of ten up to 22 are exact in double precision, so their product or quotient is
rounded once (Clinger, "How to read floating point numbers accurately", PLDI 1990). For up to 18 digits the number is
taken as a sum of two doubles, and so is the product or quotient (Dekker, "A floating-point technique for extending the
available precision", 1971): its error, near 1e-32 of it, is far below the distance that a number written by a server,
the shortest that means its double, has from being rounded otherwise. Any other number is left to Python.
"""

from __future__ import annotations

import numpy as np

from tachograph.arrays import Bytes, Floats
from tachograph.compiled import compiled

_EXACT = 1 << 53
_SPLIT = 134217729.0  # 2**27 + 1: halves of 26 bits
_POWERS = np.array([10.0**power for power in range(23)])
_AROUND = b'[]" \t\r\n'


def numbers(text: bytes) -> Floats:
    """Return the numbers of a JSON array, nested ones one after the other; null is NaN, numbers in quotes are numbers.

    >>> numbers(b'[[1790000000.123,"0.95"],[1790000015,"NaN"]]').tolist()
    [1790000000.123, 0.95, 1790000015.0, nan]

    Errors: ValueError for anything else.
    """
    found = np.empty(text.count(b",") + 1)
    count = int(_scan(np.frombuffer(text, np.uint8), _POWERS, found))
    if count >= 0:
        return found[:count]
    written = text.translate(None, _AROUND).split(b",")
    return np.array([float("nan" if one == b"null" else one) for one in written if one])


@compiled
def _product_error(a: float, b: float, product: float) -> float:
    """What rounding took from a * b."""
    t = _SPLIT * a
    a_high = t - (t - a)
    t = _SPLIT * b
    b_high = t - (t - b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@compiled
def _scaled(mantissa: int, exponent: int, powers: Floats) -> float:
    """mantissa * 10**exponent, rounded once."""
    high = float(mantissa)
    low = float(mantissa - np.int64(high))
    if exponent >= 0:
        power = float(powers[exponent])
        product = high * power
        return (
            product
            if low == 0 and mantissa <= _EXACT
            else product + (_product_error(high, power, product) + low * power)
        )
    power = float(powers[-exponent])
    quotient = high / power
    if mantissa <= _EXACT:
        return quotient
    product = quotient * power
    rest = (high - product) - _product_error(quotient, power, product)
    return quotient + (rest + low) / power


@compiled
def _scan(text: Bytes, powers: Floats, found: Floats) -> int:
    """Fill `found`, return how many; -1 for what this reader leaves to another."""
    count = 0
    i = 0
    end = text.size
    while i < end:
        c = text[i]
        if c == 0x22 or c == 0x2C or c == 0x5B or c == 0x5D or c <= 0x20:  # " , [ ] and white space
            i += 1
            continue
        negative = c == 0x2D
        i += negative
        mantissa, digits, point = 0, 0, -1
        while i < end:
            c = text[i]
            if 0x30 <= c <= 0x39:
                mantissa = mantissa * 10 + (c - 0x30)
                digits += digits > 0 or c > 0x30
            elif c == 0x2E and point < 0:
                point = i
            else:
                break
            i += 1
        if point == i - 1 or text[i - 1] == 0x2D or digits > 18:  # no digit, or more than 64 bits hold
            return -1
        exponent = point + 1 - i if point >= 0 else 0
        if i < end and (text[i] | 0x20) == 0x65:  # e, E
            i += 1
            down = i < end and text[i] == 0x2D
            i += i < end and (text[i] == 0x2D or text[i] == 0x2B)
            written = 0
            while i < end and 0x30 <= text[i] <= 0x39 and written < 1000:
                written = written * 10 + (text[i] - 0x30)
                i += 1
            exponent += -written if down else written
        ended = i == end or text[i] == 0x22 or text[i] == 0x2C or text[i] == 0x5D or text[i] <= 0x20
        if not ended or exponent > 22 or exponent < -22:
            return -1
        value = _scaled(mantissa, exponent, powers)
        found[count] = -value if negative else value
        count += 1
    return count
