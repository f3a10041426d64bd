"""Slurm's generic resources: `gpu:a100:2`, `shard:4(IDX:0)`, `gres/mps=50`.

Slurm gives a GPU whole (gres/gpu), or in parts that several jobs hold at once: shards (gres/shard)
or hundredths (gres/mps), never both at a time. https://slurm.schedmd.com/gres.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tachograph.sources.slurm.fields import BadRowError, absent

SHARES: Final = ("shard", "mps")  # parts of GPUs, which other jobs may hold at the same time
GPU_NAMES: Final = ("gpu", *SHARES)
_MIG = re.compile(r"(?:^|[_-])\d+g\.\d+")
_PART = re.compile(
    r"(?:gres[/:])?(?P<name>[^\s:=/()]+)(?:[:=](?P<middle>(?:\(null\)|[^()])*?))??(?:[:=](?P<count>\d+(?:\.\d+)?[KMGTP]?))?"
    r"(?P<notes>(?:\([^()]*\))*)",
    re.ASCII | re.IGNORECASE,
)
_NOTE = re.compile(r"\(([^()]*)\)")
_INDICES = re.compile(r"\((?:IDX|INDEX):((?:[^()]|\([^()]*\))*)\)", re.ASCII | re.IGNORECASE)
# the share of one device, after its index
_OF_INDEX = re.compile(r"(?P<device>[\d-]+)\((?P<held>\d+)/(?P<all>\d+)\)", re.ASCII)
_PER_DEVICE = re.compile(r"\d+/\d+(?:,\d+/\d+)*", re.ASCII)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
# What a count of `ReqGRES` is of: a node, the job, a socket.
_PER = re.compile(r"\bPER_([A-Z]+):", re.IGNORECASE)
_NO_TYPE = frozenset({"", "(null)", "no_consume"})


@dataclass(frozen=True, slots=True)
class Gres:
    """A generic resource. type None: untyped; count None: not written; devices None: unknown.

    parts: {device: the part of it}, 0..1, of those whose part is written.
    """

    name: str
    type: str | None = None
    count: int | None = None
    devices: tuple[int, ...] | None = None
    parts: tuple[tuple[int, float], ...] = ()

    @property
    def is_mig(self) -> bool:
        """Whether it counts MIG slices, whose index differs from the GPU's."""
        return bool(self.type and _MIG.search(self.type))


@lru_cache(maxsize=8192)
def read_gres(written: str) -> tuple[Gres, ...]:
    """Return the GPUs, shards and MPS shares of a list; other resources are left out.

    >>> read_gres("gpu:(null):2(IDX:0,3),nvme:1")
    (Gres(name='gpu', type=None, count=2, devices=(0, 3), parts=()),)
    >>> read_gres("shard:a100:3(0/4,3/4)")[0].devices, read_gres("gpu:1(CNT:1)")[0].devices
    ((1,), None)
    >>> shards, mps = read_gres("shard:6(IDX:2(4/8),3(2/8)),mps:50(0/100,50/100)")
    >>> shards.devices, shards.parts, mps.devices, mps.parts
    ((2, 3), ((2, 0.5), (3, 0.25)), (1,), ((1, 0.5),))
    >>> read_gres("shard:3(3/4)")[0].parts  # of a node with one GPU
    ((0, 0.75),)

    Errors: BadRowError `bad_gres` where one of them cannot be read, `bad_gpu_index` for an invalid
    index.
    """
    if absent(written):
        return ()
    parts = [_part(_PER.sub("", part.strip())) for part in _split(written) if part.strip()]
    return tuple(part for part in parts if part is not None)


