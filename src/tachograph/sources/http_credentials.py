"""Who asks a server, and whom it trusts: token, user and password, certificates, each in a file of its own."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tachograph.errors import ConfigError
from tachograph.sources.http_problems import AskError

Authorize = Callable[[str], Mapping[str, str]]  # a token -> the headers that show it


def bearer(token: str) -> Mapping[str, str]:
    """Return the header of a bearer token.

    >>> bearer("abc")
    {'Authorization': 'Bearer abc'}
    """
    return {"Authorization": f"Bearer {token}"}


@dataclass(slots=True)
class Secret:
    """A file that holds one line, read again when it changes: tokens may live for minutes only."""

    file: Path
    key: str
    _seen: tuple[int, int, int] | None = None
    _text: str = ""

    def text(self) -> str:
        """The secret as it is now. Errors: AskError naming key and file, never what is in it."""
        try:
            state = self.file.stat()
            stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
            if stamp != self._seen:
                self._text, self._seen = self.file.read_text(encoding="utf-8").strip(), stamp
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "no text"
            raise AskError(f"{self.key} cannot be read: {reason}", where=str(self.file), do="mend the file") from None
        if not self._text or not (self._text.isascii() and self._text.isprintable()):
            said = "is empty" if not self._text else "holds more than one line of ASCII"
            raise AskError(f"{self.key} {said}", where=str(self.file), do="put it alone into the file")
        return self._text


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks: a token, or a user and a password, or nobody."""

    token: Secret | None = None
    user: str = ""
    password: Secret | None = None
    authorize: Authorize = bearer

    @classmethod
    def of(
        cls, *, token_file: str = "", user: str = "", password_file: str = "", authorize: Authorize = bearer
    ) -> Credentials:
        """Return those of the settings. Errors: ConfigError naming the key."""
        if token_file and password_file:
            raise ConfigError("token_file and password_file are both given", do="give one of them")
        if password_file and not user:
            raise ConfigError("password_file is given without user", do="add user")
        token = _secret(token_file, "token_file")
        return cls(token, user, _secret(password_file, "password_file"), authorize)

    def headers(self) -> Mapping[str, str]:
        """Return what is sent along, with the secrets as they are now. Errors: AskError naming the key."""
        if self.token is not None:
            return self.authorize(self.token.text())
        if self.password is not None:
            both = f"{self.user}:{self.password.text()}"
            return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}
        return {}


def _secret(file: str, key: str) -> Secret | None:
    if not file:
        return None
    if not Path(file).is_file():
        raise ConfigError(f"{key} is no file", where=file, do="name a file that holds nothing else")
    return Secret(Path(file), key)


@cache  # each takes 50 ms and 1 MB, and a cluster has a thousand servers
def certificates(ca_file: str) -> ssl.SSLContext:
    """Return whom to trust: the authorities of `ca_file`, or the system's where it is empty. Errors: ConfigError."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as problem:  # ssl.SSLError is one
        reason = "no certificates in it" if isinstance(problem, ssl.SSLError) else problem.strerror
        what = f"ca_file cannot be read: {reason}"
        raise ConfigError(what, where=ca_file, do="name a PEM file of certificates") from None
