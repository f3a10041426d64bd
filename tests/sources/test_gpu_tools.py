"""What GPU tools wrote into files becomes samples: each program's own output, numbers by hand.

gpustat 1.1.1 and KempnerPulse 0.4.1 wrote theirs with a driver and an exporter of tests; the others
are written as their programs' source does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from in_process import run_here
from tachograph.catalog.counters import COUNTERS_BY_NAME
from tachograph.catalog.tables import DEVICES, GPU_SAMPLES
from tachograph.catalog.units import is_convertible
from tachograph.lake.delta import Lake
from tachograph.sources.gpu_tool_names import GPU_TOOLS, GpuTool
from tachograph.sources.gpu_tools import tool_text

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GPUSTAT = """\
{
    "hostname": "gpu07.example.org",
    "driver_version": "570.86.15",
    "query_time": "2026-03-01T12:00:0%d.500000",
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-00000000-1111-2222-3333-444444444444",
            "name": "NVIDIA H200",
            "temperature.gpu": 51,
            "fan.speed": null,
            "utilization.gpu": 40,
            "utilization.enc": 0,
            "utilization.dec": 0,
            "power.draw": 321,
            "enforced.power.limit": 700,
            "memory.used": 10000,
            "memory.total": 144000,
            "processes": [
                {"username": "u", "command": "python", "gpu_memory_usage": 9000, "pid": 7}
            ]
        },
        {
            "index": 1,
            "uuid": "GPU-00000001-1111-2222-3333-444444444444",
            "name": "NVIDIA H200",
            "temperature.gpu": 52,
            "fan.speed": null,
            "utilization.gpu": 41,
            "utilization.enc": 0,
            "utilization.dec": 0,
            "power.draw": null,
            "enforced.power.limit": 700,
            "memory.used": 10001,
            "memory.total": 144000,
            "processes": []
        }
    ]
}
"""
KEMPNER = """\
timestamp,gpu_id,model,real_util_pct,status,health,sm_active_pct,tensor_active_pct,dram_active_pct,\
gr_engine_active_pct,gpu_util_pct,mem_used_mib,mem_total_mib,mem_used_pct,power_w,gpu_temp_c,\
mem_temp_c,sm_occupancy_pct,fp16_pipe_pct,fp32_pipe_pct,fp64_pipe_pct,memcpy_util_pct,\
pcie_rx_bytes_s,pcie_tx_bytes_s,nvlink_gbps,sm_clock_mhz,mem_clock_mhz,pcie_replay_rate_s,\
energy_j,tc_hmma_pct,tc_imma_pct,tc_dfma_pct,tc_dmma_pct,tc_qmma_pct
1772366400.50,0,H100,65.15,tensor compute,OK,95.00,48.00,30.00,91.00,85.00,11000.0000,81559.0,\
13.49,350.5000,38.0000,45.0000,62.00,88.00,12.00,1.00,30.00,1200000000.0000,1500000000.0000,\
25.0000,1980.0000,2619.0000,,123456.8,0.4700,0.0200,0.0300,,
1772366401.50,0,H100,65.15,tensor compute,OK,,,,,,,81559.0,,,,,,,,,,,,,,,,,47.00,,,,
"""
DMON = """\
#Entity   GPUTL        SMACT        POWER        TOTEC        PCITX                       FBUSD
ID                                   W            mJ
GPU 0     85           N/A          350.500      123456789    1500000000                  11000
GPU 1     0            N/A          90.000       223456789    0                           4
GPU-I 3   N/A          0.500        N/A          N/A          N/A                         10
GPU 0     86           0.950        351.000      123466789    1600000000                  12000
GPU 1     0            0.000        90.250       223456790    0                           4
"""
AMD_METRIC: list[dict[str, Any]] = [
    {
        "timestamp": 1772366400,
        "gpu": 2,
        "usage": {
            "gfx_activity": {"value": 42, "unit": "%"},
            "umc_activity": {"value": 11, "unit": "%"},
            "vcn_activity": [{"value": 0, "unit": "%"}, "N/A"],
        },
        "power": {"socket_power": {"value": 420, "unit": "W"}, "throttle_status": "UNTHROTTLED"},
        "clock": {"gfx_0": {"clk": {"value": 2100, "unit": "MHz"}, "min_clk": "N/A"}},
        "temperature": {
            "edge": "N/A",
            "hotspot": {"value": 55, "unit": "C"},
            "mem": {"value": 44, "unit": "C"},
        },
        "energy": {"total_energy_consumption": {"value": 1234.5, "unit": "J"}},
        "mem_usage": {
            "total_vram": {"value": 196592, "unit": "MB"},
            "used_vram": {"value": 1024, "unit": "MB"},
        },
        "pcie": {"replay_count": 3},
    }
]
AMD_METRIC_CSV = """\
timestamp,gpu,gfx_activity,umc_activity,socket_power,gfx_0_clk,edge,hotspot,mem,used_vram,replay_count
1772366400,2,42,11,420,2100,N/A,55,44,1024,3
"""
AMD_MONITOR_CSV = """\
timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,mem_clock,vram_used,vram_total
1772366400,2,420,55,44,2100,42,11,900,1024,196592

