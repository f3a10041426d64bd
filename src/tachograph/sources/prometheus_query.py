"""Queries to Prometheus-like servers: settings, windows, decoded series."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import msgspec
import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.errors import ConfigError
from tachograph.sources.exporter_mapping import LabelNames
from tachograph.sources.http import (
    LEAST_ACCESS,
    HttpAnswer,
    HttpServer,
    RequestError,
    ServerAccess,
    read_json,
)
from tachograph.sources.metrics import refuse_unknown_metrics
from tachograph.sources.registry import refuse_less
from tachograph.sources.series import SeriesAnswer, SeriesRun

PROMETHEUS = "prometheus"
QueryMethod = Literal["auto", "raw", "range", "export"]
QUERY_METHODS: tuple[QueryMethod, ...] = ("auto", "raw", "range", "export")
_MATCHER = re.compile(
    r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=|!=|=~|!~)\s*"(?:[^"\\]|\\.)*"\s*', re.ASCII
)


class PrometheusSettings(ServerAccess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One Prometheus, Thanos, Mimir or VictoriaMetrics."""

    selector: str = ""  # matchers that every series must fulfil: {cluster="main"}
    how: QueryMethod = "auto"
    # Interval at which targets are scraped; required only by `how = "range"`.
    step_s: float | None = None
    window_s: float = 3600.0  # unit of queries and commits
    lookback_s: float = 300.0  # how late samples may arrive; 0: no second query for late samples
    settle_s: float = 30.0  # how long a scrape may take until it can be queried
    # Between two readings of the exporters, where longer than the scrape interval.
    refresh_s: float = 0.0
    # Where a feed begins that has read nothing yet.
    from_: str = msgspec.field(name="from", default="1h")
    parallel: int = 4
    labels: LabelNames = LabelNames()
    # {a metric of the site: its mapping}.
    metrics: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def begins_at(self) -> str:
        """Time from which a lake without rows of the source is filled."""
        return self.from_


def matchers(selector: str, *, where: str = "") -> str:
    """Return the matchers of a selector without its braces; `where`: its location, for errors.

    >>> matchers('{job="dcgm", cluster=~"a|b"}'), matchers("")
    ('job="dcgm", cluster=~"a|b"', '')

    Errors: ConfigError for what is no list of matchers.
    """
    inside = selector.strip().removeprefix("{").removesuffix("}").strip().rstrip(",").rstrip()
    at = 0
    while inside and at <= len(inside):
        match = _MATCHER.match(inside, at)
        if match is None or (match.end() < len(inside) and inside[match.end()] != ","):
            raise ConfigError(
                f"invalid selector {selector!r}",
                where=where,
                do="""write it as '{job="dcgm",cluster="main"}'""",
            )
        at = match.end() + 1
    return inside


def check_settings(settings: PrometheusSettings, *, where: str = "") -> None:
    """Check what types cannot.

    Errors: ConfigError naming the key.
    """
    if settings.how == "range" and settings.step_s is None:
        raise ConfigError(
            "how = range needs step_s",
            where=where,
            do="give the interval at which targets are scraped",
        )
    least = {
        "step_s": 0.001,
        "window_s": 1.0,
        "parallel": 1,
        "lookback_s": 0.0,
        "settle_s": 0.0,
        "refresh_s": 0.0,
    }
    refuse_less(settings, {**least, **LEAST_ACCESS}, where=where)
    matchers(settings.selector, where=where)
    refuse_unknown_metrics(settings.metrics, where=where)


_NUMBERS = msgspec.json.Decoder(list[float | None], strict=False)
_POINTS = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
# as Go writes them: the decoders above reject "+Inf" in quotes
_WRITTEN_NUMBERS = msgspec.json.Decoder(list[float | str | None])
_WRITTEN_POINTS = msgspec.json.Decoder(list[tuple[float, float | str]])


def numbers(text: bytes) -> Floats:
    """Return the numbers of a JSON array; null is NaN, numbers in quotes are numbers.

    >>> numbers(b'[1790000000.123,"0.95","+Inf",null]').tolist()
    [1790000000.123, 0.95, inf, nan]

    Errors: ValueError for anything else.
    """
    try:
        values: Sequence[float | str | None] = _NUMBERS.decode(text)
    except msgspec.ValidationError:
        values = _WRITTEN_NUMBERS.decode(text)
    return np.array(values, np.float64)


