"""Which metrics are sampled on a chip: as many as one pass counts, by priority; what is cut is
named.
"""

from __future__ import annotations

from itertools import chain
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


@pytest.mark.parametrize(
    ("chip", "cut"),
    [
        # what needs a second pass is cut from the end of the priority
        ({"per_pass": 5}, ("tensor_active", "fp64_active", "fp32_active")),
        # a cheap metric is kept behind one that does not fit
        (
            {"per_pass": 7, "costs": {"sm__pipe_tensor_cycles_active.avg": 3}},
            ("tensor_active",),
        ),
        # the chip does not have it
        ({"unknown": ["dram__cycles_elapsed.avg"]}, ("score_gpumem_normalized",)),
        # a group is of no use in part: nobody asks for the rest of it alone
        ({"unknown": ["sm__warps_active.avg"]}, ("score_gpu",)),
    ],
)
def test_what_is_cut_is_named_and_not_sampled(
    tmp_path: Path, chip: dict[str, Any], cut: tuple[str, ...]
) -> None:
    found = chosen(tmp_path, **chip)
    kept = [metrics for purpose, metrics in PRIORITY.items() if purpose not in cut]
    assert (found.cut, found.metrics) == (cut, tuple(chain.from_iterable(kept)))
    assert found.has_scores


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
