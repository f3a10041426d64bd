"""Whom the system names: the process at the other end of a Unix socket, or of a connection within this machine."""

from __future__ import annotations

import ipaddress
import pwd
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from starlette.requests import Request

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

PEER = "peer"  # key in the state of a request
UNIX = "unix"
_CREDENTIALS = struct.Struct("3i")
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


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
    address, own = _plain(remote[0]), connection.getsockname()
    if not address.is_loopback:
        return Peer(str(address))
    ends = _written(address, remote[1]), _written(_plain(own[0]), own[1])
    for table in _TABLES:
        try:
            user = owner_of(table.read_text(encoding="ascii"), *ends)
        except OSError:
            continue
        if user is not None:
            return Peer(str(address), _user(user))
    return Peer(str(address))


def owner_of(table: str, ends: Collection[str], own_ends: Collection[str]) -> int | None:
    """Return the user whose process has the connection from one end to the other, as a table of Linux lists it.

    Ends are addresses with ports, each in all the ways in which it may be listed: two connections can have the same
    ports, and other addresses. None: it is not listed.
    """
    for line in table.splitlines()[1:]:
        _, local, remote, state, *rest = line.split()
        if local in ends and remote in own_ends and state == _ESTABLISHED:
            return int(rest[3])
    return None


def _plain(address: str) -> IpAddress:
    """An address without its zone; one of IPv4 also where it is written as one of IPv6."""
    written = ipaddress.ip_address(address.partition("%")[0])
    return getattr(written, "ipv4_mapped", None) or written


def _written(address: IpAddress, port: int) -> tuple[str, ...]:
    """An end of a connection as Linux lists it: of IPv4 also as an address of IPv6."""
    ways = [address.packed]
    if address.version == 4:
        ways.append(ipaddress.IPv6Address(f"::ffff:{address}").packed)
    return tuple(f"{_in_words(way)}:{port:04X}" for way in ways)


def _in_words(packed: bytes) -> str:
    """Bytes as words of 32 bits in the order of this machine."""
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words)


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
