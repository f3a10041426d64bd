"""Text of nvidia-smi: queries with and without a header, and dmon, become samples; nothing is
lost uncounted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from in_process import run_here
from tachograph.catalog.tables import DEVICES, GPU_SAMPLES
from tachograph.lake.delta import Lake
from tachograph.sources.nvidia_smi import field_names

HEADER = (
    "timestamp, index, name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], "
    "power.draw [W], "
    "clocks_throttle_reasons.active, fan.speed [%]"
)
FIRST = (
    "2026/03/01 10:00:00.123, 0, NVIDIA A100-SXM4-40GB, GPU-a, 45 %, 1024 MiB, 40960 MiB, "
    "71.5 W, 0x04, [N/A]"
)
SECOND = (
    "2026/03/01 10:00:00.124, 1, NVIDIA A100-SXM4-40GB, GPU-b, [Not Supported], N/A, 40960 "
    "MiB, 61.5 W, 0x0, [of later]"
)
DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB
 20260301   23:59:59      0     44     36     35      7      1   1215   1410   1024
 20260301   23:59:59      1     43     35      -      0      -   1215   1410    512
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB
 20260302   00:00:00      0     44     36     35     97      1   1215   1410   1024
"""
DROPPED = "    0     44     36     50      1"
UNTIMED = f"""\
# gpu    pwr  gtemp     sm    mem
# Idx      W      C      %      %
    0     44     36     10      1
    1     44     36     20      1
    0     44     36     30      1
    1     44     3
# gpu    pwr  gtemp     sm    mem
# Idx      W      C      %      %
{DROPPED}
    1     44     36     60      1
"""
PMON = """\
# gpu         pid   type     sm    mem    enc    dec    command
# Idx           #    C/G      %      %      %      %    name
    0       1111     C      5      2      -      -    python
    0       2222     C      4      1      -      -    python
    1          -     -      -      -      -      -    -
"""
TIMES_ALONE = "#Time gpu pwr sm\n#HH:MM:SS Idx W %\n 23:59:59 0 44 7\n 00:00:00 0 45 97\n"


def ingest(folder: Path, text: str, *options: str) -> CompletedProcess[str]:
    (folder / "smi.txt").write_text(text, encoding="utf-8", newline="")
    return run_here(
        ["ingest", "nvidia-smi", "smi.txt", "--lake", "lake", *options],
        folder,
        {"HOME": str(folder)},
    )


def rows(folder: Path, *columns: str) -> list[tuple[object, ...]]:
    found = Lake.open(str(folder / "lake")).latest(GPU_SAMPLES).sort("t", "gpu")
    return found.select(*columns).rows()


@pytest.mark.parametrize(
    "text", [f"{HEADER}\n{FIRST}\n{SECOND}\n", f"\ufeff{HEADER}\r\n{FIRST}\r\n{HEADER}\r\n{SECOND}"]
)
def test_a_query_with_header_and_units(tmp_path: Path, text: str) -> None:
    done = ingest(tmp_path, text, "--node", "n1.example.org")
    assert done.returncode == 0, done.stderr
    assert "2 gpu_samples, 2 devices committed" in done.stdout
    assert "fan.speed" in done.stdout
    found = rows(tmp_path, "node", "gpu", "gpu_util", "hbm_used_mib", "power_w", "throttle_reasons")
    assert found == [
        ("n1", 0, pytest.approx(0.45), 1024.0, 71.5, 4),
        ("n1", 1, None, None, 61.5, 0),
    ]
    devices = Lake.open(str(tmp_path / "lake")).latest(DEVICES).sort("gpu")
    assert devices.select("uuid", "model", "hbm_mib").rows() == [
        ("GPU-a", "NVIDIA A100-SXM4-40GB", 40960.0),
        ("GPU-b", "NVIDIA A100-SXM4-40GB", 40960.0),
    ]


def test_a_query_without_a_header_needs_its_fields(tmp_path: Path) -> None:
    text = (
        "2026/03/01 10:00:00.123, 0, 45, 1024\n2026/03/01 10:00:01.123, 0, [Unknown Error], "
        "1024\n2026/03/01 10:0"
    )
    refused = ingest(tmp_path, text, "--node", "n1")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "give --fields" in refused.stderr
    fields = "timestamp,index,utilization.gpu,memory.used"
    done = ingest(tmp_path, text, "--node", "n1", "--fields", fields)
    assert "3 rows read; 2 gpu_samples committed" in done.stdout
    assert "rejected: 1 row of gpu_samples: unreadable line" in done.stdout
    assert rows(tmp_path, "gpu_util") == [(pytest.approx(0.45),), (None,)]
    again = ingest(tmp_path, text, "--node", "n1", "--fields", fields)
    assert "nothing new" in again.stdout


def test_dmon_with_repeated_headers(tmp_path: Path) -> None:
    assert ingest(tmp_path, DMON, "--node", "n1").returncode == 0
    found = rows(tmp_path, "t", "gpu", "gpu_util", "mem_copy_util", "mem_temp_c", "sm_clock_mhz")
    second, last = datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
    assert found == [
        (second, 0, pytest.approx(0.07), pytest.approx(0.01), 35.0, 1410.0),
        (second, 1, 0.0, None, None, 1410.0),
        (last, 0, pytest.approx(0.97), pytest.approx(0.01), 35.0, 1410.0),
    ]


