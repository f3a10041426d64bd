"""The PM sampling process: writes measurements to stdout as JSON lines.

If the library crashes, hangs or is killed, no other counter and no job is affected. It ends on
SIGTERM, on SIGINT, and when its parent is gone, which closes standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from dataclasses import asdict
from types import FrameType
from typing import Any

import msgspec

from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError
from tachograph.annexes.watch.pm_sampling.library import CudaGpu, PmLibrary, list_gpus, load_library
from tachograph.annexes.watch.pm_sampling.sampler import DeviceSampler, PmInterval
from tachograph.annexes.watch.retries import RetryDelay

RETRY_S, LONGEST_RETRY_S = 5.0, 60.0  # until a GPU is tried again, at first and at most


class PmRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to the child. report_s: report interval."""

    interval_s: float = 0.05
    interval_cycles: int | None = None
    buffer_mib: int = 64
    report_s: float = 0.5


class SamplerChild:
    """The GPUs that are sampled, and those that are tried again."""

    def __init__(self, request: PmRequest, library: PmLibrary) -> None:
        self._request, self._library = request, library
        self._samplers: dict[int, DeviceSampler] = {}
        self._waiting: dict[int, tuple[CudaGpu, RetryDelay]] = {}
        self._now = 0.0

    def begin(self) -> None:
        """List the GPUs and start sampling. Errors: PmSamplingError if there are none."""
        listed = sorted(list_gpus(self._library), key=lambda gpu: gpu.pci)
        gpus = [{"gpu": asdict(gpu), "place": index} for index, gpu in enumerate(listed)]
        say("gpus", gpus=gpus, version=self._library.version)
        for gpu in listed:
            self._open(gpu, RetryDelay(RETRY_S, LONGEST_RETRY_S))

    def report(self, passed_s: float) -> None:
        """Write measurements; retry failed GPUs that are due."""
        self._now += passed_s
        for device, sampler in list(self._samplers.items()):
            self._write(sampler)
            if sampler.fault is not None:
                del self._samplers[device]
                sampler.close()
                self._failed(sampler.gpu, sampler.fault, RetryDelay(RETRY_S, LONGEST_RETRY_S))
        for gpu, retry in list(self._waiting.values()):
            if self._now >= retry.due:
                self._open(gpu, retry)

    def end(self) -> None:
        """Write the remaining data, then end all sessions; CUPTI may crash on a second end."""
        for sampler in self._samplers.values():
            sampler.finish()
            self._write(sampler)
        for sampler in self._samplers.values():
            sampler.close()

    @property
    def is_over(self) -> bool:
        """Whether nothing is sampled and nothing will be."""
        return not self._samplers and not self._waiting

    def _open(self, gpu: CudaGpu, retry: RetryDelay) -> None:
        request = self._request
        interval = PmInterval(request.interval_s, request.interval_cycles)
        sampler = DeviceSampler(self._library, gpu, interval, buffer_bytes=request.buffer_mib << 20)
        try:
            sampler.open()
        except PmSamplingError as fault:
            self._failed(gpu, fault, retry)
            return
        self._waiting.pop(gpu.device, None)
        self._samplers[gpu.device] = sampler
        say(
            "sampled",
            device=gpu.device,
            chip=sampler.chip,
            passes=[list(metrics.values()) for metrics in sampler.chosen.passes],
            cut=sampler.chosen.cut,
        )
        sampler.start()

    def _failed(self, gpu: CudaGpu, fault: PmSamplingError, retry: RetryDelay) -> None:
        say_fault(fault, gpu.device)
        self._waiting.pop(gpu.device, None)
        if fault.is_retried:
            retry.failed(self._now)
            self._waiting[gpu.device] = gpu, retry

    def _write(self, sampler: DeviceSampler) -> None:
        for sums in sampler.take():
            say("sums", device=sampler.gpu.device, **sums.as_json())


def say(kind: str, **content: Any) -> None:
    """Write one document."""
    line = memoryview(json.dumps({"kind": kind, **content}).encode() + b"\n")
    while line:  # a pipe takes part of a long line
        line = line[os.write(1, line) :]


def say_fault(fault: PmSamplingError, device: int | None = None) -> None:
    """Write a fault of a GPU, or of all."""
    say(
        "fault",
        device=device,
        code=fault.code,
        what=fault.what,
        do=fault.do,
        retried=fault.is_retried,
    )


def main() -> int:
    """Sample as requested until the end; return the exit code, 1 if nothing can be sampled."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    request = msgspec.json.decode(sys.argv[1], type=PmRequest)
    try:
        return _sample(SamplerChild(request, load_library()), request.report_s)
    except PmSamplingError as fault:
        say_fault(fault)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 0


def _sample(child: SamplerChild, report_s: float) -> int:
    try:
        child.begin()
        while not child.is_over:
            readable, _, _ = select.select([0], [], [], report_s)
            if readable and not os.read(0, 4096):  # the parent is gone
                break
            child.report(report_s)
        return 1 if child.is_over else 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the sessions must be ended
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.end()


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
