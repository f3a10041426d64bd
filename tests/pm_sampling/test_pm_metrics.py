"""Which metrics are sampled on a chip, and in which pass: as the library of the package answered,
and on chips with any room.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pm_node import PmNode, gpu

from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError
from tachograph.annexes.watch.pm_sampling.metrics import (
    PRIORITY,
    SHARE,
    PmMetricSet,
    choose_metrics,
)
from tachograph.annexes.watch.pm_sampling.sampler import DeviceSampler, PmInterval
from tachograph.catalog.score_formulas import SM_ELAPSED

# {metric in short: metric}
METRICS: Mapping[str, str] = {
    "sm": "sm__cycles_active.avg",
    "elapsed": "sm__cycles_elapsed.avg",
    "warps": "sm__warps_active.avg",
    "dram": "dram__cycles_active.avg",
    "dram-elapsed": "dram__cycles_elapsed.avg",
    "tensor": f"sm__pipe_tensor_cycles_active{SHARE}",
    "fp64": f"sm__pipe_fp64_cycles_active{SHARE}",
    "fp64-realtime": f"sm__pipe_fp64_cycles_active_realtime{SHARE}",
    "fp64-issued": f"sm__inst_executed_pipe_fp64{SHARE}",
    "fp32": f"sm__pipe_fma_cycles_active{SHARE}",
    "fp32-realtime": f"sm__pipe_fma_cycles_active_realtime{SHARE}",
    "fp32-triage": f"TPC.TriageCompute.sm__pipe_fma_cycles_active_realtime{SHARE}",
    "fp32-issued": f"TPC.TriageCompute.sm__inst_executed_pipe_fma_realtime{SHARE}",
}
SCORED = "sm elapsed warps dram dram-elapsed"
# {chips: their passes, the first of which is counted most of the time}
CHIPS: Mapping[str, tuple[str, ...]] = {
    "TU102 TU104 TU106": (
        "sm elapsed warps dram fp64",
        "sm elapsed warps dram fp32",
        "elapsed dram-elapsed sm warps fp64",
    ),
    "TU116 TU117": (
        "sm elapsed warps dram tensor",
        "sm elapsed warps dram fp64",
        "sm elapsed warps dram fp32",
        "elapsed dram-elapsed sm warps tensor",
    ),
    "GA100": (f"{SCORED} tensor", f"{SCORED} fp64", f"{SCORED} fp32"),
    "GA102 GA103 GA104 GA106 GA107 AD102 AD103 AD104 AD106 AD107": (
        f"{SCORED} tensor",
        f"{SCORED} fp64-issued",
        "elapsed fp32 dram dram-elapsed",
    ),
    "GH100": (f"{SCORED} tensor fp64-realtime fp32-issued",),
    "GB100 GB102": (f"{SCORED} tensor fp64-realtime fp32-triage",),
    "GB110 GB112": (f"{SCORED} tensor fp32-triage", f"{SCORED} fp64-issued fp32-triage"),
    "GB202 GB203 GB205 GB206 GB207": (
        f"{SCORED} tensor",
        f"{SCORED} fp64-issued",
        f"{SCORED} fp32-realtime",
    ),
    # without memory of their own
    "GA10B GB10B GB10C": (
        "sm elapsed warps tensor",
        "sm elapsed warps fp64-issued",
        "elapsed fp32",
    ),
    "GB20B GB20C": (
        "sm elapsed warps tensor",
        "sm elapsed warps fp64-issued",
        "sm elapsed warps fp32-realtime",
    ),
    "GR100": (
        f"{SCORED} fp64",
        "elapsed tensor dram dram-elapsed",
        "elapsed fp32-realtime dram dram-elapsed fp64",
    ),
}


def chosen(folder: Path, **chip: Any) -> PmMetricSet:
    node = PmNode(folder, chips={"GH100": chip})
    with node.library() as library:
        return choose_metrics(library, "GH100")


@pytest.mark.parametrize("names", CHIPS)
def test_passes_of_each_chip_follow_from_what_the_library_answered(
    tmp_path: Path, names: str
) -> None:
    with PmNode(tmp_path).library() as library:
        for chip in names.split():
            found = choose_metrics(library, chip)
            passes = [list(each.values()) for each in found.passes]
            assert passes == [[METRICS[word] for word in one.split()] for one in CHIPS[names]]
            assert found.has_scores


def test_what_is_cut_is_not_in_the_first_pass(tmp_path: Path) -> None:
    # what has no room is cut from the end of the priority, and a cheap metric kept behind it
    dear = {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 3}
    found = chosen(tmp_path, per_pass=7, costs=dear)
    assert found.cut == ("tensor_active",)
    assert [len(one) for one in found.passes] == [7, 5]
    # the chip does not have it: no other pass is tried
    found = chosen(tmp_path, unknown=["dram__cycles_elapsed.avg"])
    assert (found.cut, len(found.passes)) == (("score_gpumem_normalized",), 1)
    # a group is of no use in part
    found = chosen(tmp_path, unknown=["sm__warps_active.avg"])
    assert found.cut == ("score_gpu",)
    assert "sm__cycles_active.avg" not in found.passes[0]


@given(
    st.integers(2, 9),
    st.dictionaries(st.sampled_from(list(METRICS.values())), st.integers(1, 5)),
    st.sets(st.sampled_from([word for word in METRICS if "-" in word or word == "tensor"])),
)
def test_each_pass_fits_and_nothing_that_fits_is_left_out(
    per_pass: int, costs: dict[str, int], absent: set[str]
) -> None:
    unknown = [METRICS[word] for word in absent]
    with tempfile.TemporaryDirectory() as folder:
        found = chosen(Path(folder), per_pass=per_pass, costs=costs, unknown=unknown)

    def cost(metrics: Mapping[str, str]) -> int:
        return sum(costs.get(metric, 1) for metric in metrics.values())

    def has_room(metrics: Mapping[str, str]) -> bool:
        return cost(metrics) <= per_pass and not set(metrics.values()) & set(unknown)

    counted = set().union(*found.passes)
    assert all(has_room(one) for one in found.passes)
    assert all(SM_ELAPSED in one for one in found.passes[1:])
    others = SM_ELAPSED in found.passes[0]
    for purpose, alternatives in PRIORITY.items():
        names = set(alternatives[0])
        assert (purpose in found.cut) == (not names <= found.passes[0].keys())
        alone = any(has_room({SM_ELAPSED: SM_ELAPSED} | one) for one in alternatives)
        assert (names <= counted) == (purpose not in found.cut or (others and alone))


def test_a_chip_on_which_no_score_fits_is_refused(tmp_path: Path) -> None:
    node = PmNode(
        tmp_path, chips={"GH100": {"per_pass": 1, "costs": {"dram__cycles_active.avg": 2}}}
    )
    with node.library() as library, pytest.raises(PmSamplingError, match="one pass"):
        DeviceSampler(library, node.listed(library), PmInterval()).open()


@pytest.mark.parametrize("chip", ["GA100", "TU102"])
def test_chips_without_a_trigger_by_time_are_sampled_by_cycles(tmp_path: Path, chip: str) -> None:
    node = PmNode(tmp_path, gpus=[gpu(chip=chip)])
    with node.library() as library:
        sampler = DeviceSampler(library, node.listed(library), PmInterval(0.05))
        sampler.open()  # the stand-in refuses the other trigger, as the library does
        sampler.close()
    assert sampler.chip == chip
