"""Studies of synthetic jobs."""

from __future__ import annotations

from typing import Any

from jobframes import frame, summary
from tachograph.annexes.lab.figures.numbers import Study, StudyOptions
from tachograph.catalog.tables import JOB_SUMMARIES


def study_of(*jobs: dict[str, Any], options: StudyOptions | None = None) -> Study:
    """Return a study of jobs, each given by the columns of job_summaries that matter."""
    rows = [
        summary(job_key=f"c:{place}:1", job_id=str(place), **job) for place, job in enumerate(jobs)
    ]
    return Study(frame(JOB_SUMMARIES, rows), options or StudyOptions())
