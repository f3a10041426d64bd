"""The report of one job as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tachograph.catalog.columns import share_text
from tachograph.catalog.doors import annex_function
from tachograph.catalog.units import capitalized, gpu_hours_text, plural, printable, text
from tachograph.judge.activity import number
from tachograph.judge.finding import Finding
from tachograph.report.findings import (
    check_text,
    checks_text,
    evidence_texts,
    severity_text,
)
from tachograph.report.job import FEW_GPUS, GpuUse, JobReport
from tachograph.report.lines import STYLES, Line, bar, plain, sparkline, to_text, wrapped
from tachograph.report.recording import finding_marks
from tachograph.report.steps import steps_headline
from tachograph.report.tables import cut

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


_INDENT = " " * 4


def basis_lines(report: JobReport, finding: Finding, width: int) -> Iterator[Line]:
    """Yield the interval of a finding and its values against thresholds."""
    moments = [
        f"{label}: {value}"
        for _, label, value in evidence_texts(finding, report.zone_name)
        if label.endswith(" at")
    ]
    when = report.interval(finding)
    basis = [
        *([capitalized(when)] if when else moments),
        checks_text(finding, zone_name=report.zone_name),
    ]
    for line in filter(None, basis):
        yield from wrapped(line, width, indent="    ", style="dim")


def verdict_lines(report: JobReport, width: int) -> Iterator[Line]:
    """Yield all checks by result, with the deciding values and the missing counters."""
    for name, findings in report.checks:
        yield plain(f"  {name}", "dim")
        yield from _full_group(report, findings, width)
    missing = report.all_missing()
    if missing:
        yield plain("  Missing counters", "dim")
    for sentence in missing:
        yield from wrapped(sentence, width, indent=_INDENT)


def _full_group(report: JobReport, findings: Sequence[Finding], width: int) -> Iterator[Line]:
    bare = [finding.code for finding in findings if not finding.sentence and not finding.checks]
    for finding in findings:
        if finding.code in bare:
            continue
        title = f"{finding.code}: {finding.sentence}" if finding.sentence else finding.code
        yield from wrapped(title, width, indent=f"{_INDENT}  ", first=_INDENT)
        when = report.interval(finding)
        checks = [check_text(check, zone_name=report.zone_name) for check in finding.checks]
        needs = [f"needs {', '.join(finding.needs)}"] if finding.needs else []
        for line in (*([capitalized(when)] if when else []), *checks, *needs):
            yield from wrapped(
                line, width, indent=f"{_INDENT}    ", first=f"{_INDENT}  ", style="dim"
            )
    if bare:
        yield from wrapped(", ".join(bare), width, indent=f"{_INDENT}  ", first=_INDENT)


MIN_WIDTH, MAX_WIDTH = 72, 120
MARKS = {"problem": "▲", "hint": "●"}
_BAR = 10
_LEAST_NAME = 12  # characters of a job's name beside whose it is
_LABEL = 10  # columns of a label and what stands before it
MOST_LINES = 30
# Left out first where lines are few.
_LEAST_FACTS = ("Unknown", "Energy", "Facts", "Memory", "Steps", "Balance", "Speed")
_SHORT_WITHOUT = ("Kernels", "Data", "Host", "Use")  # next, on a low terminal


def job_text(
    report: JobReport, *, width: int = 80, ascii_only: bool = False, every_check: bool = False
) -> str:
    """Return the report as text at most `width` wide, clipped to MIN_WIDTH..MAX_WIDTH."""
    lines = job_lines(report, width=width, ascii_only=ascii_only, every_check=every_check)
    return to_text(lines, ascii_only=ascii_only)


def job_lines(
    report: JobReport,
    *,
    width: int = 80,
    ascii_only: bool = False,
    every_check: bool = False,
    rows: int | None = None,
) -> list[Line]:
    """Return the report as styled lines (see lines.to_rich): verdict, fixes, findings, numbers.

    At 100 columns at most MOST_LINES; omitted parts are named. `every_check`: all findings, and all
    checks with values and thresholds. `rows`: where the report has more lines it is shortened to so
    many, if it can be; its last line says how to see all of it.
    """
    width = max(MIN_WIDTH, min(MAX_WIDTH, width))
    head = [*_head(report, width), *([plain("")] if report.findings else [])]
    if every_check:
        table = [
            *_gpus(report, width, ascii_only=ascii_only),
            *_pipes(report, ascii_only=ascii_only),
        ]
        checks = list(verdict_lines(report, width))
        return [
            *head,
            *_findings(report, report.findings, width),
            *table,
            *_facts(report, width, without=("Unknown",)),  # listed in full below
            *([plain(""), plain("Checks", "bold"), *checks] if checks else []),
        ]
    findings = len(report.findings)
    for layout in _layouts(findings):
        lines = [*head, *_body(report, layout, width, ascii_only=ascii_only)]
        if len(lines) <= MOST_LINES:
            break
    if rows is None or len(lines) <= rows:
        return lines
    for layout in _short_layouts(findings):
        lines = [*head, *_body(report, layout, width, ascii_only=ascii_only)]
        if len(lines) <= rows:
            break
    return lines


@dataclass(frozen=True, slots=True)
class Layout:
    """What a report shows below its head.

    gpus: rows of the table of GPUs, 0: no table. values: of findings, against thresholds. findings:
    the first ones, the others by title. without: labels of facts. shortened: to fit a terminal.
    """

    gpus: int
    values: bool
    findings: int
    without: Sequence[str]
    shortened: bool = False


def _layouts(findings: int) -> Iterator[Layout]:
    """Yield layouts from the fullest to the shortest."""
    yield Layout(FEW_GPUS, True, findings, ())
    yield Layout(FEW_GPUS, False, findings, ())
    yield Layout(3, False, findings, ())
    yield Layout(3, False, findings, _LEAST_FACTS[:1])
    for shown in range(findings, 0, -1):
        yield Layout(3, False, shown, _LEAST_FACTS[:2])
    for place in range(len(_LEAST_FACTS) + 1):
        yield Layout(3, False, min(1, findings), _LEAST_FACTS[:place])


def _short_layouts(findings: int) -> Iterator[Layout]:
    """Yield layouts for a low terminal, from the fullest to the shortest.

    Findings stay longer than means, these longer than the table of GPUs and other facts.
    """
    facts = (*_LEAST_FACTS, *_SHORT_WITHOUT)
    for gpus, shown in ((3, findings), *((0, count) for count in range(findings, -1, -1))):
        for place in range(len(facts) + 1):
            yield Layout(gpus, False, shown, facts[:place], shortened=True)
    yield Layout(0, False, 0, (*facts, "Means"), shortened=True)


def _body(report: JobReport, layout: Layout, width: int, *, ascii_only: bool) -> Iterator[Line]:
    """Yield findings, the table of GPUs, facts, and where to find more."""
    shown = report.findings[: layout.findings]
    yield from _findings(report, shown, width, details=layout.values)
    if rest := ", ".join(finding.title for finding in report.findings[layout.findings :]):
        yield from wrapped(f"Also: {rest}", width, indent="    ", first="  ")
    if layout.gpus:
        yield from _gpus(report, width, ascii_only=ascii_only, most=layout.gpus)
    yield from _facts(report, width, without=layout.without)
    more = _more(report, with_unknown="Unknown" in layout.without, shortened=layout.shortened)
    yield from wrapped(more, width, indent=" " * _LABEL, first="  ", style="dim")


def _head(report: JobReport, width: int) -> Iterator[Line]:
    row = report.summary
    title = f"Job {report.job}"
    written = row.get("name")
    name = f"  {printable(written)}" if written else ""
    names = {label: row.get(label) for label in ("user", "account", "partition", "cluster")}
    whose = ", ".join(f"{label} {printable(str(value))}" for label, value in names.items() if value)
    state = f"  {row['state']}" if row.get("state") else ""
    room = width - len(title) - len(state)
    beside = room - len(whose) - 4  # of the name, in one line with all else
    is_one_line = min(len(name), _LEAST_NAME) <= beside
    line: Line = (
        (title, "bold"),
        (cut(name, beside if is_one_line else room), ""),
        (state, ""),
    )
    if is_one_line:
        yield *line, (f"  {whose}", "dim")
    else:
        yield line
        yield from wrapped(whose, width, indent="  ", style="dim")
    yield from wrapped(report.headline, width, style="bold")
    if report.next_time and report.next_time.line:
        yield ("Next time: ", ""), (report.next_time.line, "green")
        yield from wrapped(report.next_time.why, width, indent="  ", style="dim")
    elif report.next_time:
        note = f"Next time: {report.next_time.why}"
        yield from wrapped(note, width, indent="  ", first="", style="dim")
    elapsed = text(number(row, "elapsed_s"), "s")
    limit = "" if row.get("timelimit_s") is None else f" of {text(row['timelimit_s'], 's')}"
    ran = f"{report.ran}: {elapsed}{limit}"
    yield from wrapped(f"{ran}, {allocation_text(report)}", width, indent="  ")
    if report.other_runs:
        starts = ", ".join(report.local(other.get("start")) for other in report.other_runs)
        count = len(report.other_runs) + 1
        yield from wrapped(
            f"One of {count} runs of this job; the others started {starts}.", width, indent="  "
        )


def _facts(report: JobReport, width: int, *, without: Sequence[str] = ()) -> Iterator[Line]:
    """Return numbers with their sources, each after a label."""
    row = report.summary
    yield plain("")
    facts = [
        ("Ranks", report.ranks and report.ranks.line),
        ("Use", _use_summary(report)),
        ("Means", report.means),
        ("Speed", report.limiter),
        ("Facts", report.facts),
        ("Balance", " ".join(report.balance)),
        ("Memory", report.memory),
        ("Energy", report.energy),
        ("Record", report.recorded),
        ("Host", report.host),
        ("Steps", steps_headline(report.steps) if report.steps.divide_job else None),
        ("Kernels", _kernels(report)),
        ("Data", " ".join(report.caveats)),
        ("Unknown", report.unchecked),
    ]
    # The verdict has said why.
    if row.get("attribution") == "ambiguous" or not number(row, "samples"):
        facts = [
            fact
            for fact in facts
            if fact[0] in ("Ranks", "Record", "Host", "Steps", "Kernels", "Data")
        ]
    for label, message in facts:
        if message and label not in without:
            yield from wrapped(
                message, width, indent=" " * _LABEL, first=f"  {label:<{_LABEL - 2}}"
            )


def _kernels(report: JobReport) -> str | None:
    """Section on kernels; empty for most jobs."""
    if not report.kernels.reports:
        return None
    sentence: str = annex_function("kernels_sentence")(report.kernels, report.job)
    return sentence


def _more(report: JobReport, *, with_unknown: bool, shortened: bool = False) -> str:
    """Where to find more.

    `with_unknown`: with the number of checks that lack counters, where no line names them.
    `shortened`: the option for all of the report comes first.
    """
    lacking = report.checks_without_counters if with_unknown else 0
    unknown = f" ({lacking} unknown)" if lacking else ""
    steps = ", --steps" if report.steps.steps else ""
    options = f"--checks{unknown}{steps}, --html FILE, --ticket, --mail"
    if shortened:
        return f"Shortened to fit the terminal; all of it: {report.command} --full; more: {options}"
    return f"More: {report.command} {options}"


def _counted_as(row: JobSummaryRow) -> str:
    """What part of a GPU's hours each slice has."""
    hours, count, elapsed_s = (number(row, name) for name in ("gpu_hours", "gpus", "elapsed_s"))
    if not hours or not count or not elapsed_s:
        return ""
    share = hours * 3600 / count / elapsed_s
    if share > 0.999:
        return ", counted as whole GPUs: their share is not known"
    return f", counted as {share:.2f} GPU each"


