"""GPM: what NVML measures between two samples of a GPU, on Hopper and newer; the counters that elsewhere need DCGM.

Source: nvml.h, "GPM (GPU Performance Monitoring)". A metric has its own return code; NaN means that it was not
measured. The flag that tells whether a GPU supports GPM is not asked: it was seen to lie in both directions, so the
first sample decides.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Floats
from tachograph.counters import COUNTERS
from tachograph.live.sources.nvml_calls import UNKNOWN, Handle, Library
from tachograph.units import factor

MIN_GAP_S = 0.1  # between two samples; metrics of closer ones are noise (nvml.h)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of GPM: its id, the counter it is, the factor to the unit of the catalogue."""

    id: int
    counter: str
    factor: float


METRICS: tuple[Metric, ...] = tuple(
    Metric(int(counter.nvml.split()[1]), counter.name, factor(counter.nvml_unit or "", counter.unit))
    for counter in COUNTERS
    if counter.nvml and counter.nvml.startswith("GPM ")
)


class Metrics:
    """Asks NVML for all metrics between two samples; one for all GPUs, since what it is asked in is large."""

    def __init__(self, nvml: Library) -> None:
        self._nvml = nvml
        self._asked = nvml.c_nvmlGpmMetricsGet_t()
        self._asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._asked.numMetrics = len(METRICS)
        one = nvml.c_nvmlGpmMetric_t
        layout = np.dtype(
            {
                "names": ["id", "code", "value"],
                "formats": ["u4", "u4", "f8"],
                "offsets": [one.metricId.offset, one.nvmlReturn.offset, one.value.offset],
                "itemsize": ctypes.sizeof(one),
            }
        )
        place = nvml.c_nvmlGpmMetricsGet_t.metrics.offset
        rows = np.frombuffer(self._asked, layout, len(METRICS), place)
        rows["id"] = [metric.id for metric in METRICS]
        self._codes, self._values = rows["code"], rows["value"]
        self._factors: Floats = np.array([metric.factor for metric in METRICS])

    def between(self, older: Handle, newer: Handle) -> tuple[Floats, list[int]]:
        """Values in the order of METRICS, NaN missing, and the return code of each. Errors: NVMLError."""
        self._codes[:], self._values[:] = UNKNOWN, np.nan  # what the library leaves alone is not the last answer
        self._asked.sample1, self._asked.sample2 = older, newer
        self._nvml.nvmlGpmMetricsGet(self._asked)
        values = np.where((self._codes == 0) & np.isfinite(self._values), self._values * self._factors, np.nan)
        return values, self._codes.tolist()


class Gauge:
    """The samples of one GPU, or of one MIG slice (its GPU and the id of the GPU instance).

    values: of the last two samples, NaN missing; None as long as there are none. Errors of all calls: NVMLError.
    """

    def __init__(self, nvml: Library, handle: Handle, *, instance: int | None = None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._instance = instance
        self._samples: list[Handle] = []  # of which the first is the one before
        self._taken: float | None = None
        self.values: Floats | None = None
        self.codes: list[int] = []

    def wait_s(self, now: float) -> float:
        """So long until another sample can be taken; 0 where it can be now."""
        return 0.0 if self._taken is None else max(0.0, self._taken + MIN_GAP_S - now)

    def read(self, metrics: Metrics, now: float) -> None:
        """Take a sample and measure since the one before; nothing new where that is too close."""
        if self.wait_s(now) > 0:
            return
        while len(self._samples) < 2:
            self._samples.append(self._nvml.nvmlGpmSampleAlloc())
        before, spare = self._samples
        self._sample(spare)
        first = self._taken is None
        self._taken, self._samples = now, [spare, before]
        if not first:
            self.values, self.codes = None, []
            self.values, self.codes = metrics.between(before, spare)

    def forget(self) -> None:
        """Begin anew: what was sampled is no longer to be compared with."""
        self._taken, self.values, self.codes = None, None, []

    def close(self) -> None:
        """Give the samples back."""
        samples, self._samples = self._samples, []
        self.forget()
        for sample in samples:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:  # the driver went first
                return

    def _sample(self, into: Handle) -> None:
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, into)
        else:  # the handle of a slice is refused here
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._instance, into)
