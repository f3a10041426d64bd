"""The options of `tachograph ingest prometheus`, over what the configuration says of the server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from tachograph.errors import ConfigError, UsageError
from tachograph.sources.feeds import settings_of
from tachograph.sources.prometheus.settings import HOWS, NAME, Settings

if TYPE_CHECKING:
    from tachograph.config import Configuration

# {option: key of the settings}
_KEYS = {
    "url": "url",
    "selector": "selector",
    "how": "how",
    "step_s": "step_s",
    "window_s": "window_s",
    "parallel": "parallel",
    "refresh_s": "refresh_s",
    "token_file": "token_file",
    "user": "user",
    "password_file": "password_file",
    "ca_file": "ca_file",
    "timeout_s": "timeout_s",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the server and the time to read, or files."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="saved answers (JSON), in place of a server")
    parser.add_argument("--url", help="address of the server, with its path")
    parser.add_argument("--name", help="entry of [[sources]] that says the rest, where there are several")
    parser.add_argument("--from", dest="from_", metavar="TIME", help="first time: 2026-04-23T10:30, or 12h before now")
    parser.add_argument("--to", metavar="TIME", help="first time no longer read (default now)")
    parser.add_argument("--selector", help="""matchers every series must fulfil: '{job="dcgm"}'""")
    parser.add_argument("--how", choices=HOWS, help="how samples are asked for (default auto: the best it knows)")
    parser.add_argument("--step", dest="step_s", type=float, metavar="S", help="scrape interval, for --how range")
    parser.add_argument("--window", dest="window_s", type=float, metavar="S", help="asked at a time (default 3600)")
    parser.add_argument("--parallel", type=int, metavar="N", help="questions at a time (default 4)")
    parser.add_argument("--refresh", dest="refresh_s", type=float, metavar="S", help="between looks of the exporters")
    parser.add_argument("--token-file", metavar="FILE", help="file that holds a bearer token")
    parser.add_argument("--user", help="user, with --password-file")
    parser.add_argument("--password-file", metavar="FILE", help="file that holds the password")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to trust in place of the system's")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="header to send; repeatable"
    )
    parser.add_argument("--timeout", dest="timeout_s", type=float, metavar="S", help="longest silence (default 30)")


def settings_of_options(options: argparse.Namespace, configuration: Configuration) -> Settings:
    """Return the settings: those of the configuration's entry where there is one, and what options say over it.

    Errors: UsageError where no server is named, or several are; ConfigError for an entry that does not fit.
    """
    raw = dict(_entry(options, configuration))
    raw |= {key: value for name, key in _KEYS.items() if (value := getattr(options, name)) is not None}
    raw["headers"] = {**_headers_of(raw), **dict(_header(written) for written in options.header)}
    if not raw.get("url") and not options.files:
        raise UsageError("no server is named", do="name one with --url, or in [[sources]] of tachograph.toml")
    settings = settings_of({**raw, "source": NAME}, where="--url")
    if not isinstance(settings, Settings):
        raise ConfigError(f"{NAME} has other settings", where="[[sources]]", do="see docs/ingest-prometheus.md")
    return settings


def _entry(options: argparse.Namespace, configuration: Configuration) -> dict[str, object]:
    """The entry of the configuration that is meant; none where a server is named and no entry."""
    entries = [entry for entry in configuration.sources if entry.get("source") == NAME]
    if options.name is not None:
        entries = [entry for entry in entries if entry.get("name", NAME) == options.name]
        if not entries:
            raise UsageError(f"no [[sources]] entry of {NAME} is called {options.name!r}", do="see tachograph.toml")
    elif options.url or options.files:
        return {}
    if len(entries) > 1:
        names = ", ".join(str(entry.get("name", NAME)) for entry in entries)
        raise UsageError(f"several [[sources]] entries of {NAME}", do=f"choose one with --name: {names}")
    return entries[0] if entries else {}


def _headers_of(raw: dict[str, object]) -> dict[str, str]:
    return msgspec.convert(raw.get("headers", {}), dict[str, str])


def _header(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--header {written!r} has no value", do="write it as NAME=VALUE")
    return name.strip(), value
