"""One index per GPU: maps labels with another numbering to the lake's index.

Files, commands, polls and processes may number GPUs differently; a UUID is the same in all of them.
The index under which a UUID came first stays its index, whatever came first, so nothing that is
committed is ever wrong. Only a node that was renumbered has other indices from then on: no sample
by the new index may lie in the time of those by the old one. Where sources contradict each other in
the same time nobody knows which of them maps and schedulers agree with: `unsure_from` and
`unsure_until` of `devices` name the time in which indices of the node identify no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count, groupby
from typing import Any, NamedTuple

import polars as pl

from tachograph.catalog.chunks import ChunkPart, GpuNumbering, NumberedGpu, Reject
from tachograph.catalog.tables import DEVICES
from tachograph.sources.gpu_indices import CONTRADICTS, pci_key

CONTRADICTING_SOURCES = "contradicting_numbers"
ALWAYS = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))
# Two sources that are polled in turn look like a node that is renumbered at each poll.
_TOO_SOON = timedelta(minutes=10)
_NUMBERING = "numbering"
_UNSURE_SCHEMA = {
    name: DEVICES.schema[name]
    for name in ("node", "gpu", "mig", "uuid", "nvml_index", "unsure_from", "unsure_until")
}
_SCHEMA = {name: DEVICES.schema[name] for name in ("node", "gpu")}


TimeRange = tuple[datetime, datetime]  # first and last sample
IndexTimes = Callable[[], Mapping[tuple[str, int], TimeRange]]
SampledTimes = Callable[[str, int], TimeRange | None]  # of (node, index)


def _never_sampled(node: str, index: int) -> TimeRange | None:
    del node, index
    return None


def renumbered(
    parts: Sequence[ChunkPart], known: pl.DataFrame, sampled: SampledTimes = _never_sampled
) -> tuple[ChunkPart, ...]:
    """Return parts with the indices of `known`, rows of `devices` in order of arrival.

    Each GPU with another index is counted. Rows without labels count as NVML does; those of
    allocations that have a numbering of their own stay as they are. `sampled`: first and last
    sample of the lake by an index of a node; called only where indices contradict.
    """
    if known.filter(pl.col("nvml_index") != pl.col("gpu")).height:
        parts = [_labelled(part) for part in _labelled_by_devices(parts)]
    else:
        parts = _labelled_by_devices(parts)
    gpus = dict.fromkeys(gpu for part in parts for gpu in part.gpus)
    times = cache(partial(_times_by_index, parts))
    numbers = new_indices(gpus, known, times=times, sampled=sampled)
    result = list(parts)
    places = [place for place, part in enumerate(parts) if part.gpus]
    unclear = [row.node for row in numbers.unsure if row.until == ALWAYS[1]]
    unclear += _always_unsure(known)
    if numbers.moved:
        rows = [(node, before, after) for (node, before), after in numbers.moved.items()]
        table = pl.DataFrame(rows, schema={**_SCHEMA, "after": _SCHEMA["gpu"]}, orient="row")
        node, before, after = rows[0]
        example = f"{node} index {before}: {after} by UUID"
        counted = Reject(CONTRADICTS, None, len(rows), example)
        for place in places:
            result[place] = replace(parts[place], frame=_moved(parts[place].frame, table, unclear))
        result[places[0]] = _with_reject(result[places[0]], counted)
    if numbers.unsure:
        contradicting = [row for row in numbers.unsure if row.until == ALWAYS[1]]
        if contradicting:
            row = contradicting[0]
            example = f"{row.node} index {row.gpu}: of several GPUs at the same time"
            counted = Reject(CONTRADICTING_SOURCES, None, len(contradicting), example)
            result[places[0]] = _with_reject(result[places[0]], counted)
        frame = pl.DataFrame(numbers.unsure, schema=_UNSURE_SCHEMA, orient="row")
        result.append(ChunkPart("devices", frame, overlaps=True))
    # Devices come first: a run killed behind them finds the new indices, not its own samples.
    return tuple(sorted(result, key=lambda part: part.table != "devices"))


def _with_reject(part: ChunkPart, reject: Reject) -> ChunkPart:
    return replace(part, rejects=(*part.rejects, reject))


def _times_by_index(parts: Iterable[ChunkPart]) -> dict[tuple[str, int], TimeRange]:
    """First and last sample of each (node, index) of parts with labels."""
    frames = [
        part.frame.select("node", pl.col("gpu").cast(_SCHEMA["gpu"], strict=False), "t")
        for part in parts
        if part.gpus and {"node", "gpu", "t"} <= set(part.frame.columns)
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
    labelled: list[ChunkPart] = []
    for part in parts:
        columns = set(part.frame.columns)
        bare = not part.gpus and {"node", "gpu"} <= columns and _NUMBERING not in columns
        labelled.append(replace(part, gpus=labels) if labels and bare else part)
    return labelled


def _labelled(part: ChunkPart) -> ChunkPart:
    """The part with labels, derived from indices if it has none."""
    frame = part.frame
    if part.gpus or not {"node", "gpu"} <= set(frame.columns) or _NUMBERING in frame.columns:
        return part
    indices = (
        frame.select("node", pl.col("gpu").cast(_SCHEMA["gpu"], strict=False)).drop_nulls().unique()
    )
    gpus = (
        NumberedGpu(node, gpu, None, None, None, "nvml_index")
        for node, gpu in indices.sort("node", "gpu").rows()
    )
    return replace(part, gpus=tuple(gpus))


def _always_unsure(known: pl.DataFrame) -> list[str]:
    """Nodes of which sources contradict each other."""
    if "unsure_until" not in known.columns:
        return []
    return known.filter(pl.col("unsure_until") == ALWAYS[1])["node"].unique().to_list()


def _moved(frame: pl.DataFrame, table: pl.DataFrame, unclear: Sequence[str]) -> pl.DataFrame:
    """Rows with their new index; the numbers of moved devices of `unclear` nodes are dropped."""
    if not {"node", "gpu"} <= set(frame.columns):
        return frame
    frame = frame.with_columns(pl.col("gpu").cast(_SCHEMA["gpu"]))
    joined = frame.join(table, on=["node", "gpu"], how="left", maintain_order="left")
    if "nvml_index" in frame.columns:
        dropped = pl.col("after").is_not_null() & pl.col("node").is_in(unclear)
        joined = joined.with_columns(nvml_index=pl.when(~dropped).then("nvml_index"))
    return joined.with_columns(gpu=pl.coalesce("after", "gpu")).drop("after")


class UnsureNumber(NamedTuple):
    """A row of `devices`: between two times the indices of its node identify no GPU."""

    node: str
    gpu: int
    mig: int | None
    uuid: str | None
    nvml_index: int | None
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class NewIndices:
    """`moved`: {(node, index of a part): index in the lake} of differing indices."""

    moved: Mapping[tuple[str, int], int]
    unsure: Sequence[UnsureNumber]


def new_indices(
    gpus: Iterable[NumberedGpu],
    known: pl.DataFrame,
    *,
    times: IndexTimes = dict,
    sampled: SampledTimes = _never_sampled,
) -> NewIndices:
    """Return the indices in the lake of labels that number otherwise.

    times: first and last sample of each (node, index) of the labels; called where indices
    contradict.

    >>> known = pl.DataFrame(
    ...     [("n", 0, "GPU-b", 0), ("n", 1, "GPU-a", 1)], schema=["node", "gpu", "uuid", "minor_number"], orient="row"
    ... )
    >>> labels = [NumberedGpu("n", number, None, f"GPU-{name}", None, "nvml_index") for number, name in enumerate("ab")]
    >>> new_indices(labels, known).moved
    {('n', 0): 1, ('n', 1): 0}
    """
    ordered = sorted(gpus, key=lambda gpu: (gpu.node, gpu.gpu, gpu.mig is not None))
    if not ordered:
        return NewIndices({}, [])
    rows: dict[str, list[_KnownGpu]] = {}
    names = {gpu.node for gpu in ordered}
    for row in known.filter(pl.col("node").is_in(list(names))).iter_rows(named=True):
        rows.setdefault(row["node"], []).append(_KnownGpu.of(row))
    moved: dict[tuple[str, int], int] = {}
    unsure: list[UnsureNumber] = []
    for node, same in groupby(ordered, key=lambda gpu: gpu.node):
        by_index = {index: list(labels) for index, labels in groupby(same, key=lambda gpu: gpu.gpu)}
        history = _NodeHistory(node, rows.get(node, []), times, sampled)
        placed = _of_node(by_index, history)
        moved |= {(node, before): after for before, after in placed.items() if before != after}
        unsure += history.unsure.values()
    return NewIndices(moved, unsure)


@dataclass(frozen=True, slots=True)
class _KnownGpu:
    """A row of `devices`. numbers: the index by each numbering that is known."""

    gpu: int
    mig: int | None
    uuid: str | None
    pci: str | None
    numbers: Mapping[GpuNumbering, int]
    unsure_until: datetime | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _KnownGpu:
        gpu, mig, uuid, pci = row["gpu"], row.get("mig"), row.get("uuid"), row.get("pci")
        numbers: dict[GpuNumbering, int] = {}
        for name in _NUMBERINGS:
            number = row.get(name)
            if isinstance(number, int):
                numbers[name] = number
        assert isinstance(gpu, int)
        return cls(
            gpu,
            mig if isinstance(mig, int) else None,
            uuid if isinstance(uuid, str) else None,
            pci if isinstance(pci, str) else None,
            numbers,
            row.get("unsure_until"),
        )

    def counts_by(self, numbering: GpuNumbering | None, index: int) -> bool:
        """Whether this row may use an index of that numbering."""
        if numbering is None:
            return True
        if numbering in self.numbers:
            return self.numbers[numbering] == index
        return numbering == "nvml_index" and not self.numbers


_NUMBERINGS: tuple[GpuNumbering, ...] = ("nvml_index", "minor_number")


@dataclass(frozen=True, slots=True)
class _NodeHistory:
    """What the lake knows of a node; decides whether it was renumbered.

    `unsure`: {(index, slice): times in which indices identify no GPU}, added to by decisions.
    """

    node: str
    known: Sequence[_KnownGpu]
    times: IndexTimes
    sampled: SampledTimes
    unsure: dict[tuple[int, int | None], UnsureNumber] = field(default_factory=dict)

    def index_of(self, label: NumberedGpu, row: _KnownGpu) -> int:
        """Return the index of the GPU of a label whose UUID or address a row has."""
        same_numbering = label.numbering is not None and row.counts_by(label.numbering, row.gpu)
        if label.gpu == row.gpu or not same_numbering:
            return row.gpu
        return label.gpu if self._changed(label, row) else row.gpu

    def may_replace(self, label: NumberedGpu, row: _KnownGpu | None) -> bool:
        """Return whether the GPU of a label may have the index of a row of the lake."""
        if row is None or (row.uuid is None and row.pci is None):
            return True
        if not row.counts_by(label.numbering, label.gpu):
            return False
        other_gpu = None not in (row.uuid, label.uuid) and row.uuid != label.uuid
        if label.mig is not None:  # a slice has a new UUID each time it is made
            return True
        return self._changed(label, row) if other_gpu else True

    def contradict(self, gpu: int, mig: int | None, uuid: str | None = None) -> None:
        """Note that indices of this node identify no GPU at any time."""
        for row in self.known:
            if (row.gpu, row.mig) == (gpu, mig) and row.unsure_until == ALWAYS[1]:
                return
        self.unsure[gpu, mig] = UnsureNumber(self.node, gpu, mig, uuid, None, *ALWAYS)

    def _changed(self, label: NumberedGpu, row: _KnownGpu) -> bool:
        """Whether the label's index is a new one, from after the last sample by those so far."""
        mine = self.times().get((self.node, label.gpu))
        if mine is None:
            return row.gpu == label.gpu
        if any(gpu.unsure_until == ALWAYS[1] for gpu in self.known):
            return False
        spans = [self.sampled(self.node, index) for index in {row.gpu, label.gpu}]
        before = [span for span in spans if span is not None]
        apart = all(mine[0] > last or mine[1] < first for first, last in before)
        last_change = row.unsure_until
        too_soon = last_change is not None and abs(mine[0] - last_change) < _TOO_SOON
        if not apart or too_soon:
            self.contradict(row.gpu, row.mig, row.uuid)
            return False
        borders = [border for first, last in before for border in (first, last)]
        earlier = [border for border in borders if border < mine[0]]
        later = [border for border in borders if border > mine[1]]
        since, until = max(earlier, default=mine[1]), min(later, default=mine[0])
        index = label.gpu if label.numbering == "nvml_index" else None
        key = (label.gpu, label.mig)
        self.unsure[key] = UnsureNumber(self.node, *key, label.uuid, index, since, until)
        return True


