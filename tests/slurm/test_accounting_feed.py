"""Accounting asked again and again comes to what one reading at the end says."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, zip_longest
from pathlib import Path

import polars as pl
import pytest
from feeding import Landing
from hypothesis import given, settings
from hypothesis import strategies as st
from made_accounting import BEGIN, MadeAccounting, Run, epoch, moment
from polars.testing import assert_frame_equal
from slurm_reading import MADE, VERSIONS, reading_of

from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import ConfigError, InputError, UsageError
from tachograph.catalog.tables import JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.sources import sacct
from tachograph.sources.registry import convert_settings
from tachograph.sources.sacct import AccountingFeed, SacctSettings, connect
from tachograph.sources.slurm.commands import AccountingSpan, SacctCommand
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.records import SlurmCluster

HOUR = 3600
DAY = 86400
SETTINGS = SacctSettings(source="sacct")


def feed_of(accounting: MadeAccounting, settings: SacctSettings = SETTINGS) -> AccountingFeed:
    return AccountingFeed(
        SacctCommand(accounting), settings, SlurmCluster(time_zone="Europe/Berlin")
    )


class Polls:
    """A feed of made accounting, polled at instants (seconds since BEGIN), and what lands."""

    def __init__(self, *runs: Run, settings: SacctSettings = SETTINGS) -> None:
        self.accounting, self.landing = MadeAccounting([*runs]), Landing()
        self.feed = feed_of(self.accounting, settings)

    def at(self, *instants: float) -> list[tuple[int, int]]:
        """Poll; return the spans that were asked for last, seconds since BEGIN."""
        for instant in instants:
            self.accounting.clock = instant
            before = len(self.accounting.calls)
            self.landing.poll(self.feed, moment(instant))
        calls = [call for call in self.accounting.calls[before:] if call != ("--helpformat",)]
        assert [span_of(call) for call in calls[::2]] == [span_of(call) for call in calls[1::2]]
        return [span_of(call) for call in calls[::2]]


def span_of(call: tuple[str, ...]) -> tuple[int, int]:
    given = dict(part.partition("=")[::2] for part in call)
    first, last = (
        int(given[name].removeprefix("uts")) - epoch(0) for name in ("--starttime", "--endtime")
    )
    return first, last


def in_the_end(runs: list[Run]) -> Landing:
    """What one reading tells when all is over."""
    accounting, landing = MadeAccounting(runs), Landing()
    accounting.clock = 400 * DAY
    landing.take(
        feed_of(accounting, SacctSettings(source="sacct", step_s=500 * DAY)).between(
            BEGIN - timedelta(days=1), moment(accounting.clock)
        )
    )
    return landing


runs = st.builds(
    Run,
    job=st.integers(1, 6),
    submit=st.integers(0, 20 * HOUR),
    wait=st.integers(0, 6 * HOUR),
    lasts=st.integers(0, 30 * HOUR),
    ending=st.sampled_from(["COMPLETED", "FAILED", "REQUEUED", "TIMEOUT"]),
    late_s=st.sampled_from([0, 0, 5, HOUR - 1]),
)
# a requeued job runs again under its id, submitted anew: (job, submit) is one run
histories = st.lists(runs, max_size=12, unique_by=lambda run: (run.job, run.submit))
# of each poll: whether the process began anew before it, and whether slurmdbd is away
faults = st.lists(st.sampled_from(["", "", "restart", "away"]), max_size=12)


@settings(max_examples=settings().max_examples // 3)
@given(runs=histories, waits=st.lists(st.integers(1, 16 * HOUR), max_size=12), faults=faults)
def test_any_slicing_of_time_tells_what_one_reading_tells(
    runs: list[Run], waits: list[int], faults: list[str]
) -> None:
    polled = Polls(*runs)
    accounting, landing = polled.accounting, polled.landing
    last = max((run.end + run.late_s for run in runs), default=HOUR) + 1
    polls = [*(at for at in accumulate(waits, initial=60) if at < last), last]
    for at, fault in zip_longest(polls, faults[: len(polls) - 1], fillvalue=""):
        if fault == "restart":
            polled.feed = feed_of(accounting)
        if fault == "away":
            accounting.broken = InputError(
                "failed with exit code 1: Connection refused", where="sacct"
            )
            with pytest.raises(InputError, match="Connection refused"):
                polled.at(float(at))
            accounting.broken = None
        else:
            polled.at(float(at))
    assert landing.marks == {"sacct:sacct": moment(last)}
    whole = in_the_end(runs)
    assert_frame_equal(landing.jobs, whole.jobs)
    assert_frame_equal(landing.allocations, whole.allocations)
    assert landing.jobs.height == len(runs)
    by_key = {(row["job_id"], row["submit"]): row for row in landing.jobs.to_dicts()}
    for run in runs:
        row = by_key[str(run.job), moment(run.submit)]
        assert (row["start"], row["end"]) == (moment(run.start), moment(run.end))
        assert (row["state"], row["gpus"], row["elapsed_s"]) == (run.ending, 1, run.lasts)


def test_a_running_job_is_no_news_while_it_runs(tmp_path: Path) -> None:
    accounting = MadeAccounting([Run(1, 60, 60, 5 * HOUR, gpus=4), Run(2, 60, 90 * DAY, 60)])
    feed, lake = feed_of(accounting), Lake.create(str(tmp_path / "lake"))
    landed = []
    for at in (HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 7 * HOUR):
        accounting.clock = at
        report = ingest(lake, feed.poll(partial(watermark, lake), now=moment(at)), now=moment(at))
        landed.append((report.rows["jobs"], report.rows["allocations"]))
    assert landed == [(2, 1), (0, 0), (0, 0), (1, 1), (0, 0)]
    assert lake.latest(JOBS)["state"].to_list() == ["PENDING", "COMPLETED"]
    assert watermark(lake, "sacct:sacct") == moment(7 * HOUR)


def test_the_first_run_goes_day_by_day_and_each_day_lands() -> None:
    polled = Polls(Run(1, 5 * DAY, 0, 2 * DAY), settings=beginning_at("2026-03-04"))
    spans = polled.at(6.5 * DAY)
    midnight = 3 * DAY - HOUR  # of 4 March in Berlin
    assert spans == [
        (midnight + day * DAY, min(midnight + (day + 1) * DAY, int(6.5 * DAY))) for day in range(4)
    ]
    assert polled.landing.chunks == 4
    assert polled.at(6.6 * DAY) == [(int(6.5 * DAY) - HOUR, int(6.6 * DAY))]


def beginning_at(written: str) -> SacctSettings:
    return SacctSettings(source="sacct", from_=written)


def test_a_day_that_failed_is_asked_again_and_those_before_it_are_not() -> None:
    polled = Polls(Run(1, 10, 0, 10), settings=beginning_at("2026-03-01"))
    polled.accounting.clock = 4 * DAY
    chunks = polled.feed.poll(polled.landing.watermark, now=moment(4 * DAY))
    polled.landing.take([next(chunks), next(chunks)])
    polled.accounting.broken = InputError("has not ended", where="sacct")
    with pytest.raises(InputError):
        next(chunks)
    polled.accounting.broken = None
    # With its look back.
    assert polled.at(4 * DAY)[0] == (int(DAY - HOUR), int(3 * DAY - HOUR))


def test_a_clock_that_was_set_back_is_told() -> None:
    polled = Polls(Run(1, 10, 0, 10))
    # Without a beginning one day is read.
    assert polled.at(HOUR) == [(HOUR - DAY, HOUR)]
    with pytest.raises(
        InputError, match=r"sacct:sacct: accounting was read up to .* check this host's clock"
    ):
        polled.at(HOUR - 60)


def test_a_record_that_cannot_be_read_is_counted_once() -> None:
    bad = replace(Run(1, 60, 0, 5 * HOUR), ending="???")
    ugly = replace(Run(2, 60, 0, 9 * HOUR), name="caf\udce9")
    polled = Polls(bad, ugly)
    polled.at(*(hour * HOUR for hour in (1, 2, 5.5, 5.6, 5.7, 8)))
    assert polled.landing.rejected == {"bad_state": 1, "invalid_utf8": 1}
    assert polled.landing.jobs.filter(job_id="2")["name"].item() == "caf�"


@pytest.mark.parametrize(
    "answer", [b"", b"JobID\x1fStart", b"<html>", b"JobID\x1fStart\x1fEnd\n1\x1f0\x1f"]
)
def test_half_an_answer_is_none(answer: bytes) -> None:
    landing = Landing()
    feed = AccountingFeed(SacctCommand(lambda *words: answer), SETTINGS, SlurmCluster())
    with pytest.raises(InputError, match=r"^sacct: (the answer was cut off|is not accounting)"):
        landing.poll(feed, moment(0))
    assert landing.marks == {}


def value(arguments: tuple[str, ...], option: str) -> str:
    return next(word for word in arguments if word.startswith(option)).partition("=")[2]


def test_only_fields_that_this_slurm_knows_are_asked_for() -> None:
    asked: list[str] = []

    def old(*arguments: str) -> bytes:
        if arguments == ("--helpformat",):
            return b"Account JobID\nJobIDRaw   Start End State\n"
        asked.extend(arguments)
        names, between = (value(arguments, option) for option in ("--format", "--delimiter"))
        return names.replace(",", between).encode() + b"\n"

    SacctCommand(old, clusters=("a", "b")).fetch(AccountingSpan(moment(0), moment(60)))
    assert "--format=JobID,JobIDRaw,Start,End,State" in asked
    assert "--format=Cluster,JobIDRaw,Submit,Account,JobIDRaw" in asked
    assert "--clusters=a,b" in asked


def recorded_rows(version: str) -> list[dict[str, str]]:
    """What `sacct` of a version printed of each job and step, {field: text}."""
    lines = (MADE / version / "sacct.parsable2.txt").read_text(encoding="utf-8").splitlines()
    names = lines[0].split("|")
    rows = [dict(zip(names, line.split("|", len(names) - 1), strict=True)) for line in lines[1:]]
    return [{name: in_seconds(value) for name, value in row.items()} for row in rows]


def in_seconds(value: str) -> str:
    """A time as SLURM_TIME_FORMAT=%s writes it; anything else as it is."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}", value):
        return value
    return str(int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()))


