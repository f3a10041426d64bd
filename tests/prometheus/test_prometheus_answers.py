"""Answers taken apart: numbers to the last bit, ugly ones with a line, recorded ones as they
are.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import DEVICES, GPU_SAMPLES
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.sources.http import HttpAnswer, RequestError
from tachograph.sources.prometheus import read_saved
from tachograph.sources.prometheus_query import matchers, numbers, points, read_export, read_result
from tachograph.sources.series import SeriesMemory
from tachograph.sources.series_rows import series_parts

NOW = datetime(2026, 11, 1, tzinfo=UTC)

finite = st.floats(allow_nan=False, allow_infinity=False)
written = st.one_of(
    finite.map(repr),
    finite.map(lambda x: f"{x:.17g}"),
    st.floats(-1e6, 1e6).map(lambda x: f"{x:.6f}"),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(
        [
            "NaN",
            "+Inf",
            "-Inf",
            "0",
            "-0",
            "1e22",
            "1e23",
            "5e-324",
            "9007199254740993",
            "140737488355328",
        ]
    ),
)


@given(st.lists(written, max_size=20), st.booleans())
def test_numbers_are_those_of_python_to_the_last_bit(texts: list[str], quoted: bool) -> None:
    plain = [text for text in texts if quoted or not text.endswith(("NaN", "Inf"))]
    body = "[" + ",".join(f'"{text}"' if quoted else text for text in plain) + "]"
    found = numbers(body.encode()).tolist()
    assert len(found) == len(plain)
    for text, value in zip(plain, found, strict=True):
        wanted = float(text)
        assert (
            math.isnan(value)
            if math.isnan(wanted)
            else (value, math.copysign(1, value))
            == (
                wanted,
                math.copysign(1, wanted),
            )
        )


@given(st.binary(max_size=30))
def test_no_bytes_make_it_stumble(text: bytes) -> None:
    for read in (numbers, points):
        with suppress(ValueError):
            read(text)


def answer(document: object) -> HttpAnswer:
    return HttpAnswer(
        document if isinstance(document, bytes) else json.dumps(document).encode(), "http://x/api"
    )


def matrix(*series: object, **more: object) -> HttpAnswer:
    return answer(
        {"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more}
    )


def test_warnings_are_told_and_remove_nothing() -> None:
    series = {
        "metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "Hostname": "n", "gpu": "0"},
        "values": [[1.5, "2"]],
    }
    found = read_result(matrix(series, warnings=["store-3 did not answer"]))
    made = series_parts(found, SeriesMemory(), overlaps=False)
    rejects = [reject for part in made for reject in part.rejects]
    assert [(reject.reason, reject.count, reject.example) for reject in rejects] == [
        ("server_warning", 0, "store-3 did not answer")
    ]
    assert made[0].frame.height == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (b"", "the answer is not JSON but unknown: ''"),
        (b"\xff\xfe", "the answer is not JSON"),
        ([], "the answer has an unexpected form: Expected 'object', got 'array'"),
        (
            {"status": "error", "errorType": "bad_data", "error": "no"},
            "bad_data: no; fix the query",
        ),
        ({"status": "error", "errorType": "422", "error": "no"}, "http://x/api: no; fix the query"),
        (
            {"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}},
            "has an unexpected form",
        ),
        (
            {"status": "success", "data": {"resultType": "string", "result": []}},
            "the result is a string, not a matrix or a vector",
        ),
        ({"status": "success", "data": None}, "neither a success status nor an error"),
    ],
)
def test_what_is_no_result(given: object, told: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_result(answer(given))
    assert told in str(caught.value)


@pytest.mark.parametrize("values", [[[1]], [[1, "x"]], ["1", "2", "3"], {"a": 1}])
def test_points_that_are_none(values: object) -> None:
    with pytest.raises(RequestError, match="a point is not a number"):
        read_result(matrix({"metric": {}, "values": values}))


def test_an_export_with_stale_marks_and_broken_lines() -> None:
    good = b'{"metric":{"__name__":"a"},"values":[1,null,3.5],"timestamps":[1000,2000,3000]}'
    (run,) = read_export([good, b"", b"  "], "x").runs
    assert (run.t.tolist(), run.values.tolist()) == ([1000, 3000], [1.0, 3.5])
    named = b'{"metric":{"__name__":"a","job":"\\"values\\":[NaN,+Inf]"}'
    (run,) = read_export(
        [named + b',"values":[NaN,+Inf,-Inf,null,NaN,5],"timestamps":[1,2,3,4,5,6]}'], "x"
    ).runs
    assert (run.labels, run.t.tolist()) == (named.removeprefix(b'{"metric":'), [2, 3, 6])
    assert run.values.tolist() == [float("inf"), float("-inf"), 5.0]
    for line, told in (
        (
            b'{"metric":{}}',
            "x: line 2 is not a line of an export: Object missing required field 'values'",
        ),
        (b"half", "line 2 is not a line of an export"),
        (b'{"metric":{},"values":[1],"timestamps":[1,2]}', "line 2 has 2 times and 1 values"),
    ):
        with pytest.raises(RequestError) as caught:
            read_export([good, line], "x")
        assert told in str(caught.value)


def test_what_series_lack_is_counted_by_points() -> None:
    def series(points: int, **labels: str) -> object:
        return {"metric": labels, "values": [[k, "1"] for k in range(points)]}

    util = "DCGM_FI_DEV_GPU_UTIL"
    found = read_result(
        matrix(
            series(1, __name__="up"),
            series(2),
            series(3, __name__=util, gpu="0"),
            series(4, __name__=util, gpu="all", Hostname="n"),
            series(5, __name__=util, Hostname="n"),
            series(6, __name__=util, Hostname="n", gpu="0", GPU_I_ID="x"),
            series(7, __name__="node_cpu_seconds_total", mode="user", cpu="0"),
            series(8, __name__="node_cpu_seconds_total", mode="softirq", cpu="0", instance="n:1"),
            {
                "metric": {"__name__": util, "Hostname": "n", "gpu": "1"},
                "values": [[1, "NaN"], [2, "50"]],
            },
        )
    )
    made = series_parts(found, SeriesMemory(), overlaps=False)
    counted = {
        (part.table, reject.reason, reject.column): reject.count
        for part in made
        for reject in part.rejects
    }
    assert counted == {
        ("gpu_samples", "unknown_metric", None): 1 + 2,
        ("gpu_samples", "no_node", None): 3,
        ("node_samples", "no_node", None): 7,
        ("gpu_samples", "bad_gpu", None): 4,
        ("gpu_samples", "no_gpu", None): 5,
        ("gpu_samples", "bad_mig", None): 6,
        ("gpu_samples", "not_finite", None): 1,
    }


def test_job_numbers_as_values_become_allocations() -> None:
    series = {
        "metric": {
            "__name__": "nvidia_gpu_jobId",
            "instance": "n:9445",
            "minor_number": "2",
            "uuid": "GPU-a",
        },
        "values": [[10, "0"], [20, "45916256"], [30, "45916256"], [40, "0"], [50, "45916257"]],
    }
    made = {
        part.table: part.frame
        for part in series_parts(read_result(matrix(series)), SeriesMemory(), overlaps=False)
    }
    rows = made["allocations"].select("job_id", "node", "gpu", "start", "end").rows()
    assert [(*row[:3], *(t and t.timestamp() for t in row[3:])) for row in rows] == [
        ("45916256", "n", 2, 20.0, 40.0),
        ("45916257", "n", 2, 50.0, None),
    ]


@pytest.mark.recorded
def test_recorded_answers_of_one_instant_stand_in_one_row(recorded: Path, tmp_path: Path) -> None:
    """Independent of the reader: every value of the four files, by host and GPU, read with the
    standard library.
    """
    columns = {
        "FB_USED": "hbm_used_mib",
        "GPU_TEMP": "gpu_temp_c",
        "GPU_UTIL": "gpu_util",
        "POWER_USAGE": "power_w",
    }
    wanted: dict[tuple[str, int], dict[str, float]] = {}
    lake, memory = Lake.create(str(tmp_path)), SeriesMemory()
    for metric, column in columns.items():
        file = recorded / "prometheus_h100" / f"query_DCGM_FI_DEV_{metric}.json"
        for one in json.loads(file.read_text())["data"]["result"]:
            key = (one["metric"]["Hostname"], int(one["metric"]["gpu"]))
            value = float(one["value"][1])
            wanted.setdefault(key, {})[column] = value / 100 if metric == "GPU_UTIL" else value
        ingest(lake, [read_saved(file, memory)], now=NOW)
    rows = lake.latest(GPU_SAMPLES).rows(named=True)
    assert len(rows) == len(wanted) == 16
    for row in rows:
        for column, value in wanted[row["node"], row["gpu"]].items():
            assert row[column] == pytest.approx(value, rel=1e-6)
    busy = [row for row in rows if row["hbm_used_mib"] > 70_000]
    assert [(row["gpu_util"], round(row["power_w"], 1)) for row in busy] == [(0.0, 113.6)]
    assert lake.latest(DEVICES)["model"].unique().to_list() == ["NVIDIA H100 80GB HBM3"]


@pytest.mark.recorded
def test_recorded_answers_of_a_scheduler_exporter(recorded: Path) -> None:
    folder = recorded / "slurmrestd" / "prometheus"
    chunk = read_saved(folder / "gpus-hour.json", SeriesMemory())
    points = sum(
        len(one["values"])
        for one in json.loads((folder / "gpus-hour.json").read_text())["data"]["result"]
    )
    (part,) = chunk.parts
    assert [(reject.reason, reject.count) for reject in part.rejects] == [
        ("unknown_metric", points)
    ]
    assert read_saved(folder / "unknown-metric.json", SeriesMemory()).parts == ()
    with pytest.raises(
        InputError,
        match=r"unknown-path.json: bad_data: invalid parameter \"query\": 1:1: parse error",
    ):
        read_saved(folder / "unknown-path.json", SeriesMemory())


def test_matchers_of_a_selector() -> None:
    assert matchers(' {a="b", c!~"d,}e\\"f" , } ') == 'a="b", c!~"d,}e\\"f"'


def test_lines_of_an_export_with_the_same_times_keep_their_own_values() -> None:
    line = '{"metric":{"__name__":"m%d"},"values":[%s],"timestamps":[%s]}'
    lines = [
        line % (0, "1,2", "1000,2000"),
        line % (1, "NaN,4", "1000,2000"),
        line % (2, "5", "3000"),
    ]
    found = read_export([one.encode() for one in lines], "x")
    assert [(run.t.tolist(), run.values.tolist()) for run in found.runs] == [
        ([1000, 2000], [1.0, 2.0]),
        ([2000], [4.0]),
        ([3000], [5.0]),
    ]
