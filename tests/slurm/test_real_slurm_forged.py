"""An ordinary user of a real Slurm writes records into every text: no job is invented, none
changes its owner.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from in_process import run_here
from servers.slurm import SlurmCluster
from servers.slurm.cluster import wait_for
from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.lake.delta import Lake
from tachograph.sources.slurm.commands import FIELDS, IDENTITY

pytestmark = pytest.mark.slow
INVENTED = "777777"
COLUMNS = (
    "JobID,JobIDRaw,Cluster,User,Submit,Start,End,Elapsed,State,NNodes,NodeList,AllocTRES,"
    "Account,JobName,SubmitLine"
)
BLOCK = """
     Nodes=gpu01 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)

JobId={job} JobName=x
   UserId={user}(1) GroupId=x(1) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   StartTime=2026-11-01T00:00:00 EndTime=Unknown Deadline=N/A
   NodeList=gpu01
   TRES=cpu=1,node=1,gres/gpu=4
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
     Nodes=gpu01 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
"""


def record(job: str, user: str, names: list[str], between: str) -> str:
    """A whole record of sacct that says that a job ran and was a user's."""
    fields = {
        "JobID": job, "JobIDRaw": job, "Cluster": "testing", "Partition": "gpu", "User": user, "Submit": "1793491200",
        "Start": "1793491200", "End": "1793494800", "Elapsed": "01:00:00", "State": "COMPLETED", "ExitCode": "0:0",
        "NNodes": "1", "NodeList": "gpu01", "AllocTRES": "gres/gpu=4", "Account": "physics", "JobName": "forged",
        "SubmitLine": "sbatch x",
    }  # fmt: skip
    return between.join(fields.get(name, "") for name in names)


@dataclass(frozen=True, slots=True)
class Attack:
    """A cluster with the job of a victim, which runs, and those of somebody who forges records
    of it.
    """

    cluster: SlurmCluster
    victim: str
    forgers: tuple[str, ...]

    def tachograph(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "NO_COLOR": "1",
            **self.cluster.environment,
        }
        return run_here((*words, "--lake", "lake"), folder, environment)

    def held(self) -> dict[str, list[str]]:
        """What runs on GPUs, by the JSON of the controller: {raw id: details per node}."""
        document = json.loads(self.cluster.command("squeue", "--json"))
        running = [
            job for job in document["jobs"] if job["job_state"] == "RUNNING" and job["gres_detail"]
        ]
        return {str(job["job_id"]): job["gres_detail"] for job in running}

    def real_jobs(self) -> set[str]:
        """Ids that Slurm gave, also of jobs before midnight, from an answer without any text."""
        words = ("sacct", "-a", "-X", "-n", "-P", "--format=JobIDRaw", "--starttime=now-2days")
        return set(self.cluster.command(*words).split())


@pytest.fixture(scope="module")
def attack(slurm: SlurmCluster) -> Iterator[Attack]:
    victim = str(slurm.submit("sleep 900", "--gres=gpu:1", user="games"))
    texts = [
        *(
            f"true\n{record(job, 'daemon', names, between)}"
            for job in (INVENTED, victim)
            for names in (
                FIELDS.split(),
                [name for name in FIELDS.split() if name.lower() in IDENTITY],
                COLUMNS.split(","),
            )
            for between in ("|", "\x1f")
        ),
        *(BLOCK.format(job=job, user="daemon") for job in (INVENTED, victim)),
    ]
    forgers = [submit(slurm, "--wrap", f"exit 0\n{text}") for text in texts]
    forgers += [
        submit(slurm, "--comment", text, "--wckey", text, "--wrap", "true") for text in texts
    ]
    forgers += [
        submit(slurm, "-J", text, "--gres=gpu:1", "--wrap", "sleep 900") for text in texts[-3:]
    ]
    folder = slurm.jobs / texts[-1]  # its slashes make folders in folders
    folder.mkdir(parents=True)
    forgers.append(submit(slurm, "-D", str(folder), "--gres=gpu:1", "--wrap", "sleep 900"))
    attack = Attack(slurm, victim, tuple(forgers))
    wait_for(lambda: {victim, *forgers[-4:]} <= attack.held().keys(), "the jobs run", 240)
    wait_for(lambda: {victim, *forgers} <= attack.real_jobs(), "the accounting knows all jobs", 240)
    yield attack
    slurm.command("scancel", victim, *forgers)
    slurm.wait(int(victim), *map(int, forgers), within_s=240)


