"""Plan of a simulated cluster: nodes, GPUs, duration, load, defects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tachograph.annexes.lab.simulate.behaviours import (
    JOB_KINDS,
    LONGEST_S,
    Draw,
    JobBehaviour,
    JobKind,
)
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.devices import DEVICES_BY_NAME, Device
from tachograph.catalog.errors import UsageError

RECORDED_COUNTERS = tuple(counter.name for counter in COUNTERS if counter.ldms_name)
LEAN_COUNTERS = (
    "gpu_util",
    "sm_active",
    "gr_engine_active",
    "fp64_active",
    "fp32_active",
    "fp16_active",
    "tensor_active",
    "dram_active",
    "hbm_used_mib",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "power_w",
    "energy_j",
    "gpu_temp_c",
)
PIPE_COUNTERS = (
    "fp64_active",
    "fp32_active",
    "fp16_active",
    "tensor_active",
    "tensor_hmma_active",
    "tensor_imma_active",
    "tensor_dfma_active",
)
_SIZES = (
    (0, 0.12),
    (1, 0.70),
    (2, 0.08),
    (4, 0.045),
    (8, 0.03),
    (16, 0.013),
    (32, 0.007),
    (64, 0.003),
    (128, 0.002),
)


@dataclass(frozen=True, slots=True)
class DriverView:
    """A driver's view of a model: name, total memory, reserved memory (MiB), idle power (W)."""

    name: str
    total_mib: int
    reserved_mib: int
    idle_w: float
    memory_temperature: bool
    gres: str


DRIVER: Mapping[str, DriverView] = {
    "A100 SXM 40GB": DriverView("NVIDIA A100-SXM4-40GB", 40960, 519, 54, True, "a100"),
    "A100 SXM 80GB": DriverView("NVIDIA A100-SXM4-80GB", 81920, 770, 60, True, "a100"),
    "A40": DriverView("NVIDIA A40", 46068, 434, 30, False, "a40"),
    "H100 SXM 80GB": DriverView("NVIDIA H100 80GB HBM3", 81559, 551, 70, True, "h100"),
}


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one kind. `model`: name in the device catalogue; `lacks`: counters not measured."""

    count: int
    gpus: int
    model: str
    lacks: tuple[str, ...] = ()

    @property
    def device(self) -> Device:
        """The row of the device catalogue."""
        return DEVICES_BY_NAME[self.model]

    @property
    def driver(self) -> DriverView:
        """Values that its driver reports."""
        return DRIVER[self.model]

    @property
    def board_w(self) -> float:
        """Power at full load, W."""
        assert self.device.board_power_w is not None  # is published for every model of DRIVER
        return self.device.board_power_w


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node: name, index, group; `shared`: runs several jobs at a time."""

    name: str
    index: int
    group: int
    shared: bool


