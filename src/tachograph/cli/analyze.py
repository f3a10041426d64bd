"""`tachograph analyze`: summarize and judge every job with new data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.catalog.errors import TachographError, UsageError
from tachograph.catalog.units import plural, whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator, remark
from tachograph.cli.options import Arguments, Parser, add_as_of, add_json

if TYPE_CHECKING:
    from tachograph.catalog.config import WorkerOptions
    from tachograph.cli.options import OpenedLake
    from tachograph.lake.delta import Lake
    from tachograph.pipeline.reduction import TaskPool
    from tachograph.pipeline.run import AnalysisReport

OF_DASK = ("dask", "distributed", "dask_jobqueue", "cryptography")


def add_arguments(parser: Parser) -> None:
    """Declare `--full`, `--threads`, `--workers`, `--as-of`, `--json`."""
    parser.add_argument(
        "--full", action="store_true", help="analyze all jobs, not only those with new data"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        default=os.cpu_count() or 2,
        help="partitions of the lake reduced in parallel",
    )
    parser.add_argument(
        "--workers",
        metavar="WHICH",
        help=(
            "reduce on Dask workers: N processes, slurm:N jobs, or a running scheduler: "
            "tcp://HOST:PORT, FILE.json"
        ),
    )
    add_as_of(parser)
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Analyze; print the numbers of jobs and samples."""
    from tachograph.pipeline.memory import keep_freed_memory

    keep_freed_memory()  # before anything below brings Polars
    from tachograph.cli.options import open_lake
    from tachograph.judge.job_judge import JobJudge
    from tachograph.pipeline.run import analyze

    opened = open_lake(arguments)
    narrator = Narrator.of(arguments)
    lake, settings = opened.lake, opened.configuration.workers
    if arguments.workers is not None:
        lake = seen_from_anywhere(lake)
    with _pool(arguments.workers, settings, lake, narrator) as pool, narrator.steps() as progress:
        report = analyze(
            lake,
            opened.configuration,
            judge=JobJudge,
            now=opened.now,
            pool=pool,
            threads=arguments.threads,
            full=arguments.full,
            progress=progress,
        )
    write_advice_files(opened)
    for problem in report.rule_problems:
        remark(f"rule skipped: {problem}")
    for caveat in caveats(report):
        remark(caveat)
    if arguments.json:
        output.print_json(report)
    else:
        output.print_text(f"{sentence(report)}\n")
    return 0


def write_advice_files(opened: OpenedLake) -> None:
    """Write the advice files for sbatch if enabled; a problem is only a remark."""
    if not opened.configuration.act.advice_folder:
        return
    from tachograph.catalog.doors import annex_function

    try:
        written = annex_function("refresh_advice")(
            opened.lake, opened.configuration, as_of=opened.now, now=opened.clock
        )
    except TachographError as problem:
        remark(f"no advice for sbatch: {problem}")
        return
    if written.refused:
        users = plural(len(written.refused), "user")
        remark(
            f"no advice for {users} ({', '.join(written.refused[:3])}, ...): only root, or a "
            "process with CAP_CHOWN, can write files for other users"
        )


@contextmanager
def _pool(
    option: str | None, settings: WorkerOptions, lake: Lake, narrator: Narrator
) -> Iterator[TaskPool | None]:
    """The workers named by the option; None without it."""
    from tachograph.pipeline.workers import parse_workers

    if option is None:
        yield None
        return
    parse_workers(option)  # reported before a missing Dask
    try:
        from tachograph.pipeline.dask_workers import workers
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] not in OF_DASK:
            raise
        raise UsageError("--workers needs Dask", do="pip install 'tachograph[dask]'") from None
    with workers(option, settings, lake, report=narrator.say) as pool:
        yield pool


def seen_from_anywhere(lake: Lake) -> Lake:
    """Return the lake under an absolute path, valid in every process."""
    from tachograph.lake.delta import Lake
    from tachograph.lake.store import is_remote

    return lake if is_remote(lake.location) else Lake(str(Path(lake.location).absolute()))


