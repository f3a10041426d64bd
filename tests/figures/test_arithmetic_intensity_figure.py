from __future__ import annotations

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import arithmetic_intensity as figure
from tachograph.annexes.lab.figures.numbers import StudyOptions

A100 = "A100 SXM 80GB"
RIDGE = 9.7e12 / 2.039e12  # FP64


def histogram(**pipes: dict[int, int]) -> list[int]:
    """Return 4 x 32 counts from {pipe: {bin: samples}}."""
    counts = [0] * 128
    for pipe, bins in pipes.items():
        for place, samples in bins.items():
            counts[["fp64", "fp32", "fp16", "tensor"].index(pipe) * 32 + place] = samples
    return counts


JOBS = (
    {
        "gpu_model": A100,
        "hbm_mib": 81920.0,
        "intensity_histogram": histogram(fp64={0: 1, 16: 5, 19: 3}, fp32={31: 2}),
        "fp64_active_mean": 0.2,
        "fp32_active_mean": 0.2,
        "fp16_active_mean": 0.0,
        "samples": 20,
        "idle_fraction": 0.5,
        "memory_fraction": 0.75,
        "bound": "memory",
    },
    {
        "gpu_model": A100,
        "hbm_mib": 81920.0,
        "intensity_histogram": histogram(fp64={20: 1}),
        "samples": 30,
        "idle_fraction": 0.0,
        "memory_fraction": 0.25,
        "bound": "compute",
        "bound_fp32": "memory",
    },
    {"gpu_model": f"{A100}+B200", "intensity_histogram": histogram(fp64={1: 7})},
    {"gpu_model": "X-1", "samples": 10, "idle_fraction": 1.0, "bound": None},
)


def test_samples_are_added_by_pipe_and_model() -> None:
    numbers = figure.compute(study_of(*JOBS))
    rows = numbers.tables["distribution"].to_dicts()
    assert len(rows) == 64
    low = [0.0, *(10 ** (-3 + 0.2 * k) for k in range(31))]
    assert [row["low_flop_per_b"] for row in rows] == pytest.approx(low * 2)
    found = {
        (row["pipe"], place % 32): (row["samples"], row["share"]) for place, row in enumerate(rows)
    }
    assert {where: counted for where, counted in found.items() if counted[0]} == {
        ("fp64", 0): (1, 0.1),
        ("fp64", 16): (5, 0.5),
        ("fp64", 19): (3, 0.3),
        ("fp64", 20): (1, 0.1),
        ("fp32", 31): (2, 1.0),
    }
    fp64, fp32 = numbers.tables["devices"].to_dicts()
    assert (fp64["jobs"], fp64["samples"], fp32["jobs"], fp32["samples"]) == (2, 10, 1, 2)
    assert fp64["ridge_flop_per_b"] == pytest.approx(RIDGE)
    assert low[19] < RIDGE < low[20]  # the ridge lies in bin 19
    assert (fp64["left_share_least"], fp64["left_share_most"]) == (0.6, 0.9)
    assert (fp64["median_low_flop_per_b"], fp64["median_high_flop_per_b"]) == pytest.approx(
        (low[16], low[17])
    )
    assert fp32["median_high_flop_per_b"] is None
    assert numbers.facts["several_models_jobs"] == 1
    assert numbers.facts["no_histogram_jobs"] == 1
    assert numbers.missing == {
        "fp16": "no sample with an arithmetic intensity",
        "tensor": "not measured: tensor_active (mean)",
    }
    assert figure.draw(numbers).axes


def test_what_is_said() -> None:
    numbers = figure.compute(study_of(*JOBS))
    assert numbers.facts["fp64_memory_share"] == pytest.approx((10 * 0.75 + 30 * 0.25) / 40)
    assert figure.sentences(numbers) == (
        (
            "Judged by the FP64 pipe, 37.5 % of the samples at work (about 40, of 2 jobs) are "
            "memory-bound, "
            "62.5 % compute-bound."
        ),
        (
            "By the majority of their samples, 50.0 % of 2 jobs are memory-bound and 50.0 % "
            "compute-bound."
        ),
        (
            "On A100 SXM 80GB, whose ridge point is at 4.76 FLOP/B, the median FP64 intensity "
            "lies between 1 and "
            "1.58 FLOP/B."
        ),
    )
    numbers = figure.compute(study_of(*JOBS, options=StudyOptions(pipe="fp32")))
    assert figure.sentences(numbers) == (
        "By the majority of their samples, 100 % of 1 job are memory-bound and 0 % compute-bound.",
        (
            "On A100 SXM 80GB, whose ridge point is at 9.56 FLOP/B, the median FP32 intensity lies "
            "over 1000 FLOP/B."
        ),
    )


def test_unknown_model_has_no_ridge() -> None:
    numbers = figure.compute(
        study_of({"gpu_model": "X-1", "intensity_histogram": histogram(fp64={0: 1})})
    )
    row = numbers.tables["devices"].to_dicts()[0]
    assert row["ridge_flop_per_b"] is None
    assert row["left_share_least"] is None
    assert figure.sentences(numbers)[-1] == (
        "On X-1, whose ridge point is not known, the median FP64 intensity lies under 0.001 FLOP/B."
    )
    labels = [
        text.get_text() for legend in figure.draw(numbers).legends for text in legend.get_texts()
    ]
    assert labels == ["X-1 (no ridge: peaks not known)"]


def test_nothing_to_draw() -> None:
    for study, why in (
        (study_of(), "no jobs"),
        (
            study_of({"gpu_model": A100}),
            "device peaks not known, or no pipe measured with dram_active",
        ),
        (
            study_of({"gpu_model": A100, "intensity_histogram": histogram()}),
            "no sample with an arithmetic intensity",
        ),
    ):
        numbers = figure.compute(study)
        assert not numbers.tables
        assert numbers.missing["distribution"] == why
        assert figure.sentences(numbers) == ()
