"""`tachograph mcp`: the tools for assistants on stdin and stdout, by the Model Context Protocol."""

from __future__ import annotations

import os
import sys

from tachograph.cli.options import Arguments, Parser


def add_arguments(parser: Parser) -> None:
    """Declare nothing: whoever reads the lake's files sees all of its jobs."""


def run(arguments: Arguments) -> int:
    """Answer until stdin ends."""
    from tachograph.annexes.serve.assistants import serve_stdio
    from tachograph.annexes.serve.snapshot import ServedLake
    from tachograph.api.viewer import Role, Viewer
    from tachograph.catalog.errors import UsageError
    from tachograph.catalog.private_files import cache_folder
    from tachograph.cli.options import caller_name, open_lake

    if sys.stdin is None or not sys.stdin.readable():
        raise UsageError("stdin is closed", do="let the program that asks start this command")
    opened = open_lake(arguments)
    viewer = Viewer(caller_name(), Role.SUPPORT, via="stdin")
    cache = cache_folder(os.environ)
    serve_stdio(ServedLake(opened.lake, opened.configuration, cache=cache), viewer)
    return 0
