"""One view in every form: table, JSON, CSV, fleet, focus, job; subtotals and evenness redone."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from plain_numbers import Values, percent
from tachograph.annexes.watch.live.fleet_rows import FleetGroup, FleetRows, groups_of, sorted_rows
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.render import (
    ALL_COLUMNS,
    csv_header,
    csv_row,
    json_rows,
    text_table,
)
from tachograph.annexes.watch.live.snapshot import Snapshot
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.annexes.watch.tui.fleet_table import fit, pieces
from tachograph.annexes.watch.tui.focus import focus
from tachograph.annexes.watch.tui.header import HeaderState, header
from tachograph.annexes.watch.tui.job import job_lines
from tachograph.annexes.watch.tui.job_table import job_facts
from tachograph.annexes.watch.tui.page import Row
from tachograph.judge.workload.settings import WorkloadSettings
from tui_screens import Clock

BEGIN = 1_800_000_000.0
LOOKS = 200
LOST, LACKING = 5, 9  # a GPU that reports nothing any more, one without memory in use and SM
MARKS = {"idle": ".", "compute": "C", "io": "I", "memory": "M", "mixed": "X", "unknown": "?"}
SIGNS = {"CRIT": "CRIT !!", "WARN": "WARN !", "HOT": "HOT ^", "OK": "OK", "unknown": "unknown ?"}


def seen() -> tuple[FleetView, list[Snapshot]]:
    """24 GPUs of 3 nodes after some minutes; one is lost, one lacks counters, one has faulty
    memory, one replays.
    """
    clock = Clock(BEGIN)
    source = SimulatedSource(24, seed=5, clock=clock)
    monitor = Monitor(source.about, settings=WorkloadSettings(), history=GpuHistory(600))
    snapshots = []
    for poll in range(LOOKS):
        clock.t = BEGIN + poll
        snapshot = source.read()
        values = {name: column.copy() for name, column in snapshot.values.items()}
        measured = snapshot.measured.copy()
        values["remapped_rows_uncorrectable"][3] = 1.0
        values["gpu_temp_c"][17] = 96.0
        values["pcie_replays"][20] += poll >= 100
        for name in ("hbm_used_mib", "sm_active"):
            values[name][LACKING] = np.nan
        if poll >= 190:
            measured[LOST] = np.nan
            for column in values.values():
                column[LOST] = np.nan
        snapshots.append(replace(snapshot, values=values, measured=measured))
    view = None
    for one in snapshots:
        view = monitor.step(one)
    assert view is not None
    return view, snapshots


VIEW, SNAPSHOTS = seen()
LAST = SNAPSHOTS[-1]
PLAIN: list[Values] = [
    {
        name: None if column[row] != column[row] else float(column[row])
        for name, column in LAST.values.items()
    }
    for row in range(24)
]
REPORTED = json_rows(VIEW)


def written(row: Row) -> str:
    return "".join(part.text for part in row)


def cells_of(
    fleet: FleetRows, line: int | FleetGroup, width: int = 240, skip: int = 0
) -> dict[str, str]:
    """What stands in each column of a line of the fleet, cut out of the drawn line."""
    places = fit(fleet, width, skip=skip, first=14)
    drawn = "".join(text for text, _ in pieces(fleet, line, places))
    return {place.column.name: drawn[place.at : place.at + place.width].strip() for place in places}


def mark_of(row: int) -> str:
    """The letter of a GPU: of an idle one by its allocation."""
    gpu, mark = VIEW.snapshot.gpus[row], MARKS[str(REPORTED[row]["bottleneck"])]
    if mark != ".":
        return mark
    return "H" if gpu in VIEW.snapshot.allocations else "_" if gpu in VIEW.snapshot.free else "."


def test_the_view_holds_what_is_asked_of_it() -> None:
    assert len({one["class"] for one in REPORTED}) >= 4
    assert {one["health"] for one in REPORTED} == {"CRIT", "HOT", "WARN", "OK", "unknown"}
    assert PLAIN[LOST]["power_w"] is None
    assert PLAIN[LACKING]["sm_active"] is None


def test_every_form_shows_the_same_numbers() -> None:
    fleet = FleetRows(VIEW)
    printed = json.loads(msgspec.json.encode(REPORTED))
    text = csv_header(ALL_COLUMNS) + "".join(csv_row(VIEW, row, ALL_COLUMNS) for row in range(24))
    sheet = list(csv.DictReader(io.StringIO(text)))
    head, *lines = text_table(VIEW, width=300).splitlines()
    for row, gpu in enumerate(VIEW.snapshot.gpus):
        plain, cells, on_screen = PLAIN[row], sheet[row], cells_of(fleet, row)
        alone = "\n".join(written(one) for one in focus(VIEW, gpu, width=100))
        real = None if row in (LOST, LACKING) else float(VIEW.real[row])
        pairs: Sequence[tuple[str, str, str, str, float | None]] = (
            ("sm_active", "sm_active_pct", "SM", "sm", plain["sm_active"]),
            ("tensor_active", "tensor_active_pct", "TENS", "tensor", plain["tensor_active"]),
            ("dram_active", "dram_active_pct", "DRAM", "dram", plain["dram_active"]),
            ("gpu_util", "gpu_util_pct", "UTIL", "util", plain["gpu_util"]),
            ("real_utilisation", "real_util_pct", "REAL", "real", real),
        )
        for name, column, title, short, value in pairs:
            assert printed[row][name] == value
            assert cells[column] == ("" if value is None else f"{100 * value:.2f}")
            assert lines[row][: head.index(f" {title} ") + len(title) + 1].split()[-1] == percent(
                value
            )
            assert on_screen[short].split()[-1] == percent(value)
            if name != "real_utilisation":
                message = re.search(rf"^{name} +(\S+)", alone, re.MULTILINE)
                assert message is not None
                assert (
                    message[1] == "-"
                    if value is None
                    else float(message[1]) == pytest.approx(100 * value, abs=0.51)
                )
        power, used = plain["power_w"], plain["hbm_used_mib"]
        assert on_screen["power"] == ("-" if power is None else f"{power:.0f}W")
        assert lines[row][: head.index(" W ") + 2].split()[-1] == (
            "-" if power is None else f"{power:.0f}"
        )
        assert on_screen["mem"] == ("-" if used is None else f"{used / 1024:.1f}/80")
        assert cells["mem_used_pct"] == ("" if used is None else f"{100 * used / 81559:.2f}")
        assert printed[row]["class"] == cells["status"]
        shown = {"H": "idle, held", "_": "free"}.get(mark_of(row), cells["status"])
        assert on_screen["class"] == f"{mark_of(row)} {shown}"
        assert lines[row][head.index("CLASS") : head.index("REAL")].strip() == shown
        assert printed[row]["health"] == cells["health"]
        assert on_screen["health"] == SIGNS[cells["health"]].replace(" ?", "")
        assert f"{SIGNS[cells['health']]}" in alone.splitlines()[0]


def test_subtotals_leave_out_what_is_missing_and_sums_say_that_they_are() -> None:
    fleet = FleetRows(VIEW)
    nodes, classes = [gpu.node for gpu in LAST.gpus], [one["class"] for one in REPORTED]
    for by, whose in (("node", nodes), ("class", classes)):
        groups = groups_of(fleet.text(by), sorted_rows(fleet, "gpu"))
        assert sum(len(group.rows) for group in groups) == 24
        for group in groups:
            members = [row for row in range(24) if whose[row] == group.name]
            assert sorted(group.rows.tolist()) == members
            shown = cells_of(fleet, group)

            def known(name: str, members: Sequence[int] = members) -> list[float]:
                return [value for row in members if (value := PLAIN[row][name]) is not None]

            shares = {"sm": "sm_active", "tensor": "tensor_active", "util": "gpu_util"}
            for short, name in shares.items():
                values = known(name)
                assert shown[short] == percent(statistics.fmean(values) if values else None)
            reals = [
                one for row in members if (one := REPORTED[row]["real_utilisation"]) is not None
            ]
            mean = statistics.fmean(float(str(one)) for one in reals) if reals else None
            assert shown["real"].split()[-1] == percent(mean)
            total = sum(known("power_w"))
            named = f"{total / 1e3:.1f}kW" if total >= 1e3 else f"{total:.0f}W"
            assert shown["power"] == (f"Σ{named}" if known("power_w") else "-")
            used = sum(known("hbm_used_mib")) / 1024
            there = 81559 / 1024 * len(known("hbm_used_mib"))
            whole = f"{there:.0f}" if there < 1e3 else f"{there / 1e3:.1f}k"
            some = (
                f"{used:.1f}"
                if used < 99.95
                else f"{used:.0f}"
                if used < 1e3
                else f"{used / 1e3:.1f}k"
            )
            assert shown["mem"] == (f"Σ{some}/{whole}" if known("hbm_used_mib") else "-")
            assert shown["temp"] == (
                f"{max(known('gpu_temp_c')):.0f}°" if known("gpu_temp_c") else "-"
            )
            counts = Counter(mark_of(row) for row in members)
            assert {part[-1]: int(part[:-1]) for part in shown["class"].split()} == counts
            worst = next(
                s
                for s in ("CRIT", "WARN", "HOT", "unknown", "OK")
                if s in {REPORTED[r]["health"] for r in members}
            )
            assert shown["health"] == SIGNS[worst].replace(" ?", "")


@pytest.mark.parametrize("width", [250, 60])
def test_the_header_counts_limits_and_health(width: int) -> None:
    counted = header(VIEW, HeaderState("every 1 s"), width=width)[1 : 2 if width > 100 else 3]
    lines = ["".join(text for text, _ in line) for line in counted]
    gpus, _, health = lines[0].partition("│")
    limits = f"{gpus}{''.join(lines[1:])}"
    assert re.match(r"24 GPUs ", gpus)
    counts = {mark: int(count) for mark, count in re.findall(r"([._HCIMX?]) (\d+)", limits)}
    assert counts == Counter(map(mark_of, range(24)))
    found = {
        name: int(count)
        for name, count in re.findall(r"(CRIT|WARN|HOT|OK|unknown)[ !^?]* (\d+)", health)
    }
    assert found == Counter(str(one["health"]) for one in REPORTED)
    assert health.endswith(" 1 without values")


# --- one job: imbalance and stragglers, redone from the samples


def test_means_of_a_job_leave_out_what_is_missing() -> None:
    job = job_facts(VIEW, str(REPORTED[8]["job_id"]))
    assert job is not None
    assert LACKING in job.rows
    drawn = job_lines(VIEW, job, "by index", 0, width=120)
    text = " ".join(written(drawn[place]) for place in range(4))
    for word, name in (("SM", "sm_active"), ("tensor", "tensor_active"), ("DRAM", "dram_active")):
        known = [value for row in job.rows if (value := PLAIN[row][name]) is not None]
        message = re.search(rf"{word} ([\d.]+) %", text)
        assert message is not None
        assert float(message[1]) == pytest.approx(100 * statistics.fmean(known), abs=0.51)
    used = [value for row in job.rows if (value := PLAIN[row]["hbm_used_mib"]) is not None]
    assert len(used) == len(job.rows) - 1
    message = re.search(r"Σ memory ([\d.,]+) ([KMG]iB)", text)
    assert message is not None
    size = {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[message[2]]
    assert float(message[1].replace(",", "")) * size == pytest.approx(sum(used), rel=0.01)
