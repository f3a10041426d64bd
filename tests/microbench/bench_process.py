"""A bench on a simulated GPU, in a process of its own: `python bench_process.py FILE TOLD PAUSE_S [OPTION ...]`.

TOLD takes a line for every launch. PAUSE_S: how long each wait for the GPU takes in real time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_gpu import FakeGpu, FakeMark

from tachograph.cli import interference
from tachograph.cli.options import Arguments, Parser, add_common, add_json
from tachograph.sharing.microbench.conditions import Conditions


class SlowGpu(FakeGpu):
    """Waits in real time as well, and notes all launches in a file."""

    def __init__(self, told: Path, pause_s: float) -> None:
        super().__init__()
        self.file, self.pause_s = told, pause_s

    def launch(self, kernel: str, **more: Any) -> None:
        super().launch(kernel, **more)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{kernel} {more['blocks']} {more['stream']}\n")

    def wait(self, marks: Sequence[FakeMark], limit_s: float) -> None:
        time.sleep(self.pause_s)
        super().wait(marks, limit_s)


def main(file: str, told: str, pause_s: str, *options: str) -> int:
    parser = Parser("tachograph interference bench", "x")
    interference.add_bench_arguments(parser)
    add_json(parser)
    add_common(parser)
    arguments: Arguments = parser.parse_args(["-o", file, *options], Arguments())
    return interference.measure_bench(arguments, SlowGpu(Path(told), float(pause_s)), None, Conditions)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
