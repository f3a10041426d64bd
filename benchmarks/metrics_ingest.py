"""Prints how fast samples come from VictoriaMetrics and Prometheus into a lake, beside fetching the
same bytes alone.

Real servers on the loopback interface hold the same seeded samples: GPUS GPUs, METRICS, one every
15 s. Each way is timed three times in turn with fetching alone (the same questions, the answers
thrown away), and medians are taken:

    fetch    the questions asked and the answers received
    rows     fetch, decode, put side by side in rows
    ingest   rows, conformed and landed in a new lake

The programs `prometheus`, `promtool` and `victoria-metrics` must be installed; without them nothing
is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from servers.prometheus import Series, backfill, prometheus
from servers.victoria import put, victoria
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.sources.http import HttpAnswer, HttpServer, UrlQuery
from tachograph.sources.prometheus import pending
from tachograph.sources.prometheus_query import (
    PrometheusQueries,
    PrometheusSettings,
    QueryMethod,
    server_message,
)
from tachograph.sources.series import SeriesAnswer, SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import series_parts

METRICS = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
)
STEP_S, T0, WINDOW_S, SEED, RUNS = 15, 1_789_999_200, 7200, 20261121, 3
WAYS: tuple[tuple[str, QueryMethod], ...] = (
    ("victoria", "export"),
    ("victoria", "range"),
    ("prometheus", "raw"),
    ("prometheus", "range"),
)
GOAL_ROWS_OVER_FETCH = 5.0  # of each way
T = TypeVar("T")


class Bare(HttpServer):
    """Asks the same, and throws samples away."""

    fetched = 0

    def post_read(self, path: str, form: UrlQuery, read: Callable[[HttpAnswer], T]) -> T:
        answer = self.post(path, form)
        if "count by" in form.get("query", ""):
            return read(answer)
        self.fetched += len(answer.content)
        return read(
            HttpAnswer(
                b'{"status":"success","data":{"resultType":"matrix","result":[]}}', answer.where
            )
        )

    def post_lines(self, path: str, form: UrlQuery, read: Callable[[Iterator[bytes]], T]) -> T:
        self.fetched += len(self.post(path, form).content)
        return read(iter(()))


def series(gpus: int, hours: int) -> Iterator[Series]:
    """Yield made-up series; the values have as many digits as exporters write."""
    chance = random.Random(SEED)
    for gpu in range(gpus):
        labels = {
            "gpu": str(gpu % 4),
            "Hostname": f"n{gpu // 4:04d}",
            "UUID": f"GPU-{gpu:08x}",
            "job": "dcgm",
        }
        for metric in METRICS:
            fraction = "PROF" in metric
            level = 0.0
            points = []
            for k in range(hours * 3600 // STEP_S):
                level = (
                    level + chance.random() * 4e5
                    if "ENERGY" in metric
                    else chance.random() * (1 if fraction else 400)
                )
                points.append(
                    (
                        float(T0 + k * STEP_S),
                        round(level, 6 if fraction else 3 if "POWER" in metric else 0),
                    )
                )
            yield Series({"__name__": metric, **labels}, points)


def measure(url: str, how: QueryMethod, end: int, folder: Path) -> dict[str, float]:
    """Return medians of one way, seconds and counts."""
    settings = PrometheusSettings(
        source="prometheus", url=url, how=how, step_s=STEP_S, window_s=WINDOW_S
    )
    metrics = SeriesVocabulary().names
    times: dict[str, list[float]] = {"fetch": [], "rows": [], "rows_cpu": [], "ingest": []}
    values = fetched = 0
    for run in range(RUNS + 1):  # the first one warms up, and is not counted
        bare, server = Bare(settings), HttpServer(settings, own_words=server_message)
        began = time.perf_counter()
        windows(PrometheusQueries(settings, bare, metrics), end)
        times["fetch"].append(time.perf_counter() - began)
        began, used = time.perf_counter(), time.process_time()
        found = windows(PrometheusQueries(settings, server, metrics), end, SeriesMemory())
        times["rows"].append(time.perf_counter() - began)
        times["rows_cpu"].append(time.process_time() - used)
        lake = Lake.create(str(folder / f"{how}-{run}"))
        began = time.perf_counter()
        now = datetime.fromtimestamp(end / 1000, UTC)
        ingest(
            lake,
            pending(
                PrometheusQueries(settings, server, metrics),
                SeriesMemory(),
                T0 * 1000,
                end,
                settled=end,
            ),
            now=now,
        )
        times["ingest"].append(time.perf_counter() - began)
        values, fetched = found, bare.fetched
        bare.close()
        server.close()
    return {
        **{name: statistics.median(taken[1:]) for name, taken in times.items()},
        "values": values,
        "bytes": fetched,
    }


def windows(querying: PrometheusQueries, end: int, memory: SeriesMemory | None = None) -> int:
    """Ask window by window, return how many values came; with a memory they become rows."""
    count = 0
    for start in range(T0 * 1000, end, WINDOW_S * 1000):
        found: SeriesAnswer = querying.samples(start, min(end, start + WINDOW_S * 1000))
        count += found.points
        if memory is not None:
            series_parts(found, memory, overlaps=False)
    return count


def report(measured: dict[str, float]) -> dict[str, float]:
    """Return what is printed of one way."""
    values, fetch_s = measured["values"], measured["fetch"]
    return {
        "values": int(values),
        "bytes_per_value": round(measured["bytes"] / values, 1),
        "fetch_s": round(fetch_s, 3),
        "rows_over_fetch": round(measured["rows"] / fetch_s, 2),
        "ingest_over_fetch": round(measured["ingest"] / fetch_s, 2),
        "rows_cpu_ns_per_value": round(measured["rows_cpu"] / values * 1e9),
        "fetch_values_per_s": round(values / fetch_s),
        "rows_values_per_s": round(values / measured["rows"]),
        "ingest_values_per_s": round(values / measured["ingest"]),
    }


def main() -> int:
    """Print the numbers; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--hours", type=int, default=4)
    options = parser.parse_args()
    missing = [
        name
        for name in ("prometheus", "promtool", "victoria-metrics")
        if shutil.which(name) is None
    ]
    if missing:
        print(json.dumps({"benchmark": "metrics_ingest", "missing": missing}))
        return 0
    made = list(series(options.gpus, options.hours))
    end = (T0 + options.hours * 3600) * 1000
    ways: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        backfill(base / "prometheus", made)
        with prometheus(base / "prometheus") as one, victoria(base / "victoria") as other:
            put(other, made)
            for server, how in WAYS:
                url = one if server == "prometheus" else other
                ways[f"{server}_{how}"] = report(measure(url, how, end, base / server))
    reached = all(way["rows_over_fetch"] <= GOAL_ROWS_OVER_FETCH for way in ways.values())
    measured = {
        "benchmark": "metrics_ingest",
        "gpus": options.gpus,
        "hours": options.hours,
        "step_s": STEP_S,
        **ways,
    }
    print(
        json.dumps({**measured, "goal_rows_over_fetch": GOAL_ROWS_OVER_FETCH, "reached": reached})
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
