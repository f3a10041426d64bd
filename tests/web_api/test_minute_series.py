"""Series of minutes as a data source: what it has, who sees it, and how it compares with Prometheus."""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import polars as pl
import pytest
import uvicorn
from api_client import ApiClient
from starlette.requests import Request
from starlette.testclient import TestClient

from servers.process import free_port, listens, program
from servers.prometheus import Series, backfill, prometheus
from tachograph.catalog.tables import MINUTE_MAXIMA, MINUTE_MEANS
from tachograph.export.minute_series import MINUTE_METRICS
from tachograph.lake.query import read_minutes
from tachograph.web.application import WebService, create_application
from tachograph.web.snapshot import ServedLake
from tachograph.web.viewer import Role, Viewer

BASE = "/api/v1/prometheus/api/v1"


@dataclass(frozen=True)
class Subject:
    """A measured job with several GPUs, and an instant, in s, in the midst of it."""

    row: dict[str, Any]
    at: float


@pytest.fixture(scope="module")
def subject(served: ServedLake) -> Subject:
    jobs = served.snapshot.jobs.frame.filter(pl.col("gpus") > 1, pl.col("elapsed_s") > 3600, pl.col("coverage") > 0.95)
    row = jobs.sort("job_key").row(0, named=True)
    return Subject(row, row["start"].timestamp() + 1800.5)


def result(client: TestClient, path: str, **parameters: Any) -> Any:
    answer = client.get(BASE + path, params=parameters)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "success"
    return answer.json()["data"]


def test_a_series_has_the_minutes_that_are_stored(admin: TestClient, served: ServedLake, subject: Subject) -> None:
    key = subject.row["job_key"]
    start = subject.row["start"].timestamp()
    data = result(
        admin,
        "/query_range",
        query=f'tachograph_job_gpu_util{{job_key="{key}"}}',
        start=start,
        end=start + 3 * 3600,
        step=60,
    )
    assert data["resultType"] == "matrix"
    stored = read_minutes(served.lake, served.snapshot.jobs.frame.filter(pl.col("job_key") == key))
    expected = {
        (row["node"], str(row["gpu"]), row["t"].timestamp()): row["gpu_util"]
        for row in stored.iter_rows(named=True)
        if row["gpu_util"] is not None and row["minute"] <= 180
    }
    found = {
        (each["metric"]["node"], each["metric"]["gpu"], at): float(value)
        for each in data["result"]
        for at, value in each["values"]
    }
    assert found == expected
    assert {name: each["metric"][name] for each in data["result"][:1] for name in ("user", "account", "partition")} == {
        name: subject.row[name] for name in ("user", "account", "partition")
    }


def test_a_minute_that_was_not_measured_has_no_value(admin: TestClient, subject: Subject) -> None:
    key, end = subject.row["job_key"], subject.row["end"].timestamp()
    query = f'tachograph_job_gpu_util{{job_key="{key}"}}'
    assert result(admin, "/query", query=query, time=end - 1)["result"]
    assert not result(admin, "/query", query=query, time=end + 61)["result"]


def test_another_user_has_none_of_it(as_viewer: ApiClient, subject: Subject) -> None:
    owner, other = subject.row["user"], "user000" if subject.row["user"] != "user000" else "user001"
    key = subject.row["job_key"]
    paths: list[tuple[str, dict[str, Any]]] = [
        ("/query", {"query": f'tachograph_job_gpu_util{{job_key="{key}"}}', "time": subject.at}),
        ("/series", {"match[]": f'{{job_key="{key}"}}'}),
        ("/label/job_key/values", {}),
        ("/label/job_key/values", {"match[]": "tachograph_job_gpu_util"}),
        ("/label/user/values", {}),
    ]
    for path, parameters in paths:
        assert (key if "user/" not in path else owner) in json.dumps(result(as_viewer(owner), path, **parameters))
        text = json.dumps(result(as_viewer(other), path, **parameters))
        assert key not in text
        assert f'"{owner}"' not in text
    counted = [
        result(client, "/query", query="count(tachograph_job_gpu_util)", time=subject.at)["result"]
        for client in (as_viewer(other), as_viewer("helper", "support"))
    ]
    assert counted[0] != counted[1]
    assert as_viewer().get(f"{BASE}/query", params={"query": "1"}).json()["status"] == "error"


@pytest.mark.parametrize(
    ("query", "expected"), [("1+1", "2"), ("7/2", "3.5"), ("1/0", "+Inf"), ("-1/0", "-Inf"), ("0/0", "NaN")]
)
def test_numbers(admin: TestClient, query: str, expected: str) -> None:
    data = result(admin, "/query", query=query, time=5)
    assert data == {"resultType": "scalar", "result": [5.0, expected]}


