"""Facts and tables of the published figures, recomputed from jobs in plain Python.

Each function takes jobs as dictionaries and returns what the figure of that number must show: every
fact by name, every table as rows in order. `number` in a name is that of the figure in IPDPS 2026.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import TypeAlias

from plain_statistics import Row, box, counts, grouped, spearman, steps
from raw_jobs import ENDS, PEAK_B_PER_S, PEAK_FLOP_PER_S, PIPES, Job

Tables: TypeAlias = dict[str, list[Row]]
Expected: TypeAlias = tuple[Row, Tables]
Jobs: TypeAlias = Sequence[Job]
NAMES = {"fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "tensor": "tensor"}
EDGES = [10 ** (-3 + 6 * k / 30) for k in range(31)]


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def some(name: str, number: int, whole: float) -> Row:
    """Facts on some of the jobs."""
    return {f"{name}_jobs": number, f"{name}_share": share(number, whole)}


def known(jobs: Jobs, *names: str) -> list[Job]:
    return [job for job in jobs if all(job[name] is not None for name in names)]


def bound(pipe: str) -> str:
    return f"bound{ENDS[pipe]}"


def figure_1(jobs: Jobs, pipe: str) -> Expected:
    bins = [(1, 2)]
    while bins[-1][1] < max(job["gpus"] for job in jobs):
        bins.append((bins[-1][1] + 1, bins[-1][1] * 2))
    of = {job["job_id"]: next(b for b in bins if b[0] <= job["gpus"] <= b[1]) for job in jobs}
    sizes: list[Row] = [
        {"size": f"{low} to {high}", "low": low, "high": high, "jobs": list(of.values()).count((low, high)),
         "share": list(of.values()).count((low, high)) / len(jobs)}
        for low, high in bins
    ]  # fmt: skip
    common = max(sizes, key=lambda row: row["jobs"])
    facts: Row = {
        "whiskers": "tukey",
        "jobs": len(jobs), "jobs_of_unknown_size": 0, "largest_gpus": max(job["gpus"] for job in jobs),
        "common_size": common["size"], "common_jobs": common["jobs"], "common_share": common["share"],
    }  # fmt: skip
    tables: Tables = {"sizes": sizes}
    for part, column, unit in (
        ("duration", "elapsed_s", 3600.0),
        ("utilisation", "gpu_util_mean", 1.0),
    ):
        values = [(of[job["job_id"]], job[column] / unit) for job in known(jobs, column)]
        facts |= {f"{part}_jobs": len(values), f"{part}_median": median(v for _, v in values)}
        tables[part] = [
            {"size": f"{low} to {high}", **box(mine)}
            for (low, high), mine in sorted(grouped(values).items())
        ]
    often = [row for row in tables["utilisation"] if row["jobs"] >= 10]
    if len(often) > 1:
        often.sort(key=_median)
        for name, row in (("worst", often[0]), ("best", often[-1])):
            facts |= {f"{name}_{key}": row[key] for key in ("size", "jobs", "median")}
    return facts, tables


def _median(row: Row) -> float:
    return float(row["median"])


def figure_2(jobs: Jobs, pipe: str) -> Expected:
    pipes = [pipe for pipe, name in PIPES.items() if known(jobs, f"{name}_mean")]
    measured = known(jobs, "pipes")
    mine = known(measured, *(f"{PIPES[pipe]}_mean" for pipe in pipes))
    groups = grouped((tuple(pipe in job["pipes"] for pipe in pipes), job) for job in mine)
    ordered = sorted(
        groups.items(), key=lambda item: (-len(item[1]), *(not used for used in item[0]))
    )
    rows = []
    for rank, (used, members) in enumerate(ordered):
        utils = [job["gpu_util_mean"] for job in known(members, "gpu_util_mean")]
        rows.append(
            {"combination": " + ".join(NAMES[p] for p, u in zip(pipes, used, strict=True) if u) or "none",
             **dict(zip(pipes, used, strict=True)), "jobs": len(members), "share": len(members) / len(mine),
             "util_mean": fmean(utils), "util_jobs": len(utils), "drawn": rank < 12}
        )  # fmt: skip
    several, none = (
        sum(len(job["pipes"]) > 1 for job in mine),
        sum(not job["pipes"] for job in mine),
    )
    facts = {
        "jobs": len(mine), "jobs_without_pipes": len(jobs) - len(measured),
        "jobs_with_some_pipes": len(measured) - len(mine),
        "measured_pipes": ", ".join(NAMES[pipe] for pipe in pipes),
        **some("several", several, len(mine)), **some("none", none, len(mine)),
        "combinations": len(rows), "combinations_not_drawn": max(0, len(rows) - 12),
        "jobs_not_drawn": sum(row["jobs"] for row in rows[12:]),
    }  # fmt: skip
    totals = []
    for each in pipes:
        users = sum(each in job["pipes"] for job in mine)
        facts |= some(each, users, len(mine))
        totals.append({"pipe": each, "jobs": users, "share": users / len(mine)})
    for place, row in enumerate(rows[:3], 1):
        facts[f"combination_{place}"] = row["combination"]
        facts |= {f"combination_{place}_{key}": row[key] for key in ("jobs", "share", "util_mean")}
    return facts, {"combinations": rows, "pipes": totals}


def figure_3(jobs: Jobs, pipe: str) -> Expected:
    """Every job's constraints name the memory of its GPUs: the jobs that requested 80 GB."""
    large = [job for job in jobs if job["request_gb"] == 80]
    peaks = [job["hbm_peak_fraction"] for job in known(large, "hbm_peak_fraction")]
    edges = [round(0.05 * k, 2) for k in range(21)]
    bins = [
        {"low": low, "high": high, "jobs": number, "share": number / len(peaks)}
        for low, high, number in zip(edges, edges[1:], counts(peaks, edges), strict=False)
    ]
    facts = {
        "population": "requested",
        "request_gb": 80,
        "population_jobs": len(large),
        "jobs": len(peaks),
    }
    for name, number in (
        ("under_20", sum(peak < 0.2 for peak in peaks)),
        ("under_50", sum(peak < 0.5 for peak in peaks)),
        ("at_least_80", sum(peak >= 0.8 for peak in peaks)),
        ("at_least_90", sum(peak >= 0.9 for peak in peaks)),
    ):
        facts |= some(name, number, len(peaks))
    fits = sum(peak * 80 <= 0.9 * 40 for peak in peaks)
    facts |= {"smaller_gib": 40.0, **some("fits_smaller", fits, len(peaks))}
    return facts | {"median": median(peaks)}, {"histogram": bins, "cumulative": steps(peaks)}


