"""A program that tells what the source `nvml` tells, as JSON: one answer for each line of its
input.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from typing import Any

import pynvml

from tachograph.annexes.watch.live.snapshot import Snapshot
from tachograph.annexes.watch.live.sources import nvml
from tachograph.annexes.watch.pm_sampling.library import this_host
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import TachographError


def reported(snapshot: Snapshot) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "gpus": [[gpu.node, gpu.gpu, gpu.mig] for gpu in snapshot.gpus],
        "measured": [number(value) for value in snapshot.measured.tolist()],
        "values": {
            name: [number(value) for value in column.tolist()]
            for name, column in snapshot.values.items()
        },
        "devices": [asdict(snapshot.devices[gpu]) for gpu in snapshot.gpus],
        "processes": {
            gpu.name: [asdict(one) for one in held] for gpu, held in snapshot.processes.items()
        },
        "problems": [problem.sentence for problem in snapshot.problems],
    }


def main() -> None:
    passed = [0.0]

    def fresh() -> nvml.NvmlSource:
        return nvml.NvmlSource(
            pynvml, node=this_host(), monotonic=lambda: time.monotonic() + passed[0]
        )

    source = fresh()
    for line in sys.stdin:
        command, *arguments = line.split()
        answer: Any = None
        try:
            match command:
                case "fresh":
                    source.close()
                    source = fresh()
                case "connect":
                    source.start()
                case "connect-as-users":
                    nvml.connect(Configuration()).close()
                case "read":
                    answer = reported(source.read())
                case "about":
                    answer = asdict(source.about)
                case "pass":
                    time.sleep(0.11)  # two samples of GPM are apart by the real clock
                    passed[0] += float(arguments[0])
                case "close":
                    source.close()
        except TachographError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    source.close()


if __name__ == "__main__":
    main()
