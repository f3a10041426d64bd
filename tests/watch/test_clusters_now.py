"""Two clusters with nodes, GPUs and jobs of the same names: each GPU once, with its own job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from watching import snapshot_of

import tachograph
from served_entries import until
from servers.exporter import exporter
from tachograph.annexes.serve.snapshot import running_jobs
from tachograph.annexes.watch import served_fleet
from tachograph.annexes.watch.live.allocations import (
    AllocatedSource,
    SlurmAllocations,
    free_gpus,
    merged_allocations,
)
from tachograph.annexes.watch.live.collected_source import CollectedSource
from tachograph.annexes.watch.live.discovery import SourceOpeners, SourceRequest, choose_source
from tachograph.annexes.watch.live.fleet_report import FleetChoice, build_fleet_report
from tachograph.annexes.watch.live.job_classes import LiveJobClasses
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.render import json_rows
from tachograph.annexes.watch.live.selection import SelectedSource, gpu_terms
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
)
from tachograph.annexes.watch.live.sources.recording import connect
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.annexes.watch.served_fleet import (
    FleetWatch,
    LiveState,
    fleet_of,
    fleet_report,
    visible_allocations,
)
from tachograph.annexes.watch.tui.job_table import rows_of_job
from tachograph.api.pages import PageView
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.chunks import Chunk, ChunkPart, of_cluster
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import TABLES
from tachograph.collect.lock import CollectLock
from tachograph.collect.newest import NewestPublisher
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.workload.settings import WorkloadSettings
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.places import ClusterNames
from tachograph.lake.query import read_summaries
from tachograph.pipeline.run import analyze

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
START = NOW - timedelta(hours=1)
UTIL = {"a": 0.25, "b": 0.75}
OWNER = {"a": "ana", "b": "bo"}
ANA, BO = Viewer("ana", Role.USER), Viewer("bo", Role.USER)


def part(table: str, *rows: dict[str, Any]) -> ChunkPart:
    schema = dict(TABLES[table].empty().drop("seq").schema)
    return ChunkPart(table, pl.DataFrame(list(rows), schema=schema))


def telemetry(cluster: str, *, shared: str = "n1") -> tuple[ChunkPart, ...]:
    """GPU 0 of n1, which both clusters have, and of a node that only this one has."""
    gpus = [{"node": node, "gpu": 0, "mig": None} for node in (shared, f"only-{cluster}")]
    times = [START + timedelta(minutes=minute) for minute in range(60)] + [NOW]
    samples = [gpu | {"t": t, "gpu_util": UTIL[cluster]} for gpu in gpus for t in times]
    devices = [gpu | {"uuid": f"GPU-{cluster}-{gpu['node']}"} for gpu in gpus]
    return part("gpu_samples", *samples), part("devices", *devices)


def accounting(cluster: str, *, node: str = "n1") -> tuple[ChunkPart, ...]:
    """Job 7 runs on GPU 0 of n1, in each cluster another user's."""
    rows = {"job_id": "7", "display_id": "7", "user": OWNER[cluster], "gpus": 1, "start": START}
    rows |= {"submit": START, "state": "RUNNING", "nodes": 1, "node_list": node}
    place = {"job_id": "7", "node": node, "gpu": 0, "provenance": "live_index", "start": START}
    return part("jobs", rows), part("allocations", place)


def publish(
    folder: Path, name: str, source: str, parts: tuple[ChunkPart, ...], cluster: str
) -> None:
    publisher = NewestPublisher(folder, name, 60.0)
    publisher.add(of_cluster(Chunk(source, source, "test", parts, 1), cluster), NOW)
    publisher.publish(NOW)


def polled_of(
    folder: Path,
    polls: Iterable[tuple[str, str, str, tuple[ChunkPart, ...]]],
    names: ClusterNames | None = None,
) -> Snapshot:
    """What a collector polled: of each of its sources the name, kind, cluster and rows."""
    state = folder / "_collect"
    with CollectLock(state).held(now=NOW, pause=time.sleep):
        for name, source, cluster, parts in polls:
            publish(state, name, source, parts, cluster)
        clock = NOW.timestamp() + 1
        return CollectedSource(state, names=names, clock=lambda: clock).read()


