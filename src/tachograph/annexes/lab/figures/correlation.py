"""Figure 11: correlates of utilisation: rank correlation between the job means of all counters.

Spearman's rho with average ranks for ties, of the jobs in which both counters were measured.
Source: IPDPS 2026, figure 11, which writes out |rho| of at least 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
)
from tachograph.annexes.lab.figures.statistics import LEAST_JOBS, Floats, unit_ranks
from tachograph.catalog.counters import COUNTERS, CounterKind
from tachograph.catalog.units import plural

STRONG = 0.7  # |rho| that is written into the cell
PARTNERS = 3  # of utilisation, in the sentences
UTIL = "gpu_util"
# no level of their own: codes and flags; hbm_free_mib is hbm_used_mib in reverse
COMPARED = tuple(
    c.name
    for c in COUNTERS
    if c.kind is not CounterKind.CUMULATIVE
    and c.unit not in ("code", "flag")
    and c.name != "hbm_free_mib"
)
LABELS: Mapping[str, str] = {
    "gpu_util": "GPU utilisation",
    "sm_active": "SM activity",
    "sm_occupancy": "SM occupancy",
    "gr_engine_active": "engine activity",
    "fp16_active": "FP16 activity",
    "fp32_active": "FP32 activity",
    "fp64_active": "FP64 activity",
    "tensor_active": "tensor activity",
    "tensor_hmma_active": "tensor (FP16)",
    "tensor_imma_active": "tensor (integer)",
    "tensor_dfma_active": "tensor (FP64)",
    "dram_active": "DRAM activity",
    "mem_copy_util": "memory utilisation",
    "hbm_used_mib": "memory in use",
    "pcie_tx_bytes_per_s": "PCIe TX",
    "pcie_rx_bytes_per_s": "PCIe RX",
    "nvlink_tx_bytes_per_s": "NVLink TX",
    "nvlink_rx_bytes_per_s": "NVLink RX",
    "power_w": "power",
    "gpu_temp_c": "GPU temperature",
    "mem_temp_c": "memory temperature",
    "sm_clock_mhz": "SM clock",
    "mem_clock_mhz": "memory clock",
    "throttle_reasons": "lowered clocks",
}
_LINKS: Mapping[str, str] = {"pcie": "PCIe", "nvlink": "NVLink"}

Flags = NDArray[np.bool_]


def compute(study: Study) -> FigureNumbers:
    """Return rho of every pair of counters, ordered by |rho| with utilisation.

    counters: one row per counter, utilisation first: rho with it (null: undefined), and jobs with
    the counter. pairs: one row per pair, in the order of counters: rho and jobs with both; rho is
    null below LEAST_JOBS, or if one counter is constant. Counters that were not measured are left
    out, and those that are constant or in too few jobs, which the facts name.
    """
    measured = [name for name in COMPARED if study.measured([f"{name}_mean"])]
    columns = {name: study.jobs.get_column(f"{name}_mean").fill_nan(None) for name in measured}
    rare: list[str] = []
    constant: list[str] = []
    compared: dict[str, pl.Series] = {}
    for name, values in columns.items():
        if len(values) - values.null_count() < LEAST_JOBS:
            rare.append(name)
        elif values.drop_nulls().n_unique() < 2:
            constant.append(name)
        else:
            compared[name] = values
    facts: dict[str, Fact] = {
        "jobs": study.jobs.height - study.jobs.get_column(f"{UTIL}_mean").null_count()
    }
    facts |= {"constant": _listed(constant), "too_few_jobs": _listed(rare)}
    if why := _why_not(study, compared, constant):
        return study.nothing(("counters", "pairs"), why, facts)
    names, rho, jobs = _correlations(compared)
    of_util = rho[names.index(UTIL)]
    # Equal ones stay in the catalogue's order.
    closeness = np.round(np.nan_to_num(np.abs(of_util), nan=-1.0), 12)
    order = sorted(range(len(names)), key=lambda at: (names[at] != UTIL, -closeness[at]))
    counters = {
        "counter": [names[at] for at in order],
        "rho_with_gpu_util": [_defined(of_util[at]) for at in order],
        "jobs": [int(jobs[at, at]) for at in order],
    }
    pairs = [
        {
            "counter": names[a],
            "other": names[b],
            "rho": _defined(rho[a, b]),
            "jobs": int(jobs[a, b]),
        }
        for a, b in combinations(order, 2)
    ]
    schema = {"counter": pl.String(), "other": pl.String(), "rho": pl.Float64(), "jobs": pl.Int64()}
    tables = {
        "counters": pl.DataFrame(counters, schema_overrides={"rho_with_gpu_util": pl.Float64}),
        "pairs": pl.DataFrame(pairs, schema=schema),
    }
    return FigureNumbers(tables, facts | _facts(tables["pairs"]), study.jobs.height)


def draw(numbers: FigureNumbers) -> Figure:
    """Return the lower half of the matrix, rho with utilisation first, strong |rho| as numbers."""
    names = numbers.tables["counters"].get_column("counter").to_list()
    rows, columns = names[1:], names[:-1]
    matrix = np.full((len(rows), len(columns)), np.nan)
    for first, second, rho, _ in numbers.tables["pairs"].iter_rows():
        matrix[rows.index(second), columns.index(first)] = np.nan if rho is None else rho
    with style.style():
        wide = len(names) > 9
        figure, (axes,) = style.new_figure(
            style.PAGE_IN if wide else style.COLUMN_IN, max(2.6, 1.6 + 0.2 * len(rows))
        )
        borders = np.arange(len(names)) - 0.5
        cells = axes.pcolormesh(
            borders,
            borders,
            np.ma.masked_invalid(matrix),
            cmap=style.DIVERGING,
            vmin=-1,
            vmax=1,
            edgecolors="white",
            linewidth=0.7,
        )
        axes.invert_yaxis()
        _write_cells(axes, matrix)
        axes.set_yticks(range(len(rows)), [LABELS.get(name, name) for name in rows])
        axes.set_xticks(
            range(len(columns)), [LABELS.get(name, name) for name in columns], rotation=90
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(
            cells, ax=axes, fraction=0.04 if wide else 0.08, pad=0.01, ticks=[-1, -0.7, 0, 0.7, 1]
        )
        bar.set_label("Spearman's rho")
        bar.outline.set_visible(False)
        style.set_title(axes, f"n = {_span(numbers)} per pair", loc="right", fontsize=7.5)
        figure.supxlabel(_notes(numbers), fontsize=6.5, color=style.FAINT)
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return the strongest partners of utilisation, and how closely links send and receive."""
    facts = numbers.facts
    if not facts.get("partners"):
        return ()
    partners = [
        f"{_label(facts[f'partner_{k}'])} ({_signed(numbers.number(f'partner_{k}_rho'))})"
        for k in range(1, int(numbers.number("partners") or 0) + 1)
    ]
    closest = " and ".join(filter(None, (", ".join(partners[:-1]), partners[-1])))
    phrases = [
        (
            f"Utilisation correlates most closely with {closest}: Spearman's rho over "
            f"{_span(numbers, 'util_')}."
        )
    ]
    others = plural(numbers.number("compared") or 0, "other counter")
    phrases.append(
        f"|rho| with utilisation is at least {STRONG} for {facts['strong']} of {others}."
    )
    links = [
        f"{named} TX and RX have a rho of {_signed(numbers.number(f'{link}_tx_rx_rho'))} "
        f"({count_jobs(facts[f'{link}_tx_rx_jobs'])})"
        for link, named in _LINKS.items()
        if facts[f"{link}_tx_rx_rho"] is not None
    ]
    return (*phrases, *([f"{', '.join(links)}."] if links else ()))


