"""The groups of a user, as the system knows them."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from typing import TypeAlias

Groups: TypeAlias = Callable[[str], frozenset[str]]


def system_groups(user: str) -> frozenset[str]:
    """Return the names of the groups of a user, also those of a directory that the system is connected to.

    >>> system_groups("no such user")
    frozenset()
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return frozenset()
    return frozenset(name for gid in os.getgrouplist(user, entry.pw_gid) if (name := _group_name(gid)))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""
