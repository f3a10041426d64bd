"""State of the last analysis, and the data since then."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import polars as pl

from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSED,
    ANALYSES,
    DEVICES,
    GPU_SAMPLES,
    JOB_NODE_SAMPLES,
    JOBS,
    NODE_SAMPLES,
    STEPS,
    TIME,
    LakeTable,
)
from tachograph.lake.delta import Lake
from tachograph.lake.places import read_same_clusters
from tachograph.lake.problems import lake_errors
from tachograph.pipeline.hosts import HOST_COUNTERS_READ
from tachograph.pipeline.job_hosts import POWER

METHOD = "13"  # raised when the same input gives other numbers than before
# Of nodes with other devices than before.
EVER = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class InputVersions:
    """Versions of the inputs, the digest of the options, and the clusters that have two names."""

    versions: dict[str, int]
    method: str
    same_clusters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewInput:
    """New data: spans of samples per node, ids of jobs. `everything`: analyze all again."""

    everything: bool
    spans: pl.DataFrame  # node, first, last
    job_ids: frozenset[str]

    @property
    def nothing(self) -> bool:
        """Nothing to do."""
        return not self.everything and not self.spans.height and not self.job_ids


def seen_now(lake: Lake, configuration: Configuration, judge_digest: str) -> InputVersions:
    """Return the versions of the input tables, and the digest of the method."""
    versions = {table.name: lake.version(table) for table in ANALYSED}
    return InputVersions(versions, method_digest(configuration, judge_digest))


def method_digest(configuration: Configuration, judge_digest: str) -> str:
    """Return a digest of the options behind numbers and verdicts; `judge_digest`: of the
    verdicts.
    """
    deciding = [
        METHOD,
        configuration.slurm,
        configuration.site.cluster,
        configuration.nodes,
        configuration.filters,
        configuration.analysis,
        *configuration.device,
    ]
    idle_util = configuration.thresholds.idle_util  # of timelines
    return hashlib.sha256(msgspec.json.encode([*deciding, idle_util, judge_digest])).hexdigest()[
        :16
    ]


def seen_last(lake: Lake) -> InputVersions | None:
    """Return what the last complete analysis read; None without one."""
    done = lake.latest(ANALYSES)
    if not done.height:
        return None
    row = done.row(-1, named=True)
    versions = {table.name: row[f"{table.name}_version"] for table in ANALYSED}
    return InputVersions(
        {name: -1 if version is None else version for name, version in versions.items()},
        row["method"],
        read_same_clusters(lake),
    )


def is_stale(lake: Lake, configuration: Configuration, judge_digest: str) -> bool:
    """Return whether the last analysis used another configuration or version."""
    last = seen_last(lake)
    return last is not None and last.method != method_digest(configuration, judge_digest)


def next_number(lake: Lake) -> int:
    """Return a new analysis number, greater than all complete ones: microseconds since 1970."""
    last = lake.latest(ANALYSES)["seq"].max()
    return max(time.time_ns() // 1000, (last if isinstance(last, int) else 0) + 1)


def news_since(lake: Lake, last: InputVersions | None, now: InputVersions) -> NewInput:
    """Return new data in the lake since `last`."""
    spans = pl.DataFrame(schema={"node": pl.String, "first": TIME, "last": TIME})
    if last is None or last.method != now.method:
        return NewInput(True, spans, frozenset())
    before = last.versions
    ids: set[str] = set()
    for table in (JOBS, ALLOCATIONS, STEPS):
        if now.versions[table.name] > before[table.name]:
            with lake_errors(lake.uri(table)):
                fresh = (
                    lake.scan(table)
                    .filter(pl.col("seq") > before[table.name])
                    .select("job_id")
                    .unique()
                    .collect()
                )
            ids.update(fresh["job_id"])
    parts = [spans]
    of_hosts = (*HOST_COUNTERS_READ, POWER)
    sampled: Mapping[LakeTable, Sequence[str]] = {
        GPU_SAMPLES: (),
        NODE_SAMPLES: of_hosts,
        JOB_NODE_SAMPLES: (),
    }
    for table, needed in sampled.items():
        if now.versions[table.name] > before[table.name]:
            parts.append(_new_spans(lake, table, before[table.name], needed))
    if now.versions[DEVICES.name] > before[DEVICES.name]:
        parts.append(_new_devices(lake, before[DEVICES.name]))
    return NewInput(False, pl.concat(parts), frozenset(ids))


def _new_spans(lake: Lake, table: LakeTable, version: int, needed: Sequence[str]) -> pl.DataFrame:
    """First and last new sample of each node; with `needed`, of samples with one of its
    counters.
    """
    files = [
        file
        for file in lake.files(table)
        if file.seq > version and not file.empty.issuperset(needed or ["t"])
    ]
    with lake_errors(lake.uri(table)):
        rows = lake.read_files(table, files, ["node", "t", "seq", *needed]).filter(
            pl.col("seq") > version
        )
        with_values = (
            rows.filter(pl.any_horizontal(pl.col(needed).is_not_null())) if needed else rows
        )
        return (
            with_values.group_by("node")
            .agg(first=pl.col("t").min(), last=pl.col("t").max())
            .collect()
        )


def _new_devices(lake: Lake, version: int) -> pl.DataFrame:
    """Return nodes with new device facts: all their jobs are analyzed again."""
    with lake_errors(lake.uri(DEVICES)):
        nodes = lake.scan(DEVICES).filter(pl.col("seq") > version).select("node").unique().collect()
    return nodes.with_columns(first=pl.lit(EVER[0], dtype=TIME), last=pl.lit(EVER[1], dtype=TIME))
