"""Prints the bytes that a row of samples takes in the lake, and the same samples in VictoriaMetrics
and Prometheus.

A simulated day with every counter of dcgm-exporter, in the digits it prints (ratios with six
decimals, power with three, the rest whole). All three get the same values at the same milliseconds:
VictoriaMetrics by /api/v1/import, merged and started anew; Prometheus as blocks that promtool makes
(with --prometheus); the lake by ingest in pieces of an hour and compaction. Times are as a scraper
notes them (steady), which suits the time series databases best, and as a sampler on the node does
(some milliseconds late, each time otherwise). VictoriaMetrics' labels and index come on top of its
data: both are told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from tachograph.annexes.lab.simulate.cluster import simulate
from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulationPlan
from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.counters import COUNTERS, DCGM_PREFIX
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.sources import ldms

GOAL_RATIO = 1.0
KEYS = ("node", "gpu")
PRINTED = tuple(counter for counter in COUNTERS if counter.dcgm_name and counter.dcgm_unit)
DECIMALS = {counter.name: 6 for counter in PRINTED if counter.dcgm_unit == "fraction"} | {
    "power_w": 3
}
DCGM_NAMES = {counter.name: f"{DCGM_PREFIX}{counter.dcgm_name}" for counter in COUNTERS}
ALWAYS_ZERO = (
    "xid",
    "pcie_replays",
    "remapped_rows_uncorrectable",
    "remapped_rows_correctable",
    "row_remap_failure",
)


def printed(nodes: int, interval_s: int, *, steady: bool, folder: Path) -> pl.DataFrame:
    """Return a day of samples in the exporter's units and digits, sorted by node, GPU and time
    (milliseconds).
    """
    groups = (
        NodeGroup(nodes - nodes // 3, 4, "A100 SXM 80GB"),
        NodeGroup(max(1, nodes // 3), 4, "H100 SXM 80GB"),
    )
    plan = SimulationPlan(
        seed=3, days=1, groups=groups, interval_s=interval_s, median_hours=2.0, defects=False
    )
    cluster = simulate(plan, folder / "cluster")
    pieces = [
        part.frame
        for file in sorted((cluster.folder / "telemetry").glob("*.parquet"))
        for chunk in ldms.read_file(file)
        for part in chunk.parts
        if part.table == GPU_SAMPLES.name
    ]
    shutil.rmtree(cluster.folder)
    rows = _with_the_rest(pl.concat(pieces, how="vertical_relaxed"))
    digits = [pl.col(c.name).cast(pl.Float64).round(DECIMALS.get(c.name, 0)) for c in PRINTED]
    kept = rows.select(pl.col("t").dt.cast_time_unit("ms"), "node", "gpu", *digits)
    return (kept if steady else _late(kept)).sort(*KEYS, "t")


def _late(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows up to 45 ms later, the GPUs of a node together."""
    looks = rows.select("node", "t").unique().sort("node", "t")
    ms = pl.Series("late", np.random.default_rng(1).integers(0, 45, looks.height))
    joined = rows.join(looks.with_columns(ms), on=["node", "t"], how="left")
    return joined.with_columns(pl.col("t") + pl.duration(milliseconds="late")).drop("late")


def _with_the_rest(rows: pl.DataFrame) -> pl.DataFrame:
    """The counters that the simulation leaves out: clocks that follow the load, and those that
    hardly ever move.
    """
    rng = np.random.default_rng(0)
    busy = (rows["gpu_util"] > 0).fill_null(value=False).to_numpy()
    slower = 15 * (rng.random(rows.height) < 0.2) * rng.integers(0, 8, rows.height)
    capped = np.where(rng.random(rows.height) < 0.1, 4, 0)
    return rows.with_columns(
        pl.Series("sm_clock_mhz", np.where(busy, 1410 - slower, 210)),
        pl.lit(1593).alias("mem_clock_mhz"),
        pl.Series("throttle_reasons", np.where(busy, capped, 1)),
        *(pl.lit(0).alias(name) for name in ALWAYS_ZERO),
    )


