"""slurmrestd: accounting and the controller's jobs, with a token.

The version of the interface is the latest that slurmrestd lists under /openapi; without a list, it
is found by trying. slurmrestd(8); https://slurm.schedmd.com/rest.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sources.http import HttpServer, RequestError, RequestPace, ServerAccess
from tachograph.sources.slurm.commands import AccountingAnswer, AccountingSpan
from tachograph.sources.slurm.exports import NOTHING_FOUND

_OLDEST, _NEWEST = 37, 47  # v0.0.37 came with Slurm 21.08, v0.0.45 with 26.05
_LISTED = re.compile(rb'"(?:\\?/)slurm(?:\\?/)(v\d+\.\d+\.(\d+))(?:\\?/)jobs(?:\\?/)?"')
_VERSION = re.compile(r"v\d+\.\d+\.\d+")


class _RestProblem(msgspec.Struct):
    error_number: int = 0
    error: str | None = None
    description: str | None = None


class _RestProblems(msgspec.Struct):
    """Errors in slurmrestd's answers; status 200 does not mean that slurmdbd answered."""

    errors: list[_RestProblem] | None = None


class SlurmrestdAccess(ServerAccess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of slurmrestd: server, user of the token, optional API version."""

    api: str = ""  # v0.0.42; default: the latest that slurmrestd offers


class Slurmrestd:
    """A polled slurmrestd.

    Errors: ConfigError naming the key, for settings that do not fit.
    """

    def __init__(
        self,
        access: SlurmrestdAccess,
        *,
        clusters: tuple[str, ...] = (),
        steps: bool = True,
        pace: RequestPace | None = None,
    ) -> None:
        if access.token_file and not access.user:
            raise ConfigError(
                "token_file is given without user", do="add the user that the token was made for"
            )
        if access.api and not _VERSION.fullmatch(access.api):
            raise ConfigError(
                f"api {access.api!r} is not a version", do="write it as v0.0.42, or remove it"
            )
        self._server = HttpServer(
            access,
            pace=pace,
            authorize=lambda token: _headers(access.user, token),
            own_words=_message,
        )
        self._clusters, self._steps = clusters, steps
        self._version = access.api
        self.where = self._server.where

    def fetch(self, span: AccountingSpan) -> AccountingAnswer:
        """Return the accounting of a span: a JSON document.

        Errors: InputError without a response, without slurmdbd, or for a refused token.
        """
        prefix = "uts" if self._since_23_11() else ""
        first, last = (time.removeprefix(prefix) for time in span.written)
        query = {"start_time": first, "end_time": last}
        if not self._steps:
            query["skip_steps"] = "true"
        if self._clusters:
            query["cluster"] = ",".join(self._clusters)
        return AccountingAnswer(self._get("slurmdb", query))

    def fetch_jobs(self) -> bytes:
        """Return the jobs that the controller knows: a JSON document. Errors: as `fetch`."""
        return self._get("slurm", {})

    def close(self) -> None:
        """Let go of connections."""
        self._server.close()

    def _get(self, service: str, query: Mapping[str, str]) -> bytes:
        path = f"/{service}/{self._known_version()}/jobs"
        try:
            answer = self._server.get(path + ("/" if self._since_23_11() else ""), query)
        except RequestError as problem:
            raise _reported(problem) from None
        complaint = _message(answer.content)
        if complaint:
            raise InputError(
                f"Slurm answered with an error: {complaint}",
                where=answer.where,
                do="is slurmdbd running?",
            )
        return answer.content

    def _since_23_11(self) -> bool:
        """From v0.0.40 on paths of lists end in a slash, and times are plain numbers."""
        return int(self._known_version().rpartition(".")[2]) >= 40

    def _known_version(self) -> str:
        if not self._version:
            self._version = self._listed_version() or self._tried_version()
        return self._version

    def _listed_version(self) -> str:
        """Latest version listed under /openapi or (since 23.02) /openapi/v3; "" without a list."""
        for path in ("/openapi/v3", "/openapi"):
            try:
                versions = _LISTED.findall(self._server.get(path).content)
            except RequestError as problem:
                if problem.status not in (404, 406, 500):
                    raise _reported(problem) from None
                continue
            if versions:
                return str(max(versions, key=lambda pair: int(pair[1]))[0].decode("ascii"))
        return ""

    def _tried_version(self) -> str:
        for number in range(_NEWEST, _OLDEST - 1, -1):
            slash = "/" if number >= 40 else ""
            try:
                self._server.get(f"/slurm/v0.0.{number}/ping{slash}")
            except RequestError as problem:
                if problem.status != 404:
                    raise _reported(problem) from None
                continue
            return f"v0.0.{number}"
        raise InputError(
            "this is not a known slurmrestd", where=self.where, do="check url, or give api"
        )


def _headers(user: str, token: str) -> Mapping[str, str]:
    """Return the headers of a token, without the prefix `SLURM_JWT=`.

    >>> _headers("root", "SLURM_JWT=abc")
    {'X-SLURM-USER-NAME': 'root', 'X-SLURM-USER-TOKEN': 'abc'}
    """
    return {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token.removeprefix("SLURM_JWT=")}


def _message(body: bytes) -> str:
    """Error in a document; "" for none, and for an answer that merely has no jobs."""
    try:
        problems = msgspec.json.decode(body, type=_RestProblems).errors or []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""  # the reader of the answer names its format
    real = [problem for problem in problems if problem.error_number != NOTHING_FOUND]
    return next((problem.description or problem.error or "unknown" for problem in real), "")


def _reported(problem: RequestError) -> InputError:
    """The message, with a fix for a refused token."""
    if problem.status != 401:
        return problem
    do = "write a new one into token_file: scontrol token lifespan=86400 username=USER"
    return InputError(
        "the token is refused: expired, or of another user", where=problem.where, do=do
    )
