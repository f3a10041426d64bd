"""Kills `tachograph serve` and its writer of images, pages through lists of a lake that changes:
`make chaos-serve`.

A trial starts the server of a lake that has a new version, kills the process that writes the image
of its jobs, the server while that one writes, and the server at a moment by chance, then lets it
run: its list of jobs must be that of the lake, and the cache may hold one image. Then clients page
through all jobs by cursors while the lake gets a version every second: no answer is 5xx, no job is
there twice or missing. Prints a JSON object; 1 when something was otherwise.

    python tests/chaos/serving.py --kills 100 --seconds 120
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobframes import frame, summary
from tachograph.annexes.serve.server import Listening, serve
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake

SEED, JOBS, MOST_ROWS = 20260301, 400, 60
CHANGED = 100  # jobs of a new version: more than are held in memory beside an image
WRITER, BESIDE_WRITER, SERVER = "writer of an image", "server, image being written", "server"
KILLED = (WRITER, BESIDE_WRITER, SERVER)  # of each trial, before a server may run
LONGEST_S = 60.0
_LINK = re.compile(rb"http://\S+")


class ServedJobs:
    """A lake of made jobs, and what a server of it must answer."""

    def __init__(self, folder: Path) -> None:
        self.location, self.cache = str(folder / "lake"), folder / "cache"
        self.lake = Lake.create(self.location)
        self.hours = dict.fromkeys((f"sim:{number}:1741046400" for number in range(JOBS)), 0.0)
        self.version = 0
        self.change(list(self.hours))

    def change(self, keys: list[str]) -> None:
        """Commit a version in which these jobs have other hours."""
        self.version += 1
        rows = [
            summary(
                job_key=key,
                job_id=key.split(":")[1],
                display_id=key.split(":")[1],
                gpu_hours=float(self.version),
            )
            for key in keys
        ]
        self.hours |= dict.fromkeys(keys, float(self.version))
        written = frame(JOB_SUMMARIES, rows).drop("seq")
        self.lake.append(
            JOB_SUMMARIES, written, app_id="chaos", mark=self.version, seq=self.version
        )

    def left_over(self) -> list[str]:
        """Images in the cache of the lake, and parts of some."""
        return sorted(path.name for path in self.cache.glob("*/*-*"))


def serve_until_killed(location: str, cache: str) -> None:
    """Serve, in a process of its own: print the address."""
    served = ServedLake(
        Lake.open(location),
        Configuration(serve=ServeOptions(requests_per_s=0.0, concurrent=64)),
        cache=Path(cache),
        most_rows=MOST_ROWS,
    )
    serve(served, Listening.at("127.0.0.1:0"), user="chaos", started=_write_link)


def _write_link(link: str) -> None:
    os.write(1, f"{link}\n".encode())


@contextmanager
def server(jobs: ServedJobs) -> Iterator[subprocess.Popen[bytes]]:
    """A server of its own, killed at the end of the block where it still runs."""
    command = [sys.executable, __file__, "--serve", jobs.location, str(jobs.cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    with contextlib.suppress(OSError):
        files = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for file in files for child in file.read_text(encoding="ascii").split()]
    return []


@contextmanager
def answers(link: str) -> Iterator[httpx2.Client]:
    """A client that the link of a server logs in."""
    with httpx2.Client(
        base_url=link.partition("/login")[0], follow_redirects=True, timeout=LONGEST_S
    ) as client:
        client.get(link)
        yield client


def listed(
    client: httpx2.Client, *, limit: int = 1000, wait_s: float = LONGEST_S
) -> tuple[list[tuple[str, float]], Counter[int]]:
    """All jobs with their hours, a part at a time, and how often each status came; 503 at first
    means: come again.
    """
    url, rows, codes = (
        f"/api/v1/jobs?limit={limit}&sort=job_key&fields=job_key,gpu_hours",
        [],
        Counter[int](),
    )
    end = time.monotonic() + wait_s
    while url:
        answer = client.get(url)
        codes[answer.status_code] += 1
        if answer.status_code == 503 and "being read" in answer.text and time.monotonic() < end:
            time.sleep(0.1)
            continue
        answer.raise_for_status()
        rows += [(row["job_key"], row["gpu_hours"]) for row in answer.json()]
        url = answer.links.get("next", {}).get("url", "")
    return rows, codes


def kill_again_and_again(jobs: ServedJobs, kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill servers and writers of images; return what was wrong after, and what is left in the
    cache.
    """
    wrong: list[str] = []
    done, trials = Counter[str](), 0
    while done.total() < kills:
        trials += 1
        jobs.change(chance.sample(sorted(jobs.hours), CHANGED))
        for kind in KILLED:
            _kill(jobs, kind, chance)
            done[kind] += 1
        with server(jobs) as process:
            assert process.stdout is not None
            with answers(process.stdout.readline().decode().strip()) as client:
                rows, _ = listed(client)
                if dict(rows) != jobs.hours or len(rows) != len(jobs.hours):
                    wrong.append(
                        f"trial {trials}: {len(rows)} jobs, "
                        f"{len(set(rows) ^ set(jobs.hours.items()))} differ"
                    )
                end = time.monotonic() + LONGEST_S
                while len(jobs.left_over()) > 1 and time.monotonic() < end:
                    time.sleep(0.1)
        if len(jobs.left_over()) > 1:
            wrong.append(f"trial {trials}: left in the cache: {jobs.left_over()}")
    return {"kills": dict(done), "trials": trials, "wrong": wrong, "left": jobs.left_over()}


