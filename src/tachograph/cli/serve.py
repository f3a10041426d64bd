"""`tachograph serve`: pages and REST API of a lake."""

from __future__ import annotations

from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser


def add_arguments(parser: Parser) -> None:
    """Declare where it listens."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", metavar="ADDRESS", help="HOST:PORT [serve.listen]")
    where.add_argument("--socket", metavar="PATH", help="a Unix socket [serve.socket]")


def run(arguments: Arguments) -> int:
    """Serve until a signal ends it."""
    import getpass
    import os

    from tachograph.cli.options import open_lake
    from tachograph.service.systemd import SystemdNotifier
    from tachograph.web.server import Listening, serve
    from tachograph.web.snapshot import ServedLake

    opened = open_lake(arguments)
    options = opened.configuration.serve
    path = arguments.socket or ("" if arguments.listen else options.socket)
    listening = Listening(path=path) if path else Listening.at(arguments.listen or options.listen)
    say = Narrator.of(arguments).say
    serve(
        ServedLake(opened.lake, opened.configuration),
        listening,
        user=getpass.getuser(),
        started=lambda link: say(f"open {link}"),
        notifier=SystemdNotifier.of(os.environ),
    )
    say("stopped")
    return 0
