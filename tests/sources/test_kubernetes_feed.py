"""Workloads of Kubernetes: list and watch of a fake API server, owners, pods that are gone, forged
references, and the pods that samples name.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from in_process import run_well
from row_lines import frame_lines
from servers.kubernetes_api import ApiState, Document, api_server, controller, pod
from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sources.kubernetes import KnownPods, KubernetesSettings, PodsFeed, connect
from tachograph.sources.slurm.records import SlurmCluster

NOW = datetime(2026, 3, 1, 10, 10, tzinfo=UTC)
UID = "0d5f1a2b-0000-4000-8000-{:012d}"
Owner = tuple[str, str, str, str]
JOB = ("batch/v1", "Job", "train", UID.format(901))


@pytest.fixture
def served() -> Iterator[tuple[str, ApiState]]:
    with api_server() as server:
        yield server


@pytest.fixture
def state(served: tuple[str, ApiState]) -> ApiState:
    return served[1]


@pytest.fixture
def feed(served: tuple[str, ApiState], tmp_path: Path) -> Iterator[PodsFeed]:
    """A feed connected to a fake server, by the token of a file."""
    token = tmp_path / "token"
    token.write_text("s3cret-of-the-account\n")
    settings = KubernetesSettings(
        source="kubernetes",
        url=served[0],
        token_file=str(token),
        page=2,
        attempts=1,
        user_labels=("hub.jupyter.org/username",),
    )
    with closing(connect(settings, configuration=Configuration())) as feed:
        yield feed


def add(state: ApiState, *pods: Document) -> None:
    for document in pods:
        state.change("ADDED", document)


def serve(state: ApiState, owner: Owner, *, by: Owner | None = None, **meta: Any) -> str:
    """Serve an owner, which `by` owns; return its path."""
    api, kind, name, _ = owner
    path = f"/apis/{api}/namespaces/ml/{kind.lower()}s/{name}"
    state.owners[path] = controller(*owner, owner=by, **meta)
    return path


def poll(feed: PodsFeed, minute: int = 0) -> Chunk:
    (chunk,) = feed.poll(lambda _: None, now=NOW + timedelta(minutes=minute))
    return chunk


def rows(chunk: Chunk, table: str) -> dict[str, dict[str, Any]]:
    """Rows of a table by displayed id, step or job."""
    (part,) = [part for part in chunk.parts if part.table == table]
    key = "display_id" if table == "jobs" else "step"
    return {str(row[key]): row for row in part.frame.iter_rows(named=True)}


def lines(chunk: Chunk) -> str:
    """Return the rows of each table, and the rejects."""
    tables = [f"{part.table} {part.rejects}\n{frame_lines(part.frame)}" for part in chunk.parts]
    return "".join([f"{chunk.rows_read} read, passed {dict(chunk.passed)}\n", *tables])


def ended(document: Document, end: str, *, code: int = 0, reason: str = "Completed") -> Document:
    """Return the pod when its container has ended."""
    meta, status = document["metadata"], document["status"]["containerStatuses"][0]["state"]
    again = pod(meta["name"], meta["uid"], start=status["running"]["startedAt"], end=end, code=code,
                phase="Failed" if code else "Succeeded", reason=reason)  # fmt: skip
    again["metadata"] |= {name: meta[name] for name in ("ownerReferences",) if name in meta}
    again["spec"] = document["spec"]
    return again


def test_a_job_from_its_pods_owner_and_queue(
    feed: PodsFeed, state: ApiState, snapshot: SnapshotAssertion
) -> None:
    nightly = ("batch/v1", "CronJob", "nightly", UID.format(902))
    serve(state, JOB, by=nightly, labels={"kueue.x-k8s.io/queue-name": "gpus"})
    first = pod("train-a", UID.format(1), owner=JOB)
    second = pod("train-b", UID.format(2), owner=JOB, node="gpu02", start="2026-03-01T10:01:00Z",
                 resources={"nvidia.com/mig-1g.10gb": "3"})  # fmt: skip
    solo = pod("solo", UID.format(3), labels={"hub.jupyter.org/username": "ana"}, start=None,
               phase="Pending", resources={"amd.com/gpu": "1"})  # fmt: skip
    add(state, first, second, solo, pod("cpu", UID.format(4), resources={}))
    assert lines(poll(feed)) == snapshot(name="job of two pods, and a pod that waits")
    assert {method for method, _, _ in state.requests} == {"GET"}
    assert {token for _, _, token in state.requests} == {"Bearer s3cret-of-the-account"}

    # Nothing changed: a watch, and no owner again.
    before = len(state.requests)
    assert rows(poll(feed, 1), "jobs") == {}
    assert [path for _, path, _ in state.requests[before:]] == ["/api/v1/pods"]

    # The first try fails and is repeated: the last one decides, and GPUs are not counted twice.
    retry = pod("train-c", UID.format(5), owner=JOB, start="2026-03-01T10:06:00Z")
    state.change("MODIFIED", ended(first, "2026-03-01T10:05:00Z", code=137, reason="OOMKilled"))
    add(state, retry)
    assert lines(poll(feed, 2)) == snapshot(name="tried again")
    state.change("MODIFIED", ended(second, "2026-03-01T10:09:00Z"))
    state.change("MODIFIED", ended(retry, "2026-03-01T10:09:30Z"))
    assert lines(poll(feed, 3)) == snapshot(name="ended")


def test_each_pod_of_a_deployment_is_a_job_of_its_own(feed: PodsFeed, state: ApiState) -> None:
    replicas = ("apps/v1", "ReplicaSet", "web-5d9c", UID.format(910))
    ray = ("ray.io/v1", "RayCluster", "tune-x", UID.format(912))
    rayjob = ("ray.io/v1", "RayJob", "tune", UID.format(913))
    serve(state, replicas, by=("apps/v1", "Deployment", "web", UID.format(911)))
    serve(state, ray, by=rayjob)
    serve(state, rayjob)
    pods = {"web-5d9c-aa": replicas, "web-5d9c-bb": replicas, "tune-x-head": ray}
    for number, (name, owner) in enumerate(pods.items(), start=1):
        add(state, pod(name, UID.format(number), owner=owner))
    jobs = rows(poll(feed), "jobs")
    assert {name: (row["job_id"], row["array_job_id"]) for name, row in jobs.items()} == {
        "web-5d9c-aa.ml": (UID.format(1), "web.ml"),
        "web-5d9c-bb.ml": (UID.format(2), "web.ml"),
        "tune.ml": (UID.format(913), None),
    }


@pytest.mark.parametrize("as_event", [True, False])
def test_a_watch_that_is_gone_is_a_list_and_missing_pods_have_ended(
    feed: PodsFeed, state: ApiState, as_event: bool
) -> None:
    state.gone_as_event = as_event
    lost, kept = pod("lost", UID.format(1)), pod("kept", UID.format(2))
    add(state, lost, kept)
    poll(feed)
    state.change("DELETED", lost)
    add(state, pod("new", UID.format(3)))
    state.kept_from = state.version + 1
    # It was there at the first poll; what became of it since is unknown.
    jobs = rows(poll(feed, 7), "jobs")
    assert jobs.keys() == {"lost.ml", "new.ml"}
    assert (jobs["lost.ml"]["end"], jobs["lost.ml"]["state"]) == (NOW, None)


def test_a_deleted_pod_ends_and_a_watch_that_breaks_off_goes_on_from_there(
    feed: PodsFeed, state: ApiState, snapshot: SnapshotAssertion
) -> None:
    one, two = pod("one", UID.format(1)), pod("two", UID.format(2))
    add(state, one, two)
    poll(feed)
    one["metadata"]["deletionTimestamp"] = "2026-03-01T10:11:30Z"
    state.change("DELETED", one)
    state.change("MODIFIED", ended(two, "2026-03-01T10:11:00Z", code=1, reason="Error"))
    first = json.dumps(state.history[-2][1], separators=(",", ":"))
    state.cut_after = len(first) + 60  # within the second event
    assert lines(poll(feed, 5)) == snapshot(name="deleted")
    state.cut_after = None
    assert lines(poll(feed, 6)) == snapshot(name="failed")


def test_steps_and_allocations_are_those_of_pods_that_changed(
    feed: PodsFeed,
    state: ApiState,
) -> None:
    serve(state, JOB)
    first, second = (
        pod(name, UID.format(number), owner=JOB)
        for number, name in enumerate(("train-a", "train-b"), start=1)
    )
    add(state, first, second)
    assert rows(poll(feed), "steps").keys() == {"train-a.ml", "train-b.ml"}
    state.change("MODIFIED", ended(second, "2026-03-01T10:11:00Z"))
    chunk = poll(feed, 2)
    assert rows(chunk, "jobs")["train.ml"]["gpus"] == 4
    for table in ("steps", "allocations"):
        assert rows(chunk, table).keys() == {"train-b.ml"}

    # A pod whose times contradict each other rejects the workload; its changes come afterwards.
    state.change("MODIFIED", ended(first, "2026-03-01T09:00:00Z"))
    third = pod("train-c", UID.format(3), owner=JOB)
    add(state, third)
    chunk = poll(feed, 3)
    assert rows(chunk, "steps") == {}
    assert [reject.reason for part in chunk.parts for reject in part.rejects] == [
        "end_before_start"
    ]
    state.change("MODIFIED", ended(first, "2026-03-01T10:12:00Z"))
    assert rows(poll(feed, 4), "steps").keys() == {"train-a.ml", "train-c.ml"}


def held_at_once(pods: list[Document]) -> int:
    """The most GPUs of a workload at one time, by comparing each pod with each."""
    spans = []
    for document in pods:
        (status,) = document["status"]["containerStatuses"]
        times = status["state"].get("terminated") or status["state"]["running"]
        limits = document["spec"]["containers"][0]["resources"]["limits"]
        gpus = int(limits["nvidia.com/gpu"])
        spans.append((times["startedAt"], times.get("finishedAt", "9"), gpus))
    most = 0
    for index, (moment, _, gpus) in enumerate(spans):
        others = [
            count
            for other, (start, end, count) in enumerate(spans)
            if other != index and start <= moment < end
        ]
        most = max(most, gpus + sum(others))
    return most


@pytest.mark.parametrize("seed", range(8))
def test_gpus_held_at_one_time_are_those_of_comparing_each_pod_with_each(seed: int) -> None:
    numbers = random.Random(seed)
    pods: list[Document] = []
    for number in range(30):
        begin = numbers.randrange(20)
        end = begin + numbers.randrange(8)
        running = numbers.random() < 0.1
        document = pod(
            f"train-{number}",
            UID.format(number),
            owner=JOB,
            resources={"nvidia.com/gpu": str(numbers.randrange(1, 5))},
            start=f"2026-03-01T10:{begin:02}:00Z",
            end=None if running else f"2026-03-01T10:{end:02}:00Z",
            phase="Running" if running else "Succeeded",
        )
        pods.append(document)
    known = KnownPods()
    for document in pods:
        known.add(document)
    (row,) = known.reading(SlurmCluster()).jobs
    assert row["gpus"] == held_at_once(pods)


def test_a_listing_is_read_page_by_page() -> None:
    """Pods without GPUs, most of a cluster, are not held until the last page."""
    with api_server() as (url, state):
        for number in range(1, 201):
            document = pod(f"cpu-{number}", UID.format(number), resources={})
            document["metadata"]["annotations"] = {f"note-{n}": "x" * 100 for n in range(300)}
            state.pods[document["metadata"]["uid"]] = document
        settings = KubernetesSettings(source="kubernetes", url=url, page=5, attempts=1)
        feed = connect(settings, configuration=Configuration())
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            chunk = poll(feed)
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
            feed.close()
    assert (chunk.rows_read, dict(chunk.passed)) == (200, {"no_gpus": 200})
    assert peak < 3 << 20  # bytes; all pages together take more than 9 MiB


def test_a_listing_that_expires_between_two_pages_is_read_anew(
    feed: PodsFeed,
    state: ApiState,
) -> None:
    for number in range(1, 6):
        add(state, pod(f"train-{number}", UID.format(number)))
    add(state, pod("", UID.format(0)))  # rejected, on the first page
    state.expires_after = 1
    chunk = poll(feed)
    assert len(rows(chunk, "jobs")) == 5
    assert (chunk.rows_read, dict(chunk.passed)) == (6, {})
    (reject,) = [reject for part in chunk.parts for reject in part.rejects]
    assert (reject.reason, reject.count) == ("no_name", 1)


def test_an_owner_without_pods_is_forgotten(feed: PodsFeed, state: ApiState) -> None:
    other = ("batch/v1", "Job", "other", UID.format(902))
    path = serve(state, JOB)  # the other one cannot be read
    first = pod("train-a", UID.format(1), owner=JOB)
    second = pod("other-a", UID.format(2), owner=other)
    add(state, first, second)
    poll(feed)
    for document in (first, second):
        state.change("DELETED", document)
    poll(feed, 1)
    paths = [serve(state, other), path]
    add(state, pod("train-b", UID.format(3), owner=JOB))
    add(state, pod("other-b", UID.format(4), owner=other))
    before = len(state.requests)
    jobs = rows(poll(feed, 2), "jobs")
    assert {row["job_id"] for row in jobs.values()} == {JOB[3], other[3]}
    requested = [path for _, path, _ in state.requests[before:]]
    assert sorted(requested[1:]) == sorted(paths)

    # An owner of pods that are still there is not requested again.
    add(state, pod("train-c", UID.format(5), owner=JOB))
    before = len(state.requests)
    poll(feed, 3)
    assert [path for _, path, _ in state.requests[before:]] == ["/api/v1/pods"]


@pytest.mark.parametrize(
    ("api", "schedule", "run"),
    [
        ("batch/v1", "CronJob", "Job"),
        ("argoproj.io/v1alpha1", "CronWorkflow", "Workflow"),
        ("kubeflow.org/v1beta1", "ScheduledWorkflow", "Workflow"),
    ],
)
def test_each_run_of_a_schedule_is_a_job_of_its_own(
    feed: PodsFeed, state: ApiState, api: str, schedule: str, run: str
) -> None:
    nightly = (api, schedule, "nightly", UID.format(910))
    serve(state, nightly)
    runs = [(api, run, f"nightly-{number}", UID.format(910 + number)) for number in (1, 2)]
    for number, owner in enumerate(runs, start=1):
        serve(state, owner, by=nightly)
        add(state, pod(f"nightly-{number}-a", UID.format(number), owner=owner))
    jobs = rows(poll(feed), "jobs")
    assert {row["job_id"] for row in jobs.values()} == {UID.format(911), UID.format(912)}


def failed(document: Document, reason: str, *, conditions: tuple[Document, ...] = ()) -> Document:
    """Return the pod when its node was lost: it failed, and no container has ended."""
    again: Document = json.loads(json.dumps(document))
    again["status"] |= {"phase": "Failed", "reason": reason, "conditions": list(conditions)}
    return again


def condition(kind: str, value: str, time: str) -> Document:
    return {"type": kind, "status": value, "lastTransitionTime": time}


def test_a_pod_that_fails_without_an_ended_container_ends(
    feed: PodsFeed, state: ApiState, snapshot: SnapshotAssertion
) -> None:
    names = ("lost", "evicted", "ready", "probed", "deleted")
    pods = {name: pod(name, UID.format(number)) for number, name in enumerate(names, start=1)}
    add(state, *pods.values())
    poll(feed)
    disrupted = condition("DisruptionTarget", "True", "2026-03-01T10:12:00Z")
    unready = condition("Ready", "False", "2026-03-01T10:13:00Z")
    never_ready = condition("Ready", "False", "2026-03-01T10:00:00Z")  # before its start
    evicted = failed(pods["evicted"], "Evicted", conditions=(unready, disrupted))
    del evicted["status"]["containerStatuses"]
    deleted = failed(pods["deleted"], "NodeLost")
    deleted["metadata"]["deletionTimestamp"] = "2026-03-01T10:14:00Z"
    state.change("MODIFIED", failed(pods["lost"], "NodeLost"))
    state.change("MODIFIED", evicted)
    state.change("MODIFIED", failed(pods["ready"], "NodeLost", conditions=(unready,)))
    probed = failed(pods["probed"], "NodeLost", conditions=(never_ready,))
    del probed["status"]["containerStatuses"]
    state.change("MODIFIED", probed)
    state.change("DELETED", deleted)
    assert lines(poll(feed, 5)) == snapshot

    # Seen once more, it ended when it was first seen so.
    state.change("MODIFIED", failed(pods["lost"], "NodeLost"))
    assert rows(poll(feed, 9), "jobs") == {}

    # Its end is not before its start, though the clock of the node is ahead of the server's.
    ahead = failed(pod("ahead", UID.format(9), start="2026-03-01T10:30:00Z"), "NodeLost")
    add(state, ahead)
    job = rows(poll(feed, 10), "jobs")["ahead.ml"]
    assert job["end"] == job["start"]


def test_a_restart_keeps_the_start_of_a_pod(feed: PodsFeed, state: ApiState) -> None:
    """Also for a collector that began after the restart, and did not see the pod before."""
    document = pod("train", UID.format(1))
    document["status"]["startTime"] = "2026-03-01T10:00:01Z"
    add(state, document)
    first = rows(poll(feed), "steps")["train.ml"]["start"]
    again = json.loads(json.dumps(document))
    again["status"]["containerStatuses"][0] |= {
        "restartCount": 2,
        "state": {"running": {"startedAt": "2026-03-01T10:11:00Z"}},
    }
    again["spec"]["priorityClassName"] = "other"
    state.change("MODIFIED", again)
    later = PodsFeed(feed._settings, feed._cluster)
    for reader in (feed, later):
        chunk = poll(reader, 3)
        starts = {rows(chunk, table)["train.ml"]["start"] for table in ("steps", "allocations")}
        assert starts == {first}
    later.close()


@pytest.mark.parametrize("broken", [(b"{}", 503), (b"<html>Sign in</html>", 200), (b"{", 500)])
def test_an_owner_that_cannot_be_read_stops_no_other_pod_and_is_requested_again(
    feed: PodsFeed, state: ApiState, broken: tuple[bytes, int], snapshot: SnapshotAssertion
) -> None:
    path = serve(state, JOB)
    state.broken[path] = broken
    add(state, pod("train-a", UID.format(1), owner=JOB))
    add(state, pod("train-b", UID.format(2), owner=JOB, start="2026-03-01T10:01:00Z"))
    add(state, pod("solo", UID.format(3)))
    assert lines(poll(feed)) == snapshot(name="without owner")
    (unreachable,) = feed.outcome.unreachable
    assert unreachable.endswith(path)
    assert rows(poll(feed, 1), "jobs") == {}
    assert len(feed.outcome.unreachable) == 1

    # Once it is read, the job has its UID, and what it was called before holds nothing any more.
    del state.broken[path]
    assert lines(poll(feed, 2)) == snapshot(name="of its owner")
    assert not feed.outcome.unreachable
    assert rows(poll(feed, 3), "jobs") == {}


def test_many_owners_that_cannot_be_read_are_not_all_requested(
    feed: PodsFeed,
    state: ApiState,
) -> None:
    owners = [("batch/v1", "Job", f"job{n}", UID.format(900 + n)) for n in range(1, 8)]
    paths = [serve(state, owner) for owner in owners]
    add(state, *(pod(owner[2], owner[3].replace("9", "0"), owner=owner) for owner in owners))
    state.broken = dict.fromkeys(paths[:3], (b"{}", 503))
    requested: list[list[str]] = []
    for minute in range(2):
        before = len(state.requests)
        poll(feed, minute)
        sent = [path for _, path, _ in state.requests[before:]]
        requested.append([path for path in sent if path in paths])
    assert requested[0] == paths[:3]
    assert requested[1] == [*paths[3:], *paths[:3]]


def test_a_token_that_is_refused_for_an_owner_ends_the_poll(
    feed: PodsFeed,
    state: ApiState,
) -> None:
    state.broken["/apis/batch/v1/namespaces/ml/jobs/train"] = (b"{}", 401)
    add(state, pod("train-a", UID.format(1), owner=JOB))
    with pytest.raises(InputError, match="401"):
        poll(feed)


def test_references_that_users_write_lead_nowhere_else(feed: PodsFeed, state: ApiState) -> None:
    serve(state, JOB)
    add(state, pod("train-a", UID.format(1), owner=JOB))
    forged = ("batch/v1", "Job", "mine", JOB[3])  # with the UID of the job of somebody else
    add(state, pod("evil", UID.format(2), namespace="evil", owner=forged))
    climbing = ("batch/v1", "Job", "../../secrets/x", UID.format(903))
    add(state, pod("climb", UID.format(3), namespace="evil", owner=climbing))
    secret = ("v1", "Secret", "keys", UID.format(904))
    add(state, pod("secret", UID.format(4), namespace="evil", owner=secret))
    chunk = poll(feed)
    jobs = rows(chunk, "jobs")
    assert (jobs["train.ml"]["job_id"], jobs["train.ml"]["account"]) == (JOB[3], "ml")
    assert (jobs["mine.evil"]["job_id"], jobs["mine.evil"]["account"]) == ("mine.job.evil", "evil")
    assert not [path for _, path, _ in state.requests if "secret" in path or ".." in path]
    assert [reject.reason for part in chunk.parts for reject in part.rejects] == ["bad_job_id"]


def test_a_server_that_refuses_is_one_line_without_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    with api_server() as (url, _):
        settings = KubernetesSettings(source="kubernetes", url=url, token_file=str(token),
                                      namespaces=("none",), attempts=1)  # fmt: skip
        feed = connect(settings, configuration=Configuration())
        with pytest.raises(InputError, match="answered 404") as problem:
            poll(feed)
        feed.close()
    assert "s3cret" not in str(problem.value)
    assert "\n" not in str(problem.value)


SCRAPER = {
    "pod": "nvidia-dcgm-exporter-x",
    "namespace": "gpu-operator",
    "container": "nvidia-dcgm-exporter",
}


def answer(minutes: int, names: dict[int, str]) -> Document:
    """Utilisation of four GPUs each minute from 10:00 on, as Prometheus keeps what it scraped
    without honor_labels; {GPU: the pod that the exporter names}.
    """
    begin = int(datetime(2026, 3, 1, 10, tzinfo=UTC).timestamp())
    series: list[Document] = []
    for gpu in range(4):
        labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "Hostname": "gpu01", "gpu": str(gpu)}
        labels |= {"UUID": f"GPU-{gpu}", "modelName": "NVIDIA H100 80GB HBM3", **SCRAPER}
        of_pod = {"exported_pod": names.get(gpu, ""), "exported_namespace": "ml"}
        held: list[list[object]] = []
        idle: list[list[object]] = []
        for minute in range(minutes):
            between = names.get(gpu) == "db-0" and 20 <= minute < 30  # two pods of one name
            used = gpu in names and not between
            values = held if used else idle
            values.append([begin + 60 * minute, str(10 * (gpu + 1)) if used else "0"])
        series.append({"metric": labels, "values": idle})
        series.append({"metric": {**labels, **of_pod}, "values": held})
    result = [one for one in series if one["values"]]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_labels_of_samples_name_the_pods_that_held_the_gpus(tmp_path: Path) -> None:
    """An idle GPU has only the labels of the exporter's own pod; a name is used again."""
    database = ("apps/v1", "StatefulSet", "db", UID.format(920))
    listed = [
        pod("train-a", UID.format(1), owner=JOB, end="2026-03-01T11:00:00Z", phase="Succeeded"),
        controller(*JOB),
        pod("db-0", UID.format(2), owner=database, end="2026-03-01T10:20:00Z", phase="Succeeded",
            resources={"nvidia.com/gpu": "1"}),
        pod("db-0", UID.format(3), owner=database, start="2026-03-01T10:30:00Z",
            end="2026-03-01T11:00:00Z", phase="Succeeded", resources={"nvidia.com/gpu": "1"}),
    ]  # fmt: skip
    folder = tmp_path / "in"
    folder.mkdir()
    sampled = answer(61, {0: "train-a", 1: "train-a", 2: "db-0"})
    (folder / "dcgm.json").write_text(json.dumps(sampled))
    listing = {"apiVersion": "v1", "kind": "List", "items": listed}

    def run(command: str) -> str:
        return run_well(tmp_path, command).stdout

    # Samples first, analyzed alone: what the pods belong to comes later.
    run("ingest ./in")
    run("analyze")
    named = {job["job_id"] for job in json.loads(run("jobs --json"))}
    assert named == {"train-a.ml", "db-0.ml"}
    (folder / "pods.json").write_text(json.dumps(listing))
    run("ingest ./in")
    run("analyze")

    def summaries() -> dict[str, tuple[Any, ...]]:
        columns = ("display_id", "attribution", "gpus", "gpu_util_mean")
        return {
            job["job_id"]: tuple(job[name] for name in columns)
            for job in json.loads(run("jobs --json"))
        }

    found = summaries()
    assert {name: (*row[:3], round(row[3], 4)) for name, row in found.items()} == {
        UID.format(901): ("train.ml", "explicit", 2, 0.15),
        UID.format(2): ("db-0.ml", "explicit", 1, 0.3),
        UID.format(3): ("db-0.ml", "explicit", 1, 0.3),
    }
    run("analyze --full")
    assert summaries() == found
    assert "gpu-operator" not in run("job train.ml --json")
    steps = json.loads(run("job train.ml --json"))["steps"]["steps"]
    assert [step["step"] for step in steps] == ["train-a.ml"]


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ("+", "COMPLETED"),
        ("-", "FAILED"),
        ("x", "CANCELLED"),
        ("+-", "FAILED"),
        ("-+", "FAILED"),
        ("+x", "COMPLETED"),
        ("x+", "COMPLETED"),
        ("x-", "FAILED"),
        ("-x", "FAILED"),
        ("- +", "COMPLETED"),  # tried again
        ("x +", "COMPLETED"),
        ("+ -", "FAILED"),
        ("- -", "FAILED"),
        ("- x", "CANCELLED"),
    ],
)
def test_the_state_of_a_workload_is_that_of_its_last_pods(pods: str, state: str) -> None:
    """`+` completed, `-` failed, `x` deleted; a blank: the next begins when the others have ended."""
    known = KnownPods()
    begin = NOW
    for number, letter in enumerate(pods):
        if letter == " ":
            begin += timedelta(minutes=10)
            continue
        uid, end = UID.format(number), begin + timedelta(minutes=10)
        times = {"start": f"{begin:%FT%TZ}", "end": f"{end:%FT%TZ}"}
        ending = {"phase": "Succeeded"} if letter == "+" else {"phase": "Failed", "code": 1}
        ended = {"start": times["start"]} if letter == "x" else times | ending
        known.add(pod(f"train-{number}", uid, owner=JOB, **ended), seen=begin)
        if letter == "x":
            known.remove(uid, end, deleted=True)
    (row,) = known.reading(SlurmCluster()).jobs
    assert (row["state"], row["start"], row["end"]) == (state, NOW, begin + timedelta(minutes=10))


def test_changes_of_pods_without_gpus_and_of_no_pods_are_counted(
    feed: PodsFeed,
    state: ApiState,
) -> None:
    poll(feed)
    add(state, pod("cpu", UID.format(1), resources={}))
    add(state, pod("", UID.format(2)))
    add(state, pod("train", UID.format(3)))
    chunk = poll(feed, 1)
    assert (chunk.rows_read, dict(chunk.passed)) == (3, {"no_gpus": 1})
    (part,) = [part for part in chunk.parts if part.table == "jobs"]
    assert ([reject.reason for reject in part.rejects], part.rows_used) == (["no_name"], 1)


@pytest.mark.parametrize("key", ["watch_s", "page"])
def test_settings_below_1_are_refused(key: str) -> None:
    settings = KubernetesSettings(source="kubernetes", url="http://k8s", **{key: 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=key):
        connect(settings, configuration=Configuration())
