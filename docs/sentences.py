"""Writes docs/sentences.md: every sentence template of the report, and jobs that it is true of.

    python docs/sentences.py LAKE

The templates are the texts in the modules of `report_modules`; LAKE is that of the demo. The example of a
template is a job of the demo whose report says it, else a test that expects it; the other job is
one of the demo whose report does not: of a check one for which it has another result.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import tachograph
from tachograph.report.job import JobReport
from tachograph.report.job_text import job_text
from tachograph.report.steps import steps_headline, steps_note

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "sentences.md"
SOURCES = FOLDER.parent / "src" / "tachograph"
TESTS = FOLDER.parent / "tests"
# What makes the report of a job, and what prints it: every module of these rooms that they import.
STARTS = ("api/job_report.py", "report/job_text.py")
ROOMS = ("report", "judge")
LANGUAGE = "judge/rules"  # of rules: its sentences are those of docs/rules.md
_HEADINGS = ("template", "true of", "not said of")
_LEAST_WORDS = 3
_FILLED_IN = ".{0,120}?"  # bounded: a search must end soon
_ANY = "…"  # stands for what a template fills in


class SentenceExample(NamedTuple):
    """Where a template is used, and where not: a job of the demo or a test; empty: none."""

    true_of: str
    not_of: str


def templates(module: Path) -> Iterator[str]:
    """Yield the texts of a module that people read, `…` for what is filled in."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    raised = (ast.Raise, ast.Assert)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False):
            skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
        is_type = isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "re.compile")
        if is_type or isinstance(node, raised):  # no text of a report, but for a mistake of a user
            skipped.update(id(part) for part in ast.walk(node))
        if isinstance(node, ast.ClassDef):
            skipped.update(id(part) for base in node.bases for part in ast.walk(base))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        text = _text(node)
        if " " not in text:  # the name of a column
            continue
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= _LEAST_WORDS:
            yield text


def _text(node: ast.AST) -> str:
    """The text of a string or an f-string; fields of `brief` are filled in later."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        written = node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (
            str(part.value) if isinstance(part, ast.Constant) else _ANY for part in node.values
        )
        written = "".join(parts)
    else:
        return ""
    return " ".join(re.sub(r"\{\w+\}", _ANY, written).split())


def report_modules() -> Mapping[Path, str]:
    """Return {module: first line of its docstring} of what the report of a job is made by."""
    titles: dict[Path, str] = {}
    open_modules = [SOURCES / start for start in STARTS]
    while open_modules:
        module = open_modules.pop()
        if module in titles:
            continue
        tree = ast.parse(module.read_text(encoding="utf-8"))
        titles[module] = (ast.get_docstring(tree) or module.stem).partition("\n")[0]
        open_modules += [path for path in _imported(tree) if _is_of_report(path)]
        if module.parent.name == "checks":  # all of them, found by their names
            open_modules += module.parent.glob("*.py")
    return dict(sorted(titles.items()))


def _imported(tree: ast.Module) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = SOURCES.parent.joinpath(*node.module.split("."))
            names = [folder, folder / "__init__", *(folder / name.name for name in node.names)]
            yield from filter(Path.exists, (name.with_suffix(".py") for name in names))


def _is_of_report(module: Path) -> bool:
    name = module.relative_to(SOURCES).as_posix()
    return name.startswith(ROOMS) and not name.startswith(LANGUAGE)


def all_templates() -> Mapping[str, Mapping[str, str]]:
    """Return {template: its module} by the title of a module; all checks have one title."""
    found: dict[str, dict[str, str]] = {}
    for module, title in report_modules().items():
        heading = "Checks" if module.parent.name == "checks" else title.rstrip(".")
        for text in templates(module):
            found.setdefault(heading, {}).setdefault(text, module.stem)
    return found


def pattern(template: str) -> re.Pattern[str]:
    """Return what finds a template in a text, whatever was filled in."""
    fixed = template.strip(f"{_ANY} ")
    parts = [re.escape(part) for part in fixed[1:].split(_ANY)]
    # a sentence may begin with it
    return re.compile(f"(?i:{re.escape(fixed[0])}){_FILLED_IN.join(parts)}")


def texts_of_report(report: JobReport) -> Mapping[str, str]:
    """Return what the report of a job says, in words: by check, and under "" all else."""
    following = report.next_time
    said = (
        *(report.headline, following and following.why, report.use, report.limiter, report.host),
        *(*report.balance, report.memory, report.energy, *report.caveats, report.means),
        *(steps_headline(report.steps), steps_note(report.steps)),
        *(job_text(report, width=1000), job_text(report, width=1000, every_check=True)),
    )
    texts = {"": "\n".join(text for text in said if text)}
    for finding in report.verdicts:
        holding = (finding.title, finding.advice or "") if finding.verdict == "yes" else ()
        brief = (report.headline,) if finding.verdict == "yes" else ()
        texts[finding.code] = "\n".join((finding.sentence, *holding, *brief))
    return texts


def text_of_module(texts: Mapping[str, str], module: str) -> str:
    """Return what a module says of a job: one of a check is named as its code."""
    return texts.get(module, "\n".join(texts.values()))


def texts_of_tests() -> Iterator[tuple[str, str]]:
    """Yield (name of the file, its strings) of all tests and their snapshots."""
    for file in sorted(TESTS.rglob("test_*.py")):
        strings = (
            node.value
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        yield file.name, "\n".join(strings)
    for file in sorted(TESTS.rglob("*.ambr")):
        yield file.name, file.read_text(encoding="utf-8")


def examples(lake: str) -> Mapping[str, SentenceExample]:
    """Return an example of each template."""
    opened = tachograph.open(lake)
    reports: dict[str, Mapping[str, str]] = {}
    for row in opened.jobs().sort("job_key").iter_rows(named=True):
        job = opened.job(row["display_id"], cluster=row["cluster"])
        reports[row["display_id"]] = texts_of_report(job.report)
    expected = dict(texts_of_tests())
    return {
        text: _example(pattern(text), module, reports, expected)
        for texts in all_templates().values()
        for text, module in texts.items()
    }


def _example(
    template: re.Pattern[str],
    module: str,
    reports: Mapping[str, Mapping[str, str]],
    expected: Mapping[str, str],
) -> SentenceExample:
    """Return where a template of a module is said, and where not."""
    said = {job: text_of_module(texts, module) for job, texts in reports.items()}
    jobs = {job: template.search(text) is not None for job, text in said.items()}
    files = (f"`{name}`" for name, text in expected.items() if template.search(text))
    true_of = next((f"job {job}" for job, found in jobs.items() if found), None)
    not_of = next((f"job {job}" for job, found in jobs.items() if not found and said[job]), "")
    return SentenceExample(true_of or next(files, ""), not_of)


def page(found: Mapping[str, SentenceExample]) -> str:
    """Return the page."""
    lines = [
        "# Sentences of the report",
        "",
        "<!-- Made by `python docs/sentences.py LAKE`; a change here is overwritten. -->",
        "",
        "Every sentence, and part of one, that the report of a job is made of. `…` is filled in.",
        "Jobs are those of the [demo](simulate.md); a file is a test that expects the sentence.",
    ]
    for title, texts in all_templates().items():
        lines += ["", f"## {title}", "", f"| {' | '.join(_HEADINGS)} |", "| --- | --- | --- |"]
        for text in texts:
            example = found.get(text, SentenceExample("", ""))
            cell = text.replace("|", "\\|")
            lines.append(f"| {cell} | {example.true_of or '–'} | {example.not_of or '–'} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(examples(sys.argv[1])), encoding="utf-8")