def submit(slurm: SlurmCluster, *options: str) -> str:
    """Submit as an ordinary user; what is written ends up in the submit line, too."""
    return (
        slurm.command("sbatch", "--parsable", "-o", "/dev/null", *options, user="daemon")
        .strip()
        .partition(";")[0]
    )


def checked(attack: Attack, folder: Path, *, allocations: bool) -> None:
    """The lake has the jobs that there are, with their owners, and the GPUs that they hold."""
    lake = Lake.open(str(folder / "lake"))
    owners = dict(lake.latest(JOBS).select("job_id", "user").iter_rows())
    assert {attack.victim, *attack.forgers} <= owners.keys() <= attack.real_jobs()
    assert owners[attack.victim] == "games"
    assert {owners[job] for job in attack.forgers} == {"daemon"}
    if not allocations:
        return
    rows = lake.latest(ALLOCATIONS).filter(pl.col("gpu").is_not_null())
    assert set(rows["job_id"]) <= attack.real_jobs()
    held: dict[str, set[int]] = {}
    for job, gpu in rows.select("job_id", "gpu").iter_rows():
        held.setdefault(job, set()).add(gpu)
    truth = attack.held()
    assert held[attack.victim] == {int(truth[attack.victim][0].partition("IDX:")[2].rstrip(")"))}
    assert all(len(held.get(job, ())) <= 1 for job in attack.forgers)


COMMANDS = {
    "json": (("collect", "--once"),),
    "text": (("ingest", "sacct", "--run"), ("ingest", "slurm-live")),
}


@pytest.mark.parametrize("form", COMMANDS)
def test_what_slurm_answers_does_not_deceive(attack: Attack, tmp_path: Path, form: str) -> None:
    (tmp_path / "tachograph.toml").write_text(
        '[[sources]]\nsource = "sacct"\nfrom = "2h"\n'
        f'[[sources]]\nsource = "slurm-live"\nformat = "{form}"\n'
        '[site]\ntime_zone = "UTC"\ncluster = "testing"\n'
    )
    for words in COMMANDS[form]:
        done = attack.tachograph(tmp_path, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    checked(attack, tmp_path, allocations=True)
    names = dict(
        Lake.open(str(tmp_path / "lake")).latest(JOBS).select("job_id", "name").iter_rows()
    )
    assert INVENTED in names[attack.forgers[-3]]  # what is written is there, and is a name


def test_a_file_is_read_or_refused(attack: Attack, tmp_path: Path) -> None:
    words = ("sacct", "-a", "-D", "--parsable2", f"--format={COLUMNS}")
    random = Path("/proc/sys/kernel/random/uuid").read_text().strip()
    (tmp_path / "safe.txt").write_text(attack.cluster.command(*words, f"--delimiter={random}"))
    (tmp_path / "bars.txt").write_text(attack.cluster.command(*words))
    (tmp_path / "jobs.json").write_text(attack.cluster.command("sacct", "-a", "-D", "--json"))
    done = attack.tachograph(tmp_path, "ingest", "sacct", "bars.txt")
    assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
    assert "a line may be a record or text of a user (account, jobname, submitline)" in done.stderr
    for name in ("safe.txt", "jobs.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        done = attack.tachograph(folder, "ingest", "sacct", f"../{name}")
        assert done.returncode == 0, done.stderr
        checked(attack, folder, allocations=False)


def test_what_scontrol_prints_is_read_or_refused(attack: Attack, tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text(attack.cluster.command("scontrol", "show", "job", "-d"))
    (tmp_path / "victim.txt").write_text(
        attack.cluster.command("scontrol", "show", "job", "-d", attack.victim)
    )
    (tmp_path / "forger.txt").write_text(
        attack.cluster.command("scontrol", "show", "job", "-d", attack.forgers[-1])
    )
    for name in ("all.txt", "forger.txt"):
        done = attack.tachograph(tmp_path, "ingest", "allocation-map", name)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
        assert "of several jobs: one of them may be a text that a user wrote" in done.stderr
    assert attack.tachograph(tmp_path, "ingest", "allocation-map", "victim.txt").returncode == 0
    rows = Lake.open(str(tmp_path / "lake")).latest(ALLOCATIONS)
    assert rows["job_id"].to_list() == [attack.victim]
