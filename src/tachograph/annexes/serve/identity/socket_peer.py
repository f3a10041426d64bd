"""The peer of a connection: its address, and its user on a Unix socket."""

from __future__ import annotations

import ipaddress
import pwd
import socket
import struct
from asyncio.trsock import TransportSocket
from dataclasses import dataclass

from starlette.requests import Request

PEER = "peer"  # key in the state of a request
UNIX = "unix"
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """Peer of a connection: its address (`unix` for a socket), and a socket peer's user."""

    address: str
    user: str = ""

    @property
    def is_unix(self) -> bool:
        """Whether it connected by a Unix socket."""
        return self.address == UNIX


def peer_of(connection: TransportSocket | socket.socket, remote: tuple[str, int] | None) -> Peer:
    """Return the peer of a connection, for a Unix socket with the user from the kernel."""
    if connection.family == socket.AF_UNIX:
        _, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        return Peer(UNIX, _user(uid))
    return Peer("" if remote is None else _plain(remote[0]))


def _plain(written: str) -> str:
    """Return an address without zone, IPv4-mapped ones as IPv4."""
    address = ipaddress.ip_address(written.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def peer(request: Request) -> Peer:
    """Return the other end of a request's connection."""
    known: object = request.scope.get("state", {}).get(PEER)
    if isinstance(known, Peer):
        return known
    return Peer(request.client.host if request.client else "")