@pytest.fixture
def collected(tmp_path: Path) -> Iterator[Snapshot]:
    """What a collector of both clusters has polled."""
    folder = tmp_path / "_collect"
    with CollectLock(folder).held(now=NOW, pause=time.sleep):
        for cluster in "ab":
            publish(folder, f"exporters {cluster}", "dcgm-exporter", telemetry(cluster), cluster)
            publish(folder, f"slurm {cluster}", "slurm-live", accounting(cluster), cluster)
        source = CollectedSource(folder, clock=lambda: NOW.timestamp() + 1)
        slurm = source.slurm(SlurmAllocations, minor_numbers=True)
        snapshot = source.read()
        assert "4 GPUs of 4 nodes" in source.about.sentence
        allocated = AllocatedSource(source, lambda: slurm)
        allocated.wait()
        yield allocated.read()
        allocated.close()
        assert snapshot.gpus


@pytest.fixture
def stored(tmp_path: Path) -> Snapshot:
    """The last instant of a lake of both clusters."""
    lake = Lake.create(str(tmp_path))
    for cluster in "ab":
        chunk = Chunk("all", "made", "all", telemetry(cluster) + accounting(cluster), 1)
        ingest(lake, [of_cluster(chunk, cluster)], now=NOW)
    return connect(Configuration(), path=lake.location).read()


@pytest.fixture(params=["collected", "stored"])
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    found: Snapshot = request.getfixturevalue(request.param)
    return found


def viewed(snapshot: Snapshot) -> FleetView:
    about = SourceInfo("collect", "made")
    monitor = Monitor(about, settings=WorkloadSettings(), history=GpuHistory(2))
    return monitor.step(snapshot)


def test_each_gpu_is_shown_once_with_its_values_and_its_job(snapshot: Snapshot) -> None:
    rows = {
        (row["cluster"], row["node"]): (row["gpu_util"], row["uuid"], row["job_id"], row["user"])
        for row in json_rows(viewed(snapshot))
    }
    assert len(snapshot.gpus) == len(rows) == 4
    for cluster, util in UTIL.items():
        near = pytest.approx(util, rel=1e-6)
        uuid = f"GPU-{cluster}-n1"
        assert rows[cluster, "n1"] == (near, uuid, "7", OWNER[cluster])
        assert rows[cluster, f"only-{cluster}"][0] == near
        assert rows[cluster, f"only-{cluster}"][2] is None


def test_groups_and_the_map_name_the_cluster(snapshot: Snapshot) -> None:
    by_job = build_fleet_report(viewed(snapshot), FleetChoice(by="job"))
    counts = {cells[0]: cells[1] for cells in by_job.groups.cells}
    assert (counts["a/7"], counts["b/7"]) == ("1", "1")
    by_node = build_fleet_report(viewed(snapshot), FleetChoice())
    nodes = ["a/n1", "a/only-a", "b/n1", "b/only-b"]
    assert sorted(by_node.groups.keys) == nodes
    assert dict(by_node.nodes) == {node: (f"{node}:0",) for node in nodes}
    assert len(set(by_node.gpus.keys)) == 4


def test_jobs_of_one_id_are_judged_apart(snapshot: Snapshot) -> None:
    classes = LiveJobClasses(Configuration())
    view = viewed(snapshot)
    assert {"a/7", "b/7"} == set(classes.step(view))
    assert [len(rows_of_job(view.snapshot, name)) for name in ("a/7", "b/7")] == [1, 1]


def test_a_user_sees_no_gpu_of_a_namesake(snapshot: Snapshot) -> None:
    """Not even where Slurm reports no users."""
    frame = pl.DataFrame(
        [("7", "7", "ana", "x", "p", "a", None)],
        schema=["job_id", "display_id", "user", "account", "partition", "cluster", "end"],
        orient="row",
    )
    running = running_jobs(frame)
    unnamed = {gpu: GpuAllocation(held.job_id) for gpu, held in snapshot.allocations.items()}
    for allocations in (snapshot.allocations, unnamed):
        visible = visible_allocations(allocations, ANA, running)
        assert [(gpu.cluster, gpu.node) for gpu in visible] == [("a", "n1")]
    report = fleet_report(LiveState(1, viewed(snapshot)), FleetChoice(by="partition"), ANA, running)
    assert report is not None
    assert [cells[:2] for cells in report.groups.cells] == [("p", "1")]


