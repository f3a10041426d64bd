"""Sources: for `tachograph ingest` (SOURCES), and for `collect` (FEEDS).

Their modules are imported when they are used. `[[sources]]` of the configuration, checked and
connected:

[[sources]]
source = "prometheus"     # one of FEEDS
name = "main"             # of its watermarks and its health
every_s = 60
url = "https://prometheus.example.org"
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec

from tachograph.catalog.doors import added_entries, find_entry
from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.catalog.suggestions import did_you_mean, explain_misfit
from tachograph.catalog.units import parse_time

if TYPE_CHECKING:
    from tachograph.catalog.chunks import Chunk
    from tachograph.catalog.config import Configuration


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A source: name, module, one line of help.

    A module that begins with a dot lies in `tachograph.sources`; installed packages name theirs
    whole.
    """

    name: str
    module: str
    sentence: str


SOURCES: tuple[SourceEntry, ...] = (
    SourceEntry(
        "ldms", ".ldms", "GPU samples recorded by LDMS: Parquet, CSV, NERSC's JSON exports"
    ),
    SourceEntry(
        "table",
        ".table",
        "any CSV, Parquet or JSON by a mapping of its columns; --suggest proposes one",
    ),
    SourceEntry(
        "prometheus",
        ".prometheus",
        "what Prometheus, Thanos, Mimir or VictoriaMetrics keep; answers saved as JSON",
    ),
    SourceEntry(
        "dcgm-exporter",
        ".dcgm_exporter",
        "GPU and node samples of exporters: saved pages, or polled with --url",
    ),
    SourceEntry(
        "nvidia-smi",
        ".nvidia_smi",
        "output of nvidia-smi: --query-gpu with and without a header, and dmon",
    ),
    SourceEntry(
        "gpu-tools",
        ".gpu_tools",
        "files of dcgmi dmon, amd-smi, rocm-smi, gpustat, KempnerPulse, wandb, Telegraf",
    ),
    SourceEntry(
        "kernel-log", ".kernel_log", "XIDs in the kernel log: journalctl -k -o json (untested)"
    ),
    SourceEntry("sacct", ".sacct", "Slurm accounting: sacct as text or JSON, NERSC's job records"),
    SourceEntry(
        "pbs", ".schedulers.pbs", "PBS accounting: qstat -f -F json, accounting logs (untested)"
    ),
    SourceEntry("flux", ".schedulers.flux", "Flux accounting: flux jobs --json (untested)"),
    SourceEntry("lsf", ".schedulers.lsf", "LSF accounting: bjobs -json (untested)"),
    SourceEntry(
        "kubernetes",
        ".kubernetes",
        "workloads of Kubernetes that hold GPUs: the API server, kubectl get pods -A -o json",
    ),
    SourceEntry(
        "allocation-map",
        ".allocation_map",
        "which GPUs a job held: CSV, prolog/epilog logs, scontrol, squeue",
    ),
    SourceEntry(
        "recording",
        ".recording",
        "what `tachograph record` wrote: folders of tables, and spools cut off",
    ),
    SourceEntry(
        "clustercockpit",
        ".clustercockpit",
        "job archives of ClusterCockpit: jobs, their GPUs and series (untested at a site)",
    ),
    SourceEntry(
        "slurm-live",
        ".slurm_live",
        "which GPUs jobs hold right now: one poll of squeue, scontrol, slurmrestd",
    ),
    SourceEntry(
        "slurm-nodes",
        ".slurm_nodes",
        "states of nodes, reservations, node events, jobs that wait: where free GPUs were",
    ),
)


def find_source(name: str) -> SourceEntry:
    """Return the source called `name`, of the project or of an installed package.

    Errors: UsageError naming the closest one.
    """
    source = find_entry("sources", SourceEntry, name, SOURCES)
    if source is not None:
        return source
    names = [entry.name for entry in SOURCES]
    do = did_you_mean(name, names, otherwise=f"use one of: {', '.join(names)}")
    raise UsageError(f"unknown source '{name}'", do=do)


class SourceModule(Protocol):
    """Interface of a source's module. SUFFIXES: file names read from folders."""

    SUFFIXES: tuple[str, ...]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the source's own options."""

    def read(
        self, options: argparse.Namespace, *, configuration: Configuration, now: datetime
    ) -> Iterator[Chunk]:
        """Yield chunks of one file, `options.files`.

        `options.in_folder`: a folder was named; `options.alone`: no other file is read.
        """
        ...


