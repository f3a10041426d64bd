"""Which options of `ncu` collect a metric: what a report lacks is named with how to get it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric that no launch of a kernel has. `tells`: what it would tell; `options`: those of ncu that collect it."""

    metric: str
    tells: str
    options: str
