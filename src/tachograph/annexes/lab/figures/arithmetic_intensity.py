"""Figure 4: arithmetic intensity of samples, per pipe and device, against the device's roofline.

A sample's intensity is pipe activity x peak FLOP/s over memory activity x peak bandwidth; left of
the ridge point (peak FLOP/s over peak bandwidth) memory limits it. Bins are those of the reduction:
30 from 1e-3 to 1e3 FLOP/B, one under, one over. Source: IPDPS 2026, figure 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
    percent,
    share,
)
from tachograph.annexes.lab.figures.style import drawn_name
from tachograph.catalog.devices import DEVICES_BY_NAME, Device, match_device, ridge
from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import plural, text
from tachograph.pipeline.kernel import INTENSITY_BINS, intensity_edges

PIPE_NAMES: Mapping[str, str] = {"fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "tensor": "tensor"}
MOST_MODELS = 6  # lines that can be distinguished
LineLook: TypeAlias = tuple[str, Literal["-", "--", ":", "-."], str]  # colour, dashes, marker
_LINES: tuple[LineLook, ...] = (
    ("#0072b2", "-", "o"),
    ("#e69f00", "--", "s"),
    ("#000000", ":", "^"),
    ("#56b4e9", "-.", "D"),
    ("#a03c00", "--", "x"),
    ("#9a9a9a", "-", "+"),
)
_EDGES = intensity_edges()
_SPREAD = _EDGES[1] / _EDGES[0]  # width of a bin; those at both ends are drawn as wide
_DRAWN_EDGES = np.concatenate([[_EDGES[0] / _SPREAD], _EDGES, [_EDGES[-1] * _SPREAD]])
_CENTRES = np.sqrt(_DRAWN_EDGES[:-1] * _DRAWN_EDGES[1:])
_DEVICES = {
    "pipe": pl.String(),
    "gpu_model": pl.String(),
    "drawn": pl.Boolean(),
    "jobs": pl.Int64(),
    "samples": pl.Int64(),
    "peak_flop_per_s": pl.Float64(),
    "peak_b_per_s": pl.Float64(),
    "ridge_flop_per_b": pl.Float64(),
    "left_share_least": pl.Float64(),
    "left_share_most": pl.Float64(),
    "median_low_flop_per_b": pl.Float64(),
    "median_high_flop_per_b": pl.Float64(),
}

_FLOP_PER_B = ("ridge_flop_per_b", "median_low_flop_per_b", "median_high_flop_per_b")
_PARTS = ("distribution", "devices")
NO_INTENSITY = "no sample with an arithmetic intensity"

Counts = NDArray[np.int64]


def compute(study: Study) -> FigureNumbers:
    """Return intensity distributions per pipe and device model, and memory-bound job counts.

    distribution: one row per (pipe, gpu_model, bin): samples and their share of the model's with an
    intensity on this pipe; the first bin has low 0, the last high null. devices: one row per (pipe,
    gpu_model): the ridge point, null for a model or peak that the catalogue does not have, and what
    share of samples lies left of it: without and with the bin it falls into. Jobs whose GPUs are of
    several models are left out and counted, as are those of unknown models. Facts per pipe:
    memory_share weighs each job's memory_fraction by its samples that are not idle.
    """
    facts: dict[str, Fact] = {"pipe": study.options.pipe}
    for pipe in PIPES:
        facts |= _labels(study.jobs, pipe)
    if why := study.why_not(["intensity_histogram"]):
        if study.jobs.height:
            why = "device peaks not known, or no pipe measured with dram_active"
        return study.nothing(_PARTS, why, facts)
    several = pl.col("gpu_model").str.contains("+", literal=True).fill_null(False)
    counted = pl.col("intensity_histogram").is_not_null()
    facts["several_models_jobs"] = study.jobs.filter(several).height
    facts["no_histogram_jobs"] = study.jobs.filter(~counted, ~several).height
    comparable = study.jobs.filter(counted, ~several)
    facts["jobs"] = comparable.height
    bins, devices = [], []
    for rank, (model, part) in enumerate(_models(comparable)):
        histograms = (
            part.get_column("intensity_histogram")
            .explode()
            .to_numpy()
            .reshape(-1, len(PIPES), INTENSITY_BINS)
        )
        device = _device(model, part.get_column("hbm_mib").drop_nulls().to_list())
        for order, pipe in enumerate(PIPES):
            of_pipe = histograms[:, order]
            if of_pipe.any():
                bins.append(_bins(pipe, model, of_pipe.sum(axis=0)))
                devices.append(
                    _of_device(pipe, model, device, of_pipe) | {"drawn": rank < MOST_MODELS}
                )
    if not devices:
        return study.nothing(_PARTS, NO_INTENSITY, facts)
    by_pipe = pl.col("pipe").cast(pl.Enum(list(PIPES)))
    table = pl.DataFrame(devices, schema=_DEVICES).sort(by_pipe, maintain_order=True)
    distribution = pl.concat(bins).sort(by_pipe, maintain_order=True)
    facts |= _device_facts(table, study.options.pipe)
    missing = {
        pipe: study.why_not([f"{counter}_mean"]) or NO_INTENSITY
        for pipe, counter in PIPES.items()
        if pipe not in table.get_column("pipe")
    }
    tables = {"distribution": distribution, "devices": table}
    return FigureNumbers(tables, facts, study.jobs.height, missing)


def draw(numbers: FigureNumbers) -> Figure:
    """Return a column per pipe: rooflines above, the distribution of samples below."""
    devices = numbers.tables["devices"].filter("drawn")
    pipes = devices.get_column("pipe").unique(maintain_order=True).to_list()
    shown = set(devices.get_column("gpu_model"))
    lines = dict(
        zip((model for model in _by_jobs(numbers) if model in shown), _LINES, strict=False)
    )
    with style.style():
        width = style.PAGE_IN if len(pipes) > 2 else style.COLUMN_IN
        figure, axes = style.new_figure(
            width, 3.7, 2, len(pipes), sharex="col", sharey="row", height_ratios=[1, 1.6]
        )
        uppers, lowers = axes[: len(pipes)], axes[len(pipes) :]
        limits: dict[str, tuple[float, float]] = {}
        for upper, lower, pipe in zip(uppers, lowers, pipes, strict=True):
            for model, line in lines.items():
                _draw_model(upper, lower, numbers, (pipe, model), line)
            style.set_title(
                upper,
                f"{PIPE_NAMES[pipe]} (n = {count_jobs(numbers.facts[f'{pipe}_intensity_jobs'])})",
            )
            limits[pipe] = _limits(numbers, pipe)
            _dress(upper, lower, limits[pipe])
            if not upper.lines:
                style.not_drawn(upper, "peaks not known")
        uppers[0].set_ylim(_least_share(devices, limits), 1.6)
        lowers[0].set_ylim(bottom=0)
        uppers[0].set_ylabel("attainable share\nof peak FLOP/s")
        lowers[0].set_ylabel("share of the model's samples\nwith an intensity")
        figure.legend(
            handles=_legend(numbers, lines),
            loc="outside lower center",
            ncols=4 if len(pipes) > 2 else 2,
        )
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return memory-bound samples and jobs, and the usual intensity on the commonest device."""
    facts = numbers.facts
    pipe = str(facts["pipe"])
    named, message = PIPE_NAMES[pipe], []
    if facts[f"{pipe}_memory_share"] is not None:
        samples = text(numbers.number(f"{pipe}_labelled_samples"), "count")
        message.append(
            f"Judged by the {named} pipe, {percent(facts[f'{pipe}_memory_share'])} of the "
            "samples at work (about "
            f"{samples}, of {count_jobs(facts[f'{pipe}_labelled_jobs'])}) are memory-bound, "
            f"{percent(facts[f'{pipe}_compute_share'])} compute-bound."
        )
    if facts[f"{pipe}_typed_jobs"]:
        message.append(
            f"By the majority of their samples, {percent(facts[f'{pipe}_memory_jobs_share'])} of "
            f"{count_jobs(facts[f'{pipe}_typed_jobs'])} are memory-bound and "
            f"{percent(facts[f'{pipe}_compute_jobs_share'])} compute-bound."
        )
    if facts.get("model"):
        point = numbers.number("model_ridge_flop_per_b")
        where = "not known" if point is None else f"at {point:.3g} FLOP/B"
        low, high = (numbers.number(f"model_{name}") for name in _FLOP_PER_B[1:])
        message.append(
            f"On {facts['model']}, whose ridge point is {where}, the median {named} intensity lies "
            f"{_between(low, high)} FLOP/B."
        )
    return tuple(message)


