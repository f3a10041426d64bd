"""Real kernels, alone and two at a time in two streams: `python real_pairs.py --out FILE`. Needs
PyTorch with CUDA.

Each stream repeats its kernel; both have so many steps in line that neither runs dry. Events at the
end of each step give the rate of each while both run: from the first end of a step in both until
one of them has no steps left. FILE is written after every pair; pairs that it has are not measured
again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from step_document import write_whole
from workloads import kernels, load_torch

# Not seen on 2026-11-27: FP64 beside tensor cores, small launches beside large ones.
PAIRS = (
    ("fp64-vector", "gemm-bf16"),
    ("gemm-bf16-1024", "gemm-bf16"),
    ("gemm-bf16-1024", "copy"),
    ("spmv", "gemm-bf16"),
    ("gemm-bf16-1024", "fp64-vector"),
    ("fp64-vector", "copy"),
)
NAMES = tuple(dict.fromkeys(name for pair in PAIRS for name in pair))
TARGET_S = 0.06  # of a stream alone
RUNS = 5
_CURTAIN_CYCLES = 20_000_000  # in which the host puts all steps in line


class Torch:
    """Two streams of PyTorch."""

    def __init__(self, names: Sequence[str]) -> None:
        self.torch = load_torch()
        self.streams = [self.torch.cuda.Stream(), self.torch.cuda.Stream()]
        prepared = kernels(self.torch)
        self.once: dict[str, Callable[[], object]] = {name: prepared[name]() for name in names}

    def ends(self, names: Sequence[str], counts: Sequence[int]) -> list[list[float]]:
        """When each step of each stream ended, in s from the common start."""
        torch = self.torch
        begin = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.streams[0]):
            torch.cuda._sleep(_CURTAIN_CYCLES)
            begin.record()
        marks: list[list[Any]] = [[] for _ in names]
        left = list(counts)
        for stream in self.streams[1 : len(names)]:
            stream.wait_event(begin)
        while any(left):  # by turns, so that neither waits for the host
            for place, name in enumerate(names):
                if left[place]:
                    left[place] -= 1
                    with torch.cuda.stream(self.streams[place]):
                        self.once[name]()
                        mark = torch.cuda.Event(enable_timing=True)
                        mark.record()
                    marks[place].append(mark)
        torch.cuda.synchronize()
        return [[begin.elapsed_time(mark) / 1e3 for mark in each] for each in marks]


class Simulated:
    """Two streams of a rehearsal: kernels take the times written here, and slow each other by a
    known law.
    """

    seconds: ClassVar = {
        "gemm-bf16": 2e-3,
        "gemm-bf16-1024": 5e-5,
        "fp64-vector": 3e-3,
        "spmv": 2e-3,
        "copy": 1e-3,
    }
    dram: ClassVar = {
        "copy": 0.9,
        "spmv": 0.9,
        "fp64-vector": 0.1,
        "gemm-bf16-1024": 0.2,
        "gemm-bf16": 0.3,
    }

    def ends(self, names: Sequence[str], counts: Sequence[int]) -> list[list[float]]:
        """When each step of each stream ended."""
        slower = max(1.0, sum(self.dram[name] for name in names)) if len(names) > 1 else 1.0
        noise = random.Random(3)
        found = []
        for name, count in zip(names, counts, strict=True):
            t, ends = 0.0, []
            for _ in range(count):
                t += self.seconds[name] * slower * (1 + 0.01 * noise.uniform(-1, 1))
                ends.append(t)
            found.append(ends)
        return found


def overlapped(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the time of a step of each of two streams while both run, s; times are those of ends
    of steps.

    From the first end on that lies behind the first end of the other, to the last before one of
    them has ended. Errors: ValueError where they did not run at the same time.

    >>> overlapped([1.0, 3.0, 5.0, 7.0], [2.0, 4.0, 6.0, 8.0, 9.0, 10.0])
    (2.0, 2.0)
    """
    if not first or not second:
        raise ValueError("a stream did no step")
    begin, end = max(first[0], second[0]), min(first[-1], second[-1])
    inside = [[t for t in ends if begin <= t <= end] for ends in (first, second)]
    if min(map(len, inside)) < 2:
        raise ValueError("two streams did not run at the same time")
    one, other = ((ends[-1] - ends[0]) / (len(ends) - 1) for ends in inside)
    return one, other


def measured(device: Torch | Simulated, pair: tuple[str, str]) -> dict[str, Any]:
    """Return the time of a step of both, alone and together, by run; alone and together take
    turns.
    """
    step = [_alone(device, name, 5) for name in pair]
    counts = [max(5, round(TARGET_S / seconds)) for seconds in step]
    runs = []
    for _ in range(RUNS):
        alone = [_alone(device, name, count) for name, count in zip(pair, counts, strict=True)]
        both = overlapped(*device.ends(pair, counts))
        runs.append({"alone_s": alone, "together_s": list(both)})
    slowdowns = [
        statistics.median(run["together_s"][place] / run["alone_s"][place] for run in runs)
        for place in (0, 1)
    ]
    return {"pair": list(pair), "slowdowns": slowdowns, "runs": runs}


def _alone(device: Torch | Simulated, name: str, count: int) -> float:
    """Seconds of a step, from the end of the first to the end of the last of so many."""
    (ends,) = device.ends([name], [count + 1])
    return (ends[-1] - ends[0]) / count


def main() -> int:
    """Measure what the file does not have."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="begin no further pair after so long"
    )
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    pairs = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else []
    write_whole(arguments.out, json.dumps(pairs) + "\n")
    had = {tuple(one["pair"]) for one in pairs}
    missing = [pair for pair in PAIRS if pair not in had]
    if not missing or time.monotonic() > end:
        return 0
    device = Simulated() if arguments.rehearse else Torch(NAMES)
    for pair in missing:
        if time.monotonic() > end:
            break
        try:
            pairs.append(measured(device, pair))
        except ValueError as problem:  # steps that did not overlap: the other pairs go on
            sys.stderr.write(f"{' beside '.join(pair)}: {problem}\n")
            continue
        write_whole(arguments.out, json.dumps(pairs) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
