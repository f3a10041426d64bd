"""A real Slurm: nodes drained, down and reserved, jobs that wait; polled as `collect` does."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from feeding import Landing

from servers.slurm import SlurmCluster
from servers.slurm.cluster import wait_for
from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.tables import JOBS, NODE_STATES, WAITING_JOBS
from tachograph.judge.capacity import CAPACITY_PARTS, build_capacity
from tachograph.sources import slurm_nodes
from tachograph.sources.slurm_nodes import SlurmNodesSettings

pytestmark = pytest.mark.slow
HOSTILE = "fan\nNodeName=gpu77 Gres=gpu:77 State=IDLE"


def test_what_a_real_controller_says_of_its_nodes(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    down, drained, held, reserved = slurm.plan.gpu_nodes
    running = slurm.submit("sleep 600", "--gres=gpu:2", f"--nodelist={held}", "--mem=100")
    wait_for(lambda: slurm.state(running) == "RUNNING", "the job runs", 120)
    slurm.command("scontrol", "update", f"nodename={down}", "state=down", f"reason={HOSTILE}")
    slurm.command("scontrol", "update", f"nodename={drained}", "state=drain", f"reason={HOSTILE}")
    slurm.command(
        *("scontrol", "create", "reservation", f"reservationname=r Nodes={down}", "users=root"),
        *("starttime=now", "duration=60", f"nodes={reserved}", "flags=maint,ignore_jobs"),
    )
    wide = slurm.submit("true", "--gres=gpu:4", "--nodes=2", "--mem=100")
    kept = slurm.submit("true", "--gres=gpu:1", "--hold")
    site = SiteOptions(cluster="testing", time_zone="UTC")
    feed = slurm_nodes.connect(
        SlurmNodesSettings(source="slurm-nodes"), configuration=Configuration(site=site)
    )
    landing = Landing()
    try:
        wait_for(lambda: "None" not in _reason(slurm, wide), "a reason", 120)
        wait_for(lambda: "maint" in _state(slurm, reserved), "the reservation", 120)
        first = datetime.now(UTC)
        landing.poll(feed, first)
        last = first + timedelta(minutes=5)
        landing.poll(feed, last)
    finally:
        slurm.command("scontrol", "delete", f"reservationname=r Nodes={down}")
        for node in (down, drained):
            with suppress(RuntimeError):  # one that was down may have come back by itself
                slurm.command("scontrol", "update", f"nodename={node}", "state=resume")
        slurm.command("scancel", *map(str, (running, wide, kept)))
    states = landing.table(NODE_STATES)
    polls = states.filter(provenance="poll").sort("node")
    assert polls.select("node", "state", "gpus_held").rows() == sorted(
        [(down, "down", 0), (drained, "drained", 0), (held, "up", 2), (reserved, "maintenance", 0)]
    )
    assert (polls["start"] == first).all()
    assert (polls["end"] == last).all()
    events = states.filter(pl.col("end").is_null(), provenance="event")
    assert {*events.select("node", "state").rows()} == {(down, "down"), (drained, "drained")}
    of_reservation = states.filter(provenance="reservation").select("node", "state").rows()
    assert of_reservation == [(reserved, "maintenance")]
    waiting = dict(landing.table(WAITING_JOBS).select("job_id", "reason").rows())
    assert waiting[str(kept)] == "JobHeldUser"
    assert waiting[str(wide)] in ("Resources", "ReqNodeNotAvail", "Priority")
    assert not feed.outcome.unreachable

    report = build_capacity(
        states,
        landing.table(WAITING_JOBS),
        JOBS.empty(),
        pl.DataFrame(schema=_JOBS),
        pl.DataFrame(schema=_HELD),
        models={},
        since=first,
        until=last,
    )
    assert report is not None
    hours = {part: report.hours(part) for part in ("installed", *CAPACITY_PARTS)}
    seconds = {part: round(3600 * value) for part, value in hours.items() if value}
    span = int(last.timestamp()) - int(first.timestamp())
    assert seconds == {
        "installed": 16 * span, "down": 4 * span, "drained": 4 * span, "maintenance": 4 * span,
        "unmeasured": 2 * span,  # no job is known here, and the controller says that two are held
        "fragmented": 2 * span,  # two jobs of four GPUs wait
    }  # fmt: skip


def _reason(slurm: SlurmCluster, job: int) -> str:
    return slurm.command("squeue", "-h", "-o", "%r", "-j", str(job))


def _state(slurm: SlurmCluster, node: str) -> str:
    return slurm.command("sinfo", "-h", "-N", "-n", node, "-o", "%T")


_TIME = pl.Datetime("us", "UTC")
_JOBS = {
    "job_key": pl.String(), "cluster": pl.String(), "start": _TIME, "end": _TIME, "as_of": _TIME,
    "in_ledger": pl.Boolean(),
    **{
        f"gpu_hours_{name}": pl.Float64()
        for name in (
            "in_use", "in_use_unknown", "never_used", "hung", "cold_start", "idle", "imbalance",
            "unmeasured",
        )
    },
}  # fmt: skip
_HELD = {
    "job_key": pl.String(), "node": pl.String(), "node_gpus": pl.Float64(), "last_t": _TIME
}  # fmt: skip
