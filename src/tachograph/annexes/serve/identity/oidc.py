"""Login with an OpenID provider: code flow with PKCE, state and nonce.

Sources: OpenID Connect Core 1.0, Discovery 1.0, RFC 7636 (PKCE), RFC 9207 (issuer in the answer).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry

from tachograph.annexes.serve.identity.proof import NotIdentifiedError, Proven, hashed, proven_name
from tachograph.annexes.serve.identity.safety import is_of_this_machine
from tachograph.catalog.config import ServeOptions, read_secret
from tachograph.catalog.errors import InputError

# signed with a key that the provider alone has: neither `none` nor a shared secret
ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
_PENDING_S = 600.0  # so long a person may take at the provider
_MOST_PENDING = 10_000
_KEPT_S = 3600.0  # what the provider publishes of itself
_KEYS_AGAIN_S = 60.0
_CLOCKS_APART_S = 60
_TIMEOUT_S = 10.0
_LARGEST = 1 << 20
_AGAIN = "log in again"


@dataclass(frozen=True, slots=True)
class _Pending:
    """A login in progress: expected proofs, cookie hash, target, expiry."""

    verifier: str
    nonce: str
    browser: str
    redirect: str
    target: str
    ends: float


@dataclass(frozen=True, slots=True)
class StartedLogin:
    """URL for the browser, and the value of its cookie."""

    address: str
    cookie: str


@dataclass(slots=True)
class OidcProvider:
    """An OpenID provider, as configured."""

    issuer: str
    client_id: str
    secret: str
    claim: str
    scope: str
    client: httpx2.Client
    clock: Callable[[], float] = time.time
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _published: tuple[float, Mapping[str, Any]] | None = None
    _keys: tuple[float, KeySet] | None = None

    @classmethod
    def of(cls, options: ServeOptions) -> OidcProvider:
        """Return the provider; sends nothing. Errors: ConfigError if a secret is unreadable."""
        secret = ""
        if options.oidc_secret_file:
            secret = (
                read_secret(options.oidc_secret_file, "serve.oidc_secret_file")
                .decode("utf-8", "replace")
                .strip()
            )
        client = httpx2.Client(timeout=_TIMEOUT_S, follow_redirects=False)
        claim, scope = options.oidc_user_claim, options.oidc_scope
        return cls(
            options.oidc_issuer.rstrip("/"), options.oidc_client_id, secret, claim, scope, client
        )

    def begin(self, redirect: str, target: str) -> StartedLogin:
        """Return the URL that begins a login; it returns to `redirect`, then `target`.

        Errors: InputError where the provider does not answer.
        """
        now = self.clock()
        state, nonce, verifier, cookie = (secrets.token_urlsafe(32) for _ in range(4))
        with self._lock:
            for old in [old for old, pending in self._pending.items() if pending.ends <= now]:
                del self._pending[old]
            while len(self._pending) >= _MOST_PENDING:
                del self._pending[next(iter(self._pending))]
            self._pending[state] = _Pending(
                verifier, nonce, hashed(cookie), redirect, target, now + _PENDING_S
            )
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": redirect,
            "scope": self.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoint("authorization_endpoint")
        return StartedLogin(
            f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", cookie
        )

    def finish(self, query: Mapping[str, str], cookie: str) -> tuple[Proven, str]:
        """Return the identity of the completed login, and the target.

        Errors: NotIdentifiedError where it belongs to no login of this browser, or is not signed as
        it must be; InputError where the provider does not answer.
        """
        with self._lock:
            login = self._pending.pop(query.get("state", ""), None)
        if (
            login is None
            or login.ends <= self.clock()
            or not hmac.compare_digest(login.browser, hashed(cookie))
        ):
            raise NotIdentifiedError(
                "the login has expired, or was begun in another browser", do=_AGAIN
            )
        if query.get("iss", self.issuer).rstrip("/") != self.issuer:
            raise NotIdentifiedError("the answer is from another provider", do=_AGAIN)
        if "error" in query:
            reason = re.sub(r"[^a-z_]", "", query["error"])[:40]
            raise NotIdentifiedError(f"the provider refused the login: {reason}", do=_AGAIN)
        answer = self._redeem(query.get("code", ""), login)
        claims = self._checked(answer.get("id_token"), login.nonce)
        if self.claim not in claims:
            claims = self._user_info(answer, claims)
        if self.claim == "email" and claims.get("email_verified") is not True:
            raise NotIdentifiedError(
                "the provider has not verified the address", do="verify it at the provider"
            )
        return Proven(
            proven_name(claims.get(self.claim), f"the provider's claim {self.claim}"), "oidc"
        ), login.target

    def _redeem(self, code: str, login: _Pending) -> Mapping[str, Any]:
        sent = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect,
            "client_id": self.client_id,
            "code_verifier": login.verifier,
        }
        methods = self._facts().get(
            "token_endpoint_auth_methods_supported", ["client_secret_basic"]
        )
        basic = self.secret and "client_secret_basic" in methods
        if self.secret and not basic:
            sent["client_secret"] = self.secret
        auth = httpx2.BasicAuth(self.client_id, self.secret) if basic else None
        return self._request("POST", self._endpoint("token_endpoint"), data=sent, auth=auth)

    def _checked(self, token: object, nonce: str) -> Mapping[str, Any]:
        """The claims of an id token, once it is known that the provider made it for this login."""
        if not isinstance(token, str):
            raise NotIdentifiedError("the provider sent no id token", do=_AGAIN)
        try:
            claims = jwt.decode(token, self._key_set(), algorithms=list(ALGORITHMS)).claims
        except (JoseError, ValueError, TypeError):
            try:  # its keys may have changed
                claims = jwt.decode(
                    token, self._key_set(again=True), algorithms=list(ALGORITHMS)
                ).claims
            except (JoseError, ValueError, TypeError):
                raise NotIdentifiedError(
                    "the id token is not signed by the provider", do=_AGAIN
                ) from None
        audience = claims.get("aud")
        several = isinstance(audience, list) and len(audience) > 1
        expected = JWTClaimsRegistry(
            now=int(self.clock()),
            leeway=_CLOCKS_APART_S,
            iss={"essential": True, "values": [self.issuer, f"{self.issuer}/"]},
            aud={"essential": True, "value": self.client_id},
            azp={"essential": several, "value": self.client_id},
            exp={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            expected.validate(claims)
        except JoseError:
            raise NotIdentifiedError(
                "the id token does not belong to this login", do=_AGAIN
            ) from None
        return claims

    def _user_info(self, answer: Mapping[str, Any], claims: Mapping[str, Any]) -> Mapping[str, Any]:
        """The claims that the provider gives at an address of its own."""
        if "userinfo_endpoint" not in self._facts():
            return claims
        headers = {"Authorization": f"Bearer {answer.get('access_token', '')}"}
        more = self._request("GET", self._endpoint("userinfo_endpoint"), headers=headers)
        return more if more.get("sub") == claims.get("sub") else claims

    def _key_set(self, *, again: bool = False) -> KeySet:
        now = self.clock()
        if self._keys is None or now - self._keys[0] > (_KEYS_AGAIN_S if again else _KEPT_S):
            published = self._request("GET", self._endpoint("jwks_uri"))
            try:
                keys = KeySet.import_key_set({"keys": published["keys"]})
            except (JoseError, ValueError, TypeError, KeyError):
                raise InputError(
                    "the provider's keys cannot be read", where=self.issuer, do="see its log"
                ) from None
            self._keys = (now, keys)
        return self._keys[1]

    def _facts(self) -> Mapping[str, Any]:
        now = self.clock()
        if self._published is None or now - self._published[0] > _KEPT_S:
            facts = self._request("GET", f"{self.issuer}/.well-known/openid-configuration")
            if str(facts.get("issuer", "")).rstrip("/") != self.issuer:
                raise InputError(
                    "it names another issuer", where=self.issuer, do="fix serve.oidc_issuer"
                )
            self._published = (now, facts)
        return self._published[1]

    def _endpoint(self, name: str) -> str:
        """An address that the provider publishes; one without TLS only on this machine."""
        address = str(self._facts().get(name, ""))
        with contextlib.suppress(ValueError):
            parts = urlsplit(address)
            if parts.scheme == "https" or (
                parts.scheme == "http" and is_of_this_machine(parts.hostname or "")
            ):
                return address
        raise InputError(
            f"its {name} is not an https address", where=self.issuer, do="fix serve.oidc_issuer"
        )

    def _request(self, method: str, address: str, **content: Any) -> Mapping[str, Any]:
        """A JSON response. Errors: InputError without one; NotIdentifiedError for a refused
        code.
        """
        try:
            answer = self.client.request(method, address, **content)
            values = answer.json() if len(answer.content) <= _LARGEST else None
        except (httpx2.HTTPError, ValueError) as problem:
            what = f"the OpenID provider does not respond: {type(problem).__name__}"
            raise InputError(what, where=self.issuer, do="is it running?") from None
        if method == "POST" and answer.status_code in (400, 401, 403):
            raise NotIdentifiedError("the provider did not accept the login", do=_AGAIN)
        if answer.status_code != 200 or not isinstance(values, dict):
            what = f"the OpenID provider answered {answer.status_code}"
            raise InputError(what, where=self.issuer, do="see its log")
        return values


def _challenge(verifier: str) -> str:
    """The challenge of a verifier, RFC 7636, appendix B.

    >>> _challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM'
    """
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
