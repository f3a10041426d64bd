"""Compare the estimator of interference with published measurements, and with rules that need no
model.

    python research/compare_laws.py
    python research/compare_laws.py --measured gpu-day-results

`published_pairs.json` has what was published: kernels as far as their demands are known, GPUs,
slowdowns or gains. The numbers of the H100 are from Elvinger, Strati, Enright Jerger and Klimovic
(2025), those of the V100 and the RTX 5090 from the repository wangpeiwen/gpu-util-interference.
`--measured` names results of `make gpu-day`.
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

from pair_numbers import MATTERS, checks
from tachograph.annexes.share.calibration import read_calibration
from tachograph.annexes.share.demand import Calibration, Demand, GpuCapacity, Sharing
from tachograph.annexes.share.estimate import estimate
from tachograph.annexes.share.nsight.reports import read_report
from tachograph.cli import output

LAWS = ("estimator", "no slowdown", "largest shared sum", "in turn")


@dataclass(frozen=True, slots=True)
class PairMeasurement:
    """One kernel beside another. measured: a slowdown, or a gain, the time in turn over the time
    together.

    predicted: {law: the same by it}. slowdown: what was measured, as a slowdown. safe: the
    estimator calls it so.
    """

    table: str
    name: str
    measured: float
    slowdown: float
    predicted: Mapping[str, float]
    safe: bool

    def error(self, law: str) -> float:
        """Return the relative error of a law."""
        return self.predicted[law] / self.measured - 1.0


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
        first, second = (kernels[name] for name in row["kernels"])
        measurements.append(_published(row, (first, second), gpus[row["gpu"]], calibration))
    return measurements


def _published(
    row: Mapping[str, Any],
    demands: tuple[Demand, Demand],
    gpu: GpuCapacity,
    calibration: Calibration,
) -> PairMeasurement:
    """The slowdown is that of the second kernel; a gain counts until both have ended."""
    sharing = Sharing("mps", tuple(row["shares"])) if "shares" in row else Sharing()
    outcome = estimate(demands, gpu=gpu, calibration=calibration, sharing=sharing)
    first_s, second_s = (demand.seconds or 1.0 for demand in demands)
    alone = (first_s + second_s) / max(first_s, second_s)
    shared = max(1.0, *outcome.sums.values())
    predicted = outcome.gain if row["read"] == "gain" else outcome.members[1].slowdown
    if predicted is None:
        raise ValueError(f"{row['table']}, {row['name']}: its demands do not determine a slowdown")
    by_law = {
        "estimator": predicted,
        "no slowdown": 1.0,
        "largest shared sum": shared,
        "in turn": alone,
    }
    slowdown = row["measured"]
    if row["read"] == "gain":
        slowdown = alone / row["measured"]
        by_law |= {"no slowdown": alone, "largest shared sum": alone / shared, "in turn": 1.0}
    return PairMeasurement(
        row["table"], row["name"], row["measured"], slowdown, by_law, outcome.safe
    )


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
    turns = iter(_turns(pairs))
    measurements = []
    for one in found:
        in_turn = next(turns)
        if one.predicted is None or one.largest_sum is None:
            continue
        by_law = {
            "estimator": one.predicted,
            "no slowdown": 1.0,
            "largest shared sum": max(1.0, one.largest_sum),
            "in turn": in_turn,
        }
        name = f"{one.name} beside {one.beside}"
        measurements.append(
            PairMeasurement("measured", name, one.measured, one.measured, by_law, one.safe)
        )
    return measurements


def _turns(pairs: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yield the slowdown of each kernel of each pair if their steps alternate: (t1 + t2) / t1."""
    for pair in pairs:
        times = [
            median(step_s for run in pair["runs"] for step_s in [run["alone_s"][place]])
            for place in (0, 1)
        ]
        yield from (sum(times) / alone_s for alone_s in times)


def summary(measurements: Sequence[PairMeasurement]) -> list[list[str]]:
    """Return a row of each table, then of all: numbers, mean error of each law, worst error,
    pairs wrongly safe.
    """
    tables: dict[str, list[PairMeasurement]] = {}
    for one in measurements:
        tables.setdefault(one.table, []).append(one)
    rows = []
    for table, part in {**tables, "all": list(measurements)}.items():
        cells = [f"{mean(abs(one.error(law)) for one in part):.1%}" for law in LAWS]
        worst = max(abs(one.error(LAWS[0])) for one in part)
        wrong = sum(one.safe and one.slowdown >= MATTERS for one in part)
        rows.append([table, str(len(part)), *cells, f"{worst:.1%}", str(wrong)])
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Print the errors of all laws, and each pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--measured", type=Path, metavar="DIR", help="also the pairs of a day on a GPU"
    )
    arguments = parser.parse_args(words)
    measurements = published()
    if arguments.measured is not None:
        measurements += measured(arguments.measured)
    output.print_table(("table", ">numbers", *(f">{law}" for law in LAWS), ">worst", ">wrongly safe"),
                       summary(measurements))  # fmt: skip
    rows = []
    for one in measurements:
        cells = [f"{one.predicted[law]:.3f}" for law in LAWS]
        rows.append(
            [one.table, one.name, f"{one.measured:.3f}", *cells, "safe" if one.safe else ""]
        )
    output.print_text("\n")
    output.print_table(("table", "pair", ">measured", *(f">{law}" for law in LAWS), ""), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
