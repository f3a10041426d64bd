"""Prints the processor time of this checkout over that of an older one: benchmarks, and whole
commands on the demo.

`python benchmarks/compare.py OLD`: each checkout runs its own code and scripts with its own .venv,
in turn (old, new, old, new, ...), so a machine that is busy with other things slows both. It takes
user and system time of a process with its children, and of some benchmarks also processor times
that they print. Each ratio is new over old of one round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kernels

NEW = Path(__file__).resolve().parents[1]
# {script: (options, processor times that it prints)}; a name in a list or an object within counts,
# too
SCRIPTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "analyze_scale": (
        ("--samples", "1000000", "4000000"),
        ("cpu_in_turn_s", "decode_and_reduce_over_decode"),
    ),
    "classes": ((), ("grouping_ms_per_job", "series_and_windows_ms_per_job", "all_ms_per_job")),
    "collector_cpu": (("--nodes", "300"), ("scrape_cpu_s", "parse_cpu_s", "land_cpu_s")),
    "colocate": ((), ("processor_s",)),
    "exposition": ((), ("parse_s", "first_s", "ours_s")),
    "help_time": ((), ()),
    "interference": ((), ("matrix_processor_s",)),
    "kernels": ((), ("read_s", "aggregate_s")),
    "lake_bytes": (("--nodes", "6"), ("compact_rows_per_cpu_s",)),
    "memory": (("--nodes", "8", "--days", "6"), ()),
    "metrics_ingest": ((), ("rows_cpu_ns_per_value",)),
    "month": ((), ("fill_cpu_us_per_sample", "analyze_cpu_us_per_sample")),
    "record": ((), ("start_cpu_s", "recorder_share_of_core")),
    "reduce_speed": (("--samples", "5000000"), ("ratio_of_cpu",)),
    "side_by_side": ((), ()),
    "watch": ((), ("usual_ms", "same_values_ms", "worst_ms")),
    "watch_screen": ((), ("first_screen_cpu_s", "core_percent")),
    "workers": (("--samples", "4000000", "--pairs", "2"), ()),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "tachograph --help": ("--help",),
    "tachograph jobs": ("jobs",),
    "tachograph jobs --json": ("jobs", "--json"),
    "tachograph job ID": ("job", "1000316"),
    "tachograph job ID --json": ("job", "1000316", "--json"),
    "tachograph job ID --html": ("job", "1000316", "--html", "job.html"),
    "tachograph analyze --full": ("analyze", "--full"),
    "tachograph ingest ldms": ("ingest", "ldms", "cluster/telemetry", "--lake", "another"),
    "tachograph study": ("study", "-o", "study", "--format", "svg"),
    "tachograph share colocate": ("share", "colocate"),
    "tachograph waste": ("waste",),
    "tachograph share kernels": ("share", "kernels", "raw.csv"),
    "tachograph serve, one page": ("serve", "--listen", "127.0.0.1:0"),
}
# {first words of a command: what they were in versions before 0.2}
FORMER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("share", "colocate"): ("colocate",),
    ("share", "kernels"): ("kernels",),
    ("study",): ("figures",),
}
LINK = re.compile(rb"http://\S+")  # that `serve` prints: it logs in and leads to the first page


def main() -> int:
    """Print one line of JSON per benchmark and command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, nargs="?", help="a checkout whose .venv is set up, too")
    parser.add_argument(
        "--rounds", type=int, default=5, help="counted; one more before them may compile"
    )
    parser.add_argument(
        "--only", nargs="+", choices=(*SCRIPTS, *COMMANDS), default=[*SCRIPTS, *COMMANDS]
    )
    options = parser.parse_args()
    if options.old is None:
        print(json.dumps({"benchmark": "compare", "missing": ["OLD"]}))
        return 0
    # Bytecode is kept, also where containers forbid it: else each process compiles all it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    checkouts = (options.old.resolve(), NEW)
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch, name) for name in ("old", "new")]
        if set(options.only) & set(COMMANDS):
            for checkout, folder in zip(checkouts, folders, strict=True):
                _prepare(checkout, folder)
        for name in options.only:
            rounds = [
                [
                    _run(name, checkout, folder)
                    for checkout, folder in zip(checkouts, folders, strict=True)
                ]
                for _ in range(options.rounds + 1)
            ]
            print(json.dumps({"compared": name, **_ratios(rounds[1:])}), flush=True)
    return 0


