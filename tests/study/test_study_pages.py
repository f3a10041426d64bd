"""The page of a study in three forms: the same numbers in each, nothing from outside, names that steer nothing."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from studied_lake import TOML, figures

from tachograph.api.open_lake import open_lake
from tachograph.figures.registry import FIGURES, QUESTIONS
from tachograph.figures.study import StudyReport
from tachograph.report.study import escaped, json_text, methods, study_json, study_markdown
from tachograph.report.study_files import study_html


@pytest.fixture(scope="module")
def report(study_lake: Path) -> StudyReport:
    config = study_lake.parent / "pages.toml"
    config.write_text(TOML, encoding="utf-8")
    return open_lake(str(study_lake), str(config)).study().report


def test_every_sentence_stands_in_every_form(report: StudyReport) -> None:
    page, markdown, values = study_html(report, {}), study_markdown(report, ["png"]), study_json(report)
    page = page.replace("\xa0", " ")  # a line does not part a percent sign from its number
    sentences = [sentence for figure in report.figures for sentence in figure.sentences]
    assert len(sentences) >= 6
    for sentence in sentences:
        assert html.escape(sentence) in page.replace("&#39;", "&#x27;")
        assert f"- {escaped(sentence)}" in markdown
    in_json = [sentence for figure in values["figures"].values() for sentence in figure["sentences"]]
    assert in_json == sentences
    assert [a for one in values["questions"].values() for a in one["answers"]] == [
        sentence for name in QUESTIONS for figure in report.of_question(name) for sentence in figure.sentences
    ]


def test_each_figure_stands_under_its_question(report: StudyReport) -> None:
    page = study_html(report, {})
    headings = ["Overview", *map(html.escape, QUESTIONS.values())]
    places = {name: page.index(f"{name}</h2>") for name in headings if f"{name}</h2>" in page}
    for entry in FIGURES:
        place = page.index(f'<figure id="{entry.name}">')
        above = [name for name, at in places.items() if at < place][-1]
        assert above == (html.escape(QUESTIONS[entry.question]) if entry.question else "Overview")


def test_the_data_are_told_in_every_form(report: StudyReport) -> None:
    page, markdown, values = study_html(report, {}), study_markdown(report, ["png"]), study_json(report)
    dataset = values["dataset"]
    assert (dataset["recorded_jobs"], dataset["chosen_jobs"], dataset["jobs"], dataset["users"]) == (6, 6, 2, 2)
    assert (dataset["nodes"], dataset["gpus"]) == (2, 4)
    assert list(dataset["models"]) == [{"model": "A100 SXM 40GB", "nodes": 2, "gpus": 4}]
    removed = {one["reason"]: one["removed"] for one in dataset["removals"] if one["removed"]}
    assert removed == {"still_running": 1, "no_samples": 1, "short": 1, "idle": 1}
    assert "| `short`: it ran for less than 3 min | 1 | 1 | 3 |" in markdown
    short = "<code>short</code> it ran for less than 3 min"
    assert f'{short}</td><td class="n">1</td><td class="n">1</td><td class="n">3</td>' in page
    assert dataset["gpu_hours"] == 2.0
    for form in (page, markdown):
        assert "4: 4 A100 SXM 40GB" in form
        assert "2026-04-01 14:00:00 CEST to 2026-04-01 14:30:00 CEST" in form


def test_answers_stand_first_with_what_follows_and_provenance_last(report: StudyReport) -> None:
    page, markdown, values = study_html(report, {}), study_markdown(report, ["png"]), study_json(report)
    page = page.replace("\xa0", " ").replace("&#39;", "&#x27;")
    assert page.index("Answers</h2>") < page.index("Overview</h2>") < page.index("The data</h2>")
    assert markdown.index("## Answers") < markdown.index("## Overview") < markdown.index("## The data")
    follows = report.consequences()
    assert follows
    for name, one in values["questions"].items():
        assert one["consequence"] == follows.get(name)
        if name in follows:
            assert f'<p class="follows">→ {html.escape(follows[name])}</p>' in page
            assert f"**What follows**: {escaped(follows[name])}" in markdown
        assert f'href="#{name}"' in page
        assert f'<section id="{name}">' in page


def test_drawings_take_the_colours_of_the_page(report: StudyReport) -> None:
    use = '<use href="#a" style="fill: #222222; stroke: #ffffff"/>'
    drawn = f'<?xml?><svg width="10pt" viewBox="0 0 10 10"><g id="a"/>{use}</svg>'.encode()
    page = study_html(report, {"spatial_imbalance": ("svg", drawn)})
    expected = '<use href="#spatial_imbalance-a" style="fill: var(--ink); stroke: var(--paper)"/>'
    assert expected in page
    assert 'role="img" aria-label="Spatial imbalance by utilisation"' in page
    assert '<meta name="color-scheme" content="light dark">' in page


def test_the_page_is_self_contained(report: StudyReport) -> None:
    page = study_html(report, {"spatial_imbalance": ("png", b"\x89PNG")})
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []
    assert "<script" not in page
    assert "url(" not in page
    assert 'src="data:image/png;base64,iVBORw=="' in page


def test_names_steer_neither_form(report: StudyReport) -> None:
    assert "<site>" not in study_html(report, {})
    assert "How GPUs are used: Test &lt;site&gt;" in study_html(report, {})
    assert study_markdown(report, ["png"]).startswith("# How GPUs are used: Test \\<site\\>\n")


def test_markdown_shows_what_was_written(report: StudyReport) -> None:
    assert "](06_spatial_imbalance.png)" in study_markdown(report, ["pdf", "png"])
    assert "](06_spatial_imbalance.svg)" in study_markdown(report, ["svg"])
    markdown = study_markdown(report, ["pdf"])
    assert "](06_spatial_imbalance.pdf)" in markdown
    assert "![" not in markdown


def test_missing_numbers_are_null_in_json(report: StudyReport) -> None:
    text = json_text(study_json(report))
    assert "NaN" not in text
    assert json.loads(text)["dataset"]["recorded"]["samples"] == 364


def test_what_is_missing_is_said_under_its_figure(study_lake: Path, tmp_path: Path) -> None:
    done = figures(study_lake, "-o", str(tmp_path / "s"), "--format", "png", "--figure", "pipe_combinations", "--json")
    facts = json.loads(done.out)["figures"]["pipe_combinations"]
    markdown = (tmp_path / "s" / "study.md").read_text(encoding="utf-8")
    for why in facts["missing"].values():
        assert escaped(why) in markdown


def test_a_question_without_an_answer_says_so(study_lake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    done = figures(
        study_lake, "-o", str(folder), "--format", "svg", "--figure", "5", "--figure", "6", "--where", "gpus<0"
    )
    assert done.code == 6
    done = figures(
        study_lake, "-o", str(folder), "--format", "svg", "--figure", "6", "--no-filter", "idle", "--where", "gpus=1"
    )
    assert done.code == 0
    for text in (done.out, *((folder / name).read_text(encoding="utf-8") for name in ("study.md", "study.html"))):
        assert "Not answered: required counters were not measured." in text


def test_how_it_was_computed_follows_the_settings(study_lake: Path) -> None:
    opened = open_lake(str(study_lake))
    paper = dict(methods(opened.study(["6"]).report.settings))
    notebooks = dict(
        methods(opened.study(["6"], variant="notebooks", window=15, pipe="tensor", no_filter="short").report.settings)
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
