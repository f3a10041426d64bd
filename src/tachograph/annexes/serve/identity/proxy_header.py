"""The user a connection names: a proxy's header, or the Unix socket's peer."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import Request

from tachograph.annexes.serve.identity.proof import NotIdentifiedError, Proven, proven_name
from tachograph.annexes.serve.identity.socket_peer import UNIX, Peer, peer
from tachograph.catalog.errors import ConfigError

_NO_ONE = ("", "(null)")  # the second is what Apache writes for a variable that is not set
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """A proxy: its network on another host, or None for the Unix socket and its process's user."""

    network: Network | None
    user: str = ""

    @classmethod
    def parse(cls, written: str) -> ProxyAddress:
        """Return the proxy that an entry of `serve.proxies` names.

        >>> ProxyAddress.parse("www-data@unix")
        ProxyAddress(network=None, user='www-data')

        Errors: ConfigError for what is none, and for an address of this machine: every user can
        connect from there.
        """
        user, _, address = written.rpartition("@")
        if address == UNIX:
            network = None
        else:
            try:
                network = ipaddress.ip_network(address)
            except ValueError:
                do = "write 10.0.0.5, 10.0.0.0/24 or www-data@unix"
                raise ConfigError(f"serve.proxies: invalid address {written!r}", do=do) from None
        if (network is None and not user) or (network is not None and network.is_loopback):
            what = f"serve.proxies: every user of this machine can connect as {written!r}"
            raise ConfigError(
                what, do="let the proxy connect by a Unix socket, and name its user: www-data@unix"
            )
        if user and network is not None:
            what = (
                f"serve.proxies: the user of a process on another machine is not known: {written!r}"
            )
            raise ConfigError(what, do=f"write {address!r}")
        if network is not None and network.prefixlen == 0:
            raise ConfigError(
                f"serve.proxies: {written!r} means every address",
                do="name only the address of the proxy",
            )
        return cls(network, user)

    def covers(self, other: Peer) -> bool:
        """Whether the other end of a connection is this proxy."""
        if self.network is None or other.is_unix:
            return self.network is None and other.is_unix and other.user == self.user
        try:
            return ipaddress.ip_address(other.address) in self.network
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    """The header in which proxies name users."""

    proxies: Sequence[ProxyAddress]
    header: str

    def covers(self, other: Peer) -> bool:
        """Whether the other end of a connection is a proxy."""
        return any(network.covers(other) for network in self.proxies)

    def is_from_proxy(self, request: Request) -> bool:
        """Whether the connection is from a proxy."""
        return self.covers(peer(request))

    def of(self, request: Request) -> Proven | None:
        """Return the user named by a proxy. Errors: NotIdentifiedError for a bad or second name."""
        if not self.is_from_proxy(request):
            return None
        named = request.headers.getlist(self.header)
        if all(name in _NO_ONE for name in named):
            return None
        if len(named) > 1:
            raise NotIdentifiedError(
                f"{self.header} twice", do="let the proxy set the header, not add to it"
            )
        return Proven(proven_name(named[0], self.header), "proxy", ambient=True)


@dataclass(frozen=True, slots=True)
class SocketPeers:
    """Users of this machine who connect by the Unix socket themselves, not through a proxy."""

    proxies: ProxyHeaders

    def of(self, request: Request) -> Proven | None:
        """Return the user of the process at the other end of the socket."""
        other = peer(request)
        if not (other.is_unix and other.user) or self.proxies.is_from_proxy(request):
            return None
        return Proven(other.user, "socket", ambient=True)
