"""`tachograph lake forget`: replace a user's name by a pseudonym, or remove the user's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json, open_lake

if TYPE_CHECKING:
    from pathlib import Path

    from tachograph.collect.forget import Forgotten

_MOST_FILES = 5  # that are listed by name


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--user", metavar="NAME", help="the name to forget; a dry run unless --yes is given"
    )
    what.add_argument(
        "--reveal", metavar="PSEUDONYM", help="with --key: print the name behind a pseudonym"
    )
    what.add_argument("--new-key", metavar="FILE", help="write a new key for pseudonyms")
    parser.add_argument(
        "--key", metavar="FILE", help="replace the name by the pseudonym made with this key"
    )
    parser.add_argument(
        "--remove",
        action="store_true",
        help="remove the user's jobs and everything computed from them",
    )
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument(
        "--now",
        action="store_true",
        help="delete replaced files at once: running readers fail",
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Forget a user, show what that would change, reveal a pseudonym, or make a key."""
    from tachograph.catalog.pseudonyms import PseudonymKey

    if arguments.new_key:
        key = PseudonymKey.create(arguments.new_key)
        output.print_text(
            f"{key.file}: a new key; who has it can reveal pseudonyms, keep it apart from the "
            "lake\n"
        )
        return 0
    if arguments.reveal:
        return _reveal(arguments)
    if bool(arguments.key) == arguments.remove:
        raise UsageError(
            "--user needs --key or --remove", do="give one of --key FILE (a pseudonym) and --remove"
        )
    if len(arguments.user.strip()) < 2 or not arguments.user.isprintable():
        raise UsageError(f"invalid user name: {arguments.user!r}", do="name one user")
    return _forget(arguments)


def _reveal(arguments: Arguments) -> int:
    from tachograph.catalog.pseudonyms import PseudonymKey
    from tachograph.lake.query import read_summaries

    if not arguments.key:
        raise UsageError("--reveal: by which key?", do="give --key FILE")
    key = PseudonymKey.read(arguments.key)
    name = key.reveal(arguments.reveal)
    if name is None:
        jobs = read_summaries(open_lake(arguments).lake, ("user", "account", "job_id"))
        for column in jobs.get_columns():  # users first: there are few of them
            if name is None:
                name = key.reveal(arguments.reveal, column.drop_nulls().unique().to_list())
    if name is None:
        what = f"{arguments.reveal} stands for no name that is known"
        raise NotFoundError(what, where=arguments.key, do="give the key with which it was made")
    output.print_text(f"{name}\n")
    return 0


def _forget(arguments: Arguments) -> int:
    import os
    from datetime import UTC, datetime

    from tachograph.catalog.doors import annex_function
    from tachograph.catalog.private_files import cache_folder
    from tachograph.catalog.pseudonyms import PseudonymKey
    from tachograph.collect.forget import forget_user

    opened = open_lake(arguments)
    name, stands = arguments.user.strip(), None
    if arguments.key:
        key = PseudonymKey.read(arguments.key)
        stands = key.pseudonym("user", name)
        if arguments.yes:
            key.remember("user", name)
    result = forget_user(
        opened.lake,
        opened.configuration,
        name,
        stands,
        clock=lambda: datetime.now(UTC),
        dry_run=not arguments.yes,
        at_once=arguments.now,
    )
    images = 0
    if arguments.yes:
        remove = annex_function("remove_forgotten_images")
        images = remove(opened.lake, cache_folder(os.environ))
    if arguments.json:
        files = {
            part: list(map(str, getattr(result, part))) for part in ("changed", "deleted", "others")
        }
        files |= {} if result.replaced is None else {"replaced": list(map(str, result.replaced))}
        done = {
            "dry_run": not arguments.yes,
            "pseudonym": stands,
            "tables": result.tables,
            "images": images,
        }
        output.print_json(done | files)
        return 0
    _print(result, arguments, stands, opened.configuration.collect.vacuum_hours)
    return 0


def _print(result: Forgotten, arguments: Arguments, stands: str | None, hours: int) -> None:
    would = "" if arguments.yes else "would be "
    for table in result.tables:
        columns = ", ".join(f"{column} {rows:,}" for column, rows in sorted(table.columns.items()))
        if table.removed:
            output.print_text(
                f"{table.table}: {table.removed:,} rows of the user's jobs {would}removed\n"
            )
        if table.changed:
            output.print_text(f"{table.table}: {table.changed:,} rows {would}changed ({columns})\n")
        if table.inside:
            output.print_text(
                f"{table.table}: {table.inside:,} texts have the name within a longer word, which "
                "stays\n"
            )
        for column, rows in sorted(table.left.items()):
            output.print_text(
                f"{table.table}: {rows:,} rows have the name as a word of {column}, which stays\n"
            )
    _print_files("changed", result.changed, would)
    _print_files("deleted", result.deleted, would)
    if result.others:
        names = ", ".join(map(str, result.others))
        output.print_text(f"not changed, files of the site: {names}\n")
    if not (result.tables or result.changed or result.deleted):
        output.print_text(f"the name is in no table and in no state file: {arguments.user}\n")
    if not arguments.yes:
        output.print_text("dry run: nothing was changed; add --yes to change it\n")
    elif result.replaced is None:
        later = f"hold the name until `tachograph lake compact --vacuum-hours {hours}`"
        until = "were deleted" if arguments.now else later
        output.print_text(f"replaced objects {until}\n")
    elif result.replaced:
        output.print_text(
            f"{len(result.replaced):,} replaced files hold the name until they are deleted: by "
            f"a collector in {hours} "
            f"h, by `tachograph lake compact --vacuum-hours {hours}` then, "
            "or at once by --now when there are no readers\n"
        )
    else:
        output.print_text("no file of the lake contains the name as a word\n")
    if arguments.yes and stands and result.tables:
        output.print_text(f"the name is now {stands}\n")


def _print_files(verb: str, files: list[Path], would: str) -> None:
    for path in files[:_MOST_FILES]:
        output.print_text(f"{path}: {would}{verb}\n")
    if len(files) > _MOST_FILES:
        output.print_text(f"{len(files) - _MOST_FILES:,} more files {would}{verb}\n")
