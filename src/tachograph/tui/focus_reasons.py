"""Why a GPU has its class and its health, and of what its real utilisation is made: rows with values and thresholds."""

from __future__ import annotations

from rich.segment import Segment

from tachograph.live.view import View
from tachograph.tui import colours
from tachograph.tui.page import Row, heading, paragraph, quantity, words
from tachograph.units import text
from tachograph.workload.classes import CLASSES, RULED, UNKNOWN
from tachograph.workload.explained import explained
from tachograph.workload.health import Limits, limits_of, needed
from tachograph.workload.reading import Reading, classify, known_of, reading_of
from tachograph.workload.rules import CONDITIONS, NO, YES, Known, verdicts
from tachograph.workload.settings import Settings

_VERDICTS = {NO: "no", YES: "yes"}
_WEIGHED = ("SM", "TENSOR", "DRAM", "GR")


def reading(view: View, row: int) -> Reading:
    """Return what is known of a GPU now."""
    return reading_of({counter: float(values[row]) for counter, values in view.snapshot.values.items()})


def classed(view: View, row: int, settings: Settings, *, width: int, rules: bool) -> list[Row]:
    """Return class, label of this reading alone, the rule that holds, values against its thresholds, real utilisation.

    rules: whether all rules up to that one are listed, with what they come to.
    """
    smoothed, raw = view.label(row), CLASSES[int(view.raw[row])]
    note = f"smoothed over {quantity(settings.smoothing_s, 's')}" if settings.smoothing_s else ""
    rows: list[Row] = [
        heading("Class", width, note),
        [Segment(colours.class_text(smoothed), colours.class_style(smoothed))],
    ]
    if smoothed != raw:
        rows += paragraph(
            f"this reading alone: {colours.class_text(raw)}; the class changes when this lasts", width, indent=2
        )
    if not view.told[row]:
        return rows + paragraph("tells nothing now", width, colours.NOTICE)
    known = known_of(reading(view, row), settings)
    rows += _rule(view, row, raw, settings, width=width)
    rows += parts_of_real(view, row, known, settings, width=width)
    return rows + (_all_rules(known, settings, raw) if rules else [])


def _rule(view: View, row: int, raw: str, settings: Settings, *, width: int) -> list[Row]:
    """The rule of the raw label, and the values that it looks at."""
    seen = reading(view, row)
    values = explained(seen, settings)
    if raw == UNKNOWN:
        return _unknown(view, classify(seen, settings).needs, values, width=width)
    place = CLASSES.index(raw)
    return [
        *paragraph(f"rule {place + 1} of {len(RULED)}: {RULED[place].rule}", width, indent=2),
        *paragraph(f"{'' if place == len(CONDITIONS) else 'now '}{values}", width, indent=2),
    ]


def _unknown(view: View, needs: tuple[str, ...], why: str, *, width: int) -> list[Row]:
    rows = paragraph(why, width, colours.NOTICE, indent=2)
    told = dict.fromkeys(view.about.blind[name] for name in needs if view.about.blind.get(name))
    return rows + [line for sentence in told for line in paragraph(sentence, width, indent=2)]


def parts_of_real(view: View, row: int, known: Known, settings: Settings, *, width: int) -> list[Row]:
    """Return real utilisation with its parts: weights and what they weigh."""
    values = (known.sm, known.tensor, known.dram, known.gr)
    parts = [
        f"{weight:.2f} x {name} {quantity(value, 'fraction')}".removeprefix("0")
        for name, weight, value in zip(_WEIGHED, settings.weights, values, strict=True)
        if weight
    ]
    real = quantity(float(view.real[row]), "fraction")
    return paragraph(f"real {real} = {' + '.join(parts)}", width, indent=2)


def _all_rules(known: Known, settings: Settings, raw: str) -> list[Row]:
    """Rules in their order up to the first that holds."""
    rows: list[Row] = []
    for place, verdict in enumerate((*verdicts(known, settings.weights), YES)):
        said = _VERDICTS.get(verdict, "?")
        style = colours.class_style(raw) if CLASSES[place] == raw else colours.DIM
        rows.append([Segment(f"{place + 1:>4} {said:<4}{RULED[place].name}: {RULED[place].rule}", style)])
        if verdict == YES:
            break
    return rows


def healthy(view: View, row: int, *, width: int, short: bool) -> list[Row]:
    """Return health, and each value that decides it against its limit. short: values that are good in one paragraph."""
    gpu, state = view.snapshot.gpus[row], view.state(row)
    device = view.snapshot.devices.get(gpu)
    limits = limits_of(device.model if device else None, device.slowdown_c if device else None)
    rows: list[Row] = [heading("Health", width), [Segment(colours.state_text(state), colours.HEALTH_STYLES[state])]]
    signs = _signs(view, row, limits)
    for sentence in (sentence for sentence, bad in signs if bad):
        rows += paragraph(sentence, width, colours.ALARM, indent=2)
    good = [sentence for sentence, bad in signs if not bad]
    rows += [line for sentence in ([words(good)] if short else good) for line in paragraph(sentence, width, indent=2)]
    lacking = [name for name in needed(limits) if view.snapshot.value(name, row) is None]
    if lacking and view.told[row]:
        rows += paragraph(f"not told: {', '.join(lacking)}", width, colours.DIM, indent=2)
    return rows


def _signs(view: View, row: int, limits: Limits) -> list[tuple[str, bool]]:
    """What decides health, as (sentence, whether it is bad); what is missing is left out."""
    value = view.snapshot.value
    found: list[tuple[str, bool]] = []
    sensors = (
        ("gpu_temp_c", "GPU", limits.warning_c, limits.critical_c),
        ("mem_temp_c", "memory", limits.memory_warning_c, limits.memory_critical_c),
    )
    for counter, name, warning, critical in sensors:
        degrees = value(counter, row)
        if degrees is not None:
            limit = f"HOT from {warning:.0f}, critical {critical:.0f}"
            found.append((f"{name} {text(degrees, 'C')} ({limit})", degrees >= warning))
    rows, failure = value("remapped_rows_uncorrectable", row), value("row_remap_failure", row)
    if rows is not None:
        found.append(
            (f"{text(rows, 'count')} rows remapped after uncorrectable errors{' (CRIT)' if rows else ''}", rows > 0)
        )
    if failure is not None:
        found.append((f"{'remapping a row failed (CRIT)' if failure else 'no remapping failed'}", failure > 0))
    new, span = replays(view, row)
    if new is not None:
        found.append(
            (f"{text(new, 'count')} PCIe replays in the last {text(span, 's')}{' (WARN)' if new else ''}", new > 0)
        )
    return found


def replays(view: View, row: int) -> tuple[float | None, float]:
    """Return how many PCIe replays came up in what is kept, and over how many seconds; None where nobody counted.

    A counter that went back began anew.
    """
    counts = view.history.series("pcie_replays", row)
    known = counts == counts
    if int(known.sum()) < 2:
        return None, 0.0
    seen, times = counts[known].astype(float), view.history.times()[known]
    steps = seen[1:] - seen[:-1]
    new = float(steps[steps >= 0].sum() + seen[1:][steps < 0].sum())
    return new, float(times[-1] - times[0])
