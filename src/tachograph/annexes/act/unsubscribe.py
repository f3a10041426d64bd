"""Signed links by which users opt out of digests without login."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field

from tachograph.catalog.config import Configuration, read_secret
from tachograph.catalog.errors import ConfigError

PATH = "/unsubscribe"
LEAST_KEY = 32  # bytes
_PURPOSE = b"tachograph digest opt-out 1\0"
_LONGEST = 1000  # characters of a token


@dataclass(frozen=True, slots=True)
class Unsubscribing:
    """The key, and the address of the served pages."""

    key: bytes = field(repr=False)
    url: str = ""

    @classmethod
    def of(cls, configuration: Configuration) -> Unsubscribing | None:
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
        return cls(key, configuration.serve.url)

    def link(self, user: str) -> str:
        """Return the link of a user; "" if `serve.url` is not an absolute URL."""
        return f"{self.url.rstrip('/')}{PATH}?token={self.token(user)}" if "://" in self.url else ""

    def token(self, user: str) -> str:
        """Return the token of a user: the name and its signature.

        >>> one = Unsubscribing(b"k" * 32)
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

    def _signature(self, name: str) -> str:
        made = hmac.new(self.key, _PURPOSE + name.encode("ascii"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode().rstrip("=")
