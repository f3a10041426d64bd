"""What was told before: answers that overlap repeat the records that could not be read, each counts once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tachograph.schema import Reject

Rejected = tuple[int, str, str]  # place, reason, text


@dataclass(frozen=True, slots=True)
class Told:
    """Everything a feed has told since its process began."""

    _known: set[tuple[object, ...]] = field(default_factory=set)

    def first_time(self, *what: object) -> bool:
        """Whether this was not told before; from now on it was.

        >>> told = Told()
        >>> told.first_time("a", 1), told.first_time("a", 1)
        (True, False)
        """
        known = what in self._known
        self._known.add(what)
        return not known

    def new(self, rejected: Iterable[Rejected]) -> list[Rejected]:
        """Return the records that were not told before, wherever they stood in the answer."""
        return [(place, reason, text) for place, reason, text in rejected if self.first_time(reason, text)]


def counted_rejects(rejected: Iterable[Rejected]) -> tuple[Reject, ...]:
    """Return the rows given up, counted by reason, each with its first.

    >>> counted_rejects([(3, "bad_time", "x"), (5, "bad_time", "y")])
    (Reject(reason='bad_time', column=None, count=2, example='3: x'),)
    """
    shown: dict[str, list[str]] = {}
    for place, reason, text in rejected:
        shown.setdefault(reason, []).append(f"{place}: {text}"[:200])
    return tuple(Reject(reason, None, len(texts), texts[0]) for reason, texts in sorted(shown.items()))
