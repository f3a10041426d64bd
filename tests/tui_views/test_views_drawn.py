"""The screens of one GPU and of a job, as text at three sizes; and with something missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.segment import Segment
from scenes import Scene, drawn, job_text, text_of, view_of
from syrupy.assertion import SnapshotAssertion

from tachograph.annexes.watch.live.fleet_rows import FleetRows, absent_columns
from tachograph.annexes.watch.live.snapshot import GpuId, SourceInfo
from tachograph.annexes.watch.live.unsupported import unsupported_counters
from tachograph.annexes.watch.tui.fleet_table import MORE, fit, pieces, titles
from tachograph.annexes.watch.tui.focus import focus
from tachograph.annexes.watch.tui.header import HeaderState, header
from tachograph.annexes.watch.tui.help import help_rows
from tachograph.annexes.watch.tui.job import nothing
from tachograph.annexes.watch.tui.job_table import job_facts
from tui_screens import at_utc

SIZES = [(80, 24), (120, 40), (200, 50)]
VIEWS = [("focus", GpuId("sim001", 1)), ("job", "1001")]
PROFILING = ("sm_active", "fp64_active", "tensor_active", "sm_occupancy")


@pytest.fixture(autouse=True)
def _at_utc() -> Iterator[None]:
    with at_utc():
        yield


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(("name", "of"), VIEWS, ids=[name for name, _ in VIEWS])
def test_a_view_is_drawn(
    name: str, of: GpuId | str | None, size: tuple[int, int], snapshot: SnapshotAssertion
) -> None:
    lines = drawn(name, of, size=size, scene=Scene(16), polls=90)
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize(("name", "of"), VIEWS, ids=[name for name, _ in VIEWS])
def test_without_gpus_a_view_says_so(
    name: str, of: GpuId | str | None, snapshot: SnapshotAssertion
) -> None:
    assert "\n".join(drawn(name, of, size=(80, 24), scene=Scene(0))) == snapshot


@pytest.mark.parametrize("width", [79, 199])
def test_an_unsupported_counter_is_a_dash_with_how_to_enable_it(
    width: int, snapshot: SnapshotAssertion
) -> None:
    view = view_of(Scene(4, without=PROFILING))
    text = text_of(focus(view, view.snapshot.gpus[0], width=width))
    assert text == snapshot
    assert "DCGM_FI_PROF_SM_ACTIVE" in text


@pytest.mark.parametrize("width", [79, 250])
def test_nothing_of_dcgm_is_shown_of_another_exporter(width: int) -> None:
    amd = "AMD device-metrics-exporter"
    reported = {"gpu_util", "dram_active", "hbm_used_mib", "power_w", "gpu_temp_c"}
    missing = unsupported_counters(reported, "dcgm-exporter", exporters=[amd])
    view = view_of(Scene(4))
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
    view = view_of(Scene(4, lost=(2,)))
    text = text_of(focus(view, view.snapshot.gpus[2], width=width))
    assert text == snapshot
    assert "no values now" in text


def test_a_slice_of_a_gpu(snapshot: SnapshotAssertion) -> None:
    view = view_of(Scene(8, mig=True))
    assert text_of(focus(view, view.snapshot.gpus[5], width=79)) == snapshot


@pytest.mark.parametrize(("width", "gpus"), [(79, 8), (119, 64), (199, 512)])
def test_a_job_with_stragglers(width: int, gpus: int, snapshot: SnapshotAssertion) -> None:
    scene = Scene(gpus, slow=(3, 5), lost=(6,))
    view = view_of(scene, polls=24, step_s=15.0)
    text = job_text(view, "stragglers first", width=width)
    assert all(len(line) <= width for line in text.split("\n"))
    assert "\n".join(text.split("\n")[:60]) == snapshot


@pytest.mark.parametrize("width", [79, 199])
def test_header_and_screens_show_the_same_class_of_a_gpu(width: int) -> None:
    """A GPU that a job holds without work is "idle, held" everywhere, not only in the header."""
    scene = Scene(8, slow=(), idle=(5,))
    view = view_of(scene, polls=24, step_s=15.0)
    above = text_of(
        [
            [Segment(text) for text, _ in line]
            for line in header(view, HeaderState("every 1 s"), width=width)
        ]
    )
    assert "H 1 held idle" in above
    text = job_text(view, width=width)
    assert "H 1 idle, held" in text
    (row,) = [line for line in text.splitlines() if "sim001:5 H" in line]
    assert "H idle, held" in row
    assert "H idle, held" in text_of(focus(view, view.snapshot.gpus[5], width=width))
    assert ". idle" not in text


def test_a_job_of_one_gpu(snapshot: SnapshotAssertion) -> None:
    view = view_of(Scene(1, slow=()), polls=70, step_s=5.0)
    assert job_text(view) == snapshot


def test_a_job_without_activity_counters(snapshot: SnapshotAssertion) -> None:
    without = ("gpu_util", "gr_engine_active", "sm_active")
    view = view_of(Scene(4, without=without))
    assert job_text(view, "stragglers first", job="1000") == snapshot


def test_a_job_that_ended() -> None:
    view = view_of(Scene(8))
    assert job_facts(view, "12") is None
    assert "it may have ended" in text_of(nothing(view, "12", width=79))


def test_names_of_users_steer_no_terminal() -> None:
    view = view_of(Scene(2, slow=(), hostile=True))
    text = text_of(focus(view, view.snapshot.gpus[0], width=199)) + job_text(view, width=199)
    assert "mal\\x1b[2J" in text
    assert "\x1b" not in text
    assert "\x07" not in text
