"""Summaries as in the notebooks: equal to what their definitions give from the samples of the
hand-checked jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from neighbours import neighbour
from notebook_definitions import NotebookJob, notebook_job

from jobframes import frame, summary
from tachograph.catalog.config import AnalysisOptions, Configuration, load
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.cli import main
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.run import analyze
from tachograph.pipeline.summaries import as_in_notebooks

twelve = neighbour("hand_checked", "twelve_jobs")
NOW = datetime(2025, 4, 24, 12, tzinfo=UTC)
LIKE_NOTEBOOKS = AnalysisOptions(
    count_zero_windows=True, zero_temporal_imbalance=True, pipe_percentile=False
)
Key = tuple[str, datetime]


def near(value: float | None) -> Any:
    """Samples are single precision."""
    return None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the hand-checked jobs lie in a lake, not analyzed."""
    folder = tmp_path_factory.mktemp("variants")
    twelve.write_all(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for source, file in (("ldms", "telemetry"), ("ldms", "late.csv")):
            assert main(["ingest", source, file, "--quiet"]) == 0
        assert main(["ingest", "sacct", "sacct.txt", "--trusted", "--quiet"]) == 0
        assert main(["ingest", "allocation-map", "map.csv", "--quiet"]) == 0
    return folder


def summaries(folder: Path, analysis: AnalysisOptions) -> pl.DataFrame:
    lake = Lake.open(str(folder / "tachograph-lake"))
    loaded = load(str(folder / "tachograph.toml"), {})
    configuration = Configuration(
        site=loaded.site, slurm=loaded.slurm, nodes=loaded.nodes, analysis=analysis
    )
    analyze(lake, configuration, judge=JobJudge, now=NOW, full=True)
    return read_summaries(lake)


def rows_of(run: Any, telemetry: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Samples of a run; of a shared node the GPU that the map names."""
    for node in run.nodes:
        for row in telemetry[node]:
            t = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC)
            mine = run.partition == "regular" or row["gpu_id"] == 2
            if mine and run.start <= t < run.start + timedelta(seconds=run.seconds):
                yield row | {"node": node, "gpu": row["gpu_id"], "t_s": t.timestamp()}


@pytest.fixture(scope="module")
def expected() -> dict[Key, NotebookJob]:
    """Numbers by (job id, start) of all jobs but the one whose GPU is unknown, and the one that
    still runs.
    """
    nodes = sorted({node for run in twelve.RUNS for node in run.nodes})
    telemetry = {node: list(twelve.telemetry(node).iter_rows(named=True)) for node in nodes}
    return {
        (run.job_id, run.start): notebook_job(rows_of(run, telemetry), run.seconds)
        for run in twelve.RUNS
        if run.job_id not in ("110", "113")
    }


@pytest.mark.parametrize(
    "analysis", [AnalysisOptions(), LIKE_NOTEBOOKS], ids=["paper", "notebooks"]
)
def test_equal_to_the_definitions(
    folder: Path, expected: dict[Key, NotebookJob], analysis: AnalysisOptions
) -> None:
    """Whichever way the summaries were made."""
    found = as_in_notebooks(summaries(folder, analysis), analysis)
    rows = {(row["job_id"], row["start"]): row for row in found.iter_rows(named=True)}
    assert {job for job, _ in set(rows) - set(expected)} == {"110", "113"}
    for key, wanted in expected.items():
        row = rows[key]
        assert row["gpus"] == wanted.gpus, key
        assert row["spatial_imbalance"] == near(wanted.spatial_imbalance), key
        assert row["temporal_imbalance"] == near(wanted.temporal_imbalance), key
        assert row["pipes"] == wanted.pipes, key
        assert row["hbm_peak_fraction"] == near(wanted.hbm_peak_fraction), key
        assert row["gpu_hours"] == near(wanted.gpu_hours), key
        # Two of its counters start again: the notebooks subtract the first from the last.
        if key[0] != "111":
            assert row["energy_j"] == near(wanted.energy_j), key
            assert row["power_w_mean"] == near(wanted.power_w), key


def test_it_matters(folder: Path, expected: dict[Key, NotebookJob]) -> None:
    """The paper's numbers of the same jobs are others: the test above would see a variant that
    changes nothing.
    """
    paper = {
        (row["job_id"], row["start"]): row
        for row in summaries(folder, AnalysisOptions()).iter_rows(named=True)
    }
    cold, unused, half = (
        next(key for key in expected if key[0] == job) for job in ("105", "104", "107")
    )
    assert (paper[unused]["temporal_imbalance"], expected[unused].temporal_imbalance) == (None, 0.0)
    assert paper[half]["energy_j_estimated"] == near(4 * 60 * 600.0)
    assert expected[half].energy_j == near(4 * 60 * 590.0)
    assert paper[cold]["spatial_imbalance"] == expected[cold].spatial_imbalance == 0.0


def one(**given: Any) -> dict[str, Any]:
    jobs = frame(JOB_SUMMARIES, [summary(**given)])
    return dict(as_in_notebooks(jobs, AnalysisOptions()).row(0, named=True))


def test_gpus_without_samples_do_not_count() -> None:
    """Two of four GPUs were recorded, one of them idle: 1 - 1/2 in both variants."""
    row = one(gpus_seen=2, spatial_imbalance=0.5, spatial_zero_fraction=0.0)
    assert row["spatial_imbalance"] == near(0.5)
    assert (row["gpus"], row["gpu_hours"]) == (2, near(2 * 2.0))


def test_one_threshold_for_all_pipes() -> None:
    """Of 200 jobs nearly all are far above: a percentile would require more than 0.005."""
    rows = [summary(job_key=f"c:{n}:1", fp64_active_mean=0.5, gpus_seen=4) for n in range(198)]
    rows += [
        summary(job_key=f"c:{n}:1", fp64_active_mean=value, gpus_seen=4)
        for n, value in ((1, 0.0051), (2, 0.005))
    ]
    found = as_in_notebooks(frame(JOB_SUMMARIES, rows), AnalysisOptions(pipe_threshold=0.4))
    assert found.get_column("pipes").to_list() == [["fp64"]] * 199 + [[]]
