"""Launches in the lake's form: what comes back is what went in, whatever the report holds."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.annexes.share.nsight.launches import Chip, Launch, encodable
from tachograph.annexes.share.nsight.packed_launches import (
    VERSION,
    pack_launches,
    unpack_launches,
)
from tachograph.catalog.errors import InputError

NAMES = st.text(st.characters(exclude_categories=()), max_size=12)  # also halves of surrogate pairs
METRICS = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(), max_size=6)
SIDES = st.integers(0, 2**31 - 1)
SIZES = st.none() | st.tuples(SIDES, SIDES, SIDES)
CHIPS = st.builds(
    Chip,
    st.none() | NAMES,
    st.none() | st.just("9.0"),
    st.dictionaries(NAMES.map(encodable), st.floats(0, 1e12)),
)
LAUNCHES = st.lists(
    st.builds(
        Launch,
        kernel=NAMES,
        metrics=METRICS,
        chip=CHIPS,
        report=st.just("read.csv"),
        number=st.integers(0, 2**31),
        grid=SIZES,
        block=SIZES,
        ranges=st.lists(NAMES, max_size=3).map(tuple),
    ),
    max_size=6,
)


def plain(launch: Launch) -> tuple[object, ...]:
    """A launch under the name `kept.csv`, without values that no report has as numbers."""
    metrics = {name: value for name, value in launch.metrics.items() if math.isfinite(value)}
    name = None if launch.chip.name is None else encodable(launch.chip.name)
    chip = (name, launch.chip.compute_capability, dict(launch.chip.attributes))
    ranges = tuple(map(encodable, launch.ranges))
    return encodable(launch.kernel), metrics, chip, launch.number, launch.grid, launch.block, ranges


@settings(max_examples=settings().max_examples // 2)
@given(LAUNCHES)
def test_launches_come_back_as_they_were(launches: list[Launch]) -> None:
    packed = pack_launches(launches)
    found = unpack_launches(packed, report="kept.csv")
    assert [plain(launch) for launch in found] == [plain(launch) for launch in launches]
    assert {launch.report for launch in found} <= {"kept.csv"}
    assert unpack_launches(pack_launches(found), report="kept.csv") == found


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": VERSION + 1}, "its launches cannot be read: Invalid value 2"),
        ({"metrics": 3}, "its launches cannot be read"),
        ({"chips": []}, "its launches cannot be read"),
    ],
)
def test_what_cannot_be_read_is_an_error(changed: dict[str, object], message: str) -> None:
    packed = pack_launches([Launch("copy", {"a": 1.0}, Chip("H100"), "a.csv", 0)])
    content = msgspec.json.encode(json.loads(packed["content"] or "") | changed).decode()
    with pytest.raises(InputError, match=message):
        unpack_launches(packed | {"content": content}, report="a.csv")
