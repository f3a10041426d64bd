"""What a job did over time, as one description: pages draw it with a script, print as SVG.

Bin i lasts from `i * bin_s` to `(i + 1) * bin_s` seconds after the start. A cell of a strip fills
its bin. A point of a line is at the middle of its bin, or at the end of the axis if that comes
first. Null is not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTERS_BY_NAME
from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import printable
from tachograph.judge.activity import ACTIVITY_NAMES, number
from tachograph.judge.finding import SEVERITIES, Finding
from tachograph.report.job import JobReport
from tachograph.report.steps import SHOWN_STEPS
from tachograph.report.timeline import Series

WINDOW = 12  # bins over which imbalance over time is computed
BUSY = 0.01  # of GPUs all less active than this no imbalance is drawn
_LEAST_ACTIVE = 0.005  # pipes that never reach it have no line

Values = tuple[float | None, ...]
# names of CSS variables, by meaning the same in every plot
Colour = Literal[
    "ink",
    "faint",
    "line",
    "paper",
    "accent",
    "compute",
    "fp64",
    "fp32",
    "fp16",
    "memory",
    "problem",
    "hint",
    "fact",
]
MarkKind = Literal["finding", "step", "wait", "throttling", "event"]

# What people call the counters of which every minute is kept.
COUNTER_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "gpu_util": "utilisation",
        "gr_engine_active": "graphics engine active",
        "sm_active": "SMs active",
        "tensor_active": "tensor cores active",
        "fp64_active": "FP64 pipe active",
        "fp32_active": "FP32 pipe active",
        "fp16_active": "FP16 pipe active",
        "dram_active": "DRAM traffic",
        "mem_copy_util": "device memory read or written",
        "hbm_used_mib": "memory used",
        "power_w": "power",
        "pcie_tx_bytes_per_s": "PCIe, GPU to host",
        "pcie_rx_bytes_per_s": "PCIe, host to GPU",
        "nvlink_tx_bytes_per_s": "NVLink sent",
        "nvlink_rx_bytes_per_s": "NVLink received",
    }
)
# Lines of the panel of activity: (label, colour, dashed).
_ACTIVITY: Mapping[str, tuple[str, Colour, bool]] = MappingProxyType(
    {
        "gpu_util": ("utilisation", "ink", False),
        "gr_engine_active": ("graphics engine", "ink", True),
        "sm_active": ("SMs", "accent", False),
        "tensor_active": ("tensor cores", "compute", False),
        "fp64_active": ("FP64", "fp64", True),
        "fp32_active": ("FP32", "fp32", True),
        "fp16_active": ("FP16", "fp16", True),
    }
)
_DIGITS = {"fraction": 4, "ratio": 4, "W": 1, "MiB": 0}  # behind the point
_STRIP_DIGITS = 3  # of 512 GPUs there are 123,000 cells


class GpuStrips(msgspec.Struct, frozen=True):
    """A counter of each GPU, 0..1: one row per GPU of the recording, one value per bin."""

    counter: str
    label: str
    unit: str
    rows: tuple[Values, ...]


class PlotLine(msgspec.Struct, frozen=True):
    """One value per bin; `counter` is None if they are computed from several."""

    label: str
    counter: str | None
    colour: Colour
    dashed: bool
    values: Values


class PlotBand(msgspec.Struct, frozen=True):
    """Lowest and highest of the GPUs in each bin."""

    low: Values
    high: Values


class PlotLimit(msgspec.Struct, frozen=True):
    """A horizontal line that values stay under."""

    label: str
    value: float


class Panel(msgspec.Struct, frozen=True):
    """Lines over one time axis; `most` is the top of their axis, None: from the data."""

    title: str
    unit: str
    most: float | None
    lines: tuple[PlotLine, ...]
    band: PlotBand | None = None
    limit: PlotLimit | None = None


class Mark(msgspec.Struct, frozen=True):
    """A marked interval, in seconds after the start; severity and code: of its worst finding."""

    kind: MarkKind
    label: str
    begin_s: float
    end_s: float
    severity: str | None = None
    code: str | None = None


class CounterName(msgspec.Struct, frozen=True):
    """A counter that was measured, its label and its unit."""

    name: str
    label: str
    unit: str


class Recording(msgspec.Struct, frozen=True):
    """A job over time. `start_s`: seconds since 1970; the axis ends at `length_s`.

    `gpus` are labels, in the order of the strips' rows.
    """

    job: str
    start_s: float | None
    zone: str
    bin_s: float
    length_s: float
    gpus: tuple[str, ...]
    strips: GpuStrips | None
    panels: tuple[Panel, ...]
    marks: tuple[Mark, ...]
    counters: tuple[CounterName, ...]

    @property
    def measured(self) -> bool:
        """There is something to draw."""
        return self.strips is not None or bool(self.panels)


def recording(report: JobReport) -> Recording:
    """Return what the report's job did over time."""
    timeline, start = report.timeline, report.summary.get("start")
    return Recording(
        job=report.job,
        start_s=None if start is None else start.timestamp(),
        zone=report.zone_name,
        bin_s=timeline.bin_s,
        length_s=_length_s(report),
        gpus=tuple(printable(gpu.label) for gpu in report.gpus),
        strips=_strips(report),
        panels=tuple(_panels(report)),
        marks=(*finding_marks(report), *_step_marks(report), *wait_marks(report)),
        counters=tuple(
            CounterName(name, label, COUNTERS_BY_NAME[name].unit)
            for name, label in COUNTER_LABELS.items()
            if name in timeline.means
        ),
    )