def _labels(jobs: pl.DataFrame, pipe: str) -> dict[str, Fact]:
    """Memory-bound and compute-bound shares of samples and of jobs by one pipe.

    Peaks cancel in the label, so jobs on devices without known peaks count as well. Labelled
    samples are not stored: those that are not idle replace them, and differ only where a counter
    was missing for a while.
    """
    end = "" if pipe == "fp64" else f"_{pipe}"
    working = (pl.col("samples") * (1 - pl.col(f"idle_fraction{end}"))).alias("working")
    labelled = (
        jobs.select(working, memory=f"memory_fraction{end}")
        .drop_nulls()
        .filter(pl.col("working") > 0)
    )
    samples = float(labelled.get_column("working").sum())
    memory = float((labelled.get_column("working") * labelled.get_column("memory")).sum())
    types = jobs.get_column(f"bound{end}").drop_nulls()
    memory_jobs = int((types == "memory").sum())
    return {
        f"{pipe}_labelled_jobs": labelled.height,
        f"{pipe}_labelled_samples": round(samples),
        f"{pipe}_memory_share": memory / samples if samples else None,
        f"{pipe}_compute_share": 1 - memory / samples if samples else None,
        f"{pipe}_typed_jobs": len(types),
        f"{pipe}_memory_jobs_share": share(memory_jobs, len(types)),
        f"{pipe}_compute_jobs_share": share(len(types) - memory_jobs, len(types)),
    }


