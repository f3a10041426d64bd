"""`tachograph interference day`: a simulated day of jobs, placed with and without advice about sharing GPUs."""

from __future__ import annotations

import argparse

from tachograph.cli.options import Arguments, seed

_POLICIES = ("exclusive", "roofline", "occupancy", "advice", "safe", "oracle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the day, the policies, and what they see of the jobs; `--json` is added by the command."""
    parser.add_argument("--gpus", type=int, default=32, metavar="N", help="GPUs of the cluster (default 32)")
    parser.add_argument("--jobs", type=int, default=400, metavar="N", help="jobs of the day (default 400)")
    parser.add_argument("--together", type=int, default=2, metavar="K", help="at most K jobs on a GPU (default 2)")
    parser.add_argument("--seed", type=seed, default=1, help="of the first day (default 1)")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="days, with seeds one after the other")
    parser.add_argument("--policies", nargs="+", choices=_POLICIES, default=_POLICIES, help="only these")
    parser.add_argument(
        "--profiles",
        choices=("measured", "dcgm"),
        default="measured",
        help="what advice sees: kernels as a profiler measured them, or means per job",
    )


def run(arguments: Arguments) -> int:
    """Simulate the days, and print what each policy came to."""
    raise NotImplementedError
