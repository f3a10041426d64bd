"""While logs are kept, each is read once, and again as soon as a commit of anybody is there."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from tachograph.catalog.tables import DEVICES, JOBS
from tachograph.lake import delta as delta_module
from tachograph.lake.delta import Lake


def add(lake: Lake, node: str) -> None:
    row = {"node": node, "gpu": 0, "seq": 0}
    frame = pl.DataFrame([row], schema_overrides=DEVICES.schema)
    lake.append(DEVICES, pl.concat([DEVICES.empty(), frame], how="diagonal").drop("seq"), app_id=node)


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


@pytest.mark.parametrize(("kept", "times"), [(True, 1), (False, 6)])
def test_a_log_is_read_once(tmp_path: Path, read: list[str], *, kept: bool, times: int) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    add(lake, "n1")
    read.clear()
    with lake.keeping_logs() if kept else nullcontext():
        for _ in range(3):
            assert nodes(lake) == ["n1"]
            assert lake.version(DEVICES) == 1
            assert lake.version(JOBS) == -1
    assert read.count(DEVICES.name) == times


def test_commits_of_others_and_own_are_seen(tmp_path: Path, read: list[str]) -> None:
    lake, other = Lake.create(str(tmp_path / "lake")), Lake(str(tmp_path / "lake"))
    add(other, "n1")
    with lake.keeping_logs():
        assert nodes(lake) == ["n1"]
        add(other, "n2")
        assert nodes(lake) == ["n1", "n2"]
        add(lake, "n3")
        assert nodes(lake) == ["n1", "n2", "n3"]
        with lake.keeping_logs():
            assert lake.version(DEVICES) == 3
        read.clear()
        assert nodes(lake) == ["n1", "n2", "n3"]
        assert read == []
    assert nodes(lake) == ["n1", "n2", "n3"]
    assert read == [DEVICES.name]


def test_another_lake_in_the_same_place_is_another(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    add(lake, "n1")
    with lake.keeping_logs():
        assert nodes(lake) == ["n1"]
        shutil.rmtree(tmp_path / "lake" / DEVICES.name)
        assert nodes(lake) == []
        add(lake, "n2")
        assert nodes(lake) == ["n2"]
