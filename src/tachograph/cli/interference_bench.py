"""`tachograph interference bench`: run micro-benchmarks on a GPU, and calibrate the estimator by them."""

from __future__ import annotations

import argparse

from tachograph.cli.options import Arguments
from tachograph.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the action; `--json` and those of every command are added by the caller."""
    parser.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU (default: 0)")


def run(arguments: Arguments) -> int:
    """Do what the options ask for; return the exit code."""
    raise UsageError("not ready")
