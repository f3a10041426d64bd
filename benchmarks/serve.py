"""Prints how fast `tachograph serve` answers on a lake of many jobs: a real server process, real
HTTP on this machine.

The lake is made of the demo's computed tables, repeated under other ids, users, names and times
over two years; minutes are there for the newest jobs, whose pages are opened. It lies in the folder
that is given and is used again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import polars as pl

from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSES,
    DEVICES,
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_SUMMARIES,
    JOBS,
    STEP_SUMMARIES,
    LakeTable,
)
from tachograph.lake.delta import Lake

LIST_MS, JOB_MS, START_S, MEMORY_MIB, CLICKS_CORES = 100, 200, 2.0, 1536, 1.0
SPAN = timedelta(days=730)
USERS, EVERY_S = 100, 5.0  # who click, and how often each
GROUPS = 20  # of users: each has the demo's users under other names
REPLICAS = 26  # written at a time
MINUTE_REPLICAS = 14
_IDS = ("job_id", "display_id", "array_job_id", "het_job_id")
_SEQ = 10**15  # of the first rows
_TIMES = ("submit", "start", "end", "as_of", "begin", "t", "first_t", "last_t")


# ------------------------------------------------------------------------------------------------------------ the lake


def make_lake(folder: Path, jobs: int) -> Path:
    """Return a lake of about so many jobs, made unless it is there."""
    target = folder / f"lake-{jobs}"
    if (target / "whole").exists():
        return target
    demo = folder / "demo"
    if not (demo / ".tachograph-demo").exists():
        subprocess.run(
            [sys.executable, "-m", "tachograph", "demo", "--folder", str(demo)], check=True
        )
    source = Lake.open(str(demo / "lake"))
    lake = Lake.create(str(target))
    of_one = source.latest(JOB_SUMMARIES).height
    replicas = max(1, round(jobs / of_one))
    lake.append(DEVICES, source.latest(DEVICES).drop("seq"), app_id="make", seq=1)
    every_job = pl.lit(_SEQ + replicas).alias("jobs_version")  # was analyzed
    lake.append(
        ANALYSES, source.latest(ANALYSES).drop("seq").with_columns(every_job), app_id="make", seq=1
    )
    for begin in range(0, replicas, REPLICAS):
        numbers = range(begin, min(replicas, begin + REPLICAS))
        for table in (JOBS, ALLOCATIONS, JOB_SUMMARIES, JOB_GPUS, STEP_SUMMARIES, FINDINGS):
            _append(source, lake, table, numbers, replicas)
    for number in range(max(0, replicas - MINUTE_REPLICAS), replicas):
        _append(source, lake, JOB_MINUTES, range(number, number + 1), replicas)
    (target / "whole").touch()
    return target


def _append(source: Lake, lake: Lake, table: LakeTable, numbers: range, replicas: int) -> None:
    rows = source.scan(table).collect()
    seq = _SEQ + numbers.start // REPLICAS  # of minutes: that of their summaries
    frame = pl.concat([_replica(rows, number, replicas) for number in numbers])
    lake.append(table, frame.drop("seq"), app_id=f"{table.name}-{numbers.start}", seq=seq)


def _replica(rows: pl.DataFrame, number: int, replicas: int) -> pl.DataFrame:
    """The rows of the demo as another part of the cluster's history: the last one is the demo's
    time.
    """
    shift = (
        (SPAN / replicas * (replicas - 1 - number)) // timedelta(seconds=1) * timedelta(seconds=1)
    )
    there = set(rows.columns)
    columns = []
    for name in there.intersection(_IDS):
        digits = pl.col(name).str.extract(r"^(\d+)").cast(pl.Int64) + number * 1000
        columns.append((digits.cast(pl.String) + pl.col(name).str.replace(r"^\d+", "")).alias(name))
    columns += [(pl.col(name) - shift).alias(name) for name in there.intersection(_TIMES)]
    columns += [
        (pl.col(name) + f"{number % GROUPS:02d}").alias(name)
        for name in there.intersection(("user", "account"))
    ]
    if "job_key" in there:
        parts = pl.col("job_key").str.split(":")
        ids = parts.list.get(1).cast(pl.Int64) + number * 1000
        submitted = parts.list.get(2).cast(pl.Int64) - int(shift.total_seconds())
        key = pl.concat_str(
            [parts.list.get(0), ids.cast(pl.String), submitted.cast(pl.String)], separator=":"
        )
        columns.append(key.alias("job_key"))
    measured = [
        pl.col(name) * (1 + number * 1e-9)
        for name in there
        if rows.schema[name].is_float() and "_" in name
    ]
    return rows.with_columns(columns).with_columns(measured)


# ---------------------------------------------------------------------------------------------------------- the server


@dataclass(frozen=True, slots=True)
class BenchServer:
    """A running server: its process, its address, seconds until it listened and until jobs were
    there.
    """

    process: subprocess.Popen[bytes]
    address: str
    token: str
    listening_s: float
    ready_s: float

    def client(self) -> httpx2.Client:
        """Return a client that is logged in as an admin."""
        client = httpx2.Client(base_url=self.address, follow_redirects=True, timeout=600)
        client.get(
            f"/login?token={self.token}", headers={"accept": "text/html"}, follow_redirects=False
        )
        return client

    @property
    def memory_mib(self) -> dict[str, int]:
        """Resident memory: anonymous, of files, the most of both at any time.

        worker_peak: the most of a process that makes large answers.
        """
        kib = _memory_kib(self.process.pid)
        names = {"anonymous": "RssAnon", "files": "RssFile", "peak": "VmHWM"}
        found = {name: kib[key] // 1024 for name, key in names.items()}
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        workers = [pid for task in tasks for pid in task.read_text(encoding="ascii").split()]
        peaks = [_memory_kib(int(pid))["VmHWM"] for pid in workers]
        return {**found, "worker_peak": max(peaks, default=0) // 1024}

    @property
    def cpu_s(self) -> float:
        """CPU time since its start."""
        fields = (
            Path(f"/proc/{self.process.pid}/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_kib(pid: int) -> dict[str, int]:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    rows = re.findall(r"^(\w+):\s+(\d+) kB", status, re.MULTILINE)
    return {name: int(value) for name, value in rows}


def whole(client: httpx2.Client, address: str) -> float:
    """Return the seconds until a page of sums is there, which reloads itself meanwhile.

    Errors: RuntimeError for another status than 200.
    """
    begin = time.perf_counter()
    while True:
        answer = client.get(address, headers={"accept": "text/html"})
        if answer.status_code != 200:
            raise RuntimeError(f"{address}: {answer.status_code}")
        if 'id="pending"' not in answer.text:
            return round(time.perf_counter() - begin, 2)
        time.sleep(0.2)


def start(lake: Path, cache: Path) -> BenchServer:
    """Start a server and wait until it has the jobs."""
    begin = time.perf_counter()
    log = cache / "serve.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tachograph",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--lake",
                str(lake),
            ],
            env=os.environ | {"XDG_CACHE_HOME": str(cache)},
            cwd=cache,
            stderr=written,
        )
    while not (
        found := re.search(r"open (http://\S+)/login\?token=(\S+)", log.read_text(encoding="utf-8"))
    ):
        if process.poll() is not None:
            raise RuntimeError(log.read_text(encoding="utf-8"))
        time.sleep(0.01)
    listening_s = time.perf_counter() - begin
    with closing(BenchServer(process, found[1], found[2], 0, 0).client()) as client:
        while client.get("/api/v1/jobs?limit=1&fields=job_key").status_code == 503:
            time.sleep(0.2)
    return BenchServer(process, found[1], found[2], listening_s, time.perf_counter() - begin)


def stop(server: BenchServer) -> None:
    """End a server."""
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(30)


def percentiles(times_ms: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and greatest."""
    cuts = statistics.quantiles(times_ms, n=20)
    return {
        "p50_ms": round(cuts[9], 1),
        "p95_ms": round(cuts[18], 1),
        "max_ms": round(max(times_ms), 1),
    }


