"""Where the node that works leaves no samples for an hour, the idle node beside it is no sign of
a stall.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from tachograph.judge.classes.kernel import MIDDLE, UNDECIDED, YES
from tachograph.judge.classes.series import gpu_series
from tachograph.judge.classes.windows import hang_votes, spreads

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GAP = slice(60, 140)  # minutes


def votes(measured: int, *, gpus: int = 8) -> list[int]:
    """The vote of each characteristic on a stall, of a job that seems idle while `measured` of
    its GPUs report.
    """
    minutes = np.arange(240)
    idle = (minutes >= GAP.start) & (minutes < GAP.stop)
    level = np.where(idle, 0.0, 0.4)
    timeline = pl.DataFrame(
        {
            "job_key": ["c:1:1"] * 240,
            "minute": pl.Series(minutes, dtype=pl.Int32),
            "gpu_util": np.where(idle, 0.0, 0.95),
            "work": level,
            "sm_active": level,
            "mean_sm_active": level / 2,
            "mean_dram_active": level / 2,
            "measured_gpus": np.where(idle, measured, gpus),
        }
    )
    end = BEGIN + timedelta(minutes=240)
    row = {
        "job_key": "c:1:1",
        "job_id": "1",
        "state": "COMPLETED",
        "start": BEGIN,
        "end": end,
        "as_of": end,
    }
    jobs = pl.DataFrame([{**row, "gpu_model": "A40", "gpus": gpus, "nodes": 2}])
    names = ("sm_active", "dram_active")
    windows = spreads(gpu_series(jobs, timeline), names, width=20)
    return [
        int(
            hang_votes(windows, name, where=MIDDLE, theta=0.02, level=0.05, hang_minutes=60.0).vote[
                0
            ]
        )
        for name in names
    ]


def test_all_gpus_at_rest_are_a_stall() -> None:
    assert votes(8) == [YES, YES]


@pytest.mark.parametrize("measured", [1, 4, 7])
def test_with_some_unmeasured_it_is_undetermined(measured: int) -> None:
    assert votes(measured) == [UNDECIDED, UNDECIDED]
