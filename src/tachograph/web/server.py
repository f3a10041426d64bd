"""The HTTP server: uvicorn on an address of this machine or a Unix socket."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from tachograph.catalog.errors import ConfigError
from tachograph.web.application import WebService, create_application
from tachograph.web.snapshot import ServedLake
from tachograph.web.viewer import Role, Viewer

DEFAULT_ADDRESS = "127.0.0.1:8265"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the server listens: host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    socket: str = ""

    @classmethod
    def at(cls, address: str) -> Listening:
        """Return what an address HOST:PORT names.

        >>> Listening.at("127.0.0.1:8265")
        Listening(host='127.0.0.1', port=8265, socket='')

        Errors: ConfigError for what is none.
        """
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit() and int(port) < 1 << 16):
            raise ConfigError(f"invalid address {address!r}", do=f"write HOST:PORT, such as {DEFAULT_ADDRESS}")
        return cls(host.strip("[]"), int(port))


def serve(served: ServedLake, listening: Listening, *, user: str, started: Callable[[str], None]) -> None:
    """Serve until a signal ends it. `started` is called with the link that opens the pages as `user`."""
    token = secrets.token_urlsafe(24)
    service = WebService(served, link_token=token, link_viewer=Viewer(user, Role.ADMIN, via="link"))
    where = {"uds": listening.socket} if listening.socket else {"host": listening.host, "port": listening.port}
    config = uvicorn.Config(
        create_application(service),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **where,
    )
    started(f"http://{listening.host}:{listening.port}/login?token={token}" if listening.host else listening.socket)
    uvicorn.Server(config).run()
