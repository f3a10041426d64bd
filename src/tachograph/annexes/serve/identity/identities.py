"""Methods of identification, in the order of trial."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request

from tachograph.annexes.serve.identity.proof import NotIdentifiedError, Proof, Proven
from tachograph.annexes.serve.identity.proxy_header import ProxyAddress, ProxyHeaders, SocketPeers
from tachograph.annexes.serve.identity.roles import Roles
from tachograph.annexes.serve.identity.sessions import COOKIE, Sessions
from tachograph.annexes.serve.identity.socket_peer import peer
from tachograph.annexes.serve.identity.tokens import BearerTokens, bearer_of
from tachograph.api.viewer import NOBODY, Role, Viewer
from tachograph.catalog.config import ServeOptions
from tachograph.catalog.errors import ConfigError

if TYPE_CHECKING:
    from tachograph.annexes.serve.identity.oidc import OidcProvider

LINK = "link"


@dataclass(frozen=True, slots=True)
class StartLink:
    """The link printed at the start: token and user. Without a token it is invalid."""

    token: str = ""
    user: str = ""

    def proven(self, given: str) -> Proven | None:
        """Return the identity if the token is the link's; else None."""
        same = hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self.token.encode())
        return Proven(self.user, LINK, Role.ADMIN) if self.token and same else None


NO_LINK = StartLink()


@dataclass(frozen=True, slots=True)
class UnknownBearer:
    """Rejects `Bearer` tokens no earlier method knows, so no weaker proof replaces them."""

    def of(self, request: Request) -> None:
        """Return None without a token. Errors: NotIdentifiedError."""
        if bearer_of(request) is not None:
            do = "leave the header Authorization out, or create a token"
            raise NotIdentifiedError("the token is not valid", do=do)


@dataclass(frozen=True, slots=True)
class Identities:
    """Methods to identify a request, and the role of its sender.

    What a request sends on purpose (a token) counts before what a browser sends on its own (a
    cookie).
    """

    options: ServeOptions
    roles: Roles
    sessions: Sessions
    proxies: ProxyHeaders
    tokens: BearerTokens | None = None
    slurm: Proof | None = None
    oidc: OidcProvider | None = None
    link: StartLink = NO_LINK

    @classmethod
    def of(
        cls, options: ServeOptions, *, link: StartLink = NO_LINK, cookie: str = COOKIE
    ) -> Identities:
        """Return the configured methods. Errors: ConfigError for an invalid or unsafe key."""
        tokens = BearerTokens(Path(options.token_file)) if options.token_file else None
        if tokens is not None:
            tokens.check()
        sessions = Sessions(
            cookie=cookie,
            still=lambda proven: not proven.token or (tokens is not None and tokens.still(proven)),
        )
        proxies = ProxyHeaders(
            tuple(map(ProxyAddress.parse, options.proxies)), options.proxy_header
        )
        slurm = _slurm(options.slurm_jwt_key) if options.slurm_jwt_key else None
        oidc = _oidc(options) if options.oidc_issuer else None
        return cls(options, Roles.of(options), sessions, proxies, tokens, slurm, oidc, link)

    @property
    def proofs(self) -> tuple[Proof, ...]:
        """The ways, in the order in which they are tried."""
        ways = (
            self.tokens,
            self.slurm,
            UnknownBearer(),
            self.proxies,
            self.sessions,
            SocketPeers(self.proxies),
        )
        return tuple(proof for proof in ways if proof is not None)

    def is_bare(self, request: Request) -> bool:
        """Whether a request has no proof of identity at all."""
        sent = any(
            name in request.headers for name in ("authorization", "cookie", "x-slurm-user-token")
        )
        return not (sent or peer(request).is_unix or self.proxies.is_from_proxy(request))

    def proven(self, request: Request) -> Proven | None:
        """Return the identity of a request; None without proof.

        Errors: NotIdentifiedError for a proof that is wrong.
        """
        for proof in self.proofs:
            proven = proof.of(request)
            if proven is not None:
                return proven
        return None

    def viewer(self, request: Request) -> Viewer:
        """Return what the sender may see. Errors: those of `proven` and of `Roles.viewer`."""
        proven = self.proven(request)
        return NOBODY if proven is None else self.roles.viewer(proven)

    def log_in(self, given: str, *, by_form: bool) -> Proven:
        """Return the user of a login token: that of the link or, in the form, one of the file.

        A URL with a token of the file logs no one in: another site could lead people into its own
        session. Errors: NotIdentifiedError for an invalid token.
        """
        proven = self.link.proven(given)
        if proven is not None:
            return proven
        if self.tokens is None or not by_form:
            raise NotIdentifiedError(
                "the token is not valid", do="use the link that the server printed at its start"
            )
        return self.tokens.proven(given)


def _slurm(file: str) -> Proof:
    with _signed("slurm_jwt_key"):
        from tachograph.annexes.serve.identity.slurm_tokens import SlurmTokens
    return SlurmTokens.with_key(file)


def _oidc(options: ServeOptions) -> OidcProvider:
    with _signed("oidc_issuer"):
        from tachograph.annexes.serve.identity.oidc import OidcProvider
    return OidcProvider.of(options)


@contextmanager
def _signed(key: str) -> Iterator[None]:
    """Turn a missing library of signatures into ConfigError."""
    try:
        yield
    except ModuleNotFoundError:
        what = f"serve.{key} needs a package that is not installed"
        raise ConfigError(what, do="pip install 'tachograph[jwt]'") from None
