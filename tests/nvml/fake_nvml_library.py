"""The library of `fake_nvml.c`, built; what it shall say; a process that reads it through the
real pynvml.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers.process import program

HERE = Path(__file__).resolve().parent
READER = HERE / "nvml_reader.py"
GPM_IDS = (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 20, 21, 60, 61)
MIB = 1024 * 1024


def build(folder: Path) -> Path:
    """Compile the library into a folder, which is returned; skips where there is no compiler."""
    compiler = program("gcc", package="gcc libc6-dev")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), str(HERE / "fake_nvml.c")], check=True)
    return folder


def plain(gpu: int) -> dict[str, str]:
    """What one GPU says of all that plain NVML tells: values that differ between GPUs."""
    values = {
        "uuid": f"GPU-{gpu:08d}-1111-2222-3333-444444444444",
        "name": "NVIDIA H200",
        "pci": f"00000000:{gpu + 16:02X}:00.0",
        "slowdown": 90,
        "util": 40 + gpu,
        "memutil": 20 + gpu,
        "total": 144000 * MIB,
        "reserved": 600 * MIB,
        "used": (10_000 + gpu) * MIB,
        "free": (133_400 - gpu) * MIB,
        "minor": 1 - gpu,
        "power": 321_500 + gpu,
        "energy": 123_456_789_012 + gpu,
        "temp": 51 + gpu,
        "memtemp": 61 + gpu,
        "smclk": 1755 + gpu,
        "memclk": 3201,
        "reasons": 0x4,
        "replays": 3 + gpu,
        "remapped.cor": 1,
        "remapped.unc": 2,
        "remapped.fail": 0,
        "ecc.sbe": 5,
        "ecc.dbe": 3,
        "events": 1,
    }
    return {f"{gpu}.{name}": str(value) for name, value in values.items()}


def gpm(gpu: int, *, prefix: str = "") -> dict[str, str]:
    """All metrics of one GPU, or of a slice."""
    reported = {f"{gpu}.{prefix}gpm.{metric}": str(metric + gpu + 0.25) for metric in GPM_IDS}
    return {f"{gpu}.gpm": "1", **reported}


@dataclass
class FakeNode:
    """A node whose driver says what `state` holds; `write` hands it over at once."""

    folder: Path
    library: Path
    state: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> list[str]:
        """What the library wrote since `reset`."""
        file = self.folder / "nvml.log"
        return file.read_text().splitlines() if file.exists() else []

    def reset(self, state: Mapping[str, str]) -> None:
        """Forget what was said and written."""
        (self.folder / "nvml.log").unlink(missing_ok=True)
        self.state = dict(state)
        self.write()

    def write(self, changes: Mapping[str, object | None] | None = None) -> None:
        """Change what is said; None takes a line away."""
        for key, value in (changes or {}).items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = str(value)
        new = self.folder / "state.new"
        new.write_text("".join(f"{key} {value}\n" for key, value in self.state.items()))
        new.replace(self.folder / "state")

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML_STATE": str(self.folder / "state"),
            "FAKE_NVML_LOG": str(self.folder / "nvml.log"),
            "SLURMD_NODENAME": "gpunode",
        }


class Reader:
    """A process that looks at the node: asked for a snapshot line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, command: str) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(command + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, f"the reader ended at {command!r}"
        return json.loads(answer)

    def close(self) -> None:
        self.ask("close")

    def start(self) -> Any:
        """Connect, and return the first snapshot."""
        assert self.ask("connect") is None
        return self.read()

    def read(self) -> Any:
        return self.ask("read")

    def later(self, seconds: float = 1) -> Any:
        """Return a snapshot so much later."""
        self.ask(f"pass {seconds}")
        return self.read()


@contextmanager
def reading(node: FakeNode) -> Iterator[Reader]:
    """A reader of a node, which has to end well."""
    command = [sys.executable, "-W", "error", str(READER)]
    with subprocess.Popen(
        command, env=node.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Reader(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
