"""One site of hostile names, for all tests of this folder: a lake, a collector's status,
policies, a ledger.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hostile_lake import PAYLOADS, hostile_lake

import nsight_reports
from tachograph.collect.status import (
    CollectStatus,
    SourceStatus,
    StepStatus,
    state_folder,
    write_status,
)

CONFIGURATION = """
[site]
time_zone = "UTC"

[advice]
days = 36500

[[policy]]
name = "hang"
check = "hung"
action = "note"
"""


def _status(lake: str) -> None:
    """The status of a collector whose servers answer hostile text."""
    now = datetime.now(UTC)
    status = CollectStatus("1", lake, PAYLOADS["csi"], os.getpid(), now, now)
    for kind, payload in PAYLOADS.items():
        status.sources[f"{kind} {payload}"] = SourceStatus(
            f"{kind} {payload}", 60.0, failures=1, last_error=payload, last_error_at=now,
            unreachable={payload: payload}, skew_s={payload: 5.0}, watermarks={payload: now},
        )  # fmt: skip
        status.steps[payload] = StepStatus(result=payload, last_success=now)
    status.steps["analyze"] = StepStatus(failures=1, last_error=PAYLOADS["osc"], last_error_at=now)
    folder = state_folder(lake)
    folder.mkdir(exist_ok=True)
    write_status(folder, status)


def _kernels(folder: Path) -> None:
    """A report of kernels with hostile names."""
    kernels = [
        replace(nsight_reports.PUBLISHED[0], kernel=payload[:9_000])
        for payload in PAYLOADS.values()
    ]
    (folder / "kernels.csv").write_text(
        nsight_reports.raw_csv(kernels), encoding="utf-8", newline=""
    )


def hostile_site(folder: Path) -> None:
    """Fill a folder: `lake`, `tachograph.toml`, `kernels.csv`, job scripts."""
    hostile_lake(folder / "lake")
    _status(str(folder / "lake"))
    _kernels(folder)
    (folder / "tachograph.toml").write_text(CONFIGURATION, encoding="utf-8")
    for place, payload in enumerate(PAYLOADS.values()):
        script = f"#!/bin/bash\n#SBATCH -J {payload}\n#SBATCH --gpus=1\nsrun {payload}\n"
        (folder / f"script{place}.sh").write_text(script, encoding="utf-8", newline="")
