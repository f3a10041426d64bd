"""The report of one job as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.catalog.columns import share_text
from tachograph.catalog.units import gpu_hours_text, plural, text
from tachograph.judge.activity import number
from tachograph.judge.finding import Finding
from tachograph.report.findings import (
    NOT_TRIGGERED,
    REPORTED_CHECKS,
    UNKNOWN,
    check_text,
    checks_text,
    evidence_texts,
    finding_sentence,
)
from tachograph.report.job import FEW_GPUS, GpuUse, JobReport
from tachograph.report.lines import STYLES, Line, bar, plain, sparkline, to_text, wrapped
from tachograph.report.steps import steps_headline

_INDENT = " " * 4
_NEEDS, _NOTHING = "counters are missing", "no samples of this job"


def basis_lines(report: JobReport, finding: Finding, width: int) -> Iterator[Line]:
    """Yield the interval of a finding and its values against thresholds."""
    moments = [
        f"{label}: {value}" for label, value in evidence_texts(finding, report.zone_name) if label.endswith(" at")
    ]
    when = report.interval(finding)
    basis = [*([_capitalized(when)] if when else moments), checks_text(finding, zone_name=report.zone_name)]
    for line in filter(None, basis):
        yield from wrapped(line, width, indent="    ", style="dim")


def verdict_lines(report: JobReport, width: int, *, every: bool = False) -> Iterator[Line]:
    """Yield all checks by result.

    In short the names of one group share a line; with `every` each has its own, with the values that decided.
    """
    for name, findings in report.checks:
        yield plain(f"  {name}", "dim")
        if every:
            yield from _full_group(report, findings, width)
        else:
            needs = _NEEDS if report.missing else _NOTHING
            for line in _short_group(name, findings, needs=needs):
                yield from wrapped(line, width, indent=f"{_INDENT}  ", first=_INDENT)
    missing = report.all_missing() if every else report.missing
    if missing:
        yield plain("  Missing counters", "dim")
    for sentence in missing:
        yield from wrapped(sentence, width, indent=_INDENT)
    if report.verdicts and not every:
        more = f"All checks with their values: `tachograph job {report.job} --verdicts`"
        yield from wrapped(more, width, indent="  ", style="dim")


def _short_group(name: str, findings: Sequence[Finding], *, needs: str) -> Iterator[str]:
    if name == REPORTED_CHECKS:
        yield f"{_codes(findings)} (see above)"
    elif name == NOT_TRIGGERED:
        yield _codes(findings)
    elif name == UNKNOWN:
        reasons: dict[str, list[Finding]] = {}
        for finding in findings:
            reasons.setdefault(_reason(finding, needs), []).append(finding)
        yield from (f"{_codes(alike)}: {reason}" for reason, alike in reasons.items())
    else:
        yield from (f"{finding.code}: {finding_sentence(finding)}" for finding in findings)


def _reason(finding: Finding, needs: str) -> str:
    """Why a verdict is unknown; the counters of health are named, those of others are listed below."""
    if finding.kind == "health" and finding.needs and needs == _NEEDS:
        return f"{', '.join(finding.needs)} not measured"
    return needs if finding.needs else finding.sentence.removeprefix("Unknown: ")


def _full_group(report: JobReport, findings: Sequence[Finding], width: int) -> Iterator[Line]:
    for finding in findings:
        title = f"{finding.code}: {finding_sentence(finding)}"
        yield from wrapped(title, width, indent=f"{_INDENT}  ", first=_INDENT)
        when = report.interval(finding)
        checks = [check_text(check, zone_name=report.zone_name) for check in finding.checks]
        needs = [f"needs {', '.join(finding.needs)}"] if finding.needs else []
        for line in (*([_capitalized(when)] if when else []), *checks, *needs):
            yield from wrapped(line, width, indent=f"{_INDENT}    ", first=f"{_INDENT}  ", style="dim")


def _codes(findings: Sequence[Finding]) -> str:
    return ", ".join(finding.code for finding in findings)


def _capitalized(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


MIN_WIDTH, MAX_WIDTH = 72, 120
MARKS = {"problem": "▲", "hint": "●", "note": "○"}
_BAR = 10


def job_text(report: JobReport, *, width: int = 80, ascii_only: bool = False, every_verdict: bool = False) -> str:
    """Return the report as plain text, at most `width` characters wide (kept between MIN_WIDTH and MAX_WIDTH)."""
    lines = job_lines(report, width=width, ascii_only=ascii_only, every_verdict=every_verdict)
    return to_text(lines, ascii_only=ascii_only)


def job_lines(
    report: JobReport, *, width: int = 80, ascii_only: bool = False, every_verdict: bool = False
) -> list[Line]:
    """Return the report as styled lines (see lines.to_rich).

    `every_verdict`: each check has its own lines, with values against thresholds.
    """
    width = max(MIN_WIDTH, min(MAX_WIDTH, width))
    return [
        *_head(report, width),
        *_section("Findings", _findings(report, width)),
        *_section("GPU use", _gpus(report, width, ascii_only=ascii_only)),
        *_section("Steps", _steps(report, width)),
        *_section("Compute or memory bound", _bound(report, width, ascii_only=ascii_only)),
        *_section("Balance", (line for message in report.balance for line in wrapped(message, width, indent="  "))),
        *_section("Memory", wrapped(report.memory, width, indent="  ")),
        *_section("Energy", wrapped(report.energy, width, indent="  ")),
        *_section("Checks", verdict_lines(report, width, every=every_verdict)),
        *_section("About the data", _caveats(report, width)),
    ]


def _section(title: str, lines: Iterator[Line] | Sequence[Line]) -> Iterator[Line]:
    body = list(lines)
    if body:
        yield plain("")
        yield plain(title, "bold")
        yield from body


def _head(report: JobReport, width: int) -> Iterator[Line]:
    row = report.summary
    name = f"  {row['name']}" if row.get("name") else ""
    yield (
        (f"Job {report.job}", "bold"),
        (_cut(name, width - len(report.job) - 20), ""),
        (f"  {row['state']}" if row.get("state") else "", ""),
    )
    labels = ("user", "account", "partition", "qos", "cluster")
    yield from wrapped("   ".join(f"{label} {row[label]}" for label in labels if row.get(label)), width, indent="  ")
    elapsed = text(number(row, "elapsed_s"), "s")
    limit = "" if row.get("timelimit_s") is None else f" of {text(row['timelimit_s'], 's')}"
    until = "now" if report.running else report.local(row.get("end"))
    yield from wrapped(f"{report.local(row.get('start'))} to {until}: {elapsed}{limit}", width, indent="  ")
    yield from wrapped(allocation_text(report), width, indent="  ")
    yield from wrapped(report.headline, width, indent="  ", style="bold")
    if report.other_runs:
        starts = ", ".join(report.local(other.get("start")) for other in report.other_runs)
        yield from wrapped(
            f"One of {len(report.other_runs) + 1} runs of this job; the others started {starts}.", width, indent="  "
        )


def allocation_text(report: JobReport) -> str:
    """Return GPUs, model and nodes of the job."""
    row = report.summary
    count, nodes = number(row, "gpus"), number(row, "nodes")
    model = f" {row['gpu_model']}" if row.get("gpu_model") else ""
    capacity = "" if number(row, "hbm_mib") is None else f", {text(number(row, 'hbm_mib'), 'MiB')} each"
    gpus = "GPUs: not known" if count is None else f"{count:,.0f} ×{model or ' GPU'}{capacity}"
    share = share_text(row)
    if share:
        gpus = f"{share} of {'GPUs that are not known' if count is None else gpus}"
    where = "" if nodes is None else f", {plural(nodes, 'node')}"
    return f"{gpus}{where}{': ' + report.node_list if report.node_list else ''}"


def _findings(report: JobReport, width: int) -> Iterator[Line]:
    for finding in report.findings:
        style = STYLES[finding.severity]
        yield ("  ", ""), (f"{MARKS[finding.severity]} {finding.title}", style), (f"  ({finding.severity})", "dim")
        yield from wrapped(finding.sentence, width, indent="    ")
        if finding.advice:
            yield from wrapped(finding.advice, width, indent="      ", first="    → ")
        yield from basis_lines(report, finding, width)


def _gpus(report: JobReport, width: int, *, ascii_only: bool) -> Iterator[Line]:
    yield from wrapped(_use_summary(report), width, indent="  ")
    if not report.gpus:
        return
    if len(report.gpus) <= FEW_GPUS:
        names = _label_width(report.gpus, width)
        yield from _gpu_table(report.gpus, width, ascii_only=ascii_only, names=names)
        yield from _marks(report, width, names=names)
        return
    least, most = report.extremes
    both = _label_width((*least, *most), width)
    bands = [(name, count) for name, count in report.bands if count]
    if bands:
        counts = ", ".join(f"{plural(count, 'GPU')} {name}" for name, count in bands)
        yield from wrapped(f"By mean utilisation: {counts}.", width, indent="  ")
        yield plain("  least busy", "dim")
        yield from _gpu_table(least, width, ascii_only=ascii_only, names=both)
        yield plain("  most busy", "dim")
        yield from _gpu_table(most, width, ascii_only=ascii_only, names=both, heading=False)
        yield from _marks(report, width, names=both)


def _use_summary(report: JobReport) -> str:
    row = report.summary
    hours, never, zero = (number(row, name) for name in ("gpu_hours", "gpus_never_used", "zero_util_fraction"))
    sentences = [report.use]
    if hours is not None:
        sentences.append(f"Used {gpu_hours_text(hours)}.")
    if zero is not None:
        sentences.append(f"In {text(zero, 'fraction')} of the samples utilisation was zero.")
    if never:
        sentences.append(f"{plural(never, 'GPU')} {'was' if never == 1 else 'were'} idle throughout.")
    return " ".join(sentences)


def _label_width(gpus: Sequence[GpuUse], width: int) -> int:
    return max([3, *(min(24, width - 56, len(gpu.label)) for gpu in gpus)])


def _before_spark(names: int) -> int:
    """Columns of a line of the table of GPUs in front of its use over time."""
    return 2 + names + 2 + _BAR + 1 + 7 + 8 + 9 + 8 + 2


def _marks(report: JobReport, width: int, *, names: int) -> Iterator[Line]:
    """Intervals of findings, each as a line under the stretch of time it is about."""
    before, bins = _before_spark(names), report.timeline.bins
    shown = min(bins, max(8, width - before))
    for mark in report.marks if any(gpu.series for gpu in report.gpus) else ():
        first, last = (round(second / report.timeline.bin_s / bins * shown) for second in (mark.begin_s, mark.end_s))
        first = min(first, shown - 1)
        line = " " * first + "─" * max(1, last - first)
        yield (f"  {_cut(mark.label, before - 4):>{before - 4}}  ", "dim"), (line, "yellow")


def _gpu_table(
    gpus: Sequence[GpuUse], width: int, *, ascii_only: bool, names: int, heading: bool = True
) -> Iterator[Line]:
    spark = max(8, width - _before_spark(names))
    if heading:
        yield plain(
            f"  {'GPU':<{names}}  {'mean':<{_BAR}} {'':>7}{'max':>8}{'memory':>9}{'power':>8}  over time", "dim"
        )
    for gpu in gpus:
        numbers = (
            f" {text(gpu.activity_mean, 'fraction'):>7}{text(gpu.activity_max, 'fraction'):>8}"
            f"{text(number(gpu.row, 'hbm_peak_fraction'), 'fraction'):>9}"
            f"{text(number(gpu.row, 'power_w_mean'), 'W'):>8}"
        )
        yield (
            (f"  {_cut(gpu.label, names):<{names}}  ", ""),
            (bar(gpu.activity_mean, _BAR, ascii_only=ascii_only), "cyan"),
            (f"{numbers}  ", ""),
            (sparkline(gpu.series, spark, ascii_only=ascii_only), "cyan"),
        )


def _steps(report: JobReport, width: int) -> Iterator[Line]:
    if report.steps.divide_job:
        yield from wrapped(steps_headline(report.steps), width, indent="  ")
        count = plural(len(report.steps.steps), "step")
        more = f"{count}, each with its numbers: `tachograph job {report.job} --steps`"
        yield from wrapped(more, width, indent="  ", style="dim")


def _bound(report: JobReport, width: int, *, ascii_only: bool) -> Iterator[Line]:
    yield from wrapped(report.bound, width, indent="  ")
    for pipe in report.pipes:
        if not pipe.active_mean:
            continue
        yield (
            (f"  {pipe.name:<13} active {text(pipe.active_mean, 'fraction'):>6}   ", ""),
            (bar(pipe.compute_fraction, _BAR, ascii_only=ascii_only), "green"),
            (
                f"  compute {text(pipe.compute_fraction, 'fraction')}, memory {text(pipe.memory_fraction, 'fraction')}",
                "",
            ),
        )


def _caveats(report: JobReport, width: int) -> Iterator[Line]:
    for caveat in report.caveats:
        yield from wrapped(caveat, width, indent="  ")


def _cut(line: str, length: int) -> str:
    return line if len(line) <= length else line[: max(0, length - 1)] + "…"
