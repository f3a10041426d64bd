from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_job import NOW, judged, report_of, synthetic_report
from syrupy.assertion import SnapshotAssertion

from jobframes import START, gpus, measured, minutes, summary
from tachograph.catalog.tables import JOB_GPUS, JOB_SUMMARIES
from tachograph.catalog.units import gpu_hours_text, text
from tachograph.judge.activity import number
from tachograph.report.findings import check_text, checks_text
from tachograph.report.job import FEW_GPUS, JobReport, build_job_report, fold_nodes, job_json
from tachograph.report.job_efficiency import brief_lines
from tachograph.report.job_message import job_mail, job_ticket
from tachograph.report.job_page import JobPlots, job_html
from tachograph.report.job_text import job_lines, job_text
from tachograph.report.lines import bar, resample, sparkline, to_rich
from tachograph.report.timeline import MAX_BINS, build_timeline


@pytest.mark.parametrize(("lake", "option"), [("", ""), ("my lake", " --lake 'my lake'")])
def test_commands_in_a_report_read_the_same_lake(lake: str, option: str) -> None:
    report = replace(synthetic_report(), lake=lake)
    command = f"tachograph job {report.job}{option}"
    assert f"More: {command} --checks" in job_text(report)
    assert f"Made with `{command} --ticket`" in job_ticket(report)
    assert f"All numbers: {command}\n" in job_mail(report)[1]
    assert f"More: {command}" in list(brief_lines(report))


_VOID = {"meta", "br", "img", "hr", "link", "input"}


