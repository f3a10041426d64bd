"""One index per GPU: maps labels with another numbering to the lake's index.

Files, commands, polls and processes may number GPUs differently; a UUID is the same in all of them.
`history` of `devices` names the UUIDs of an index and their times. A GPU keeps its index where
samples by it lie in the time of the new one: sources contradict each other then, and nobody knows
which of them maps and schedulers agree with. Where there are none, the node was renumbered or a GPU
replaced. Nothing that is committed is moved. `unsure_times` are the times in which an index
identifies no GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
import polars as pl

from tachograph.catalog.chunks import (
    CLUSTER_MARK,
    ChunkPart,
    GpuNumbering,
    NumberedGpu,
    Reject,
)
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import DEVICES, GPU_KEY, GPU_SAMPLES, TIME
from tachograph.sources.gpu_indices import CONTRADICTS, pci_key

if TYPE_CHECKING:
    from tachograph.catalog.rows import DeviceRow

CONTRADICTING_SOURCES = "contradicting_numbers"
BEGIN, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
# Two sources that are polled in turn look like a node that is renumbered at each poll; and whether
# they still contradict each other is looked up this often.
_SOON = timedelta(minutes=10)
_LINGERING = timedelta(minutes=5)  # Prometheus shows an ended series up to five minutes more
_INSTANT = timedelta(microseconds=1)
_MOST_SPANS = 64
_NUMBERING = "numbering"
_NUMBERINGS: tuple[GpuNumbering, ...] = ("nvml_index", "minor_number")
_SCHEMA = {name: DEVICES.schema[name] for name in ("node", "gpu")}
_CHANGED_SCHEMA = {
    name: DEVICES.schema[name] for name in (*GPU_KEY, "uuid", "nvml_index", "history")
}
_UNSURE_SCHEMA = {**_SCHEMA, "since": TIME, "until": TIME, "changed": pl.Boolean()}
_PLACED_SCHEMA = {**_SCHEMA, "since": TIME, "after": _SCHEMA["gpu"], "disputed": pl.Boolean()}

TimeRange = tuple[datetime, datetime]  # first and last sample
IndexTimes = Callable[[], Mapping[tuple[str, int], TimeRange]]
Unit = tuple[int, int | None]  # index, slice
Place = tuple[datetime, int, bool]  # since, index in the lake, whether sources contradict it


class NearSamples(NamedTuple):
    """Times of samples by an index: before a time range, first and last in it, after it."""

    before: datetime | None = None
    first: datetime | None = None
    last: datetime | None = None
    after: datetime | None = None


SampledTimes = Callable[[str, datetime, datetime], Mapping[int, NearSamples]]


class UuidSpan(NamedTuple):
    """The time in which an index is that of a UUID; None: sources contradict each other."""

    uuid: str | None
    since: datetime
    until: datetime

    def contains(self, t: datetime) -> bool:
        """Return whether `t` lies in the span."""
        return self.since <= t <= self.until

    def meets(self, first: datetime, last: datetime) -> bool:
        """Return whether a part of a time lies in the span."""
        return self.since <= last and first <= self.until


def _never_sampled(node: str, first: datetime, last: datetime) -> Mapping[int, NearSamples]:
    del node, first, last
    return {}


def unsure_times(devices: pl.DataFrame) -> pl.DataFrame:
    """Return when an index of a node identifies no GPU.

    Grain: one row per (node, gpu) and time from `since` until `until`. `changed`: between the last
    sample of a GPU and the first of the next one; else sources contradict each other.
    """
    rows: list[tuple[object, ...]] = []
    for row in devices.drop_nulls("history").iter_rows(named=True):
        spans = _decoded(row["history"])
        unsure = [(*span[1:], False) for span in spans if span.uuid is None]
        for earlier, later in pairwise(span for span in spans if span.uuid is not None):
            if earlier.uuid != later.uuid:
                unsure.append((earlier.until, later.since, True))
        rows += [(row["node"], row["gpu"], *times) for times in unsure]
    return pl.DataFrame(rows, schema=_UNSURE_SCHEMA, orient="row")


def _decoded(history: str) -> list[UuidSpan]:
    """Return the spans; none of a text that a table of the site has in this column."""
    try:
        return msgspec.json.decode(history, type=list[UuidSpan])
    except msgspec.DecodeError:
        return []


def renumbered(
    parts: Sequence[ChunkPart], devices: pl.DataFrame, sampled: SampledTimes = _never_sampled
) -> tuple[ChunkPart, ...]:
    """Return parts with the indices of `devices`, rows of the table of that name.

    Each GPU with another index is counted. Rows without labels count as NVML does; those of
    allocations that have a numbering of their own stay as they are. `sampled`: samples of the lake
    by the indices of a node; called only where indices contradict.
    """
    parts = _labelled_by_devices(parts)
    if devices.filter(pl.col("nvml_index") != pl.col("gpu")).height:
        parts = [_labelled(part) for part in parts]
    gpus = dict.fromkeys(gpu for part in parts for gpu in part.gpus)
    times = cache(partial(_times_by_index, parts))
    numbers = new_indices(gpus, devices, times=times, sampled=sampled)
    result = [_moved(part, numbers) if part.gpus else part for part in parts]
    result = [_by_address(part, devices) if _names_addresses(part) else part for part in result]
    rejects: list[Reject] = []
    if numbers.moved:
        (node, before), after = next(iter(numbers.moved.items()))
        example = f"{node} index {before}: {after} by UUID"
        rejects.append(Reject(CONTRADICTS, None, len(numbers.moved), example))
    if numbers.contradicting:
        node, gpu = numbers.contradicting[0]
        example = f"{node} index {gpu}: of several GPUs at the same time"
        rejects.append(Reject(CONTRADICTING_SOURCES, None, len(numbers.contradicting), example))
    if rejects:
        number = next(number for number, part in enumerate(parts) if part.gpus)
        result[number] = replace(result[number], rejects=(*result[number].rejects, *rejects))
    if numbers.changed:
        frame = pl.DataFrame(numbers.changed, schema=_CHANGED_SCHEMA, orient="row")
        result.append(ChunkPart("devices", frame, overlaps=True))
    # Devices come first: a run killed behind them finds the new indices, not its own samples.
    return tuple(sorted(result, key=lambda part: part.table != "devices"))


def _names_addresses(part: ChunkPart) -> bool:
    """Whether PCI addresses name the GPUs of samples, instead of indices."""
    return part.table == GPU_SAMPLES.name and "pci" in part.frame.columns


def _by_address(part: ChunkPart, devices: pl.DataFrame) -> ChunkPart:
    """The part with the indices of its PCI addresses; samples of unknown ones are counted.

    Errors: InputError where none is known.
    """
    slots: dict[tuple[str, str], set[int]] = {}
    for node, gpu, pci in devices.select("node", "gpu", "pci").drop_nulls().iter_rows():
        slots.setdefault((node, _slot(pci)), set()).add(gpu)
    indices = [
        slots.get((node, _slot(pci)), set())
        for node, pci in part.frame.select("node", "pci").rows()
    ]
    numbers = [next(iter(gpus)) if len(gpus) == 1 else None for gpus in indices]
    frame = part.frame.with_columns(gpu=pl.Series(numbers, dtype=_SCHEMA["gpu"]))
    lost = frame.filter(pl.col("gpu").is_null())
    addressed = replace(part, frame=frame.drop_nulls("gpu").drop("pci"))
    if lost.is_empty():
        return addressed
    node, pci = lost.select("node", "pci").row(0)
    name = node.replace(CLUSTER_MARK, " of ")
    unknown = f"{name}: no GPU with PCI address {pci} in the lake"
    do = "first ingest telemetry with PCI addresses, as dcgm-exporter and nvidia-smi write it"
    if addressed.frame.is_empty():
        raise InputError(unknown, do=do)
    lines = lost.filter(pl.col("xid") > 0).height  # the zeros before them are no lines
    reject = Reject("unknown_address", "pci", lines, f"{unknown}; {do}")
    rows_used = None if addressed.rows_used is None else addressed.rows_used - lines
    return replace(addressed, rejects=(*addressed.rejects, reject), rows_used=rows_used)


def _slot(pci: str) -> str:
    """An address without its function, which the kernel log leaves out."""
    return pci_key(pci).partition(".")[0]


def _times_by_index(parts: Iterable[ChunkPart]) -> dict[tuple[str, int], TimeRange]:
    """First and last sample of each (node, index) of parts with labels."""
    frames = [
        part.frame.select(
            "node", pl.col("gpu").cast(_SCHEMA["gpu"], strict=False), pl.col("t").cast(TIME)
        )
        for part in parts
        if part.gpus
        and {"node", "gpu"} <= set(part.frame.columns)
        and part.frame.schema.get("t") == pl.Datetime
    ]
    if not frames:
        return {}
    ends = (pl.col("t").min().alias("first"), pl.col("t").max().alias("last"))
    rows = pl.concat(frames, how="vertical_relaxed").drop_nulls().group_by("node", "gpu").agg(ends)
    return {(node, gpu): (first, last) for node, gpu, first, last in rows.iter_rows()}


def _labelled_by_devices(parts: Sequence[ChunkPart]) -> list[ChunkPart]:
    """Parts of sources without labels, with the labels that their rows of devices show.

    These sources count as NVML does.
    """
    gpus: list[NumberedGpu] = []
    for part in parts:
        if part.table == "devices" and not part.gpus and "uuid" in part.frame.columns:
            frame = part.frame.with_columns(pl.col("gpu").cast(_SCHEMA["gpu"], strict=False))
            numbering: GpuNumbering | None = "nvml_index"
            if "nvml_index" in frame.columns:  # so `gpu` may count otherwise
                numbering = None
            for row in frame.drop_nulls(["node", "gpu", "uuid"]).iter_rows(named=True):
                key = (row["node"], row["gpu"], row.get("mig"))
                gpus.append(NumberedGpu(*key, row["uuid"], row.get("pci"), numbering))
    labels = tuple(dict.fromkeys(gpus))
    return [
        replace(part, gpus=labels) if labels and _lacks_labels(part) else part for part in parts
    ]


def _lacks_labels(part: ChunkPart) -> bool:
    """Whether nothing but indices names the GPUs of its rows."""
    columns = set(part.frame.columns)
    return not part.gpus and {"node", "gpu"} <= columns and _NUMBERING not in columns


def _labelled(part: ChunkPart) -> ChunkPart:
    """The part with labels, derived from indices if it has none."""
    if not _lacks_labels(part):
        return part
    indices = part.frame.select("node", pl.col("gpu").cast(_SCHEMA["gpu"], strict=False))
    gpus = (
        NumberedGpu(node, gpu, None, None, None, "nvml_index")
        for node, gpu in indices.drop_nulls().unique().sort("node", "gpu").rows()
    )
    return replace(part, gpus=tuple(gpus))


def _moved(part: ChunkPart, numbers: NewIndices) -> ChunkPart:
    """The part with new indices, without the number by NVML where sources contradict each other."""
    frame = part.frame
    if not numbers.moved or not {"node", "gpu"} <= set(frame.columns):
        return part
    table = pl.DataFrame(numbers.places, schema=_PLACED_SCHEMA, orient="row").sort("since")
    table = table.rename({"gpu": "number"})
    time = next((name for name in ("t", "start") if frame.schema.get(name) == pl.Datetime), None)
    at = pl.lit(END) if time is None else pl.col(time).fill_null(BEGIN)
    number = pl.col("gpu").cast(_SCHEMA["gpu"], strict=False)  # what is none is rejected later
    rows = frame.with_row_index("row").with_columns(since=at.cast(TIME), number=number)
    joined = rows.sort("since").join_asof(
        table, on="since", by=["node", "number"], check_sortedness=False
    )
    if "nvml_index" in frame.columns:
        agreed = pl.col("disputed").ne_missing(pl.lit(value=True))
        joined = joined.with_columns(nvml_index=pl.when(agreed).then("nvml_index"))
    after = pl.col("after").cast(frame.schema["gpu"])
    joined = joined.with_columns(gpu=pl.coalesce(after, "gpu")).sort("row")
    return replace(part, frame=joined.select(frame.columns))


@dataclass(frozen=True, slots=True)
class NewIndices:
    """Indices in the lake of labels.

    places: (node, index of a part, since, index in the lake, disputed) of its rows from then on;
    disputed: by sources that contradict each other. changed: rows of `devices` with a new history.
    """

    places: list[tuple[str, int, datetime, int, bool]] = field(default_factory=list)
    changed: list[tuple[object, ...]] = field(default_factory=list)
    contradicting: list[tuple[str, int]] = field(default_factory=list)

    @property
    def moved(self) -> Mapping[tuple[str, int], int]:
        """{(node, index of a part): index in the lake} of differing indices."""
        return {
            (node, before): after for node, before, _, after, _ in self.places if before != after
        }


def new_indices(
    gpus: Iterable[NumberedGpu],
    known: pl.DataFrame,
    *,
    times: IndexTimes = dict,
    sampled: SampledTimes = _never_sampled,
) -> NewIndices:
    """Return the indices in the lake of labels.

    times: first and last sample of each (node, index) of the labels, for labels without times.

    >>> known = pl.DataFrame(
    ...     [("n", 0, "GPU-b", 0), ("n", 1, "GPU-a", 1)], schema=["node", "gpu", "uuid", "minor_number"], orient="row"
    ... )
    >>> labels = [NumberedGpu("n", number, None, f"GPU-{name}", None, "nvml_index") for number, name in enumerate("ab")]
    >>> new_indices(labels, known).moved
    {('n', 0): 1, ('n', 1): 0}
    """
    numbers = NewIndices()
    ordered = sorted(gpus, key=lambda gpu: (gpu.node, gpu.gpu, gpu.mig is not None))
    names = list(dict.fromkeys(gpu.node for gpu in ordered))
    rows: dict[str, list[_KnownGpu]] = {name: [] for name in names}
    if names:
        listed = known.filter(pl.col("node").is_in(names)).iter_rows(named=True)
        for row in cast("Iterator[DeviceRow]", listed):
            rows[row["node"]].append(_KnownGpu.of(row))
    for node, labels in groupby(ordered, key=lambda gpu: gpu.node):
        group = list(labels)
        units = {(row.gpu, row.mig): row for row in rows[node]}
        history = _NodeHistory(
            node,
            units,
            times,
            cache(partial(sampled, node)),
            {unit: list(row.spans) for unit, row in units.items()},
            {row.gpu for row in rows[node]} | {label.gpu for label in group},
        )
        history.place_all(group)
        history.add_to(numbers)
    return numbers


@dataclass(frozen=True, slots=True)
class _KnownGpu:
    """A row of `devices`. numbers: the index by each numbering that is known."""

    gpu: int
    mig: int | None
    pci: str | None
    numbers: Mapping[GpuNumbering, int]
    spans: Sequence[UuidSpan]

    @classmethod
    def of(cls, row: DeviceRow) -> _KnownGpu:
        uuid, history = row["uuid"], row.get("history")
        spans = [] if uuid is None else [UuidSpan(uuid, BEGIN, END)]
        if history is not None:
            spans = _decoded(history)
        by_name = {name: row.get(name) for name in _NUMBERINGS}
        numbers = {name: index for name, index in by_name.items() if index is not None}
        unit = (row["gpu"], row.get("mig"))
        return cls(*unit, row.get("pci"), numbers, spans)

    def counts_by(self, numbering: GpuNumbering | None) -> bool:
        """Return whether the index of this row is that of a numbering."""
        if numbering is not None and numbering in self.numbers:
            return self.numbers[numbering] == self.gpu
        return numbering is None or (numbering == "nvml_index" and not self.numbers)

    def has_slot(self, label: NumberedGpu) -> bool:
        """Return whether a label has the PCI address of this row."""
        if self.pci is None or label.pci is None:
            return False
        return pci_key(self.pci) == pci_key(label.pci)


class _Report(NamedTuple):
    """A time in which labels of this chunk gave `number` to a GPU; `gpu`: its index in the lake."""

    number: int
    mig: int | None
    gpu: int
    first: datetime
    last: datetime


@dataclass(slots=True)
class _NodeHistory:
    """Which UUID each index of a node had when; decides where the rows of labels belong.

    placed: {index of the part: [(since, index in the lake, disputed)]}. changed: units with another
    history, and their number by NVML. compared: indices whose samples contradict new numbers.
    """

    node: str
    rows: Mapping[Unit, _KnownGpu]
    times: IndexTimes
    sampled: Callable[[datetime, datetime], Mapping[int, NearSamples]]
    spans: dict[Unit, list[UuidSpan]]
    used: set[int]
    placed: dict[int, list[Place]] = field(default_factory=dict)
    changed: dict[Unit, int | None] = field(default_factory=dict)
    contradicting: dict[int, None] = field(default_factory=dict)
    compared: set[int] = field(default_factory=set)
    reports: list[_Report] = field(default_factory=list)

    def place_all(self, labels: Sequence[NumberedGpu]) -> None:
        """Find the places of all labels of a chunk."""
        by_uuid = [label for label in labels if label.uuid is not None]
        timed: list[tuple[NumberedGpu, TimeRange]] = []
        whole = {label.gpu for label in by_uuid if label.mig is None}
        pairs = {((label.gpu, label.mig), label.uuid) for label in by_uuid}
        names = Counter(name for pair in pairs for name in pair)
        for label in by_uuid:
            unit = (label.gpu, label.mig)
            settled = self.spans.get(unit) == [UuidSpan(label.uuid, BEGIN, END)]
            times = None
            if not settled or names[unit] > 1 or names[label.uuid] > 1:
                times = label.times or self.times().get((self.node, label.gpu))
            if times is not None:
                timed.append((label, times))
            elif label.mig is None or label.gpu not in whole:
                row = self.rows.get(unit)
                free = row is None or label.mig is not None or row.counts_by(label.numbering)
                self.placed[label.gpu] = [(BEGIN, self._index(label, END, free=free), False)]
        for label, (first, last) in timed:
            if self._is_other(label, first):
                self.compared |= self._in_question(label, first, last)
        timed.sort(key=lambda pair: (self._is_other(pair[0], pair[1][0]), pair[1]))
        for number, (label, times) in enumerate(timed):
            places = self._places(label, times, timed[:number])
            since = [place[0] for place in places[1:]]
            for (first, index, _), after in zip(places, (*since, times[1]), strict=True):
                report = _Report(label.gpu, label.mig, index, first, after)
                self.reports.append(report)
            if label.mig is None or label.gpu not in whole:
                self.placed.setdefault(label.gpu, []).extend(places)
        # Of labels without a UUID those come first whose GPU is known.
        for known_only in (True, False):
            for gpu, of_gpu in groupby(labels, key=lambda label: label.gpu):
                if gpu not in self.placed:
                    place = self._without_uuid(list(of_gpu), known_only=known_only)
                    if place is not None:
                        self.placed[gpu] = [(BEGIN, place, False)]

    def add_to(self, numbers: NewIndices) -> None:
        """Add what is decided of this node."""
        for number, places in self.placed.items():
            if any(index != number for _, index, _ in places):
                ordered = sorted(places)
                ordered[0] = (BEGIN, *ordered[0][1:])
                numbers.places.extend((self.node, number, *place) for place in ordered)
        for unit, by_nvml in self.changed.items():
            spans = self.spans[unit]
            uuid = next((span.uuid for span in reversed(spans) if span.uuid is not None), None)
            history = msgspec.json.encode(_newest(spans)).decode()
            numbers.changed.append((self.node, *unit, uuid, by_nvml, history))
        numbers.contradicting.extend((self.node, gpu) for gpu in self.contradicting)

    def _owner(self, unit: Unit | None, t: datetime) -> UuidSpan | None:
        """The span of a UUID that has an index at a time."""
        spans = [] if unit is None else self.spans.get(unit, [])
        return next((span for span in spans if span.uuid is not None and span.contains(t)), None)

    def _is_other(self, label: NumberedGpu, t: datetime) -> bool:
        """Whether the number of a label was not that of its GPU."""
        owner = self._owner((label.gpu, label.mig), t)
        return owner is None or owner.uuid != label.uuid

    def _home(self, label: NumberedGpu, t: datetime) -> Unit | None:
        """Where the lake has the GPU of a label at a time, or nearest to it; None if unknown."""
        homes = [
            (max(span.since - t, t - span.until, timedelta(0)), BEGIN - span.since, unit)
            for unit, spans in self.spans.items()
            for span in spans
            if span.uuid == label.uuid
        ]
        if homes:
            return min(homes, key=lambda home: home[:2])[2]
        slots = [unit for unit, row in self.rows.items() if row.has_slot(label)]
        return next((unit for unit in slots if not self.spans[unit]), None)

    def _in_question(self, label: NumberedGpu, first: datetime, last: datetime) -> set[int]:
        """Indices whose samples contradict a label: its own of another GPU, others of its GPU."""
        if not self._counts_alike(label, self._home(label, first)):
            return set()
        unit = (label.gpu, label.mig)
        return {
            at[0]
            for at, spans in self.spans.items()
            for span in spans
            if span.uuid is not None
            and span.meets(first, last)
            and (at == unit) != (span.uuid == label.uuid)
        }

    def _counts_alike(self, label: NumberedGpu, home: Unit | None) -> bool:
        """Whether the lake numbers a GPU as its label does; True if neither is known."""
        if home is not None and label.numbering is None:
            return False
        row = self.rows.get(home or (label.gpu, label.mig))
        return row is None or row.counts_by(label.numbering)

    def _index(self, label: NumberedGpu, t: datetime, *, free: bool) -> int:
        """Index of the GPU of a label; of a new one its number if that is free."""
        home = self._home(label, t)
        if home is None:
            home = (label.gpu if free else self._unused(), label.mig)
        if not self.spans.get(home):
            self.spans[home] = [UuidSpan(label.uuid, BEGIN, END)]
        return home[0]

    def _unused(self) -> int:
        index = next(index for index in count() if index not in self.used)
        self.used.add(index)
        return index

    def _places(
        self,
        label: NumberedGpu,
        times: TimeRange,
        earlier: Iterable[tuple[NumberedGpu, TimeRange]],
    ) -> list[Place]:
        """From when on the samples of a label belong to which index, and whether it is disputed."""
        first, last = times
        unit, home = (label.gpu, label.mig), self._home(label, first)
        if home is None and (label.mig is not None or not self.spans.get(unit)):
            # A slice has a new UUID each time it is made.
            if len(self.spans.get(unit, [])) > 1:
                self.changed.setdefault(unit, None)
            self.spans[unit] = [UuidSpan(label.uuid, BEGIN, END)]
            return [(first, label.gpu, False)]
        if not self._counts_alike(label, home) or (home is not None and not self.spans[home]):
            return [(first, self._index(label, first, free=False), False)]
        margin = _SOON if last - first < _SOON else timedelta(0)
        for other, (begin, end) in earlier:
            same_unit = (other.gpu, other.mig) == unit and other.uuid != label.uuid
            if same_unit and begin <= last and first <= end:  # rows of both have one index
                begin, end = max(begin, first), min(end, last)
                self._contradict(label, [label.gpu], begin, end + margin)
                first, last = (first, begin - _INSTANT) if first < begin else (end + _INSTANT, last)
        owner = self._owner(unit, first)
        if owner is not None and owner.uuid == label.uuid:
            first = owner.until + _INSTANT
        owner = self._owner(unit, last)
        if owner is not None and owner.uuid == label.uuid:
            last = owner.since - _INSTANT
        places = self._decided(label, first, last, margin) if first <= last else []
        # At both ends it may agree with what is known.
        if not places or places[0][0] > times[0]:
            places.insert(0, (times[0], label.gpu, False))
        if first <= last < times[1]:
            places.append((last + _INSTANT, label.gpu, False))
        return places

    def _decided(
        self, label: NumberedGpu, first: datetime, last: datetime, margin: timedelta
    ) -> list[Place]:
        """Places of a label in a time in which its number was that of another GPU, or of none."""
        unit = (label.gpu, label.mig)
        units = {unit, self._home(label, first) or unit}
        spans = [span for at in units for span in self.spans.get(at, [])]
        covering = next((span for span in spans if _is_unsure(span, first, last)), None)
        if covering is not None:
            index = self._index(label, first, free=False)
            self._contradict(label, [label.gpu, index], first, covering.until)
            return [(first, index, True)]
        near = self._near(label, first, last)
        questioned = self._in_question(label, first, last)
        inside = [near[index] for index in self.compared | questioned if index in near]
        firsts = [samples.first for samples in inside if samples.first is not None]
        lasts = [samples.last for samples in inside if samples.last is not None]
        borders = self._soon(label, first, last)
        if not firsts and not borders:
            self._change(label, first, last)
            return [(first, label.gpu, False)]
        # Series may be there for minutes after their end: the rest has the new number.
        begin, end = min(firsts, default=first), max(lasts, default=last)
        rest = None
        if end - first < _LINGERING < last - end:
            begin, rest = first, (end + _INSTANT, last)
        elif last - begin < _LINGERING < begin - first:
            end, rest = last, (first, begin - _INSTANT)
        else:
            begin, end = min([first, *borders]), max([last, *borders]) + margin
        index = self._index(label, begin, free=False)
        self._contradict(label, sorted({label.gpu, index} | questioned), begin, end)
        places = [(begin, index, True)]
        if rest is not None:
            self._change(label, *rest)
            places.append((rest[0], label.gpu, False))
        return sorted(places)

    def _near(
        self, label: NumberedGpu, first: datetime, last: datetime
    ) -> Mapping[int, NearSamples]:
        """Samples of the lake and of this chunk in a time, and next to it, by their index."""
        near = dict(self.sampled(first, last))
        questioned = self._in_question(label, first, last)
        for report in self.reports:
            samples = near.get(report.gpu, NearSamples())
            if report.first < first:
                before = min(report.last, first - _INSTANT)
                samples = samples._replace(before=max(samples.before or before, before))
            if report.last > last:
                after = max(report.first, last + _INSTANT)
                samples = samples._replace(after=min(samples.after or after, after))
            begin, end = max(first, report.first), min(last, report.last)
            is_other = report.number == label.gpu or report.mig != label.mig or begin > end
            if report.gpu in questioned and not is_other:
                begin, end = min(samples.first or begin, begin), max(samples.last or end, end)
                samples = samples._replace(first=begin, last=end)
            near[report.gpu] = samples
        return near

    def _soon(self, label: NumberedGpu, first: datetime, last: datetime) -> list[datetime]:
        """When the number of a label, or its GPU, had another one, minutes before or after."""
        unit, home = (label.gpu, label.mig), self._home(label, first)
        spans = [
            span
            for at, row in self.rows.items()
            for span in row.spans
            if span.uuid is not None
            and ((at == unit) != (span.uuid == label.uuid) and at in (unit, home))
        ]
        borders = [border for span in spans for border in span[1:]]
        return [at for at in borders if min(abs(at - first), abs(at - last)) < _SOON]

    def _change(self, label: NumberedGpu, first: datetime, last: datetime) -> None:
        """Note that the number of a label is that of its GPU between two times."""
        unit, home = (label.gpu, label.mig), self._home(label, first)
        here = self._near(label, first, last).get(label.gpu, NearSamples())
        spans = [span for span in self.spans.get(unit, []) if span.uuid is not None]
        earlier = home is not None or here.before or any(span.since < first for span in spans)
        later = here.after or any(span.since > last for span in spans)
        for at in [at for at in self.spans if at != unit]:
            spans = [span for span in self.spans[at] if span.uuid == label.uuid]
            if any(span.meets(first, last) for span in spans):
                self._set(at, label, (first, last), of=label.uuid)
        times = (first if earlier else BEGIN, last if later else END)
        self._set(unit, label, (first, last), UuidSpan(label.uuid, *times))
        if label.numbering == "nvml_index":
            self.changed[unit] = label.gpu

    def _contradict(
        self, label: NumberedGpu, indices: Iterable[int], first: datetime, last: datetime
    ) -> None:
        """Note that indices identify no GPU between two times."""
        for unit in [(index, label.mig) for index in indices]:
            if not any(_is_unsure(span, first, last) for span in self.spans.get(unit, [])):
                self._set(unit, label, (first, last), UuidSpan(None, first, last))
                self.contradicting[unit[0]] = None

    def _set(
        self,
        unit: Unit,
        label: NumberedGpu,
        times: TimeRange,
        new: UuidSpan | None = None,
        *,
        of: str | None = None,
    ) -> None:
        """Take a time out of the spans of a unit, or of one UUID alone, and put a span there.

        The others reach up to the samples before and begin with those after it.
        """
        near = self._near(label, *times).get(unit[0], NearSamples())
        before, spans = self.spans.get(unit, []), [] if new is None else [new]
        for span in before:
            if span.uuid is None or not span.meets(*times) or (of is not None and span.uuid != of):
                spans.append(span)
                continue
            if near.before is not None and span.since <= near.before:
                spans.append(span._replace(until=near.before))
            if near.after is not None and near.after <= span.until:
                spans.append(span._replace(since=max(near.after, times[1])))
        # A GPU stays known, though this is the only time in which it was seen.
        self.spans[unit] = spans
        uuids = {span.uuid for node_spans in self.spans.values() for span in node_spans}
        lost = {span.uuid for span in before} - uuids - {of}
        spans += [UuidSpan(uuid, times[0], times[0]) for uuid in lost]
        self.spans[unit] = _joined(spans)
        self.changed.setdefault(unit, None)

    def _without_uuid(self, labels: Sequence[NumberedGpu], *, known_only: bool) -> int | None:
        """Index of labels without a UUID; None without one."""
        label = labels[0]
        rows = self.rows.values()
        indices = {row.gpu for row in rows for label in labels if row.has_slot(label)}
        if len(indices) != 1 and label.numbering is not None:
            by = label.numbering
            indices = {row.gpu for row in rows if row.numbers.get(by) == label.gpu}
        taken = {index for places in self.placed.values() for _, index, _ in places}
        if len(indices) == 1 and not indices & taken:
            return indices.pop()
        if known_only:
            return None
        row = self.rows.get((label.gpu, label.mig))
        is_free = row is None or row.counts_by(label.numbering) or not (row.spans or row.pci)
        return label.gpu if is_free and label.gpu not in taken else self._unused()


def _is_unsure(span: UuidSpan, first: datetime, last: datetime) -> bool:
    return span.uuid is None and span.contains(first) and span.contains(last)


def _joined(spans: Iterable[UuidSpan]) -> list[UuidSpan]:
    """Spans in order of time; neighbours of one UUID are one, and contradictions in a row."""
    result: list[UuidSpan] = []
    for span in sorted(spans, key=lambda span: (span.since, span.until)):
        last = result.pop() if result else span
        if last.uuid != span.uuid or (span.uuid and span.since - last.until >= _SOON):
            result += [last, span]
        else:
            result.append(UuidSpan(span.uuid, last.since, max(last.until, span.until)))
    return result


def _newest(spans: list[UuidSpan]) -> list[UuidSpan]:
    """The newest spans; nothing is known of the time before if there are too many."""
    if len(spans) <= _MOST_SPANS:
        return spans
    newest = spans[-_MOST_SPANS:]
    return [UuidSpan(None, BEGIN, newest[0].since), *newest]
