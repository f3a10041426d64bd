"""How far each rank of a hung job came: answers of NCCL's RAS, dumps of PyTorch's flight recorder.

Formats: NCCL 2.24 to 2.31, src/ras/client_support.cc; PyTorch, c10d/FlightRecorderDetail.hpp.
Pickles are programs: a dump is loaded only if all of its opcodes make plain values.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from tachograph.catalog.errors import InputError

MOST_BYTES = 64 << 20  # of a file; a dump of 20,000 operations with stack traces has about 40 MB
# all that PyTorch writes; none of them imports, calls or sets attributes
_PLAIN_OPCODES = re.compile(
    "PROTO|STOP|MARK|NONE|NEWTRUE|NEWFALSE|BININT[12]?|LONG1|BINFLOAT|BINUNICODE|TUPLE[123]?|"
    "EMPTY_(DICT|LIST|TUPLE)|APPENDS?|SETITEMS?|(LONG_)?BIN(PUT|GET)"
)
_DAMAGED = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError),
    *(pickle.UnpicklingError, msgspec.MsgspecError),
)
_RANK_OF_FILE = re.compile(r"(\d{1,9})(?:\.\w+)?$")


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far a rank came in the numbered operations of its group. None: not recorded.

    `rank`: None for `count` ranks that NCCL does not name. `joined`, `started`, `completed`: its
    last operation in that state. `operations`: {number: what it is}. `host`, `gpu`: address and
    NVML index. `lost`: it did not answer NCCL.
    """

    rank: int | None
    joined: int | None = None
    started: int | None = None
    completed: int | None = None
    operations: Mapping[int, str] = field(default_factory=dict)
    host: str = ""
    gpu: int | None = None
    lost: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of a process group, or of a communicator of NCCL for one kind of operation.

    `numbered`: how many ranks their numbers are of: all of the job for PyTorch.
    """

    name: str
    ranks: tuple[RankProgress, ...]
    numbered: int


def read_rank_dumps(paths: Sequence[Path]) -> tuple[list[RankGroup], list[str]]:
    """Return the groups of all files, and why some were not read.

    Errors: InputError where nothing could be read.
    """
    groups: list[RankGroup] = []
    dumps: dict[int, _Dump] = {}
    problems: list[str] = []
    for path in paths:
        try:
            groups += _read(path, dumps)
        except _DAMAGED as problem:
            problems.append(f"{path} is not read: {problem}")
    groups += _flight_groups(dumps)
    if not groups:
        raise InputError(
            "; ".join(problems[:1]) or "no process groups",
            do="name answers of ncclras, or dumps of PyTorch's flight recorder",
        )
    return groups, problems


class _FlightEntry(msgspec.Struct):
    record_id: int
    process_group: tuple[str, str]
    collective_seq_id: int
    state: Literal["scheduled", "started", "completed"]
    profiling_name: str = ""
    is_p2p: bool = False


class _RasRank(msgspec.Struct):
    rank: int
    host: str = ""
    nvml_dev: int | None = None
    collective_counts: dict[str, int] = {}
    status: dict[str, object] = {}


class _RasCommunicator(msgspec.Struct):
    hash: str
    ranks: list[_RasRank]
    missing_ranks: list[_RasRank] = []


class _Dump(msgspec.Struct):
    """An answer of RAS has communicators, a dump of the flight recorder process groups."""

    communicators: list[_RasCommunicator] = []
    pg_config: dict[str, dict[str, str]] = {}
    entries: list[_FlightEntry] = []


def _read(file: Path, dumps: dict[int, _Dump]) -> Iterator[RankGroup]:
    """Yield what RAS answered, or add the dump of a rank. Errors: ValueError."""
    if not file.is_file() or file.stat().st_size > MOST_BYTES:
        raise ValueError(f"it is no file of at most {MOST_BYTES >> 20} MiB")
    content = file.read_bytes()
    if content[:1] == b"\x80":
        dump = msgspec.convert(_plain_pickle(content), _Dump)
    elif content.lstrip()[:1] == b"{":
        dump = msgspec.json.decode(content, type=_Dump)
    else:
        yield from _text_groups(content.decode("utf-8", "replace").splitlines())
        return
    for communicator in dump.communicators:
        yield from _ras_groups(communicator)
    if dump.pg_config:
        rank = _RANK_OF_FILE.search(file.name)
        if rank is None or int(rank[1]) in dumps:
            raise ValueError("its name does not end with a rank that no other dump has")
        dumps[int(rank[1])] = dump


def _plain_pickle(content: bytes) -> object:
    """Return the values of a pickle. Errors: ValueError where it would do more than make them."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if not _PLAIN_OPCODES.fullmatch(opcode.name):
            raise ValueError(
                f"it has an opcode that PyTorch does not write: {opcode.name} {argument}"
            )
        if opcode.name == "LONG_BINPUT" and (argument or 0) > count:  # it would fill the memory
            raise ValueError("the pickle numbers more values than it has")
    return pickle.loads(content)


