"""The rank that a hang waits for, by what its ranks recorded, beside the culprit by counters.

A collective operation ends when all ranks of its group have joined it. The rank that has not joined
the operation in which the others wait is set apart, unless it waits itself in another group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tachograph.catalog.units import plural, printable
from tachograph.judge.culprit import Culprit
from tachograph.sources.rank_dumps import RankGroup, RankProgress

_SHOWN = 4  # groups and problems in a text
_MOST = 400  # characters of a sentence


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank, as its group counts it, and where it ran; None: not known. `label`: both."""

    rank: int
    node: str | None
    gpu: int | None
    label: str


@dataclass(frozen=True, slots=True)
class RanksCulprit:
    """The ranks that a hang waits for, or why none is named; and why files were not read.

    `agreement` with the culprit by counters: agree, disagree, unknown; ranks, counters (only they
    name any); none. `comparison`: a sentence on it.
    """

    sentence: str
    ranks: tuple[RankPlace, ...]
    agreement: str
    comparison: str

    @property
    def line(self) -> str:
        """All sentences."""
        return f"{self.sentence} {self.comparison}"


@dataclass(frozen=True, slots=True)
class _GroupStop:
    """Ranks behind the others of a group. `number`: of the operation; None: they do not answer."""

    group: RankGroup
    number: int | None
    missed: str
    behind: Sequence[RankProgress]
    waiting: Sequence[RankProgress]

    def sentence(self, places: Sequence[RankPlace]) -> str:
        """Return what ranks did not do, and how many others wait for them."""
        names = ", ".join(place.label for place in places)
        if self.number is None:
            return f"No answer to NCCL's RAS came from {names}"
        kinds = {rank.operations.get(self.number, "") for rank in self.waiting}
        operation = f"{self.number:,} {' or '.join(sorted(kinds))}".strip()
        others = plural(_count(self.waiting), "other")
        missed = f"{self.missed} operation {operation} of {self.group.name}"
        return f"{others} waited for {names}, which {missed}"


def find_ranks(
    groups: Sequence[RankGroup],
    units: Sequence[tuple[str, int]],
    culprit: Culprit | None,
    problems: Sequence[str] = (),
) -> RanksCulprit:
    """Return the ranks a job waits for. `units`: (node, GPU) of the job; `culprit`: by counters."""
    stops = [stop for group in groups for stop in _stops(group)]
    # where ranks do not answer, the counts of the others say only how far each ran ahead
    stops = [stop for stop in stops if stop.number is None] or stops
    waiting = {_identity(rank) for stop in stops for rank in stop.waiting}
    # a rank that is not among those behind may be one that NCCL's text leaves out
    partly = [
        set(map(_identity, stop.behind))
        for stop in stops
        if None in {rank.rank for rank in (*stop.behind, *stop.waiting)}
    ]
    places: dict[RankPlace, None] = {}
    sentences: list[str] = []
    for stop in stops:
        if stop.number is None or _count(stop.behind) <= _count(stop.waiting):
            named = [
                _place(rank, stop.group, units)
                for rank in stop.behind
                if rank.rank is not None
                and _identity(rank) not in waiting
                and all(_identity(rank) in behind for behind in partly)
            ]
            if named:
                sentences.append(stop.sentence(named))
            places |= dict.fromkeys(named)
    if not places:
        reason = "in no group do ranks wait for one that has not joined"
        if stops:
            reason = "more ranks are behind than wait, or they wait elsewhere, too"
        if partly:
            reason = "too few ranks are in the text of NCCL; save that of ncclras -f json"
        sentences.append(f"No rank can be named: {reason}")
    absent = [
        str(rank.rank)
        for group in groups
        for rank in group.ranks
        if rank.joined is None and not rank.lost
    ]
    shown = [*list(dict.fromkeys(sentences))[:_SHOWN], *problems[:_SHOWN]]
    if absent:
        shown.append(f"Nothing is recorded of ranks: {', '.join(dict.fromkeys(absent))}")
    sentence = " ".join(f"{printable(text, most=_MOST)}." for text in shown)
    return RanksCulprit(sentence, tuple(places), *_compared(tuple(places), culprit))


def _count(ranks: Sequence[RankProgress]) -> int:
    return sum(rank.count for rank in ranks)


def _identity(rank: RankProgress) -> object:
    """What tells a rank from others: NCCL counts the ranks of each communicator anew."""
    return rank.rank if rank.gpu is None else (rank.host, rank.gpu)


def _stops(group: RankGroup) -> Iterator[_GroupStop]:
    """Yield how a group stopped; nothing where no rank is behind the others.

    A rank may launch operations beyond the one it waits in: where completed ones are recorded, the
    one after them is it. Else it is the one after the last that all launched.
    """
    ranks = [rank for rank in group.ranks if rank.joined is not None]
    lost = [rank for rank in group.ranks if rank.lost]
    if lost:
        yield _GroupStop(group, None, "", lost, ranks)
        return
    joined = [rank.joined or 0 for rank in ranks]
    completed = [rank.completed for rank in ranks if rank.completed is not None]
    number = 1 + min(completed if len(completed) == len(ranks) else joined, default=0)
    missed = "did not join"
    if min(joined, default=0) >= number:
        missed, joined = "did not start", [rank.started or 0 for rank in ranks]
    behind = [rank for rank, last in zip(ranks, joined, strict=True) if last < number]
    waiting = [
        rank
        for rank, last in zip(ranks, joined, strict=True)
        if last >= number and (rank.completed or 0) < number
    ]
    if behind and waiting:
        yield _GroupStop(group, number, missed, behind, waiting)


def _place(rank: RankProgress, group: RankGroup, units: Sequence[tuple[str, int]]) -> RankPlace:
    """Return where a rank ran: by its record, in a job of one node, or by the order of ranks."""
    number, gpu, condition = rank.rank or 0, rank.gpu, ""
    in_order = sorted(units, key=lambda unit: (len(unit[0]), unit))  # n9 before n10
    unit_by_order = dict(enumerate(in_order)).get(number, (None, None))
    nodes = {node for node, _ in units}
    node = rank.host if rank.host in nodes else None
    if gpu is not None and len(nodes) == 1:
        node = nodes.pop()
    elif not node and group.numbered == len(units) and gpu in (None, unit_by_order[1]):
        node, gpu = unit_by_order
        condition = ", if ranks are in the order of nodes and GPUs"
    label = f"rank {number}"
    if gpu is not None:
        label += f" ({printable(node or rank.host, most=60)} GPU {gpu}{condition})"
    return RankPlace(number, node, gpu, label)


def _compared(places: Sequence[RankPlace], culprit: Culprit | None) -> tuple[str, str]:
    """Return whether the culprit by counters is one of the ranks, and a sentence on it."""
    if culprit is None or not culprit.named:
        return "ranks" if places else "none", "Counters name no GPU."
    unit = (culprit.node,) if culprit.gpu is None else (culprit.node, culprit.gpu)
    units = {(place.node, place.gpu)[: len(unit)] for place in places}
    label = " GPU ".join(map(str, unit))
    if not places:
        return "counters", f"Counters name {label}."
    if unit in units:
        return "agree", f"Counters agree: they name {label}."
    if any(place.node is None for place in places):
        return "unknown", f"Counters name {label}; where the rank ran is not recorded."
    return "disagree", f"Counters disagree: they name {label}."
