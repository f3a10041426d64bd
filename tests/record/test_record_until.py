"""`--until-job-ends` and `--duration`: a background process that samples as long as it should."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ending import ending_all
from test_recorder_processes import RECORD, environment, run_in, spool_of

from tachograph.catalog.tables import GPU_SAMPLES, JOBS
from tachograph.lake.delta import Lake


@pytest.fixture(autouse=True)
def nothing_survives() -> Iterator[None]:
    with ending_all():
        yield


@pytest.mark.slow
def test_a_duration_whose_job_is_reported_as_json(tmp_path: Path) -> None:
    words = [word for word in RECORD if word != "--quiet"]
    done = run_in(tmp_path, [*words, "-o", "run", "--duration", "1", "--json"])
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads(done.stderr)["gpus"] == 4
    lake = Lake.open(str(tmp_path / "run"))
    assert 4 <= lake.latest(GPU_SAMPLES).height <= 4 * 12
    assert 0.9 < lake.latest(JOBS)["elapsed_s"].item() < 5


@pytest.mark.slow
def test_sigterm_ends_it_and_the_recording_is_whole(tmp_path: Path) -> None:
    slurm = environment() | {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "fit",
        "SLURM_JOB_NUM_NODES": "1",
    }
    process = subprocess.Popen(
        [*RECORD, "-o", "run", "--until-job-ends", "--duration", "120"], cwd=tmp_path, env=slurm
    )
    spool_of(tmp_path)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    job = Lake.open(str(tmp_path / "run")).latest(JOBS).row(0, named=True)
    assert (job["job_id"], job["name"], job["gpus"], job["state"]) == ("4711", "fit", 4, None)


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--until-job-ends"], "--until-job-ends outside of a job"),
        ([], "no command"),
        (["--duration", "1", "--", "true"], "exclude a command"),
        (["--lake", "x", "--", "true"], "a recording is a lake of its own"),
        (["--interval", "0.01", "--", "true"], "'0.01' is not a number from 0.1"),
    ],
)
def test_conflicting_options_are_reported_before_the_command_runs(
    tmp_path: Path,
    options: list[str],
    printed: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tachograph.cli import main

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["record", *options]) == 2
    assert printed in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
