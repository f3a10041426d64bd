"""Logging in at an OpenID provider: a real one, and forged answers of one that lies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from marked_lake import ANN, connect

from tachograph.annexes.serve.identity.oidc import OidcProvider
from tachograph.annexes.serve.identity.proof import NotIdentifiedError
from tachograph.catalog.errors import InputError
from tachograph.lake.delta import Lake

ISSUER = "https://login.example.org"
CLIENT = "tachograph"
BACK = "https://hpc.example.org/login/oidc/callback"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("scope", "claim"), [("openid profile", "preferred_username"), ("openid", "login")]
)
def test_a_real_provider_logs_in_and_leads_back(
    marked: Lake, tmp_path: Path, scope: str, claim: str
) -> None:
    from oidc_provider_mock import User, run_server_in_thread

    secret = tmp_path / "secret"
    secret.write_text("of the client\n")
    secret.chmod(0o600)
    users = [User(sub="7", claims={claim: ANN})]
    with run_server_in_thread(user_claims=users) as provider:
        client = connect(
            marked,
            oidc_issuer=f"http://localhost:{provider.server_port}",
            oidc_client_id=CLIENT,
            oidc_secret_file=str(secret),
            oidc_scope=scope,
            oidc_user_claim=claim,
        )
        page = client.get(
            "/jobs?limit=3", headers={"accept": "text/html"}, follow_redirects=True
        ).text
        assert 'href="/login/oidc?next=/jobs%3Flimit%3D3"' in page

        def answered(begun: httpx2.Response) -> str:
            sent = httpx2.post(begun.headers["location"], data={"sub": "7"})
            return str(sent.headers["location"])

        begun = client.get("/login/oidc", params={"next": "/jobs?limit=3"})
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        back = answered(begun)
        other = connect(
            marked, oidc_issuer=f"http://localhost:{provider.server_port}", oidc_client_id=CLIENT
        )
        assert other.get(back).status_code == 401, "a login that another browser began"
        ended = client.get(back)
        assert (ended.status_code, ended.headers["location"]) == (303, "/jobs?limit=3")
        me = client.get("/api/v1/me").json()
        assert (me["name"], me["role"], me["via"]) == (ANN, "user", "oidc")
        assert client.get(back).status_code == 401, "an answer counts once"
        refused = client.get("/login/oidc")
        denied = httpx2.post(refused.headers["location"], data={"action": "deny"}).headers[
            "location"
        ]
        assert client.get(denied, headers={"accept": "text/html"}).status_code == 401


@dataclass
class FakeProvider:
    """A provider whose answers a test decides; it checks the verifier, as a real one does."""

    make: Callable[[dict[str, Any]], str]
    keys: RSAKey = field(default_factory=lambda: KEY)
    changes: dict[str, Any] = field(default_factory=dict)
    nonce: str = ""
    challenge: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.asked.append(path)
        if path.endswith("openid-configuration"):
            ends = {
                "authorization_endpoint": "/authorize",
                "token_endpoint": "/token",
                "jwks_uri": "/keys",
            }
            facts = {"issuer": ISSUER, **{name: ISSUER + place for name, place in ends.items()}}
            return httpx2.Response(200, json=facts | self.changes)
        if path == "/keys":
            return httpx2.Response(200, json=KeySet([self.keys]).as_dict(private=False))
        sent = parse_qs(request.content.decode())
        digest = hashlib.sha256(sent["code_verifier"][0].encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.challenge
        now = time.time()
        claims = {
            "iss": ISSUER,
            "aud": CLIENT,
            "sub": "7",
            "preferred_username": ANN,
            "nonce": self.nonce,
        }
        return httpx2.Response(
            200, json={"id_token": self.make({**claims, "exp": now + 60, "iat": now})}
        )

    def log_in(self, **given: str) -> str:
        client = httpx2.Client(transport=httpx2.MockTransport(self.answer))
        provider = OidcProvider(ISSUER, CLIENT, "", "preferred_username", "openid", client)
        started = provider.begin(BACK, "/")
        asked = {name: one[0] for name, one in parse_qs(urlsplit(started.address).query).items()}
        self.nonce, self.challenge = asked["nonce"], asked["code_challenge"]
        proven, _ = provider.finish({"state": asked["state"], "code": "c", **given}, started.cookie)
        return proven.name


def signed(claims: dict[str, Any], *, key: RSAKey = KEY, **more: Any) -> str:
    return jwt.encode({"alg": "RS256", "kid": "one"}, {**claims, **more}, key)


def unsigned(claims: dict[str, Any]) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=")
        for one in ({"alg": "none"}, claims)
    ]
    return ".".join([*parts, ""])


def signed_with_the_public_key(claims: dict[str, Any]) -> str:
    head = unsigned(claims).rpartition(".")[0]
    head = (
        base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').decode().rstrip("=")
        + "."
        + head.partition(".")[2]
    )
    mac = hmac.new(KEY.as_pem(private=False), head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


FORGED: dict[str, Callable[[dict[str, Any]], str]] = {
    "unsigned": unsigned,
    "signed with the public key as a secret": signed_with_the_public_key,
    "signed with another key": lambda claims: signed(claims, key=OTHER),
    "of another login": lambda claims: signed(claims, nonce="other"),
    "without a nonce": lambda claims: signed({k: v for k, v in claims.items() if k != "nonce"}),
    "of another client": lambda claims: signed(claims, aud="other"),
    "of two clients": lambda claims: signed(claims, aud=[CLIENT, "other"]),
    "of another issuer": lambda claims: signed(claims, iss="https://evil.example"),
    "expired": lambda claims: signed(claims, exp=time.time() - 3600),
    "of the future": lambda claims: signed(claims, iat=time.time() + 3600),
    "without an end": lambda claims: signed({k: v for k, v in claims.items() if k != "exp"}),
    "of no user": lambda claims: signed(claims, preferred_username=""),
    "of a list": lambda claims: signed(claims, preferred_username=["root"]),
    "no token": lambda _: "x",
}


def test_a_token_of_the_provider_names_its_user() -> None:
    assert FakeProvider(signed).log_in() == ANN
    assert FakeProvider(signed).log_in(iss=ISSUER) == ANN


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_token_names_no_one(how: str) -> None:
    with pytest.raises(NotIdentifiedError):
        FakeProvider(FORGED[how]).log_in()


@pytest.mark.parametrize(
    "given", [{"state": "other"}, {"iss": "https://evil.example"}, {"error": "access_denied"}]
)
def test_an_answer_to_another_question_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(NotIdentifiedError):
        FakeProvider(signed).log_in(**given)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://login.example.org"},
        {"jwks_uri": 7},
    ],
)
def test_a_provider_that_names_unsafe_addresses_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        FakeProvider(signed, changes=changes).log_in()


def test_logins_that_begin_at_the_same_time() -> None:
    now = [0.0]
    client = httpx2.Client(transport=httpx2.MockTransport(FakeProvider(signed).answer))
    provider = OidcProvider(
        ISSUER, CLIENT, "", "preferred_username", "openid", client, lambda: now[0]
    )
    for _ in range(5000):
        provider.begin(BACK, "/")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            started = list(pool.map(lambda _: provider.begin(BACK, "/"), range(300)))
    finally:
        sys.setswitchinterval(interval)
    assert len({one.cookie for one in started}) == 300


def test_new_keys_of_the_provider_are_read() -> None:
    fake = FakeProvider(lambda claims: signed(claims, key=OTHER), keys=OTHER)
    assert fake.log_in() == ANN
