"""What was looked for in a job, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.finding import Finding
from tachograph.report.job import JobReport
from tachograph.report.lines import STYLES, Line, plain, wrapped
from tachograph.report.verdicts import ANSWER_NAMES, Group, check_text, checks_text, evidence_texts, what_is_so

_INDENT = " " * (4 + max(map(len, ANSWER_NAMES.values())) + 2)
_NEEDS, _NOTHING = "counters are missing", "no sample is known to be of this job"


def basis_lines(report: JobReport, finding: Finding, width: int) -> Iterator[Line]:
    """Yield when a finding was so, and its values against thresholds."""
    moments = [
        f"{label}: {value}" for label, value in evidence_texts(finding, report.zone_name) if label.endswith(" at")
    ]
    when = report.interval(finding)
    told = [*([_begun(when)] if when else moments), checks_text(finding, zone_name=report.zone_name)]
    for line in filter(None, told):
        yield from wrapped(line, width, indent="    ", style="dim")


def verdict_lines(report: JobReport, width: int, *, every: bool = False) -> Iterator[Line]:
    """Yield the table of what was looked for: by kind, what is so, what cannot be said, what is not so.

    In short the names of one verdict share a line; with `every` each has its own, with what it was decided by.
    """
    groups = report.looked_for
    for group in groups:
        yield plain(f"  {group.name}", "dim")
        yield from (
            _each(report, group, width) if every else _short(group, width, needs=_NEEDS if report.missing else _NOTHING)
        )
    missing = report.all_missing() if every else report.missing
    if missing:
        yield plain("  Counters that would tell more", "dim")
    for sentence in missing:
        yield from wrapped(sentence, width, indent="    ")
    if groups and not every:
        told = f"`tachograph job {report.job} --verdicts` tells each with its values."
        yield from wrapped(told, width, indent="  ", style="dim")


def _short(group: Group, width: int, *, needs: str) -> Iterator[Line]:
    above = [finding for finding in group.of("yes") if finding.severity != "fact"]
    if above:
        yield from _row("yes", f"{_codes(above)} (see above)", width)
    for finding in group.of("yes"):
        if finding.severity == "fact":
            yield from _row("yes", f"{finding.code}: {what_is_so(finding)}", width)
    unsaid = group.of("insufficient")
    without = [finding for finding in unsaid if finding.needs]
    whys = dict.fromkeys(finding.sentence for finding in unsaid if not finding.needs)
    if without:
        named = group.kind == "health" and needs == _NEEDS
        why = f"{', '.join(without[0].needs)} not measured" if named else needs
        yield from _row(ANSWER_NAMES["insufficient"], f"{_codes(without)}: {why}", width)
    for why in whys:
        same = [finding for finding in unsaid if not finding.needs and finding.sentence == why]
        yield from _row(ANSWER_NAMES["insufficient"], f"{_codes(same)}: {why}", width)
    if group.of("no"):
        yield from _row("no", _codes(group.of("no")), width)


def _each(report: JobReport, group: Group, width: int) -> Iterator[Line]:
    for finding in group.findings:
        yield from _row(ANSWER_NAMES[finding.verdict], f"{finding.code}: {what_is_so(finding)}", width)
        when = report.interval(finding)
        checks = [check_text(check, zone_name=report.zone_name) for check in finding.checks]
        needs = [f"needs {', '.join(finding.needs)}"] if finding.needs else []
        for line in (*([_begun(when)] if when else []), *checks, *needs):
            yield from wrapped(line, width, indent=f"{_INDENT}  ", first=_INDENT, style="dim")


def _row(verdict: str, said: str, width: int) -> Iterator[Line]:
    style = STYLES["note"] if verdict == "yes" else ""
    lines = wrapped(said, width, indent=_INDENT)
    for place, ((words, _),) in enumerate(lines):
        if place:
            yield plain(words)
        else:
            yield (f"    {verdict:<{len(_INDENT) - 4}}", style), (words.removeprefix(_INDENT), "")


def _codes(findings: Sequence[Finding]) -> str:
    return ", ".join(finding.code for finding in findings)


def _begun(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"
