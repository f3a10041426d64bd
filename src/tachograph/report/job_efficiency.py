"""The report of one job in the form of Slurm's `seff`, with a table of its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote

from tachograph.catalog.units import column_texts, printable, slurm_duration, text
from tachograph.judge.activity import number
from tachograph.report.job import JobReport
from tachograph.report.job_end import exit_text
from tachograph.report.job_text import allocation_text

SHOWN_GPUS = 16
NOT_RECORDED = "not recorded"


def job_link(url: str, report: JobReport) -> str | None:
    """Return the URL of the job's page; None if the base URL is not fully configured."""
    if not url.startswith(("http://", "https://")):
        return None
    return f"{url.rstrip('/')}/job/{quote(report.summary['job_key'], safe='')}"


def efficiency_text(report: JobReport, *, url: str = "") -> str:
    """Return the output of `seff`, extended by GPUs and options for the next run.

    `url`: where the pages are served. What was not measured is `not recorded`.
    """
    lines = [*_accounted(report), *_gpus(report), "", *brief_lines(report, url=url)]
    return "".join(f"{printable(line)}\n" for line in lines)


def brief_lines(report: JobReport, *, url: str = "") -> Iterator[str]:
    """Yield the verdict, the next request, and the URL of the page."""
    yield report.headline
    if report.next_time and report.next_time.line:
        yield f"Next time: {report.next_time.line}"
        yield f"  {report.next_time.why}"
    elif report.next_time:
        yield f"Next time: {report.next_time.why}"
    link = job_link(url, report)
    yield f"More: {link or report.command}"


def _accounted(report: JobReport) -> Iterator[str]:
    row = report.summary
    elapsed, cpus, used = number(row, "elapsed_s"), number(row, "cpus"), number(row, "cpu_time_s")
    yield f"Job ID: {report.job}"
    if row.get("cluster"):
        yield f"Cluster: {row['cluster']}"
    yield f"User/Account: {row.get('user') or NOT_RECORDED}/{row.get('account') or NOT_RECORDED}"
    ended = exit_text(row)
    yield f"State: {row.get('state') or NOT_RECORDED}{f' ({ended})' if ended else ''}"
    yield f"Nodes: {_known(row, 'nodes', 'count')}"
    yield f"CPUs: {_known(row, 'cpus', 'count')}"
    yield f"CPU Utilized: {NOT_RECORDED if used is None else slurm_duration(used)}"
    if elapsed is not None and cpus:
        efficiency = _known(row, "cpu_efficiency", "fraction")
        yield f"CPU Efficiency: {efficiency} of {slurm_duration(elapsed * cpus)} core-walltime"
    limit = number(row, "timelimit_s")
    of_limit = "" if limit is None else f" of {slurm_duration(limit)}"
    yield (
        "Job Wall-clock time: "
        f"{NOT_RECORDED if elapsed is None else slurm_duration(elapsed)}{of_limit}"
    )
    yield from _memory(report)


def _memory(report: JobReport) -> Iterator[str]:
    """Memory of a node, if known; else of the largest task, without efficiency."""
    row = report.summary
    requested, nodes, held = (
        number(row, "mem_requested_mib"),
        number(row, "nodes"),
        report.steps.node_memory_mib,
    )
    if held is not None and requested is not None and nodes:
        yield f"Memory Utilized: {text(held, 'MiB')}{'' if nodes == 1 else ' on a node'}"
        share = text(held / (requested / nodes), "fraction")
        yield (
            f"Memory Efficiency: {share} of "
            f"{text(requested / nodes, 'MiB')}{'' if nodes == 1 else ' per node'}"
        )
        return
    largest = number(row, "max_rss_mib")
    of_task = NOT_RECORDED if largest is None else f"{text(largest, 'MiB')} by the largest task"
    of_all = "" if requested is None else f", of {text(requested, 'MiB')} requested"
    yield f"Memory Utilized: {of_task}{of_all}"


def _known(row: Mapping[str, object], name: str, unit: str) -> str:
    value = number(row, name)
    return NOT_RECORDED if value is None else text(value, unit)


def _gpus(report: JobReport) -> Iterator[str]:
    """Allocated GPUs, use, energy, one row each."""
    yield f"GPUs: {allocation_text(report)}"
    yield f"GPU Utilized: {report.use}"
    yield f"GPU Memory: {report.memory}"
    yield f"Energy: {report.energy}"
    shown = [gpu for gpu in report.gpus if number(gpu.row, "samples")][:SHOWN_GPUS]
    if not shown:
        return
    columns = [("GPU", [gpu.label for gpu in shown])]
    for title, unit, values in (
        ("use", "fraction", [gpu.activity_mean for gpu in shown]),
        ("peak", "fraction", [gpu.activity_max for gpu in shown]),
        ("memory", "MiB", [number(gpu.row, "hbm_used_mib_max") for gpu in shown]),
        ("of", "MiB", [number(gpu.row, "hbm_mib") for gpu in shown]),
        ("power", "W", [number(gpu.row, "power_w_mean") for gpu in shown]),
        ("energy", "J", [number(gpu.row, "energy_j") for gpu in shown]),
    ):
        shown_unit, cells = column_texts(values, unit)
        columns.append((f"{title} {shown_unit}".rstrip(), cells))
    table = [[title, *cells] for title, cells in columns]
    widths = [max(map(len, column)) for column in table]
    yield ""
    for label, *cells in zip(*table, strict=True):
        line = f"  {label:<{widths[0]}}"
        for cell, width in zip(cells, widths[1:], strict=True):
            line += f"  {cell:>{width}}"
        yield line
    if len(report.gpus) > len(shown):
        yield f"  and {len(report.gpus) - len(shown)} more: {report.command} --json"
