"""Counters of one GPU as rows: name, value, bar, history, or how to enable it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from rich.segment import Segment

from tachograph.annexes.watch.live import unsupported
from tachograph.annexes.watch.live.looks import MISSING
from tachograph.annexes.watch.live.snapshot import GpuDevice
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours
from tachograph.annexes.watch.tui.page import Row, cell, heading, quantity
from tachograph.catalog import devices
from tachograph.catalog.arrays import Floats, Singles
from tachograph.catalog.counters import COUNTERS_BY_NAME, CounterKind
from tachograph.judge.health import CLOCKS_LOWERED, clock_reasons, xid_meaning
from tachograph.report.lines import bar, sparkline

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Activity": (
            "gpu_util",
            "gr_engine_active",
            "sm_active",
            "sm_occupancy",
            "tensor_active",
            "tensor_hmma_active",
            "tensor_imma_active",
            "tensor_dfma_active",
            "fp64_active",
            "fp32_active",
            "fp16_active",
            "dram_active",
            "mem_copy_util",
        ),
        "Memory and traffic": (
            "hbm_used_mib",
            "hbm_free_mib",
            "pcie_rx_bytes_per_s",
            "pcie_tx_bytes_per_s",
            "nvlink_rx_bytes_per_s",
            "nvlink_tx_bytes_per_s",
        ),
        "Power, heat, clocks": (
            "power_w",
            "energy_j",
            "gpu_temp_c",
            "mem_temp_c",
            "sm_clock_mhz",
            "mem_clock_mhz",
            "throttle_reasons",
        ),
        "Errors": (
            "xid",
            "pcie_replays",
            "remapped_rows_uncorrectable",
            "remapped_rows_correctable",
            "row_remap_failure",
            "ecc_dbe",
            "ecc_sbe",
            "nvlink_errors",
        ),
    }
)
# harmless reasons, and problems. Source: DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, nvml.h
_USUAL = {0x1: "idle", 0x2: "application clocks", 0x10: "sync boost", 0x100: "display clocks"}
THROTTLED: Mapping[int, str] = MappingProxyType(dict(sorted({**_USUAL, **CLOCKS_LOWERED}.items())))
_NAME, _VALUE, _BAR = 27, 10, 12
_SPANS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600)  # s that one block may stand for


@dataclass(frozen=True, slots=True)
class CounterScale:
    """Scale of a bar and a history. full: None if no maximum is known; no bar then."""

    low: float
    full: float | None


def throttled(bits: float | None) -> str:
    """Return why clocks are lowered, in words.

    >>> throttled(0), throttled(0x44), throttled(0x400), throttled(None)
    ('none', "the power limit, heat (the hardware's limit)", 'bit 0x400', '-')
    """
    if bits is None or bits != bits:
        return MISSING
    mask = int(bits)
    named = [name for bit, name in THROTTLED.items() if mask & bit]
    other = mask & ~sum(THROTTLED)
    return ", ".join([*named, *([f"bit {other:#x}"] if other else [])]) or "none"


def counter_text(counter: str, value: float | None) -> str:
    """Return the value of a counter as text.

    >>> [counter_text(*each) for each in (("power_w", 312.4), ("xid", 79), ("xid", 0), ("row_remap_failure", 1))]
    ['312 W', 'XID 79: GPU has fallen off the bus', 'none', 'yes']
    """
    if value is None or value != value:
        return MISSING
    match counter:
        case "throttle_reasons":
            return throttled(value)
        case "xid":
            return f"XID {value:.0f}: {xid_meaning(int(value))}" if value else "none"
        case "row_remap_failure":
            return "yes" if value else "no"
    return quantity(value, COUNTERS_BY_NAME[counter].unit)


def counter_scale(counter: str, device: GpuDevice | None) -> CounterScale:
    """Return the scale of a counter of a device.

    >>> counter_scale("sm_active", None), counter_scale("hbm_used_mib", GpuDevice(hbm_mib=81559.0)).full
    (CounterScale(low=0.0, full=1.0), 81559.0)
    """
    if COUNTERS_BY_NAME[counter].unit == "fraction":
        return CounterScale(0.0, 1.0)
    match counter:
        case "hbm_used_mib" | "hbm_free_mib":
            return CounterScale(0.0, device.hbm_mib if device else None)
        case "power_w":
            model = devices.match_device(device.model) if device else None
            return CounterScale(0.0, model.board_power_w if model else None)
        case "gpu_temp_c" | "mem_temp_c":
            return CounterScale(20.0, 100.0)
    return CounterScale(0.0, None)


def spark(
    times: Floats, values: Floats | Singles, *, width: int, block_s: float, low: float, high: float
) -> str:
    """Return the newest values as a sparkline, newest right; blanks are missing.

    A block is the mean of the known values of `block_s` seconds; see `means`.

    >>> spark(np.arange(5.0), np.array([0, 0.5, 1, np.nan, 1]), width=6, block_s=1, low=0, high=1)
    ' ▁▅█ █'
    """
    return blocks(means(times, values, width=width, block_s=block_s), low=low, high=high)


def blocks(values: Floats, *, low: float, high: float) -> str:
    """Return a block character per value, low to full; a space for missing ones.

    >>> blocks(np.array([0, np.nan, 2]), low=0, high=1)
    '▁ █'
    """
    span = high - low if high > low else 1.0
    levels = ((values - low) / span).tolist()
    return sparkline([None if level != level else level for level in levels], len(levels))


def means(times: Floats, values: Floats | Singles, *, width: int, block_s: float) -> Floats:
    """Return means of the last `width` blocks of `block_s`, oldest first; NaN without values.

    Blocks begin at whole multiples of it, so that a mean that was shown does not change later;
    only the last one is incomplete.

    >>> means(np.array([0.0, 1, 2, 3]), np.array([1.0, 3, 5, np.nan]), width=3, block_s=2).tolist()
    [nan, 2.0, 5.0]
    """
    if not len(times) or width < 1:
        return np.full(max(width, 0), np.nan)
    span = np.floor(times / block_s)
    columns = (span - span[-1] + width - 1).astype(np.int64)
    is_counted = (columns >= 0) & np.isfinite(values)
    count = np.bincount(columns[is_counted], minlength=width)
    total = np.bincount(
        columns[is_counted], weights=np.asarray(values, np.float64)[is_counted], minlength=width
    )
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def counters(view: FleetView, row: int, *, width: int) -> list[Row]:
    """Return a GPU's counters by group, rows `width` wide; missing ones with the reason."""
    rows: list[Row] = []
    for name in GROUPS:
        rows += counter_group(view, row, name, width=width)
    return rows


