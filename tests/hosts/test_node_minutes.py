"""Minutes of nodes: every characteristic recomputed in plain Python, whatever way the samples
came.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake.transaction import AddAction
from host_reference import node_minutes
from random_hosts import BEGIN, random_hosts

from madelake import configured, fill, held, job, make_lake, summarized, utc
from tachograph.catalog.config import AnalysisOptions, Configuration
from tachograph.catalog.tables import (
    ALL_TABLES,
    ANALYSES,
    HOST_CHARACTERISTICS,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    NODE_SAMPLES,
    LakeTable,
)
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import compact
from tachograph.lake.delta import AppendResult, Lake
from tachograph.lake.query import read_node_minutes, read_summaries
from tachograph.lake.retention import rows_that_count
from tachograph.pipeline.run import analyze
from tachograph.pipeline.state import seen_last

Key = tuple[str, str, int]
GAP = 3.5  # intervals; samples are a whole number of them apart, or far from this
WIDE = configured(analysis=AnalysisOptions(max_gap_intervals=GAP))


def read(lake: Lake) -> dict[Key, dict[str, Any]]:
    rows = read_node_minutes(lake, read_summaries(lake))
    starts = dict(read_summaries(lake).select("job_key", "start").iter_rows())
    found = {}
    for row in rows.iter_rows(named=True):
        assert row["t"] == starts[row["job_key"]] + timedelta(minutes=row["minute"])
        key = (row["job_id"], row["node"], row["minute"])
        assert key not in found
        found[key] = {name: row[name] for name in HOST_CHARACTERISTICS}
    return found


def compare(found: dict[Key, dict[str, Any]], expected: dict[Key, dict[str, Any]]) -> None:
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        for name, value in values.items():
            assert (found[key][name] is None) == (value is None), (key, name)
            assert value is None or abs(found[key][name] - value) <= 1e-5 * abs(value) + 1e-9, (
                key,
                name,
            )


@pytest.mark.parametrize(
    ("seed", "hours"), [pytest.param(1, 27.3, marks=pytest.mark.slow), (2, 6.0)]
)
def test_every_characteristic_is_what_plain_loops_make_of_it(
    seed: int, hours: float, tmp_path: Path
) -> None:
    hosts = random_hosts(seed, hours=hours)
    lake = make_lake(tmp_path / "lake", **hosts.tables())
    summarized(lake, WIDE)
    found = read(lake)
    compare(found, node_minutes(hosts.samples, hosts.stays, intervals=GAP))
    for name in HOST_CHARACTERISTICS:
        told = [values[name] for values in found.values()]
        assert any(value is not None and value > 0 for value in told), name
        assert hours < 24 or any(value is None for value in told), name
    assert {node for _, node, _ in found} == {"n1", "n2", "n3"}


@pytest.mark.slow
def test_samples_that_come_bit_by_bit_give_the_same(tmp_path: Path) -> None:
    hosts = random_hosts(4, hours=6)
    once = make_lake(tmp_path / "once", **hosts.tables())
    summarized(once, WIDE)
    lake = make_lake(tmp_path / "bits", **hosts.tables(hosts=False))
    summarized(lake, WIDE)
    assert read(lake) == {}
    assert lake.version(JOB_NODE_MINUTES) == -1
    for number, (low, high) in enumerate([(0, 2), (2, 3.5), (3.5, 99)]):
        begin, end = (BEGIN + timedelta(hours=hours) for hours in (low - 1, high - 1))
        rows = [row for row in hosts.samples if begin <= row["t"] < end]
        fill(lake, {"node_samples": rows}, chunk=f"bit {number}")
        assert analyze(lake, WIDE, judge=JobJudge, now=utc(30)).jobs > 0
    assert read(lake) == read(once)
    assert analyze(lake, WIDE, judge=JobJudge, now=utc(30)).jobs == 0


def one_node(
    *,
    seconds: Sequence[float],
    **more: Any,
) -> dict[str, Any]:
    """Tables of a job on one of the node's two GPUs or both, and the bytes its node received:
    1000 a second.
    """
    rows = [
        {"t": DAWN + timedelta(seconds=second), "node": "n1", "network_rx_bytes": 1000 * second}
        for second in seconds
    ]
    start, end = DAWN, DAWN + timedelta(minutes=10)
    return {
        "gpu_samples": [{"t": start, "node": "n1", "gpu": gpu, "gpu_util": 0.5} for gpu in (0, 1)],
        "node_samples": rows,
        "jobs": [job("1", start, end, gpus=1), *more.get("jobs", [])],
        "allocations": [*held("1", "n1", [0], start, end), *more.get("allocations", [])],
    }


DAWN = utc(10, 6)


def received(lake: Lake, job_id: str = "1") -> dict[int, float | None]:
    return {
        key[2]: row["network_rx_bytes_per_s"] for key, row in read(lake).items() if key[0] == job_id
    }


@pytest.mark.parametrize("known", [True, False])
def test_minutes_beside_another_job_are_left_out(known: bool, tmp_path: Path) -> None:
    begin, end = DAWN + timedelta(seconds=150), DAWN + timedelta(seconds=330)
    other: dict[str, Any] = {
        "jobs": [job("2", begin, end, gpus=1)],
        "allocations": held("2", "n1", [1 if known else None], begin, end),
    }
    lake = make_lake(tmp_path / "lake", **one_node(seconds=range(0, 600, 10), **other))
    summarized(lake)
    assert received(lake) == dict.fromkeys([0, 1, *range(6, 10)], 1000.0)
    assert received(lake, "2") == {}


def test_a_job_without_gpus_does_no_harm(tmp_path: Path) -> None:
    begin, end = DAWN + timedelta(seconds=150), DAWN + timedelta(seconds=330)
    other: dict[str, Any] = {
        "jobs": [job("2", begin, end, gpus=0)],
        "allocations": held("2", "n1", [None], begin, end),
    }
    lake = make_lake(tmp_path / "lake", **one_node(seconds=range(0, 600, 10), **other))
    summarized(lake)
    assert received(lake) == dict.fromkeys(range(10), 1000.0)


class Dying(Lake):
    """A lake whose analysis dies before it writes its summaries."""

    def commit(self, table: LakeTable, staged: Sequence[AddAction], **how: Any) -> bool:
        if table is JOB_SUMMARIES:
            raise KeyboardInterrupt
        return super().commit(table, staged, **how)


def lying(lake: Lake) -> int:
    return int(lake.scan(JOB_NODE_MINUTES).select(pl.len()).collect().item())


def test_an_analysis_that_died_hides_nothing_and_is_dropped(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", **one_node(seconds=range(0, 600, 10)))
    summarized(lake)
    seen = read(lake)
    with pytest.raises(KeyboardInterrupt):
        analyze(Dying(lake.location), Configuration(), judge=JobJudge, now=utc(30), full=True)
    assert (read(lake), lying(lake)) == (seen, 20)
    later = datetime.now(UTC) + timedelta(days=2)
    compact(lake, ALL_TABLES, counting=rows_that_count(lake, later))
    assert (read(lake), lying(lake)) == (seen, 10)


def test_what_a_later_analysis_superseded_is_dropped(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", **one_node(seconds=range(0, 300, 10)))
    summarized(lake)
    more = one_node(seconds=range(300, 600, 10))["node_samples"]
    fill(lake, {"node_samples": more}, chunk="more")
    summarized(lake)
    assert received(lake) == dict.fromkeys(range(10), 1000.0)
    assert lying(lake) == 15
    compact(lake, ALL_TABLES, counting=rows_that_count(lake, utc(30)))
    assert lying(lake) == 10


def test_a_lake_of_an_earlier_version_takes_its_node_samples_as_new(tmp_path: Path) -> None:
    class Earlier(Lake):
        def append(self, table: LakeTable, frame: pl.DataFrame, **how: Any) -> AppendResult:
            if table is ANALYSES:
                frame = frame.with_columns(node_samples_version=pl.lit(None, pl.Int64))
            return super().append(table, frame, **how)

    lake = make_lake(tmp_path / "lake", **one_node(seconds=range(0, 600, 10)))
    assert analyze(Earlier(lake.location), Configuration(), judge=JobJudge, now=utc(30)).jobs == 1
    last = seen_last(lake)
    assert last is not None
    assert last.versions[NODE_SAMPLES.name] == -1
    assert summarized(lake)[0].jobs == 1
    assert summarized(lake)[0].jobs == 0


def test_node_power_alone_is_no_news(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", **one_node(seconds=range(0, 600, 10)))
    summarized(lake)
    fill(lake, {"node_samples": [{"t": DAWN, "node": "n1", "cpu_power_w": 100.0}]}, chunk="power")
    assert summarized(lake)[0].jobs == 0