def test_a_form_is_as_an_address(admin: TestClient, served: ServedLake, subject: Subject) -> None:
    parameters = {"query": "count(tachograph_job_gpu_util)", "time": str(subject.at)}
    posted = admin.post(f"{BASE}/query", data=parameters)
    assert posted.json() == admin.get(f"{BASE}/query", params=parameters).json()
    assert admin.post(f"{BASE}/query", json=parameters).status_code == 415
    assert admin.post(f"{BASE}/query", data={"query": "1" * served.configuration.serve.body_bytes}).status_code == 413


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/query", "query"),
        ("/query?query=m{", "parse error"),
        ("/query?query=rate(m[5m])", "supported"),
        ("/query?query={user=~\".*\"}", "non-empty matcher"),
        ("/query?query=m{user=~\"(\"}", "invalid regular expression"),
        ("/query?query=m{user=~\"a)|(b\"}", "invalid regular expression"),
        ("/query?query={user=~\"(x{1000}){1000}\"}", "invalid regular expression"),
        ("/query?query=1&time=x", "timestamp"),
        ("/query?query=1&time=inf", "timestamp"),
        ("/query?query=sum(1)", "expected series"),
        ("/query?query=tachograph_job_gpu_util/tachograph_job_gpu_util", "not supported"),
        ("/query_range?query=1&start=2&end=1&step=1", "before start"),
        ("/query_range?query=1&start=1&end=2&step=0", "zero or negative"),
        ("/query_range?query=1&start=0&end=1e9&step=1", "11,000 points"),
        ("/query_range?query=1&start=1&end=2&step=1x", "duration"),
        ("/query?query=avg_over_time(m[0s])", "duration"),
        ("/query?query=avg_over_time(m[9999999999999y])", "duration"),
        ("/series", "match[]"),
        ("/series?match[]=sum(m)", "no selector"),
    ],
)  # fmt: skip
def test_errors_are_those_of_prometheus(admin: TestClient, path: str, error: str) -> None:
    answer = admin.get(BASE + path)
    assert answer.status_code == 400
    body = answer.json()
    assert (body["status"], body["errorType"]) == ("error", "bad_data")
    assert error in body["error"]


def test_two_metrics_do_not_become_one(admin: TestClient, subject: Subject) -> None:
    query = '2 * {__name__=~"tachograph_job_(gpu_util|power_w)"}'
    answer = admin.get(f"{BASE}/query", params={"query": query, "time": subject.at})
    assert "same labelset" in answer.json()["error"]


def test_what_there_is(admin: TestClient, subject: Subject) -> None:
    assert set(result(admin, "/label/__name__/values")) == set(MINUTE_METRICS)
    assert set(result(admin, "/metadata")) == set(MINUTE_METRICS)
    assert {f"tachograph_job_{name}" for name in (*MINUTE_MEANS, *MINUTE_MAXIMA)} <= set(MINUTE_METRICS)
    match = {"match[]": f'tachograph_job_gpu_util{{job_key="{subject.row["job_key"]}"}}'}
    listed = result(admin, "/series", **match)
    assert len(listed) == subject.row["gpus"]
    assert set(result(admin, "/labels", **match)) == set(listed[0])
    assert result(admin, "/label/user/values", **match) == [subject.row["user"]]
    assert result(admin, "/label/absent/values") == []
    assert result(admin, "/label/user/values", **match, start=0, end=10) == []
    assert result(admin, "/status/buildinfo")["application"] == "Tachograph"


QUERIES = [
    "tachograph_job_gpu_util",
    'tachograph_job_gpu_util{gpu!="0"}',
    'tachograph_job_gpu_util{user=~"user00.",gpu=~"0|1"}',
    'tachograph_job_gpu_util{mig="",absent=""}',
    'tachograph_job_gpu_util{user!~"user00.*"}',
    "sum(tachograph_job_power_w)",
    "avg by (user) (tachograph_job_gpu_util)",
    "min by (node, absent) (tachograph_job_gpu_util)",
    "max without (gpu, job) (tachograph_job_gpu_util)",
    "count(tachograph_job_gpu_util)",
    "sum by (user) (max by (user, node) (tachograph_job_power_w)) / 1000",
    "100 - 100 * tachograph_job_gpu_util",
    "avg_over_time(tachograph_job_gpu_util[10m])",
    "max by (job) (max_over_time(tachograph_job_power_w[7m]))",
    "count_over_time(tachograph_job_gpu_util[5m])",
    '{__name__=~"tachograph_job_(gpu_util|power_w)",gpu="1"}',
    "-tachograph_job_gpu_util",
    "1 + 2 * 3 - 4 / 8",
]


