from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import pipe_combinations as figure

ALL = ("fp64", "fp32", "fp16", "tensor")


def job(*used: str, util: float | None = None, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """A job that uses some pipes; not measured: those it is `without`."""
    means = {
        f"{pipe}_active_mean": 0.1 if pipe in used else 0.0 for pipe in ALL if pipe not in without
    }
    return means | {"pipes": list(used), "gpu_util_mean": util}


def test_combinations_pipes_and_sentences() -> None:
    jobs = [
        *(job("fp64", util=util) for util in (0.2, 0.4, None)),
        *(job("fp64", "tensor", util=util) for util in (0.5, 0.9)),
        *(job("fp32", "fp16", util=1.0) for _ in range(2)),
        job(util=0.05),
        {"gpu_util_mean": 0.7},
        job("fp64", without=("tensor",)),
    ]
    numbers = figure.compute(study_of(*jobs))
    rows = (
        numbers.tables["combinations"]
        .select("combination", "jobs", "share", "util_jobs", "drawn")
        .rows()
    )
    assert rows == [
        ("FP64", 3, 3 / 8, 2, True),
        ("FP64 + tensor", 2, 2 / 8, 2, True),
        ("FP32 + FP16", 2, 2 / 8, 2, True),
        ("none", 1, 1 / 8, 1, True),
    ]
    assert numbers.tables["combinations"].get_column("util_mean").to_list() == pytest.approx(
        [0.3, 0.7, 1.0, 0.05]
    )
    assert numbers.tables["combinations"].select(ALL).rows()[1] == (True, False, False, True)
    assert numbers.tables["pipes"].rows() == [
        ("fp64", 5, 5 / 8),
        ("fp32", 2, 2 / 8),
        ("fp16", 2, 2 / 8),
        ("tensor", 2, 2 / 8),
    ]
    assert (numbers.facts["jobs"], numbers.facts["several_jobs"], numbers.facts["none_jobs"]) == (
        8,
        4,
        1,
    )
    common, shares, left_out = figure.sentences(numbers)
    assert common == (
        "Pipes in use make 4 combinations among 8 jobs; commonest: FP64 (37.5 %, mean "
        "utilisation 30 %), "
        "FP64 + tensor (25.0 %, mean utilisation 70 %), FP32 + FP16 (25.0 %, mean utilisation "
        "100 %)."
    )
    assert shares == (
        "Of these jobs, 50.0 % use more than one pipe and 12.5 % none. "
        "In use: FP64 by 62.5 %, FP32 by 25.0 %, FP16 by 25.0 %, tensor by 25.0 %."
    )
    assert left_out == (
        "Not counted: 1 job without any of these counters, 1 job without all of FP64, FP32, "
        "FP16, tensor."
    )
    _, top, _, middle, _, _ = figure.draw(numbers).axes
    heights = [[bar.get_height() for bar in axes.patches] for axes in (top, middle)]  # type: ignore[attr-defined]
    assert heights[0] == [3, 2, 2, 1]
    assert heights[1] == pytest.approx([0.3, 0.7, 1.0, 0.05])


def test_a_pipe_that_nobody_measured_is_not_in_the_matrix() -> None:
    numbers = figure.compute(
        study_of(job("fp64", without=("tensor",)), job("fp64", "fp32", without=("tensor",)))
    )
    assert numbers.tables["pipes"].get_column("pipe").to_list() == ["fp64", "fp32", "fp16"]
    assert "tensor" not in numbers.tables["combinations"].columns
    assert figure.sentences(numbers)[0] == (
        "Pipes in use make 2 combinations among 2 jobs; commonest: FP64 + FP32 (50.0 %), FP64 "
        "(50.0 %)."
    )
    assert numbers.missing == {"utilisation": "not measured: gpu_util (mean)"}
    assert figure.draw(numbers).axes[3].axison is False


def test_rare_combinations_stand_in_the_table_alone() -> None:
    every = [used for count in range(5) for used in combinations(ALL, count)]
    jobs = [job(*used, util=0.5) for place, used in enumerate(every) for _ in range(place + 1)]
    numbers = figure.compute(study_of(*jobs))
    table = numbers.tables["combinations"]
    assert table.height == 16
    assert table.get_column("jobs").to_list() == list(range(16, 0, -1))
    assert table.get_column("drawn").to_list() == [True] * 12 + [False] * 4
    assert (numbers.facts["combinations_not_drawn"], numbers.facts["jobs_not_drawn"]) == (
        4,
        4 + 3 + 2 + 1,
    )
    top = figure.draw(numbers).axes[1]
    assert len(top.patches) == 12
    assert top.get_title() == "n = 136 jobs; 4 rarer combinations (10 jobs) not drawn"


def test_without_pipes_nothing_is_drawn() -> None:
    assert figure.compute(study_of()).missing["combinations"] == "no jobs"
    unmeasured = figure.compute(study_of({"gpu_util_mean": 0.5}))
    assert unmeasured.missing["combinations"] == "not measured: pipes"
    apart = figure.compute(
        study_of(job("fp64", without=("tensor",)), job("tensor", without=("fp64",)))
    )
    assert apart.missing["pipes"] == "no job measured all of the pipes"
    for numbers in (unmeasured, apart):
        assert not numbers.tables
        assert figure.sentences(numbers) == ()
    one = figure.compute(study_of(job("fp16", util=0.3)))
    assert figure.draw(one).axes
    assert figure.sentences(one)[0] == (
        "Pipes in use make 1 combination among 1 job; commonest: FP16 (100 %, mean utilisation "
        "30 %)."
    )
