"""Everything about one GPU: identity, class and health with reasons, counters, processes."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from textual.binding import BindingType

from tachograph.annexes.watch.live import unsupported
from tachograph.annexes.watch.live.looks import MISSING, looks
from tachograph.annexes.watch.live.snapshot import GpuId
from tachograph.annexes.watch.live.view import FleetView, GpuReasons, gpu_reasons
from tachograph.annexes.watch.tui import colours, keys
from tachograph.annexes.watch.tui.counter_rows import counters
from tachograph.annexes.watch.tui.page import (
    Page,
    PageRows,
    Row,
    cell,
    heading,
    join_parts,
    paragraph,
    quantity,
    side_by_side,
)
from tachograph.catalog.units import plural, printable, text
from tachograph.judge.health import NEW_ERRORS, HealthLimits
from tachograph.judge.workload.classes import RULED, UNKNOWN
from tachograph.judge.workload.rules import known_of

RULES = tuple(rule.name for rule in RULED)
# parts of real utilisation in the order of their weights
_WEIGHED = (("SM", "sm"), ("TENSOR", "tensor"), ("DRAM", "dram"), ("GR", "gr"))


def classed_and_healthy(view: FleetView, row: int, *, width: int) -> list[Row]:
    """Return class and health of a GPU, and why."""
    reasons = gpu_reasons(view, row)
    return [*classed(view, row, reasons, width=width), *healthy(view, row, reasons, width=width)]


def classed(view: FleetView, row: int, reasons: GpuReasons, *, width: int) -> list[Row]:
    """Return the class, its rule with values and thresholds, and the parts of real utilisation."""
    smoothed, window = view.label(row), view.settings.smoothing_s
    look = colours.LOOKS[int(looks(view)[row])]
    rows: list[Row] = [
        heading("Class", width, f"over {quantity(window, 's')}" if window else "of this reading"),
        [Segment(look.text, look.style)],
    ]
    if not view.current[row]:
        return rows + paragraph("no values now", width, colours.NOTICE, indent=2)
    if smoothed in RULES:
        index = RULES.index(smoothed)
        rule = RULED[index].rule_text(published=view.settings.published)
        rows += paragraph(f"class {index + 1} of {len(RULES)}: {rule}", width, indent=2)
    rows += paragraph(
        reasons.why, width, colours.NOTICE if smoothed == UNKNOWN else colours.PLAIN, indent=2
    )
    rows += _enabling(view, reasons.classified.needs, width=width)
    return rows + parts_of_real(view, row, width=width)


def _enabling(view: FleetView, needs: tuple[str, ...], *, width: int) -> list[Row]:
    """How to enable missing counters, without repetition."""
    lacking = {
        name: view.about.unsupported[name] for name in needs if view.about.unsupported.get(name)
    }
    sentences = unsupported.unsupported_lines(replace(view.about, unsupported=lacking), begin="")
    rows: list[Row] = []
    for sentence in sentences:
        rows += paragraph(sentence, width, colours.NOTICE, indent=2)
    return rows


def parts_of_real(view: FleetView, row: int, *, width: int) -> list[Row]:
    """Return real utilisation of this reading with its parts: weights and weighted values."""
    values = known_of(view.reading(row), view.settings)
    parts = [
        f"{weight:.2f}·{name} {quantity(getattr(values, field), 'fraction')}".removeprefix("0")
        for (name, field), weight in zip(_WEIGHED, view.settings.weights, strict=True)
        if weight
    ]
    return paragraph(
        f"real {quantity(float(view.real[row]), 'fraction')} = {' + '.join(parts)}", width, indent=2
    )


def healthy(view: FleetView, row: int, reasons: GpuReasons, *, width: int) -> list[Row]:
    """Return health, and each decisive value against its limit."""
    state = view.state(row)
    rows: list[Row] = [
        heading("Health", width),
        [Segment(colours.state_text(state), colours.HEALTH_STYLES[state])],
    ]
    if reasons.health_why:
        rows += paragraph(reasons.health_why, width, colours.ALARM, indent=2)
    rows += paragraph(join_parts(_values(view, row, reasons.limits)), width, indent=2)
    # of errors counted only once, new ones are not known yet
    values = {name: view.snapshot.value(name, row) for name in reasons.health.needs}
    absent = tuple(name for name, value in values.items() if value is None)
    if absent and view.current[row]:
        rows += paragraph(f"not reported: {', '.join(absent)}", width, colours.NOTICE, indent=2)
        rows += _enabling(view, absent, width=width)
    return rows


def _values(view: FleetView, row: int, limits: HealthLimits) -> list[str]:
    """Values that decide health, with limits; missing ones are left out."""
    value = view.snapshot.value
    sentences: list[str] = []
    sensors = (
        ("gpu_temp_c", "GPU", limits.warning_c, limits.critical_c),
        ("mem_temp_c", "memory", limits.memory_warning_c, limits.memory_critical_c),
    )
    for counter, name, warning, critical in sensors:
        degrees = value(counter, row)
        if degrees is not None:
            sentences.append(
                f"{name} {text(degrees, 'C')} (HOT from {warning:.0f}, critical {critical:.0f})"
            )
    rows, failure = value("remapped_rows_uncorrectable", row), value("row_remap_failure", row)
    if rows is not None:
        sentences.append(f"{text(rows, 'count')} rows remapped")
    if failure is not None:
        sentences.append("a remapping failed" if failure else "no remapping failed")
    for name, errors in view.errors.items():
        if errors[row] == errors[row]:
            count = plural(float(errors[row]), NEW_ERRORS[name])
            sentences.append(f"{count} in {text(view.settings.event_memory_s, 's')}")
    return sentences


WIDE = 110  # characters from which there are two columns
_COUNTERS_AT_MOST = 100  # characters: longer histories add nothing
_STALE_S = 5.0  # from which on the age of values is shown


class FocusScreen(Page):
    """One GPU, with keys for the next and the previous one."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("focus")]

    def __init__(self, gpu: GpuId) -> None:
        super().__init__()
        self.gpu = gpu

    @property
    def selected_gpu(self) -> GpuId | None:
        """The shown GPU."""
        return self.gpu

    def rows(self, view: FleetView, width: int, height: int) -> PageRows:
        """Return all rows on the GPU."""
        return focus(view, self.gpu, width=width)

    def action_next(self) -> None:
        """Show the next GPU."""
        self._step(1)

    def action_previous(self) -> None:
        """Show the one before."""
        self._step(-1)

    def _step(self, by: int) -> None:
        gpus = self.view.snapshot.gpus if self.view else ()
        if gpus:
            index = gpus.index(self.gpu) + by if self.gpu in gpus else 0
            self.gpu = gpus[index % len(gpus)]
            self.scroll_home(animate=False)
            self.again()


