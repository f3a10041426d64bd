"""Queries by every method, to servers of every kind: the answer is the samples of the window."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.sources.http import HttpAnswer, HttpServer, RequestError, UrlQuery
from tachograph.sources.prometheus_query import PrometheusQueries, PrometheusSettings
from tachograph.sources.series import SeriesAnswer

T = TypeVar("T")
BEGIN = 1_790_000_000_000  # ms
STEP = 2_000  # ms, of the grid of `range`
LARGEST_ANSWER = 500_000  # points for which a query is made


class PlainPrometheus(HttpServer):
    """A server as the HTTP API of Prometheus describes it, with some series {metric: {ms: value}}.

    supports: what it has; most: points of one answer; counts: series of each metric, as it says.
    """

    def __init__(
        self,
        series: Mapping[str, Mapping[int, float]],
        *,
        version: str | None = "3.5.0",
        supports: Sequence[str] = ("export", "raw"),
        most: int = 10**9,
        counts: Mapping[str, int] | None = None,
        problem: RequestError | None = None,
    ) -> None:
        super().__init__(made_settings())
        self.series, self.version, self.supports, self.most = series, version, supports, most
        self.counts = dict.fromkeys(series, 1) if counts is None else counts
        self.problem = problem
        self.asked: list[tuple[str, list[str]]] = []  # path and metrics of what was answered

    def get(self, path: str, params: UrlQuery | None = None) -> HttpAnswer:
        assert path == "/api/v1/status/buildinfo"
        if self.version is None:
            raise RequestError("answered 404", status=404)
        name, _, application = self.version.partition(" ")
        return self._answer({"data": {"version": name, "application": application}})

    def post(self, path: str, form: UrlQuery) -> HttpAnswer:
        return self._answer(self._result(path, dict(form)))  # type: ignore[arg-type]

    def post_read(self, path: str, form: UrlQuery, read: Callable[[HttpAnswer], T]) -> T:
        return read(self.post(path, form))

    def post_lines(self, path: str, form: UrlQuery, read: Callable[[Iterator[bytes]], T]) -> T:
        rows = self._result(path, dict(form))["data"]["result"]  # type: ignore[arg-type]
        lines = []
        for row in rows:
            times, values = zip(*row["values"], strict=True)
            stamps = [round(1000 * float(time)) for time in times]
            line = {"metric": row["metric"], "values": [*map(float, values)], "timestamps": stamps}
            lines.append(json.dumps(line).encode())
        return read(iter(lines))

    def _answer(self, document: Mapping[str, Any]) -> HttpAnswer:
        content = json.dumps({"status": "success", **document}).encode()
        return HttpAnswer(content, "test", "application/json")

    def _result(self, path: str, form: dict[str, str]) -> dict[str, Any]:
        if self.problem is not None:
            raise self.problem
        query = form.get("match[]") or form["query"]
        found = re.search(r'\{__name__(=~?)"((?:[^"\\]|\\.)*)"(?:,job="x")?\}', query)
        assert found, query
        pattern = re.compile(found[2].replace("\\\\", "\\"))
        names = sorted(name for name in self.series if pattern.fullmatch(name))
        assert found[1] == "=~" or names == [found[2]] or not names
        if query.startswith("count by"):
            counts = [(name, self.counts[name]) for name in names if name in self.counts]
            rows = [
                {"metric": {"__name__": name}, "value": [float(form["time"]), str(count)]}
                for name, count in counts
            ]
            return {"data": {"resultType": "vector", "result": rows}}
        kind = {"export": "export", "query": "raw", "query_range": "range"}[path.split("/")[-1]]
        if kind not in (*self.supports, "range"):
            raise RequestError("answered 400: not supported", status=400)
        rows = []
        for name in names:
            points = self._points(kind, query, form, self.series[name])
            values = [[time / 1000, str(value)] for time, value in points]
            if values:
                rows.append({"metric": {"__name__": name}, "values": values})
        if sum(len(row["values"]) for row in rows) > self.most:
            raise RequestError("answered 422: it would load too many samples", status=422)
        self.asked.append((kind, names))
        return {"data": {"resultType": "matrix", "result": rows}}

    def _points(
        self, kind: str, query: str, form: Mapping[str, str], samples: Mapping[int, float]
    ) -> list[tuple[int, float]]:
        in_ms = {
            name: round(1000 * float(form[name]))
            for name in form
            if name in ("start", "end", "time")
        }
        if kind == "export":
            return [
                (t, v) for t, v in sorted(samples.items()) if in_ms["start"] <= t <= in_ms["end"]
            ]
        # Version 2 of Prometheus itself; Mimir has other numbers.
        is_closed = re.fullmatch(r"2\.\S+", self.version or "") is not None
        written = re.search(r"\[(\d+)(ms|s)\]", query)
        assert written
        width = int(written[1]) * (1000 if written[2] == "s" else 1) + is_closed
        if kind == "raw":
            last = in_ms["time"]
            return [(t, v) for t, v in sorted(samples.items()) if last - width < t <= last]
        assert query.startswith("last_over_time(")
        assert form["step"] == f"{STEP}ms"
        assert (in_ms["end"] - in_ms["start"]) / STEP < 11_000  # it gives no more
        of_grid: dict[int, float] = {}
        for t, value in sorted(samples.items()):
            for moment in range(-(-t // STEP) * STEP, t + width, STEP):
                if in_ms["start"] <= moment <= in_ms["end"] and moment - width < t:
                    of_grid[moment] = value
        return sorted(of_grid.items())


def made_settings(**more: Any) -> PrometheusSettings:
    return PrometheusSettings(source="prometheus", url="http://127.0.0.1:9", **more)


def points_of(answer: SeriesAnswer) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for run in answer.runs:
        name = json.loads(run.labels)["__name__"]
        found.setdefault(name, []).extend(zip(run.t.tolist(), run.values.tolist(), strict=True))
    return {name: sorted(points) for name, points in found.items()}


@given(
    st.dictionaries(
        st.sampled_from(["a", "b.c", "d:e"]),
        st.dictionaries(
            st.integers(0, 60).map(lambda second: BEGIN + 1000 * second),
            st.integers(1, 9).map(float),
        ),
    ),
    st.sampled_from(["export", "raw", "range"]),
    st.sampled_from(["2.53.0", "3.5.0", "2.10.0 Grafana Mimir", None]),
    st.sampled_from([2, 5, 10**9]),
    st.integers(0, 60),
    st.sampled_from([0, 1]),
    st.sampled_from([1, 7, 30, 50_000]),
)
def test_a_window_has_its_samples_and_no_others(
    series: dict[str, dict[int, float]],
    how: str,
    version: str | None,
    most: int,
    first: int,
    beside: int,
    seconds: int,
) -> None:
    """`beside`: whether a sample may lie at the last millisecond before the window."""
    start = BEGIN + 1000 * first + beside
    end = start + 1000 * seconds
    supports = {"export": ("export", "raw"), "raw": ("raw",), "range": ()}[how]
    server = PlainPrometheus(series, version=version, supports=supports, most=most)
    querying = PrometheusQueries(
        made_settings(step_s=STEP / 1000, selector='{job="x"}'), server, ["a", "b.c", "d:e", "f"]
    )
    answer = querying.samples(start, end)
    assert querying.how == how
    expected: dict[str, list[tuple[int, float]]] = {}
    for name, samples in series.items():
        points = sorted(samples.items())
        if how == "range":
            points = sorted({-(-t // STEP) * STEP: value for t, value in points}.items())
        inside = [(t, value) for t, value in points if start <= t < end]
        if inside:
            expected[name] = inside
    assert points_of(answer) == expected
    if how == "range" and most > 5:
        moments = (end - 1) // STEP - -(-start // STEP) + 1
        assert len(server.asked) == -(-moments // 10_000)
    server.close()


@settings(max_examples=settings().max_examples // 2)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2500), max_size=8),
    st.sampled_from([None, 5.0, 60.0]),
)
def test_metrics_of_many_series_are_requested_apart(
    counts: dict[str, int], step_s: float | None
) -> None:
    names = "abcdefgh"
    server = PlainPrometheus({name: {BEGIN: 1.0} for name in names}, counts=counts)
    PrometheusQueries(made_settings(step_s=step_s), server, names).samples(BEGIN, BEGIN + 3_600_000)
    groups: list[list[str]] = [[]]
    total = 0.0
    for name in sorted(counts):
        points = counts[name] * 3600 / (step_s or 10.0)
        if groups[-1] and total + points > LARGEST_ANSWER:
            groups.append([])
            total = 0.0
        groups[-1].append(name)
        total += points
    unseen = [name for name in names if name not in counts]
    if total >= LARGEST_ANSWER:
        groups.append([])
    groups[-1] += unseen
    expected = sorted(sorted(group) for group in groups if group)
    assert sorted(group for _, group in server.asked if group) == expected
    server.close()


@pytest.mark.parametrize(
    ("supports", "options", "how"),
    [
        (("export", "raw"), {}, "export"),
        (("raw",), {}, "raw"),
        ((), {"step_s": 15.0}, "range"),
        ((), {}, None),
        (("export",), {"how": "range", "step_s": 15.0}, "range"),
        (("export",), {"how": "raw"}, "raw"),
    ],
)
def test_the_best_method_that_a_server_has(
    supports: Sequence[str], options: dict[str, Any], how: str | None
) -> None:
    querying = PrometheusQueries(
        made_settings(**options), PlainPrometheus({}, supports=supports), ["a"]
    )
    if how is not None:
        assert querying.choose() == how
        return
    with pytest.raises(RequestError, match="not supported"):
        querying.choose()


@pytest.mark.parametrize(
    ("status", "refused"), [(None, True), (401, True), (429, True), (503, False)]
)
def test_a_failure_decides_no_method(status: int | None, refused: bool) -> None:
    problem = RequestError("broken", status=status, refused=refused)
    server = PlainPrometheus({}, problem=problem)
    with pytest.raises(RequestError, match="broken"):
        PrometheusQueries(made_settings(step_s=15.0), server, ["a"]).choose()


def test_a_second_of_one_metric_that_is_too_large_is_an_error() -> None:
    series = {"a": {BEGIN + 100 * tenth: 1.0 for tenth in range(10)}}
    querying = PrometheusQueries(made_settings(), PlainPrometheus(series, most=5), ["a"])
    with pytest.raises(RequestError, match="too many samples"):
        querying.samples(BEGIN, BEGIN + 1000)
