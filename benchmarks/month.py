"""Prints what a month of a large cluster costs, from raw files to figures.

The whole month: 7,168 GPUs, 31 days, a sample every 10 s (1.92e9), jobs with the shapes of the
published study. Fewer `--samples`: fewer days of the same GPUs, below one day fewer nodes. Samples
come as a site has them: Parquet files of LDMS, one per day and some nodes, rows in the order of
time. They are written some nodes at a time, ingested with `tachograph ingest ldms` and deleted;
then accounting is ingested, and `tachograph lake compact`, `analyze` and `figures` run. Writing the
files is simulation and no part of what is measured. Every step is a process of its own whose time,
processor time and peak memory (of its largest process) are taken; the figures are those that
`tachograph study` draws. Killed, it is run again with the same folder and goes on where it was; a
step that was done is not done again. With `--linearity 1e7,1e8` it prints the processor time of a
sample for each size, and how far they are apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from sized_plan import month_plan
from tachograph.annexes.lab.simulate import accounting
from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulationPlan
from tachograph.annexes.lab.simulate.samples import Occupancy
from tachograph.annexes.lab.simulate.telemetry import parts_of_nodes, write_telemetry
from tachograph.annexes.lab.simulate.workload import place_runs, sample_requests
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.delta import Lake

PER_NODE_DAY = 4 * 8640
BYTES_A_SAMPLE = 26  # 20 of samples, 3 of minutes, and some to spare
SECONDS_A_MILLION = 1.6  # all steps, two cores
STEPS = ("compact", "analyze", "figures")  # after the files and the accounting
COSTS = ("wall_s", "cpu_s")
FILES_AT_ONCE = 2  # parts of nodes whose raw files lie on the disk together, all days
STAGES = {"compact": 1, "analyze": 2, "figures": 3}  # steps
OF_EACH_SIZE = (
    *("samples", "jobs_summarized", "ingest_cpu_us_per_sample", "analyze_cpu_us_per_sample"),
    *("analyze_cpu_s", "analyze_samples_per_s", "analyze_peak_mib", "bytes_per_sample"),
)
GOAL_BYTES_A_SAMPLE = 31  # of samples: 60 GB for the month


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one step: seconds, processor seconds, peak memory of its largest process, the JSON that
    it printed.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float
    printed: Any


def plan_of(samples: int) -> SimulationPlan:
    """Return the month's plan at the size of `samples`."""
    month = month_plan()
    per_day = month.gpus * month.samples_per_day
    if samples >= per_day:
        return replace(month, days=min(month.days, -(-samples // per_day)))
    nodes = max(7, -(-samples // PER_NODE_DAY))
    large = nodes // 7
    groups = (NodeGroup(nodes - large, 4, "A100 SXM 40GB"), NodeGroup(large, 4, "A100 SXM 80GB"))
    return replace(month, days=1, groups=groups)


class StepLog:
    """Costs of the steps that were done, kept in a file: after a kill, only the others are run."""

    def __init__(self, file: Path, samples: int) -> None:
        """Errors: SystemExit when the file is that of a run of another size."""
        self.file, self.samples = file, samples
        known = json.loads(file.read_text()) if file.exists() else {}
        if known.get("samples", samples) != samples:
            raise SystemExit(
                f"{file.parent} holds a run of {known['samples']:,} samples; name another folder"
            )
        self.done: dict[str, Cost] = {
            step: Cost(**cost) for step, cost in known.get("steps", {}).items()
        }

    def step(self, name: str, commands: Sequence[list[str]]) -> None:
        """Run the commands of a step, one after the other, unless it was done before."""
        if name in self.done:
            return
        print(f"{name} ...", file=sys.stderr, flush=True)
        self.done[name] = summed([cost_of(command) for command in commands])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        half = self.file.with_suffix(".half")
        steps = {step: asdict(cost) for step, cost in self.done.items()}
        half.write_text(json.dumps({"samples": self.samples, "steps": steps}, indent=1))
        half.replace(self.file)


class Run:
    """A folder with a lake, and what the steps done in it cost."""

    def __init__(self, folder: Path, samples: int, processes: int) -> None:
        self.folder, self.plan, self.processes = folder, plan_of(samples), processes
        self.samples = samples
        self.log = StepLog(folder / "month.json", samples)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def done(self) -> dict[str, Cost]:
        return self.log.done

    def until(self, stage: str) -> None:
        """Write raw files of some nodes, ingest and delete them, until all are done; then the
        steps up to a stage.
        """
        parts = len(parts_of_nodes(self.plan, self.plan.nodes()))
        size = [
            "--samples",
            str(self.samples),
            "--folder",
            str(self.folder),
            "--processes",
            str(self.processes),
        ]
        child = [sys.executable, __file__, *size, "--raw-child"]
        self.log.step("cluster", [[*child, "cluster"]])
        for first in range(0, parts, FILES_AT_ONCE):
            batch = [str(part) for part in range(first, min(first + FILES_AT_ONCE, parts))]
            files, name = self.folder / f"raw-{first:04d}", "-".join(batch)
            self.log.step(f"raw_{name}", [[*child, ",".join(batch)]])
            self.log.step(f"ingest_{name}", [self._tachograph("ingest", "ldms", str(files))])
            shutil.rmtree(files, ignore_errors=True)
        cluster = self.folder / "cluster"
        accounting = (
            (
                "ingest",
                "table",
                str(cluster / "devices.csv"),
                "--mapping",
                str(cluster / "devices.toml"),
            ),
            ("ingest", "sacct", str(cluster / "sacct.txt")),
            ("ingest", "allocation-map", str(cluster / "gpu_map.csv")),
        )
        self.log.step("accounting", [self._tachograph(*words) for words in accounting])
        for name in STEPS[: STAGES[stage]]:
            self.log.step(name, [self._command(name)])

    def report(self) -> dict[str, Any]:
        """Return what the way from raw files cost."""
        ingests = [cost for name, cost in self.done.items() if name.startswith("ingest_")]
        steps = {
            "raw": [cost for name, cost in self.done.items() if name.startswith("raw_")],
            "ingest": ingests,
        }
        steps |= {name: [self.done[name]] for name in ("accounting", *STEPS) if name in self.done}
        costs = {name: summed(of) for name, of in steps.items() if of}
        files = Lake.open(str(self.lake)).files(GPU_SAMPLES)
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        analyze = costs.get("analyze")
        found = analyze.printed if analyze else None
        wall, cpu = (
            sum(getattr(cost, what) for name, cost in costs.items() if name != "raw")
            for what in COSTS
        )
        return {
            "benchmark": "month",
            "gpus": self.plan.gpus,
            "days": self.plan.days,
            "processes": self.processes,
            "samples": rows,
            "jobs_summarized": found["jobs"] if found else None,
            "findings": found["findings"] if found else None,
            "attributed_share": _ratio(found["attributed"], found["samples"], 3) if found else None,
            "bytes_of_samples": size,
            "bytes_per_sample": _ratio(size, rows, 2),
            "bytes_of_lake": bytes_of_tables(self.lake),
            "analyze_samples_per_s": _ratio(rows, analyze.wall_s, 0) if analyze else None,
            "goal_bytes_per_sample": GOAL_BYTES_A_SAMPLE,
            **{
                f"{name}_{what}": value
                for name, cost in costs.items()
                for what, value in _told(cost).items()
            },
            **{
                f"{name}_cpu_us_per_sample": _ratio(cost.cpu_s * 1e6, rows, 3)
                for name, cost in costs.items()
            },
            "raw_files_to_figures_s": round(wall, 1),
            "raw_files_to_figures_cpu_us_per_sample": _ratio(cpu * 1e6, rows, 3),
        }

    def _tachograph(self, *words: str) -> list[str]:
        where = [
            "--lake",
            str(self.lake),
            "--config",
            str(self.folder / "cluster" / "tachograph.toml"),
            "--json",
        ]
        return [sys.executable, "-m", "tachograph", *words, *where]

    def _command(self, name: str) -> list[str]:
        if name == "figures":
            return self._tachograph("study", "-o", str(self.folder / "figures"))
        if name == "compact":
            return self._tachograph("lake", "compact")
        return self._tachograph(
            "analyze", "--as-of", self.plan.end.isoformat(), "--threads", str(self.processes)
        )


def cost_of(command: list[str]) -> Cost:
    """Run a command; return what it cost.

    Errors: SystemExit naming it when it fails.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)  # with the processes it waited for
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}: {' '.join(command)}")
    wall_s = time.perf_counter() - begin
    try:
        content = json.loads(printed)
    except ValueError:
        content = None
    # The numbers of all figures are in their own files.
    kept = content if len(printed) < 10_000 else None
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, kept)


def summed(costs: Sequence[Cost]) -> Cost:
    """Return the cost of steps one after the other, with what the last of them printed."""
    return Cost(
        sum(cost.wall_s for cost in costs),
        sum(cost.cpu_s for cost in costs),
        max(cost.peak_mib for cost in costs),
        costs[-1].printed,
    )


def write_cluster(run: Run) -> None:
    """Write accounting, map of GPUs, devices and configuration as of the plan's end."""
    plan = run.plan
    folder = run.folder / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    runs = place_runs(plan, sample_requests(plan))
    accounting.write_accounting(plan, folder / "sacct.txt", runs)
    accounting.write_gpu_map(plan, folder / "gpu_map.csv", runs)
    accounting.write_devices(plan, folder / "devices.csv")
    accounting.write_devices_mapping(folder / "devices.toml")
    accounting.write_configuration(plan, folder / "tachograph.toml")


def write_raw(plan: SimulationPlan, folder: Path, parts: Sequence[int], processes: int) -> None:
    """Write the raw files of some parts of the nodes, each part in a process of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, fresh) as pool:
        for done in [pool.submit(_write_part, plan, folder, part) for part in parts]:
            done.result()


def _write_part(plan: SimulationPlan, folder: Path, part: int) -> None:
    runs = place_runs(plan, sample_requests(plan))
    write_telemetry(plan, folder, Occupancy.of(runs), None, {part}, by_time=True)


def linearity(sizes: list[int], folder: Path, processes: int, *, keep: bool) -> dict[str, Any]:
    """Return the processor time of a sample for each size (starting and compiling included), and
    how far they differ.

    `analyze_cpu_us_per_further_sample`: what the samples cost that a size has more than the one
    before.
    """
    measured: list[dict[str, Any]] = []
    for samples in sizes:
        run = Run(folder / f"{samples}", samples, processes)
        run.until("analyze")
        told = run.report()
        measured.append({name: told[name] for name in OF_EACH_SIZE})
        if not keep:
            shutil.rmtree(run.lake, ignore_errors=True)
    costs = [each["analyze_cpu_us_per_sample"] for each in measured]
    for before, after in pairwise(measured):
        seconds, further = (after[name] - before[name] for name in ("analyze_cpu_s", "samples"))
        after["analyze_cpu_us_per_further_sample"] = _ratio(seconds * 1e6, further, 3)
    return {
        "benchmark": "month_linearity",
        "sizes": measured,
        "deviation_from_last": [_ratio(cost - costs[-1], costs[-1], 3) for cost in costs],
        "greatest_over_least": _ratio(max(costs), min(costs), 3),
    }


def _told(cost: Cost | None) -> dict[str, float | None]:
    if cost is None:
        return {"s": None, "cpu_s": None, "peak_mib": None}
    return {
        "s": round(cost.wall_s, 1),
        "cpu_s": round(cost.cpu_s, 1),
        "peak_mib": round(cost.peak_mib),
    }


def _ratio(of: float | None, to: float | None, digits: int) -> float | None:
    return round(of / to, digits) if of is not None and to else None


def bytes_of_tables(folder: Path) -> dict[str, int]:
    """Bytes on disk of each table."""
    tables = sorted(folder.iterdir()) if folder.is_dir() else []
    return {
        table.name: sum(file.stat().st_size for file in table.rglob("*") if file.is_file())
        for table in tables
    }


def _say_what_it_takes(samples: int, folder: Path, *, begun: bool) -> None:
    """Errors: SystemExit when the disk is too small."""
    needs, free = samples * BYTES_A_SAMPLE, shutil.disk_usage(folder).free
    minutes = samples / 1e6 * SECONDS_A_MILLION / 60
    print(
        f"{samples:,} samples in {folder}: about {needs / 1e9:.1f} GB of disk "
        f"({free / 1e9:.0f} GB are free) and "
        f"{minutes:.0f} minutes on two quiet cores, from {datetime.now():%H:%M} on",  # noqa: DTZ005
        file=sys.stderr,
    )
    if free < needs and not begun:
        raise SystemExit(
            f"{folder}: {free / 1e9:.0f} GB free are not enough; name another with --folder"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--samples", type=float, default=2e6, help="the whole month: 1.92e9 (default 2e6)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where; goes on with what is there (default: a temporary folder)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the lake there when all is done")
    parser.add_argument(
        "--stage", choices=STAGES, default="figures", help="up to which step (default figures)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="for each step (default 2)",
    )
    parser.add_argument(
        "--linearity", metavar="N,N", help="processor time of a sample at these numbers of samples"
    )
    parser.add_argument("--raw-child", metavar="PART,PART", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    """Return what is to be printed, and whether the goals were reached."""
    run = Run(folder, int(options.samples), options.processes)
    if options.raw_child:
        if options.raw_child == "cluster":
            write_cluster(run)
        else:
            parts = [int(part) for part in options.raw_child.split(",")]
            write_raw(run.plan, folder / f"raw-{parts[0]:04d}", parts, run.processes)
        return {}, True
    sizes = [int(float(size)) for size in options.linearity.split(",")] if options.linearity else []
    folder.mkdir(parents=True, exist_ok=True)
    _say_what_it_takes(max(sizes, default=run.samples), folder, begun=run.lake.exists())
    if sizes:
        return linearity(sizes, folder, options.processes, keep=options.keep), True
    run.until(options.stage)
    told = run.report()
    if options.stage == "figures" and not options.keep:
        shutil.rmtree(run.lake, ignore_errors=True)
    return told, (told["bytes_per_sample"] or 0) <= GOAL_BYTES_A_SAMPLE


def main() -> int:
    """Print the numbers; 1 when the samples take more bytes than the goal."""
    options = _options()
    with tempfile.TemporaryDirectory() as other:
        told, reached = measure(options, options.folder or Path(other))
    print(json.dumps(told))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
