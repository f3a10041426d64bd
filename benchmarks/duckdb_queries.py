"""Means and imbalances of jobs, in DuckDB over the raw Parquet: what a skilled user writes in an
afternoon.

    python benchmarks/duckdb_queries.py 'telemetry/*.parquet' gpus.parquet jobs.parquet

The second file has the GPUs of each job and when it held them (job_id, node, gpu, start, end),
which Tachograph finds out from accounting and GPU map. The third is written: one row per job with
the mean of each counter, spatial and temporal imbalance as the notebooks define them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import duckdb

from tachograph.annexes.lab.simulate.plan import RECORDED_COUNTERS
from tachograph.annexes.lab.simulate.telemetry import column_name
from tachograph.catalog.counters import COUNTERS_BY_NAME, CounterKind

MEASURED = tuple(
    name for name in RECORDED_COUNTERS if COUNTERS_BY_NAME[name].kind is not CounterKind.CUMULATIVE
)
ATTRIBUTED = """
CREATE VIEW attributed AS
SELECT held.job_id, held.node, held.gpu, (ts_ns - held.start_ns) // 60_000_000_000 AS time_window,
       samples.* EXCLUDE (gpu_id)
FROM read_parquet('{telemetry}') AS samples ASOF JOIN (
    SELECT job_id, node, gpu, epoch_ns("start") AS start_ns, epoch_ns("end") AS end_ns
    FROM read_parquet('{gpus}')
) AS held ON ProducerName = held.node AND gpu_id = held.gpu AND ts_ns >= held.start_ns
WHERE ts_ns < held.end_ns
"""
JOBS = """
COPY (
WITH of_gpus AS (
    SELECT job_id, {means},
           CASE WHEN max({util}) = 0 THEN 0 ELSE 1 - sum({util}) / (count({util}) * max({util})) END
           AS temporal
    FROM attributed GROUP BY job_id, node, gpu
), of_jobs AS (
    SELECT job_id, count(*) AS gpus, {means_of_gpus}, max(temporal) AS temporal_imbalance
    FROM of_gpus GROUP BY job_id
), of_gpu_windows AS (
    SELECT job_id, time_window, sum({util}) AS total
    FROM attributed GROUP BY job_id, node, gpu, time_window
), of_windows AS (
    SELECT job_id, sum(total) AS total, max(total) AS most
    FROM of_gpu_windows GROUP BY job_id, time_window
), spatial AS (
    SELECT job_id,
           avg(CASE WHEN most = 0 THEN 0 ELSE 1 - total / (gpus * most) END) AS spatial_imbalance
    FROM of_windows JOIN of_jobs USING (job_id) WHERE gpus > 1 GROUP BY job_id
)
SELECT of_jobs.*, spatial_imbalance FROM of_jobs LEFT JOIN spatial USING (job_id)
) TO '{jobs}' (FORMAT parquet)
"""


def main() -> int:
    """Write the jobs; print the peak memory of the process (KiB) to stderr."""
    telemetry, gpus, jobs = sys.argv[1:]
    means = (f"avg({column_name(name)}) AS {name}_mean" for name in MEASURED)
    query = JOBS.format(
        util=column_name("gpu_util"),
        means=", ".join(means),
        means_of_gpus=", ".join(f"avg({name}_mean) AS {name}_mean" for name in MEASURED),
        jobs=jobs,
    )
    with duckdb.connect() as connection:
        connection.execute(ATTRIBUTED.format(telemetry=telemetry, gpus=gpus))
        connection.execute(query)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    sys.stderr.write(f"{peak[1] if peak else 0}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
