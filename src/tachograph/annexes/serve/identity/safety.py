"""Refuses configurations in which someone could see too much."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from tachograph.catalog.config import ServeOptions
from tachograph.catalog.errors import ConfigError


def is_of_this_machine(host: str) -> bool:
    """Return whether only processes of this machine reach an address.

    >>> is_of_this_machine("127.0.0.1"), is_of_this_machine("::1"), is_of_this_machine("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_safe(options: ServeOptions, *, host: str) -> None:
    """Check a configuration for a server that listens on `host`, "" for a Unix socket.

    Errors: ConfigError naming the key, and what to do.
    """
    admins = (*options.admin_users, *options.admin_groups)
    for key, names in (
        ("admins", admins),
        ("support", (*options.support_users, *options.support_groups)),
    ):
        if any(not name.strip() or "*" in name for name in names):
            raise ConfigError(f"serve.{key} names everyone", do="name users or groups one by one")
    _check_url("url", options.url, schemes=("https", "http", ""))
    _check_url("oidc_issuer", options.oidc_issuer, schemes=("https",))
    if bool(options.oidc_issuer) != bool(options.oidc_client_id):
        raise ConfigError(
            "serve.oidc_issuer and serve.oidc_client_id belong together", do="give both"
        )
    if host and not is_of_this_machine(host) and not _has_identity(options):
        what = (
            f"{host} can be reached from other machines, and no way to prove an identity is "
            "configured"
        )
        do = (
            "listen on 127.0.0.1 or a socket, or set one of serve.token_file, proxies, "
            "oidc_issuer, slurm_jwt_key"
        )
        raise ConfigError(what, do=do)


def _has_identity(options: ServeOptions) -> bool:
    return bool(
        options.token_file or options.proxies or options.oidc_issuer or options.slurm_jwt_key
    )


def _check_url(key: str, written: str, *, schemes: tuple[str, ...]) -> None:
    """Check a URL: without TLS, traffic is readable, except on this machine."""
    if not written:
        return
    try:
        parts = urlsplit(written)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigError(
            f"serve.{key}: invalid address {written!r}", do="write https://host/path"
        ) from None
    plain = (
        written.isprintable()
        and not set(written) & set(" \"'<>\\")
        and not parts.query
        and not parts.fragment
    )
    if not plain or parts.username or parts.password or not (host or written[0] == "/"):
        raise ConfigError(f"serve.{key}: invalid address {written!r}", do="write https://host/path")
    if parts.scheme not in schemes and not (parts.scheme == "http" and is_of_this_machine(host)):
        allowed = " or ".join(f"{scheme}://" for scheme in schemes if scheme)
        raise ConfigError(
            f"serve.{key}: {parts.scheme or 'no scheme'}:// is not safe", do=f"write {allowed}"
        )