def points(text: bytes) -> tuple[Floats, Floats]:
    """Return the times and the values of a JSON array of pairs of them.

    >>> times, values = points(b'[[1790000000.123,"0.95"],[1790000015,"NaN"]]')
    >>> times.tolist(), values.tolist()
    ([1790000000.123, 1790000015.0], [0.95, nan])

    Errors: ValueError for anything else.
    """
    try:
        pairs: Sequence[tuple[float, float | str]] = _POINTS.decode(text)
    except msgspec.ValidationError:
        pairs = _WRITTEN_POINTS.decode(text)
    flat = np.fromiter(chain.from_iterable(pairs), np.float64, 2 * len(pairs))
    return flat[0::2], flat[1::2]


EXPECTED = "an answer of Prometheus"
_BARE = re.compile(rb"(?<=[\[,])([+-]?Inf|NaN)(?=[,\]])")  # written by Go, unknown to JSON
_VALUES = b'"values":'  # not inside a label: there its quotes are escaped


class _Series(msgspec.Struct, frozen=True):
    metric: msgspec.Raw
    values: msgspec.Raw = msgspec.Raw(b"[]")  # of a matrix
    value: tuple[float, str] | None = None  # of a vector


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[_Series] = msgspec.field(default_factory=list)


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Result | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] | None = None
    is_partial: bool = False  # VictoriaMetrics cluster: a storage node did not answer


class _ExportedSeries(msgspec.Struct, frozen=True):
    metric: msgspec.Raw
    values: msgspec.Raw
    timestamps: msgspec.Raw


def server_message(body: bytes) -> str:
    """Return the error message in a response, or "".

    >>> server_message(b'{"status":"error","errorType":"bad_data","error":"no such thing"}')
    'bad_data: no such thing'
    >>> server_message(b"<html>")
    ''
    """
    try:
        text = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    kind = text.error_type
    return f"{kind}: {text.error}" if kind and not kind.isdigit() else text.error


def read_result(answer: HttpAnswer) -> SeriesAnswer:
    """Return the series of a matrix or a vector.

    Errors: RequestError for an error, a partial answer, another shape, or a result that holds no
    series.
    """
    result, warnings = _decoded(answer, "matrix", "vector")
    if result.result_type == "vector":
        return SeriesAnswer(_instant_runs(result, answer.where), instant=True, warnings=warnings)
    try:
        runs = [_run(series) for series in result.result]
    except ValueError as problem:
        raise _no_number(problem, answer.where) from None
    return SeriesAnswer([run for run in runs if run.t.size], warnings=warnings)


def _decoded(answer: HttpAnswer, *kinds: str) -> tuple[_Result, list[str]]:
    """Return the result, if it has one of these types, and warnings."""
    text = read_json(answer, _Envelope, expected=EXPECTED)
    if text.status != "success" or text.data is None:
        reported = (
            server_message(answer.content) or "the answer has neither a success status nor an error"
        )
        raise RequestError(reported, where=answer.where, do="fix the query")
    if text.is_partial:
        what = "the answer is partial: a part of its storage did not respond"
        raise RequestError(what, where=answer.where, do="fix its storage", refused=False)
    if text.data.result_type not in kinds:
        what = (
            f"the result is a {text.data.result_type or 'value without a type'}, not a "
            f"{' or a '.join(kinds)}"
        )
        raise RequestError(what, where=answer.where, do=f"is this {EXPECTED}?")
    return text.data, list(text.warnings or ())


def _instant_runs(result: _Result, where: str) -> list[SeriesRun]:
    """The series of a vector, of one point each."""
    runs = []
    for series in result.result:
        if series.value is not None:
            t, written = series.value
            try:
                value = np.array([float(written)])
            except ValueError as problem:
                raise _no_number(problem, where) from None
            runs.append(
                SeriesRun(
                    bytes(series.metric), np.rint(np.array([t * 1000])).astype(np.int64), value
                )
            )
    return runs


def _no_number(problem: ValueError, where: str) -> RequestError:
    return RequestError(
        f"a point is not a number: {problem}", where=where, do=f"is this {EXPECTED}?"
    )


def read_export(lines: Iterable[bytes], where: str) -> SeriesAnswer:
    """Return the series of an export; null and NaN are stale marks, left out.

    VictoriaMetrics 1.79 writes the first value of a block as Go does (NaN, +Inf), the later stale
    marks as null.

    Errors: RequestError naming the malformed line.
    """
    answer = SeriesAnswer()
    written, t = b"[]", np.empty(0, np.int64)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                exported = _exported(line)
                stamps, reported = bytes(exported.timestamps), bytes(exported.values)
                if stamps != written:  # all metrics of a scrape have one time
                    written, t = stamps, numbers(stamps).astype(np.int64)
                values = numbers(reported)
            except (ValueError, RecursionError) as problem:  # msgspec's errors are ValueErrors, too
                what = f"line {number} is not a line of an export: {str(problem).replace('`', chr(39))}"
                raise RequestError(what, where=where, do=f"is this {EXPECTED}?") from None
            if t.size != values.size:
                what = f"line {number} has {t.size} times and {values.size} values"
                raise RequestError(what, where=where, do=f"is this {EXPECTED}?")
            run = SeriesRun(bytes(exported.metric), t, values)
            if b"null" in reported:
                run = run.keep(~np.isnan(values))
            if run.t.size:
                answer.runs.append(run)
    return answer