def figure_4(jobs: Jobs, pipe: str) -> Expected:
    facts: Row = {"pipe": pipe, "several_models_jobs": 0}
    for each, end in ENDS.items():
        work = [
            (job["samples"] * (1 - job[f"idle_fraction{end}"]), job[f"memory_fraction{end}"])
            for job in known(jobs, f"idle_fraction{end}", f"memory_fraction{end}")
            if job[f"idle_fraction{end}"] < 1
        ]
        samples = math.fsum(weight for weight, _ in work)
        memory = math.fsum(weight * part for weight, part in work)
        types = [job[bound(each)] for job in known(jobs, bound(each))]
        facts |= {
            f"{each}_labelled_jobs": len(work), f"{each}_labelled_samples": round(samples),
            f"{each}_memory_share": share(memory, samples), f"{each}_compute_share": share(samples - memory, samples),
            f"{each}_typed_jobs": len(types), f"{each}_memory_jobs_share": share(types.count("memory"), len(types)),
            f"{each}_compute_jobs_share": share(types.count("compute"), len(types)),
        }  # fmt: skip
    mine = known(jobs, "intensity_histogram")
    facts |= {"no_histogram_jobs": len(jobs) - len(mine), "jobs": len(mine)}
    models = sorted(
        grouped((job["gpu_model"], job) for job in mine).items(),
        key=lambda item: (-len(item[1]), item[0]),
    )
    bins, devices = [], []
    for order, each in enumerate(PIPES):
        for model, members in models:
            parts = [job["intensity_histogram"][32 * order : 32 * order + 32] for job in members]
            if any(map(any, parts)):
                total = [sum(column) for column in zip(*parts, strict=True)]
                bins += _intensities(each, model, total)
                devices.append(_device(each, model, total, sum(map(any, parts))))
    for each in PIPES:
        for what in ("jobs", "samples"):
            facts[f"{each}_intensity_{what}"] = sum(
                row[what] for row in devices if row["pipe"] == each
            )
    facts |= {"models_not_drawn": 0, "models_without_ridge": 0}
    first = next((row for row in devices if row["pipe"] == pipe), None)
    if first:
        facts |= {"model": first["gpu_model"], "model_samples": first["samples"]}
        facts |= {
            f"model_{key}_flop_per_b": first[f"{key}_flop_per_b"]
            for key in ("ridge", "median_low", "median_high")
        }
    return facts, {"distribution": bins, "devices": devices}


