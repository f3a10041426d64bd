"""The options of the job filter: each reaches the filter, and none chooses all jobs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import UsageError
from tachograph.cli.options import Arguments, OpenedLake, Parser, add_filters, job_filter
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter, parse_condition

NOW = datetime(2026, 4, 23, 12, tzinfo=UTC)
OPENED = OpenedLake(Configuration(), Lake("unused"), NOW, as_of=NOW)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", JobFilter()),
        ("--user ann --user bob", JobFilter(users=("ann", "bob"))),
        ("--account a --partition p", JobFilter(accounts=("a",), partitions=("p",))),
        ("--state FAILED --attribution explicit", JobFilter(states=("FAILED",), attributions=("explicit",))),
        ("--finding stall --verdict no", JobFilter(findings=("stall",), verdict="no")),
        ("--where gpus=8", JobFilter(where=(parse_condition("gpus=8"),))),
        ("--since 2026-04-23T10:00", JobFilter(since=NOW.replace(hour=10))),
        ("--until 1h", JobFilter(until=NOW.replace(hour=11))),
        ("--excluded", JobFilter(excluded=True)),
        ("--in-study", JobFilter(excluded=False)),
    ],
)  # fmt: skip
def test_options_reach_the_filter(words: str, wanted: JobFilter) -> None:
    parser = Parser("tachograph jobs", "Jobs.")
    add_filters(parser)
    assert job_filter(parser.parse_args(words.split(), Arguments()), OPENED) == wanted


@pytest.mark.parametrize("verdict", ["yes", "no"])
def test_a_verdict_without_a_finding_is_an_error(verdict: str) -> None:
    parser = Parser("tachograph jobs", "Jobs.")
    add_filters(parser)
    with pytest.raises(UsageError) as error:
        job_filter(parser.parse_args(["--verdict", verdict], Arguments()), OPENED)
    assert error.value.what == f"--verdict {verdict} is given without a finding"
    assert error.value.do == f"name one: --finding idle_job --verdict {verdict}"


def test_a_time_that_ends_before_it_begins_is_an_error() -> None:
    parser = Parser("tachograph jobs", "Jobs.")
    add_filters(parser)
    words = ["--since", "1h", "--until", "2026-04-23T10:00"]
    with pytest.raises(UsageError) as error:
        job_filter(parser.parse_args(words, Arguments()), OPENED)
    times = "since (2026-04-23 11:00:00 UTC) is later than until (2026-04-23 10:00:00 UTC)"
    assert error.value.what == times
