"""The proof without a GPU: the library of `tests/nvml` says what each workload typically shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from proof_labels import BY_NAME

from tachograph.annexes.watch.live.sources.nvml_calls import GPM_METRICS

TESTS = Path(__file__).resolve().parents[2] / "tests" / "nvml"
_MIB = 1024 * 1024
_CYCLE_S = 0.8  # of a training step and its wait


def environment(folder: Path) -> dict[str, str]:
    """Build the library and its state in a folder; return what programs need to find them. Needs
    gcc.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        raise SystemExit("a rehearsal needs gcc (Debian: apt-get install gcc libc6-dev)")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    source = str(TESTS / "fake_nvml.c")
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O1",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            source,
        ],
        check=True,
    )
    found = {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_NVML_STATE": str(folder / "state"),
        "PYTHONPATH": _python_path(),
    }
    write(state_of({}), folder / "state")
    return {**os.environ, **found}


def _python_path() -> str:
    return os.pathsep.join(
        [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )


def state_of(reading: Mapping[str, float], *, used_mib: float = 0) -> dict[str, str]:
    """Return what the library shall say for a reading: {counter: value in the catalogue's unit};
    the rest is 0.

    >>> state_of({"sm_active": 0.5})["0.gpm.2"]
    '50.0'
    """
    state = {
        "gpus": "1",
        "driver": "1",
        "0.uuid": "GPU-rehearsal",
        "0.name": "NVIDIA H100 80GB HBM3",
        "0.gpm": "1",
    }
    state |= {
        "0.pci": "00000000:10:00.0",
        "0.events": "1",
        "0.total": str(81559 * _MIB),
        "0.temp": "45",
    }
    state |= {
        "0.used": str(int(used_mib * _MIB)),
        "0.free": str(int((81559 - used_mib) * _MIB)),
        "0.power": "300000",
    }
    state |= {"0.meter": "300000", "0.events": "1"}
    busy = reading.get("gr_engine_active", 0.0)
    state |= {
        "0.util": str(round(busy * 100)),
        "0.memutil": str(round(reading.get("dram_active", 0.0) * 90)),
    }
    return state | {
        f"0.gpm.{one.id}": str(reading.get(one.counter, 0.0) / one.factor) for one in GPM_METRICS
    }


def write(state: Mapping[str, str], file: Path) -> None:
    """Let the library say something else from now on."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{key} {value}\n" for key, value in state.items()), encoding="utf-8")
    new.replace(file)


def pretended(name: str) -> Callable[[], int]:
    """Return a step that takes time and shows the typical reading of a workload."""
    file = Path(os.environ["FAKE_NVML_STATE"])
    label = BY_NAME[name]
    busy = state_of(label.typical, used_mib=2000)
    write(busy, file)

    def step() -> int:
        time.sleep(0.005)
        return 1

    def stalling() -> int:
        write(state_of({}, used_mib=2000), file)
        time.sleep(_CYCLE_S / 2)
        write(busy, file)
        time.sleep(_CYCLE_S / 2)
        return 1

    return stalling if name == "training-stalls" else step


def rest() -> None:
    """Show a GPU that does nothing, with memory held."""
    write(state_of({}, used_mib=2000), Path(os.environ["FAKE_NVML_STATE"]))


def smi_command(state: Path) -> list[str]:
    """Return a program that prints what nvidia-smi would: the utilization in a state file, again
    and again.
    """
    program = (
        "import sys, time, pathlib\n"
        "while True:\n"
        "    lines = dict(l.split(' ', 1) for l in "
        "pathlib.Path(sys.argv[1]).read_text().splitlines())\n"
        "    print(lines['0.util'], flush=True)\n"
        "    time.sleep(0.25)\n"
    )
    return [sys.executable, "-c", program, str(state)]