def focus(view: FleetView, gpu: GpuId, *, width: int) -> list[Row]:
    """Return one GPU in rows of `width` characters, in two columns if they fit."""
    if gpu not in view.snapshot.gpus:
        return paragraph(
            f"{gpu.name} is not among the GPUs the source reports now", width, colours.NOTICE
        )
    row = view.snapshot.gpus.index(gpu)
    top = identity(view, row, width=width)
    if width < WIDE:
        parts = (*classed_and_healthy(view, row, width=width), *counters(view, row, width=width))
        return [*top, *parts, *processes(view, gpu, width=width)]
    left_width = min(_COUNTERS_AT_MOST, width * 11 // 20)
    right_width = width - left_width - 3
    further = [
        *classed_and_healthy(view, row, width=right_width),
        *processes(view, gpu, width=right_width),
    ]
    return [
        *top,
        *side_by_side(
            [counters(view, row, width=left_width), further], [left_width, right_width], gap=3
        ),
    ]


def identity(view: FleetView, row: int, *, width: int) -> list[Row]:
    """Return the GPU's name, its state in one line, and its allocation."""
    snapshot, state = view.snapshot, view.state(row)
    look = colours.LOOKS[int(looks(view)[row])]
    gpu = snapshot.gpus[row]
    device = snapshot.device(row)
    first: Row = [
        Segment(f"{gpu.name}  ", colours.BOLD),
        Segment(look.text, look.style),
        Segment(f"  real {quantity(float(view.real[row]), 'fraction')}  "),
        Segment(colours.state_text(state), colours.HEALTH_STYLES[state]),
        *_age(view, row),
        Segment(f"  {row + 1} of {len(snapshot.gpus)}", colours.DIM),
    ]
    board = [device.model or "model unknown", f"node {gpu.host}", f"GPU {gpu.gpu}"]
    if gpu.mig is not None:
        board.append(f"MIG slice {gpu.mig}")
    if device.hbm_mib:
        board.append(quantity(device.hbm_mib, "MiB"))
    address = [device.uuid or ""]
    if device.pci:
        address.append(f"PCI {device.pci}")
    rows = [first, *paragraph(printable(join_parts(board)), width)]
    where = join_parts(address)
    if where:
        rows += paragraph(printable(where), width, colours.DIM)
    return [*rows, *paragraph(_allocation_text(view, gpu), width)]


def _allocation_text(view: FleetView, gpu: GpuId) -> str:
    allocation = view.snapshot.allocations.get(gpu)
    if allocation is None:
        return "no allocation known"
    parts = [f"job {allocation.name_on(gpu) or MISSING}", f"user {allocation.user or MISSING}"]
    if allocation.since is not None:
        parts.append(f"for {quantity(max(0.0, view.snapshot.t - allocation.since), 's')}")
    return printable(join_parts(parts))


def _age(view: FleetView, row: int) -> Row:
    """Remark on old or missing values."""
    if not view.current[row]:
        return [Segment("  no values now", colours.ALARM)]
    age = float(view.stale_s[row])
    return [Segment(f"  values {quantity(age, 's')} old", colours.NOTICE)] if age > _STALE_S else []


def processes(view: FleetView, gpu: GpuId, *, width: int) -> list[Row]:
    """Return a heading, and the processes on a GPU, the one with most memory first."""
    rows: list[Row] = [heading("Processes", width)]
    running = sorted(
        view.snapshot.processes.get(gpu, ()), key=lambda process: -(process.hbm_used_mib or 0.0)
    )
    if not running:
        return [*rows, *paragraph("none known", width, colours.DIM)]
    rows.append([cell("     pid user             memory  command", width, colours.DIM)])
    for process in running:
        user, command = printable(process.user or MISSING), printable(process.command or MISSING)
        rows.append(
            [
                cell(str(process.pid), 8, right=True),
                Segment(" "),
                cell(user, 12),
                cell(quantity(process.hbm_used_mib, "MiB"), 11, right=True),
                Segment("  "),
                cell(command, max(0, width - 34)),
            ]
        )
    return rows
