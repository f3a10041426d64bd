"""The log of a table is read once, and again as soon as a commit of anybody is there."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from madelake import held, job, make_lake, summarized, utc
from tachograph.catalog.tables import DEVICES, JOBS
from tachograph.lake import delta as delta_module
from tachograph.lake.delta import Lake


def add(lake: Lake, node: str) -> None:
    row = {"node": node, "gpu": 0, "seq": 0}
    frame = pl.DataFrame([row], schema_overrides=DEVICES.schema)
    lake.append(
        DEVICES, pl.concat([DEVICES.empty(), frame], how="diagonal").drop("seq"), app_id=node
    )


def nodes(lake: Lake) -> list[str]:
    return sorted(lake.scan(DEVICES).collect().get_column("node").to_list())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tables whose logs were read."""
    found: list[str] = []

    class Counted(DeltaTable):
        def __init__(self, location: str, **options: object) -> None:
            found.append(Path(location).name)
            super().__init__(location, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_module, "DeltaTable", Counted)
    return found


def test_commits_of_others_and_own_are_seen(tmp_path: Path, read: list[str]) -> None:
    lake, other = Lake.create(str(tmp_path / "lake")), Lake(str(tmp_path / "lake"))
    add(other, "n1")
    assert nodes(lake) == ["n1"]
    add(other, "n2")
    assert nodes(lake) == ["n1", "n2"]
    add(lake, "n3")
    assert nodes(lake) == ["n1", "n2", "n3"]
    read.clear()
    assert (nodes(lake), lake.version(DEVICES), lake.version(JOBS)) == (["n1", "n2", "n3"], 3, -1)
    assert DEVICES.name not in read
    # As workers of an analysis get it.
    assert nodes(pickle.loads(pickle.dumps(lake))) == ["n1", "n2", "n3"]
    assert DEVICES.name in read


def test_a_moment_is_that_of_the_first_look(tmp_path: Path) -> None:
    lake, other = Lake.create(str(tmp_path / "lake")), Lake(str(tmp_path / "lake"))
    add(other, "n1")
    with lake.one_moment():
        assert nodes(lake) == ["n1"]
        add(other, "n2")
        with lake.one_moment():
            assert nodes(lake) == ["n1"]
        # Who writes sees what is there, or a commit would fail again and again.
        add(lake, "n3")
        assert nodes(lake) == ["n1", "n2", "n3"]
        add(other, "n4")
    assert nodes(lake) == ["n1", "n2", "n3", "n4"]


def test_another_lake_in_the_same_place_is_another(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    add(lake, "n1")
    assert nodes(lake) == ["n1"]
    shutil.rmtree(tmp_path / "lake" / DEVICES.name)
    assert nodes(lake) == []
    add(lake, "n2")
    assert nodes(lake) == ["n2"]


def test_an_analysis_reads_each_log_once_for_each_version(tmp_path: Path, read: list[str]) -> None:
    jobs = [job(name, utc(1, hour), utc(1, hour + 1), gpus=1) for hour, name in enumerate("abc")]
    allocations = [row for name in "abc" for row in held(name, "n1", (0,))]
    samples = [
        {"t": utc(1, 0, minute), "node": "n1", "gpu": 0, "gpu_util": 0.5} for minute in range(59)
    ]
    lake = make_lake(tmp_path / "lake", jobs=jobs, allocations=allocations, gpu_samples=samples)
    summarized(lake)
    versions = len(list((tmp_path / "lake").glob("*/_delta_log/*.json")))
    assert 10 < len(read) <= versions