def _exported(line: bytes) -> _ExportedSeries:
    try:
        return msgspec.json.decode(line, type=_ExportedSeries)
    except msgspec.DecodeError:
        if b"NaN" not in line and b"Inf" not in line:
            raise
        return msgspec.json.decode(_as_json(line), type=_ExportedSeries)


def _as_json(line: bytes) -> bytes:
    """Replace Go's NaN and infinities, which JSON lacks, in a line."""
    labels, values, points = line.rpartition(_VALUES)
    return (
        labels
        + values
        + _BARE.sub(lambda match: b"null" if match[1] == b"NaN" else b'"%b"' % match[1], points)
    )


def _run(series: _Series) -> SeriesRun:
    times, values = points(bytes(series.values))
    return SeriesRun(bytes(series.metric), np.rint(times * 1000).astype(np.int64), values)


POINTS_PER_SERIES = 10_000  # Prometheus gives 11,000
_POINTS_PER_ANSWER = 500_000  # about 20 MB of JSON
_LIKELY_STEP_S = 10.0  # to estimate the size of answers before the first
_TOO_MUCH = re.compile(
    r"too many|too large|exceed|limit|maximum|memory|time[d ]* ?out", re.IGNORECASE
)
_SHORTEST_MS = 1000
# A part of the storage that does not answer is an error: Thanos; VictoriaMetrics; the others ignore
# it.
_WHOLE = {"partial_response": "false", "deny_partial_response": "1"}


