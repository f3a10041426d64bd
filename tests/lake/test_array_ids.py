"""The raw id of an array is that of its last task: Slurm prints it, and no task may be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from madelake import held, job, make_lake, summarized, utc
from tachograph.catalog.errors import NotAnalyzedError, NotFoundError
from tachograph.lake.query import read_job_row


def test_the_id_of_an_array_names_its_tasks_and_a_new_job_is_not_analyzed(tmp_path: Path) -> None:
    begin, end = utc(1), utc(1, 1)
    tasks = [
        job(raw, begin, end, display_id=f"7_{task}", array_job_id="7", node_list="n1", user="ann")
        for raw, task in (("8", 0), ("7", 1))
    ]
    owners = [row for task in tasks for row in held(task["job_id"], "n1", [0], begin, end)]
    lake = make_lake(tmp_path / "lake", jobs=tasks, allocations=owners)
    summarized(lake)
    with pytest.raises(NotFoundError, match="7_0") as raised:
        read_job_row(lake, "7")
    assert not isinstance(raised.value, NotAnalyzedError)
    assert read_job_row(lake, "7_1").row["job_id"] == "7"
    with pytest.raises(NotFoundError, match="no job '9'"):
        read_job_row(lake, "9")
