"""Reports of Nsight Compute and files of calibrations to begin from, written by our own tests,
and how one is read.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from mutators import mutate

from tachograph.annexes.share.calibration import read_calibration
from tachograph.annexes.share.nsight.launches import NcuReport
from tachograph.annexes.share.nsight.ncu_rep import MAGIC
from tachograph.annexes.share.nsight.reports import read_report
from tachograph.catalog.errors import InputError, TachographError

TESTS = Path(__file__).resolve().parent.parent
LIBRARY_S = 5.0  # of processor time that the process of the library may take
LIBRARY_MIB = 500
CALIBRATION = b"""format = 1
gpu = "NVIDIA H200"
driver = "CUDA 12.9"
date = "2026-01-02T03:04:05Z"
[calibration.dram_curvature]
value = 0.43
provenance = "measured"
experiment = "bandwidth"
residual = 0.008
[calibration.l1_miss_cost]
value = 4.0
provenance = "published"
note = "no GPU"
[knees]
l2 = 2.5e7
[[experiments]]
name = "fp64-3"
way = "streams"
compared = "gain"
predicted = 1.37
measured = 1.36
"""


def _beside(*folders: str) -> None:
    """The modules that write reports stand beside the tests of these."""
    sys.path += [
        place for place in (str(TESTS / folder) for folder in folders) if place not in sys.path
    ]


def details_pages() -> Iterator[bytes]:
    """Yield details pages, one of them in another locale."""
    _beside("nsight")
    from ncu_csv import LAUNCHES, NOISE, Dialect, details

    yield details(LAUNCHES, Dialect(nvtx=True, group=",")).encode()
    yield details(LAUNCHES, Dialect(rules=True, end="\r\n", noise=NOISE)).encode()
    yield details(LAUNCHES, Dialect(sized=False, order=(3, 7, 1))).encode()
    yield details(LAUNCHES, Dialect(decimal=",", group=".")).encode()


def raw_pages() -> Iterator[bytes]:
    """Yield raw pages, one of them in another locale, and the sample that the documentation
    shows.
    """
    _beside("nsight")
    from ncu_csv import LAUNCHES, NOISE, Dialect, raw

    yield raw(LAUNCHES, Dialect(nvtx=True, group=",")).encode()
    yield raw(LAUNCHES, Dialect(end="\r\n", noise=NOISE)).encode()
    yield raw(LAUNCHES, Dialect(decimal=",", sized=False)).encode()
    yield (TESTS.parent / "docs" / "samples" / "published-h100.csv").read_bytes()


def stored_reports() -> Iterator[bytes]:
    """Yield stored reports of one block, of several and of none."""
    _beside(".")
    from made_report import Instanced, MadeLaunch, Single, report

    one = MadeLaunch(
        metrics={
            "gpu__time_duration.sum": 1205.25,
            "launch__grid_dim_x": 132,
            "launch__grid_dim_y": 1,
            "launch__grid_dim_z": 1,
            "device__attribute_display_name": "NVIDIA H100 NVL",
            "device__attribute_compute_capability_major": 9,
            "device__attribute_compute_capability_minor": Single(0),
            "sm__throughput": Instanced([1.0, 2.5], 3.5),
            "dram__bytes.sum": Single(0.5),
            "no value": None,
        },
        ranges=("outer", "inner"),
        started=("step",),
    )
    yield report([one])
    yield report(
        [one, replace(one, domain="other"), replace(one, name="", function=""), one], per_block=2
    )
    yield report([])


def mutate_stored(seeds: Sequence[bytes], chance: Random) -> bytes:
    """Return a mutation, one in four packed whole, so that it reaches the library as it is."""
    _beside(".")
    from made_report import compressed

    content = mutate(seeds, chance)
    return compressed(content) if chance.random() < 0.25 and content.startswith(MAGIC) else content


def read_page(path: Path, whole: bool) -> None:
    """Read a file as a report: one, or an InputError. On the `whole` way every value is looked
    at.
    """
    try:
        report = read_report(path)
    except InputError:
        raise
    except TachographError as problem:
        raise AssertionError(f"not an InputError: {type(problem).__name__}") from problem
    if whole:
        look_at(report)


def look_at(report: NcuReport) -> None:
    """Assert that numbers are finite and texts can be written."""
    texts = [
        *report.problems,
        *(f"{reject.reason} {reject.column} {reject.example}" for reject in report.rejects),
    ]
    for launch in report.launches:
        assert all(map(math.isfinite, launch.metrics.values())), "a metric is not finite"
        assert all(map(math.isfinite, launch.chip.attributes.values())), (
            "an attribute is not finite"
        )
        texts += [launch.kernel, *launch.ranges, *launch.metrics, str(launch.chip.name)]
    for text in texts:
        text.encode()


def read_stored(path: Path, whole: bool) -> None:
    """On the `whole` way, read it by the library, in its own process."""
    if not whole:
        return
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        read_page(path, whole)
    finally:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert took < LIBRARY_S, "the library took too long"
        assert after.ru_maxrss < LIBRARY_MIB << 10, "the library took too much memory"


def read_calibrations(path: Path, whole: bool) -> None:
    """Read a file of a calibration."""
    read_calibration(path)
