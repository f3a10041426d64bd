"""Compare the estimator of interference with measurements, and with rules that need no model.

    python research/compare_laws.py
    python research/compare_laws.py --measured gpu-day-results --plot pairs.svg

`published_pairs.json` has what was published: kernels as far as their demands are known, GPUs,
slowdowns or gains. The numbers of the H100 are from Elvinger, Strati, Enright Jerger and Klimovic
(2025), those of the V100 and the RTX 5090 from the repository wangpeiwen/gpu-util-interference.
`--measured` names results of `make gpu-day`: its pairs of real kernels, and its bench of kernels
that each load one resource. No constant of the laws was fitted to a pair that ran together; the
bounds were set by those of the bench and by the published ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec

from microbench.bench_file import BenchRow, read_bench_file
from microbench.demand import demand_of, references
from microbench.device import Lanes
from microbench.experiments import Experiment, experiments
from microbench.measure import AloneRun
from microbench.workloads import BenchWorkload
from pair_numbers import MATTERS, checks, ends_of_launches, largest_rate, step_seconds
from tachograph.annexes.share.calibration import CalibrationFile, read_calibration
from tachograph.annexes.share.capacity import device_called, gpu_of_device
from tachograph.annexes.share.demand import (
    Calibration,
    CorunOutcome,
    Demand,
    Estimate,
    GpuCapacity,
    Sharing,
)
from tachograph.annexes.share.estimate import estimate
from tachograph.annexes.share.nsight.reports import read_report
from tachograph.cli import output

LAWS = ("estimator", "no slowdown", "largest shared sum", "in turn")
_COMPUTE = {"sm_90": Lanes(fp32=128, fp64=64), "sm_80": Lanes(fp32=64, fp64=32)}


@dataclass(frozen=True, slots=True)
class PairMeasurement:
    """One kernel beside another. measured: a slowdown, or a gain, the time in turn over the time
    together.

    predicted: {law: the same by it}. low, high: the estimator's interval of it. slowdown: what was
    measured, as a slowdown. safe: the estimator calls it so. saw: what of its demands is from
    kernels that ran together; empty: nothing.
    """

    table: str
    name: str
    measured: float
    slowdown: float
    predicted: Mapping[str, float]
    low: float
    high: float
    safe: bool
    saw: str = ""

    def error(self, law: str) -> float:
        """Return the relative error of a law."""
        return self.predicted[law] / self.measured - 1.0

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low <= self.measured <= self.high


def published() -> list[PairMeasurement]:
    """Return the published pairs, in their order, with what each law predicts."""
    document = json.loads(
        Path(__file__).with_name("published_pairs.json").read_text(encoding="utf-8")
    )
    gpus = {name: msgspec.convert(gpu, GpuCapacity) for name, gpu in document["gpus"].items()}
    kernels = {
        name: msgspec.convert(kernel, Demand) for name, kernel in document["kernels"].items()
    }
    measurements = []
    for row in document["pairs"]:
        calibration = replace(Calibration(), **document["calibrations"].get(row["table"], {}))
        first, second = (
            replace(kernels[name], launch_s=kernels[name].seconds or 1.0) for name in row["kernels"]
        )
        sharing = Sharing("mps", tuple(row["shares"])) if "shares" in row else None
        outcome = estimate((first, second), gpu=gpus[row["gpu"]], calibration=calibration,
                           sharing=sharing)  # fmt: skip
        seconds = (first.launch_s or 1.0, second.launch_s or 1.0)
        one = _launched_once(
            row["table"], row["name"], row["measured"], row["read"], outcome, seconds
        )
        measurements.append(replace(one, saw=row.get("saw", "")))
    return measurements


def _launched_once(
    table: str,
    name: str,
    measured_value: float,
    read: str,
    outcome: Estimate,
    seconds: tuple[float, float],
) -> PairMeasurement:
    """Two launches that begin at once: the slowdown of the second, or the gain until both ended."""
    alone, longest = sum(seconds), max(seconds)
    largest_sum = max(1.0, largest_rate(outcome.sums))
    first, second = outcome.members

    def read_as(slowdowns: tuple[float | None, float | None]) -> float:
        known = tuple(slowdown or 1.0 for slowdown in slowdowns)
        ends = ends_of_launches(seconds, (known[0], known[1]))
        return alone / max(ends) if read == "gain" else ends[1] / seconds[1]

    def of(one: CorunOutcome, other: CorunOutcome) -> list[float]:
        return sorted((read_as((one.low, other.low)), read_as((one.high, other.high))))

    low, high = of(first, second)
    by_law = {
        "estimator": read_as((first.slowdown, second.slowdown)),
        "no slowdown": 1.0,
        "largest shared sum": largest_sum,
        "in turn": alone / longest,
    }
    slowdown = measured_value
    if read == "gain":
        slowdown = alone / longest / measured_value
        by_law |= {
            "no slowdown": alone / longest,
            "largest shared sum": alone / longest / largest_sum,
            "in turn": 1.0,
        }
    return PairMeasurement(table, name, measured_value, slowdown, by_law, low, high, outcome.safe)


def measured(folder: Path) -> list[PairMeasurement]:
    """Return the pairs of a day on a GPU, with what its calibration and profiles of the kernels
    predict.

    A pair without a prediction is left out.
    """
    pairs = json.loads((folder / "real-pairs.json").read_text(encoding="utf-8"))
    reports = {
        file.stem: read_report(file).launches
        for file in sorted((folder / "profiles").glob("*.csv"))
    }
    file = folder / "calibration.toml"
    found = checks(pairs, reports, read_calibration(file) if file.exists() else Calibration())
    measurements = []
    for one, in_turn in zip(found, _turns(pairs), strict=True):
        if one.predicted is None or one.low is None or one.high is None or one.largest_sum is None:
            continue
        by_law = {
            "estimator": one.predicted,
            "no slowdown": 1.0,
            "largest shared sum": max(1.0, one.largest_sum),
            "in turn": in_turn,
        }
        measurements.append(
            PairMeasurement(
                table="real kernels",
                name=f"{one.name} beside {one.beside}",
                measured=one.measured,
                slowdown=one.measured,
                predicted=by_law,
                low=one.low,
                high=one.high,
                safe=one.safe,
            )
        )
    return measurements


def _turns(pairs: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yield the slowdown of each kernel of each pair if their steps alternate: (t1 + t2) / t1."""
    for pair in pairs:
        times = step_seconds(pair)
        yield from (sum(times) / alone_s for alone_s in times)


