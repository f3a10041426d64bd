"""What GPU tools wrote into files becomes samples: each program's own output, numbers by hand.

gpustat 1.1.1 and KempnerPulse 0.4.1 wrote theirs with a driver and an exporter of tests; the others
are written as their programs' source does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from syrupy.assertion import SnapshotAssertion

from in_process import run_well
from row_lines import lake_lines
from tachograph.catalog.counters import COUNTERS_BY_NAME
from tachograph.catalog.units import is_convertible
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
RECORDED = Path(__file__).parent / "recorded"
AMD_METRIC = json.loads((RECORDED / "amd_metric.json").read_bytes())
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
IDLE_LINE = "1772366401,3,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,196592\n"
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
WANDB = (RECORDED / "wandb.jsonl").read_text()


def ingest(
    folder: Path, name: str, text: str, *options: str, code: int = 0
) -> CompletedProcess[str]:
    (folder / name).write_text(text, encoding="utf-8")
    return run_well(folder, "ingest gpu-tools", name, *options, code=code)


def timed(before: str, text: str = DMON) -> str:
    """Return the lines, each behind the time of its reading: the second is 2.5 s later."""
    later = before.replace("6400.00", "6402.50").replace("12:00:00", "12:00:02.5")
    lines = text.splitlines()
    return "".join(f"{before if place < 5 else later}{line}\n" for place, line in enumerate(lines))


def wandb_csv() -> str:
    records = [json.loads(line) for line in WANDB.splitlines()]
    lines = [records[0], *(record.values() for record in records)]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)


WATCHED = "'CTRL' + 'C' to stop watching output:\n" + json.dumps(AMD_METRIC, indent=4) + "\n"
HERE = ("--node", "n1")
EACH_10_S = (*HERE, "--time", "2026-03-01T12:00", "--interval", "10")
# {file: (its text, options)}
TOOL_FILES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gpustat.json": (GPUSTAT % 0 + GPUSTAT % 1, ()),
    "cut off gpustat.json": (GPUSTAT % 2 + (GPUSTAT % 3)[:300], ()),
    # A ratio with four decimals, and a percentage with two, are the same share.
    "pulse.csv": (KEMPNER, HERE),
    "dmon.txt": (DMON, (*HERE, "--time", "2026-03-01T12:00", "--interval", "2.5")),
    "dmon of unix times.txt": (timed("1772366400.00 "), HERE),
    "dmon of times in brackets.txt": (timed("[2026-03-01 12:00:00] "), HERE),
    "dmon of ISO times.txt": (timed("2026-03-01T12:00:00Z\t"), HERE),
    "watched.json": (WATCHED * 2, HERE),
    "gpu_data.json": (json.dumps({"gpu_data": AMD_METRIC}), HERE),
    "without counters of GPU 3.csv": (AMD_MONITOR_CSV + IDLE_LINE, HERE),
    "metric.csv": (AMD_METRIC_CSV, HERE),
    "monitor.csv": (AMD_MONITOR_CSV, HERE),
    "rocm.json": (ROCM * 2, EACH_10_S),
    "rocm.csv": (ROCM_CSV, EACH_10_S),
    "metrics.out": (TELEGRAF, ()),
    "wandb.jsonl": (WANDB, HERE),
    "wandb.json": (json.dumps([json.loads(line) for line in WANDB.splitlines()]), HERE),
    "wandb.csv": (wandb_csv(), HERE),
}


@pytest.mark.parametrize("name", TOOL_FILES)
def test_output_of_tools_becomes_samples(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    text, options = TOOL_FILES[name]
    done = ingest(tmp_path, name, text, *options)
    assert done.stdout + lake_lines(tmp_path / "lake", "gpu_samples", "devices") == snapshot


@pytest.mark.parametrize("tool", GPU_TOOLS, ids=lambda tool: tool.name)
def test_names_of_tools_are_counters_in_one_unit_each(tool: GpuTool) -> None:
    units: dict[str, str] = {}
    for name, (counter, unit) in tool.columns.items():
        assert name == name.lower()
        assert is_convertible(unit, COUNTERS_BY_NAME[counter].unit)
        assert units.setdefault(counter, unit) == unit
    assert {column for column, _ in tool.facts.values()} <= {"uuid", "pci", "model", "hbm_mib"}


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
    done = ingest(tmp_path, "a", text, *options, code=4)
    assert done.stdout == ""
    assert what in done.stderr
    assert done.stderr.count("\n") == 1


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
    command = "ingest ./data --node n1 --json"
    answer = json.loads(run_well(tmp_path, command).stdout)
    sources = [source for source, _ in KINDS.values()]
    assert answer["files"] == {source: sources.count(source) for source in sources}
    assert answer["not_recognised"] == []
    assert all(report["rows"] for report in answer["sources"].values())
    for name, text in (("rocm.json", ROCM), ("rocm.csv", ROCM_CSV)):  # their time is nowhere
        (tmp_path / "data" / name).write_text(text)
    refused = run_well(tmp_path, command, code=4)
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
    done = run_well(tmp_path, "ingest ./a.csv b.json c.txt", code=4)
    what = "no counter of a GPU or host among:"
    assert f"  a.csv: {what} timestamp, hostname, gpu, uuid, name, loadpct" in done.stdout
    assert f"  b.json: {what} index, uuid, \\x1b[2jx" in done.stdout
    assert "c.txt:" not in done.stdout
    (tmp_path / "pulse.csv").write_text(KEMPNER)
    named = run_well(tmp_path, "ingest table --suggest pulse.csv", code=4)
    assert named.stdout == ""
    assert "this is output of KempnerPulse --export; tachograph ingest gpu-tools" in named.stderr
