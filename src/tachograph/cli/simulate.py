"""`tachograph simulate DIR`: write a simulated cluster with its ground truth, in the formats of real recordings.

With `--lake` its samples are committed to a lake directly, as ingest and compaction would leave them.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import plural
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json, seed

if TYPE_CHECKING:
    from tachograph.simulate.plan import SimulationPlan


def add_arguments(parser: Parser) -> None:
    """Declare size, seed, and telemetry defects."""
    parser.add_argument("folder", metavar="DIR", help="a new folder")
    parser.add_argument("--seed", type=seed, default=7, help="the same seed gives the same files (default 7)")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes with four A100 each (default: 36 mixed ones)")
    parser.add_argument("--days", type=int, metavar="N", help="days of the recording (default 2)")
    parser.add_argument("--interval", type=int, metavar="S", help="seconds between samples of a GPU (default 30)")
    parser.add_argument("--no-defects", action="store_true", help="no gaps, resets, duplicates, blanks, clock skew")
    parser.add_argument("--hosts", action="store_true", help="also host metrics: CPU, network, files, caches")
    parser.add_argument(
        "--job-groups", type=int, default=0, metavar="N", help="users repeat N jobs (default: each job is another)"
    )
    parser.add_argument("--month", action="store_true", help="31 days of 7,168 GPUs: 1.92e9 samples")
    direct = parser.add_argument_group("directly into the lake of --lake, without telemetry files")
    direct.add_argument(
        "--fill-days", type=int, metavar="N", help="only the first N days; a later run with more continues"
    )
    direct.add_argument("--processes", type=int, metavar="N", help="processes that simulate (default: one per core)")
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Write the cluster; print its size."""
    plan = _plan(arguments)
    if arguments.lake is not None:
        return _fill(plan, arguments)
    if arguments.fill_days is not None or arguments.processes is not None:
        raise UsageError("--fill-days and --processes need --lake", do="name a lake with --lake, or leave them out")
    return _write(plan, arguments)


def _write(plan: SimulationPlan, arguments: Arguments) -> int:
    """Write files."""
    from tachograph.simulate.cluster import simulate

    with Narrator.of(arguments).steps() as progress:
        cluster = simulate(plan, arguments.folder, lambda done, total: progress("simulate", done, total))
    problems = cluster.jobs.get_column("problem").drop_nulls().len()
    if arguments.json:
        output.print_json(
            {
                "folder": str(cluster.folder),
                "samples": cluster.rows,
                "jobs": cluster.jobs.height,
                "planted_problems": problems,
                "start": plan.start,
                "end": plan.end,
            }
        )
    else:
        output.print_text(
            f"{cluster.folder}: {cluster.rows:,} samples, {cluster.jobs.height:,} job runs, {problems:,} of them "
            f"with a planted problem, from {plan.start:%Y-%m-%d} to {plan.end:%Y-%m-%d} UTC\n"
        )
    return 0


def _fill(plan: SimulationPlan, arguments: Arguments) -> int:
    """Commit to the lake."""
    from tachograph.service.fill import fill

    lake = str(arguments.lake)
    processes = arguments.processes if arguments.processes is not None else os.cpu_count() or 1
    with Narrator.of(arguments).steps() as progress:
        filled = fill(
            plan,
            lake,
            arguments.folder,
            days=arguments.fill_days,
            processes=max(1, processes),
            progress=lambda done, total: progress("simulate", done, total),
        )
    if arguments.json:
        output.print_json({"lake": lake, "folder": str(arguments.folder), **dataclasses.asdict(filled)})
    else:
        were = "was" if filled.chunks == 1 else "were"
        known = f" ({filled.chunks_known} of {plural(filled.chunks, 'chunk')} {were} already in the lake)"
        output.print_text(
            f"{lake}: {filled.rows:,} samples committed{known if filled.chunks_known else ''}, "
            f"{filled.jobs:,} job runs; "
            f"configuration, accounting and ground truth in {arguments.folder}\n"
        )
    return 0


def _plan(arguments: Arguments) -> SimulationPlan:
    from tachograph.simulate.plan import NodeGroup, SimulationPlan

    plan = SimulationPlan.month(seed=arguments.seed) if arguments.month else SimulationPlan.demo(seed=arguments.seed)
    if arguments.month and (arguments.nodes or arguments.days or arguments.interval):
        raise UsageError("--month excludes --nodes, --days and --interval", do="leave them out")
    for name in ("nodes", "days"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise UsageError(f"invalid --{name} {value}", do="give 1 or more")
    nodes = arguments.nodes
    return dataclasses.replace(
        plan,
        job_groups=arguments.job_groups,
        defects=not arguments.no_defects,
        hosts=arguments.hosts,
        groups=plan.groups if nodes is None else (NodeGroup(nodes, 4, "A100 SXM 40GB"),),
        days=plan.days if arguments.days is None else arguments.days,
        interval_s=plan.interval_s if arguments.interval is None else arguments.interval,
    )
