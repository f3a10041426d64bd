"""`tachograph kernels`: what kernels need of a GPU, and what disturbs them."""

from __future__ import annotations

from tachograph.cli.options import Arguments, Parser, add_json
from tachograph.errors import UsageError


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Do it."""
    raise UsageError("not ready")
