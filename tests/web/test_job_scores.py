"""The GPU scores of a job, each way: on a page, by the REST API, and with reports that are attached to it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import nsight_reports
from tachograph.catalog import config
from tachograph.lake.delta import Lake
from tachograph.lake.profiles import attach_profiles
from tachograph.lake.query import read_summaries
from tachograph.nsight.reports import read_reports
from tachograph.report.json_values import json_values
from tachograph.sharing.attached import to_attach
from tachograph.web.pages import job_scores
from tachograph.web.parameters import JobParameters
from tachograph.web.rest import jobs as rest_jobs
from tachograph.web.snapshot import ServedLake, View
from tachograph.web.viewer import Role, Viewer

JOB = "1000316"


def view_of(demo: Path, viewer: Viewer) -> View:
    loaded = config.load(str(demo / "tachograph.toml"), {})
    return ServedLake(Lake.open(str(demo / "lake")), loaded).view(viewer)


@pytest.fixture
def copied(demo: Path, tmp_path: Path) -> Path:
    shutil.copytree(demo, tmp_path / "demo")
    return tmp_path / "demo"


def test_the_page_has_a_row_per_way(demo: Path) -> None:
    view = view_of(demo, Viewer("eve", Role.ADMIN))
    shown = job_scores.content(view, job_scores.PARAMETERS(key=JOB))
    summary = next(row for row in read_summaries(view.opened.lake).to_dicts() if row["job_id"] == JOB)
    recorded, sampled = shown["rows"]
    assert recorded[1:4] == tuple(f"{summary[name]:.1f}" for name in shown["headings"][1:4])
    assert sampled[1:] == ("–", "–", "–", "not sampled")
    assert shown["remarks"]


def test_reports_that_are_attached_are_a_way(copied: Path, tmp_path: Path) -> None:
    lake = Lake.open(str(copied / "lake"))
    key = read_summaries(lake, ("job_id", "job_key")).rows_by_key("job_id")[JOB][0][0]
    report = tmp_path / "kernels.csv"
    report.write_text(nsight_reports.sample(), encoding="utf-8")
    (read,) = read_reports([report])
    attach_profiles(lake, key, JOB, [to_attach(read, datetime(2026, 1, 1, tzinfo=UTC))])
    view = view_of(copied, Viewer("eve", Role.ADMIN))
    answer = json_values(rest_jobs.scores(view, JobParameters(key=JOB)).values)
    assert [way["way"] for way in answer["ways"]] == ["dcgm", "pm", "nsight"]
    assert answer["ways"][2]["basis"].endswith(f"{len(read.launches)} profiled kernels")