def _split(written: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth, begun = [], 0, 0
    for position, letter in enumerate(written):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(written[begun:position])
            begun = position + 1
    return [*parts, written[begun:]]


def _part(written: str) -> Gres | None:
    parts: list[tuple[int, float]] = []
    listed = _INDICES.search(written)
    if listed:
        parts = _parts(_OF_INDEX.findall(listed[1]))
        names = _OF_INDEX.sub(r"\g<device>", listed[1])
        written = f"{written[: listed.start()]}(IDX:{names}){written[listed.end() :]}"
    match = _PART.fullmatch(written)
    if match is None:
        if any(name in written.lower() for name in GPU_NAMES):
            raise BadRowError("bad_gres")
        return None
    name = _GRES_IDS.get(match["name"], match["name"].lower())
    if name not in GPU_NAMES:
        return None
    kind = (
        ":".join(
            word for word in (match["middle"] or "").split(":") if word.lower() not in _NO_TYPE
        )
        or None
    )
    for note in _NOTE.findall(match["notes"]):
        if _PER_DEVICE.fullmatch(note):
            counts = [count.split("/") for count in note.split(",")]
            parts = _parts([(str(device), *count) for device, count in enumerate(counts)])
    return Gres(name, kind, _count(match["count"]), _devices(match["notes"]), tuple(parts))


def _count(written: str | None) -> int | None:
    if written is None:
        return None
    number, suffix = (written, "") if written[-1].isdigit() else (written[:-1], written[-1].lower())
    count = float(number) * _FACTORS[suffix]
    if not count.is_integer() or count >= 1 << 31:
        raise BadRowError("bad_gres")
    return int(count)


def _devices(notes: str) -> tuple[int, ...] | None:
    """Return indices of `(IDX:0-1,3)`, or of devices with a share in `(0/4,3/4)`."""
    for note in _NOTE.findall(notes):
        kind, mark, value = note.partition(":")
        if mark and kind.strip().upper() in {"IDX", "INDEX"} and not absent(value):
            return indices(value)
        if _PER_DEVICE.fullmatch(note):
            return tuple(
                position for position, of in enumerate(note.split(",")) if not of.startswith("0/")
            )
    return None


def _parts(counts: Sequence[tuple[str, ...]]) -> list[tuple[int, float]]:
    """Return (device, its part) of (device, shares held, shares of the device) as written."""
    parts = []
    for device, held, all_of_it in counts:
        if device.isdigit() and 0 < int(held) <= int(all_of_it):
            parts.append((int(device), int(held) / int(all_of_it)))
    return parts


def _gres_id(name: str) -> str:
    """Numeric GRES id of databases up to Slurm 20.11: the name's letters, eight bits each.

    >>> _gres_id("gpu")
    '7696487'
    """
    return str(
        sum(ord(letter) << (position * 8 % 32) for position, letter in enumerate(name)) & 0xFFFFFFFF
    )


_GRES_IDS: Mapping[str, str] = {_gres_id(name): name for name in GPU_NAMES}


def gres_counts(written: str) -> dict[str, int]:
    """Return counts by TRES name, default 1; `AllocGRES` counts over all nodes.

    >>> gres_counts("gpu:v100:2,gpu:k80:1,nvme:1"), gres_counts("7696487:4"), gres_counts("gpu")
    ({'gres/gpu:v100': 2, 'gres/gpu:k80': 1}, {'gres/gpu': 4}, {'gres/gpu': 1})

    Errors: BadRowError as `read_gres`.
    """
    counts: dict[str, int] = {}
    for part in read_gres(written):
        name = f"gres/{part.name}:{part.type}" if part.type else f"gres/{part.name}"
        counts[name] = counts.get(name, 0) + (1 if part.count is None else part.count)
    return counts


def requested_gres(written: str, nodes: int | None) -> dict[str, int]:
    """Return counts of `ReqGRES` over all nodes of a job, under the names of TRES.

    Slurm 20 writes of what it counts: `PER_NODE:gpu:2`, `PER_JOB:gpu:8`. Without that it may be of
    a node or of all, which is known for jobs of one node alone; per socket or task it is unknown.

    >>> requested_gres("PER_NODE:gpu:2", 4), requested_gres("gpu:2", 1), requested_gres("gpu:2", 4)
    ({'gres/gpu': 8}, {'gres/gpu': 2}, {})

    Errors: BadRowError as `read_gres`.
    """
    per = {word.lower() for word in _PER.findall(written)}
    counts = gres_counts(written)
    if (
        per - {"node", "job"}
        or len(per) > 1
        or (per != {"job"} and not nodes)
        or (not per and nodes != 1)
    ):
        return {}
    return (
        {name: count * (nodes or 1) for name, count in counts.items()}
        if per == {"node"}
        else counts
    )


MAX_INDEX = 4095  # a node has fewer GPUs


def indices(written: str, *, most: int = MAX_INDEX) -> tuple[int, ...]:
    """Return the GPU indices of a list: `0-1,3`, `0;1`, `[0-3]`; none is greater than `most`.

    >>> indices("0-1,3"), indices("0;1"), indices("[2-3]")
    ((0, 1, 3), (0, 1), (2, 3))

    Errors: BadRowError when it is no list of indices.
    """
    numbers: list[int] = []
    for part in re.split(r"[,;\s]+", written.strip().strip("[]").strip()):
        ends = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part, re.ASCII)
        if not ends:
            raise BadRowError("bad_gpu_index")
        low, high = int(ends[1]), int(ends[2] or ends[1])
        if high < low or high > most:
            raise BadRowError("bad_gpu_index")
        numbers += range(low, high + 1)
        if len(numbers) > most + 1:  # a short text can repeat a long range
            raise BadRowError("bad_gpu_index")
    return tuple(dict.fromkeys(numbers))


