"""Actions on a real Slurm hit exactly one run: tasks of arrays, components, requeued runs, ids
that are used again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hung_lake import hung_lake
from test_real_slurm_policies import CANCEL, applied, configured

from servers.slurm import SlurmCluster
from servers.slurm.cluster import wait_for
from tachograph.annexes.act.comments import AdminComments
from tachograph.annexes.act.slurm_jobs import JobAction, SlurmJob, SlurmJobs
from tachograph.catalog.errors import ExportError, RefusedError
from tachograph.catalog.rows import JobSummaryRow
from tachograph.report.job_comment import comment_text, read_comment

pytestmark = pytest.mark.slow
SUMMARY = {"nodes": {"n1": {"cpus": 1}}, "gpus": 1, "tachograph": {"v": 1}}
AFTER: dict[str, set[str | None]] = {
    "cancel": {"CANCELLED", "COMPLETING", None},
    "suspend": {"SUSPENDED"},
    "requeue": {"COMPLETING", "PENDING"},
}


@pytest.fixture(autouse=True)
def commands(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)


def running_array(slurm: SlurmCluster) -> Iterator[int]:
    """An array of three tasks that run until they are ended: the last one has the id of the
    array.
    """
    job = slurm.submit("sleep 3600", "--array=0-2", "--gres=gpu:1", "--requeue")
    wait_for(lambda: list(states(slurm, job).values()) == ["RUNNING"] * 3, "array", 120)
    yield job
    end(slurm, job)


# For a test that changes it, and for all tests that do not.
array = pytest.fixture(running_array, name="array")
unchanged_array = pytest.fixture(running_array, name="unchanged_array", scope="module")


@pytest.fixture(scope="module")
def ended(slurm: SlurmCluster) -> tuple[int, int]:
    """(array of three tasks, heterogeneous job of two components) that have ended."""
    array = slurm.submit("true", "--array=0-2", "--gres=gpu:1")
    heterogeneous = slurm.submit("true", "--gres=gpu:1", "-n1", ":", "-p", "cpu", "-n1")
    slurm.wait(array, heterogeneous, within_s=240)
    return array, heterogeneous


def end(slurm: SlurmCluster, job: int) -> None:
    slurm.command("scancel", str(job))
    slurm.wait(job, within_s=120)


def states(slurm: SlurmCluster, job: int) -> dict[str, str]:
    """{name as Slurm writes it: state}, of all that an id stands for."""
    printed = slurm.command("squeue", "-h", "-t", "all", "-o", "%i %T", "-j", str(job))
    return dict(line.split(maxsplit=1) for line in printed.splitlines() if line.strip())


def raw_id(slurm: SlurmCluster, name: str) -> str:
    printed = slurm.command("squeue", "-h", "-t", "all", "-o", "%i %A", "-j", name)
    return dict(line.split() for line in printed.splitlines())[name]


def job_of(slurm: SlurmCluster, name: str) -> SlurmJob:
    job = SlurmJobs().job(raw_id(slurm, name), "testing")
    assert job is not None
    assert job.name == name
    return job


def without_task(folder: Path, word: str) -> Path:
    """A prefix that cuts `_2` off the words of a command that has this word."""
    prefix = folder / "prefix"
    cut = 'words=("${words[@]/_2/}")'
    prefix.write_text(
        f'#!/bin/bash\nwords=("$@")\ncase " $* " in *" {word} "*) {cut};; esac\nexec "${{words[@]}}"\n'
    )
    prefix.chmod(0o755)
    return prefix


@pytest.mark.parametrize(("action", "task"), [("cancel", 0), ("suspend", 1), ("requeue", 2)])
def test_an_action_hits_one_task_of_an_array(
    slurm: SlurmCluster, array: int, task: int, action: JobAction
) -> None:
    name = f"{array}_{task}"
    seen = SlurmJobs().change(action, job_of(slurm, name), "testing")
    assert seen.startswith(f"{name} was RUNNING, is ")
    assert seen.endswith("; 2 others of its array did not change")
    after = states(slurm, array)
    assert after.pop(name, None) in AFTER[action]
    assert set(after.values()) == {"RUNNING"}
    assert len(after) == 2


def test_the_pending_rest_of_an_array_stays(slurm: SlurmCluster) -> None:
    job = slurm.submit("sleep 3600", "--array=0-9%3", "--gres=gpu:1")
    try:
        wait_for(
            lambda: list(states(slurm, job).values()).count("RUNNING") == 3, "three tasks", 120
        )
        assert (
            SlurmJobs()
            .change("suspend", job_of(slurm, f"{job}_1"), None)
            .startswith(f"{job}_1 was RUNNING")
        )
        after = states(slurm, job)
        assert after[f"{job}_1"] == "SUSPENDED"
        assert sorted(after.values()) == ["PENDING", "RUNNING", "RUNNING", "SUSPENDED"]
        # the raw id of the array is that of the tasks that wait: it is no run
        waiting = SlurmJobs().job(str(job), None)
        assert waiting is not None
        assert waiting.state == "PENDING"
        with pytest.raises(RefusedError, match="invalid job"):
            SlurmJobs().change("cancel", waiting, None)
        assert states(slurm, job) == after
    finally:
        end(slurm, job)


def test_a_policy_cancels_the_last_task_alone(
    slurm: SlurmCluster, array: int, tmp_path: Path
) -> None:
    """The raw id of the last task is the id of the array, which commands take for all of its
    tasks.
    """
    job = job_of(slurm, f"{array}_2")
    assert job.job_id == str(array)
    assert job.start is not None
    lake = hung_lake(
        tmp_path / "lake", array, job.start, display_id=f"{array}_2", array_job_id=str(array)
    )
    (record,) = applied(
        lake, tmp_path / "state", job.start + timedelta(minutes=51), configured(CANCEL)
    )
    assert (record.state, record.target) == ("done", f"job {array}_2")
    assert record.result.startswith(f"{array}_2 was RUNNING, is ")
    assert record.result.endswith("; 2 others of its array did not change")
    after = states(slurm, array)
    assert {after[f"{array}_{task}"] for task in (0, 1)} == {"RUNNING"}


def test_a_record_that_calls_the_run_otherwise_is_another_run(
    slurm: SlurmCluster, unchanged_array: int, tmp_path: Path
) -> None:
    array = unchanged_array
    job = job_of(slurm, f"{array}_2")
    assert job.start is not None
    now = job.start + timedelta(minutes=51)
    for number, facts in enumerate(({"display_id": f"{array}_1"}, {"user": "games"})):
        lake = hung_lake(tmp_path / f"lake-{number}", array, job.start, **facts)
        assert applied(lake, tmp_path / "state", now, configured(CANCEL)) == []
    # The id came round again.
    later = hung_lake(tmp_path / "later", array, job.start - timedelta(minutes=1))
    assert applied(later, tmp_path / "state", now, configured(CANCEL)) == []
    assert set(states(slurm, array).values()) == {"RUNNING"}


def test_what_changed_since_it_was_looked_at_is_left_alone(slurm: SlurmCluster, array: int) -> None:
    job = job_of(slurm, f"{array}_1")
    slurm.command("scontrol", "suspend", job.name)
    with pytest.raises(ExportError, match="changed a moment ago"):
        SlurmJobs().change("cancel", job, None)
    assert states(slurm, array)[job.name] == "SUSPENDED"


def test_a_command_that_hits_others_too_is_no_success(
    slurm: SlurmCluster, array: int, tmp_path: Path
) -> None:
    """As Slurm did with the raw id; here a prefix cuts the task off the name of the job."""
    prefix = without_task(tmp_path, "suspend")
    with pytest.raises(
        ExportError, match=f"job {array}_2 was changed, but not alone: .*{array}_0 is SUSPENDED"
    ):
        SlurmJobs((str(prefix),)).change("suspend", job_of(slurm, f"{array}_2"), None)


def test_a_command_that_does_nothing_is_no_success(
    slurm: SlurmCluster, unchanged_array: int, tmp_path: Path
) -> None:
    prefix = tmp_path / "prefix"
    prefix.write_text('#!/bin/sh\ncase " $* " in *" scancel "*) exit 0;; esac\nexec "$@"\n')
    prefix.chmod(0o755)
    with pytest.raises(ExportError, match=r"Slurm took the command, but job .* is RUNNING"):
        SlurmJobs((str(prefix),)).change("cancel", job_of(slurm, f"{unchanged_array}_0"), None)


def test_components_of_a_heterogeneous_job_are_left_alone(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = slurm.submit("sleep 3600", "--gres=gpu:1", "-n1", ":", "-p", "cpu", "-n1")
    try:
        wait_for(lambda: set(states(slurm, job).values()) == {"RUNNING"}, "both components", 120)
        for offset in (0, 1):
            component = job_of(slurm, f"{job}+{offset}")
            assert component.start is not None
            # a record that does not say that it is a component
            lake = hung_lake(tmp_path / f"lake-{offset}", int(component.job_id), component.start)
            now = component.start + timedelta(minutes=51)
            assert applied(lake, tmp_path / "state", now, configured(CANCEL)) == []
        assert set(states(slurm, job).values()) == {"RUNNING"}
    finally:
        end(slurm, job)


def test_a_drain_is_of_one_node(slurm: SlurmCluster, unchanged_array: int) -> None:
    slurm_jobs, job = SlurmJobs(), job_of(slurm, f"{unchanged_array}_0")
    (node,) = slurm.command("squeue", "-h", "-o", "%N", "-j", job.name).split()
    assert slurm_jobs.is_on(job, node, "testing")
    assert not slurm_jobs.is_on(job, "cpu01", "testing")
    for several in ("ALL", "all", "gpu[01-02]", "gpu01,gpu02", "-a", "gpu01 State=RESUME"):
        with pytest.raises(RefusedError):
            slurm_jobs.is_on(job, several, "testing")
        with pytest.raises(RefusedError):
            slurm_jobs.drain(several, "testing", "x")
    try:
        seen = slurm_jobs.drain(node, "testing", '--"XID 79;\nState=RESUME $(id) on gpu 2')
        assert seen.startswith(f"{node} was mix")
        assert slurm_jobs.drain(node, "testing", "x").endswith("already")
        shown = slurm.command("sinfo", "-N", "-h", "-o", "%N %T")
        assert [line.split()[0] for line in shown.splitlines() if "drain" in line] == [node]
        assert "Reason=XID 79, State=RESUME" not in slurm.command("scontrol", "show", "node", node)
        assert "Reason=XID 79 State=RESUME id on gpu 2 [" in slurm.command(
            "scontrol", "show", "node", node
        )
    finally:
        slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")


# ------------------------------------------------------------------------------------------------------- comments


class CommentedRow(JobSummaryRow, total=False):
    comment: str


def accounted(slurm: SlurmCluster, job: int, *names: str) -> dict[str, CommentedRow]:
    """{name: row as job_summaries has it} of the last runs of all that an id stands for, once it
    has these names.
    """
    wait_for(lambda: set(names) <= set(_accounted(slurm, job)), f"the accounting of {names}", 120)
    return _accounted(slurm, job)


def _accounted(slurm: SlurmCluster, job: int) -> dict[str, CommentedRow]:
    words = (
        "sacct",
        "-X",
        "-n",
        "-P",
        "-o",
        "JobID,JobIDRaw,User,Submit,AdminComment",
        "-j",
        str(job),
    )
    rows: dict[str, CommentedRow] = {}
    for line in slurm.command(*words).splitlines():
        name, raw, user, submit, comment = line.split("|")
        rows[name] = {
            "job_id": raw,
            "display_id": name,
            "cluster": "testing",
            "user": user,
            "submit": datetime.fromisoformat(submit).replace(tzinfo=UTC),
            "time_precision_s": None,
            "comment": comment,
        }
    return rows


def comments_of(slurm: SlurmCluster, job: int) -> dict[str, str]:
    return {name: row["comment"] for name, row in _accounted(slurm, job).items()}


def test_a_comment_is_of_one_task(
    slurm: SlurmCluster, ended: tuple[int, int], tmp_path: Path
) -> None:
    job, _ = ended
    rows = accounted(slurm, job, *(f"{job}_{task}" for task in range(3)))
    assert rows[f"{job}_2"]["job_id"] == str(job)
    # sacctmgr would give it to several, as with the raw id of an array's last task: a prefix cuts
    # the task off, for sacctmgr alone.
    cutting = AdminComments((str(without_task(tmp_path, "sacctmgr")),))
    with pytest.raises(RefusedError, match=f"sacctmgr would change {job}, .*; nothing was written"):
        cutting.write(rows[f"{job}_2"], SUMMARY)
    assert set(comments_of(slurm, job).values()) == {""}
    for task in (2, 0, 1):
        name, before = f"{job}_{task}", comments_of(slurm, job)
        assert AdminComments().write(rows[name], SUMMARY).endswith("no other job was changed")
        after = comments_of(slurm, job)
        assert read_comment(after.pop(name)) == SUMMARY
        assert before.pop(name) == ""
        assert after == before
    # a record that has only the raw id, which stands for the array
    with pytest.raises(RefusedError, match="another run in the accounting, or several"):
        AdminComments().write(rows[f"{job}_2"] | {"display_id": str(job)}, SUMMARY)


def test_a_comment_is_of_one_component(slurm: SlurmCluster, ended: tuple[int, int]) -> None:
    _, job = ended
    rows = accounted(slurm, job, f"{job}+0", f"{job}+1")
    assert set(rows) == {f"{job}+0", f"{job}+1"}
    AdminComments().write(rows[f"{job}+0"], SUMMARY)
    comments = comments_of(slurm, job)
    assert read_comment(comments[f"{job}+0"]) == SUMMARY
    assert comments[f"{job}+1"] == ""


def test_a_comment_is_of_the_run_that_has_the_id(slurm: SlurmCluster) -> None:
    """Of two runs in the accounting under one id Slurm reads and writes the last: the first is
    refused.
    """
    job, older = slurm.ended_jobs(2)
    first = accounted(slurm, older, str(older))[str(older)]
    submitted = first["submit"]
    assert submitted is not None
    first |= {"job_id": str(job), "display_id": str(job), "submit": submitted - timedelta(days=400)}
    same_id = (
        f"update slurm_acct_db.testing_job_table set id_job={job}, "
        "time_submit=time_submit-400*86400, "
        f"time_start=time_start-400*86400, time_end=time_end-400*86400 where id_job={older}"
    )
    client = ["mariadb", "--no-defaults", f"--socket={slurm.plan.database_socket}", "-e", same_id]
    subprocess.run(client, check=True, timeout=60)
    with pytest.raises(RefusedError, match="another run in the accounting, or several"):
        AdminComments().write(first, SUMMARY)
    last = accounted(slurm, job, str(job))[str(job)]
    assert last["comment"] == ""
    AdminComments().write(last, SUMMARY)
    words = ("sacct", "-X", "-D", "-n", "-P", "-o", "Submit,AdminComment", "-j", str(job))
    commented = dict(line.split("|") for line in slurm.command(*words).splitlines())
    assert [bool(comment) for comment in commented.values()] == [False, True]
    assert comment_text(SUMMARY, small_letters=True) in commented.values()


def test_a_requeued_run_gets_no_comment_of_the_run_before(slurm: SlurmCluster, array: int) -> None:
    before = accounted(slurm, array, f"{array}_2")[f"{array}_2"]
    time_of_submit = before["submit"]
    assert time_of_submit is not None
    wait_for(
        lambda: datetime.now(UTC) > time_of_submit + timedelta(seconds=4), "a later second", 60
    )
    SlurmJobs().change("requeue", job_of(slurm, f"{array}_2"), None)
    wait_for(
        lambda: _accounted(slurm, array)[f"{array}_2"]["submit"] != time_of_submit,
        "the next run",
        120,
    )
    with pytest.raises(RefusedError, match="another run"):
        AdminComments().write(before, SUMMARY)
    assert set(comments_of(slurm, array).values()) == {""}
