"""The study in a few lines of text: how many jobs, the answers to the questions."""

from __future__ import annotations

from tachograph.figures.registry import QUESTIONS
from tachograph.figures.study import count_jobs
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.study.report import StudyReport
from tachograph.report.study.words import NOT_ANSWERED, choice_sentence


def study_lines(report: StudyReport, width: int) -> list[Line]:
    """Return what was studied, and to each question the first sentence of each figure that answers it."""
    dataset = report.dataset
    removed = [f"{one.reason} {one.removed:,}" for one in dataset.removals if one.removed]
    left_out = f"; filters left out {', '.join(removed)}" if removed else ""
    lines = [plain("")]
    lines += wrapped(f"{count_jobs(dataset.jobs)} studied{left_out}. {choice_sentence(report)}", width)
    for name in report.answers():
        lines += [plain(""), *wrapped(f"{name}  {QUESTIONS[name]}", width, indent="     ", first="", style="bold")]
        said = [figure.sentences[0] for figure in report.of_question(name) if figure.sentences]
        for sentence in said or [NOT_ANSWERED]:
            lines += wrapped(sentence, width, indent="     ")
    return [*lines, plain("")]