def test_a_job_of_one_cluster_is_selected_by_its_name_with_the_cluster(snapshot: Snapshot) -> None:
    class Source:
        about = viewed(snapshot).about

        def read(self) -> Snapshot:
            return snapshot

        def close(self) -> None:
            """Nothing is open."""

    openers = SourceOpeners({}, {}, recording=lambda configuration, wanted: Source())

    def names(*, job: str | None = None, gpus: str | None = None) -> list[str]:
        request = SourceRequest(recording="x", job=job, gpus=gpus)
        chosen = choose_source(Configuration(), request, environment={}, openers=openers)
        return [gpu.name for gpu in chosen.read().gpus]

    assert names(job="b/7") == ["b/n1:0"]
    with pytest.raises(UsageError, match="several clusters have a job 7; write a/7 or b/7"):
        names(job="7")
    assert names(gpus="b/n1:0") == ["b/n1:0"]
    assert names(gpus="n1:0") == ["a/n1:0", "b/n1:0"]
    assert gpu_terms("b/n1:0")[0].node == "b/n1"


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_lake_shows_jobs_of_clusters_that_telemetry_calls_otherwise(
    *, analyzed: bool, tmp_path: Path
) -> None:
    """By the names of the accounting, also before the first analysis."""
    lake = Lake.create(str(tmp_path))
    for cluster in "ab":
        node = f"n1-{cluster}"
        for name, parts in (
            (cluster, accounting(cluster, node=node)),
            (f"{cluster}-dcgm", telemetry(cluster, shared=node)),
        ):
            chunk = Chunk(name, "made", name, parts, 1)
            ingest(lake, [of_cluster(chunk, name)], now=NOW)
    if analyzed:
        analyze(lake, Configuration(), judge=JobJudge, now=NOW)
    shown = connect(Configuration(), path=lake.location).read()
    held = {gpu.name: (of.job_id, of.user) for gpu, of in shown.allocations.items()}
    assert held == {"a/n1-a:0": ("7", "ana"), "b/n1-b:0": ("7", "bo")}


def of_two_accountings(folder: Path) -> Lake:
    """Return a lake of clusters a and b: telemetry has a alone, as `prod-gpu`, and all of it.

    Both have a job 7 that runs, on other nodes.
    """
    lake = Lake.create(str(folder))
    for name, parts in (
        ("a", accounting("a")),
        ("b", accounting("b", node="n9")),
        ("prod-gpu", telemetry("a")),
    ):
        ingest(lake, [of_cluster(Chunk(name, "made", name, parts, 1), name)], now=NOW)
    return lake


def labelled_gpus(folder: Path, names: ClusterNames) -> Snapshot:
    """Return what a collector polled of `prod-gpu`: a label names job 7, and no user."""
    label = {"job_id": "7", "node": "n1", "gpu": 0, "provenance": "samples", "start": START}
    parts = (*telemetry("a"), part("allocations", label))
    return polled_of(folder, [("exporters", "dcgm-exporter", "prod-gpu", parts)], names)


def polled_gpus(folder: Path, names: ClusterNames) -> Snapshot:
    """Return the same, as the server of the lake polls it."""
    pages = {"n1": {0: {"DCGM_FI_DEV_GPU_UTIL": 25}}}
    with exporter(pages) as server:
        server.hold("n1", 0, "7")
        entry = {"source": "dcgm-exporter", "urls": server.urls, "cluster": "prod-gpu"}
        configuration = Configuration(sources=(entry,))
        opened = tachograph.open(str(folder))
        view = SimpleNamespace(
            simulated=None,
            configuration=configuration,
            opened=opened,
            shared=lambda _, make: make(),
        )
        with closing(fleet_of(cast("PageView", view))) as watch:
            shown = watch.state(wait_s=600.0).view
        assert shown is not None
        return shown.snapshot


def recorded_gpus(folder: Path, names: ClusterNames) -> Snapshot:
    """Return the last instant of the lake."""
    return connect(Configuration(), path=str(folder)).read()


@pytest.mark.parametrize("shown", [labelled_gpus, polled_gpus, recorded_gpus])
def test_a_user_sees_own_gpus_where_telemetry_names_the_cluster_otherwise(
    shown: Callable[[Path, ClusterNames], Snapshot], tmp_path: Path
) -> None:
    """A namesake of the other cluster, whose accounting is in the lake, sees nothing."""
    lake = of_two_accountings(tmp_path)
    analyze(lake, Configuration(), judge=JobJudge, now=NOW)
    names = ClusterNames.of(lake)
    assert names == ClusterNames({"prod-gpu": "a"}, frozenset("ab"))
    allocations = shown(tmp_path, names).allocations
    jobs = read_summaries(lake, where=pl.col("end").is_null())
    for viewer in (ANA, BO):
        running = running_jobs(jobs.filter(viewer.visible()), jobs)
        visible = visible_allocations(allocations, viewer, running)
        assert [gpu.name for gpu in visible] == (["a/n1:0"] if viewer is ANA else [])