def _length_s(report: JobReport) -> float:
    """Length of the axis: to the job's end if that is in the last bin, else of all bins."""
    bin_s, elapsed_s = report.timeline.bin_s, number(report.summary, "elapsed_s")
    whole = report.timeline.bins * bin_s
    if elapsed_s is not None and whole - bin_s < elapsed_s < whole:
        return elapsed_s
    return whole


def _strips(report: JobReport) -> GpuStrips | None:
    counter = report.timeline.counter
    if counter is None or not any(_known(gpu.series) for gpu in report.gpus):
        return None
    unmeasured = (None,) * report.timeline.bins
    rows = tuple(_rounded(gpu.series or unmeasured, _STRIP_DIGITS) for gpu in report.gpus)
    return GpuStrips(counter, ACTIVITY_NAMES.get(counter, counter), "fraction", rows)


def _panels(report: JobReport) -> Iterator[Panel]:
    """Return the panels that have data, from top to bottom."""
    means = report.timeline.means
    several = len(report.gpus) > 1
    over_gpus = ", mean over the GPUs" if several else ""
    activity = tuple(
        PlotLine(label, name, colour, dashed, _rounded(means[name], _DIGITS["fraction"]))
        for name, (label, colour, dashed) in _ACTIVITY.items()
        if name in means and (name not in PIPES.values() or _reaches(means[name], _LEAST_ACTIVE))
    )
    if activity:
        yield Panel(f"Activity{over_gpus}", "fraction", 1.0, activity)
    if "dram_active" in means:
        traffic = _line("DRAM traffic", "dram_active", "memory", means)
        yield Panel(f"DRAM traffic{over_gpus}", "fraction", 1.0, (traffic,))
    if "power_w" in means:
        yield _power_panel(report)
    if "hbm_used_mib" in means:
        used = _line("memory used", "hbm_used_mib", "memory", means)
        capacity = number(report.summary, "hbm_mib")
        limit = None if capacity is None else PlotLimit("capacity", capacity)
        whose = " of the GPU with most" if several else ""
        yield Panel(f"Memory used{whose}", "MiB", None, (used,), limit=limit)
    imbalance = tuple(_imbalance_lines(report))
    if several and imbalance:
        yield Panel("Imbalance (0: all alike)", "ratio", 1.0, imbalance)


def _power_panel(report: JobReport) -> Panel:
    timeline, digits = report.timeline, _DIGITS["W"]
    line = _line("power", "power_w", "accent", timeline.means)
    if len(report.gpus) == 1:
        return Panel("Power", "W", None, (line,))
    band = PlotBand(_rounded(timeline.power_low, digits), _rounded(timeline.power_high, digits))
    return Panel("Power per GPU: mean, lowest to highest", "W", None, (line,), band)


def _line(label: str, counter: str, colour: Colour, means: Mapping[str, Series]) -> PlotLine:
    digits = _DIGITS[COUNTERS_BY_NAME[counter].unit]
    return PlotLine(label, counter, colour, False, _rounded(means[counter], digits))


def _imbalance_lines(report: JobReport) -> Iterator[PlotLine]:
    """Return imbalance across GPUs per bin, and the largest of a GPU over WINDOW bins."""
    measured = [_floats(gpu.series) for gpu in report.gpus if gpu.series]
    if not measured:
        return
    levels = np.vstack(measured)
    lines: Mapping[str, tuple[Floats, Colour]] = {
        "across GPUs": (_imbalance(levels, axis=0), "ink"),
        "over time": (_imbalance_over_time(levels), "accent"),
    }
    for label, (values, colour) in lines.items():
        if not np.isnan(values).all():
            numbers = [None if value != value else value for value in values.tolist()]
            yield PlotLine(
                label, None, colour, label == "over time", _rounded(numbers, _DIGITS["ratio"])
            )


