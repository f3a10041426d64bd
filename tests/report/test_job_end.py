"""Why a job failed: exit code, signal, step, memory, from the accounting to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tachograph.catalog.rows import JobSummaryRow, StepSummaryRow
from tachograph.cli import main
from tachograph.judge.bounds import HostMemory
from tachograph.report.job_end import end_cause, out_of_memory
from tachograph.report.next_time import next_time

RECORDED = Path(__file__).parents[1] / "slurm" / "recorded"
SEGV = "signal 11 (SIGSEGV, invalid memory access)"


def step(number: str, state: str, **more: Any) -> StepSummaryRow:
    return cast("StepSummaryRow", {"step": number, "name": "fit", "state": state, **more})


@pytest.mark.parametrize(
    ("row", "steps", "sentence"),
    [
        ({}, [], "Failed"),
        ({"exit_code": 3}, [], "Failed with exit code 3"),
        ({"exit_code": 0, "exit_signal": 11}, [], f"Failed with {SEGV}"),
        ({"exit_code": 0, "exit_signal": 34}, [], "Failed with signal 34"),
        (
            {"exit_code": 3},
            [step("0", "COMPLETED", exit_code=0), step("1", "FAILED", exit_code=3)],
            "Failed with exit code 3, in step 1 (fit)",
        ),
        (  # the step that ended as the job did is named, not one that failed before
            {"exit_code": 3},
            [step("0", "FAILED", exit_code=1), step("1", "FAILED", exit_code=3)],
            "Failed with exit code 3, in step 1 (fit)",
        ),
        (
            {"exit_code": 1},
            [step("0", "CANCELLED", exit_signal=11)],
            f"Failed with exit code 1; step 0 (fit) ended with {SEGV}",
        ),
        ({"exit_code": 11}, [step("0", "CANCELLED", exit_signal=11)],
         f"Failed with {SEGV}, in step 0 (fit)"),
        ({}, [step("0", "CANCELLED", exit_signal=11)], f"Failed with {SEGV}, in step 0 (fit)"),
        ({"exit_code": 3}, [step("batch", "FAILED", exit_code=3)], "Failed with exit code 3"),
        ({"exit_code": 3}, [step("0", "FAILED")], "Failed with exit code 3, in step 0 (fit)"),
        (  # Slurm recorded the cause, and no signal
            {"exit_code": 2},
            [step("0", "OUT_OF_MEMORY", exit_code=0), step("1", "FAILED", exit_code=2)],
            "Failed with exit code 2; step 0 (fit) was killed: out of host memory",
        ),
        (
            {"exit_code": 9},
            [step("batch", "OUT_OF_MEMORY"), step("0", "OUT_OF_MEMORY", exit_signal=9)],
            (
                "Failed with signal 9 (SIGKILL, killed); step 0 (fit) was killed: out of host "
                "memory"
            ),
        ),
        ({}, [step("batch", "OUT_OF_MEMORY", name=None)],
         "Failed; step batch was killed: out of host memory"),
    ],
)  # fmt: skip
def test_a_failed_job_names_code_signal_and_step(
    row: JobSummaryRow, steps: list[StepSummaryRow], sentence: str
) -> None:
    assert end_cause({"state": "FAILED", **row}, steps) == sentence


@pytest.mark.parametrize(
    ("changed", "held_mib", "certain"),
    [
        ({}, 950.0, True),
        ({}, 949.9, False),
        ({}, None, False),
        ({"exit_signal": None, "exit_code": 9}, 950.0, True),
        ({"exit_signal": 15}, 1000.0, False),
        ({"state": "CANCELLED"}, 1000.0, False),
        ({"mem_requested_mib": None}, 1000.0, False),
        ({"nodes": 2}, 950.0, True),
        ({"nodes": None}, 950.0, False),
        ({"state": "OUT_OF_MEMORY", "exit_signal": None}, None, True),
    ],
)
def test_signal_9_at_the_request_is_out_of_memory(
    changed: JobSummaryRow, held_mib: float | None, certain: bool
) -> None:
    row: JobSummaryRow = {
        "state": "FAILED",
        "exit_signal": 9,
        "mem_requested_mib": 1000.0,
        "nodes": 1,
        **changed,
    }
    assert out_of_memory(row, held_mib) == certain
    assert ("out of host memory" in str(end_cause(row, (), held_mib))) == certain
    if changed.get("nodes") == 1:
        following = next_time(row, [], (), HostMemory(own=held_mib))
        assert (following is not None) == certain


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("NODE_FAIL", "Ended because a node failed"),
        ("CANCELLED", "Cancelled by its user or an administrator"),
        ("PREEMPTED", "Preempted: another job took its nodes"),
        ("TIMEOUT", "Stopped at its time limit"),
        ("DEADLINE", "Stopped at its deadline"),
        ("BOOT_FAIL", "Ended because a node did not boot"),
        ("LAUNCH_FAILED", "Its launch failed"),
        ("RECONFIG_FAIL", "Its reconfiguration failed"),
        ("REVOKED", "Revoked: another cluster of the federation ran it"),
        ("COMPLETED", None),
        ("RUNNING", None),
        (None, None),
    ],
)
def test_states_in_plain_words(state: str | None, sentence: str | None) -> None:
    assert end_cause({"state": state}) == sentence


@pytest.mark.parametrize(
    ("signal", "meaning"),
    [
        (2, "SIGINT, interrupted"),
        (6, "SIGABRT, aborted by the program"),
        (7, "SIGBUS, invalid memory access"),
        (8, "SIGFPE, invalid arithmetic"),
        (9, "SIGKILL, killed"),
        (15, "SIGTERM, a request to end"),
    ],
)
def test_signals_have_names_and_words(signal: int, meaning: str) -> None:
    row: JobSummaryRow = {
        "state": "FAILED",
        "exit_signal": signal,
        "xid_events": 1,
        "xid_event_max": 79.0,
    }
    ended = f"Failed with signal {signal} ({meaning}); the driver reported XID 79"
    assert end_cause(row) == ended


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Lakes of the accounting of two versions of Slurm: 22.05 reports no exit code of a job."""
    made = {}
    for version in ("22.05.8", "26.05.5"):
        lake = made[version] = str(tmp_path_factory.mktemp(version) / "lake")
        accounting = str(RECORDED / version / "sacct.json")
        assert main(["ingest", "sacct", accounting, "--lake", lake, "--quiet"]) == 0
        assert main(["analyze", "--lake", lake, "--quiet"]) == 0
    return made


