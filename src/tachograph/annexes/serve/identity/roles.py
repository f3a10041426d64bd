"""The role of a name: from the configuration, from groups, from the coordinators of accounts."""

from __future__ import annotations

import grp
import os
import pwd
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias, TypeVar

from tachograph.annexes.serve.identity.proof import Proven
from tachograph.api.managers import Coordinated, managers_of
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.config import ServeOptions
from tachograph.catalog.errors import TachographError

T = TypeVar("T")
Groups: TypeAlias = Callable[[str], frozenset[str]]
KEPT_S = 60.0  # so long a role counts before groups and coordinators are read again
# So long after an error it is not tried again: requests would wait for it one after the other.
AGAIN_S = 10.0
_MOST_NAMES = 10_000


def system_groups(user: str) -> frozenset[str]:
    """Return the names of a user's groups, including those of a directory service.

    >>> system_groups("no such user")
    frozenset()
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return frozenset()
    return frozenset(filter(None, map(_group_name, os.getgrouplist(user, entry.pw_gid))))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


@dataclass(slots=True)
class Roles:
    """Roles of users."""

    options: ServeOptions
    groups: Groups
    managers: Callable[[], Coordinated]
    clock: Callable[[], float] = monotonic
    _known: dict[str, tuple[float, Role, frozenset[str]]] = field(default_factory=dict)
    _coordinated: tuple[float, Coordinated] | None = None
    _failed: dict[str, tuple[float, TachographError]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, options: ServeOptions) -> Roles:
        """Return the roles that are configured. Errors: ConfigError."""
        managers = managers_of(options)
        if options.managers not in ("", "sacctmgr"):
            managers()  # a file with a mistake is reported at the start
        return cls(options, system_groups, managers)

    def viewer(self, proven: Proven) -> Viewer:
        """Return the rights of a proven name.

        Errors: InputError, ConfigError where groups or coordinators cannot be read: no role is
        guessed.
        """
        role, accounts = proven.role, frozenset[str]()
        if role is None:
            role, accounts = self._of(proven.name)
        elif role == Role.MANAGER:
            accounts = self._accounts(proven.name)
        return Viewer(
            proven.name, role, accounts, via=proven.via, token=proven.token, ambient=proven.ambient
        )

    def _of(self, name: str) -> tuple[Role, frozenset[str]]:
        now = self.clock()
        remembered = self._known.get(name)
        if remembered is not None and now - remembered[0] < KEPT_S:
            return remembered[1:]
        role, accounts = self._read(name)
        if len(self._known) >= _MOST_NAMES:
            self._known.clear()
        self._known[name] = (now, role, accounts)
        return role, accounts

    def _read(self, name: str) -> tuple[Role, frozenset[str]]:
        options = self.options
        if name in options.admin_users:
            return Role.ADMIN, frozenset()
        groups = frozenset[str]()
        if options.admin_groups or options.support_groups:
            groups = self._tried(f"groups of {name}", lambda: self.groups(name))
        if groups.intersection(options.admin_groups):
            return Role.ADMIN, frozenset()
        if name in options.support_users or groups.intersection(options.support_groups):
            return Role.SUPPORT, frozenset()
        accounts = self._accounts(name)
        return (Role.MANAGER if accounts else Role.USER), accounts

    def _tried(self, what: str, read: Callable[[], T]) -> T:
        """Return `read()`; after an error, repeat that error for a while."""
        failed = self._failed.get(what)
        if failed is not None and self.clock() - failed[0] < AGAIN_S:
            raise failed[1].with_traceback(None)
        try:
            return read()
        except TachographError as problem:
            if len(self._failed) >= _MOST_NAMES:
                self._failed.clear()
            self._failed[what] = (self.clock(), problem)
            raise

    def _accounts(self, name: str) -> frozenset[str]:
        with self._lock:
            now = self.clock()
            if self._coordinated is None or now - self._coordinated[0] >= KEPT_S:
                self._coordinated = (now, self._tried("coordinators", self.managers))
            return self._coordinated[1].get(name, frozenset())
