"""The report of one job to hand on: Markdown for a ticket, a mail to its user."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog.units import capitalized, printable, text
from tachograph.judge.activity import number
from tachograph.report.findings import checks_text, severity_text
from tachograph.report.job import JobReport
from tachograph.report.job_text import allocation_text

SHOWN = 5  # findings


def job_ticket(report: JobReport) -> str:
    """Return the report as Markdown, for support staff: with user, nodes, evidence."""
    row = report.summary
    written = row.get("name")
    name = f" ({_escaped(written)})" if written else ""
    lines = [f"## Job {_escaped(report.job)}{name}: {_escaped(report.headline)}", ""]
    who = (
        (label, row.get(label)) for label in ("user", "account", "partition", "cluster", "state")
    )
    facts = [*((label, str(value)) for label, value in who if value), *_facts(report)]
    lines += [f"- **{label}**: {_escaped(value)}" for label, value in facts]
    if report.next_time and report.next_time.line:
        why = _escaped(report.next_time.why.removesuffix("."))
        lines.append(f"- **next time**: {_code(report.next_time.line)} ({why})")
    for finding in report.findings[:SHOWN]:
        title = f"{_escaped(finding.title)} ({severity_text(finding)}, `{finding.code}`)"
        lines += ["", f"### {title}", "", _escaped(finding.sentence)]
        basis = (report.interval(finding), checks_text(finding, zone_name=report.zone_name))
        lines += [f"- {_escaped(sentence)}" for sentence in basis if sentence]
        if finding.advice:
            lines.append(f"- **To do**: {_escaped(finding.advice)}")
    made = _code(f"{report.command} --ticket")
    return "\n".join([*lines, "", f"Made with {made}.", ""])


def job_mail(report: JobReport) -> tuple[str, str]:
    """Return subject and body of a plain-text mail to the job's user, verdict first."""
    row = report.summary
    name = f" ({row['name']})" if row.get("name") else ""
    subject = f"Your job {report.job}{name}: {report.headline.removesuffix('.')}"
    lines = [
        f"Hello {row.get('user') or ''}".rstrip() + ",",
        "",
        f"your job {report.job}{name}: {report.headline}",
        "",
    ]
    for finding in report.findings[:SHOWN]:
        when = report.interval(finding)
        lines += [f"* {finding.sentence}"]
        lines += [f"  {capitalized(when)}"] if when else []
        lines += [f"  What to do: {finding.advice}"] if finding.advice else []
    lines += [""] if report.findings else []
    if report.next_time and report.next_time.line:
        lines += [
            f"Next time: {report.next_time.line}  ({report.next_time.why.removesuffix('.')})",
            "",
        ]
    lines += [f"{label}: {value}" for label, value in _facts(report)]
    lines += ["", f"All numbers: {report.command}", ""]
    return printable(subject), "\n".join(map(printable, lines))


def _facts(report: JobReport) -> Iterator[tuple[str, str]]:
    row = report.summary
    yield (
        "ran",
        f"{report.ran}, {text(number(row, 'elapsed_s'), 's')}",
    )
    yield "on", allocation_text(report)
    if report.next_time and not report.next_time.line:  # else its reasons have it
        yield "next time", report.next_time.why
    if report.ranks:
        yield "ranks", report.ranks.line
    yield "GPU use", report.use
    if report.limiter:
        yield "speed", report.limiter
    if report.host:
        yield "host", report.host
    yield "energy", report.energy


def _code(value: str) -> str:
    """Text as code in Markdown, which knows no escapes in it."""
    return f"`{printable(value).replace('`', chr(39))}`"


def _escaped(value: str) -> str:
    r"""Return text in which names of jobs, nodes and paths stay as they are in Markdown.

    >>> _escaped("gpu_util of n_1 < 3 *")
    'gpu\\_util of n\\_1 \\< 3 \\*'
    """
    return "".join(f"\\{sign}" if sign in "\\`*_<>[]#|" else sign for sign in printable(value))
