"""How a Prometheus is asked for the samples of a window: which way it knows, and how much at a time.

    export   VictoriaMetrics' /api/v1/export: the samples as they lie, a line per series; the fastest
    raw      an instant query of a range selector: the samples as they lie, with the times of their scrapes
    range    /api/v1/query_range of last_over_time over one step: the last sample of each step, at the end of the step

A selector alone in a range query would repeat a value for five minutes after the last scrape; a gap stays a gap in all
three. Windows are half-open: a sample at the start of one belongs to it, a sample at its end to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from tachograph.sources.http import Server
from tachograph.sources.http_problems import AskError
from tachograph.sources.prometheus.decode import Runs, keep, own_words, read_export, read_result
from tachograph.sources.prometheus.settings import How, Settings, matchers

POINTS_PER_SERIES = 10_000  # Prometheus gives 11,000
_POINTS_PER_ANSWER = 500_000  # about 20 MB of JSON
_LIKELY_STEP_S = 10.0  # to judge how much will come, before anything did
_TOO_MUCH = re.compile(r"too many|too large|exceed|limit|maximum|memory|time[d ]* ?out", re.IGNORECASE)
_SHORTEST_MS = 1000
# A part of the storage that does not answer is an error: Thanos; VictoriaMetrics; the others overlook it.
_WHOLE = {"partial_response": "false", "deny_partial_response": "1"}


@dataclass(slots=True)
class Querying:
    """One server and what was learned of it."""

    settings: Settings
    server: Server
    metrics: Sequence[str]
    how: How = "auto"
    _series: dict[str, int] = field(default_factory=dict)  # {metric: how many}
    _closed: bool = False  # its windows include their start (Prometheus before 3)

    def samples(self, start: int, end: int) -> Runs:
        """Return the samples in [start, end), milliseconds since 1970.

        Errors: AskError when the server does not give them.
        """
        if self.how == "auto":
            self.how = self.choose()
        self._count_series(end)
        found = Runs()
        batches = list(self._batches((end - start) / 1000))
        with ThreadPoolExecutor(self.settings.parallel) as pool:
            asked = [pool.submit(self._ask, batch, start, end) for batch in batches]
            for answer in asked:
                found.add(answer.result())
        return found

    def choose(self) -> How:
        """Return the best way that the server knows, and see that the selector is one.

        Errors: AskError when it knows none.
        """
        version = self._version()
        self._closed = bool(version) and version.partition(".")[0] in ("1", "2")
        nothing = self._selector(["tachograph_asks"])
        if self.settings.how != "auto":
            return self.settings.how
        for how, path, form in (
            ("export", "/api/v1/export", {"match[]": nothing, "start": "1", "end": "2"}),
            ("raw", "/api/v1/query", {"query": f"{nothing}[1s]", "time": "1"}),
        ):
            try:
                self.server.post(path, form)
            except AskError as problem:
                if problem.status is None or problem.status in (401, 429) or not problem.refused:
                    raise
                if how == "raw" and self.settings.step_s is None:
                    raise
            else:
                return "export" if how == "export" else "raw"
        return "range"

    def node_skew_s(self) -> Runs:
        """Return how far the clock of each node is ahead of the server's, seconds, where node_exporter tells."""
        selector = self._selector(["node_time_seconds"])
        form = {"query": f"{selector} - timestamp({selector})", **_WHOLE}
        return self.server.post_read("/api/v1/query", form, read_result)

    def _version(self) -> str:
        """The version of a Prometheus; "" where it is something else, or not told."""
        try:
            said = msgspec.json.decode(self.server.get("/api/v1/status/buildinfo").content, type=_BuildInfo)
        except AskError as problem:
            if problem.status is None or not problem.refused:
                raise
            return ""
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""
        return said.data.version if not said.data.application else ""

    def _count_series(self, at: int) -> None:
        """How many series there are of each metric, so that answers can be kept small; roughly is good enough."""
        if self._series:
            return
        query = f"count by (__name__) ({self._selector(self.metrics)})"
        form = {"query": query, "time": _seconds(at - 1), **_WHOLE}
        for run in self.server.post_read("/api/v1/query", form, read_result).runs:
            name = msgspec.json.decode(run.labels, type=dict[str, str]).get("__name__", "")
            self._series[name] = int(run.values[-1])

    def _batches(self, seconds: float) -> Iterator[list[str]]:
        """Metrics to ask for together; those of which nothing was seen in one go, as there may be something."""
        points = seconds / (self.settings.step_s or _LIKELY_STEP_S)
        batch: list[str] = []
        expected = 0.0
        for name in sorted(name for name in self.metrics if name in self._series):
            more = self._series[name] * points
            if batch and expected + more > _POINTS_PER_ANSWER:
                yield batch
                batch, expected = [], 0.0
            batch.append(name)
            expected += more
        unseen = [name for name in self.metrics if name not in self._series]
        if expected < _POINTS_PER_ANSWER:
            batch, unseen = batch + unseen, []
        yield from (names for names in (batch, unseen) if names)

    def _ask(self, names: Sequence[str], start: int, end: int) -> Runs:
        """The samples of some metrics; in halves where they are too many for the server or for one answer."""
        try:
            return self._once(names, start, end)
        except AskError as problem:
            halves = _halves(names, start, end, problem)
            if not halves:
                raise
        found = Runs()
        for half in halves:
            found.add(self._ask(*half))
        return found

    def _once(self, names: Sequence[str], start: int, end: int) -> Runs:
        selector = self._selector(names)
        if self.how == "export":
            form = {"match[]": selector, "start": _seconds(start), "end": _seconds(end - 1), **_WHOLE}
            where = f"{self.server.where}/api/v1/export"
            found = self.server.post_lines("/api/v1/export", form, lambda lines: read_export(lines, where))
        elif self.how == "raw":
            form = {"query": f"{selector}[{end - start}ms]", "time": _seconds(end - 1), **_WHOLE}
            found = self.server.post_read("/api/v1/query", form, read_result)
        else:
            return self._range(selector, start, end)
        return _inside(found, start, end)

    def _range(self, selector: str, start: int, end: int) -> Runs:
        """The last sample of each step, on a grid counted from 1970, in pieces below the limit of points."""
        step = max(1, round((self.settings.step_s or _LIKELY_STEP_S) * 1000))
        first, last = -(-start // step) * step, (end - 1) // step * step
        query = f"last_over_time({selector}[{step - self._closed}ms])"
        found = Runs()
        for begin in range(first, last + 1, step * POINTS_PER_SERIES):
            until = min(last, begin + step * (POINTS_PER_SERIES - 1))
            form = {"query": query, "start": _seconds(begin), "end": _seconds(until), "step": f"{step}ms", **_WHOLE}
            found.add(self.server.post_read("/api/v1/query_range", form, read_result))
        return found

    def _selector(self, names: Sequence[str]) -> str:
        escaped = "|".join(re.escape(name) for name in names).replace("\\", "\\\\").replace('"', '\\"')
        operator = "=" if len(names) == 1 and re.fullmatch(r"\w+", names[0], re.ASCII) else "=~"
        others = matchers(self.settings.selector)
        return f'{{__name__{operator}"{escaped}"{"," if others else ""}{others}}}'


class _Build(msgspec.Struct, frozen=True):
    version: str = ""
    application: str = ""  # Mimir names itself


class _BuildInfo(msgspec.Struct, frozen=True):
    data: _Build = _Build()


def server_of(settings: Settings) -> Server:
    """Return the server of the settings. Errors: ConfigError."""
    return Server(settings, own_words=own_words)


def _halves(names: Sequence[str], start: int, end: int, problem: AskError) -> Sequence[tuple[Sequence[str], int, int]]:
    """What to ask in place of what was too much; nothing where that cannot be the reason."""
    if problem.status in (None, 429) or not (problem.status in (413, 504) or _TOO_MUCH.search(problem.what)):
        return ()
    if len(names) > 1:
        return (names[: len(names) // 2], start, end), (names[len(names) // 2 :], start, end)
    middle = (start + end) // 2
    return ((names, start, middle), (names, middle, end)) if end - start > _SHORTEST_MS else ()


def _inside(found: Runs, start: int, end: int) -> Runs:
    """The points of the window: some servers give the start of it, others the end, too."""
    runs = []
    for run in found.runs:
        mask = (run.t >= start) & (run.t < end)
        kept = run if mask.all() else keep(run, mask)
        if kept.t.size:
            runs.append(kept)
    return Runs(runs, warnings=found.warnings)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"


def origin(querying: Querying) -> str:
    """Return where samples come from, in words: the address and the way they are asked for."""
    return querying.server.where if querying.how == "auto" else f"{querying.server.where} ({querying.how})"
