"""Polls good and bad exporters 10,000 times with `tachograph collect`, much faster than any site:
`make polls`.

Two sources answer well, one every other time; the others are garbage, errors, a closed port, a page
that is too large, bytes. At each twentieth of the polls memory, open files, threads and the size of
the log are noted. In the second half they must be what they were in the first, in which pools of
threads and caches fill. Prints a JSON object; 1 when something grew.

    python tests/chaos/polls.py --polls 10000
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.faulty import Reply, SeenRequest, faulty
from servers.process import free_port

PARTS = 20
SETTLED = PARTS // 2  # parts until pools of threads and caches are full
MEMORY = 1.1  # times what it was
LOG_BYTES = 20_000  # a good deal less than a line for each failure
FILES = 8  # and threads; a commit that is under way opens some dozens
LIMIT_S = 3600.0
LINE = 'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}",Hostname="n1",UUID="GPU-{gpu}"}} {value}\n'


def answer(asked: Iterator[int], request: SeenRequest) -> Reply:
    """What the exporter at a path answers."""
    number, kind = next(asked), request.path.split("/")[1]
    page = "".join(LINE.format(gpu=gpu, value=(number + gpu) % 101) for gpu in range(8)).encode()
    text = {"Content-Type": "text/plain"}
    if kind == "status":
        return Reply(b"no", 500)
    if kind == "garbage" or (kind == "every_other" and number % 2):
        return Reply(b"<html>%d</html>" % number, headers={"Content-Type": "text/html"})
    if kind == "binary":
        return Reply(os.urandom(20_000), headers=text)
    if kind == "large":
        return Reply(page * 3000, headers=text)
    return Reply(page, headers=text)


@contextmanager
def collector(folder: Path, url: str) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """A collector of these sources: (process, address of its metrics, its log)."""
    listen, log = f"127.0.0.1:{free_port()}", folder / "log"
    lines = [f'lake = "{folder / "lake"}"', "[collect]", f'listen = "{listen}"', "analyze_s = 60"]
    kinds = ("good", "other_good", "every_other", "status", "garbage", "binary", "large")
    urls = {kind: f"{url}/{kind}" for kind in kinds} | {"closed": f"http://127.0.0.1:{free_port()}"}
    for kind, at in urls.items():
        lines += ["[[sources]]", 'source = "dcgm-exporter"', f'name = "{kind}"', f'urls = ["{at}"]']
        lines += ["every_s = 0.01", "refresh_s = 0", "timeout_s = 5", "answer_mib = 0.5"]
    configuration = folder / "tachograph.toml"
    configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "tachograph", "collect", "--config", str(configuration)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process, f"http://{listen}/metrics", log
        finally:
            process.send_signal(signal.SIGTERM)


def polls_of(metrics: str) -> int | None:
    """How many polls there were; None while nothing answers."""
    try:
        page = httpx2.get(metrics, timeout=60).text
    except httpx2.TransportError:
        return None
    found = (
        one
        for one in text_string_to_metric_families(page)
        if one.name == "tachograph_collect_polls"
    )
    return int(
        sum(
            sample.value
            for family in found
            for sample in family.samples
            if sample.name.endswith("_total")
        )
    )


def state_of(pid: int, log: Path, polls: int) -> dict[str, float]:
    """What the process holds."""
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return {
        "polls": polls,
        "rss_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "threads": int(status["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "log_bytes": log.stat().st_size,
    }


def watched(
    process: subprocess.Popen[bytes], metrics: str, log: Path, polls: int
) -> list[dict[str, float]]:
    """The states at each part of the polls. Errors: RuntimeError where the process ended, or
    takes too long.
    """
    states: list[dict[str, float]] = []
    until = time.monotonic() + LIMIT_S
    while len(states) < PARTS:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(
                f"the collector ended or is too slow:\n{log.read_text(errors='replace')[-2000:]}"
            )
        done = polls_of(metrics)
        if done is not None and done >= polls * (len(states) + 1) / PARTS:
            states.append(state_of(process.pid, log, done))
        time.sleep(0.2)
    return states


def grown(states: list[dict[str, float]]) -> list[str]:
    """What grew once caches were full."""
    settled, last = states[:SETTLED], states[SETTLED:]

    def most(of: list[dict[str, float]], key: str) -> float:
        return max(state[key] for state in of)

    found = []
    if most(last, "rss_mib") > MEMORY * most(settled, "rss_mib"):
        found.append("memory")
    if most(last, "files") > most(settled, "files") + FILES:
        found.append("files")
    if most(last, "threads") > most(settled, "threads") + FILES:
        found.append("threads")
    if most(last, "log_bytes") > most(settled, "log_bytes") + LOG_BYTES:
        found.append("log")
    return found


def main() -> int:
    """Run the proof."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--polls", type=int, default=10_000)
    polls = options.parse_args().polls
    asked, lock, began = count(), threading.Lock(), time.monotonic()

    def one_by_one(request: SeenRequest) -> Reply:
        with lock:
            return answer(asked, request)

    with tempfile.TemporaryDirectory() as folder, faulty(one_by_one) as server:
        with collector(Path(folder), server.url) as (process, metrics, log):
            states = watched(process, metrics, log, polls)
        ended = process.wait(60)
        lines = len(log.read_text(errors="replace").splitlines())
    problems = grown(states) + ([f"exit code {ended}"] if ended else [])
    result = {
        "polls": states[-1]["polls"],
        "seconds": round(time.monotonic() - began),
        "log_lines": lines,
    }
    print(json.dumps(result | {"grew": problems, "states": states}, indent=1))  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
