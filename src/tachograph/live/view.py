"""All that a screen shows at one moment: the snapshot, what was judged of it, what came before, what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tachograph.arrays import Bytes, Flags, Floats
from tachograph.live.history import History
from tachograph.live.snapshot import Gpu, Snapshot
from tachograph.live.source import About
from tachograph.workload.classes import CLASSES, Bottleneck, bottleneck
from tachograph.workload.health import STATES
from tachograph.workload.settings import Settings


class EventKind(StrEnum):
    """What may happen to a GPU, or to the source."""

    HEALTH = "health"
    CLASS = "class"
    XID = "xid"
    THROTTLE = "throttle"
    LOST = "lost"  # it no longer tells anything, or is there again
    JOB = "job"  # another job holds it
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that changed. gpu: None for what concerns the source. text: a whole sentence. alarm: worth a bell."""

    t: float
    kind: EventKind
    gpu: Gpu | None
    text: str
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """One row per GPU, in the order of `snapshot.gpus`.

    labels, raw: places in CLASSES, smoothed and of this reading alone. real: real utilisation 0..1, NaN unknown.
    health: places in STATES. told: False of a GPU that told nothing now. stale_s: age of its values, NaN where never.
    events: oldest first, no more than are kept. settings: by which it was judged. means: of counters over the window
    of the label, NaN missing. replays: new ones that are still visible, NaN unknown; None where nobody counted them.
    """

    about: About
    snapshot: Snapshot
    labels: Bytes
    raw: Bytes
    real: Floats
    health: Bytes
    told: Flags
    stale_s: Floats
    history: History
    events: tuple[Event, ...]
    settings: Settings = field(default_factory=Settings)
    means: Mapping[str, Floats] = field(default_factory=dict)
    replays: Floats | None = None

    def label(self, row: int) -> str:
        """The class of a GPU, as shown."""
        return CLASSES[int(self.labels[row])]

    def bottleneck(self, row: int) -> Bottleneck:
        """What limits a GPU."""
        return bottleneck(self.label(row))

    def state(self, row: int) -> str:
        """The health of a GPU."""
        return STATES[int(self.health[row])]
