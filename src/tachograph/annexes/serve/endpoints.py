"""Endpoints of the REST API and their requests: parameters, format, 304, answer."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tachograph.annexes.serve.answers import FORMATS, JSON, Format, choose_format, is_named, respond
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.annexes.serve.workers import Ending, Progress, silent, until_gone
from tachograph.api.answers import Answer, FormatChoice, FormatName, Paging, TableAnswer
from tachograph.api.endpoints import Endpoint
from tachograph.api.parameters import Parameters, read_document, read_parameters
from tachograph.api.viewer import Viewer
from tachograph.catalog.errors import TachographError, UsageError
from tachograph.catalog.version import __version__

T = TypeVar("T")
API = "/api/v1"
LIGHT_ROWS = 1000  # of a part that is made at once


class Run(Protocol):
    """Runs slow calls in a thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Return the result of `work`."""
        ...


COUNT_HEADER = "X-Total-Count"
# an answer is for one viewer, and is revalidated each time: 304 if unchanged
_CACHING = "private, no-cache"


class NotAcceptableError(TachographError):
    """No format that the request accepts is offered."""


def formats_of(endpoint: Endpoint) -> tuple[Format, ...]:
    """Return the formats that an endpoint offers, the preferred one first."""
    return FORMATS if endpoint.has_rows else (JSON,)


async def answer_request(
    endpoint: Endpoint, served: ServedLake, viewer: Viewer, request: Request, run: Run
) -> Response:
    """Return the endpoint's answer for `viewer`; `run` runs slow calls in a thread.

    Errors: UsageError for invalid parameters, NotAcceptableError, and those of the endpoint.
    """
    items = request.query_params.multi_items()
    kind = endpoint.choice or FormatChoice
    names_of_choice = kind.__struct_fields__ if endpoint.choice else ()
    choice = read_parameters(
        kind, {}, [item for item in items if item[0] in names_of_choice], of_form=False
    )
    query = [item for item in items if item[0] not in names_of_choice]
    if endpoint.method == "POST":
        body = await _body(request, JSON.media_type)
        parameters = read_document(endpoint.parameters, request.path_params, query, body)
    else:
        parameters = read_parameters(endpoint.parameters, request.path_params, query, of_form=False)
    accepted = request.headers.get("accept", "") if endpoint.choice else ""
    question = Question(
        endpoint.answer,
        endpoint.name,
        endpoint.of_lake,
        endpoint.versioned,
        endpoint.choice is not None,
        viewer,
        parameters,
        choice,
        _format(endpoint, choice, accepted).name,
        url=str(request.url),
        path=request.scope["path"],
        items=tuple(items),
        known=request.headers.get("if-none-match", ""),
    )
    if endpoint.light and (not isinstance(choice, Paging) or choice.limit <= LIGHT_ROWS):
        return await run(lambda: respond_to(served, silent, question))
    ending = Ending()
    written = run(lambda: served.written(respond_to, question, silent, ending=ending))
    response: Response = pickle.loads(await until_gone(request, ending, written))
    return response


@dataclass(frozen=True, slots=True)
class Question:
    """A request to an endpoint, as a worker gets it. known: entity tags the client has."""

    answer: Callable[..., Answer]
    title: str
    of_lake: bool
    versioned: bool
    varying: bool
    viewer: Viewer
    parameters: Parameters
    choice: FormatChoice
    form: FormatName
    url: str
    path: str
    items: tuple[tuple[str, str], ...]
    known: str


def respond_to(served: ServedLake, _: Progress, question: Question) -> Response:
    """Return the answer to a request. Errors: those of the endpoint."""
    choice = question.choice
    form = next(form for form in FORMATS if form.name == question.form)
    if not question.of_lake:
        answer = question.answer(served, question.parameters)
        return respond(answer, form, choice, title=question.title)
    view = served.view(question.viewer)
    varying = "Accept, Authorization, Cookie" if question.varying else "Authorization, Cookie"
    headers = {"Cache-Control": _CACHING, "Vary": varying}
    if question.versioned:
        moments = question.parameters.moments(now=view.now, zone_name=view.zone_name)
        of_viewer = (str(view.version), view.viewer.scope, view.viewer.name)
        # program and configuration, as far as answers depend on them
        settings = f"{__version__} {served.configuration!r}"
        headers["ETag"] = tag = _tag(*of_viewer, question.url, form.name, moments, settings)
        if is_named(tag, question.known):
            return Response(status_code=304, headers=headers)
    paging = (choice,) if isinstance(choice, Paging) else ()
    answer = question.answer(view, question.parameters, *paging)
    response = respond(answer, form, choice, title=question.title)
    response.headers.update({**headers, **_of_page(answer, question)})
    return response


async def _body(request: Request, media_type: str) -> bytes:
    """The body. Errors: HTTPException 415 for another content type."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if content_type != media_type and (body or content_type):
        raise HTTPException(415, f"the body is {content_type or 'of no type'}, not {media_type}")
    return body


def _format(endpoint: Endpoint, choice: FormatChoice, accept: str) -> Format:
    offered = formats_of(endpoint)
    if choice.format is not None:
        named = next((form for form in offered if form.name == choice.format), None)
        if named is None:
            what = f"this endpoint has no format {choice.format!r}"
            raise UsageError(what, do=f"use {', '.join(form.name for form in offered)}")
        return named
    preferred = choose_format(accept, offered)
    if preferred is None:
        what = "no format in the header Accept is offered"
        raise NotAcceptableError(
            what, do=f"accept {', '.join(form.media_type for form in offered)}"
        )
    return preferred


def _tag(*parts: str) -> str:
    """Return a weak entity tag of version, viewer, address and format."""
    return f'W/"{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]}"'


def _of_page(answer: Answer, question: Question) -> Mapping[str, str]:
    """Headers of a page: total rows, link to the next page."""
    if not isinstance(answer, TableAnswer) or answer.matching is None:
        return {}
    headers = {COUNT_HEADER: str(answer.matching)}
    if answer.cursor:
        items = [item for item in question.items if item[0] != "after" and item[1]]
        query = urlencode([*items, ("after", answer.cursor)])
        headers["Link"] = f'<{quote(question.path)}?{query}>; rel="next"'
    return headers
