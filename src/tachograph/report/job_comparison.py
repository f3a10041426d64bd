"""Two to four jobs side by side: numbers, most different first; findings; activity over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from markupsafe import Markup

from tachograph.catalog.columns import COLUMN_UNITS
from tachograph.catalog.units import capitalized, text
from tachograph.judge.activity import number
from tachograph.judge.finding import Finding
from tachograph.report.job import JobReport
from tachograph.report.job_plots import ComparedLine, compared_charts
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.recording import COUNTER_LABELS
from tachograph.report.svg import svg
from tachograph.report.tables import TextColumn, fit_table

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


MOST_JOBS = 4
# {column of job_summaries: label}
NUMBERS: Mapping[str, str] = {
    "gpus": "GPUs",
    "nodes": "nodes",
    "elapsed_s": "run time",
    "gpu_hours": "GPU-hours",
    "gpu_util_mean": "GPU utilisation",
    "zero_util_fraction": "samples with zero utilisation",
    "sm_active_mean": "SMs active",
    "tensor_active_mean": "tensor cores active",
    "fp64_active_mean": "FP64 active",
    "fp32_active_mean": "FP32 active",
    "fp16_active_mean": "FP16 active",
    "dram_active_mean": "memory traffic",
    "hbm_peak_fraction": "memory peak",
    "spatial_imbalance": "imbalance across GPUs",
    "temporal_imbalance": "imbalance over time",
    "power_w_mean": "power per GPU",
    "energy_j": "energy",
    "cpu_efficiency": "CPU use",
    "max_rss_mib": "host memory of the largest task",
    "coverage": "coverage",
}
_DRAWN = ("gpu_util", "sm_active", "gr_engine_active")  # the first that any job has


@dataclass(frozen=True, slots=True)
class ComparedNumber:
    """A number of each job as text; difference: of the extremes, as a share of the larger.

    None: fewer than two jobs have it.
    """

    label: str
    texts: tuple[str, ...]
    difference: float | None


@dataclass(frozen=True, slots=True)
class JobComparison:
    """Compared jobs in the requested order; findings: {title: the jobs that have it}."""

    reports: tuple[JobReport, ...]
    numbers: tuple[ComparedNumber, ...]
    findings: Mapping[str, tuple[Finding | None, ...]]

    @property
    def headline(self) -> str:
        """Largest difference."""
        most = next((one for one in self.numbers if one.difference), None)
        if most is None:
            return "No number differs."
        return f"Largest difference: {most.label}, {', '.join(most.texts)}."

    @property
    def _counter(self) -> str:
        """The counter that is drawn; "": no job has one."""
        measured = set[str]().union(*(report.timeline.means for report in self.reports))
        return next((name for name in _DRAWN if name in measured), "")

    @property
    def caption(self) -> str:
        """What the plot shows, and the jobs that it lacks."""
        counter = self._counter
        what = capitalized(COUNTER_LABELS.get(counter, counter))
        words = f"{what}, mean over the GPUs of each job, from its start."
        lacking = [report.job for report in self.reports if counter not in report.timeline.means]
        return f"{words} Not measured: job {', job '.join(lacking)}." if lacking else words

    def plot(self) -> Markup | None:
        """Return mean activity of each job over its time, all from their start; None where none
        was measured.
        """
        counter = self._counter
        lines = [
            ComparedLine(f"job {report.job}", report.timeline.bin_s, report.timeline.means[counter])
            for report in self.reports
            if counter in report.timeline.means
        ]
        what = COUNTER_LABELS.get(counter, counter)
        return svg(
            compared_charts(lines), label=f"{what} of each job over time, mean over its GPUs"
        )


def compare_jobs(reports: Sequence[JobReport]) -> JobComparison:
    """Return the comparison of these jobs."""
    summaries = [report.summary for report in reports]
    rows = [_number(label, name, summaries) for name, label in NUMBERS.items()]
    absent = {text(None)}
    measured = [row for row in rows if set(row.texts) - absent]
    ordered = sorted(
        measured, key=lambda row: -1.0 if row.difference is None else row.difference, reverse=True
    )
    by_job = [{finding.title: finding for finding in report.findings} for report in reports]
    findings = {}
    for title in chain.from_iterable(by_job):
        findings[title] = tuple(by_title.get(title) for by_title in by_job)
    return JobComparison(tuple(reports), tuple(ordered), findings)


def comparison_lines(comparison: JobComparison, *, width: int) -> list[Line]:
    """Return the comparison as lines: what differs most, numbers, then which job has what."""
    reports = comparison.reports
    numbers = comparison.numbers
    columns = [
        TextColumn("", ["state", *(row.label for row in numbers), *comparison.findings]),
        *(
            TextColumn(
                report.job,
                [
                    report.summary["state"] or text(None),
                    *(row.texts[place] for row in numbers),
                    *(
                        finding.severity if (finding := found[place]) else text(None)
                        for found in comparison.findings.values()
                    ),
                ],
                right=True,
            )
            for place, report in enumerate(reports)
        ),
        TextColumn(
            "difference",
            ["", *(text(row.difference, "fraction") for row in numbers)]
            + [""] * len(comparison.findings),
            right=True,
            hide=0,
        ),
    ]
    return [
        *wrapped(comparison.headline, width, style="bold"),
        plain(""),
        *fit_table(columns, width).with_note(width=width),
    ]


def _number(label: str, name: str, rows: Sequence[JobSummaryRow]) -> ComparedNumber:
    values = [number(row, name) for row in rows]
    return ComparedNumber(
        label, tuple(text(value, COLUMN_UNITS[name]) for value in values), difference(values)
    )


def difference(values: Sequence[float | None]) -> float | None:
    """Return by how much values differ, as a share of the largest amount; None for fewer than two.

    >>> difference([2.0, 8.0, None]), difference([0.0, 0.0]), difference([1.0, None])
    (0.75, 0.0, None)
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    most = max(map(abs, known))
    return (max(known) - min(known)) / most if most else 0.0
