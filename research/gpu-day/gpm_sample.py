"""NVML's counters of one GPU, GPM's among them: `python gpm_sample.py --gpu 0 --interval 0.5`. A
line of JSON per reading, until it is ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from tachograph.annexes.watch.live.sources import nvml
from tachograph.catalog.config import Configuration

COUNTERS = (
    "gr_engine_active",
    "sm_active",
    "sm_occupancy",
    "dram_active",
    "tensor_active",
    "fp64_active",
    "fp32_active",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "power_w",
    "throttle_reasons",
)


def main() -> int:
    """Print a reading after each interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--interval", type=float, default=0.5)
    arguments = parser.parse_args()
    source = nvml.connect(Configuration())
    try:
        while True:
            time.sleep(arguments.interval)
            snapshot = source.read()
            (row,) = (
                row
                for row, gpu in enumerate(snapshot.gpus)
                if gpu.gpu == arguments.gpu and gpu.mig is None
            )
            values = {name: snapshot.values.get(name) for name in COUNTERS}
            known = {
                name: float(column[row])
                for name, column in values.items()
                if column is not None and not np.isnan(column[row])
            }
            sys.stdout.write(json.dumps({"t": time.time(), **known}) + "\n")
            sys.stdout.flush()
    finally:
        source.close()


if __name__ == "__main__":
    sys.exit(main())
