"""Tokens of programs, stored as hashes in a file and sent as `Bearer`."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from starlette.requests import Request

from tachograph.annexes.serve.identity.proof import NotIdentifiedError, Proven, hashed, is_user_name
from tachograph.api.viewer import Role
from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import ConfigError, NotFoundError, UsageError

PREFIX = "tacho_"
_PERMITTED = 0o077  # bits of the mode that the file must not have
WRONG = NotIdentifiedError(
    "the token is not known, was revoked or has expired", do="create another one"
)


Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class StoredToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stored token: id, SHA-256, user, role, start and expiry."""

    id: str
    sha256: str
    user: str
    role: str
    created: Moment
    expires: Moment


class _TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[StoredToken, ...] = ()


def create_token(
    file: Path, *, user: str, role: Role, expires: datetime
) -> tuple[str, StoredToken]:
    """Add a token to the file (mode 0600) and return it; only its hash is stored.

    Errors: ConfigError where the file cannot be written, or others may read it; UsageError for no
    user name.
    """
    if not is_user_name(user):
        raise UsageError(f"--user: {user!r} is no name of a user", do="give one without spaces")
    token = PREFIX + secrets.token_urlsafe(32)
    now = datetime.now(UTC).replace(microsecond=0)
    stored = StoredToken(secrets.token_hex(4), hashed(token), user, role.label, now, expires)
    with _changing(file) as entries:
        entries.append(stored)
    return token, stored


def revoke_token(file: Path, token_id: str) -> StoredToken:
    """Remove a token from the file; return it.

    Errors: NotFoundError for an unknown id; ConfigError.
    """
    with _changing(file) as stored:
        revoked = next((entry for entry in stored if entry.id == token_id), None)
        if revoked is None:
            raise NotFoundError(
                f"no token {token_id!r}", where=str(file), do="see `tachograph serve token list`"
            )
        stored.remove(revoked)
    return revoked


def read_tokens(file: Path) -> Sequence[StoredToken]:
    """Return the tokens of a file; empty if there is no file.

    Errors: ConfigError where it cannot be read, is no such file, or others may read or write it.
    """
    try:
        mode = file.stat().st_mode
        content = file.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as problem:
        raise ConfigError(
            f"serve.token_file cannot be read: {problem.strerror}",
            where=str(file),
            do="name another file",
        ) from None
    if mode & _PERMITTED:
        what = f"the token file has mode {mode & 0o777:04o}: others may read or write it"
        raise ConfigError(what, where=str(file), do=f"chmod 600 {file}")
    try:
        return msgspec.json.decode(content or b"{}", type=_TokenFile).tokens
    except msgspec.DecodeError as problem:
        raise ConfigError(
            f"it is not a token file: {problem}", where=str(file), do="name another file"
        ) from None


@contextmanager
def _changing(file: Path) -> Iterator[list[StoredToken]]:
    """The tokens of a file, written anew as a whole at the end; one process at a time."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(
            file.with_name(f".{file.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = list(read_tokens(file))
            yield stored
            with os.fdopen(
                os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
            ) as stream:
                stream.write(
                    msgspec.json.format(msgspec.json.encode(_TokenFile(tuple(stored)))) + b"\n"
                )
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(file)
            sync_folder(file.parent)
        finally:
            fresh.unlink(missing_ok=True)
            os.close(lock)
    except OSError as problem:
        what = f"the token file cannot be written: {problem.strerror}"
        raise ConfigError(what, where=str(file), do="name another with serve.token_file") from None


def bearer_of(request: Request) -> str | None:
    """Return the token of `Authorization: Bearer`; None without one."""
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    return sent.strip() if scheme.lower() == "bearer" else None


@dataclass(slots=True)
class BearerTokens:
    """The tokens of the file, read again when it changes."""

    file: Path
    clock: Callable[[], float] = time.time
    _read: tuple[tuple[int, int, int], dict[str, StoredToken]] | None = field(default=None)

    def check(self) -> None:
        """Check that the file can be read. Errors: ConfigError."""
        self._tokens()

    def of(self, request: Request) -> Proven | None:
        """Return the user of the request's token. Errors: NotIdentifiedError if it is invalid."""
        sent = bearer_of(request)
        return self.proven(sent) if sent is not None and sent.startswith(PREFIX) else None

    def proven(self, sent: str) -> Proven:
        """Return the user of a token. Errors: NotIdentifiedError; those of `read_tokens`."""
        entry = self._tokens().get(hashed(sent))
        role = None if entry is None else Role.__members__.get(entry.role.upper())
        if entry is None or role is None or entry.expires.timestamp() <= self.clock():
            raise WRONG
        return Proven(entry.user, "token", role, token=entry.id, ends=entry.expires.timestamp())

    def still(self, proven: Proven) -> bool:
        """Whether the token that a session began with is still valid."""
        return any(token.id == proven.token for token in self._tokens().values())

    def _tokens(self) -> dict[str, StoredToken]:
        try:
            facts = self.file.stat()
            state = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        except OSError:
            state = (0, 0, 0)
        if self._read is None or self._read[0] != state:
            self._read = (state, {token.sha256: token for token in read_tokens(self.file)})
        return self._read[1]