_COUNTED_GRES = frozenset({"gres/gpu", "gres/shard", "gres/mps"})


@lru_cache(maxsize=8192)
def _tres(written: str) -> tuple[tuple[str, int], ...]:
    pairs = []
    for part in written.split(","):
        name, mark, value = part.rpartition("=")
        if not mark:
            raise BadRowError("bad_tres")
        name = name.strip().lower()
        if name in {"cpu", "node"} or name.partition(":")[0] in _COUNTED_GRES:
            if not re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
                raise BadRowError("bad_tres")
            pairs.append((name, int(value)))
    return tuple(pairs)


def tres(written: str) -> dict[str, int]:
    """Return the counts of CPUs, nodes, GPUs and GPU shares in a TRES list; ignores the rest.

    >>> tres("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,gres/gpumem=80G,mem=62.50G,node=1")
    {'cpu': 8, 'gres/gpu:a100': 2, 'gres/gpu': 2, 'node': 1}

    Errors: BadRowError when it is not one.
    """
    return {} if absent(written) else dict(_tres(written))


def gpus(counts: Mapping[str, int]) -> tuple[int | None, str | None]:
    """Return (GPUs, type) of a TRES list, None without GPUs; typed counts repeat untyped ones.

    >>> gpus({"gres/gpu": 4, "gres/gpu:a100": 4}), gpus({"gres/gpu:h200": 2, "gres/gpu:h100": 4}), gpus({"cpu": 1})
    ((4, 'a100'), (6, 'h100+h200'), (None, None))
    """
    return _gres_count(counts, "gpu")


def shares(counts: Mapping[str, int]) -> tuple[int | None, int | None, str | None]:
    """Return (shards, MPS in hundredths of a GPU, GPU type) of a TRES list; None without shares.

    >>> shares({"gres/shard": 4, "gres/shard:a100": 4}), shares({"gres/mps": 50}), shares({"gres/gpu": 1})
    ((4, None, 'a100'), (None, 50, None), (None, None, None))
    """
    (shards, of_shards), (mps, of_mps) = _gres_count(counts, "shard"), _gres_count(counts, "mps")
    return shards or None, mps or None, of_shards or of_mps


def _gres_count(counts: Mapping[str, int], name: str) -> tuple[int | None, str | None]:
    """Number of a GRES and its types; typed counts repeat untyped ones."""
    prefix = f"gres/{name}"
    typed = {
        key[len(prefix) + 1 :]: count
        for key, count in counts.items()
        if key.startswith(f"{prefix}:") and count
    }
    kind = "+".join(sorted(typed)) or None
    if prefix in counts:
        return counts[prefix], kind
    return (sum(typed.values()), kind) if typed else (None, None)