def in_the_lake(rows: pl.DataFrame, folder: Path) -> dict[str, float]:
    """Return bytes of the rows in a lake: as appended hour by hour, compacted, and of the log
    beside.
    """
    lake = Lake.create(str(folder / "lake"))
    units = {counter.name: counter.dcgm_unit or counter.unit for counter in PRINTED}
    timed = rows.with_columns(
        pl.col("t").dt.cast_time_unit("us"), pl.col("t").dt.hour().alias("hour")
    )
    hours = timed.partition_by("hour", include_key=False)
    chunks = (
        Chunk(
            f"hour {number}",
            "benchmark",
            "",
            (ChunkPart(GPU_SAMPLES.name, piece, units),),
            piece.height,
        )
        for number, piece in enumerate(hours)
    )
    report = ingest(lake, chunks, now=datetime.now(UTC))
    if report.rejected:
        raise RuntimeError(f"values were removed: {report.rejects}")
    appended = sum(file.size for file in lake.files(GPU_SAMPLES))
    begin = time.process_time()
    compact(lake, [GPU_SAMPLES], vacuum_hours=0)
    seconds = time.process_time() - begin
    log = _bytes(folder / "lake" / GPU_SAMPLES.name / "_delta_log")
    size = sum(file.size for file in lake.files(GPU_SAMPLES))
    return {"appended": appended, "compacted": size, "log": log, "compact_cpu_s": round(seconds, 2)}


def in_victoria_metrics(rows: pl.DataFrame, folder: Path) -> dict[str, float]:
    """Return bytes of the rows in VictoriaMetrics: data, data and index as it counts them, the
    whole folder.

    Errors: RuntimeError when it does not hold every value.
    """
    values = 0
    with victoria_metrics(folder) as server:
        for lines, count in import_lines(rows, [counter.name for counter in PRINTED]):
            server.ask("/api/v1/import", lines)
            values += count
        server.settle()
    with victoria_metrics(folder) as server:
        there = server.metric('vm_rows{type="storage')
        data, index = (
            server.metric('vm_data_size_bytes{type="storage'),
            server.metric('vm_data_size_bytes{type="index'),
        )
    if there != values:
        raise RuntimeError(f"VictoriaMetrics holds {there:.0f} of {values} values")
    return {
        "values": values,
        "data": data,
        "data_and_index": data + index,
        "folder": _bytes(folder / "vm"),
    }


class VictoriaMetrics:
    """A VictoriaMetrics that runs."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: bytes | None = None) -> str:
        """Return the answer."""
        with urllib.request.urlopen(
            urllib.request.Request(self.address + path, data=body), timeout=120
        ) as answer:
            return str(answer.read().decode())

    def metric(self, begin: str) -> float:
        """Return the sum of its own metrics whose line begins so."""
        lines = self.ask("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(begin))

    def settle(self) -> None:
        """Write and merge everything."""
        self.ask("/internal/force_flush")
        while self.metric("vm_pending_rows{"):
            time.sleep(0.2)
        self.ask("/internal/force_merge")
        time.sleep(1)
        while self.metric("vm_active_force_merges") or self.metric("vm_active_merges"):
            time.sleep(0.2)
        time.sleep(1)


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[VictoriaMetrics]:
    """A server whose data lie in `folder`/vm."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = [
        f"-storageDataPath={folder / 'vm'}",
        "-retentionPeriod=100y",
        f"-httpListenAddr=127.0.0.1:{port}",
    ]
    with (folder / "vm.log").open("ab") as log:
        process = subprocess.Popen(["victoria-metrics", *options], stdout=log, stderr=log)
        server = VictoriaMetrics(port)
        try:
            for _ in range(200):
                try:
                    server.ask("/health")
                    break
                except OSError:
                    time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            process.wait()


def _series(rows: pl.DataFrame) -> Iterator[tuple[dict[str, str], pl.DataFrame]]:
    """Labels as dcgm-exporter and a scraper give them, and the rows of each GPU."""
    for key, of_gpu in rows.group_by(*KEYS, maintain_order=True):
        node, gpu = str(key[0]), int(str(key[1]))
        yield {
            "gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}", "pci_bus_id": f"00000000:{gpu + 1:02X}:00.0",
            "device": f"nvidia{gpu}", "modelName": "NVIDIA A100-SXM4-80GB", "Hostname": node,
            "instance": f"{node}:9400", "job": "dcgm",
        }, of_gpu  # fmt: skip


def _numbers(rows: pl.DataFrame, name: str) -> tuple[list[int], list[float]]:
    known = rows.select(pl.col("t").dt.timestamp("ms"), name).drop_nulls()
    values = known[name]
    if (values == values.round()).all():  # written without a decimal point, as the exporter does
        values = values.cast(pl.Int64)
    return known["t"].to_list(), values.to_list()