def counter_group(view: FleetView, row: int, name: str, *, width: int) -> list[Row]:
    """Return one group of counters with its heading."""
    times = view.history.times()
    columns = max(0, width - _NAME - _VALUE - _BAR - 3)
    block_s = span(times, columns)
    reach = f"last {quantity(columns * block_s, 's')}" if columns >= 8 and len(times) > 1 else ""
    rows = [heading(name, width, reach if name == "Activity" else "")]
    absent = unsupported.absent_counters(view.about)
    shown = [counter for counter in GROUPS[name] if counter not in absent]
    return rows + [
        _row(view, row, counter, times, width=width, block_s=block_s) for counter in shown
    ]


def span(times: Floats, columns: int) -> float:
    """Return seconds per block, so that `columns` of them cover the history.

    >>> span(np.arange(100.0), 30), span(np.arange(2.0), 30)
    (5, 1)
    """
    held = float(times[-1] - times[0]) + 1 if len(times) else 0.0
    # At least one value in most of them.
    least = float(np.median(np.diff(times))) if len(times) > 2 else 0.0
    return next(
        (
            block_s
            for block_s in _SPANS
            if block_s * max(columns, 1) >= held and block_s >= 0.95 * least
        ),
        _SPANS[-1],
    )


def _row(
    view: FleetView, row: int, counter: str, times: Floats, *, width: int, block_s: float
) -> Row:
    snapshot = view.snapshot
    value = snapshot.value(counter, row)
    rest = width - _NAME - 1
    if value is None:
        why = "not reported now" if counter in snapshot.values else "not reported"
        return [
            cell(counter, _NAME, colours.DIM),
            cell(MISSING, _VALUE + 1, colours.DIM, right=True),
            cell(f"  {why}", rest - _VALUE, colours.DIM),
        ]
    if counter in ("throttle_reasons", "xid"):
        value_text = counter_text(counter, value)
        alarmed = bool(clock_reasons(int(value))) if counter == "throttle_reasons" else value != 0
        style = colours.NOTICE if alarmed else colours.PLAIN
        return [
            cell(counter, _NAME),
            Segment(" "),
            cell(f"{value_text:>{_VALUE}}", max(rest, 0), style),
        ]
    scale = counter_scale(counter, snapshot.devices.get(snapshot.gpus[row]))
    full = (
        ""
        if scale.full is None
        else bar((value - scale.low) / (scale.full - scale.low), _BAR, empty=" ")
    )
    columns = rest - _VALUE - _BAR - 2
    style = colours.ALARM if _bad(counter, value) else colours.PLAIN
    return [
        cell(counter, _NAME, style),
        cell(counter_text(counter, value), _VALUE + 1, style, right=True),
        Segment(" "),
        cell(full, _BAR, colours.PLAIN),
        Segment(" "),
        cell(
            _past(counter, times, view.history.series(counter, row), scale, columns, block_s),
            max(columns, 0),
        ),
    ]


def _past(
    counter: str, times: Floats, values: Singles, scale: CounterScale, columns: int, block_s: float
) -> str:
    """Return a counter's history, increases for a cumulative one, on its scale."""
    if columns < 4:
        return ""
    if COUNTERS_BY_NAME[counter].kind is CounterKind.CUMULATIVE:
        rises = np.clip(np.diff(values.astype(np.float64)), 0, None)
        return (
            _between(means(times[1:], rises, width=columns, block_s=block_s))
            if np.nansum(rises)
            else ""
        )
    averaged = means(times, values, width=columns, block_s=block_s)
    if scale.full is None:
        return _between(averaged) if COUNTERS_BY_NAME[counter].unit != "flag" else ""
    return blocks(averaged, low=scale.low, high=scale.full)


def _between(averaged: Floats) -> str:
    measured = averaged[np.isfinite(averaged)]
    return blocks(averaged, low=0.0, high=float(measured.max(initial=0.0)) or 1.0)


def _bad(counter: str, value: float) -> bool:
    """Return whether an error count is highlighted; replays only if new."""
    return counter in ("remapped_rows_uncorrectable", "row_remap_failure") and value > 0
