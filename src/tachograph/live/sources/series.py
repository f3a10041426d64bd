"""Labelled series, as exporters and Prometheus tell them, put into rows of GPUs.

Which GPU and counter each series is depends on its name and labels alone, so it is worked out once: a `Layout` stays as
long as the same series come in the same order, and only numbers are read anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tachograph.arrays import Flags, Floats, Longs
from tachograph.counters import BY_NAME, COUNTERS
from tachograph.live.snapshot import Device, Gpu, Holder
from tachograph.rejects import BLANK_FLOATS
from tachograph.sources.metrics.labels import USUAL, LabelNames, Misplaced, Place, job_of, place, short_node
from tachograph.sources.metrics.names import NO_OWN, NODE_INFO, Own, Target, target, target_of_all
from tachograph.sources.slurm.fields import BadRowError, job_id
from tachograph.units import factor

# a fact that only live views ask for: at which temperature a device lowers its clocks by itself
SLOWDOWN = "DCGM_FI_DEV_SLOWDOWN_TEMP"
_SLOWDOWN_TARGET = Target("devices", "slowdown_c", "C")
_HBM, _JOB, _SLOWDOWN = range(len(COUNTERS), len(COUNTERS) + 3)  # columns behind those of the counters
_FACTS = {"hbm_mib": _HBM, "slowdown_c": _SLOWDOWN, "job_id": _JOB}
_COLUMN = {counter.name: number for number, counter in enumerate(COUNTERS)}
_WIDTH = len(COUNTERS) + 3
_FIRST_BLANK, _BLANKS = min(BLANK_FLOATS), np.array(BLANK_FLOATS)
_LARGEST_HBM_MIB = float(1 << 22)
_LARGEST_JOB = 1e18
_HOTTEST_C = 200.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How values become the catalogue's, value by value: factor to its unit, range, whole numbers, 0 for missing."""

    factors: Floats
    lows: Floats
    highs: Floats
    whole: Flags
    zero_is_missing: Flags

    @classmethod
    def of(cls, columns: Iterable[tuple[int, str]]) -> Rules:
        """Return those of (column, unit as written) each."""
        rows = [_rule(column, unit) for column, unit in columns]
        made = np.array(rows, dtype=np.float64).reshape(len(rows), 5)
        return cls(made[:, 0], made[:, 1], made[:, 2], made[:, 3] > 0, made[:, 4] > 0)

    def apply(self, raw: Floats) -> Floats:
        """Return values in contract units; marks for "no value" and what is physically impossible are NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = raw * self.factors
            wrong = ~((values >= self.lows) & (values <= self.highs)) | np.isinf(raw)
            wrong |= self.zero_is_missing & (raw == 0)
            if (raw >= _FIRST_BLANK).any():
                wrong |= np.isin(raw, _BLANKS)
            values[self.whole] = np.round(values[self.whole])
        values[wrong] = np.nan
        return values


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the values of some series go.

    gpus: the rows, in the order of node, GPU, slice. kept: places of the series that mean something, among all.
    cells: of each of them, column * rows + row; of series that tell one value twice (a GPU shared by several jobs) the
    first is kept. counters: what is told, as columns of COUNTERS.
    """

    gpus: tuple[Gpu, ...] = ()
    kept: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    cells: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    rules: Rules = field(default_factory=lambda: Rules.of(()))
    counters: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    devices: Mapping[Gpu, Device] = field(default_factory=dict)
    holders: Mapping[Gpu, Holder] = field(default_factory=dict)

    def table(self, raw: Floats) -> Floats:
        """Return the values of the kept series as (columns x rows), NaN where there is none."""
        made = np.full(_WIDTH * len(self.gpus), np.nan)
        made[self.cells] = self.rules.apply(raw)
        return made.reshape(_WIDTH, len(self.gpus))

    def devices_of(self, table: Floats) -> Mapping[Gpu, Device]:
        """Return devices, with capacity and slowdown temperature where series tell them."""
        found = dict(self.devices)
        facts = table[[_HBM, _SLOWDOWN]]
        for row in np.flatnonzero((facts > 0).any(axis=0)).tolist():
            hbm_mib, slowdown_c = (value if value > 0 else None for value in facts[:, row].tolist())
            old = found.get(self.gpus[row], Device())
            found[self.gpus[row]] = replace(old, hbm_mib=hbm_mib, slowdown_c=slowdown_c)
        return found

    def holders_of(self, table: Floats) -> Mapping[Gpu, Holder]:
        """Return who holds what, by labels, or where the value of a series is a job id."""
        found = dict(self.holders)
        for row in np.flatnonzero(table[_JOB] > 0).tolist():
            job = job_of(repr(float(table[_JOB, row])))
            if job is not None:
                found.setdefault(self.gpus[row], Holder(job))
        return found


