"""Reports attached to jobs: each once, whatever comes between, until they are detached,
forgotten or expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from madelake import utc
from tachograph.annexes.share.attached import to_attach
from tachograph.annexes.share.nsight.launches import Chip, Launch, NcuReport
from tachograph.annexes.share.nsight.packed_launches import VERSION
from tachograph.annexes.share.profiles import (
    AttachedProfile,
    attach_profiles,
    detach_profiles,
    read_attached,
    read_profiles,
)
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import ALL_TABLES, PROFILES
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.forget import delete_replaced, files_with, forget
from tachograph.lake.retention import rows_that_count

NOW = utc(10)
KEY = "c:7:100"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


def launches(*milliseconds: float | None, kernel: str = "copy") -> tuple[Launch, ...]:
    """Launches of a kernel that took so long; None: not reported."""
    return tuple(
        Launch(
            kernel,
            {} if took is None else {"gpu__time_duration.sum": took * 1e6},
            Chip("H100"),
            "a",
            number,
        )
        for number, took in enumerate(milliseconds)
    )


def profile(
    name: str, digest: str, *milliseconds: float, kernel: str = "copy", at: datetime = NOW
) -> AttachedProfile:
    found = launches(*(milliseconds or (1.0, 2.0)), kernel=kernel)
    return AttachedProfile(NcuReport(f"/reports/ann/{name}", found, digest=digest), len(found), at)


def attach(lake: Lake, *given: AttachedProfile, key: str = KEY) -> tuple[str, ...]:
    return attach_profiles(lake, key, key.split(":")[1], given)


def names(lake: Lake, key: str = KEY) -> list[str]:
    return [one.report.file for one in read_attached(lake, key)]


def test_what_is_attached_comes_back(lake: Lake) -> None:
    assert read_attached(lake, KEY) == ()
    assert read_profiles(lake).is_empty()
    given = profile("a.csv", "d1", 3.0, 1.0)
    assert attach(lake, given) == ("d1",)
    (found,) = read_attached(lake, KEY)
    assert (found.report.file, found.report.digest, found.launches, found.at) == (
        "a.csv",
        "d1",
        2,
        NOW,
    )
    assert [dict(launch.metrics) for launch in found.report.launches] == [
        dict(launch.metrics) for launch in given.report.launches
    ]
    assert {launch.report for launch in found.report.launches} == {"a.csv"}
    assert read_attached(lake, "c:8:100") == ()


def test_attached_twice_is_attached_once(lake: Lake) -> None:
    attach(lake, profile("a.csv", "d1"), profile("b.csv", "d2"))
    before = lake.version(PROFILES)
    later = NOW + timedelta(hours=1)
    assert attach(lake, profile("a.csv", "d1", at=later)) == ()
    assert attach(lake, profile("renamed.csv", "d2", at=later), profile("a.csv", "d1")) == ()
    assert lake.version(PROFILES) == before
    assert attach(lake, profile("c.csv", "d3", at=later), profile("a.csv", "d1")) == ("d3",)
    assert names(lake) == ["a.csv", "b.csv", "c.csv"]
    assert lake.scan(PROFILES).collect().height == 3


def test_a_report_that_is_read_otherwise_replaces_the_one_before(lake: Lake) -> None:
    attach(lake, profile("a.csv", "d1", 1.0))
    assert attach(lake, profile("a.csv", "d1", 1.0, 2.0)) == ("d1",)
    (found,) = read_attached(lake, KEY)
    assert len(found.report.launches) == 2


def test_reports_are_detached_by_name_or_all(lake: Lake) -> None:
    attach(lake, profile("a.csv", "d1"), profile("b.csv", "d2"), profile("c.csv", "d3"))
    attach(lake, profile("a.csv", "d1"), key="c:8:100")
    assert detach_profiles(lake, KEY, ["b.csv"], at=NOW) == ("b.csv",)
    assert names(lake) == ["a.csv", "c.csv"]
    with pytest.raises(
        NotFoundError, match=r"no report 'b.csv' is attached to this job; attached: a.csv, c.csv"
    ):
        detach_profiles(lake, KEY, ["b.csv"], at=NOW)
    assert set(detach_profiles(lake, KEY, at=NOW)) == {"a.csv", "c.csv"}
    assert names(lake) == []
    before = lake.version(PROFILES)
    assert detach_profiles(lake, KEY, at=NOW) == ()
    assert lake.version(PROFILES) == before
    assert names(lake, "c:8:100") == ["a.csv"]
    assert attach(lake, profile("a.csv", "d1")) == ("d1",)
    assert names(lake) == ["a.csv"]
    assert read_profiles(lake)["report"].to_list() == ["a.csv", "a.csv"]


def test_reports_of_one_name_are_told_apart(lake: Lake) -> None:
    attach(lake, profile("a.csv", "d1" * 32), profile("a.csv", "d2" * 32))
    assert names(lake) == ["a.csv (d1d1d1d1)", "a.csv (d2d2d2d2)"]
    assert detach_profiles(lake, KEY, ["a.csv"], at=NOW) == ("a.csv", "a.csv")


def test_of_several_at_once_none_is_lost(lake: Lake) -> None:
    attach(lake, profile("first.csv", "d"))

    def one(number: int) -> Sequence[str]:
        return attach(
            Lake.open(lake.location),
            profile(f"{number}.csv", f"d{number}"),
            profile("same.csv", "d-same"),
        )

    with ThreadPoolExecutor(4) as pool:
        new = [digest for digests in pool.map(one, range(8)) for digest in digests]
    assert sorted(new) == sorted([*(f"d{number}" for number in range(8)), "d-same"])
    assert set(names(lake)) == {"first.csv", "same.csv", *(f"{number}.csv" for number in range(8))}


def test_compaction_keeps_what_is_attached(lake: Lake) -> None:
    for number in range(12):
        attach(lake, profile(f"{number}.csv", f"d{number:02}"), key=f"c:{number % 5}:100")
    detach_profiles(lake, "c:1:100", at=NOW)
    before = {key: read_attached(lake, key) for key in (f"c:{number}:100" for number in range(5))}
    compact(lake, ALL_TABLES, counting=rows_that_count(lake, NOW), vacuum_hours=0)
    assert len(lake.files(PROFILES)) == 1
    for key, attached in before.items():
        assert [(one.report.file, one.launches) for one in read_attached(lake, key)] == [
            (one.report.file, one.launches) for one in attached
        ]
    assert attach(lake, profile("2.csv", "d02"), key="c:2:100") == ()


def test_a_forgotten_name_leaves_numbers_and_metrics_as_they_are(lake: Lake) -> None:
    attach(lake, profile("max.csv", "d1", 5.0, kernel="void max::copy(float)"))
    (before,) = read_attached(lake, KEY)
    forget(lake, "max", "user-x")
    delete_replaced(lake)
    (after,) = read_attached(lake, KEY)
    assert after.report.file == "user-x.csv"
    (launch,) = after.report.launches
    assert launch.kernel == "void user-x::copy(float)"
    assert dict(launch.metrics) == dict(before.report.launches[0].metrics)
    assert files_with(lake, "max") == []


def test_the_longest_launches_are_kept_and_the_others_counted(lake: Lake) -> None:
    report = NcuReport("a.csv", launches(1.0, None, 5.0, 3.0, 5.0, 0.5), digest="d1")
    kept = to_attach(report, NOW, most=3)
    assert [launch.number for launch in kept.report.launches] == [2, 3, 4]
    attach(lake, kept)
    (found,) = read_attached(lake, KEY)
    assert (found.launches, len(found.report.launches)) == (6, 3)
    assert found.report.problems == ("3 of 6 launches are left out: the longest were attached",)
    assert to_attach(report, NOW, most=6).report.launches == report.launches


def test_a_report_of_another_version_is_a_problem_of_that_report(lake: Lake) -> None:
    attach(lake, profile("a.csv", "d1"), profile("b.csv", "d2"))
    rows = lake.scan(PROFILES).filter(pl.col("digest") == "d1").drop("seq").collect()
    newer = pl.col("content").str.replace(
        f'"version":{VERSION}', f'"version":{VERSION + 1}', literal=True
    )
    lake.append(PROFILES, rows.with_columns(newer), app_id="newer")
    first, second = read_attached(lake, KEY)
    assert first.report.launches == ()
    assert first.report.problems[0].startswith("its launches cannot be read: Invalid value 2")
    assert len(second.report.launches) == 2
