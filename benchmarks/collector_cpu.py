"""Prints what collecting from 1,000 exporters every 30 s costs: seconds of CPU per round, and the
share of one core.

A process of its own answers as `--nodes` dcgm-exporters with `--gpus` GPUs each and `--metrics`
values a GPU that change; its CPU time is not counted. Rounds are run back to back, each 30 s later
by the clock that is handed in: what a round costs does not depend on the pause before it. Counted
is all of this process: asking (the threads that talk HTTP), parsing (the thread that reads pages
and makes rows of them), landing (rows, devices, watermark in the lake), and the compaction of what
the rounds wrote, by its share of a round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import COUNTERS, DCGM_PREFIX
from tachograph.catalog.tables import DEVICES, GPU_SAMPLES
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.sources.registry import SourceFeed, load_feed, settings_of

EVERY_S = 30
VARIANTS = 4  # of each page: a round's values differ from those of the round before
GOAL_SHARE = 0.10
_PRINTED = tuple(counter for counter in COUNTERS if counter.dcgm_name and counter.dcgm_unit)


def page(node: str, variant: int, *, gpus: int, metrics: int) -> bytes:
    """Return what an exporter of a node prints."""
    rng = random.Random(f"{node} {variant}")
    lines = []
    for counter in _PRINTED[:metrics]:
        name = f"{DCGM_PREFIX}{counter.dcgm_name}"
        lines += [f"# HELP {name} {counter.sentence}", f"# TYPE {name} gauge"]
        for gpu in range(gpus):
            labels = (
                f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",pci_bus_id="00000000:{gpu + 7:02X}:00.0",device="nvidia{gpu}",'
                f'modelName="NVIDIA A100-SXM4-80GB",Hostname="{node}",DCGM_FI_DRIVER_VERSION="550.54.15"'
            )
            lines.append(f"{name}{{{labels}}} {_value(counter.dcgm_unit or '', counter.high, rng)}")
    return ("\n".join(lines) + "\n").encode()


def _value(unit: str, high: float, rng: random.Random) -> str:
    if unit == "fraction":
        return f"{rng.random():.6f}"
    if unit == "W":
        return f"{rng.uniform(60, 500):.3f}"
    return str(rng.randint(0, 100 if unit == "percent" else int(min(high, 100))))


def serve(nodes: int, gpus: int, metrics: int, ready: Connection) -> None:
    """Answer as all exporters, on one port; the path names the node."""
    pages = {
        f"/n{number:04d}/metrics": [
            page(f"n{number:04d}", variant, gpus=gpus, metrics=metrics)
            for variant in range(VARIANTS)
        ]
        for number in range(nodes)
    }
    asked = dict.fromkeys(pages, 0)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    ready.send(listener.getsockname()[1])

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            while line := requests.readline():
                path = line.split()[1].decode()
                while requests.readline().strip():
                    pass
                asked[path] += 1
                body = pages[path][asked[path] % VARIANTS]
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of CPU of one round, and its rows."""

    scrape_s: float
    parse_s: float
    commit_s: float
    rows: int


def one_round(feed: SourceFeed, lake: Lake, now: datetime) -> Round:
    """Ask all exporters once and land what they tell."""
    process, thread = time.process_time(), time.thread_time()
    chunks = list(feed.poll(lambda stream: watermark(lake, stream), now=now))
    asked = time.process_time() - process
    parse = time.thread_time() - thread
    if feed.outcome.unreachable:
        raise RuntimeError(f"no answer: {feed.outcome.unreachable}")
    process = time.process_time()
    report = ingest(lake, chunks, now=now + timedelta(seconds=EVERY_S))
    return Round(
        asked - parse, parse, time.process_time() - process, report.rows.get(GPU_SAMPLES.name, 0)
    )


def measure(nodes: int, rounds: int, port: int, folder: Path) -> tuple[list[Round], float, float]:
    """Return the rounds after the first, CPU seconds of the compaction, and bytes per row after
    it.
    """
    urls = [f"http://127.0.0.1:{port}/n{number:04d}/metrics" for number in range(nodes)]
    settings = settings_of(
        {"source": "dcgm-exporter", "urls": urls, "timeout_s": 30.0}, where="benchmark"
    )
    feed = load_feed("dcgm-exporter").connect(settings, configuration=Configuration())
    lake = Lake.create(str(folder / "lake"))
    begin = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    try:
        done = [
            one_round(feed, lake, begin + timedelta(seconds=EVERY_S * number))
            for number in range(rounds + 1)
        ]
    finally:
        feed.close()
    process = time.process_time()
    compact(lake, [GPU_SAMPLES, DEVICES])
    seconds = time.process_time() - process
    files = lake.files(GPU_SAMPLES)
    return done[1:], seconds, sum(file.size for file in files) / sum(file.rows for file in files)


def main() -> int:
    """Print the numbers; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=4, help="of a node")
    parser.add_argument("--metrics", type=int, default=len(_PRINTED), help="values of a GPU")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    heard, told = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(options.nodes, options.gpus, options.metrics, told), daemon=True
    )
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            rounds, compact_s, bytes_per_row = measure(
                options.nodes, options.rounds, heard.recv(), Path(folder)
            )
    finally:
        server.kill()
        server.join()
    scrape, parse, land = (
        statistics.median(getattr(one, name) for one in rounds)
        for name in ("scrape_s", "parse_s", "commit_s")
    )
    total = scrape + parse + land + compact_s / len(rounds)
    measured = {
        "benchmark": "collector_cpu",
        "nodes": options.nodes,
        "gpus": options.nodes * options.gpus,
        "metrics": options.metrics,
        "rows_per_round": rounds[-1].rows,
        "page_bytes": len(page("n0000", 0, gpus=options.gpus, metrics=options.metrics)),
        "rounds": len(rounds),
        "cpus": os.cpu_count(),
        "scrape_cpu_s": round(scrape, 3),
        "parse_cpu_s": round(parse, 3),
        "land_cpu_s": round(land, 3),
        "compact_cpu_s_per_round": round(compact_s / len(rounds), 3),
        "cpu_s_per_round": round(total, 3),
        "share_of_a_core": round(total / EVERY_S, 3),
        "goal_share": GOAL_SHARE,
        "bytes_per_row": round(bytes_per_row, 1),
        "reached": total / EVERY_S <= GOAL_SHARE,
    }
    print(json.dumps(measured))
    return 0 if measured["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