def _flight_groups(dumps: Mapping[int, _Dump]) -> Iterator[RankGroup]:
    """Yield the process groups of all dumps; members without a dump have no progress."""
    members: dict[tuple[str, str], list[int]] = {}
    for dump in dumps.values():
        for name, group in dump.pg_config.items():
            numbers = group.get("ranks", "")  # "[0, 1]"
            label = f"group {name} {group.get('desc', '')} {numbers}"
            members[name, label] = [int(rank) for rank in re.findall(r"\d{1,9}", numbers)]
    numbered = 1 + max((rank for ranks in members.values() for rank in ranks), default=0)
    for (name, label), ranks in sorted(members.items()):
        progress = [
            _flight(rank, dumps[rank], name) if rank in dumps else RankProgress(rank)
            for rank in ranks
        ]
        yield RankGroup(label, tuple(progress), numbered)


def _flight(rank: int, dump: _Dump, group: str) -> RankProgress:
    """Return how far a rank came in a group.

    The buffer is a ring: where its first operations are gone, those of the group may be among them.
    """
    entries = [
        entry for entry in dump.entries if entry.process_group[0] == group and not entry.is_p2p
    ]
    if not entries:
        first = min((entry.record_id for entry in dump.entries), default=0)
        return RankProgress(rank, *(() if first else (0, 0, 0)))
    numbers = [entry.collective_seq_id for entry in entries]
    before = min(numbers) - 1
    started = [entry.collective_seq_id for entry in entries if entry.state != "scheduled"]
    completed = [entry.collective_seq_id for entry in entries if entry.state == "completed"]
    return RankProgress(
        rank,
        max(numbers),
        max(started, default=before),
        max(completed, default=before),
        {entry.collective_seq_id: entry.profiling_name for entry in entries},
    )


def _ras_groups(communicator: _RasCommunicator) -> Iterator[RankGroup]:
    """Yield a communicator once for each kind of operation."""
    members = communicator.ranks + communicator.missing_ranks
    operations = {name for member in members for name in member.collective_counts}
    for operation in sorted(operations) or [""]:
        ranks = [
            RankProgress(
                member.rank,
                member.collective_counts.get(operation),
                host=member.host,
                gpu=member.nvml_dev,
                lost=any(map(member.status.get, ("unresponsive", "considered_dead"))),
            )
            for member in members
        ]
        name = f"{operation} in communicator {communicator.hash}"
        yield RankGroup(name, tuple(ranks), len(ranks))


_HEADER = re.compile(r"\s*#\d+-\d+ \(([0-9a-f]+)\) (\w+)")
_DIFFERENT = re.compile(
    r"\s*Communicator ranks have different (?:(\w+) )?(operation counts|status)"
)
_SEVERAL = re.compile(
    r"\s*(\d{1,7}) ranks have (?:launched up to operation (\d+)|not launched any)"
)
_RANK = re.compile(
    r"\s*Rank (\d+)( has (?:launched up to operation (\d+)|not launched any operations))? -- "
    r"(?:GPU (?:\d+ \(NVML )?(\d+)\)? managed by process \d+ on node (\S+))?"
)


def _text_groups(lines: Sequence[str]) -> Iterator[RankGroup]:
    """Yield communicators with different counts or missing ranks. Errors: ValueError."""
    if "Job summary" not in map(str.strip, lines):
        raise ValueError("neither an answer of NCCL's RAS nor a dump of PyTorch")
    blocks: dict[tuple[str, str], list[RankProgress]] = {}
    ranks: list[RankProgress] = []
    communicator, joined, is_lost = "", 0, False
    for line in lines:
        if header := _HEADER.match(line):
            communicator, is_lost = header[1], header[2] == "INCOMPLETE"
            ranks = []
            if is_lost:
                blocks[communicator, ""] = ranks = [RankProgress(None, lost=True)]
        elif differ := _DIFFERENT.match(line):
            ranks = []
            if differ[2] != "status":
                blocks[communicator, differ[1] or "any kind"] = ranks
        elif several := _SEVERAL.match(line):
            joined = int(several[2] or 0)
            ranks.append(RankProgress(None, joined, count=int(several[1])))
        elif rank := _RANK.match(line):
            if rank[2]:
                joined = int(rank[3] or 0)
            elif ranks and ranks[-1].rank is None:
                ranks.pop()  # that counted this rank and those of the next lines
            gpu = int(rank[4]) if rank[4] else None
            reached = None if is_lost else joined
            host = rank[5] or ""
            ranks.append(RankProgress(int(rank[1]), reached, host=host, gpu=gpu, lost=is_lost))
    for (communicator, operation), ranks in blocks.items():
        numbered = sum(rank.count for rank in ranks)
        name = f"{operation} in communicator 0x{communicator}"
        yield RankGroup(name, tuple(ranks), numbered)