@pytest.mark.parametrize(
    ("version", "job", "state", "verdict"),
    [
        ("26.05.5", "4", "FAILED (exit code 3)", "Failed with exit code 3."),
        ("26.05.5", "5", "FAILED (exit code 11)", f"Failed with {SEGV}, in step 0 (bash)."),
        (
            "26.05.5",
            "13",
            "FAILED (exit code 9)",
            (
                "Killed with signal 9 (SIGKILL), most likely out of host memory; its tasks held "
                "216 MiB when polled, 100 MiB were requested."
            ),
        ),
        ("22.05.8", "5", "FAILED", f"Failed with {SEGV}, in step 0 (bash)."),
        ("26.05.5", "7", "CANCELLED", "Cancelled by its user or an administrator."),
    ],
)
def test_real_failed_jobs_say_why(
    lakes: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    version: str,
    job: str,
    state: str,
    verdict: str,
) -> None:
    def printed(*command: str) -> str:
        assert main([*command, "--lake", lakes[version]]) == 0
        return capsys.readouterr().out

    text = printed("seff", job)
    assert f"State: {state}\n" in text
    assert f"\n{verdict} What its GPUs did is unknown" in text
    values = json.loads(printed("job", job, "--json"))
    assert values["headline"].startswith(verdict)
    row = next(row for row in json.loads(printed("jobs", "--json")) if row["job_id"] == job)
    for name in ("exit_code", "exit_signal"):
        assert row[name] == values[name]
