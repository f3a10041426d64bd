"""Most of a minute of a cluster: jobs of every kind, run by a real Slurm, and all that it
reports about them.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from servers.slurm import SlurmCluster
from servers.slurm.cluster import wait_for

# what each task writes down about the GPUs it got, in the folder of jobs
_TELL = (
    "job=${SLURM_JOB_ID_HET_GROUP_1:-$SLURM_JOB_ID}; "
    "echo $job $SLURMD_NODENAME ${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS} >> told.$job.$SLURMD_NODENAME"
)
BETWEEN = "0b8f3c52-6a0e-4a3f-9f2d-8f6c2b1d7e90"
ACCOUNTING = (
    "JobID,JobIDRaw,Cluster,Partition,QOS,Account,User,Submit,Eligible,Start,End,Elapsed,State,ExitCode,NNodes,"
    "NodeList,AllocTRES,ReqTRES,Constraints,Timelimit,JobName,SubmitLine"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One job: its options, what it does, who submits it."""

    options: str
    script: str
    user: str = "daemon"


def _busy(seconds: int) -> str:
    return f"{_TELL}; sleep {seconds}"


WANTED = {
    "whole": Wanted("--exclusive --gres=gpu:4 -w gpu01 -t 5", _busy(16)),
    "left": Wanted("--gres=gpu:2 -w gpu02 -t 5", _busy(18), "games"),
    "right": Wanted("--gres=gpu:1 -w gpu02 -t 5", _busy(24)),
    "again": Wanted(
        "--gres=gpu:1 -w gpu02 -t 5 --requeue",
        f"{_TELL}; sleep $((SLURM_RESTART_COUNT ? 12 : 600))",
    ),
    "sweep": Wanted("--gres=gpu:1 -w gpu03 -t 5 -a 0-3%2", _busy(12), "mail"),
    "pair": Wanted("-N2 -w gpu03,gpu04 --gres=gpu:1 -t 5", f"srun sh -c '{_busy(16)}'", "games"),
    "broken": Wanted("--gres=gpu:1 -w gpu03 -t 5", f"{_busy(12)}; exit 3"),
    "mixed": Wanted(
        "-p cpu -n1 -t 5 : -p gpu -n1 --gres=gpu:1 -w gpu04 -t 5",
        f"srun --het-group=1 sh -c '{_busy(16)}'",
    ),
    "stopped": Wanted("--gres=gpu:1 -w gpu04 -t 5", _busy(600), "games"),
    "successor": Wanted("--gres=gpu:2 -w gpu02 -t 5", _busy(12)),
    "hopeless": Wanted("--gres=gpu:4 -w gpu04 -t 5", _busy(5), "games"),
}


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done to a job so many seconds after it was first seen in a state; its id stands
    for `{}`.
    """

    state: str
    after_s: float
    command: str


# A node forgets a job `cred_expire` after it ended there (15 s here). Until then it takes the next
# run for the same one and calls neither prolog nor epilog, so no one would write down its GPUs: the
# run is put off until that is over.
DONE_TO = {
    "again": (
        Deed("RUNNING", 8.0, "scontrol requeue {}"),
        Deed("PENDING", 1.0, "scontrol update JobId={} StartTime=now+17"),
    ),
    "stopped": (Deed("RUNNING", 20.0, "scancel {}"),),
    "hopeless": (Deed("PENDING", 6.0, "scancel {}"),),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What came of it. `live`: `scontrol show job -d` every other second."""

    ids: dict[str, int]
    cluster: SlurmCluster
    live: Path
    accounting: Path
    began: float
    ended: float


def play(cluster: SlurmCluster, *, folder: Path) -> Scenario:
    """Submit everything, disturb some, wait for all; `folder` takes what Slurm's commands print."""
    live = folder / "live"
    live.mkdir()
    began = time.time()
    ids = {
        name: cluster.submit(wanted.script, "-J", name, *wanted.options.split(), user=wanted.user)
        for name, wanted in WANTED.items()
    }
    due = {
        name: [replace(deed, command=deed.command.format(ids[name])) for deed in DONE_TO[name]]
        for name in DONE_TO
    }
    seen: dict[str, float] = {}
    while states := _states(cluster, ids):
        _disturb(cluster, states, due, seen)
        (live / f"{time.time():.3f}.txt").write_text(
            cluster.command("scontrol", "show", "job", "-d")
        )
        if time.time() > began + 600:
            raise TimeoutError(f"jobs still there:\n{cluster.command('squeue')}")
        time.sleep(2)
    accounting = folder / "sacct.txt"
    try:
        wait_for(
            lambda: _all_accounted(cluster, ids, accounting, began),
            "the end of all jobs in the accounting",
            600,
        )
    except TimeoutError as late:
        late.add_note(f"jobs {ids}; sacct:\n{accounting.read_text()}\n{cluster.command('sdiag')}")
        raise
    time.sleep(3)  # for whoever queries the exporters once more
    return Scenario(ids, cluster, live, accounting, began, time.time())


def _states(cluster: SlurmCluster, ids: dict[str, int]) -> dict[str, str]:
    """The state of every job that has not ended, of an array that of one of its tasks."""
    printed = cluster.command("squeue", "-h", "-o", "%j %T", "-j", ",".join(map(str, ids.values())))
    return {
        name: state for name, _, state in (line.partition(" ") for line in printed.splitlines())
    }


def _disturb(
    cluster: SlurmCluster,
    states: dict[str, str],
    due: dict[str, list[Deed]],
    seen: dict[str, float],
) -> None:
    """Do to each job what is due next; `seen`: when each was first seen in the state that this
    waits for.
    """
    now = time.time()
    for name, deeds in due.items():
        if (
            deeds
            and states.get(name) == deeds[0].state
            and seen.setdefault(name, now) <= now - deeds[0].after_s
        ):
            cluster.command(*deeds.pop(0).command.split())
            del seen[name]


def _all_accounted(cluster: SlurmCluster, ids: dict[str, int], path: Path, began: float) -> bool:
    printed = cluster.command(
        "sacct",
        "-a",
        "-D",
        "-P",
        f"--delimiter={BETWEEN}",
        "-S",
        f"now-{int(time.time() - began) + 60}seconds",
        "-j",  # the cluster runs those of other tests, too, whose names may have lines
        ",".join(map(str, ids.values())),
        "--format",
        ACCOUNTING,
    )
    path.write_text(printed)
    header, *rows = (line.split(BETWEEN) for line in printed.splitlines())
    wanted = {str(job) for job in ids.values()}
    ends = [
        (re.split(r"[_+.]", row[header.index("JobID")])[0], row[header.index("End")])
        for row in rows
    ]
    ended = {job for job, end in ends if end != "Unknown"}
    return wanted <= ended and not any(job in wanted and end == "Unknown" for job, end in ends)
