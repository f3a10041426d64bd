"""Alerts for operators: failing GPUs, nodes without samples, large jobs that hang.

Missing data proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

import msgspec
import polars as pl

from tachograph.catalog.units import plural, printable, text
from tachograph.judge.health import XID_CRITICAL, xid_meaning

HEALTH_COUNTERS = ("xid", "remapped_rows_uncorrectable", "row_remap_failure", "ecc_dbe")
GROWING_FAULTS = ("remapped_rows_uncorrectable", "ecc_dbe")
HANG = "job_hang"
WINDOW = timedelta(hours=24)  # in which a rise counts, and a node is expected to report again
FRESH = timedelta(minutes=30)  # older states of a job or GPU are not evidence of the present
ALL_NODES = "all nodes"

_GPU = ["node", "cluster", "gpu", "mig"]


@dataclass(frozen=True, slots=True)
class AlertKind:
    """A kind of alert: its title and what to do."""

    title: str
    runbook: str
    severity: str


ALERT_KINDS: Mapping[str, AlertKind] = MappingProxyType(
    {
        "failing_gpu": AlertKind(
            "GPU with memory or hardware faults",
            "Drain the node, run `dcgmi diag -r 3`, reset the GPU; replace it where the fault "
            "returns or remapping "
            "has failed. Check the results of jobs that used it.",
            "critical",
        ),
        "hung_job": AlertKind(
            "Large job hangs",
            "Look at the job's output and at its processes (`py-spy dump`, `gdb -p`); inform "
            "its user, and cancel it "
            "if it does not come back.",
            "warning",
        ),
        "policy": AlertKind(
            "Policy applies to a running job",
            "Look at the job; `tachograph act policy status` lists what was done.",
            "warning",
        ),
        "node_without_samples": AlertKind(
            "Node sends no samples",
            (
                "Check whether the node is up (`scontrol show node`), then its exporter or sampler "
                "and the network."
            ),
            "warning",
        ),
        "no_samples": AlertKind(
            "No node sends samples",
            (
                "Check `tachograph status`: the collector, its sources, the network; then the disk "
                "of the lake."
            ),
            "critical",
        ),
    }
)


class Alert(msgspec.Struct, frozen=True, omit_defaults=True):
    """A current alert. target: unique within its code; labels: node, gpu, job, ...; path: its
    page.
    """

    code: str
    target: str
    sentence: str
    labels: dict[str, str] = {}
    path: str = ""


@dataclass(frozen=True, slots=True)
class AlertState:
    """Active alerts, and the (code, target) measured as clear; anything else is unknown."""

    firing: tuple[Alert, ...] = ()
    clear: frozenset[tuple[str, str]] = frozenset()


def merged(states: Iterable[AlertState]) -> AlertState:
    """Return several states as one."""
    listed = list(states)
    clear = frozenset[tuple[str, str]]().union(*(state.clear for state in listed))
    return AlertState(tuple(alert for state in listed for alert in state.firing), clear)


def failing_gpus(samples: pl.DataFrame, *, now: datetime) -> AlertState:
    """Return the GPUs with faults in `samples`: columns of _GPU, t, HEALTH_COUNTERS.

    A fault: failed remapping, more uncorrectable errors or rows remapped after these, or a critical
    XID in the window. A GPU is clear if a fresh sample has one of the counters.
    """
    if samples.is_empty():
        return AlertState()
    ordered = samples.sort(*_GPU, "t")
    xid = pl.col("xid").cast(pl.Int64).drop_nulls()
    came_up = xid.filter((xid != xid.shift()) & xid.is_in(sorted(XID_CRITICAL)))
    by_gpu = ordered.group_by(_GPU, maintain_order=True).agg(
        *(pl.col(name).drop_nulls().diff().clip(lower_bound=0).sum() for name in GROWING_FAULTS),
        last_t=pl.col("t").max(),
        failure=pl.col("row_remap_failure").drop_nulls().last(),
        xid=came_up.last(),
        measured=pl.any_horizontal(pl.col(*HEALTH_COUNTERS).is_not_null()).any(),
    )
    firing, clear = [], set()
    for row in by_gpu.iter_rows(named=True):
        name = f"GPU {row['gpu']}" + ("" if row["mig"] is None else f".{row['mig']}")
        node = _NodeName(row["node"], row["cluster"])
        target, faults = f"{node.full_name} {name}", _faults(row)
        if faults:
            sentence = f"{printable(node.full_name)} {name}: {', '.join(faults)}."
            labels = {**node.labels, "gpu": str(row["gpu"])}
            firing.append(Alert("failing_gpu", target, sentence, labels, node.path))
        elif row["measured"] and now - row["last_t"] <= FRESH:
            clear.add(("failing_gpu", target))
    return AlertState(tuple(firing), frozenset(clear))


class _NodeName(NamedTuple):
    """A node, and its cluster where samples name it."""

    node: str
    cluster: str | None

    @property
    def full_name(self) -> str:
        return self.node if self.cluster is None else f"{self.node} of {self.cluster}"

    @property
    def labels(self) -> dict[str, str]:
        named = {} if self.cluster is None else {"cluster": self.cluster}
        return {"node": self.node, **named}

    @property
    def path(self) -> str:
        of = "" if self.cluster is None else f"?cluster={quote(self.cluster)}"
        return f"/node/{self.node}{of}"


def _faults(row: Mapping[str, float | None]) -> list[str]:
    faults = ["remapping a faulty memory row has failed"] if (row["failure"] or 0) > 0 else []
    rows, errors = (row[name] for name in GROWING_FAULTS)
    if rows:
        faults.append(f"{plural(rows, 'memory row')} remapped after uncorrectable errors in 24 h")
    if errors:
        faults.append(f"{plural(errors, 'uncorrectable ECC error')} in 24 h")
    if row["xid"] is not None:
        faults.append(f"XID {int(row['xid'])}, {xid_meaning(int(row['xid']))}")
    return faults


def nodes_without_samples(
    last: Mapping[tuple[str, str | None], datetime],
    newest: datetime | None,
    *,
    now: datetime,
    limit: timedelta,
) -> AlertState:
    """Return nodes whose last sample is too old.

    last: {(node, cluster): time}; newest: of the lake.

    If no node has newer samples, that is one alert; nothing is known of single nodes.
    """
    if newest is None:
        return AlertState()
    if now - newest > limit:
        since = text((now - newest).total_seconds(), "s")
        return AlertState((Alert("no_samples", ALL_NODES, f"No sample of any node for {since}."),))
    firing, clear = [], {("no_samples", ALL_NODES)}
    nodes = {_NodeName(*name): at for name, at in last.items()}
    for node in sorted(nodes, key=lambda node_name: node_name.full_name):
        at = nodes[node]
        if newest - at > limit:
            gap = text((newest - at).total_seconds(), "s")
            sentence = f"{printable(node.full_name)}: no sample for {gap}, others report."
            firing.append(
                Alert("node_without_samples", node.full_name, sentence, node.labels, node.path)
            )
        else:
            clear.add(("node_without_samples", node.full_name))
    return AlertState(tuple(firing), frozenset(clear))


def hung_jobs(
    jobs: pl.DataFrame, findings: pl.DataFrame, *, now: datetime, least_gpus: int, limit: timedelta
) -> AlertState:
    """Return running jobs with at least this many GPUs that hang longer than the limit.

    jobs: job_key, display_id, job_id, cluster, user, partition, gpus, end, as_of; all recent ones.
    findings: job_key, code, verdict, sentence, begin, end, of HANG. Clear is a job that ended, or
    with a fresh result.
    """
    fresh = pl.col("as_of") >= now - FRESH
    large = jobs.filter(pl.col("gpus") >= least_gpus)
    hangs = findings.filter(
        pl.col("code") == HANG, pl.col("verdict") == "yes", pl.col("end") - pl.col("begin") >= limit
    )
    running = large.filter(pl.col("end").is_null(), fresh)
    firing = []
    hanging_jobs = hangs.join(running, on="job_key")
    for row in hanging_jobs.sort("job_key").iter_rows(named=True):
        job = row["display_id"] or row["job_id"]
        message = (
            f"Job {job} of {printable(row['user'] or 'unknown')} "
            f"({plural(row['gpus'], 'GPU')}): {row['sentence']}"
        )
        facts = {"job": job, **{name: row[name] for name in ("cluster", "user", "partition")}}
        labels = {name: value for name, value in facts.items() if value}
        firing.append(Alert("hung_job", row["job_key"], message, labels, f"/job/{row['job_key']}"))
    decided = findings.filter(pl.col("verdict") == "no").get_column("job_key")
    measured = running.filter(pl.col("job_key").is_in(decided.implode())).get_column("job_key")
    over = jobs.filter(pl.col("end").is_not_null()).get_column("job_key")
    hanging = {alert.target for alert in firing}
    clear = {("hung_job", key) for key in (*over, *measured) if key not in hanging}
    return AlertState(tuple(firing), frozenset(clear))