def _imbalance(levels: Floats, *, axis: int) -> Floats:
    """1 - mean / max; NaN if nothing was measured or all were idle."""
    known = ~np.isnan(levels)
    count = known.sum(axis=axis)
    total = np.nansum(levels, axis=axis)
    most = np.where(known, levels, -1.0).max(axis=axis, initial=-1.0)
    busy = (count > 0) & (most >= BUSY)
    return np.where(busy, 1 - total / np.where(busy, count * most, 1.0), np.nan)


def _imbalance_over_time(levels: Floats) -> Floats:
    """Largest imbalance of a GPU over the WINDOW bins up to each."""
    if levels.shape[1] < WINDOW:
        return np.full(levels.shape[1], np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(levels, WINDOW, axis=1)
    by_gpu = _imbalance(windows, axis=2)
    most = np.where(np.isnan(by_gpu), -1.0, by_gpu).max(axis=0, initial=-1.0)
    return np.concatenate([np.full(WINDOW - 1, np.nan), np.where(most < 0, np.nan, most)])


def finding_marks(report: JobReport) -> tuple[Mark, ...]:
    """Return one mark per interval of findings, shared by those that agree to the bin."""
    bin_s = report.timeline.bin_s
    by_span: dict[tuple[float, float], list[Finding]] = {}
    for finding in report.findings:
        if finding.begin is None and finding.end is None:
            continue
        span = _span_s(report, finding.begin, finding.end)
        if span is None:
            continue
        near = next((other for other in by_span if _agree(other, span, bin_s)), span)
        by_span.setdefault(near, []).append(finding)
    return tuple(_finding_mark(findings, span) for span, findings in sorted(by_span.items()))


def _agree(one: tuple[float, float], other: tuple[float, float], bin_s: float) -> bool:
    return abs(one[0] - other[0]) < bin_s and abs(one[1] - other[1]) < bin_s


def _finding_mark(findings: list[Finding], span: tuple[float, float]) -> Mark:
    worst = min(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    kind: MarkKind = "finding"
    if worst.code == "throttled":
        kind = "throttling"
    elif worst.kind == "health":
        kind = "event"
    titles = dict.fromkeys(finding.title for finding in findings)
    return Mark(kind, "; ".join(titles), *span, worst.severity, worst.code)


def _span_s(
    report: JobReport, begin: datetime | None, end: datetime | None
) -> tuple[float, float] | None:
    """Return an interval in seconds after the start, cut to the axis; None: it is empty.

    An interval without begin begins with the job, one without end lasts until its end.
    """
    start = report.summary.get("start")
    begin, end = begin or start, end or report.until
    if start is None or begin is None or end is None:
        return None
    begin_s = max(0.0, (begin - start).total_seconds())
    end_s = min(_length_s(report), (end - start).total_seconds())
    return (begin_s, end_s) if begin_s < end_s else None


def _step_marks(report: JobReport) -> Iterator[Mark]:
    """Return the steps with most GPU time, if they divide the job."""
    if not report.steps.divide_job:
        return
    for step in report.steps.largest(SHOWN_STEPS):
        if step.by_srun and step.begin_s is not None and step.end_s is not None:
            begin_s, end_s = max(0.0, step.begin_s), min(_length_s(report), step.end_s)
            if begin_s < end_s:
                yield Mark("step", printable(step.label), begin_s, end_s)


def wait_marks(report: JobReport) -> Iterator[Mark]:
    """Return the gaps between srun steps in which GPUs were idle, in order of time."""
    for gap in sorted(report.steps.waited, key=lambda gap: gap.begin):
        span = _span_s(report, gap.begin, gap.end)
        if span is not None:
            yield Mark("wait", "GPUs idle, no srun step", *span)


def _rounded(values: Iterable[float | None], digits: int) -> Values:
    return tuple(None if value is None else round(value, digits) for value in values)


def _known(values: Series) -> bool:
    return any(value is not None for value in values)


def _reaches(values: Series, least: float) -> bool:
    return any(value is not None and value >= least for value in values)


def _floats(series: Series) -> Floats:
    return np.array([np.nan if value is None else value for value in series], dtype=np.float64)
