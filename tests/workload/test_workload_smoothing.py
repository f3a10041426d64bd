"""Live labels do not flicker: windows and hysteresis; the raw label stays."""

from __future__ import annotations

import itertools
from dataclasses import replace

from one_gpu import Smoothed, smooth, smooth_series
from tachograph.judge.workload.rules import GpuReading
from tachograph.judge.workload.settings import WorkloadSettings

BUSY = GpuReading(0.9, 0.0, 0.3, 0.9, None, 0.0, None, 0.0, 0.0)
IDLE = GpuReading(0.0, 0.0, 0.0, 0.0, None, 0.0, None, 0.0, 0.0)


def shown(
    readings: list[tuple[float, GpuReading]], settings: WorkloadSettings | None = None
) -> list[str]:
    return [one.shown.name for one in smooth_series(readings, settings)]


def raw(readings: list[tuple[float, GpuReading]]) -> list[str]:
    return [one.raw.name for one in smooth_series(readings)]


def test_a_single_dip_is_not_shown_but_stays_in_the_raw_label() -> None:
    readings = [(float(t), IDLE if t == 30 else BUSY) for t in range(0, 61, 2)]
    assert set(shown(readings)) == {"compute-heavy"}
    assert raw(readings)[15] == "idle"
    assert set(raw(readings)) == {"compute-heavy", "idle"}


def test_labels_at_a_threshold_do_not_flicker() -> None:
    """SM on both sides of 80 % in turn: the raw label changes each time, the shown one at most
    once.
    """
    readings = [
        (float(t), replace(BUSY, sm_active=0.81 if t % 4 else 0.785)) for t in range(0, 240, 2)
    ]
    names, shown_names = raw(readings), shown(readings)
    assert sum(one != other for one, other in itertools.pairwise(names)) > 100
    assert sum(one != other for one, other in itertools.pairwise(shown_names)) <= 1


def test_what_lasts_is_shown_after_it_lasted() -> None:
    readings = [(float(t), BUSY if t < 60 else IDLE) for t in range(0, 181, 2)]
    labels = dict(zip((t for t, _ in readings), shown(readings), strict=True))
    assert labels[60] == "compute-heavy"
    assert labels[180] == "idle"
    first = min(t for t, label in labels.items() if label == "idle")
    # The window holds nothing else, and half of it has passed.
    assert 60 + 30 <= first <= 60 + 30 + 15 + 2


def test_a_class_takes_over_only_when_it_has_lasted_half_the_window() -> None:
    """Means of the window are compute-active from some time on: they are shown 15 s later."""
    readings = [(float(t), BUSY if t < 60 else replace(BUSY, sm_active=0.6)) for t in range(121)]
    states = smooth_series(readings)
    begins = next(one.t for one in states if one.candidate == "compute-active")
    changes = next(one.t for one in states if one.shown.name == "compute-active")
    assert changes - begins == 15


def test_unknown_comes_and_goes_at_once() -> None:
    missing = replace(BUSY, sm_active=None)
    readings = [(float(t), missing if 20 <= t < 100 else BUSY) for t in range(0, 161, 2)]
    labels = dict(zip((t for t, _ in readings), shown(readings), strict=True))
    assert labels[20] == "compute-heavy"  # others of the window still decide
    assert labels[50] == labels[98] == "unknown"
    assert labels[100] == "compute-heavy"


def test_a_silence_or_a_clock_set_back_begins_anew() -> None:
    before = smooth_series([(float(t), BUSY) for t in range(0, 60, 2)])[-1]
    for t in (before.t + 30, before.t - 1):
        after: Smoothed = smooth(before, t, IDLE)
        assert (after.shown.name, len(after.readings)) == ("idle", 1)


def test_without_a_window_the_raw_label_is_shown() -> None:
    readings = [(float(t), IDLE if t % 4 else BUSY) for t in range(0, 40, 2)]
    assert shown(readings, WorkloadSettings(smoothing_s=0)) == raw(readings)


def test_a_step_changes_nothing_before() -> None:
    first = smooth(None, 0.0, BUSY)
    smooth(first, 2.0, IDLE)
    assert first == smooth(None, 0.0, BUSY)
    assert len(smooth_series([(float(t), BUSY) for t in range(1000)])[-1].readings) == 30
