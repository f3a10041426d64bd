"""Samples that name their job: ids as people write them, stretches, borders of chunks, two jobs
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.chunks import Reject
from tachograph.sources.sample_allocations import named_jobs, sample_allocations

T = datetime(2026, 3, 1, tzinfo=UTC)


def samples(
    jobs: Sequence[Any], *, step: Sequence[Any] | None = None, gpu: int = 0, first: int = 0
) -> pl.DataFrame:
    """Samples of one GPU, ten seconds apart."""
    count = len(jobs)
    columns = {
        "t": [T + timedelta(seconds=10 * (first + place)) for place in range(count)],
        "node": ["n1"] * count,
        "gpu": [gpu] * count,
        "job": list(jobs),
    }
    return pl.DataFrame(columns | ({} if step is None else {"step": list(step)}), strict=False)


def stretches(rows: pl.DataFrame) -> list[tuple[str, str | None, int | None, int, int]]:
    """(job, step, GPU, seconds from T to start, to end) of what samples name, in the order of
    time.
    """
    (part,) = sample_allocations(rows)
    found = part.frame.sort("start", "gpu", "job_id")
    return [
        (
            row["job_id"],
            row["step"],
            row["gpu"],
            (row["start"] - T).seconds,
            (row["end"] - T).seconds,
        )
        for row in found.iter_rows(named=True)
    ]


@pytest.mark.parametrize(
    ("written", "step", "job_id", "named"),
    [
        ("123", None, "123", None),
        (123, None, "123", None),
        (605717.0, None, "605717", None),
        ("123.0", "", "123", None),
        ("4.5916256e+07", None, "45916256", None),
        ("123_4", None, "123_4", None),
        ("123+1", "2", "123+1", "2"),
        ("123.batch", None, "123", "batch"),
        (" 123 ", 0, "123", "0"),
        (123, 0.0, "123", "0"),
        (123, 4294967291, "123", "batch"),
        (123, 4294967292, "123", "extern"),
        (123, "123.extern", "123", "extern"),
        *(
            (nothing, None, None, None)
            for nothing in (None, 0, -1, 0.0, "", "0", "-1", "N/A", "nan", "None", "null")
        ),
        ("0", "0", None, None),
    ],
)
def test_an_id_as_it_is_written(
    written: Any, step: Any, job_id: str | None, named: str | None
) -> None:
    steps = None if step is None else pl.Series([step])
    found = named_jobs(pl.Series([written]), steps)
    assert (found.job_id.to_list(), found.step.to_list(), found.bad.to_list()) == (
        [job_id],
        [named],
        [False],
    )


def test_a_fraction_is_a_step_only_beside_others() -> None:
    assert named_jobs(pl.Series(["7.0", "8.0", ""])).step.to_list() == [None] * 3
    assert named_jobs(pl.Series(["7.0", "8.1", "8.batch"])).step.to_list() == ["0", "1", "batch"]
    assert named_jobs(pl.Series(["7.0", "8"])).step.to_list() == ["0", None]


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "0", "5", "6"]), st.sampled_from(["", "1", "2"])),
        min_size=1,
        max_size=9,
    )
)
def test_stretches_are_those_of_a_walk_sample_by_sample(
    named: list[tuple[str | None, str]],
) -> None:
    """Another job or step ends a stretch; a sample of none does not. Ends are a period later."""
    walked: list[tuple[str, str | None, list[int]]] = []
    for place, (job, step) in enumerate(named):
        if job in (None, "0"):
            continue
        if not walked or walked[-1][:2] != (job, step or None):
            walked.append((str(job), step or None, []))
        walked[-1][2].append(10 * place)
    periods = {
        index: (times[-1] - times[0]) / (len(times) - 1)
        for index, (_, _, times) in enumerate(walked)
        if len(times) > 1
    }
    gaps = [later[2][0] - earlier[2][-1] for earlier, later in pairwise(walked)]
    usual = median(periods.values() or gaps or [0])
    expected = []
    for index, (named_job, named_step, times) in enumerate(walked):
        end_us = 10**6 * times[-1] + max(1, int(10**6 * min(usual, periods.get(index, usual))))
        if index + 1 < len(walked):
            end_us = min(end_us, 10**6 * walked[index + 1][2][0])
        ends = T + timedelta(seconds=times[0]), T + timedelta(microseconds=end_us)
        expected.append((named_job, named_step, *ends))
    rows = samples([job for job, _ in named], step=[step for _, step in named])
    rows = rows.with_columns(pl.col("job").cast(pl.String))
    parts = sample_allocations(rows)
    found = parts[0].frame.sort("start").select("job_id", "step", "start", "end") if parts else None
    assert (found.rows() if found is not None else []) == expected


def test_the_order_of_rows_does_not_matter() -> None:
    rows = pl.concat([samples(["5", "5", "6", "6", "5", "5"], gpu=gpu) for gpu in (0, 1)])
    shuffled = rows.sample(fraction=1, shuffle=True, seed=3)
    assert stretches(shuffled) == stretches(rows)


def test_what_is_no_job_id_is_counted() -> None:
    (part,) = sample_allocations(samples(["what", "what", "5"]))
    assert part.rejects == (Reject("bad_job_id", "job_id", 2, "what"),)
    assert part.frame.get_column("job_id").to_list() == ["5"]


def test_two_jobs_of_the_same_samples_have_no_gpu() -> None:
    """As where samples were joined with jobs by node and time: none of both is known to have had
    the GPU.
    """
    rows = pl.concat([samples(["5"] * 20), samples(["6"] * 20), samples(["7"] * 20, gpu=1)])
    (part,) = sample_allocations(rows)
    assert set(part.frame.select("job_id", "gpu", "provenance").rows()) == {
        ("5", None, "node_list"),
        ("6", None, "node_list"),
        ("7", 1, "samples"),
    }
    assert part.rejects == (Reject("several_jobs", "job_id", 40, part.rejects[0].example),)


def test_a_shared_sample_at_a_hand_over_is_none() -> None:
    rows = pl.concat([samples(["5"] * 20), samples(["6"] * 20, first=19)])
    (part,) = sample_allocations(rows)
    assert set(part.frame.get_column("provenance")) == {"samples"}
    assert part.rejects == ()


def test_samples_of_no_gpu_name_none() -> None:
    assert sample_allocations(samples(["5"]).drop("gpu")) == ()
    assert (
        sample_allocations(samples([None, None]).with_columns(job=pl.lit(None, dtype=pl.String)))
        == ()
    )
