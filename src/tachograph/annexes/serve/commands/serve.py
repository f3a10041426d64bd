"""`tachograph serve`: pages and REST API of a lake."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tachograph.catalog.config import UNIX_SOCKET
from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, actions_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tachograph.annexes.serve.identity.tokens import StoredToken

_LONGEST_D = 3660.0  # until a token expires


def add_arguments(parser: Parser) -> None:
    """Declare the listen address, and the action for tokens."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", metavar="ADDRESS", help="HOST:PORT, or unix:PATH [serve.listen]")
    where.add_argument(
        "--port",
        type=_address_of,
        dest="listen",
        metavar="N",
        help="a port of this host alone: --listen 127.0.0.1:N",
    )
    where.add_argument(
        "--socket",
        metavar="PATH",
        help="a Unix socket: --listen unix:PATH",
    )
    action = actions_of(parser, dest="part", required=False)
    action(
        "token",
        "create, list and revoke tokens of programs, in the file [serve.token_file]",
        _of_tokens,
    )


def _address_of(port: str) -> str:
    return f"127.0.0.1:{whole_number(1, 65535)(port)}"


def _of_tokens(parser: argparse.ArgumentParser) -> None:
    assert isinstance(parser, Parser)
    action = actions_of(parser)
    action("create", "create a token and print it, once", _of_creating)
    action("list", "list the tokens: user, role, expiry", lambda _: None)
    action("revoke", "revoke a token immediately", _add_id)


def _of_creating(parser: argparse.ArgumentParser) -> None:
    roles = ("anonymous", "user", "manager", "support", "admin")
    parser.add_argument("--role", choices=roles, default="user", help="role of the token [user]")
    parser.add_argument(
        "--user",
        metavar="NAME",
        required=True,
        help="user of the token; the role user sees only their jobs",
    )
    parser.add_argument(
        "--expires",
        metavar="SPAN",
        default="30d",
        help="time until it expires, as 12h, 30d or 8w [30d]",
    )


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="its id, as `tachograph serve token list` shows it")


def run(arguments: Arguments) -> int:
    """Serve until a signal ends it, or change the tokens."""
    return _serve(arguments) if arguments.part is None else _change_tokens(arguments)


def _change_tokens(arguments: Arguments) -> int:
    from datetime import UTC, datetime
    from pathlib import Path

    from tachograph.catalog.errors import ConfigError
    from tachograph.cli.options import configuration_of

    configuration = configuration_of(arguments)
    if not configuration.serve.token_file:
        what = "no token file is configured"
        raise ConfigError(what, do='set serve.token_file, as in token_file = "tokens.json"')
    file = Path(configuration.serve.token_file)
    now = datetime.now(UTC).replace(microsecond=0)
    if arguments.action == "create":
        return _create_token(arguments, file, now)
    if arguments.action == "revoke":
        return _revoke_token(arguments, file)
    return _list_tokens(arguments, file, now, configuration.site.time_zone)


def _create_token(arguments: Arguments, file: Path, now: datetime) -> int:
    from datetime import timedelta

    from tachograph.annexes.serve.identity.tokens import create_token
    from tachograph.api.viewer import Role
    from tachograph.catalog.units import span_s

    seconds = span_s(arguments.expires)
    if not 0 < seconds <= _LONGEST_D * 86400:
        raise UsageError(
            f"--expires: {arguments.expires!r} is not between 0 and ten years", do="give 30d"
        )
    role = Role[arguments.role.upper()]
    token, stored = create_token(
        file, user=arguments.user, role=role, expires=now + timedelta(seconds=seconds)
    )
    if arguments.json:
        shown = {
            "id": stored.id,
            "user": stored.user,
            "role": stored.role,
            "expires": stored.expires,
        }
        output.print_json({"token": token, **shown})
    else:
        output.print_text(f"{token}\n")
    Narrator.of(arguments).say(
        f"token {stored.id} of {stored.user}, role {stored.role}; it is not shown again"
    )
    return 0


def _revoke_token(arguments: Arguments, file: Path) -> int:
    from tachograph.annexes.serve.identity.tokens import revoke_token

    revoked = revoke_token(file, arguments.id)
    Narrator.of(arguments).say(f"revoked token {revoked.id} of {revoked.user}, role {revoked.role}")
    return 0


def _public_fields(token: StoredToken) -> dict[str, object]:
    names = ("id", "user", "role", "created", "expires")
    return {name: getattr(token, name) for name in names}


def _list_tokens(arguments: Arguments, file: Path, now: datetime, zone_name: str) -> int:
    from tachograph.annexes.serve.identity.tokens import read_tokens
    from tachograph.catalog.columns import local_time

    tokens = read_tokens(file)
    if arguments.json:
        output.print_json([_public_fields(token) for token in tokens])
        return 0
    rows = []
    for token in tokens:
        created = local_time(token.created, zone_name)
        expires = local_time(token.expires, zone_name)
        state = "expired" if token.expires <= now else "valid"
        rows.append((token.id, token.user, token.role, created, expires, state))
    output.print_table(
        ("id", "user", "role", "created", "expires", "state"), rows, no_color=arguments.no_color
    )
    return 0


def _serve(arguments: Arguments) -> int:
    import getpass
    import os

    from tachograph.annexes.serve.server import Listening, serve
    from tachograph.annexes.serve.snapshot import ServedLake
    from tachograph.annexes.serve.workers import Workers
    from tachograph.catalog.private_files import cache_folder
    from tachograph.cli.options import open_lake
    from tachograph.collect.systemd import SystemdNotifier

    opened = open_lake(arguments)
    options = opened.configuration.serve
    socket = None if arguments.socket is None else f"{UNIX_SOCKET}{arguments.socket}"
    listening = Listening.at(socket or arguments.listen or options.listen)
    say = Narrator.of(arguments).say
    cache = cache_folder(os.environ)
    workers = Workers(opened.lake.location, opened.configuration, cache)
    serve(
        ServedLake(opened.lake, opened.configuration, cache=cache, workers=workers),
        listening,
        user=getpass.getuser(),
        started=lambda link: say(f"open {link}", secret=True),
        notifier=SystemdNotifier.of(os.environ),
    )
    say("stopped")
    return 0
