"""Notifications to the service manager: ready, still alive, stopping."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemdNotifier:
    """Notifies the service manager, if any. `watchdog_s`: notification interval."""

    address: str = ""
    watchdog_s: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SystemdNotifier:
        """Return the notifier of $NOTIFY_SOCKET, at half the interval of $WATCHDOG_USEC."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = int(microseconds) / 2e6 if microseconds.isdigit() and ours else None
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog)

    def notify(self, *lines: str) -> None:
        """Send `lines`, such as READY=1. Failures to send are ignored."""
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(1.0)
                channel.sendto("\n".join(lines).encode(), address)
        except OSError:
            return


NO_NOTIFIER = SystemdNotifier()
