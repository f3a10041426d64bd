"""Remarks about problems on stderr: each once, repeats counted, rate limited."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

REPEAT_S = 3600.0  # a lasting problem is reported again
MOST_LINES = 20  # of one source or step within REPEAT_S
_LONGEST = 500  # characters of a line
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
_KINDS = 100  # different problems that are remembered of one source or step


@dataclass(slots=True)
class _Repeats:
    """A repeated problem: time of its report, repetitions since."""

    reported: float
    since: int = 0


@dataclass(slots=True)
class _Subject:
    """Reported problems of one source or step."""

    problems: dict[str, _Repeats] = field(default_factory=dict)
    lines: deque[float] = field(default_factory=deque)  # when
    left_out: int = 0


class ProblemRemarks:
    """Passes on remarks worth a line; problems that differ only in numbers are the same.

    >>> lines = []
    >>> remarks = ProblemRemarks(lines.append)
    >>> for message in ("line 7 is none", "line 9 is none", "refused"):
    ...     remarks.problem("sacct", message)
    >>> remarks.works("sacct")
    >>> lines
    ['sacct: line 7 is none', 'sacct: refused', 'sacct: works again']
    """

    def __init__(
        self, remark: Callable[[str], None], *, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._remark = remark
        self._steady = steady
        self._subjects: dict[str, _Subject] = {}

    def problem(self, name: str, message: str, *, detail: str = "") -> None:
        """Report a problem, `detail` on further lines, if new or lasting for REPEAT_S."""
        subject = self._subjects.setdefault(name, _Subject())
        now, kind = self._steady(), _NUMBER.sub("#", message)[:_LONGEST]
        repeats = subject.problems.get(kind)
        if repeats is not None and now - repeats.reported < REPEAT_S:
            repeats.since += 1
            return
        times = (
            f" ({repeats.since + 1:,} times since the line before)"
            if repeats is not None and repeats.since
            else ""
        )
        if self._say(name, f"{_short(message)}{times}", detail=detail):
            if repeats is None and len(subject.problems) >= _KINDS:
                subject.problems.clear()
            subject.problems[kind] = _Repeats(now)
        elif repeats is not None:
            repeats.since += 1

    def works(self, name: str) -> None:
        """Report the end of problems, if any was reported."""
        subject = self._subjects.get(name)
        if subject is not None and subject.problems:
            subject.problems.clear()
            self._say(name, "works again")

    def _say(self, name: str, words: str, *, detail: str = "") -> bool:
        """Hand over a line; whether it is not one too many."""
        subject, now = self._subjects.setdefault(name, _Subject()), self._steady()
        while subject.lines and now - subject.lines[0] >= REPEAT_S:
            subject.lines.popleft()
        if len(subject.lines) >= MOST_LINES:
            subject.left_out += 1
            return False
        subject.lines.append(now)
        left_out = f" ({subject.left_out:,} lines were left out before)" if subject.left_out else ""
        subject.left_out = 0
        self._remark(f"{name}: {words}{left_out}" + (f"\n{detail.rstrip()}" if detail else ""))
        return True


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
