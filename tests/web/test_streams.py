"""Streams of events: limited in number, cut where a client does not read, gone with the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from tachograph.web.streams import Streams


async def _endless() -> AsyncGenerator[bytes]:
    while True:
        yield b"data: 1\n\n"
        await asyncio.sleep(0.01)


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def _send(_: Message) -> None:
    return


def test_a_client_that_takes_nothing_is_cut() -> None:
    streams = Streams(slow_s=0.2)

    async def run() -> int:
        async def stuck(message: Message) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await asyncio.wait_for(streams.answer("ana", _endless())({"type": "http"}, _never, stuck), 60)
        return streams.count

    assert asyncio.run(run()) == 0


def test_a_client_that_is_gone_ends_its_stream() -> None:
    streams = Streams()
    sent: list[Message] = []

    async def run() -> None:
        async def receive() -> Message:
            while len(sent) < 5:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await asyncio.wait_for(streams.answer("ana", _endless())({"type": "http"}, receive, send), 60)

    asyncio.run(run())
    assert streams.count == 0
    assert sent[0]["status"] == 200
    assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")


def test_a_stream_ends_after_a_while_so_that_the_viewer_is_identified_again() -> None:
    streams = Streams(longest_s=0.2)
    sent: list[Message] = []

    async def run() -> None:
        async def send(message: Message) -> None:
            sent.append(message)

        await asyncio.wait_for(streams.answer("ana", _endless())({"type": "http"}, _never, send), 60)

    asyncio.run(run())
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_one_identity_cannot_take_all_places() -> None:
    streams = Streams(most=3, most_of_one=2)

    async def run() -> None:
        tasks = [asyncio.ensure_future(streams.answer("ana", _endless())({"type": "http"}, _never, _send))]
        await asyncio.sleep(0.05)
        tasks.append(asyncio.ensure_future(streams.answer("ana", _endless())({"type": "http"}, _never, _send)))
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException) as refused:
            streams.answer("ana", _endless())
        assert refused.value.status_code == 503
        tasks.append(asyncio.ensure_future(streams.answer("bo", _endless())({"type": "http"}, _never, _send)))
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException):
            streams.answer("chen", _endless())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert streams.count == 0

    asyncio.run(run())
