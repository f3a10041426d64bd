"""Target `clustercockpit`: a job archive of ClusterCockpit, one folder per job.

Contains the measured data: minutes of the GPUs, as series of scope `accelerator`, and of hosts that
a job had to itself. Running jobs are left out. Source: cc-backend 1.5, pkg/archive (version 3 of
the archive, cluster.json) and internal/importer (what it refuses); cc-lib, schema/schemas.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import msgspec
import polars as pl

from tachograph.catalog.devices import match_device
from tachograph.catalog.errors import ExportError
from tachograph.catalog.tables import JOB_MINUTES, JOB_NODE_MINUTES
from tachograph.catalog.units import printable
from tachograph.export.content import ExportContent, ExportResult, export_errors, whole_file
from tachograph.export.registry import Progress
from tachograph.lake.places import may_be_of
from tachograph.sources.clustercockpit import CLUSTER_FILE, METRICS, STATES, ArchiveMetric

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


VERSION = "3\n"  # of the archive: cc-backend 1.5 reads no other
UNKNOWN = "unknown"  # text that the schema requires and that is not recorded
STEP_S = 60
DIGITS = 3  # decimals that are significant in a mean of 32-bit numbers
LONGEST_FOLDER = 60  # characters, of at most four bytes each: file systems take names of 255 bytes
BATCH = 256  # jobs whose minutes are read at a time
_PLAIN_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")  # as cc-backend's lists of nodes take it

EXPORTED = (
    *(metric for metric in METRICS if metric.counter in JOB_MINUTES.schema),
    ArchiveMetric("cpu_user", "cpu_user", 100, scope="node"),
    ArchiveMetric("cpu_load", "load_average", 1, scope="node"),
)
# Statistics that the schema requires of every job. What is not recorded is 0, as cc-backend shows a
# statistic that is missing, and named in metaData; cluster.json does not list it as a metric.
REQUIRED_STATISTICS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cpu_user": {"base": ""},
        "cpu_load": {"base": ""},
        "mem_used": {"base": "B", "prefix": "G"},
        "flops_any": {"base": "F/s", "prefix": "G"},
        "mem_bw": {"base": "B/s", "prefix": "G"},
    }
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--to`."""
    parser.add_argument("--to", required=True, metavar="DIR", help="the archive's folder")


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write two files per job that has ended, and what describes the clusters; return how many jobs.

    Left as they are: jobs that run, and those whose id is not a number or whose length, final state
    or GPUs are not known. Errors: ExportError for an archive of another version, or a cluster.json
    that cannot be read.
    """
    archive, jobs = Path(options.to), content.summaries
    _write_version(archive)
    devices = content.devices()
    ids = {cluster: _accelerators(devices, cluster) for cluster in jobs["cluster"].unique()}
    clusters: dict[str, ClusterDescription] = {}
    done = 0
    for first in range(0, jobs.height, BATCH):
        done += _write_some(archive, content, jobs[first : first + BATCH], ids, clusters)
        progress("export jobs", min(first + BATCH, jobs.height), jobs.height)
    for cluster in clusters.values():
        cluster.write(archive)
    return [ExportResult("jobs", str(archive), done, left_out=jobs.height - done)]


def is_archivable(row: JobSummaryRow) -> bool:
    """Return whether a job can be archived: ended, not instantly, with a numeric id."""
    has_ended = (row["state"] or "").lower() in STATES
    return has_ended and row["job_id"].isdecimal() and _duration(row) > 0


def _write_version(archive: Path) -> None:
    file = archive / "version.txt"
    with export_errors(file):
        version = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    if version.strip() not in ("", VERSION.strip()):
        what = f"the archive has version {printable(version.strip(), most=20)}, not 3"
        do = "bring it to version 3 with cc-backend's archive-migration, or name another folder"
        raise ExportError(what, where=str(file), do=do)
    if not version:
        with whole_file(file) as beside:
            beside.write_text(VERSION, encoding="utf-8")


def _write_some(
    archive: Path,
    content: ExportContent,
    jobs: pl.DataFrame,
    ids: Mapping[str | None, Mapping[tuple[Any, ...], str]],
    clusters: dict[str, ClusterDescription],
) -> int:
    """Write these jobs; return how many there were to write. `ids`: by cluster."""
    gpus, minutes = rows_by_job(content.gpus(jobs)), rows_by_job(content.minutes(jobs))
    of_nodes = rows_by_job(content.node_minutes(jobs))
    # cc-backend refuses a job without resources
    rows = [
        row
        for row in cast("list[JobSummaryRow]", jobs.to_dicts())
        if is_archivable(row) and row["job_key"] in gpus
    ]
    for row in rows:
        key, names = row["job_key"], ids[row["cluster"]]
        data = job_data(
            row,
            minutes.get(key, JOB_MINUTES.empty()),
            names,
            of_nodes.get(key, JOB_NODE_MINUTES.empty()),
        )
        meta = job_meta(row, gpus[key], data, names)
        folder = job_folder(archive, row)
        write_document(folder / "data.json", data)
        write_document(folder / "meta.json", meta)  # last: it is what makes a job of the folder
        name = cluster_folder(row["cluster"])
        cluster = clusters.setdefault(name, ClusterDescription(name))
        cluster.add(row["gpu_model"], gpus[key], data, names)
    return len(rows)


def rows_by_job(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return {job_key: its rows}."""
    return {
        str(key): of_job for (key,), of_job in rows.partition_by("job_key", as_dict=True).items()
    }