class JointSource(Protocol):
    """Extension for modules whose files may hold different counters of the same samples."""

    def recorded_together(self, files: Sequence[str]) -> list[list[str]]:
        """Return the files in groups that are read side by side."""
        ...


class RecordSource(Protocol):
    """Interface of sources that can also list every rejected record."""

    def rejected(
        self, options: argparse.Namespace, *, configuration: Configuration
    ) -> Iterator[tuple[str, int, str, str]]:
        """Yield (file, line or position, reason, text)."""
        ...


def load_joint_source(source: SourceEntry) -> JointSource | None:
    """Return the module of `source` where it groups files, else None."""
    module = load_source(source)
    return cast("JointSource", module) if hasattr(module, "recorded_together") else None


def load_record_source(source: SourceEntry) -> RecordSource | None:
    """Return the module of `source` if it can list rejected records, else None."""
    module = load_source(source)
    return cast("RecordSource", module) if hasattr(module, "rejected") else None


def load_source(source: SourceEntry) -> SourceModule:
    """Return the module of `source`, imported now."""
    return cast("SourceModule", import_module(source.module, "tachograph.sources"))


# Up to when a stream has been read; None: not read yet.
Watermark = Callable[[str], datetime | None]


class FeedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Common settings of `[[sources]]` entries; sources extend it. Secrets are file names."""

    source: str
    name: str = ""  # default: the source
    cluster: str = ""  # of what names none
    every_s: float = 60.0

    @property
    def stream(self) -> str:
        """Name of the stream of chunks, in the lake: `source:name`."""
        return f"{self.source}:{self.name or self.source}"

    @property
    def begins_at(self) -> str:
        """Time from which a lake without rows of the source is filled; empty: all it has."""
        return ""

    @property
    def title(self) -> str:
        """Name in reports: `source:name`, if it is named."""
        return self.stream if self.name and self.name != self.source else self.source


@dataclass(slots=True)
class PollOutcome:
    """Result of a poll without its chunks. `skew_s`: {host: seconds its clock is ahead of ours}."""

    skew_s: dict[str, float] = field(default_factory=dict)
    # {host or address: why}, where others answered.
    unreachable: dict[str, str] = field(default_factory=dict)
    # {address: a node that it names and is not on}.
    other_nodes: dict[str, str] = field(default_factory=dict)


S = TypeVar("S", bound=FeedSettings)


class SourceFeed(Protocol):
    """A connected source; its state lasts until the process ends.

    It is used by one thread, the next poll begins when the one before has ended. A chunk that was
    yielded is committed, sooner or later, or the process ends: then the next process continues from
    the watermarks. They include chunks that are not committed yet.
    """

    outcome: PollOutcome

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield new data since the watermarks as chunks of streams, in order.

        A stream that was read to some instant and had nothing new yields a chunk without rows: its
        watermark records that it was read. `outcome` is about this poll, from its end to the begin
        of the next. Errors: InputError naming address and reason, when nothing could be read; the
        next poll continues there.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class FeedModule(Protocol):
    """Interface of a polled source's module."""

    SETTINGS: type[FeedSettings]

    def connect(self, settings: FeedSettings, *, configuration: Configuration) -> SourceFeed:
        """Return the feed; nothing is requested yet.

        Errors: ConfigError for settings that do not fit, naming the key.
        """
        ...


# {source: module in tachograph.sources}
FEEDS: Mapping[str, str] = MappingProxyType(
    {
        "prometheus": ".prometheus",
        "sacct": ".sacct",
        "slurm-live": ".slurm_live",
        "kubernetes": ".kubernetes",
        "slurm-nodes": ".slurm_nodes",
        "allocation-map": ".allocation_map",
        "dcgm-exporter": ".dcgm_exporter",
        **dict.fromkeys(("pbs", "flux", "lsf"), ".schedulers.polling"),
        "pm-sampling": "tachograph.annexes.watch.pm_sampling.feed",
    }
)


