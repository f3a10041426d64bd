"""docs/sentences.md holds every sentence of the report, and its examples say what it cites."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tachograph.api.open_lake import open_lake

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = spec_from_file_location("sentences", DOCS / "sentences.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str, str]]:
    page = (DOCS / "sentences.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (.+) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    return [row for row in table if row[0] not in ("template", "---")]


def test_the_page_holds_every_template(
    generator: ModuleType, rows: list[tuple[str, str, str]]
) -> None:
    written = [text for texts in generator.all_templates().values() for text in texts]
    assert len(written) > 200
    assert [row[0] for row in rows] == [text.replace("|", "\\|") for text in written]


def test_cited_tests_expect_the_sentence(
    generator: ModuleType, rows: list[tuple[str, str, str]]
) -> None:
    expected = dict(generator.texts_of_tests())
    cited = [(text, true_of.strip("`")) for text, true_of, _ in rows if true_of.startswith("`")]
    assert cited
    for text, file in cited:
        assert generator.pattern(text).search(expected[file]), (text, file)


def test_cited_jobs_say_the_sentence_and_the_others_do_not(
    demo: Path, generator: ModuleType, rows: list[tuple[str, str, str]]
) -> None:
    lake = open_lake(str(demo / "lake"), str(demo / "tachograph.toml"))
    cited = {place.removeprefix("job ") for row in rows for place in row[1:] if "job " in place}
    assert len(cited) > 30
    said = {job: generator.texts_of_report(lake.job(job).report) for job in cited}
    modules = {
        text: module
        for texts in generator.all_templates().values()
        for text, module in texts.items()
    }
    for template, true_of, not_of in rows:
        search, module = generator.pattern(template).search, modules[template]
        for place, holds in ((true_of, True), (not_of, False)):
            if place.startswith("job "):
                part = generator.text_of_module(said[place.removeprefix("job ")], module)
                assert (search(part) is not None) == holds, (template, place)
