"""Proof of a sender: name, method, role limit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from tachograph.api.viewer import Role
from tachograph.catalog.errors import TachographError

_LONGEST_NAME = 256  # of a user: Linux allows 32, directories more


class NotIdentifiedError(TachographError):
    """A proof is wrong or has expired: answered with 401."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The user of a request. `role`: of token or start link; None: as configured.

    ambient: a browser sends this proof with every request, also with those from other sites, so
    changes must come from a page of this service. token: id of the token, "" without one. ends:
    seconds since 1970; None: no end.
    """

    name: str
    via: str
    role: Role | None = None
    ambient: bool = False
    token: str = ""
    ends: float | None = None


class Proof(Protocol):
    """A method to identify requests."""

    def of(self, request: Request) -> Proven | None:
        """Return the identity of a request; None without this kind of proof.

        Errors: NotIdentifiedError for a proof that is wrong: then no other way is tried.
        """
        ...


def is_user_name(name: str) -> bool:
    """Return whether a text can be the name of a user.

    >>> is_user_name("ann"), is_user_name("a b"), is_user_name("")
    (True, False, False)
    """
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and " " not in name


def proven_name(name: object, via: str) -> str:
    """Return the proven user name. Errors: NotIdentifiedError if it is invalid."""
    if isinstance(name, str) and is_user_name(name):
        return name
    raise NotIdentifiedError(
        f"{via} names no user", do="contact the administrators of this service"
    )


def hashed(secret: str) -> str:
    """Return the SHA-256 of a cookie or token: with 256 random bits, no slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
