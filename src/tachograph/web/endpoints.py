"""The way of a request through an endpoint: its parameters, its format, 304 where nothing changed, its answer."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tachograph.catalog.errors import TachographError, UsageError
from tachograph.catalog.version import __version__
from tachograph.web.answers import (
    FORMATS,
    JSON,
    Answer,
    Format,
    FormatChoice,
    FormatName,
    TableAnswer,
    choose_format,
    is_named,
    respond,
)
from tachograph.web.paging import Paging
from tachograph.web.parameters import Parameters, read_document, read_parameters
from tachograph.web.registry import EndpointEntry, EndpointModule, load_endpoint
from tachograph.web.shapes import TableShape
from tachograph.web.snapshot import ServedLake
from tachograph.web.viewer import Viewer
from tachograph.web.workers import Ending, Progress, silent, until_gone

T = TypeVar("T")
LIGHT_ROWS = 1000  # of a part that is made at once


class Run(Protocol):
    """Calls in a thread what takes time."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Return what `work` returns."""
        ...


COUNT_HEADER = "X-Total-Count"
# an answer is of one viewer, and is asked for again each time: 304 where it is still the same
_FRESH = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization, Cookie"}
_PRIVATE = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}


class NotAcceptableError(TachographError):
    """No format that the request accepts is offered."""


async def answer_request(
    entry: EndpointEntry, served: ServedLake, viewer: Viewer, request: Request, run: Run
) -> Response:
    """Return the answer of an endpoint to `viewer`; `run` calls in a thread what may take time.

    Errors: UsageError for parameters that are none, NotAcceptableError, and those of the endpoint.
    """
    module = load_endpoint(entry)
    shape = module.RETURNS
    paged, chosen = isinstance(shape, TableShape), isinstance(shape, TableShape) or shape.choices
    kind = Paging if paged else FormatChoice
    items = request.query_params.multi_items()
    taken = kind.__struct_fields__ if chosen else ()
    choice = read_parameters(kind, {}, [item for item in items if item[0] in taken], of_form=False)
    own = [item for item in items if item[0] not in taken]
    if entry.body == "json":
        parameters = read_document(module.PARAMETERS, request.path_params, own, await _body(request, JSON.media_type))
    else:
        parameters = read_parameters(module.PARAMETERS, request.path_params, own, of_form=False)
    form = _format(module, choice, request.headers.get("accept", "")) if chosen else JSON

    question = Question(
        entry,
        viewer,
        parameters,
        choice,
        form.name,
        url=str(request.url),
        path=request.scope["path"],
        items=tuple(request.query_params.multi_items()),
        known=request.headers.get("if-none-match", ""),
    )
    if entry.light and (not isinstance(choice, Paging) or choice.limit <= LIGHT_ROWS):
        return await run(lambda: respond_to(served, silent, question))
    ending = Ending()
    written = run(lambda: served.written(respond_to, question, silent, ending=ending))
    response: Response = pickle.loads(await until_gone(request, ending, written))
    return response


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of an endpoint. known: the entity tags that the client names."""

    entry: EndpointEntry
    viewer: Viewer
    parameters: Parameters
    choice: FormatChoice
    form: FormatName
    url: str
    path: str
    items: tuple[tuple[str, str], ...]
    known: str


def respond_to(served: ServedLake, _: Progress, question: Question) -> Response:
    """Return the answer to a question. Errors: those of the endpoint."""
    entry, choice = question.entry, question.choice
    module, form = load_endpoint(entry), next(form for form in FORMATS if form.name == question.form)
    if not entry.of_lake:
        return respond(module.answer(served, question.parameters), form, choice, title=entry.module)
    view = served.view(question.viewer)
    shape = module.RETURNS
    headers = dict(_FRESH if isinstance(shape, TableShape) or shape.choices else _PRIVATE)
    if entry.versioned:
        moments = question.parameters.moments(now=view.now, zone_name=view.zone_name)
        seen = (str(view.version), view.viewer.scope, view.viewer.name)
        headers["ETag"] = tag = _tag(*seen, question.url, form.name, moments, _settings(served))
        if is_named(tag, question.known):
            return Response(status_code=304, headers=headers)
    paging = (choice,) if isinstance(choice, Paging) else ()
    answer = module.answer(view, question.parameters, *paging)
    response = respond(answer, form, choice, title=entry.module)
    response.headers.update({**headers, **_of_page(answer, question)})
    return response


async def _body(request: Request, media_type: str) -> bytes:
    """The body. Errors: HTTPException 415 where it is of another type."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if given != media_type and (body or given):
        raise HTTPException(415, f"the body is {given or 'of no type'}, not {media_type}")
    return body


def offered(module: EndpointModule) -> Sequence[Format]:
    """Return the formats of an endpoint, the preferred one first."""
    shape = module.RETURNS
    return FORMATS if isinstance(shape, TableShape) or shape.table else (JSON,)


def _format(module: EndpointModule, choice: FormatChoice, accept: str) -> Format:
    known = offered(module)
    if choice.format is not None:
        named = next((form for form in known if form.name == choice.format), None)
        if named is None:
            raise UsageError(
                f"no format {choice.format!r} of this endpoint", do=f"use {', '.join(form.name for form in known)}"
            )
        return named
    found = choose_format(accept, known)
    if found is None:
        raise NotAcceptableError(
            "no format that the header Accept names", do=f"accept {', '.join(form.media_type for form in known)}"
        )
    return found


def _tag(*parts: str) -> str:
    """A weak entity tag: two answers with one are of the same version, viewer, address and format."""
    return f'W/"{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]}"'


def _settings(served: ServedLake) -> str:
    """Program and configuration, as far as answers depend on them."""
    return f"{__version__} {served.configuration!r}"


def _of_page(answer: Answer, question: Question) -> Mapping[str, str]:
    """Headers of a part of a list: how many rows there are in all, where the next part is."""
    if not isinstance(answer, TableAnswer) or answer.matching is None:
        return {}
    headers = {COUNT_HEADER: str(answer.matching)}
    if answer.cursor:
        items = [item for item in question.items if item[0] != "after" and item[1]]
        headers["Link"] = f'<{quote(question.path)}?{urlencode([*items, ("after", answer.cursor)])}>; rel="next"'
    return headers
