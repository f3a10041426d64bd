"""Days of node samples reduced one after the other in memory, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from host_reference import Stay, node_minutes
from random_hosts import BEGIN, Hosts, random_hosts

from madelake import table_frame
from tachograph.catalog.tables import HOST_CHARACTERISTICS, TIME
from tachograph.pipeline.hosts import exclusive_stays, merge_carried, minutes_of_sums, reduce_hosts
from tachograph.pipeline.reduction import overlapping_day

PLACE = {"run": pl.Int32(), "node": pl.String(), "start": TIME, "end": TIME}


def _rounded(time: datetime, minutes: int) -> datetime:
    midnight = datetime(time.year, time.month, time.day, tzinfo=time.tzinfo)
    length = timedelta(minutes=minutes)
    return midnight + round((time - midnight) / length) * length


def _on_minutes(hosts: Hosts) -> Hosts:
    """Samples at whole minutes, and stays from and to tens of them, midnight among these."""
    rows: dict[tuple[str, datetime], dict[str, Any]] = {}
    for row in hosts.samples:
        t = _rounded(row["t"], 1)
        known = {name: value for name, value in row.items() if value is not None}
        rows.setdefault((row["node"], t), {}).update(known | {"t": t})
    stays = [
        Stay(stay.job, stay.node, *(_rounded(t, 10) for t in (stay.start, stay.end, stay.zero)))
        for stay in hosts.stays
    ]
    stays = [stay for stay in stays if stay.start < stay.end]
    return replace(hosts, samples=list(rows.values()), stays=stays)


def _with_pauses(stays: list[Stay]) -> list[Stay]:
    """Stays from which each run is away for half a minute, at midnight or in the middle."""
    found = []
    for stay in stays:
        midnight = _rounded(stay.start + timedelta(hours=12), 24 * 60)
        middle = stay.start + (stay.end - stay.start) / 2
        away = (midnight if stay.start < midnight < stay.end else middle) - timedelta(seconds=10)
        back = away + timedelta(seconds=30)
        if stay.end - stay.start < timedelta(minutes=5):
            found.append(stay)
        else:
            found += [replace(stay, end=away), replace(stay, start=back)]
    return found


@pytest.mark.parametrize(
    ("seed", "intervals", "on_minutes"), [(0, 3.5, False), (1, 3.0, True), (3, 3.0, True)]
)
def test_minutes_over_midnight_are_what_plain_loops_make_of_them(
    seed: int, intervals: float, *, on_minutes: bool
) -> None:
    hosts = random_hosts(seed, hours=3.9)
    pausing = replace(hosts, stays=_with_pauses(hosts.stays))
    hosts = _on_minutes(hosts) if on_minutes else pausing
    number = {job: run for run, job in enumerate(sorted({str(stay.job) for stay in hosts.stays}))}
    rows = [(number[str(stay.job)], stay.node, stay.start, stay.end) for stay in hosts.stays]
    places = pl.DataFrame(rows, schema=PLACE, orient="row")
    starts = {number[str(stay.job)]: stay.zero for stay in hosts.stays}
    # a run of which no GPU is known, and a claim of two runs
    unsure = places.filter(node="n2").head(1).with_columns(run=pl.lit(900, pl.Int32))
    claim = places.filter(node="n3").tail(1)
    claimed = claim.with_columns(end=pl.col("start") + timedelta(minutes=7))
    beside = [
        Stay(None, node, start, end, zero=start)
        for _, node, start, end in [*unsure.rows(), *claimed.rows()]
    ]
    runs = pl.DataFrame(list(starts.items()), schema={"run": pl.Int32, "start": TIME}, orient="row")
    stretches = exclusive_stays(places, unsure, claimed.drop("run"), runs)
    samples = table_frame("node_samples", hosts.samples)
    carried = merge_carried([])
    minutes = []
    for day in (BEGIN.date(), BEGIN.date() + timedelta(days=1)):
        of_day = samples.filter(pl.col("t").dt.date() == day)
        here = overlapping_day(stretches, day)
        left = carried.sums.join(here, on="node", how="anti")
        complete, carried = reduce_hosts(
            of_day, here, carried, starts, day=day, max_gap_intervals=intervals
        )
        minutes += [complete, minutes_of_sums(left)]
    found = pl.concat([*minutes, minutes_of_sums(carried.sums)])
    names = {run: job for job, run in number.items()}
    values = {
        (names[row["run"]], row["node"], row["minute"]): row for row in found.iter_rows(named=True)
    }
    wanted = node_minutes(hosts.samples, [*hosts.stays, *beside], intervals=intervals)
    assert len(values) == found.height
    assert values.keys() == wanted.keys()
    for key, row in wanted.items():
        for name in HOST_CHARACTERISTICS:
            value = values[key][name]
            assert value == (None if row[name] is None else pytest.approx(row[name], rel=1e-5))
