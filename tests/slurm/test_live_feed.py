"""Which GPUs jobs hold right now: asked with squeue, scontrol where there is no JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from feeding import Landing
from slurm_reading import MADE, VERSIONS, reading_of

from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.tables import JOBS
from tachograph.sources import slurm_live
from tachograph.sources.allocation_map import read_map
from tachograph.sources.slurm.controller import ControllerCommands
from tachograph.sources.slurm.records import SlurmCluster
from tachograph.sources.slurm_live import RunningJobsFeed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CONFIG = b"Configuration data as of 1795262400\nAccountingStorageHost = db\nClusterName             = demo\n"
Run = Callable[..., bytes]


def fails(message: str) -> Run:
    def run(*arguments: str) -> bytes:
        raise InputError(f"failed with exit code 1: {message}", where="squeue")

    return run


def scontrol_of(version: str, config: bytes = CONFIG) -> Run:
    """A scontrol that knows the jobs of a recording, and shows one at a time."""
    records = recorded_jobs(version)

    def run(*arguments: str) -> bytes:
        if arguments == ("show", "config"):
            return config
        assert arguments[:-1] == ("--all", "--details", "show", "job")
        return records[arguments[-1]].encode()

    return run


def recorded_jobs(version: str) -> dict[str, str]:
    """Records of scontrol, by raw id."""
    text = (MADE / version / "scontrol_show_job_d.all.txt").read_text(encoding="utf-8")
    records = [record for record in re.split(r"(?m)^(?=JobId=)", text) if record]
    return {record.partition(" ")[0].removeprefix("JobId="): record for record in records}


def listing_of(version: str) -> bytes:
    """What squeue prints of the jobs of a recording that hold resources: raw id, start, id."""
    running = [
        job for job, record in recorded_jobs(version).items() if "JobState=RUNNING" in record
    ]
    return "".join(f"{job},1795245000,{job}\n" for job in running).encode()


def squeue_of(version: str) -> Run:
    return lambda *arguments: (MADE / version / "squeue.json").read_bytes()


def live(
    squeue: Run, scontrol: Run, *, name: str | None = None, clock: Callable[[], float] = lambda: 0.0
) -> RunningJobsFeed:
    return RunningJobsFeed(
        ControllerCommands(squeue, scontrol),
        "slurm-live:slurm-live",
        SlurmCluster(name=name),
        clock=clock,
    )


def polled(feed: RunningJobsFeed, times: int = 1) -> Landing:
    """Return what polls of each minute come to."""
    landing = Landing()
    for minute in range(times):
        landing.poll(feed, NOW + timedelta(minutes=minute))
    return landing


@pytest.mark.parametrize("version", VERSIONS)
def test_what_squeue_tells_lands_and_lands_once(version: str) -> None:
    feed, landing = live(squeue_of(version), fails("no such host")), Landing()
    landing.poll(feed, NOW)
    whole = read_map(MADE / version / "squeue.json", cluster=SlurmCluster())
    held = {(row["job_id"], row["node"], row["gpu"], row["start"]) for row in whole.allocations}
    assert set(landing.allocations.select("job_id", "node", "gpu", "start").rows()) == held
    assert set(landing.allocations["provenance"]) == {"live_index"}
    before = (landing.jobs, landing.allocations)
    landing.poll(feed, NOW + timedelta(minutes=1))
    # The clock was set back.
    landing.poll(feed, NOW - timedelta(minutes=1))
    assert landing.jobs.equals(before[0])
    assert landing.allocations.equals(before[1])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cluster_without_jobs_is_polled_like_any_other(version: str) -> None:
    answer = json.loads((MADE / version / "squeue.json").read_text(encoding="utf-8"))
    nobody = json.dumps(answer | {"jobs": []}).encode()
    landing = polled(live(lambda *arguments: nobody, fails("no such host")))
    assert landing.allocations.is_empty()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_controller_never_contradicts_the_accounting(version: str) -> None:
    """Whatever it tells of a running job, the accounting tells as well: else each request would
    be news.
    """
    landing = polled(live(squeue_of(version), scontrol_of(version)))
    accounted = {
        row["job_id"]: row for row in reading_of(MADE / version / "sacct.parsable2.txt").jobs
    }
    rows = landing.jobs.to_dicts()
    assert len(rows) >= 5
    for row in rows:
        told = {
            name: value
            for name, value in row.items()
            if value is not None and name not in ("state", "saved")
        }
        assert told == {name: accounted[row["job_id"]][name] for name in told}
        assert {"user", "submit", "start", "node_list", "gpus", "timelimit_s", "partition"} <= set(
            told
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_text_is_asked_for_where_there_is_no_json(version: str) -> None:
    asked: list[tuple[str, ...]] = []
    scontrol = scontrol_of(version)

    def squeue(*arguments: str) -> bytes:
        asked.append(arguments)
        if "--json" in arguments:
            return fails("squeue: unrecognized option '--json'")()
        assert "--format=%A,%S,%i" in arguments  # nothing that users write
        return listing_of(version)

    landing = polled(live(squeue, scontrol), 2)
    # It does not learn JSON.
    assert [("--json" in arguments) for arguments in asked] == [True, False, False]
    assert landing.allocations.height == 15
    # Of scontrol show config: the text does not tell.
    assert set(landing.allocations["cluster"]) == {"demo"}
    assert landing.jobs.is_empty()


def test_when_neither_answers_the_reason_is_that_of_squeue() -> None:
    feed, landing = (
        live(fails("squeue: error: Unable to contact slurm controller"), fails("other")),
        Landing(),
    )
    with pytest.raises(InputError, match="Unable to contact slurm controller"):
        landing.poll(feed, NOW)
    assert landing.marks == {}


def test_after_json_came_once_a_failure_is_one() -> None:
    answers = iter([squeue_of("24.11.5"), fails("Socket timed out")])
    feed, landing = live(lambda *arguments: next(answers)(), scontrol_of("24.11.5")), Landing()
    landing.poll(feed, NOW)
    with pytest.raises(InputError, match="Socket timed out"):
        landing.poll(feed, NOW + timedelta(minutes=1))


@pytest.mark.parametrize(("version", "told"), [("22.05.8", 1795262400), ("24.11.5", 1795245396)])
def test_the_clock_of_the_controller(version: str, told: int) -> None:
    """Each look at our clock takes a second; the controller's is that of the middle of the
    request.
    """
    ticks = count(told + 100)
    feed = live(squeue_of(version), scontrol_of(version), clock=lambda: float(next(ticks)))
    polled(feed)
    # Half of its second has passed; of the answer, or of that about the configuration.
    middle = {"22.05.8": 102.5, "24.11.5": 100.5}[version]
    assert feed.outcome.skew_s == {"slurmctld": 0.5 - middle}


def test_a_record_that_cannot_be_read_is_counted_once_and_the_others_land() -> None:
    document = json.loads((MADE / "24.11.5" / "squeue.json").read_bytes())
    document["jobs"][0]["gres_detail"] = ["gpu:a100:2(IDX:N/A)"]
    content = json.dumps(document).encode()
    landing = polled(live(lambda *arguments: content, scontrol_of("24.11.5")), 3)
    assert landing.rejected == {"index_not_told": 1}
    assert landing.allocations.height == 14
    unknown = [row for row in landing.allocations.iter_rows(named=True) if row["gpu"] is None]
    assert [row["provenance"] for row in unknown] == ["node_list"]


JOB = {"job_id": 5, "cluster": "c", "nodes": "n1"}


def test_a_requeued_job_has_an_interval_for_each_run() -> None:
    job = {**JOB, "job_state": ["RUNNING"], "gres_detail": ["gpu:1(IDX:3)"]}
    starts = iter([1795245000, 1795249000])

    def squeue(*arguments: str) -> bytes:
        start = next(starts)
        return json.dumps(
            {"jobs": [{**job, "start_time": start, "submit_time": start - 5}]}
        ).encode()

    landing = polled(live(squeue, fails("")), 2)
    for frame in (landing.jobs, landing.allocations):
        assert [int(start.timestamp()) for start in frame.sort("start")["start"]] == [
            1795245000,
            1795249000,
        ]


@pytest.mark.parametrize(
    "state", [["COMPLETED"], "COMPLETED", ["PENDING"], ["RUNNING", "COMPLETING"], []]
)
def test_only_jobs_that_run_are_rows_of_jobs(state: object) -> None:
    job = {**JOB, "job_state": state, "start_time": 1795245000, "submit_time": 9}
    landing = polled(live(lambda *arguments: json.dumps({"jobs": [job]}).encode(), fails("")))
    assert landing.table(JOBS).is_empty()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A squeue that writes down how it was called."""
    program = tmp_path / "squeue"
    answer = MADE / "24.11.5" / "squeue.json"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/calls\ncat {answer}\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return program


def test_it_is_asked_once_on_request(programs: Path) -> None:
    source = {"source": "slurm-live", "command": [str(programs)]}
    configuration = Configuration(site=SiteOptions(cluster="home"), sources=(source,))
    landing = Landing()
    (chunk,) = landing.take(
        slurm_live.read(argparse.Namespace(), configuration=configuration, now=NOW)
    )
    assert chunk.watermark is None
    assert landing.allocations.height == 15
    calls = (programs.parent / "calls").read_text(encoding="utf-8")
    assert calls == "--all --states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING --json\n"


def test_a_command_without_words_is_refused() -> None:
    settings = slurm_live.SETTINGS(source="slurm-live", command=())
    with pytest.raises(ConfigError, match="command is empty"):
        slurm_live.connect(settings, configuration=Configuration())
