"""One row per key: compared with plain Python over dictionaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.catalog.tables import GPU_SAMPLES, JOB_SUMMARIES, JOBS, LakeTable
from tachograph.lake.batch import resolve_batch
from tachograph.lake.conform import conform, is_resolved, resolve, resolve_days

Row = dict[str, Any]
T0 = datetime(2026, 3, 1, tzinfo=UTC)


def resolved_by_hand(rows: Iterable[Row], table: LakeTable) -> list[Row]:
    """Group by key, order by age, take the last value of each column: what `resolve` should come
    to.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in table.key), []).append(row)
    result = []
    for members in groups.values():
        members.sort(key=lambda row: (*(_lateness(row) if table is JOBS else ()), row["seq"]))
        merged = dict(members[-1])
        if table.completes:
            for name in merged:
                known = [row[name] for row in members if row[name] is not None]
                merged[name] = known[-1] if known else None
        merged["seq"] = max(row["seq"] for row in members)
        result.append(merged)
    return result


def _lateness(row: Row) -> tuple[bool, bool, bool, float]:
    """A record with an end, one in a final state, one that is polled, the longest that is known."""
    ended, polled = row["end"] is not None, row["saved"] is False
    over = ended or row["state"] == "COMPLETED"
    known_s = 0.0 if over or polled else row["elapsed_s"] or 0.0
    return ended, over, polled and not over, known_s


def repeated_by_hand(rows: Sequence[Row]) -> int:
    """How many rows have no counter that the rows of their key before lack."""
    there: dict[tuple[Any, ...], set[str]] = {}
    repeated = 0
    for row in rows:
        key = tuple(row[name] for name in GPU_SAMPLES.key)
        counters = {name for name in SAMPLE if name not in (*GPU_SAMPLES.key, "seq")}
        mine = {name for name in counters if row.get(name) is not None}
        repeated += key in there and mine <= there[key]
        there.setdefault(key, set()).update(mine)
    return repeated


def as_set(rows: Sequence[Row]) -> set[tuple[Any, ...]]:
    return {tuple(sorted(row.items(), key=lambda item: item[0])) for row in rows}


SAMPLE = ("t", "node", "cluster", "gpu", "mig", "xid", "power_w", "seq")
small = st.integers(0, 2)
maybe = st.none() | st.integers(0, 3)
sample_rows = st.lists(
    st.fixed_dictionaries(
        {
            "t": small.map(lambda n: T0 + timedelta(seconds=n)),
            "node": st.sampled_from(["n1", "n2"]),
            "cluster": st.none() | st.just("c"),
            "gpu": st.integers(0, 1),
            "mig": st.none() | st.integers(0, 1),
            "xid": maybe,
            "power_w": st.none() | st.sampled_from([0.0, 100.0, 250.5]),
        }
    ),
    max_size=25,
)
job_rows = st.lists(
    st.fixed_dictionaries(
        {
            "cluster": st.none() | st.just("c"),
            "job_id": st.sampled_from(["1", "2"]),
            "submit": st.none() | st.just(T0),
            "start": st.none() | small.map(lambda n: T0 + timedelta(hours=n)),
            "end": st.none() | small.map(lambda n: T0 + timedelta(hours=3 + n)),
            "state": st.sampled_from(["RUNNING", "COMPLETED"]),
            "saved": st.none() | st.booleans(),
            "elapsed_s": st.none() | small.map(float),
            "gpus": maybe,
        }
    ),
    max_size=20,
)
summary_rows = st.lists(
    st.fixed_dictionaries(
        {
            "job_key": st.sampled_from(["a", "b"]),
            "start": st.none() | st.just(T0),
            "job_id": st.sampled_from(["1", "2"]),
            "gpu_hours": st.none() | st.sampled_from([1.0, 2.0]),
        }
    ),
    max_size=12,
)


