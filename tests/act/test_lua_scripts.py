"""Scripts of Lua: luacheck has nothing to remark, and cli_filter.lua has the limits of who
writes its files.
"""

from __future__ import annotations

import random
import re
import subprocess

import pytest
from slurm_client import LUA

from servers.process import program
from tachograph.annexes.act import advice_table
from tachograph.judge.advice.request import name_pattern


@pytest.mark.slow
def test_luacheck_has_nothing_to_remark() -> None:
    scripts = sorted(LUA.glob("*.lua"))
    assert len(scripts) == 1
    luacheck, configuration = (
        program("luacheck", package="lua-check"),
        str(LUA.parents[1] / ".luacheckrc"),
    )
    command = [luacheck, "--no-color", "-q", "--config", configuration, *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_reader_and_writer_have_the_same_limits() -> None:
    script = (LUA / "cli_filter.lua").read_text(encoding="utf-8")
    assert re.findall(r"^local MOST_BYTES = (\d+)", script, re.MULTILINE) == [
        str(advice_table.MOST_BYTES)
    ]
    assert f'"{advice_table.BEGIN.replace("-", "%-")}"' in script


NAMES = (
    *(
        "train",
        "Train_01",
        "train_2026-11-23T10:00",
        "a1b2c3",
        "run.a1b2c3d4.7",
        "deadbeef",
        "123456",
        "abcdef1",
    ),
    *(
        "1-2",
        "v1.2.3-rc4",
        "A1B2C3D4E5F6",
        "a1b2",
        "größe12",
        "12T34",
        "12t34",
        "-",
        "job 7",
        "7",
        "__9__",
        "%d",
    ),
    *(
        "f" * 70 + "1",
        "f" * 63 + "1",
        "x#1",
        "e3e3e3.e3e3e3",
        "1.",
        ".1",
        "1..2",
        "x_1_2_3",
        "a1b2c3_12",
    ),
)


@pytest.mark.slow
def test_names_have_the_pattern_of_the_service() -> None:
    lua = program("lua", package="lua5.1")
    script = (
        f"local a = dofile('{LUA / 'cli_filter.lua'}') for name in io.lines() do "
        "print(a.pattern(name)) end"
    )
    values = random.Random(7)
    names = [
        *NAMES,
        *(
            "".join(values.choices("abcfgT01279-_.:# ", k=values.randint(1, 20)))
            for _ in range(3000)
        ),
    ]
    given = "".join(f"{name}\n" for name in names)
    done = subprocess.run(
        [lua, "-e", script], input=given, capture_output=True, text=True, timeout=60, check=True
    )
    made = done.stdout.split("\n")[:-1]
    assert [
        (name, pattern)
        for name, pattern in zip(names, made, strict=True)
        if pattern != name_pattern(name)
    ] == []
