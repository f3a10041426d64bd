"""Units, times and durations: how outside values become the project's, and numbers become text.

Inside the project times are UTC, fractions run 0..1, and a missing value is null. `text` is the
only function that turns numbers into what people read, `printable` the one for what others wrote.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tachograph.catalog.errors import ConfigError, InputError, TachographError, UsageError

KI = 1024.0
MI = KI * KI
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_US = 86_400_000_000

# factor to the unit on the right; the left is what a producer writes
_FACTORS: dict[tuple[str, str], float] = {
    ("percent", "fraction"): 0.01,
    ("mJ", "J"): 1e-3,
    ("uJ", "J"): 1e-6,
    ("kJ", "J"): 1e3,
    ("MJ", "J"): 1e6,
    ("Wh", "J"): 3600.0,
    ("kWh", "J"): 3.6e6,
    ("jiffy", "s"): 0.01,  # USER_HZ, 100 on every Linux that runs these programs
    ("ms", "s"): 1e-3,
    ("us", "s"): 1e-6,
    ("ns", "s"): 1e-9,
    ("mW", "W"): 1e-3,
    ("kW", "W"): 1e3,
    ("MW", "W"): 1e6,
    ("KiB/s", "B/s"): KI,
    ("MiB/s", "B/s"): MI,
    ("GiB/s", "B/s"): KI**3,
    ("kB/s", "B/s"): 1e3,
    ("MB/s", "B/s"): 1e6,
    ("GB/s", "B/s"): 1e9,
    ("KiB", "B"): KI,
    ("MiB", "B"): MI,
    ("GiB", "B"): KI**3,
    ("kB", "B"): 1e3,
    ("MB", "B"): 1e6,
    ("GB", "B"): 1e9,
    ("B", "MiB"): 1 / MI,
    ("KiB", "MiB"): 1 / KI,
    ("GiB", "MiB"): KI,
    ("MB", "MiB"): 1e6 / MI,
    ("GB", "MiB"): 1e9 / MI,
    ("Hz", "MHz"): 1e-6,
    ("kHz", "MHz"): 1e-3,
    ("GHz", "MHz"): 1e3,
}

# That people write behind numbers.
UNITS = frozenset(unit for pair in _FACTORS for unit in pair) | {"C"}


def factor(given: str, wanted: str) -> float:
    """Return the factor that converts a value from unit `given` to unit `wanted`.

    >>> factor("percent", "fraction"), factor("W", "W")
    (0.01, 1.0)

    Errors: InputError for a pair that no factor connects.
    """
    if given == wanted:
        return 1.0
    try:
        return _FACTORS[given, wanted]
    except KeyError:
        convertible = ", ".join(sorted([a for a, b in _FACTORS if b == wanted] + [wanted]))
        raise InputError(
            f"cannot convert unit {given!r} to {wanted!r}", do=f"use one of: {convertible}"
        ) from None


def is_convertible(given: str, wanted: str) -> bool:
    """Return whether `factor` connects two units."""
    return given == wanted or (given, wanted) in _FACTORS


@cache
def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970.

    >>> microseconds(datetime(1970, 1, 2, tzinfo=UTC)) == DAY_US
    True
    """
    return (moment - EPOCH) // timedelta(microseconds=1)


def midnight(day: date) -> datetime:
    """Return the instant at which a day (UTC) begins.

    >>> midnight(date(2026, 1, 2)).isoformat()
    '2026-01-02T00:00:00+00:00'
    """
    return datetime.combine(day, time(), UTC)


# Files beside the zones, which differ between machines, and folders with the zones once more.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})
_OTHER_FORMS = ("posix/", "right/")


def zone(name: str) -> ZoneInfo:
    """Return the time zone called `name` (IANA name).

    Errors: ConfigError for an unknown name, and for a file of zoneinfo that is no IANA name, such
    as localtime: polars, which reads columns of times, does not know it.
    """
    try:
        if name in _NO_ZONES or name.startswith(_OTHER_FORMS):
            raise ZoneInfoNotFoundError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"unknown time zone {name!r}",
            do="use an IANA name such as Europe/Berlin, America/Los_Angeles or UTC",
        ) from None


