"""Sorting, filtering, grouping and fitting, recomputed in plain Python."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.watch.live.fleet_rows import (
    FleetGroup,
    FleetRows,
    fleet_lines,
    groups_of,
    matching,
    parse_filter,
    sorted_rows,
)
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
)
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui.fleet_table import COLUMNS, fit, pieces
from tachograph.annexes.watch.tui.header import HeaderState, header
from tachograph.catalog.errors import UsageError
from tui_screens import Clock, StandIn, app_of


def view_of(gpus: int = 24) -> FleetView:
    """A simulated fleet, with GPUs that report nothing."""
    app = app_of(gpus, clock=Clock())
    snapshot = app.feed.source.read()
    sm = snapshot.values["sm_active"].copy()
    sm[[3, 17]] = np.nan
    return StandIn(app.feed.source.about).step(Snapshot(
        snapshot.t, snapshot.gpus, snapshot.measured, {**snapshot.values, "sm_active": sm},
        snapshot.devices, snapshot.allocations, snapshot.processes,
    ))  # fmt: skip


ROWS = FleetRows(view_of())


def plain(column: str) -> list[float]:
    return [float(value) for value in ROWS.number(column)]


@pytest.mark.parametrize("reverse", [False, True])
def test_numbers_are_sorted_and_missing_ones_come_last(reverse: bool) -> None:
    values = plain("sm")
    reported = sorted(
        (row for row in range(24) if not math.isnan(values[row])), key=lambda row: -values[row]
    )
    if reverse:
        reported = reported[::-1]
    assert sorted_rows(ROWS, "sm", reverse=reverse).tolist() == [*reported, 3, 17]


def test_names_with_numbers_are_sorted_as_numbers() -> None:
    gpus = (GpuId("nid10", 0), GpuId("nid9", 1), GpuId("nid9", 0, 2), GpuId("nid9", 0))
    nothing = np.full(4, np.nan)
    view = StandIn(app_of(1).feed.source.about).step(Snapshot(0.0, gpus, nothing, {}))
    assert [gpus[row].name for row in sorted_rows(FleetRows(view), "gpu")] == [
        "nid9:0",
        "nid9:0.2",
        "nid9:1",
        "nid10:0",
    ]


def test_groups_hold_every_gpu_once_and_the_nameless_come_last() -> None:
    found = groups_of(ROWS.text("user"), sorted_rows(ROWS, "power"))
    assert sorted(row for group in found for row in group.rows.tolist()) == list(range(24))
    for group in found:
        assert {ROWS.text("user")[row] for row in group.rows.tolist()} == {group.name}
        power = [plain("power")[row] for row in group.rows.tolist()]
        assert power == sorted(power, reverse=True)
    names = [group.name for group in found]
    assert "" not in names[:-1]


def test_a_folded_group_is_its_heading_alone() -> None:
    listed = fleet_lines(ROWS, group="node", folded={"sim002"})
    headings = [line for line in listed if isinstance(line, FleetGroup)]
    assert [(line.name, line.folded) for line in headings] == [
        ("sim001", False),
        ("sim002", True),
        ("sim003", False),
    ]
    assert len(listed) == 3 + 16


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("sm<20", lambda row: plain("sm")[row] < 0.2),
        ("sm>=20%", lambda row: plain("sm")[row] >= 0.2),
        ("sm=-", lambda row: math.isnan(plain("sm")[row])),
        ("sm!=-", lambda row: not math.isnan(plain("sm")[row])),
        ("user=ANA", lambda row: ROWS.text("user")[row] == "ana"),
        ("user!=ana", lambda row: ROWS.text("user")[row] != "ana"),
        ("job=-", lambda row: not ROWS.text("job")[row]),
        ("job=100*", lambda row: ROWS.text("job")[row].startswith("100")),
        ("class=compute", lambda row: ROWS.view.bottleneck(row) == "compute"),
        ("class='low utilization'", lambda row: ROWS.view.label(row) == "low utilization"),
        ("class=low", lambda row: ROWS.view.label(row) == "low utilization"),
        ("health!=OK", lambda row: ROWS.view.state(row) != "OK"),
        ("sim002", lambda row: ROWS.gpus[row].node == "sim002"),
        (
            "!sim002 power>200",
            lambda row: ROWS.gpus[row].node != "sim002" and plain("power")[row] > 200,
        ),
        ("mem>30G", lambda row: ROWS.view.snapshot.values["hbm_used_mib"][row] > 30 * 1024),
        (
            "pcie_rx_bytes_per_s>1G",
            lambda row: ROWS.view.snapshot.values["pcie_rx_bytes_per_s"][row] > 1e9,
        ),
        ("held<2min", lambda row: plain("held")[row] < 120),
        ("", lambda row: True),
    ],
)
def test_a_filter_finds_what_it_says(written: str, expected: object) -> None:
    assert callable(expected)
    found = matching(ROWS, parse_filter(written)).tolist()
    assert found == [bool(expected(row)) for row in range(24)]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("smm<20", "unknown column 'smm'"),
        ("user<ana", "user is text and has no <"),
        ("sm<a", "invalid number 'a'"),
        ("power>5%", "power has no unit %"),
        ("user='ana", "invalid filter"),
    ],
)
def test_a_filter_that_is_none_says_why(written: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_filter(written)


@pytest.mark.parametrize("width", [1, 10, 40, 60, 80, 100, 120, 160, 200, 400])
def test_columns_fill_a_width_and_no_more(width: int) -> None:
    places = fit(ROWS, width)
    if places:
        assert sum(place.width for place in places) + len(places) - 1 <= width
    for line in (0, 3, groups_of(ROWS.text("job"), sorted_rows(ROWS, "gpu"))[0]):
        assert len("".join(text for text, _ in pieces(ROWS, line, places))) <= width
    if width >= 80:
        named = [place.column.name for place in places]
        assert named[:9] == ["gpu", "util", "mem", "power", "temp", "class", "real", "sm", "tensor"]
        assert {"dram", "job", "user", "health"} <= set(named)
    if width == 400:
        assert len(places) == len(COLUMNS)


def cells(rows: FleetRows, line: int | FleetGroup, width: int) -> dict[str, str]:
    places = fit(rows, width)
    drawn = "".join(text for text, _ in pieces(rows, line, places))
    return {place.column.name: drawn[place.at : place.at + place.width].strip() for place in places}


def test_free_and_held_idle_gpus_differ() -> None:
    gpus = tuple(GpuId("n1", number) for number in range(3))
    idle = {
        name: np.zeros(3)
        for name in ("sm_active", "tensor_active", "dram_active", "gr_engine_active")
    }
    held = {gpus[0]: GpuAllocation("7", "ana")}
    snapshot = Snapshot(0.0, gpus, np.zeros(3), idle, {}, held, free=frozenset({gpus[1]}))
    rows = FleetRows(StandIn(app_of(1).feed.source.about).step(snapshot))
    assert [cells(rows, row, 400)["class"] for row in range(3)] == [
        "H idle, held",
        "_ free",
        ". idle",
    ]
    assert [cells(rows, row, 40)["class"] for row in range(3)] == ["H", "_", "."]
    assert rows.text("job") == ["7", "free", ""]
    found = {
        written: matching(rows, parse_filter(written)).tolist()
        for written in ("class=free", "class=held")
    }
    assert found == {"class=free": [False, True, False], "class=held": [True, False, False]}
    assert matching(rows, parse_filter("class=idle")).all()
    assert matching(rows, parse_filter("job=-")).tolist() == [False, True, True]
    counts = "".join(text for text, _ in header(rows.view, HeaderState(""), width=120)[1])
    assert "_ 1 free  H 1 held idle  . 1 idle" in counts


NODES = tuple(GpuId("n1", number) for number in range(4))
DEVICE, OTHER_DEVICE = GpuDevice("H100"), GpuDevice("A100")
FACTS: dict[str, list[Any]] = {
    "devices": [{}, {NODES[0]: DEVICE}, {NODES[0]: OTHER_DEVICE}, dict.fromkeys(NODES, DEVICE)],
    "allocations": [
        {},
        {NODES[0]: GpuAllocation("7", "ana")},
        {NODES[0]: GpuAllocation("7", "bo", 5.0)},
        {NODES[1]: GpuAllocation("7", "ana")},
        {gpu: GpuAllocation("8,9", None, 3.0) for gpu in NODES},
    ],
    "free": [frozenset(), frozenset(NODES[:2]), frozenset(NODES[2:])],
    "gpus": [NODES, NODES[:3], NODES[::-1]],
}


def rows_of_facts(facts: Mapping[str, Any], before: FleetRows | None = None) -> FleetRows:
    """Rows of GPUs that report nothing; facts are copied, as by a source that reads them anew."""
    copied = {name: copy.deepcopy(fact) for name, fact in facts.items()}
    nothing = np.full(len(copied["gpus"]), np.nan)
    snapshot = Snapshot(10.0, measured=nothing, values={}, **copied)
    return FleetRows(StandIn(SourceInfo("made", "made for tests")).step(snapshot), before)


facts_of_polls = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(some) for name, some in FACTS.items()}),
    min_size=2,
    max_size=5,
)


@given(facts_of_polls, st.sets(st.sampled_from(["job", "user", "model", "node", "gpu"])))
def test_columns_of_a_view_do_not_depend_on_the_views_before(
    polls: list[dict[str, Any]], drawn: set[str]
) -> None:
    rows = None
    for facts in polls:
        rows = rows_of_facts(facts, rows)
        alone = rows_of_facts(facts)
        for name in drawn:  # other columns of the view before were never made
            assert list(rows.text(name)) == list(alone.text(name)), name
        assert rows.number("held").tolist() == pytest.approx(
            alone.number("held").tolist(), nan_ok=True
        )


def test_texts_are_made_once_while_nothing_changes() -> None:
    facts = {name: some[-1] for name, some in FACTS.items()}
    before = rows_of_facts(facts)
    names = ("job", "user", "model")
    texts = [before.text(name) for name in names]
    after = rows_of_facts(facts, before)
    assert [after.text(name) is text for name, text in zip(names, texts, strict=True)] == [True] * 3
    changed = rows_of_facts(facts | {"allocations": FACTS["allocations"][1]}, after)
    assert changed.text("job") is not texts[0]
    assert changed.text("model") is texts[2]


def test_one_value_is_that_of_its_column() -> None:
    for name in ("real", "power", "held", "mem", "sm"):
        values = [ROWS.value(name, row) for row in range(len(ROWS))]
        assert values == pytest.approx(plain(name), nan_ok=True)
        assert all(type(value) is float for value in values)
