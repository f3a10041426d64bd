"""Every job of the demo: what its report says against its own numbers, and how long and in what
words it says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tachograph.api.job_report import read_job
from tachograph.catalog import config
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.tables import PIPES, WASTE_ENERGY
from tachograph.catalog.units import text
from tachograph.judge.activity import number
from tachograph.judge.checks import CHECKS
from tachograph.judge.checks.ambiguous_attribution import AMBIGUOUS_REASONS
from tachograph.judge.limiter import MOST, NEAR_PEAK, PRACTICAL_DRAM, PRACTICAL_PIPE, WITHOUT_WORK
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.report.job import JobReport
from tachograph.report.job_message import job_mail, job_ticket
from tachograph.report.job_page import job_html
from tachograph.report.job_text import MOST_LINES, job_text

FAMILY = {code: check.family for check in CHECKS for code in check.codes}
OF_A_GROUP = 3  # jobs that are read of each limiter, attribution, state, and of those with gaps
LARGEST = 1e4  # of a quotient that says something
_GPU_HOURS = re.compile(r"([\d,.]*\d)\s+(?:GPU-h\b|GPU-hours|h of GPU time)")
_EXPONENT = re.compile(r"\d[eE][+-]?\d+")  # a number that people do not read


@pytest.fixture(scope="module")
def reports(demo: Path) -> list[JobReport]:
    lake = Lake.open(str(demo / "lake"))
    configuration = config.load(str(demo / "tachograph.toml"))
    groups = ("limiter", "attribution", "state", pl.col("coverage") < 0.9)
    chosen = (
        read_summaries(lake).sort("job_key").group_by(*groups, maintain_order=True).head(OF_A_GROUP)
    )
    rows = chosen.select("display_id", "job_id").unique(maintain_order=True).rows()
    assert len(rows) > 40
    now = datetime(2025, 3, 6, tzinfo=UTC)
    return [
        read_job(lake, display or job, now=now, configuration=configuration)
        for display, job in rows
    ]


def test_the_limiter_came_near_its_peak(reports: list[JobReport]) -> None:
    seen = set()
    for report in reports:
        row = report.summary
        limiter = row["limiter"]
        seen.add(limiter)
        device = DEVICES_BY_NAME.get(row["gpu_model"] or "")
        pipe = getattr(device, "practical_pipe_active", None) or PRACTICAL_PIPE
        dram = getattr(device, "practical_dram_active", None) or PRACTICAL_DRAM
        near = {}
        if (row["work_fraction"] or 0.0) >= MOST:
            near["compute"] = (row["main_pipe_at_work"] or 0.0) / pipe
        if (row["dram_work_fraction"] or 0.0) >= MOST:
            near["memory"] = (row["dram_at_work"] or 0.0) / dram
        if limiter in near:
            assert near[limiter] >= NEAR_PEAK
            assert near[limiter] == max(near.values())
            assert str(report.limiter).startswith(limiter.capitalize())
        if limiter == "neither":
            assert all(
                number(row, f"{counter}_mean") is not None
                for counter in (*PIPES.values(), "dram_active")
            )
            assert max(near.values(), default=0.0) < NEAR_PEAK
        codes = {finding.code for finding in report.findings}
        assert (
            "memory_bound" in {one.code for one in report.verdicts if one.verdict == "yes"}
        ) == (limiter == "memory")
        if codes & set(WITHOUT_WORK):
            assert limiter is None
            assert report.limiter is None
    assert {"compute", "memory", "neither", None} <= seen


def test_energy_is_what_was_measured(reports: list[JobReport]) -> None:
    estimates = 0
    for report in reports:
        row = report.summary
        if row["energy_j"] is None:
            continue
        estimate = row["energy_j_estimated"] or 0.0
        assert row["energy_j"] <= estimate * (1 + 1e-9)
        causes = sum(number(row, f"energy_j_{cause}") or 0.0 for cause in WASTE_ENERGY)
        assert causes <= row["energy_j"] * (1 + 1e-7)
        assert text(row["energy_j"], "J") in report.energy
        part = row["energy_j"] / estimate if estimate else 1.0
        assert ("estimated" in report.energy) == (part < 0.98)
        estimates += part < 0.98
    assert estimates > 5


def test_the_verdict_names_the_share_that_was_measured(reports: list[JobReport]) -> None:
    low = 0
    for report in reports:
        coverage = report.summary["coverage"]
        named = f"measured: {text(coverage, 'fraction')}" in report.headline
        few = bool(report.summary["samples"]) and coverage is not None and coverage < 0.9
        assert named == few
        low += few
        assert report.headline.endswith(".")
        assert "Nothing stands out" not in report.headline
    assert low > 2


def _values(report: JobReport) -> Iterator[tuple[str, str, float]]:
    for finding in report.verdicts:
        for check in finding.checks:
            if check.value is not None:
                yield finding.code, check.name, check.value


def test_no_finding_is_refuted_by_its_own_values(reports: list[JobReport]) -> None:
    for report in reports:
        for finding in report.findings:
            held = [check.holds for check in finding.checks]
            assert not held or any(holds for holds in held), (report.job, finding.code)
        for code, name, value in _values(report):
            assert "_over_" not in name or 0 <= value <= LARGEST, (report.job, code, name, value)


def test_one_problem_has_one_loss(reports: list[JobReport]) -> None:
    """Of the findings that are reported no two of one family give GPU-hours lost."""
    family = {code: check.family for check in CHECKS for code in check.codes}
    for report in reports:
        losses = [
            family[one.code]
            for one in report.findings
            if one.code in family and "gpu_hours_idle" in one.evidence
        ]
        assert len(losses) == len(set(losses)), report.job
        lost = max(
            (one.evidence.get("gpu_hours_idle", 0.0) for one in report.findings), default=0.0
        )
        assert lost <= (report.summary["gpu_hours"] or 0.0) * (1 + 1e-6) + 1e-6


def test_each_printed_gpu_hour_is_one_of_the_ledger(reports: list[JobReport]) -> None:
    """In the text with every check, the page, the ticket and the mail of a job."""
    causes = {check.causes for check in CHECKS if check.causes} | {("idle",)}
    printed_hours = 0
    for report in reports:
        row = report.summary
        sums = [
            sum(number(row, f"gpu_hours_{cause}") or 0.0 for cause in names) for names in causes
        ]
        known = {text(value, "h").removesuffix(" h") for value in [*sums, row["gpu_hours"]]}
        page = job_html(report).replace("\xa0", " ")
        shown = [job_text(report, width=10_000, every_check=True), page, job_ticket(report)]
        for message in (*shown, *job_mail(report)):
            for amount in _GPU_HOURS.findall(message):
                assert amount in known, (report.job, amount)
                printed_hours += 1
    assert printed_hours > 50


def test_a_problem_has_one_loss(reports: list[JobReport]) -> None:
    covered = [one for report in reports for one in report.verdicts if one.covered_by]
    assert covered
    for one in covered:
        assert (one.sentence, one.checks) == (f"{one.title}; reported as {one.covered_by}.", ())
    for report in reports:
        lost = [one.code for one in report.findings if "gpu_hours_idle" in one.evidence]
        families = [FAMILY[code] for code in lost]
        assert len(set(families)) == len(families), report.job


def test_what_cannot_be_attributed_is_not_called_unrecorded(reports: list[JobReport]) -> None:
    ambiguous = [report for report in reports if report.summary["attribution"] == "ambiguous"]
    assert ambiguous
    for report in ambiguous:
        assert report.summary["ambiguous_because"] in AMBIGUOUS_REASONS
        printed = job_text(report, width=100, every_check=True)
        assert "ot recorded" not in printed.replace("is not recorded.", "").replace(
            "GPUs was its own", ""
        )
        assert "dcgm-exporter" not in printed


def test_running_jobs_are_told_so_far(reports: list[JobReport]) -> None:
    running = [report for report in reports if report.running]
    assert running
    for report in running:
        assert (
            "so far" in report.headline
            or not report.summary["samples"]
            or report.summary["attribution"] == "ambiguous"
        )
        assert "still runs" in job_text(report)


def test_it_is_short_and_says_no_nonsense(reports: list[JobReport]) -> None:
    for report in reports:
        printed = job_text(report, width=100)
        assert len(printed.splitlines()) <= MOST_LINES, report.job
        assert not re.search(r"\bnan\b|\bNone\b|\binf\b", printed), report.job
        assert not _EXPONENT.search(printed), report.job


def test_messages_propose_once_and_begin_with_the_verdict(reports: list[JobReport]) -> None:
    proposed = 0
    for report in reports:
        ticket, (subject, body) = job_ticket(report), job_mail(report)
        assert report.headline.removesuffix(".") in subject
        assert report.headline in body
        for message in (ticket, body):
            assert message.casefold().count("next time") == int(report.next_time is not None), (
                report.job
            )
        proposed += report.next_time is not None
    assert proposed


def test_next_time_asks_for_no_more_unless_the_limit_was_too_short(
    reports: list[JobReport],
) -> None:
    seen = 0
    for report in reports:
        following: Any = report.next_time
        if following is None or not following.line:
            continue
        seen += 1
        assert following.line.startswith("#SBATCH --")
        gpus = re.search(r"--gpus=(\d+)", following.line)
        assert gpus is None or 0 < int(gpus[1]) < (report.summary["gpus"] or 0)
        if report.summary["partition"] == "gpu" and "--partition=" not in following.line:
            # its nodes are given whole: only fewer of them free something
            assert gpus is None or "--nodes=" in following.line
            assert "--mem=" not in following.line or report.summary["state"] == "OUT_OF_MEMORY"
        asked = re.search(r"--time=(?:(\d+)-)?(\d\d):(\d\d):(\d\d)", following.line)
        if asked:
            days, hours, minutes, seconds = (int(part or 0) for part in asked.groups())
            wanted = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
            elapsed_s, limit_s = (
                number(report.summary, name) or 0.0 for name in ("elapsed_s", "timelimit_s")
            )
            most = 4 * limit_s if report.summary["state"] == "TIMEOUT" else 0.75 * limit_s
            assert elapsed_s * 1.25 <= wanted <= most
    assert seen > 10


def test_frames_agree(demo: Path, reports: list[JobReport]) -> None:
    """The table of jobs and the report name the same limiter."""
    table = read_summaries(Lake.open(str(demo / "lake")))
    by_key = dict(table.select("job_key", "limiter").iter_rows())
    assert all(by_key[report.summary["job_key"]] == report.summary["limiter"] for report in reports)
    assert table.filter(pl.col("limiter").is_not_null()).height > 100
