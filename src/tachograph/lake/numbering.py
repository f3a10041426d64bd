"""One index per GPU: maps labels with another numbering to the lake's index.

Files, commands, polls and processes may number GPUs differently; a UUID is the same in all of them.
The index under which a UUID came first stays its index, whatever came first, so nothing that is
committed is ever wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby

import polars as pl

from tachograph.catalog.chunks import ChunkPart, GpuNumbering, NumberedGpu, Reject
from tachograph.catalog.tables import DEVICES
from tachograph.sources.gpu_indices import CONTRADICTS, pci_key

_NUMBERING = "numbering"
_SCHEMA = {name: DEVICES.schema[name] for name in ("node", "gpu")}


def renumbered(parts: Sequence[ChunkPart], known: pl.DataFrame) -> tuple[ChunkPart, ...]:
    """Return parts with the indices of `known`, rows of `devices` in order of arrival.

    Each GPU with another index is counted. Rows without labels count as NVML does; those of
    allocations that have a numbering of their own stay as they are.
    """
    if known.filter(pl.col("nvml_index") != pl.col("gpu")).height:
        parts = [_labelled(part) for part in parts]
    moved = new_indices(dict.fromkeys(gpu for part in parts for gpu in part.gpus), known)
    if not moved:
        return tuple(parts)
    rows = [(node, before, after) for (node, before), after in moved.items()]
    table = pl.DataFrame(rows, schema={**_SCHEMA, "after": _SCHEMA["gpu"]}, orient="row")
    node, before, after = rows[0]
    counted = Reject(CONTRADICTS, None, len(moved), f"{node} index {before}: {after} by UUID")
    result = list(parts)
    places = [place for place, part in enumerate(parts) if part.gpus]
    for place in places:
        result[place] = replace(parts[place], frame=_moved(parts[place].frame, table))
    first = result[places[0]]
    result[places[0]] = replace(first, rejects=(*first.rejects, counted))
    return tuple(result)


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


def _moved(frame: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    if not {"node", "gpu"} <= set(frame.columns):
        return frame
    frame = frame.with_columns(pl.col("gpu").cast(_SCHEMA["gpu"]))
    joined = frame.join(table, on=["node", "gpu"], how="left", maintain_order="left")
    return joined.with_columns(gpu=pl.coalesce("after", "gpu")).drop("after")


def new_indices(gpus: Iterable[NumberedGpu], known: pl.DataFrame) -> Mapping[tuple[str, int], int]:
    """Return {(node, index of a part): index in the lake} of differing indices.

    >>> known = pl.DataFrame(
    ...     [("n", 0, "GPU-b", 0), ("n", 1, "GPU-a", 1)], schema=["node", "gpu", "uuid", "minor_number"], orient="row"
    ... )
    >>> labels = [NumberedGpu("n", number, None, f"GPU-{name}", None, "nvml_index") for number, name in enumerate("ab")]
    >>> new_indices(labels, known)
    {('n', 0): 1, ('n', 1): 0}
    """
    ordered = sorted(gpus, key=lambda gpu: (gpu.node, gpu.gpu, gpu.mig is not None))
    if not ordered:
        return {}
    rows: dict[str, list[_KnownGpu]] = {}
    names = {gpu.node for gpu in ordered}
    for row in known.filter(pl.col("node").is_in(list(names))).iter_rows(named=True):
        rows.setdefault(row["node"], []).append(_KnownGpu.of(row))
    moved: dict[tuple[str, int], int] = {}
    for node, same in groupby(ordered, key=lambda gpu: gpu.node):
        by_index = {index: list(labels) for index, labels in groupby(same, key=lambda gpu: gpu.gpu)}
        placed = _of_node(by_index, rows.get(node, []))
        moved |= {(node, before): after for before, after in placed.items() if before != after}
    return moved


@dataclass(frozen=True, slots=True)
class _KnownGpu:
    """A row of `devices`. numbers: the index by each numbering that is known."""

    gpu: int
    mig: int | None
    uuid: str | None
    pci: str | None
    numbers: Mapping[GpuNumbering, int]

    @classmethod
    def of(cls, row: Mapping[str, object]) -> _KnownGpu:
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
        )

    def counts_by(self, numbering: GpuNumbering | None, index: int) -> bool:
        """Whether this row may use an index of that numbering."""
        if numbering is None:
            return True
        if numbering in self.numbers:
            return self.numbers[numbering] == index
        return numbering == "nvml_index" and not self.numbers


_NUMBERINGS: tuple[GpuNumbering, ...] = ("nvml_index", "minor_number")


def _of_node(
    labels: Mapping[int, Sequence[NumberedGpu]], known: Sequence[_KnownGpu]
) -> dict[int, int]:
    """{index of the part: index in the lake}, all different.

    A GPU that the lake does not have keeps its index where that may be its own, else it gets a new
    one.
    """
    of_uuid = {row.uuid: row for row in known if row.uuid is not None}
    of_pci = {pci_key(row.pci): row for row in known if row.pci is not None}
    of_slice = {(row.gpu, row.mig): row for row in known}
    placed: dict[int, int] = {}
    new: list[int] = []
    for index, gpus in labels.items():
        candidates: set[int] = set()
        for gpu in gpus:
            known_index = _known_index(gpu, of_uuid, of_pci)
            if known_index is not None:
                candidates.add(known_index)
        if len(candidates) != 1 and all(gpu.uuid is None for gpu in gpus):
            candidates = _numbered(known, gpus[0].numbering, index)
        target = candidates.pop() if len(candidates) == 1 else None
        if target is None or target in placed.values():
            new.append(index)
        else:
            placed[index] = target
    for index in new:
        keeps = all(_may_be(gpu, of_slice.get((index, gpu.mig))) for gpu in labels[index])
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


def _known_index(
    label: NumberedGpu, of_uuid: Mapping[str, _KnownGpu], of_pci: Mapping[str, _KnownGpu]
) -> int | None:
    """The lake's index of a GPU; None if unknown.

    If the lake's index has the same numbering, the node was renumbered: the new index is valid from
    now on.
    """
    row = of_uuid.get(label.uuid) if label.uuid is not None else None
    if row is None and label.pci is not None:
        row = of_pci.get(pci_key(label.pci))
        if row is not None and row.uuid is not None and label.uuid is not None:
            row = None  # another GPU in the same slot
    if row is None:
        return None
    anew = label.numbering is not None and row.numbers.get(label.numbering) == row.gpu
    return label.gpu if anew else row.gpu


def _may_be(label: NumberedGpu, row: _KnownGpu | None) -> bool:
    """Whether the GPU of a label may have the index of a row of the lake."""
    if row is None or (row.uuid is None and row.pci is None):
        return True
    return row.counts_by(label.numbering, label.gpu)
