"""The fleet as server-sent events: what changed of the page since the number that a browser has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from time import monotonic
from typing import Annotated, Any

import anyio.to_thread
import msgspec

from tachograph.web.pages.now import NowParameters, board_of
from tachograph.web.snapshot import View
from tachograph.web.streams import BEAT_S, event

_VIEW_S = 60.0  # the lake, for jobs that run, is read anew
_BLANKS = re.compile(r"\s*\n\s*")


class NowEventsParameters(NowParameters, frozen=True, kw_only=True):
    """Those of the page; `since`: the number of the state that it shows."""

    since: Annotated[int, msgspec.Meta(ge=0)] = 0


PARAMETERS = NowEventsParameters


def events(
    view_of: Callable[[], View],
    parameters: NowEventsParameters,
    last: int,
    render: Callable[[str, Mapping[str, Any]], str],
) -> AsyncGenerator[bytes]:
    """Return an event per state that changes anything, and a comment where there was none for long.

    `last`: number of the last event that the browser has, where it connects again. `render` makes a template a text.
    Errors: UsageError for a choice that makes no sense.
    """
    page = NowParameters(**{name: getattr(parameters, name) for name in NowParameters.__struct_fields__})
    page.choice.check()
    return _events(view_of, page, max(parameters.since, last), render)


async def _events(
    view_of: Callable[[], View], page: NowParameters, sent: int, render: Callable[[str, Mapping[str, Any]], str]
) -> AsyncGenerator[bytes]:
    view, read = await anyio.to_thread.run_sync(view_of), monotonic()
    with view.fleet.viewer() as changed:
        while not view.fleet.is_closed:
            changed.clear()
            if monotonic() - read > _VIEW_S:
                view, read = await anyio.to_thread.run_sync(view_of), monotonic()
            number, data = await anyio.to_thread.run_sync(_changes, view, page, sent, render)
            if data is not None:
                yield event("fleet", number, data)
            sent = number
            try:
                async with asyncio.timeout(BEAT_S):
                    await changed.wait()
            except TimeoutError:
                yield b": alive\n\n"


def _changes(
    view: View, page: NowParameters, sent: int, render: Callable[[str, Mapping[str, Any]], str]
) -> tuple[int, dict[str, Any] | None]:
    """The number of the newest state, and what changed since `sent`; None: nothing."""
    state = view.fleet.state(wait_s=0.0)
    board = board_of(view, page, state)
    with board.lock:
        names, cells = board.since(sent)
        shown, number = board.values, board.number
    sections = {name: _BLANKS.sub("\n", render("now_section", {**shown, "name": name})) for name in names}
    return number, {"sections": sections, "cells": cells} if sections or cells else None
