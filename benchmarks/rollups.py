"""Prints what a lake costs from which samples are removed after some days, while the roll-ups
(minutes of jobs, summaries, findings) stay.

Goes on from the lake of `month.py --stage analyze --keep` (`--folder`, by default a small one in a
temporary folder). Further days of the same nodes follow, some days at a time, until `--samples`
have passed through in all. Each part: raw Parquet files of LDMS are written, ingested and deleted;
then come the accounting of the part and of the jobs that had not ended before, `lake compact`,
`analyze`, and `lake compact --expire --vacuum-hours 0` with `[retention]` of `--keep-days` before
the end of the part. At the end of a part all jobs are cancelled, as for a maintenance, so that none
runs on in the next part.

Every step is a process of its own whose time, processor time and peak memory are taken. After the
month and after the last part, people's commands are run `--rounds` times, the least time of each
counts: lists, waste and jobs of the first month, of which no samples are left, and of the last.
Killed, it is run again with the same folder and goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

import month
from many_jobs import apart
from month import Cost, StepLog
from tachograph.annexes.lab.simulate import accounting
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.telemetry import parts_of_nodes
from tachograph.annexes.lab.simulate.workload import (
    SimulatedRequest,
    SimulatedRun,
    place_runs,
    sample_requests,
)
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.lake.delta import Lake

SMALL = 2_000_000  # samples of the month that is made where none is named
MONTH_DAYS = 31
JOB_IDS_A_PART = 10_000_000  # so that no part repeats the job ids of another
FILES_AT_ONCE = 6  # parts of nodes whose raw files lie on the disk together
KEPT_STEPS = ("ingest", "accounting", "compact", "analyze", "expire")
BYTES_A_SAMPLE = 50  # of a part: raw files of some nodes, its samples, once more while rewritten
GOAL_S = 2.0  # wall time of a command
GOAL_GROWTH = 1.25  # peak memory after all parts over that after the month


@dataclass(frozen=True, slots=True)
class Part:
    """Some days of the cluster; number 0 is the month."""

    number: int
    plan: SimulationPlan

    def runs(self) -> list[SimulatedRun]:
        """Return the runs of the part's jobs, with job ids that no other part has."""
        first_id = self.number * JOB_IDS_A_PART
        return place_runs(
            self.plan, [_renumbered(request, first_id) for request in sample_requests(self.plan)]
        )


def _renumbered(request: SimulatedRequest, first_id: int) -> SimulatedRequest:
    array = request.array
    if array is not None:
        array = (array[0] + first_id, array[1])
    return replace(request, job_id=request.job_id + first_id, array=array)


