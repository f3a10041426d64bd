"""Opting out by the link of a mail: signed, without login, changing nothing before a POST."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from tachograph.annexes.act.mail import Mail, Mailer
from tachograph.annexes.act.unsubscribe import (
    OPT_OUT_FILE,
    Unsubscribing,
    change_opt_out,
    read_opt_out,
)
from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.catalog.config import (
    ActOptions,
    CollectOptions,
    Configuration,
    MailOptions,
    ServeOptions,
    load,
)
from tachograph.catalog.errors import ConfigError
from tachograph.lake.delta import Lake

URL = "https://hpc.example.org/gpus"


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    key.chmod(0o600)
    act, collect = (
        ActOptions(unsubscribe_key_file=str(key)),
        CollectOptions(state=str(tmp_path / "state")),
    )
    return Configuration(act=act, collect=collect, serve=ServeOptions(url=URL))


@pytest.fixture
def client(tmp_path: Path, configuration: Configuration) -> Iterator[TestClient]:
    lake = Lake.create(str(tmp_path / "lake"))
    with TestClient(
        create_application(WebService.of(ServedLake(lake, configuration))),
        base_url="https://hpc.example.org",
    ) as session:
        yield session


def token_of(configuration: Configuration, user: str = "ann") -> str:
    unsubscribing = Unsubscribing.of(configuration, Path())
    assert unsubscribing is not None
    return unsubscribing.link(user).removeprefix(f"{URL}/unsubscribe?token=")


def test_only_a_post_changes_anything(
    client: TestClient, tmp_path: Path, configuration: Configuration
) -> None:
    token, file = token_of(configuration), tmp_path / "state" / OPT_OUT_FILE
    path = f"/gpus/unsubscribe?token={token}"
    for _ in range(2):
        shown = client.get(path)
        assert shown.status_code == 200
        assert client.head(path).status_code == 200
    assert not file.exists()
    assert shown.headers["cache-control"] == "no-store"
    assert "set-cookie" not in shown.headers
    (hidden,) = re.findall(r'name="token" value="([^"]+)"', shown.text)
    (action,) = re.findall(r'<form method="post" action="([^"]+)"', shown.text)
    assert (hidden, action) == (token, "/gpus/unsubscribe")
    for _ in range(2):
        done = client.post(action, data={"token": hidden})
        assert done.status_code == 200
        assert "no more digests" in done.text
    assert file.read_text() == "ann\n"


def test_a_mail_program_does_it_with_one_click(
    client: TestClient, tmp_path: Path, configuration: Configuration
) -> None:
    """RFC 8058: POST to the address of the header, with this body, without cookies, without a
    redirect.
    """
    path = f"/gpus/unsubscribe?token={token_of(configuration)}"
    done = client.post(path, data={"List-Unsubscribe": "One-Click"}, follow_redirects=False)
    assert done.status_code == 200
    assert read_opt_out(tmp_path / "state" / OPT_OUT_FILE) == {"ann"}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_whatever_was_not_signed_is_not_found(
    client: TestClient, tmp_path: Path, configuration: Configuration, method: str
) -> None:
    """So an address shows nothing about which users there are."""
    token = token_of(configuration)
    name, _, signature = token.partition(".")
    other = token_of(configuration, "bob").partition(".")[0]
    wrong = [
        "",
        "ann",
        name,
        f"{name}.",
        f"{other}.{signature}",
        token[:-1],
        f"{token}A",
        "é.é",
        "x" * 5000,
        ".",
    ]
    answers = {
        client.request(method, "/gpus/unsubscribe", params={"token": one}).status_code
        for one in wrong
    }
    assert answers == {404}
    bodies = {
        client.request(method, "/gpus/unsubscribe", params={"token": one}).text
        for one in (name, "nobody")
    }
    assert len(bodies) == 1
    assert not (tmp_path / "state" / OPT_OUT_FILE).exists()
    assert client.get("/gpus/unsubscribe").status_code == 404


def test_without_a_key_there_is_no_page(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    with TestClient(
        create_application(WebService.of(ServedLake(lake, Configuration()))),
        base_url="http://127.0.0.1:8265",
    ) as session:
        assert session.get("/unsubscribe?token=x").status_code == 404


def test_headers_of_mails(configuration: Configuration) -> None:
    mailer = Mailer.of(MailOptions("h", tls="none", sender="gpu@example.org"))
    unsubscribing = Unsubscribing.of(configuration, Path())
    assert unsubscribing is not None
    link = unsubscribing.link("ann")
    message = mailer.message(Mail("ann@example.org", "", "", unsubscribe=link), "key")
    assert message["List-Unsubscribe"] == f"<{link}>, <mailto:gpu@example.org?subject=unsubscribe>"
    assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert f"List-Unsubscribe: <{link}>, <mailto:".encode() in message.as_bytes(), (
        "it is not encoded"
    )
    plain = mailer.message(
        Mail("ann@example.org", "", "", unsubscribe=link.replace("https:", "http:")), "key"
    )
    assert plain["List-Unsubscribe-Post"] is None
    serve = ServeOptions(url="/gpus")
    local = Unsubscribing.of(msgspec.structs.replace(configuration, serve=serve), Path())
    assert local is not None
    assert local.link("ann") == ""


def test_the_key_is_checked(tmp_path: Path) -> None:
    assert Unsubscribing.of(Configuration(), tmp_path) is None
    file, key = tmp_path / "tachograph.toml", tmp_path / "key"
    file.write_text('[act]\nunsubscribe_key_file = "key"\n')
    for content, mode, words in (
        ("x" * 31, 0o600, "fewer than 32"),
        ("x" * 32, 0o644, "every user"),
    ):
        key.write_text(content)
        key.chmod(mode)
        with pytest.raises(ConfigError, match=words):
            Unsubscribing.of(load(str(file)), tmp_path)
    key.unlink()
    with pytest.raises(ConfigError, match="unsubscribe_key_file cannot be read"):
        Unsubscribing.of(load(str(file)), tmp_path)


def test_many_opt_out_at_once_and_none_is_lost(tmp_path: Path) -> None:
    file = tmp_path / OPT_OUT_FILE
    users = [f"user{number}" for number in range(20)]
    threads = [
        threading.Thread(target=change_opt_out, args=(file, user), kwargs={"out": True})
        for user in users
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_opt_out(file) == set(users)
    change_opt_out(file, "user3", out=False)
    assert read_opt_out(file) == set(users) - {"user3"}