def _intensities(pipe: str, model: str, total: Sequence[int]) -> list[Row]:
    ends = zip([0.0, *EDGES], [*EDGES, None], total, strict=True)
    return [
        {"pipe": pipe, "gpu_model": model, "low_flop_per_b": low, "high_flop_per_b": high, "samples": number,
         "share": number / sum(total)}
        for low, high, number in ends
    ]  # fmt: skip


def _device(pipe: str, model: str, total: Sequence[int], jobs: int) -> Row:
    ridge = PEAK_FLOP_PER_S[pipe] / PEAK_B_PER_S[model]
    # Each by its bin.
    samples = [place for place, number in enumerate(total) for _ in range(number)]
    middle = samples[(len(samples) - 1) // 2]
    holds = sum(edge <= ridge for edge in EDGES)
    return {
        "pipe": pipe, "gpu_model": model, "drawn": True, "jobs": jobs, "samples": len(samples),
        "peak_flop_per_s": PEAK_FLOP_PER_S[pipe], "peak_b_per_s": PEAK_B_PER_S[model], "ridge_flop_per_b": ridge,
        "left_share_least": sum(place < holds for place in samples) / len(samples),
        "left_share_most": sum(place <= holds for place in samples) / len(samples),
        "median_low_flop_per_b": EDGES[middle - 1] if middle else 0.0,
        "median_high_flop_per_b": EDGES[middle] if middle < 31 else None,
    }  # fmt: skip


def figure_5(jobs: Jobs, pipe: str) -> Expected:
    with_energy = known(jobs, "gpu_hours", "energy_j")
    whole = [job for job in with_energy if job["energy_gpus"] == job["gpus"]]
    mine = [job for job in whole if job["gpu_hours"] > 0 and job["energy_j"] > 0]
    facts: Row = {
        "energy_unknown_jobs": len(jobs) - len(with_energy), "energy_partly_known_jobs": len(with_energy) - len(whole),
        "nothing_used_jobs": len(whole) - len(mine), "jobs": len(mine), "pipe": pipe, "whiskers": "tukey",
    }  # fmt: skip
    typed = [job for job in mine if job[bound(pipe)] is not None]
    boxes, totals = [], []
    for kind in ("compute", "memory", "unknown"):
        members = [job for job in mine if (job[bound(pipe)] or "unknown") == kind]
        bins = grouped((_half_decade(job["gpu_hours"]), job["energy_j"] / 3.6e6) for job in members)
        for place, values in sorted(bins.items()):
            ends = {"low_gpu_hours": 10 ** (place / 2), "high_gpu_hours": 10 ** ((place + 1) / 2)}
            boxes.append({"type": kind, "bin": place, **box(values), **ends})
        row: Row = {"type": kind, **_sums(members)}
        for name, value in _sums(members).items():
            row[f"{name}_share"] = None if kind == "unknown" else share(value, _sums(typed)[name])
        over_run = math.fsum(job["energy_j_estimated"] / 3.6e6 for job in members)
        row["kwh_per_gpu_hour"] = share(over_run, row["gpu_hours"])
        totals.append(row)
        facts |= {f"{kind}_{name}": value for name, value in row.items() if name != "type"}
    facts |= {f"typed_{name}": value for name, value in _sums(typed).items()}
    compute, memory = facts["compute_kwh_per_gpu_hour"], facts["memory_kwh_per_gpu_hour"]
    facts["compute_to_memory_ratio"] = compute / memory if compute and memory else None
    return facts, {"boxes": boxes, "totals": totals}


def _sums(jobs: Jobs) -> Row:
    energy = math.fsum(job["energy_j"] / 3.6e6 for job in jobs)
    return {
        "jobs": len(jobs),
        "gpu_hours": math.fsum(job["gpu_hours"] for job in jobs),
        "energy_kwh": energy,
    }


def _half_decade(hours: float) -> int:
    return next(
        place for place in range(-20, 20) if 10 ** (place / 2) <= hours < 10 ** ((place + 1) / 2)
    )


def bands(column: str) -> Callable[[Jobs, str], Expected]:
    """Figures 6 and 7."""

    def figure(jobs: Jobs, pipe: str) -> Expected:
        mine = known(jobs, column, "gpu_util_mean")
        found = grouped((_band(job["gpu_util_mean"]), max(0.0, job[column])) for job in mine)
        parts = {name: found.get(name, []) for name in ("low", "mid", "high")}
        everything = [value for values in parts.values() for value in values]
        boxes, curves = [], []
        facts: Row = {"jobs": len(mine), "median": median(everything), **_beyond("", everything)}
        for name, values in parts.items():
            facts |= {
                f"{name}_jobs": len(values),
                f"{name}_median": median(values) if values else None,
            }
            facts |= _beyond(f"{name}_", values)
            curves += [{"band": name, **row} for row in steps(values)]
            boxes += [{"band": name, **box(values)}] if values else []
        if column == "spatial_imbalance":
            seen = [job for job in jobs if job["gpus"] > 1 and job["gpus_seen"] == job["gpus"]]
            used = [
                (job["gpus"] - job["gpus_never_used"], job)
                for job in known(seen, "gpus_never_used")
            ]
            active, one = (
                sum(number > 0 for number, _ in used),
                [job for number, job in used if number == 1],
            )
            facts |= {"seen_jobs": active, **some("one_gpu", len(one), active)}
            facts["one_gpu_unused_gpu_hours"] = math.fsum(
                job["gpu_hours_never_used"] or 0.0 for job in one
            )
        return facts, {"bands": boxes, "cumulative": curves}

    return figure


def _beyond(prefix: str, values: Sequence[float]) -> Row:
    even, uneven = sum(v < 0.3 for v in values), sum(v > 0.7 for v in values)
    return some(f"{prefix}even", even, len(values)) | some(f"{prefix}uneven", uneven, len(values))


def _band(util: float) -> str:
    return "low" if util < 0.3 else "mid" if util <= 0.7 else "high"


def by_type(column: str) -> Callable[[Jobs, str], Expected]:
    """Figures 8 and 9."""

    def figure(jobs: Jobs, pipe: str) -> Expected:
        mine = known(jobs, column, "gpu_util_mean")
        letters = NAMES | {"tensor": "T"}

        def group_of(job: Row) -> str:
            return "+".join(letters[p] for p in PIPES if p in job["pipes"]) or "none"

        pipes = [(group_of(job), max(0.0, job[column])) for job in known(mine, "pipes")]
        types = [(job[bound(pipe)], max(0.0, job[column])) for job in known(mine, bound(pipe))]
        facts: Row = {"jobs": len(mine), "pipe": pipe}
        tables: Tables = {}
        for part, members in (("pipes", pipes), ("types", types)):
            rows = [
                {"group": group, **box(values)}
                for group, values in sorted(grouped(members).items())
            ]
            if part == "pipes":
                rows.sort(key=lambda row: -row["jobs"])
            rows = [row | {"drawn": place < 8} for place, row in enumerate(rows)]
            tables |= {part: rows, f"{part}_cumulative": _curves(rows, grouped(members))}
            facts |= {f"{part}_jobs": len(members)} | _medians(part, rows)
        drawn = {row["group"] for row in tables["pipes"] if row["drawn"]}
        facts["shown_jobs"] = sum(
            job[bound(pipe)] is not None or (job["pipes"] is not None and group_of(job) in drawn)
            for job in mine
        )
        return facts, tables

    return figure


def _curves(rows: Sequence[Row], members: Mapping[str, list[float]]) -> list[Row]:
    drawn = sorted(row["group"] for row in rows if row["drawn"])
    return [{"group": group, **row} for group in drawn for row in steps(members[group])]


def _medians(part: str, rows: Sequence[Row]) -> Row:
    left = [row for row in rows if not row["drawn"]]
    facts: Row = {
        f"{part}_groups": len(rows), f"{part}_groups_not_drawn": len(left),
        f"{part}_jobs_not_drawn": sum(row["jobs"] for row in left),
    }  # fmt: skip
    for row in rows:
        facts |= {
            f"{part}_{row['group']}_jobs": row["jobs"],
            f"{part}_{row['group']}_median": row["median"],
        }
    enough = [row for row in rows if row["jobs"] >= 10]
    ends = [
        choose(enough, key=lambda row: row["median"])["group"] if len(enough) > 1 else None
        for choose in (max, min)
    ]
    return facts | {
        f"{part}_groups_of_10": len(enough),
        f"{part}_most": ends[0],
        f"{part}_least": ends[1],
    }


def figure_10(jobs: Jobs, pipe: str) -> Expected:
    column = f"{PIPES[pipe]}_mean"
    mine = known(jobs, "gpu_util_mean", column, "dram_active_mean", bound(pipe))
    edges = [[round(_nice(max(job[name] for job in mine)) * k / 10, 12) for k in range(11)]
             for name in (column, "dram_active_mean")]  # fmt: skip
    facts: Row = {"pipe": NAMES[pipe], "jobs": len(mine), "jobs_left_out": len(jobs) - len(mine)}
    cells = []
    for kind in ("compute", "memory"):
        members = [job for job in mine if job[bound(pipe)] == kind]
        utils = [job["gpu_util_mean"] for job in members]
        facts |= {
            f"{kind}_jobs": len(members),
            f"{kind}_util_median": median(utils) if utils else None,
        }
        for axis, name in (("pipe", column), ("dram", "dram_active_mean")):
            facts[f"{kind}_rho_{axis}"] = spearman(utils, [job[name] for job in members])
        for a in range(10):
            for b in range(10):
                inside = [job["gpu_util_mean"] for job in members
                          if _in(job[column], edges[0], a) and _in(job["dram_active_mean"], edges[1], b)]  # fmt: skip
                cells.append(
                    {"type": kind, "pipe_low": edges[0][a], "pipe_high": edges[0][a + 1], "dram_low": edges[1][b],
                     "dram_high": edges[1][b + 1], "jobs": len(inside), "util_mean": fmean(inside) if inside else None}
                )  # fmt: skip
    return facts, {"cells": cells}


def _in(value: float, edges: Sequence[float], place: int) -> bool:
    return edges[place] <= value < edges[place + 1] or (place == 9 and value == edges[10])


def _nice(most: float) -> float:
    """The smallest of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10 times a power of ten that is not below
    it.
    """
    steps_of = [
        step * 10.0**power for power in range(-9, 1) for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    ]
    return min(step for step in steps_of if step >= most * (1 - 1e-12))


def figure_11(jobs: Jobs, pipe: str, compared: Sequence[str]) -> Expected:
    columns = {name: [job[f"{name}_mean"] for job in jobs] for name in compared}
    there = {
        name: [value for value in values if value is not None] for name, values in columns.items()
    }
    few = [name for name, values in there.items() if 0 < len(values) < 3]
    constant = [name for name, values in there.items() if len(values) >= 3 and len(set(values)) < 2]
    names = [name for name, values in there.items() if len(values) >= 3 and name not in constant]

    def pair(one: str, other: str) -> tuple[float | None, int]:
        both = [
            (a, b)
            for a, b in zip(columns[one], columns[other], strict=True)
            if a is not None and b is not None
        ]
        return spearman([a for a, _ in both], [b for _, b in both]), len(both)

    of_util = {name: pair("gpu_util", name)[0] for name in names}
    closeness = {
        name: -1.0 if rho is None else round(abs(rho), 12) for name, rho in of_util.items()
    }
    order = sorted(names, key=lambda name: (name != "gpu_util", -closeness[name]))
    counters = [
        {"counter": name, "rho_with_gpu_util": of_util[name], "jobs": len(there[name])}
        for name in order
    ]
    pairs: list[Row] = []
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            rho, both = pair(one, other)
            pairs.append({"counter": one, "other": other, "rho": rho, "jobs": both})
    facts: Row = {
        "jobs": len(known(jobs, "gpu_util_mean")),
        "constant": ", ".join(constant) or None,
        "too_few_jobs": ", ".join(few) or None,
    }
    partners = [row for row in pairs if row["counter"] == "gpu_util" and row["rho"] is not None]
    strong = sum(abs(row["rho"]) >= 0.7 for row in partners)
    facts |= {"compared": len(partners), "strong": strong, "partners": min(3, len(partners))}
    for place, row in enumerate(partners[:3], 1):
        facts |= {f"partner_{place}": row["other"], f"partner_{place}_rho": row["rho"]}
    for prefix, part in (("", pairs), ("util_", partners[:3])):
        numbers = [row["jobs"] for row in part]
        facts |= {f"{prefix}least_jobs": min(numbers), f"{prefix}most_jobs": max(numbers)}
    facts |= {f"rho_{row['other']}": row["rho"] for row in pairs if row["counter"] == "gpu_util"}
    for link in ("pcie", "nvlink"):
        rho, both = pair(f"{link}_tx_bytes_per_s", f"{link}_rx_bytes_per_s")
        facts |= {f"{link}_tx_rx_rho": rho, f"{link}_tx_rx_jobs": both}
    return facts, {"counters": counters, "pairs": pairs}
