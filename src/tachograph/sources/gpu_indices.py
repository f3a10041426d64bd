"""GPU indices from labels that may number differently: UUID first, then PCI address.

DCGM and NVML number GPUs in the order of PCI addresses; minor numbers of device files are another
numbering.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from tachograph.sources.metrics import NO_INDEX

CONTRADICTS, AMBIGUOUS, NO_GPU = "index_contradicts_uuid", "ambiguous_gpu", "no_gpu"
_KEPT = 1 << 20  # GPUs whose index is remembered
_Key = TypeVar("_Key", bound=Hashable)

TimeSpan = tuple[int, int]  # first and last time at which labels were reported
SAME_TIME: TimeSpan = (0, 0)


class LabelledGpu(NamedTuple):
    """A GPU by its labels. `gpu` None: no index; `rank`: of the label with the index."""

    node: str
    gpu: int | None = None
    rank: int = NO_INDEX
    mig: int | None = None
    uuid: str | None = None
    pci: str | None = None


class PlacedGpu(NamedTuple):
    """Index of a GPU. None: without one; see `reason`.

    `reason` beside an index: `index_contradicts_uuid`, the index is that of the UUID and not the
    label's; `ambiguous_gpu`, it may be that of another GPU, too, so no job holds a GPU by it.
    """

    gpu: int | None
    reason: str | None = None
    rank: int = NO_INDEX  # of the label that gives the index


class _Claim(NamedTuple):
    """Claim of labels of one rank over a time span; `value` None: contradictory values."""

    rank: int
    first: int
    last: int
    value: int | str | None

    def joined(self, other: _Claim) -> _Claim:
        """The claim of better rank; of equal ones the later, unless simultaneous."""
        if self.rank != other.rank:
            return min(self, other)
        together = other.first <= self.last and self.first <= other.last
        if self.value == other.value or together:
            value = self.value if self.value == other.value else None
            return _Claim(
                self.rank, min(self.first, other.first), max(self.last, other.last), value
            )
        return max(self, other, key=lambda claim: claim.last)


class GpuIndices:
    """Remembers the index of each UUID and PCI address, as labels of the best rank give it.

    `version` changes with what is remembered.

    >>> dcgm, minor = LabelledGpu("n", 1, 1, uuid="GPU-a"), LabelledGpu("n", 0, 2, uuid="GPU-a")
    >>> GpuIndices().places({minor: SAME_TIME, dcgm: SAME_TIME})[minor]
    PlacedGpu(gpu=1, reason='index_contradicts_uuid', rank=1)
    """

    def __init__(self) -> None:
        self.version = 0
        self._of_uuid: dict[tuple[str, str], _Claim] = {}
        self._of_pci: dict[tuple[str, str], _Claim] = {}
        # Rank of the label that gives an index to a GPU with a UUID.
        self._owned: dict[tuple[str, int], int] = {}

        self._before: dict[LabelledGpu, TimeSpan] = {}
        self._version_before = -1
        self._placed: dict[LabelledGpu, PlacedGpu] = {}

    def places(self, labelled: Mapping[LabelledGpu, TimeSpan]) -> Mapping[LabelledGpu, PlacedGpu]:
        """Return the index of each GPU of one answer; their order is irrelevant."""
        # Most rounds have the same labels.
        if self._version_before != self.version or labelled != self._before:
            disputed = self._learn(labelled)
            self._before, self._version_before = dict(labelled), self.version
            self._placed = {gpu: self._place(gpu, disputed) for gpu in labelled}
        return self._placed

    def _learn(
        self, labelled: Mapping[LabelledGpu, TimeSpan]
    ) -> dict[tuple[str, int, int | None], int]:
        """Remember indices; return the rank of labels that give one index to two UUIDs at once."""
        uuids: dict[tuple[str, str], _Claim] = {}
        addresses: dict[tuple[str, str], _Claim] = {}
        ordered = sorted(labelled.items(), key=lambda item: item[1])
        for (node, gpu, rank, _, uuid, pci), span in ordered:
            if gpu is not None:
                claim = _Claim(rank, *span, gpu)
                if uuid is not None:
                    _note(uuids, (node, uuid), claim)
                if pci is not None:
                    _note(addresses, (node, pci_key(pci)), claim)
        self._remember(self._of_uuid, uuids)
        self._remember(self._of_pci, addresses)
        owners: dict[tuple[str, int, int | None], _Claim] = {}
        for (node, gpu, rank, mig, uuid, _), span in ordered:
            if (
                gpu is not None
                and uuid is not None
                and self._of_uuid[node, uuid].value in (gpu, None)
            ):
                _note(owners, (node, gpu, mig), _Claim(rank, *span, uuid))
        for (node, gpu, _), claim in owners.items():
            if claim.rank < self._owned.get((node, gpu), NO_INDEX):
                self._owned[node, gpu] = claim.rank
                self.version += 1
        return {unit: claim.rank for unit, claim in owners.items() if claim.value is None}

    def _remember(
        self, claims: dict[tuple[str, str], _Claim], new_claims: Mapping[tuple[str, str], _Claim]
    ) -> None:
        if len(claims) >= _KEPT:
            claims.clear()
        for key, claim in new_claims.items():
            before = claims.get(key)
            if before is None or claim.rank <= before.rank:
                claims[key] = claim
                if before is None or (before.rank, before.value) != (claim.rank, claim.value):
                    self.version += 1

    def _place(
        self, labelled: LabelledGpu, disputed: Mapping[tuple[str, int, int | None], int]
    ) -> PlacedGpu:
        node, gpu, rank, mig, uuid, pci = labelled
        claim = None if uuid is None else self._of_uuid.get((node, uuid))
        if claim is not None and claim.rank < rank:
            if not isinstance(claim.value, int):
                return PlacedGpu(None, AMBIGUOUS)
            contradicts = gpu is not None and gpu != claim.value
            return PlacedGpu(claim.value, CONTRADICTS if contradicts else None, claim.rank)
        claim = None if pci is None else self._of_pci.get((node, pci_key(pci)))
        if claim is not None and claim.rank < rank and isinstance(claim.value, int):
            return PlacedGpu(claim.value, None, claim.rank)
        if gpu is None:
            return PlacedGpu(None, NO_GPU)
        if uuid is not None and self._owned.get((node, gpu), NO_INDEX) < rank:
            return PlacedGpu(None, AMBIGUOUS)
        ambiguous = disputed.get((node, gpu, mig), NO_INDEX) <= rank
        return PlacedGpu(gpu, AMBIGUOUS if ambiguous else None, rank)


def _note(claims: dict[_Key, _Claim], key: _Key, claim: _Claim) -> None:
    before = claims.get(key)
    claims[key] = claim if before is None else before.joined(claim)


def pci_key(written: str) -> str:
    """Return an address in one spelling: its domain has four digits, or eight, or is left out.

    >>> pci_key("00000000:5A:00.0"), pci_key("0000:5a:00.0"), pci_key("5a:00.0")
    ('5a:00.0', '5a:00.0', '5a:00.0')
    """
    return written.lower().lstrip("0:")
