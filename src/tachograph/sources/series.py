"""Labelled series: meaning of metrics and labels, jobs they name, repeated values.

`SeriesVocabulary` identifies a series by its metric and labels: counter, node, GPU, MIG slice, job.
Prometheus answers, saved pages and polled exporters (`series_rows`) use it alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tachograph.catalog.arrays import Floats, Longs
from tachograph.sources.exporter_mapping import USUAL_LABELS, LabelNames, joined_labels
from tachograph.sources.exposition import PageSamples, labels_of
from tachograph.sources.gpu_indices import GpuIndices, LabelledGpu
from tachograph.sources.metrics import (
    NO_SITE_METRICS,
    NODE_INFO,
    MetricTarget,
    SeriesLocation,
    SiteMetrics,
    UnusableLabels,
    exporter_of,
    locate,
    metric_names,
    metric_target,
    short_node,
    why_unread,
)

_CHARACTERS_KEPT = 1 << 27  # of all their labels: an exporter may make them up
_KEPT = 1 << 20  # series whose identity is remembered; every pod and job adds labels
_NAME = "__name__"
OTHER_QUANTITY = "other_quantity"  # a metric that looks like a counter and measures something else
_NEARLY = 0.9  # a scrape may come a little earlier than the exporter's next reading of its GPUs

GpuPlace = tuple[str, int | None, int | None]  # node, GPU by its index, MIG slice
# node, GPU by its UUID, else by its index, MIG slice; no GPU: one of the node, unknown which
GpuUnit = tuple[str, str | int | None, int | None]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SeriesRun:
    """Points of one series. `t`: milliseconds since 1970, rising; `labels`: a JSON object."""

    labels: bytes
    t: Longs
    values: Floats

    def keep(self, mask: Mask) -> SeriesRun:
        """Return the points of a mask."""
        return SeriesRun(self.labels, self.t[mask], self.values[mask])


@dataclass(slots=True)
class SeriesAnswer:
    """Series of one or several answers. `instant`: times are those of the query, not of scrapes."""

    runs: list[SeriesRun] = field(default_factory=list)
    instant: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        """Number of values."""
        return sum(run.t.size for run in self.runs)

    @property
    def end(self) -> int:
        """The millisecond after the newest value; 0 if there is none."""
        return max((int(run.t[-1]) + 1 for run in self.runs if run.t.size), default=0)

    def add(self, others: SeriesAnswer) -> None:
        """Append another answer."""
        self.runs += others.runs
        self.warnings += others.warnings


@dataclass(frozen=True, slots=True)
class SeriesIdentity:
    """Column that a series fills, and its GPU or node. `instance`: address of the exporter."""

    target: MetricTarget
    location: SeriesLocation
    instance: str | None = None


def labelled_gpu(node: str, location: SeriesLocation) -> LabelledGpu | None:
    """Return the GPU in labels, or None."""
    if location.gpu is None and location.uuid is None and location.pci is None:
        return None
    return LabelledGpu(node, location.gpu, location.rank, location.mig, location.uuid, location.pci)


class SeriesVocabulary:
    """Meaning of metrics and labels at a site; caches labels, which repeat in every scrape.

    `names`, `wanted`: every metric that is read. `indices`: of GPUs by UUID and PCI address.
    `exporters`: names of those that wrote the series seen so far, as far as known.
    """

    def __init__(
        self,
        *,
        metrics: SiteMetrics = NO_SITE_METRICS,
        labels: LabelNames = USUAL_LABELS,
        characters: int = _CHARACTERS_KEPT,
    ) -> None:
        self.metrics, self.labels = metrics, labels
        self._most_characters = characters
        self.names = (*metric_names(own=metrics), NODE_INFO)
        self.wanted = frozenset(self.names)
        self.exporters: set[str] = set()
        self._identities: dict[bytes, SeriesIdentity | UnusableLabels | None] = {}
        self._targets: dict[tuple[str, str], MetricTarget | None] = {}
        self._locations: dict[tuple[LabelNames, str, str], SeriesLocation | UnusableLabels] = {}
        self._kept = self._characters = 0  # in these three
        self.indices = GpuIndices()
        self._hosts: dict[str, str] = {}

    def location(
        self, labels: Mapping[str, str], target: MetricTarget
    ) -> SeriesLocation | UnusableLabels:
        """Return the GPU or node that the labels of a series with this target name."""
        return locate(
            labels, names=joined_labels(self.labels, target.labels), over=target.joining.over
        )

    def identity(self, labels: bytes) -> SeriesIdentity | UnusableLabels | None:
        """Return the identity of a series from its name and labels (JSON); None if not needed.

        UnusableLabels: `bad_labels`, `unknown_metric`, or what its labels lack.
        """
        if labels not in self._identities:
            self._make_room(len(labels))
            self._identities[labels] = self._identify(labels)
        return self._identities[labels]

    def target_in_page(self, metric: str, block: str) -> MetricTarget | None:
        """Return the column of a series from its labels as written in the page."""
        key = (metric, block)
        if key not in self._targets:
            self._make_room(len(metric) + len(block))
            self._targets[key] = metric_target(metric, labels_of(block), own=self.metrics)
        return self._targets[key]

    def location_in_page(self, block: str, target: MetricTarget) -> SeriesLocation | UnusableLabels:
        """Return the GPU or node of labels as a page writes them."""
        key = (target.labels, target.joining.over, block)
        if key not in self._locations:
            self._make_room(len(block))
            self._locations[key] = self.location(labels_of(block), target)
        return self._locations[key]

    def note_exporter(self, metric: str) -> None:
        """Remember who writes a metric."""
        if exporter := exporter_of(metric):
            self.exporters.add(exporter)

    def _make_room(self, characters: int) -> None:
        """Drop all cached labels if one more series would be too many."""
        self._kept += 1
        self._characters += characters
        if self._kept > _KEPT or self._characters > self._most_characters:
            for cache in (self._identities, self._targets, self._locations):
                cache.clear()
            self._kept, self._characters = 1, characters

    def node(self, identity: SeriesIdentity) -> str | None:
        """Return the node: the host from its node_exporter, else from labels; with its cluster."""
        node = identity.location.node
        if identity.target.table == "node_samples" and identity.instance in self._hosts:
            node = self._hosts[identity.instance]
        return identity.location.place(node)

    def host_of(self, labels: bytes) -> str | None:
        """Return the node of a node_exporter from its labels (JSON); None without one."""
        host_labels = series_labels(labels)
        if host_labels is None:
            return None
        location = locate(host_labels, names=self.labels)
        return self._hosts.get(host_labels.get("instance", "")) or (
            location.node if isinstance(location, SeriesLocation) else None
        )

    def _identify(self, written: bytes) -> SeriesIdentity | UnusableLabels | None:
        labels = series_labels(written)
        if labels is None:
            return UnusableLabels("bad_labels", written.decode("utf-8", "replace")[:200])
        metric = labels.get(_NAME, "")
        if metric == NODE_INFO:
            if labels.get("instance") and labels.get("nodename"):
                self._hosts[labels["instance"]] = short_node(labels["nodename"])
            return None
        target = metric_target(metric, labels, own=self.metrics)
        if target is None:
            unread = why_unread(metric)
            if unread is not None:
                return UnusableLabels(OTHER_QUANTITY, f"{metric}: {unread}")
            is_wanted = metric in self.wanted
            return (
                None
                if is_wanted
                else UnusableLabels("unknown_metric", metric or "a series without a name")
            )
        self.note_exporter(metric)
        location = self.location(labels, target)
        return (
            location
            if isinstance(location, UnusableLabels)
            else SeriesIdentity(target, location, labels.get("instance"))
        )


def series_labels(written: bytes) -> dict[str, str] | None:
    """Return the labels of a JSON object; None unless all are texts."""
    try:
        return msgspec.json.decode(written, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def host_of_page(samples: PageSamples) -> str | None:
    """Return the host that a page of node_exporter names; None for none or several."""
    if NODE_INFO not in samples.names:
        return None
    hosts = {labels_of(block).get("nodename") for name, block, _, _ in samples if name == NODE_INFO}
    return hosts.pop() if len(hosts) == 1 else None


@dataclass(frozen=True, slots=True)
class AllocationSpan:
    """A job or step (123.0) held a GPU in [start, end), us since 1970; `end` None: still
    running.
    """

    unit: GpuUnit
    job: str
    start: int
    end: int | None


@dataclass(slots=True)
class AllocationTracker:
    """Tracks which job holds which GPU, by job labels.

    `now`, at the last scrape: {GPU: {job: since when}}.

    A job that is named at one scrape holds the GPU from then until the first scrape at which it is
    not named. An exporter that does not answer ends nothing. A job that still holds it has no end
    yet: attribution ends it with the job.
    """

    now: dict[GpuUnit, dict[str, int]] = field(default_factory=dict)

    def rename(self, before: GpuUnit, unit: GpuUnit) -> None:
        """Note that a GPU known by its index is known by its UUID from now on."""
        if before != unit and before in self.now:
            self.now.setdefault(unit, self.now.pop(before))

    def changes(
        self, unit: GpuUnit, scrapes: Longs, named: Mapping[str, Longs]
    ) -> Iterator[AllocationSpan]:
        """Yield begins and ends of jobs on a GPU.

        `scrapes`: times the GPU was seen; `named`: times each job was named on it.

        >>> tracker, times = AllocationTracker(), np.array([10, 20, 30, 40])
        >>> [(span.job, span.start, span.end) for span in tracker.changes(("n", 0, None), times, {"7": times[1:3]})]
        [('7', 20, 40)]
        """
        if not scrapes.size:
            return
        holding = self.now.setdefault(unit, {})
        for job in [job for job in holding if job not in named]:
            yield AllocationSpan(unit, job, holding.pop(job), int(scrapes[0]))
        if scrapes.size == 1:
            for job in [job for job in named if job not in holding]:
                holding[job] = int(scrapes[0])
                yield AllocationSpan(unit, job, holding[job], None)
            return
        for job, times in named.items():
            positions = np.searchsorted(scrapes, times)
            since = holding.pop(job, None)
            if since is not None and positions[0] > 0:
                yield AllocationSpan(unit, job, since, int(scrapes[0]))
                since = None
            begins = np.flatnonzero(np.diff(positions, prepend=-2) > 1)
            for first, last in zip(begins, [*(begins[1:] - 1), positions.size - 1], strict=True):
                start = int(times[first]) if since is None else since
                after = int(positions[last]) + 1
                if after < scrapes.size:
                    yield AllocationSpan(unit, job, start, int(scrapes[after]))
                else:
                    holding[job] = start
                    if since is None:
                        yield AllocationSpan(unit, job, start, None)
                since = None


@dataclass(slots=True)
class SeriesRereads:
    """Separates repeated values from new samples: exporters may be polled faster than they read.

    A row equal to the last kept row of its GPU is no new row while that is younger than nine tenths
    of `refresh_s`, the exporter's interval of readings. 0: every row is new. A new process keeps
    the first row it gets, also after the clock was set back.
    """

    refresh_s: float = 0.0
    _kept: dict[object, tuple[int, tuple[tuple[str, float], ...]]] = field(default_factory=dict)

    def fresh(self, unit: object, t: Longs, columns: Mapping[str, Floats]) -> Mask:
        """Return which rows of a GPU are new samples. `t`: microseconds, rising; NaN: no value.

        >>> t = np.arange(0, 60_000_000, 10_000_000)
        >>> SeriesRereads(30).fresh("gpu", t, {"gpu_util": np.array([1.0, 1, 1, 1, 2, 2])}).tolist()
        [True, False, False, True, True, False]
        """
        mask = np.ones(t.size, dtype=np.bool_)
        if not self.refresh_s or not t.size:
            return mask
        names = sorted(columns)
        last, before = self._kept.get(unit, (None, ()))
        first = _values_present(names, [columns[name].item(0) for name in names])
        is_repeated = last is not None and last < t[0] and before == first
        span = round(_NEARLY * self.refresh_s * 1e6)
        if t.size == 1:  # one scrape: what follows, for many rows, comes to this
            mask[0] = not is_repeated or last is None or int(t[0]) >= last + span
            if mask[0]:
                self._kept[unit] = (int(t[0]), first)
            return mask
        values = np.stack([columns[name] for name in names])
        changed = (
            (values[:, 1:] != values[:, :-1])
            & ~(np.isnan(values[:, 1:]) & np.isnan(values[:, :-1]))
        ).any(axis=0)
        starts = [0, *(np.flatnonzero(changed) + 1).tolist(), t.size]
        mask[:] = False
        for start, end in pairwise(starts):
            i = start
            if start == 0 and is_repeated and last is not None:
                i = int(np.searchsorted(t, last + span))
            while i < end:
                mask[i] = True
                last = int(t[i])
                i = max(i + 1, int(np.searchsorted(t, last + span)))
        fresh_rows = np.flatnonzero(mask)
        if fresh_rows.size:
            self._kept[unit] = (
                int(t[fresh_rows[-1]]),
                _values_present(names, values[:, fresh_rows[-1]].tolist()),
            )
        return mask


def _values_present(names: Sequence[str], values: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """The values of a row; missing ones are left out, since NaN equals nothing."""
    return tuple(
        [(name, value) for name, value in zip(names, values, strict=True) if value == value]
    )


@dataclass(slots=True)
class SeriesMemory:
    """State kept between windows or polls: meanings, allocations, devices, rows."""

    vocabulary: SeriesVocabulary = field(default_factory=SeriesVocabulary)
    allocations: AllocationTracker = field(default_factory=AllocationTracker)
    devices: dict[GpuPlace, tuple[str | float | None, ...]] = field(default_factory=dict)
    # By labels or values that named a job before.
    naming: set[LabelledGpu] = field(default_factory=set)
    rereads: SeriesRereads = field(default_factory=SeriesRereads)
