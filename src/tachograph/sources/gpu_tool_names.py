"""Names of columns in the output of GPU tools, with the counter and unit of each.

Nested keys of JSON are joined with dots; names are in lower case. A unit behind a value counts more
than the one here. AMD's counters are those of its exporters: `dram_active` is the activity of the
memory controllers (UMC), `gpu_temp_c` the hottest spot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tachograph.catalog.counters import COUNTERS
from tachograph.sources.columns import NODE_NAMES
from tachograph.sources.dcgmi import DMON_NAMES
from tachograph.sources.exporter_mapping import written_unit

ToolColumns = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class GpuTool:
    """Output of one program.

    columns: {column: (counter, unit)}; of several for one counter the first with a value counts.
    facts: the same for columns of `devices`. marks: columns of which one tells the program; empty:
    any of `columns`. gpu, time, node: columns of the index, the time and the host; "": not written.
    times: how to record times. ratios: columns in which four decimals mean a ratio. source: where
    names and units are documented. is_untested: no output of the program itself was read yet.
    keeps_empty: rows without a counter are samples, and a file without a readable time is no error.
    """

    name: str
    source: str
    columns: ToolColumns
    facts: ToolColumns = field(default_factory=dict)
    marks: Collection[str] = ()
    gpu: str = "gpu"
    time: str = ""
    node: str = ""
    times: str = "record times"
    ratios: Collection[str] = ()
    is_untested: bool = False
    keeps_empty: bool = False

    def wrote(self, columns: Collection[str]) -> bool:
        """Return whether columns are of this program; one with a host is another's if it has none."""
        keys = {self.gpu, *filter(None, (self.node,))}
        others_host = not self.node and any(name in columns for name in NODE_NAMES)
        marked = any(name in columns for name in self.marks or self.columns)
        return keys <= set(columns) and marked and not others_host


def find_tool(columns: Iterable[str]) -> GpuTool | None:
    """Return the program that wrote a table with these columns, in lower case; None if unknown.

    >>> find_tool(["device", "gpu use (%)"]).name, find_tool(["gpu", "load"]) is None
    ('rocm-smi', True)
    """
    names = set(columns)
    return next((tool for tool in GPU_TOOLS if tool.wrote(names)), None)


def _columns(meanings: Mapping[str, str], units: Mapping[str, str] = {}) -> ToolColumns:
    """Return {column: (what it is, unit)}; shares are in percent, others in ours or `units`."""
    return MappingProxyType(
        {name: (to, units.get(name) or written_unit(to)) for name, to in meanings.items()}
    )


def _dmon_columns() -> ToolColumns:
    by_field = {counter.dcgm_id: counter for counter in COUNTERS}
    columns = {name: by_field[number] for name, number in DMON_NAMES.items() if number in by_field}
    return {
        name.lower(): (counter.name, counter.dcgm_unit or counter.unit)
        for name, counter in columns.items()
    }


