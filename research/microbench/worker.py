"""One of the processes that share a GPU under MPS: takes orders as lines of JSON, answers each with
one.

Its share of the SMs is in its environment: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, which CUDA reads when
it starts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TextIO

import msgspec

from microbench.device import BenchDevice
from microbench.measure import LoadedWorkload, alone, loaded, tune
from microbench.workloads import BenchWorkload
from tachograph.catalog.errors import TachographError

Order = dict[str, Any]


def serve(device: BenchDevice, orders: TextIO, answers: TextIO) -> None:
    """Execute the orders until the last line: load a workload, tune it, run it at a time of the
    monotonic clock.
    """
    with ExitStack() as stack:
        ready: list[LoadedWorkload] = []

        def load(order: Order) -> Order:
            stack.pop_all().close()
            ready[:] = stack.enter_context(
                loaded(device, [msgspec.convert(order["workload"], BenchWorkload)])
            )
            return {}

        def tuned(order: Order) -> Order:
            found = tune(device, ready[0], order["target_s"])
            return {"rounds": found.rounds, "seconds": found.seconds, "cycles": found.cycles}

        def run(order: Order) -> Order:
            begin = order.get("at_s")
            while begin is not None and (left := begin - time.monotonic()) > 0:
                # Both processes poll the same clock, closely at the end.
                time.sleep(left if left > 0.002 else 0)
            return {
                "seconds": alone(
                    device, ready[0], order["rounds"], limit_s=order["limit_s"]
                ).seconds
            }

        actions: dict[str, Callable[[Order], Order]] = {"load": load, "tune": tuned, "run": run}
        for order in _orders(orders):
            try:
                answer = actions[order["do"]](order)
            except TachographError as problem:
                answer = {"problem": str(problem)}
            answers.write(msgspec.json.encode(answer).decode() + "\n")
            answers.flush()


def _orders(lines: TextIO) -> Iterator[Order]:
    for line in lines:
        yield msgspec.json.decode(line)


def main() -> None:
    """Serve the GPU whose number is the only argument."""
    from microbench.cuda_device import CudaDevice

    with os.fdopen(0) as orders, os.fdopen(1, "w") as answers:
        try:
            device = CudaDevice(int(sys.argv[1]))
        except TachographError as problem:
            answers.write(msgspec.json.encode({"problem": str(problem)}).decode() + "\n")
            return
        serve(device, orders, answers)


if __name__ == "__main__":
    main()