def stored_series(served: ServedLake, metrics: tuple[str, ...], first: float, last: float) -> Iterator[Series]:
    """Minutes of all jobs between two instants, from the lake itself, as a server of series takes them."""
    labels = ["job_key", "cluster", "display_id", "user", "account", "partition"]
    summaries = served.snapshot.jobs.frame
    near = summaries.filter(pl.col("start").dt.epoch("s") < last, pl.col("as_of").dt.epoch("s") > first)
    rows = read_minutes(served.lake, near).join(near.select(labels), on="job_key")
    rows = rows.filter(pl.col("t").dt.epoch("s").is_between(first, last)).sort("t")
    for metric in metrics:
        for key, points in rows.filter(pl.col(metric).is_not_null()).group_by(*labels, "node", "gpu"):
            named = dict(zip((*labels, "node", "gpu"), map(str, key), strict=True))
            named["job"] = named.pop("display_id")
            values = points.select(pl.col("t").dt.epoch("ms") / 1000, pl.col(metric).cast(pl.Float64)).rows()
            yield Series({"__name__": f"tachograph_job_{metric}", **named}, values)


@pytest.mark.slow
def test_prometheus_answers_the_same(served: ServedLake, admin: TestClient, subject: Subject, tmp_path: Path) -> None:
    """Two hours of all jobs, put into a real Prometheus whose samples hold for a minute, too."""
    first, last = subject.at - 3600, subject.at + 3600
    backfill(tmp_path / "p", list(stored_series(served, ("gpu_util", "power_w"), first - 1800, last)))
    with prometheus(tmp_path / "p", arguments=["--query.lookback-delta=59999ms"]) as url:
        for query in QUERIES:
            for step in (17, 300):
                parameters: dict[str, str | float] = {"query": query, "start": first, "end": last, "step": step}
                theirs = httpx2.get(f"{url}/api/v1/query_range", params=parameters, timeout=60).json()
                assert theirs["status"] == "success", theirs
                same(result(admin, "/query_range", **parameters), theirs["data"], query)
            at: dict[str, str | float] = {"query": query, "time": subject.at}
            same(result(admin, "/query", **at), httpx2.get(f"{url}/api/v1/query", params=at).json()["data"], query)


def same(ours: dict[str, Any], theirs: dict[str, Any], query: str) -> None:
    """Whether two answers have the same series, instants and values."""
    assert ours["resultType"] == theirs["resultType"], query
    if ours["resultType"] == "scalar":
        assert ours["result"][1] == theirs["result"][1], query
        return
    mine, other = (
        {
            json.dumps(each["metric"], sort_keys=True): each.get("values", [each.get("value")])
            for each in answer["result"]
        }
        for answer in (ours, theirs)
    )
    assert mine.keys() == other.keys(), query
    assert mine, query
    for labels, points in mine.items():
        assert [at for at, _ in points] == pytest.approx([at for at, _ in other[labels]], abs=0.001), query
        values = [(float(a), float(b)) for (_, a), (_, b) in zip(points, other[labels], strict=True)]
        assert all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in values), (query, labels)


class AdminService(WebService):
    """A service that takes every request for one of an admin."""

    def identify(self, request: Request) -> Viewer:
        return Viewer("root", Role.ADMIN)


@contextmanager
def listening(served: ServedLake) -> Iterator[str]:
    """Let the application listen, without identities, and give its address."""
    port = free_port()
    application = create_application(AdminService.of(served))
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_config=None, access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not listens(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.mark.slow
def test_promtool_takes_it_for_prometheus(served: ServedLake, subject: Subject) -> None:
    promtool = program("promtool", package="prometheus")
    with listening(served) as url:
        server = f"{url}/api/v1/prometheus"
        commands = [
            (["query", "instant", server, "count(tachograph_job_gpu_util)", "--time", f"{subject.at}"], " => "),
            (["query", "range", server, "sum(tachograph_job_power_w)", "--start", f"{subject.at - 600}", "--end",
              f"{subject.at}", "--step", "60s"], "@["),
            (["query", "series", server, "--match", f'tachograph_job_gpu_util{{job_key="{subject.row["job_key"]}"}}',
              "--start", "0", "--end", f"{subject.at}"], "tachograph_job_gpu_util"),
            (["query", "labels", server, "user"], subject.row["user"]),
        ]  # fmt: skip
        for command, expected in commands:
            done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout
