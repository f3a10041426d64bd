"""PM sampling of one GPU: a line of JSON per second, and at the end one of the whole time.

python pm_sample.py --gpu GPU-8932f937-d72c [--interval S] [--duration S]
python pm_sample.py --gpu GPU-8932f937-d72c --raw [--interval S] [--duration S]

With --raw each sample is written as it was counted, of the first pass and of EXTRA: a line with
chip and metrics, then lines of samples with the time of this machine at which they were read.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tachograph.annexes.watch.pm_sampling.child import PmRequest
from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError, fault_of
from tachograph.annexes.watch.pm_sampling.library import PmLibrary, list_gpus, load_library
from tachograph.annexes.watch.pm_sampling.metrics import choose_metrics, in_one_pass
from tachograph.annexes.watch.pm_sampling.process import PmProcess
from tachograph.annexes.watch.pm_sampling.sampler import DECODED, PmInterval
from tachograph.sources.score_sums import PmSums, total, warps_of

_EVERY_S, _RAW_EVERY_S = 1.0, 0.2
# What tells why the activity of SMs read low: other divisors of the same samples.
EXTRA = (
    "gpc__cycles_elapsed.max",
    "gpc__cycles_elapsed.avg",
    "sm__cycles_elapsed.max",
    "sm__cycles_active.sum",
    "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg",
)


def main() -> int:
    """Print what is sampled until the end; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--interval", type=float, default=0.05)
    parser.add_argument("--duration", type=float, default=float("inf"))
    parser.add_argument("--raw", action="store_true")
    arguments = parser.parse_args()
    # CUDA lists this GPU alone
    os.environ["CUDA_VISIBLE_DEVICES"] = arguments.gpu
    try:
        (_print_raw if arguments.raw else _print_sums)(arguments.interval, arguments.duration)
    except PmSamplingError as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    return 0


def _print_sums(interval_s: float, duration_s: float) -> None:
    process = PmProcess(PmRequest(interval_s))
    minutes: list[PmSums] = []
    end = time.monotonic() + duration_s
    try:
        process.begin()
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(_EVERY_S, left_s))
            minutes += _taken(process, "period")
        process.close()  # it delivers what was not reported yet
        minutes += _taken(process, "period")
        _print_row(process, minutes, "whole")
    finally:
        process.close()


def _taken(process: PmProcess, kind: str) -> list[PmSums]:
    """Print and return the sums since the last call."""
    sums = [minute for every in process.take().values() for minute in every]
    _print_row(process, sums, kind)
    return sums


def _print_row(process: PmProcess, sums: list[PmSums], kind: str) -> None:
    whole = total(sums)
    if whole is None:
        return
    gpu = next(iter(process.gpus.values()))
    row = whole.row(node="", gpu=0, mig=None, max_warps=warps_of(gpu.model), cut=None)
    _print({"kind": kind, **row})


def _print_raw(interval_s: float, duration_s: float) -> None:
    library = load_library()
    gpu = list_gpus(library)[0]
    collector = library.pm_sampling.Collector(gpu.device)
    signal.signal(signal.SIGTERM, _leave)
    end = time.monotonic() + duration_s
    try:
        collector.enable()
        _start(library, collector, library.chip(gpu.device), gpu.model, interval_s)
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(_RAW_EVERY_S, left_s))
            for rows in _decoded(collector):
                _print({"kind": "samples", "read": time.time(), "rows": rows})
    except Exception as problem:
        raise fault_of(problem) from problem
    finally:
        collector.disable()


def _start(library: PmLibrary, collector: Any, chip: str, model: str, interval_s: float) -> None:
    metrics = raw_metrics(library, chip)
    mode, interval = PmInterval(interval_s).trigger(chip)
    collector.configure(
        metrics=metrics,
        hardware_buffer_size=64 << 20,
        sampling_interval=interval,
        trigger_mode=getattr(library.pm_sampling.TriggerMode, mode),
    )
    collector.start()
    _print({"kind": "head", "chip": chip, "model": model, "metrics": metrics})


def raw_metrics(library: PmLibrary, chip: str) -> list[str]:
    """Return the metrics of the first pass, and those of EXTRA for which it has room."""
    metrics = list(choose_metrics(library, chip).passes[0].values())
    for metric in EXTRA:
        if in_one_pass(library, chip, [*metrics, metric]):
            metrics.append(metric)
    return metrics


def _decoded(collector: Any) -> Iterator[list[list[float]]]:
    """Yield what is in the buffer: begin and end by the GPU's clock in ns, then the metrics."""
    while True:
        samples = collector.decode(DECODED)
        yield [[one.start_timestamp, one.end_timestamp, *one.metric_values] for one in samples]
        if len(samples) < DECODED:
            return


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
