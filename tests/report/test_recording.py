"""The recording of a job against plain arithmetic over its minutes, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from synthetic_job import NOW, judged

from jobframes import START, frame, gpus, minutes, summary
from tachograph.api.open_lake import open_lake
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import JOB_MINUTES
from tachograph.judge.steps import job_steps
from tachograph.report.job import JobReport, build_job_report
from tachograph.report.job_page import recording_json
from tachograph.report.recording import COUNTER_LABELS, Panel, Recording, recording

Key = tuple[str, int, int | None]
# Rounding of the recording: half of its last digit, and what binary numbers add to it.
CLOSE = {"strip": 0.000501, "fraction": 0.0000501, "ratio": 0.0000501, "W": 0.0501, "MiB": 0.501}


def plain_bins(rows: Sequence[dict[str, Any]], counter: str, per_bin: int) -> dict[int, float]:
    """Return {bin: mean over its minutes} of one GPU's rows."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row["minute"] >= 0 and row[counter] is not None:
            values.setdefault(row["minute"] // per_bin, []).append(row[counter])
    return {place: fmean(measured) for place, measured in values.items()}


def plain_by_gpu(table: pl.DataFrame, counter: str, per_bin: int) -> dict[Key, dict[int, float]]:
    """Return {GPU: {bin: mean}}."""
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in table.iter_rows(named=True):
        rows.setdefault((row["node"], row["gpu"], row["mig"]), []).append(row)
    return {key: plain_bins(mine, counter, per_bin) for key, mine in rows.items()}


def same(values: Sequence[float | None], expected: dict[int, float], close: float) -> None:
    """Compare one series with {bin: value}; every other bin must be null."""
    assert {place for place, value in enumerate(values) if value is not None} == set(expected)
    for place, value in expected.items():
        assert values[place] == pytest.approx(value, abs=close, rel=1e-6)


def compare(report: JobReport, table: pl.DataFrame) -> Recording:
    """Compare everything that a recording says with its job's minutes; return it as read back."""
    shown = msgspec.json.decode(str(recording_json(report)), type=Recording)
    assert shown == recording(report)
    bins = report.timeline.bins
    per_bin = round(shown.bin_s / 60)
    keys = [(gpu.row["node"], gpu.row["gpu"], gpu.row["mig"]) for gpu in report.gpus]
    assert list(shown.gpus) == [gpu.label for gpu in report.gpus]
    if shown.strips is not None:
        plain = plain_by_gpu(table, shown.strips.counter, per_bin)
        assert len(shown.strips.rows) == len(keys)
        for key, row in zip(keys, shown.strips.rows, strict=True):
            assert len(row) == bins
            same(row, plain.get(key, {}), CLOSE["strip"])
    for panel in shown.panels:
        for line in panel.lines:
            assert len(line.values) == bins
            if line.counter is not None:
                compare_line(panel, line.counter, line.values, table, per_bin)
    compare_imbalance(shown, table, report)
    measured = {name for name in COUNTER_LABELS if table.get_column(name).is_not_null().any()}
    assert {counter.name for counter in shown.counters} == measured
    return shown


def compare_line(
    panel: Panel, counter: str, values: Sequence[float | None], table: pl.DataFrame, per_bin: int
) -> None:
    by_gpu = plain_by_gpu(table, counter, per_bin)
    in_bin: dict[int, list[float]] = {}
    for bins in by_gpu.values():
        for place, value in bins.items():
            in_bin.setdefault(place, []).append(value)
    if counter == "hbm_used_mib":
        most: dict[int, float] = {}
        for row in table.iter_rows(named=True):
            if row["minute"] >= 0 and row[counter] is not None:
                place = row["minute"] // per_bin
                most[place] = max(most.get(place, 0.0), row[counter])
        same(values, most, CLOSE["MiB"])
        return
    close = CLOSE[panel.unit]
    same(values, {place: fmean(measured) for place, measured in in_bin.items()}, close)
    if panel.band is not None:
        same(panel.band.low, {place: min(measured) for place, measured in in_bin.items()}, close)
        same(panel.band.high, {place: max(measured) for place, measured in in_bin.items()}, close)


def compare_imbalance(shown: Recording, table: pl.DataFrame, report: JobReport) -> None:
    panel = next((panel for panel in shown.panels if panel.unit == "ratio"), None)
    if shown.strips is None or len(shown.gpus) == 1:
        assert panel is None
        return
    by_gpu = plain_by_gpu(table, shown.strips.counter, round(shown.bin_s / 60))
    bins = report.timeline.bins
    across: dict[int, float] = {}
    over_time: dict[int, float] = {}
    for place in range(bins):
        levels = [mine[place] for mine in by_gpu.values() if place in mine]
        if levels and max(levels) >= 0.01:
            across[place] = 1 - fmean(levels) / max(levels)
        if place < 11:
            continue
        windows = [
            [mine[other] for other in range(place - 11, place + 1) if other in mine]
            for mine in by_gpu.values()
        ]
        imbalances = [
            1 - fmean(window) / max(window) for window in windows if window and max(window) >= 0.01
        ]
        if imbalances:
            over_time[place] = max(imbalances)
    lines = {} if panel is None else {line.label: line.values for line in panel.lines}
    for label, expected in (("across GPUs", across), ("over time", over_time)):
        if expected:
            same(lines[label], expected, CLOSE["ratio"])
        else:
            assert label not in lines


def report_of(row: JobSummaryRow, held: pl.DataFrame, table: pl.DataFrame) -> JobReport:
    return build_job_report(row, held, table, [], NOW)


def strip(row: dict[str, Any], **values: float | None) -> dict[str, Any]:
    key = {"job_key": "c:100:1", "job_id": "100", "seq": 1, "samples": 6}
    return key | {"t": START + timedelta(minutes=row["minute"])} | row | values


_LEVELS = st.none() | st.floats(0, 1, width=32)


@settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(
    st.integers(1, 5).flatmap(
        lambda count: st.lists(
            st.lists(_LEVELS, min_size=count, max_size=count), min_size=1, max_size=40
        )
    ),
    st.booleans(),
)
def test_every_cell_is_that_of_the_minutes(by_minute: list[list[float | None]], mig: bool) -> None:
    rows = [
        strip(
            {"node": "n1", "gpu": 0 if mig else gpu, "mig": gpu if mig else None, "minute": minute},
            gpu_util=level,
            power_w=None if level is None else 80 + 300 * level,
            dram_active=None if level is None else level / 2,
            tensor_active=None if level is None else level / 300,
            hbm_used_mib=None if level is None else 1000 * level,
        )
        for minute, levels in enumerate(by_minute)
        for gpu, level in enumerate(levels)
        if level != 0.5  # a minute without a row
    ]
    table = frame(JOB_MINUTES, rows)
    count = len(by_minute[0])
    held = [{"gpu": 0 if mig else gpu, "mig": gpu if mig else None} for gpu in range(count)]
    row = summary(elapsed_s=len(by_minute) * 60.0, gpus=count, gpu_util_mean=0.5)
    shown = compare(report_of(row, gpus(*held), table), table)
    pipes = {line.counter for panel in shown.panels for line in panel.lines}
    assert "tensor_active" not in pipes  # it never reaches half a percent


@pytest.mark.parametrize(
    ("count", "length", "bin_s"),
    [(1, 1, 60.0), (512, 12, 60.0), (3, 241, 120.0), (2, 10080, 2520.0)],
)
def test_from_one_minute_to_a_week_and_to_512_gpus(count: int, length: int, bin_s: float) -> None:
    levels = [
        [(gpu * 31 + minute * 7) % 101 / 100 for minute in range(length)] for gpu in range(count)
    ]
    table = minutes(*levels, power_w=[100.0 + minute % 50 for minute in range(length)])
    row = summary(elapsed_s=length * 60.0 - 20, gpus=count, gpu_util_mean=0.5)
    shown = compare(report_of(row, gpus(*({} for _ in range(count))), table), table)
    assert shown.bin_s == bin_s
    assert shown.length_s == length * 60.0 - 20
    assert shown.strips is not None
    assert len(shown.strips.rows) == count
    assert shown.start_s == START.timestamp()


def test_every_job_of_the_demo_is_drawn_from_its_minutes(demo: Path) -> None:
    opened = open_lake(str(demo / "lake"))
    jobs = opened.jobs().sort("gpus", "elapsed_s", descending=True)
    for row in (*jobs.head(3).rows(named=True), *jobs.tail(3).rows(named=True)):
        report = opened.job(row["job_id"]).report
        table = opened.minutes(opened.run_of(row["job_id"]))
        compare(report, table)


def test_a_gpu_that_was_never_measured_has_an_empty_strip() -> None:
    report = report_of(
        summary(gpus=2, elapsed_s=120.0, gpu_util_mean=0.5), gpus({}, {}), minutes([0.5, 0.25])
    )
    shown = recording(report)
    assert shown.strips is not None
    assert shown.strips.rows == ((0.5, 0.25), (None, None))
    assert shown.gpus == ("GPU 0", "GPU 1")


def test_nothing_measured_is_nothing_to_draw() -> None:
    shown = recording(report_of(summary(), gpus({}), minutes()))
    assert not shown.measured
    assert shown.counters == ()


@pytest.mark.parametrize(
    ("elapsed_s", "length_s"),
    [(89.0, 89.0), (60.0, 120.0), (120.0, 120.0), (20.0, 120.0), (None, 120.0)],
)
def test_axes_end_with_the_job(elapsed_s: float | None, length_s: float) -> None:
    row = summary(gpu_util_mean=0.5) | {"elapsed_s": elapsed_s}
    assert recording(report_of(row, gpus({}), minutes([0.5, 0.5]))).length_s == length_s


def test_steps_and_waits_are_marked_where_they_are() -> None:
    def at(minute: float) -> datetime:
        return START + timedelta(minutes=minute)

    row = summary(elapsed_s=3600.0, gpus=1, gpu_util_mean=0.5)
    table = minutes([0.9] * 20 + [0.0] * 20 + [0.9] * 20)
    rows = pl.DataFrame(
        [
            {
                "step": "0",
                "start": at(0),
                "end": at(20),
                "elapsed_s": 1200.0,
                "gpus": 1,
                "name": "a",
            },
            {
                "step": "1",
                "start": at(40),
                "end": at(70),
                "elapsed_s": 1800.0,
                "gpus": 1,
                "name": "b",
            },
        ]
    )
    steps = job_steps(row, rows, table, idle_util=0.01)
    report = build_job_report(row, gpus({}), table, judged(20, 40), NOW, steps=steps)
    marks = recording(report).marks
    assert [(mark.kind, mark.label, mark.begin_s, mark.end_s) for mark in marks] == [
        ("finding", "It began late", 0.0, 600.0),
        ("finding", "The job hung; Held idle", 1200.0, 2400.0),
        ("step", "step 0 (a)", 0.0, 1200.0),
        ("step", "step 1 (b)", 2400.0, 3600.0),
        ("wait", "GPUs idle, no srun step", 1200.0, 2400.0),
    ]
    assert [(mark.severity, mark.code) for mark in marks][:3] == [
        ("hint", "cold_start"),
        ("problem", "job_hang"),
        (None, None),
    ]


def test_no_name_ends_the_script() -> None:
    held = gpus({"node": "</script><b>"}, {})
    report = report_of(summary(gpu_util_mean=0.5), held, minutes([0.5]))
    assert "<" not in recording_json(report)
    assert recording(report).gpus[0] == "</script><b> GPU 0"


def test_labels_have_no_invisible_characters() -> None:
    row = summary(elapsed_s=120.0, gpus=2, gpu_util_mean=0.5)
    names = ["a\u202eb", "\x1b[2J"]
    table = minutes([0.9, 0.9])
    rows = [
        {
            "step": str(step),
            "start": START + timedelta(minutes=step),
            "end": START + timedelta(minutes=step + 1),
            "elapsed_s": 60.0,
            "gpus": 1,
            "name": name,
        }
        for step, name in enumerate(names)
    ]
    steps = job_steps(row, pl.DataFrame(rows), table, idle_util=0.01)
    held = gpus({"node": "n\u202e"}, {"node": "\x1b"})
    shown = recording(build_job_report(row, held, table, [], NOW, steps=steps))
    labels = [*shown.gpus, *(mark.label for mark in shown.marks)]
    assert len(labels) == 4
    assert all(label.isprintable() for label in labels)