def timed(client: httpx2.Client, addresses: list[str]) -> dict[str, float]:
    """Return percentiles of the time until a page is there whole. Errors: RuntimeError for
    another status than 200.
    """
    times = []
    for address in addresses:
        begin = time.perf_counter()
        answer = client.get(address, headers={"accept": "text/html"})
        times.append(1000 * (time.perf_counter() - begin))
        if answer.status_code != 200:
            raise RuntimeError(f"{address}: {answer.status_code}")
    return percentiles(times)


def list_addresses(random_: random.Random, users: list[str], count: int) -> list[str]:
    """Return lists of jobs by every kind of filter, orders by any number, as people choose them."""
    numbers = [name for name, dtype in JOB_SUMMARIES.schema.items() if dtype.is_float()]
    codes = ["one_gpu_of_many", "job_hang", "cold_start", "gpus_never_used", "low_gpu_util"]
    kinds: list[Callable[[], str]] = [
        lambda: "",
        lambda: f"user={random_.choice(users)}",
        lambda: (
            f"finding={random_.choice(codes[:4])}&verdict={random_.choice(['yes', 'no', 'unknown'])}"
        ),
        lambda: f"where={random_.choice(numbers)}%3E{random_.random():.2f}",
        lambda: "where=name~train&state=COMPLETED",
        lambda: f"since=2024-0{random_.randint(1, 9)}-01&until=2024-12-01",
    ]
    orders = [
        "",
        *(f"{random_.choice(['', '-'])}{name}" for name in random_.sample(numbers, 12)),
        "user",
        "-name",
    ]
    return [f"/jobs?{random_.choice(kinds)()}&sort={random_.choice(orders)}" for _ in range(count)]


