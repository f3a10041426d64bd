"""The current view as JSON objects, CSV cells (KempnerPulse's columns), or a text table.

Source of the columns and their units: KempnerPulse, docs/export.md; ours stand behind them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tachograph.annexes.watch.live.snapshot import (
    NO_ALLOCATION,
    GpuAllocation,
    GpuDevice,
    GpuId,
)
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.errors import UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.units import harmless_cell
from tachograph.report.lines import to_text
from tachograph.report.tables import TextColumn, fit_table

if TYPE_CHECKING:
    from tachograph.annexes.watch.live.view import FleetView
    from tachograph.judge.workload.settings import Weights, WorkloadSettings

_UNKNOWN: Final = "unknown"
_WHOLE: Final = frozenset(counter.name for counter in COUNTERS if counter.storage == "i64")
_GB: Final = 1e9


def json_rows(view: FleetView, settings: WorkloadSettings | None = None) -> list[dict[str, object]]:
    """Return one object per GPU: name, allocation, every counter, classes, health.

    t: time of the poll; stale_s: age of the values. needs: counters without which the class is
    unknown. None: missing. settings: those of the classes in the view.
    """
    columns = {counter.name: _plain(view, counter.name) for counter in COUNTERS}
    t = datetime.fromtimestamp(view.snapshot.t, UTC)
    objects: list[dict[str, object]] = []
    for row, gpu in enumerate(view.snapshot.gpus):
        processes = view.snapshot.processes.get(gpu, ())
        objects.append(
            {
                "t": t,
                **_identity(view, row),
                "class": view.label(row),
                "bottleneck": view.bottleneck(row),
                "real_utilisation": _number_or_none(view.real[row]),
                "health": view.state(row),
                **{name: values[row] for name, values in columns.items()},
                "stale_s": _number_or_none(view.stale_s[row]),
                "needs": _needs(view, row, settings or view.settings),
                "processes": [asdict(process) for process in processes],
            }
        )
    return objects


def _identity(view: FleetView, row: int) -> dict[str, object]:
    printed = _PrintedGpu(view, row)
    gpu, device, allocation = printed.gpu, printed.device, printed.allocation
    return {
        "node": gpu.node,
        "cluster": gpu.cluster,
        "gpu": gpu.gpu,
        "mig": gpu.mig,
        "model": device.model,
        "uuid": device.uuid,
        "pci": device.pci,
        "hbm_mib": device.hbm_mib,
        "job_id": allocation.job_id,
        "user": allocation.user,
    }


def _needs(view: FleetView, row: int, settings: WorkloadSettings) -> list[str]:
    """Needs from window means, as for the class: a single reading may suffice where they do not."""
    if view.label(row) != _UNKNOWN:
        return []
    from tachograph.judge.workload.rules import classify

    return list(classify(view.reading_of_window(row), settings).needs)


def _plain(view: FleetView, counter: str) -> list[float | int | None]:
    number: type[int] | type[float] = int if counter in _WHOLE else float
    values = view.snapshot.column(counter).tolist()
    return [None if value != value else number(value) for value in values]


def _number_or_none(value: float) -> float | None:
    return None if value != value else float(value)


# --- CSV


@dataclass(frozen=True, slots=True)
class _PrintedGpu:
    """A GPU of a view. before: the view of the poll before."""

    view: FleetView
    row: int
    before: FleetView | None = None

    @property
    def gpu(self) -> GpuId:
        return self.view.snapshot.gpus[self.row]

    @property
    def device(self) -> GpuDevice:
        return self.view.snapshot.device(self.row)

    @property
    def allocation(self) -> GpuAllocation:
        return self.view.snapshot.allocations.get(self.gpu, NO_ALLOCATION)

    def value(self, counter: str) -> float | None:
        return self.view.snapshot.value(counter, self.row)


@dataclass(frozen=True, slots=True)
class _CsvColumn:
    """A column: its value in the unit of its name, and the format of a number."""

    value: Callable[[_PrintedGpu], float | str | None]
    format_spec: str = ".2f"


def _counter(name: str, factor: float = 1.0, format_spec: str = ".2f") -> _CsvColumn:
    def value(gpu: _PrintedGpu) -> float | None:
        number = gpu.value(name)
        return None if number is None else number * factor

    return _CsvColumn(value, format_spec)


def _fraction(name: str) -> _CsvColumn:
    return _counter(name, 100.0)


def _whole(name: str) -> _CsvColumn:
    return _counter(name, format_spec=".0f")


def _never(gpu: _PrintedGpu) -> None:
    """A column of KempnerPulse that is not measured here."""
    return


def _hbm_mib(gpu: _PrintedGpu) -> float | None:
    """Device memory, or used plus free memory."""
    if gpu.device.hbm_mib is not None:
        return gpu.device.hbm_mib
    used_mib, free = gpu.value("hbm_used_mib"), gpu.value("hbm_free_mib")
    return None if used_mib is None or free is None else used_mib + free


def _hbm_used_pct(gpu: _PrintedGpu) -> float | None:
    used_mib, total = gpu.value("hbm_used_mib"), _hbm_mib(gpu)
    return None if used_mib is None or not total else used_mib / total * 100


def _nvlink_gbps(gpu: _PrintedGpu) -> float | None:
    both = [gpu.value(f"nvlink_{way}_bytes_per_s") for way in ("tx", "rx")]
    return None if None in both else sum(filter(None, both)) / _GB


def _replay_rate(gpu: _PrintedGpu) -> float | None:
    """Replays per second since the reading before; a count that went back began again.

    Of a reading that was shown before there is no rate: nothing new was counted, not nothing.
    """
    view, row, before = gpu.view, gpu.row, gpu.before
    if before is None or before.snapshot.gpus != view.snapshot.gpus:
        return None
    now, then = (polled.snapshot.value("pcie_replays", row) for polled in (view, before))
    passed = float(view.snapshot.measured[row] - before.snapshot.measured[row])
    if now is None or then is None or not passed > 0:
        return None
    return (now - then if now >= then else now) / passed


_MODEL_ENDS = re.compile(
    r"[ -](?:SXM\w*|PCIE|NVL|OAM|HBM\w*|MIG|\d+GB|GENERATION|GRAPHICS|WITH)\b.*", re.IGNORECASE
)
_VENDORS = re.compile(r"^(?:NVIDIA|AMD|TESLA|QUADRO|GEFORCE|INSTINCT)\s+", re.IGNORECASE)


def short_model(model: str) -> str:
    """Return the name of a model without vendor, form factor and memory.

    >>> short_model("NVIDIA H100 80GB HBM3"), short_model("NVIDIA A100-SXM4-80GB"), short_model("NVIDIA RTX A6000")
    ('H100', 'A100', 'RTX A6000')
    >>> short_model("NVIDIA RTX 6000 Ada Generation"), short_model("Tesla V100-SXM2-32GB"), short_model("GH200 480GB")
    ('RTX 6000 Ada', 'V100', 'GH200')
    """
    name = model.strip()
    while (shorter := _VENDORS.sub("", name)) != name:
        name = shorter
    return _MODEL_ENDS.sub("", name) or model


def _model(gpu: _PrintedGpu) -> str | None:
    model = gpu.device.model
    return None if model is None else short_model(model)


_COLUMNS: Mapping[str, _CsvColumn] = MappingProxyType(
    {
        "timestamp": _CsvColumn(lambda gpu: gpu.view.snapshot.t),
        "gpu_id": _CsvColumn(lambda gpu: gpu.gpu.gpu, "d"),
        "model": _CsvColumn(_model),
        "real_util_pct": _CsvColumn(lambda gpu: float(gpu.view.real[gpu.row]) * 100),
        "status": _CsvColumn(lambda gpu: gpu.view.label(gpu.row)),
        "health": _CsvColumn(lambda gpu: gpu.view.state(gpu.row)),
        "sm_active_pct": _fraction("sm_active"),
        "tensor_active_pct": _fraction("tensor_active"),
        "dram_active_pct": _fraction("dram_active"),
        "gr_engine_active_pct": _fraction("gr_engine_active"),
        "gpu_util_pct": _fraction("gpu_util"),
        "mem_used_mib": _whole("hbm_used_mib"),
        "mem_total_mib": _CsvColumn(_hbm_mib, ".0f"),
        "mem_used_pct": _CsvColumn(_hbm_used_pct),
        "power_w": _counter("power_w"),
        "gpu_temp_c": _whole("gpu_temp_c"),
        "mem_temp_c": _whole("mem_temp_c"),
        "sm_occupancy_pct": _fraction("sm_occupancy"),
        "fp16_pipe_pct": _fraction("fp16_active"),
        "fp32_pipe_pct": _fraction("fp32_active"),
        "fp64_pipe_pct": _fraction("fp64_active"),
        "memcpy_util_pct": _fraction("mem_copy_util"),
        "pcie_rx_bytes_s": _whole("pcie_rx_bytes_per_s"),
        "pcie_tx_bytes_s": _whole("pcie_tx_bytes_per_s"),
        "nvlink_gbps": _CsvColumn(_nvlink_gbps, ".3f"),
        "sm_clock_mhz": _whole("sm_clock_mhz"),
        "mem_clock_mhz": _whole("mem_clock_mhz"),
        "pcie_replay_rate_s": _CsvColumn(_replay_rate, ".4g"),
        "energy_j": _counter("energy_j", format_spec=".3f"),
        "tc_hmma_pct": _fraction("tensor_hmma_active"),
        "tc_imma_pct": _fraction("tensor_imma_active"),
        "tc_dfma_pct": _fraction("tensor_dfma_active"),
        "tc_dmma_pct": _CsvColumn(_never),
        "tc_qmma_pct": _CsvColumn(_never),
        # ours
        "node": _CsvColumn(lambda gpu: gpu.gpu.node),
        "mig": _CsvColumn(lambda gpu: gpu.gpu.mig, "d"),
        "uuid": _CsvColumn(lambda gpu: gpu.device.uuid),
        "pci": _CsvColumn(lambda gpu: gpu.device.pci),
        "job_id": _CsvColumn(lambda gpu: gpu.allocation.job_id),
        "user": _CsvColumn(lambda gpu: gpu.allocation.user),
        "bottleneck": _CsvColumn(lambda gpu: gpu.view.bottleneck(gpu.row)),
        **{
            name: _whole(name)
            for name in (
                "throttle_reasons",
                "xid",
                "pcie_replays",
                "remapped_rows_uncorrectable",
                "remapped_rows_correctable",
                "row_remap_failure",
                "ecc_dbe",
                "ecc_sbe",
                "nvlink_errors",
            )
        },
        "stale_s": _CsvColumn(lambda gpu: float(gpu.view.stale_s[gpu.row])),
        "cluster": _CsvColumn(lambda gpu: gpu.gpu.cluster),
    }
)
ALL_COLUMNS: tuple[str, ...] = tuple(_COLUMNS)
DEFAULT_COLUMNS: tuple[str, ...] = (
    *("timestamp", "gpu_id", "model", "gpu_util_pct", "mem_used_mib", "real_util_pct"),
    *("sm_active_pct", "tensor_active_pct", "dram_active_pct"),
)
OF_TWO_POLLS: Final = frozenset({"pcie_replay_rate_s", "health"})  # columns that need a poll before


def csv_columns(written: str) -> tuple[str, ...]:
    """Return the columns to write: a comma-separated list, `all`, or "" for the defaults.

    >>> csv_columns("gpu_id, node"), len(csv_columns("")), csv_columns("all") == ALL_COLUMNS
    (('gpu_id', 'node'), 9, True)

    Errors: UsageError naming the closest column.
    """
    if written.strip() in ("", "all"):
        return ALL_COLUMNS if written.strip() else DEFAULT_COLUMNS
    columns = tuple(name.strip() for name in written.split(",") if name.strip())
    for name in columns:
        if name not in _COLUMNS:
            do = did_you_mean(name, ALL_COLUMNS, otherwise=f"there are: {', '.join(ALL_COLUMNS)}")
            raise UsageError(f"--csv: unknown column {name!r}", do=do)
    return columns


def csv_header(columns: Sequence[str] = DEFAULT_COLUMNS) -> str:
    """Return the first line of a CSV document."""
    return _line(columns)


def csv_row(
    view: FleetView,
    row: int,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    before: FleetView | None = None,
    *,
    raw: bool = False,
) -> str:
    """Return the CSV line of one GPU; missing values are empty. before: the previous poll.

    Texts are harmless to spreadsheets and terminals unless `raw`.
    """
    gpu = _PrintedGpu(view, row, before)
    return _line(_written(_COLUMNS[name], gpu, raw=raw) for name in columns)


def _written(column: _CsvColumn, gpu: _PrintedGpu, *, raw: bool) -> str:
    value = column.value(gpu)
    if value is None or value != value:
        return ""
    if isinstance(value, str):
        return value if raw else harmless_cell(value)
    return format(value, column.format_spec)


def _line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


# --- text

WEIGHED: Final = ("SM", "TENS", "DRAM", "GR")  # titles of the parts of real utilisation


def real_definition(weights: Weights) -> str:
    """Return the definition of real utilisation, with the titles of other columns.

    >>> real_definition((0.5, 0.0, 0.5, 0.0))
    'real utilisation = 50 % SM + 50 % DRAM activity'
    """
    return f"real utilisation = {' + '.join(weighed_parts(weights, '%'))} activity"


def weighed_parts(weights: Weights, unit: str) -> list[str]:
    """Return the parts of real utilisation that count: share, unit, title of the column."""
    parts = zip(WEIGHED, weights, strict=True)
    return [f"{weight * 100:.3g} {unit} {name}" for name, weight in parts if weight]


# title of a column; where the table is too wide, they are removed in this order
_LEAVING: Final = ("MODEL", "USER", "JOB", "W", "TEMP", "MEM", "UTIL")
_LEFT: Final = frozenset({"GPU", "MODEL", "JOB", "USER", "CLASS", "HEALTH"})
_ABSENT: Final = "-"
_COMMON: Final = 80  # characters; a wider table has more between its columns


def text_table(view: FleetView, *, width: int) -> str:
    """Return a table, one line per GPU, for a terminal `width` wide; `-` is missing.

    Columns that do not fit are left out, the least important first. Percent, MiB as share of the
    memory, W, degrees C.
    """
    columns = [
        TextColumn(
            title,
            _cells(view, title),
            right=title not in _LEFT,
            hide=_LEAVING.index(title) if title in _LEAVING else None,
        )
        for title in _TITLES
    ]
    return to_text(
        fit_table(columns, width, gap=2 if width > _COMMON else 1).with_note(width=width)
    )


def _class(gpu: _PrintedGpu) -> str:
    """The class; of an idle GPU also whether a job holds it, as far as known."""
    name = gpu.view.label(gpu.row)
    if name != "idle":
        return name
    return "idle, held" if gpu.gpu in gpu.view.snapshot.allocations else _free(gpu) or name


def _free(gpu: _PrintedGpu) -> str | None:
    """Text instead of a job for GPUs that no job holds."""
    return "free" if gpu.gpu in gpu.view.snapshot.free else None


# title of a column of the table: its value, and what follows the whole number; as on the screen:
# what nvitop shows comes first
_TITLES: Mapping[str, tuple[Callable[[_PrintedGpu], float | str | None], str]] = MappingProxyType(
    {
        "GPU": (lambda gpu: gpu.gpu.name, ""),
        "UTIL": (_COLUMNS["gpu_util_pct"].value, "%"),
        "MEM": (_hbm_used_pct, "%"),
        "W": (_COLUMNS["power_w"].value, ""),
        "TEMP": (_COLUMNS["gpu_temp_c"].value, ""),
        "CLASS": (_class, ""),
        "REAL": (_COLUMNS["real_util_pct"].value, "%"),
        "SM": (_COLUMNS["sm_active_pct"].value, "%"),
        "TENS": (_COLUMNS["tensor_active_pct"].value, "%"),
        "DRAM": (_COLUMNS["dram_active_pct"].value, "%"),
        "JOB": (lambda gpu: gpu.allocation.name_on(gpu.gpu) or _free(gpu), ""),
        "USER": (_COLUMNS["user"].value, ""),
        "HEALTH": (_COLUMNS["health"].value, ""),
        "MODEL": (_model, ""),
    }
)


def _cells(view: FleetView, title: str) -> list[str]:
    value_of, unit = _TITLES[title]
    cells = []
    for row in range(len(view.snapshot.gpus)):
        value = value_of(_PrintedGpu(view, row))
        if value is None or value != value:
            cells.append(_ABSENT)
        else:
            cells.append(value if isinstance(value, str) else f"{value:.0f}{unit}")
    return cells
