"""All data of launches as one JSON object, so that the file is not needed.

The object has `version`, `metrics` (names), `chips`, and `launches`. A launch has the places of its
kernel and of its NVTX ranges in the lists of names, and that of its chip in `chips`; its `values`
are in the order of `metrics`, null where one was not collected. Names that a person gave are not in
the object, so they can be replaced without reading it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import msgspec

from tachograph.annexes.share.nsight.launches import Chip, Launch, encodable
from tachograph.catalog.errors import InputError

VERSION = 1


@dataclass(frozen=True, slots=True)
class PackedLaunches:
    """Names of kernels and NVTX ranges, each once, and the JSON object that points to them."""

    kernels: tuple[str, ...]
    ranges: tuple[str, ...]
    content: str


class _PackedLaunch(msgspec.Struct, frozen=True):
    kernel: int
    number: int
    chip: int
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    ranges: tuple[int, ...]
    values: list[float | None]


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class _Content(_Versioned, frozen=True):
    metrics: list[str]
    chips: list[Chip]
    launches: list[_PackedLaunch]


@dataclass(slots=True)
class _MetricPlaces:
    """Places of names, in the order in which they came."""

    of: dict[str, int] = field(default_factory=dict)

    def __call__(self, name: str) -> int:
        return self.of.setdefault(encodable(name), len(self.of))


def pack_launches(launches: Sequence[Launch]) -> PackedLaunches:
    """Return packed launches in order; NaN and infinite values count as not collected."""
    kernels, ranges, chips = _MetricPlaces(), _MetricPlaces(), list[Chip]()
    metrics = sorted(
        {name for launch in launches for name, value in launch.metrics.items() if isfinite(value)}
    )
    packed = []
    for launch in launches:
        if launch.chip not in chips:
            chips.append(launch.chip)
        packed.append(
            _PackedLaunch(
                kernel=kernels(launch.kernel),
                number=launch.number,
                chip=chips.index(launch.chip),
                grid=launch.grid,
                block=launch.block,
                ranges=tuple(map(ranges, launch.ranges)),
                values=list(_values(launch.metrics, metrics)),
            )
        )
    content = _Content(
        VERSION, list(map(encodable, metrics)), list(map(_packed_chip, chips)), packed
    )
    return PackedLaunches(
        tuple(kernels.of), tuple(ranges.of), msgspec.json.encode(content).decode()
    )


def unpack_launches(packed: PackedLaunches, *, report: str) -> tuple[Launch, ...]:
    """Return the launches as if `report` was the file that they were read from.

    Errors: InputError for an object of another version, or one that is damaged.
    """
    try:
        version = msgspec.json.decode(packed.content, type=_Versioned).version
        if version != VERSION:
            what = f"its launches are in version {version} of the format, not {VERSION}"
            raise InputError(
                what, where=report, do="attach the report again with this version of Tachograph"
            )
        content = msgspec.json.decode(packed.content, type=_Content)
        launches = []
        for launch in content.launches:
            ranges = tuple(packed.ranges[index] for index in launch.ranges)
            launches.append(
                Launch(
                    kernel=packed.kernels[launch.kernel],
                    metrics=_collected(content.metrics, launch.values),
                    chip=content.chips[launch.chip],
                    report=report,
                    number=launch.number,
                    grid=launch.grid,
                    block=launch.block,
                    ranges=ranges,
                )
            )
        return tuple(launches)
    except (msgspec.DecodeError, IndexError) as problem:
        what = f"its launches cannot be read: {problem}"
        raise InputError(what, where=report, do="detach the report, and attach it again") from None


def _packed_chip(chip: Chip) -> Chip:
    attributes = {
        encodable(name): value for name, value in chip.attributes.items() if isfinite(value)
    }
    name = None if chip.name is None else encodable(chip.name)
    return Chip(name, chip.compute_capability, attributes)


def _values(metrics: Mapping[str, float], names: Iterable[str]) -> Iterator[float | None]:
    for name in names:
        value = metrics.get(name)
        yield value if value is not None and isfinite(value) else None


def _collected(names: Sequence[str], values: Sequence[float | None]) -> dict[str, float]:
    return {name: value for name, value in zip(names, values, strict=False) if value is not None}