def deep_times(client: httpx2.Client, pages: int) -> dict[str, float]:
    """Return percentiles of the time of pages one after the other."""
    times, after = [], ""
    for _ in range(pages):
        begin = time.perf_counter()
        answer = client.get(
            f"/api/v1/jobs?limit=50&sort=-gpu_hours_lost&fields=job_key,user&after={after}"
        )
        times.append(1000 * (time.perf_counter() - begin))
        after = "".join(re.findall(r"after=([\w-]+)", answer.headers["link"]))
    return percentiles(times)


def visits(random_: random.Random, users: list[str], jobs: list[str]) -> list[list[str]]:
    """Return what each of those who click opens: a list, a job, its GPUs, another list."""
    lists = list_addresses(random_, users, 2 * USERS)
    opened = random_.sample(jobs, USERS) if len(jobs) >= USERS else random_.choices(jobs, k=USERS)
    return [
        [lists[2 * at], job, f"{job}?tab=gpus", lists[2 * at + 1]] for at, job in enumerate(opened)
    ]


def click(server: BenchServer, visited: list[list[str]]) -> dict[str, float]:
    """Return the cores that users take who each open one address every EVERY_S seconds.

    Of the time that this should take: where the machine is too busy for it, it takes longer, which
    is no saving.
    """

    def one(place: int, client: httpx2.Client) -> list[float]:
        times = []
        for turn, address in enumerate(visited[place]):
            time.sleep(
                max(0.0, begin + EVERY_S * (turn + place / len(visited)) - time.perf_counter())
            )
            sent = time.perf_counter()
            client.get(address, headers={"accept": "text/html"})
            times.append(1000 * (time.perf_counter() - sent))
        return times

    with ExitStack() as opened, ThreadPoolExecutor(len(visited)) as pool:
        clients = [opened.enter_context(closing(server.client())) for _ in range(10)]
        before, begin = server.cpu_s, time.perf_counter()
        found = pool.map(
            lambda place: one(place, clients[place % len(clients)]), range(len(visited))
        )
        times = [value for part in found for value in part]
        taken = time.perf_counter() - begin
    planned = EVERY_S * max(map(len, visited))
    cores = (server.cpu_s - before) / planned
    return {
        "cores": round(cores, 2),
        "planned_s": planned,
        "taken_s": round(taken, 1),
        **percentiles(times),
    }


def measure(folder: Path, jobs: int, requests: int) -> dict[str, Any]:
    """Return what was measured on a lake of so many jobs."""
    lake = make_lake(folder, jobs)
    random_ = random.Random(7)
    cache = folder / f"cache-{jobs}"
    cache.mkdir(exist_ok=True)
    first = start(lake, cache)
    stop(first)
    server = start(lake, cache)
    found: dict[str, Any] = {
        "start": {"listening_s": round(server.listening_s, 2), "jobs_s": round(server.ready_s, 2)},
        "first_start": {
            "listening_s": round(first.listening_s, 2),
            "jobs_s": round(first.ready_s, 2),
        },
    }
    try:
        with closing(server.client()) as client:
            newest = client.get("/api/v1/jobs?limit=1000&fields=job_key,user,samples").json()
            users = sorted({row["user"] for row in newest if row["user"]})
            pages = [f"/job/{row['job_key']}" for row in newest]
            opened = random_.sample(pages, min(len(pages), requests))
            lists = list_addresses(random_, users, requests)
            timed(client, lists[:5] + opened[:3])  # what is imported when it is first used
            found["lists"] = timed(client, lists)
            found["deep_pages"] = deep_times(client, min(requests, jobs // 60))
            found["job_pages"] = timed(client, opened)
            found["timelines"] = timed(client, [f"{address}?tab=all" for address in opened])
            found["memory_mib"] = server.memory_mib
            found["clicks"] = click(server, visits(random_, users, pages))
            found["memory_after_mib"] = server.memory_mib
            found["sums_of_all_jobs_s"] = whole(client, "/?of=all")
            found["ledger_of_all_jobs_s"] = whole(client, "/waste?by=user&jobs=all")
            found["memory_after_sums_mib"] = server.memory_mib
    finally:
        stop(server)
    return found


def reached(found: Mapping[str, Any]) -> dict[str, bool]:
    """Return which goals are met."""
    return {
        "lists": found["lists"]["p95_ms"] <= LIST_MS,
        "deep_pages": found["deep_pages"]["p95_ms"] <= LIST_MS,
        "job_pages": found["job_pages"]["p95_ms"] <= JOB_MS,
        "start": found["start"]["listening_s"] <= START_S,
        "memory": max(found["memory_after_sums_mib"][name] for name in ("peak", "worker_peak"))
        <= MEMORY_MIB,
        "clicks": found["clicks"]["cores"] <= CLICKS_CORES,
    }


def main() -> int:
    """Print the numbers; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=40, help="of each kind")
    parser.add_argument(
        "--folder", help="for the lake, which is used again; a temporary one by default"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(folder, options.jobs, options.requests)
    goals = reached(found)
    print(
        json.dumps(
            {"jobs": options.jobs, "cores": os.cpu_count(), **found, "reached": goals}, indent=1
        )
    )
    return 0 if all(goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
