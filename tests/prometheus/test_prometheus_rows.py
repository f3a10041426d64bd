"""Series become rows: nothing depends on their order or on where windows cut; who held what."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_series import T0, cluster

from tachograph.sources.series import (
    AllocationTracker,
    SeriesAnswer,
    SeriesMemory,
    SeriesRun,
)
from tachograph.sources.series_rows import series_parts

MADE = cluster()
UNIT = ("n", 0, None)


def runs(start: float = T0, end: float = T0 + 6000) -> list[SeriesRun]:
    """The made-up series as a server would give them for [start, end)."""
    found = []
    for series in MADE.series:
        points = [(t, value) for t, value in series.points if start <= t < end]
        labels = (
            "{" + ",".join(f'"{name}":"{text}"' for name, text in series.labels.items()) + "}"
        ).encode()
        t = np.array([round(t * 1000) for t, _ in points], dtype=np.int64)
        found.append(
            SeriesRun(labels, t, np.array([value for _, value in points], dtype=np.float64))
        )
    return [run for run in found if run.t.size]


def frames(given: SeriesAnswer, memory: SeriesMemory) -> dict[str, pl.DataFrame]:
    return {part.table: part.frame for part in series_parts(given, memory, overlaps=False)}


@settings(max_examples=settings().max_examples // 6)
@given(st.randoms(use_true_random=False))
def test_the_order_of_series_is_irrelevant(random: Random) -> None:
    one, other = runs(), runs()
    random.shuffle(other)
    wanted, found = (
        frames(SeriesAnswer(one), SeriesMemory()),
        frames(SeriesAnswer(other), SeriesMemory()),
    )
    for table, frame in wanted.items():
        assert found[table].select(frame.columns).sort(pl.all()).equals(frame.sort(pl.all())), table


def test_metrics_that_lack_different_scrapes_name_the_job_together() -> None:
    """Each of two metrics lacks one scrape, at which the other names the job: it holds the GPU
    all the time.
    """
    named, given = {"GPU_UTIL": (1, 2, 4), "POWER_USAGE": (1, 3, 4), "GPU_TEMP": (1, 2, 3, 4)}, []
    for metric, scrapes in named.items():
        job = "" if metric == "GPU_TEMP" else ',"hpc_job":"7"'
        labels = f'{{"__name__":"DCGM_FI_DEV_{metric}","gpu":"0","Hostname":"n"{job}}}'.encode()
        given.append(SeriesRun(labels, np.array(scrapes) * 1000, np.ones(len(scrapes))))
    held = frames(SeriesAnswer(given), SeriesMemory())["allocations"].select(
        "job_id", pl.col("start", "end").dt.epoch("ms")
    )
    assert held.rows() == [("7", 1000, None)]


@settings(max_examples=settings().max_examples // 6)
@given(st.sets(st.integers(1, 5999), max_size=6))
def test_where_windows_cut_is_irrelevant(cuts: set[int]) -> None:
    whole = frames(SeriesAnswer(runs()), SeriesMemory())
    memory, pieces = SeriesMemory(), []
    for start, end in pairwise([0, *sorted(cuts), 6000]):
        pieces.append(frames(SeriesAnswer(runs(T0 + start, T0 + end)), memory))
    for table in ("gpu_samples", "node_samples", "devices"):
        found = pl.concat([piece[table] for piece in pieces if table in piece], how="diagonal")
        assert (
            found.select(whole[table].columns).sort(pl.all()).equals(whole[table].sort(pl.all()))
        ), table
    held = pl.concat([piece["allocations"] for piece in pieces if "allocations" in piece])
    latest = held.group_by("job_id", "node", "gpu", "mig", "start", maintain_order=True).agg(
        pl.col("end").last()
    )
    assert set(latest.rows()) == set(whole["allocations"].select(latest.columns).rows())


@settings(max_examples=2 * settings().max_examples)
@given(
    st.lists(st.none() | st.frozensets(st.sampled_from("ab")), max_size=14),
    st.lists(st.integers(1, 4), min_size=14, max_size=14),
)
def test_holders_against_a_walk_scrape_by_scrape(
    scrapes: list[frozenset[str] | None], sizes: list[int]
) -> None:
    """Who was named at a scrape, None: the exporter did not answer; windows of one and of more."""
    expected: dict[tuple[str, int], int | None] = {}
    begun: dict[str, int] = {}
    for t, jobs in enumerate(scrapes):
        for job in "ab" if jobs is not None else "":
            if jobs and job in jobs:
                expected.setdefault((job, begun.setdefault(job, t)), None)
            elif job in begun:
                expected[job, begun.pop(job)] = t
    holders = AllocationTracker()
    found: dict[tuple[str, int], int | None] = {}
    first = 0
    for size in sizes:
        window = [(t, jobs) for t, jobs in enumerate(scrapes) if first <= t < first + size]
        first += size
        seen = np.array([t for t, jobs in window if jobs is not None], dtype=np.int64)
        times = {job: np.array([t for t, jobs in window if job in (jobs or ())]) for job in "ab"}
        named = {job: of_job for job, of_job in times.items() if of_job.size}
        for span in holders.changes(UNIT, seen, named):
            assert (span.unit, found.get((span.job, span.start))) == (UNIT, None)
            found[span.job, span.start] = span.end
        now = {job: start for (job, start), end in found.items() if end is None}
        assert holders.now.get(UNIT, {}) == now
    assert found == expected


def test_a_job_label_that_is_no_job_id_is_counted_and_the_sample_stays() -> None:
    labels = b'{"__name__":"DCGM_FI_DEV_GPU_UTIL","Hostname":"n","gpu":"0","hpc_job":"what?"}'
    made = series_parts(
        SeriesAnswer([SeriesRun(labels, np.array([1000, 2000]), np.ones(2))]),
        SeriesMemory(),
        overlaps=False,
    )
    assert made[0].frame.height == 2
    assert [(reject.reason, reject.example) for part in made for reject in part.rejects] == [
        ("bad_job_id", "what?")
    ]


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("123.pbs01", ("123.pbs01", None)),
        ("web-0.ml", ("web-0.ml", None)),
        ("123", ("123", None)),
        ("123.batch", ("123", "batch")),
    ],
)
def test_host_samples_of_a_job_have_its_whole_id(
    written: str, named: tuple[str, str | None]
) -> None:
    labels = (
        '{"__name__":"cgroup_cpu_total_seconds","instance":"n1:9306",'
        f'"jobid":"{written}","step":"","task":""}}'
    )
    run = SeriesRun(labels.encode(), np.array([1000, 2000]), np.ones(2))
    frame = frames(SeriesAnswer([run]), SeriesMemory())["job_node_samples"]
    assert frame.select("node", "job_id", "step").unique().rows() == [("n1", *named)]
