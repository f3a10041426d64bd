"""Instant queries for GPUs: how they are written, and what their answers say."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tachograph.arrays import Floats
from tachograph.live.sources.exporter_page import wanted_metrics
from tachograph.live.sources.series import Layout, Meaning
from tachograph.sources.http import Answer, read_json
from tachograph.sources.http_problems import AskError
from tachograph.sources.metrics.names import NODE_INFO, Own
from tachograph.sources.prometheus.settings import matchers

_EXPECTED = "an answer of Prometheus"
_NAME = "__name__"
# labels that hold a host, with or without its domain, and those that hold HOST:PORT
_NODES_AT_ONCE = 200  # VictoriaMetrics takes queries of 16 KiB
_HOSTS = ("Hostname", "hostname", "nodename", "node", "host", "instance")


class _Series(msgspec.Struct, frozen=True):
    metric: msgspec.Raw
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[_Series] = msgspec.field(default_factory=list)


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    is_partial: bool = False  # VictoriaMetrics cluster: a storage node did not answer


@dataclass(frozen=True, slots=True)
class Vector:
    """The answer to an instant query: labels of each series as JSON, sorted, its value, and the time of the answer."""

    labels: list[bytes]
    values: Floats
    t: float


@dataclass(slots=True)
class Reader:
    """Says where the values of series go; series that come again are not looked at again.

    metric: of series that are told without a name. commonest: the metric that most of the GPUs tell; "" for none.
    """

    meaning: Meaning
    metric: str = ""
    commonest: str = ""
    _labels: list[bytes] = field(default_factory=list)
    _layout: Layout = field(default_factory=Layout)
    _known: dict[bytes, tuple[str, Mapping[str, str]]] = field(default_factory=dict)

    def layout(self, labels: list[bytes]) -> Layout:
        """Return where the values of series with these labels go."""
        if labels != self._labels:
            series = list(self._named(labels))
            self._layout, self._labels = self.meaning.layout(series), labels
            told = Tally(series[place][0] for place in self._layout.kept.tolist())
            self.commonest = min(told, key=lambda name: (-told[name], name), default="")
        return self._layout

    def _named(self, labels: list[bytes]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Name and labels of each series; labels that differ in nothing but the name are one object."""
        known: dict[bytes, tuple[str, Mapping[str, str]]] = {}
        shared = {tuple(block.items()): block for _, block in self._known.values()}
        for one in labels:
            found = self._known.get(one)
            if found is None:
                given = _labels(one)
                metric = given.pop(_NAME, self.metric)
                found = metric, shared.setdefault(tuple(given.items()), given)
            known[one] = found
            yield found
        self._known = known  # what is gone is forgotten


def read_vector(answer: Answer) -> Vector:
    """Return the series of an instant query.

    Errors: AskError for an error, a partial answer, or anything else that is no vector.
    """
    said = read_json(answer, _Envelope, expected=_EXPECTED)
    if said.status != "success" or said.data is None:
        told = f"{said.error_type}: {said.error}" if said.error else "the answer says neither success nor why not"
        raise AskError(told, where=answer.where, do="mend what is asked")
    if said.is_partial:
        what = "the answer is partial: a part of its storage did not answer"
        raise AskError(what, where=answer.where, do="mend its storage", refused=False)
    if said.data.result_type != "vector":
        what = f"the result is a {said.data.result_type or 'thing without a type'}, no vector"
        raise AskError(what, where=answer.where, do=f"is this {_EXPECTED}?")
    found = sorted((bytes(one.metric), one.value) for one in said.data.result)
    try:
        values = np.array([float(value) for _, (_, value) in found], np.float64)
    except ValueError as problem:
        raise AskError(f"a value is no number: {problem}", where=answer.where, do=f"is this {_EXPECTED}?") from None
    return Vector([labels for labels, _ in found], values, max((t for _, (t, _) in found), default=float("nan")))


def selectors(names: Sequence[str], *, selector: str = "", nodes: Sequence[str] = ()) -> list[str]:
    """Return selectors that together choose the series of some metrics; nodes: of these hosts only. Each is a query.

    Which label holds the host differs from site to site, so there is a selector for each that may.

    >>> selectors(["up"], selector='{job="dcgm"}')
    ['{__name__=~"up",job="dcgm"}']
    >>> selectors(["up"], nodes=["n1"])[0]
    '{__name__=~"up",Hostname=~"(?:n1)(?:[.:].*)?"}'
    """
    chosen = [f'{_NAME}=~"{_alternatives(names)}"']
    given = matchers(selector)
    if given:
        chosen.append(given)
    if not nodes:
        return ["{" + ",".join(chosen) + "}"]
    groups = [nodes[start : start + _NODES_AT_ONCE] for start in range(0, len(nodes), _NODES_AT_ONCE)]
    hosts = [f"(?:{_alternatives(group)})(?:[.:].*)?" for group in groups]
    return ["{" + ",".join([*chosen, f'{label}=~"{some}"']) + "}" for label in _HOSTS for some in hosts]


def joined(vectors: Sequence[Vector]) -> Vector:
    """Return several answers as one; a series that several hold is there once."""
    if len(vectors) == 1:
        return vectors[0]
    found = {labels: value for one in vectors for labels, value in zip(one.labels, one.values.tolist(), strict=True)}
    t = max((one.t for one in vectors if one.labels), default=float("nan"))
    labels = sorted(found)
    return Vector(labels, np.array([found[one] for one in labels], np.float64), t)


def gpu_metrics(own: Own) -> list[str]:
    """Return the metrics to ask for."""
    return sorted(wanted_metrics(own) - {NODE_INFO})


def _alternatives(names: Sequence[str]) -> str:
    """A regular expression for any of some names, as it stands inside quotes."""
    return "|".join(re.escape(name) for name in names).replace("\\", "\\\\").replace('"', '\\"')


def _labels(written: bytes) -> dict[str, str]:
    """Labels; none where they are no texts by names."""
    try:
        return msgspec.json.decode(written, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
