"""The real command line, small inputs good and bad, and a lake to compare afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from in_process import run_here
from tachograph.catalog.tables import ALL_TABLES
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_findings, read_gpus, read_minutes, read_summaries

HEADER = "timestamp,hostname,gpu_id,nersc_ldms_dcgm_gpu_utilization,nersc_ldms_dcgm_power_usage\n"
SACCT = "JobID|JobIDRaw|Cluster|Partition|User|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES|JobName\n"


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a command."""

    code: int
    out: str
    printed: str

    @property
    def lines(self) -> list[str]:
        """Lines on stderr."""
        return self.printed.splitlines()

    @property
    def json(self) -> Any:
        """What is on stdout, which must be JSON."""
        return json.loads(self.out)


def tachograph(
    *arguments: object,
    cwd: Path | None = None,
    before: Callable[[], None] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Done:
    """Run a command; in a process of its own where something is to be done in the child
    `before`.
    """
    words, around = [str(argument) for argument in arguments], {**os.environ, **environment}
    if before is None:
        done = run_here(words, cwd or Path.cwd(), around)
    else:
        done = subprocess.run(
            # -B: where files may not grow, bytecode would be cut off, and read by other processes
            [sys.executable, "-B", "-m", "tachograph", *words],
            cwd=cwd,
            env=around,
            preexec_fn=before,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def assert_one_line(done: Done, code: int, *parts: str) -> None:
    """Assert that the command ended with `code` and one line on stderr that holds `parts` and
    what to do.
    """
    assert done.code == code, done
    [line] = done.lines
    assert line.startswith("tachograph: ")
    assert len(line) < 1000
    for part in (*parts, "; "):
        assert part in line
    assert done.out == ""


def rows(count: int, *, node: str = "n1", first: int = 0) -> str:
    """Return lines of samples of one GPU, every ten seconds from 10:00 on 1 March 2026."""
    return "".join(
        f"2026-03-01T{10 + place // 360:02}:{place // 6 % 60:02}:{place % 6}0,{node},0,{place % 100},100\n"
        for place in range(first, first + count)
    )


def job(
    number: int,
    *,
    start: str = "2026-03-01T10:00:00",
    end: str = "2026-03-01T10:10:00",
    node: str = "n1",
) -> str:
    """Return a line of accounting."""
    return (
        f"{number}|{number}|c|gpu|u|2026-03-01T09:00:00|{start}|{end}|00:10:00|COMPLETED|1|{node}"
        "|cpu=4,gres/gpu=1|train\n"
    )


def csv(folder: Path, name: str, *lines: str, header: str = HEADER) -> Path:
    """Write a CSV file."""
    path = folder / name
    path.write_text(header + "".join(lines))
    return path


def contents(lake: Path) -> dict[str, int]:
    """Return rows per table; each file of them can be read."""
    opened = Lake.open(str(lake))
    found = {}
    for table in ALL_TABLES:
        if opened.delta(table) is not None:
            found[table.name] = opened.scan(table).collect().height
            assert found[table.name] == sum(file.rows for file in opened.files(table))
    return found


def results(lake: Path) -> list[list[tuple[Any, ...]]]:
    """Return what reports read of the analyzed jobs, without the number of the analysis."""
    opened = Lake.open(str(lake))
    summaries = read_summaries(opened)
    minutes = [read_minutes(opened, summaries)]
    frames = [summaries, read_gpus(opened, summaries), read_findings(opened, summaries), *minutes]
    return [frame.drop("seq").rows() for frame in frames]


def rejected(report: Any) -> dict[tuple[str, str | None], int]:
    """Return {(reason, column): count} of an ingest's JSON."""
    return {(one["reason"], one["column"]): one["removed"] for one in report["rejects"]}


def data_files(lake: Path, table: str) -> list[Path]:
    """Return the data files of a table."""
    return sorted((lake / table).rglob("part-*.parquet"))


def listed(paths: Iterable[Path]) -> list[str]:
    """Return paths as the command line takes them."""
    return [str(path) for path in paths]
