"""What a notebook shows of a lake, a job, its steps, the ledger, the study, numbers; and pandas
frames.
"""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path

import pytest

import tachograph
from tachograph.api.open_lake import OpenLake
from tachograph.api.representation import framed, preformatted, table
from tachograph.catalog.errors import UsageError


@pytest.fixture(scope="module")
def opened(study_lake: Path) -> OpenLake:
    return tachograph.open(str(study_lake))


def shown(value: object) -> str:
    """What a notebook asks a value for."""
    return str(value._repr_html_())  # type: ignore[attr-defined]


def test_a_lake_lists_its_tables(opened: OpenLake) -> None:
    rows = dict(re.findall(r"<tr><td[^>]*>(\w+)</td><td[^>]*>([\d,]+)</td>", shown(opened)))
    assert rows["job_summaries"] == "6"
    assert set(rows) >= {"gpu_samples", "jobs", "findings"}
    assert unescape(shown(opened)).startswith(f"<p>{opened!r}</p>")


def test_texts_are_shown_as_they_are_printed(opened: OpenLake) -> None:
    for page in (opened.job("1").steps, opened.study("energy")):
        (text,) = re.findall(r"<pre[^>]*>(.*)</pre>", shown(page), re.DOTALL)
        assert unescape(text) == repr(page)


def test_the_numbers_of_a_figure_are_tables(opened: OpenLake) -> None:
    numbers = opened.numbers("energy")
    html = shown(numbers)
    assert [part for part in numbers.tables if f"<h4>{part}</h4>" not in html] == []
    assert [fact for fact in numbers.facts if f"<li>{fact}: " not in html] == []
    assert [part for part in numbers.missing if f"<li>{part}: not drawn; " not in html] == []


def test_texts_of_users_are_no_markup() -> None:
    name = '<script>alert("1")</script>'
    for html in (framed(name, name), preformatted(name), table((name,), [(name,)])):
        assert "<script" not in html
        assert 'alert("' not in html


def test_a_table_as_a_pandas_frame(opened: OpenLake) -> None:
    pytest.importorskip("pyarrow")
    jobs = opened.jobs()
    frame = tachograph.to_pandas(jobs)
    assert list(frame.columns) == jobs.columns
    assert frame["job_id"].to_list() == jobs["job_id"].to_list()
    assert frame["energy_j"].isna().sum() == jobs["energy_j"].null_count()


@pytest.mark.parametrize("absent", ["pandas", "pyarrow"])
def test_without_pandas_the_error_names_the_extra(
    opened: OpenLake, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(
        UsageError, match=r"pandas and pyarrow: .*; pip install 'tachograph\[pandas\]'"
    ):
        tachograph.to_pandas(opened.jobs())