class _Page(HTMLParser):
    """Text of a page outside style and drawings; notes tags that do not match and references to
    the outside.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.faults: list[str] = []
        self.scripts = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        if tag in ("link", "iframe", "object"):
            self.faults.append(tag)
        if tag == "script":
            self.scripts += 1
        for name, value in attrs:
            outside = name in ("href", "src", "xlink:href") and not (value or "").startswith(
                ("#", "data:")
            )
            if outside or name.startswith("on"):
                self.faults.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not {"style", "svg", "script"}.intersection(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def _flat(words: str) -> str:
    return " ".join(words.split())


def _without_drawings(page: str) -> str:
    without_heat = re.sub(r'<svg class="heat".*?</svg>', "", page, flags=re.DOTALL)
    return re.sub(r"<svg.*?</svg>", "<svg/>", without_heat, flags=re.DOTALL)


def test_text_snapshot(snapshot: SnapshotAssertion) -> None:
    assert job_text(synthetic_report(verdicts=judged())) == snapshot


def test_every_verdict_snapshot(snapshot: SnapshotAssertion) -> None:
    drawn = job_text(synthetic_report(verdicts=judged()), every_check=True)
    assert drawn[drawn.index("Checks") :] == snapshot


def test_ascii_snapshot(snapshot: SnapshotAssertion) -> None:
    drawn = job_text(synthetic_report(12), width=100, ascii_only=True)
    assert drawn.isascii()
    assert drawn == snapshot


def test_json_snapshot(snapshot: SnapshotAssertion) -> None:
    """Of counters that were not measured the snapshot has no columns: another counter changes
    nothing.
    """
    written = job_json(synthetic_report(2, length=5, busy=3, verdicts=judged(3, 5)))
    assert set(JOB_SUMMARIES.schema) - {"seq"} <= set(written)
    assert json.dumps(measured(written), indent=1, allow_nan=False) == snapshot


def test_html_snapshot(snapshot: SnapshotAssertion) -> None:
    page = _without_drawings(job_html(synthetic_report(verdicts=judged())))
    page = re.sub(r"<style>.*?</style>", "<style/>", page, flags=re.DOTALL)
    page = re.sub(r"<script>.*?</script>", "<script/>", page, flags=re.DOTALL)
    assert re.sub(r"Tachograph [\w.+-]+ ", "Tachograph VERSION ", page) == snapshot


@pytest.mark.parametrize("count", [1, 4, FEW_GPUS + 1, 64])
def test_same_numbers_in_text_json_and_html(count: int) -> None:
    report = synthetic_report(count, verdicts=judged())
    row = report.summary
    page, values = _Page(job_html(report)).text, job_json(report)
    plain = _flat(job_text(report, every_check=True))
    for name, unit in {
        "gpu_util_mean": "fraction", "hbm_peak_fraction": "fraction", "temporal_imbalance": "ratio", "gpu_hours": "h",
        "energy_j": "J", "power_w_mean": "W", "elapsed_s": "s", "zero_util_fraction": "fraction",
        "coverage": "fraction",
    }.items():  # fmt: skip
        value = number(row, name)
        shown = gpu_hours_text(value or 0.0) if name == "gpu_hours" else text(value, unit)
        assert values[name] == value
        assert shown in page, name
        assert shown in plain, name
    for finding in report.findings:
        for shown in (finding.title, finding.sentence, finding.advice or ""):
            assert shown in page
            assert _flat(shown) in plain.replace("→ ", "")
        assert values["evidence"][finding.code] == finding.evidence
        when, basis = report.interval(finding), checks_text(finding)
        assert when is None or when[1:] in page
        assert when is None or when[1:] in plain
        assert basis in page
        assert basis in plain
    verdicts = {verdict["code"]: verdict for verdict in values["verdicts"]}
    assert [verdict["code"] for verdict in values["verdicts"]] == [
        finding.code for finding in report.verdicts
    ]
    for finding in report.verdicts:
        assert verdicts[finding.code]["verdict"] == finding.verdict
        assert [check["value"] for check in verdicts[finding.code]["checks"]] == [
            check.value for check in finding.checks
        ]
        assert f"{finding.code}: {finding.sentence}" in plain
        assert f"{finding.code} {finding.sentence}" in page
        for check in finding.checks:
            assert check_text(check) in plain
            assert check_text(check) in page
    for sentence in report.missing:
        assert sentence in page
        assert sentence in plain


def test_json_has_every_contract_name_and_null_stays_null() -> None:
    values = job_json(synthetic_report())
    assert set(JOB_SUMMARIES.schema) - {"seq"} <= set(values)
    assert values["gpus"] == 4
    assert values["fp16_active_mean"] is None
    assert values["start"] == "2026-04-23T17:00:00+00:00"
    assert [set(row) for row in values["per_gpu"]] == [set(JOB_GPUS.schema) - {"seq"}] * 4
    assert (
        [finding["code"] for finding in values["findings"]]
        == list(values["evidence"])
        == ["job_hang"]
    )


@pytest.mark.parametrize("count", [1, 4, 17, 512])
def test_page_is_well_formed_and_self_contained(count: int) -> None:
    page = job_html(synthetic_report(count, length=30, busy=20))
    parsed = _Page(page)
    assert parsed.faults == []
    assert parsed.open == []
    assert parsed.scripts == 4  # the recording, uPlot, the plots and the recorder
    # uPlot names where it comes from; that a page asks nobody is tested in a browser.
    plain = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "http" not in plain.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "train <b>&" in parsed.text  # escaped on the way in
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "#010203" not in page  # all placeholders have become the page's colours


def test_page_of_a_job_nobody_measured_says_so() -> None:
    report = report_of(
        summary(attribution="ambiguous", display_id="77_3", state="RUNNING", end=None),
        gpus(),
        minutes(),
    )
    assert JobPlots(report).time is None
    page, plain = _Page(job_html(report)).text, job_text(report)
    for shown in (
        "no sample can be attributed to it",
        "No sample is shown",
        "still runs",
    ):
        assert shown in page
        assert shown in plain
    assert "not recorded" not in plain
    assert "nan" not in plain
    assert "None" not in plain


def test_many_gpus_show_extremes_and_bands() -> None:
    report = synthetic_report(10, length=10, busy=10)  # means 0.2, 0.26, ... 0.74
    least, most = report.extremes
    assert [gpu.label for gpu in least] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert [gpu.label for gpu in most] == ["GPU 9", "GPU 8", "GPU 7", "GPU 6"]
    assert report.bands == (
        ("under 10 %", 0),
        ("10 to 30 %", 2),
        ("30 to 70 %", 7),
        ("70 % or more", 1),
    )
    plain = job_text(report)
    assert "GPU 9" in plain
    assert "GPU 5" not in plain


def test_times_are_in_the_zone_of_the_site() -> None:
    report = synthetic_report()
    assert report.local(START) == "2026-04-23 10:00:00 PDT"
    assert report.local(None) == "–"
    assert report.interval(report.findings[0]) == "from 11:00 to 12:00, 1 h"
    assert "2026-04-23 10:00:00 PDT to 2026-04-23 12:00:00 PDT: 2 h of 4 h" in _flat(
        job_text(report)
    )


def test_other_runs_are_told() -> None:
    earlier = summary(job_key="c:100:0", start=START - timedelta(days=1), end=START)
    report = build_job_report(summary(), gpus(), minutes(), (), NOW, other_runs=[earlier])
    assert "One of 2 runs of this job; the others started 2026-04-22 17:00:00 UTC." in _flat(
        job_text(report)
    )
    assert "One of 2 runs of this job" in _Page(job_html(report)).text
    assert job_json(report)["other_runs"] == ["c:100:0"]


@pytest.mark.parametrize("width", [20, 72, 80, 120, 500])
@pytest.mark.parametrize(
    "report",
    [
        synthetic_report(),
        synthetic_report(1),
        synthetic_report(40),
        synthetic_report(verdicts=judged()),
    ],
    ids=["4", "1", "40", "judged"],
)
def test_lines_stay_within_the_width(report: JobReport, width: int) -> None:
    plain = job_text(report, width=width)
    assert max(map(len, plain.splitlines())) <= min(120, max(72, width))


def test_a_mail_has_the_clock_times_of_each_finding() -> None:
    _, body = job_mail(synthetic_report(verdicts=judged()))
    assert "* Nothing moved for an hour.\n  From 11:00 to 12:00, 1 h\n" in body
    assert "* Nothing moved for 10 minutes.\n  From 10:00 to 10:10, 10 min\n" in body


def test_numbers_are_not_torn_from_their_units() -> None:
    for width in range(72, 100):
        assert not re.search(
            r"\d\n\s+(%|h|min|kWh|W|GiB)\b", job_text(synthetic_report(), width=width)
        )


@pytest.mark.parametrize("every", [False, True])
def test_colour_changes_no_character(every: bool) -> None:
    report = synthetic_report(verdicts=judged())
    verdicts = job_lines(report, every_check=every)
    assert _flat(to_rich(verdicts).plain) == _flat(job_text(report, every_check=every))


def test_timeline_means_each_bin() -> None:
    length = MAX_BINS * 2  # two minutes per bin
    rows = minutes([0.0, 1.0] * (length // 2), [0.5, None] * (length // 2))
    timeline = build_timeline(rows, elapsed_s=length * 60.0, counter="gpu_util")
    assert (timeline.bin_s, timeline.bins) == (120.0, MAX_BINS)
    assert set(timeline.per_gpu["n1", 0, None]) == {0.5}
    assert set(timeline.per_gpu["n1", 1, None]) == {0.5}
    assert list(timeline.means) == ["gpu_util"]


def test_timeline_reaches_to_the_end_of_the_job() -> None:
    timeline = build_timeline(minutes([0.5] * 10), elapsed_s=1200.0, counter="gpu_util")
    assert timeline.per_gpu["n1", 0, None] == (0.5,) * 10 + (None,) * 10


def test_slices_and_nodes_are_told_apart() -> None:
    rows = gpus(
        {"mig": 7, "gpu": 0, "gr_engine_active_mean": 0.4},
        {"mig": 8, "gpu": 0, "gr_engine_active_mean": 0.2},
    )
    report = report_of(summary(gpus=2, gr_engine_active_mean=0.3), rows, minutes())
    assert [gpu.label for gpu in report.gpus] == ["GPU 0/7", "GPU 0/8"]
    two_nodes = rows.with_columns(node=pl.Series(["a1", "a2"]))
    report = report_of(summary(gpus=2, gr_engine_active_mean=0.3), two_nodes, minutes())
    assert [gpu.label for gpu in report.gpus] == ["a1 GPU 0/7", "a2 GPU 0/8"]
    assert report.node_list == "a[1-2]"
    assert report.use == "The 2 GPUs were busy 30 % of the time (graphics engine activity)."


def test_strange_node_names_are_kept() -> None:
    assert fold_nodes(["a[", "b"]) == "a[,b"
    assert fold_nodes([]) == ""


@given(st.none() | st.floats(-1, 2), st.integers(1, 40), st.booleans())
def test_bar_has_its_width_and_shows_any_work(
    fraction: float | None, width: int, ascii_only: bool
) -> None:
    drawn = bar(fraction, width, ascii_only=ascii_only)
    assert len(drawn) == width
    if not ascii_only and fraction is not None:
        assert (drawn.strip("·") == "") == (fraction <= 0)


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 50))
def test_resampling_keeps_within_range(values: list[float | None], bins: int) -> None:
    known = [value for value in values if value is not None]
    means = [value for value in resample(values, bins) if value is not None]
    assert len(resample(values, bins)) == min(bins, len(values))
    assert bool(means) == bool(known)
    assert all(min(known) - 1e-9 <= value <= max(known) + 1e-9 for value in means)
    assert len(sparkline(values, bins)) == min(bins, len(values))
