"""Many profiled kinds: ruling pairs out at once says what judging each says, and so do the
numbers of all at once.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colocate_jobs import job
from profile_csv import Ran, raw
from test_colocate_profiles import LIKE, OF_THE_LAKE, report

from tachograph.annexes.share import proposals as judging
from tachograph.annexes.share.colocation import ColocateReport
from tachograph.annexes.share.job_groups import GivenProfile, JobGroup
from tachograph.annexes.share.proposals import PairJudge, SharingProposal
from tachograph.annexes.share.sharing_json import colocate_json
from tachograph.catalog.arrays import Flags
from tachograph.catalog.config import InterferenceOptions

SETTINGS = InterferenceOptions()


def some(
    folder: Path, seed: int, heavy: float, count: int = 12
) -> tuple[list[dict[str, Any]], list[GivenProfile]]:
    """Kinds of which most were profiled, one of them also by a report that does not tell issue
    slots.
    """
    chance = random.Random(seed)
    jobs, given = [], []
    for kind in range(count):
        ran = [
            Ran(
                f"void k{kind}_{n}(int)",
                chance.uniform(1, 30),
                chance.uniform(0.02, heavy),
                chance.uniform(0, heavy / 2),
                pipes={"fp64": chance.uniform(0, heavy * 0.6)},
                blocks=chance.randint(20, 400),
            )
            for n in range(5)
        ]
        busy = chance.choice([0.08, 0.4, 0.7, 1.0])
        requested = {"name": f"x{kind}", "elapsed_s": 3600.0 + kind, "gr_engine_active_mean": busy}
        requested |= {
            "sm_active_mean": busy * chance.choice([0.08, 0.5]),
            "fp64_active_mean": 0.1 * busy,
        }
        jobs.append(job(kind, **(OF_THE_LAKE | LIKE | requested)))
        for part, kernels, without in (
            ("a", ran[:4], ()),
            ("b", ran[4:], ("sm__inst_issued.avg.per_cycle_active",)),
        ):
            if kind % 4 != 3 and (part == "a" or kind == 0):
                file = folder / f"{kind}{part}.csv"
                file.write_text(raw(kernels, without=without), encoding="utf-8")
                given.append(GivenProfile(f"ann/x{kind}", str(file)))
    return jobs, given


def judged(jobs: list[dict[str, Any]], given: list[GivenProfile], **options: Any) -> ColocateReport:
    return report(jobs, *given, judge=PairJudge, settings=SETTINGS, **options)


def nothing_ruled_out(slowdown: Any, *_: Any, **__: Any) -> Flags:
    return np.zeros(slowdown.shape, dtype=bool)


@pytest.mark.parametrize(("seed", "heavy"), [(1, 0.8), (2, 0.5), (3, 0.25)])
def test_the_same_as_judging_every_pair(
    seed: int, heavy: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, given = some(tmp_path, seed, heavy)
    requested = 0
    proposal = PairJudge.proposal

    def counted(judge: PairJudge, one: JobGroup, other: JobGroup) -> SharingProposal:
        nonlocal requested
        requested += 1
        return proposal(judge, one, other)

    monkeypatch.setattr(PairJudge, "proposal", counted)
    quick, few = judged(jobs, given), requested
    monkeypatch.setattr(judging, "by_kernels_ruled_out", nothing_ruled_out)
    slow = judged(jobs, given)
    assert colocate_json(quick) == colocate_json(slow)
    assert slow.proposals
    assert 0 < few < requested - few or heavy < 0.8
