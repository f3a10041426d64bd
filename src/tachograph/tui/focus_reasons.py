"""Why a GPU has its class and its health, and of what its real utilisation is made: rows with values and thresholds."""

from __future__ import annotations

from dataclasses import replace

from rich.segment import Segment

from tachograph.live import missing
from tachograph.live.judged_reasons import Reasons, reasons
from tachograph.live.view import View
from tachograph.tui import colours
from tachograph.tui.page import Row, heading, paragraph, quantity, words
from tachograph.units import text
from tachograph.workload.classes import CLASSES, RULED, UNKNOWN
from tachograph.workload.health import Limits
from tachograph.workload.reading import known_of, reading_of
from tachograph.workload.rules import NO, YES, verdicts

RULES = tuple(one.name for one in RULED)
_VERDICTS = {NO: "no", YES: "yes"}
_WEIGHED = (("SM", "sm"), ("TENSOR", "tensor"), ("DRAM", "dram"), ("GR", "gr"))


def classed_and_healthy(view: View, row: int, *, width: int, rules: bool) -> list[Row]:
    """Return class and health of a GPU, and why. rules: whether all rules are listed, and health by a line each."""
    found = reasons(view, row)
    return [
        *classed(view, row, found, width=width, rules=rules),
        *healthy(view, row, found, width=width, short=not rules),
    ]


def classed(view: View, row: int, found: Reasons, *, width: int, rules: bool) -> list[Row]:
    """Return the class, the rule that holds with values and thresholds, what this reading alone would be; and of what
    real utilisation is made. rules: all rules up to the one that holds are listed.
    """
    smoothed, window = view.label(row), view.settings.smoothing_s
    rows: list[Row] = [
        heading("Class", width, f"over {quantity(window, 's')}" if window else "of this reading"),
        [Segment(colours.class_text(smoothed), colours.class_style(smoothed))],
    ]
    if not view.told[row]:
        return rows + paragraph("it tells nothing now", width, colours.NOTICE, indent=2)
    if smoothed in RULES:
        place = RULES.index(smoothed)
        rows += paragraph(f"rule {place + 1} of {len(RULES)}: {RULED[place].rule}", width, indent=2)
    rows += paragraph(found.why, width, colours.NOTICE if smoothed == UNKNOWN else colours.PLAIN, indent=2)
    rows += _enabling(view, found.classified.needs, width=width)
    if found.raw.name != smoothed:
        rows += paragraph(f"this reading alone: {colours.class_text(found.raw.name)}", width, indent=2)
    rows += parts_of_real(view, row, width=width)
    return rows + (_all_rules(view, row) if rules else [])


def _enabling(view: View, needs: tuple[str, ...], *, width: int) -> list[Row]:
    """How to have what is missing, each way once."""
    lacking = {name: view.about.blind[name] for name in needs if view.about.blind.get(name)}
    told = missing.lines(replace(view.about, blind=lacking))
    return [line for sentence in told for line in paragraph(sentence, width, colours.NOTICE, indent=2)]


def parts_of_real(view: View, row: int, *, width: int) -> list[Row]:
    """Return real utilisation of this reading with its parts: weights and what they weigh."""
    known = known_of(
        reading_of({name: float(column[row]) for name, column in view.snapshot.values.items()}), view.settings
    )
    parts = [
        f"{weight:.2f}·{name} {quantity(getattr(known, field), 'fraction')}".removeprefix("0")
        for (name, field), weight in zip(_WEIGHED, view.settings.weights, strict=True)
        if weight
    ]
    return paragraph(f"real {quantity(float(view.real[row]), 'fraction')} = {' + '.join(parts)}", width, indent=2)


def _all_rules(view: View, row: int) -> list[Row]:
    """Rules in their order up to the first that holds of the means over the window."""
    means = view.means or view.snapshot.values
    known = known_of(reading_of({name: float(column[row]) for name, column in means.items()}), view.settings)
    rows: list[Row] = []
    for place, verdict in enumerate((*verdicts(known, view.settings.weights), YES)):
        style = colours.CLASS_STYLES[place] if verdict == YES else colours.DIM
        said = _VERDICTS.get(verdict, "?")
        rows.append([Segment(f"{place + 1:>4} {said:<4}{CLASSES[place]}: {RULED[place].rule}", style)])
        if verdict == YES:
            break
    return rows


def healthy(view: View, row: int, found: Reasons, *, width: int, short: bool) -> list[Row]:
    """Return health, and each value that decides it against its limit. short: values that are good in one paragraph."""
    state = view.state(row)
    rows: list[Row] = [heading("Health", width), [Segment(colours.state_text(state), colours.HEALTH_STYLES[state])]]
    if found.health_why:
        rows += paragraph(found.health_why, width, colours.ALARM, indent=2)
    values = _values(view, row, found.limits)
    for sentence in [words(values)] if short else values:
        rows += paragraph(sentence, width, indent=2)
    if found.health.needs and view.told[row]:
        rows += paragraph(f"not told: {', '.join(found.health.needs)}", width, colours.NOTICE, indent=2)
        rows += _enabling(view, found.health.needs, width=width)
    return rows


def _values(view: View, row: int, limits: Limits) -> list[str]:
    """What decides health, with its limits; what is missing is left out."""
    value = view.snapshot.value
    told: list[str] = []
    sensors = (
        ("gpu_temp_c", "GPU", limits.warning_c, limits.critical_c),
        ("mem_temp_c", "memory", limits.memory_warning_c, limits.memory_critical_c),
    )
    for counter, name, warning, critical in sensors:
        degrees = value(counter, row)
        if degrees is not None:
            told.append(f"{name} {text(degrees, 'C')} (HOT from {warning:.0f}, critical {critical:.0f})")
    rows, failure = value("remapped_rows_uncorrectable", row), value("row_remap_failure", row)
    if rows is not None:
        told.append(f"{text(rows, 'count')} rows remapped")
    if failure is not None:
        told.append("a remapping failed" if failure else "no remapping failed")
    replays = float("nan") if view.replays is None else float(view.replays[row])
    if replays == replays:
        told.append(f"{text(replays, 'count')} PCIe replays in {text(view.settings.event_memory_s, 's')}")
    return told