def to_utc(local: datetime, zone_name: str, *, later: bool = False) -> datetime:
    """Return the UTC time of a wall-clock time.

    An hour that occurs twice (clocks go back) means its first occurrence unless `later`;
    one that does not exist (clocks go forward) is read with the offset before the change.

    >>> to_utc(datetime(2026, 7, 1, 12), "America/Los_Angeles").isoformat()
    '2026-07-01T19:00:00+00:00'
    """
    if local.tzinfo is not None:
        return local.astimezone(UTC)
    return local.replace(tzinfo=zone(zone_name), fold=int(later)).astimezone(UTC)


YEAR_S = 31_622_400.0  # of 366 days: no option means a longer time
LARGEST_COUNT = 1_000_000_000  # that an option may be given
_DURATION = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)(?:\.(\d+))?$")
_SPAN = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)$")
_SPAN_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def slurm_duration_s(written: str) -> float | None:
    """Return the seconds of Slurm's `[days-][hours:]minutes:seconds`, or None without any.

    >>> slurm_duration_s("3-06:16:53"), slurm_duration_s("00:05.250"), slurm_duration_s("UNLIMITED")
    (281813.0, 5.25, None)
    """
    match = _DURATION.match(written.strip())
    if not match:
        return None
    days, first, second, seconds, part = match.groups()
    hours, minutes = (first, second) if second is not None else (None, first)
    if days is not None and second is None and first is not None:  # days-hours:minutes
        hours, minutes, seconds = first, seconds, "0"
    whole = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds)
    return whole + (float(f"0.{part}") if part else 0.0)


def slurm_duration(seconds: float) -> str:
    """Return a duration as Slurm writes it: [days-]hours:minutes:seconds.

    >>> slurm_duration(5400.0), slurm_duration(93600.0)
    ('01:30:00', '1-02:00:00')
    """
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02d}:{minutes:02d}:{seconds_left:02d}"


def span_s(written: str) -> float:
    """Return the seconds of a span such as `30s`, `5m`, `2h`, `1d`.

    >>> span_s("5m")
    300.0

    Errors: InputError when it is not one.
    """
    match = _SPAN.match(written.strip())
    if not match:
        raise InputError(
            f"invalid time span: {written!r}",
            do="write a number and s, m, h, d or w, for example 30m",
        )
    return float(match[1]) * _SPAN_S[match[2]]


_LEAST_PERCENT = 10  # below it either may be meant: CPUs of a job can be used 150 %


def refuse_unclear_fraction(
    value: float,
    *,
    name: str,
    error: type[TachographError],
    where: str = "",
    percent_sign: bool = True,
    quote: str = "",
) -> None:
    """Refuse a bare number that cannot be a fraction: 10 may mean 10 %, or 1000 %.

    `name`: what has the value; `percent_sign`: it may be written as 10%, too, in a file within
    `quote`.

    >>> refuse_unclear_fraction(10, name="gpu_util_mean", error=InputError)
    Traceback (most recent call last):
    ...
    tachograph.catalog.errors.InputError: gpu_util_mean is a fraction: 10 % or 1000 %?; write 10% or 0.1

    Errors: `error` for a number above 1, and for one below 0.
    """
    if value < 0:
        raise error(f"{name} is {value:.10g}", where=where, do="write a fraction from 0 on")
    if value <= 1:
        return
    do = f"write {quote}{value:.10g}%{quote} or {value / 100:.10g}"
    if not percent_sign:
        do = f"write {value / 100:.10g}"
    elif value < _LEAST_PERCENT:
        do += f", or {quote}{value * 100:.10g}%{quote}"
    raise error(
        f"{name} is a fraction: {value:.10g} % or {value * 100:.10g} %?", where=where, do=do
    )


def real_number(least: float, most: float) -> Callable[[str], float]:
    """Return the type of an option whose value is a number within limits, as argparse wants it.

    >>> real_number(0.1, 3600)("0.5")
    0.5
    """

    def read(written: str) -> float:
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            limits = f"from {least:,.10g} to {most:,.10g}"
            raise ArgumentTypeError(f"{written[:40]!r} is not a number {limits}")
        return value

    return read


def whole_number(least: int, most: int = LARGEST_COUNT) -> Callable[[str], int]:
    """Return the type of an option whose value is a whole number within limits.

    >>> whole_number(1)("7")
    7
    """
    within = real_number(least, most)

    def read(written: str) -> int:
        value = within(written)
        if value != round(value):
            raise ArgumentTypeError(f"{written[:40]!r} is not a whole number")
        return round(value)

    return read


