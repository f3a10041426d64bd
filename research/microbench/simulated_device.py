"""A simulated GPU that keeps to laws written here, so that what the runner makes of its times can
be foretold.

Streams go on at once; a launch that shares the GPU goes on at the rate that `rate` says. Times
carry a little noise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from microbench.device import HangingError, Lanes, LaunchError, MemoryFullError
from tachograph.annexes.share.demand import H100_NVL, GpuCapacity

CLOCK_HZ = 1.7e9
CURVATURE, SLOPE = 0.571, 0.2133 * (1 + 0.571 * 0.2133**2) / 33  # of u (1 + c u^2) = k b
BANDWIDTH = 2.4e12  # achieved, byte/s
L2_HIT_S, L1_HIT_S = 1 / 2.5e12, 1 / 1.2e12  # per byte
L2_BANDWIDTH = 5.2e12  # read, byte/s
L2_COST, L1_COST = 3.0, 5.0
L2_LAW, L1_LAW = (0.85, 1.4), (0.8, 1.7)  # knee, cliff
_LANES = Lanes(128, 64)
CAPACITIES = MappingProxyType({"l2": H100_NVL.l2_bytes or 0.0, "l1": H100_NVL.l1_bytes or 0.0})
# Of a scheduler, per instruction.
CYCLES = MappingProxyType({"alu": 2.0, "xu": 8.0, "tensor": 8.0, "shared": 4.0})
LATENCY = MappingProxyType({"alu": 5.0, "xu": 20.0, "tensor": 33.0, "shared": 30.0})
# Instructions of a chain in a round.
COUNTS = MappingProxyType({"alu": 128, "xu": 64, "tensor": 16, "shared": 16})


@dataclass(eq=False)
class SimulatedMark:
    """A point in a stream; `time` is taken when the stream gets there."""

    time: float | None = None


@dataclass(eq=False)
class SimulatedLaunch:
    """A launch in a stream."""

    kernel: str
    blocks: int
    threads: int
    arguments: tuple[int, ...]
    seconds: float  # alone
    left: float  # of these


def utilisation(blocks: float, curvature: float = CURVATURE, slope: float = SLOPE) -> float:
    """Return the root of u (1 + c u^2) = k b by bisection."""
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if middle * (1 + curvature * middle**2) < slope * blocks
            else (low, middle)
        )
    return low


def stays(filled: float, law: tuple[float, float]) -> float:
    """Return the share of an array that a cache keeps; `filled`: its size over that of the
    cache.
    """
    knee, cliff = law
    return min(1.0, max(0.0, (cliff - filled) / (cliff - knee)))


@dataclass(eq=False)
class SimulatedGpu:
    """`fails`: kernels that cannot be launched; `endless`: those that do not end; `beside`:
    rates of pairs of kernels other than by the laws; `favoured`: share of a launch's time after
    which its first warp has ended.
    """

    gpu: GpuCapacity = H100_NVL
    memory: int = 90_000_000_000
    noise: float = 0.002
    fails: frozenset[str] = frozenset()
    endless: frozenset[str] = frozenset()
    beside: dict[tuple[str, str], float] = field(default_factory=dict)
    favoured: float = 1.0
    lanes: Lanes = _LANES
    driver: str = "a simulation"
    arch: str = "sm_90"
    stuck: bool = False

    def __post_init__(self) -> None:
        self.now = 0.0
        self.streams: list[list[SimulatedLaunch | SimulatedMark | tuple[SimulatedMark]]] = [[], []]
        self.sizes: dict[int, int] = {}
        self.values: dict[int, tuple[int, int]] = {}
        self.launched: list[str] = []  # every launch, as it is put into a stream
        self.random = random.Random(7)

    def free_bytes(self) -> int:
        """Memory that is free now."""
        return self.memory - sum(self.sizes.values())

    def allocate(self, size: int, *, ones: str = "") -> int:
        """The address of `size` bytes."""
        if size > self.free_bytes():
            raise MemoryFullError(f"no room for {size}")
        address = max((at + taken for at, taken in self.sizes.items()), default=4096)
        self.sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Free memory."""
        assert not self.stuck, "to free memory would wait for the kernel that does not end"
        del self.sizes[address]

    def launch(
        self, kernel: str, *, blocks: int, threads: int, arguments: Sequence[int], stream: int
    ) -> None:
        """Put a launch at the end of a stream."""
        if kernel in self.fails:
            raise LaunchError(f"{kernel}: CUDA_ERROR_INVALID_VALUE")
        if (kernel, blocks) != ("sleep", 1):  # which only holds back what comes behind it
            self.launched.append(f"{kernel} {stream}")
        seconds = self.alone(kernel, blocks, threads, tuple(arguments))
        seconds *= 1 + self.noise * self.random.uniform(-1, 1)
        self.streams[stream].append(
            SimulatedLaunch(kernel, blocks, threads, tuple(arguments), seconds, seconds)
        )

    def mark(self, stream: int) -> SimulatedMark:
        """A point at the end of the stream."""
        found = SimulatedMark()
        self.streams[stream].append(found)
        return found

    def follow(self, stream: int, mark: SimulatedMark) -> None:
        """Block the stream until another one has reached the mark."""
        self.streams[stream].append((mark,))

    def wait(self, marks: Sequence[SimulatedMark], limit_s: float) -> None:
        """Let simulated time pass until all marks were reached."""
        begin = self.now
        while any(mark.time is None for mark in marks):
            self._reach_marks()
            running = [
                stream[0]
                for stream in self.streams
                if stream and isinstance(stream[0], SimulatedLaunch)
            ]
            if any(one.kernel in self.endless for one in running) or self.now - begin > limit_s:
                self.stuck = True
                raise HangingError(f"a kernel did not end within {limit_s:.0f} s")
            if running:
                self._go_on(running)

    def seconds(self, begin: SimulatedMark, end: SimulatedMark) -> float:
        """Time between two marks that were reached."""
        assert begin.time is not None
        assert end.time is not None
        return end.time - begin.time

    def numbers(self, address: int, count: int) -> tuple[int, ...]:
        """The 64-bit integers at this address."""
        return self.values[address][:count]

    def _reach_marks(self) -> None:
        moved = True
        while moved:
            moved = False
            for stream in self.streams:
                head = stream[0] if stream else None
                if isinstance(head, SimulatedMark):
                    head.time = self.now
                elif not isinstance(head, tuple) or head[0].time is None:
                    continue
                stream.pop(0)
                moved = True

    def _go_on(self, running: list[SimulatedLaunch]) -> None:
        rates = [
            self.rate(one, [other for other in running if other is not one]) for one in running
        ]
        step = min(one.left / rate for one, rate in zip(running, rates, strict=True) if rate > 0)
        self.now += step
        for one, rate in zip(running, rates, strict=True):
            one.left -= step * rate
            if one.left <= 1e-15:
                cycles = round(one.seconds * self.favoured * CLOCK_HZ)
                self.values[one.arguments[-1]] = cycles, round(cycles / CLOCK_HZ * 1e9)
                self.streams = [
                    stream[1:] if stream and stream[0] is one else stream for stream in self.streams
                ]

    def alone(self, kernel: str, blocks: int, threads: int, arguments: tuple[int, ...]) -> float:
        """Seconds alone."""
        rounds, sms = arguments[-2], self.gpu.sms or 1
        warps = max(1, threads // 128) * -(-blocks // sms)  # of a scheduler
        if kernel == "sleep":
            return rounds * 1e-6
        if kernel.startswith("fmul"):
            chains = int(kernel[-1])
            return (
                rounds
                * 64
                * max(4.0, chains * warps * 1.02)
                * (1 + 6 / 64 / chains * 0.5)
                / CLOCK_HZ
            )
        if kernel.startswith("dmul"):
            return rounds * 64 * max(8.0, int(kernel[-1]) * warps * 2.0) / CLOCK_HZ
        if kernel == "matmul":
            return rounds * 1e-4
        if kernel.startswith("copy"):
            size = 8.0 * arguments[2]
            if size > 4 * CAPACITIES["l2"]:
                return rounds * size / self.copied(kernel, blocks)
            return (
                rounds
                * size
                * L2_HIT_S
                * (1 + (1 - stays(size / CAPACITIES["l2"], L2_LAW)) * (L2_COST - 1))
            )
        if kernel in ("sweep_l2", "sweep_l1"):
            cache, law, cost, hit_s = {
                "sweep_l2": ("l2", L2_LAW, L2_COST, L2_HIT_S), "sweep_l1": ("l1", L1_LAW, L1_COST, L1_HIT_S)
            }[kernel]  # fmt: skip
            size = 4.0 * arguments[2]
            missed = 1 - stays(size / CAPACITIES[cache], law)
            return (
                rounds * size * (blocks if cache == "l1" else 1) * hit_s * (1 + missed * (cost - 1))
            )
        if kernel == "read_l2":
            return rounds * 4.0 * arguments[2] / (L2_BANDWIDTH * min(1.0, blocks / 2 / sms))
        name, number = kernel.split("_")
        each = CYCLES[name] * (int(number) if name == "shared" else 1)
        count = COUNTS[name] * (1 if name == "shared" else int(number))
        latency = LATENCY[name] * COUNTS[name] / (8 if name == "shared" else 1)
        return (
            rounds
            * max(latency, count * each * 4 * warps / (1 if name == "shared" else 4))
            / CLOCK_HZ
        )

    def rate(self, one: SimulatedLaunch, others: list[SimulatedLaunch]) -> float:
        """Of its rate alone."""
        if not others:
            return 1.0
        other = others[0]
        if (one.kernel, other.kernel) in self.beside:
            return self.beside[one.kernel, other.kernel]
        if one.kernel == "sleep":
            fits = one.blocks + other.blocks <= 2 * (self.gpu.sms or 1)
            return 1.0 if fits or self._first(one) else 0.0
        if one.kernel == other.kernel == "copy_1" and 8.0 * one.arguments[2] > 4 * CAPACITIES["l2"]:
            return utilisation(one.blocks + other.blocks) / 2 / utilisation(one.blocks)
        if one.kernel == other.kernel and one.kernel.startswith("sweep"):
            cache, law, cost = {
                "sweep_l2": ("l2", L2_LAW, L2_COST),
                "sweep_l1": ("l1", L1_LAW, L1_COST),
            }[one.kernel]
            filled = 4.0 * one.arguments[2] / CAPACITIES[cache]
            return (1 + (1 - stays(filled, law)) * (cost - 1)) / (
                1 + (1 - stays(2 * filled, law)) * (cost - 1)
            )
        return 1.0

    def copied(self, kernel: str, blocks: int) -> float:
        """Bandwidth of a copy of a large array, byte/s."""
        return BANDWIDTH if kernel == "copy_4" else BANDWIDTH * utilisation(blocks)

    def _first(self, one: SimulatedLaunch) -> bool:
        return bool(self.streams[0]) and self.streams[0][0] is one
