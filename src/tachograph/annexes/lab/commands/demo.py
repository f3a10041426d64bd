"""`tachograph demo`: a simulated cluster with planted problems, processed by the real commands."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tachograph.catalog.errors import ListenError, UsageError
from tachograph.catalog.processes import python_command
from tachograph.catalog.units import whole_number
from tachograph.catalog.version import __version__
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser

if TYPE_CHECKING:
    import polars as pl

    from tachograph.annexes.lab.simulate.cluster import SimulatedCluster

FOLDER = "tachograph-demo"
_MARK = ".tachograph-demo"
_LAKE = "lake"  # inside the folder
_HISTORY = "history"  # folder of a month of repeated jobs, with a lake of its own
_CLUSTER = "cluster"  # what the simulated cluster recorded
_CONFIGURATION = "tachograph.toml"
# {planted problem: job class that reports a long one}
CLASS_OF_PROBLEM: Mapping[str, str] = MappingProxyType(
    {
        "job_hang": "job_hang",
        "busy_waiting": "job_hang",
        "cold_start": "cold_start",
        "stall": "stall",
    }
)


def add_arguments(parser: Parser) -> None:
    """Declare the folder and the seed."""
    parser.add_argument(
        "--folder", default=FOLDER, metavar="DIR", help=f"folder of the demo (default ./{FOLDER})"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=7, help="seed of the simulated cluster (default 7)"
    )
    parser.add_argument(
        "--serve",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help=("then serve its pages, on HOST:PORT if given; an existing demo is kept"),
    )


def run(arguments: Arguments) -> int:
    """Simulate, ingest, analyze, show; write the page; print next steps, or serve."""
    folder = Path(arguments.folder)
    serves = arguments.serve is not None
    if not (serves and _is_complete(folder, arguments.seed)):
        _make(folder, arguments)
    return _serve(folder, arguments.serve) if serves else 0


def _make(folder: Path, arguments: Arguments) -> None:
    from tachograph.annexes.lab.simulate.cluster import simulate
    from tachograph.annexes.lab.simulate.plan import SimulationPlan

    narrator = Narrator.of(arguments)
    begin_anew(folder, narrator)
    narrator.say(
        "Simulated cluster: 36 nodes, 144 GPUs, two days, with planted problems and telemetry "
        "defects."
    )
    narrator.say("The commands below are the same on a real cluster.")
    plan = SimulationPlan.demo(seed=arguments.seed)
    with narrator.steps() as progress:
        cluster = simulate(
            plan, folder / _CLUSTER, lambda done, total: progress("simulate", done, total)
        )
    configuration = cluster.configuration.read_text(encoding="utf-8")
    configure(folder, f'lake = "{_LAKE}"\n\n{configuration}', narrator)
    with contextlib.chdir(folder), _without_overrides(os.environ):
        worst = _walk(plan.end.isoformat())
        output.print_text(_truth(cluster))
        with narrator.steps() as progress:
            _make_history(
                Path(_HISTORY),
                arguments.seed,
                lambda done, total: progress("simulate a month", done, total),
            )
    output.print_text(_next(folder, worst))
    (folder / _MARK).write_text(_made_by(arguments.seed), encoding="utf-8")


def _make_history(folder: Path, seed: int, progress: Callable[[int, int], None]) -> None:
    """Fill a lake with a month of jobs that six users repeat; analyze it."""
    from tachograph.annexes.lab.fill import fill
    from tachograph.annexes.lab.simulate.plan import SimulationPlan

    plan = SimulationPlan.history(seed=seed)
    cluster = fill(plan, str(folder / _LAKE), folder / _CLUSTER, progress)
    configuration = cluster.configuration.read_text(encoding="utf-8")
    recorded = '[slurm]\npartitions_file = "cluster/partitions.txt"'
    (folder / _CONFIGURATION).write_text(
        f'lake = "{_LAKE}"\n\n{configuration.replace("[slurm]", recorded)}', encoding="utf-8"
    )
    output.print_text(
        f"\nA month of six users who repeat their jobs, in a lake of its own\n\n$ cd {folder}"
    )
    with contextlib.chdir(folder):
        _step(["analyze", "--as-of", plan.end.isoformat()])


def _made_by(seed: int) -> str:
    return f"tachograph {__version__}, seed {seed}\n"


def _is_complete(folder: Path, seed: int) -> bool:
    """Whether a complete demo of this version and seed is there."""
    mark = folder / _MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == _made_by(seed)


def _serve(folder: Path, address: str) -> int:
    from tachograph.cli.registry import execute

    try:
        with contextlib.chdir(folder), _without_overrides(os.environ):
            return execute(["serve", *(["--listen", address] if address else [])])
    except ListenError as problem:
        raise ListenError(
            problem.what,
            where=problem.where,
            do="choose another: `tachograph demo --serve HOST:PORT`, with make "
            "`make serve-demo ADDRESS=HOST:PORT`",
        ) from None


@contextlib.contextmanager
def _without_overrides(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Environment without TACHOGRAPH_ variables, so synthetic jobs reach no other lake."""
    overrides = {
        name: value for name, value in environment.items() if name.startswith("TACHOGRAPH_")
    }
    for name in overrides:
        del environment[name]
    try:
        yield
    finally:
        environment.update(overrides)


