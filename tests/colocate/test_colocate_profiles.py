"""Kinds of jobs with a profile of their kernels: made-up jobs and reports, recomputed by hand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from colocate_jobs import job, lake_of, law_by_hand
from profile_csv import QMC, Ran, raw

from tachograph.annexes.share.colocation import (
    ColocateReport,
    ColocateRequest,
    build_colocate_report,
)
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.job_groups import GivenProfile
from tachograph.annexes.share.nsight.launches import Launch
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.annexes.share.sharing_json import colocate_csv, colocate_json
from tachograph.annexes.share.sharing_text import colocate_lines
from tachograph.catalog.config import Configuration, InterferenceOptions
from tachograph.catalog.errors import InputError, NotFoundError, UsageError
from tachograph.cli.output import json_bytes
from tachograph.report.lines import to_text

OF_THE_LAKE = {"gpu_model": "A100 SXM 40GB", "hbm_mib": 40960.0, "dram_active_max": 0.8}
# while busy: SMs half of the time, little of all else
LIKE = {
    "gr_engine_active_mean": 0.8,
    "sm_active_mean": 0.4,
    "dram_active_mean": 0.1,
    "fp64_active_mean": 0.1,
}
LIKE |= {"fp32_active_mean": 0.06, "tensor_active_mean": 0.0}
ONE = (
    Ran("void a(int)", 30.0, 0.7, pipes={"fp64": 0.3}),
    Ran("void b(int)", 10.0, 0.2, 0.3, pipes={"fma": 0.2}),
)
OTHER = (
    Ran("void c(int)", 5.0, 0.6, pipes={"fp64": 0.2}),
    Ran("void d(int)", 15.0, 0.1, 0.4, pipes={"fp64": 0.1}),
)
SETTINGS = InterferenceOptions(safe_cycles=2.0, safe_dram=2.0, max_slowdown=3.0)


def read(report: str) -> Sequence[Launch]:
    """What a report on the disk holds."""
    return [launch for one in read_reports([Path(report)]) for launch in one.launches]


def rows(*names: str, **given: Any) -> list[dict[str, Any]]:
    """A job of ann for each name, an hour longer than the one before."""
    return [
        job(n, **(OF_THE_LAKE | LIKE | {"name": name, "elapsed_s": 3600.0 * n} | given))
        for n, name in enumerate(names, 1)
    ]


def report(jobs: Sequence[dict[str, Any]], *given: GivenProfile, **request: Any) -> ColocateReport:
    summaries, verdicts = lake_of(*jobs)
    return build_colocate_report(
        summaries,
        verdicts,
        ColocateRequest(**{"least_runs": 1, **request}),
        configuration=Configuration(interference=SETTINGS),
        calibration=Calibration(achievable_share=0.8),
        profiles=given,
        read=read,
        law=law_by_hand,
    )


def printed(found: ColocateReport, width: int = 160) -> str:
    return " ".join(to_text(colocate_lines(found, width=width)).split())


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Reports: of one and of other, one of another GPU, without durations, without issue slots,
    and none at all.
    """
    texts = {
        "one": raw(ONE),
        "other": raw(OTHER),
        "h100": raw(ONE, gpu="NVIDIA H100 PCIe", sms=114),
        "slice": raw(ONE, sms=42),
        "nameless": raw(ONE, gpu="", sms=108),
        "timeless": raw(ONE, without=("gpu__time_duration.sum",)),
        "unissued": raw(ONE, without=("sm__inst_issued.avg.per_cycle_active",)),
        "broken": "nothing of a profiler\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    return {name: str(tmp_path / f"{name}.csv") for name in texts}


def cell(one: Ran, other: Ran) -> float:
    """By hand: the highest sum of what both ask, of a resource; the estimator of these tests
    slows both alike.
    """
    names = {"issue", "dram", *one.pipes, *other.pipes}
    requested = [{"issue": ran.issue, "dram": ran.dram / 0.8, **ran.pipes} for ran in (one, other)]
    return max(1.0, *(requested[0].get(name, 0.0) + requested[1].get(name, 0.0) for name in names))


def test_two_profiled_kinds_meet_kernel_by_kernel(files: dict[str, str]) -> None:
    jobs = rows("x", "y")
    jobs[1]["gr_engine_active_mean"] = 0.6
    found = report(
        jobs,
        GivenProfile("ann/x", files["one"]),
        GivenProfile("ann/y", files["other"]),
        pair=("ann/x", "ann/y"),
    )
    (pair,) = found.chosen
    table = {(one.kernel, other.kernel): cell(one, other) for one in ONE for other in OTHER}
    shares = {one.kernel: one.ms / 40 for one in ONE} | {
        other.kernel: other.ms / 20 for other in OTHER
    }
    both_busy = sum(shares[one] * shares[other] * slow for (one, other), slow in table.items())
    assert max(table.values()) == pytest.approx(1.3)
    # Only a beside c asks for too much: 1.3 issue slots.
    assert both_busy == pytest.approx(1 + 0.75 * 0.25 * 0.3)
    mps = next(option for option in pair.options if option.mode == "mps")
    lost = both_busy - 1
    assert mps.slowdowns == pytest.approx((1 + 0.6 * lost, 1 + 0.8 * lost))
    assert mps.high == pytest.approx((1 + 0.6 * 2 * lost, 1 + 0.8 * 2 * lost))
    assert mps.binding == "issue"
    # Half of the SMs each costs a little more for all time, by hand 1.06x and at most 1.12x.
    assert (pair.verdict, pair.best and pair.best.mode) == ("share", "mps")
    assert pair.worst is not None
    assert pair.worst[:2] == ("a", "c")
    assert pair.worst[2] == pytest.approx(1.6)
    text = printed(found)
    assert "At worst: a 1.60x beside c." in text
    assert "Without profiles" not in text
    assert (
        f"ann/x: by {files['one']}: 2 kernels, launched 4 times; of their time 75 % a, 25 % b"
        in text
    )


def test_the_profile_is_held_against_the_lake(files: dict[str, str]) -> None:
    jobs = rows("x", "y", dram_active_mean=0.32)
    found = report(jobs, GivenProfile("ann/x", files["one"]))
    (kind,) = found.profiled
    assert kind.profile is not None
    dram = 0.75 * 0.05 + 0.25 * 0.3
    assert 0.32 / 0.8 - dram > 0.15
    (apart,) = kind.profile.apart
    assert apart.startswith(
        f"ann/x: its kernels take {100 * dram:.0f} % of the peak memory bandwidth, its jobs 40 "
        "%: the"
    )
    assert "the profile may not be of this job" in printed(found)
    (fitting,) = report(rows("x", "y"), GivenProfile("ann/x", files["one"])).profiled
    assert fitting.profile is not None
    assert fitting.profile.apart == ()


@pytest.mark.parametrize(
    ("kind", "name", "error", "message"),
    [
        (
            "ann/x",
            "h100",
            UsageError,
            "ran on NVIDIA H100 PCIe, 114 SMs, not on A100 SXM 40GB, 108 SMs",
        ),
        (
            "ann/x",
            "slice",
            UsageError,
            "ran on NVIDIA A100-SXM4-40GB, 42 SMs, not on A100 SXM 40GB",
        ),
        ("ann/x", "timeless", InputError, "no kernel has a duration"),
        ("ann/x", "unissued", InputError, "the profile has no issue slots"),
        ("ann/x", "broken", InputError, "broken.csv"),
        ("ann/nope", "one", NotFoundError, "--profile ann/nope: no job group 'ann/nope'"),
        ("ann/z", "one", UsageError, "--profile ann/z: ann/z cannot be judged: still running"),
    ],
)
def test_what_cannot_be_used_is_refused(
    files: dict[str, str], kind: str, name: str, error: type[Exception], message: str
) -> None:
    jobs = [*rows("x", "y"), job(3, **OF_THE_LAKE, name="z", end=None)]
    bad = GivenProfile(kind, files[name])
    with pytest.raises(error, match=r".") as caught:
        report(jobs, bad)
    assert message in str(caught.value)
    found = report(jobs, bad, GivenProfile("ann/y", files["other"]))
    assert [one.label for one in found.profiled] == ["ann/y"]
    assert len(found.refused_profiles) == 1
    assert message in found.refused_profiles[0]
    kept = report(jobs, GivenProfile(kind, files[name], source="configuration"))
    assert (kept.profiled, len(kept.refused_profiles)) == (
        (),
        0 if error is NotFoundError or kind == "ann/z" else 1,
    )


@pytest.mark.parametrize("written", ["ann/x", "1", "ann/*", "*x"])
def test_a_kind_is_written_as_the_table_writes_it(files: dict[str, str], written: str) -> None:
    found = report(rows("x", "y"), GivenProfile(written, files["one"]))
    assert {kind.label for kind in found.profiled} == (
        {"ann/x", "ann/y"} if written == "ann/*" else {"ann/x"}
    )


def test_reports_of_one_kind_add_up_and_the_command_comes_first(files: dict[str, str]) -> None:
    one, other = files["one"], files["other"]
    command, kept = GivenProfile("ann/x", one), GivenProfile("ann/x", other, "configuration")
    attached = GivenProfile("1", one, "job")
    for given, reports in (
        ([command, kept], (one,)),
        ([attached, kept], (other,)),
        ([attached], (one,)),
        ([command, GivenProfile("1", other)], (one, other)),
    ):
        (kind,) = report(rows("x"), *given).profiled
        assert kind.profile is not None
        assert kind.profile.reports == reports
    profile = kind.profile
    assert profile is not None
    assert (profile.kernels, profile.launches) == (4, 8)
    assert profile.seconds == pytest.approx(0.06)
    shares = {demand.name: share for share, demand in profile.mix.members}
    assert shares == pytest.approx({"a": 30 / 60, "b": 10 / 60, "c": 5 / 60, "d": 15 / 60})


def test_the_matrix_is_the_same_in_every_form(files: dict[str, str]) -> None:
    given = (GivenProfile("ann/x", files["one"]), GivenProfile("ann/y", files["other"]))
    found = report([*rows("x", "y", "z"), *rows("w", gpus=4)], *given, matrix=True)
    first, alone = json.loads(json_bytes(colocate_json(found)))["matrices"]
    assert (len(first["kinds"]), alone["kinds"]) == (3, ["ann/w"])
    cells = list(csv.DictReader(io.StringIO(colocate_csv(found))))
    assert len(cells) == 9 + 1
    for row in cells[:9]:
        i, j = (first["kinds"].index(row[name]) for name in ("one", "other"))
        for name in ("slowdown", "low", "high"):
            assert float(row[name]) == first[name][i][j]
        assert row["binding"] == (first["binding"][i][j] or "")
        assert (row["binding"] == "turns") == ("ann/z" in (row["one"], row["other"]))
    text = to_text(colocate_lines(found, width=100))
    assert "1 x A100 SXM 40GB: 3 job groups" in text
    assert "ann/x*" in text
    full = report(rows("x", "y", hbm_used_mib_max=30000.0), matrix=True)
    assert "mem" in to_text(colocate_lines(full, width=100)).splitlines()[2].split()
    assert report([], matrix=True).matrices == ()
    assert "No jobs." in printed(report([], matrix=True))


def test_the_sample_of_the_documentation_is_this_one() -> None:
    sample = Path(__file__).resolve().parents[2] / "docs/samples/qmc-a100.csv"
    assert sample.read_text(encoding="utf-8").split("\n", 1)[1] == raw(QMC)
    assert "made up" in sample.read_text(encoding="utf-8").split("\n", 1)[0]
