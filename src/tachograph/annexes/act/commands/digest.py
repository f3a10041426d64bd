"""`tachograph act digest`: shows users' weekly digests; keeps the list of opted-out users."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tachograph.catalog.errors import NotFoundError, UsageError, cure_unwritable
from tachograph.catalog.units import plural
from tachograph.cli import output
from tachograph.cli.options import Arguments, OpenedLake, Parser, add_json, open_lake

if TYPE_CHECKING:
    from datetime import date, datetime

    from tachograph.annexes.act.digest import UserDigest
    from tachograph.annexes.act.group_digest import GroupDigest

WEEK = timedelta(days=7)


def add_arguments(parser: Parser) -> None:
    """Declare user, week, `--html`, and opt-outs."""
    parser.add_argument(
        "user",
        nargs="?",
        metavar="USER",
        help="user of the digest (default: all users, one line each)",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--staff", action="store_true", help="the digest for staff, about all jobs")
    group.add_argument("--manager", metavar="NAME", help="the digest for a coordinator of accounts")
    parser.add_argument(
        "--as-of", metavar="TIME", help="digest of the last complete week before this time"
    )
    parser.add_argument("--html", metavar="FILE", help="write the digest as HTML, as in its mail")
    lists = parser.add_mutually_exclusive_group()
    lists.add_argument(
        "--preview", action="store_true", help="show digests, send nothing (default)"
    )
    lists.add_argument("--opt-out", metavar="NAME", help="send no digests to this user")
    lists.add_argument("--opt-in", metavar="NAME", help="send digests to this user again")
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Show digests, or change who gets them; nothing is sent."""
    of_group = arguments.staff or arguments.manager
    if arguments.html and not (arguments.user or of_group):
        raise UsageError("--html: whose digest?", do="name the user")
    if of_group and arguments.user:
        raise UsageError("USER cannot be given with --staff or --manager", do="leave one out")
    opened = open_lake(arguments)
    opened.remark_end()
    if of_group and not (arguments.opt_out or arguments.opt_in):
        return _show_group(opened, arguments)
    return (
        _change(opened, arguments)
        if arguments.opt_out or arguments.opt_in
        else _show(opened, arguments)
    )


def _change(opened: OpenedLake, arguments: Arguments) -> int:
    from tachograph.annexes.act.unsubscribe import OPT_OUT_FILE, change_opt_out
    from tachograph.collect.status import state_folder

    name = (arguments.opt_out or arguments.opt_in).strip()
    if not name.isprintable() or not name:
        raise UsageError(f"invalid user name: {name!r}", do="name one user")
    file = state_folder(opened.lake.location, opened.configuration.collect.state) / OPT_OUT_FILE
    change_opt_out(file, name, out=bool(arguments.opt_out))
    output.print_text(f"{name} gets {'no ' if arguments.opt_out else ''}digests\n")
    return 0


def _last_day(opened: OpenedLake) -> datetime:
    """Return a time in the week after the digest's: the week in which data end is the last one."""
    return min(opened.now + WEEK, opened.clock) if opened.of_lake else opened.now


def _show(opened: OpenedLake, arguments: Arguments) -> int:
    from tachograph.annexes.act.digest import digest_json, digest_week, week_name
    from tachograph.annexes.act.digests import user_digests
    from tachograph.catalog.units import text, zone

    configuration = opened.configuration
    week = digest_week(_last_day(opened).astimezone(zone(configuration.site.time_zone)))
    users = (arguments.user,) if arguments.user else ()
    digests = list(user_digests(opened.lake, configuration, week, users=users))
    if arguments.user and not digests:
        raise _nothing(opened, f"no job of {arguments.user!r}", week)
    if arguments.json:
        shown = [digest_json(digest) for digest in digests]
        output.print_json(shown[0] if arguments.user else shown)
    elif arguments.user:
        _print_mail(opened, arguments, digests[0])
    else:
        sent = sum(digest.is_worth_sending for digest in digests)
        rows = [
            (
                digest.user,
                f"{digest.jobs:,}",
                text(digest.gpu_hours, "h"),
                text(digest.lost, "h"),
                _word(digest),
            )
            for digest in digests
        ]
        output.print_table(
            ("user", "jobs", "gpu_hours", "lost", "change"), rows, no_color=arguments.no_color
        )
        output.print_text(
            f"{week_name(week)}: {plural(sent, 'digest')} of {plural(len(digests), 'user')}\n"
        )
    return 0


def _nothing(opened: OpenedLake, whose: str, week: date) -> NotFoundError:
    from tachograph.annexes.act.digest import week_name
    from tachograph.cli.options import newest_job
    from tachograph.lake.query import read_summaries

    zone_name = opened.configuration.site.time_zone
    newest = newest_job(read_summaries(opened.lake, ("start",)), zone_name=zone_name)
    what = f"{whose} ended in {week_name(week)} with known GPU-hours"
    return NotFoundError(
        f"{what}; {newest}" if newest else what, do="choose another week with --as-of"
    )


def _show_group(opened: OpenedLake, arguments: Arguments) -> int:
    from tachograph.annexes.act.digest import digest_week
    from tachograph.annexes.act.digests import STAFF, group_digests
    from tachograph.annexes.act.group_digest import group_digest_json
    from tachograph.api.managers import managers_of
    from tachograph.catalog.units import zone

    configuration = opened.configuration
    week = digest_week(_last_day(opened).astimezone(zone(configuration.site.time_zone)))
    managers = managers_of(configuration.serve)() if arguments.manager else {}
    if arguments.manager and arguments.manager not in managers:
        raise NotFoundError(
            f"{arguments.manager!r} coordinates no account", do="see serve.managers"
        )
    requested = ("managers", arguments.manager) if arguments.manager else ("staff", STAFF)
    digests = group_digests(opened.lake, configuration, week, managers)
    digest = next(
        (candidate for candidate in digests if (candidate.audience, candidate.name) == requested),
        None,
    )
    if digest is None:
        raise _nothing(opened, "no job", week)
    if arguments.json:
        output.print_json(group_digest_json(digest))
    else:
        _print_mail(opened, arguments, digest)
    return 0


def _word(digest: UserDigest) -> str:
    if digest.change is not None:
        return digest.change.code
    return "(none)" if digest.is_worth_sending else "(nothing to send)"


def _print_mail(opened: OpenedLake, arguments: Arguments, digest: UserDigest | GroupDigest) -> None:
    from pathlib import Path

    from tachograph.annexes.act.digest import DigestTemplates

    templates = DigestTemplates.of()
    url = opened.configuration.serve.url
    if arguments.html:
        try:
            Path(arguments.html).write_text(templates.html(digest, url=url), encoding="utf-8")
        except OSError as problem:
            raise UsageError(
                f"--html: {problem.strerror}",
                where=arguments.html,
                do=cure_unwritable(problem, "name another file"),
            ) from None
    output.print_text(templates.text(digest, url=url))
    if not digest.is_worth_sending:
        output.print_text("(nothing to change, nothing recovered, no unhealthy GPU: not sent)\n")
