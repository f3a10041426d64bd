"""Sampled metrics: as many as one pass counts, by priority; others in passes that alternate.

PM sampling counts in one pass: the counters of a chip's units are few, and a set that needs two
passes is rejected as a whole. How many passes a set needs depends on the chip and is known to the
library alone; `tests/pm_sampling/passes.json` has what it says for each chip. Ratios stay in one
domain: activity of SMs is divided by the cycles of SMs.

Unverified on a GPU: every chip but GH100, and on GH100 all but the first five metrics.
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
    FP32,
    FP64,
    SM_ACTIVE,
    SM_ELAPSED,
    TENSOR,
    WARPS,
)

# Percent of the pipe's own peak, by the library's formula: the pipe's counter over its peak per
# cycle and over the counter of `sm__cycles_elapsed`, which on GB20x is that of GPCs. Bare cycles may
# be above those of the SM: on GH100 those of tensor cores (HMMA) were 3.7 in each, as an SM has
# four.
SHARE = ".avg.pct_of_peak_sustained_elapsed"
_TRIAGE = "TPC.TriageCompute"  # counters of Nsight's own first look at a GPU
# What is not counted in the first pass is cut from the end. {purpose: alternatives, best first}, of
# which each is {name in PmSums: metric of the library}: of no use without each other.
PRIORITY: dict[str, tuple[dict[str, str], ...]] = {
    "score_gpu": ({SM_ACTIVE: SM_ACTIVE, SM_ELAPSED: SM_ELAPSED, WARPS: WARPS},),
    "score_gpumem": ({DRAM_ACTIVE: DRAM_ACTIVE},),
    "score_gpumem_normalized": ({DRAM_ELAPSED: DRAM_ELAPSED},),
    "tensor_active": ({SM_ELAPSED: SM_ELAPSED, TENSOR: f"sm__pipe_tensor_cycles_active{SHARE}"},),
    "fp64_active": (
        {SM_ELAPSED: SM_ELAPSED, FP64: f"sm__pipe_fp64_cycles_active{SHARE}"},
        # GH100 counts the cycles above in two passes
        {SM_ELAPSED: SM_ELAPSED, FP64: f"sm__pipe_fp64_cycles_active_realtime{SHARE}"},
        # chips with few FP64 units: instructions, in percent of the most that they issue
        {SM_ELAPSED: SM_ELAPSED, FP64: f"sm__inst_executed_pipe_fp64{SHARE}"},
    ),
    "fp32_active": (
        {SM_ELAPSED: SM_ELAPSED, FP32: f"sm__pipe_fma_cycles_active_realtime{SHARE}"},
        {SM_ELAPSED: SM_ELAPSED, FP32: f"sm__pipe_fma_cycles_active{SHARE}"},
        {SM_ELAPSED: SM_ELAPSED, FP32: f"{_TRIAGE}.sm__pipe_fma_cycles_active_realtime{SHARE}"},
        # GH100: instructions. Those that keep the pipe for two cycles (integer products) count once
        {SM_ELAPSED: SM_ELAPSED, FP32: f"{_TRIAGE}.sm__inst_executed_pipe_fma_realtime{SHARE}"},
    ),
}
NEEDED = ("score_gpu", "score_gpumem")  # one of them at least


_OF_SCORES = frozenset({SM_ACTIVE, SM_ELAPSED, WARPS, DRAM_ACTIVE, DRAM_ELAPSED})

PmPass = dict[str, str]  # what is counted at the same time: {name in PmSums: metric of the library}


@dataclass(frozen=True, slots=True)
class PmMetricSet:
    """The passes of a chip, the first of which is counted most of the time.

    cut: names of PRIORITY that are not in the first pass, whether in another one or in none.
    """

    passes: tuple[PmPass, ...] = ()
    cut: tuple[str, ...] = ()

    @property
    def has_scores(self) -> bool:
        """Whether a score can be computed from the first pass."""
        return not set(NEEDED) <= set(self.cut)

    @property
    def scored(self) -> PmPass:
        """What of the first pass the scores are computed from."""
        first = self.passes[0] if self.passes else {}
        return {name: metric for name, metric in first.items() if name in _OF_SCORES}


def choose_metrics(library: PmLibrary, chip: str) -> PmMetricSet:
    """Return the passes for `chip`: the first by priority, others for what does not fit into it.

    Errors: those of the library.
    """
    first, cut = _filled(library, chip, {}, tuple(PRIORITY))
    alone = PmMetricSet((first,), cut)
    if SM_ELAPSED not in first:  # nothing relates what another pass counts to the first
        return alone
    first_purposes = [purpose for purpose in PRIORITY if purpose not in cut]
    passes, uncounted_yet = [first], cut
    while uncounted_yet:
        # What scores need goes on in the other passes where there is room; elapsed cycles must.
        for shared in (alone.scored, {SM_ELAPSED: SM_ELAPSED}):
            metrics, uncounted = _filled(library, chip, shared, uncounted_yet)
            if uncounted != uncounted_yet:
                break
        else:
            break
        passes.append(_filled(library, chip, metrics, first_purposes)[0])
        uncounted_yet = uncounted
    return PmMetricSet(tuple(passes), cut)


def _filled(
    library: PmLibrary, chip: str, metrics: PmPass, purposes: Sequence[str]
) -> tuple[PmPass, tuple[str, ...]]:
    """Return the metrics with those of all purposes for which there is room, and the others."""
    cut: list[str] = []
    for purpose in purposes:
        for alternative in PRIORITY[purpose]:
            more = metrics | alternative
            if in_one_pass(library, chip, tuple(more.values())):
                metrics = more
                break
        else:
            cut.append(purpose)
    return metrics, tuple(cut)


def in_one_pass(library: PmLibrary, chip: str, metrics: Sequence[str]) -> bool:
    """Return whether the chip counts all of these metrics in one pass.

    Of a metric that a chip does not have the library reports ERROR_INVALID_PARAMETER alone. Nothing
    here asks the GPU, so none of it is its fault.
    """
    try:
        # A host accumulates metrics, so each set needs a new one.
        with _host(library, chip) as host:
            image = host.create_config_image(metrics=list(metrics))
            return bool(library.profiler_host.get_num_of_passes(image) == 1)
    except (ValueError, library.bindings.cuptiError) as problem:
        if "chip_name" in str(problem):
            raise
        return False


@contextmanager
def _host(library: PmLibrary, chip: str) -> Iterator[Any]:
    host = library.profiler_host.ProfilerHost(chip, library.profiler_host.ProfilerType.PM_SAMPLING)
    host.initialize()
    try:
        yield host
    finally:
        host.deinitialize()
