"""Which job held which GPU when: each rule of the ranking on a case small enough to see, in
`rules.txt`.

What is recorded: `job ID TIME column=value ... [on NODE ...]` (accounting), `map ID NODE[:GPUS]
[TIME] [from SOURCE] column=value ...` (allocations; without GPUs: the node alone), `units` (GPUs
there are, `n1:0-3` by default; 0.1 is slice 1 of GPU 0), `slurm` (options), `now`. A time is
START..END in seconds, without an end where there is none. What is expected: `is ID ATTRIBUTION ...`
(of each run; all jobs, where some are named), `owns ID NODE:GPUS TIME` (all intervals, where some
are named), `contested COUNT`, `handover NODE:GPU TIME`, `run ID START END column=value ...`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from in_memory import Unit, owners, with_seq
from madelake import NOW, configured, held, job, utc
from own_time import own_seconds
from tachograph.catalog.config import SlurmOptions
from tachograph.pipeline.attribution import INTERVALS_SCHEMA, Attribution, separate
from tachograph.pipeline.job_runs import with_raw_ids

T = utc(23, 12)
WORDS = {"yes": True, "no": False, "none": None}
TEXTS = (
    "partition",
    "qos",
    "cluster",
    "user",
    "state",
    "node_list",
    "provenance",
    "display_id",
    "array_job_id",
    "het_job_id",
)


def cases() -> list[Any]:
    text = Path(__file__).with_name("rules.txt").read_text(encoding="utf-8")
    found = []
    for block in text.split("\n== ")[1:]:
        title, *lines = block.strip().splitlines()
        found.append(pytest.param([line.split() for line in lines], id=title))
    return found


def moment(seconds: str) -> datetime | None:
    return None if seconds in ("", "none") else T + timedelta(seconds=float(seconds))


def span(time: str) -> tuple[datetime | None, datetime | None]:
    start, _, end = time.partition("..")
    return moment(start), moment(end)


def values(words: list[str]) -> dict[str, Any]:
    """The values of `column=value`."""
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name == "until":
            found[name] = moment(value)
        elif value in WORDS:
            found[name] = WORDS[value]
        else:
            found[name] = (
                value if name in TEXTS else float(value) if name.endswith("_s") else int(value)
            )
    return found


def units_of(places: str) -> list[Unit]:
    """GPUs of `n1:0-3`, `n1:0,2`, `n1:0.1`; none of `n1`."""
    node, _, listed = places.partition(":")
    units: list[Unit] = []
    for part in listed.split(",") if listed else ():
        first, _, last = part.partition("-")
        gpu, _, mig = first.partition(".")
        units += [
            (node, number, int(mig) if mig else None)
            for number in range(int(gpu), int(last or gpu) + 1)
        ]
    return units


class Case:
    """What is recorded, line by line."""

    def __init__(self) -> None:
        self.units = units_of("n1:0-3")
        self.slurm = SlurmOptions()
        self.now = NOW
        self.jobs: list[dict[str, Any]] = []
        self.allocations: list[dict[str, Any]] = []

    def add(self, kind: str, *words: str) -> None:
        if kind == "units":
            self.units = [unit for word in words for unit in units_of(word)]
        elif kind == "now":
            self.now = moment(words[0]) or NOW
        elif kind == "slurm":
            patterns: dict[str, Any] = {
                name: (pattern,) for name, pattern in (word.split("=") for word in words)
            }
            self.slurm = SlurmOptions(**patterns)
        elif kind == "job":
            self._job(*words)
        elif kind == "map":
            self._map(*words)

    def _job(self, name: str, time: str, *words: str) -> None:
        before, nodes = (
            (words[: words.index("on")], words[words.index("on") + 1 :])
            if "on" in words
            else (words, ())
        )
        given = values(list(before))
        if time == "never":
            self.jobs.append({"job_id": name, "submit": T} | given)
            return
        start, end = span(time)
        assert start is not None
        self.jobs.append(job(name, start, end, **given))
        for node in nodes:
            self.allocations += held(name, node, start=start, end=end, cluster=given.get("cluster"))

    def _map(self, name: str, places: str, *words: str) -> None:
        start, end = span(words[0]) if words and ".." in words[0] else (None, None)
        source = words[words.index("from") + 1] if "from" in words else "explicit"
        given = values([word for word in words if "=" in word])
        units: list[tuple[str, int | None, int | None]] = [*units_of(places)] or [
            (places, None, None)
        ]
        for node, gpu, mig in units:
            rows = held(name, node, (gpu,), start, end, provenance=source, mig=mig)
            self.allocations += [row | given for row in rows]


def told(found: Attribution) -> dict[str, list[str]]:
    """{job id: how each of its runs is attributed, or why it is ambiguous, in order of start}"""
    result: dict[str, list[str]] = {}
    for row in found.runs.sort("start").iter_rows(named=True):
        assert (row["attribution"] == "ambiguous") is (row["ambiguous_because"] is not None)
        result.setdefault(row["job_id"], []).append(row["ambiguous_because"] or row["attribution"])
    return result


def stretches(frame: pl.DataFrame, runs: pl.DataFrame) -> set[tuple[Any, ...]]:
    names = dict(runs.select("run", "job_id").iter_rows())
    columns = frame.select("run", "node", "gpu", "mig", "start", "end")
    return {(names[run], *rest) for run, *rest in columns.iter_rows()}


@pytest.mark.parametrize("lines", cases())
def test_rule(lines: list[list[str]]) -> None:
    case = Case()
    for words in lines:
        case.add(*words)
    configuration = configured(slurm=case.slurm)
    found = owners(case.jobs, case.allocations, case.units, configuration, now=case.now)
    expected = [
        words for words in lines if words[0] in ("is", "owns", "contested", "handover", "run")
    ]
    assert expected
    attributions = {words[1]: words[2:] for words in expected if words[0] == "is"}
    if attributions:
        assert told(found) == attributions
    owned = [words[1:] for words in expected if words[0] == "owns"]
    if owned:
        intervals = {
            (one[0], *unit, *span(one[2]))
            for one in owned
            if len(one) == 3
            for unit in units_of(one[1])
        }
        assert stretches(found.intervals, found.runs) == intervals
    runs = [words[1:] for words in expected if words[0] == "run"]
    for name in {words[0] for words in runs}:
        rows = found.runs.filter(job_id=name).sort("start").to_dicts()
        lines_of_run = [words for words in runs if words[0] == name]
        assert [(row["start"], row["end"]) for row in rows] == [
            (moment(w[1]), moment(w[2])) for w in lines_of_run
        ]
        for row, words in zip(rows, lines_of_run, strict=True):
            given = values(words[3:])
            assert {column: row[column] for column in given} == given
    for kind, *words in expected:
        if kind == "contested":
            assert found.contested.height == int(words[0])
        if kind == "handover":
            spans = (
                {(*unit, *span(words[1])) for unit in units_of(words[0])}
                if words[0] != "none"
                else set()
            )
            assert {row[1:] for row in stretches(found.handovers, found.runs)} == spans


def test_samples_may_name_tasks_as_people_write_them() -> None:
    jobs = with_seq(
        "jobs",
        [job(name, T, NOW, display_id=task) for name, task in (("127", "3_4"), ("128", "3_5"))],
    )
    names = with_raw_ids(
        with_seq("allocations", held("3_4", "n1", (0,), provenance="samples")), jobs
    )
    assert names.get_column("job_id").to_list() == ["127"]


def test_many_claims_on_one_gpu_take_their_time_in_proportion() -> None:
    """Eight thousand claims that follow one another, one of which overlaps its successor:
    seconds, not minutes.
    """
    count = 8000
    starts = [T + timedelta(minutes=5 * number) for number in range(count)]
    ends = [
        start + timedelta(minutes=5, seconds=5 if number == 7 else 0)
        for number, start in enumerate(starts)
    ]
    claims = pl.DataFrame(
        {"run": range(count), "node": ["n1"] * count, "gpu": [0] * count, "mig": [None] * count}
        | {"start": starts, "end": ends, "rank": [2] * count},
        schema=INTERVALS_SCHEMA | {"rank": pl.Int8()},
    )
    found: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    assert own_seconds(lambda: found.append(separate(claims)), enough=2) < 2
    intervals, contested = found[0]
    assert (intervals.height, contested.height) == (count, 0)
    assert intervals.row(7, named=True)["end"] == starts[8]
