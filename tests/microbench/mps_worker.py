"""A process as under MPS, on a simulated GPU: `python mps_worker.py BEHAVIOUR`."""

from __future__ import annotations

import os
import sys
import time

from microbench.simulated_device import SimulatedGpu
from microbench.worker import serve


def main(behaviour: str) -> None:
    if behaviour == "dies":
        os._exit(3)
    if behaviour == "hangs":
        time.sleep(600)
    share = float(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) / 100
    device = SimulatedGpu(noise=0.0, endless=frozenset({"dmul_1"}), fails=frozenset({"dmul_2"}))
    plain = device.alone
    device.alone = lambda *words: plain(*words) / share  # type: ignore[method-assign]
    serve(device, sys.stdin, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
