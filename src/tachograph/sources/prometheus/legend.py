"""What series mean: the counter and the GPU or node behind their labels, remembered as long as the process lives."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tachograph.sources.metrics.labels import USUAL, LabelNames, Misplaced, Place, place, short_node
from tachograph.sources.metrics.names import NO_OWN, NODE_INFO, Own, Target, metric_names, target
from tachograph.sources.slurm.fields import BadRowError, job_id

_KEPT = 1 << 20  # series; pods and jobs come and go, and each leaves its labels behind
_NAME = "__name__"
Unit = tuple[str, int, int | None]  # node, GPU, MIG slice


@dataclass(frozen=True, slots=True)
class Meaning:
    """Where the points of a series belong. `instance`: the address of the exporter; `job`: who holds the GPU."""

    target: Target
    place: Place
    instance: str | None = None
    job: str | None = None


class _Unwanted:
    """A series of a metric that is known, and of which this one is not needed (a CPU mode, the loopback)."""


UNWANTED = _Unwanted()
Known = Meaning | Misplaced | _Unwanted


@dataclass(slots=True)
class Legend:
    """The meaning of series by their labels, with a site's own names of labels and metrics."""

    names: LabelNames = USUAL
    own: Own = field(default_factory=lambda: NO_OWN)
    _known: dict[bytes, Known] = field(default_factory=dict)
    _gpus: dict[tuple[str | None, str], int] = field(default_factory=dict)
    _hosts: dict[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # every metric that has a meaning

    def __post_init__(self) -> None:
        self.metrics = (*metric_names(own=self.own), NODE_INFO)

    def meaning(self, labels: bytes) -> Known:
        """Return what a series means, its labels given as a JSON object.

        Misplaced: `bad_labels`, `unknown_metric`, or what its labels lack.
        """
        found = self._known.get(labels)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[labels] = self._read(labels)
        return found

    def gpu(self, place: Place) -> int | None:
        """Return the index of a GPU: as its labels tell it, else that of the GPU with its UUID, where one was seen."""
        return place.gpu if place.gpu is not None or place.uuid is None else self._gpus.get((place.node, place.uuid))

    def node(self, meaning: Meaning) -> str | None:
        """Return the node: the host that its node_exporter names, else as the labels tell it."""
        if meaning.target.table == "node_samples" and meaning.instance in self._hosts:
            return self._hosts[meaning.instance]
        return meaning.place.node

    def host_of(self, labels: bytes) -> str | None:
        """Return the node that the labels of a node_exporter name; None where they name none."""
        given = _decode(labels)
        if given is None:
            return None
        where = place(given, names=self.names)
        instance = given.get("instance", "")
        return self._hosts.get(instance) or (None if isinstance(where, Misplaced) else where.node)

    def _read(self, labels: bytes) -> Known:
        given = _decode(labels)
        if given is None:
            return Misplaced("bad_labels", labels.decode("utf-8", "replace")[:200])
        metric = given.get(_NAME, "")
        if metric == NODE_INFO:
            self._note_host(given)
            return UNWANTED
        wanted = target(metric, given, own=self.own)
        if wanted is None:
            known = metric in self.metrics
            return UNWANTED if known else Misplaced("unknown_metric", metric or "a series without a name")
        where = place(given, names=self.names)
        if isinstance(where, Misplaced):
            return where
        if where.gpu is not None and where.uuid is not None:
            self._gpus[where.node, where.uuid] = where.gpu
        return Meaning(wanted, where, given.get("instance"), _raw_job_id(where.job))

    def _note_host(self, labels: dict[str, str]) -> None:
        if labels.get("instance") and labels.get("nodename"):
            self._hosts[labels["instance"]] = short_node(labels["nodename"])


def _raw_job_id(written: str | None) -> str | None:
    """Return the raw job id of what a label says; None for none, and for what is no job id.

    >>> _raw_job_id("123"), _raw_job_id(None), _raw_job_id("what?")
    ('123', None, None)
    """
    try:
        return None if written is None else job_id(written).raw
    except BadRowError:
        return None


def _decode(labels: bytes) -> dict[str, str] | None:
    """The labels; None where they are no texts by names."""
    try:
        return msgspec.json.decode(labels, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
