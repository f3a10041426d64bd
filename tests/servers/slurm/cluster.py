"""A running cluster: submit, query, wait."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from servers.slurm.plan import Plan


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """What a test may do with a cluster. Slurm's times are written in UTC."""

    plan: Plan

    @property
    def jobs(self) -> Path:
        """The folder in which jobs run and anybody may write."""
        return self.plan.folder / "jobs"

    @property
    def environment(self) -> Mapping[str, str]:
        """What Slurm's commands need, beside what they find in any environment."""
        return {"SLURM_CONF": str(self.plan.folder / "etc" / "slurm.conf"), "TZ": "UTC"}

    @property
    def rest_url(self) -> str:
        """Address of slurmrestd, where it was requested."""
        return f"http://127.0.0.1:{self.plan.ports.rest}"

    def command(self, *words: str, user: str | None = None, given: str = "") -> str:
        """What a command prints; run in the folder of jobs, as another user on request."""
        base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", **self.environment}
        done = subprocess.run(
            words,
            input=given,
            env=base,
            cwd=self.jobs,
            user=user,
            group=None if user is None else user,
            extra_groups=None if user is None else [],
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, script: str, *options: str, user: str = "daemon") -> int:
        """Submit a batch script; its job id."""
        printed = self.command(
            "sbatch", "--parsable", *options, user=user, given=f"#!/bin/sh\n{script}\n"
        )
        return int(printed.strip().partition(";")[0])

    def state(self, job: int) -> str:
        """The state of a job as the controller knows it, all of its records taken together."""
        return ",".join(
            sorted(
                set(self.command("squeue", "-h", "-t", "all", "-o", "%T", "-j", str(job)).split())
            )
        )

    def token(self, user: str = "root") -> str:
        """A token for the REST API, good for an hour."""
        return (
            self.command("scontrol", "token", f"username={user}", "lifespan=3600")
            .strip()
            .partition("=")[2]
        )

    def wait(self, *jobs: int, within_s: float) -> None:
        """Wait until none of the jobs waits or runs any more."""
        named = ",".join(map(str, jobs))
        wait_for(
            lambda: not self.command("squeue", "-h", "-j", named).strip(),
            f"the end of jobs {named}",
            within_s,
        )

    def ended_jobs(self, count: int, *options: str) -> list[int]:
        """Jobs that have ended, whose records in the accounting may be changed from now on.

        None ends before the accounting has its start: the controller would send that start once
        more after the end, with its own time of submission, and where that was changed the
        accounting would have a second run.
        """
        with tempfile.TemporaryDirectory(dir=self.jobs, prefix="release-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            release = folder / "release"
            waiting = f"while [ ! -e {release} ]; do sleep 0.1; done"
            jobs = [
                self.submit(waiting, "--gres=gpu:1", "--mem=100", *options) for _ in range(count)
            ]
            self._reach("RUNNING", jobs)
            release.touch()
            self._reach("COMPLETED", jobs)
        return jobs

    def _reach(self, state: str, jobs: Sequence[int]) -> None:
        """Wait until the accounting has all jobs in a state."""
        named = ",".join(map(str, jobs))
        words = ("sacct", "-X", "-n", "-P", "-o", "State", "-j", named)
        what = f"{state} of jobs {named} in the accounting"
        wait_for(lambda: self.command(*words).split() == [state] * len(jobs), what, 240)


def wait_for(met: Callable[[], bool], what: str, within_s: float) -> None:
    """Wait until a condition is met."""
    until = time.monotonic() + within_s
    while not met():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(0.2)
