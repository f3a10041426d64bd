"""Compares what two versions of Tachograph print about the same inputs: a rewrite must change no
number.

    python research/compare_versions.py record .venv/bin/tachograph --data ../shared/data before.json
    python research/compare_versions.py compare before.json after.json

`record` makes the demo and reads recorded inputs with one version of the program. It keeps the exit
code and the JSON of every command below. `compare` prints columns and keys that are gone or new,
and values that differ; its exit code is 1 where a value differs or a command ends with another exit
code.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Relative; sums of floats are added in another order by another version of a library.
TOLERANCE = 1e-9
SHOWN_DIFFERENCES = 12  # of each command
OF_THE_RUN = {".made", ".tachograph"}  # keys that tell of the run: its time, the version
USAGE_ERROR = 2  # exit code of a command line that this version does not know

MAPPINGS = {
    "samples.toml": '[time]\ncolumn = "t"\n[node]\ncolumn = "node"\n[gpu]\ncolumn = "gpu"\n[columns]\n',
    "devices.toml": 'table = "devices"\n[node]\ncolumn = "node"\n[gpu]\ncolumn = "gpu"\n[columns]\nmodel = "model"\n',
    "jobs.toml": 'table = "jobs"\n[columns]\njob = "job_id"\nname = "name"\nuser = "user"\nnode = "nodes"\n'
    'start = "start"\nend = "end"\nstate = "state"\ngpus = "gpus"\n',
    "allocations.toml": 'table = "allocations"\n[gpu]\nconstant = 0\n[node]\ncolumn = "node"\n[columns]\n'
    'job = "job_id"\nstart = "start"\nend = "end"\n',
}


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One command. `spellings`: its words in each version, the newest first; the first that is
    understood is run.
    """

    name: str
    spellings: tuple[tuple[str, ...], ...]


def step(name: str, *spellings: str) -> RecordedStep:
    """Return a step from command lines without blanks in their words."""
    return RecordedStep(name, tuple(tuple(spelling.split()) for spelling in spellings))


DEMO_STEPS = (
    step("demo jobs", "jobs --json --lake demo/lake"),
    step("demo job", "job 1000360 --json --lake demo/lake"),
    step("demo waste", "waste --json --lake demo/lake"),
    step("demo waste by user", "waste --by user --json --lake demo/lake"),
    step(
        "demo rules", "lab rules run --json --lake demo/lake", "rules run --json --lake demo/lake"
    ),
    step(
        "demo classes", "lab classify --json --lake demo/lake", "classify --json --lake demo/lake"
    ),
    step("demo lake", "lake --json --lake demo/lake"),
    step(
        "demo study",
        "study --format svg -o study --json --lake demo/lake",
        "figures --format svg -o study --json --lake demo/lake",
    ),
    step(
        "demo sharing", "share colocate --json --lake demo/lake", "colocate --json --lake demo/lake"
    ),
    step("accuracy", "lab accuracy --jobs 400 --json", "accuracy --jobs 400 --json"),
    step("job of another lake", "job 4242 --json --lake demo/lake"),
    step("a wrong word", "jbos"),
)

SLURM_STEPS = (
    step(
        "slurm text refused",
        "ingest sacct DATA/slurm_outputs/22.05.8/sacct.parsable2.txt --lake slurm",
    ),
    step("slurm 22.05 JSON", "ingest sacct DATA/slurm_outputs/22.05.8/sacct.json --lake slurm"),
    step(
        "slurm text",
        "ingest sacct DATA/slurm_outputs/22.05.8/sacct.parsable2.txt --trusted --lake slurm",
    ),
    step("slurm map", "ingest allocation-map DATA/slurm_outputs/22.05.8/squeue.json --lake slurm"),
    step("slurm analyze", "analyze --lake slurm"),
    step("slurm jobs", "jobs --json --lake slurm"),
)

