"""The metrics of a job once more, from dictionaries and loops: what the compiled reduction must
come to.

Definitions: Cankur, Austin, Kulkarni, Bhatele (IPDPS 2026) in the default variant of each. No array
library.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.counters import COUNTERS, CounterKind

Unit = tuple[str, int, int | None]
Sample = Mapping[str, Any]
PIPES = {
    "fp64": "fp64_active",
    "fp32": "fp32_active",
    "fp16": "fp16_active",
    "tensor": "tensor_active",
}
RESOURCES = {
    ("main_pipe_at_work", "work_fraction"): tuple(PIPES.values()),
    ("dram_at_work", "dram_work_fraction"): ("dram_active",),
    **{
        (f"{link}_bytes_per_s_at_work", f"{link}_work_fraction"): (
            f"{link}_tx_bytes_per_s",
            f"{link}_rx_bytes_per_s",
        )
        for link in ("nvlink", "pcie")
    },
}
LOWERING = (0x4, 0x8, 0x20, 0x40, 0x80)
VOLUMES = {c.name: c.name.removesuffix("_per_s") for c in COUNTERS if c.kind is CounterKind.RATE}
WINDOWED = (
    *("gpu_util", "sm_active", "gr_engine_active", "fp64_active", "fp32_active", "fp16_active"),
    *("tensor_active", "dram_active"),
)
MINUTE_MEANS = (
    *(*WINDOWED, "power_w"),
    *(
        "mem_copy_util",
        "pcie_tx_bytes_per_s",
        "pcie_rx_bytes_per_s",
        "nvlink_tx_bytes_per_s",
        "nvlink_rx_bytes_per_s",
    ),
)
EDGES = [10 ** (-3 + 6 * k / 30) for k in range(31)]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job that held `units` from `start` to `end`."""

    job_id: str
    start: datetime
    end: datetime
    units: tuple[Unit, ...]
    # GPUs that another run had until the second of its start.
    taken_over: frozenset[Unit] = frozenset()

    def sampled_from(self, unit: Unit) -> datetime:
        """From when on samples are surely its own."""
        return self.start + timedelta(seconds=unit in self.taken_over)

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def with_taken_over(runs: Iterable[Run]) -> list[Run]:
    """Runs with the GPUs that others of them had until the second of their start."""
    runs = list(runs)
    ended = {(unit, run.end) for run in runs for unit in run.units}
    return [
        replace(run, taken_over=frozenset(one for one in run.units if (one, run.start) in ended))
        for run in runs
    ]


@dataclass(slots=True)
class Telemetry:
    """Samples by unit in order of time, and the sampling interval (s) of each unit and UTC day.

    shown: the intervals of these that ten distances or more show.
    """

    rows: dict[Unit, list[Sample]] = field(default_factory=dict)
    interval: dict[tuple[Unit, date], float] = field(default_factory=dict)
    shown: dict[tuple[Unit, date], float] = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Telemetry:
        found: dict[Unit, list[Sample]] = defaultdict(list)
        for sample in samples:
            found[sample["node"], sample["gpu"], sample["mig"]].append(sample)
        telemetry = cls(
            {unit: sorted(rows, key=lambda row: row["t"]) for unit, rows in found.items()}
        )
        for unit, rows in telemetry.rows.items():
            days: dict[date, list[datetime]] = defaultdict(list)
            for row in rows:
                days[row["t"].date()].append(row["t"])
            for day, times in days.items():
                distance, count = typical_distance(times)
                telemetry.interval[unit, day] = distance
                if count >= 10:
                    telemetry.shown[unit, day] = distance
        return telemetry


