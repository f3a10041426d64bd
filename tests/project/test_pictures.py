"""Pictures of the documentation show the same as its text."""

from __future__ import annotations

import re
from pathlib import Path

from page_image import JOB, job_page

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_picture_of_the_job_has_the_times_of_the_tutorial(demo: Path) -> None:
    tutorial = TUTORIAL.read_text(encoding="utf-8")
    (printed,) = re.findall(rf"tachograph job {JOB}\n(.*?)```", tutorial, re.DOTALL)
    times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", printed)
    assert len(times) == 2
    page = job_page(demo / "lake")
    assert [time for time in times if time not in page] == []