H100_STEPS = (
    step(
        "h100 samples",
        "ingest table DATA/h100_day/samples/*.parquet --mapping samples.toml --lake h100",
    ),
    step("h100 devices", "ingest table devices.csv --mapping devices.toml --lake h100"),
    step("h100 jobs", "ingest table jobs.parquet --mapping jobs.toml --lake h100"),
    step("h100 allocations", "ingest table jobs.parquet --mapping allocations.toml --lake h100"),
    step("h100 analyze", "analyze --lake h100"),
    step("h100 jobs list", "jobs --json --lake h100"),
    *(step(f"h100 job {number}", f"job {number} --json --lake h100") for number in range(1, 6)),
    step(
        "h100 kernels",
        "share kernels DATA/h100_day/profiles/gemm-bf16.csv --json",
        "kernels DATA/h100_day/profiles/gemm-bf16.csv --json",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("program", type=Path)
    recording.add_argument("output", type=Path)
    recording.add_argument(
        "--data", type=Path, help="recorded inputs; without them only the demo is recorded"
    )
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        data = None if options.data is None else options.data.resolve()
        options.output.write_text(json.dumps(record(options.program.absolute(), data), indent=1))
        return 0
    before, after = json.loads(options.before.read_text()), json.loads(options.after.read_text())
    lines = list(differences(before, after))
    print("\n".join(lines))
    return int(any(line.startswith("DIFFERENT") for line in lines))


# --------------------------------------------------------------------------------------------------------- recording


def record(program: Path, data: Path | None) -> dict[str, Any]:
    """Return {name of the step: its exit code and what it printed}."""
    steps: tuple[RecordedStep, ...] = DEMO_STEPS
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        folder = Path(name)
        _run(program, folder, ("demo", "--quiet", "--folder", "demo"))
        if data is not None:
            steps += SLURM_STEPS + H100_STEPS
            _write_h100_tables(folder, data)
        records = {}
        for recorded in steps:
            print(recorded.name, file=sys.stderr)
            records[recorded.name] = _record_step(program, folder, data, recorded)
    return records


def _record_step(
    program: Path, folder: Path, data: Path | None, recorded: RecordedStep
) -> dict[str, Any]:
    for spelling in recorded.spellings:
        ended = _run(program, folder, _with_data(spelling, data))
        if ended.returncode != USAGE_ERROR:
            break
    return {"exit": ended.returncode, "printed": _parsed(ended.stdout)}


def _with_data(words: Sequence[str], data: Path | None) -> list[str]:
    """Return the words with the folder of the recordings, and with the files that a pattern
    stands for.
    """
    complete = []
    for word in words:
        path = word.replace("DATA", str(data), 1) if word.startswith("DATA/") else word
        if "*" in path:
            pattern = Path(path)
            complete += sorted(map(str, pattern.parent.glob(pattern.name)))
        else:
            complete.append(path)
    return complete


def _run(program: Path, folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TZ": "UTC"}
    return subprocess.run(
        [program, *words],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=1200,
    )


def _parsed(printed: str) -> Any:
    """Return the JSON that was printed; text, of which only numbers are to be the same, as it
    is.
    """
    try:
        return json.loads(printed)
    except json.JSONDecodeError:
        return printed.splitlines()


def _write_h100_tables(folder: Path, data: Path) -> None:
    """Write mappings, and a table of one job for each recording of a labelled workload."""
    import polars as pl

    jobs, columns = [], []
    for number, path in enumerate(
        sorted((data / "h100_day" / "samples").glob("*.parquet")), start=1
    ):
        frame = pl.read_parquet(path)
        columns = [name for name in frame.columns if name not in {"label", "t", "node", "gpu"}]
        jobs.append(
            {
                "job": str(number),
                "name": frame["label"][0],
                "user": "ann",
                "node": frame["node"][0],
                "gpus": 1,
                "start": frame["t"].min(),
                "end": frame["t"].max(),
                "state": "COMPLETED",
            }
        )
    pl.DataFrame(jobs).write_parquet(folder / "jobs.parquet")
    (folder / "devices.csv").write_text("node,gpu,model\nnode1,0,NVIDIA H100 80GB HBM3\n")
    for name, text in MAPPINGS.items():
        (folder / name).write_text(text)
    with (folder / "samples.toml").open("a") as mapping:
        mapping.writelines(f'{column} = "{column}"\n' for column in columns)


# --------------------------------------------------------------------------------------------------------- comparing


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each difference, and one for each command."""
    for name, was in before.items():
        now = after.get(name)
        if now is None:
            yield f"GONE {name}"
            continue
        if was["exit"] != now["exit"]:
            yield f"DIFFERENT {name}: exit code {was['exit']} before, {now['exit']} now"
        yield from _difference_of_step(
            name, dict(_leaves(was["printed"])), dict(_leaves(now["printed"]))
        )


def _difference_of_step(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[str]:
    gone = Counter(_column(path) for path in before.keys() - after.keys())
    new = Counter(_column(path) for path in after.keys() - before.keys())
    for column, count in sorted(gone.items()):
        yield f"  {name}: {column} is gone from {count} places"
    for column, count in sorted(new.items()):
        yield f"  {name}: {column} is new in {count} places"
    common = (before.keys() & after.keys()) - OF_THE_RUN
    changed = sorted(path for path in common if not _same(before[path], after[path]))
    for path in changed[:SHOWN_DIFFERENCES]:
        yield f"DIFFERENT {name}: {path}: {before[path]!r} before, {after[path]!r} now"
    yield f"{name}: {len(common) - len(changed)} values are the same, {len(changed)} differ"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything in JSON that holds nothing else; rows of jobs by their
    job's id.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            label = (
                item.get("job_id", item.get("code", index)) if isinstance(item, Mapping) else index
            )
            yield from _leaves(item, f"{path}[{label}]")
    else:
        yield path, value


def _column(path: str) -> str:
    """Return the path without the places in lists."""
    return (
        "".join(part.partition("]")[2] if "]" in part else part for part in path.split("[")) or path
    )


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, float) and isinstance(after, int | float):
        return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(before == after)


if __name__ == "__main__":
    sys.exit(main())
