"""`tachograph version`: versions to name in a bug report."""

from __future__ import annotations

import platform
from importlib import metadata

from tachograph.catalog.version import __version__
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json

# Those whose version changes results or files.
_LIBRARIES = ("polars", "deltalake", "numba", "numpy")


def add_arguments(parser: Parser) -> None:
    """Declare `--json`."""
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print one version per row."""
    versions = {
        "tachograph": __version__,
        "python": platform.python_version(),
        **{library: metadata.version(library) for library in _LIBRARIES},
    }
    if arguments.json:
        output.print_json(versions)
    else:
        output.print_table(("part", "version"), versions.items(), no_color=arguments.no_color)
    return 0
