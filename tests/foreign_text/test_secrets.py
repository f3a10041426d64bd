"""No message has a password, a token or a key: of what was read as a secret, and of what looks
like one.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path

import httpx2
import pytest

from tachograph.annexes.watch.live.snapshot import SourceProblem
from tachograph.catalog.config import read_secret
from tachograph.catalog.errors import ExportError, TachographError, UsageError
from tachograph.catalog.secrets import LEAST, redacted, remember_secrets
from tachograph.cli import narrate
from tachograph.export.postgresql import _connected
from tachograph.sources.http import HttpAnswer, RequestError, Secret, from_status, read_json


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann:pa%zzss9word@localhost/x",
        "postgresql://ann:hu/nt@er22%@localhost/x",
        "host=localhost user=ann password='hunter 22%' nosuch=1",
        "postgresql://localhost/x?password=hunter22%zz",
    ],
)
def test_a_connection_string_that_is_not_valid_shows_no_password(address: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises((UsageError, ExportError)) as caught, _connected(address):
        pass
    assert not [part for part in ("ss9word", "nt@er22", "hunter") if part in str(caught.value)], (
        str(caught.value)
    )


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cr3t-value",
        "sent {'Authorization': 'Basic YWJjOnMzY3IzdA=='}",
        "redis://:s3cr3t-value@host/0: refused",
        "https://ann:s3cr3t-value@host/path?a=1",
        "token=s3cr3t-value&user=ann",
        'the answer {"access_token": "s3cr3t-value", "expires": 3}',
        "https://hooks.slack.com/services/T000/B000/s3cr3t-value: 404",
        "is eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.s3cr3t-value valid?",
        "PGPASSWORD=s3cr3t-value psql",
    ],
)
def test_what_looks_like_a_secret_is_in_no_message(text: str) -> None:
    for shown in (
        redacted(text),
        str(TachographError(text, where=text, do=text)),
        SourceProblem(text).sentence,
    ):
        assert "s3cr3t" not in shown
        assert "YWJjOn" not in shown
    err = io.StringIO()
    with redirect_stderr(err):
        narrate.remark(text)
        narrate.Narrator().say(text)
    assert "s3cr3t" not in err.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "mail.user: no password is sent without TLS",
        "token_file = /etc/token: cannot be read",
        "give token_file, or user and password_file",
        "2026-04-23T10:00:00Z http://n1:9400/metrics: answered 401 Unauthorized",
        "the tokens of basic authentication",
    ],
)
def test_messages_about_secrets_stay(text: str) -> None:
    assert redacted(text) == text


def test_a_server_that_repeats_the_token_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opaque value 4711\n", encoding="utf-8")
    token = Secret(tmp_path / "token", "token_file").text()
    answer = httpx2.Response(401)
    problem = from_status(
        answer, f"wrong: {token}", where="http://n1", again=False, retry_after_s=None
    )
    assert "4711" not in str(problem)
    assert "answered 401" in str(problem)
    with pytest.raises(RequestError) as caught:
        read_json(
            HttpAnswer(f"{'x' * 50}{token}".encode(), "http://n1", "text/html", None),
            dict,
            expected="a server",
        )
    assert "opaque" not in str(caught.value)


def test_files_of_secrets_are_known(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("correct horse/battery\n", encoding="utf-8")
    file.chmod(0o600)
    read_secret(str(file), "serve.oidc_secret_file")
    assert (
        redacted("said correct horse/battery, correct+horse%2Fbattery, correct%20horse%2Fbattery")
        == "said …, …, …"
    )


def test_short_secrets_leave_words_as_they_are() -> None:
    remember_secrets("a" * (LEAST - 1))
    assert redacted("a" * LEAST) == "a" * LEAST
