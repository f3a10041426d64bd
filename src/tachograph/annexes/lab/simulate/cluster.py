"""Writes a simulated cluster into a folder, with its ground truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tachograph.annexes.lab.simulate import accounting
from tachograph.annexes.lab.simulate.habits import HABITS_FILE, habit_requests, write_habits
from tachograph.annexes.lab.simulate.hosts import write_hosts
from tachograph.annexes.lab.simulate.nodes import (
    NODES_FILE,
    away_frame,
    plan_away,
    write_nodes,
)
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.samples import Occupancy
from tachograph.annexes.lab.simulate.shared_gpus import SHARING_FILE, sharing_runs, write_sharing
from tachograph.annexes.lab.simulate.telemetry import write_telemetry
from tachograph.annexes.lab.simulate.truth import (
    CLASSES_FILE,
    classes_frame,
    gpus_frame,
    jobs_frame,
)
from tachograph.annexes.lab.simulate.workload import (
    SimulatedRequest,
    place_runs,
    sample_requests,
)
from tachograph.catalog.errors import LakeError, UsageError, cure_unwritable


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """Locations of the simulated cluster's parts, and its ground truth.

    jobs: one row per run of a job (`truth.jobs_frame`); gpus: one row per run and GPU
    (`truth.gpus_frame`); defects: one row per planted defect (`defects.SCHEMA`). `rows` is the
    number of rows in all telemetry files of GPUs. hosts: files of what hosts count, where the plan
    has them; what is wrong with those is in truth/hosts.parquet.
    """

    plan: SimulationPlan
    folder: Path
    telemetry: tuple[Path, ...]
    rows: int
    jobs: pl.DataFrame
    gpus: pl.DataFrame
    defects: pl.DataFrame
    hosts: tuple[Path, ...] = ()

    @property
    def accounting(self) -> Path:
        """Slurm's accounting."""
        return self.folder / "accounting" / "sacct.txt"

    @property
    def gpu_map(self) -> Path:
        """The map of jobs to GPUs on shared nodes."""
        return self.folder / "allocations" / "gpu_map.csv"

    @property
    def devices(self) -> Path:
        """The GPUs."""
        return self.folder / "devices.csv"

    @property
    def nodes(self) -> Path:
        """Folder of polls of nodes, node events and reservations, where the plan has them."""
        return self.folder / "nodes"

    @property
    def configuration(self) -> Path:
        """The site's configuration."""
        return self.folder / "tachograph.toml"


def simulate(
    plan: SimulationPlan,
    folder: str | Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    take: Callable[[Path], None] | None = None,
    requests: Sequence[SimulatedRequest] = (),
) -> SimulatedCluster:
    """Write the simulated cluster into `folder` and return it with its truth.

    `requests`: of jobs in place of those of the plan.

    Memory is bounded by `plan.rows_per_file` and by the jobs, not by the length of the recording.
    The same plan gives the same files. `progress(samples done, samples in all)` is called after
    each file of GPUs. `take` is called with each file of telemetry, which is its own from then on:
    the cluster lists none. Errors: UsageError when the folder already holds something; LakeError
    when it cannot be written.
    """
    root = Path(folder)
    try:
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UsageError("not an empty folder", where=str(root), do="name a new folder")
        return _simulate(plan, root, progress, take, requests)
    except OSError as problem:
        raise LakeError(
            problem.strerror or str(problem),
            where=str(root),
            do=cure_unwritable(problem, "name another folder"),
        ) from None


def _simulate(
    plan: SimulationPlan,
    root: Path,
    progress: Callable[[int, int], None] | None,
    take: Callable[[Path], None] | None,
    requests: Sequence[SimulatedRequest],
) -> SimulatedCluster:
    for part in ("telemetry", "accounting", "allocations", "truth"):
        (root / part).mkdir(parents=True, exist_ok=True)
    if plan.shared_gpus:
        runs = sharing_runs(plan)
    else:
        if not requests:
            requests = habit_requests(plan) if plan.recorded_days else sample_requests(plan)
        runs = place_runs(plan, requests)
    held = Occupancy.of(runs)
    files, rows, sums, log = write_telemetry(plan, root / "telemetry", held, progress, take=take)
    hosts: list[Path] = []
    if plan.hosts:
        hosts, of_hosts = write_hosts(plan, root / "telemetry", held, take=take)
        of_hosts.write_parquet(root / "truth" / "hosts.parquet")
    defects = log.frame()
    gpus = gpus_frame(plan, held, sums, defects)
    jobs = jobs_frame(plan, runs, gpus)
    cluster = SimulatedCluster(plan, root, tuple(files), rows, jobs, gpus, defects, tuple(hosts))
    accounting.write_accounting(plan, cluster.accounting, runs)
    accounting.write_gpu_map(plan, cluster.gpu_map, runs)
    accounting.write_devices(plan, cluster.devices)
    accounting.write_devices_mapping(cluster.devices.with_suffix(".toml"))
    accounting.write_configuration(plan, cluster.configuration)
    if plan.nodes_away:
        away = plan_away(plan, runs)
        write_nodes(plan, cluster.nodes, runs, away)
        away_frame(plan, away).write_parquet(root / "truth" / NODES_FILE)
    if take is not None:
        (root / "telemetry").rmdir()
    for name, frame in (
        ("jobs", cluster.jobs),
        ("gpus", cluster.gpus),
        ("defects", cluster.defects),
    ):
        frame.write_parquet(root / "truth" / f"{name}.parquet")
    if plan.judged_jobs:
        classes_frame(plan, runs).write_parquet(root / "truth" / CLASSES_FILE)
    if plan.shared_gpus:
        write_sharing(root / "truth" / SHARING_FILE, plan, runs)
    if plan.recorded_days:
        accounting.write_partitions(plan, root / "partitions.txt")
        write_habits(root / "truth" / HABITS_FILE, requests)
    return cluster
