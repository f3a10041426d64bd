"""Sampled metrics: those one pass can count, by priority; others are cut.

PM sampling counts in one pass: the counters of a chip's units are few, and a set that needs two
passes is rejected as a whole. How many passes a set needs depends on the chip and is known to the
library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tachograph.annexes.watch.pm_sampling.library import PmLibrary
from tachograph.catalog.score_formulas import (
    DRAM_ACTIVE,
    DRAM_ELAPSED,
    ELAPSED,
    FP32,
    FP64,
    SM_ACTIVE,
    TENSOR,
    WARPS,
)

# what is cut last comes first: {what a group is for: its metrics, of no use without each other}
PRIORITY: dict[str, tuple[str, ...]] = {
    "score_gpu": (SM_ACTIVE, ELAPSED, WARPS),
    "score_gpumem": (DRAM_ACTIVE,),
    "score_gpumem_normalized": (DRAM_ELAPSED,),
    "tensor_active": (TENSOR,),
    "fp64_active": (FP64,),
    "fp32_active": (FP32,),
}
NEEDED = ("score_gpu", "score_gpumem")  # one of them at least


@dataclass(frozen=True, slots=True)
class PmMetricSet:
    """Metrics of one pass. cut: names of PRIORITY left out. single_pass_set: from the library."""

    metrics: tuple[str, ...]
    cut: tuple[str, ...] = ()
    single_pass_set: str | None = None

    @property
    def has_scores(self) -> bool:
        """Whether a score can be computed from it."""
        return not set(NEEDED) <= set(self.cut)


def choose_metrics(library: PmLibrary, chip: str) -> PmMetricSet:
    """Return the metrics that one pass counts on `chip`, by priority.

    Without a named set first; where that cuts something, also inside each single-pass set that the
    library names for the chip. The set that keeps more of higher priority is taken. Errors: those
    of the library.
    """
    best = _within(library, chip, None)
    for name in library.profiler_host.get_single_pass_sets(chip) if best.cut else ():
        other = _within(library, chip, name)
        if _worth(other) > _worth(best):
            best = other
    return best


def _within(library: PmLibrary, chip: str, single_pass_set: str | None) -> PmMetricSet:
    every = [metric for metrics in PRIORITY.values() for metric in metrics]
    if _in_one_pass(library, chip, single_pass_set, every):
        return PmMetricSet(tuple(every), (), single_pass_set)
    kept: list[str] = []
    cut: list[str] = []
    for purpose, metrics in PRIORITY.items():
        lacking = [metric for metric in metrics if metric not in kept]
        if _in_one_pass(library, chip, single_pass_set, [*kept, *lacking]):
            kept += lacking
        else:
            cut.append(purpose)
    return PmMetricSet(tuple(kept), tuple(cut), single_pass_set)


def _in_one_pass(
    library: PmLibrary, chip: str, single_pass_set: str | None, metrics: Sequence[str]
) -> bool:
    """Whether the chip counts all of these metrics in one pass.

    Of a metric that a chip does not have the library reports ERROR_INVALID_PARAMETER alone, and
    ERROR_UNKNOWN of a set that an older libnvperf_host cannot open. Nothing here asks the GPU, so
    none of it is its fault.
    """
    try:
        # A host accumulates metrics, so each set needs a new one.
        with _host(library, chip, single_pass_set) as host:
            image = host.create_config_image(metrics=list(metrics))
            return bool(library.profiler_host.get_num_of_passes(image) == 1)
    except (ValueError, library.bindings.cuptiError) as problem:
        if "chip_name" in str(problem):
            raise
        return False


@contextmanager
def _host(library: PmLibrary, chip: str, single_pass_set: str | None) -> Iterator[Any]:
    kind = library.profiler_host.ProfilerType.PM_SAMPLING
    host = library.profiler_host.ProfilerHost(
        chip, kind, single_pass_metric_set_name=single_pass_set
    )
    host.initialize()
    try:
        yield host
    finally:
        host.deinitialize()


def _worth(chosen: PmMetricSet) -> tuple[bool, ...]:
    return tuple(purpose not in chosen.cut for purpose in PRIORITY)
