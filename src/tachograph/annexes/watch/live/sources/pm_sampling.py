"""CUPTI PM sampling as a live source; other counters come from NVML.

The samples come from a process of its own. Where it dies, or a GPU refuses to be sampled, the other
counters go on, and it is reported and tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    LiveSource,
    PmMeasurement,
    Snapshot,
    SourceInfo,
    SourceProblem,
    closed_on_failure,
)
from tachograph.annexes.watch.live.sources import nvml
from tachograph.annexes.watch.pm_sampling.feed import PmSettings, pm_request, pm_settings
from tachograph.annexes.watch.pm_sampling.library import CudaGpu, this_host
from tachograph.annexes.watch.pm_sampling.process import PmProcess
from tachograph.catalog.arrays import Floats
from tachograph.catalog.devices import match_device
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.units import plural, text
from tachograph.sources.score_sums import PmSums, total

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration


NAME: Final = "nvml"  # by whose rules GPUs are numbered and counters are enabled
# of these the values are of PM sampling alone
_OWN: Final = (
    "sm_active",
    "sm_occupancy",
    "dram_active",
    "tensor_active",
    "fp64_active",
    "fp32_active",
)
# Means of a span; NVML's are instantaneous, and usual.
_SPARE: Final = ("sm_clock_mhz", "mem_clock_mhz")


class PmSource:
    """PM sampling of this node. others: source of other counters; None: only CUDA's GPUs."""

    def __init__(
        self,
        process: PmProcess,
        others: LiveSource | None,
        *,
        node: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._process, self._others, self._node, self._clock = process, others, node, clock
        self._measured: set[str] = set()

    @property
    def about(self) -> SourceInfo:
        """Description of the source; counters that neither reports are unsupported."""
        gpus = plural(len(self._process.cut), "GPU")
        request = self._process.request
        interval = text(request.interval_s, "s")
        if request.interval_cycles:
            interval = f"{request.interval_cycles:,} cycles"
        sentence = f"PM sampling of {gpus}, a sample every {interval}"
        cut = sorted(set[str]().union(*self._process.cut.values()))
        if cut:
            sentence += f" ({', '.join(cut)}: in passes that alternate, or not at all)"
        if self._others is None:
            return SourceInfo(NAME, sentence, unsupported={})
        about = self._others.about
        missing = {
            name: how for name, how in about.unsupported.items() if name not in self._measured
        }
        return replace(
            about, name=NAME, sentence=f"{sentence}; {about.sentence}", unsupported=missing
        )

    def read(self) -> Snapshot:
        """Return the other counters now, and activities since the last call."""
        snapshot = self._listed() if self._others is None else self._others.read()
        sums = self._process.take()
        row_of_device = self._rows_of_devices(snapshot)
        values = {name: column.copy() for name, column in snapshot.values.items()}
        measured = snapshot.measured.copy()
        for name in _OWN:  # never two ways in one column
            if name in self._measured:
                values[name] = np.full(len(snapshot.gpus), np.nan)
        pm: list[PmMeasurement] = []
        for device, row in row_of_device.items():
            whole = total(sums.get(device, []))
            if whole is not None and whole.samples:
                self._fill(values, row, whole, snapshot.device(row), len(snapshot.gpus))
                measured[row] = whole.end if np.isnan(measured[row]) else measured[row]
            if device in sums:
                cut = self._process.cut.get(device, ())
                pm.append(PmMeasurement(snapshot.gpus[row], tuple(sums[device]), cut))
        problems = (*snapshot.problems, *self._problems(snapshot, row_of_device))
        return replace(snapshot, values=values, measured=measured, problems=problems, pm=tuple(pm))

    def close(self) -> None:
        """End the sampling process, and the other source."""
        self._process.close()
        if self._others is not None:
            self._others.close()

    def _fill(
        self, values: dict[str, Floats], row: int, whole: PmSums, device: GpuDevice, count: int
    ) -> None:
        model = match_device(device.model)
        for name, value in whole.counters(
            None if model is None else model.max_warps_per_sm
        ).items():
            if name in _SPARE and name in values and not np.isnan(values[name][row]):
                continue
            if name not in values:
                values[name] = np.full(count, np.nan)
            values[name][row] = min(value, 1.0) if name in _OWN else value
            self._measured.add(name)

    def _rows_of_devices(self, snapshot: Snapshot) -> Mapping[int, int]:
        """{CUDA's number: row}, by UUID; whole GPUs alone."""
        rows = {
            snapshot.device(row).uuid: row
            for row, gpu in enumerate(snapshot.gpus)
            if gpu.mig is None
        }
        return {
            gpu.device: rows[gpu.uuid] for gpu in self._process.gpus.values() if gpu.uuid in rows
        }

    def _problems(
        self, snapshot: Snapshot, row_of_device: Mapping[int, int]
    ) -> tuple[SourceProblem, ...]:
        problems = []
        for failed in self._process.faults():
            row = None if failed.gpu is None else row_of_device.get(failed.gpu.device)
            where = self._node if row is None else snapshot.gpus[row].name
            problems.append(
                SourceProblem(f"PM sampling: {failed.fault.what}", where, failed.fault.do)
            )
        return tuple(problems)

    def _listed(self) -> Snapshot:
        """GPUs as CUDA lists them, in the order of their addresses, without values."""
        indices = self._process.places
        devices = {
            GpuId(self._node, indices[at]): _device(gpu)
            for at, gpu in sorted(self._process.gpus.items())
        }
        return Snapshot(self._clock(), tuple(devices), np.full(len(devices), np.nan), {}, devices)


def _device(gpu: CudaGpu) -> GpuDevice:
    return GpuDevice(gpu.model, gpu.uuid, gpu.pci)


def connect(configuration: Configuration, *, settings: PmSettings | None = None) -> PmSource:
    """Return running PM sampling of this node, with settings as in `source = "pm-sampling"`.

    NVML may be absent.
    Errors: PmSamplingError where no GPU can be sampled.
    """
    sampling = settings or pm_settings(configuration)
    process = PmProcess(pm_request(sampling))
    with closed_on_failure(process.close):
        process.begin()
        try:
            others: LiveSource | None = nvml.connect(configuration)
        except NotFoundError:
            others = None
    return PmSource(process, others, node=this_host())
