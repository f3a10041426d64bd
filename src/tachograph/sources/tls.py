"""TLS contexts: whom to trust, and our own certificate."""

from __future__ import annotations

import ssl
from functools import cache

from tachograph.catalog.errors import ConfigError


@cache  # each takes 50 ms and 1 MB, and a cluster has a thousand servers
def certificates(ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Return the TLS context with `ca_file` (empty: system authorities) and our certificate.

    The files are read once. Errors: ConfigError naming the key.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as problem:  # ssl.SSLError is one
        reason = "no certificates in it" if isinstance(problem, ssl.SSLError) else problem.strerror
        what = f"ca_file cannot be read: {reason}"
        raise ConfigError(what, where=ca_file, do="name a PEM file of certificates") from None
    if key_file and not cert_file:
        raise ConfigError("key_file is given without cert_file", do="add cert_file")
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file or None, password=_no_passphrase)
        except (OSError, ValueError) as problem:
            what = f"cert_file and key_file cannot be used: {_why(problem)}"
            raise ConfigError(
                what,
                where=key_file or cert_file,
                do="name PEM files of one pair, the key without a passphrase",
            ) from None
    return context


def _no_passphrase() -> bytes:
    """OpenSSL would ask the terminal."""
    raise ValueError("the key has a passphrase")


def _why(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "they do not match").replace("_", " ").lower()
    return problem.strerror or str(problem) if isinstance(problem, OSError) else str(problem)
