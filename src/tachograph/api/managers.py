"""Account coordinators, from Slurm's accounting or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from tachograph.catalog.config import ServeOptions
from tachograph.catalog.errors import ConfigError
from tachograph.sources.slurm.commands import SiteProgram

Coordinated: TypeAlias = Mapping[str, frozenset[str]]  # {user: accounts}

SACCTMGR = "sacctmgr"
_TIMEOUT_S = 20.0


def managers_of(options: ServeOptions) -> Callable[[], Coordinated]:
    """Return a function that reads the coordinators of accounts.

    It raises ConfigError for a file that cannot be read, InputError where Slurm's accounting does
    not answer.
    """
    if not options.managers:
        return dict
    if options.managers == SACCTMGR:
        return lambda: read_coordinators(SiteProgram((SACCTMGR,), timeout_s=_TIMEOUT_S))
    return lambda: read_managers(Path(options.managers))


def read_coordinators(sacctmgr: SiteProgram) -> Coordinated:
    """Return {user: accounts} from Slurm's accounting."""
    printed = sacctmgr.output(
        "-nP", "show", "account", "withcoordinator", "format=Account,Coordinators"
    )
    return parse_coordinators(printed.decode("utf-8", "replace"))


def parse_coordinators(printed: str) -> Coordinated:
    """Return {user: accounts} of lines `account|user,user`.

    >>> sorted(parse_coordinators("chem|ann,bob\\nphys|ann\\nbio|\\n")["ann"])
    ['chem', 'phys']
    """
    pairs = [line.partition("|")[::2] for line in printed.splitlines()]
    return _by_user((user, account) for account, users in pairs for user in users.split(","))


def read_managers(file: Path) -> Coordinated:
    """Return {user: accounts} read from lines `user account,account`; `#` begins a comment.

    Errors: ConfigError for a file that cannot be read, or has other lines.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not a text file"
        raise ConfigError(
            f"serve.managers cannot be read: {reason}",
            where=str(file),
            do="name a file, or sacctmgr",
        ) from None
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if len(words) not in (0, 2):
            raise ConfigError(
                "not a line of user and accounts",
                where=f"{file}:{number}",
                do="write `user account,account`",
            )
        pairs += [(words[0], account) for account in words[1].split(",")] if words else []
    return _by_user(pairs)


def _by_user(pairs: Iterable[tuple[str, str]]) -> Coordinated:
    accounts_of: dict[str, set[str]] = {}
    for user, account in pairs:
        if user and account:
            accounts_of.setdefault(user, set()).add(account)
    return {user: frozenset(accounts) for user, accounts in accounts_of.items()}
