"""Spatial imbalance from stored minutes: the edges, and against what the pass over samples gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from polars.io.plugins import register_io_source
from random_cluster import Cluster, random_cluster

from jobframes import frame
from madelake import NOW, configured, make_lake, utc
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import JOB_GPUS, JOB_MINUTES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_summaries
from tachograph.pipeline.run import analyze
from tachograph.pipeline.windows import spatial_imbalance, spatial_imbalances, with_gpus_measured

NAMES = ("spatial_imbalance", "spatial_windows", "spatial_zero_fraction")
Level = tuple[float | None, int] | None


def minutes(start: datetime, *gpus: Sequence[Level], **given: Any) -> list[dict[str, Any]]:
    """Rows of GPU 0, 1, ...: each level is (mean, samples) of a minute; None: no row."""
    return [
        {"job_key": "c:1:1", "job_id": "1", "seq": 1, "node": "n1", "gpu": gpu, "minute": minute}
        | {"t": start + timedelta(minutes=minute), "gpu_util": level[0], "samples": level[1]}
        | given
        for gpu, levels in enumerate(gpus)
        for minute, level in enumerate(levels)
        if level is not None
    ]


def computed(
    rows: list[dict[str, Any]],
    *jobs: tuple[str, int, int | None],
    **option: Any,
) -> list[tuple[Any, ...]]:
    """(imbalance, windows, zero fraction) of jobs (job_key, seq, gpus)."""
    named = pl.DataFrame(
        list(jobs), schema={"job_key": pl.String, "seq": pl.Int64, "gpus": pl.Int64}, orient="row"
    )
    found = spatial_imbalance(frame(JOB_MINUTES, rows).lazy(), named, frame(JOB_GPUS, []), **option)
    assert found.columns == ["job_key", *NAMES]
    assert found.get_column("job_key").to_list() == [key for key, _, _ in jobs]
    return found.select(NAMES).rows()


def test_single_gpu_nothing_active_nothing_measured_and_others() -> None:
    start = utc(23, 12)
    rows = [
        *minutes(start, [(0.5, 6)] * 3),
        *minutes(start, [(0.0, 6)] * 3, [(0.0, 6)] * 3, job_key="c:2:1"),
        *minutes(start, [(None, 6)] * 3, [(None, 6)] * 3, job_key="c:3:1"),
        *minutes(start, [(1.0, 6)] * 3, job_key="c:4:1", seq=1),
        *minutes(start, [(1.0, 6)] * 3, [(1.0, 6)] * 3, job_key="c:4:1", seq=2),
        *minutes(start, [(1.0, 6)] * 3, job_key="c:9:1"),
    ]
    jobs = [
        ("c:4:1", 2, 2),
        ("c:3:1", 1, 2),
        ("c:2:1", 1, 2),
        ("c:1:1", 1, 1),
        ("c:5:1", 1, 4),
        ("c:1:1", 1, None),
    ]
    assert computed(rows, *jobs, window_s=60) == [
        (0.0, 3, 0.0),
        (None, None, None),
        (None, 3, 1.0),
        (None, 3, 0.0),
        (None, None, None),
        (None, 3, 0.0),
    ]
    assert computed([], ("c:1:1", 1, 2), window_s=900) == [(None, None, None)]
    assert computed(rows, window_s=900) == []


@pytest.mark.parametrize("window_s", [0, -60, 90])
def test_windows_are_of_whole_minutes(window_s: int) -> None:
    with pytest.raises(ConfigError, match=rf"{window_s} s"):
        computed([], ("c:1:1", 1, 2), window_s=window_s)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Six nodes over two midnights, utilisation in each sample (but of a node without), jobs of
    one GPU and of many.
    """
    cluster: Cluster = random_cluster(11)
    for row in cluster.samples:
        if row["gpu_util"] is None and row["node"] != "n4":
            row["gpu_util"] = 0.125
    return make_lake(tmp_path_factory.mktemp("windows") / "lake", **cluster.tables())


@pytest.mark.parametrize(("window_s", "count_zero"), [(300, False), (900, True)])
def test_equal_to_the_pass_over_samples(lake: Lake, window_s: int, *, count_zero: bool) -> None:
    """Rows of the analyses before lie in the same table and do not count."""
    options = AnalysisOptions(window_s=window_s, count_zero_windows=count_zero)
    analyze(lake, configured(analysis=options), judge=JobJudge, now=NOW, full=True)
    jobs = read_summaries(lake)
    gpus = read_gpus(lake, jobs)
    measured = with_gpus_measured(jobs, gpus)
    found = spatial_imbalance(
        lake.scan(JOB_MINUTES), measured, gpus, window_s=window_s, count_zero_windows=count_zero
    )
    assert found.height == jobs.height
    assert found.get_column("spatial_imbalance").count() >= 10
    for mine, theirs in zip(found.iter_rows(named=True), jobs.iter_rows(named=True), strict=True):
        assert [mine[name] for name in NAMES] == pytest.approx(
            [theirs[name] for name in NAMES], abs=1e-6
        ), theirs


def test_minutes_are_read_once_for_all_lengths() -> None:
    """The days are found in one pass; then each is read once, whatever the number of lengths."""
    begin = datetime(2026, 4, 23, 23, 20, tzinfo=UTC)
    levels = [(0.25 + 0.5 * (minute % 3 == 0), 6) for minute in range(70)]
    rows = frame(JOB_MINUTES, minutes(begin, levels, levels[::-1], levels[:40]))
    jobs = pl.DataFrame({"job_key": ["c:1:1"], "seq": [1], "gpus": [3]})
    passes = 0

    def scan_rows(
        columns: list[str] | None, condition: pl.Expr | None, _rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        nonlocal passes
        passes += 1
        met = rows if condition is None else rows.filter(condition)
        yield met if columns is None else met.select(columns)

    source = register_io_source(scan_rows, schema=rows.schema)
    gpus = frame(JOB_GPUS, [])
    of_lengths = spatial_imbalances(source, jobs, gpus, windows_s=(60, 300, 900))
    assert passes == 3
    for window_s, imbalance in of_lengths.items():
        assert imbalance.equals(spatial_imbalance(rows.lazy(), jobs, gpus, window_s=window_s))
        assert imbalance["spatial_windows"].to_list() == [-(-70 * 60 // window_s)]
    shortest, *_, longest = (each["spatial_imbalance"].item() for each in of_lengths.values())
    assert shortest != longest
