"""Of one job only those files are read that may have rows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobframes import START, frame, summary
from tachograph.catalog.tables import ALLOCATIONS, LakeTable
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_evidence


@pytest.mark.parametrize(
    ("job", "expected", "read"),
    [("110", "explicit", 1), ("205", "samples", 1), ("9", "nothing", 0)],
)
def test_what_records_a_job_is_looked_for_in_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, expected: str, read: int
) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    for provenance, ids in (("explicit", range(100, 120)), ("samples", range(200, 220))):
        rows = [
            {"job_id": str(number), "node": "n1", "gpu": 0, "provenance": provenance}
            for number in ids
        ]
        lake.append(ALLOCATIONS, frame(ALLOCATIONS, rows).drop("seq"), app_id=provenance, seq=1)
    chosen: list[DataFile] = []
    whole = Lake.read_files

    def counted(self: Lake, table: LakeTable, files: list[DataFile], *columns: object) -> object:
        chosen.extend(files)
        return whole(self, table, files)

    monkeypatch.setattr(Lake, "read_files", counted)
    row = summary(job_id=job, display_id=job, start=START, as_of=START)
    assert read_evidence(lake, row) == expected
    assert len(chosen) == read
