"""Text of nvidia-smi: queries with and without a header, and dmon, become samples; nothing is
lost uncounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from in_process import run_well
from row_lines import lake_lines
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


def ingest(folder: Path, text: str, *options: str, code: int = 0) -> CompletedProcess[str]:
    (folder / "smi.txt").write_text(text, encoding="utf-8", newline="")
    return run_well(folder, "ingest nvidia-smi smi.txt", *options, code=code)


FIELDS = "timestamp,index,utilization.gpu,memory.used"
UNNAMED = (
    "2026/03/01 10:00:00.123, 0, 45, 1024\n"
    "2026/03/01 10:00:01.123, 0, [Unknown Error], 1024\n2026/03/01 10:0"
)
MIDNIGHT = ("--date", "2026-03-01", "--time-zone", "Europe/Berlin")
HOSTS = "timestamp, index, host, node, utilization.gpu [%]\n2026/03/01 10:00:00, 0, n7, n8, 4 %\n"
MODELS = (
    "timestamp, index, name, model, utilization.gpu [%]\n2026/03/01 10:00:00, 0, H100, x, 4 %\n"
)
MIG = (
    "timestamp, index, uuid, name, memory.total [MiB], utilization.gpu [%]\n"
    "2026/03/01 10:00:00, 0, GPU-a, H100, 81559 MiB, 4 %\n"
    "2026/03/01 10:00:00, 1, GPU-b, H100, 81559 MiB, [N/A]\n"
)
ONE_LOOK = "utilization.gpu [%], memory.used [MiB]\n4 %, oops\n"
# {what: (text, options)}
SMI_FILES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "query": (f"{HEADER}\n{FIRST}\n{SECOND}\n", ()),
    "query in a loop on Windows": (f"\ufeff{HEADER}\r\n{FIRST}\r\n{HEADER}\r\n{SECOND}", ()),
    "query without a header": (UNNAMED, ("--fields", FIELDS)),
    "query without time or index": (ONE_LOOK, ("--gpu", "2", "--time", "2026-03-01T10:00")),
    "query with two columns of the host": (HOSTS, ()),
    "query with a column named as a fact": (MODELS, ()),
    "query of a GPU without any counter": (MIG, ()),
    "dmon": (DMON, ()),
    "dmon over midnight": (TIMES_ALONE, MIDNIGHT),
    # The line of GPU 1 in the second reading was cut off.
    **{
        f"dmon each {step} s": (UNTIMED, ("--time", "2026-03-01T10:00", "--interval", step))
        for step in ("1.0", "0.5", "10")
    },
}


@pytest.mark.parametrize("what", SMI_FILES)
def test_output_becomes_samples(what: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    text, options = SMI_FILES[what]
    words = (text, "--node", "n1.example.org", *options)
    done = ingest(tmp_path, *words)
    assert done.stdout + lake_lines(tmp_path / "lake", "gpu_samples", "devices") == snapshot
    assert "nothing new" in ingest(tmp_path, *words).stdout


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
        (TIMES_ALONE, ("--node", "n"), "give the first --date"),
        (UNNAMED, ("--node", "n"), "give --fields"),
    ],
)
def test_what_is_unknown_is_one_line(
    tmp_path: Path, text: str, options: tuple[str, ...], problem: str
) -> None:
    done = ingest(tmp_path, text, *options, code=4)
    assert done.stdout == ""
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_without_a_readable_time_is_counted(tmp_path: Path) -> None:
    done = ingest(tmp_path, MODELS.replace("2026/03/01 10:00:00", "foo"), "--node", "n1")
    assert done.stderr == ""
    assert "1 row read; nothing new" in done.stdout
    assert "rejected: 1 row of gpu_samples: unreadable time" in done.stdout


def test_an_interval_of_no_time_is_refused(tmp_path: Path) -> None:
    options = ["--node", "n1", "--time", "2026-03-01", "--interval", "0"]
    assert "--interval: '0'" in ingest(tmp_path, UNTIMED, *options, code=2).stderr


def test_one_time_is_not_that_of_several_files(tmp_path: Path) -> None:
    dated = "timestamp, index, utilization.gpu [%]\n2026/03/01 10:00:00.000, 0, 5 %\n"
    for text, code in ((UNTIMED, 4), (dated, 0)):
        for name in ("one.txt", "other.txt"):
            (tmp_path / name).write_text(text, encoding="utf-8")
        command = "ingest nvidia-smi one.txt other.txt --node n1 --time 2026-03-01 --interval 10"
        done = run_well(tmp_path, command, code=code)
        assert done.stderr.count("--time cannot be that of several files") == (2 if code else 0)


@given(st.lists(st.text(max_size=20), max_size=8))
def test_any_header_is_names(cells: list[str]) -> None:
    assert len(field_names(cells)) == len(cells)


def test_a_second_column_of_one_meaning_is_named_with_it(tmp_path: Path) -> None:
    text = (
        "timestamp, index, gpu_uuid, uuid, gpu_name, name, utilization.gpu [%]\n"
        "2026/03/01 10:00:00.123, 0, GPU-a, GPU-a, A40, A40, 45 %\n"
    )
    done = ingest(tmp_path, text, "--node", "n1")
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == [
        "not read: columns that mean the same as another one: uuid (uuid), name (model)"
    ]
