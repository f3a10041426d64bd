"""Policies on a real Slurm: warned, then cancelled; left alone; killed between decision and
action.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hung_lake import NODE, hung_lake, then

from madelake import fill, summarized
from servers.mail_sink import mail_sink
from servers.slurm import SlurmCluster
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord, read_ledger
from tachograph.annexes.act.policies import apply_policies
from tachograph.annexes.act.service import RoundResult, act_once
from tachograph.catalog.config import ActOptions, Configuration, MailOptions
from tachograph.catalog.policies import PolicyOptions
from tachograph.lake.delta import Lake

pytestmark = pytest.mark.slow
CANCEL = PolicyOptions("cancel-hung", "hung", "cancel", dry_run=False, minutes=10, warnings=0)


@pytest.fixture(autouse=True)
def commands(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of Slurm, as the service calls them, are those of the cluster."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def sleeping(slurm: SlurmCluster) -> Iterator[int]:
    """A job that runs until it is ended."""
    job = slurm.submit("sleep 3600", "--gres=gpu:1", "--job-name=a JobState=RUNNING", "--requeue")
    yield running(slurm, job)
    slurm.command("scancel", "--full", str(job))
    slurm.wait(job, within_s=120)


def running(slurm: SlurmCluster, job: int) -> int:
    until = time.monotonic() + 120
    while slurm.state(job) != "RUNNING":
        assert time.monotonic() < until
        time.sleep(0.2)
    return job


def start_of(slurm: SlurmCluster, job: int) -> datetime:
    written = slurm.command("squeue", "-h", "-j", str(job), "-o", "%S").strip()
    return datetime.fromisoformat(written).replace(tzinfo=UTC)


def configured(*policies: PolicyOptions, port: int = 25) -> Configuration:
    mail = MailOptions(
        host=f"127.0.0.1:{port}", tls="none", sender="gpu@example.org", address="{user}@example.org"
    )
    return Configuration(act=ActOptions(dry_run=False), policy=policies, mail=mail)


def applied(
    lake: Lake, state: Path, now: datetime, configuration: Configuration
) -> list[ActionRecord]:
    with ActionLedger(state, clock=lambda: now) as ledger:
        return apply_policies(ledger, lake, configuration, now=now)


def round_while_slurm_is_down(lake: Lake, state: Path, now: datetime) -> RoundResult:
    down = Configuration(
        act=ActOptions(dry_run=False, slurm_before=("/bin/false",)), policy=(CANCEL,)
    )
    return act_once(lake, down, state, clock=lambda: now)


def test_a_hung_job_is_cancelled_once_slurm_answers_and_once_only(
    slurm: SlurmCluster, sleeping: int, tmp_path: Path
) -> None:
    start = start_of(slurm, sleeping)
    lake, now = hung_lake(tmp_path / "lake", sleeping, start), start + timedelta(minutes=51)
    state = tmp_path / "state"
    (step,) = [one for one in round_while_slurm_is_down(lake, state, now).steps if one.problem]
    assert step.step == "policy"
    assert "squeue" in step.problem
    assert read_ledger(state) == []
    assert slurm.state(sleeping) == "RUNNING"
    (made,) = applied(lake, state, now, configured(CANCEL))
    assert (made.state, made.kind, made.target) == ("done", "cancel", f"job {sleeping}")
    assert "4 GPUs did no work from 20 min after the start on" in made.why
    slurm.wait(sleeping, within_s=120)
    assert applied(lake, state, now + timedelta(minutes=5), configured(CANCEL)) == []
    assert [one.state for one in read_ledger(state)] == ["begun", "done"]
    # Killed before the result was noted: the action is not done to another run.
    ledger = state / "actions.jsonl"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    assert applied(lake, state, now, configured(CANCEL)) == []
    assert [one.state for one in read_ledger(state)] == ["begun"]


def test_a_job_that_works_again_after_a_warning_is_left_alone(
    slurm: SlurmCluster, sleeping: int, tmp_path: Path
) -> None:
    start = start_of(slurm, sleeping)
    lake, now = hung_lake(tmp_path / "lake", sleeping, start), start + timedelta(minutes=51)
    policy = PolicyOptions(
        "cancel-hung", "hung", "cancel", dry_run=False, minutes=10, warning_minutes=30
    )
    with mail_sink() as sink:
        configuration = configured(policy, port=sink.port)
        (warned,) = applied(lake, tmp_path / "state", now, configuration)
        assert (warned.kind, warned.state, warned.target) == ("mail", "done", "daemon")
        (message,) = sink.messages
        assert "If this is still so 30 min from now, it is cancelled." in str(message.get_payload())
        assert applied(lake, tmp_path / "state", now + timedelta(minutes=20), configuration) == []
        then(lake, start, "I" * 20 + "W" * 15, after=50)
        assert applied(lake, tmp_path / "state", start + timedelta(minutes=86), configuration) == []
        assert slurm.state(sleeping) == "RUNNING"
        then(lake, start, "I" * 25, after=85)  # it stops again: another case, warned anew
        (again,) = applied(lake, tmp_path / "state", start + timedelta(minutes=111), configuration)
        assert (again.kind, len(sink.messages)) == ("mail", 2)
        then(lake, start, "I" * 35, after=110)
        (made,) = applied(lake, tmp_path / "state", start + timedelta(minutes=146), configuration)
        assert (made.kind, made.state) == ("cancel", "done")
    slurm.wait(sleeping, within_s=120)


def test_suspended_and_requeued_jobs(slurm: SlurmCluster, sleeping: int, tmp_path: Path) -> None:
    start = start_of(slurm, sleeping)
    lake, now = hung_lake(tmp_path / "lake", sleeping, start), start + timedelta(minutes=51)
    requeue = PolicyOptions(
        "requeue-hung", "hung", "requeue", dry_run=False, minutes=10, warnings=0
    )
    suspend = PolicyOptions(
        "suspend-hung", "hung", "suspend", dry_run=False, minutes=10, warnings=0
    )
    (made,) = applied(lake, tmp_path / "state", now, configured(suspend))
    assert (made.state, slurm.state(sleeping)) == ("done", "SUSPENDED")
    assert applied(lake, tmp_path / "state", now, configured(requeue)) == []  # it does not run now
    slurm.command("scontrol", "resume", str(sleeping))
    (made,) = applied(lake, tmp_path / "state", now, configured(requeue))
    assert made.state == "done"
    assert slurm.state(sleeping) != "RUNNING"
    # the new run is another: its start is not that of the lake
    slurm.command("scontrol", "release", str(sleeping))
    assert applied(lake, tmp_path / "other", now, configured(CANCEL)) == []


def test_interactive_jobs_reservations_and_other_users_are_left_alone(
    slurm: SlurmCluster, sleeping: int, tmp_path: Path
) -> None:
    start = start_of(slurm, sleeping)
    lake, now = (
        hung_lake(tmp_path / "lake", sleeping, start, user="root"),
        start + timedelta(minutes=51),
    )
    assert applied(lake, tmp_path / "state", now, configured(CANCEL)) == []
    base = {"PATH": os.environ["PATH"], **slurm.environment}
    words = ["salloc", "--gres=gpu:1", "--no-shell", "--job-name=talk"]
    done = subprocess.run(
        words, env=base, cwd=slurm.jobs, user="daemon", group="daemon", extra_groups=[], capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    talk = running(slurm, int(done.stderr.split("allocation ")[1].split()[0]))
    start = start_of(slurm, talk)
    lake = hung_lake(tmp_path / "talk", talk, start)
    now = start + timedelta(minutes=51)
    assert applied(lake, tmp_path / "state", now, configured(CANCEL)) == []
    (made,) = applied(
        lake, tmp_path / "state", now,
        configured(PolicyOptions("all", "hung", "cancel", dry_run=False, minutes=10, warnings=0,
                                 exempt_interactive=False)),
    )  # fmt: skip
    assert made.state == "done"
    slurm.wait(talk, within_s=120)


def test_a_reservation_is_exempt(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm.command("scontrol", "create", "reservation=course", "starttime=now", "duration=60", "users=daemon",
                  "nodecnt=1", "flags=ignore_jobs")  # fmt: skip
    job = 0
    try:
        job = running(slurm, slurm.submit("sleep 3600", "--reservation=course"))
        start = start_of(slurm, job)
        lake, now = hung_lake(tmp_path / "lake", job, start), start + timedelta(minutes=51)
        exempt = PolicyOptions(
            "a",
            "hung",
            "cancel",
            dry_run=False,
            minutes=10,
            warnings=0,
            exempt_reservations=("c*",),
        )
        assert applied(lake, tmp_path / "state", now, configured(exempt)) == []
        assert slurm.state(job) == "RUNNING"
        assert [
            one.state for one in applied(lake, tmp_path / "state", now, configured(CANCEL))
        ] == ["done"]
    finally:
        if job:
            slurm.command("scancel", str(job))
            slurm.wait(job, within_s=120)
        slurm.command("scontrol", "delete", "reservation=course")


def test_killed_between_decision_and_action_it_acts_once(
    slurm: SlurmCluster, sleeping: int, tmp_path: Path
) -> None:
    """SIGKILL while the command is about to be run: the next round asks Slurm again, and
    cancels.
    """
    start = start_of(slurm, sleeping)
    lake, now = hung_lake(tmp_path / "lake", sleeping, start), start + timedelta(minutes=51)
    programs, real = (
        tmp_path / "programs",
        subprocess.check_output(["which", "scancel"], text=True).strip(),
    )
    programs.mkdir()
    kills = programs / "scancel"
    kills.write_text(f'#!/bin/sh\nkill -9 "$TACHOGRAPH_TEST_PID"\nexec {real} --version\n')
    kills.chmod(0o755)
    script = (
        "import os\n"
        "os.environ['TACHOGRAPH_TEST_PID'] = str(os.getpid())\n"
        "from datetime import datetime\n"
        "from pathlib import Path\n"
        "from tachograph.lake.delta import Lake\n"
        "from test_real_slurm_policies import CANCEL, applied, configured\n"
        f"applied(Lake.open({lake.location!r}), Path({str(tmp_path / 'state')!r}), "
        f"datetime.fromisoformat({now.isoformat()!r}), configured(CANCEL))\n"
    )
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=300)
    assert done.returncode == -9
    assert [one.state for one in read_ledger(tmp_path / "state")] == ["begun"]
    assert slurm.state(sleeping) == "RUNNING"
    (made,) = applied(lake, tmp_path / "state", now, configured(CANCEL))
    assert (made.state, made.attempt) == ("done", 2)
    slurm.wait(sleeping, within_s=120)


def test_a_node_with_a_failing_gpu_is_drained_once(
    slurm: SlurmCluster, sleeping: int, tmp_path: Path
) -> None:
    start = start_of(slurm, sleeping)
    lake = hung_lake(tmp_path / "lake", sleeping, start, course="W" * 50)
    faults = [
        {
            "t": start + timedelta(minutes=at, seconds=45),
            "node": NODE,
            "gpu": 2,
            "xid": 79 if at > 20 else 0,
        }
        for at in range(50)
    ]
    now = start + timedelta(minutes=50)
    fill(lake, {"gpu_samples": faults}, chunk="faults", now=now)
    summarized(lake, now=now)
    policy = PolicyOptions("drain", "failing_gpu", "drain", dry_run=False, minutes=10)
    try:
        (made,) = applied(lake, tmp_path / "state", now, configured(policy))
        assert (made.state, made.target, made.result) == (
            "done",
            NODE,
            f"{NODE} was mixed, is draining",
        )
        assert "XID 79" in slurm.command("scontrol", "show", "node", NODE)
        (again,) = applied(lake, tmp_path / "other", now, configured(policy))
        assert again.result == f"{NODE} is draining already"
    finally:
        slurm.command("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
