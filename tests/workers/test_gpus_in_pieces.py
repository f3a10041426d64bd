"""GPUs and findings of jobs are written as jobs end; in how many pieces makes no difference to who reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from worker_lakes import NOW, Simulated, copied, same

from tachograph.catalog.tables import FINDINGS, JOB_GPUS
from tachograph.judge.job_judge import JobJudge
from tachograph.pipeline import run
from tachograph.pipeline.run import analyze

pytestmark = pytest.mark.slow


def test_gpus_written_in_many_pieces_are_those_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated.of(tmp_path / "cluster")
    once = simulated.lake(str(tmp_path / "lake"))
    pieces = copied(once, tmp_path / "pieces")
    analyze(once, simulated.configuration, judge=JobJudge, now=NOW)
    monkeypatch.setattr(run, "JOBS_AT_ONCE", 1)
    monkeypatch.setattr(run, "GPU_ROWS", 1)
    monkeypatch.setattr(run, "FINDING_ROWS", 1)
    analyze(pieces, simulated.configuration, judge=JobJudge, now=NOW)
    assert (len(once.files(JOB_GPUS)), len(pieces.files(JOB_GPUS)) > 3) == (1, True)
    # a verdict of yes lies apart from the others: two files at once
    assert (len(once.files(FINDINGS)), len(pieces.files(FINDINGS)) > 6) == (2, True)
    assert same(once, pieces)