def parts_of(base: SimulationPlan, samples: int, days: int) -> list[Part]:
    """Return the month, and parts of `days` after it until so many samples were taken."""
    per_day = base.gpus * base.samples_per_day
    more_days = max(0, -(-(samples - base.samples) // per_day))
    parts = [Part(0, base)]
    for number, first in enumerate(range(0, more_days, days), 1):
        start = base.end + timedelta(days=first)
        length = min(days, more_days - first)
        plan = replace(base, seed=base.seed + number, start=start, days=length)
        parts.append(Part(number, plan))
    return parts


class Continuation:
    """A folder with the lake of a month, and what the parts after it cost."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        """Errors: SystemExit where the folder holds no analyzed month, or a run of another size."""
        file = folder / "month.json"
        made: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if "analyze" not in made.get("steps", {}):
            raise SystemExit(
                f"{folder}: no analyzed month; run month.py --stage analyze --keep --folder there"
            )
        self.month = month.Run(folder, made["samples"], options.processes)
        self.folder, self.lake, self.options = folder, self.month.lake, options
        self.parts = parts_of(self.month.plan, options.samples, options.part_days)
        self.log = StepLog(folder / "rollups.json", options.samples)
        self.sizes: list[dict[str, int]] = []

    @property
    def end(self) -> datetime:
        return self.parts[-1].plan.end

    def files_of(self, part: Part) -> Path:
        """Return the folder of a part's accounting and configuration."""
        return self.folder / f"part-{part.number:03d}"

    def run(self) -> None:
        """Remove samples of the month; then add part after part."""
        for part in self.parts:
            if part.number:
                self._add(part)
            self._expire(part)
            if part.number == 0:
                self._ask("month", self.month.plan.end)
        self._ask("last", self.end)

    def _add(self, part: Part) -> None:
        name, files = f"part{part.number}", self.files_of(part)
        needs, free = part.plan.samples * BYTES_A_SAMPLE, shutil.disk_usage(self.folder).free
        if free < needs and f"{name}_analyze" not in self.log.done:
            raise SystemExit(
                f"{self.folder}: {free / 1e9:.0f} GB free, part {part.number} needs "
                f"{needs / 1e9:.0f} GB: delete files or set a smaller --part-days"
            )
        self.log.step(f"{name}_files", [self._child(part, "accounting")])
        count = len(parts_of_nodes(part.plan, part.plan.nodes()))
        for first in range(0, count, FILES_AT_ONCE):
            batch = ",".join(map(str, range(first, min(first + FILES_AT_ONCE, count))))
            raw = self._raw(part, first)
            self.log.step(f"{name}_raw_{first}", [self._child(part, batch)])
            self.log.step(
                f"{name}_ingest_{first}", [self._tachograph(part, "ingest", "ldms", str(raw))]
            )
            shutil.rmtree(raw, ignore_errors=True)
        sources = [
            ("ingest", source, str(files / file))
            for ending in ("ended", "")
            for source, file in (("sacct", f"sacct{ending}"), ("allocation-map", f"map{ending}"))
        ]
        self.log.step(f"{name}_accounting", [self._tachograph(part, *words) for words in sources])
        self.log.step(f"{name}_compact", [self._tachograph(part, "lake", "compact")])
        as_of = part.plan.end.isoformat()
        threads = str(self.options.processes)
        analyze = self._tachograph(part, "analyze", "--as-of", as_of, "--threads", threads)
        self.log.step(f"{name}_analyze", [analyze])

    def _expire(self, part: Part) -> None:
        """Remove old samples, compact, delete replaced files; print what is left."""
        write_configuration(part.plan, self._configuration(part), self.options.keep_days)
        name = f"part{part.number}_expire"
        command = self._tachograph(part, "lake", "compact", "--expire", "--vacuum-hours", "0")
        begun = name in self.log.done
        self.log.step(name, [command])
        if not begun:
            self._report(part)

    def _report(self, part: Part) -> None:
        """Print bytes of the lake by table, and what the part's steps cost, on stderr."""
        steps = steps_of(self.log, part)
        line = {
            "day": str(part.plan.end.date()),
            "bytes_of_lake": month.bytes_of_tables(self.lake),
            **{step: cost_json(cost) for step, cost in steps.items()},
        }
        print(json.dumps(line), file=sys.stderr, flush=True)

    def _ask(self, when: str, end: datetime) -> None:
        """Measure people's commands on the first and the last month of the lake as it is."""
        first = self.month.plan.start
        last = max(first, end - timedelta(days=MONTH_DAYS))
        spans = {"first": (first, first + timedelta(days=MONTH_DAYS)), "last": (last, end)}
        for span, (since, until) in spans.items():
            if f"{when}_waste_of_{span}" in self.log.done:
                continue
            job_id = apart(largest_job, str(self.lake), since, until)
            of_span = ["--since", f"{since:%Y-%m-%d}", "--until", f"{until:%Y-%m-%d}"]
            page = str(self.folder / "job.html")
            commands = {
                "jobs": ["jobs", *of_span, "--limit", "20"],
                "jobs_worst": ["jobs", *of_span, "--worst", "--limit", "20"],
                "job": ["job", job_id],
                "job_page": ["job", job_id, "--html", page],
                "waste": ["waste", *of_span],
            }
            for name, words in commands.items():
                for turn in range(self.options.rounds):
                    step = f"{when}_{name}_of_{span}"
                    step += f"_{turn}" if turn + 1 < self.options.rounds else ""
                    self.log.step(step, [self._plain(*words)])

    def asked(self, when: str) -> dict[str, dict[str, float]]:
        """Return the least time and the greatest peak of each command of people."""
        measured: dict[str, list[Cost]] = {}
        for step, cost in self.log.done.items():
            if step.startswith(f"{when}_"):
                name = step.removeprefix(f"{when}_").rstrip("0123456789").rstrip("_")
                measured.setdefault(name, []).append(cost)
        return {
            name: {
                "s": round(min(cost.wall_s for cost in costs), 2),
                "cpu_s": round(min(cost.cpu_s for cost in costs), 2),
                "peak_mib": round(max(cost.peak_mib for cost in costs)),
            }
            for name, costs in measured.items()
        }

    def write_files(self, part: Part, batch: str) -> None:
        """Write the accounting of a part, or the raw files of some parts of its nodes."""
        if batch != "accounting":
            numbers = [int(number) for number in batch.split(",")]
            raw = self._raw(part, numbers[0])
            month.write_raw(part.plan, raw, numbers, self.options.processes)
            return
        files = self.files_of(part)
        files.mkdir(exist_ok=True)
        before = self.parts[part.number - 1]
        write_ended(before, files)
        runs = part.runs()
        accounting.write_accounting(part.plan, files / "sacct", runs)
        accounting.write_gpu_map(part.plan, files / "map", runs)

    def _raw(self, part: Part, first: int) -> Path:
        return self.folder / f"raw-{part.number}-{first:04d}"

    def _child(self, part: Part, batch: str) -> list[str]:
        options = self.options
        return [
            *(sys.executable, __file__, "--folder", str(self.folder)),
            *("--samples", str(options.samples), "--part-days", str(options.part_days)),
            *("--processes", str(options.processes), "--child", f"{part.number}:{batch}"),
        ]

    def _configuration(self, part: Part) -> Path:
        return self.folder / f"part-{part.number:03d}.toml"

    def _tachograph(self, part: Part, *words: str) -> list[str]:
        configuration = self._configuration(part)
        if not configuration.exists():
            write_configuration(part.plan, configuration, self.options.keep_days)
        return [*self._plain(*words, configuration=configuration), "--json"]

    def _plain(self, *words: str, configuration: Path | None = None) -> list[str]:
        """Return a command on the lake that prints text."""
        file = configuration or self._configuration(self.parts[0])
        where = ["--lake", str(self.lake), "--config", str(file)]
        return [sys.executable, "-m", "tachograph", *words, *where]

    def report(self) -> dict[str, Any]:
        """Return what all parts cost, and what people's commands take at the end."""
        ingested = [
            cost.printed["rows"]["gpu_samples"]
            for log in (self.month.log, self.log)
            for name, cost in log.done.items()
            if "ingest_" in name and cost.printed
        ]
        of_parts = [steps_of(self.log, part) for part in self.parts[1:]]
        peaks = {
            step: [round(steps[step].peak_mib) for steps in of_parts if step in steps]
            for step in KEPT_STEPS
        }
        new_samples = sum(part.plan.samples for part in self.parts[1:])
        cpu_us = {
            step: round(sum(steps[step].cpu_s for steps in of_parts) * 1e6 / new_samples, 3)
            for step in KEPT_STEPS
            if new_samples
        }
        return {
            "benchmark": "rollups",
            "gpus": self.month.plan.gpus,
            "days": sum(part.plan.days for part in self.parts),
            "days_of_samples_kept": self.options.keep_days,
            "days_a_part": self.options.part_days,
            "processes": self.options.processes,
            "samples": sum(ingested),
            "bytes_of_lake": month.bytes_of_tables(self.lake),
            "cpu_us_per_sample_of_parts": cpu_us,
            "peak_mib_of_parts": peaks,
            "after_the_month": self.asked("month"),
            "at_the_end": self.asked("last"),
            "goal_s": GOAL_S,
        }


def steps_of(log: StepLog, part: Part) -> dict[str, Cost]:
    """Return what the steps of a part cost, all its ingests of samples as one."""
    prefix = f"part{part.number}_"
    costs: dict[str, list[Cost]] = {}
    for name, cost in log.done.items():
        if name.startswith(prefix):
            costs.setdefault(name.removeprefix(prefix).split("_")[0], []).append(cost)
    return {step: month.summed(of_step) for step, of_step in costs.items()}


def cost_json(cost: Cost) -> dict[str, float]:
    """Return the numbers of a cost, rounded."""
    return {
        "s": round(cost.wall_s, 1),
        "cpu_s": round(cost.cpu_s, 1),
        "peak_mib": round(cost.peak_mib),
    }


def write_configuration(plan: SimulationPlan, file: Path, keep_days: int) -> None:
    """Write the site's configuration; samples of `keep_days` before the end of the plan are kept.

    `[retention]` counts from today, which is later than all that is simulated.
    """
    accounting.write_configuration(plan, file)
    age = datetime.now(UTC).date() - plan.end.date()
    with file.open("a", encoding="utf-8") as out:
        out.write(f'\n[retention]\nsamples = "{age.days + keep_days}d"\n')


def write_ended(part: Part, files: Path) -> None:
    """Write accounting and map of the jobs that had not ended by the end of a part."""
    plan = part.plan
    ended = [
        replace(run, end_s=max(plan.seconds, run.start_s or 0), state="CANCELLED", exit_code="0:15")
        for run in part.runs()
        if run.submit_s < plan.seconds and (run.end_s is None or run.end_s > plan.seconds)
    ]
    later = replace(plan, days=plan.days + 1)  # as of which these jobs are over
    accounting.write_accounting(later, files / "sacctended", ended)
    accounting.write_gpu_map(later, files / "mapended", ended)


def largest_job(lake: str, since: datetime, until: datetime) -> str:
    """Return the id of the job that held most GPU time of those that ran within a time."""
    columns = ("job_id", "start", "end", "gpu_hours")
    within = (pl.col("start") >= since) & (pl.col("end") <= until)
    jobs = Lake.open(lake).latest(JOB_SUMMARIES, columns).filter(within)
    return str(jobs.sort("gpu_hours", nulls_last=True, descending=True).item(0, "job_id"))


def missed(report: dict[str, Any]) -> list[str]:
    """Return the commands that take longer than the goal, or more memory than after the month."""
    before, after = report["after_the_month"], report["at_the_end"]
    slow = [name for name, cost in after.items() if cost["s"] > GOAL_S]
    grown = [
        f"{name}: memory"
        for name, cost in after.items()
        if cost["peak_mib"] > GOAL_GROWTH * before[name]["peak_mib"]
    ]
    return slow + grown


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--samples", type=float, default=1e7, help="in all, the month's too (default 1e7)"
    )
    parser.add_argument("--folder", type=Path, help="that of a month, made with month.py --keep")
    parser.add_argument("--part-days", type=int, default=2, help="days of a part (default 2)")
    parser.add_argument(
        "--keep-days", type=int, default=3, help="days of which samples are kept (default 3)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of people's commands (default 3)")
    parser.add_argument(
        "--processes",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="for each step (default 2)",
    )
    parser.add_argument("--child", metavar="PART:NODES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.samples = int(options.samples)
    return options


def _make_month(folder: Path, processes: int) -> None:
    made = month.Run(folder, SMALL, processes)
    made.until("analyze")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what is to be printed."""
    if options.folder is None:
        _make_month(folder, options.processes)
    continued = Continuation(folder, options)
    continued.run()
    return continued.report()


def main() -> int:
    """Print the numbers; 1 when a goal is missed."""
    options = _options()
    if options.child:
        number, _, batch = options.child.partition(":")
        continued = Continuation(options.folder, options)
        continued.write_files(continued.parts[int(number)], batch)
        return 0
    with tempfile.TemporaryDirectory() as other:
        report = measure(options, options.folder or Path(other))
    print(json.dumps(report | {"missed": missed(report)}))
    return 1 if missed(report) else 0


if __name__ == "__main__":
    sys.exit(main())
