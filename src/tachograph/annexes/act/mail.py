"""Mail by SMTP: text and HTML, marked as automatic, with an id derived from the action."""

from __future__ import annotations

import hashlib
import re
import smtplib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

from tachograph.catalog.config import MailOptions, read_secret
from tachograph.catalog.errors import ConfigError, ExportError
from tachograph.catalog.units import printable

_PORTS = {"tls": 465, "starttls": 587, "none": 25}
TIMEOUT_S = 30.0  # of each answer of the server
_ADDRESS = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?",
    re.ASCII,
)
# RFC 5322's longest line: a longer address in List-Unsubscribe would be encoded, and no mail
# program finds it
_POLICY = SMTP.clone(max_line_length=998)
_MOST_SUBJECT = 200  # characters


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail to one address. unsubscribe: URL that stops further mails."""

    to: str
    subject: str
    text: str
    html: str = ""
    unsubscribe: str = ""


@dataclass(frozen=True, slots=True)
class Mailer:
    """The mail server of a site, and the addresses of its users."""

    options: MailOptions
    host: str
    port: int
    addresses: Mapping[str, str]
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, options: MailOptions) -> Mailer:
        """Return the settings of `[mail]`; sends nothing. Errors: ConfigError naming the key."""
        if not options.host:
            raise ConfigError(
                "mail.host is empty: no mail can be sent", do="name the mail server of the site"
            )
        if not is_address(options.sender):
            raise ConfigError(
                f"mail.sender: {options.sender!r} is not an address",
                do="write tachograph@example.org",
            )
        host, port = _host_port(options)
        if options.address and not is_address(options.address.replace("{user}", "ann")):
            raise ConfigError(
                f"mail.address: {options.address!r} is not an address",
                do='write "{user}@example.org"',
            )
        password = ""
        if options.user:
            if options.tls == "none":
                raise ConfigError(
                    "mail.user: no password is sent without TLS", do='write tls = "starttls"'
                )
            password = read_secret_text(options.password_file, "mail.password_file")
        addresses = _read_addresses(Path(options.addresses)) if options.addresses else {}
        return cls(options, host, port, addresses, password)

    def address(self, user: str) -> str:
        """Return a user's address. Errors: ExportError without one."""
        address = self.addresses.get(user) or self.options.address.replace("{user}", user)
        if not is_address(address):
            raise ExportError(
                "no address of this user is known",
                where=printable(user),
                do="check mail.address and mail.addresses",
            )
        return address

    def message(self, mail: Mail, key: str) -> EmailMessage:
        """Return the mail for an action's key, identical at each call."""
        message = EmailMessage(policy=_POLICY)
        message["From"], message["To"] = self.options.sender, mail.to
        message["Subject"] = printable(mail.subject)[:_MOST_SUBJECT]
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        message["Message-ID"] = f"<{name}@{self.options.sender.partition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no holiday notices in return
        by_mail = f"<mailto:{self.options.sender}?subject=unsubscribe>"
        message["List-Unsubscribe"] = (
            f"<{mail.unsubscribe}>, {by_mail}" if mail.unsubscribe else by_mail
        )
        if mail.unsubscribe.startswith("https:"):
            # RFC 8058, which demands https.
            message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
        message.set_content(mail.text)
        if mail.html:
            message.add_alternative(mail.html, subtype="html")
        return message

    @contextmanager
    def connected(self) -> Iterator[MailConnection]:
        """Yield a connection for several mails. Errors: ExportError if it or the login fails."""
        where = f"{self.host}:{self.port}"
        try:
            server = self._connect()
        except OSError as problem:  # smtplib's errors are some
            raise ExportError(
                f"no connection to the mail server: {_reason(problem)}", where=where
            ) from None
        try:
            yield MailConnection(self, server)
        finally:
            server.close()

    def _connect(self) -> smtplib.SMTP:
        options = self.options
        if options.tls == "tls":
            context = ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self.host, self.port, timeout=TIMEOUT_S, context=context
            )
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)
        try:
            if options.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
            if options.user:
                server.login(options.user, self.password)
        except OSError:
            server.close()
            raise
        return server


@dataclass(slots=True)
class MailConnection:
    """A connection to the mail server. lost: it has ended, and further mails need another one."""

    mailer: Mailer
    server: smtplib.SMTP
    lost: bool = field(default=False, init=False)

    def send(self, mail: Mail, key: str) -> str:
        """Send a mail; return its id. Errors: ExportError if the server refuses it or is gone."""
        message = self.mailer.message(mail, key)
        try:
            self.server.send_message(message, self.mailer.options.sender, [mail.to])
        except smtplib.SMTPResponseException as problem:
            raise ExportError(
                f"the mail server refused it: {_reason(problem)}", where=mail.to
            ) from None
        except smtplib.SMTPRecipientsRefused as problem:
            reasons = (_answer(code, text) for code, text in problem.recipients.values())
            raise ExportError(
                f"the mail server refused the address: {'; '.join(reasons)}", where=mail.to
            ) from None
        except OSError as problem:
            self.lost = True
            raise ExportError(
                f"the connection was lost: {_reason(problem)}", where=mail.to
            ) from None
        return str(message["Message-ID"])


def read_secret_text(file: str, key: str) -> str:
    """Return the text of a file of a secret, without the line end. Errors: ConfigError."""
    return read_secret(file, key).decode("utf-8", "replace").strip()


def _host_port(options: MailOptions) -> tuple[str, int]:
    """Return host and port of `mail.host`. Errors: ConfigError for an invalid port."""
    parts = re.fullmatch(r"(\[[^\]]+\]|[^:]+):(.*)", options.host)
    if not parts:
        return options.host, _PORTS[options.tls]
    host, port = parts.groups()
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"mail.host: invalid port {port!r}", do="write HOST or HOST:PORT")
    return host.strip("[]"), int(port)


def is_address(written: str) -> bool:
    """Return whether it is an address that can be in a header unquoted.

    >>> is_address("ann@example.org"), is_address("ann@example.org, bob@example.org"), is_address("a\\nBcc: b@c")
    (True, False, False)
    """
    return _ADDRESS.fullmatch(written) is not None


def _read_addresses(file: Path) -> dict[str, str]:
    """{user: address} from lines `user address`; `#` begins a comment. Errors: ConfigError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not a text file"
        raise ConfigError(f"mail.addresses cannot be read: {reason}", where=str(file)) from None
    addresses = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words and (len(words) != 2 or not is_address(words[1])):
            raise ConfigError(
                "not a line of user and address",
                where=f"{file}:{number}",
                do="write `user address`",
            )
        if words:
            addresses[words[0]] = words[1]
    return addresses


def _reason(problem: OSError) -> str:
    if isinstance(problem, smtplib.SMTPResponseException):
        return _answer(problem.smtp_code, problem.smtp_error)
    return printable(problem.strerror or str(problem))


def _answer(code: int, text: bytes | str) -> str:
    return f"{code} {printable(text if isinstance(text, str) else text.decode('utf-8', 'replace'))}"
