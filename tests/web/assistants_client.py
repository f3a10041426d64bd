"""Questions to the tools for assistants through the client of the protocol's own SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, Tool

from tachograph.annexes.serve.assistants import create_server
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.annexes.serve.tools import ToolReply, answer_tool
from tachograph.annexes.serve.workers import silent
from tachograph.api.viewer import Viewer

Call = tuple[str, Mapping[str, Any]]


async def _results(client: Client, calls: Sequence[Call]) -> list[CallToolResult]:
    async with client as connected:
        return [await connected.call_tool(name, dict(arguments)) for name, arguments in calls]


def ask_on_stdin(
    folder: Path, calls: Sequence[Call], environment: Mapping[str, str]
) -> list[CallToolResult]:
    """Return the results of calls of `tachograph mcp`, in a process of its own."""
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tachograph", "mcp"],
        cwd=folder,
        env=dict(environment),
    )
    return asyncio.run(_results(Client(command), calls))


def ask_by_http(
    address: str, calls: Sequence[Call], *, token: str, mode: str = "auto"
) -> list[CallToolResult]:
    """Return the results of calls of `/mcp`, with a token."""

    async def ask() -> list[CallToolResult]:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=120) as http:
            transport = streamable_http_client(f"{address}/mcp", http_client=http)
            return await _results(Client(transport, mode=mode), calls)

    return asyncio.run(ask())


def _in_this_process(served: ServedLake, viewer: Viewer) -> Client:
    async def answer(_: object, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        return answer_tool(served, silent, viewer, name, arguments)

    return Client(create_server(answer))


def ask_here(served: ServedLake, viewer: Viewer, calls: Sequence[Call]) -> list[CallToolResult]:
    """Return the results of calls in this process, as a viewer."""
    return asyncio.run(_results(_in_this_process(served, viewer), calls))


def offered_tools(served: ServedLake, viewer: Viewer) -> list[Tool]:
    """Return the tools as the client lists them."""

    async def ask() -> list[Tool]:
        async with _in_this_process(served, viewer) as client:
            return (await client.list_tools()).tools

    return asyncio.run(ask())


def values(result: CallToolResult) -> dict[str, Any]:
    """Return the values of a result: the same as structured content and as text."""
    assert not result.is_error, result.content
    structured: dict[str, Any] = result.structured_content
    assert json.loads(result.content[1].text) == structured  # type: ignore[union-attr]
    return structured


def failure(result: CallToolResult) -> str:
    """Return the sentence of a call that failed."""
    assert result.is_error
    assert result.structured_content is None
    return str(result.content[0].text)  # type: ignore[union-attr]
