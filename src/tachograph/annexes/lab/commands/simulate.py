"""`tachograph lab simulate DIR`: writes a simulated cluster with ground truth in real formats.

With `--lake` each file of samples is ingested into a lake and removed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from tachograph.annexes.lab.simulate.plan import SimulationPlan


def add_arguments(parser: Parser) -> None:
    """Declare size, seed, and telemetry defects."""
    parser.add_argument("folder", metavar="DIR", help="a new folder")
    parser.add_argument(
        "--seed",
        type=whole_number(0),
        default=7,
        help="the same seed gives the same files (default 7)",
    )
    parser.add_argument(
        "--nodes",
        type=whole_number(1),
        metavar="N",
        help="nodes with four A100 each (default: 36 mixed ones)",
    )
    parser.add_argument(
        "--days", type=whole_number(1), metavar="N", help="days of the recording (default 2)"
    )
    parser.add_argument(
        "--interval",
        type=whole_number(1, 3600),
        metavar="S",
        help="seconds between samples of a GPU (default 30)",
    )
    parser.add_argument(
        "--no-defects", action="store_true", help="no gaps, resets, duplicates, blanks, clock skew"
    )
    parser.add_argument(
        "--hosts", action="store_true", help="also host metrics: CPU, network, files, caches"
    )
    parser.add_argument(
        "--shared-gpus",
        action="store_true",
        help="other users, whose recurring jobs share GPUs and slow each other down",
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Write the cluster, into files or into a lake; print its size."""
    from tachograph.annexes.lab.fill import fill
    from tachograph.annexes.lab.simulate.cluster import simulate

    plan = _plan(arguments)
    with Narrator.of(arguments).steps() as progress:

        def tell(done: int, total: int) -> None:
            progress("simulate", done, total)

        if arguments.lake is None:
            cluster = simulate(plan, arguments.folder, tell)
        else:
            cluster = fill(plan, str(arguments.lake), arguments.folder, tell)
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
        return 0
    target = cluster.folder if arguments.lake is None else arguments.lake
    output.print_text(
        f"{target}: {cluster.rows:,} samples, {cluster.jobs.height:,} job runs, {problems:,} of "
        "them "
        f"with a planted problem, from {plan.start:%Y-%m-%d} to {plan.end:%Y-%m-%d} UTC\n"
    )
    if arguments.lake is not None:
        output.print_text(f"configuration, accounting and ground truth in {cluster.folder}\n")
    return 0


def _plan(arguments: Arguments) -> SimulationPlan:
    from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulationPlan

    if arguments.shared_gpus:
        plan = SimulationPlan.sharing(seed=arguments.seed)
    else:
        plan = SimulationPlan.demo(seed=arguments.seed)
    nodes = arguments.nodes
    return dataclasses.replace(
        plan,
        defects=not arguments.no_defects,
        hosts=arguments.hosts,
        groups=plan.groups if nodes is None else (NodeGroup(nodes, 4, "A100 SXM 40GB"),),
        days=plan.days if arguments.days is None else arguments.days,
        interval_s=plan.interval_s if arguments.interval is None else arguments.interval,
    )
