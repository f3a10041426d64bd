"""Counts of the work of the main paths on a small simulated cluster: equal on every machine.

`make counts` writes them anew into work_counts.json. A command is counted in a process of its own,
on one processor. As no count depends on its version, they hold for every Python: comprehensions,
which some versions call and others do not, are left out, and so are bytecode and libraries.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_suffix(".json")
TOLERANCE = 0.03
ACCEPT = "accept it with `make counts`, and say why in the commit"
_SIMULATED = ("--nodes", "3", "--days", "1", "--interval", "60", "--hosts", "--seed", "7")
_INPUTS = ("telemetry", "accounting", "allocations")
# {path: (words of the command, "" for a job of the lake; whether what it writes is counted)}
PATHS: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "ingest": (("ingest", *(f"cluster/{name}" for name in _INPUTS)), True),
    "analyze": (("analyze",), True),
    "jobs": (("jobs", "--limit", "10"), True),
    "job": (("job", ""), True),
    # bytes of figures depend on libraries that Python brings
    "study": (("study", "--format", "png", "-o", "study"), False),
}
Counts = dict[str, int]


def measure() -> dict[str, Counts]:
    """Return {path: its counts}."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _tachograph(folder, "lab", "simulate", "cluster", *_SIMULATED)
        counts = {}
        for name, (words, with_written) in PATHS.items():
            if name == "analyze":  # what numba has to compile on a new machine is not counted
                shutil.copytree(folder / "lake", folder / "compiled")
                _tachograph(folder, "analyze", "--lake", "compiled")
            before = _bytes_below(folder)
            job = "" if "" not in words else _first_job(folder)
            counts[name] = json.loads(_child(folder, __file__, *(word or job for word in words)))
            if with_written:
                counts[name]["bytes written"] = _bytes_below(folder) - before
        return counts


def differences(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> list[str]:
    """Return a line for each count that differs by more than the tolerance.

    >>> differences({"jobs": {"logs": 4, "calls": 900}}, {"jobs": {"logs": 5, "calls": 910}})
    ['jobs: logs: 4 before, 5 now (+25.0 %)']
    """
    lines = []
    for path in (*before, *(now.keys() - before.keys())):
        old, new = before.get(path, {}), now.get(path, {})
        for name in sorted(old.keys() | new.keys()):
            was, is_now = old.get(name, 0), new.get(name, 0)
            if abs(is_now - was) > TOLERANCE * was:
                share = f" ({(is_now - was) / was:+.1%})".replace("%", " %") if was else ""
                lines.append(f"{path}: {name}: {was:,} before, {is_now:,} now{share}")
    return lines


def _tachograph(folder: Path, *words: str) -> str:
    return _child(folder, "-m", "tachograph", *words)


def _first_job(folder: Path) -> str:
    listed = _tachograph(folder, "jobs", "--csv", "--columns", "job_id", "--sort", "-gpu_hours")
    return listed.split()[1]


def _child(folder: Path, *words: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")}
    # bytecode is kept: each process compiles all modules anew else
    environment = kept | {"TACHOGRAPH_LAKE": str(folder / "lake"), "POLARS_MAX_THREADS": "1"}
    # tables are fitted to a width, which pytest sets for some workers
    environment |= {"COLUMNS": "100", "LINES": "24", "FORCE_COLOR": ""}
    environment["PYTHONDONTWRITEBYTECODE"] = ""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.returncode}: {done.stderr}")
    return done.stdout


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------- in the child


class _Work:
    """Counts what this process does from now on."""

    def __init__(self) -> None:
        self.counts: Counts = dict.fromkeys(("calls", "files", "logs", "bytes read", "rows"), 0)
        self._folder = f"{Path.cwd()}/"

    def start(self) -> None:
        """Count calls of our functions, and what is opened and read in the folder."""
        import deltalake
        import polars as pl

        import tachograph

        sources = f"{Path(tachograph.__file__).parent}/"
        counts = self.counts

        def count_call(frame: Any, _event: str, _argument: object) -> None:
            code = frame.f_code
            if code.co_filename.startswith(sources) and code.co_name[0] != "<":
                counts["calls"] += 1

        _before(deltalake.DeltaTable, "__init__", lambda *_: self._add("logs", 1))
        for name in ("scan_parquet", "read_parquet", "scan_csv", "read_csv"):
            _before(pl, name, lambda source, *_: self._opened(source))
        _after(pl.LazyFrame, "collect", lambda frame: self._add("rows", frame.height))
        sys.addaudithook(self._audit)
        threading.settrace(count_call)
        sys.settrace(count_call)  # of calls alone, as it returns nothing that traces lines

    def stop(self) -> Counts:
        """Return the counts."""
        sys.settrace(None)
        ours = [name for name in sys.modules if name.partition(".")[0] == "tachograph"]
        return {**self.counts, "modules": len(ours)}

    def _add(self, name: str, more: int) -> None:
        self.counts[name] += more

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            self._opened(arguments[0])

    def _opened(self, source: object) -> None:
        """Count a file, or several, that lie in the folder."""
        if isinstance(source, str | os.PathLike):
            path = os.path.abspath(source)  # noqa: PTH100 as pathlib would be counted
            if path.startswith(self._folder) and os.path.isfile(path):  # noqa: PTH113
                self._add("files", 1)
                self._add("bytes read", os.stat(path).st_size)  # noqa: PTH116
        elif isinstance(source, Iterable):
            for one in source:
                self._opened(one)


def _before(owner: Any, name: str, count: Callable[..., None]) -> None:
    whole = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        count(*arguments)
        return whole(*arguments, **options)

    setattr(owner, name, counted)


def _after(owner: Any, name: str, count: Callable[[Any], None]) -> None:
    whole = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        result = whole(*arguments, **options)
        count(result)
        return result

    setattr(owner, name, counted)


def count_command(words: list[str]) -> int:
    """Run a command, and print its counts."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work, printed = _Work(), sys.stdout
    work.start()
    from tachograph.cli import main

    with open(os.devnull, "w") as sys.stdout:  # noqa: PTH123
        code = main(words)
    counts = work.stop()
    sys.stdout = printed
    print(json.dumps(counts))  # noqa: T201
    return code


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(count_command(sys.argv[1:]))
    STORED.write_text(json.dumps(measure(), indent=2) + "\n")