def typical_distance(times: Sequence[datetime]) -> tuple[float, int]:
    """Mean and number of the distances within a quarter octave or two of the median one (s); NaN
    for one sample.
    """
    distances = sorted(microseconds(b - a) for a, b in pairwise(times))
    if not distances:
        return math.nan, 0
    cells = [int(4 * math.log2(max(distance, 1))) for distance in distances]
    middle = cells[(len(cells) - 1) // 2]
    near = [
        distance for distance, cell in zip(distances, cells, strict=True) if abs(cell - middle) <= 1
    ]
    return math.fsum(near) / len(near) / 1e6, len(near)


def microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def gpu_reference(
    run: Run, unit: Unit, telemetry: Telemetry, capacity: float | None, analysis: AnalysisOptions
) -> dict[str, Any]:
    """The row of job_gpus of one GPU, and what the job adds up."""
    everything = telemetry.rows.get(unit, [])
    rows = [row for row in everything if run.sampled_from(unit) <= row["t"] < run.end]
    before = [row for row in everything if row["t"] < run.sampled_from(unit)]
    result: dict[str, Any] = {"samples": len(rows), "rows": rows}
    result["first_t"], result["last_t"] = (rows[0]["t"], rows[-1]["t"]) if rows else (None, None)
    intervals = [telemetry.interval[unit, day] for day in {row["t"].date() for row in rows}]
    known_intervals = [interval for interval in intervals if not math.isnan(interval)]
    shown = [telemetry.shown.get((unit, day)) for day in {row["t"].date() for row in rows}]
    result["shown_s"] = middle(shown)
    result["interval_s"] = middle(known_intervals)
    for counter in COUNTERS:
        name = counter.name
        values = [row[name] for row in rows if row[name] is not None]
        if counter.unit == "bitmask":
            lowered = [any(value & bit for bit in LOWERING) for value in values]
            result[f"{name}_mean"] = sum(lowered) / len(values) if values else None
            bits = 0
            for value in values:
                bits |= value
            result[f"{name}_max"] = bits if values else None
        elif counter.unit == "code":
            result[f"{name}_mean"], result[f"{name}_max"] = None, most(values)
        elif counter.kind is CounterKind.CUMULATIVE:
            steps = [max(b - a, 0) for a, b in pairwise(values)]
            result[f"{name}_mean"] = result[f"{name}_max"] = (
                math.fsum(steps) if len(values) > 1 else None
            )
        else:
            result[f"{name}_mean"], result[f"{name}_max"] = mean(values), most(values)
    for rate, volume in VOLUMES.items():
        area, seconds = integral(rows, rate, unit, telemetry, analysis)
        result[volume] = area if seconds else None
    codes = xid_events(rows, before)
    result["xid_events"] = None if codes is None else len(codes)
    result["xid_event_max"] = most(codes or ())
    for name in WINDOWED:
        result[f"ti_{name}"] = temporal_imbalance([row[name] for row in rows], analysis)
    utils = [row["gpu_util"] for row in rows if row["gpu_util"] is not None]
    result["utils"], result["zeros"] = len(utils), sum(value == 0 for value in utils)
    peak = result["hbm_used_mib_max"]
    result["hbm_peak_fraction"] = peak / capacity if peak is not None and capacity else None
    result["energy_j"], result["energy_j_estimated"], result["energy_source"] = energy(
        run, rows, unit, telemetry, analysis
    )
    return result


def pairs(rows: Sequence[Sample]) -> Iterable[tuple[Sample, Sample]]:
    return pairwise(rows)


def integral(
    rows: Sequence[Sample], name: str, unit: Unit, telemetry: Telemetry, analysis: AnalysisOptions
) -> tuple[float, float]:
    """Trapezoids between neighbouring values no gap apart, and their seconds; missing values are
    passed over.
    """
    areas, seconds = [], []
    for a, b in pairs([row for row in rows if row[name] is not None]):
        gaps = [
            telemetry.interval[unit, row["t"].date()] * analysis.max_gap_intervals for row in (a, b)
        ]
        longest = max((gap for gap in gaps if not math.isnan(gap)), default=0.0)
        distance = (b["t"] - a["t"]).total_seconds()
        if distance <= longest * (1 + 1e-12):
            areas.append((a[name] + b[name]) / 2 * distance)
            seconds.append(distance)
    return math.fsum(areas), math.fsum(seconds)


def xid_events(rows: Sequence[Sample], before: Sequence[Sample]) -> list[float] | None:
    """Codes that it changed to, but zero; the sample just before the job, on its first day,
    tells what was before.
    """
    if all(row["xid"] is None for row in rows):
        return None
    last = before[-1]["xid"] if before and before[-1]["t"].date() == rows[0]["t"].date() else None
    codes = []
    for row in rows:
        if row["xid"] is not None:
            if last is not None and row["xid"] not in (last, 0):
                codes.append(row["xid"])
            last = row["xid"]
    return codes


def temporal_imbalance(series: Sequence[float | None], analysis: AnalysisOptions) -> float | None:
    known = [value for value in series if value is not None]
    if not known:
        return None
    largest = max(known)
    if largest == 0:
        return 0.0 if analysis.zero_temporal_imbalance else None
    return 1 - math.fsum(known) / (len(known) * largest)


def energy(
    run: Run, rows: Sequence[Sample], unit: Unit, telemetry: Telemetry, analysis: AnalysisOptions
) -> tuple[float | None, float | None, str | None]:
    """Measured, scaled to the run, and where it comes from."""
    if unit[2] is not None:
        return None, None, None  # a slice shows the energy of the whole GPU
    counted = [(row["t"], row["energy_j"]) for row in rows if row["energy_j"] is not None]
    area, seconds = integral(rows, "power_w", unit, telemetry, analysis)
    if len(counted) > 1:
        grown = math.fsum(max(b - a, 0) for (_, a), (_, b) in pairwise(counted))
        covered = (counted[-1][0] - counted[0][0]).total_seconds()
        if not (grown == 0 and area > 0) and covered >= 0.5 * seconds:
            return grown, grown * max(1.0, run.seconds / covered), "counter"
    return (
        (area, area * max(1.0, run.seconds / seconds), "power") if seconds else (None, None, None)
    )


def labels(
    rows: Sequence[Sample],
    unit: Unit,
    telemetry: Telemetry,
    ridges: Mapping[str, float],
    analysis: AnalysisOptions,
) -> dict[str, Any]:
    """Roofline of one GPU: weights by label, and samples by intensity."""
    found: dict[str, Any] = {"known": [], "idle": [], "bins": defaultdict(int), "pipes": set()}
    found |= {f"{label}_{pipe}": [] for label in ("compute", "memory") for pipe in PIPES}
    days = sorted({row["t"].date() for row in rows})
    for day in days:
        of_day = [row for row in rows if row["t"].date() == day]
        measured = [
            pipe for pipe, name in PIPES.items() if any(row[name] is not None for row in of_day)
        ]
        found["pipes"] |= set(measured)
        for row in of_day if measured else ():
            values = {pipe: row[PIPES[pipe]] for pipe in measured}
            memory = row["dram_active"]
            for pipe, value in values.items():
                if memory and value and pipe in ridges:
                    found["bins"][pipe, bisect_right(EDGES, value / memory * ridges[pipe])] += 1
            if memory is None or None in values.values():
                continue
            found["known"].append(1.0)
            if not any(values.values()):
                found["idle"].append(1.0)
                continue
            for pipe, value in values.items():
                if value > 0 and value >= memory:
                    found[f"compute_{pipe}"].append(1.0)
                elif memory > value:
                    found[f"memory_{pipe}"].append(1.0)
    return found


def spatial_imbalance(
    run: Run, gpus: Mapping[Unit, dict[str, Any]], name: str, analysis: AnalysisOptions
) -> tuple[float | None, int | None, float | None]:
    """(mean over windows, windows with data, share of them in which all GPUs were at zero)"""
    windows: dict[int, dict[Unit, list[float]]] = defaultdict(lambda: defaultdict(list))
    for unit, gpu in gpus.items():
        for row in gpu["rows"]:
            if row[name] is not None:
                place = microseconds(row["t"] - run.start) // (analysis.window_s * 1_000_000)
                windows[place][unit].append(row[name])
    if not windows:
        return None, None, None
    values, zero = [], 0
    measured = sum(any(row[name] is not None for row in gpu["rows"]) for gpu in gpus.values())
    for parts in windows.values():
        sums = [math.fsum(part) for part in parts.values()]
        if max(sums) == 0:
            zero += 1
            if analysis.count_zero_windows:
                values.append(0.0)
        else:
            values.append(1 - math.fsum(sums) / (measured * max(sums)))
    value = mean(values) if measured > 1 else None
    return value, len(windows), zero / len(windows)


def job_reference(
    run: Run,
    telemetry: Telemetry,
    capacities: Mapping[Unit, float | None],
    ridges: Mapping[Unit, Mapping[str, float]],
    analysis: AnalysisOptions,
) -> tuple[dict[str, Any], dict[Unit, dict[str, Any]]]:
    """The row of job_summaries of one run, and those of its GPUs."""
    gpus = {
        unit: gpu_reference(run, unit, telemetry, capacities.get(unit), analysis)
        for unit in run.units
    }
    rows = list(gpus.values())
    result: dict[str, Any] = {"gpus": len(rows), "samples": sum(gpu["samples"] for gpu in rows)}
    result["gpus_seen"] = sum(gpu["samples"] > 0 for gpu in rows)
    result["elapsed_s"], result["gpu_hours"] = run.seconds, len(rows) * run.seconds / 3600
    usual = middle(gpu["shown_s"] for gpu in rows)
    for gpu in rows:
        if gpu["samples"]:
            gpu["interval_s"] = gpu["shown_s"] or usual or gpu["interval_s"]
    result["interval_s"] = interval = middle(gpu["interval_s"] for gpu in rows)
    expected = max(len(rows) * run.seconds / interval, 1.0) if interval else 1.0
    result["coverage"] = min(result["samples"] / expected, 1.0)
    for counter in COUNTERS:
        name = counter.name
        result[f"{name}_mean"] = mean([gpu[f"{name}_mean"] for gpu in rows])
        result[f"{name}_max"] = most(gpu[f"{name}_max"] for gpu in rows)
        if counter.unit == "bitmask":
            known = [gpu[f"{name}_max"] for gpu in rows if gpu[f"{name}_max"] is not None]
            together = 0
            for bits in known:
                together |= bits
            result[f"{name}_max"] = together if known else None
    result["power_w_sampled_mean"] = result.pop("power_w_mean")
    for volume in (*VOLUMES.values(), "energy_j", "energy_j_estimated", "xid_events"):
        result[volume] = total(gpu[volume] for gpu in rows)
    result["xid_event_max"] = most(gpu["xid_event_max"] for gpu in rows)
    measured = [gpu for gpu in rows if gpu["energy_j"] is not None]
    result["energy_gpus"] = len(measured)
    result["power_w_mean"] = (
        result["energy_j_estimated"] / (len(measured) * run.seconds) if measured else None
    )
    result["energy_source"] = "+".join(sorted({gpu["energy_source"] for gpu in measured})) or None
    for name in WINDOWED:
        value, windows, zero = spatial_imbalance(run, gpus, name, analysis)
        temporal = most(gpu[f"ti_{name}"] for gpu in rows)
        if name == "gpu_util":
            result |= {
                "spatial_imbalance": value,
                "spatial_windows": windows,
                "spatial_zero_fraction": zero,
            }
            result["temporal_imbalance"] = temporal
        else:
            asked = name in analysis.imbalance_counters
            result[f"spatial_imbalance_{name}"] = value if asked else None
            result[f"temporal_imbalance_{name}"] = temporal if asked else None
    result["hbm_peak_fraction"] = most(gpu["hbm_peak_fraction"] for gpu in rows)
    utils = sum(gpu["utils"] for gpu in rows)
    result["zero_util_fraction"] = sum(gpu["zeros"] for gpu in rows) / utils if utils else None
    never = sum(gpu["utils"] > 0 and gpu["gpu_util_max"] == 0 for gpu in rows)
    result["gpus_never_used"] = never if utils else None
    result |= roofline(
        [
            labels(gpu["rows"], unit, telemetry, ridges.get(unit, {}), analysis)
            for unit, gpu in gpus.items()
        ]
    )
    result |= at_work(result, rows)
    return result, gpus


def at_work(result: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The most active pipe; the level of each resource at work, samples weighted by themselves;
    its share of the time.
    """
    means = {pipe: result[f"{name}_mean"] or 0.0 for pipe, name in PIPES.items()}
    main = max(means, key=lambda pipe: means[pipe]) if max(means.values()) > 0 else None
    found: dict[str, Any] = {"main_pipe": main}
    for (level, share), counters in RESOURCES.items():
        found |= {level: None, share: None}
        busiest = max(counters, key=lambda name: result[f"{name}_mean"] or 0.0)
        levels = [[row[busiest] for row in gpu["rows"] if row[busiest] is not None] for gpu in gpus]
        work = math.fsum(value for values in levels for value in values)
        if work > 0:
            squares = [math.fsum(value * value for value in values) for values in levels]
            found[level] = math.fsum(squares) / work
            shares = [
                math.fsum(values) ** 3 / (len(values) * square)
                for values, square in zip(levels, squares, strict=True)
                if square
            ]
            found[share] = math.fsum(shares) / work
    return found


def roofline(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Labels of all GPUs put together."""
    result: dict[str, Any] = {}
    known = math.fsum(weight for gpu in found for weight in gpu["known"])
    idle = math.fsum(weight for gpu in found for weight in gpu["idle"])
    for pipe in PIPES:
        end = "" if pipe == "fp64" else f"_{pipe}"
        compute, memory = (
            math.fsum(weight for gpu in found for weight in gpu[f"{label}_{pipe}"])
            for label in ("compute", "memory")
        )
        seen = any(pipe in gpu["pipes"] for gpu in found) and known > 0
        labelled = compute + memory if seen and compute + memory > 0 else None
        result[f"compute_fraction{end}"] = compute / labelled if labelled else None
        result[f"memory_fraction{end}"] = memory / labelled if labelled else None
        result[f"idle_fraction{end}"] = idle / known if seen else None
        majority = "compute" if compute > memory else "memory" if memory > compute else None
        result[f"bound{end}"] = majority if labelled else None
    histogram = [0] * (4 * 32)
    for gpu in found:
        for (pipe, place), samples in gpu["bins"].items():
            histogram[32 * list(PIPES).index(pipe) + place] += samples
    result["intensity_histogram"] = histogram if any(histogram) else None
    return result


def minute_reference(
    run: Run, gpus: Mapping[Unit, dict[str, Any]]
) -> dict[tuple[Unit, int], dict[str, Any]]:
    """The rows of job_minutes; of a minute that midnight cuts, the means of both parts weighted
    by their samples.
    """
    cells: dict[tuple[Unit, int], dict[date, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for unit, gpu in gpus.items():
        for row in gpu["rows"]:
            cells[unit, microseconds(row["t"] - run.start) // 60_000_000][row["t"].date()].append(
                row
            )
    result = {}
    for key, days in cells.items():
        rows = [row for of_day in days.values() for row in of_day]
        found: dict[str, Any] = {
            "samples": len(rows),
            "hbm_used_mib": most(row["hbm_used_mib"] for row in rows),
        }
        for name in MINUTE_MEANS:
            parts = [(mean([row[name] for row in of_day]), len(of_day)) for of_day in days.values()]
            known = [(value, weight) for value, weight in parts if value is not None]
            weights = sum(weight for _, weight in known)
            found[name] = (
                math.fsum(value * weight for value, weight in known) / weights if known else None
            )
        result[key] = found
    return result
