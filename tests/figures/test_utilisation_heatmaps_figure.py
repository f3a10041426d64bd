from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from matplotlib.collections import QuadMesh
from study_of import study_of

from tachograph.annexes.lab.figures import utilisation_heatmaps as figure
from tachograph.annexes.lab.figures.numbers import StudyOptions

# utilisation, FP64 activity, DRAM activity, type
JOBS = [
    (0.9, 0.50, 0.10, "compute"),
    (0.7, 0.52, 0.12, "compute"),
    (0.2, 0.06, 0.05, "compute"),
    (0.4, 0.00, 0.80, "memory"),
    (0.6, 0.03, 0.40, "memory"),
    (0.6, 0.03, 0.40, "memory"),
    (0.1, 0.02, 0.01, "memory"),
    (None, 0.1, 0.1, "memory"),
    (0.5, 0.1, 0.1, None),
    (0.5, None, 0.1, "memory"),
]
NAMES = ("gpu_util_mean", "fp64_active_mean", "dram_active_mean", "bound")
KNOWN = [job for job in JOBS if None not in job]


def spearman(ones: list[float], others: list[float]) -> float:
    """Pearson's correlation of average ranks, term by term."""
    ranks = [
        [
            sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2
            for value in values
        ]
        for values in (ones, others)
    ]
    mean = (len(ones) + 1) / 2
    a, b = ([rank - mean for rank in one] for one in ranks)
    return float(
        sum(x * y for x, y in zip(a, b, strict=True))
        / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5
    )


def test_cells_and_correlations() -> None:
    numbers = figure.compute(study_of(*(dict(zip(NAMES, job, strict=True)) for job in JOBS)))
    cells = numbers.tables["cells"]
    assert cells.height == 2 * 10 * 10
    assert (cells["pipe_high"].max(), cells["dram_high"].max()) == (0.6, 0.8)
    assert (
        cells.filter(pl.col("jobs") == 0)["util_mean"].null_count()
        == (cells["jobs"] == 0).sum()
        == 195
    )
    found = 0
    for row in cells.to_dicts():
        inside = [
            util
            for util, pipe, dram, kind in KNOWN
            if kind == row["type"]
            and row["pipe_low"] <= (pipe or 0) < row["pipe_high"]
            and (
                row["dram_low"] <= (dram or 0) < row["dram_high"] or dram == row["dram_high"] == 0.8
            )
        ]
        assert row["jobs"] == len(inside)
        assert row["util_mean"] == (
            pytest.approx(np.mean(np.array(inside, float))) if inside else None
        )
        found += len(inside)
    assert found == len(KNOWN) == 7 == numbers.facts["jobs"]
    assert numbers.facts["jobs_left_out"] == 3
    for kind in ("compute", "memory"):
        utils, pipes, drams = (
            [float(job[at] or 0) for job in KNOWN if job[3] == kind] for at in range(3)
        )
        assert numbers.facts[f"{kind}_rho_pipe"] == pytest.approx(spearman(utils, pipes))
        assert numbers.facts[f"{kind}_rho_dram"] == pytest.approx(spearman(utils, drams))
    correlation, median = figure.sentences(numbers)
    assert correlation == (
        "Utilisation has a rank correlation of 0.50 with FP64 activity and 0.50 with DRAM "
        "activity in 3 compute-bound "
        "jobs, of 0.78 with FP64 activity and 0.33 with DRAM activity in 4 memory-bound jobs."
    )
    assert (
        median
        == "The median utilisation is 70 % in 3 compute-bound jobs, 50 % in 4 memory-bound jobs."
    )
    left, right, _ = figure.draw(numbers).axes
    for axes, kind in ((left, "compute"), (right, "memory")):
        (mesh,) = (one for one in axes.collections if isinstance(one, QuadMesh))
        drawn: list[float] = (
            np.ma.masked_invalid(np.ma.asarray(mesh.get_array())).compressed().tolist()
        )
        assert sorted(drawn) == pytest.approx(
            sorted(cells.filter(pl.col("type") == kind)["util_mean"].drop_nulls())
        )
        counts = [int(text.get_text()) for text in axes.texts]
        assert sorted(counts) == sorted(
            cells.filter((pl.col("type") == kind) & (pl.col("jobs") > 0))["jobs"]
        )


def test_the_pipe_of_the_options_decides() -> None:
    job = {
        "gpu_util_mean": 0.5,
        "tensor_active_mean": 0.3,
        "fp64_active_mean": 0.1,
        "dram_active_mean": 0.2,
        "bound": "memory",
        "bound_tensor": "compute",
    }
    numbers = figure.compute(study_of(job, options=StudyOptions(pipe="tensor")))
    assert (numbers.facts["compute_jobs"], numbers.facts["memory_jobs"]) == (1, 0)
    assert numbers.tables["cells"].filter(pl.col("jobs") > 0).select(
        "pipe_low", "dram_low"
    ).rows() == [(0.27, 0.18)]
    assert figure.sentences(numbers) == ("The median utilisation is 50 % in 1 compute-bound job.",)
    left, right, _ = figure.draw(numbers).axes
    assert (left.get_title(), right.get_title()) == ("1 compute-bound job", "0 memory-bound jobs")
    assert left.get_xlabel() == "tensor activity (mean)"


@pytest.mark.parametrize(
    ("most", "top"),
    [(0.98, 1.0), (0.61, 0.8), (0.6, 0.6), (0.012, 0.015), (0.3, 0.3), (0.0007, 0.0008)],
)
def test_axes_end_at_a_round_number(most: float, top: float) -> None:
    numbers = figure.compute(study_of(dict(zip(NAMES, (0.5, most, 0.1, "compute"), strict=True))))
    assert numbers.tables["cells"]["pipe_high"].max() == pytest.approx(top)
    assert numbers.tables["cells"]["jobs"].sum() == 1


def test_what_is_not_measured_is_said() -> None:
    unmeasured = figure.compute(study_of({"gpu_util_mean": 0.5, "dram_active_mean": 0.5}))
    assert unmeasured.missing["cells"] == "not measured: fp64_active (mean), bound"
    apart = figure.compute(
        study_of({"gpu_util_mean": 0.5}, dict(zip(NAMES, (None, 0.1, 0.1, "memory"), strict=True)))
    )
    assert apart.missing["cells"] == "no job has all of a type, utilisation and activity"
    for numbers in (unmeasured, apart, figure.compute(study_of())):
        assert not numbers.tables
        assert figure.sentences(numbers) == ()
