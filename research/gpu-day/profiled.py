"""One step of a workload between the marks of a profiler: `ncu --profile-from-start off ...
profiled.py NAME`.
"""

from __future__ import annotations

import argparse

from workloads import KERNELS, kernels, load_torch


def main() -> int:
    """Run it twice unprofiled, then once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(KERNELS))
    name = parser.parse_args().name
    torch = load_torch()
    once = kernels(torch)[name]()
    for _ in range(2):
        once()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    once()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