def _correlations(columns: Mapping[str, pl.Series]) -> tuple[list[str], Floats, NDArray[np.int64]]:
    """Names, rho and jobs of all pairs; ranks are computed once per counter and set of jobs."""
    names = list(columns)
    there: dict[str, Flags] = {
        name: values.is_not_null().to_numpy() for name, values in columns.items()
    }
    ranks: dict[tuple[str, bytes], Floats] = {}

    def ranked(name: str, both: Flags) -> Floats:
        key = (name, both.tobytes())
        if key not in ranks:
            ranks[key] = unit_ranks(columns[name].filter(pl.Series(both)))
        return ranks[key]

    rho, jobs = (
        np.full((len(names), len(names)), np.nan),
        np.zeros((len(names), len(names)), np.int64),
    )
    for a, first in enumerate(names):
        for b, second in enumerate(names[: a + 1]):
            both = there[first] & there[second]
            jobs[a, b] = jobs[b, a] = both.sum()
            if jobs[a, b] >= LEAST_JOBS:
                product = (ranked(first, both) * ranked(second, both)).sum()
                rho[a, b] = rho[b, a] = np.clip(product, -1.0, 1.0)
    return names, rho, jobs


def _why_not(
    study: Study, compared: Mapping[str, pl.Series], constant: Sequence[str]
) -> str | None:
    if 0 < study.jobs.height < LEAST_JOBS:
        return f"fewer than {LEAST_JOBS} jobs"
    if UTIL in constant:
        return "utilisation is the same in all jobs"
    if UTIL not in compared:
        why = study.why_not([f"{UTIL}_mean"])
        return why or f"utilisation measured in fewer than {LEAST_JOBS} jobs"
    return "no other counter that differs between jobs" if len(compared) < 2 else None


