"""Whom the system names: the process at the other end of a Unix socket, or of a connection within this machine."""

from __future__ import annotations

import ipaddress
import pwd
import socket
import struct
from asyncio.trsock import TransportSocket
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

PEER = "peer"  # key in the state of a request
UNIX = "unix"
_CREDENTIALS = struct.Struct("3i")
_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection: its address (`unix` for a socket), and the user of its process; "": not known."""

    address: str
    user: str = ""

    @property
    def is_unix(self) -> bool:
        """Whether it connected by a Unix socket."""
        return self.address == UNIX


def peer_of(connection: TransportSocket | socket.socket, remote: tuple[str, int] | None) -> Peer:
    """Return the other end of a connection; the user also of one from this machine, where Linux names it."""
    if connection.family == socket.AF_UNIX:
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(UNIX, _user(uid))
    if remote is None:
        return Peer("")
    address = ipaddress.ip_address(remote[0].partition("%")[0])
    plain = getattr(address, "ipv4_mapped", None) or address
    if not plain.is_loopback:
        return Peer(str(plain))
    return Peer(str(plain), _owner(address.version, remote[1], connection.getsockname()[1]))


def _owner(version: int, port: int, own_port: int) -> str:
    """The user whose process has the connection from `port` to `own_port` of this machine, as Linux lists it."""
    try:
        lines = _TABLES[version].read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return ""
    for line in lines:
        _, local, remote, state, *rest = line.split()
        ends = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
        if ends == (port, own_port) and state == "01":
            return _user(int(rest[3]))
    return ""


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
