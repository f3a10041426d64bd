"""The documentation as a site: every page is in the contents, no link is broken, nothing is
loaded from afar.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DOCS = REPOSITORY / "docs"
_LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)")
_STYLE_LOADED = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]*)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it."""
    if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
        importlib.import_module("sphinx")
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("built")
    (command,) = re.findall(
        r"^site:.*\n\t\$\(BIN\)/python (.*)$", (REPOSITORY / "Makefile").read_text("utf-8"), re.M
    )
    words = [
        {"site": str(folder / "site"), ".doctrees": str(folder / "trees")}.get(word, word)
        for word in command.split()
    ]
    done = subprocess.run([sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return folder / "site"


def test_the_contents_have_every_page_once() -> None:
    contents = runpy.run_path(str(DOCS / "conf.py"))["CONTENTS"]
    pages = [page for part in contents.values() for page in part]
    assert sorted(page for page in pages if not page.startswith("../")) == sorted(
        path.stem for path in DOCS.glob("*.md") if path.name != "index.md"
    )
    assert all((DOCS / f"{page}.md").is_file() for page in pages)
    assert len(set(pages)) == len(pages)
    kinds = [part.split(":")[0] for part in contents]
    assert list(dict.fromkeys(kinds)) == [
        "Tutorial",
        "How-to",
        "Reference",
        "Explanation",
        "Project",
    ]


@pytest.mark.slow
def test_the_first_page_leads_to_each_in_order(site: Path) -> None:
    contents = runpy.run_path(str(DOCS / "conf.py"))["CONTENTS"]
    first = (site / "docs" / "index.html").read_text("utf-8")
    links = re.findall(
        r'class="toctree-l1"><a class="reference internal" href="([^"]+)\.html"', first
    )
    assert links == [page for part in contents.values() for page in part]
    assert all((site / "docs" / f"{link}.html").is_file() for link in links)
    assert "url=docs/index.html" in (site / "index.html").read_text("utf-8")


@pytest.mark.slow
def test_a_word_of_a_page_is_in_the_index_of_the_search(site: Path) -> None:
    assert '"job_hang":' in (site / "searchindex.js").read_text("utf-8")


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {
        (str(path.relative_to(site)), address)
        for pattern, suffix in ((_LOADED, ".html"), (_STYLE_LOADED, ".css"))
        for path in site.rglob(f"*{suffix}")
        for address in pattern.findall(path.read_text("utf-8"))
    }
    assert loaded == set()


@pytest.mark.slow
def test_what_pages_link_to_in_the_rest_of_the_repository_is_there(site: Path) -> None:
    page = (site / "docs" / "collect.html").read_text("utf-8")
    files = re.findall(r'href="(\.\./_downloads/[^"]+)"', page)
    assert len(files) >= 3
    assert all((site / "docs" / file).is_file() for file in files)


def test_the_package_has_every_page_for_programs() -> None:
    """`make docs` links them; in a copy of the tree they are files."""
    served = REPOSITORY / "src/tachograph/annexes/serve/documentation"
    pages = {path.name: path.read_text("utf-8") for path in (*DOCS.glob("*.md"), DOCS / "llms.txt")}
    assert {path.name: path.read_text("utf-8") for path in served.iterdir()} == pages
    listed = re.findall(r"\]\(docs/([^)]+)\): \S", pages["llms.txt"])
    assert sorted(listed) == sorted(pages.keys() - {"index.md", "llms.txt"})


@pytest.mark.slow
def test_each_page_lies_beside_its_html_as_markdown(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    markdown = {path.relative_to(site).with_suffix("") for path in site.rglob("*.md")}
    assert {page for page in markdown if page.parts[0] == "docs"} == {
        page for page in pages if page.parts[0] == "docs"
    }
    assert (site / "docs/jobs.md").read_text("utf-8") == (DOCS / "jobs.md").read_text("utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8")):
        assert (site / link).is_file(), link
