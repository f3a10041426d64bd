"""`tachograph init`: a commented configuration, every key at its default, made from the structs that read it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tachograph.catalog.config import DEFAULT_LAKE, FILE_NAME, Configuration
from tachograph.catalog.errors import ConfigError
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser

_HEAD = f"""\
# Configuration of Tachograph. Every key is at its default; unneeded keys may be deleted.
# TACHOGRAPH_<SECTION>_<KEY> in the environment overrides a key, for example TACHOGRAPH_SITE_TIME_ZONE=Europe/Berlin.

# a folder or an object store's address; empty: ./{DEFAULT_LAKE}
"""
_TAIL = """
# Sources that `tachograph collect` polls, one [[sources]] each: remove the # of those you have. The keys of each are on
# its page, see docs/collect.md; secrets are named by file.
#
# [[sources]]
# source = "prometheus"
# every_s = 60
# url = "https://prometheus.example.org"
#
# [[sources]]
# source = "dcgm-exporter"
# every_s = 30
# urls = ["http://gpu[001-512]:9400/metrics"]
#
# [[sources]]
# source = "sacct"
# every_s = 300
#
# [[sources]]
# source = "slurm-live"
# every_s = 60
"""
# `name: type = default  # remark` in a struct
_REMARK = re.compile(r"^ +(\w+):[^#\n]*# *(.+)$", re.MULTILINE)


def add_arguments(parser: Parser) -> None:
    """Declare nothing: `--config` names the file, `--lake` the lake it is to hold."""


def run(arguments: Arguments) -> int:
    """Write the file.

    Errors: ConfigError when it exists or cannot be written.
    """
    file = Path(arguments.config or FILE_NAME)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text(Configuration(lake=arguments.lake or "")))
    except FileExistsError:
        raise ConfigError(
            "exists already and is left as it is", where=str(file), do="edit it, or name another with --config"
        ) from None
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem), where=str(file), do="name a file you may write with --config"
        ) from None
    Narrator.of(arguments).say(f"wrote {file}: every key at its default, to be edited")
    return 0


def text(configuration: Configuration) -> str:
    """Return `configuration` as commented TOML that reads back as itself."""
    return _HEAD + "\n".join(_lines(configuration)) + "\n" + _TAIL


def _lines(configuration: Configuration) -> Iterator[str]:
    sections: dict[str, msgspec.Struct] = {}
    for field in msgspec.structs.fields(configuration):
        value = getattr(configuration, field.name)
        if isinstance(value, msgspec.Struct):
            sections[field.name] = value
        elif value or not isinstance(value, tuple):  # an empty list could not be followed by [[sources]]
            yield f"{field.name} = {_toml(value)}"
    for name, section in sections.items():
        yield from ("", *_comment(inspect.getdoc(type(section)) or ""), f"[{name}]")
        remarks = dict(_REMARK.findall(inspect.getsource(type(section))))
        for field in msgspec.structs.fields(section):
            line = f"{field.name} = {_toml(getattr(section, field.name))}"
            yield f"{line}  # {remarks[field.name]}" if field.name in remarks else line


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in text.splitlines())


def _toml(value: object) -> str:
    """Return a value of the configuration as TOML.

    >>> _toml(True), _toml(0.5), _toml(("a", "b")), _toml({"nid[1-4]": 2}), _toml('say "x"')
    ('true', '0.5', '["a", "b"]', '{ "nid[1-4]" = 2 }', '"say \\\\"x\\\\""')
    """
    match value:
        case dict():
            pairs = ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            raise TypeError(f"no TOML for {type(value).__name__}")
