"""Reports of Nsight Compute in CSV, written as ncu does from values that are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from tachograph.annexes.share.nsight.launches import NcuReport
from tachograph.annexes.share.nsight.reports import read_report

PUSH_POP = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
START_STOP = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
RULES = (
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup Type",
    "Estimated Speedup",
)
NOISE = (
    "==PROF== Connected to process 4711 (/opt/app/run)",
    "step 3: loss 0.5, 12 % done",
    "1,2,3",
    "name,value,unit",
    '"name","Metric Value"',
    '"0","0.25"',
    "",
    '==PROF== Profiling "k" - 0: 0%....50%....100% - 9 passes',
    'a 5" pipe',
    "==WARNING== Note: Running with unmodified GPU clocks.",
)


@dataclass(frozen=True)
class Value:
    """A metric as a page writes it: `number` in `unit`. `metric`: its own name, `times`: from
    unit to base unit.
    """

    section: str
    label: str
    metric: str
    unit: str
    number: Decimal
    times: Decimal = Decimal(1)

    @property
    def cells(self) -> tuple[str, str, str]:
        return self.section, self.label, self.unit

    @property
    def truth(self) -> float:
        return float(self.number * self.times)


@dataclass(frozen=True)
class Made:
    """A launch."""

    number: int
    kernel: str
    values: tuple[Value, ...]
    grid: tuple[int, int, int] = (132, 2, 1)
    block: tuple[int, int, int] = (256, 1, 1)
    ranges: tuple[str, ...] = ()

    @property
    def truth(self) -> dict[str, float]:
        return {value.metric: value.truth for value in self.values}


@dataclass(frozen=True)
class Dialect:
    """How a file is written. `decimal`, `group`: signs before the fraction and between
    thousands.
    """

    decimal: str = "."
    group: str = ""
    sized: bool = True  # columns Block Size, Grid Size, Device, CC
    nvtx: bool = False
    rules: bool = False  # with columns of rules, which rows of metrics lack
    end: str = "\n"
    noise: tuple[str, ...] = ()
    order: tuple[int, ...] = field(default=())


def written(number: Decimal, dialect: Dialect) -> str:
    """The number as the dialect writes it."""
    return f"{number:,f}".translate({ord(","): dialect.group, ord("."): dialect.decimal})


def quoted(cells: Sequence[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def _identity(dialect: Dialect, made: Made) -> dict[str, str]:
    ranges = "  ".join(
        f'"<default domain>:{name}:none:none:none:none:none:none"' for name in made.ranges
    )
    row = {
        "ID": str(made.number),
        "Process ID": "4711",
        "Process Name": "app",
        "Host Name": "127.0.0.1",
    }
    if dialect.nvtx:
        row |= {PUSH_POP: f"13416  {ranges}" if ranges else "", START_STOP: ""}
    row["Kernel Name"] = made.kernel
    row |= {"Context": "1", "Stream": "7"}
    if dialect.sized:
        row |= {
            "Block Size": str(made.block),
            "Grid Size": str(made.grid),
            "Device": "0",
            "CC": "9.0",
        }
    return row


def details(launches: Sequence[Made], dialect: Dialect = Dialect()) -> str:
    """A details page."""
    names = [
        *_identity(dialect, launches[0]),
        "Section Name",
        "Metric Name",
        "Metric Unit",
        "Metric Value",
    ]
    lines = [quoted([*names, *(RULES if dialect.rules else ())])]
    rows = []
    for made in launches:
        first = list(_identity(dialect, made).values())
        rows += [
            quoted([*first, *value.cells, written(value.number, dialect)]) for value in made.values
        ]
        if dialect.rules:
            advice = 'Use "fast" math.\nIt is, in short,\n"faster".'
            rows.append(
                quoted(
                    [
                        *first,
                        "SpeedOfLight",
                        "",
                        "",
                        "",
                        "SOLBottleneck",
                        "OPT",
                        advice,
                        "global",
                        "50",
                    ]
                )
            )
    return _noisy([*lines, *_ordered(rows, dialect.order)], dialect)


def raw(launches: Sequence[Made], dialect: Dialect = Dialect()) -> str:
    """A raw page: a column per metric that any launch has, in the unit that the first launch
    with it has.
    """
    units: dict[str, Value] = {}
    for made in launches:
        for value in made.values:
            units.setdefault(value.metric, value)
    names = list(_identity(dialect, launches[0]))
    lines = [
        quoted([*names, *units]),
        quoted([*("" for _ in names), *(value.unit for value in units.values())]),
    ]
    rows = []
    for made in launches:
        own = {value.metric: written(value.number, dialect) for value in made.values}
        rows.append(
            quoted([*_identity(dialect, made).values(), *(own.get(metric, "") for metric in units)])
        )
    return _noisy([*lines, *_ordered(rows, dialect.order)], dialect)


def _ordered(rows: list[str], order: Sequence[int]) -> list[str]:
    """The rows, those at `order` first."""
    first = list(dict.fromkeys(place % len(rows) for place in order))
    return [rows[place] for place in first] + [
        row for place, row in enumerate(rows) if place not in set(first)
    ]


def _noisy(lines: list[str], dialect: Dialect) -> str:
    """The lines, with output of others before, between and after them; never between the header
    and the units.
    """
    out = list(dialect.noise)
    for place, line in enumerate(lines):
        out.append(line)
        if place > 1 and dialect.noise:
            out.append(dialect.noise[place % len(dialect.noise)])
    return dialect.end.join([*out, *dialect.noise, ""])


def read(folder: Path, text: str | bytes, name: str = "report.csv") -> NcuReport:
    """What is read of a file with this content."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_report(path)


