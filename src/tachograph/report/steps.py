"""The steps of one job: sentences, lines of text, JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from tachograph.catalog.units import capitalized, plural, text, zone
from tachograph.judge.activity import number
from tachograph.judge.steps import JobSteps, StepGap, StepUse
from tachograph.report.json_values import json_values, public_row
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

SHOWN_STEPS = 40  # in text and on the page; JSON has all
SHOWN_GAPS = 8
STEP_COLUMNS = (
    "step", "name", "nodes", "tasks", "start", "run time", "state", "exit", "GPU", "SM", "memory", "power", "energy",
    "coverage", "attribution",
)  # fmt: skip
STEP_TEXTS = frozenset({"step", "name", "state", "attribution"})
_LEAST = {"name": 8, "state": 9}  # characters to which cells are cut where a line is narrow
_ALWAYS = frozenset({"step", "start", "run time", "state", "GPU", "coverage"})
# Attribution of steps that had the GPUs to themselves: the rule, not worth a column.
_ALONE = "time"
_HIDDEN_FIRST = (
    "tasks",
    "nodes",
    "power",
    "SM",
    "exit",
    "attribution",
    "memory",
    "energy",
    "coverage",
)


def steps_headline(steps: JobSteps) -> str:
    """Return sentences on idle srun steps and the time without steps; names the undetermined."""
    if not steps.steps:
        return "No steps of this job are recorded."
    started = steps.by_srun
    if not started:
        return "No srun step: the numbers of the job are those of its script."
    sentences = [*_idle_sentences(steps), *_wait_sentences(steps)]
    known = [step for step in started if step.idle is not None]
    if known and not steps.idle:
        sentences.insert(
            0,
            "No srun step was idle."
            if len(known) > 1
            else f"{capitalized(known[0].label)} was not idle.",
        )
    ambiguous = sum(step.ambiguous for step in started)
    without = sum(step.without_gpus for step in started)
    missing = len(started) - len(known) - ambiguous - without
    if ambiguous:
        sentences.append(
            f"{plural(ambiguous, 'srun step')} ambiguous: the GPUs used are not recorded."
        )
    if without:
        sentences.append(f"{plural(without, 'srun step')} without GPUs.")
    if missing:
        sentences.append(f"{plural(missing, 'srun step')} undetermined: not enough samples.")
    return " ".join(sentences)


def _idle_sentences(steps: JobSteps) -> Iterator[str]:
    idle = steps.idle
    if not idle:
        return
    worst = idle[0]
    count = number(worst.row, "gpus")
    length = text(number(worst.row, "elapsed_s"), "s") + (
        "" if count is None else f", {plural(count, 'GPU')}"
    )
    if len(idle) == 1:
        yield f"{capitalized(worst.label)} was idle for {length}."
    else:
        yield (
            f"{len(idle)} of {len(steps.by_srun)} srun steps were idle; the largest is "
            f"{worst.label}: {length}."
        )


def _wait_sentences(steps: JobSteps) -> Iterator[str]:
    gaps = steps.waited
    if gaps:
        idle = text(sum(gap.idle_s for gap in gaps), "s")
        yield (
            f"The GPUs were idle for {idle} with no srun step running ({plural(len(gaps), 'gap')})."
        )


def clock(moment: datetime | None, steps: JobSteps, zone_name: str) -> str:
    """Return the time of day in the site's zone, with the date unless it is the day of the
    start.
    """
    if moment is None:
        return text(None)
    zone_of = zone(zone_name)
    local, start = moment.astimezone(zone_of), (steps.start or moment).astimezone(zone_of)
    return f"{local:%H:%M:%S}" if local.date() == start.date() else f"{local:%Y-%m-%d %H:%M:%S}"


def step_cells(step: StepUse, steps: JobSteps, zone_name: str) -> tuple[str, ...]:
    """Return the cells of a step in the order of STEP_COLUMNS; a dash: unknown or not measured."""
    row = step.row
    peak = number(row, "hbm_peak_fraction")
    memory = (
        text(number(row, "hbm_used_mib_max"), "MiB") if peak is None else text(peak, "fraction")
    )
    count = {name: text(number(row, name), "count") for name in ("nodes", "tasks", "exit_code")}
    return (
        str(row["step"]),
        row.get("name") or text(None),
        count["nodes"],
        count["tasks"],
        clock(row.get("start"), steps, zone_name),
        text(number(row, "elapsed_s"), "s"),
        row.get("state") or text(None),
        count["exit_code"],
        text(number(row, "gpu_util_mean"), "fraction"),
        text(number(row, "sm_active_mean"), "fraction"),
        memory,
        text(number(row, "power_w_mean"), "W"),
        text(number(row, "energy_j"), "J"),
        text(number(row, "coverage"), "fraction"),
        row.get("attribution") or text(None),
    )


def step_table(steps: JobSteps, zone_name: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return titles and rows of the steps with most GPU time, without columns that are all
    empty.
    """
    shown = steps.largest(SHOWN_STEPS)
    columns = list(zip(*(step_cells(step, steps, zone_name) for step in shown), strict=True))
    usual = {text(None), _ALONE}
    kept = [
        (title, column)
        for title, column in zip(STEP_COLUMNS, columns, strict=False)
        if title in _ALWAYS or not usual.issuperset(column)
    ]
    return tuple(title for title, _ in kept), list(
        zip(*(column for _, column in kept), strict=True)
    )


