"""A lake filled straight away holds what the files, ingested and compacted, hold; whatever happens in between."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from tachograph.catalog.errors import LakeError, UsageError
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, JOBS, REJECTS
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.service.fill import fill
from tachograph.simulate.cluster import SimulatedCluster, simulate
from tachograph.simulate.defects import DefectKind
from tachograph.simulate.plan import PIPE_COUNTERS, NodeGroup, SimulationPlan
from tachograph.sources import ldms

PLAN = SimulationPlan(
    seed=5,
    days=3,
    groups=(NodeGroup(9, 4, "A100 SXM 40GB"), NodeGroup(5, 3, "A40", lacks=PIPE_COUNTERS)),
    interval_s=60,
    rows_per_file=20_000,
    median_hours=1.0,
)


def by_files(plan: SimulationPlan, folder: Path) -> tuple[SimulatedCluster, Lake]:
    """Simulated, ingested, compacted."""
    cluster = simulate(plan, folder / "cluster")
    lake = Lake.create(str(folder / "lake"))
    for file in cluster.telemetry:
        ingest(lake, ldms.read_file(file), now=datetime.now(UTC))
    compact(lake, [GPU_SAMPLES])
    return cluster, lake


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[SimulatedCluster, Lake]:
    """By files."""
    return by_files(PLAN, tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Straight away."""
    folder = tmp_path_factory.mktemp("filled")
    report = fill(PLAN, str(folder / "lake"), folder / "cluster", processes=1)
    assert report.samples == PLAN.samples
    return Lake.open(str(folder / "lake"))


def samples(lake: Lake) -> pl.DataFrame:
    """Without the version in which a row landed, in order of key."""
    return lake.latest(GPU_SAMPLES).drop("seq")


def removed(lake: Lake) -> Counter[tuple[str, str | None]]:
    rows = lake.latest(REJECTS).filter(pl.col("target") == GPU_SAMPLES.name)
    counted: Counter[tuple[str, str | None]] = Counter()
    for row in rows.iter_rows(named=True):
        counted[row["reason"], row["column"]] += row["removed"]
    return counted


@pytest.mark.slow
def test_samples_are_the_same_bit_by_bit(written: tuple[SimulatedCluster, Lake], filled: Lake) -> None:
    cluster, lake = written
    kinds = set(cluster.defects["kind"])
    assert kinds == {kind.value for kind in DefectKind} - {DefectKind.GPU_GAP.value}  # of jobs that stop alone
    theirs = samples(lake)
    assert 0.9 * PLAN.samples < theirs.height < PLAN.samples
    assert_same_bits(samples(filled), theirs)


@pytest.mark.slow
def test_samples_of_jobs_that_stop_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    plan = replace(PLAN, stopped_jobs=12)
    cluster, lake = by_files(plan, tmp_path / "written")
    assert DefectKind.GPU_GAP in set(cluster.defects["kind"])
    fill(plan, str(tmp_path / "lake"), tmp_path / "cluster", processes=1)
    assert_same_bits(samples(Lake.open(str(tmp_path / "lake"))), samples(lake))


@pytest.mark.slow
def test_samples_of_the_month_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    groups = (NodeGroup(5, 4, "A100 SXM 40GB"), NodeGroup(2, 4, "A100 SXM 80GB"))
    plan = replace(SimulationPlan.month(), days=2, groups=groups, interval_s=60, rows_per_file=20_000)
    _, lake = by_files(plan, tmp_path / "written")
    fill(plan, str(tmp_path / "lake"), tmp_path / "cluster", processes=1)
    assert_same_bits(samples(Lake.open(str(tmp_path / "lake"))), samples(lake))


def assert_same_bits(ours: pl.DataFrame, theirs: pl.DataFrame) -> None:
    assert ours.schema == theirs.schema
    for name, dtype in ours.schema.items():
        bits = [(frame[name].reinterpret(signed=True) if dtype.is_float() else frame[name]) for frame in (ours, theirs)]
        assert bits[0].equals(bits[1], null_equal=True), name


def test_what_was_removed_is_counted_the_same(written: tuple[SimulatedCluster, Lake], filled: Lake) -> None:
    assert removed(filled) == removed(written[1])
    assert removed(filled)["duplicate", None] > 0


def test_each_chunk_is_one_file_that_compaction_leaves(filled: Lake) -> None:
    files = filled.files(GPU_SAMPLES)
    assert len({(file.day, file.low) for file in files}) == len(files) >= 2 * PLAN.days
    assert compact(filled, [GPU_SAMPLES], rows=PLAN.rows_per_file)[0].days == 0


