"""Feed and source `slurm-live`: GPUs of running jobs, polled from Slurm's controller.

[[sources]] source = "slurm-live" every_s = 60 command = ["ssh", "login", "squeue"]     # default:
squeue; scontrol is searched beside it # or:  how = "rest"; url = "http://slurm:6820"; user =
"tachograph"; token_file = "/etc/tachograph/slurm.token"

Slurm has the indices only while a job runs: a job that starts and ends between two polls is missed,
and keeps what the accounting records. Rows of `allocations` (`live_index`), and of `jobs` where the
answer is JSON.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast

from tachograph.catalog.chunks import Chunk, ChunkPart, next_watermark
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.sources.allocation_map import AllocationMapReading, read_map_content
from tachograph.sources.registry import PollOutcome, Watermark, entry_errors, settings_in
from tachograph.sources.slurm.commands import check_how
from tachograph.sources.slurm.controller import (
    NO_JOBS,
    ControllerAccess,
    ControllerCommands,
    ControllerConfig,
    polled_at,
    running_rows,
)
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.records import RejectedBefore, SlurmCluster, counted_rejects
from tachograph.sources.slurm.restd import Slurmrestd, SlurmrestdAccess

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration

SLURM_LIVE = "slurm-live"
SUFFIXES: tuple[str, ...] = ()
# How often scontrol is polled for the controller's clock, where squeue does not report it.
CONFIG_EVERY_S = 600.0


class SlurmLiveSettings(SlurmrestdAccess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of running jobs."""

    how: Literal["command", "rest"] = "command"
    command: tuple[str, ...] = ("squeue",)
    format: Literal["auto", "json", "text"] = "auto"
    timeout_s: float = 60.0


SETTINGS = SlurmLiveSettings


def connect(settings: SlurmLiveSettings, *, configuration: Configuration) -> RunningJobsFeed:
    """Return the feed; nothing is requested yet. Errors: ConfigError naming the key."""
    with entry_errors(settings.title):
        check_how(settings.how, url=settings.url, command=settings.command)
        return RunningJobsFeed(
            controller_of(settings), settings.stream, SlurmCluster.of(configuration)
        )


def controller_of(settings: SlurmLiveSettings) -> ControllerAccess:
    """Return the server or command to request from; nothing is requested yet."""
    if settings.how == "rest":
        return Slurmrestd(settings)
    return ControllerCommands.of(
        settings.command, timeout_s=settings.timeout_s, form=settings.format
    )


class RunningJobsFeed:
    """Running jobs as a stream: a chunk per poll."""

    def __init__(
        self,
        controller: ControllerAccess,
        stream: str,
        cluster: SlurmCluster,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.outcome = PollOutcome()
        self._controller = controller
        self._stream = stream
        self._cluster = cluster
        self._clock = clock
        self._rejected_before = RejectedBefore()
        self._config_at = float("-inf")
        self._config_skew_s: float | None = None

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield the running jobs. Errors: InputError naming URL and reason."""
        self.outcome = PollOutcome()
        chunk = self.fetch(self._stream)
        yield replace(chunk, watermark=next_watermark(now, before=watermark(self._stream)))

    def fetch(self, name: str) -> Chunk:
        """Return the running jobs as chunk `name`. Errors: as `poll`."""
        requested = self._clock()
        content = self._controller.fetch_jobs()
        middle = (requested + self._clock()) / 2
        where = self._controller.where
        if content.startswith(NO_JOBS):
            return Chunk(name, SLURM_LIVE, where, (), 0)
        self._look_at_config(named=content[:1] == b"{")
        # Of a call per job.
        reading = read_map_content(content, where=where, cluster=self._cluster, trusted=True)
        self._note_skew(reading, middle)
        before = self._rejected_before
        unplaced = counted_rejects(before.new(reading.unplaced), "gpu")
        rejects = (*counted_rejects(before.new(reading.rejected)), *unplaced)
        running = running_rows(reading.document, self._cluster)
        jobs = [{**row, "saved": False} for row in running]
        parts = (
            ChunkPart("jobs", frame_of(jobs, JOBS), overlaps=True),
            ChunkPart(
                "allocations",
                frame_of(reading.allocations, ALLOCATIONS),
                rejects=rejects,
                overlaps=True,
                rows_used=reading.rows_used,
            ),
        )
        return Chunk(name, SLURM_LIVE, where, parts, reading.rows_read, passed=reading.passed)

    def close(self) -> None:
        """Close connections."""
        self._controller.close()

    def _look_at_config(self, *, named: bool) -> None:
        """Request cluster name and clock at times: text answers lack them."""
        requested = self._clock()
        if (
            not isinstance(self._controller, ControllerCommands)
            or requested - self._config_at < CONFIG_EVERY_S
        ):
            return
        try:
            config = self._controller.config()
        except InputError:  # the jobs were read: they count all the same
            config = ControllerConfig(None, None)
        self._config_at = requested
        self._config_skew_s = (
            None if config.clock is None else config.clock + 0.5 - (requested + self._clock()) / 2
        )
        if not named and config.cluster:
            self._cluster = replace(self._cluster, name=self._cluster.name or config.cluster)

    def _note_skew(self, reading: AllocationMapReading, middle: float) -> None:
        """Record how far the controller's clock is ahead, to a second, its resolution."""
        answered_at = polled_at(reading.document)
        skew = self._config_skew_s if answered_at is None else answered_at + 0.5 - middle
        if skew is not None:
            self.outcome.skew_s["slurmctld"] = skew


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options: polls `[[sources]]`, else `squeue`."""


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield the running jobs once. Errors: InputError naming URL and reason."""
    for settings in settings_in(configuration, SLURM_LIVE):
        with closing(
            connect(cast("SlurmLiveSettings", settings), configuration=configuration)
        ) as feed:
            yield feed.fetch(f"{settings.stream}-once:{now.isoformat()}")
