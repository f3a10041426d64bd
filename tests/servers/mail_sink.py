"""A mail server that keeps what it gets, and a program that sends to it as `mail -s SUBJECT
USER` does.
"""

from __future__ import annotations

import base64
import socketserver
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_string
from email.message import Message
from pathlib import Path

_MAIL = """\
#!{python}
import smtplib, sys
from email.message import EmailMessage
message = EmailMessage()
message["Subject"], message["To"], message["From"] = sys.argv[2], sys.argv[3], "slurm@localhost"
message.set_content(sys.stdin.read())
with smtplib.SMTP("127.0.0.1", {port}) as server:
    server.send_message(message)
"""


@dataclass
class MailSink:
    """What came, oldest first. commands: of all connections, with whether they were encrypted."""

    port: int = 0
    messages: list[Message] = field(default_factory=list)
    commands: list[tuple[bool, str]] = field(default_factory=list)

    def program(self, file: Path) -> Path:
        """Write the program that sends, and return it."""
        file.write_text(_MAIL.format(python=sys.executable, port=self.port))
        file.chmod(0o755)
        return file


@contextmanager
def mail_sink(
    context: ssl.SSLContext | None = None,
    *,
    at_once: bool = False,
    login: str = "",
    offers: bool = True,
) -> Iterator[MailSink]:
    """A sink on a free port of the loopback interface.

    context: it takes mail by TLS alone, `at_once` or after STARTTLS, which it `offers`. login:
    `user password`.
    """
    sink = MailSink()
    proof = base64.b64encode(b"".join(b"\0" + word.encode() for word in login.split())).decode()

    class Handler(socketserver.StreamRequestHandler):
        encrypted = False

        def _encrypt(self) -> None:
            assert context is not None
            self.request = context.wrap_socket(self.request, server_side=True)
            self.setup()
            self.encrypted = True

        def handle(self) -> None:
            try:
                if at_once:
                    self._encrypt()
                self._talk()
            except (ssl.SSLError, ConnectionError):
                pass  # who refuses the certificate hangs up
            finally:
                if self.encrypted:
                    self.request.close()

        def _special(self, line: str) -> bool:
            """Answer a command of TLS or login."""
            if line.upper().startswith("EHLO") and (context or login):
                words = ["STARTTLS"] if context and offers and not self.encrypted else []
                words += ["AUTH PLAIN"] if login and (self.encrypted or not context) else []
                lines = ["sink", *words]
                ends = ["-"] * (len(lines) - 1) + [" "]
                self.wfile.write(
                    "".join(f"250{e}{w}\r\n" for e, w in zip(ends, lines, strict=True)).encode()
                )
            elif line.upper().startswith("STARTTLS"):
                self.wfile.write(b"220 go on\r\n")
                self._encrypt()
            elif line.upper().startswith("AUTH"):
                right = line.split()[-1] == proof
                self.wfile.write(b"235 well\r\n" if right else b"535 5.7.8 wrong password\r\n")
            else:
                return False
            return True

        def _talk(self) -> None:
            self.wfile.write(b"220 sink\r\n")
            while line := self.rfile.readline():
                sink.commands.append((self.encrypted, line.decode().strip()))
                if self._special(line.decode()):
                    continue
                if line.upper().startswith(b"DATA"):
                    self.wfile.write(b"354 go on\r\n")
                    lines = []
                    while (part := self.rfile.readline()) not in (b".\r\n", b""):
                        lines.append(part.decode().removesuffix("\r\n"))
                    sink.messages.append(message_from_string("\n".join(lines)))
                if line.upper().startswith(b"QUIT"):
                    self.wfile.write(b"221 bye\r\n")
                    return
                self.wfile.write(b"250 well\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        sink.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown()
            thread.join()