def caveats(report: AnalysisReport) -> Iterator[str]:
    """Yield data missing to match jobs and samples, each with what to ingest."""
    if report.unaccounted:
        samples = plural(report.unaccounted_samples, "sample")
        of_samples = f" with {samples}" if report.unaccounted_samples else ""
        yield (
            f"{plural(report.unaccounted, 'job')}{of_samples} not in the accounting, known "
            "from samples or maps "
            "alone: their times are those of the records; ingest the accounting of that time"
        )
    if report.misplaced:
        best = report.zone
        fits = f": {best.sentence}" if best else ""
        right, wrong = (best.zone_name, best.present) if best else ("ZONE", "WRONG")
        yield (
            f"{plural(report.misplaced, 'job')} named by samples or maps only outside of the "
            f"accounted times{fits}: set site.time_zone to the zone of the accounting and replace "
            f"it: tachograph ingest FILES --time-zone {right} --instead-of {wrong}"
        )
    if report.handover_samples:
        yield (
            f"{plural(report.handover_samples, 'sample')} of GPUs that one job left and the next "
            "got within the same second: they count for neither; record prolog and epilog with "
            "fractions of a second, as contrib/slurm/gpu-map.sh does"
        )
    for telemetry, accounting in report.same_clusters.items():
        yield (
            f"telemetry of cluster {telemetry} counts as that of {accounting}, its name in the "
            "accounting: most of their nodes are the same, and no other cluster has these"
        )
    yield from _other_names(report)
    unplaced = report.unplaced - report.misplaced
    if unplaced > 0:
        yield (
            f"{plural(unplaced, 'job')} of which nothing records where they ran: no node list "
            "in the accounting, and no sample or map names them (NodeList of sacct, exec_host of "
            "PBS and LSF, R of Flux)"
        )


def _other_names(report: AnalysisReport) -> Iterator[str]:
    """Yield a sentence per name in telemetry that the accounting of its nodes does not have.

    It names the name to write only where no second one can be meant.
    """
    jobs_of: dict[str, dict[str, int]] = {}
    for cluster, telemetry, jobs in report.other_names:
        jobs_of.setdefault(telemetry, {})[cluster or "without a name"] = jobs
    for telemetry, jobs_by_cluster in jobs_of.items():
        possible = report.possible_names.get(telemetry, ())
        do = (
            "which cluster of the accounting this is, is not certain; give telemetry of each "
            "cluster, and of each time if one was renamed, the accounting's name, by "
            "`cluster` in [[sources]] or `--cluster`, and ingest it again"
        )
        if len(possible) == 1 and possible[0] in jobs_by_cluster:
            (name,) = possible
            do = (
                "if both are one cluster, give telemetry the accounting's name, by "
                f'`cluster = "{name}"` in [[sources]] or `--cluster {name}`, and ingest it again'
            )
        yield (
            f"{plural(sum(jobs_by_cluster.values()), 'job')} of cluster "
            f"{' and '.join(jobs_by_cluster)} on nodes whose telemetry names cluster {telemetry}: "
            f"{do} (a label that names a cluster counts first: labels.cluster)"
        )


def sentence(report: AnalysisReport) -> str:
    """Return the result of an analysis as one line of text."""
    if not report.jobs and not report.samples:
        return "nothing new; all jobs unchanged"
    if not report.jobs:
        return (
            f"{plural(report.samples, 'sample')} read, none of a known job: ingest the "
            "accounting of that time, "
            "with node lists, a map, or samples that name their job"
        )
    read = plural(report.samples, "sample")
    of_no_job = f"{read} read" if report.samples else "no sample of their time"
    if report.full and report.samples:
        share = report.attributed / report.samples
        of_no_job = f"{share:.0%} of {read} belong to {'it' if report.jobs == 1 else 'them'}"
    unclear = f", {report.ambiguous:,} of them ambiguous" if report.ambiguous else ""
    return (
        f"{plural(report.jobs, 'job')} summarized{unclear}; {of_no_job}; "
        f"{plural(report.findings, 'finding')}"
    )