def write_document(target: Path, document: Mapping[str, Any]) -> None:
    """Write a document as JSON, whole or not at all."""
    with whole_file(target) as beside:
        beside.write_bytes(msgspec.json.encode(document))


@dataclass(slots=True)
class ClusterDescription:
    """What `cluster.json` must name so that the jobs of a cluster are accepted.

    nodes: {subcluster: nodes}; gpus: {subcluster: {index: ids}}; peaks: {metric: its greatest
    value}, of which there is at least one.
    """

    name: str
    nodes: dict[str, set[str]] = field(default_factory=dict)
    gpus: dict[str, dict[int, dict[str, None]]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=lambda: {"acc_utilization": 100.0})

    def add(
        self,
        model: str | None,
        gpus: pl.DataFrame,
        data: Mapping[str, Mapping[str, Any]],
        ids: Mapping[tuple[Any, ...], str],
    ) -> None:
        """Add what a job names; `gpus` are its rows of job_gpus, `data` its `data.json`."""
        kind = model or UNKNOWN
        self.nodes.setdefault(kind, set()).update(gpus["node"])
        of_kind = self.gpus.setdefault(kind, {})
        for node, gpu, mig in gpus.select("node", "gpu", "mig").sort("node", "gpu").iter_rows():
            if mig is None:
                of_kind.setdefault(gpu, {})[_id((node, gpu, mig), ids)] = None
        device = match_device(model)
        capacities = {metric.name: 100.0 for metric in EXPORTED if metric.factor == 100}
        if device is not None:
            capacities["acc_mem_used"] = device.hbm_mib
            capacities["acc_power"] = device.board_power_w or 0.0
        for metric in EXPORTED:
            for series in data.get(metric.name, {}).get(metric.scope, {}).get("series", ()):
                known = self.peaks.get(metric.name, 0.0)
                most = capacities.get(metric.name) or series["statistics"]["max"]
                self.peaks[metric.name] = max(known, most)

    def write(self, archive: Path) -> None:
        """Write the description; of one that exists only what is missing is added.

        Errors: ExportError where it cannot be read.
        """
        file = archive / self.name / CLUSTER_FILE
        metrics = [self._metric(metric) for metric in EXPORTED if metric.name in self.peaks]
        kinds = [self._kind(kind) for kind in sorted(self.nodes)]
        document: dict[str, Any] = {"name": self.name, "metricConfig": [], "subClusters": []}
        try:
            if file.exists():
                document |= msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
            for key, entries in (("metricConfig", metrics), ("subClusters", kinds)):
                names = {entry["name"] for entry in document[key]}
                document[key] += [entry for entry in entries if entry["name"] not in names]
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            do = "correct it, or name another folder with --to"
            raise ExportError("no description of a cluster", where=str(file), do=do) from None
        write_document(file, document)

    def _metric(self, metric: ArchiveMetric) -> dict[str, Any]:
        """Return the configuration of a metric; its thresholds are for the site to change."""
        peak = self.peaks[metric.name]
        shares = {"peak": 1.0, "normal": 0.8, "caution": 0.5, "alert": 0.2}
        document = {
            "name": metric.name,
            "unit": metric.unit,
            "scope": metric.scope,
            "timestep": STEP_S,
            "aggregation": "sum" if metric.base else "avg",
            **{name: round(share * peak, DIGITS) for name, share in shares.items()},
        }
        return document | ({"footprint": metric.footprint} if metric.footprint else {})

    def _kind(self, kind: str) -> dict[str, Any]:
        """Return a subcluster; what is not recorded of its hosts is 0 or empty.

        The place of an accelerator in the list is its index.
        """
        ids = self.gpus[kind]
        first = [
            next(iter(ids.get(index, {str(index): None})))
            for index in range(max(ids, default=-1) + 1)
        ]
        others = [name for names in ids.values() for name in names if name not in first]
        device = match_device(kind)
        vendor = {"AMD": "AMD GPU", "Intel": "Intel GPU"}.get(device.vendor if device else "")
        accelerators = [
            {"id": name, "type": vendor or "Nvidia GPU", "model": kind}
            for name in (*first, *others)
        ]
        nodes = sorted(self.nodes[kind])
        are_plain = nodes and all(map(_PLAIN_NODE.fullmatch, nodes))
        return {
            "name": kind,
            "nodes": ",".join(nodes) if are_plain else "*",
            "processorType": UNKNOWN,
            **dict.fromkeys(("socketsPerNode", "coresPerSocket", "threadsPerCore"), 0),
            **{name: {} for name in ("flopRateScalar", "flopRateSimd", "memoryBandwidth")},
            "topology": {
                "node": [],
                "socket": [],
                "memoryDomain": [],
                "accelerators": accelerators,
            },
        }


