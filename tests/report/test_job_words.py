"""Sentences about the data of one job."""

from __future__ import annotations

import pytest

from jobframes import job_row
from tachograph.catalog.rows import JobSummaryRow
from tachograph.report.job_sentences import (
    caveat_sentences,
    energy_sentence,
    host_sentence,
    limiter_sentence,
    means_sentence,
    memory_sentence,
    use_sentence,
)
from tachograph.report.verdict import verdict_sentence


def test_reasons_to_leave_a_job_out_are_words() -> None:
    caveats = caveat_sentences({"excluded": "no_samples,short"})
    assert caveats == ("Left out of studies: there are no samples, it was short.",)


@pytest.mark.parametrize(
    ("because", "in_verdict", "in_data"),
    [
        ("unplaced", "nothing records where it ran", "No sample is shown."),
        (
            "part_of_nodes",
            "no sample can be attributed to it",
            "No sample is shown: those of its nodes may belong to other jobs.",
        ),
    ],
)
def test_why_nothing_is_known_of_gpus_is_true_of_its_cause(
    because: str, in_verdict: str, in_data: str
) -> None:
    row: JobSummaryRow = {"attribution": "ambiguous", "ambiguous_because": because}
    assert verdict_sentence(row, []) == f"What its GPUs did is unknown: {in_verdict}."
    assert in_data in caveat_sentences(row)
    assert len([note for note in caveat_sentences(row) if "No sample is shown" in note]) == 1


@pytest.mark.parametrize(
    ("job_id", "sentence"),
    [
        ("local-20261122-003730-3738", "Its GPUs are those that were recorded."),
        ("100", "Its GPUs are known from a map of jobs to GPUs, or job labels of samples."),
    ],
)
def test_who_says_which_gpus_were_its_own(job_id: str, sentence: str) -> None:
    assert caveat_sentences({"attribution": "explicit", "job_id": job_id}) == (sentence,)


SHARE: JobSummaryRow = {"mps": 50, "gpus": None}
OWN_SHARE = "It had a share of them (50 MPS), and no other job held them: all samples are its own."
FOREIGN_SHARE = (
    "It had a share (50 MPS) of GPUs that other jobs held at the same time, or may have held."
)


@pytest.mark.parametrize(
    ("row", "evidence", "sentence"),
    [
        (
            {"attribution": "live_index"},
            "",
            "Its GPUs are known from the scheduler, recorded while the job ran.",
        ),
        ({"attribution": "explicit"}, "samples", "Its GPUs are known from samples that name it."),
        (
            {"attribution": "ambiguous"},
            "",
            "Its GPUs on shared nodes are unknown.",
        ),
        (
            {"attribution": "ambiguous"},
            "nothing",
            "Where it ran is unknown: its accounting has no node list, no sample or map names it.",
        ),
        (
            {"attribution": "ambiguous"},
            "elsewhere",
            "Samples or maps name it only at times other than its accounting: check site.time_zone.",
        ),
        ({"attribution": "whole_node", **SHARE}, "", "Its nodes have one GPU each."),
        ({"attribution": "whole_node", **SHARE}, "", OWN_SHARE),
        ({"attribution": "ambiguous", **SHARE}, "", FOREIGN_SHARE),
        (
            {"attribution": "explicit", **SHARE},
            "",
            "No GPU-hours are counted: what part of a GPU that is, is not known.",
        ),
        (
            {"attribution": "explicit", **SHARE, "gpu_share": 0.5, "share_by": "count"},
            "",
            "Counted as 0.50 GPUs, by its part of each.",
        ),
        (
            {"attribution": "explicit", **SHARE, "gpu_share": 0.5, "share_by": "time"},
            "",
            "Counted as 0.50 GPUs: the time of each GPU over the jobs on it.",
        ),
        (
            {"excluded": "other_partition,staff_account,login_node"},
            "",
            ("Left out of studies: it ran in another partition, its account is a staff account, it "
            "ran on a login node."),
        ),
    ],
)  # fmt: skip
def test_limits_of_the_data(row: JobSummaryRow, evidence: str, sentence: str) -> None:
    assert sentence in caveat_sentences(row, evidence)