_PROGRAM = """#!{python}
import json, os, sys
with open("{folder}/calls", "a", encoding="utf-8") as calls:
    print(os.environ.get("SLURM_TIME_FORMAT", ""), *sys.argv[1:], file=calls)
rows = json.load(open("{folder}/answer", encoding="utf-8"))
if sys.argv[1:] == ["--helpformat"]:
    print(*rows[0])
else:
    options = dict(word.split("=", 1) for word in sys.argv if "=" in word)
    names = options["--format"].split(",")
    for row in (dict(zip(names, names)), *rows):
        print(options["--delimiter"].join(row[name] for name in names))
"""


@pytest.fixture(params=VERSIONS)
def fake_sacct(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program that answers as sacct of a version, and writes down how it was called."""
    program = tmp_path / "sacct"
    (tmp_path / "version").write_text(request.param, encoding="utf-8")
    (tmp_path / "answer").write_text(json.dumps(recorded_rows(request.param)), encoding="utf-8")
    program.write_text(_PROGRAM.format(python=sys.executable, folder=tmp_path), encoding="utf-8")
    program.chmod(0o755)
    return program


def test_sacct_is_run_and_its_answer_is_that_of_the_file(fake_sacct: Path) -> None:
    version = fake_sacct.parent
    raw = {
        "source": "sacct",
        "command": ["env", "-i", "PATH=/usr/bin:/bin", str(fake_sacct)],
        "from": "2026-11-21",
    }
    configuration = Configuration(site=SiteOptions(time_zone="America/New_York"))
    feed = connect(convert_settings(raw, SacctSettings, where="test"), configuration=configuration)
    landing = Landing()
    landing.poll(feed, datetime(2026, 11, 21, 12, tzinfo=UTC))
    feed.close()
    recorded = (version / "version").read_text(encoding="utf-8")
    whole = frame_of(reading_of(MADE / recorded / "sacct.parsable2.txt").jobs, JOBS).sort("job_id")
    assert_frame_equal(landing.jobs.sort("job_id").drop("saved"), whole.drop("saved"))
    assert not landing.jobs["saved"].any()
    calls = (version / "calls").read_text(encoding="utf-8").splitlines()
    midnight = int(datetime(2026, 11, 21, 5, tzinfo=UTC).timestamp())
    assert calls[0] == "%s --helpformat"
    assert calls[1].startswith(
        "%s --allusers --duplicates --parsable2 --delimiter=\x1f --starttime=uts"
    )
    assert (
        f"--starttime=uts{midnight} --endtime=uts{midnight + 7 * HOUR} "
        "--format=JobID,JobIDRaw,Cluster"
    ) in calls[1]
    assert (
        f"--endtime=uts{midnight + 7 * HOUR} --format=Cluster,JobIDRaw,Submit,Account" in calls[2]
    )


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sacct.add_options(parser)
    return parser.parse_args(words)


def test_sacct_is_run_once_on_request(fake_sacct: Path) -> None:
    configuration = Configuration(
        site=SiteOptions(time_zone="Europe/Berlin"),
        sources=({"source": "sacct", "command": [str(fake_sacct)]},),
    )
    now = datetime(2026, 11, 22, tzinfo=UTC)
    words = options("--run", "--from", "2026-11-20", "--to", "2026-11-21T12:00")
    landing = Landing()
    chunks = landing.take(sacct.read(words, configuration=configuration, now=now))
    assert len(chunks) == 2
    assert {chunk.watermark for chunk in chunks} == {None}
    assert landing.jobs.height == 18
    calls = (fake_sacct.parent / "calls").read_text(encoding="utf-8")
    first, last = (
        int(datetime(2026, 11, day, hour, tzinfo=UTC).timestamp())
        for day, hour in ((19, 23), (21, 11))
    )
    assert f"--starttime=uts{first} --endtime=uts{first + DAY}" in calls
    assert f"--starttime=uts{first + DAY} --endtime=uts{last}" in calls
    list(sacct.read(options("--run"), configuration=configuration, now=now))  # of the last day
    (again,) = (fake_sacct.parent / "calls").read_text(encoding="utf-8").splitlines()[-1:]
    end = int(now.timestamp())
    assert f"--starttime=uts{end - DAY} --endtime=uts{end} --format=Cluster," in again


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name files, or run sacct with --run"),
        (("a.txt", "--run"), "name files, or run sacct with --run"),
        (("--run", "--from", "tomorrow"), "--from invalid time: 'tomorrow'"),
        (("--run", "--from", "2026-11-22", "--to", "2026-11-21"), "--from is not before --to"),
        (("--run", "--from", "2026-11-22", "--to", "2026-11-22"), "--from is not before --to"),
    ],
)
def test_options_that_do_not_fit(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        list(sacct.read(options(*words), configuration=Configuration(), now=moment(300 * DAY)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://slurm:6820"}, 'url is given, but how is "command"'),
        ({"command": []}, "command is empty"),
        ({"how": "rest"}, "url is missing"),
        ({"how": "rest", "url": "http://slurm", "api": "latest"}, "api 'latest' is not a version"),
        ({"how": "mail"}, "how cannot be 'mail'; use one of: "),
        ({"step_s": 59}, "step_s is too small"),
        ({"recheck_s": -1}, "recheck_s is too small"),
        ({"overlap_s": -1}, "overlap_s is too small"),
        ({"nonsense": 1}, "unknown field 'nonsense'"),
        ({"from": "soon"}, "from: invalid time: 'soon'"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"sacct.*{said}"):
        connect(
            convert_settings({"source": "sacct", **given}, SacctSettings, where="test"),
            configuration=Configuration(),
        )


def test_gpus_are_none_where_the_accounting_names_those_of_others() -> None:
    """Once a record names GPUs, a job without any had none, also in an answer in which none is
    named.
    """
    polled = Polls(Run(1, 60, 0, 60), Run(2, 5 * HOUR, 0, 60, gpus=0))
    polled.at(HOUR, 6 * HOUR)
    assert dict(polled.landing.jobs.select("job_id", pl.col("gpus")).iter_rows()) == {
        "1": 1,
        "2": 0,
    }


def test_the_smallest_settings_that_fit() -> None:
    given = {"source": "sacct", "step_s": 60, "overlap_s": 0, "recheck_s": 0}
    settings = convert_settings(given, SacctSettings, where="test")
    connect(settings, configuration=Configuration()).close()


def test_a_slurm_without_texts_is_requested_once() -> None:
    asked: list[tuple[str, ...]] = []

    def bare(*arguments: str) -> bytes:
        asked.append(arguments)
        if arguments == ("--helpformat",):
            return b"JobID JobIDRaw\n"
        return value(arguments, "--format").replace(",", "\x1f").encode() + b"\n"

    answer = SacctCommand(bare).fetch(AccountingSpan(moment(0), moment(60)))
    assert (answer.content, answer.texts) == (b"JobID\x1fJobIDRaw\n", b"")
    assert len(asked) == 2


@pytest.mark.parametrize(("hours", "back_h"), [(5.99, 1), (6, 24), (7, 24)])
def test_every_six_hours_the_feed_looks_further_back(hours: float, back_h: int) -> None:
    spans = Polls().at(DAY, DAY + int(hours * HOUR))
    assert spans == [(DAY - back_h * HOUR, DAY + int(hours * HOUR))]
