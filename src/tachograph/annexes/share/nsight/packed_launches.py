"""All data of launches as one JSON object, so that the file is not needed.

The object has `version`, `metrics` (names), `chips`, and `launches`. A launch has the places of its
kernel and of its NVTX ranges in the lists of names, and that of its chip in `chips`; its `values`
are in the order of `metrics`, null where one was not collected. Names that a person gave are not in
the object, so they can be replaced without reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tachograph.annexes.share.nsight.launches import Chip, Launch
from tachograph.catalog.errors import InputError

if TYPE_CHECKING:
    from tachograph.catalog.rows import ProfileRow

VERSION = 1


class _PackedLaunch(msgspec.Struct, frozen=True):
    kernel: int
    number: int
    chip: int
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    ranges: tuple[int, ...]
    values: list[float | None]


class _Content(msgspec.Struct, frozen=True, tag_field="version", tag=VERSION):
    metrics: list[str]
    chips: list[Chip]
    launches: list[_PackedLaunch]


def pack_launches(launches: Sequence[Launch]) -> ProfileRow:
    """Return kernels and NVTX ranges, each name once, and as content what points to them.

    JSON has null for NaN and infinite values.
    """
    metrics = sorted({name for launch in launches for name in launch.metrics})
    kernels: dict[str, int] = {}
    ranges: dict[str, int] = {}
    chips: list[Chip] = []
    packed = []
    for launch in launches:
        if launch.chip not in chips:
            chips.append(launch.chip)
        packed.append(
            _PackedLaunch(
                kernel=kernels.setdefault(launch.kernel, len(kernels)),
                number=launch.number,
                chip=chips.index(launch.chip),
                grid=launch.grid,
                block=launch.block,
                ranges=tuple(ranges.setdefault(name, len(ranges)) for name in launch.ranges),
                values=list(map(launch.metrics.get, metrics)),
            )
        )
    content = msgspec.json.encode(_Content(metrics, chips, packed)).decode()
    return {"kernels": list(kernels), "ranges": list(ranges), "content": content}


def unpack_launches(packed: ProfileRow, *, report: str) -> tuple[Launch, ...]:
    """Return the launches as if `report` was the file that they were read from.

    Errors: InputError for an object of another version, or one that is damaged.
    """
    try:
        content = msgspec.json.decode(packed["content"] or "", type=_Content)
        launches = []
        for launch in content.launches:
            values = zip(content.metrics, launch.values, strict=False)
            launches.append(
                Launch(
                    kernel=packed["kernels"][launch.kernel],
                    metrics={name: value for name, value in values if value is not None},
                    chip=content.chips[launch.chip],
                    report=report,
                    number=launch.number,
                    grid=launch.grid,
                    block=launch.block,
                    ranges=tuple(packed["ranges"][index] for index in launch.ranges),
                )
            )
        return tuple(launches)
    except (msgspec.DecodeError, IndexError) as problem:
        what = f"its launches cannot be read: {problem}"
        raise InputError(what, where=report, do="detach the report, and attach it again") from None
