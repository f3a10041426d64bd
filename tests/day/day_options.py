"""The options of `tachograph interference day`, as the command line takes them."""

from __future__ import annotations

from day import command
from tachograph.cli.options import Arguments, Parser, add_common, add_json


def parsed(*words: str) -> Arguments:
    """Return what the command gets of these words."""
    parser = Parser("tachograph interference day", "")
    command.add_arguments(parser)
    add_json(parser)
    add_common(parser)
    found: Arguments = parser.parse_args(words, Arguments())
    return found
