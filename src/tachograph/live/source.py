"""What every live source is: asked for a snapshot again and again. One is added by one file and a line in `choose`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tachograph.live.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class About:
    """What people are told of a source, in one line, and what it cannot see.

    name: dcgm-exporter, dmon, prometheus, nvml, recording, simulated. sentence: which GPUs of whom, such as "NVML with
    GPM, 8 GPUs of this node". refresh_s: so often its values can be new. blind: {counter that it does not tell: how to
    enable it, "" where that cannot be done}.
    """

    name: str
    sentence: str
    refresh_s: float = 1.0
    blind: Mapping[str, str] = field(default_factory=dict)


class LiveSource(Protocol):
    """Whatever tells how GPUs are now. Used by one thread at a time."""

    @property
    def about(self) -> About:
        """What it is, as far as is known yet; more may be known after the first snapshot."""
        ...

    def read(self) -> Snapshot:
        """Return the newest snapshot.

        What may mend by itself (a host that does not answer, a GPU that is lost, a program that ended and is started
        anew) is told in `problems`, and tried again at the next call; GPUs that told nothing stay, with NaN.
        Takes a few seconds at most. Errors: those of the project, for what a user must change first.
        """
        ...

    def close(self) -> None:
        """Let go of everything; may be called twice."""
        ...


@runtime_checkable
class Plays(Protocol):
    """A source that is a recording. speed: so many times as fast as it was recorded."""

    speed: float
    paused: bool


@runtime_checkable
class Replay(LiveSource, Plays, Protocol):
    """A recording that can be moved to where something is to be seen."""

    @property
    def start(self) -> float:
        """When its first sample was measured (seconds since 1970)."""
        ...

    @property
    def end(self) -> float:
        """When its last sample was measured."""
        ...

    def seek(self, t: float) -> None:
        """Go on from `t` (seconds since 1970), or from the end of the recording that is closer."""
        ...

    def to_first(self, job: str) -> None:
        """Go on from where a job began; from where it is now, if none of this id is known."""
        ...

    def to_last(self, job: str | None = None) -> None:
        """Stand still at the last instant at which GPUs, of a job where one is named, told something."""
        ...


@contextmanager
def closed_on_failure(close: Callable[[], None]) -> Iterator[None]:
    """Call `close` where the block raises anything, an interrupt too; a source that is handed on stays open."""
    with ExitStack() as stack:
        stack.callback(close)
        yield
        stack.pop_all()