def allocation_text(report: JobReport) -> str:
    """Return GPUs, model and nodes of the job."""
    row = report.summary
    count, nodes = number(row, "gpus"), number(row, "nodes")
    model = f" {row['gpu_model']}" if row.get("gpu_model") else ""
    hbm_mib = number(row, "hbm_mib")
    capacity = "" if hbm_mib is None else f", {text(hbm_mib, 'MiB')} each"
    share = share_text(row)
    if any(gpu.row["mig"] is not None for gpu in report.gpus):
        model = f" MIG slice of{model or ' a GPU'}"
        capacity += _counted_as(row)
    if count is not None:
        allocation = f"{count:,.0f} ×{model or ' GPU'}{capacity}"
        if share:
            allocation = f"{share} of {allocation}"
    elif share:
        allocation = f"{share} of GPUs that are not known"
    else:
        allocation = "GPUs: not known"
    if nodes is not None:
        allocation += f", {plural(nodes, 'node')}"
    return f"{allocation}: {report.node_list}" if report.node_list else allocation


def _findings(
    report: JobReport, findings: Sequence[Finding], width: int, *, details: bool = True
) -> Iterator[Line]:
    for finding in findings:
        style = STYLES[finding.severity]
        tag = f"  ({severity_text(finding)})"
        yield (f"{MARKS[finding.severity]} {finding.title}", style), (tag, "dim")
        yield from wrapped(finding.sentence, width, indent="    ")
        if finding.advice:
            yield from wrapped(finding.advice, width, indent="      ", first="    → ")
        if details:
            yield from basis_lines(report, finding, width)


