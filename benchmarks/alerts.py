"""One look for alerts at a lake of many GPUs: time, memory, what it finds of what is planted.

Samples of the last 24 hours, a minute apart; one GPU in 100 shows a fault, one node in 50 stopped.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from tachograph.annexes.act.alerts import alert_state
from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
PER_NODE = 4
MINUTES = 24 * 60


def samples(hour: int, gpus: int) -> pl.DataFrame:
    """Return an hour of samples of all GPUs."""
    times = [NOW - timedelta(hours=24 - hour) + timedelta(minutes=minute) for minute in range(60)]
    place = np.repeat(np.arange(gpus), 60)
    frame = pl.DataFrame(
        {
            "node": pl.Series([f"n{at:04}" for at in range(gpus // PER_NODE)]).gather(
                place // PER_NODE
            ),
            "gpu": pl.Series((place % PER_NODE).astype(np.int16)),
            "t": pl.Series(times).gather(np.tile(np.arange(60), gpus)),
            "gpu_util": np.full(len(place), 0.5),
            "xid": np.where((place % 100 == 7) & (hour >= 20), 79, 0),
        }
    )
    stopped = pl.Series((place // PER_NODE) % 50 == 3) & (hour >= 22)
    rows = frame.filter(~stopped)
    schema = {name: dtype for name, dtype in GPU_SAMPLES.schema.items() if name != "seq"}
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in schema.items()
    )


def main() -> int:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--looks", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tachograph-alerts-") as folder:
        lake = Lake.create(str(Path(folder) / "lake"))
        for hour in range(24):
            rows = samples(hour, arguments.gpus)
            part = ChunkPart("gpu_samples", rows)
            ingest(lake, [Chunk(f"hour {hour}", "made", str(hour), (part,), rows.height)], now=NOW)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        taken, used = [], []
        for _ in range(arguments.looks):
            begin, cpu = time.perf_counter(), time.process_time()
            state = alert_state(lake, now=NOW)
            taken.append(time.perf_counter() - begin)
            used.append(time.process_time() - cpu)
        found = [alert.code for alert in state.firing]
        print(
            json.dumps(
                {
                    "gpus": arguments.gpus,
                    "rows": arguments.gpus * MINUTES,
                    "look_s": [round(each, 2) for each in taken],
                    "cpu_s": [round(each, 2) for each in used],
                    "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                    "peak_before_mib": round(before),
                    "failing_gpus": found.count("failing_gpu"),
                    "nodes_without_samples": found.count("node_without_samples"),
                }
            )
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
