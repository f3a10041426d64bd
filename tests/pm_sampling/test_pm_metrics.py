"""Which metrics are sampled on a chip: as many as one pass counts, by priority; what is cut is
named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pm_node import PmNode, gpu

from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError
from tachograph.annexes.watch.pm_sampling.metrics import PRIORITY, PmMetricSet, choose_metrics
from tachograph.annexes.watch.pm_sampling.sampler import DeviceSampler, PmInterval

EVERY = [metric for metrics in PRIORITY.values() for metric in metrics]


def chosen(folder: Path, **chip: Any) -> PmMetricSet:
    node = PmNode(folder, chips={"GH100": chip})
    with node.library() as library:
        return choose_metrics(library, "GH100")


def test_a_chip_that_counts_all_in_one_pass_is_asked_for_all(tmp_path: Path) -> None:
    assert chosen(tmp_path) == PmMetricSet(tuple(EVERY))


def test_what_needs_a_second_pass_is_cut_from_the_end_of_the_priority(tmp_path: Path) -> None:
    found = chosen(tmp_path, per_pass=5)
    assert found.metrics == tuple(EVERY[:5])
    assert found.cut == ("tensor_active", "fp64_active", "fp32_active")
    assert found.has_scores


def test_a_cheap_metric_is_kept_behind_one_that_does_not_fit(tmp_path: Path) -> None:
    found = chosen(tmp_path, per_pass=7, costs={"sm__pipe_tensor_cycles_active.avg": 3})
    assert found.cut == ("tensor_active",)


def test_a_metric_that_the_chip_does_not_have_is_cut(tmp_path: Path) -> None:
    found = chosen(tmp_path, unknown=["dram__cycles_elapsed.avg"])
    assert found.cut == ("score_gpumem_normalized",)
    assert "dram__cycles_elapsed.avg" not in found.metrics


def test_a_group_is_of_no_use_in_part(tmp_path: Path) -> None:
    found = chosen(tmp_path, unknown=["sm__warps_active.avg"])
    assert found.cut == ("score_gpu",)
    assert "sm__cycles_active.avg" not in found.metrics  # nobody asks for it alone


def test_a_single_pass_set_of_the_library_is_taken_where_it_keeps_more(tmp_path: Path) -> None:
    sets = {"small": EVERY[:4], "large": EVERY[:6]}
    found = chosen(tmp_path, per_pass=4, sets=sets)
    assert (found.single_pass_set, found.cut) == ("large", ("fp64_active", "fp32_active"))


def test_a_single_pass_set_that_the_library_cannot_open_is_not_taken(tmp_path: Path) -> None:
    sets = {"broken": EVERY, "large": EVERY[:6]}
    found = chosen(tmp_path, per_pass=4, sets=sets, broken_sets=["broken"])
    assert found.single_pass_set == "large"


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
