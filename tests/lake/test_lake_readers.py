"""Other programs read a lake: DuckDB, pandas and deltalake find the same jobs and findings, by a
protocol that Spark reads.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
from deltalake import DeltaTable

from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries, read_verdicts

RESOLVED = """
    WITH jobs AS (
        SELECT * FROM read_parquet($summaries, union_by_name = true)
        QUALIFY row_number() OVER (PARTITION BY job_key ORDER BY seq DESC) = 1
    )
"""
# Delta Lake's documentation: Spark with Delta 1.0 (Spark 3.1) reads and writes tables of these
# versions; table features, which are newer, raise them to 3 and 7.
SPARK_READER, SPARK_WRITER = 1, 2
# types of Delta's protocol that Spark 3 has; timestamp without a time zone is a table feature
SPARK_TYPES = {"string", "long", "integer", "short", "float", "double", "boolean", "date"}


def _tables(lake: Lake) -> dict[str, DeltaTable]:
    folders = (log.parent for log in Path(lake.location).glob("*/_delta_log"))
    return {folder.name: DeltaTable(str(folder)) for folder in folders}


def test_duckdb_finds_the_jobs_and_findings_of_the_lake(exported: Lake) -> None:
    tables = _tables(exported)
    files = {name: tables[name].file_uris() for name in ("job_summaries", "findings")}
    found = duckdb.execute(
        RESOLVED + "SELECT job_id, gpu_util_mean, gpu_hours FROM jobs ORDER BY job_id",
        {"summaries": files["job_summaries"]},
    ).fetchall()
    columns = ("job_id", "gpu_util_mean", "gpu_hours")
    summaries = read_summaries(exported)
    assert found == summaries.select(columns).sort("job_id").rows()
    counts = duckdb.execute(
        RESOLVED
        + "SELECT code, verdict, count(*) FROM read_parquet($findings, union_by_name = true)"
        + " JOIN jobs USING (job_key, seq) WHERE verdict = 'yes' GROUP BY code, verdict",
        {"summaries": files["job_summaries"], "findings": files["findings"]},
    ).fetchall()
    verdicts = read_verdicts(exported, summaries).filter(verdict="yes")
    assert {row[:2]: row[2] for row in counts} == Counter(
        verdicts.select("code", "verdict").iter_rows()
    )
    assert counts


def test_pandas_finds_the_samples_of_the_lake(exported: Lake) -> None:
    """One file for all of the log, as pandas reads them."""
    files = _tables(exported)["gpu_samples"].file_uris()
    samples = pd.concat([pd.read_parquet(file, partitioning=None) for file in files])
    means = samples.groupby(["node", "gpu"])["gpu_util"].mean()
    expected = {("n1", 0): 0.8, ("n1", 1): 0.0, ("n2", 0): 0.5, ("n3", 0): 0.25}
    assert {key: round(float(value), 6) for key, value in means.items()} == expected
    assert len(samples) == pl.read_delta(f"{exported.location}/gpu_samples").height == 4 * 60
    assert str(samples["t"].dt.tz) == "UTC"


def test_spark_can_read_every_table(exported: Lake) -> None:
    tables = _tables(exported)
    assert len(tables) > 8
    for name, table in tables.items():
        protocol = table.protocol()
        versions = (protocol.min_reader_version, protocol.min_writer_version)
        assert versions == (SPARK_READER, SPARK_WRITER), name
        assert not protocol.reader_features, name
        for field in json.loads(table.schema().to_json())["fields"]:
            kind = field["type"]
            if isinstance(kind, dict):
                assert kind["type"] in ("array", "struct"), (name, field)
            else:
                assert kind in SPARK_TYPES | {"timestamp"}, (name, field)
