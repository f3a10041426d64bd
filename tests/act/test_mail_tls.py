"""Mail over TLS with a login: what is trusted, what is refused, and that no secret goes over an
open line.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import trustme

from servers.mail_sink import mail_sink
from tachograph.annexes.act.mail import Mail, Mailer
from tachograph.catalog.config import MailOptions
from tachograph.catalog.errors import ExportError

PASSWORD = "very-secret"
MAIL = Mail("ann@example.org", "subject", "text")


@dataclass(frozen=True)
class Site:
    """An authority that is trusted, a server's context, and a file with the password."""

    folder: Path
    authority: trustme.CA

    def context(
        self, name: str = "127.0.0.1", authority: trustme.CA | None = None
    ) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (authority or self.authority).issue_cert(name).configure_cert(made)
        return made

    def mailer(
        self, port: int, tls: Literal["starttls", "tls"], password: str = PASSWORD
    ) -> Mailer:
        file = self.folder / "password"
        file.write_text(f"{password}\n")
        file.chmod(0o600)
        options = MailOptions(
            f"127.0.0.1:{port}", tls, user="gpu", password_file=str(file), sender="gpu@example.org"
        )
        return Mailer.of(options)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The authority is in the system's store of this test."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return Site(tmp_path, authority)


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_mail_comes_encrypted_after_a_login(site: Site, tls: Literal["starttls", "tls"]) -> None:
    with mail_sink(site.context(), at_once=tls == "tls", login=f"gpu {PASSWORD}") as sink:
        with site.mailer(sink.port, tls).connected() as connection:
            connection.send(MAIL, "key")
        (message,) = sink.messages
        assert message["To"] == "ann@example.org"
        secret = [
            (encrypted, line)
            for encrypted, line in sink.commands
            if line.upper().startswith(("AUTH", "MAIL", "RCPT"))
        ]
        assert len(secret) == 3
        assert all(encrypted for encrypted, _ in secret)


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_a_wrong_certificate_is_refused_before_the_login(
    site: Site, tls: Literal["starttls", "tls"], wrong: str
) -> None:
    context = (
        site.context("other.example.org")
        if wrong == "name"
        else site.context(authority=trustme.CA())
    )
    with mail_sink(context, at_once=tls == "tls", login=f"gpu {PASSWORD}") as sink:
        with (
            pytest.raises(
                ExportError, match=r"certificate.verify.failed|CERTIFICATE_VERIFY_FAILED"
            ) as raised,
            site.mailer(sink.port, tls).connected(),
        ):
            pytest.fail("it is connected")
        assert PASSWORD not in str(raised.value)
        assert not any(line.startswith("AUTH") for _, line in sink.commands)
        assert sink.messages == []


def test_no_login_where_the_server_offers_no_tls(site: Site) -> None:
    """Somebody in between removed STARTTLS from the answer."""
    with mail_sink(site.context(), login=f"gpu {PASSWORD}", offers=False) as sink:
        with (
            pytest.raises(ExportError, match="STARTTLS"),
            site.mailer(sink.port, "starttls").connected(),
        ):
            pytest.fail("it is connected")
        assert not any(line.startswith("AUTH") for _, line in sink.commands)


def test_a_wrong_password_is_one_line_without_it(site: Site) -> None:
    with mail_sink(site.context(), login=f"gpu {PASSWORD}") as sink:
        mailer = site.mailer(sink.port, "starttls", "another-secret")
        with (
            pytest.raises(ExportError, match=r"535 5\.7\.8 wrong password") as raised,
            mailer.connected(),
        ):
            pytest.fail("it is connected")
    assert "another-secret" not in str(raised.value) + repr(mailer)
