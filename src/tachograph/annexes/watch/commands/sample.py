"""`tachograph watch sample`: published GPU scores of this node's GPUs by CUPTI PM sampling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.catalog.units import YEAR_S, real_number, whole_number
from tachograph.cli import narrate, output
from tachograph.cli.options import Arguments, Parser, add_json, configuration_of

if TYPE_CHECKING:
    from tachograph.annexes.watch.pm_sampling.feed import PmSettings
    from tachograph.annexes.watch.pm_sampling.library import CudaGpu
    from tachograph.annexes.watch.pm_sampling.process import PmProcess
    from tachograph.catalog.config import Configuration
    from tachograph.sources.score_sums import PmSums

_HEAD = (
    "time",
    "GPU",
    "score_gpu",
    "score_gpumem",
    "normalized",
    "SM",
    "occupancy",
    "DRAM",
    "samples",
    "lost",
)


def add_arguments(parser: Parser) -> None:
    """Declare interval, GPUs, duration and format."""
    parser.add_argument(
        "--interval",
        metavar="S",
        type=real_number(0.0001, YEAR_S),
        help="seconds between two PM samples (0.05)",
    )
    parser.add_argument(
        "--interval-cycles",
        metavar="N",
        type=whole_number(1),
        help="the interval in cycles of the system clock (published: 50000000)",
    )
    parser.add_argument(
        "--every",
        metavar="S",
        type=real_number(0.0001, YEAR_S),
        default=1.0,
        help="seconds between two lines (1)",
    )
    parser.add_argument(
        "--duration",
        metavar="S",
        type=real_number(0.0001, YEAR_S),
        help="end after S seconds, and print the scores of the whole time",
    )
    parser.add_argument(
        "--gpus", metavar="WHICH", help="indices, UUIDs, PCI addresses, separated by commas"
    )
    parser.add_argument(
        "--bursts",
        action="store_true",
        help="also print a line per period in which SMs were active",
    )
    parser.add_argument(
        "--pause-dcgm",
        action="store_true",
        help="pause DCGM's profiling meanwhile, for all its readers",
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print a line per GPU and period until the end; return the exit code.

    Errors: PmSamplingError where no GPU can be sampled.
    """
    from tachograph.annexes.watch.pm_sampling.feed import pm_request
    from tachograph.annexes.watch.pm_sampling.process import PmProcess

    configuration = configuration_of(arguments)
    settings = _settings(arguments, configuration)
    names = tuple(part.strip() for part in (arguments.gpus or "").split(",") if part.strip())
    process = PmProcess(pm_request(settings, bursts=arguments.bursts, gpus=names))
    try:
        process.begin()
        _Printer(process, arguments).run()
    finally:
        process.close()
    return 0


def _settings(arguments: Arguments, configuration: Configuration) -> PmSettings:
    """Return the configured settings, overridden by the command line. Errors: UsageError."""
    import msgspec

    from tachograph.annexes.watch.pm_sampling.feed import checked, pm_settings

    if arguments.interval is not None and arguments.interval_cycles is not None:
        raise UsageError("--interval excludes --interval-cycles", do="give one of them")
    settings = pm_settings(configuration)
    changes: dict[str, Any] = {}
    if arguments.interval is not None:
        changes |= {"interval_s": arguments.interval, "interval_cycles": None}
    if arguments.interval_cycles is not None:
        changes["interval_cycles"] = arguments.interval_cycles
    if arguments.pause_dcgm:
        changes["pause_dcgm"] = True
    try:
        return checked(msgspec.structs.replace(settings, **changes))
    except ConfigError as problem:
        raise UsageError(problem.what, do=problem.do) from None


