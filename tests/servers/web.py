"""`tachograph serve` in a process of its own, and clients that are logged in."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from servers.process import running

_LINK = re.compile(r"open (http://\S+|/\S+)")


@dataclass(frozen=True, slots=True)
class WebServer:
    """A running server: its process, the link that it printed, what it printed, the tokens of
    users by name.
    """

    process: subprocess.Popen[bytes]
    link: str
    log: Path
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Scheme, host and port."""
        return self.link.partition("/login")[0]

    @contextmanager
    def client(self) -> Iterator[httpx2.Client]:
        """Yield a client that the link logged in: an admin."""
        with httpx2.Client(base_url=self.address, follow_redirects=True, timeout=60) as client:
            client.get(self.link).raise_for_status()
            yield client


@contextmanager
def serving(
    folder: Path, *options: str, command: Sequence[str] = ("serve", "--listen", "127.0.0.1:0")
) -> Iterator[WebServer]:
    """Run `tachograph serve` in `folder`, whose configuration names a lake, for the time of the
    block.
    """
    log = folder / "serve.log"
    log.unlink(missing_ok=True)

    def link() -> str:
        found = _LINK.search(log.read_text(encoding="utf-8")) if log.exists() else None
        return found[1] if found else ""

    arguments = [sys.executable, "-m", "tachograph", *command, *options]
    with running(arguments, ready=lambda: bool(link()), log=log) as process:
        yield WebServer(process, link(), log)
