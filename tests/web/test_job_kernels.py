"""Kernels and scores of a job: of reports that are given for its user and name, or attached to
it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec
import polars as pl
import pytest

import nsight_reports
from tachograph.annexes.serve.pages import job
from tachograph.annexes.serve.snapshot import ServedLake, View
from tachograph.annexes.share.attached import to_attach
from tachograph.annexes.share.endpoints import kernels as attached_kernels
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.annexes.share.pages import job_kernels
from tachograph.annexes.share.profiles import attach_profiles
from tachograph.api.job_scores import read_job_scores
from tachograph.api.pages import Pending
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog import config
from tachograph.catalog.errors import InputError, NotFoundError
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.report.json_values import json_values

ADMIN, OWNER = Viewer("eve", Role.ADMIN), Viewer("user000", Role.USER)
_LONGEST_S = 120.0


def served(demo: Path, report: Path, kind: str = "user000/c*") -> ServedLake:
    loaded = config.load(str(demo / "tachograph.toml"), {})
    interference = msgspec.structs.replace(loaded.interference, profiles={kind: str(report)})
    return ServedLake(
        Lake.open(str(demo / "lake")), msgspec.structs.replace(loaded, interference=interference)
    )


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

    assert not job.content(view, job.PARAMETERS(key="1000001"))["profiled"]
    with pytest.raises(NotFoundError, match="no profile is given for this job"):
        shown(view, "1000001")
    report.write_text("no report\n", encoding="utf-8")
    with pytest.raises(InputError):
        shown(view)


@pytest.fixture
def lake(demo: Path, tmp_path: Path) -> Path:
    """A copy of the demo, whose lake may be written."""
    shutil.copytree(demo, tmp_path / "demo")
    return tmp_path / "demo"


def attach(folder: Path, report: Path, job_id: str = "1000002") -> str:
    """Attach a report and return the key of the job."""
    lake = Lake.open(str(folder / "lake"))
    (row,) = read_summaries(lake).filter(job_id=job_id).iter_rows(named=True)
    (read,) = read_reports([report])
    attach_profiles(lake, row["job_key"], job_id, [to_attach(read, row["end"])])
    return str(row["job_key"])


def test_attached_reports_come_before_those_of_the_group(
    lake: Path, report: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.csv"
    own.write_text(nsight_reports.raw_csv(nsight_reports.PUBLISHED[:1]), encoding="utf-8")
    attach(lake, own)
    service = served(lake, report)
    found = job_kernels.content(service.view(OWNER), job_kernels.PARAMETERS(key="1000002"))
    assert (found["files"], found["attached"]) == (["own.csv"], True)
    body = shown(service.view(OWNER))
    assert "own.csv" in body
    assert "fmul" not in body
    other = job_kernels.content(
        service.view(ADMIN), job_kernels.PARAMETERS(key=_other_of_group(service))
    )
    assert (other["files"], other["attached"]) == (["cfd.csv"], False)


def _other_of_group(service: ServedLake) -> str:
    jobs = (
        service.view(ADMIN)
        .opened.jobs(user=("user000",))
        .filter(pl.col("name") == "cfd", pl.col("job_id") != "1000002")
    )
    return str(jobs["job_key"][0])


def test_a_report_attached_later_is_on_the_page_and_in_the_answers(
    lake: Path, report: Path
) -> None:
    service = ServedLake(
        Lake.open(str(lake / "lake")), config.load(str(lake / "tachograph.toml"), {})
    )
    before = service.view(OWNER)
    assert not job.content(before, job.PARAMETERS(key="1000002"))["profiled"]
    assert attached_kernels(before, job.PARAMETERS(key="1000002")).values["reports"] == ()
    key = attach(lake, report)
    assert service.refresh()
    view = service.view(OWNER)
    assert str(view.version) != str(before.version)
    assert job.content(view, job.PARAMETERS(key="1000002"))["profiled"]
    (one,) = json_values(attached_kernels(view, job.PARAMETERS(key="1000002")).values)["reports"]
    assert (one["report"], one["kernels"], len(one["longest"])) == ("cfd.csv", 13, 13)
    (short,) = view.job("1000002").json()["kernels"]
    assert short == one | {"longest": one["longest"][:5]}
    assert "Each kernel" in shown(view, key)
    with pytest.raises(NotFoundError):
        attached_kernels(service.view(Viewer("user036", Role.USER)), job.PARAMETERS(key=key))


def test_attached_reports_are_one_way_of_scores(lake: Path, report: Path) -> None:
    attach(lake, report, "1000316")
    ways = read_job_scores(Lake.open(str(lake / "lake")), "1000316").ways
    assert [way.name for way in ways] == ["dcgm", "pm", "nsight"]
    assert ways[2].basis.endswith("13 profiled kernels")
