"""Feeds `pbs`, `flux` and `lsf`: the scheduler's command is run, its answer read like a saved file.

[[sources]]
source = "pbs"
command = ["ssh", "login", "qstat"]     # default: qstat, flux or bjobs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from tachograph.catalog.chunks import Chunk, next_watermark
from tachograph.catalog.config import Configuration
from tachograph.sources.registry import FeedSettings, PollOutcome, Watermark
from tachograph.sources.schedulers.documents import DocumentReader
from tachograph.sources.schedulers.flux import read_flux
from tachograph.sources.schedulers.lsf import FIELDS, read_lsf
from tachograph.sources.schedulers.pbs import read_pbs
from tachograph.sources.slurm.commands import SiteProgram
from tachograph.sources.slurm.exports import AccountingReading, polled_parts
from tachograph.sources.slurm.records import RejectedBefore, SlurmCluster

# {source: (program, its arguments, reader of its answer)}
_COMMANDS: Mapping[str, tuple[str, tuple[str, ...], DocumentReader]] = {
    "pbs": ("qstat", ("-x", "-f", "-F", "json"), read_pbs),
    "flux": ("flux", ("jobs", "-A", "-a", "--json"), read_flux),
    "lsf": ("bjobs", ("-a", "-u", "all", "-json"), read_lsf),
}

_ENVIRONMENT: Mapping[str, str] = {"LSB_BJOBS_FORMAT": FIELDS}  # instead of bjobs -o: it has blanks


class SchedulerSettings(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of accounting that is not Slurm's."""

    every_s: float = 300.0
    command: tuple[str, ...] = ()
    timeout_s: float = 300.0


SETTINGS = SchedulerSettings


def connect(settings: SchedulerSettings, *, configuration: Configuration) -> SchedulerFeed:
    """Return the feed; nothing is run yet."""
    return SchedulerFeed(settings, SlurmCluster.of(configuration))


class SchedulerFeed:
    """Jobs that a scheduler remembers as a stream: a chunk per poll, of which only news count."""

    def __init__(self, settings: SchedulerSettings, cluster: SlurmCluster) -> None:
        program, self._arguments, self._reader = _COMMANDS[settings.source]
        words = settings.command or (program,)
        self.outcome = PollOutcome()
        self._program = SiteProgram(words, settings.timeout_s, _ENVIRONMENT)
        self._settings = settings
        self._cluster = cluster
        self._rejected_before = RejectedBefore()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield the jobs. Errors: InputError naming the command and the reason."""
        where, stream = self._program.name, self._settings.stream
        reading = self._reader(self._program.output(*self._arguments), where, self._cluster)
        reading.add_usage()
        rejected = self._rejected_before.new(reading.rejected)
        parts = polled_parts(reading, AccountingReading(rejected=rejected).rejects())
        mark = next_watermark(now, before=watermark(stream))
        source = self._settings.source
        yield Chunk(stream, source, where, parts, reading.rows_read, watermark=mark)

    def close(self) -> None:
        """Nothing is kept open."""