def _facts(pairs: pl.DataFrame) -> dict[str, Fact]:
    util = pairs.filter(pl.col("counter") == UTIL)
    defined = util.drop_nulls("rho")
    facts: dict[str, Fact] = {
        "compared": defined.height,
        "strong": defined.filter(pl.col("rho").abs() >= STRONG).height,
        "partners": min(PARTNERS, defined.height),
    }
    for rank, row in enumerate(defined.head(PARTNERS).iter_rows(named=True), 1):
        facts |= {f"partner_{rank}": row["other"], f"partner_{rank}_rho": row["rho"]}
    for prefix, part in (("", pairs), ("util_", defined.head(PARTNERS))):
        numbers = part.get_column("jobs").to_list()
        facts |= {
            f"{prefix}least_jobs": min(numbers, default=None),
            f"{prefix}most_jobs": max(numbers, default=None),
        }
    for row in util.iter_rows(named=True):
        facts[f"rho_{row['other']}"] = row["rho"]
    for link in _LINKS:
        ends = [f"{link}_{end}_bytes_per_s" for end in ("tx", "rx")]
        ends_of_link = pairs.filter(pl.col("counter").is_in(ends) & pl.col("other").is_in(ends))
        rho, jobs = ends_of_link.select("rho", "jobs").row(0) if ends_of_link.height else (None, 0)
        facts |= {f"{link}_tx_rx_rho": rho, f"{link}_tx_rx_jobs": jobs}
    return facts


def _write_cells(axes: Axes, matrix: Floats) -> None:
    """Write strong correlations as numbers, and a dash into other negative cells."""
    colours = colormaps[style.DIVERGING]
    for row, column in np.argwhere(np.tri(len(matrix))).tolist():
        rho = matrix[row, column]
        if np.isnan(rho):
            cell = Rectangle(
                (column - 0.5, row - 0.5),
                1,
                1,
                fill=False,
                hatch="////",
                edgecolor=style.GRID,
                linewidth=0,
            )
            axes.add_patch(cell)
        elif abs(rho) >= STRONG or rho <= -0.1:
            light = np.dot(colours((rho + 1) / 2)[:3], (0.299, 0.587, 0.114))
            written = _signed(rho) if abs(rho) >= STRONG else "–"
            colour = style.ON_LIGHT if light > 0.5 else style.ON_DARK
            style.write_cell(axes, column, row, written, colour)


def _notes(numbers: FigureNumbers) -> str:
    parts = []
    for fact, why in (
        ("constant", "the same in all jobs"),
        ("too_few_jobs", f"in fewer than {LEAST_JOBS} jobs"),
    ):
        if numbers.facts[fact]:
            parts.append(f"{', '.join(map(_label, str(numbers.facts[fact]).split(', ')))} ({why})")
    notes = [f"Numbers: |rho| of at least {STRONG}; –: other cells of -0.1 and below."]
    notes += [f"left out: {'; '.join(parts)}"] if parts else []
    if numbers.tables["pairs"].get_column("rho").null_count():
        notes.append("hatched: no rho, too few jobs or all the same")
    return "\n".join(notes)


def _span(numbers: FigureNumbers, prefix: str = "") -> str:
    least, greatest = (numbers.facts[f"{prefix}{end}_jobs"] for end in ("least", "most"))
    return count_jobs(greatest) if least == greatest else f"{least:,} to {count_jobs(greatest)}"


def _defined(rho: float) -> float | None:
    return None if np.isnan(rho) else float(rho)


def _label(counter: Fact) -> str:
    return LABELS.get(str(counter), str(counter))


def _signed(rho: float | None) -> str:
    """A correlation with two digits and a minus that is as wide as a plus."""
    return "–" if rho is None else f"{rho:.2f}".replace("-", "−")


def _listed(names: Sequence[str]) -> str | None:
    return ", ".join(names) or None