def _walk(end: str) -> str:
    """Run the commands inside the demo's folder; return the job of the page."""
    _step(["ingest", "ldms", "cluster/telemetry"])
    _step(["ingest", "sacct", "cluster/accounting/sacct.txt"])
    _step(["ingest", "allocation-map", "cluster/allocations/gpu_map.csv"])
    _step(["ingest", "slurm-nodes", "cluster/nodes"])
    _step(["ingest", "table", "cluster/devices.csv", "--mapping", "cluster/devices.toml"])
    _step(["analyze", "--as-of", end])
    _step(["jobs", "--where", "gpu_hours>2", "--sort", "gpu_util_mean", "--limit", "15"])
    worst = _worst()
    _step(["job", worst])
    _step(["job", worst, "--html", _page(worst)])
    return worst


def _page(job_id: str) -> str:
    return f"job-{job_id}.html"


def begin_anew(folder: Path, narrator: Narrator) -> None:
    """Make the folder; of an earlier demo remove what the demo itself writes, and nothing else.

    Errors: UsageError where the folder holds files but no demo.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise UsageError(
            "not empty and not from a demo",
            where=str(folder),
            do="name another folder with --folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).write_text("", encoding="utf-8")  # not complete until all is done
    earlier = [folder / name for name in (_LAKE, _CLUSTER, _HISTORY) if (folder / name).exists()]
    if earlier:
        names = ", ".join(path.name for path in earlier)
        narrator.say(
            f"{folder}: {names} of the earlier demo are made anew, with all that is in them; other "
            "files stay."
        )
    for path in earlier:
        shutil.rmtree(path)


def configure(folder: Path, configuration: str, narrator: Narrator) -> None:
    """Write the configuration; one that somebody changed is kept beside it."""
    file = folder / _CONFIGURATION
    if file.exists() and file.read_bytes() != configuration.encode():
        names = (f"{file.name}.old{number}" for number in count(1))
        backup = next(path for path in map(file.with_name, names) if not path.exists())
        file.rename(backup)
        narrator.say(f"{file} was changed since the demo wrote it; it is kept as {backup.name}.")
    file.write_text(configuration, encoding="utf-8")


def _step(command: list[str]) -> None:
    """Print a command as typed, and run it."""
    from tachograph.cli.registry import execute

    output.print_text(f"\n$ tachograph {shlex.join(command)}\n")
    output.flush()
    execute(command)


def _worst() -> str:
    """The finished job with a problem that lost most GPU-hours."""
    import polars as pl

    from tachograph.lake.delta import Lake
    from tachograph.lake.filters import lost_hours
    from tachograph.lake.query import read_findings, read_summaries

    opened = Lake.open(_LAKE)
    summaries = read_summaries(opened)
    problems = read_findings(opened, summaries).filter(pl.col("severity") == "problem")
    ended = summaries.filter(pl.col("end").is_not_null()).join(problems, on="job_key", how="semi")
    return str(
        ended.sort(lost_hours(), descending=True, nulls_last=True).get_column("display_id")[0]
    )


def _truth(cluster: SimulatedCluster) -> str:
    """Planted problems and how many of them were found, as a text table."""
    import polars as pl

    from tachograph.lake.delta import Lake
    from tachograph.lake.query import read_summaries, read_verdicts

    opened = Lake.open(_LAKE)
    summaries = read_summaries(opened)
    ended = summaries.filter((pl.col("attribution") != "ambiguous") & pl.col("end").is_not_null())
    holds = (pl.col("verdict") == "yes") & pl.col("covered_by").is_null()  # mere facts too
    counted = _found(cluster.jobs, ended, read_verdicts(opened, ended, holds, holding=True))
    lines = [
        f"  {problem:<22} {planted:>7} {found:>6}"
        for problem, planted, found in counted.iter_rows()
    ]
    head = "\nPlanted and found problems in finished jobs with known GPUs\n"
    total = f"  {'total':<22} {counted['planted'].sum():>7} {counted['found'].sum():>6}\n"
    return (
        f"{head}  {'problem':<22} {'planted':>7} {'found':>6}\n" + "\n".join(lines) + "\n" + total
    )


def _found(truth: pl.DataFrame, summaries: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Return planted problems and how many were found, by the same code or as job class."""
    import polars as pl

    planted = truth.filter(pl.col("problem").is_not_null()).select("job_id", "submit", "problem")
    planted = planted.join(
        summaries.select("job_id", "submit", "job_key"), on=["job_id", "submit"], how="inner"
    )
    names = [pl.col("problem"), pl.col("problem").replace(CLASS_OF_PROBLEM)]
    found = pl.concat([planted.with_columns(code=name) for name in names])
    found = (
        found.join(findings, on=["job_key", "code"], how="semi")
        .select("job_key", "problem")
        .unique()
    )
    hits = planted.join(
        found.with_columns(hit=pl.lit(value=True)), on=["job_key", "problem"], how="left"
    )
    return (
        hits.group_by("problem")
        .agg(planted=pl.len(), found=pl.col("hit").sum().cast(pl.Int64))
        .sort("planted", "problem", descending=[True, False])
    )


