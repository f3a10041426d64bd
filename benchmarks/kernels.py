"""Prints how long `tachograph kernels` reads and puts together large reports in CSV, whatever locale wrote them.

Each report is made here, of launches that are made up: the details page or the raw page, the same numbers written
plainly, with thousands separated as in English, German or French. Each is read in a process of its own. Seconds are
processor time; what counts is the time per byte beside that of the plain file of the same page, in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tachograph.nsight.metrics import is_whole, labels
from tachograph.nsight.reports import read_reports
from tachograph.sharing.kernels import kernels_of

GOAL_RATIO = 1.3  # of the time per byte, numbers with thousands to plain ones
PAGES = ("raw", "details")
# decimal sign, sign between thousands
LOCALES = {"plain": (".", ""), "en": (".", ","), "de": (",", "."), "fr": (",", "\u202f")}
MEANT = {metric: (section, label) for (section, label), metric in labels().items()}
IDENTITY = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
            "Grid Size", "Device", "CC")  # fmt: skip


def unit_of(metric: str) -> str:
    """Return the unit of a metric, such that it need not be scaled."""
    if "pct" in metric:
        return "%"
    return "ns" if "time_duration" in metric else "inst" if "inst_executed.sum" in metric else ""


def written(number: float, places: int, locale: str) -> str:
    """Return the number as a locale writes it.

    >>> written(1205.5, 2, "de")
    '1.205,50'
    """
    decimal, group = LOCALES[locale]
    text = f"{number:,.{places}f}" if group else f"{number:.{places}f}"
    return text if locale in ("plain", "en") else text.translate({ord(","): group, ord("."): decimal})


def values(chance: random.Random, metrics: Sequence[str]) -> list[tuple[float, int]]:
    """Return a number and its decimal places for each metric: percentages, and counts up to millions."""
    found: list[tuple[float, int]] = []
    for metric in metrics:
        if "pct" in metric:
            found.append((chance.random() * 100, 2))
        elif is_whole(metric, unit_of(metric)):
            found.append((chance.randrange(1, 5_000_000), 0))
        else:
            found.append((chance.random() * 10 ** chance.randrange(1, 7), 2))
    return found


def told_metrics(more: int) -> list[str]:
    """Return the metrics of a launch: those that the details page has a label for, and `more` counts."""
    return [*sorted(MEANT), *(f"smsp__inst_made_{number}.sum" for number in range(more))]


def lines(options: argparse.Namespace, page: str, locale: str, part: int) -> Iterator[str]:
    """Yield the lines of file `part` of a report; launches differ a little from others of their kernel."""
    chance = random.Random(part)
    metrics = told_metrics(options.columns)
    kinds = [values(chance, metrics) for _ in range(min(options.kernels, 200))]
    if page == "raw":
        yield row([*IDENTITY, *metrics])
        yield row([*("" for _ in IDENTITY), *map(unit_of, metrics)])
    else:
        yield row([*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value"])
    for number in range(options.launches):
        kernel = number % options.kernels
        told = kinds[kernel % len(kinds)]
        factor = 1 + number // options.kernels % 50 / 1000
        name = f"void at::native::vectorized_elementwise_kernel<{kernel}, at::native::CUDAFunctor_add<float>>(int, T)"
        first = [str(number), "4711", "python", "127.0.0.1", name, "1", "7", "(256, 1, 1)", "(1320, 2, 1)", "0", "9.0"]
        cells = [written(value * factor, places, locale) for value, places in told]
        if page == "raw":
            yield row([*first, *cells])
            continue
        for metric, cell in zip(metrics, cells, strict=True):
            section, label = MEANT.get(metric, ("Command line profiler metrics", metric))
            yield row([*first, section, label, unit_of(metric), cell])


def row(cells: Iterable[str]) -> str:
    """Return the line of these cells, none of which has a quote in it."""
    return '"' + '","'.join(cells) + '"\n'


def read_here(paths: Sequence[Path]) -> dict[str, float]:
    """Return what reading reports and putting their launches together took in this process."""
    begin = time.process_time()
    reports = read_reports(paths)
    read = time.process_time()
    found = kernels_of(launch for report in reports for launch in report.launches)
    done = time.process_time()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())  # ru_maxrss has the parent's in it
    return {
        "launches": sum(len(report.launches) for report in reports),
        "kernels": len(found),
        "rejects": sum(reject.count for report in reports for reject in report.rejects),
        "read_s": round(read - begin, 2),
        "aggregate_s": round(done - read, 2),
        "peak_mib": int(peak[1]) // 1024 if peak else 0,
    }


def measure(options: argparse.Namespace, page: str, locale: str) -> dict[str, float]:
    """Return what `read_here` finds in a process of its own, with the size of the files."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{part}.csv" for part in range(options.files)]
        for part, path in enumerate(paths):
            with path.open("w", encoding="utf-8") as file:
                file.writelines(lines(options, page, locale, part))
        size = sum(path.stat().st_size for path in paths)
        command = [sys.executable, __file__, "--read", *map(str, paths)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return {
        "mb": round(size / 1e6, 1),
        **found,
        "read_s_per_mb": round(found["read_s"] / size * 1e6, 4),
        "peak_kib_per_launch": round(found["peak_mib"] * 1024 / found["launches"], 2),
    }


def main() -> int:
    """Print the numbers; 1 when thousands take longer than they may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=1000, help="in each file")
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--columns", type=int, default=0, help="metrics beside those that the details page knows")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES)
    parser.add_argument("--locales", nargs="+", choices=tuple(LOCALES), default=tuple(LOCALES))
    parser.add_argument("--read", nargs="+", type=Path, metavar="FILE", help="only read these, in this process")
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read_here(options.read)))
        return 0
    found = {page: {locale: measure(options, page, locale) for locale in options.locales} for page in options.pages}
    ratios = {
        page: {locale: round(one["read_s_per_mb"] / of["plain"]["read_s_per_mb"], 2) for locale, one in of.items()}
        for page, of in found.items()
        if "plain" in of
    }
    reached = all(ratio <= GOAL_RATIO for of in ratios.values() for ratio in of.values())
    measured = {
        "benchmark": "kernels",
        "python": platform.python_version(),
        "launches": options.launches * options.files,
        "found": found,
        "ratio_per_mb": ratios,
        "goal_ratio": GOAL_RATIO,
        "reached": reached,
    }
    print(json.dumps(measured))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