timestamp,gpu,name,pid,mem_usage
1772366400,2,python,77,512
timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,mem_clock,vram_used,vram_total
1772366401,2,N/A,56,44,2100,43,11,900,2048,196592
"""
OF_AMD = {
    "gpu_util": 0.42,
    "dram_active": 0.11,
    "power_w": 420,
    "sm_clock_mhz": 2100,
    "gpu_temp_c": 55,
    "mem_temp_c": 44,
    "hbm_used_mib": 1024,
}
ROCM = (
    '{"card0": {"Temperature (Sensor edge) (C)": "49.0", "Temperature (Sensor junction) (C)": "51.0",'
    ' "mclk clock speed:": "(1600Mhz)", "Average Graphics Package Power (W)": "128.0",'
    ' "GPU use (%)": "100", "GPU memory use (%)": "7", "VRAM Total Memory (B)": "68702699520",'
    ' "VRAM Total Used Memory (B)": "1073741824", "Accumulated Energy (uJ)": "5000000.0",'
    ' "Card series": "AMD Instinct MI250X"},'
    ' "card1": {"Average Graphics Package Power (W)": "N/A (Secondary die)", "GPU use (%)": "3"},'
    ' "system": {"Driver version": "6.3.6"}}\n'
)
ROCM_CSV = (
    "WARNING: AMD GPU device(s) is/are in a low-power state.\n\n"
    "device,Current Socket Graphics Package Power (W),GPU use (%),VRAM Total Used Memory (B)\n"
    "card0,128.0,100,1073741824\ncard1,N/A,3,0\n"
)
TELEGRAF = (
    "cpu,cpu=cpu-total,host=n7 usage_idle=90.1 1772366400000000000\n"
    r"nvidia_smi,compute_mode=Default,host=n7,index=1,name=NVIDIA\ A100-SXM4-40GB,pstate=P0,uuid=GPU-a "
    'driver_version="570, and more",fan_speed=0i,memory_total=40960i,memory_used=549i,power_draw=61.25,'
    "temperature_gpu=53i,utilization_gpu=100i,utilization_memory=90i,pcie_tx_util=2000i "
    "1772366400000000000\n"
    "nvidia_smi_process,host=n7,name=python pid=7i,used_memory=500i 1772366400000000000\n"
    "broken\n"
)
WANDB = "".join(
    json.dumps(
        {
            "system.gpu.0.gpu": 55 + tick,
            "system.gpu.0.memoryAllocatedBytes": 1048576 * 3,
            "system.gpu.0.powerWatts": 200.5,
            "system.gpu.0.smActive": 12.5,
            "system.gpu.0.pcieTxBytes": 1000,
            "system.gpu.1.gpu": 0,
            "system.gpu.process.0.gpu": 55,
            "system.cpu": 3.2,
            "_wandb": True,
            "_timestamp": 1772366400.5 + tick,
            "_runtime": 12.0,
        }
    )
    + "\n"
    for tick in range(2)
)


def ingest(folder: Path, name: str, text: str, *options: str) -> CompletedProcess[str]:
    (folder / name).write_text(text, encoding="utf-8")
    words = ["ingest", "gpu-tools", name, "--lake", "lake", *options]
    return run_here(words, folder, {"HOME": str(folder)})


def samples(folder: Path) -> list[dict[str, Any]]:
    """The rows of the lake in order, without columns that are null."""
    rows = Lake.open(str(folder / "lake")).latest(GPU_SAMPLES).sort("t", "gpu").drop("seq")
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in rows.iter_rows(named=True)
    ]


def sample(node: str, gpu: int, t: datetime, values: Mapping[str, float]) -> dict[str, Any]:
    return {"t": t, "node": node, "gpu": gpu} | {
        name: pytest.approx(value, rel=1e-6) for name, value in values.items()
    }


@pytest.mark.parametrize("tool", GPU_TOOLS, ids=lambda tool: tool.name)
def test_names_of_tools_are_counters_in_one_unit_each(tool: GpuTool) -> None:
    units: dict[str, str] = {}
    for name, (counter, unit) in tool.columns.items():
        assert name == name.lower()
        assert is_convertible(unit, COUNTERS_BY_NAME[counter].unit)
        assert units.setdefault(counter, unit) == unit
    assert {column for column, _ in tool.facts.values()} <= {"uuid", "pci", "model", "hbm_mib"}


def test_gpustat_in_a_loop(tmp_path: Path) -> None:
    done = ingest(tmp_path, "gpustat.json", GPUSTAT % 0 + GPUSTAT % 1)
    assert done.returncode == 0, done.stderr
    assert "4 rows read; 4 gpu_samples, 2 devices committed to lake" in done.stdout
    assert "rejected" not in done.stdout
    values: tuple[Mapping[str, float], ...] = (
        {"gpu_util": 0.4, "hbm_used_mib": 10000, "power_w": 321, "gpu_temp_c": 51},
        {"gpu_util": 0.41, "hbm_used_mib": 10001, "gpu_temp_c": 52},
    )
    assert samples(tmp_path) == [
        sample("gpu07", gpu, NOON + timedelta(seconds=tick + 0.5), of_gpu)
        for tick in range(2)
        for gpu, of_gpu in enumerate(values)
    ]
    devices = Lake.open(str(tmp_path / "lake")).latest(DEVICES).sort("gpu")
    assert devices.select("uuid", "model", "hbm_mib").rows() == [
        (f"GPU-0000000{gpu}-1111-2222-3333-444444444444", "NVIDIA H200", 144000.0)
        for gpu in range(2)
    ]
    cut = ingest(tmp_path, "cut.json", GPUSTAT % 2 + (GPUSTAT % 3)[:300])
    assert "2 gpu_samples" in cut.stdout
    assert "rejected: 1 row of gpu_samples: unreadable line" in cut.stdout


def test_all_columns_of_kempnerpulse(tmp_path: Path) -> None:
    done = ingest(tmp_path, "pulse.csv", KEMPNER, "--node", "n1")
    assert done.returncode == 0, done.stderr
    expected = {
        "gpu_util": 0.85, "sm_active": 0.95, "tensor_active": 0.48, "dram_active": 0.3,
        "gr_engine_active": 0.91, "sm_occupancy": 0.62, "fp16_active": 0.88, "fp32_active": 0.12,
        "fp64_active": 0.01, "mem_copy_util": 0.3, "tensor_hmma_active": 0.47,
        "tensor_imma_active": 0.02, "tensor_dfma_active": 0.03, "hbm_used_mib": 11000,
        "power_w": 350.5, "energy_j": 123456.8, "gpu_temp_c": 38, "mem_temp_c": 45,
        "sm_clock_mhz": 1980, "mem_clock_mhz": 2619, "pcie_rx_bytes_per_s": 1.2e9,
        "pcie_tx_bytes_per_s": 1.5e9,
    }  # fmt: skip
    half = NOON + timedelta(seconds=0.5)
    # A ratio with four decimals, and a percentage with two, are the same share.
    assert samples(tmp_path) == [
        sample("n1", 0, half, expected),
        sample("n1", 0, half + timedelta(seconds=1), {"tensor_hmma_active": 0.47}),
    ]
    others = "real_util_pct, status, health, mem_used_pct, nvlink_gbps, pcie_replay_rate_s"
    assert f"not read: columns without a mapping: {others}" in done.stdout


DMON_ROWS = (
    {"gpu_util": 0.85, "power_w": 350.5, "energy_j": 123456.789, "pcie_tx_bytes_per_s": 1.5e9,
     "hbm_used_mib": 11000},
    {"gpu_util": 0, "power_w": 90, "energy_j": 223456.789, "pcie_tx_bytes_per_s": 0,
     "hbm_used_mib": 4},
    {"gpu_util": 0.86, "sm_active": 0.95, "power_w": 351, "energy_j": 123466.789,
     "pcie_tx_bytes_per_s": 1.6e9, "hbm_used_mib": 12000},
    {"gpu_util": 0, "sm_active": 0, "power_w": 90.25, "energy_j": 223456.790,
     "pcie_tx_bytes_per_s": 0, "hbm_used_mib": 4},
)  # fmt: skip


@pytest.mark.parametrize(
    "prefix", ["", "1772366400.00 ", "[2026-03-01 12:00:00] ", "2026-03-01T12:00:00Z\t"]
)
def test_dcgmi_dmon_with_and_without_times(tmp_path: Path, prefix: str) -> None:
    lines = DMON.splitlines()
    if prefix:
        later = prefix.replace("6400.00", "6402.50").replace("12:00:00", "12:00:02.5")
        lines = [(prefix if place < 5 else later) + line for place, line in enumerate(lines)]
    given = () if prefix else ("--time", "2026-03-01T12:00", "--interval", "2.5")
    done = ingest(tmp_path, "dmon.txt", "\n".join(lines) + "\n", "--node", "n1", *given)
    assert done.returncode == 0, done.stderr
    assert "rejected: 1 row of gpu_samples: not a gpu" in done.stdout
    assert "5 rows read; 4 gpu_samples" in done.stdout
    times = (NOON, NOON, NOON + timedelta(seconds=2.5), NOON + timedelta(seconds=2.5))
    assert samples(tmp_path) == [
        sample("n1", place % 2, t, values)
        for place, (t, values) in enumerate(zip(times, DMON_ROWS, strict=True))
    ]


@pytest.mark.parametrize(
    ("text", "options", "what"),
    [
        (DMON, ("--node", "n1"), "the rows have no time; write a time before each line"),
        (DMON, ("--node", "n1", "--time", "2026-03-01"), "give --interval"),
        (DMON, ("--time", "2026-03-01", "--interval", "1"), "dcgmi dmon does not name the host"),
        (DMON.replace("GPU", "Nov 29 21:47:38 GPU"), ("--node", "n1"), "no time can be read"),
        ("x,y\n1,2\n", (), "no counter of a known GPU tool among: x, y"),
        ("{}", (), "no counter of a known GPU tool"),
        ("nothing", (), "no counter of a known GPU tool"),
    ],
)
def test_what_is_not_said_is_refused_in_one_line(
    tmp_path: Path, text: str, options: tuple[str, ...], what: str
) -> None:
    done = ingest(tmp_path, "a", text, *options)
    assert (done.returncode, done.stdout) == (4, "")
    assert what in done.stderr
    assert done.stderr.count("\n") == 1


def test_amd_smi(tmp_path: Path) -> None:
    watched = "'CTRL' + 'C' to stop watching output:\n" + json.dumps(AMD_METRIC, indent=4) + "\n"
    replays, energy = {"pcie_replays": 3}, {"energy_j": 1234.5}
    cases: Mapping[str, tuple[str, Mapping[str, float]]] = {
        "watched.json": (watched * 2, {**OF_AMD, **replays, **energy}),
        "gpu_data.json": (json.dumps({"gpu_data": AMD_METRIC}), {**OF_AMD, **replays, **energy}),
        "metric.csv": (AMD_METRIC_CSV, {**OF_AMD, **replays}),
        "monitor.csv": (AMD_MONITOR_CSV, {**OF_AMD, "mem_clock_mhz": 900}),
    }
    for number, (name, (text, values)) in enumerate(cases.items()):
        node = f"n{number}"
        done = ingest(tmp_path, name, text, "--node", node)
        assert done.returncode == 0, done.stderr
        found = [row for row in samples(tmp_path) if row["node"] == node]
        assert found[0] == sample(node, 2, NOON, values)
        if name == "monitor.csv":
            after = {**values, "gpu_temp_c": 56, "gpu_util": 0.43, "hbm_used_mib": 2048}
            del after["power_w"]
            assert found[1:] == [sample(node, 2, NOON + timedelta(seconds=1), after)]
            # The table of processes has no counter.
            assert "rejected: 1 row of gpu_samples: no counter" in done.stdout


def test_rocm_smi(tmp_path: Path) -> None:
    options = ("--time", "2026-03-01T12:00", "--interval", "10")
    done = ingest(tmp_path, "rocm.json", ROCM * 2, "--node", "n1", *options)
    assert done.returncode == 0, done.stderr
    first = {
        "gpu_util": 1, "dram_active": 0.07, "hbm_used_mib": 1024, "power_w": 128, "energy_j": 5,
        "gpu_temp_c": 51, "mem_clock_mhz": 1600,
    }  # fmt: skip
    assert samples(tmp_path) == [
        sample("n1", gpu, NOON + timedelta(seconds=10 * tick), values)
        for tick in range(2)
        for gpu, values in enumerate((first, {"gpu_util": 0.03}))
    ]
    assert "rejected" not in done.stdout
    devices = Lake.open(str(tmp_path / "lake")).latest(DEVICES).select("gpu", "model", "hbm_mib")
    assert (0, "AMD Instinct MI250X", 68702699520 / 2**20) in devices.rows()
    done = ingest(tmp_path, "rocm.csv", ROCM_CSV, "--node", "n2", *options)
    assert done.returncode == 0, done.stderr
    assert [row for row in samples(tmp_path) if row["node"] == "n2"] == [
        sample("n2", 0, NOON, {"gpu_util": 1, "power_w": 128, "hbm_used_mib": 1024}),
        sample("n2", 1, NOON, {"gpu_util": 0.03, "hbm_used_mib": 0}),
    ]


def test_telegraf(tmp_path: Path) -> None:
    done = ingest(tmp_path, "metrics.out", TELEGRAF)
    assert done.returncode == 0, done.stderr
    expected = {
        "gpu_util": 1, "mem_copy_util": 0.9, "hbm_used_mib": 549, "power_w": 61.25,
        "gpu_temp_c": 53, "pcie_tx_bytes_per_s": 2e6,
    }  # fmt: skip
    assert samples(tmp_path) == [sample("n7", 1, NOON, expected)]
    devices = Lake.open(str(tmp_path / "lake")).latest(DEVICES)
    assert devices.select("uuid", "model", "hbm_mib").rows() == [
        ("GPU-a", "NVIDIA A100-SXM4-40GB", 40960.0)
    ]
    others = "unmapped metric: cpu (1), nvidia_smi_process (1)"
    assert others in done.stdout
    assert "rejected: 1 row of gpu_samples: unreadable line" in done.stdout


@pytest.mark.parametrize("kind", ["lines", "list", "csv"])
def test_wandb(tmp_path: Path, kind: str) -> None:
    records = [json.loads(line) for line in WANDB.splitlines()]
    head = ",".join(records[0])
    csv = "\n".join([head, *(",".join(map(str, record.values())) for record in records)]) + "\n"
    text = {"lines": WANDB, "list": json.dumps(records), "csv": csv}[kind]
    done = ingest(tmp_path, f"events.{'csv' if kind == 'csv' else 'json'}", text, "--node", "n1")
    assert done.returncode == 0, done.stderr
    first: Mapping[str, float] = {
        "power_w": 200.5, "hbm_used_mib": 3, "sm_active": 0.125, "pcie_tx_bytes_per_s": 1000,
    }  # fmt: skip
    assert samples(tmp_path) == [
        sample("n1", gpu, NOON + timedelta(seconds=0.5 + tick), values)
        for tick in range(2)
        for gpu, values in enumerate[Mapping[str, float]](
            ({**first, "gpu_util": 0.55 + tick / 100}, {"gpu_util": 0})
        )
    ]


PAGE = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="gpu01"} 40\n'
QUERY = "timestamp, index, utilization.gpu [%]\n2026/03/01 12:00:00.000, 0, 45 %\n"
LDMS = "timestamp,ProducerName,gpu_id,nersc_ldms_dcgm_gpu_utilization\n1772366400,n5,0,30\n"
SACCT = (
    "JobID|JobIDRaw|Cluster|Partition|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES\n"
    "1|1|c|gpu|2026-03-01T12:00:00|2026-03-01T12:00:00|2026-03-01T12:10:00|00:10:00|COMPLETED|1|"
    "n1|gres/gpu=1\n"
)
KINDS: Mapping[str, tuple[str, str]] = {
    "gpustat.json": ("gpu-tools", GPUSTAT % 0),
    "pulse.csv": ("gpu-tools", KEMPNER),
    "dmon.log": ("gpu-tools", "".join(f"1772366400 {line}\n" for line in DMON.splitlines())),
    "amd.json": ("gpu-tools", json.dumps(AMD_METRIC)),
    "metric.csv": ("gpu-tools", AMD_METRIC_CSV),
    "monitor.csv": ("gpu-tools", AMD_MONITOR_CSV),
    "metrics.out": ("gpu-tools", TELEGRAF),
    "wandb-events.jsonl": ("gpu-tools", WANDB),
    "query.csv": ("nvidia-smi", QUERY),
    "page.prom": ("dcgm-exporter", PAGE),
    "ldms.csv": ("ldms", LDMS),
    "sacct.txt": ("sacct", SACCT),
}


def test_a_folder_with_a_file_of_each_tool_is_read_in_one_command(tmp_path: Path) -> None:
    for name, (_, text) in KINDS.items():
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text(text, encoding="utf-8")
    words = ["ingest", "./data", "--node", "n1", "--lake", "lake", "--json"]
    done = run_here(words, tmp_path, {"HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    sources = [source for source, _ in KINDS.values()]
    assert answer["files"] == {source: sources.count(source) for source in sources}
    assert answer["not_recognised"] == []
    assert all(report["rows"] for report in answer["sources"].values())
    for name, text in (("rocm.json", ROCM), ("rocm.csv", ROCM_CSV)):  # their time is nowhere
        (tmp_path / "data" / name).write_text(text)
    refused = run_here(words, tmp_path, {"HOME": str(tmp_path)})
    assert refused.returncode == 4
    assert json.loads(refused.stdout)["files"]["gpu-tools"] == sources.count("gpu-tools") + 2
    assert "the rows have no time; record with `amd-smi metric --watch 1`" in refused.stderr


def test_lines_with_numbers_are_no_headers_of_csv(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("0,1.5,2\n" + "".join(f"0,-{line}e3,2\n" for line in range(50)))
    rows = tool_text(file).rows  # without a header the first line stands for one
    assert (rows.height, rows.columns) == (50, ["0", "1.5", "2"])
    changed = "gpu,a\n0,1\ngpu,a\n1,2\ngpu,b,a\n0,x,3\n"
    file.write_text(changed + "".join(f"gpu,other{line}\n" for line in range(50)))
    assert tool_text(file).rows.to_dicts() == [
        {"gpu": "0", "a": "1", "b": None},
        {"gpu": "1", "a": "2", "b": None},
        {"gpu": "0", "a": "3", "b": "x"},
    ]
    file.write_text("gpu,a\ngpu,a\n")
    assert tool_text(file).rows.columns == ["gpu", "a"]


def test_a_table_without_a_counter_says_what_it_has(tmp_path: Path) -> None:
    facts = "timestamp,hostname,gpu,uuid,name,loadpct\n2026-03-01T12:00:00,n1,0,GPU-1,A100,4\n"
    (tmp_path / "a.csv").write_text(facts)
    (tmp_path / "b.json").write_text('{"gpus": [{"index": 0, "uuid": "GPU-1", "\\u001b[2Jx": 3}]}')
    (tmp_path / "c.txt").write_text("no table\n")
    done = run_here(["ingest", "./a.csv", "b.json", "c.txt"], tmp_path, {"HOME": str(tmp_path)})
    assert done.returncode == 4
    what = "no counter of a GPU or host among:"
    assert f"  a.csv: {what} timestamp, hostname, gpu, uuid, name, loadpct" in done.stdout
    assert f"  b.json: {what} index, uuid, \\x1b[2jx" in done.stdout
    assert "c.txt:" not in done.stdout
    named = run_here(["ingest", "table", "--suggest", "pulse.csv"], tmp_path, {})
    assert named.returncode != 0
    (tmp_path / "pulse.csv").write_text(KEMPNER)
    named = run_here(["ingest", "table", "--suggest", "pulse.csv"], tmp_path, {})
    assert (named.returncode, named.stdout) == (4, "")
    assert "this is output of KempnerPulse --export; tachograph ingest gpu-tools" in named.stderr
