"""The HTTP server: uvicorn on an address of this machine or a Unix socket."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn

from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.identity.identities import NO_LINK, StartLink
from tachograph.annexes.serve.identity.safety import check_safe
from tachograph.annexes.serve.identity.sessions import COOKIE
from tachograph.annexes.serve.protocol import HELD_S, Connections, GuardedProtocol
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.catalog.config import UNIX_SOCKET, ServeOptions
from tachograph.catalog.errors import ConfigError, ListenError
from tachograph.collect.systemd import NO_NOTIFIER, SystemdNotifier

DEFAULT_ADDRESS = "127.0.0.1:8265"
_BACKLOG = 512
_MOST_CONNECTIONS = 900  # below the usual limit of open files
_ANSWERS_UNREAD = 4  # answers of the largest size that may lie in memory while they are read
_STOP_S = 10  # requests that still run when a signal came


@dataclass(frozen=True, slots=True)
class Listening:
    """Address of the server: host and port (0: a free one), or a Unix socket path."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def at(cls, address: str) -> Listening:
        """Return the parts of HOST:PORT, or the path of `unix:PATH`.

        >>> Listening.at("127.0.0.1:8265")
        Listening(host='127.0.0.1', port=8265, path='')
        >>> Listening.at("unix:/run/serve.sock").path
        '/run/serve.sock'

        Errors: ConfigError for what is none.
        """
        path = address.removeprefix(UNIX_SOCKET)
        if path and path != address:
            return cls(path=path)
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and int(port) < 1 << 16):
            raise ConfigError(
                f"invalid address {address!r}",
                do=f"write HOST:PORT, such as {DEFAULT_ADDRESS}, or {UNIX_SOCKET}PATH",
            )
        return cls(host.strip("[]"), int(port))

    @contextlib.contextmanager
    def bound(self) -> Iterator[socket.socket]:
        """Yield a socket that is bound there; the file of a Unix socket is removed afterwards.

        Errors: ListenError where another process listens there, or it is not permitted.
        """
        try:
            bound = self._bind()
        except OSError as problem:
            where = self.path or f"{self.host}:{self.port}"
            raise ListenError(
                f"cannot listen: {problem.strerror or problem}",
                where=where,
                do="choose another with --port, --listen or --socket",
            ) from None
        try:
            yield bound
        finally:
            bound.close()
            if self.path:
                Path(self.path).unlink(missing_ok=True)

    def _bind(self) -> socket.socket:
        if self.path:
            _remove_stale(Path(self.path))
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(self.path)
            Path(self.path).chmod(0o666)  # whoever connects is identified by the system
            return bound
        family, kind, protocol, _, address = socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        )[0]
        # Where it is named, small answers are not held back (TCP_NODELAY).
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound


def _remove_stale(path: Path) -> None:
    """Remove the socket of a killed server. Errors: OSError if a server still listens on it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(0, "a file that is not a socket is there")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            else:
                raise FileExistsError(0, "another process listens there")


class _Server(uvicorn.Server):
    """A server with two callbacks: once it accepts connections; before it drains at its end."""

    def __init__(
        self, config: uvicorn.Config, accepting: Callable[[], None], ending: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._accepting, self._ending = accepting, ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._accepting()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)


def serve(
    served: ServedLake,
    listening: Listening,
    *,
    user: str,
    started: Callable[[str], None],
    notifier: SystemdNotifier = NO_NOTIFIER,
) -> None:
    """Serve until a signal. `started` receives the address, or a link for `user`.

    Errors: ConfigError where it cannot listen, or the configuration is unsafe.
    """
    options = served.configuration.serve
    check_safe(options, host=listening.host)
    with listening.bound() as bound, _signals_end_it():
        link = StartLink(secrets.token_urlsafe(24), user) if options.start_link else NO_LINK
        service = WebService.of(served, link=link, cookie=_cookie(options, bound))
        service = replace(service, alive=lambda: notifier.notify("WATCHDOG=1"), held_s=HELD_S)
        connections = Connections(
            options.connections,
            most_unread=_ANSWERS_UNREAD * options.answer_mib << 20,
            is_proxy=service.identities.proxies.covers,
        )
        config = uvicorn.Config(
            create_application(service),
            loop="asyncio",
            http=type(
                "LimitedProtocol",
                (GuardedProtocol,),
                {"slow_s": options.slow_s, "limits": connections},
            ),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_S,
        )

        def accepting() -> None:
            served.warm()
            notifier.notify("READY=1")
            started(_link(listening, bound, options, link))

        _Server(config, accepting, served.close).run(sockets=[bound])
        notifier.notify("STOPPING=1")


def _cookie(options: ServeOptions, bound: socket.socket) -> str:
    """Return the session cookie's name, which differs by port: cookies ignore ports."""
    if options.url or bound.family == socket.AF_UNIX:
        return COOKIE
    return f"{COOKIE}_{bound.getsockname()[1]}"


def _link(
    listening: Listening, bound: socket.socket, options: ServeOptions, link: StartLink
) -> str:
    """URL of the pages; with a link, the URL that logs in."""
    if listening.path and not options.url.startswith("http"):
        return listening.path
    address = options.url.rstrip("/")
    if not address.startswith("http"):
        host = f"[{listening.host}]" if ":" in listening.host else listening.host
        address = f"http://{host}:{bound.getsockname()[1]}{address}"
    return f"{address}/login?token={link.token}" if link.token else address


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """The server handles signals, and raises them again once it has ended: that is no error."""
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
