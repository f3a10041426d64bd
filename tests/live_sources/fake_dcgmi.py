"""A `dcgmi` for tests, as a real program: what it does stands in a file beside it, read again at
every tick.

state.json: {"gpus": 2, "slices": {"21": [0, 2]}, "known": [fields], "values": {"GPU 0": {"203":
"85"}}, "mode": "", "ids": [further fields], "after": ticks until the mode takes hold, "lists":
whether `dmon -l` works, "taking_turns": [fields of odd ticks]}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib takes its time
_FIELDS = """
100 SMCLK, 101 MMCLK, 112 DVCCTR, 140 MMTMP C, 150 TMPTR C, 155 POWER W, 156 TOTEC mJ,
158 SDTMP C, 202 PCIRP, 203 GPUTL, 204 MCUTL, 230 XIDER, 250 FBTTL, 251 FBFRE,
252 FBUSD, 393 URRMP, 394 CRRMP, 395 RRF, 1001 GRACT, 1002 SMACT, 1003 SMOCC,
1004 TENSO, 1005 DRAMA, 1006 FP64A, 1007 FP32A, 1008 FP16A, 1009 PCITX, 1010 PCIRX,
1011 NVLTX, 1012 NVLRX, 1013 TIMMA, 1014 THMMA, 1015 TDFMA
"""
# {field: (short name, unit, width)}; those of traffic are wide
FIELDS: dict[int, tuple[str, str, int]] = {}
for listed in _FIELDS.split(","):
    number, name, *unit = listed.split()
    width = 20 if name in {"PCITX", "PCIRX", "NVLTX", "NVLRX"} else 5
    FIELDS[int(number)] = (name, f" {unit[0]}" if unit else "", width)
NO_ENGINE = (
    "Error: unable to establish a connection to the specified host: localhost\n"
    "Error: Unable to connect to host engine. Host engine might not be running.\n"
)


def text(name: str) -> str:
    with open(f"{HERE}/{name}") as file:  # noqa: PTH123
        return file.read()


def state() -> dict[str, Any]:
    while True:
        try:
            found: dict[str, Any] = json.loads(text("state.json"))
        except ValueError:  # it is being written
            time.sleep(0.005)
        else:
            return found


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def fail(text: str, code: int = 255) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
    sys.exit(code)


def discovery(what: str) -> None:
    now = state()
    say(f"{now['gpus']} GPUs found.\n+--------+{'-' * 60}+\n| GPU ID | Device Information |")
    for gpu in range(now["gpus"]) if what == "-l" else ():
        say(f"| {gpu:<6} | Name: NVIDIA A100-SXM4-40GB             |")
        say(f"|        | PCI Bus ID: 00000000:0{gpu}:00.0           |")
        say(f"|        | Device UUID: GPU-{gpu}-uuid   |\n+--------+{'-' * 60}+")
    for entity, (gpu, mig) in now.get("slices", {}).items() if what == "-c" else ():
        say(f"| -> I {gpu}/{mig}          | GPU Instance (EntityID: {entity})      |")


def header(requested: list[int]) -> str:
    names, units = "#Entity   ", "ID        "
    for number in requested:
        name, unit, width = FIELDS[number]
        names += f"{name:<{width + 8}}"
        units += f"{unit:<{width + 8}}"
    return f"{names}\n{units}\n"


def row(entity: str, requested: list[int], now: dict[str, Any], tick: int) -> str:
    reported = now["values"].get(entity, {})
    line = f"{entity:<10}"
    for number in requested:
        turn = number in now.get("taking_turns", []) and tick % 2 == 0
        cell = "N/A" if tick == 0 or turn else reported.get(str(number), "N/A")
        width = FIELDS[number][2] + 6
        cell = cell if len(cell) <= width else f"{cell[: width - 3]}..."
        line += f"{cell:<{width + 2}}"
    return f"{line}\n"


def dmon(requested: list[int], delay_s: float, entities: list[str]) -> None:
    now = state()
    for number in requested:
        if number not in now.get("known", FIELDS):
            fail(
                f"Error: Got invalid field ID. '{number}'. See dcgm_fields.h for a list of "
                "valid field IDs.\n"
            )
    if now["mode"] == "old_entities" and entities:
        fail("Error: Unable to parse entity list.\n")
    sys.stdout.write(header(requested))
    if now["mode"] == "no_profiling" and any(number > 1000 for number in requested):
        fail(
            "Error setting watches. Result: -33: This request is serviced by a module of DCGM "
            "that is not currently "
            "loaded\n"
        )
    if now["mode"] == "no_root":
        fail(
            "Error setting watches. Result: -35: Unable to watch one or more of the requested "
            "fields because doing so "
            "requires the host engine to be running as root.\n"
        )
    tick = 0
    while True:
        now = state()
        names = [f"GPU {gpu}" for gpu in range(now["gpus"])]
        names += [f"GPU-I {entity}" for entity in now.get("slices", {})] if entities else []
        mode = now["mode"] if tick >= now.get("after", 0) else ""
        if mode == "die":
            fail(
                (
                    "Error getting values information. Return -16: Host engine connection "
                    "invalid/disconnected\n"
                ),
                1,
            )
        if mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        if mode == "cut":
            sys.stdout.write("GPU 0     12")  # and ends there
            fail("", 3)
        for name in names:
            sys.stdout.write(row(name, requested, now, tick))
        sys.stdout.flush()
        time.sleep(delay_s)
        tick += 1
        if tick % 14 == 0:
            sys.stdout.write(header(requested))


def main(arguments: list[str]) -> None:
    with open(f"{HERE}/log", "a") as log:  # noqa: PTH123
        log.write(json.dumps([os.getpid(), *arguments]) + "\n")
    now = state()
    if now["mode"] == "no_engine":
        fail(NO_ENGINE)
    FIELDS.update(
        {number: (f"F{number}", "", 5) for number in state().get("ids", ()) if number not in FIELDS}
    )
    match arguments:
        case ["discovery", what]:
            discovery(what)
        case ["dmon", "-l"]:
            if not now.get("lists", True):
                fail("Error: unknown option\n")
            for number, (name, _, _) in FIELDS.items():
                if number in now.get("known", FIELDS):
                    say(f"a_field_called_{name.lower():<20} {name:<20}{number}")
        case ["dmon", "-e", requested, "-d", delay, *more]:
            dmon([int(number) for number in requested.split(",")], int(delay) / 1000, more[1:])
        case _:
            fail("Error: bad arguments\n")


if __name__ == "__main__":
    main(sys.argv[1:])