class _Printer:
    """Lines of the periods, and of the whole time at the end."""

    def __init__(self, process: PmProcess, arguments: Arguments) -> None:
        from tachograph.annexes.watch.pm_sampling.library import this_host

        self._process, self._arguments = process, arguments
        self._node = this_host()
        self._whole: dict[int, PmSums] = {}
        self._open: dict[int, list[PmSums]] = {}  # the last burst of each GPU, which may go on
        self._reported: set[str] = set()

    def run(self) -> None:
        """Print until the duration is over, or until an interrupt."""
        self._introduce()
        due = time.monotonic()
        until = None if self._arguments.duration is None else due + self._arguments.duration
        while until is None or due < until:
            due = (
                due + self._arguments.every
                if until is None
                else min(due + self._arguments.every, until)
            )
            time.sleep(max(0.0, due - time.monotonic()))
            if due == until:
                self._process.close()  # it delivers the values not reported yet
            self._period()
        if until is not None:
            self._end()

    def _introduce(self) -> None:
        for device, cut in sorted(self._process.cut.items()):
            if cut and not self._arguments.quiet:
                chip, names = self._process.chips[device], ", ".join(cut)
                narrate.remark(
                    f"{self._name(device)} ({chip}): not measured, as it needs a second pass: "
                    f"{names}"
                )
        if not self._arguments.json:
            output.print_text("".join(_cells(_HEAD)))

    def _period(self) -> None:
        """Print the values since the last call."""
        from tachograph.sources.score_sums import joined, total

        taken = self._process.take()
        for device, every in sorted(taken.sums.items()):
            whole = total(every)
            if whole is not None:
                self._print(device, whole, "period")
                known = total([self._whole[device], whole]) if device in self._whole else whole
                self._whole[device] = known or whole
        for device, new in sorted(taken.bursts.items()):
            *done, last = joined([*self._open.get(device, []), *new])
            self._open[device] = [last]
            for one in done:
                self._print(device, one, "burst")
        self._report_faults()
        output.flush()

    def _end(self) -> None:
        for device, bursts in sorted(self._open.items()):
            for one in bursts:
                self._print(device, one, "burst")
        for device, whole in sorted(self._whole.items()):
            self._print(device, whole, "whole")

    def _report_faults(self) -> None:
        sentences = {
            f"{self._where(device_fault.gpu)}: {device_fault.fault}"
            for device_fault in self._process.faults()
        }
        for sentence in sorted(sentences - self._reported):
            narrate.remark(sentence)
        self._reported = sentences

    def _where(self, gpu: CudaGpu | None) -> str:
        return self._node if gpu is None else self._name(gpu.device)

    def _name(self, device: int) -> str:
        return f"{self._node}:{self._process.places[device]}"

    def _print(self, device: int, sums: PmSums, kind: str) -> None:
        from tachograph.sources.score_sums import warps_of

        gpu = self._process.gpus[device]
        warps = warps_of(gpu.model)
        cut = self._process.cut.get(device, ())
        row = sums.row(
            node=self._node,
            gpu=self._process.places[device],
            mig=None,
            max_warps=warps,
            cut=",".join(cut),
        )
        counters = sums.counters(warps)
        if self._arguments.json:
            import msgspec

            named = {
                "kind": kind,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "chip": self._process.chips.get(device),
            }
            output.print_text(msgspec.json.encode({**named, **row, **counters}).decode() + "\n")
        else:
            output.print_text("".join(_cells(_values(row, counters, kind))))


def _values(row: dict[str, Any], counters: dict[str, float], kind: str) -> tuple[str, ...]:
    from tachograph.catalog.units import text

    scores = (row["score_gpu"], row["score_gpumem"], row["score_gpumem_normalized"])
    shares = (counters.get(name) for name in ("sm_active", "sm_occupancy", "dram_active"))
    when = f"{row['t']:%H:%M:%S}.{row['t'].microsecond // 1000:03d}" if kind != "whole" else "all"
    lost = ""
    if row["overflows"]:
        lost = f"{row['overflows']} x"
    elif row["lost_s"]:
        lost = text(row["lost_s"], "s")
    return (
        when,
        str(row["gpu"]),
        *("–" if score is None else f"{score:.1f}" for score in scores),
        *(text(share, "fraction") for share in shares),
        f"{row['pm_samples']:,}",
        lost,
    )


def _cells(values: tuple[str, ...]) -> Iterator[str]:
    """The cells of a line, numbers to the right."""
    when, gpu, *numbers = values
    yield f"{when:<13}"
    yield f"{gpu:>4}"
    for number in numbers:
        yield f"{number:>14}"
    yield "\n"
