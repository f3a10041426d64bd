"""Each way a server can fail, through the real command line and the feed: a clear line, and
nothing lost afterwards.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_series import T0, Made, assert_rows, moment

from in_process import run_here
from servers.faulty import (
    CutOff,
    Fault,
    Faulty,
    Garbage,
    HangUp,
    Status,
    faulty,
    forward,
)
from servers.process import free_port
from servers.victoria import put, victoria
from tachograph.catalog.config import Configuration
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.sources.http import HttpServer, RequestError, RequestPace
from tachograph.sources.prometheus import connect
from tachograph.sources.prometheus_query import (
    PrometheusQueries,
    PrometheusSettings,
    server_message,
)
from tachograph.sources.registry import settings_of

pytestmark = pytest.mark.slow

START, END = moment(T0).isoformat(), moment(T0 + 1500).isoformat()
GARBAGE = b"<html><body>502 from somebody in between</body></html>"


@pytest.fixture(scope="module")
def made() -> Made:
    made = Made()
    made.add_gpu("n1", 0, None, range(100))
    return made


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory, made: Made) -> Iterator[str]:
    with victoria(tmp_path_factory.mktemp("server")) as url:
        put(url, made.series)
        yield url


@pytest.fixture
def between(upstream: str) -> Iterator[Faulty]:
    with faulty(forward(upstream)) as server:
        yield server


def command_line(url: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The command, patient for two attempts."""
    (folder / "tachograph.toml").write_text(
        f'[[sources]]\nsource = "prometheus"\nurl = "{url}"\nattempts = 2\ntimeout_s = 1\nhow = "raw"\n'
    )
    words = ["ingest", "prometheus", "--from", START, "--to", END, "--lake", str(folder / "lake")]
    return run_here([*words, *more], folder, os.environ.copy())


def refused(url: str, folder: Path, *more: str) -> str:
    """The one line of an import that failed; its exit code is that of an input."""
    done = command_line(url, folder, *more)
    assert done.returncode == 4, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


PARTIAL = b'{"status":"success","isPartial":true,"data":{"resultType":"matrix","result":[]}}'
REFUSED = b'{"status":"error","errorType":"execution","error":"no such thing"}'
ANSWERS: list[tuple[Fault, str]] = [  # those of any server: tests/sources/test_http.py
    (
        Status(503, body=GARBAGE),
        "answered 503 Service Unavailable (2 attempts); check the server's log",
    ),
    (
        Garbage(),
        (
            "the answer is not JSON but text/html: '<html>please log in</html>'; is this an answer "
            "of Prometheus?"
        ),
    ),
    (
        Garbage(b'{"status":1}', "application/json"),
        "the answer has an unexpected form: Expected 'str', got 'int'",
    ),
    (
        Garbage(b'{"status":"success"}', "application/json"),
        "the answer has neither a success status nor an error",
    ),
    (
        Status(422, body=REFUSED),
        "answered 422 Unprocessable Entity: execution: no such thing; request less at a time",
    ),
    (
        Garbage(PARTIAL, "application/json"),
        "the answer is partial: a part of its storage did not respond (2 attempts); fix its storage",
    ),
]


@pytest.mark.parametrize(("fault", "told"), ANSWERS, ids=lambda value: type(value).__name__)
def test_the_feed_tells_what_was_wrong_and_loses_nothing(
    between: Faulty, made: Made, tmp_path: Path, fault: Fault, told: str
) -> None:
    lake = Lake.create(str(tmp_path))
    raw = {
        "source": "prometheus",
        "url": between.url,
        "from": START,
        "attempts": 2,
        "timeout_s": 1,
        "how": "raw",
    }
    settings = settings_of({**raw, "settle_s": 0}, where="test")
    assert isinstance(settings, PrometheusSettings)
    feed = connect(settings, configuration=Configuration())
    feed.querying.server.close()
    feed.querying = PrometheusQueries(
        settings,
        HttpServer(settings, pace=RequestPace(sleep=lambda s: None), own_words=server_message),
        feed.memory.vocabulary.names,
    )
    now = datetime.fromtimestamp(T0 + 1500, UTC)
    middle = datetime.fromtimestamp(T0 + 900, UTC)
    ingest(lake, feed.poll(lambda stream: watermark(lake, stream), now=middle), now=middle)
    reached = watermark(lake, settings.stream)
    assert reached is not None
    assert moment(T0 + 885) < reached <= middle  # just after the newest sample
    between.faults += [fault, fault]
    with pytest.raises(RequestError) as caught:
        ingest(lake, feed.poll(lambda stream: watermark(lake, stream), now=now), now=now)
    assert f"{between.url}/api/v1/query: {told}" in str(caught.value)
    assert watermark(lake, settings.stream) == reached
    del between.faults[:]
    ingest(lake, feed.poll(lambda stream: watermark(lake, stream), now=now), now=now)
    assert_rows(lake, made)
    feed.close()


def test_the_command_line_tells_it_in_one_line(between: Faulty, tmp_path: Path) -> None:
    between.faults += [Status(502), CutOff(), Status(503, {"Retry-After": "1"}), HangUp()] * 4
    assert refused(between.url, tmp_path).startswith(f"tachograph: {between.url}/api/v1/")
    del between.faults[:]
    nobody = f"http://127.0.0.1:{free_port()}"
    assert refused(nobody, tmp_path) == (
        f"tachograph: {nobody}/api/v1/status/buildinfo: cannot connect: connection refused (2 "
        "attempts); "
        "is it running, and is the port right?"
    )
    assert "no host has this name; check the host in the url" in refused(
        "http://prometheus.invalid", tmp_path
    )
