"""Exporters asked directly, many at a time: each round is one chunk, whoever does not answer is named and left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

import polars as pl

from tachograph.errors import InputError
from tachograph.rejects import Reject
from tachograph.sources import Chunk, Part, mark_of
from tachograph.sources.feeds import Asked, Watermark
from tachograph.sources.http import Server
from tachograph.sources.http_problems import AskError
from tachograph.sources.metrics.endpoints import NAME, Endpoint, Settings, endpoints_of
from tachograph.sources.metrics.holding import Holding
from tachograph.sources.metrics.pages import Gathering, Vocabulary
from tachograph.sources.metrics.reread import Reread
from tachograph.units import plural


@dataclass(frozen=True, slots=True)
class _Page:
    """One answer and when it came, on the clock that only goes forward."""

    content: bytes
    at_s: float


class ScrapeFeed:
    """Exporters that are asked in rounds; a round lands as one chunk of the stream."""

    def __init__(
        self,
        settings: Settings,
        endpoints: Sequence[Endpoint],
        *,
        cluster: str | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asked = Asked()
        self._settings = settings
        self._endpoints = tuple(endpoints)
        self._cluster = cluster
        self._steady = steady
        self._vocabulary = Vocabulary(metrics=settings.metrics, labels=settings.labels)
        self._reread = Reread(settings.refresh_s)
        self._holding = Holding()
        self._pool = ThreadPoolExecutor(max(1, settings.parallel), thread_name_prefix="scrape")
        self._late: dict[str, Future[_Page]] = {}

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield one round as a chunk; its samples are of the moment each answer came, its watermark is `now`.

        Where the clock was set back the watermark is just behind the last one.
        Errors: InputError when no exporter answered with metrics.
        """
        self.asked = Asked()
        gathering = Gathering(self._vocabulary)
        began = self._steady()
        for endpoint, page in self._pages(began):
            t = now + timedelta(seconds=page.at_s - began)
            if not gathering.add(page.content, t=t, node=endpoint.node):
                self.asked.unreachable[endpoint.label] = "no metric of this page is known; is it an exporter's?"
            if endpoint.server.skew_s is not None:
                self.asked.skew_s[endpoint.label] = endpoint.server.skew_s
        if not gathering.known:
            raise self._nothing()
        parts = tuple(self._news(gathering.parts(), now))
        origin = self._settings.stream
        mark = mark_of(now, before=watermark(self._settings.stream))
        yield Chunk(self._settings.stream, NAME, origin, parts, gathering.known, watermark=mark)

    def close(self) -> None:
        """Let go of connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for endpoint in self._endpoints:
            endpoint.server.close()

    def _pages(self, began: float) -> Iterator[tuple[Endpoint, _Page]]:
        """Answers as they come; what does not come within the round is left to itself."""
        waiting: dict[Future[_Page], Endpoint] = {}
        for endpoint in self._endpoints:
            late = self._late.get(endpoint.label)
            if late is not None and not late.done():
                self.asked.unreachable[endpoint.label] = "is still answering since the round before"
            else:
                self._late.pop(endpoint.label, None)
                waiting[self._pool.submit(self._ask, endpoint.server)] = endpoint
        try:
            for answered in as_completed(tuple(waiting), timeout=self._round_s):
                endpoint = waiting.pop(answered)
                try:
                    yield endpoint, answered.result()
                except AskError as problem:
                    self.asked.unreachable[endpoint.label] = problem.what
        except TimeoutError:
            self._leave(waiting, self._steady() - began)

    @property
    def _round_s(self) -> float:
        return max(self._settings.every_s, 2 * self._settings.timeout_s)

    def _leave(self, waiting: Mapping[Future[_Page], Endpoint], after_s: float) -> None:
        for future, endpoint in waiting.items():
            if future.cancel():
                why = f"its turn did not come within {after_s:.0f} s; raise parallel, or lower timeout_s"
            else:
                why = f"no whole answer within {after_s:.0f} s"
                self._late[endpoint.label] = future
            self.asked.unreachable[endpoint.label] = why

    def _ask(self, server: Server) -> _Page:
        content = server.get("").content
        return _Page(content, self._steady())

    def _nothing(self) -> InputError:
        label, why = next(iter(self.asked.unreachable.items()), ("", "no exporter is named"))
        others = len(self.asked.unreachable) - 1
        more = f" (and {plural(others, 'other')})" if others > 0 else ""
        return InputError(f"{why}{more}", where=label or self._settings.stream, do="check urls")

    def _news(self, parts: Sequence[Part], now: datetime) -> Iterator[Part]:
        """Yield the parts without values that were read again, and of who holds what only what changed."""
        told = [part for part in parts if part.table == "allocations"]
        for part in parts:
            if part.table != "allocations":
                yield self._fresh(part)
        held = with_cluster(self._holding.changes(parts, now), self._cluster)
        rejects = tuple(chain.from_iterable(part.rejects for part in told))
        if held.height or rejects:
            yield Part("allocations", held, rejects=rejects, overlaps=True)

    def _fresh(self, part: Part) -> Part:
        if part.table != "gpu_samples" or part.frame.is_empty():
            return part
        fresh = self._reread.fresh(part.frame)
        again = part.frame.height - fresh.height
        rejects = (*part.rejects, Reject("reread", None, again)) if again else part.rejects
        return Part(part.table, fresh, part.units, rejects)


def connect_exporters(settings: Settings, *, cluster: str | None) -> ScrapeFeed:
    """Return the feed; nothing is asked yet.

    Errors: ConfigError for a URL that is none, a counter or unit that is not known, a file that is missing.
    """
    return ScrapeFeed(settings, endpoints_of(settings), cluster=cluster)


def with_cluster(allocations: pl.DataFrame, cluster: str | None) -> pl.DataFrame:
    """Return allocations of a cluster."""
    return allocations.with_columns(cluster=pl.lit(cluster, dtype=pl.String))
