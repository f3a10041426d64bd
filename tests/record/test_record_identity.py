"""Whose recording it is."""

from __future__ import annotations

import re
from dataclasses import replace

from tachograph.annexes.watch.record.spooling import identify

SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_NAME": "fit",
    "SLURM_JOB_USER": "ana", "SLURM_JOB_ACCOUNT": "phys", "SLURM_JOB_PARTITION": "gpu", "SLURM_CLUSTER_NAME": "c1",
    "SLURM_JOB_NUM_NODES": "2",
}  # fmt: skip


def test_a_task_of_an_array() -> None:
    reported = identify([], SLURM, start=0.0)
    assert (reported.job_id, reported.display_id, reported.array_task_id, reported.name) == (
        "77",
        "70_3",
        3,
        "fit",
    )
    assert (
        reported.user,
        reported.account,
        reported.partition,
        reported.cluster,
        reported.nodes,
    ) == (
        "ana",
        "phys",
        "gpu",
        "c1",
        2,
    )
    assert identify(["a", "b c"], SLURM, start=0.0, cluster="site").cluster == "site"


def test_a_job_of_our_own_making_has_an_id_of_time_and_process() -> None:
    reported = identify(["train", "--secret", "x" * 500], {}, start=1_741_080_000.0)
    assert reported.job_id.startswith("local-20250304-092000-")
    assert reported.name is not None
    assert len(reported.name) == 200


def test_an_anonymous_identity_has_no_personal_data() -> None:
    reported = identify(["train", "secret"], SLURM, start=0.0, anonymous=True, cluster="site")
    text = repr(replace(reported, job_id=""))  # which is made of random digits
    assert re.fullmatch("anonymous-[0-9a-f]{12}", reported.job_id)
    assert not any(
        word in text for word in ("ana", "77", "70", "phys", "c1", "secret", "site", "fit")
    )
    assert reported.job_id != identify([], SLURM, start=0.0, anonymous=True).job_id