def bench(file: Path) -> list[PairMeasurement]:
    """Return the pairs of the bench, as gains: one launch each, until both have ended.

    Demands are those that the kernels declare and reach alone on that GPU.
    """
    content = read_bench_file(file)
    gpu = replace(gpu_of_device(device_called("H100 SXM 80GB")), name=content.gpu)
    known = {one.name: one for one in experiments(gpu)}
    lanes = _COMPUTE[content.arch]
    rows = [
        (row, replace(known[row.name], first=launched[0], second=(*launched, None)[1]))
        for row in content.experiments
        if row.name in known
        for launched in [_launched(row, known[row.name])]
    ]
    alone = [
        (workload, run)
        for row, experiment in rows
        for workload, run in zip(experiment.workloads, _alone(row), strict=False)
    ]
    against = references(alone, gpu)
    calibration = CalibrationFile(
        content.gpu, content.driver, content.date, content.calibration
    ).values
    measurements = []
    for row, experiment in rows:
        if row.times is None or row.mode != "streams" or not row.times.in_turn_s:
            continue
        demands = [
            demand_of(workload, run, gpu=gpu, lanes=lanes, against=against, calibration=calibration)
            for workload, run in zip(experiment.workloads, _alone(row), strict=True)
        ]
        measurements.append(_of_bench(row, experiment, demands, gpu, calibration))
    return measurements


def _launched(row: BenchRow, experiment: Experiment) -> list[BenchWorkload]:
    """The launches of a row: those of its experiment, or of an earlier one as they were written."""
    found = []
    for launch, workload in zip(row.launches, experiment.workloads, strict=True):
        kernel, shape = launch.launch.split(maxsplit=1)
        if launch.launch != workload.words:
            blocks, threads = map(int, shape.split("x"))
            workload = BenchWorkload(kernel=kernel, blocks=blocks, threads=threads)
        found.append(workload)
    return found


def _of_bench(
    row: BenchRow,
    experiment: Experiment,
    demands: Sequence[Demand],
    gpu: GpuCapacity,
    calibration: Calibration,
) -> PairMeasurement:
    times = row.times
    if times is None:
        raise ValueError(f"{row.name} has no times")
    seconds = (median(times.first_alone_s), median(times.second_alone_s))
    together = max(median(times.first_together_s), median(times.second_together_s))
    gain = median(times.in_turn_s) / together
    outcome = estimate(demands, gpu=gpu, calibration=calibration)
    table = "bench: caches" if experiment.group in ("l1", "l2") else "bench: the rest"
    return _launched_once(table, row.name, gain, "gain", outcome, seconds)


