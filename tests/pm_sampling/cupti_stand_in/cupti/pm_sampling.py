from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import scenario
from .cupti import PmSamplingHardwareBufferAppendMode as HardwareBufferAppendMode
from .cupti import PmSamplingTriggerMode as TriggerMode
from .cupti import Result, cuptiError, fail
from .profiler_host import SHARE, ProfilerHost, ProfilerType, get_num_of_passes

SYSCLK_HZ = 1.41e9
RECORD_BYTES = 4096  # of one sample in the buffer


@dataclass(frozen=True)
class Sample:
    start_timestamp: int
    end_timestamp: int
    metric_values: list[float]


class CounterData:
    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)


class Collector:
    def __init__(self, device_index: int = 0) -> None:
        self._device_index = device_index
        self._enabled = self._started = self._overflowed = False
        self._metrics: list[str] = []
        self._interval_ns = self._capacity = self._next = 0
        self._is_first = False

    def enable(self) -> None:
        fail(self._device_index, "enable")
        self._enabled = True

    def configure(
        self,
        *,
        metrics: list[str],
        hardware_buffer_size: int = 512 * 1024 * 1024,
        sampling_interval: int = 10000,
        trigger_mode: TriggerMode = TriggerMode.GPU_TIME_INTERVAL,
        hw_buffer_append_mode: HardwareBufferAppendMode = HardwareBufferAppendMode.KEEP_OLDEST,
        single_pass_metric_set_name: str | None = None,
    ) -> None:
        fail(self._device_index, "configure")
        if self._started:
            raise cuptiError(Result.ERROR_INVALID_OPERATION)
        chip = scenario.gpu(self._device_index)["chip"]
        host = ProfilerHost(chip, ProfilerType.PM_SAMPLING, single_pass_metric_set_name)
        host.initialize()
        one_pass = get_num_of_passes(host.create_config_image(metrics)) == 1
        timed = trigger_mode == TriggerMode.GPU_TIME_INTERVAL
        if not one_pass or (timed and chip.startswith(("TU1", "GA100"))):
            raise ValueError("Requested PM sampling configuration is not supported. ")
        self._metrics = list(metrics)
        self._interval_ns = (
            sampling_interval if timed else round(sampling_interval / SYSCLK_HZ * 1e9)
        )
        self._capacity = hardware_buffer_size // RECORD_BYTES

    def start(self) -> None:
        if self._started:
            raise RuntimeError("PM Sampling collection has already started")
        fail(self._device_index, "start")
        self._started, self._overflowed, self._next = True, False, scenario.now_ns()
        self._is_first = True

    def stop(self) -> None:
        if not self._started:
            raise RuntimeError("PM Sampling collection has already stopped")
        self._started = False

    def decode(self, max_samples: int = 10000) -> CounterData:
        if not self._enabled:
            raise RuntimeError("Collector is not enabled. Call enable() first.")
        fail(self._device_index, "decode")
        kernel = scenario.gpu(self._device_index).get("kernel", {})
        if kernel.get("crash"):
            os.kill(os.getpid(), signal.SIGSEGV)
        waiting = max(0, (scenario.now_ns() - self._next) // self._interval_ns)
        if waiting > self._capacity or self._overflowed:
            self._overflowed = True
            raise MemoryError("Record overflow in the hardware buffer. ")
        samples = []
        for _ in range(min(waiting, max_samples)):
            begin, self._next = self._next, self._next + self._interval_ns
            if self._is_first:
                begin, self._is_first = kernel.get("first_begin", begin), False
            samples.append(
                Sample(
                    begin,
                    self._next,
                    [_value(metric, begin, self._interval_ns, kernel) for metric in self._metrics],
                )
            )
        return CounterData(samples)

    def disable(self) -> None:
        self._enabled = self._started = False


def _value(metric: str, begin_ns: int, length_ns: int, kernel: dict[str, Any]) -> float:
    """What a kernel counts in a sample; with `on` and `off` (ns) it runs for the one and rests
    for the other.
    """
    length_s = length_ns / 1e9
    sm, dram = kernel.get("sm_hz", 1.98e9) * length_s, kernel.get("dram_hz", 3.201e9) * length_s
    on, off = kernel.get("on", 1), kernel.get("off", 0)
    works = 1.0 if math.fmod(begin_ns, on + off) < on else 0.0
    active = works * kernel.get("sm_active", 0.5)
    counted: dict[str, float] = {
        "sm__cycles_active.avg": active * sm,
        "sm__cycles_elapsed.avg": sm,
        "gpc__cycles_elapsed.max": 1.04 * sm,  # as on an H100
        "gpc__cycles_elapsed.avg": 1.04 * sm,
        "sm__cycles_elapsed.max": sm,
        "sm__cycles_active.sum": 132 * active * sm,
        f"sm__cycles_active{SHARE}": 100 * active,
        "sm__pipe_tensor_cycles_active.avg": works * kernel.get("tensor", 0.1) * sm,
        "sm__warps_active.avg": active * sm * kernel.get("warps", 16.0),
        "dram__cycles_active.avg": works * kernel.get("dram_active", 0.25) * dram,
        "dram__cycles_elapsed.avg": dram,
    }
    if metric in counted:
        return counted[metric]
    if not sm:
        return math.nan
    for pipe, share in {
        "tensor": ("tensor", 0.1),
        "fp64": ("fp64", 0.0),
        "fma": ("fp32", 0.2),
    }.items():
        if f"pipe_{pipe}_" in metric.replace(".avg", "_") and metric.endswith(SHARE):
            return 100.0 * works * float(kernel.get(*share))
    raise cuptiError(Result.ERROR_INVALID_PARAMETER)
