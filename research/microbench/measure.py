"""How long launches take: alone, one after the other, together. Times are taken on the GPU, by
marks in its streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from microbench.device import BenchDevice, HangingError, LaunchError, Mark, MemoryFullError
from microbench.workloads import WARP, BenchWorkload

_PACE = 16  # bytes of what a kernel writes: cycles of an SM, and the ns in which they passed
_CURTAIN = 500  # us, rounds of `sleep`
_PATIENCE = 50.0  # times the expected duration, plus a margin
_GRACE_S = 10.0
_FIRST_S = 60.0  # nothing is expected yet
_NEAR = 0.03  # of the required rounds
_ACCEPTED = 0.5  # of the target time, where it changes from launch to launch
_RESOLUTION_S = 1e-7
_GROWTH = 100  # of the rounds from one trial to the next, at most
_TRIALS = 12


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """A workload whose arrays are on the GPU. Addresses are in the order of the kernel's
    parameters.
    """

    workload: BenchWorkload
    arrays: tuple[int, ...]
    pace: int


@dataclass(frozen=True, slots=True)
class AloneRun:
    """One launch without another: its time, and the cycles of an SM in that time; 0 where not
    reported.

    `each_s`: times of all launches of which it is the one of the median time; empty where it is the
    only one.
    """

    rounds: int
    seconds: float
    cycles: int
    each_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PairedRun:
    """Two launches at once: what each took from the common start, and both."""

    first_s: float
    second_s: float

    @property
    def seconds(self) -> float:
        """Until the later one ended."""
        return max(self.first_s, self.second_s)


@contextmanager
def loaded(
    device: BenchDevice, workloads: Sequence[BenchWorkload]
) -> Iterator[tuple[LoadedWorkload, ...]]:
    """Keep the arrays of all workloads on the GPU while the block runs; each has its own.

    Errors: MemoryFullError, also where less is free than they take.
    """
    needed, free = sum(workload.bytes_needed for workload in workloads), device.free_bytes()
    if needed > free:
        raise MemoryFullError(f"{needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free")
    with ExitStack() as stack:

        def take(size: int, ones: str = "") -> int:
            address = device.allocate(size, ones=ones)
            stack.callback(device.free, address)
            return address

        ready = tuple(
            LoadedWorkload(
                workload,
                tuple(
                    take(size, "double" if doubles else "float")
                    for size, doubles in workload.array_bytes
                ),
                take(_PACE),
            )
            for workload in workloads
        )
        try:
            yield ready
        except HangingError:
            # Memory is freed only when the kernel has ended, and this one does not end.
            stack.pop_all()
            raise


def tune(device: BenchDevice, one: LoadedWorkload, target_s: float) -> AloneRun:
    """Return a launch that takes about `target_s` alone, one round at least; the kernel is loaded
    and warm then.

    Errors: LaunchError where no number of rounds does.
    """
    rounds, limit_s = 1, _FIRST_S
    found = alone(device, one, rounds, limit_s=limit_s)
    for _ in range(_TRIALS):
        found = alone(device, one, rounds, limit_s=limit_s)
        wanted = max(1, round(rounds * target_s / max(found.seconds, _RESOLUTION_S)))
        if abs(wanted - rounds) <= _NEAR * rounds:
            return found
        rounds, limit_s = min(wanted, rounds * _GROWTH), time_limit(target_s)
    if abs(found.seconds / target_s - 1.0) > _ACCEPTED:
        raise LaunchError(
            f"{one.workload.words}: no number of rounds takes {target_s * 1e3:.0f} ms",
            do="give another --duration",
        )
    return found


def time_limit(expected_s: float) -> float:
    """Return the time limit, s, for a step with this expected duration."""
    return _GRACE_S + _PATIENCE * expected_s


def alone(device: BenchDevice, one: LoadedWorkload, rounds: int, *, limit_s: float) -> AloneRun:
    """Return how long one launch takes by itself."""
    begin = _begin(device, one)
    _launch(device, one, rounds, 0)
    end = device.mark(0)
    device.wait([begin, end], limit_s)
    seconds = device.seconds(begin, end)
    cycles, ns = device.numbers(one.pace, 2)
    return AloneRun(rounds, seconds, round(seconds * 1e9 * cycles / ns) if ns > 0 else 0)


def middle(device: BenchDevice, one: LoadedWorkload, rounds: int, *, runs: int) -> AloneRun:
    """Return the launch of the median time, of so many that ran alone."""
    limit_s = _FIRST_S
    found = []
    for _ in range(runs):
        found.append(alone(device, one, rounds, limit_s=limit_s))
        limit_s = time_limit(found[0].seconds)
    chosen = sorted(found, key=lambda each: each.seconds)[(runs - 1) // 2]
    return replace(chosen, each_s=tuple(each.seconds for each in found))


def in_turn(
    device: BenchDevice, launches: Sequence[tuple[LoadedWorkload, int]], *, limit_s: float
) -> float:
    """Return how long launches take one after the other: (workload, rounds) of each."""
    begin = _begin(device, launches[0][0])
    for one, rounds in launches:
        _launch(device, one, rounds, 0)
    end = device.mark(0)
    device.wait([begin, end], limit_s)
    return device.seconds(begin, end)


def together(
    device: BenchDevice,
    first: tuple[LoadedWorkload, int],
    second: tuple[LoadedWorkload, int],
    *,
    limit_s: float,
) -> PairedRun:
    """Return how long two launches take that begin at once, in two streams."""
    begin = _begin(device, first[0])
    device.follow(1, begin)
    for stream, (one, rounds) in enumerate((first, second)):
        _launch(device, one, rounds, stream)
    ends = [device.mark(0), device.mark(1)]
    device.wait([begin, *ends], limit_s)
    return PairedRun(device.seconds(begin, ends[0]), device.seconds(begin, ends[1]))


def _begin(device: BenchDevice, one: LoadedWorkload) -> Mark:
    """A mark that is reached when all that is timed is in its stream, as long as the host is not
    slower than that.

    Else the time of the first launch begins before it is there, and a second one comes late by what
    the host needs.
    """
    device.launch("sleep", blocks=1, threads=WARP, arguments=(_CURTAIN, one.pace), stream=0)
    return device.mark(0)


def _launch(device: BenchDevice, one: LoadedWorkload, rounds: int, stream: int) -> None:
    workload = one.workload
    device.launch(
        workload.kernel,
        blocks=workload.blocks,
        threads=workload.threads,
        arguments=(*one.arrays, *workload.numbers(rounds), one.pace),
        stream=stream,
    )