def test_the_server_opens_its_source_anew_when_the_lake_has_other_names_of_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_fleet, "RETRY_S", 0.0)
    known = [ClusterNames()]
    requests: list[SourceRequest] = []

    def opened(request: SourceRequest) -> SelectedSource:
        requests.append(request)
        return SelectedSource(SimulatedSource(1), None)

    wanted = SourceRequest(simulate=1)
    watch = FleetWatch(Configuration(), "nowhere", wanted, opener=opened, names=lambda: known[-1])
    watch.interval_s = 0.01
    until(lambda: watch.state(wait_s=60.0).view is not None)
    assert [request.names for request in requests] == known
    known.append(ClusterNames({"prod-gpu": "a"}))
    until(lambda: len(requests) > 1)
    watch.close()
    assert [request.names for request in requests[:2]] == known


def test_a_gpu_without_a_cluster_is_of_no_job_that_two_clusters_have() -> None:
    """Also where the viewer sees but one of the two."""
    names = ["job_id", "user", "cluster"]
    jobs = pl.DataFrame([("7", "ana", "a"), ("7", "bo", "b")], schema=names, orient="row")
    jobs = jobs.with_columns(
        display_id="job_id",
        account=pl.lit("x"),
        partition=pl.lit("p"),
        end=pl.lit(None),
    )
    mine = jobs.filter(user="ana")
    for running in (running_jobs(jobs), running_jobs(mine, jobs)):
        assert visible_allocations({PLAIN: GpuAllocation("7")}, ANA, running) == {}
        assert visible_allocations({A: GpuAllocation("7")}, ANA, running) != {}
    alone = running_jobs(mine, mine)
    assert visible_allocations({PLAIN: GpuAllocation("7")}, ANA, alone) != {}


A, B, PLAIN = GpuId("n1", 0, cluster="a"), GpuId("n1", 0, cluster="b"), GpuId("n1", 0)
OF_A, OF_B = GpuAllocation("7", "ana"), GpuAllocation("7", "bo")
PLACE = ("n1", 0)
IDLE_OF_B = GpuId("n2", 0, cluster="b")


@pytest.mark.parametrize(
    ("gpus", "slurm", "found"),
    [
        ((A, B), {"a": OF_A, "b": OF_B}, {A: OF_A, B: OF_B}),
        ((A, B), {"b": OF_B}, {B: OF_B}),
        ((PLAIN,), {"hpc": OF_A}, {PLAIN: OF_A}),  # one of each: names need not be the same
        ((PLAIN,), {None: OF_A}, {PLAIN: OF_A}),
        ((PLAIN,), {"a": OF_A, "b": OF_B}, {}),  # of either
        ((A, B), {None: OF_A}, {}),
        ((A, B), {"hpc": OF_A}, {}),
        ((A, IDLE_OF_B), {"b": OF_B}, {}),  # n1 is also one of b, without telemetry
    ],
)
def test_slurm_names_the_holder_only_where_the_cluster_is_certain(
    gpus: tuple[GpuId, ...],
    slurm: dict[str | None, GpuAllocation],
    found: dict[GpuId, GpuAllocation],
) -> None:
    snapshot = snapshot_of(dict.fromkeys(gpus, GpuDevice()))
    reported = SlurmAllocations(
        {cluster: {PLACE: held} for cluster, held in slurm.items()},
        {cluster: {"7": held} for cluster, held in slurm.items()},
        complete=True,
    )
    assert merged_allocations(snapshot, reported) == found
    # what is not certain is not free
    assert free_gpus(snapshot, reported) <= {IDLE_OF_B}
    labelled = snapshot_of(
        dict.fromkeys(gpus, GpuDevice()),
        allocations=dict.fromkeys(gpus, GpuAllocation("7")),
    )
    users = {gpu: of.user for gpu, of in merged_allocations(labelled, reported).items() if of.user}
    certain = {gpu: of.user for gpu, of in found.items()}
    assert {gpu: users[gpu] for gpu in certain} == certain


