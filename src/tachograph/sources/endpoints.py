"""Configured exporters: settings, and addresses expanded from hostlists."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from itertools import chain
from urllib.parse import urlsplit

import msgspec
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from tachograph.catalog.errors import ConfigError
from tachograph.sources.exporter_mapping import USUAL_LABELS, LabelNames
from tachograph.sources.http import LEAST_ACCESS, HttpServer, ServerAccess
from tachograph.sources.metrics import host_of, refuse_unknown_metrics
from tachograph.sources.registry import refuse_less

DCGM_EXPORTER = "dcgm-exporter"
MAX_ENDPOINTS = 20_000
_ROUNDS = 2  # the longest that a page may take
_HOSTS = re.compile(r"(https?://)([^/:]+)(.*)")
_IPV6 = re.compile(r"https?://\[[^\]]*:")
_NUMBERS = re.compile(r"\[([^\]]*)\]")


class ExporterSettings(ServerAccess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Exporters in `[[sources]]`. A URL may hold a hostlist: http://gpu[001-512]:9400/metrics."""

    urls: tuple[str, ...] = ()
    every_s: float = 30.0
    refresh_s: float = 30.0  # between two readings of the GPUs by the exporter
    timeout_s: float = 5.0
    answer_mib: float = 64.0  # of one page, unpacked
    attempts: int = 1  # the next round polls again
    parallel: int = 64
    many_nodes: bool = False  # an exporter may report several nodes, whatever its own is
    # {a metric of the site: its mapping}.
    metrics: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    labels: LabelNames = USUAL_LABELS

    @property
    def round_s(self) -> float:
        """Time limit of a round, s."""
        return max(self.every_s, 2 * self.timeout_s)


@dataclass(frozen=True, slots=True)
class ExporterEndpoint:
    """One exporter. `label`: name in reports; `node`: its host, if its pages name none."""

    label: str
    node: str
    server: HttpServer


def endpoints_of(settings: ExporterSettings) -> list[ExporterEndpoint]:
    """Return the exporters of settings, each once; nothing is requested yet.

    Errors: ConfigError for an invalid URL, an unknown counter or unit, a missing file.
    """
    where = f"[[sources]] {settings.title}"
    refuse_unknown_metrics(settings.metrics, where=where)
    refuse_less(settings, {"parallel": 1, "refresh_s": 0.0, **LEAST_ACCESS}, where=where)
    urls = expanded_urls(settings)
    if not urls:
        raise ConfigError(
            "urls is missing", where=where, do='write urls = ["http://gpu[001-512]:9400/metrics"]'
        )
    if len(urls) > MAX_ENDPOINTS:
        raise ConfigError(
            f"urls names {len(urls)} exporters",
            where=where,
            do="divide them among several collectors",
        )
    return [_endpoint(settings, url) for url in urls]


def _endpoint(settings: ExporterSettings, url: str) -> ExporterEndpoint:
    parts = urlsplit(url)
    return ExporterEndpoint(
        parts.netloc + (parts.path if parts.path != "/metrics" else ""),
        host_of(parts.netloc) or socket.gethostname(),
        HttpServer(settings, url=url, longest_s=_ROUNDS * settings.round_s),
    )


def expanded_urls(settings: ExporterSettings) -> tuple[str, ...]:
    """Return the URLs of settings without hostlists, each once. Errors: ConfigError."""
    written = (settings.url, *settings.urls) if settings.url else settings.urls
    return tuple(dict.fromkeys(chain.from_iterable(expand_url(url) for url in written)))


def expand_url(url: str) -> tuple[str, ...]:
    """Expand a URL with a hostlist; the default path is /metrics.

    >>> expand_url("http://gpu[01-02].example.org:9400/metrics")
    ('http://gpu01.example.org:9400/metrics', 'http://gpu02.example.org:9400/metrics')
    >>> expand_url("http://n1:9100")
    ('http://n1:9100/metrics',)

    Errors: ConfigError when it is no hostlist, or names too many hosts.
    """
    match = _HOSTS.fullmatch(url)
    if not match or _IPV6.match(url):
        return (_with_path(url),)  # an invalid URL is rejected by the request
    scheme, hosts, rest = match.groups()
    widest = max(
        (_span(part) for numbers in _NUMBERS.findall(hosts) for part in numbers.split(",")),
        default=1,
    )
    try:
        names = NodeSet(hosts, resolver=RESOLVER_NOGROUP) if widest <= MAX_ENDPOINTS else ()
    except NodeSetException as problem:
        raise ConfigError(
            f"no hostlist: {problem}", where=url, do="write it like http://gpu[001-512]:9400"
        ) from None
    if not 0 < len(names) <= MAX_ENDPOINTS:
        raise ConfigError(
            "it names no hosts, or too many", where=url, do=f"name up to {MAX_ENDPOINTS:,}"
        )
    return tuple(_with_path(f"{scheme}{name}{rest}") for name in names)


def _span(part: str) -> int:
    low, _, high = part.partition("-")
    return int(high) - int(low) if low.isdigit() and high.isdigit() else 1


def _with_path(url: str) -> str:
    try:
        path = urlsplit(url).path
    except ValueError as problem:  # brackets without an IPv6 address
        raise ConfigError(
            f"invalid url: {problem}", where=url, do="write it like http://gpu01:9400/metrics"
        ) from None
    return url if path.strip("/") else f"{url.rstrip('/')}/metrics"
