"""The fleet of a view as a table is made of it: texts and numbers by row, and what they are called.

`NUMBERS` are what can be sorted by, filtered by, drawn as a heat map; `TEXTS` what can be grouped and filtered by.
Any counter of the catalogue may be named, too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np

from tachograph.arrays import Floats, Ints
from tachograph.counters import BY_NAME as COUNTERS
from tachograph.errors import UsageError
from tachograph.live.snapshot import Gpu
from tachograph.live.view import View
from tachograph.units import printable
from tachograph.workload.classes import CLASSES
from tachograph.workload.health import STATES, WORST_FIRST

# short name of a number -> counter; `real`, `mem` and `age` are no counters
SHORT: Mapping[str, str] = MappingProxyType(
    {
        "util": "gpu_util",
        "sm": "sm_active",
        "occ": "sm_occupancy",
        "tensor": "tensor_active",
        "dram": "dram_active",
        "fp64": "fp64_active",
        "fp32": "fp32_active",
        "fp16": "fp16_active",
        "power": "power_w",
        "temp": "gpu_temp_c",
        "memtemp": "mem_temp_c",
        "clock": "sm_clock_mhz",
        "rx": "pcie_rx_bytes_per_s",
        "tx": "pcie_tx_bytes_per_s",
    }
)
NUMBERS = ("real", *SHORT, "mem", "nvlink", "held", "age")
TEXTS = ("gpu", "node", "job", "user", "class", "health", "model")
GROUPS = ("node", "job", "user", "class")
GIB = 1024.0  # MiB
_HEALTH_RANK = np.array([len(STATES) - WORST_FIRST.index(state) for state in STATES], np.float64)


class FleetRows:
    """One row per GPU of a view. Texts are "" and numbers NaN where nothing was told. Columns are made when asked for.

    before: the rows of an earlier view, of which is kept what is still so.
    """

    def __init__(self, view: View, before: FleetRows | None = None) -> None:
        self.view = view
        self.gpus = view.snapshot.gpus
        same = before is not None and before.gpus == self.gpus
        self._roster: _Roster = before._roster if before is not None and same else _Roster(self.gpus)
        self._numbers: dict[str, Floats] = {}
        self._texts: dict[str, Sequence[str]] = {}

    def __len__(self) -> int:
        """How many GPUs."""
        return len(self.gpus)

    def number(self, name: str) -> Floats:
        """Return a column of numbers: one of NUMBERS, or a counter, in its unit (mem in GiB, held and age in s).

        Errors: UsageError naming the closest.
        """
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = self._number(number_name(name))
        return found

    def text(self, name: str) -> Sequence[str]:
        """Return a column of texts, one of TEXTS."""
        found = self._texts.get(name)
        if found is None:
            found = self._texts[name] = self._text(name)
        return found

    @cached_property
    def health_rank(self) -> Floats:
        """How bad the health is; the worst is the highest."""
        return _HEALTH_RANK[self.view.health]

    @cached_property
    def memory_gib(self) -> Floats:
        """Memory that there is, as far as it is told."""
        devices = self.view.snapshot.devices
        told = np.array([getattr(devices.get(gpu), "hbm_mib", None) for gpu in self.gpus], np.float64)
        free = self.view.snapshot.column("hbm_used_mib") + self.view.snapshot.column("hbm_free_mib")
        return np.where(np.isnan(told), free, told) / GIB

    @property
    def place(self) -> Ints:
        """Rank of each GPU by name, numbers in names compared as numbers."""
        return self._roster.places

    def _number(self, name: str) -> Floats:
        snapshot = self.view.snapshot
        match name:
            case "real":
                return self.view.real
            case "age":
                return self.view.stale_s
            case "mem":
                return snapshot.column("hbm_used_mib") / GIB
            case "nvlink":
                return snapshot.column("nvlink_tx_bytes_per_s") + snapshot.column("nvlink_rx_bytes_per_s")
            case "held":
                since = [getattr(snapshot.holders.get(gpu), "since", None) for gpu in self.gpus]
                return snapshot.t - np.array(since, np.float64)
            case _:
                return snapshot.column(SHORT.get(name, name))

    def _text(self, name: str) -> Sequence[str]:
        snapshot = self.view.snapshot
        match name:
            case "gpu":
                return self._roster.names
            case "node":
                return self._roster.nodes
            case "job":
                return self._of_holders("job_id")
            case "user":
                return self._of_holders("user")
            case "class":
                return [CLASSES[label] for label in self.view.labels.tolist()]
            case "health":
                return [STATES[state] for state in self.view.health.tolist()]
            case "model":
                return [printable(getattr(snapshot.devices.get(gpu), "model", None) or "") for gpu in self.gpus]
            case _:
                raise no_column(name)

    def _of_holders(self, name: str) -> list[str]:
        holders = self.view.snapshot.holders
        return [printable(getattr(holders.get(gpu), name, None) or "") for gpu in self.gpus]


def number_name(name: str) -> str:
    """Return the name of a column of numbers as given.

    Errors: UsageError when there is none, naming the closest.
    """
    if name in NUMBERS or name in COUNTERS:
        return name
    raise no_column(name)


def no_column(name: str) -> UsageError:
    """Return what to tell of a name that is none."""
    close = difflib.get_close_matches(name.lower(), [*TEXTS, *NUMBERS, *COUNTERS], n=1, cutoff=0.4)
    return UsageError(f"no column {name!r}", do=f"did you mean {close[0]}?" if close else "Tab shows those there are")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return what names are compared by, so that nid9 comes before nid10.

    >>> sorted(["nid10", "nid9", "x"], key=natural)
    ['nid9', 'nid10', 'x']
    """
    parts = ((part, part.lstrip("0")) for part in re.findall(r"[0-9]+|[^0-9]+", name))
    # digits as text, the longer number the larger: `int` refuses thousands of them
    return tuple((0, len(digits), digits) if "0" <= part[0] <= "9" else (1, 0, part) for part, digits in parts)


class _Roster:
    """What hardly ever changes: names of GPUs and their ranks."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self.gpus = gpus
        self.names = tuple(printable(gpu.name) for gpu in gpus)
        self.nodes = tuple(printable(gpu.node) for gpu in gpus)
        rank = {node: place for place, node in enumerate(sorted(set(self.nodes), key=natural))}
        mig = [-1 if gpu.mig is None else gpu.mig for gpu in gpus]
        keys = [(rank[node], gpu.gpu, part) for node, gpu, part in zip(self.nodes, gpus, mig, strict=True)]
        self.places: Ints = np.empty(len(gpus), np.int32)
        self.places[sorted(range(len(gpus)), key=keys.__getitem__)] = np.arange(len(gpus), dtype=np.int32)
