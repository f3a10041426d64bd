"""Kinds of jobs and their pairs: made-up jobs, recomputed by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import combinations_with_replacement
from typing import Any

import pytest
from colocate_jobs import job, lake_of, law_by_hand
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.share.colocation import (
    ColocateReport,
    ColocateRequest,
    build_colocate_report,
)
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.job_groups import LEFT_OUT
from tachograph.annexes.share.sharing_json import colocate_csv, colocate_json
from tachograph.annexes.share.sharing_text import colocate_lines, headlines
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.cli.output import json_bytes
from tachograph.report.lines import to_text


def report(*rows: dict[str, Any], stable: str = "yes", **request: Any) -> ColocateReport:
    summaries, verdicts = lake_of(*rows, stable=stable)
    if stable == "never":
        verdicts = verdicts.clear()
    return build_colocate_report(
        summaries,
        verdicts,
        ColocateRequest(**request),
        configuration=Configuration(),
        calibration=Calibration(achievable_share=0.8),
        law=law_by_hand,
    )


def printed(found: ColocateReport, width: int = 110) -> str:
    return to_text(colocate_lines(found, width=width))


def reasons(found: ColocateReport) -> dict[str, int]:
    return {reason: jobs for reason, jobs, _ in found.left_out}


RARE = {"gr_engine_active_mean": 0.08}  # uses its GPU 8 % of the time
THREE_KINDS = [
    *(job(n, user=user) for n, user in enumerate(["ann", "ann", "bob", "bob"], 1)),
    *(job(n, name="rare", **RARE) for n in (5, 6)),
]


def test_runs_of_one_kind_are_packed_two_by_two() -> None:
    found = report(*(job(n, **RARE) for n in (1, 2)), job(3, elapsed_s=7200.0, **RARE))
    (proposal,) = found.proposals
    assert (proposal.one.label, proposal.one is proposal.other, proposal.one.runs) == (
        "ann/train",
        True,
        3,
    )
    best = proposal.best
    assert best is not None
    assert (best.mode, proposal.safe) == ("time_slicing", False)
    # 4 GPU-hours become 2, each 1.08 times as long at the most
    assert best.high == pytest.approx((1.08, 1.08))
    assert (proposal.overlap_h, proposal.saved_most_h) == (2.0, 2.0)
    assert proposal.saved_h == found.saved_h == pytest.approx(2.0 * (2 - 1.08))
    assert proposal.memory == pytest.approx((2 * 10240 + 512) / 81920)
    text = " ".join(printed(found).split())
    assert "1 pair on one GPU in place of two, within 1.10x: 1.8 h freed" in text
    assert "time-slicing 1.00x to 1.08x" in text
    assert found.trials == ()


def test_slowdown_and_hours_by_hand() -> None:
    rows = [job(1, name="a", elapsed_s=10800.0, gr_engine_active_mean=0.7)]
    rows += [job(2, name="b", user="bob", gr_engine_active_mean=0.5, elapsed_s=7200.0)]
    found = report(*rows, least_runs=1)
    assert found.proposals == ()
    (proposal,) = found.trials
    assert (proposal.one.label, proposal.other.label) == ("ann/a", "bob/b")
    best = proposal.best
    assert best is not None
    assert (best.mode, best.low, proposal.verdict) == ("mps", (1.0, 1.0), "try")
    assert best.high == pytest.approx((1.5, 1.7))
    assert proposal.overlap_h == 2.0
    assert proposal.saved_h == pytest.approx(2.0 * (2 - 1.7))
    assert (proposal.saved_most_h, found.saved_most_h, found.saved_h) == (2.0, 2.0, 0.0)
    assert not proposal.same_user
    assert "1 pair may, depending on kernels that are not known: up to 2.0 h" in " ".join(
        printed(found).split()
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"end": None, "state": "RUNNING"}, "running"),
        ({"attribution": "ambiguous"}, "ambiguous"),
        ({"samples": 0}, "no_samples"),
        ({"coverage": 0.5}, "coverage"),
        ({"gpu_model": "A100 SXM 80GB+A40"}, "model"),
        ({"gpu_model": None}, "model"),
        ({"sm_active_mean": None}, "no_counters"),
        ({"dram_active_mean": None}, "no_counters"),
        ({"hbm_used_mib_max": None}, "no_counters"),
        (
            {f"{pipe}_active_mean": None for pipe in ("fp64", "fp32", "fp16", "tensor")},
            "no_counters",
        ),
        ({"gr_engine_active_mean": None}, "no_counters"),
        ({"gr_engine_active_mean": 0.001}, "idle"),
        ({"gpus_never_used": 1}, "uneven"),
        ({"spatial_imbalance": 0.6}, "uneven"),
        ({"hbm_used_mib_max": 75000.0}, "near_limit"),
        ({"dram_active_mean": 0.5}, "near_limit"),  # 0.5 / 0.8 of the time of what can be achieved
        ({"tensor_active_mean": 0.38}, "near_limit"),
    ],
)
def test_who_is_left_out_and_why(change: dict[str, Any], reason: str) -> None:
    found = report(*(job(n, **change) for n in (1, 2)), job(3, user="bob"), job(4, user="bob"))
    assert reasons(found) == {reason: 2}
    assert found.kinds == 1
    assert LEFT_OUT[reason] in " ".join(printed(found).split())


@pytest.mark.parametrize(
    ("stable", "reason"), [("no", "unsteady"), ("unknown", "short"), ("never", "short")]
)
def test_only_steady_jobs_share(stable: str, reason: str) -> None:
    assert reasons(report(job(1), job(2), stable=stable)) == {reason: 2}


def test_one_name_for_different_work_is_taken_apart_by_array() -> None:
    light, heavy = {"tensor_active_mean": 0.02}, {"tensor_active_mean": 0.3}
    rows = [job(n, array_job_id="7", **light) for n in (1, 2)] + [
        job(n, array_job_id="8", **heavy) for n in (3, 4)
    ]
    found = report(*rows, job(5))
    assert reasons(found) == {"few_runs": 1}
    (proposal,) = found.trials
    assert {proposal.one.label, proposal.other.label} == {"ann/train[7]", "ann/train[8]"}
    apart = report(*(job(n, **change) for n, change in enumerate([light, heavy, light, heavy])))
    assert reasons(apart) == {"spread": 4}


def test_only_as_many_gpus_of_one_model_share() -> None:
    rows = [job(n, name="a", gpus=1) for n in (1, 2)] + [job(n, name="b", gpus=4) for n in (3, 4)]
    rows += [job(n, name="c", gpu_model="A100 SXM 40GB", hbm_mib=40960.0) for n in (5, 6)]
    found = report(*rows)
    assert len(found.trials) == 3
    assert all(pair.one is pair.other for pair in found.trials)
    with pytest.raises(
        UsageError, match="cannot share: they ran on 1 x A100 SXM 80GB and 4 x A100 SXM 80GB"
    ):
        report(*rows, pair=("ann/a", "ann/b"))


def test_without_pairs_the_headline_says_how_to_see_why() -> None:
    # memory does not hold both
    rows = [job(n, name="a", hbm_used_mib_max=40960.0) for n in (1, 2)]
    full = report(*rows)
    assert not full.proposals + full.trials
    assert "`--all` shows each with its numbers." in headlines(full)[1]
    assert (
        'To see why, name two job groups at "Explain a pair".' in headlines(full, by_form=True)[1]
    )
    assert headlines(report(), by_form=True)[0] == "No jobs match: widen the filters."
    assert headlines(report())[0] == "No jobs."


def test_a_group_that_ran_once_is_not_compared_with_itself() -> None:
    with pytest.raises(UsageError) as refused:
        report(job(1, name="a"), least_runs=1, pair=("ann/a", "ann/a"))
    assert str(refused.value) == (
        "ann/a cannot share with itself: it ran once; name two job groups, or one that ran at least twice"
    )


def test_a_pair_is_explained_also_where_it_must_not_be() -> None:
    rows = [job(n, name="a", hbm_used_mib_max=40960.0) for n in (1, 2)] + [
        job(3, name="b", hbm_used_mib_max=40960.0)
    ]
    (refused,) = report(*rows, pair=("ann/a", "3")).chosen
    assert (refused.verdict, refused.saved_h, refused.other.label) == ("no", 0.0, "ann/b")
    text = " ".join(printed(report(*rows, pair=("ann/a", "3"))).split())
    assert "ann/a with ann/b, 1 x A100 SXM 80GB: do not share" in text
    assert "are 101 % of 80.0 GiB, more than the 90 % allowed" in text
    assert "No mode: memory does not hold both." in text
    assert "sbatch" not in text
    with pytest.raises(NotFoundError, match="no job group 'ann/c'"):
        report(*rows, pair=("ann/a", "ann/c"))
    with pytest.raises(UsageError, match="ann/d cannot be judged: still running"):
        report(*rows, job(4, name="d", end=None), pair=("ann/a", "ann/d"))


def test_without_profiling_counters_it_shows_which_to_record() -> None:
    gone = {
        f"{name}_active_mean": None for name in ("sm", "dram", "fp64", "fp32", "fp16", "tensor")
    }
    found = report(*(job(n, **gone) for n in (1, 2)))
    assert reasons(found) == {"no_counters": 2}
    text = " ".join(printed(found).split())
    assert "sm_active (DCGM_FI_PROF_SM_ACTIVE, 1002)" in text
    assert "tensor_active (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, 1004)" in text
    assert "hbm_used_mib" not in text
    assert report(job(1), job(2)).missing == ()


def test_all_forms_show_the_same_numbers() -> None:
    found = report(*THREE_KINDS, every=True)
    data = json.loads(json_bytes(colocate_json(found)))
    cells = list(csv.DictReader(io.StringIO(colocate_csv(found))))
    pairs = data["proposals"] + data["trials"] + data["refused"]
    assert len(pairs) == len(cells) == 6
    for pair, row in zip(pairs, cells, strict=True):
        assert (row["one"], row["other"]) == (pair["one"]["label"], pair["other"]["label"])
        assert (row["verdict"], row["mode"]) == (pair["verdict"], pair["mode"])
        assert float(row["saved_h"]) == pair["saved_h"]
        for name in ("low", "high"):
            assert [float(row[name]), float(row[f"other_{name}"])] == pair[name]
        assert pair["options"][0]["high"] == pair["high"]
        assert bool(pair["setup"]) == (pair["verdict"] != "no")
    assert data["saved_h"] == found.saved_h > 0
    assert len(colocate_json(found, top=1)["trials"]) == 1
    text = printed(found)
    assert "1.00x to 1.08x" in text
    assert "Not proposed" in text


def test_nothing_predicted_is_called_measured() -> None:
    texts = [
        printed(report(*THREE_KINDS, every=True)),
        printed(report(*THREE_KINDS, pair=("ann/train", "bob/train"))),
    ]
    for options in ({"every": True}, {"pair": ("ann/rare", "ann/rare")}):
        data = colocate_json(report(*THREE_KINDS, **options))
        texts.append(json.dumps(data["proposals"] + data["chosen"]))
    for text in texts:
        assert "1.00x" in text or "1.0" in text
        assert not re.search(r"\bmeasured\b|no SM is shared|\bsafe\.|Safe:", text)


SOME = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["ann", "bob"]),
        "name": st.sampled_from("abcd"),
        "gpus": st.sampled_from([1, 1, 4]),
        "gr_engine_active_mean": st.sampled_from([0.05, 0.08, 0.6, 0.9]),
        "hbm_used_mib_max": st.sampled_from([8000.0, 30000.0, 45000.0]),
        "elapsed_s": st.sampled_from([3600.0, 36000.0]),
    }
)


@given(st.lists(SOME, max_size=9))
def test_each_group_is_in_one_pair_and_each_pair_in_one_list(given_rows: list[Any]) -> None:
    """In any order of the jobs, with pairs of one user first."""
    rows = [job(number, **given) for number, given in enumerate(given_rows)]
    found = report(*rows, least_runs=1, every=True)
    assert colocate_json(found) == colocate_json(report(*reversed(rows), least_runs=1, every=True))
    matched = [*found.proposals, *found.trials]
    assert {pair.verdict for pair in found.proposals} <= {"share"}
    assert {pair.verdict for pair in found.trials} <= {"try"}
    in_pairs = [
        (group.label, group.gpus)
        for pair in matched
        for group in ([pair.one] if pair.one is pair.other else [pair.one, pair.other])
    ]
    assert len(in_pairs) == len(set(in_pairs))
    groups: dict[tuple[str, int], int] = {}
    for pair in (*matched, *found.refused):
        groups |= {(group.label, group.gpus): group.runs for group in (pair.one, pair.other)}
        taken = {(pair.one.label, pair.one.gpus), (pair.other.label, pair.other.gpus)}
        assert pair in matched or pair.taken == bool(taken & set(in_pairs))
    possible = [
        (one, other)
        for one, other in combinations_with_replacement(sorted(groups), 2)
        if one[1] == other[1] and (one != other or groups[one] > 1)
    ]
    listed = [
        tuple(sorted([(pair.one.label, pair.one.gpus), (pair.other.label, pair.other.gpus)]))
        for pair in (*matched, *found.refused)
    ]
    assert sorted(listed) == sorted(possible)
    own = [pair.same_user for pair in found.proposals]
    free = [pair for pair in found.refused if pair.same_user and not pair.taken]
    assert all(own) or not [pair for pair in free if pair.saved_h > 0]
