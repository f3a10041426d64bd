"""Viewers and the jobs they see; decided here only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import polars as pl


class Role(IntEnum):
    """Rights of a person, ascending; each role includes the ones before."""

    ANONYMOUS = 0  # sums over all jobs, without names
    USER = 1  # own jobs
    MANAGER = 2  # own jobs, and jobs of coordinated accounts
    SUPPORT = 3  # all jobs
    ADMIN = 4  # all jobs; writes labels, reads the state of the service

    @property
    def label(self) -> str:
        """The role in lower case, as configuration, tokens and pages have it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person or program, as identified for one request: `via` names how.

    accounts: coordinated by a manager. token: id of the identifying token; "" for a person.
    ambient: a browser sends the proof by itself, also with requests from other sites.
    """

    name: str
    role: Role
    accounts: frozenset[str] = frozenset()
    via: str = ""
    token: str = ""
    ambient: bool = False

    @property
    def sees_all(self) -> bool:
        """Whether every job is visible."""
        return self.role >= Role.SUPPORT

    @property
    def sees_server(self) -> bool:
        """Whether the viewer sees paths, hosts, addresses and error texts of the service."""
        return self.role >= Role.ADMIN

    @property
    def scope(self) -> str:
        """Text of the visible set; equal for viewers who see the same jobs."""
        if self.sees_all:
            return "all, and the server" if self.sees_server else "all"
        return "sums" if self.sums_only else "\0".join(("of", self.name, *sorted(self.coordinated)))

    @property
    def sums_only(self) -> bool:
        """Whether sums over all jobs, without names, are all that is visible."""
        return self.role < Role.USER

    @property
    def coordinated(self) -> frozenset[str]:
        """Accounts whose jobs are visible."""
        return self.accounts if self.role >= Role.MANAGER else frozenset()

    def visible(self) -> pl.Expr:
        """Return an expression: true for rows that this viewer may see, by `user` and `account`.

        >>> jobs = pl.DataFrame({"user": ["ann", "bob", None], "account": ["chem", "chem", None]})
        >>> jobs.filter(Viewer("ann", Role.USER).visible())["user"].to_list()
        ['ann']
        >>> jobs.filter(Viewer("eve", Role.MANAGER, frozenset({"chem"})).visible())["user"].to_list()
        ['ann', 'bob']
        """
        if self.sees_all:
            return pl.lit(value=True)
        if self.role < Role.USER or not self.name:
            return pl.lit(value=False)
        is_own = pl.col("user") == self.name
        return (is_own | pl.col("account").is_in(sorted(self.coordinated))).fill_null(value=False)


NOBODY = Viewer("", Role.ANONYMOUS)