@given(st.data())
def test_samples_of_one_key_complete_each_other_whatever_their_order(data: st.DataObject) -> None:
    rows = data.draw(sample_rows)
    stamped = [row | {"seq": place} for place, row in enumerate(rows)]
    frame = pl.DataFrame(stamped, schema={name: GPU_SAMPLES.schema[name] for name in SAMPLE})
    result, merged = resolve(frame, GPU_SAMPLES)
    assert as_set(result.to_dicts()) == as_set(resolved_by_hand(stamped, GPU_SAMPLES))
    assert result.height + merged == frame.height
    keys = [
        (
            row["node"],
            row["cluster"] or "",
            row["gpu"],
            -1 if row["mig"] is None else row["mig"],
            row["t"],
        )
        for row in result.to_dicts()
    ]
    assert keys == sorted(set(keys))
    shuffled = frame[list(data.draw(st.permutations(range(len(rows)))))] if rows else frame
    assert resolve(shuffled, GPU_SAMPLES)[0].equals(result)
    assert is_resolved(result, GPU_SAMPLES)
    assert resolve(result, GPU_SAMPLES)[1] == 0


@pytest.mark.parametrize(
    ("table", "drawn"), [(JOBS, job_rows), (JOB_SUMMARIES, summary_rows)], ids=["jobs", "summaries"]
)
@given(data=st.data())
def test_rows_of_jobs_whatever_their_order(
    table: LakeTable, drawn: st.SearchStrategy[list[Row]], data: st.DataObject
) -> None:
    """A record of a job that ended is later than one of it running; summaries of one job are not
    mixed.
    """
    rows = data.draw(drawn)
    order = list(data.draw(st.permutations(range(len(rows)))))
    stamped = [row | {"seq": place} for place, row in enumerate(rows)]
    names = stamped[0] if stamped else {"seq": 0}
    frame = pl.DataFrame(stamped, schema={name: table.schema[name] for name in names})
    if frame.is_empty():
        return
    result, merged = resolve(frame, table)
    assert as_set(result.to_dicts()) == as_set(resolved_by_hand(stamped, table))
    assert result.height + merged == frame.height
    starts = [row["start"] or T0 - timedelta(1) for row in result.to_dicts()]
    assert table is not JOBS or starts == sorted(starts)
    assert as_set(resolve(frame[order], table)[0].to_dicts()) == as_set(result.to_dicts())


def test_rows_of_one_ingest_with_one_key_give_the_last_values_in_their_order() -> None:
    names = ("t", "node", "cluster", "gpu", "mig", "power_w", "xid", "seq")
    rows = [(T0, "n1", "c", 0, None, 100.0, 31, 4), (T0, "n1", "c", 0, None, 200.0, None, 4)]
    frame = pl.DataFrame(
        rows, schema={name: GPU_SAMPLES.schema[name] for name in names}, orient="row"
    )
    assert resolve(frame, GPU_SAMPLES)[0].rows() == [(T0, "n1", "c", 0, None, 200.0, 31, 4)]


