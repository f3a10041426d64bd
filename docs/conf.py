"""The documentation as a site: `make site` builds it into site/ without network, and no page loads
from elsewhere.

Sphinx reads it. The sources are the Markdown pages where they are, so links into the rest of the
repository lead on: to a page of the site, or to a copy of the file. A page of this folder that
`CONTENTS` lacks is an error, as are links and anchors that lead nowhere.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CONTENTS = {
    "Tutorial": ("install", "tutorial"),
    "How-to: get data in": (
        *("own-data", "ingest-prometheus", "ingest-exporter", "ingest-ldms", "ingest-tools"),
        *("ingest-table", "ingest-clustercockpit", "accounting", "schedulers", "kubernetes"),
        *("collect", "simulate"),
    ),
    "How-to: look at jobs and GPUs": (
        "jobs",
        "advise",
        "waste",
        "capacity",
        "watch",
        "record",
        "figures",
        "export",
        "assistants",
    ),
    "How-to: share GPUs": ("colocate", "kernels"),
    "How-to: run it for a site": (
        *("rollout", "serve", "slurm", "act", "policies", "retention", "tune", "scale-out"),
    ),
    "Reference": (
        *("commands", "configuration", "job-report", "sentences", "rules", "rule-language"),
        *("api", "metrics", "tables", "counters", "devices"),
    ),
    "Explanation": (
        *(
            "attribution",
            "job-classes",
            "scores",
            "workload",
            "interference",
            "lake",
            "robustness",
            "architecture",
        ),
    ),
    "Project": (
        *("../README", "../CONTRIBUTING", "../CHANGELOG", "../SECURITY"),
        *("../benchmarks/README", "../benchmarks/RESULTS", "../research/README"),
    ),
}

project = html_title = "Tachograph"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "benchmarks/*.md", "benchmarks/*/*.md", "research/*.md"]
exclude_patterns = [".*", "tachograph-*", "site", "dist"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
smartquotes = False  # `--` is an option
html_show_sphinx = html_show_copyright = False
html_permalinks_icon = "#"
html_static_path = html_css_files = ["site.css"]
html_theme_options: dict[str, object] = {"footer_icons": []}

_HOME = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{1}</a>\n'


def _add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the contents to the first page, where GitHub shows none."""
    if name == root_doc:
        for caption, pages in CONTENTS.items():
            lines = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: '{caption}'\n\n{lines}\n```\n"


def _write_home(app: Sphinx, failure: Exception | None) -> None:
    """Lead from index.html to the first page."""
    if failure is None and app.builder.name == "html":
        Path(app.outdir, "index.html").write_text(
            _HOME.format(f"{root_doc}.html", project), encoding="utf-8"
        )


def _copy_markdown(app: Sphinx, failure: Exception | None) -> None:
    """Place each page as Markdown beside its HTML, and the list of them, llms.txt, at the top."""
    if failure is not None or app.builder.name != "html":
        return
    for page in app.env.found_docs:
        shutil.copyfile(Path(app.srcdir, f"{page}.md"), Path(app.outdir, f"{page}.md"))
    shutil.copyfile(Path(app.srcdir, "docs/llms.txt"), Path(app.outdir, "llms.txt"))


def setup(app: Sphinx) -> None:
    """Connect."""
    app.connect("source-read", _add_contents)
    app.connect("build-finished", _write_home)
    app.connect("build-finished", _copy_markdown)
