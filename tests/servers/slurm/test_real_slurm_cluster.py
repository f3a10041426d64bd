"""The cluster that tests are given: jobs get GPUs, each knows which, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from servers.slurm import SlurmCluster, leftovers

pytestmark = pytest.mark.slow


def test_jobs_of_two_users_share_a_node_on_different_gpus(slurm: SlurmCluster) -> None:
    script = "echo $SLURM_JOB_GPUS; while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.1; done"
    node = slurm.plan.gpu_nodes[-1]
    ids = [
        slurm.submit(script, f"--gres=gpu:{n}", f"--nodelist={node}", user=user)
        for n, user in ((2, "games"), (1, "mail"))
    ]
    until = time.monotonic() + 60
    while [slurm.state(job) for job in ids] != ["RUNNING", "RUNNING"]:
        assert time.monotonic() < until
        time.sleep(0.1)
    detail = slurm.command("scontrol", "show", "job", "-d", str(ids[0]))
    for job in ids:
        (slurm.jobs / f"go.{job}").touch()
    slurm.wait(*ids, within_s=240)
    reported = [(slurm.jobs / f"slurm-{job}.out").read_text().split()[0] for job in ids]
    assert reported == ["0,1", "2"]
    assert "GRES=gpu:2(IDX:0-1)" in detail
    lines = [
        set(line.split())
        for line in (slurm.plan.hooks / "gpu-map" / f"{node}.log").read_text().splitlines()
    ]
    for words in ({"prolog", f"job={ids[0]}", "gpus=0,1"}, {"epilog", f"job={ids[1]}", "gpus=2"}):
        assert sum(words <= line for line in lines) == 1
    assert not list((slurm.plan.hooks / "held" / node).iterdir())


def test_the_rest_api_answers_to_a_token(slurm: SlurmCluster) -> None:
    headers = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": slurm.token()}
    answer = httpx2.get(f"{slurm.rest_url}/slurm/v0.0.38/nodes", headers=headers, timeout=300)
    assert sorted(node["name"] for node in answer.json()["nodes"]) == sorted(slurm.plan.nodes)


def test_what_works_in_the_folder_ends_with_the_one_who_started_it_even_if_killed(
    tmp_path: Path,
) -> None:
    script = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE)\n"
        "subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 600'], cwd=sys.argv[2], "
        "start_new_session=True)\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, leftovers.__file__, tmp_path], stdout=subprocess.PIPE
    )
    assert starter.stdout is not None
    with starter.stdout as printed:
        printed.readline()
    assert leftovers.within(tmp_path)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    until = time.monotonic() + 30
    while leftovers.within(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.1)