def _prepare(checkout: Path, folder: Path) -> None:
    """Make the demo of a checkout, and a report of kernels."""
    folder.mkdir()
    _spent([checkout / ".venv/bin/python", "-m", "tachograph", "demo", "--quiet"], folder)
    with Path(folder, "tachograph-demo/raw.csv").open("w") as file:
        file.writelines(kernels.lines(launches=20_000, kernels=500))


def _run(name: str, checkout: Path, folder: Path) -> dict[str, float]:
    """Return the processor times of one run, the whole process' as `cpu_s`."""
    python = checkout / ".venv/bin/python"
    if name in COMMANDS:
        demo = folder / "tachograph-demo"
        shutil.rmtree(demo / "another", ignore_errors=True)
        words = _words(checkout, COMMANDS[name])
        command: list[str | Path] = [python, "-m", "tachograph", *words]
        return _served(command, demo) if COMMANDS[name][0] == "serve" else _spent(command, demo)[0]
    more, printed = SCRIPTS[name]
    spent, text = _spent([python, checkout / f"benchmarks/{name}.py", *more], None)
    for path, value in _numbers(_objects(text), ""):
        if path.rpartition(".")[2] in printed:
            spent[path] = value
    return spent


def _words(checkout: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command as a checkout knows them."""
    for now, former in FORMER.items():
        if words[: len(now)] == now and not _has_command(checkout, now):
            return former + words[len(now) :]
    return words


@cache
def _has_command(checkout: Path, words: tuple[str, ...]) -> bool:
    python = str(checkout / ".venv/bin/python")
    command = [python, "-m", "tachograph", *words, "--help"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _served(command: Sequence[str | Path], folder: Path) -> dict[str, float]:
    """Return user and system time of a server that starts, answers the first page once, and stops."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        link = None
        while link is None and (line := process.stdout.readline()):
            link = LINK.search(line)
        if link is None:
            raise SystemExit(f"{command} printed no link")
        cookies = urllib.request.HTTPCookieProcessor()
        with urllib.request.build_opener(cookies).open(link[0].decode()) as page:
            page.read()
        process.terminate()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return {"cpu_s": usage.ru_utime + usage.ru_stime}


def _spent(command: Sequence[str | Path], folder: Path | None) -> tuple[dict[str, float], str]:
    """Return user and system time of a process and its children, and what it printed; a missed
    goal is no error.
    """
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            raise SystemExit(f"{command} ended with {process.returncode}")
        printed.seek(0)
        return {"cpu_s": usage.ru_utime + usage.ru_stime}, printed.read()


def _objects(text: str) -> list[Any]:
    """Return the JSON values that a benchmark printed, one behind the other."""
    found, end = [], 0
    while text[end:].strip():
        value, end = json.JSONDecoder().raw_decode(text, len(text) - len(text[end:].lstrip()))
        found.append(value)
    return found


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield each number of a JSON value with its path."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, int | float):
        yield path, float(value)


def _ratios(rounds: Sequence[Sequence[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return for each figure of both the ratios new over old: least, median, most; and both
    medians.
    """
    return {
        name: {
            **{place: round(pick(ratios), 3) for place, pick in _PICKS},
            "least_over_least": round(
                min(new[name] for _, new in rounds) / min(old[name] for old, _ in rounds), 3
            ),
            "old": round(statistics.median(old[name] for old, _ in rounds), 4),
            "new": round(statistics.median(new[name] for _, new in rounds), 4),
        }
        for name in rounds[0][0].keys() & rounds[0][1].keys()
        if (ratios := [new[name] / old[name] for old, new in rounds if old[name]])
    }


_PICKS = (("least", min), ("median", statistics.median), ("most", max))


if __name__ == "__main__":
    sys.exit(main())