def _alone(row: BenchRow) -> list[AloneRun]:
    return [AloneRun(one.rounds, one.seconds, one.cycles) for one in row.launches]


def summary(measurements: Sequence[PairMeasurement]) -> list[list[str]]:
    """Return a row of each table, then of all: numbers, mean error of each law, worst error,
    coverage of the interval, median of its end of more slowdown over what was measured, pairs
    wrongly safe. `saw` marks pairs whose demands are not from kernels alone.
    """
    tables: dict[str, list[PairMeasurement]] = {}
    for one in measurements:
        tables.setdefault(one.table, []).append(one)
    rows = []
    unseen = [one for one in measurements if not one.saw]
    for table, part in {**tables, "all": measurements, "all but those that saw": unseen}.items():
        cells = [f"{mean(abs(one.error(law)) for one in part):.1%}" for law in LAWS]
        worst = max(abs(one.error(LAWS[0])) for one in part)
        coverage = mean(one.covered for one in part)
        wrong = sum(one.safe and one.slowdown >= MATTERS for one in part)
        rows.append([table, str(len(part)), *cells, f"{worst:.1%}", f"{coverage:.0%}",
                     f"{median(map(width, part)):.2f}", str(wrong)])  # fmt: skip
    return rows


def width(one: PairMeasurement) -> float:
    """Return the most slowdown of the interval over what was measured; of a gain the other way."""
    is_gain = one.slowdown != one.measured
    return one.measured / one.low if is_gain else one.high / one.measured


def main(words: Sequence[str] | None = None) -> int:
    """Print the errors of all laws, and each pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--measured", type=Path, metavar="DIR", help="also the pairs of a day on a GPU"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="predicted against measured")
    arguments = parser.parse_args(words)
    measurements = published()
    if arguments.measured is not None:
        measurements += measured(arguments.measured)
        measurements += bench(arguments.measured / "calibration.toml")
    output.print_table(
        ("table", ">numbers", *(f">{law}" for law in LAWS), ">worst", ">covered", ">width",
         ">wrongly safe"), summary(measurements),
    )  # fmt: skip
    rows = []
    for one in measurements:
        cells = [f"{one.predicted[law]:.3f}" for law in LAWS]
        interval = f"{one.low:.2f} to {one.high:.2f}"
        rows.append([one.table, one.name, f"{one.measured:.3f}", *cells, interval,
                     "" if one.covered else "outside", "safe" if one.safe else "", one.saw])  # fmt: skip
    output.print_text("\n")
    output.print_table(
        ("table", "pair", ">measured", *(f">{law}" for law in LAWS), "interval", "", "", "saw"),
        rows,
    )
    if arguments.plot is not None:
        plot(measurements, arguments.plot)
    return 0


def plot(measurements: Sequence[PairMeasurement], file: Path) -> None:
    """Draw predicted against measured slowdowns, with intervals; both axes logarithmic."""
    figure = figure_of(measurements)
    figure.savefig(file)


def figure_of(measurements: Sequence[PairMeasurement]) -> Any:
    """Return the figure: left the estimator with its intervals, right the rule of turns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    names = ("real kernels", "bench", "published")
    by_source: dict[str, list[PairMeasurement]] = {name: [] for name in names}
    for one in measurements:
        source = one.table.split(":")[0]
        by_source[source if source in by_source else "published"].append(one)
    for place, (panel, law) in enumerate(zip(axes, ("estimator", "in turn"), strict=True)):
        for number, (source, part) in enumerate(by_source.items()):
            x = [one.measured for one in part]
            y = [one.predicted[law] for one in part]
            color = f"C{number}"
            if place == 0:
                below = [max(0.0, v - one.low) for v, one in zip(y, part, strict=True)]
                above = [max(0.0, one.high - v) for v, one in zip(y, part, strict=True)]
                panel.errorbar(x, y, yerr=[below, above], fmt="none", ecolor=color, alpha=0.4)
            panel.plot(x, y, "o", color=color, markersize=4, label=source)
        panel.set(xscale="log", yscale="log", xlabel="measured", title=law)
        panel.axline((1.0, 1.0), (10.0, 10.0), color="grey", linewidth=0.8)
    axes[0].set_ylabel("predicted: slowdown, or gain")
    axes[1].legend(fontsize="x-small")
    return figure


if __name__ == "__main__":
    sys.exit(main())
