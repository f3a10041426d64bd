"""Growing pauses between attempts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryDelay:
    """Pause before another attempt: twice as long after each failure, `longest_s` at most.

    due: when the next attempt is made, on the clock of `failed`.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    tries: int = 0
    due: float = 0.0

    def failed(self, now: float) -> None:
        """Wait longer."""
        self.due = now + min(self.longest_s, self.first_s * 2.0 ** min(self.tries, 10))
        self.tries += 1
