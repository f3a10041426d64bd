"""What `[[sources]]` says of Slurm, for feeds and for what is asked once by `tachograph ingest`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tachograph.errors import ConfigError
from tachograph.sources.feeds import FeedSettings, settings_of

if TYPE_CHECKING:
    from tachograph.config import Configuration


def settings_in(configuration: Configuration, source: str) -> list[FeedSettings]:
    """Return the settings of every entry of a source; the defaults where there is no entry.

    Errors: ConfigError naming the entry and the key.
    """
    entries = [raw for raw in configuration.sources if raw.get("source") == source] or [{"source": source}]
    return [settings_of(raw, where="[[sources]]") for raw in entries]


@contextmanager
def named(title: str) -> Iterator[None]:
    """Inside the block an error of the configuration that names no place names the entry."""
    try:
        yield
    except ConfigError as problem:
        raise ConfigError(problem.what, where=problem.where or f"[[sources]] {title}", do=problem.do) from None


def check_how(how: str, *, url: str, command: tuple[str, ...]) -> None:
    """Check that it is said who is asked. Errors: ConfigError."""
    if how == "command" and url:
        raise ConfigError('url is given, but how is "command"', do='add how = "rest", or take url away')
    if not command or not all(command):
        raise ConfigError("command is empty", do='write it as ["ssh", "login", "sacct"]')
