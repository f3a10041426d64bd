"""What the site tells beside the samples, up to the day to which a lake is filled, and its way into the lake."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from tachograph import config
from tachograph.ingest import ingest
from tachograph.lake import Lake
from tachograph.simulate import accounting
from tachograph.simulate.defects import Log
from tachograph.simulate.hosts import DEFECTS, host_days, write_day
from tachograph.simulate.judging_truth import CLASSES_FILE, classes_frame
from tachograph.simulate.placement import Run
from tachograph.simulate.plan import Plan
from tachograph.simulate.timeline import allocations_of, by_gpu
from tachograph.simulate.truth import Sums, gpus_frame, jobs_frame
from tachograph.sources.registry import SOURCES, load


def tell(plan: Plan, lake: Lake, folder: Path, runs: Sequence[Run], *, days: int) -> None:
    """Write accounting and allocations as of the end of day number `days`, and ingest them, devices and all.

    What was told for fewer days is not told again: only records that changed since then.
    """
    for part in ("accounting", "allocations", "truth"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    accounting.write_configuration(plan, folder / "tachograph.toml")
    accounting.write_devices(plan, folder / "devices.csv")
    accounting.write_devices_mapping(folder / "devices.toml")
    before = max((told for told in _told(folder / "accounting") if told < days), default=0)
    until = replace(plan, days=days)
    seen = as_of(runs, until.seconds)
    fresh = [run for run in seen if run.end_s is None or run.end_s > before * 86400]
    names = f"{before:04d}-{days:04d}"
    accounting.write_accounting(until, folder / "accounting" / f"sacct-{names}.txt", fresh)
    accounting.write_gpu_map(until, folder / "allocations" / f"gpu_map-{names}.csv", fresh)
    _ingest(lake, folder, "table", folder / "devices.csv", "--mapping", str(folder / "devices.toml"))
    _ingest(lake, folder, "sacct", folder / "accounting" / f"sacct-{names}.txt")
    _ingest(lake, folder, "allocation-map", folder / "allocations" / f"gpu_map-{names}.csv")


def tell_hosts(plan: Plan, lake: Lake, folder: Path, runs: Sequence[Run], *, days: int) -> None:
    """Ingest what hosts count up to a day, a file after the other; what landed before is known by its content."""
    accounting.write_configuration(plan, folder / "tachograph.toml")
    allocations = allocations_of(runs)
    defects = [pl.DataFrame(schema=dict(DEFECTS))]
    for day in host_days(plan, runs, allocations, by_gpu(allocations)):
        if day.day < days:
            file = folder / "state" / day.name(plan)
            write_day(day, file)
            _ingest(lake, folder, "ldms", file)
            file.unlink()
            defects.append(day.defects)
    (folder / "truth").mkdir(exist_ok=True)
    pl.concat(defects).write_parquet(folder / "truth" / "hosts.parquet")


def write_truth(plan: Plan, folder: Path, runs: Sequence[Run], log: Log, *, days: int) -> int:
    """Write what was planted in jobs and samples up to a day, without sums over samples; return the number of runs."""
    until = replace(plan, days=days)
    defects = log.frame()
    seen = [run for run in as_of(runs, until.seconds) if run.submit_s < until.seconds]
    none = gpus_frame(until, seen, [], Sums.none(0), defects)
    jobs = jobs_frame(until, seen, none)
    jobs.write_parquet(folder / "truth" / "jobs.parquet")
    defects.write_parquet(folder / "truth" / "defects.parquet")
    if plan.judged_jobs:
        classes_frame(until, seen).write_parquet(folder / "truth" / CLASSES_FILE)
    return jobs.height


def as_of(runs: Sequence[Run], seconds: int) -> list[Run]:
    """Return the runs as they are known so many seconds after the start: what starts later is still waiting."""
    return [
        replace(run, start_s=None, end_s=None, places=(), state="PENDING", exit_code="0:0", behaviour=None)
        if run.start_s is not None and run.start_s >= seconds
        else run
        for run in runs
    ]


def _told(folder: Path) -> list[int]:
    """Days up to which accounting was written."""
    found = (re.fullmatch(r"sacct-\d{4}-(\d{4})\.txt", file.name) for file in folder.iterdir())
    return [int(match[1]) for match in found if match]


def _ingest(lake: Lake, folder: Path, source: str, file: Path, *more: str) -> None:
    """The way of `tachograph ingest SOURCE FILE`."""
    module = load(next(each for each in SOURCES if each.name == source))
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    now = datetime.now(UTC)
    configuration = config.load(str(folder / "tachograph.toml"), {})
    options = parser.parse_args([str(file), *more])
    ingest(lake, module.read(options, configuration=configuration, now=now), now=now)