def test_dmon_with_times_alone_goes_on_behind_midnight(tmp_path: Path) -> None:
    refused = ingest(tmp_path, TIMES_ALONE, "--node", "n1")
    assert "give the first --date" in refused.stderr
    done = ingest(
        tmp_path,
        TIMES_ALONE,
        "--node",
        "n1",
        "--date",
        "2026-03-01",
        "--time-zone",
        "Europe/Berlin",
    )
    assert done.returncode == 0, done.stderr
    first = datetime(2026, 3, 1, 22, 59, 59, tzinfo=UTC)
    assert rows(tmp_path, "t") == [(first,), (first.replace(hour=23, minute=0, second=0),)]


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (f"{HEADER}\n{FIRST}\n", (), "--node"),
        ("timestamp, utilization.gpu [%]\n2026/03/01 10:00:00, 4 %\n", ("--node", "n"), "--gpu 0"),
        ("index, utilization.gpu [%]\n0, 4 %\n", ("--node", "n"), "--time"),
        (
            "uuid, utilization.gpu [%]\nGPU-a, 4 %\nGPU-b, 5 %\n",
            ("--node", "n", "--gpu", "0", "--time", "2026-03-01"),
            "--gpu names one GPU, and uuid several; query index",
        ),
        ("index, name\n0, x\n", ("--node", "n"), "no counter among"),
        ("# Idx W\n0 1\n", ("--node", "n"), "header is missing"),
        ("", ("--node", "n"), "empty"),
        (UNTIMED, ("--node", "n"), "record times"),
        (
            UNTIMED,
            ("--node", "n", "--time", "2026-03-01"),
            "3 readings of the GPUs, and --time is that of the first; give --interval",
        ),
        (PMON, ("--node", "n", "--time", "2026-03-01"), "its rows are processes"),
        ("pid, used_gpu_memory [MiB]\n12, 4 MiB\n", ("--node", "n"), "its rows are processes"),
        (
            "\n".join(line for line in UNTIMED.split("\n") if line != DROPPED),
            ("--node", "n", "--time", "2026-03-01", "--interval", "1"),
            "readings cannot be counted",
        ),
        (TIMES_ALONE, ("--node", "n", "--date", "2026-13-01"), "invalid date"),
    ],
)
def test_what_is_unknown_is_one_line(
    tmp_path: Path, text: str, options: tuple[str, ...], problem: str
) -> None:
    done = ingest(tmp_path, text, *options)
    assert done.returncode == 4
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("interval_s", [1.0, 0.5, 10.0])
def test_times_of_readings_are_counted_from_the_first(tmp_path: Path, interval_s: float) -> None:
    options = ("--time", "2026-03-01T10:00", "--interval", str(interval_s))
    done = ingest(tmp_path, UNTIMED, "--node", "n1", *options)
    assert "6 rows read; 5 gpu_samples committed" in done.stdout
    assert "duplicate" not in done.stdout
    start = datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert rows(tmp_path, "t", "gpu", "gpu_util") == [
        (start + timedelta(seconds=number * interval_s), gpu, pytest.approx(use))
        # The line of GPU 1 in the second reading was cut off.
        for number, gpu, use in ((0, 0, 0.1), (0, 1, 0.2), (1, 0, 0.3), (2, 0, 0.5), (2, 1, 0.6))
    ]


def test_an_interval_of_no_time_is_refused(tmp_path: Path) -> None:
    done = ingest(tmp_path, UNTIMED, "--node", "n1", "--time", "2026-03-01", "--interval", "0")
    assert (done.returncode, "--interval: '0'" in done.stderr) == (2, True)


def test_one_time_is_not_that_of_several_files(tmp_path: Path) -> None:
    dated = "timestamp, index, utilization.gpu [%]\n2026/03/01 10:00:00.000, 0, 5 %\n"
    timed = ("--node", "n1", "--time", "2026-03-01", "--interval", "10", "--lake", "lake")
    for text, code in ((UNTIMED, 4), (dated, 0)):
        for name in ("one.txt", "other.txt"):
            (tmp_path / name).write_text(text, encoding="utf-8")
        words = ["ingest", "nvidia-smi", "one.txt", "other.txt", *timed]
        done = run_here(words, tmp_path, {"HOME": str(tmp_path)})
        assert done.returncode == code
        assert done.stderr.count("--time cannot be that of several files") == (2 if code else 0)


def test_one_look_without_times_and_without_an_index(tmp_path: Path) -> None:
    text = "utilization.gpu [%], memory.used [MiB]\n4 %, oops\n"
    done = ingest(tmp_path, text, "--node", "n", "--gpu", "2", "--time", "2026-03-01T10:00")
    assert rows(tmp_path, "gpu", "gpu_util", "hbm_used_mib") == [(2, pytest.approx(0.04), None)]
    assert "rejected: 1 value of hbm_used_mib of gpu_samples: not a number" in done.stdout


@given(st.lists(st.text(max_size=20), max_size=8))
def test_any_header_is_names(cells: list[str]) -> None:
    assert len(field_names(cells)) == len(cells)