_DAYS_AGO = {"today": 0, "yesterday": 1}


def is_span(written: str) -> bool:
    """Return whether a text is a span before now, as in `12h`."""
    return bool(_SPAN.match(written.strip()))


def parse_time(written: str, *, now: datetime, zone_name: str = "UTC") -> datetime:
    """Return the UTC time of a text: ISO date or time in the site's zone, or a span before `now`.

    `today` and `yesterday` are the midnights with which these days begin.

    >>> parse_time("2h", now=datetime(2026, 1, 1, 12, tzinfo=UTC)).isoformat()
    '2026-01-01T10:00:00+00:00'
    >>> parse_time("yesterday", now=datetime(2026, 1, 1, 12, tzinfo=UTC)).isoformat()
    '2025-12-31T00:00:00+00:00'

    Errors: UsageError when it is none of these, or too far away.
    """
    days_ago = _DAYS_AGO.get(written.strip().lower())
    try:
        if days_ago is not None:
            day = now.astimezone(zone(zone_name)).date() - timedelta(days=days_ago)
            return to_utc(datetime.combine(day, time()), zone_name)
        if is_span(written):
            return now - timedelta(seconds=span_s(written))
        return to_utc(datetime.fromisoformat(written), zone_name)
    except (ValueError, OverflowError):  # also a time before the year 1 or behind 9999
        raise UsageError(
            f"invalid time: {written!r}",
            do="write 2026-04-23, 2026-04-23T10:30, yesterday, or a span before now such as 12h",
        ) from None


_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def text(value: float | None, unit: str = "") -> str:
    """Return a quantity as people read it; an absent one is a dash.

    Units: fraction (as percent), s, J, gCO2, W, MiB, B, B/s, C, MHz, count, ratio, times, h; others are
    appended to the number.

    >>> text(0.423, "fraction"), text(5400, "s"), text(7.2e6, "J"), text(None, "W"), text(3.2e9, "B/s")
    ('42 %', '1 h 30 min', '2.00 kWh', '–', '3.20 GB/s')
    >>> text(1.1, "times"), text(15.84, "times"), text(223.2, "times")
    ('1.10x', '15.8x', '223x')
    """
    if value is None or value != value:
        return "–"
    match unit:
        case "fraction":
            percent = value * 100
            if 0 < percent < 0.01:
                return "<0.01 %"
            return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.2g} %"
        case "s":
            return _duration_text(value)
        case "J":
            if value >= 3.6e5:
                return f"{value / 3.6e6:.2f} kWh"
            return f"{value / 1e3:.1f} kJ" if value >= 1e3 else f"{value:.0f} J"
        case "gCO2":
            return f"{value / 1e3:,.1f} kg CO2" if value >= 1e3 else f"{value:.0f} g CO2"
        case "MiB":
            return f"{value / KI:.1f} GiB" if value >= KI else f"{value:.0f} MiB"
        case "B" | "B/s":
            for size, prefix in _SI:
                if value >= size:
                    return f"{value / size:.2f} {prefix}{unit}"
            return f"{value:.0f} {unit}"
        case "C":
            return f"{value:.0f} °C"
        case "count":
            return f"{value:,.0f}"
        case "ratio":
            return f"{value:.2f}"
        case "times":  # three digits: 9.996 is 10.0x, not 10.00x
            if value < 9.995:
                return f"{value:.2f}x"
            return f"{value:.1f}x" if value < 99.95 else f"{value:.0f}x"
        case "W" | "MHz":
            return f"{value:,.0f} {unit}"
        case "h":
            return f"{value:,.1f} h" if value >= 0.1 else f"{value:.2g} h"
        case _:
            return f"{value:,.4g} {unit}".rstrip()


def shown_s(begin: datetime, end: datetime) -> float:
    """Return the seconds between two times as displayed, rounded to minutes.

    What takes less than two minutes keeps its seconds.

    >>> shown_s(datetime(2026, 4, 23, 2, 58, 10), datetime(2026, 4, 23, 4, 19, 55)) / 60
    81.0
    """
    exact = (end - begin).total_seconds()
    if exact < 120:
        return exact
    return (
        end.replace(second=0, microsecond=0) - begin.replace(second=0, microsecond=0)
    ).total_seconds()