@pytest.mark.parametrize(
    ("nodes", "first_gpu", "clusters"),
    [(3, 0, 3), (300, 0, 1), (2, 30_000, 2)],
    ids=["few", "many", "far"],
)
def test_days_are_those_of_a_plain_sort(nodes: int, first_gpu: int, clusters: int) -> None:
    """Rows in any order, of several days, with few and many codes of GPUs: as sorted by Polars,
    day by day.
    """
    rng = np.random.default_rng(nodes)
    count = 20_000
    frame = GPU_SAMPLES.empty().select("t", "node", "cluster", "gpu", "mig", "power_w", "seq")
    rows = pl.DataFrame(
        {
            "t": [T0 + timedelta(seconds=int(s)) for s in rng.integers(0, 4 * 86_400, count)],
            "node": [f"n{n}" for n in rng.integers(0, nodes, count)],
            "cluster": [["a", "b", None][n] for n in rng.integers(0, clusters, count)],
            "gpu": rng.integers(0, 2, count) * first_gpu + rng.integers(0, 300, count),
            "mig": [None if n == 0 else int(n) for n in rng.integers(0, 3, count)],
            "power_w": rng.random(count),
            "seq": 1,
        }
    ).cast(frame.schema)
    twice = pl.concat([rows, rows.head(500).with_columns(power_w=None)])
    found = list(resolve_days(pl.concat([GPU_SAMPLES.empty(), twice], how="diagonal"), GPU_SAMPLES))
    assert [day for day, _, _ in found] == sorted(set(rows["t"].dt.date()))
    plain = rows.unique(
        subset=["t", "node", "cluster", "gpu", "mig"], keep="last", maintain_order=True
    )
    assert sum(merged for _, _, merged in found) == twice.height - plain.height
    for day, of_day, _ in found:
        wanted = plain.filter(pl.col("t").dt.date() == day).sort(
            "node", "cluster", "gpu", "mig", "t"
        )
        assert of_day.select(wanted.columns).equals(wanted)


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, -1.0, 101.0, 1e9, 2147483632.0])
@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
def test_one_odd_value_changes_no_other(dtype: type[pl.DataType], odd: float | None) -> None:
    """Columns without an odd value are converted at once; each value must be the one that it is
    beside an odd one.
    """
    rng = np.random.default_rng(1)
    percent = pl.Series("gpu_util", np.append(rng.random(1000) * 100, 0.0)).cast(dtype)
    gpus = pl.int_range(1001, dtype=pl.Int16, eager=True)
    plain = pl.DataFrame(percent).with_columns(
        t=pl.lit(T0), node=pl.lit("n1"), gpu=gpus, energy_j=percent * 1000
    )
    beside = plain.with_columns(
        pl.when(pl.col("gpu") == 1000)
        .then(pl.lit(odd, dtype=dtype))
        .otherwise(pl.col(name))
        .alias(name)
        for name in ("gpu_util", "energy_j")
    )
    units = {"gpu_util": "percent", "energy_j": "mJ"}
    made = [
        conform(frame, GPU_SAMPLES, now=T0, units=units).frame.head(1000)
        for frame in (plain, beside)
    ]
    assert made[0].equals(made[1])
    assert (
        made[0]["gpu_util"].to_list()
        == (percent.cast(pl.Float64) * 0.01).cast(pl.Float32).to_list()[:1000]
    )


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(sample_rows, min_size=1, max_size=4), st.booleans())
def test_a_batch_is_what_its_frames_come_to_one_after_the_other(
    recordings: list[list[Row]], same_keys: bool
) -> None:
    """Also where two frames hold the same samples in the same order, with other values."""
    if same_keys:
        keys = recordings[0]
        values = [row for rows in recordings[1:] for row in rows] or [
            {"xid": None, "power_w": None}
        ]
        other = [
            k | {c: values[i % len(values)][c] for c in ("xid", "power_w")}
            for i, k in enumerate(keys)
        ]
        recordings = [recordings[0], other, *recordings[1:]]
    empty = GPU_SAMPLES.empty()
    schema = {name: empty.schema[name] for name in SAMPLE if name != "seq"}
    frames = [
        pl.concat([empty, pl.DataFrame(rows, schema=schema)], how="diagonal")
        .with_columns(pl.lit(0, dtype=pl.Int64).alias("seq"))
        for rows in recordings
    ]  # fmt: skip
    batch = resolve_batch(frames, GPU_SAMPLES)
    in_turn = [row | {"seq": number} for number, rows in enumerate(recordings) for row in rows]
    found = [row for rows in batch.days.values() for row in rows.select(SAMPLE).to_dicts()]
    wanted = resolved_by_hand(in_turn, GPU_SAMPLES)
    assert as_set([row | {"seq": 0} for row in found]) == as_set(
        [row | {"seq": 0} for row in wanted]
    )
    assert all(is_resolved(rows, GPU_SAMPLES) for rows in batch.days.values())
    alone = [[row | {"seq": 0} for row in rows] for rows in recordings]
    assert batch.within == tuple(map(repeated_by_hand, alone))
    once = [row for rows in alone for row in resolved_by_hand(rows, GPU_SAMPLES)]
    # Rows that complete each other are one row before they are compared with a third.
    repeated = repeated_by_hand(once)
    assert bool(repeated) == bool(sum(batch.across.values()))
    assert sum(batch.across.values()) <= repeated
