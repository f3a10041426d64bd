"""Starts the sampling process, reads its lines, and restarts it when it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from tachograph.annexes.watch.pm_sampling.child import PmRequest
from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError
from tachograph.annexes.watch.pm_sampling.library import CudaGpu
from tachograph.annexes.watch.retries import RetryDelay
from tachograph.catalog.processes import python_command
from tachograph.sources.score_sums import PmSums, sums_of

_MODULE = "tachograph.annexes.watch.pm_sampling.child"
_GRACE_S = 5.0  # until SIGKILL: sessions are ended in it
_RESTART_S, _LONGEST_RESTART_S = 5.0, 60.0  # as for a single GPU in the child
_FIRST_S = 20.0  # wait of `begin` for the first session or fault: the library's start takes seconds


@dataclass(frozen=True, slots=True)
class PmDeviceFault:
    """A fault of one GPU; None: of all."""

    gpu: CudaGpu | None
    fault: PmSamplingError


class PmProcess:
    """PM sampling of this node in a child process, restarted after growing pauses.

    gpus: as CUDA lists them, by number; places: theirs in the order of PCI addresses, as NVML
    numbers them; cut: what of PRIORITY is not measured, of each GPU that is sampled.
    """

    def __init__(
        self,
        request: PmRequest,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] = os.environ,
        steady: Callable[[], float] = time.monotonic,
        restart_s: float = _RESTART_S,
    ) -> None:
        self.request = request
        self.gpus: dict[int, CudaGpu] = {}
        self.places: dict[int, int] = {}
        self.cut: dict[int, tuple[str, ...]] = {}
        self._command = list(command or python_command(_MODULE))
        # CUDA's own order is by speed; NVML and Slurm count in the order of PCI addresses
        self._environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environment}
        self._steady, self._retry = steady, RetryDelay(restart_s, _LONGEST_RESTART_S)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._sums: dict[tuple[int, int], PmSums] = {}
        self._faults: dict[int | None, PmSamplingError] = {}
        self._final = False  # it ended by itself: nothing will ever be sampled

    def begin(self) -> None:
        """Start, and wait until a GPU is sampled. Errors: PmSamplingError if none is."""
        self._start()
        until = self._steady() + _FIRST_S
        while self._steady() < until and self._alive and not self.cut:
            if self.gpus and set(self._faults) >= set(self.gpus):
                break
            time.sleep(0.01)
        if not self.cut:
            fault = next((device_fault.fault for device_fault in self.faults()), None)
            self.close()
            raise fault or PmSamplingError(
                "unknown", f"no GPU was sampled within {_FIRST_S:g} s", "try it again"
            )

    def take(self) -> dict[int, list[PmSums]]:
        """Return {GPU: sums of each minute} since the last call; restart a dead process."""
        self._keep_running()
        with self._lock:
            sums, self._sums = self._sums, {}
        by_gpu: dict[int, list[PmSums]] = {}
        for (device, _), minute in sums.items():
            by_gpu.setdefault(device, []).append(minute)
        return by_gpu

    def faults(self) -> list[PmDeviceFault]:
        """Return why GPUs are not sampled now; of one that is sampled again nothing."""
        with self._lock:
            return [
                PmDeviceFault(self.gpus.get(-1 if at is None else at), fault)
                for at, fault in self._faults.items()
            ]

    @property
    def pid(self) -> int | None:
        """Process id."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Stop it, so that it closes sessions and resumes DCGM; may be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        self._final = True
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if self._thread is not None:
            self._thread.join(_GRACE_S)

    @property
    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        request = msgspec.json.encode(self.request).decode()
        self.cut.clear()
        self._process = subprocess.Popen(
            [*self._command, request],
            stdin=subprocess.PIPE,  # which closes when this process is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the library writes arbitrary text there
            env=self._environment,
            start_new_session=True,  # Ctrl-C reaches this process, which ends it
        )
        self._thread = threading.Thread(
            target=self._read, args=(self._process,), name="pm-sampling", daemon=True
        )
        self._thread.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with suppress(ValueError, KeyError):  # a line that was cut off by its death
                    self._take_line(json.loads(line))

    def _take_line(self, document: dict[str, Any]) -> None:
        device = document.get("device")
        with self._lock:
            match document["kind"]:
                case "gpus":
                    gpus = [(CudaGpu(**entry["gpu"]), entry["place"]) for entry in document["gpus"]]
                    self.gpus = {gpu.device: gpu for gpu, _ in gpus}
                    self.places = {gpu.device: index for gpu, index in gpus}
                case "sampled":
                    self.cut[document["device"]] = tuple(document["cut"])
                    self._faults.pop(device, None)
                    self._faults.pop(None, None)
                    self._retry.tries = 0
                case "sums":
                    self._add(document["device"], sums_of(document))
                case "fault":
                    self._faults[device] = PmSamplingError(
                        document["code"], document["what"], document["do"]
                    )
                    self._final |= device is None and not document["retried"]

    def _add(self, device: int, sums: PmSums) -> None:
        earlier = self._sums.get((device, sums.minute))
        if earlier is None:
            self._sums[device, sums.minute] = sums
        else:
            earlier.add(sums)

    def _keep_running(self) -> None:
        """Restart a dead process when due."""
        now = self._steady()
        process = self._process
        if process is not None and not self._alive:
            code = process.wait()
            if process.stdin is not None:
                process.stdin.close()
            self._process = None
            self._retry.failed(now)
            if not self._final and (code < 0 or not self._faults):
                self._faults[None] = _death(code)
        has_ended = self._process is None and self._retry.tries > 0
        if has_ended and not self._final and now >= self._retry.due:
            self._start()


def _death(code: int) -> PmSamplingError:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return PmSamplingError(
        "sampler", f"the process that samples {how}", "other counters continue; it is restarted"
    )
