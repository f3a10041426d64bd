"""Hangs planted into jobs that are composed of recordings of an H100: the short version of
`research/composed_hangs.py`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "research" / "composed_hangs.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("composed_hangs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.recorded
@pytest.mark.parametrize("counters", ["all", "no_profiling", "utilisation_power", "utilisation"])
def test_composed_jobs(recorded: Path, script: ModuleType, counters: str) -> None:
    composed = script.ComposedJobs(recorded / "h100_day" / "samples", seed=3)
    jobs = script.with_cut_off([composed.job() for _ in range(40)])
    found = script.judged(jobs, script.COUNTER_SETS[counters])
    verdicts: dict[str, list[str]] = {}
    for (kind, _), verdict in zip(jobs, found["verdict"], strict=True):
        verdicts.setdefault(kind, []).append(verdict)
    assert len(verdicts[script.HANG]) >= 8
    assert {len(verdicts[script.PHASE]) >= 10, len(verdicts[script.SAME]) >= 3} == {True}
    if counters == "utilisation":
        assert set(verdicts[script.HANG]) == {"unknown"}
    else:
        assert set(verdicts[script.HANG]) == {"yes"}
    others = (script.PHASE, script.SAME, script.COPY_AT_END)
    assert "yes" not in [verdict for kind in others for verdict in verdicts.get(kind, [])]
    cut_off = set(verdicts[script.CUT_OFF])
    # By power a copy that the time limit ended is what a hang is.
    assert cut_off == {"yes"} if counters == "utilisation_power" else "yes" not in cut_off
    confidences = set(found["confidence"].drop_nulls())
    assert confidences == {"all": {"high"}, "utilisation": set()}.get(counters, {"low"})