SPEED, MEMORY = "GPU Speed Of Light Throughput", "Memory Workload Analysis"
DURATION = "gpu__time_duration.sum"
COPY = Made(
    number=0,
    kernel='void copy<float, 4>(float*, "x", float const*)',
    ranges=("forward", "layer, 1"),
    values=(
        Value(SPEED, "Duration", DURATION, "usecond", Decimal("1205.25"), Decimal(1000)),
        Value(
            SPEED,
            "Memory Throughput",
            "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
            "%",
            Decimal("65.77"),
        ),
        Value(
            MEMORY,
            "Memory Throughput",
            "dram__bytes.sum.per_second",
            "Tbyte/s",
            Decimal("3.36"),
            Decimal(10) ** 12,
        ),
        Value(
            SPEED,
            "SM Frequency",
            "gpc__cycles_elapsed.avg.per_second",
            "Ghz",
            Decimal("1.98"),
            Decimal(10) ** 9,
        ),
        Value(
            "Launch Statistics",
            "Registers Per Thread",
            "launch__registers_per_thread",
            "register/thread",
            Decimal(40),
        ),
        Value(
            "Launch Statistics",
            "Dynamic Shared Memory Per Block",
            "launch__shared_mem_per_block_dynamic",
            "Kbyte/block",
            Decimal("65.54"),
            Decimal(1000),
        ),
        Value(
            "Compute Workload Analysis",
            "Issued Ipc Active",
            "sm__inst_issued.avg.per_cycle_active",
            "inst/cycle",
            Decimal("0.61"),
        ),
        Value(
            "Occupancy", "Block Limit SM", "launch__occupancy_limit_blocks", "block", Decimal(32)
        ),
        Value(
            "Command line profiler metrics",
            "smsp__inst_executed.sum",
            "smsp__inst_executed.sum",
            "inst",
            Decimal(1234567),
        ),
    ),
)
MULTIPLY = Made(
    number=1,
    kernel="sgemm_128x64_nn",
    grid=(512, 1, 1),
    values=(
        Value(SPEED, "Duration", DURATION, "usecond", Decimal("117.344"), Decimal(1000)),
        Value(
            SPEED,
            "L2 Cache Throughput",
            "lts__throughput.avg.pct_of_peak_sustained_elapsed",
            "%",
            Decimal("93.10"),
        ),
        Value(
            "Occupancy",
            "Achieved Occupancy",
            "sm__warps_active.avg.pct_of_peak_sustained_active",
            "%",
            Decimal("6.25"),
        ),
    ),
)
LAUNCHES = (COPY, MULTIPLY)


def assert_same(report: NcuReport, launches: Sequence[Made], dialect: Dialect = Dialect()) -> None:
    """Assert that these very launches were read, with these very metrics."""
    found = {launch.number: launch for launch in report.launches}
    assert sorted(launch.number for launch in report.launches) == sorted(
        made.number for made in launches
    )
    for made in launches:
        launch = found[made.number]
        assert launch.kernel == made.kernel
        assert launch.metrics.keys() == made.truth.keys()
        for metric, truth in made.truth.items():
            assert abs(launch.metrics[metric] - truth) <= 1e-9 * abs(truth), metric
        assert launch.ranges == (made.ranges if dialect.nvtx else ())
        if dialect.sized:
            assert (launch.grid, launch.block, launch.chip.compute_capability) == (
                made.grid,
                made.block,
                "9.0",
            )