# fields of `nvidia-smi --query-gpu`, which gpustat has, too
QUERY_FIELDS: ToolColumns = _columns(
    {
        "utilization.gpu": "gpu_util",
        "utilization.memory": "mem_copy_util",
        "memory.used": "hbm_used_mib",
        "memory.free": "hbm_free_mib",
        "power.draw": "power_w",
        "power.draw.instant": "power_w",
        "power.draw.average": "power_w",
        "temperature.gpu": "gpu_temp_c",
        "temperature.memory": "mem_temp_c",
        "clocks.current.sm": "sm_clock_mhz",
        "clocks.sm": "sm_clock_mhz",
        "clocks.current.memory": "mem_clock_mhz",
        "clocks.mem": "mem_clock_mhz",
        "clocks_event_reasons.active": "throttle_reasons",
        "clocks_throttle_reasons.active": "throttle_reasons",
        "remapped_rows.uncorrectable": "remapped_rows_uncorrectable",
        "remapped_rows.correctable": "remapped_rows_correctable",
        "retired_pages.double_bit.count": "remapped_rows_uncorrectable",
        "retired_pages.single_bit_ecc.count": "remapped_rows_correctable",
        "ecc.errors.corrected.volatile.total": "ecc_sbe",
        "ecc.errors.uncorrected.volatile.total": "ecc_dbe",
    }
)
DMON_COLUMNS: ToolColumns = _columns(
    {
        "sm": "gpu_util",
        "mem": "mem_copy_util",
        "fb": "hbm_used_mib",
        "pwr": "power_w",
        "gtemp": "gpu_temp_c",
        "temp": "gpu_temp_c",
        "mtemp": "mem_temp_c",
        "pclk": "sm_clock_mhz",
        "mclk": "mem_clock_mhz",
        "rxpci": "pcie_rx_bytes_per_s",
        "txpci": "pcie_tx_bytes_per_s",
        "pci": "pcie_replays",
    },
    {"rxpci": "MB/s", "txpci": "MB/s"},
)
_SMI_TIMES = "record times (--query-gpu=timestamp,..., `dmon -o DT`)"
SMI_QUERY: Final = GpuTool(
    "nvidia-smi --query-gpu",
    "nvidia-smi --help-query-gpu",
    QUERY_FIELDS,
    _columns(
        {
            "uuid": "uuid",
            "pci": "pci",
            "model": "model",
            "hbm_mib": "hbm_mib",
        }
    ),
    time="stamp",
    node="node",
    times=_SMI_TIMES,
    keeps_empty=True,
)
SMI_DMON: Final = GpuTool(
    "nvidia-smi dmon",
    "nvidia-smi dmon -h",
    DMON_COLUMNS,
    time="stamp",
    node="node",
    times=_SMI_TIMES,
    keeps_empty=True,
)
DMON: Final = GpuTool(
    "dcgmi dmon",
    "NVIDIA/DCGM, dcgmlib/src/dcgm_fields.cpp: short names of fields",
    MappingProxyType(_dmon_columns()),
    marks=("entity",),
    time="stamp",
    times="write a time before each line (dcgmi dmon ... | ts %.s)",
)
TELEGRAF: Final = GpuTool(
    "Telegraf's nvidia_smi",
    "influxdata/telegraf, plugins/inputs/nvidia_smi/README.md",
    _columns(
        {
            "utilization_gpu": "gpu_util",
            "utilization_memory": "mem_copy_util",
            "memory_used": "hbm_used_mib",
            "memory_free": "hbm_free_mib",
            "power_draw": "power_w",
            "power_draw_average": "power_w",
            "temperature_gpu": "gpu_temp_c",
            "temperature_memory": "mem_temp_c",
            "clocks_current_sm": "sm_clock_mhz",
            "clocks_current_memory": "mem_clock_mhz",
            "pcie_tx_util": "pcie_tx_bytes_per_s",
            "pcie_rx_util": "pcie_rx_bytes_per_s",
            "remapped_rows_correctable": "remapped_rows_correctable",
            "remapped_rows_uncorrectable": "remapped_rows_uncorrectable",
        },
        {"pcie_tx_util": "kB/s", "pcie_rx_util": "kB/s"},
    ),
    _columns(
        {
            "uuid": "uuid",
            "name": "model",
            "memory_total": "hbm_mib",
        }
    ),
    marks=("measurement",),
    gpu="index",
    time="stamp",
    node="host",
)
GPU_TOOLS: tuple[GpuTool, ...] = (
    DMON,
    TELEGRAF,
    GpuTool(
        "gpustat --json",
        "wookayin/gpustat, gpustat/core.py: keys as in `nvidia-smi --help-query-gpu`",
        QUERY_FIELDS,
        _columns(
            {
                "uuid": "uuid",
                "name": "model",
                "memory.total": "hbm_mib",
            }
        ),
        marks=("query_time",),
        gpu="index",
        time="query_time",
        node="hostname",
    ),
    GpuTool(
        "KempnerPulse --export",
        "KempnerInstitute/kempnerpulse, docs/export.md",
        _columns(
            {
                "gpu_util_pct": "gpu_util",
                "sm_active_pct": "sm_active",
                "sm_occupancy_pct": "sm_occupancy",
                "gr_engine_active_pct": "gr_engine_active",
                "fp16_pipe_pct": "fp16_active",
                "fp32_pipe_pct": "fp32_active",
                "fp64_pipe_pct": "fp64_active",
                "tensor_active_pct": "tensor_active",
                "tc_hmma_pct": "tensor_hmma_active",
                "tc_imma_pct": "tensor_imma_active",
                "tc_dfma_pct": "tensor_dfma_active",
                "dram_active_pct": "dram_active",
                "memcpy_util_pct": "mem_copy_util",
                "mem_used_mib": "hbm_used_mib",
                "pcie_tx_bytes_s": "pcie_tx_bytes_per_s",
                "pcie_rx_bytes_s": "pcie_rx_bytes_per_s",
                "power_w": "power_w",
                "energy_j": "energy_j",
                "gpu_temp_c": "gpu_temp_c",
                "mem_temp_c": "mem_temp_c",
                "sm_clock_mhz": "sm_clock_mhz",
                "mem_clock_mhz": "mem_clock_mhz",
            }
        ),
        _columns(
            {
                "model": "model",
                "mem_total_mib": "hbm_mib",
            }
        ),
        marks=("real_util_pct", "gpu_util_pct", "sm_active_pct", "mem_used_mib"),
        gpu="gpu_id",
        time="timestamp",
        # 0.4.1 writes 0.4700 where 47.00 is meant
        ratios=("tc_hmma_pct", "tc_imma_pct", "tc_dfma_pct"),
    ),
    GpuTool(
        "rocm-smi",
        "ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py",
        _columns(
            {
                "gpu use (%)": "gpu_util",
                "gpu memory read/write activity (%)": "dram_active",
                "gpu memory use (%)": "dram_active",  # before ROCm 6.1
                "vram total used memory (b)": "hbm_used_mib",
                "current socket graphics package power (w)": "power_w",
                "average graphics package power (w)": "power_w",
                "accumulated energy (uj)": "energy_j",
                "temperature (sensor junction) (c)": "gpu_temp_c",
                "temperature (sensor edge) (c)": "gpu_temp_c",
                "temperature (sensor memory) (c)": "mem_temp_c",
                "temperature (sensor mem) (c)": "mem_temp_c",
                "sclk clock speed:": "sm_clock_mhz",
                "mclk clock speed:": "mem_clock_mhz",
                "pcie replay count": "pcie_replays",
            },
            {"vram total used memory (b)": "B", "accumulated energy (uj)": "uJ"},
        ),
        _columns(
            {
                "card series": "model",
                "device name": "model",
                "pci bus": "pci",
                "vram total memory (b)": "hbm_mib",
            },
            {"vram total memory (b)": "B"},
        ),
        gpu="device",
        times="record with `amd-smi metric --watch 1`",
    ),
    GpuTool(
        "amd-smi monitor",
        "ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py: monitor",
        _columns(
            {
                "gfx": "gpu_util",
                "mem": "dram_active",
                "vram_used": "hbm_used_mib",
                "vram_free": "hbm_free_mib",
                "power_usage": "power_w",
                "hotspot_temperature": "gpu_temp_c",
                "memory_temperature": "mem_temp_c",
                "gfx_clk": "sm_clock_mhz",
                "gfx_clock": "sm_clock_mhz",
                "mem_clock": "mem_clock_mhz",
                "pcie_replay": "pcie_replays",
            }
        ),
        _columns(
            {
                "vram_total": "hbm_mib",
            }
        ),
        marks=("gfx", "power_usage", "hotspot_temperature", "mem_clock", "vram_used"),
        time="timestamp",
        times="record with `amd-smi monitor --watch 1`",
        is_untested=True,
    ),
    GpuTool(
        "amd-smi metric",
        "ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py: metric_gpu; CSV leaves out outer keys",
        _columns(
            {
                "usage.gfx_activity": "gpu_util",
                "gfx_activity": "gpu_util",
                "usage.umc_activity": "dram_active",
                "umc_activity": "dram_active",
                "mem_usage.used_vram": "hbm_used_mib",
                "used_vram": "hbm_used_mib",
                "mem_usage.free_vram": "hbm_free_mib",
                "free_vram": "hbm_free_mib",
                "power.socket_power": "power_w",
                "socket_power": "power_w",
                "energy.total_energy_consumption": "energy_j",
                "total_energy_consumption": "energy_j",
                "temperature.hotspot": "gpu_temp_c",
                "hotspot": "gpu_temp_c",
                "temperature.edge": "gpu_temp_c",
                "edge": "gpu_temp_c",
                "temperature.mem": "mem_temp_c",
                "mem": "mem_temp_c",
                "clock.gfx_0.clk": "sm_clock_mhz",
                "gfx_0_clk": "sm_clock_mhz",
                "clock.mem_0.clk": "mem_clock_mhz",
                "mem_0_clk": "mem_clock_mhz",
                "pcie.replay_count": "pcie_replays",
                "replay_count": "pcie_replays",
                "ecc.total_correctable_count": "ecc_sbe",
                "total_correctable_count": "ecc_sbe",
                "ecc.total_uncorrectable_count": "ecc_dbe",
                "total_uncorrectable_count": "ecc_dbe",
            }
        ),
        _columns(
            {
                "mem_usage.total_vram": "hbm_mib",
                "total_vram": "hbm_mib",
            }
        ),
        time="timestamp",
        times="record with `amd-smi metric --watch 1`",
    ),
    GpuTool(
        "system metrics of wandb",
        "wandb/wandb, xpu/src: gpu_nvidia.rs, gpu_nvidia_dcgm.rs (ratios times 100), gpu_amd.rs",
        _columns(
            {
                "system.gpu.gpu": "gpu_util",
                "system.gpu.memory": "mem_copy_util",
                "system.gpu.memoryreadwriteactivity": "dram_active",
                "system.gpu.memoryallocatedbytes": "hbm_used_mib",
                "system.gpu.powerwatts": "power_w",
                "system.gpu.temp": "gpu_temp_c",
                "system.gpu.smclock": "sm_clock_mhz",
                "system.gpu.memoryclock": "mem_clock_mhz",
                "system.gpu.smactive": "sm_active",
                "system.gpu.smoccupancy": "sm_occupancy",
                "system.gpu.dramactive": "dram_active",
                "system.gpu.pipetensoractive": "tensor_active",
                "system.gpu.pipetensorhmmaactive": "tensor_hmma_active",
                "system.gpu.pipefp16active": "fp16_active",
                "system.gpu.pipefp32active": "fp32_active",
                "system.gpu.pipefp64active": "fp64_active",
                "system.gpu.pcietxbytes": "pcie_tx_bytes_per_s",
                "system.gpu.pcierxbytes": "pcie_rx_bytes_per_s",
                "system.gpu.nvlinktxbytes": "nvlink_tx_bytes_per_s",
                "system.gpu.nvlinkrxbytes": "nvlink_rx_bytes_per_s",
            },
            {"system.gpu.memoryallocatedbytes": "B"},
        ),
        time="_timestamp",
        is_untested=True,
    ),
)