def _kill(jobs: ServedJobs, kind: str, chance: random.Random) -> None:
    """Start a server and kill it, or first the writer of its image."""
    with server(jobs) as process:
        assert process.stdout is not None
        link = process.stdout.readline().decode().strip()
        asking = threading.Thread(target=_ask, args=(link,), daemon=True)
        asking.start()
        if kind == SERVER:
            time.sleep(chance.uniform(0.0, 2.5))
        else:
            end = time.monotonic() + LONGEST_S
            while not (writers := children(process.pid)) and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 1.0))
            if kind == WRITER:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(writers[0], signal.SIGKILL)
                time.sleep(chance.uniform(0.0, 0.5))
        process.kill()


def _ask(link: str) -> None:
    with contextlib.suppress(httpx2.HTTPError), answers(link) as client:
        client.get("/api/v1/me")


def page_while_it_changes(
    jobs: ServedJobs, seconds: float, clients: int, chance: random.Random
) -> dict[str, Any]:
    """Page through all jobs while new versions come, files are compacted and vacuumed; return
    what was wrong.
    """
    wrong: list[str] = []
    walks: list[int] = []
    codes = Counter[int]()
    throughout = frozenset(jobs.hours)

    def walk(link: str, limit: int) -> None:
        with answers(link) as client:
            while True:
                try:
                    rows, seen = listed(client, limit=limit, wait_s=0.0)
                except httpx2.HTTPError as problem:
                    text = (
                        problem.response.text
                        if isinstance(problem, httpx2.HTTPStatusError)
                        else repr(problem)
                    )
                    wrong.append(text[:200])
                    return
                codes.update(seen)
                walks.append(len(rows))
                keys = Counter(key for key, _ in rows)
                twice = [key for key, count in keys.items() if count > 1]
                if twice or throughout - keys.keys():
                    wrong.append(f"{len(twice)} twice, {len(throughout - keys.keys())} missing")
                if time.monotonic() > end:
                    return

    with server(jobs) as process:
        assert process.stdout is not None
        link = process.stdout.readline().decode().strip()
        with answers(link) as client:
            listed(client)
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=walk, args=(link, chance.randint(20, 90)))
            for _ in range(clients)
        ]
        for thread in threads:
            thread.start()
        number, versions = JOBS, 0
        while time.monotonic() < end:
            begun = time.monotonic()
            new = [f"sim:{number + place}:1741046400" for place in range(3)]
            jobs.change([*new, *chance.sample(sorted(jobs.hours), 20)])
            number, versions = number + 3, versions + 1
            if versions % 5 == 0:
                compact(jobs.lake, [JOB_SUMMARIES], vacuum_hours=0)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - begun)))
        for thread in threads:
            thread.join()
    return {"versions": versions, "walks": len(walks), "codes": dict(codes), "wrong": wrong}


def main() -> int:
    """Run both, print what came of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--serve", nargs=2, metavar=("LAKE", "CACHE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_until_killed(*options.serve)
        return 0
    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        (Path(name) / "killed").mkdir()
        (Path(name) / "paged").mkdir()
        killed = kill_again_and_again(ServedJobs(Path(name) / "killed"), options.kills, chance)
        paged = page_while_it_changes(
            ServedJobs(Path(name) / "paged"), options.seconds, options.clients, chance
        )
    sys.stdout.write(f"{json.dumps({'killed': killed, 'paged': paged}, indent=1)}\n")
    return 1 if killed["wrong"] or paged["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