@dataclass(frozen=True, slots=True)
class JobShapes:
    """Shapes of a population: share of each kind, (nodes, share of the jobs), longest run time.

    0 nodes: a part of a shared node. `shared_waits`: no job waits for one that waits for a part of
    a shared node, which are few. `change`: what becomes of the behaviour of each job.
    """

    weights: Mapping[JobKind, float] = field(
        default_factory=lambda: {kind: facts.weight for kind, facts in JOB_KINDS.items()}
    )
    sizes: Sequence[tuple[int, float]] = _SIZES
    longest_s: int = LONGEST_S
    shared_waits: bool = False
    change: Callable[[JobBehaviour, Draw], JobBehaviour] = lambda behaviour, _: behaviour


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """Everything a simulated cluster follows from; the same plan gives the same files.

    `load`: share of GPU time that jobs request. `shared`: share of the nodes that run several jobs
    at a time. `unmapped`: share of the jobs on shared nodes whose GPUs were not recorded.
    `each_kind`: how often every job kind occurs at least, where the nodes and the time allow it.
    `time_zone`: of the accounting. `rows_per_file`: upper bound of samples held in memory and
    written into one file. `as_printed`: values in the digits that dcgm-exporter prints.
    `shapes`: of the population, None: those of the demo. `judged_jobs`: so many jobs to measure
    judgement with (`judging`), at any load; 0: jobs by load. `recorded_days`: jobs are those of
    `habits`, on these days only, and other days have no samples; (): all days, other jobs. `hosts`:
    what the hosts count is written, too, once a minute. `nodes_away`: some nodes are down, drained
    or reserved while no job runs there; polls of nodes, events and reservations are written.
    `shared_gpus`: jobs are those of `shared_gpus`, which meet on GPUs and slow each other down.
    """

    seed: int = 1
    start: datetime = datetime(2025, 3, 3, tzinfo=UTC)
    days: int = 1
    groups: tuple[NodeGroup, ...] = (NodeGroup(8, 4, "A100 SXM 40GB"),)
    interval_s: int = 10
    load: float = 0.8
    shared: float = 0.15
    unmapped: float = 0.15
    each_kind: int = 1
    median_hours: float = 1.4
    counters: tuple[str, ...] = RECORDED_COUNTERS
    defects: bool = True
    time_zone: str = "Europe/Berlin"
    cluster: str = "sim"
    rows_per_file: int = 1_500_000
    as_printed: bool = False
    shapes: JobShapes | None = None
    judged_jobs: int = 0
    recorded_days: tuple[int, ...] = ()
    hosts: bool = False
    nodes_away: bool = False
    shared_gpus: bool = False

    def __post_init__(self) -> None:
        """Check what the options of `lab simulate` do not bound. Errors: UsageError."""
        if not 1 <= self.interval_s <= 600 or 86400 % self.interval_s > 0:
            what = "interval_s must divide a day, at most 600"
            raise UsageError(f"plan of a simulated cluster: {what}", do="change the plan")

    @classmethod
    def demo(cls, *, seed: int = 7) -> SimulationPlan:
        """Two days of 36 nodes with four models: a month in miniature, every job kind in it."""
        return cls(
            seed=seed,
            days=2,
            groups=(
                NodeGroup(16, 4, "A100 SXM 40GB"),
                NodeGroup(12, 4, "A100 SXM 80GB"),
                NodeGroup(4, 4, "H100 SXM 80GB"),
                NodeGroup(4, 4, "A40", lacks=PIPE_COUNTERS),
            ),
            interval_s=30,
            load=0.7,
            each_kind=5,
            median_hours=2.0,
            nodes_away=True,
        )

    @classmethod
    def history(cls, *, seed: int = 7) -> SimulationPlan:
        """The month before the demo's end: six users repeat their jobs on six days."""
        return cls(
            seed=seed,
            start=datetime(2025, 2, 3, tzinfo=UTC),
            days=30,
            groups=(NodeGroup(4, 8, "H100 SXM 80GB"),),
            interval_s=300,
            shared=0.5,
            unmapped=0.0,
            counters=LEAN_COUNTERS,
            defects=False,
            # An analysis costs as much as there are days with samples, and the demo is to be quick.
            recorded_days=(0, 7, 14, 21, 28, 29),
        )

    @classmethod
    def sharing(cls, *, seed: int = 7) -> SimulationPlan:
        """A day of 12 GPUs of two models that recurring jobs share, by shards and MPS."""
        return cls(
            seed=seed,
            groups=(NodeGroup(2, 4, "H100 SXM 80GB"), NodeGroup(1, 4, "A100 SXM 80GB")),
            interval_s=60,
            shared=1.0,
            counters=LEAN_COUNTERS,
            defects=False,
            shared_gpus=True,
        )

    @classmethod
    def judging(cls, jobs: int = 4000, *, seed: int = 1) -> SimulationPlan:
        """A population for measuring accuracy, on nodes of four models, one without pipe
        counters.
        """
        days = 2 if jobs < 1000 else 4
        nodes = max(32, round(7.5 * jobs / (24 * days)))
        large, larger, other = round(0.3 * nodes), round(0.2 * nodes), max(2, round(0.1 * nodes))
        return cls(
            seed=seed,
            days=days,
            groups=(
                NodeGroup(nodes - large - larger - other, 4, "A100 SXM 40GB"),
                NodeGroup(large, 4, "A100 SXM 80GB"),
                NodeGroup(larger, 8, "H100 SXM 80GB"),
                NodeGroup(other, 4, "A40", lacks=PIPE_COUNTERS),
            ),
            interval_s=30,
            counters=LEAN_COUNTERS,
            judged_jobs=jobs,
            hosts=True,
        )

    @property
    def end(self) -> datetime:
        """First instant no longer recorded."""
        return self.start + timedelta(days=self.days)

    @property
    def start_s(self) -> int:
        """Start in seconds since 1970."""
        return int(self.start.timestamp())

    @property
    def seconds(self) -> int:
        """Length in seconds."""
        return self.days * 86400

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return sum(group.count * group.gpus for group in self.groups)

    @property
    def samples(self) -> int:
        """Number of samples before defects."""
        return self.gpus * self.days * self.samples_per_day

    @property
    def samples_per_day(self) -> int:
        """Samples of one GPU in a day."""
        return 86400 // self.interval_s

    def shared_nodes(self, group: NodeGroup) -> int:
        """Return how many nodes of a group run several jobs at a time."""
        return round(group.count * self.shared) if group.gpus > 1 else 0

    def nodes(self) -> tuple[SimulatedNode, ...]:
        """Return the nodes by name; the last of each group are shared."""
        nodes: list[SimulatedNode] = []
        for number, group in enumerate(self.groups):
            shared = self.shared_nodes(group)
            for of_its_group in range(group.count):
                index = len(nodes)
                nodes.append(
                    SimulatedNode(
                        f"nid{index + 1:06d}", index, number, of_its_group >= group.count - shared
                    )
                )
        return tuple(nodes)