@dataclass(slots=True)
class Meaning:
    """What names and labels mean at a site."""

    own: Own = field(default_factory=lambda: NO_OWN)
    labels: LabelNames = USUAL

    def layout(self, series: Iterable[tuple[str, Mapping[str, str]]], *, node: str | None = None) -> Layout:
        """Return where the values of series go, given by name and labels.

        node: host of series that name none; a page that names its own in node_uname_info comes before. Series that
        mean nothing here, or name no GPU, are left out.
        """
        found = list(series)
        node = _own_host(found) or node
        node = None if node is None else short_node(node)
        spots: list[tuple[int, Target, Gpu]] = []
        places: dict[Gpu, Place] = {}
        jobs: dict[Gpu, dict[str, None]] = {}
        known: dict[int, tuple[Place, Gpu] | None] = {}
        for number, (metric, labels) in enumerate(found):
            of = target_of_all(metric, own=self.own) or target(metric, labels, own=self.own)
            of = _SLOWDOWN_TARGET if metric == SLOWDOWN and of is None else of
            if of is None or of.table == "node_samples":
                continue
            if id(labels) not in known:  # the labels of one GPU repeat with every metric, as one object
                known[id(labels)] = self._place(labels, node)
            spot = known[id(labels)]
            if spot is None:
                continue
            where, gpu = spot
            spots.append((number, of, gpu))
            places.setdefault(gpu, where)
            job = _raw_job(where.job)
            if job:
                jobs.setdefault(gpu, {})[job] = None
        return _laid(spots, places, jobs)

    def _place(self, labels: Mapping[str, str], node: str | None) -> tuple[Place, Gpu] | None:
        where = place(labels, names=self.labels)
        if isinstance(where, Misplaced) or where.gpu is None:
            return None
        host = where.node or node
        return None if host is None else (where, Gpu(host, where.gpu, where.mig))


def _laid(
    spots: list[tuple[int, Target, Gpu]], places: Mapping[Gpu, Place], jobs: Mapping[Gpu, Iterable[str]]
) -> Layout:
    gpus = tuple(sorted(places, key=order))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    kept: dict[int, tuple[int, int, str]] = {}  # {cell: (series, column, unit)}
    for number, of, gpu in spots:
        column = _COLUMN[of.column] if of.table == "gpu_samples" else _FACTS[of.column]
        kept.setdefault(column * len(gpus) + rows[gpu], (number, column, of.unit))
    columns = {column for _, column, _ in kept.values() if column < _HBM}
    return Layout(
        gpus,
        np.array([number for number, _, _ in kept.values()], np.int64),
        np.array(list(kept), np.int64),
        Rules.of((column, unit) for _, column, unit in kept.values()),
        np.array(sorted(columns), np.int64),
        {gpu: Device(where.model, where.uuid, where.pci) for gpu, where in places.items()},
        {gpu: Holder(",".join(named)) for gpu, named in jobs.items()},
    )


def order(gpu: Gpu) -> tuple[str, int, int]:
    """Return what GPUs are sorted by; a whole GPU comes before its slices.

    >>> sorted([Gpu("n1", 0, 3), Gpu("n1", 0), Gpu("n0", 1)], key=order)[0].name
    'n0:1'
    """
    return gpu.node, gpu.gpu, -1 if gpu.mig is None else gpu.mig


def _rule(column: int, unit: str) -> tuple[float, float, float, float, float]:
    """Factor, lowest, highest, whether whole numbers, whether 0 is missing."""
    if column == _HBM:
        return factor(unit, "MiB"), 0.0, _LARGEST_HBM_MIB, 0.0, 1.0
    if column == _SLOWDOWN:
        return 1.0, 0.0, _HOTTEST_C, 0.0, 1.0
    if column == _JOB:
        return 1.0, 0.0, _LARGEST_JOB, 0.0, 1.0
    counter = COUNTERS[column]
    whole, missing = float(counter.storage == "i64"), float(counter.zero_is_missing)
    return factor(unit, BY_NAME[counter.name].unit), counter.low, counter.high, whole, missing


def _raw_job(written: str | None) -> str | None:
    """The raw id of a job; None for none, and for what is no job id."""
    try:
        return None if written is None else job_id(written).raw
    except BadRowError:
        return None


def _own_host(series: Iterable[tuple[str, Mapping[str, str]]]) -> str | None:
    """The host that a page names for itself."""
    hosts = {labels.get("nodename") for metric, labels in series if metric == NODE_INFO}
    return hosts.pop() if len(hosts) == 1 else None