def job_folder(archive: Path, row: JobSummaryRow) -> Path:
    """Return the folder of a job.

    >>> row = {"cluster": "c", "job_id": "1034871", "start": datetime.fromisoformat("2026-04-01T00:00:00Z")}
    >>> str(job_folder(Path("archive"), row))
    'archive/c/1034/871/1775001600'
    """
    number = int(row["job_id"])
    return (
        archive
        / cluster_folder(row["cluster"])
        / str(number // 1000)
        / f"{number % 1000:03d}"
        / str(_seconds(row["start"]))
    )


def job_meta(
    row: JobSummaryRow,
    gpus: pl.DataFrame,
    data: Mapping[str, Any],
    ids: Mapping[tuple[Any, ...], str],
) -> dict[str, Any]:
    """Return `meta.json` of a job; `gpus` are its rows of job_gpus, `data` its `data.json`."""
    resources = _resources(gpus, ids)
    statistics = {
        metric.name: _statistics(metric, data[metric.name][metric.scope])
        for metric in EXPORTED
        if metric.name in data
    }
    missing = [name for name in REQUIRED_STATISTICS if name not in statistics]
    for name in missing:
        zero = dict.fromkeys(("avg", "min", "max"), 0.0)
        statistics[name] = {"unit": dict(REQUIRED_STATISTICS[name]), **zero}
    energy_j = row["energy_j"] if row["energy_j"] is not None else row["energy_j_estimated"]
    array = row["array_job_id"] or ""
    about = {"jobName": row["name"], "notRecorded": ", ".join(missing)}
    meta = {
        "jobId": int(row["job_id"]),
        "user": row["user"] or UNKNOWN,
        "project": row["account"] or UNKNOWN,
        "cluster": cluster_folder(row["cluster"]),
        "subCluster": row["gpu_model"] or UNKNOWN,
        "partition": row["partition"],
        "arrayJobId": int(array) if array.isdecimal() else None,
        # cc-backend refuses a job that has not as many resources
        "numNodes": len(resources),
        "numAcc": row["gpus"] or None,
        "shared": "none" if row["attribution"] == "whole_node" else "multi_user",
        "monitoringStatus": 3 if data else 0,
        "walltime": int(row["timelimit_s"] or 0) or None,
        "jobState": (row["state"] or "").lower(),
        "submitTime": None if row["submit"] is None else _seconds(row["submit"]),
        "startTime": _seconds(row["start"]),
        "duration": _duration(row),
        "resources": resources,
        "energy": energy_j,
        "energyFootprint": None if energy_j is None else {"acc_power": energy_j},
        "footprint": {
            f"{metric.name}_{metric.footprint}": statistics[metric.name][metric.footprint]
            for metric in EXPORTED
            if metric.footprint and metric.name in data
        },
        "metaData": {name: text for name, text in about.items() if text},
        "statistics": statistics,
    }
    return {name: value for name, value in meta.items() if value is not None}


def job_data(
    row: JobSummaryRow,
    minutes: pl.DataFrame,
    ids: Mapping[tuple[Any, ...], str],
    of_nodes: pl.DataFrame | None = None,
) -> dict[str, dict[str, Any]]:
    """Return `data.json` of a job: {metric: {scope: series}} by minute, null if missing.

    minutes, of_nodes: its rows of job_minutes and job_node_minutes.
    """
    length = max(1, -(-_duration(row) // STEP_S))
    by_scope = {"accelerator": minutes, "node": of_nodes}
    data: dict[str, dict[str, Any]] = {}
    for metric in EXPORTED:
        rows = by_scope[metric.scope]
        if rows is not None and rows[metric.counter].is_not_null().any():
            data[metric.name] = {metric.scope: _of_metric(metric, rows, length, ids)}
    return data


def _of_metric(
    metric: ArchiveMetric, minutes: pl.DataFrame, length: int, ids: Mapping[tuple[Any, ...], str]
) -> dict[str, Any]:
    series = []
    key = ("node",) if metric.scope == "node" else ("node", "gpu", "mig")
    for unit, rows in minutes.group_by(*key, maintain_order=True):
        values: list[float | None] = [None] * length
        for minute, value in rows.select("minute", metric.counter).iter_rows():
            if value is not None and 0 <= minute < length:
                values[minute] = round(value * metric.factor, DIGITS)
        known = [value for value in values if value is not None]
        if known:
            statistics = {"avg": sum(known) / len(known), "min": min(known), "max": max(known)}
            named = {"id": _id(unit, ids)} if metric.scope == "accelerator" else {}
            series.append({"hostname": unit[0], **named, "statistics": statistics, "data": values})
    return {"unit": metric.unit, "timestep": STEP_S, "series": series}


def _statistics(metric: ArchiveMetric, data: Mapping[str, Any]) -> dict[str, Any]:
    """Mean of the series' means, least and greatest value of all, as cc-lib joins them."""
    parts = [series["statistics"] for series in data["series"]]
    return {
        "unit": metric.unit,
        "avg": sum(part["avg"] for part in parts) / len(parts),
        "min": min(part["min"] for part in parts),
        "max": max(part["max"] for part in parts),
    }


def _resources(gpus: pl.DataFrame, ids: Mapping[tuple[Any, ...], str]) -> list[dict[str, Any]]:
    held: dict[str, list[str]] = {}
    for unit in gpus.select("node", "gpu", "mig").iter_rows():
        held.setdefault(unit[0], []).append(_id(unit, ids))
    return [{"hostname": node, "accelerators": accelerators} for node, accelerators in held.items()]


def _accelerators(devices: pl.DataFrame, cluster: str | None) -> dict[tuple[Any, ...], str]:
    """Return {(node, gpu, mig): PCI address}, ClusterCockpit's GPU name, if known.

    `cluster`: that of the jobs. Rows without one are meant where no row names it; of a job without
    a cluster, a GPU that has two addresses has none.
    """
    named = pl.col("cluster").is_not_null()
    addresses = (
        devices.filter(pl.col("pci").is_not_null() & pl.col("mig").is_null())
        .filter(may_be_of(pl.lit(cluster, pl.String)))
        .filter(named | ~named.any().over("node", "gpu"))
        .group_by("node", "gpu", "mig")
        .agg(pl.col("pci").unique())
    )
    return {
        (node, gpu, mig): pci[0] for node, gpu, mig, pci in addresses.iter_rows() if len(pci) == 1
    }


def _id(unit: tuple[Any, ...], ids: Mapping[tuple[Any, ...], str]) -> str:
    """Return the PCI address, else the index, with the MIG instance appended."""
    _, gpu, mig = unit
    return ids.get(unit) or (str(gpu) if mig is None else f"{gpu}:{mig}")


def cluster_folder(cluster: str | None) -> str:
    """Return the name of a cluster as a safe folder name."""
    name = printable(cluster or "", most=LONGEST_FOLDER)
    return name.replace("/", "_").lstrip(".") or UNKNOWN


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _duration(row: JobSummaryRow) -> int:
    """Return the seconds it ran; 0 while it runs."""
    return 0 if row["end"] is None else _seconds(row["end"]) - _seconds(row["start"])