def gap_sentence(gap: StepGap, steps: JobSteps, zone_name: str) -> str:
    """Return the time without srun steps, and the GPUs' activity then."""
    if not gap.measured_s:
        what = "not measured"
    elif gap.idle_s:
        what = f"GPUs idle for {text(gap.idle_s, 's')}"
        busy = gap.measured_s - gap.idle_s
        what += f", in use for {text(busy, 's')}" if busy else ""
    else:
        what = "GPUs in use"
    begin, end = (clock(moment, steps, zone_name) for moment in (gap.begin, gap.end))
    return f"{begin} to {end}, {text(gap.elapsed_s, 's')}: {what}"


def shown_gaps(steps: JobSteps) -> tuple[StepGap, ...]:
    """Return the gaps that text and page show: the longest, in order of time."""
    longest = sorted(steps.gaps, key=lambda gap: -gap.elapsed_s)[:SHOWN_GAPS]
    return tuple(sorted(longest, key=lambda gap: gap.begin))


def steps_note(steps: JobSteps) -> str:
    """Return the number of hidden steps; "" if all are shown."""
    more = len(steps.steps) - SHOWN_STEPS
    return (
        f"{plural(more, 'further step')} of less GPU time: --steps --json lists all"
        if more > 0
        else ""
    )


def steps_lines(steps: JobSteps, *, zone_name: str = "UTC", width: int = 100) -> list[Line]:
    """Return headline, table of steps and gaps as styled lines."""
    lines = wrapped(steps_headline(steps), width, style="bold")
    titles, rows = step_table(steps, zone_name)
    if not rows:
        return [
            *lines,
            *wrapped(
                "Steps are read from accounting that lists them, such as sacct without -X.", width
            ),
        ]
    note = [steps_note(steps)] if steps_note(steps) else []
    lines += [plain(""), *fit_table(_columns(titles, rows), width).with_note(*note, width=width)]
    gaps = shown_gaps(steps)
    if gaps:
        lines += [plain(""), plain("Without an srun step", "bold")]
        for gap in gaps:
            lines += wrapped(gap_sentence(gap, steps, zone_name), width, indent="  ")
        more = len(steps.gaps) - len(gaps)
        if more:
            shorter = f"  {plural(more, 'shorter gap')}: --steps --json lists all"
            lines.append(plain(shorter, "dim"))
    return lines


def _columns(titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[TextColumn]:
    hidden = {title: place for place, title in enumerate(_HIDDEN_FIRST)}
    return [
        TextColumn(
            title,
            list(column),
            right=title not in STEP_TEXTS,
            least=_LEAST.get(title),
            hide=hidden.get(title),
        )
        for title, column in zip(titles, zip(*rows, strict=True), strict=True)
    ]


def steps_json(steps: JobSteps) -> dict[str, Any]:
    """Return `headline`, rows of step_summaries with `by_srun` and `idle`, `gaps`; null:
    unknown.
    """
    return json_values(
        {
            "headline": steps_headline(steps),
            "steps": [public_row(step.row) | {"by_srun": step.by_srun, "idle": step.idle} for step in steps.steps],
            "gaps": [
                {"begin": gap.begin, "end": gap.end, "elapsed_s": gap.elapsed_s, "measured_s": gap.measured_s,
                 "idle_s": gap.idle_s}
                for gap in steps.gaps
            ],
        }
    )  # fmt: skip
