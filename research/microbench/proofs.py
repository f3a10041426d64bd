"""Whether kernels load what they are named for: metrics of Nsight Compute, and the least that
each has to reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from microbench.device import BenchDevice
from microbench.experiments import full_loads
from microbench.measure import loaded, time_limit
from microbench.workloads import KERNELS, BenchWorkload
from tachograph.annexes.share.kernel_metrics import OCCUPANCY, pipe_metric
from tachograph.annexes.share.nsight.launches import Launch

PROFILE_COMMAND = "ncu --set full -f -o bench.ncu-rep .venv/bin/python research/calibrate.py --once"
Verdict = Literal["reached", "below", "not measured"]
_ONCE_BYTES = 1 << 30  # of the array of a copy
# A launch of so few rounds takes milliseconds, many times that where a profiler replays it.
_ONCE_S = 5.0
# rounds of a launch that is profiled: caches are empty at its begin, so that arrays in them are
# read often enough
_ONCE_ROUNDS = MappingProxyType(
    {
        "sleep": 1000,
        "copy": 2,
        "sweep": 100,
        "sweep_l1": 100,
        "read": 200,
        "chains": 500,
        "matmul": 20,
    }
)


@dataclass(frozen=True, slots=True)
class KernelClaim:
    """A percentage that a kernel has to reach. `metrics`: names in other versions and on other
    chips; the first counts.

    A name may hold `*` for any word.
    """

    metrics: tuple[str, ...]
    least: float


_DRAM = tuple(
    f"{unit}throughput.avg.pct_of_peak_sustained_elapsed" for unit in ("gpu__dram_", "dram__")
)  # fmt: skip
_L2 = (
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
)
_SHARED = tuple(
    f"l1tex__data_pipe_lsu_wavefronts{of}.avg.pct_of_peak_sustained_{while_}"
    for of in ("_mem_shared", "")
    for while_ in ("active", "elapsed")
)
_TENSOR = (
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor*_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor*.avg.pct_of_peak_sustained_active",
)


def _pipe(pipe: str, least: float) -> tuple[KernelClaim, ...]:
    elapsed = pipe_metric(pipe).replace("_active", "_elapsed")
    return (KernelClaim((pipe_metric(pipe), elapsed), least),)


# Half of an SM sleeps. A load of a thread under way does not fill DRAM; mma.sync does not fill what
# Hopper and Blackwell have for wider instructions; a matrix multiplication of 64 x 64 tiles waits
# for shared memory
PROOFS: Mapping[str, tuple[KernelClaim, ...]] = MappingProxyType(
    {
        "sleep": (KernelClaim((OCCUPANCY,), 40.0),),
        "copy_1": (KernelClaim(_DRAM, 20.0),),
        "copy_4": (KernelClaim(_DRAM, 75.0),),
        "sweep_l2": (KernelClaim(("lts__t_sector_hit_rate.pct",), 90.0),),
        "sweep_l1": (KernelClaim(("l1tex__t_sector_hit_rate.pct",), 90.0),),
        "read_l2": (KernelClaim(_L2, 70.0), KernelClaim(("lts__t_sector_hit_rate.pct",), 90.0)),
        "shared_1": (KernelClaim(_SHARED, 80.0),),
        "shared_8": (KernelClaim(_SHARED, 80.0),),
        **{f"fmul_{chains}": _pipe("fma", 70.0) for chains in (1, 2, 3, 4)},
        **{f"dmul_{chains}": _pipe("fp64", 70.0) for chains in (1, 2, 3, 4)},
        **{f"alu_{chains}": _pipe("alu", 70.0) for chains in (1, 4)},
        **{f"xu_{chains}": _pipe("xu", 70.0) for chains in (1, 4)},
        "tensor_1": (KernelClaim(_TENSOR, 20.0),),
        "tensor_4": (KernelClaim(_TENSOR, 40.0),),
        "matmul": _pipe("fma", 25.0),
    }
)


@dataclass(frozen=True, slots=True)
class KernelProof:
    """What a report says of one claim: percentage, None where not measured, and the least that
    is wanted.
    """

    kernel: str
    metric: str
    value: float | None
    least: float

    @property
    def verdict(self) -> Verdict:
        """Whether it was reached."""
        if self.value is None:
            return "not measured"
        return "reached" if self.value >= self.least else "below"


def proofs(launches: Iterable[Launch]) -> tuple[KernelProof, ...]:
    """Return what launches prove of each kernel; of several launches of a kernel the highest
    value counts.
    """
    by_kernel: dict[str, list[Launch]] = {}
    for launch in launches:
        by_kernel.setdefault(_plain(launch.kernel), []).append(launch)
    return tuple(
        _proof(kernel, claim, by_kernel.get(kernel, ()))
        for kernel, claims in PROOFS.items()
        for claim in claims
    )


def _plain(name: str) -> str:
    """The name without its parameters, and without what it returns.

    >>> _plain("void fmul_4(const float *, float *)"), _plain("fmul_4")
    ('fmul_4', 'fmul_4')
    """
    return name.partition("(")[0].split()[-1] if name.partition("(")[0].split() else name


def _proof(kernel: str, claim: KernelClaim, launches: Sequence[Launch]) -> KernelProof:
    for wanted in claim.metrics:
        found = [pair for launch in launches for pair in _values(launch.metrics, wanted)]
        if found:
            value, metric = max(found)
            return KernelProof(kernel, metric, value, claim.least)
    return KernelProof(kernel, claim.metrics[0], None, claim.least)


def _values(metrics: Mapping[str, float], wanted: str) -> Iterator[tuple[float, str]]:
    if "*" not in wanted:
        if wanted in metrics:
            yield metrics[wanted], wanted
        return
    pattern = re.compile(re.escape(wanted).replace(r"\*", r"\w*"))
    yield from ((value, name) for name, value in metrics.items() if pattern.fullmatch(name))


def launch_once(
    device: BenchDevice, kernels: Sequence[str] = tuple(KERNELS)
) -> Iterator[tuple[BenchWorkload, float]]:
    """Yield each kernel's launch and its time in s: once, alone, of few rounds, so that profiling
    is quick.

    Errors: LaunchError.
    """
    planned = full_loads(device.gpu, min(_ONCE_BYTES, device.free_bytes() / 4))
    for kernel in kernels:
        workload = planned[kernel]
        with loaded(device, [workload]) as (one,):
            begin = device.mark(0)
            arguments = (*one.arrays, *workload.numbers(_ONCE_ROUNDS[workload.kind]), one.pace)
            device.launch(
                kernel,
                blocks=workload.blocks,
                threads=workload.threads,
                arguments=arguments,
                stream=0,
            )
            end = device.mark(0)
            device.wait([begin, end], time_limit(_ONCE_S))
            yield workload, device.seconds(begin, end)