def test_a_label_is_of_a_job_on_unknown_gpus_only_where_no_cluster_is_named() -> None:
    """Slurm may report a job without its GPUs; that of a named cluster can be another one."""
    reported = SlurmAllocations(jobs={"hpc": {"7": OF_A}})
    for label, user in ((PLAIN, "ana"), (A, None)):
        labelled = snapshot_of({label: GpuDevice()}, allocations={label: GpuAllocation("7")})
        assert merged_allocations(labelled, reported)[label].user == user


def test_slurm_of_another_cluster_of_the_accounting_names_no_holder() -> None:
    """No job of a runs: job 7 of b, on a node of the same name, holds none of the GPUs of a."""
    reported = SlurmAllocations({"b": {PLACE: OF_B}}, {"b": {"7": OF_B}}, complete=True)
    alone = snapshot_of({A: GpuDevice()})
    labelled = snapshot_of({A: GpuDevice()}, allocations={A: GpuAllocation("7")})
    assert merged_allocations(alone, reported) == {A: OF_B}  # a may be its name in telemetry
    both = replace(reported, accounted=frozenset("ab"))
    assert merged_allocations(alone, both) == {}
    assert free_gpus(alone, both) == frozenset()
    assert merged_allocations(labelled, both) == {A: GpuAllocation("7")}


@pytest.mark.parametrize(
    ("label", "user"),
    [
        (GpuId("n1", 0, cluster="ai-dcgm"), "ana"),
        (GpuId("n9", 0, cluster="ai-dcgm"), None),  # the job is on n1 of another cluster
        (GpuId("n9", 0), None),
    ],
)
def test_a_label_is_of_a_job_that_slurm_has_on_the_node(label: GpuId, user: str | None) -> None:
    other = GpuId("n2", 0, cluster=label.cluster and "hpc-dcgm")
    snapshot = snapshot_of(
        {label: GpuDevice(), other: GpuDevice()}, allocations={label: GpuAllocation("7")}
    )
    reported = SlurmAllocations({"hpc": {PLACE: OF_A}}, {"hpc": {"7": OF_A}}, complete=True)
    assert merged_allocations(snapshot, reported)[label].user == user


def test_a_gpu_of_a_cluster_that_slurm_may_not_answer_for_is_not_free() -> None:
    gpus = GpuId("n1", 0, cluster="hpc-dcgm"), GpuId("n5", 0, cluster="ai-dcgm")
    reported = SlurmAllocations({"hpc": {PLACE: OF_A}}, {"hpc": {"7": OF_A}}, complete=True)
    assert free_gpus(snapshot_of(dict.fromkeys(gpus, GpuDevice())), reported) == frozenset()


def test_one_cluster_is_not_named(tmp_path: Path) -> None:
    sources = ("exporters", "dcgm-exporter", "a"), ("others", "prometheus", "")
    shown = polled_of(tmp_path, [(*source, telemetry("a")) for source in sources])
    assert shown.gpus == (GpuId("n1", 0), GpuId("only-a", 0))


def test_rows_without_a_cluster_are_of_the_only_one_that_has_the_node(tmp_path: Path) -> None:
    exporters = [(cluster, "dcgm-exporter", cluster, telemetry(cluster)) for cluster in "ab"]
    shown = polled_of(tmp_path, [*exporters, ("others", "prometheus", "", telemetry("a"))])
    names = [gpu.name for gpu in shown.gpus]
    assert sorted(names) == ["a/n1:0", "a/only-a:0", "b/n1:0", "b/only-b:0", "n1:0"]


def test_the_name_in_telemetry_is_replaced_on_a_node_of_two_clusters(tmp_path: Path) -> None:
    clusters = (("a", "prod-gpu"), ("b", "b"))
    polls = [(name, "dcgm-exporter", name, telemetry(cluster)) for cluster, name in clusters]
    shown = polled_of(tmp_path, polls, ClusterNames({"prod-gpu": "a"}))
    gpus = {gpu.name: util for gpu, util in zip(shown.gpus, shown.values["gpu_util"], strict=True)}
    near = {name: pytest.approx(util, rel=1e-6) for name, util in UTIL.items()}
    assert gpus == {
        f"{name}/{node}:0": near[name] for name in "ab" for node in ("n1", f"only-{name}")
    }
