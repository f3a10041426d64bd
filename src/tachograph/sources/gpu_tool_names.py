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

ToolColumns = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class GpuTool:
    """Output of one program.

    columns: {column: (counter, unit)}; of several for one counter the first with a value counts.
    facts: the same for columns of `devices`. marks: columns of which one tells the program; empty:
    any of `columns`. gpu, time, node: columns of the index, the time and the host; "": not written.
    times: how to record times. ratios: columns in which four decimals mean a ratio. source: where
    names and units are documented. is_untested: no output of the program itself was read yet.
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


def _dmon_columns() -> ToolColumns:
    by_field = {counter.dcgm_id: counter for counter in COUNTERS}
    known = {name: by_field[number] for name, number in DMON_NAMES.items() if number in by_field}
    return {
        name.lower(): (counter.name, counter.dcgm_unit or counter.unit)
        for name, counter in known.items()
    }


# fields of `nvidia-smi --query-gpu`, which gpustat has, too
QUERY_FIELDS: ToolColumns = MappingProxyType(
    {
        "utilization.gpu": ("gpu_util", "percent"),
        "utilization.memory": ("mem_copy_util", "percent"),
        "memory.used": ("hbm_used_mib", "MiB"),
        "memory.free": ("hbm_free_mib", "MiB"),
        "power.draw": ("power_w", "W"),
        "power.draw.instant": ("power_w", "W"),
        "power.draw.average": ("power_w", "W"),
        "temperature.gpu": ("gpu_temp_c", "C"),
        "temperature.memory": ("mem_temp_c", "C"),
        "clocks.current.sm": ("sm_clock_mhz", "MHz"),
        "clocks.sm": ("sm_clock_mhz", "MHz"),
        "clocks.current.memory": ("mem_clock_mhz", "MHz"),
        "clocks.mem": ("mem_clock_mhz", "MHz"),
        "clocks_event_reasons.active": ("throttle_reasons", "bitmask"),
        "clocks_throttle_reasons.active": ("throttle_reasons", "bitmask"),
        "remapped_rows.uncorrectable": ("remapped_rows_uncorrectable", "count"),
        "remapped_rows.correctable": ("remapped_rows_correctable", "count"),
        "retired_pages.double_bit.count": ("remapped_rows_uncorrectable", "count"),
        "retired_pages.single_bit_ecc.count": ("remapped_rows_correctable", "count"),
        "ecc.errors.corrected.volatile.total": ("ecc_sbe", "count"),
        "ecc.errors.uncorrected.volatile.total": ("ecc_dbe", "count"),
    }
)
DMON_COLUMNS: ToolColumns = MappingProxyType(
    {
        "sm": ("gpu_util", "percent"),
        "mem": ("mem_copy_util", "percent"),
        "fb": ("hbm_used_mib", "MiB"),
        "pwr": ("power_w", "W"),
        "gtemp": ("gpu_temp_c", "C"),
        "temp": ("gpu_temp_c", "C"),
        "mtemp": ("mem_temp_c", "C"),
        "pclk": ("sm_clock_mhz", "MHz"),
        "mclk": ("mem_clock_mhz", "MHz"),
        "rxpci": ("pcie_rx_bytes_per_s", "MB/s"),
        "txpci": ("pcie_tx_bytes_per_s", "MB/s"),
        "pci": ("pcie_replays", "count"),
    }
)
_SMI_TIMES = "record times (--query-gpu=timestamp,..., `dmon -o DT`)"
SMI_QUERY: Final = GpuTool(
    "nvidia-smi --query-gpu",
    "nvidia-smi --help-query-gpu",
    QUERY_FIELDS,
    MappingProxyType(
        {
            "uuid": ("uuid", ""),
            "pci": ("pci", ""),
            "model": ("model", ""),
            "hbm_mib": ("hbm_mib", "MiB"),
        }
    ),
    time="stamp",
    node="node",
    times=_SMI_TIMES,
)
SMI_DMON: Final = GpuTool(
    "nvidia-smi dmon",
    "nvidia-smi dmon -h",
    DMON_COLUMNS,
    time="stamp",
    node="node",
    times=_SMI_TIMES,
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
    MappingProxyType(
        {
            "utilization_gpu": ("gpu_util", "percent"),
            "utilization_memory": ("mem_copy_util", "percent"),
            "memory_used": ("hbm_used_mib", "MiB"),
            "memory_free": ("hbm_free_mib", "MiB"),
            "power_draw": ("power_w", "W"),
            "power_draw_average": ("power_w", "W"),
            "temperature_gpu": ("gpu_temp_c", "C"),
            "temperature_memory": ("mem_temp_c", "C"),
            "clocks_current_sm": ("sm_clock_mhz", "MHz"),
            "clocks_current_memory": ("mem_clock_mhz", "MHz"),
            "pcie_tx_util": ("pcie_tx_bytes_per_s", "kB/s"),
            "pcie_rx_util": ("pcie_rx_bytes_per_s", "kB/s"),
            "remapped_rows_correctable": ("remapped_rows_correctable", "count"),
            "remapped_rows_uncorrectable": ("remapped_rows_uncorrectable", "count"),
        }
    ),
    MappingProxyType(
        {"uuid": ("uuid", ""), "name": ("model", ""), "memory_total": ("hbm_mib", "MiB")}
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
        MappingProxyType(
            {"uuid": ("uuid", ""), "name": ("model", ""), "memory.total": ("hbm_mib", "MiB")}
        ),
        marks=("query_time",),
        gpu="index",
        time="query_time",
        node="hostname",
    ),
    GpuTool(
        "KempnerPulse --export",
        "KempnerInstitute/kempnerpulse, docs/export.md",
        MappingProxyType(
            {
                "gpu_util_pct": ("gpu_util", "percent"),
                "sm_active_pct": ("sm_active", "percent"),
                "sm_occupancy_pct": ("sm_occupancy", "percent"),
                "gr_engine_active_pct": ("gr_engine_active", "percent"),
                "fp16_pipe_pct": ("fp16_active", "percent"),
                "fp32_pipe_pct": ("fp32_active", "percent"),
                "fp64_pipe_pct": ("fp64_active", "percent"),
                "tensor_active_pct": ("tensor_active", "percent"),
                "tc_hmma_pct": ("tensor_hmma_active", "percent"),
                "tc_imma_pct": ("tensor_imma_active", "percent"),
                "tc_dfma_pct": ("tensor_dfma_active", "percent"),
                "dram_active_pct": ("dram_active", "percent"),
                "memcpy_util_pct": ("mem_copy_util", "percent"),
                "mem_used_mib": ("hbm_used_mib", "MiB"),
                "pcie_tx_bytes_s": ("pcie_tx_bytes_per_s", "B/s"),
                "pcie_rx_bytes_s": ("pcie_rx_bytes_per_s", "B/s"),
                "power_w": ("power_w", "W"),
                "energy_j": ("energy_j", "J"),
                "gpu_temp_c": ("gpu_temp_c", "C"),
                "mem_temp_c": ("mem_temp_c", "C"),
                "sm_clock_mhz": ("sm_clock_mhz", "MHz"),
                "mem_clock_mhz": ("mem_clock_mhz", "MHz"),
            }
        ),
        MappingProxyType({"model": ("model", ""), "mem_total_mib": ("hbm_mib", "MiB")}),
        marks=("real_util_pct", "gpu_util_pct", "sm_active_pct", "mem_used_mib"),
        gpu="gpu_id",
        time="timestamp",
        # 0.4.1 writes 0.4700 where 47.00 is meant
        ratios=("tc_hmma_pct", "tc_imma_pct", "tc_dfma_pct"),
    ),
    GpuTool(
        "rocm-smi",
        "ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py",
        MappingProxyType(
            {
                "gpu use (%)": ("gpu_util", "percent"),
                "gpu memory read/write activity (%)": ("dram_active", "percent"),
                "gpu memory use (%)": ("dram_active", "percent"),  # before ROCm 6.1
                "vram total used memory (b)": ("hbm_used_mib", "B"),
                "current socket graphics package power (w)": ("power_w", "W"),
                "average graphics package power (w)": ("power_w", "W"),
                "accumulated energy (uj)": ("energy_j", "uJ"),
                "temperature (sensor junction) (c)": ("gpu_temp_c", "C"),
                "temperature (sensor edge) (c)": ("gpu_temp_c", "C"),
                "temperature (sensor memory) (c)": ("mem_temp_c", "C"),
                "temperature (sensor mem) (c)": ("mem_temp_c", "C"),
                "sclk clock speed:": ("sm_clock_mhz", "MHz"),
                "mclk clock speed:": ("mem_clock_mhz", "MHz"),
                "pcie replay count": ("pcie_replays", "count"),
            }
        ),
        MappingProxyType(
            {
                "card series": ("model", ""),
                "device name": ("model", ""),
                "pci bus": ("pci", ""),
                "vram total memory (b)": ("hbm_mib", "B"),
            }
        ),
        gpu="device",
        times="record with `amd-smi metric --watch 1`",
    ),
    GpuTool(
        "amd-smi monitor",
        "ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py: monitor",
        MappingProxyType(
            {
                "gfx": ("gpu_util", "percent"),
                "mem": ("dram_active", "percent"),
                "vram_used": ("hbm_used_mib", "MiB"),
                "vram_free": ("hbm_free_mib", "MiB"),
                "power_usage": ("power_w", "W"),
                "hotspot_temperature": ("gpu_temp_c", "C"),
                "memory_temperature": ("mem_temp_c", "C"),
                "gfx_clk": ("sm_clock_mhz", "MHz"),
                "gfx_clock": ("sm_clock_mhz", "MHz"),
                "mem_clock": ("mem_clock_mhz", "MHz"),
                "pcie_replay": ("pcie_replays", "count"),
            }
        ),
        MappingProxyType({"vram_total": ("hbm_mib", "MiB")}),
        marks=("gfx", "power_usage", "hotspot_temperature", "mem_clock", "vram_used"),
        time="timestamp",
        times="record with `amd-smi monitor --watch 1`",
        is_untested=True,
    ),
    GpuTool(
        "amd-smi metric",
        "ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py: metric_gpu; CSV leaves out outer keys",
        MappingProxyType(
            {
                "usage.gfx_activity": ("gpu_util", "percent"),
                "gfx_activity": ("gpu_util", "percent"),
                "usage.umc_activity": ("dram_active", "percent"),
                "umc_activity": ("dram_active", "percent"),
                "mem_usage.used_vram": ("hbm_used_mib", "MiB"),
                "used_vram": ("hbm_used_mib", "MiB"),
                "mem_usage.free_vram": ("hbm_free_mib", "MiB"),
                "free_vram": ("hbm_free_mib", "MiB"),
                "power.socket_power": ("power_w", "W"),
                "socket_power": ("power_w", "W"),
                "energy.total_energy_consumption": ("energy_j", "J"),
                "total_energy_consumption": ("energy_j", "J"),
                "temperature.hotspot": ("gpu_temp_c", "C"),
                "hotspot": ("gpu_temp_c", "C"),
                "temperature.edge": ("gpu_temp_c", "C"),
                "edge": ("gpu_temp_c", "C"),
                "temperature.mem": ("mem_temp_c", "C"),
                "mem": ("mem_temp_c", "C"),
                "clock.gfx_0.clk": ("sm_clock_mhz", "MHz"),
                "gfx_0_clk": ("sm_clock_mhz", "MHz"),
                "clock.mem_0.clk": ("mem_clock_mhz", "MHz"),
                "mem_0_clk": ("mem_clock_mhz", "MHz"),
                "pcie.replay_count": ("pcie_replays", "count"),
                "replay_count": ("pcie_replays", "count"),
                "ecc.total_correctable_count": ("ecc_sbe", "count"),
                "total_correctable_count": ("ecc_sbe", "count"),
                "ecc.total_uncorrectable_count": ("ecc_dbe", "count"),
                "total_uncorrectable_count": ("ecc_dbe", "count"),
            }
        ),
        MappingProxyType(
            {"mem_usage.total_vram": ("hbm_mib", "MiB"), "total_vram": ("hbm_mib", "MiB")}
        ),
        time="timestamp",
        times="record with `amd-smi metric --watch 1`",
    ),
    GpuTool(
        "system metrics of wandb",
        "wandb/wandb, xpu/src: gpu_nvidia.rs, gpu_nvidia_dcgm.rs (ratios times 100), gpu_amd.rs",
        MappingProxyType(
            {
                "system.gpu.gpu": ("gpu_util", "percent"),
                "system.gpu.memory": ("mem_copy_util", "percent"),
                "system.gpu.memoryreadwriteactivity": ("dram_active", "percent"),
                "system.gpu.memoryallocatedbytes": ("hbm_used_mib", "B"),
                "system.gpu.powerwatts": ("power_w", "W"),
                "system.gpu.temp": ("gpu_temp_c", "C"),
                "system.gpu.smclock": ("sm_clock_mhz", "MHz"),
                "system.gpu.memoryclock": ("mem_clock_mhz", "MHz"),
                "system.gpu.smactive": ("sm_active", "percent"),
                "system.gpu.smoccupancy": ("sm_occupancy", "percent"),
                "system.gpu.dramactive": ("dram_active", "percent"),
                "system.gpu.pipetensoractive": ("tensor_active", "percent"),
                "system.gpu.pipetensorhmmaactive": ("tensor_hmma_active", "percent"),
                "system.gpu.pipefp16active": ("fp16_active", "percent"),
                "system.gpu.pipefp32active": ("fp32_active", "percent"),
                "system.gpu.pipefp64active": ("fp64_active", "percent"),
                "system.gpu.pcietxbytes": ("pcie_tx_bytes_per_s", "B/s"),
                "system.gpu.pcierxbytes": ("pcie_rx_bytes_per_s", "B/s"),
                "system.gpu.nvlinktxbytes": ("nvlink_tx_bytes_per_s", "B/s"),
                "system.gpu.nvlinkrxbytes": ("nvlink_rx_bytes_per_s", "B/s"),
            }
        ),
        time="_timestamp",
        is_untested=True,
    ),
)