@dataclass(slots=True)
class PrometheusQueries:
    """A server and its known capabilities."""

    settings: PrometheusSettings
    server: HttpServer
    metrics: Sequence[str]
    how: QueryMethod = "auto"
    _series: dict[str, int] = field(default_factory=dict)  # {metric: how many}
    _closed: bool = False  # its windows include their start (Prometheus before 3)

    def samples(self, start: int, end: int) -> SeriesAnswer:
        """Return the samples in [start, end), milliseconds since 1970.

        Errors: RequestError when the server does not give them.
        """
        if self.how == "auto":
            self.how = self.choose()
        self._count_series(end)
        total = SeriesAnswer()
        batches = list(self._batches((end - start) / 1000))
        with ThreadPoolExecutor(self.settings.parallel) as pool:
            requested = [pool.submit(self._divided, batch, start, end) for batch in batches]
            for answer in requested:
                total.add(answer.result())
        return total

    def choose(self) -> QueryMethod:
        """Return the best supported query method, and check that the selector is valid.

        Errors: RequestError when it supports none.
        """
        version = self._version()
        self._closed = bool(version) and version.partition(".")[0] in ("1", "2")
        nothing = self._selector(["tachograph_probe"])
        if self.settings.how != "auto":
            return self.settings.how
        for how, path, form in (
            ("export", "/api/v1/export", {"match[]": nothing, "start": "1", "end": "2"}),
            ("raw", "/api/v1/query", {"query": f"{nothing}[1s]", "time": "1"}),
        ):
            try:
                self.server.post(path, form)
            except RequestError as problem:
                if problem.status is None or problem.status in (401, 429) or not problem.refused:
                    raise
                if how == "raw" and self.settings.step_s is None:
                    raise
            else:
                return "export" if how == "export" else "raw"
        return "range"

    def node_skew_s(self) -> SeriesAnswer:
        """Return each node's clock minus the server's (s), as far as node_exporter reports it."""
        selector = self._selector(["node_time_seconds"])
        form = {"query": f"{selector} - timestamp({selector})", **_WHOLE}
        return self.server.post_read("/api/v1/query", form, read_result)

    def _version(self) -> str:
        """Prometheus version; "" if not reported, or another product."""
        try:
            text = msgspec.json.decode(
                self.server.get("/api/v1/status/buildinfo").content, type=_BuildInfo
            )
        except RequestError as problem:
            if problem.status is None or not problem.refused:
                raise
            return ""
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""
        return text.data.version if not text.data.application else ""

    def _count_series(self, at: int) -> None:
        """Estimate the number of series per metric, to limit the size of answers."""
        if self._series:
            return
        query = f"count by (__name__) ({self._selector(self.metrics)})"
        form = {"query": query, "time": _seconds(at - 1), **_WHOLE}
        for run in self.server.post_read("/api/v1/query", form, read_result).runs:
            name = msgspec.json.decode(run.labels, type=dict[str, str]).get("__name__", "")
            count = float(run.values[-1])
            if math.isfinite(count):
                self._series[name] = int(count)

    def _batches(self, seconds: float) -> Iterator[list[str]]:
        """Group metrics into queries; metrics without series go into one query."""
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

    def _divided(self, names: Sequence[str], start: int, end: int) -> SeriesAnswer:
        """Return the samples of some metrics, halving queries that are too large."""
        try:
            return self._once(names, start, end)
        except RequestError as problem:
            halves = _halves(names, start, end, problem)
            if not halves:
                raise
        answer = SeriesAnswer()
        for half in halves:
            answer.add(self._divided(*half))
        return answer

    def _once(self, names: Sequence[str], start: int, end: int) -> SeriesAnswer:
        selector = self._selector(names)
        if self.how == "export":
            form = {
                "match[]": selector,
                "start": _seconds(start),
                "end": _seconds(end - 1),
                **_WHOLE,
            }
            where = f"{self.server.where}/api/v1/export"
            answer = self.server.post_lines(
                "/api/v1/export", form, lambda lines: read_export(lines, where)
            )
        elif self.how == "raw":
            form = {"query": f"{selector}[{end - start}ms]", "time": _seconds(end - 1), **_WHOLE}
            answer = self.server.post_read("/api/v1/query", form, read_result)
        else:
            return self._range(selector, start, end)
        return _inside(answer, start, end)

    def _range(self, selector: str, start: int, end: int) -> SeriesAnswer:
        """Last sample of each step on a grid from 1970, in requests below the limit of points."""
        step = max(1, round((self.settings.step_s or _LIKELY_STEP_S) * 1000))
        first, last = -(-start // step) * step, (end - 1) // step * step
        query = f"last_over_time({selector}[{step - self._closed}ms])"
        answer = SeriesAnswer()
        for begin in range(first, last + 1, step * POINTS_PER_SERIES):
            until = min(last, begin + step * (POINTS_PER_SERIES - 1))
            form = {
                "query": query,
                "start": _seconds(begin),
                "end": _seconds(until),
                "step": f"{step}ms",
                **_WHOLE,
            }
            answer.add(self.server.post_read("/api/v1/query_range", form, read_result))
        return answer

    def _selector(self, names: Sequence[str]) -> str:
        escaped = (
            "|".join(re.escape(name) for name in names).replace("\\", "\\\\").replace('"', '\\"')
        )
        operator = "=" if len(names) == 1 and re.fullmatch(r"\w+", names[0], re.ASCII) else "=~"
        others = matchers(self.settings.selector)
        return f'{{__name__{operator}"{escaped}"{"," if others else ""}{others}}}'


class _BuildVersion(msgspec.Struct, frozen=True):
    version: str = ""
    application: str = ""  # Mimir names itself


class _BuildInfo(msgspec.Struct, frozen=True):
    data: _BuildVersion = _BuildVersion()


def server_of(settings: PrometheusSettings) -> HttpServer:
    """Return the server of the settings. Errors: ConfigError."""
    return HttpServer(settings, own_words=server_message)


def _halves(
    names: Sequence[str], start: int, end: int, problem: RequestError
) -> Sequence[tuple[Sequence[str], int, int]]:
    """Return two halves of a query that was too large; empty for other failures."""
    if problem.status in (None, 429) or not (
        problem.status in (413, 504) or _TOO_MUCH.search(problem.what)
    ):
        return ()
    if len(names) > 1:
        return (names[: len(names) // 2], start, end), (names[len(names) // 2 :], start, end)
    middle = (start + end) // 2
    return ((names, start, middle), (names, middle, end)) if end - start > _SHORTEST_MS else ()


def _inside(answer: SeriesAnswer, start: int, end: int) -> SeriesAnswer:
    """Points inside the window: some servers include its start, others its end."""
    runs = []
    for run in answer.runs:
        mask = (run.t >= start) & (run.t < end)
        part = run if mask.all() else run.keep(mask)
        if part.t.size:
            runs.append(part)
    return SeriesAnswer(runs, warnings=answer.warnings)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"


def origin(querying: PrometheusQueries) -> str:
    """Return the origin of samples as text: the address and the query method."""
    return (
        querying.server.where
        if querying.how == "auto"
        else f"{querying.server.where} ({querying.how})"
    )
