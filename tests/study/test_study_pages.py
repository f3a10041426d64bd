"""The page of a study and its JSON: the same numbers in both, nothing from outside, names that
steer nothing.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from studied_lake import configuration_beside

from tachograph.annexes.lab.figures.registry import QUESTIONS
from tachograph.annexes.lab.figures.study import StudyReport
from tachograph.annexes.lab.study import methods, study_json
from tachograph.annexes.lab.study_files import draw_study, study_html
from tachograph.api.open_lake import open_lake


@pytest.fixture(scope="module")
def report(study_lake: Path) -> StudyReport:
    config = configuration_beside(study_lake)
    made: StudyReport = open_lake(str(study_lake), str(config)).study().report
    return made


@pytest.fixture(scope="module")
def forms(report: StudyReport) -> tuple[str, dict[str, Any]]:
    """The study as a page, and as JSON."""
    page = study_html(report, draw_study(report))
    page = page.replace("\xa0", " ")  # a line does not part a percent sign from its number
    return page, study_json(report)


def test_every_sentence_stands_in_every_form(report: StudyReport, forms: Any) -> None:
    page, values = forms
    sentences = [sentence for figure in report.figures for sentence in figure.sentences]
    assert len(sentences) >= 6
    for sentence in sentences:
        assert html.escape(sentence) in page.replace("&#39;", "&#x27;")
    in_json = [
        sentence for figure in values["figures"].values() for sentence in figure["sentences"]
    ]
    assert in_json == sentences
    assert [a for one in values["questions"].values() for a in one["answers"]] == [
        sentence
        for name in QUESTIONS
        for figure in report.of_question(name)
        for sentence in figure.sentences
    ]


def test_the_data_stand_in_every_form(forms: Any) -> None:
    page, values = forms
    dataset = values["dataset"]
    counts = ("recorded_jobs", "chosen_jobs", "jobs", "users", "nodes", "gpus")
    assert [dataset[name] for name in counts] == [6, 6, 2, 2, 2, 4]
    assert list(dataset["models"]) == [{"model": "A100 SXM 40GB", "nodes": 2, "gpus": 4}]
    removed = {one["reason"]: one["removed"] for one in dataset["removals"] if one["removed"]}
    assert removed == {"still_running": 1, "no_samples": 1, "short": 1, "idle": 1}
    short = "<code>short</code> it ran for less than 3 min"
    assert f'{short}</td><td class="n">1</td><td class="n">1</td><td class="n">3</td>' in page
    assert dataset["gpu_hours"] == 2.0
    assert "4: 4 A100 SXM 40GB" in page
    assert "2026-04-01 14:00:00 CEST to 2026-04-01 14:30:00 CEST" in page


def test_the_page_is_self_contained_and_names_steer_nothing(
    report: StudyReport, forms: Any
) -> None:
    page, _ = forms
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []
    assert "<script" not in page
    assert re.findall(r"url\((?!#)[^)]*", page) == []
    assert (
        page.count('<img src="data:image/svg+xml;base64,')
        == sum(figure.drawn for figure in report.figures)
        > 5
    )

    assert "<site>" not in page
    assert "How GPUs are used: Test &lt;site&gt;" in page


def test_how_it_was_computed_follows_the_settings(study_lake: Path) -> None:
    opened = open_lake(str(study_lake))
    paper = dict(methods(opened.study(["6"]).report.settings))
    notebooks = dict(
        methods(
            opened.study(
                ["6"], variant="notebooks", window=15, pipe="tensor", no_filter="short"
            ).report.settings
        )
    )
    for term, in_paper, in_notebooks in (
        ("Spatial imbalance", "per window of 1 min", "per window of 15 min"),
        ("Spatial imbalance", "idle is left out", "idle counts as 0"),
        ("Temporal imbalance", "never busy has none", "never busy has 0"),
        ("Compute- or memory-bound", "FP64 pipe", "tensor pipe"),
        ("Pipes used", "5th percentile", "job mean above 0.005"),
        ("Energy", "scaled to the job's run time", "not scaled"),
        ("GPU-hours", "GPUs allocated", "GPUs with samples"),
        ("Filters switched off", "none", "short"),
    ):
        assert in_paper in paper[term]
        assert in_notebooks in notebooks[term]
