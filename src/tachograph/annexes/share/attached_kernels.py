"""Kernels of reports attached to a job, in a sentence, and as a table of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from tachograph.annexes.share.kernel_names import shortened
from tachograph.annexes.share.kernels_sentences import duration_text, launches_text, resource_name
from tachograph.catalog.units import plural, printable, text
from tachograph.report.job_kernels import AttachedReport, JobKernels, ShortKernel

_NAME = 44  # characters of the name of a kernel
COLUMNS = ("kernel", "launches", "time", "share", "limited by")
TEXT_COLUMNS = (0, 4)


def kernel_values() -> Mapping[str, Any]:
    """Return the template values of a job page for its attached reports."""
    return {
        "kernels_sentence": kernels_sentence,
        "kernel_columns": COLUMNS,
        "kernel_texts": TEXT_COLUMNS,
        "kernel_rows": kernel_rows,
        "report_sentence": report_sentence,
    }


def kernels_sentence(kernels: JobKernels, job: str) -> str:
    """Return number of kernels, the longest, the command for more; "" without reports.

    >>> copy = ShortKernel("copy", 2, 0.02, 0.4, "dram")
    >>> found = JobKernels((AttachedReport("a.csv", "", None, 3, 3, 2, 0.05, (copy,)),), 2, copy)
    >>> first, second = kernels_sentence(found, "7").split(". ")
    >>> first
    '2 kernels in 1 attached report; longest copy (40 % of the time, limited by DRAM)'
    >>> second
    'See tachograph share kernels --job 7.'
    >>> kernels_sentence(JobKernels((), 0, None), "7")
    ''
    """
    if not kernels.reports:
        return ""
    count = (
        f"{plural(kernels.kernels, 'kernel')} in {plural(len(kernels.reports), 'attached report')}"
    )
    longest = "" if kernels.longest is None else f"; longest {_kernel_text(kernels.longest)}"
    return f"{count}{longest}. See {kernels_command(job)}."


def kernels_command(job: str) -> str:
    """Return the command that shows the kernels of a job."""
    return f"tachograph share kernels --job {quote(job)}"


def report_sentence(report: AttachedReport) -> str:
    """Return a sentence on an attached report.

    >>> report_sentence(AttachedReport("a.csv", "", None, 1200, 1000, 1, 0.05, ()))
    'a.csv: 1 kernel, 1,000 of 1,200 launches, 50 ms'
    """
    cut = f"{report.launches_kept:,} of " if report.launches_kept < report.launches else ""
    took = "" if report.seconds is None else f", {duration_text(report.seconds)}"
    counts = f"{plural(report.kernels, 'kernel')}, {cut}{launches_text(report.launches)}"
    return f"{printable(report.report)}: {counts}{took}"


def kernel_rows(report: AttachedReport) -> Iterator[tuple[str, ...]]:
    """Yield the cells of COLUMNS of each kernel that is listed."""
    for kernel in report.longest:
        yield (
            _name(kernel),
            f"{kernel.launches:,}",
            duration_text(kernel.seconds),
            text(kernel.share, "fraction"),
            text(None) if kernel.limited_by is None else resource_name(kernel.limited_by),
        )


def _kernel_text(kernel: ShortKernel) -> str:
    facts = []
    if kernel.share is not None:
        facts.append(f"{text(kernel.share, 'fraction')} of the time")
    if kernel.limited_by is not None:
        facts.append(f"limited by {resource_name(kernel.limited_by)}")
    return _name(kernel) + (f" ({', '.join(facts)})" if facts else "")


def _name(kernel: ShortKernel) -> str:
    return shortened(printable(kernel.name), _NAME)