def settings_of(raw: Mapping[str, object], *, where: str) -> FeedSettings:
    """Return one `[[sources]]` entry in the settings of its source.

    Errors: ConfigError naming the entry and the key.
    """
    name = raw.get("source")
    if not isinstance(name, str) or (name not in FEEDS and name not in _added_feeds()):
        do = f"use one of: {', '.join(FEEDS)}"
        raise ConfigError(f"unknown source {name!r}", where=where, do=do)
    return convert_settings(raw, load_feed(name).SETTINGS, where=where)


def convert_settings(raw: Mapping[str, object], struct: type[S], *, where: str) -> S:
    """Return an entry as the settings `struct`. Errors: ConfigError with entry and key."""
    written = {
        key: value.isoformat() if isinstance(value, date) else value for key, value in raw.items()
    }
    try:
        return msgspec.convert(written, struct, strict=False)
    except msgspec.ValidationError as problem:
        what, do = explain_misfit(str(problem), struct)
        do = do or "see the page of the source in docs"
        raise ConfigError(f"[[sources]] {raw.get('source')}: {what}", where=where, do=do) from None


def of_site(configuration: Configuration, cluster: str) -> Configuration:
    """Return a configuration for what is of a cluster; "": that of the site."""
    if not cluster:
        return configuration
    site = msgspec.structs.replace(configuration.site, cluster=cluster)
    return msgspec.structs.replace(configuration, site=site)


def configured_feeds(configuration: Configuration, *, where: str) -> list[FeedSettings]:
    """Return the settings of every `[[sources]]` entry.

    Errors: ConfigError for an invalid entry, for two with one name, and without any.
    """
    if not configuration.sources:
        do = "name one there (`tachograph init` writes the file); see docs/collect.md"
        raise ConfigError("no [[sources]] to collect from", where=where, do=do)
    entries = [settings_of(raw, where=where) for raw in configuration.sources]
    names = [settings.title for settings in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two [[sources]] are called {name}", where=where, do="give each its own `name`"
            )
    for settings in entries:
        if not settings.every_s > 0:
            raise ConfigError(
                f"[[sources]] {settings.title}: every_s must be above 0", where=where, do="use 60"
            )
    return entries


def refuse_less(settings: FeedSettings, least: Mapping[str, float], *, where: str) -> None:
    """Check that no number is less than the least of its key.

    Errors: ConfigError naming the key.
    """
    for key, limit in least.items():
        value = getattr(settings, key)
        if value is not None and not value >= limit:
            raise ConfigError(
                f"{key} is {value:g}, less than {limit:g}", where=where, do=f"give {key} more"
            )


def settings_in(configuration: Configuration, source: str) -> list[FeedSettings]:
    """Return the settings of all entries of a source; defaults without any.

    Errors: ConfigError naming the entry and the key.
    """
    entries = [raw for raw in configuration.sources if raw.get("source") == source] or [
        {"source": source}
    ]
    return [settings_of(raw, where="[[sources]]") for raw in entries]


@contextmanager
def entry_errors(title: str) -> Iterator[None]:
    """Inside the block errors of the configuration name the entry."""
    try:
        yield
    except ConfigError as problem:
        raise ConfigError(
            problem.what, where=f"[[sources]] {title} {problem.where}".strip(), do=problem.do
        ) from None


def start_time(written: str, *, now: datetime, zone_name: str) -> datetime:
    """Return the start of a feed without history from its key `from`, at most now.

    >>> from datetime import UTC
    >>> start_time("1d", now=datetime(2026, 1, 2, tzinfo=UTC), zone_name="UTC").isoformat()
    '2026-01-01T00:00:00+00:00'

    Errors: ConfigError for an invalid time.
    """
    try:
        return min(parse_time(written, now=now, zone_name=zone_name), now)
    except UsageError as problem:
        raise ConfigError(f"from: {problem.what}", do=problem.do) from None


def load_feed(name: str) -> FeedModule:
    """Return the module of a source that can be collected, imported now."""
    module = FEEDS[name] if name in FEEDS else _added_feeds()[name]
    return cast("FeedModule", import_module(module, "tachograph.sources"))


def _added_feeds() -> Mapping[str, str]:
    """{source: module} of pollable sources in installed packages."""
    added = added_entries("sources", SourceEntry)
    return {entry.name: entry.module for entry in added if hasattr(load_source(entry), "connect")}
