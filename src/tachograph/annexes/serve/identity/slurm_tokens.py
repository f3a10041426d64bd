"""Tokens signed by Slurm (`scontrol token`, auth/jwt): HS256, user in claim `sun`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from starlette.requests import Request

from tachograph.annexes.serve.identity.proof import NotIdentifiedError, Proven, proven_name
from tachograph.annexes.serve.identity.tokens import PREFIX, bearer_of
from tachograph.catalog.config import read_secret
from tachograph.catalog.errors import ConfigError

HEADER = "X-SLURM-USER-TOKEN"  # of slurmrestd
USER_HEADER = "X-SLURM-USER-NAME"
SHORTEST_KEY = 32  # bytes, RFC 7518, section 3.2
_ALGORITHM = "HS256"
_LONGEST = 8192
_CLOCKS_APART_S = 60.0


@dataclass(slots=True)
class SlurmTokens:
    """Tokens of one cluster, checked with its key."""

    key: OctKey
    clock: Callable[[], float] = time.time

    @classmethod
    def with_key(cls, file: str) -> SlurmTokens:
        """Return the check with a key from a file. Errors: ConfigError: unreadable or too short."""
        secret = read_secret(file, "serve.slurm_jwt_key")
        if len(secret) < SHORTEST_KEY or len(set(secret)) == 1:
            what = (
                f"serve.slurm_jwt_key is shorter than {SHORTEST_KEY} bytes, or one byte "
                "repeated: it can be guessed"
            )
            raise ConfigError(
                what, where=file, do="dd if=/dev/random of=jwt_hs256.key bs=32 count=1"
            )
        try:
            return cls(OctKey.import_key(secret))
        except ValueError:
            what = "serve.slurm_jwt_key is the public part of a pair of keys: everyone has it"
            raise ConfigError(
                what, where=file, do="name the file of jwt_key in slurm.conf"
            ) from None

    def of(self, request: Request) -> Proven | None:
        """Return the user of the request's token. Errors: NotIdentifiedError if it is invalid."""
        sent = request.headers.get(HEADER)
        if sent is None:
            sent = bearer_of(request)
            if sent is None or sent.startswith(PREFIX):
                return None
        proven = self.proven(sent)
        named = request.headers.get(USER_HEADER)
        if named and named != proven.name:
            raise NotIdentifiedError(
                f"{USER_HEADER} is not whom the token names", do="leave the header out"
            )
        return proven

    def proven(self, sent: str) -> Proven:
        """Return the user of a token. Errors: NotIdentifiedError if it is invalid."""
        wrong = NotIdentifiedError(
            "Slurm's token is not valid or has expired", do="create one with `scontrol token`"
        )
        if len(sent) > _LONGEST:
            raise wrong
        try:
            claims = jwt.decode(sent, self.key, algorithms=[_ALGORITHM]).claims
        except (JoseError, ValueError, TypeError):
            raise wrong from None
        ends, begins = (
            _instant(claims.get("exp")),
            _instant(claims.get("nbf", claims.get("iat", 0))),
        )
        if ends is None or begins is None or not begins - _CLOCKS_APART_S <= self.clock() < ends:
            raise wrong
        name = claims.get("sun", claims.get("username"))
        return Proven(proven_name(name, "Slurm's token"), "slurm", ends=ends)


def _instant(claim: object) -> float | None:
    """Time of a claim, s since 1970; None for other types."""
    return float(claim) if isinstance(claim, int | float) and not isinstance(claim, bool) else None
