"""Consequences of a study's answers: one sentence per question, with its conditions.

Without a measurement there is no sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tachograph.annexes.lab.figures.bounds import LIMITERS
from tachograph.annexes.lab.figures.correlation import LABELS, STRONG
from tachograph.annexes.lab.figures.hbm_peak import FIT
from tachograph.annexes.lab.figures.imbalance_bands import UNEVEN
from tachograph.annexes.lab.figures.numbers import FigureNumbers, count_jobs, percent
from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import capitalized, text
from tachograph.judge.limiter import NEITHER

FIT_SPARE = text(1 - FIT, "fraction")
MANY = 0.1  # share of the jobs from which on it is worth a sentence
Figures = Mapping[str, FigureNumbers]

_BY_LIMITER: Mapping[str, str] = {
    "compute": (
        "arithmetic limits {}, more than anything else: a faster pipe or fewer operations "
        "would speed these up"
    ),
    "memory": (
        "memory limits {}, more than anything else: faster memory or fewer bytes would "
        "speed these up"
    ),
    "nvlink": (
        "traffic over NVLink limits {}, more than anything else: fewer or larger transfers "
        "would speed these up"
    ),
    "pcie": (
        "traffic over PCIe limits {}, more than anything else: data that stays on the GPU "
        "would speed these up"
    ),
    NEITHER: (
        "in {} no pipe, memory or link came near its peak: before faster GPUs, look at input, "
        "launches and waiting"
    ),
}


def pipes(figures: Figures) -> str | None:
    """Sentence on pipes: where a tenth of the jobs leaves the tensor pipe or FP64 unused."""
    numbers = figures["pipe_combinations"]
    tensor, fp64 = (_unused(numbers, pipe) for pipe in ("tensor", "fp64"))
    parts = []
    if tensor is not None and tensor >= MANY:
        parts.append(
            f"{percent(tensor)} of the jobs leave the tensor pipe unused: look there for "
            "matrix products"
        )
    if fp64 is not None and fp64 >= MANY:
        parts.append(
            f"{percent(fp64)} use no FP64, and GPUs without a fast FP64 pipe would serve them"
        )
    return _sentence("; ".join(parts)) if parts else None


def memory(figures: Figures) -> str | None:
    """Which jobs would fit on the next smaller GPUs of the system; else, in half of the memory."""
    facts = figures["hbm_peak"].facts
    if facts.get("smaller_gib"):
        fits = figures["hbm_peak"].number("fits_smaller_jobs") or 0
        which = (
            f"GPUs with {figures['hbm_peak'].number('smaller_gib'):.0f} GiB, which this system has"
        )
        fitting = f"{fits:,.0f} ({percent(facts['fits_smaller_share'])})" if fits else "none"
        spare = f"with {FIT_SPARE} to spare; peaks between samples are not seen"
        return f"Of these jobs, {fitting} would fit on the {which}, {spare}."
    if facts.get("under_50_jobs"):
        half = f"{percent(facts['under_50_share'])} would fit in half of that memory"
        return f"Of these jobs, {half}; peaks between samples are not seen."
    return None


def limits(figures: Figures) -> str | None:
    """Sentence on what limits most jobs."""
    facts = figures["bounds"].facts
    if not facts.get("jobs"):
        return None
    commonest = max(
        LIMITERS, key=lambda kind: figures["bounds"].number(f"limiter_{kind}_jobs") or 0
    )
    return _sentence(
        _BY_LIMITER[commonest].format(f"{percent(facts[f'limiter_{commonest}_share'])} of the jobs")
    )


def spread(figures: Figures) -> str | None:
    """Return GPU-hours of GPUs held beside the only active one; else jobs over UNEVEN."""
    numbers = figures["spatial_imbalance"]
    facts, jobs_on_one_gpu = numbers.facts, numbers.number("one_gpu_jobs")
    hours = numbers.number("one_gpu_unused_gpu_hours")
    if jobs_on_one_gpu and hours:
        held = f"held {text(hours, 'count')} GPU-hours of GPUs beside the only one they used"
        return f"{count_jobs(jobs_on_one_gpu)} {held}: requests of one GPU would free them."
    if facts.get("uneven_jobs"):
        uneven = f"{count_jobs(facts['uneven_jobs'])} ({percent(facts['uneven_share'])})"
        return (
            f"{uneven} over {UNEVEN:.2f}: at a time few of their GPUs work; an even split or "
            "smaller requests would help."
        )
    if facts.get("seen_jobs") and not jobs_on_one_gpu:
        return (
            f"No job is over {UNEVEN:.2f}, and none used only one of its GPUs: smaller "
            "requests would gain little."
        )
    return None


def steadiness(figures: Figures) -> str | None:
    """Jobs whose least steady GPU is far below its own peak. 1 - TI is the mean over the peak."""
    facts = figures["temporal_imbalance"].facts
    if not facts.get("jobs"):
        return None
    least = percent(round(1 - UNEVEN, 2)).replace(".0", "")
    if not facts["uneven_jobs"]:
        return (
            f"No job is over {UNEVEN:.2f}: on average every GPU that worked did so at "
            f"{least} of its own peak or more."
        )
    unsteady = f"{count_jobs(facts['uneven_jobs'])} ({percent(facts['uneven_share'])})"
    return (
        f"{unsteady} over {UNEVEN:.2f}: on average one of their GPUs works at under {least} of its "
        "own peak; a shared GPU, "
        "or more input at a time, would use the rest."
    )


def utilisation(figures: Figures) -> str | None:
    """Whether utilisation ranks jobs as the activity of some pipe does."""
    numbers = figures["correlation"]
    of_pipes = {name: numbers.number(f"rho_{name}") for name in PIPES.values()}
    measured = {name: rho for name, rho in of_pipes.items() if rho is not None}
    if not measured:
        return None
    best = max(measured, key=lambda name: measured[name])
    closest = f"{LABELS[best]} ({text(round(measured[best], 2) + 0.0, 'ratio')})"
    if measured[best] >= STRONG:
        return (
            f"Utilisation ranks jobs much as {closest} does, so it shows which jobs compute most."
        )
    several = "of any pipe; the closest is" if len(measured) > 1 else "of the only pipe measured:"
    return (
        f"Utilisation does not rank jobs as the activity {several} {closest}: SM and pipe "
        "activity show better "
        "how well GPUs are used."
    )


CONSEQUENCES: Mapping[str, tuple[str, Callable[[Figures], str | None]]] = MappingProxyType(
    {
        "RQ1": ("pipe_combinations", pipes),
        "RQ2": ("hbm_peak", memory),
        "RQ3": ("bounds", limits),
        "RQ4": ("spatial_imbalance", spread),
        "RQ5": ("temporal_imbalance", steadiness),
        "RQ6": ("correlation", utilisation),
    }
)


def consequence(question: str, figures: Figures) -> str | None:
    """Return the consequence of an answer; None if the figure is missing or nothing follows."""
    needed, sentence_of = CONSEQUENCES[question]
    return sentence_of(figures) if needed in figures else None


def _unused(numbers: FigureNumbers, pipe: str) -> float | None:
    share = numbers.number(f"{pipe}_share")
    return None if share is None else 1 - share


def _sentence(phrase: str) -> str:
    return f"{capitalized(phrase)}."
