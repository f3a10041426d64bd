"""Who gets no digests: the list of users, and the signed links by which they opt out."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tachograph.catalog.config import Configuration, read_secret
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import ConfigError

OPT_OUT_FILE = "digest-opt-out"  # in the folder of state: users who get no digest, one a line
LEAST_KEY = 32  # bytes
_PURPOSE = b"tachograph digest opt-out 1\0"
_LONGEST = 1000  # characters of a token


@dataclass(frozen=True, slots=True)
class Unsubscribing:
    """Opt-out without login: key of the tokens, address of the served pages, folder of state."""

    path: ClassVar[str] = "/unsubscribe"
    key: bytes = field(repr=False)
    url: str
    folder: Path

    @classmethod
    def of(cls, configuration: Configuration, folder: Path) -> Unsubscribing | None:
        """Return the signer; None without a key.

        Errors: ConfigError if the key is too short, or others can read it.
        """
        file = configuration.act.unsubscribe_key_file
        if not file:
            return None
        key = read_secret(file, "act.unsubscribe_key_file").strip()
        if len(key) < LEAST_KEY:
            what = f"act.unsubscribe_key_file: fewer than {LEAST_KEY} bytes"
            raise ConfigError(what, where=file, do="write one with `openssl rand -hex 32`")
        return cls(key, configuration.serve.url, folder)

    def link(self, user: str) -> str:
        """Return the link of a user; "" if `serve.url` is not an absolute URL."""
        if "://" not in self.url:
            return ""
        return f"{self.url.rstrip('/')}{self.path}?token={self.token(user)}"

    def token(self, user: str) -> str:
        """Return the token of a user: the name and its signature.

        >>> one = Unsubscribing(b"k" * 32, "", Path("state"))
        >>> one.user(one.token("ann")), one.user(one.token("ann")[:-1]), one.user("ann")
        ('ann', None, None)
        """
        name = base64.urlsafe_b64encode(user.encode("utf-8", "surrogatepass")).decode().rstrip("=")
        return f"{name}.{self._signature(name)}"

    def user(self, token: str) -> str | None:
        """Return the user of a token; None if another key made it."""
        name, _, signature = token.partition(".")
        if (
            len(token) > _LONGEST
            or not token.isascii()
            or not hmac.compare_digest(signature, self._signature(name))
        ):
            return None
        return base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode(
            "utf-8", "surrogatepass"
        )

    def opt_out(self, user: str) -> None:
        """Record that a user opts out. Errors: those of `change_opt_out`."""
        change_opt_out(self.folder / OPT_OUT_FILE, user, out=True)

    def _signature(self, name: str) -> str:
        digest = hmac.new(self.key, _PURPOSE + name.encode("ascii"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


opt_out_links = Unsubscribing.of  # as served pages take it


def read_opt_out(file: Path) -> frozenset[str]:
    """Return the users in a file, one per line; none without a file.

    Errors: ConfigError, and nothing is sent.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not a text file"
        raise ConfigError(
            f"the list of users without digests cannot be read: {reason}", where=str(file)
        ) from None
    return frozenset(line.strip() for line in lines if line.strip())


def change_opt_out(file: Path, user: str, *, out: bool) -> None:
    """Add or remove a user in the file, under a lock; readers see the old file or the new one.

    Errors: ConfigError.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = file.with_name(f".{file.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            users = read_opt_out(file)
            changed = users | {user} if out else users - {user}
            if changed != users:
                content = "".join(f"{name}\n" for name in sorted(changed))
                replace_file(file, content.encode(), mode=0o644)
    except OSError as problem:
        raise ConfigError(
            f"the list of users without digests cannot be written: {problem.strerror}",
            where=str(file),
        ) from None
