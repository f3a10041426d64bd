"""`tachograph init`: writes a configuration with common keys; docs/configuration.md has all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tachograph.catalog.config import DEFAULT_LAKE, FILE_NAME
from tachograph.catalog.errors import ConfigError
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser

_TEXT = f"""\
# Configuration of Tachograph. Its other keys, with their defaults: docs/configuration.md.
lake = %s  # a folder, or an object store's address; empty: ./{DEFAULT_LAKE}

[site]
time_zone = %s  # of times that Slurm and exports write without an offset
cluster = ""  # of jobs whose accounting does not name it

[slurm]
shared = []  # partitions or QOS whose nodes several jobs share, such as "int*"
exclusive = %s  # partitions or QOS that give whole nodes

# What `tachograph collect` polls: remove the # of what you have. More sources and keys: docs/collect.md.
#
# [[sources]]
# source = "prometheus"
# every_s = 60
# url = "https://prometheus.example.org"
#
# [[sources]]
# source = "sacct"
# every_s = 300
"""


def configuration_text(lake: str, time_zone: str, exclusive: Sequence[str]) -> str:
    """Return a configuration with common keys; exclusive: partitions or QOS of whole nodes."""
    values = (json.dumps(value, ensure_ascii=False) for value in (lake, time_zone, exclusive))
    return _TEXT % tuple(values)


def add_arguments(parser: Parser) -> None:
    """Declare nothing: `--config` names the file, `--lake` the lake it is to hold."""


def run(arguments: Arguments) -> int:
    """Write the file.

    Errors: ConfigError when it exists or cannot be written.
    """
    file = Path(arguments.config or FILE_NAME)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(configuration_text(arguments.lake or "", "UTC", []))
    except FileExistsError:
        raise ConfigError(
            "exists already and is left as it is",
            where=str(file),
            do="edit it, or name another with --config",
        ) from None
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem),
            where=str(file),
            do="name a writable file with --config",
        ) from None
    Narrator.of(arguments).say(f"wrote {file}, to be edited")
    return 0
