"""The screens of one GPU and of a job, as text at three sizes; and with something missing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.segment import Segment
from scenes import JOB, Scene, drawn, text_of, view_of
from syrupy.assertion import SnapshotAssertion

from tachograph.annexes.watch.live.fleet_rows import FleetRows, absent_columns
from tachograph.annexes.watch.live.snapshot import GpuId, SourceInfo
from tachograph.annexes.watch.live.unsupported import unsupported_counters
from tachograph.annexes.watch.tui.fleet_table import MORE, fit, pieces, titles
from tachograph.annexes.watch.tui.focus import focus
from tachograph.annexes.watch.tui.header import HeaderState, header
from tachograph.annexes.watch.tui.help import help_rows
from tachograph.annexes.watch.tui.job import JobLines, job_lines, nothing
from tachograph.annexes.watch.tui.job_table import job_facts
from tui_screens import Clock

SIZES = [(80, 24), (120, 40), (200, 50)]
VIEWS = [("focus", GpuId("sim001", 1)), ("job", "1001")]
PROFILING = ("sm_active", "fp64_active", "tensor_active", "sm_occupancy")


@pytest.fixture(autouse=True)
def _at_utc() -> Iterator[None]:
    zone, os.environ["TZ"] = os.environ.get("TZ"), "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ") if zone is None else os.environ.update(TZ=zone)
    time.tzset()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(("name", "of"), VIEWS, ids=[name for name, _ in VIEWS])
def test_a_view_is_drawn(
    name: str, of: GpuId | str | None, size: tuple[int, int], snapshot: SnapshotAssertion
) -> None:
    clock = Clock()
    lines = drawn(name, of, size=size, scene=Scene(16, clock=clock), clock=clock, polls=90)
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize(("name", "of"), VIEWS, ids=[name for name, _ in VIEWS])
def test_without_gpus_a_view_says_so(
    name: str, of: GpuId | str | None, snapshot: SnapshotAssertion
) -> None:
    clock = Clock()
    assert (
        "\n".join(drawn(name, of, size=(80, 24), scene=Scene(0, clock=clock), clock=clock))
        == snapshot
    )


@pytest.mark.parametrize("width", [79, 199])
def test_an_unsupported_counter_is_a_dash_with_how_to_enable_it(
    width: int, snapshot: SnapshotAssertion
) -> None:
    clock = Clock()
    view = view_of(Scene(4, clock=clock, without=PROFILING), clock)
    text = text_of(focus(view, view.snapshot.gpus[0], width=width))
    assert text == snapshot
    assert "DCGM_FI_PROF_SM_ACTIVE" in text


@pytest.mark.parametrize("width", [79, 250])
def test_nothing_of_dcgm_is_shown_of_another_exporter(width: int) -> None:
    clock, amd = Clock(), "AMD device-metrics-exporter"
    reported = {"gpu_util", "dram_active", "hbm_used_mib", "power_w", "gpu_temp_c"}
    missing = unsupported_counters(reported, "dcgm-exporter", exporters=[amd])
    view = view_of(Scene(4, clock=clock), clock)
    values = {name: column for name, column in view.snapshot.values.items() if name in reported}
    about = SourceInfo("dcgm-exporter", f"{amd} at n1", unsupported=missing, exporters=(amd,))
    view = replace(view, about=about, snapshot=replace(view.snapshot, values=values))
    text = text_of(
        [*focus(view, view.snapshot.gpus[0], width=width), *help_rows(view, width=width)]
    )
    fleet = FleetRows(view)
    places, absent = fit(fleet, width, group="node"), absent_columns(view)
    lines = [
        *header(view, HeaderState(""), width=width),
        *(pieces(fleet, row, places) for row in range(4)),
    ]
    lines += [titles(places, sort="gpu", reverse=False, group="node", width=width, absent=absent)]
    text += "\n".join("".join(part for part, _ in line) for line in lines)
    assert "counters that AMD device-metrics-exporter has no metric for" in text
    assert not re.search("DCGM|NVML|CSV|NVLnk|nvlink_[rt]x|hmma", text)
    assert width < 200 or not text.endswith(MORE)  # all columns are shown


@pytest.mark.parametrize("width", [79, 199])
def test_a_lost_gpu_says_so_and_shows_no_value(width: int, snapshot: SnapshotAssertion) -> None:
    clock = Clock()
    view = view_of(Scene(4, clock=clock, lost=(2,)), clock)
    text = text_of(focus(view, view.snapshot.gpus[2], width=width))
    assert text == snapshot
    assert "no values now" in text


def test_a_slice_of_a_gpu(snapshot: SnapshotAssertion) -> None:
    clock = Clock()
    view = view_of(Scene(8, clock=clock, mig=True), clock)
    assert text_of(focus(view, view.snapshot.gpus[5], width=79)) == snapshot


def _lines(found: JobLines) -> str:
    return text_of([found[place] for place in range(len(found))])


@pytest.mark.parametrize(("width", "gpus"), [(79, 8), (119, 64), (199, 512)])
def test_a_job_with_stragglers(width: int, gpus: int, snapshot: SnapshotAssertion) -> None:
    clock = Clock()
    scene = Scene(gpus, clock=clock, slow=(3, 5), lost=(6,))
    view = view_of(scene, clock, polls=24, step_s=15.0)
    job = job_facts(view, JOB)
    assert job is not None
    text = _lines(job_lines(view, job, "stragglers first", 0, width=width))
    assert all(len(line) <= width for line in text.split("\n"))
    assert "\n".join(text.split("\n")[:60]) == snapshot


@pytest.mark.parametrize("width", [79, 199])
def test_header_and_screens_show_the_same_class_of_a_gpu(width: int) -> None:
    """A GPU that a job holds without work is "idle, held" everywhere, not only in the header."""
    clock = Clock()
    scene = Scene(8, clock=clock, slow=(), idle=(5,))
    view = view_of(scene, clock, polls=24, step_s=15.0)
    job = job_facts(view, JOB)
    assert job is not None
    above = text_of(
        [
            [Segment(text) for text, _ in line]
            for line in header(view, HeaderState("every 1 s"), width=width)
        ]
    )
    assert "H 1 held idle" in above
    text = _lines(job_lines(view, job, "by index", 0, width=width))
    assert "H 1 idle, held" in text
    (row,) = [line for line in text.splitlines() if "sim001:5 H" in line]
    assert "H idle, held" in row
    assert "H idle, held" in text_of(focus(view, view.snapshot.gpus[5], width=width))
    assert ". idle" not in text


def test_a_job_of_one_gpu(snapshot: SnapshotAssertion) -> None:
    clock = Clock()
    view = view_of(Scene(1, clock=clock, slow=()), clock, polls=70, step_s=5.0)
    job = job_facts(view, JOB)
    assert job is not None
    assert _lines(job_lines(view, job, "by index", 0, width=79)) == snapshot


def test_a_job_without_activity_counters(snapshot: SnapshotAssertion) -> None:
    clock = Clock()
    without = ("gpu_util", "gr_engine_active", "sm_active")
    view = view_of(Scene(4, clock=clock, without=without), clock)
    job = job_facts(view, "1000")
    assert job is not None
    assert _lines(job_lines(view, job, "stragglers first", 0, width=79)) == snapshot


def test_a_job_that_ended() -> None:
    clock = Clock()
    view = view_of(Scene(8, clock=clock), clock)
    assert job_facts(view, "12") is None
    assert "it may have ended" in text_of(nothing(view, "12", width=79))


def test_names_of_users_steer_no_terminal() -> None:
    clock = Clock()
    view = view_of(Scene(2, clock=clock, slow=(), hostile=True), clock)
    job = job_facts(view, JOB)
    assert job is not None
    text = text_of(focus(view, view.snapshot.gpus[0], width=199)) + _lines(
        job_lines(view, job, "by index", 0, width=199)
    )
    assert "mal\\x1b[2J" in text
    assert "\x1b" not in text
    assert "\x07" not in text