def _of_node(labels: Mapping[int, Sequence[NumberedGpu]], history: _NodeHistory) -> dict[int, int]:
    """{index of the part: index in the lake}, all different.

    A GPU that the lake does not have keeps its index where that may be its own, else it gets a new
    one.
    """
    known = history.known
    # Of a UUID that had several indices the latest counts.
    latest = sorted(known, key=lambda row: row.unsure_until or ALWAYS[0])
    of_uuid = {row.uuid: row for row in latest if row.uuid is not None}
    of_pci = {pci_key(row.pci): row for row in known if row.pci is not None}
    of_slice = {(row.gpu, row.mig): row for row in known}
    placed: dict[int, int] = {}
    new: list[int] = []
    for index, gpus in labels.items():
        candidates: set[int] = set()
        for gpu in gpus:
            if gpu.ambiguous:
                history.contradict(gpu.gpu, gpu.mig)
            row = _known_row(gpu, of_uuid, of_pci)
            if row is not None:
                candidates.add(history.index_of(gpu, row))
        if len(candidates) != 1 and all(gpu.uuid is None for gpu in gpus):
            candidates = _numbered(known, gpus[0].numbering, index)
        target = candidates.pop() if len(candidates) == 1 else None
        if target is None or target in placed.values():
            new.append(index)
        else:
            placed[index] = target
    for index in new:
        keeps = all(
            history.may_replace(gpu, of_slice.get((index, gpu.mig))) for gpu in labels[index]
        )
        if keeps and index not in placed.values():
            placed[index] = index
    used = {*placed.values(), *(row.gpu for row in known)}
    free = (index for index in count() if index not in used)
    for index in new:
        if index not in placed:
            placed[index] = next(free)
    return placed


def _numbered(known: Iterable[_KnownGpu], numbering: GpuNumbering | None, index: int) -> set[int]:
    """Return the lake's indices of the GPUs that have this number."""
    if numbering is None:
        return set()
    return {row.gpu for row in known if row.numbers.get(numbering) == index}


def _known_row(
    label: NumberedGpu, of_uuid: Mapping[str, _KnownGpu], of_pci: Mapping[str, _KnownGpu]
) -> _KnownGpu | None:
    """The lake's row of a GPU; None if unknown."""
    row = of_uuid.get(label.uuid) if label.uuid is not None else None
    if row is None and label.pci is not None:
        row = of_pci.get(pci_key(label.pci))
        if row is not None and row.uuid is not None and label.uuid is not None:
            row = None  # another GPU in the same slot
    return row
