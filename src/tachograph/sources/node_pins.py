"""Node of an exporter: its pages may name no other one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tachograph.sources.exporter_mapping import LabelNames
from tachograph.sources.exposition import PageSamples, labels_of
from tachograph.sources.metrics import SeriesLocation, is_address, locate, short_node
from tachograph.sources.series import host_of_page

OTHER_NODE = "other_node"  # a page names a node that its exporter is not on


@dataclass(slots=True)
class NodePin:
    """Known node of one exporter, and nodes of others."""

    of: NodePins
    label: str
    refused: str | None = None  # the last node that was named and is not this exporter's

    def see(self, nodes: Iterable[str]) -> None:
        """Record the nodes that a page names."""
        self.refused = None
        self.of.see(self.label, set(nodes))

    def admits(self, node: str) -> bool:
        """Return whether pages of this exporter may name a node."""
        if self.of.admits(self.label, short_node(node)):
            return True
        self.refused = node
        return False

    @property
    def is_known(self) -> bool:
        """Whether the node of this exporter is known."""
        return self.label in self.of.nodes


@dataclass(slots=True)
class NodePins:
    """The nodes of the exporters of one source. `hosts`: {exporter: the host in its URL}.

    An exporter is on the host of its URL, where its first page names that. Else on the only node
    that this page names (URLs of addresses, of a management network), unless that is another
    exporter's or the host of another URL. From then on it may name no other. Several exporters of a
    node may be on one host.

    >>> pins = NodePins({"n1:9400": "n1", "n2:9400": "n2", "10.0.0.3:9400": "10.0.0.3"})
    >>> for exporter, nodes in (("n1:9400", {"n1"}), ("10.0.0.3:9400", {"n3"})):
    ...     pins.see(exporter, nodes)
    >>> [pins.admits("n1:9400", node) for node in ("n1", "n2", "n3", "n4")]
    [True, False, False, False]
    >>> pins.admits("10.0.0.3:9400", "n1"), pins.admits("n2:9400", "n1")
    (False, False)
    """

    hosts: dict[str, str]
    nodes: dict[str, str] = field(default_factory=dict)  # {exporter: its node}
    _by_name: dict[str, str] = field(default_factory=dict)  # {node: its host in URLs}

    def __post_init__(self) -> None:
        self.hosts = {label: short_node(host) for label, host in self.hosts.items()}
        self._by_name = {host: host for host in self.hosts.values() if not is_address(host)}

    def see(self, exporter: str, nodes: set[str]) -> None:
        """Record the nodes that a page of an exporter names."""
        if exporter in self.nodes:
            return
        host = self.hosts[exporter]
        if host in nodes:
            node = host
        elif len(nodes) == 1:
            (node,) = nodes
        else:
            return
        if self._by_name.setdefault(node, host) == host:
            self.nodes[exporter] = node

    def admits(self, exporter: str, node: str) -> bool:
        """Return whether pages of an exporter may name a node."""
        pinned, host = self.nodes.get(exporter), self.hosts[exporter]
        return node == host or (
            self._by_name.get(node, host) == host if pinned is None else node == pinned
        )


def named_nodes(samples: PageSamples, labels: LabelNames) -> set[str]:
    """Return the short names of nodes in a page, without addresses."""
    locations = {locate(labels_of(block), names=labels) for block in set(samples.labels)}
    named = {
        location.node
        for location in locations
        if isinstance(location, SeriesLocation) and location.node and not is_address(location.node)
    }
    host = host_of_page(samples)
    return named | ({short_node(host)} if host else set())