def _gpus(
    report: JobReport, width: int, *, ascii_only: bool, most: int = FEW_GPUS
) -> Iterator[Line]:
    """Table of GPUs; above `most` rows only the least and most busy ones, with counts of each
    kind.
    """
    if not any(gpu.activity_mean is not None for gpu in report.gpus):
        return
    yield plain("")
    if len(report.gpus) <= most:
        names = _label_width(report.gpus, width)
        yield from _gpu_table(report.gpus, width, ascii_only=ascii_only, names=names)
        yield from _marks(report, width, names=names)
        return
    few = max(1, most // 4)
    least, busiest = report.by_activity[:few], report.by_activity[::-1][:few]
    both = _label_width((*least, *busiest), width)
    counts = ", ".join(f"{plural(count, 'GPU')} {name}" for name, count in report.bands if count)
    yield from _gpu_table(least, width, ascii_only=ascii_only, names=both)
    yield plain(f"  ... {counts} busy on average ...", "dim")
    yield from _gpu_table(busiest[::-1], width, ascii_only=ascii_only, names=both, heading=False)
    yield from _marks(report, width, names=both)


def _use_summary(report: JobReport) -> str:
    row = report.summary
    hours, never, zero = (
        number(row, name) for name in ("gpu_hours", "gpus_never_used", "zero_util_fraction")
    )
    sentences = [report.use]
    if hours is not None:
        sentences.append(f"{gpu_hours_text(hours)} in all.")
    if zero:
        sentences.append(f"In {text(zero, 'fraction')} of the samples utilisation was zero.")
    if never:
        sentences.append(
            f"{plural(never, 'GPU')} {'was' if never == 1 else 'were'} idle in every sample."
        )
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
    for mark in finding_marks(report) if any(gpu.series for gpu in report.gpus) else ():
        first, last = (
            round(second / report.timeline.bin_s / bins * shown)
            for second in (mark.begin_s, mark.end_s)
        )
        first = min(first, shown - 1)
        line = " " * first + "─" * max(1, last - first)
        yield (f"  {cut(mark.label, before - 4):>{before - 4}}  ", "dim"), (line, "yellow")


def _gpu_table(
    gpus: Sequence[GpuUse], width: int, *, ascii_only: bool, names: int, heading: bool = True
) -> Iterator[Line]:
    spark = max(8, width - _before_spark(names))
    if heading:
        yield plain(
            f"  {'GPU':<{names}}  {'mean':<{_BAR}} {'':>7}{'max':>8}{'memory':>9}{'power':>8}  over time",
            "dim",
        )
    for gpu in gpus:
        numbers = (
            f" {text(gpu.activity_mean, 'fraction'):>7}{text(gpu.activity_max, 'fraction'):>8}"
            f"{text(number(gpu.row, 'hbm_peak_fraction'), 'fraction'):>9}"
            f"{text(number(gpu.row, 'power_w_mean'), 'W'):>8}"
        )
        yield (
            (f"  {cut(gpu.label, names):<{names}}  ", ""),
            (bar(gpu.activity_mean, _BAR, ascii_only=ascii_only), "cyan"),
            (f"{numbers}  ", ""),
            (sparkline(gpu.series, spark, ascii_only=ascii_only), "cyan"),
        )


def _pipes(report: JobReport, *, ascii_only: bool) -> Iterator[Line]:
    """The roofline of each pipe, sample by sample, as published."""
    used = [pipe for pipe in report.pipes if pipe.active_mean]
    if used:
        yield plain("")
        yield plain(
            "  Roofline of each pipe: samples that are compute-bound and memory-bound", "dim"
        )
    for pipe in used:
        yield (
            (f"  {pipe.name:<13} active {text(pipe.active_mean, 'fraction'):>6}   ", ""),
            (bar(pipe.compute_fraction, _BAR, ascii_only=ascii_only), "green"),
            (
                (
                    f"  compute {text(pipe.compute_fraction, 'fraction')}, memory "
                    f"{text(pipe.memory_fraction, 'fraction')}"
                ),
                "",
            ),
        )
