"""`tachograph simulate DIR`: write a simulated cluster whose truth is known, in the forms real ones are recorded in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json
from tachograph.errors import UsageError

if TYPE_CHECKING:
    from tachograph.simulate import Plan


def add_arguments(parser: Parser) -> None:
    """Declare the size, the seed, and whether telemetry has defects."""
    parser.add_argument("folder", metavar="DIR", help="a new folder")
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same files (default 7)")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes with four A100 each (default: 36 mixed ones)")
    parser.add_argument("--days", type=int, metavar="N", help="length of the recording (default 2)")
    parser.add_argument("--interval", type=int, metavar="S", help="seconds between samples of a GPU (default 30)")
    parser.add_argument("--no-defects", action="store_true", help="without gaps, resets, duplicates, marks, clock skew")
    parser.add_argument("--month", action="store_true", help="31 days of 7,168 GPUs: 1.92e9 samples")
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Write it; print what it holds."""
    from tachograph.simulate import simulate

    plan = _plan(arguments)
    with Narrator.of(arguments).steps() as tell:
        cluster = simulate(plan, arguments.folder, lambda done, total: tell("simulate", done, total))
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
            f"{cluster.folder}: {cluster.rows:,} samples, {cluster.jobs.height:,} runs of jobs, {problems:,} of them "
            f"with a planted problem, from {plan.start:%Y-%m-%d} to {plan.end:%Y-%m-%d} UTC\n"
        )
    return 0


def _plan(arguments: Arguments) -> Plan:
    import dataclasses

    from tachograph.simulate import NodeGroup, Plan

    plan = Plan.month(seed=arguments.seed) if arguments.month else Plan.demo(seed=arguments.seed)
    if arguments.month and (arguments.nodes or arguments.days or arguments.interval):
        raise UsageError("--month has its own size", do="leave out --nodes, --days and --interval")
    nodes = arguments.nodes
    return dataclasses.replace(
        plan,
        defects=not arguments.no_defects,
        groups=plan.groups if nodes is None else (NodeGroup(nodes, 4, "A100 SXM 40GB"),),
        days=plan.days if arguments.days is None else arguments.days,
        interval_s=plan.interval_s if arguments.interval is None else arguments.interval,
    )
