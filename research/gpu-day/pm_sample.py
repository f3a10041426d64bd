"""PM sampling of one GPU: a line of JSON per second, and at the end one of the whole time.

python pm_sample.py --gpu GPU-8932f937-d72c [--interval S | --interval-cycles N] [--duration S]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tachograph.annexes.watch.pm_sampling.child import PmRequest
from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError
from tachograph.annexes.watch.pm_sampling.process import PmProcess
from tachograph.sources.score_sums import PmSums, total, warps_of

_EVERY_S = 1.0


def main() -> int:
    """Print what is sampled until the end; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--interval", type=float, default=0.05)
    parser.add_argument("--interval-cycles", type=int)
    parser.add_argument("--duration", type=float, default=float("inf"))
    arguments = parser.parse_args()
    request = PmRequest(arguments.interval, arguments.interval_cycles)
    # CUDA lists this GPU alone
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": arguments.gpu}
    process = PmProcess(request, environment=environment)
    minutes: list[PmSums] = []
    end = time.monotonic() + arguments.duration
    try:
        process.begin()
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(_EVERY_S, left_s))
            minutes += _taken(process, "period")
        process.close()  # it delivers what was not reported yet
        minutes += _taken(process, "period")
        _print(process, minutes, "whole")
    except PmSamplingError as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    finally:
        process.close()
    return 0


def _taken(process: PmProcess, kind: str) -> list[PmSums]:
    """Print and return the sums since the last call."""
    sums = [minute for every in process.take().values() for minute in every]
    _print(process, sums, kind)
    return sums


def _print(process: PmProcess, sums: list[PmSums], kind: str) -> None:
    whole = total(sums)
    if whole is None:
        return
    gpu = next(iter(process.gpus.values()))
    row = whole.row(node="", gpu=0, mig=None, max_warps=warps_of(gpu.model), cut=None)
    sys.stdout.write(json.dumps({"kind": kind, **row}, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