def _next(folder: Path, worst: str) -> str:
    page = folder / _page(worst)
    about_page = f"\nThe page of job {worst} with its plots: {page}\n" if page.exists() else ""
    energy = "--sort -energy_j --columns display_id,user,gpus,gpu_hours,energy_j,bound,pipes"
    commands = (
        *reach_program(shutil.which("tachograph"), Path(python_command("tachograph")[0])),
        f"cd {shlex.quote(str(folder))}",
        "tachograph jobs --finding job_hang",
        f"tachograph lab classify {worst}  # hang, cold start, stall, idle nodes or GPUs",
        "tachograph waste  # unused GPU-hours by cause, cost, recoverable part",
        "tachograph share colocate --runs 1  # jobs that could share a GPU: slowdown, savings",
        f"tachograph jobs {energy} --limit 10",
        f"(cd {_HISTORY} && tachograph advise --backtest)  # what advice would have saved",
        "tachograph serve  # pages of all of it, in a browser",
        "tachograph lake  # what was read, gaps, what was rejected",
        "tachograph ingest --help  # read your own recordings and accounting",
    )
    return "\n  ".join([f"{about_page}\nTry next", *commands]) + "\n"


def reach_program(on_path: str | None, python: Path) -> list[str]:
    """Return the shell's commands after which `tachograph` is one.

    on_path: the program of that name on PATH. python: the interpreter that runs.

    >>> reach_program(None, Path("/nowhere/bin/python")), reach_program("/bin/tachograph", Path("python"))
    (["alias tachograph='/nowhere/bin/python -m tachograph'"], [])
    """
    if on_path:
        return []
    if (python.parent / "tachograph").is_file():
        return [f"export PATH={shlex.quote(str(python.parent))}:$PATH"]
    return [f"alias tachograph={shlex.quote(f'{shlex.quote(str(python))} -m tachograph')}"]
