"""A real VictoriaMetrics (one node) for the time of a block."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from servers.process import free_port, program, running
from servers.prometheus import Series, answers


@contextmanager
def victoria(folder: Path, *, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Run VictoriaMetrics on `folder` and give its address. The folder keeps its samples."""
    command = program("victoria-metrics", package="victoria-metrics")
    folder.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{free_port()}"
    options = (
        f"-storageDataPath={folder}/data",
        "-retentionPeriod=100y",
        f"-httpListenAddr={url.removeprefix('http://')}",
        "-search.latencyOffset=0s",
        "-loggerLevel=WARN",
    )
    with running(
        [command, *options, *arguments], ready=lambda: answers(f"{url}/health"), log=folder / "log"
    ):
        yield url


def put(url: str, series: Sequence[Series]) -> None:
    """Put series into a VictoriaMetrics that runs; they can be requested afterwards."""
    lines = (
        json.dumps(
            {
                "metric": dict(one.labels),
                "values": [value for _, value in one.points],
                "timestamps": [round(t * 1000) for t, _ in one.points],
            }
        )
        for one in series
    )
    httpx2.post(
        f"{url}/api/v1/import", content="\n".join(lines).encode(), timeout=60
    ).raise_for_status()
    httpx2.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
