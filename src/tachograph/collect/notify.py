"""What systemd wants to know of a service: ready, alive, stopping (the protocol of sd_notify(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notifier:
    """Tells the service manager; where there is none it tells nobody. `watchdog_s`: how often it wants to hear."""

    address: str = ""
    watchdog_s: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Notifier:
        """Return the one that $NOTIFY_SOCKET and $WATCHDOG_USEC ask for; half the watchdog's patience."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = int(microseconds) / 2e6 if microseconds.isdigit() and ours else None
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog)

    def tell(self, *lines: str) -> None:
        """Send `lines`, such as READY=1. A manager that does not listen is no reason to fail."""
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(1.0)
                channel.sendto("\n".join(lines).encode(), address)
        except OSError:
            return


NOBODY = Notifier()