def _duration_text(seconds: float) -> str:
    if seconds < 0:
        return f"-{_duration_text(-seconds)}"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s" if seconds_left else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def column_texts(values: Sequence[float | None], unit: str) -> tuple[str, list[str]]:
    """Return quantities in the unit of the largest, and that unit for the column title.

    The unit is "" if there is none, or if it is in each text.

    >>> column_texts([7.2e6, 1.08e5, None], "J"), column_texts([59.0, 20040.0], "s")
    (('kWh', ['2.00', '0.03', '–']), ('', ['0:00:59', '5:34:00']))
    >>> column_texts([512.0, 20480.0], "MiB"), column_texts([0.42, 0.0], "fraction")
    (('GiB', ['0.5', '20.0']), ('', ['42 %', '0 %']))
    """
    numbers = [value for value in values if value is not None and value == value]
    largest = max(map(abs, numbers), default=0.0)
    if unit == "s" and largest >= 120:
        return "", [text(value) if value is None else _clock(value) for value in values]
    for least, size, scaled_unit, digits in _SCALES.get(unit, ()):
        if largest >= least:
            return scaled_unit, [_scaled(value, size, digits) for value in values]
    return "", [text(value, unit) for value in values]


# of a column by its largest value: (from so much on, size of the unit, unit, digits behind the
# point)
_SCALES: Mapping[str, Sequence[tuple[float, float, str, int]]] = {
    "J": ((3.6e5, 3.6e6, "kWh", 2), (1e3, 1e3, "kJ", 1), (0.0, 1.0, "J", 0)),
    "MiB": ((KI, KI, "GiB", 1), (0.0, 1.0, "MiB", 0)),
    "s": ((0.0, 1.0, "s", 1),),
    "h": ((0.0, 1.0, "h", 1),),
    "W": ((0.0, 1.0, "W", 0),),
    "MHz": ((0.0, 1.0, "MHz", 0),),
    "C": ((0.0, 1.0, "°C", 0),),
    **{
        unit: (*((size, size, f"{prefix}{unit}", 2) for size, prefix in _SI), (0.0, 1.0, unit, 0))
        for unit in ("B", "B/s")
    },
}


def _scaled(value: float | None, size: float, digits: int) -> str:
    """Return a quantity in units of `size` with `digits` decimals; small nonzero numbers become
    "<0.01" instead of 0.

    >>> _scaled(0.001, 1, 2), _scaled(0.0, 1, 2), _scaled(2469.0, 2, 1)
    ('<0.01', '0.00', '1,234.5')
    """
    if value is None or value != value:
        return text(None)
    value /= size
    least = 10.0**-digits
    return f"<{least:.{digits}f}" if 0 < value < least / 2 else f"{value:,.{digits}f}"


def _clock(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}"


