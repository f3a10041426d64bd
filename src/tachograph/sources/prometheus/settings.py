"""What `[[sources]]` says of a Prometheus, checked."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from tachograph.errors import ConfigError
from tachograph.sources.feeds import refuse_less
from tachograph.sources.http import LEAST_ACCESS, Access
from tachograph.sources.metrics.labels import LabelNames
from tachograph.sources.metrics.names import refuse_unknown

NAME = "prometheus"
How = Literal["auto", "raw", "range", "export"]
HOWS: tuple[How, ...] = ("auto", "raw", "range", "export")
_MATCHER = re.compile(r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=|!=|=~|!~)\s*"(?:[^"\\]|\\.)*"\s*', re.ASCII)


class Settings(Access, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One Prometheus, Thanos, Mimir or VictoriaMetrics."""

    selector: str = ""  # matchers that every series must fulfil: {cluster="main"}
    how: How = "auto"
    step_s: float | None = None  # interval at which targets are scraped; only `how = "range"` must know it
    window_s: float = 3600.0  # what is asked and lands at a time
    lookback_s: float = 300.0  # how late samples may come; 0: not looked for
    settle_s: float = 30.0  # how long a scrape may take until it can be asked for
    refresh_s: float = 0.0  # between two looks of the exporters at their GPUs, where that is more than a scrape
    from_: str = msgspec.field(name="from", default="1h")  # where a feed begins that has read nothing yet
    parallel: int = 4
    labels: LabelNames = LabelNames()
    metrics: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)  # {metric: (counter, unit)}


def matchers(selector: str) -> str:
    """Return the matchers of a selector without its braces.

    >>> matchers('{job="dcgm", cluster=~"a|b"}'), matchers("")
    ('job="dcgm", cluster=~"a|b"', '')

    Errors: ConfigError for what is no list of matchers.
    """
    inside = selector.strip().removeprefix("{").removesuffix("}").strip().rstrip(",").rstrip()
    at = 0
    while inside and at <= len(inside):
        found = _MATCHER.match(inside, at)
        if found is None or (found.end() < len(inside) and inside[found.end()] != ","):
            raise ConfigError(f"selector {selector!r} is none", do="""write it as '{job="dcgm",cluster="main"}'""")
        at = found.end() + 1
    return inside


def check(settings: Settings, *, where: str = "") -> None:
    """Check what types do not.

    Errors: ConfigError naming the key.
    """
    if settings.how == "range" and settings.step_s is None:
        raise ConfigError("how = range needs step_s", where=where, do="give the interval at which targets are scraped")
    least = {"step_s": 0.001, "window_s": 1.0, "parallel": 1, "lookback_s": 0.0, "settle_s": 0.0, "refresh_s": 0.0}
    refuse_less(settings, {**least, **LEAST_ACCESS}, where=where)
    matchers(settings.selector)
    refuse_unknown(settings.metrics, where=where)