def import_lines(rows: pl.DataFrame, counters: Sequence[str]) -> Iterator[tuple[bytes, int]]:
    """The values of one GPU as /api/v1/import takes them, and how many there are.

    rows: node, gpu, t, and a column for each counter; those of a GPU in the order of time.
    """
    for labels, of_gpu in _series(rows):
        lines, count = [], 0
        for counter in counters:
            times, numbers = _numbers(of_gpu, counter)
            metric = {"__name__": DCGM_NAMES[counter], **labels}
            if numbers:
                lines.append(json.dumps({"metric": metric, "values": numbers, "timestamps": times}))
            count += len(numbers)
        yield "\n".join(lines).encode(), count


def in_prometheus(rows: pl.DataFrame, folder: Path) -> dict[str, float]:
    """Return bytes of the rows in Prometheus' blocks: chunks alone, and all."""
    file, blocks = folder / "samples.om", folder / "blocks"
    with file.open("w") as text:
        for counter in PRINTED:
            name = f"{DCGM_PREFIX}{counter.dcgm_name}"
            text.write(f"# TYPE {name} gauge\n")
            for labels, of_gpu in _series(rows):
                written = ",".join(f'{label}="{value}"' for label, value in labels.items())
                times, numbers = _numbers(of_gpu, counter.name)
                lines = (
                    f"{name}{{{written}}} {n} {t / 1000:.3f}\n"
                    for t, n in zip(times, numbers, strict=True)
                )
                text.writelines(lines)
        text.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(blocks)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    file.unlink()
    chunks = sum(path.stat().st_size for path in blocks.rglob("chunks/*"))
    return {"chunks": chunks, "folder": _bytes(blocks)}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(nodes: int, interval_s: int, *, steady: bool, prometheus: bool) -> dict[str, object]:
    """Return bytes per row in each, per value, and ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = printed(nodes, interval_s, steady=steady, folder=folder)
        lake, victoria = in_the_lake(rows, folder), in_victoria_metrics(rows, folder)
        sizes = {
            "lake": lake["compacted"],
            "lake_with_log": lake["compacted"] + lake["log"],
            "lake_appended": lake["appended"],
            "victoria_metrics_data": victoria["data"],
            "victoria_metrics_data_and_index": victoria["data_and_index"],
            "victoria_metrics_folder": victoria["folder"],
        }
        if prometheus:
            made = in_prometheus(rows, folder)
            sizes |= {"prometheus_chunks": made["chunks"], "prometheus_folder": made["folder"]}
    return {
        "interval_s": interval_s,
        "times": "steady" if steady else "some ms late",
        "rows": rows.height,
        "values": int(victoria["values"]),
        "bytes_per_row": {name: round(size / rows.height, 2) for name, size in sizes.items()},
        "bytes_per_value": {
            name: round(size / victoria["values"], 3) for name, size in sizes.items()
        },
        "lake_over_victoria_metrics_data": round(sizes["lake"] / sizes["victoria_metrics_data"], 3),
        "lake_over_victoria_metrics_folder": round(
            sizes["lake_with_log"] / sizes["victoria_metrics_folder"], 3
        ),
        "compact_rows_per_cpu_s": round(rows.height / lake["compact_cpu_s"]),
    }


def main() -> int:
    """Print the numbers; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--nodes", type=int, default=12, help="of four GPUs, at 30 s; a third of them at 10 s"
    )
    parser.add_argument(
        "--prometheus", action="store_true", help="Prometheus' blocks, too: takes minutes"
    )
    options = parser.parse_args()
    if shutil.which("victoria-metrics") is None:
        print(
            json.dumps({"benchmark": "lake_bytes", "skipped": "victoria-metrics is not installed"})
        )
        return 0
    cases = [
        measure(
            max(1, options.nodes * interval // 30),
            interval,
            steady=steady,
            prometheus=options.prometheus,
        )
        for interval, steady in ((30, True), (10, True), (30, False), (10, False))
    ]
    ratios = [float(str(case["lake_over_victoria_metrics_folder"])) for case in cases]
    reached = all(ratio <= GOAL_RATIO for ratio in ratios)
    print(
        json.dumps(
            {
                "benchmark": "lake_bytes",
                "cases": cases,
                "goal_ratio": GOAL_RATIO,
                "reached": reached,
            }
        )
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
