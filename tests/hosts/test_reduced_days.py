"""Days of node samples reduced one after the other in memory, against plain loops."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest
from host_reference import Stay, node_minutes
from random_hosts import BEGIN, random_hosts

from madelake import table_frame
from tachograph.catalog.tables import HOST_CHARACTERISTICS, TIME
from tachograph.pipeline.hosts import exclusive_stays, merge_carried, minutes_of_sums, reduce_hosts
from tachograph.pipeline.reduction import overlapping_day

GAP = 3.5  # intervals
PLACE = {"run": pl.Int32(), "node": pl.String(), "start": TIME, "end": TIME}


@pytest.mark.parametrize("seed", range(2))
def test_minutes_over_midnight_are_what_plain_loops_make_of_them(seed: int) -> None:
    hosts = random_hosts(seed, hours=3.9)
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
            of_day, here, carried, starts, day=day, max_gap_intervals=GAP
        )
        minutes += [complete, minutes_of_sums(left)]
    found = pl.concat([*minutes, minutes_of_sums(carried.sums)])
    names = {run: job for job, run in number.items()}
    values = {
        (names[row["run"]], row["node"], row["minute"]): row for row in found.iter_rows(named=True)
    }
    wanted = node_minutes(hosts.samples, [*hosts.stays, *beside], intervals=GAP)
    assert len(values) == found.height
    assert values.keys() == wanted.keys()
    for key, row in wanted.items():
        for name in HOST_CHARACTERISTICS:
            value = values[key][name]
            assert value == (None if row[name] is None else pytest.approx(row[name], rel=1e-5))
