"""What `tachograph status` says: the status file, the lock and the lake put together. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from tachograph.collect.lock import Holder, Lock
from tachograph.collect.state import SourceStatus, Status, StepStatus, is_stale, read_status
from tachograph.ingest import watermark
from tachograph.lake import Lake
from tachograph.sources.feeds import FeedSettings


@dataclass(frozen=True, slots=True)
class Overview:
    """How the collecting goes. `holder`: who collects now; `status`: what was written last; None where there is none.

    `sources`: with the watermarks of the lake, which may be newer than the file.
    """

    lake: str
    now: datetime
    holder: Holder | None
    status: Status | None
    sources: tuple[SourceStatus, ...]
    steps: Mapping[str, StepStatus]

    @property
    def hangs(self) -> bool:
        """A process holds the lock and has not written its status for a while."""
        return self.holder is not None and self.status is not None and is_stale(self.status, self.now)

    @property
    def is_healthy(self) -> bool:
        """No source is late or failing, the last analysis and compaction worked, no process hangs."""
        troubles = [source.condition(self.now) != "ok" for source in self.sources]
        return not any(troubles) and not self.hangs and not any(step.is_failing for step in self.steps.values())

    def as_json(self) -> dict[str, Any]:
        """Return all of it, for programs; null is what is not known."""
        return {
            "healthy": self.is_healthy,
            "running": self.holder is not None,
            "hangs": self.hangs,
            "pid": self.holder.pid if self.holder else None,
            "host": self.holder.host if self.holder else None,
            "lake": self.lake,
            "started": self.status.started if self.status else None,
            "updated": self.status.updated if self.status else None,
            "stopped": self.status.stopped if self.status else None,
            "sources": [
                msgspec.to_builtins(source, builtin_types=(datetime,))
                | {"condition": source.condition(self.now), "lag_s": source.lag_s(self.now), "skewed": source.skewed()}
                for source in self.sources
            ],
            "steps": {
                name: msgspec.to_builtins(step, builtin_types=(datetime,)) | {"failing": step.is_failing}
                for name, step in self.steps.items()
            },
        }


def overview(lake: str, folder: Path, configured: Sequence[FeedSettings], *, now: datetime) -> Overview:
    """Return how the collecting into `lake` goes; `configured` are the sources of the configuration.

    Errors: LakeError when there is neither a lake nor a source, or it may not be read.
    """
    status = read_status(folder)
    known = dict(status.sources) if status else {}
    streams = {settings.title: settings.stream for settings in configured}
    opened = Lake(lake) if status or configured else Lake.open(lake)
    sources = []
    for settings in configured:
        known.setdefault(settings.title, SourceStatus(settings.title, settings.every_s))
    for name in dict.fromkeys([*streams, *known]):
        source = known[name]
        source.watermarks |= dict(_watermarks(opened, {streams.get(name, name), *source.watermarks}))
        sources.append(source)
    return Overview(lake, now, Lock(folder).holder(), status, tuple(sources), status.steps if status else {})


def _watermarks(lake: Lake, streams: Iterable[str]) -> Iterator[tuple[str, datetime]]:
    for stream in streams:
        until = watermark(lake, stream)
        if until is not None:
            yield stream, until
