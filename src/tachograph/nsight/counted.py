"""What of a report was not used, counted by reason and column while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from tachograph.rejects import Reject

_LONGEST_EXAMPLE = 80  # characters


@dataclass(slots=True)
class Counted:
    """Rejects so far, each reason and column once, with the first example."""

    _counts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    _examples: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def add(self, reason: str, column: str | None, example: str) -> None:
        """Count one row (`column` None) or one value that was not used."""
        key = (reason, column if column is None else encodable(column))
        self._counts[key] = self._counts.get(key, 0) + 1
        if key not in self._examples:
            self._examples[key] = encodable(example.strip())[:_LONGEST_EXAMPLE]

    def rejects(self) -> tuple[Reject, ...]:
        """Return what was counted, in the order in which it was met."""
        return tuple(
            Reject(reason, column, count, self._examples[reason, column])
            for (reason, column), count in self._counts.items()
        )


def encodable(text: str) -> str:
    r"""Return `text` with bytes that are no text replaced by `?`, so that it can be written anywhere.

    >>> encodable("kernel\udca0")
    'kernel?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
