"""Target `clustercockpit`: a job archive of ClusterCockpit, one folder per job.

Contains the measured data: minutes of the GPUs, as series of scope `accelerator`. ClusterCockpit's
schema of `meta.json` also needs statistics of CPUs and memory (cpu_user, cpu_load, mem_used,
flops_any, mem_bw), which are not measured here; they are left out. Running jobs are left out.
Source: cc-backend, job-meta.schema.json, job-data.schema.json, job-metric-data.schema.json,
unit.schema.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import polars as pl

from tachograph.catalog.tables import JOB_GPUS, JOB_MINUTES
from tachograph.catalog.units import MB_PER_MIB, printable
from tachograph.export.content import ExportContent, ExportResult, whole_file
from tachograph.export.registry import Progress
from tachograph.lake.places import may_be_of

UNKNOWN = "unknown"  # text that the schema requires and that is not recorded
STEP_S = 60
DIGITS = 3  # decimals that are significant in a mean of 32-bit numbers
LONGEST_FOLDER = 60  # characters, of at most four bytes each: file systems take names of 255 bytes
BATCH = 256  # jobs whose minutes are read at a time
# final states of the schema; of other endings the closest
STATES: Mapping[str, str] = MappingProxyType(
    {
        "COMPLETED": "completed",
        "FAILED": "failed",
        "CANCELLED": "cancelled",
        "TIMEOUT": "timeout",
        "DEADLINE": "timeout",
        "OUT_OF_MEMORY": "out_of_memory",
        "NODE_FAIL": "node_fail",
        "BOOT_FAIL": "node_fail",
    }
)
OTHER_ENDING = "stopped"


@dataclass(frozen=True, slots=True)
class ArchiveMetric:
    """A metric of ClusterCockpit: its counter in job_minutes, factor, unit.

    `footprint`: its name in meta.json.
    """

    name: str
    counter: str
    factor: float
    base: str
    prefix: str = ""
    footprint: bool = False

    @property
    def unit(self) -> dict[str, str]:
        """The unit as the schema writes it; of a ratio it is empty."""
        return {"base": self.base, "prefix": self.prefix} if self.prefix else {"base": self.base}


METRICS: tuple[ArchiveMetric, ...] = (
    # Percent, as NVML reports it.
    ArchiveMetric("acc_utilization", "gpu_util", 100, "", footprint=True),
    ArchiveMetric("acc_mem_used", "hbm_used_mib", MB_PER_MIB, "B", "M", footprint=True),
    ArchiveMetric("acc_power", "power_w", 1, "W", footprint=True),
    ArchiveMetric("acc_sm_active", "sm_active", 100, ""),
    ArchiveMetric("acc_dram_active", "dram_active", 100, ""),
    ArchiveMetric("acc_fp64_active", "fp64_active", 100, ""),
    ArchiveMetric("acc_fp32_active", "fp32_active", 100, ""),
    ArchiveMetric("acc_fp16_active", "fp16_active", 100, ""),
    ArchiveMetric("acc_tensor_active", "tensor_active", 100, ""),
)
# names of these statistics in meta.json, which are not those in data.json
_IN_META: Mapping[str, str] = MappingProxyType({"acc_utilization": "acc_used"})


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--to`."""
    parser.add_argument("--to", required=True, metavar="DIR", help="the archive's folder")


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write two files per job that has ended; return how many jobs.

    Left as they are: jobs that run, and those whose id is not a number or whose length is not
    known.
    """
    archive, jobs = Path(options.to), content.summaries
    devices = content.devices()
    ids = {cluster: _accelerators(devices, cluster) for cluster in jobs["cluster"].unique()}
    done = 0
    for first in range(0, jobs.height, BATCH):
        done += _write_some(archive, content, jobs[first : first + BATCH], ids)
        progress("export jobs", min(first + BATCH, jobs.height), jobs.height)
    return [ExportResult("jobs", str(archive), done, unchanged=jobs.height - done)]


def is_archivable(row: Mapping[str, Any]) -> bool:
    """Return whether a job can be archived: ended, not instantly, with a numeric id."""
    return bool(row["end"]) and row["job_id"].isdecimal() and _duration(row) > 0


def _write_some(
    archive: Path,
    content: ExportContent,
    jobs: pl.DataFrame,
    ids: Mapping[str | None, Mapping[tuple[Any, ...], str]],
) -> int:
    """Write these jobs; return how many there were to write. `ids`: by cluster."""
    gpus, minutes = _by_job(content.gpus(jobs)), _by_job(content.minutes(jobs))
    rows = [row for row in jobs.iter_rows(named=True) if is_archivable(row)]
    for row in rows:
        names = ids[row["cluster"]]
        data = job_data(row, minutes.get(row["job_key"], JOB_MINUTES.empty()), names)
        meta = job_meta(row, gpus.get(row["job_key"], JOB_GPUS.empty()), data, names)
        folder = job_folder(archive, row)
        _write(folder / "data.json", data)
        _write(folder / "meta.json", meta)  # last: it is what makes a job of the folder
    return len(rows)


def _by_job(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {
        str(key): of_job for (key,), of_job in rows.partition_by("job_key", as_dict=True).items()
    }


def _write(target: Path, document: Mapping[str, Any]) -> None:
    with whole_file(target) as beside:
        beside.write_bytes(msgspec.json.encode(document))


def job_folder(archive: Path, row: Mapping[str, Any]) -> Path:
    """Return the folder of a job.

    >>> row = {"cluster": "c", "job_id": "1034871", "start": datetime.fromisoformat("2026-04-01T00:00:00Z")}
    >>> str(job_folder(Path("archive"), row))
    'archive/c/1034/871/1775001600'
    """
    number = int(row["job_id"])
    return (
        archive
        / _cluster(row)
        / str(number // 1000)
        / f"{number % 1000:03d}"
        / str(_seconds(row["start"]))
    )


def job_meta(
    row: Mapping[str, Any],
    gpus: pl.DataFrame,
    data: Mapping[str, Any],
    ids: Mapping[tuple[Any, ...], str],
) -> dict[str, Any]:
    """Return `meta.json` of a job; `gpus` are its rows of job_gpus, `data` its `data.json`."""
    meta = {
        "jobId": int(row["job_id"]),
        "user": row["user"] or UNKNOWN,
        "project": row["account"] or UNKNOWN,
        "cluster": _cluster(row),
        "subCluster": row["gpu_model"] or UNKNOWN,
        "partition": row["partition"],
        "arrayJobId": int(row["array_job_id"]) if (row["array_job_id"] or "").isdecimal() else None,
        "numNodes": row["nodes"] or gpus["node"].n_unique() or None,
        "numAcc": row["gpus"],
        "exclusive": int(row["attribution"] == "whole_node"),
        "monitoringStatus": 1,
        "walltime": None if row["timelimit_s"] is None else int(row["timelimit_s"]),
        "jobState": STATES.get(row["state"], OTHER_ENDING),
        "startTime": _seconds(row["start"]),
        "duration": _duration(row),
        "resources": _resources(gpus, ids),
        "metaData": {"jobName": row["name"]} if row["name"] else None,
        "statistics": {
            _IN_META.get(metric.name, metric.name): _footprint(
                metric, data[metric.name]["accelerator"]
            )
            for metric in METRICS
            if metric.footprint and metric.name in data
        },
    }
    return {name: value for name, value in meta.items() if value is not None}


def job_data(
    row: Mapping[str, Any], minutes: pl.DataFrame, ids: Mapping[tuple[Any, ...], str]
) -> dict[str, dict[str, Any]]:
    """Return `data.json` of a job: {metric: {"accelerator": series}} by minute, null if missing."""
    length = max(1, -(-_duration(row) // STEP_S))
    measured = [metric for metric in METRICS if minutes[metric.counter].is_not_null().any()]
    return {
        metric.name: {"accelerator": _of_metric(metric, minutes, length, ids)}
        for metric in measured
    }


def _of_metric(
    metric: ArchiveMetric, minutes: pl.DataFrame, length: int, ids: Mapping[tuple[Any, ...], str]
) -> dict[str, Any]:
    series = []
    for unit, rows in minutes.group_by("node", "gpu", "mig", maintain_order=True):
        values: list[float | None] = [None] * length
        for minute, value in rows.select("minute", metric.counter).iter_rows():
            if value is not None and 0 <= minute < length:
                values[minute] = round(value * metric.factor, DIGITS)
        known = [value for value in values if value is not None]
        if known:
            series.append(
                {
                    "hostname": unit[0],
                    "id": _id(unit, ids),
                    "statistics": {
                        "avg": sum(known) / len(known),
                        "min": min(known),
                        "max": max(known),
                    },
                    "data": values,
                }
            )
    return {"unit": metric.unit, "timestep": STEP_S, "series": series}


def _footprint(metric: ArchiveMetric, data: Mapping[str, Any]) -> dict[str, Any]:
    """Mean of the series' means, least and greatest value of all."""
    found = [series["statistics"] for series in data["series"]]
    return {
        "unit": metric.unit,
        "avg": sum(one["avg"] for one in found) / len(found),
        "min": min(one["min"] for one in found),
        "max": max(one["max"] for one in found),
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


def _cluster(row: Mapping[str, Any]) -> str:
    """Cluster name as a safe folder name."""
    return (
        printable(row["cluster"] or "", most=LONGEST_FOLDER).replace("/", "_").lstrip(".")
        or UNKNOWN
    )


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _duration(row: Mapping[str, Any]) -> int:
    return _seconds(row["end"]) - _seconds(row["start"])