def test_accounting_devices_and_truth_are_there(written: tuple[SimulatedCluster, Lake], filled: Lake) -> None:
    cluster, _ = written
    folder = Path(filled.location).parent / "cluster"
    truth = pl.read_parquet(folder / "truth" / "jobs.parquet")
    shared = ["run", "job_id", "submit", "start", "end", "state", "kind", "problem", "gpus", "expected_gpu_util"]
    known = cluster.jobs.filter(pl.col("submit") < PLAN.end)
    assert truth.select(shared).equals(known.select(shared))
    planted = pl.read_parquet(folder / "truth" / "defects.parquet")
    assert planted.sort(planted.columns).equals(cluster.defects.sort(planted.columns))
    jobs = filled.latest(JOBS)
    assert set(truth["job_id"]) <= set(jobs["job_id"])
    assert jobs.filter(pl.col("end").is_not_null()).height > 20
    assert filled.latest(DEVICES).height == PLAN.gpus
    assert set(filled.latest(ALLOCATIONS)["provenance"]) == {"node_list", "explicit"}


@pytest.mark.slow
def test_a_fill_goes_on_by_days_and_after_it_was_killed(
    filled: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, folder = str(tmp_path / "lake"), tmp_path / "cluster"
    landed = Lake.append
    left = [3]

    def dies(self: Lake, *given: object, **named: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return landed(self, *given, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as context:
        context.setattr(Lake, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            fill(PLAN, place, folder, days=2, processes=1)
    lake = Lake.open(place)
    assert len(lake.files(GPU_SAMPLES)) == 3
    report = fill(PLAN, place, folder, days=2, processes=1)
    assert report.chunks_known == 3
    first = PLAN.start_s + 2 * 86400
    running = lake.latest(JOBS).filter(pl.col("state") == "RUNNING")
    assert running.height > 0
    assert running.filter(pl.col("start").dt.timestamp("ms") >= first * 1000).height == 0
    whole = fill(PLAN, place, folder, processes=1)
    assert (whole.rows, whole.chunks_known) == (samples(lake).height - report_rows(lake, 2), report.chunks)
    assert samples(lake).equals(samples(filled))
    assert removed(lake) == removed(filled)
    jobs = ["job_id", "submit", "start", "end", "state", "gpus"]
    assert lake.latest(JOBS).select(jobs).sort(jobs).equals(filled.latest(JOBS).select(jobs).sort(jobs))
    again = fill(PLAN, place, folder, processes=1)
    assert (again.rows, again.chunks_known) == (0, again.chunks)
    assert again.jobs == whole.jobs


def report_rows(lake: Lake, days: int) -> int:
    """Rows of the first days."""
    return sum(file.rows for file in lake.files(GPU_SAMPLES) if file.day and file.day.day - PLAN.start.day < days)


@pytest.mark.slow
def test_processes_side_by_side_land_the_same(tmp_path: Path) -> None:
    plan = replace(PLAN, days=1, interval_s=120, rows_per_file=9000)
    fill(plan, str(tmp_path / "one"), tmp_path / "first", processes=1)
    report = fill(plan, str(tmp_path / "two"), tmp_path / "second", processes=2)
    assert report.chunks >= 4
    assert samples(Lake.open(str(tmp_path / "two"))).equals(samples(Lake.open(str(tmp_path / "one"))))


def test_another_plan_another_lake_and_lost_state_are_named(filled: Lake, tmp_path: Path) -> None:
    folder = Path(filled.location).parent / "cluster"
    with pytest.raises(UsageError, match="the folder is of another plan"):
        fill(replace(PLAN, seed=6), filled.location, folder)
    with pytest.raises(UsageError, match="the lake holds other samples"):
        fill(PLAN, filled.location, tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        fill(PLAN, str(tmp_path / "lake"), tmp_path / "old")
    with pytest.raises(UsageError, match="invalid number of days 4"):
        fill(PLAN, str(tmp_path / "lake"), tmp_path / "new", days=4)
    plan = replace(PLAN, days=2, interval_s=600)
    fill(plan, str(tmp_path / "lake"), tmp_path / "one", days=1, processes=1)
    for file in (tmp_path / "one" / "state").glob("*.npz"):
        file.unlink()
    with pytest.raises(LakeError, match="the state of the fill is gone"):
        fill(plan, str(tmp_path / "lake"), tmp_path / "one", processes=1)
