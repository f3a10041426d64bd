"""Prints how many requests of an object store commands on a lake take, by table and kind.

A lake in a folder (`--lake`, by default a small simulated one) is copied into a bucket of a local
server of the S3 protocol, which counts requests and their bytes. Each command is a process of its
own that knows nothing of the store before. The server is no real store: counts and bytes hold, its
times say nothing and are not printed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

from many_jobs import apart
from reduce_speed import prepare
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.lake.delta import Lake

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from servers.s3_app import one_at_a_time

BUCKET = "telemetry"
LOG = "_delta_log"
Counts = Counter[
    tuple[str, str]
]  # (table, kind of request), and (table, "bytes in" or "bytes out")


class RequestCounter:
    """The application of a store that counts what it is asked for."""

    def __init__(self) -> None:
        self.counts: Counts = Counter()
        self._application = one_at_a_time(create_backend_app("s3"))
        self._lock = threading.Lock()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer a request, and count it with the bytes that it sends and receives."""
        answer = b"".join(self._application(environ, start_response))
        name = _table_of(environ)
        method = environ["REQUEST_METHOD"]
        listing = method == "GET" and "list-type" in environ.get("QUERY_STRING", "")
        with self._lock:
            self.counts[name, "LIST" if listing else method] += 1
            self.counts[name, "bytes_read"] += len(answer) if method == "GET" else 0
            self.counts[name, "bytes_written"] += int(environ.get("CONTENT_LENGTH") or 0)
        return [answer]

    def taken(self) -> Counts:
        """Return the counts since the last call."""
        with self._lock:
            counts, self.counts = self.counts, Counter()
        return counts


def _table_of(environ: Mapping[str, Any]) -> str:
    """Return the table that a request is about, and whether it is about its log."""
    query = parse_qs(environ.get("QUERY_STRING", ""))
    place = environ["PATH_INFO"].removeprefix(f"/{BUCKET}") or query.get("prefix", [""])[0]
    words = place.strip("/").split("/")  # those behind the lake
    if len(words) < 2:
        return "lake"
    return f"{words[1]} log" if LOG in words else words[1]


@contextmanager
def counting_store() -> Iterator[tuple[str, RequestCounter]]:
    """Serve an empty bucket for the time of the block; yield its address and the counter."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    counter = RequestCounter()
    server = make_server("127.0.0.1", 0, counter, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", counter
    finally:
        server.shutdown()
        thread.join()


def environment_of(endpoint: str) -> dict[str, str]:
    """Return the environment of a client of the store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def copy_lake(folder: Path, endpoint: str) -> str:
    """Copy a lake into a new bucket; return its address."""

    def put(name: str, content: bytes) -> None:
        request = urllib.request.Request(f"{endpoint}/{name}", data=content, method="PUT")
        request.add_header("Content-Type", "application/octet-stream")  # else read as a form
        urllib.request.urlopen(request, timeout=60).close()

    put(BUCKET, b"")
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            put(f"{BUCKET}/lake/{file.relative_to(folder)}", file.read_bytes())
    return f"s3://{BUCKET}/lake"


def some_job(lake: str) -> str:
    """Return the id of the job with the median of GPU-hours."""
    jobs = Lake.open(lake).latest(JOB_SUMMARIES, ("job_id", "gpu_hours")).drop_nulls()
    return str(jobs.sort("gpu_hours").item(jobs.height // 2, "job_id"))


def table_counts(counts: Counts) -> dict[str, dict[str, int]]:
    """Return {table: {kind: number}}, the sums first."""
    tables: dict[str, dict[str, int]] = {"all": {}}
    for (table, kind), number in sorted(counts.items()):
        if number:
            tables.setdefault(table, {})[kind] = number
            tables["all"][kind] = tables["all"].get(kind, 0) + number
    return tables


def measure(folder: Path, configuration: Path | None) -> dict[str, Any]:
    """Return the requests of each command on a copy of a lake."""
    job_id = apart(some_job, str(folder))
    commands = {
        "jobs": ["jobs", "--limit", "10"],
        "job": ["job", job_id],
        "waste": ["waste"],
        "analyze_nothing_new": ["analyze"],
        "analyze": ["analyze", "--full"],
        "compact": ["lake", "compact"],
    }
    files = {table.name: len(list(table.glob("**/*.parquet"))) for table in folder.iterdir()}
    with counting_store() as (endpoint, counter):
        lake = copy_lake(folder, endpoint)
        counter.taken()
        where = ["--lake", lake, *(["--config", str(configuration)] if configuration else [])]
        found = {}
        for name, words in commands.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            subprocess.run(
                [sys.executable, "-m", "tachograph", *words, *where],
                env=os.environ | environment_of(endpoint),
                stdout=subprocess.DEVNULL,
                check=True,
            )
            found[name] = table_counts(counter.taken())
    return {"benchmark": "store_requests", "files": files, "requests": found}


def main() -> int:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", type=Path, help="an analyzed lake in a folder")
    parser.add_argument("--config", type=Path, help="its configuration")
    parser.add_argument("--samples", type=int, default=500_000, help="of the simulated lake")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as other:
        folder, configuration = options.lake, options.config
        if folder is None:
            apart(prepare, options.samples, Path(other))
            folder = Path(other) / "lake"
            configuration = Path(other) / "cluster" / "tachograph.toml"
            analyze = ["analyze", "--lake", str(folder), "--config", str(configuration)]
            subprocess.run([sys.executable, "-m", "tachograph", *analyze], check=True, stdout=2)
        print(json.dumps(measure(folder, configuration)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
