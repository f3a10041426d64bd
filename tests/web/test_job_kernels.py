"""The kernels of a job on a page: of the reports that are given for its user and name, for those who see the job."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

import nsight_reports
from tachograph.catalog import config
from tachograph.catalog.errors import InputError, NotFoundError
from tachograph.lake.delta import Lake
from tachograph.web.background import Pending
from tachograph.web.pages import job, job_kernels
from tachograph.web.snapshot import ServedLake, View
from tachograph.web.viewer import Role, Viewer

ADMIN, OWNER = Viewer("eve", Role.ADMIN), Viewer("user000", Role.USER)
_LONGEST_S = 120.0


def served(demo: Path, report: Path, kind: str = "user000/c*") -> ServedLake:
    loaded = config.load(str(demo / "tachograph.toml"), {})
    interference = msgspec.structs.replace(loaded.interference, profiles={kind: str(report)})
    return ServedLake(Lake.open(str(demo / "lake")), msgspec.structs.replace(loaded, interference=interference))


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "hidden" / "cfd.csv"
    path.parent.mkdir()
    path.write_text(nsight_reports.sample(), encoding="utf-8")
    return path


def shown(view: View, key: str = "1000002") -> str:
    until = time.monotonic() + _LONGEST_S
    while time.monotonic() < until:
        found = job_kernels.content(view, job_kernels.PARAMETERS(key=key))
        if not isinstance(found["pending"], Pending):
            return str(found["body"])
    raise AssertionError("still being read")


def test_a_job_with_a_report_has_a_page_of_its_kernels(demo: Path, report: Path) -> None:
    lake = served(demo, report)
    for viewer in (ADMIN, OWNER):
        view = lake.view(viewer)
        assert job.content(view, job.PARAMETERS(key="1000002"))["profiled"]
        assert "Each kernel" in shown(view)
        assert "hidden" not in shown(view)


@pytest.mark.parametrize("key", ["1000001", "1000316"])
def test_other_jobs_have_none(demo: Path, report: Path, key: str) -> None:
    view = served(demo, report).view(ADMIN)
    assert not job.content(view, job.PARAMETERS(key=key))["profiled"]
    with pytest.raises(NotFoundError, match="no profile is given for this job"):
        shown(view, key)


def test_nobody_sees_the_kernels_of_a_job_that_they_do_not_see(demo: Path, report: Path) -> None:
    with pytest.raises(NotFoundError, match="no job '1000002'"):
        shown(served(demo, report).view(Viewer("user036", Role.USER)))


def test_a_report_that_changes_is_read_again(demo: Path, report: Path) -> None:
    view = served(demo, report).view(ADMIN)
    shown(view)
    report.write_text("no report\n", encoding="utf-8")
    with pytest.raises(InputError):
        shown(view)