def _models(comparable: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The jobs of each model; the model with the most jobs first."""
    named = comparable.select(
        pl.col("gpu_model").fill_null("unknown model"), "hbm_mib", "intensity_histogram"
    )
    parts = [(str(name), part) for (name,), part in named.group_by("gpu_model")]
    return sorted(parts, key=lambda item: (-item[1].height, item[0]))


def _device(model: str, capacities_mib: Sequence[float]) -> Device | None:
    return DEVICES_BY_NAME.get(model) or match_device(model, min(capacities_mib, default=None))


def _bins(pipe: str, model: str, counts: Counts) -> pl.DataFrame:
    total = int(counts.sum())
    return pl.select(
        pipe=pl.lit(pipe),
        gpu_model=pl.lit(model),
        low_flop_per_b=pl.Series([0.0, *_EDGES]),
        high_flop_per_b=pl.Series([*_EDGES, None]),
        samples=pl.Series(counts),
        share=pl.Series(counts / total),
    )


def _of_device(pipe: str, model: str, device: Device | None, histograms: Counts) -> dict[str, Fact]:
    counts = histograms.sum(axis=0)
    total = int(counts.sum())
    point = ridge(device, pipe) if device else None
    middle = int(np.searchsorted(np.cumsum(counts), (total + 1) // 2))
    row: dict[str, Fact] = {
        "pipe": pipe,
        "gpu_model": model,
        "jobs": int(histograms.any(axis=1).sum()),
        "samples": total,
        "peak_flop_per_s": device.peak_flop_per_s(pipe) if device else None,
        "peak_b_per_s": device.hbm_bytes_per_s if device else None,
        "ridge_flop_per_b": point,
        "median_low_flop_per_b": float(_EDGES[middle - 1]) if middle else 0.0,
        "median_high_flop_per_b": float(_EDGES[middle]) if middle < len(_EDGES) else None,
    }
    if point is not None:
        at = int(np.searchsorted(_EDGES, point, side="right"))
        row["left_share_least"] = float(counts[:at].sum() / total)
        row["left_share_most"] = float(counts[: at + 1].sum() / total)
    return row


def _device_facts(devices: pl.DataFrame, pipe: str) -> dict[str, Fact]:
    """Samples of each pipe; of the chosen one, the model with most jobs."""
    facts: dict[str, Fact] = {}
    for name in PIPES:
        of_pipe = devices.filter(pl.col("pipe") == name)
        facts[f"{name}_intensity_jobs"] = int(of_pipe.get_column("jobs").sum())
        facts[f"{name}_intensity_samples"] = int(of_pipe.get_column("samples").sum())
    facts["models_not_drawn"] = devices.filter(~pl.col("drawn")).get_column("gpu_model").n_unique()
    facts["models_without_ridge"] = (
        devices.filter(pl.col("ridge_flop_per_b").is_null()).get_column("gpu_model").n_unique()
    )
    for row in devices.filter(pl.col("pipe") == pipe).head(1).iter_rows(named=True):
        facts["model"] = row["gpu_model"]
        for name in ("samples", *_FLOP_PER_B):
            facts[f"model_{name}"] = row[name]
    return facts


def _by_jobs(numbers: FigureNumbers) -> list[str]:
    """Models, the one with the most jobs first: its line is the same in every panel."""
    jobs_of_models = numbers.tables["devices"].group_by("gpu_model").agg(pl.col("jobs").max())
    return (
        jobs_of_models.sort("jobs", "gpu_model", descending=[True, False])
        .get_column("gpu_model")
        .to_list()
    )


def _limits(numbers: FigureNumbers, pipe: str) -> tuple[float, float]:
    """Decades with all samples of a pipe and its ridge points, and the overflow bin if used."""
    bins = numbers.tables["distribution"].filter(pl.col("pipe") == pipe)
    bins_in_use = bins.with_columns(place=pl.int_range(pl.len()) % INTENSITY_BINS).filter(
        pl.col("samples") > 0
    )["place"]
    ridges = (
        numbers.tables["devices"]
        .filter(pl.col("pipe") == pipe)["ridge_flop_per_b"]
        .drop_nulls()
        .to_list()
    )
    low = min([float(_DRAWN_EDGES[bins_in_use].min()), *ridges])
    high = max([float(_DRAWN_EDGES[bins_in_use + 1].max()), *ridges])
    first, last = np.floor(np.log10(low * 1.001)), np.ceil(np.log10(high * 0.999))
    return (
        max(10.0**first, _DRAWN_EDGES[0]),
        max(min(10.0**last, _DRAWN_EDGES[-1]), max(ridges, default=0) * 1.1),
    )


def _least_share(devices: pl.DataFrame, limits: Mapping[str, tuple[float, float]]) -> float:
    """Lower end of the axis: the decade below what any device attains at its panel's start."""
    ridges = devices.select("pipe", "ridge_flop_per_b").drop_nulls().iter_rows()
    least = min((limits[pipe][0] / point for pipe, point in ridges), default=0.1)
    return float(10.0 ** np.floor(np.log10(min(least, 0.1))))


def _draw_model(
    upper: Axes,
    lower: Axes,
    numbers: FigureNumbers,
    of: tuple[str, str],
    line: LineLook,
) -> None:
    of_line = (pl.col("pipe") == of[0]) & (pl.col("gpu_model") == of[1])
    bins = numbers.tables["distribution"].filter(of_line)
    if not bins.height:
        return
    colour, dashes, marker = line
    shares = bins.get_column("share").to_numpy()
    lower.plot(
        _CENTRES,
        shares,
        dashes,
        color=colour,
        marker=marker,
        markersize=2.5,
        markevery=np.flatnonzero(shares),
    )
    point = numbers.tables["devices"].filter(of_line).get_column("ridge_flop_per_b").item()
    if point is not None:
        at = np.array([_DRAWN_EDGES[0] / 10, point, max(point, _DRAWN_EDGES[-1]) * 10])
        upper.plot(at, np.minimum(1.0, at / point), dashes, color=colour)
        upper.plot(point, 1.0, marker="v", markersize=4, color=colour, clip_on=False, zorder=3)
        lower.axvline(point, linestyle=dashes, color=colour, linewidth=0.8)


def _dress(upper: Axes, lower: Axes, limits: tuple[float, float]) -> None:
    style.log_axis(lower, "x", *limits)
    lower.set_xlabel("intensity (FLOP/B)")
    style.percent_axis(lower, limits=False)
    # Everything beyond the bins lies there.
    for low, high in ((limits[0], _EDGES[0]), (_EDGES[-1], limits[1])):
        if low < high:
            lower.axvspan(low, high, color=style.GRID, alpha=0.6, linewidth=0, zorder=0)
    upper.set_yscale("log")
    upper.yaxis.set_major_locator(LogLocator(10, numticks=5))
    upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
    upper.yaxis.set_minor_locator(NullLocator())
    for axes in (upper, lower):
        axes.grid(axis="y")


def _legend(numbers: FigureNumbers, lines: Mapping[str, LineLook]) -> list[Line2D]:
    with_ridge = (
        numbers.tables["devices"]
        .filter(pl.col("ridge_flop_per_b").is_not_null())
        .get_column("gpu_model")
    )
    handles: list[Line2D] = []
    for model, (colour, dashes, marker) in lines.items():
        name = drawn_name(model)
        label = name if model in set(with_ridge) else f"{name} (no ridge: peaks not known)"
        handles.append(
            Line2D(
                [], [], color=colour, linestyle=dashes, marker=marker, markersize=2.5, label=label
            )
        )
    if more := numbers.facts["models_not_drawn"]:
        handles.append(
            Line2D([], [], linestyle="", label=f"{plural(float(more), 'more model')}: in the table")
        )
    if with_ridge.len():
        handles.append(
            Line2D(
                [],
                [],
                color=style.INK,
                marker="v",
                linewidth=0.8,
                markersize=4,
                label="ridge point",
            )
        )
    return handles


def _between(low: float | None, high: float | None) -> str:
    if not low:
        return f"under {_EDGES[0]:g}"
    return f"over {_EDGES[-1]:g}" if high is None else f"between {low:.3g} and {high:.3g}"
