"""Target `supremm`: a JSON document per job, like the summaries that Open XDMoD takes from SUPReMM.

Sources: ubccr/supremm, src/supremm: plugins GpuUsage.py and GpuPower.py, statistics.py,
outputter.py (`_id`); ubccr/xdmod-supremm, dataset_maps/supremm.js (what is read, and its units).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.catalog.units import printable
from tachograph.export.clustercockpit import cluster_folder, rows_by_job, write_document
from tachograph.export.content import ExportContent, ExportResult
from tachograph.export.registry import Progress
from tachograph.export.xdmod import LONGEST_NAME, EndedJob, ended_jobs

# {column of job_gpus: what a unit of it is there}: percent, bytes, W, J
_SCALES: Mapping[str, float] = {
    **dict.fromkeys(("gpu_util_mean", "gpu_util_max"), 100.0),
    **dict.fromkeys(("hbm_used_mib_mean", "hbm_used_mib_max"), 2.0**20),
    **dict.fromkeys(("power_w_mean", "power_w_max", "energy"), 1.0),
}
_USAGE: Mapping[str, str] = {  # names in the section `gpu`
    "gpu_util_mean": "gpuactive",
    "gpu_util_max": "gpuactivemax",
    "hbm_used_mib_mean": "memused",
    "hbm_used_mib_max": "memusedmax",
}
_BATCH = 1000  # jobs whose GPUs are read at a time


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--to`."""
    parser.add_argument("--to", required=True, metavar="DIR", help="the folder of documents")


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write a document per job that has ended and held GPUs; return how many."""
    folder, jobs = Path(options.to), content.summaries
    written = 0
    for part in jobs.iter_slices(_BATCH):
        gpus = rows_by_job(content.gpus(part))
        for job in ended_jobs(part):
            if job.job_key in gpus:
                document = job_document(job, gpus[job.job_key])
                file = folder / cluster_folder(job.cluster) / f"{document['_id']}.json"
                write_document(file, document)
                written += 1
    return [ExportResult("jobs", str(folder), written, left_out=jobs.height - written)]


def job_document(job: EndedJob, gpus: pl.DataFrame) -> dict[str, Any]:
    """Return the summary of a job; `gpus`: its rows of job_gpus.

    A statistic is left out where one of the GPUs lacks it: readers would take the others for all.
    """
    usage: dict[str, dict[str, Any]] = {}
    power: dict[str, dict[str, Any]] = {}
    rows = gpus.with_columns(energy=pl.coalesce("energy_j", "energy_j_estimated"))
    # Statistics of a GPU are those over its nodes.
    for (gpu, mig), of_gpu in rows.group_by("gpu", "mig", maintain_order=True):
        name = f"gpu{gpu}" if mig is None else f"gpu{gpu}:{mig}"
        columns = {
            column: describe(of_gpu[column] * scale)
            for column, scale in _SCALES.items()
            if not rows[column].null_count()
        }
        usage[name] = {_USAGE[column]: columns[column] for column in _USAGE if column in columns}
        power[name] = {"energy": columns["energy"]} if "energy" in columns else {}
        # A slice has the power of the whole GPU, which is not the job's.
        if mig is None and {"power_w_mean", "power_w_max"} <= columns.keys():
            watts = {"mean": columns["power_w_mean"], "max": columns["power_w_max"]}
            power[name]["power"] = watts
    account = accounting(job, gpus["node"].unique(maintain_order=True).to_list())
    is_whole = gpus["samples"].fill_null(0).min() != 0
    return {
        "_id": f"{job.job_id}-{account['end_time']}",
        "acct": account,
        "gpu": usage,
        "gpupower": power,
        "summarization": {"complete": is_whole, "datasource": "tachograph"},
    }


def describe(values: pl.Series) -> dict[str, Any]:
    """Return statistics of values as SUPReMM's calculate_stats, without moments.

    >>> describe(pl.Series([1.0, 3.0])), describe(pl.Series([2.0, 2.0]))
    ({'avg': 2.0, 'cnt': 2, 'min': 1.0, 'max': 3.0, 'med': 2.0}, {'avg': 2.0, 'cnt': 2})
    """
    numbers = values.cast(pl.Float64).to_list()
    low, high = min(numbers), max(numbers)
    result = {"avg": statistics.fmean(numbers), "cnt": len(numbers)}
    spread = {"min": low, "max": high, "med": statistics.median(numbers)}
    return result if low == high else result | spread


def accounting(job: EndedJob, nodes: Sequence[str]) -> dict[str, Any]:
    """Return the section `acct`, without what is not recorded."""
    values = {
        "id": job.job_id,
        "jobname": printable(job.name or "", most=LONGEST_NAME) or None,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "nodes": job.nodes,
        "gpus": job.gpus,
        "host_list": nodes,
        "ncpus": job.cpus,
        "exit_status": job.state,
        "submit": int(job.submit.timestamp()),
        "start_time": int(job.start.timestamp()),
        "end_time": int(job.end.timestamp()),
        "timelimit": job.timelimit_s,
    }
    return {name: value for name, value in values.items() if value is not None}