ONE_EACH: JobSummaryRow = {"power_w_sampled_mean": 250.0, "samples": 4, "gpus_seen": 4}


@pytest.mark.parametrize(
    ("row", "slices", "rest"),
    [
        ({}, False, "neither energy nor power was recorded."),
        (
            ONE_EACH,
            False,
            "power (250 W) was recorded, but in one sample of a GPU; energy needs two.",
        ),
        (
            ONE_EACH | {"samples": 5},
            False,
            (
                "power (250 W) was recorded, but in samples too far apart to add up, and the energy "
                "counter was not recorded."
            ),
        ),
        (
            ONE_EACH | {"samples": 5, "energy_j_mean": 0.0},
            False,
            "power (250 W) was recorded, but in samples too far apart to add up.",
        ),
        (
            {"power_w_max": 250.0, "samples": 500, "gpus_seen": 1},
            True,
            "power (250 W) was recorded, but of whole GPUs, and the job had slices of them.",
        ),
        (
            {"energy_j_mean": 9.0, "samples": 500, "gpus_seen": 1},
            True,
            "the energy counter was recorded, but of whole GPUs, and the job had slices of them.",
        ),
    ],
)
def test_unknown_energy_says_what_was_recorded(
    row: JobSummaryRow, *, slices: bool, rest: str
) -> None:
    assert energy_sentence(row, slices=slices) == f"Unknown: {rest}"


COUNTED: JobSummaryRow = {"energy_j": 7.2e6, "energy_j_estimated": 7.2e6}


@pytest.mark.parametrize(
    ("row", "means", "energy"),
    [
        (
            COUNTED | {"power_w_sampled_mean": 568.0, "power_w_mean": 571.0},
            "Power 568 W",
            "2.00 kWh, 571 W per GPU on average, by energy.",
        ),
        (
            COUNTED | {"power_w_sampled_mean": 571.0, "power_w_mean": 571.04},
            "Power 571 W",
            "2.00 kWh, 571 W per GPU on average.",
        ),
        (COUNTED | {"power_w_mean": 571.0}, "Power 571 W", "2.00 kWh, 571 W per GPU on average."),
    ],
)
def test_power_of_the_means_is_that_of_the_gpus(
    row: JobSummaryRow, means: str, energy: str
) -> None:
    """Means are of samples, as those of each GPU; power by energy is named where it differs."""
    assert (means_sentence(row) or "").startswith(f"{means};")
    assert energy_sentence(row) == f"The GPUs used {energy}"


def test_sentences_of_jobs_that_no_demo_has() -> None:
    used = use_sentence({"gr_engine_active_mean": 1.4, "gpus": 1})
    assert used == "The mean of graphics engine activity was 140 % of the MIG slice."
    memory = memory_sentence({"hbm_used_mib_max": 2048.0})
    assert (
        memory
        == "At the peak 2.0 GiB of the memory of a GPU was in use; its capacity is not known."
    )
    pipes = job_row(
        **{f"{pipe}_active_mean": 0.0 for pipe in ("fp64", "fp32", "fp16", "tensor", "dram")}
    )
    assert limiter_sentence(pipes, {}) == "Unknown: no arithmetic was measured on any pipe."
    measured: JobSummaryRow = {"gpus": 1, "gpu_util_mean": 0.5, "samples": 9}
    for limiter in ("NVLink", "PCIe"):
        headline = verdict_sentence(measured | {"limiter": limiter.lower()}, [])
        expected = f"The GPU was busy 50 % of the time; {limiter} traffic set the speed."
        assert headline == expected
    assert host_sentence({"cpus": 1, "cpu_efficiency": 0.5}) == "1 CPU was busy 50 % of the time."