def plural(count: float, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "GPU"), plural(4, "GPU")
    ('1 GPU', '4 GPUs')
    """
    return f"{count:,.0f} {noun}" if count == 1 else f"{count:,.0f} {noun}s"


def capitalized(words: str) -> str:
    """Return words with a capital at the begin; the others stay as they are, and identifiers.

    >>> capitalized("the SMs"), capitalized("gpu_util: above 1"), capitalized("")
    ('The SMs', 'gpu_util: above 1', '')
    """
    return words if "_" in words.partition(" ")[0] else f"{words[:1].upper()}{words[1:]}"


_WHOLE_HOURS = 100_000  # from here on tenths are not shown


def gpu_hours_text(hours: float | None) -> str:
    """Return GPU-hours in words.

    >>> gpu_hours_text(95.04), gpu_hours_text(None)
    ('95.0 GPU-hours', '– GPU-hours')
    >>> gpu_hours_text(-3604.2), gpu_hours_text(11_146_674.9)
    ('-3,604.2 GPU-hours', '11,146,675 GPU-hours')
    """
    if hours is not None and abs(hours) >= _WHOLE_HOURS:
        return f"{hours:,.0f} GPU-hours"
    sign = "-" if hours is not None and hours < 0 else ""
    return f"{sign}{text(None if hours is None else abs(hours), 'h').removesuffix(' h')} GPU-hours"


# Characters of a text that others wrote; C++ writes kernel names of two thousand.
MOST_SHOWN = 4_000
# printable by the Unicode standard, and drawn as nothing: fillers of Hangul, the empty cell of
# Braille
_UNSEEN = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")
# in JSON what is left of those that `printable` writes out; JSON itself escapes those below U+0020
_NOT_IN_JSON = re.compile(r"[^\x00-\x7e]")


def printable(value: str, *, most: int = MOST_SHOWN) -> str:
    r"""Return text of unknown origin as one line without control or invisible characters.

    Written out (`\x1b`, `\u202e`) is every character that is not printable by the Unicode standard:
    controls (ANSI, OSC, C1, line ends, tabs, NUL), marks of direction, of no width or unassigned,
    halves of surrogate pairs, spaces other than the one of ASCII; and letters without a shape. Of
    more than `most` characters the first are shown, and how many more there are. A backslash stays
    as it is: what is shown is not meant to be read back.

    >>> printable("train\x1b[2J"), printable("größe [a-b]"), printable("a\u202eb\ud800")
    ('train\\x1b[2J', 'größe [a-b]', 'a\\u202eb\\ud800')
    >>> printable("x" * 90, most=50)
    'xxxxxxxxxxxxxxxxxxxx… (70 more characters)'
    """
    if len(value) <= most and value.isascii() and value.isprintable():
        return value
    shown = _written_out(value[: most + 1])
    if len(shown) <= most and len(value) <= most:
        return shown
    begin, length = _longest_begin(value, most - _ROOM_FOR_COUNT)
    return f"{begin}… ({len(value) - length:,} more characters)"


def printable_lines(value: str) -> str:
    r"""Return multi-line text with every line as `printable`; only the program breaks lines.

    >>> printable_lines("job 1\n  name\ta\x1b[2J\n")
    'job 1\n  name\\ta\\x1b[2J\n'
    """
    parts = (part.split(_GLUE) for part in value.split("\n"))
    return "\n".join(_GLUE.join(map(_written_out, line)) for line in parts)


def escaped_json(document: str) -> str:
    r"""Return an equal JSON document with characters escaped that `printable` escapes.

    >>> escaped_json('{"name": "a\x9b\u202e\U000e0041ö"}')
    '{"name": "a\\u009b\\u202e\\udb40\\udc41ö"}'
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return _NOT_IN_JSON.sub(_json_escape, document)


# how a formula of a spreadsheet begins: the last four are the first ones in full width. Of a text
# that begins with quotes and one of them it is kept apart by one more quote
FORMULA = r"'*[=+\-@\uFF1D\uFF0B\uFF0D\uFF20]"
_FORMULA = re.compile(FORMULA)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def harmless_cell(text: str) -> str:
    r"""Return a text as a CSV cell: printable, and quoted if it would be a formula.

    Source: OWASP, "CSV Injection"; numbers stay numbers.

    >>> [harmless_cell(text) for text in ("=1+1", "'=1", "-5.2e3", "-x", "a=1", "\tb", "c\x1b[2J")]
    ["'=1+1", "''=1", '-5.2e3', "'-x", 'a=1', '\\tb', 'c\\x1b[2J']
    """
    shown = printable(text, most=10 * len(text))  # of each character at most ten: \U000e0041
    return f"'{shown}" if _FORMULA.match(shown) and not _NUMBER.fullmatch(shown) else shown


_GLUE = "\N{NO-BREAK SPACE}"
_ROOM_FOR_COUNT = 30  # characters of "… (100,000,000 more characters)", about


def _is_shown(value: str) -> bool:
    return value.isprintable() and (value.isascii() or not _UNSEEN.search(value))


def _written_out(value: str) -> str:
    return value if _is_shown(value) else "".join(map(_visible, value))


def _visible(letter: str) -> str:
    return letter if _is_shown(letter) else letter.encode("unicode_escape").decode()


def _longest_begin(value: str, room: int) -> tuple[str, int]:
    """Return as many leading characters as fit when escaped, and their number."""
    letters: list[str] = []
    for count, letter in enumerate(value):
        shown = _visible(letter)
        room -= len(shown)
        if room < 0:
            return "".join(letters), count
        letters.append(shown)
    return "".join(letters), len(value)


def _json_escape(match: re.Match[str]) -> str:
    letter = match[0]
    if _is_shown(letter):
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(
        f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2)
    )
