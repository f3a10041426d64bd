"""What decides where a kind was profiled: the estimator as wrong as it may be, unless all
kernels of both are safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colocate_jobs import SHARING, JudgeByHand, job, lake_of
from profile_csv import Ran, raw

from tachograph.annexes.share.advice import SharingAdvice
from tachograph.annexes.share.colocation import ColocateReport, build_colocate_report
from tachograph.annexes.share.demand import Calibration, Demand, Matrix, Sharing
from tachograph.annexes.share.job_groups import GivenProfile
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.annexes.share.sharing_text import colocate_lines
from tachograph.catalog.config import InterferenceOptions, Thresholds
from tachograph.report.lines import to_text

BUSY = {"x": 0.8, "y": 0.6}
# 1.05 of the issue slots.
CROWDED = {"x": Ran("void a(int)", 30.0, 0.7), "y": Ran("void b(int)", 20.0, 0.35)}
LIGHT = {"x": Ran("void a(int)", 30.0, 0.3), "y": Ran("void b(int)", 20.0, 0.2)}
MARGIN = 1.14


class JudgeWithMargin(JudgeByHand):
    """Slowed by the highest sum above 1, as in other tests; safe below a sum of 0.9."""

    def pairs(
        self, rows: Sequence[Demand], columns: Sequence[Demand], sharing: Sharing = SHARING
    ) -> Matrix:
        issue = [
            [row.cycles["issue"] + column.cycles["issue"] for column in columns] for row in rows
        ]
        found = super().pairs(rows, columns, sharing)
        safe = (np.array(issue) < 0.9).astype(np.uint8)
        return replace(found, safe=safe, worst=found.slowdown * MARGIN)


def report(
    folder: Path,
    ran: dict[str, Ran],
    *,
    max_slowdown: float = 2.0,
    without: Sequence[str] = (),
    **options: Any,
) -> ColocateReport:
    """Kinds x and y, those in `ran` profiled; `without`: metrics that nobody collected of the
    second kernel of x.
    """
    jobs = [
        job(
            n,
            name=name,
            gpu_model="A100 SXM 40GB",
            gr_engine_active_mean=busy,
            fp32_active_mean=0.0,
        )
        for n, (name, busy) in enumerate(BUSY.items(), 1)
    ]
    given = []
    for name, one in ran.items():
        (folder / f"{name}.csv").write_text(raw([one]), encoding="utf-8")
        given.append(GivenProfile(f"ann/{name}", str(folder / f"{name}.csv")))
    if without:
        (folder / "blind.csv").write_text(
            raw([replace(ran["x"], kernel="void z(int)")], without=without)
        )
        given.append(GivenProfile("ann/x", str(folder / "blind.csv")))
    summaries, verdicts = lake_of(*jobs)
    return build_colocate_report(
        summaries,
        verdicts,
        settings=InterferenceOptions(max_slowdown=max_slowdown, safe_cycles=2.0, safe_dram=2.0),
        thresholds=Thresholds(),
        calibration=Calibration(achievable_share=0.8),
        judge=JudgeWithMargin,
        least_runs=1,
        profiles=given,
        read=lambda name: [launch for one in read_reports([Path(name)]) for launch in one.launches],
        **options,
    )


def both(folder: Path, ran: dict[str, Ran], **options: Any) -> tuple[Any, str]:
    found = report(folder, ran, pair=("ann/x", "ann/y"), **options)
    (pair,) = found.chosen
    return pair.advice, " ".join(to_text(colocate_lines(found, width=110)).split())


def the_matrix_shows(folder: Path, ran: dict[str, Ran], advice: SharingAdvice) -> None:
    """Assert that the matrix has the slowdowns of a pair that shares by MPS."""
    (of_all,) = report(folder, ran, matrix=True).matrices or ()
    x, y = ([kind.name for kind in of_all.kinds].index(name) for name in "xy")
    for shown, advised in (
        (of_all.slowdown, advice.slowdowns),
        (of_all.conservative, advice.conservative),
    ):
        assert (shown[x, y], shown[y, x]) == pytest.approx(advised)


def over_all(slowdown: float) -> tuple[float, float]:
    """By hand: of x for the time y is busy, of y for that of x."""
    return 1 + BUSY["y"] * (slowdown - 1), 1 + BUSY["x"] * (slowdown - 1)


def test_of_two_profiled_the_worst_decides(tmp_path: Path) -> None:
    advice, text = both(tmp_path, CROWDED)
    assert advice.slowdowns == pytest.approx(over_all(1.05))
    assert advice.conservative == pytest.approx(over_all(1.05 * 1.14))
    assert advice.mode == "mps"
    the_matrix_shows(tmp_path, CROWDED, advice)
    assert all(
        worst >= conservative
        for worst, conservative in zip(advice.worst, advice.conservative, strict=True)
    )
    assert (
        "expected 1.03x and 1.04x, up to 1.12x and 1.16x, by the worst case, which decides" in text
    )
    (passed, *_), between = over_all(1.05), 1.10  # more than expected, less than it may be
    assert passed < between < over_all(1.05 * 1.14)[0]
    refused, text = both(tmp_path, CROWDED, max_slowdown=between)
    assert refused.mode != "mps"
    assert "1.12x and 1.16x, by the worst case, which decides, slowed by issue slots" in text
    assert report(tmp_path, CROWDED, max_slowdown=between).proposals == ()
    (proposed,) = report(tmp_path, CROWDED, max_slowdown=1.17).proposals
    assert proposed.saved_h == pytest.approx(2 - over_all(1.05 * 1.14)[1])


def test_safe_pairs_need_no_worst_case(tmp_path: Path) -> None:
    advice, text = both(tmp_path, LIGHT, max_slowdown=1.01)
    assert (advice.mode, advice.conservative) == ("mps", (1.0, 1.0))
    the_matrix_shows(tmp_path, LIGHT, advice)
    assert "expected 1.00x each, which decides, for all pairs of their kernels are safe" in text


@pytest.mark.parametrize(("profiled", "other"), [("x", "y"), ("y", "x")])
@pytest.mark.parametrize("ran", [CROWDED, LIGHT])  # safe or not: of the other kernels nobody knows
def test_of_one_profiled_the_worst_decides_as_well(
    tmp_path: Path, ran: dict[str, Ran], profiled: str, other: str
) -> None:
    advice, text = both(tmp_path, {profiled: ran[profiled]})
    expected = max(1.0, ran[profiled].issue + 0.5)
    assert advice.conservative == pytest.approx(over_all(expected * MARGIN))
    assert f"if ann/{other} also needs 50 % of the issue slots, by the worst case" in text
    # Enough for the assumption alone.
    between = (max(over_all(expected)) + max(over_all(expected * MARGIN))) / 2
    refused, _ = both(tmp_path, {profiled: ran[profiled]}, max_slowdown=between)
    assert refused.mode != "mps"
    the_matrix_shows(tmp_path, {profiled: ran[profiled]}, advice)


def test_what_is_assumed_of_both_needs_none(tmp_path: Path) -> None:
    advice, text = both(tmp_path, {})
    assert advice.conservative == (1.0, 1.0)
    assert "worst case, which" not in text


def test_a_kernel_without_issue_slots_makes_no_pair_safe(tmp_path: Path) -> None:
    """It counts as request for half, and the worst case is not waived for that."""
    advice, text = both(tmp_path, LIGHT, without=("sm__inst_issued.avg.per_cycle_active",))
    assert advice.conservative == pytest.approx(over_all(1.14))
    assert "if ann/x also needs 50 % of the issue slots, by the worst case" in text


def test_on_parts_of_the_sms_the_worst_counts_while_both_are_busy(tmp_path: Path) -> None:
    """Its part is its own all the time; how wrong the estimator is shows while the other works."""
    wide = {
        name: replace(ran, issue=2 * ran.issue if name == "y" else ran.issue)
        for name, ran in CROWDED.items()
    }
    advice, _ = both(tmp_path, wide, max_slowdown=1.9)  # 1.4 of the issue slots: MPS 1.6x and 1.5x
    assert advice.mode == "mps"
    result, _ = both(tmp_path, wide, max_slowdown=1.3)
    shares = next(sentence for sentence in result.why if sentence.startswith("MPS with parts"))
    assert ", by the worst case, which decides" in shares
    expected = 1.4 + BUSY["y"] * 1.4 * 0.14, 1.4 + BUSY["x"] * 1.4 * 0.14
    assert f"expected 1.40x each, {expected[0]:.2f}x and {expected[1]:.2f}x, by the worst" in shares
