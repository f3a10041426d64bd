"""`tachograph lab accuracy`: measures the accuracy of verdicts on simulated jobs."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tachograph.annexes.lab.accuracy import ClassAccuracy, VerdictScore
    from tachograph.annexes.lab.simulate.plan import SimulationPlan
    from tachograph.catalog.config import Configuration
    from tachograph.lake.delta import Lake

LEAST, MOST = 30, 100_000
# verdicts on jobs of the class, then on others
CONFUSION_HEADINGS = (
    ">yes (is)",
    ">no (is)",
    ">unknown (is)",
    ">yes (is not)",
    ">no (is not)",
    ">unknown (is not)",
)


def add_arguments(parser: Parser) -> None:
    """Declare jobs, seed, and output folder."""
    parser.add_argument(
        "--jobs",
        type=whole_number(LEAST, MOST),
        default=4000,
        metavar="N",
        help="jobs to simulate (default 4000)",
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=2, help="seed of the simulated jobs (default 2)"
    )
    parser.add_argument(
        "--counters",
        choices=("all", "no_profiling", "utilisation_power", "utilisation"),
        default="all",
        metavar="SET",
        help="counters that the site records: all, no_profiling, utilisation_power, utilisation",
    )
    parser.add_argument(
        "--keep", metavar="DIR", help="keep lake, accounting and ground truth in this new folder"
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Simulate, analyze, compare, print; thresholds of --config, else the defaults."""
    from tachograph.annexes.lab.accuracy import CHOSEN_ON
    from tachograph.catalog import config

    settings = config.load(arguments.config) if arguments.config else config.Configuration()
    narrator = Narrator.of(arguments)
    if arguments.seed == CHOSEN_ON:
        narrator.say(f"the built-in thresholds were chosen on seed {CHOSEN_ON}: use another seed")
    with _folder(arguments.keep) as folder:
        scores, judged, ambiguous = _measured(arguments, folder, settings, narrator)
    if arguments.json:
        output.print_json(_as_json(arguments, scores, judged, ambiguous))
    else:
        _show(arguments, scores, judged, ambiguous)
    return 0


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    import tempfile

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="tachograph-accuracy-") as temporary:
            yield Path(temporary)
        return
    folder = Path(keep)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("not an empty folder", where=keep, do="name a new folder with --keep")
    yield folder


def _measured(
    arguments: Arguments, folder: Path, settings: Configuration, narrator: Narrator
) -> tuple[Sequence[ClassAccuracy], int, int]:
    """Return accuracies, judged jobs, and jobs whose GPUs are not recorded."""
    import polars as pl

    from tachograph.annexes.lab.accuracy import COUNTER_SETS, accuracies, with_keys
    from tachograph.annexes.lab.commands.classify import classified
    from tachograph.annexes.lab.simulate.plan import SimulationPlan
    from tachograph.annexes.lab.simulate.truth import CLASSES_FILE
    from tachograph.lake.query import read_summaries

    plan = SimulationPlan.judging(arguments.jobs, seed=arguments.seed)
    recorded = COUNTER_SETS[arguments.counters]
    if recorded is not None:
        plan = replace(plan, counters=recorded)
    with narrator.steps() as progress:
        lake, configuration = _analyzed(plan, folder, settings, progress)
        jobs = read_summaries(lake)
        verdicts = classified(lake, jobs, configuration, progress)
    truth = with_keys(pl.read_parquet(folder / "cluster" / "truth" / CLASSES_FILE), jobs)
    of_known_gpus = truth.filter(pl.col("known"))
    return (
        accuracies(of_known_gpus, verdicts),
        of_known_gpus.height,
        truth.height - of_known_gpus.height,
    )


def _analyzed(
    plan: SimulationPlan,
    folder: Path,
    settings: Configuration,
    progress: Callable[[str, int, int], None],
) -> tuple[Lake, Configuration]:
    """The simulated jobs in a lake, analyzed, and the configuration of the simulated site."""
    import msgspec

    from tachograph.annexes.lab.fill import fill
    from tachograph.catalog import config
    from tachograph.judge.job_judge import JobJudge
    from tachograph.lake.delta import Lake
    from tachograph.pipeline.run import analyze

    cluster, location = folder / "cluster", str(folder / "lake")
    fill(plan, location, cluster, lambda done, total: progress("simulate", done, total))
    site = config.load(str(cluster / "tachograph.toml"), {})
    lake = Lake.open(location)
    configuration = msgspec.structs.replace(site, classes=settings.classes)
    analyze(lake, configuration, judge=JobJudge, now=plan.end, progress=progress)
    return lake, configuration


def _as_json(
    arguments: Arguments, scores: Sequence[ClassAccuracy], judged: int, ambiguous: int
) -> dict[str, Any]:
    from tachograph.annexes.lab.accuracy import CHOSEN_ON

    return {
        "jobs": arguments.jobs,
        "seed": arguments.seed,
        "counters": arguments.counters,
        "chosen_on_seed": CHOSEN_ON,
        "configuration": arguments.config,
        "judged": judged,
        "ambiguous": ambiguous,
        "classes": [
            {
                "class": accuracy.code,
                **score_json(accuracy.score),
                "too_near": accuracy.too_near,
                "published": accuracy.published,
            }
            for accuracy in scores
        ],
    }


def score_json(score: VerdictScore) -> dict[str, Any]:
    """Return a score for JSON: counts, accuracy of the decided verdicts, its interval."""
    from dataclasses import asdict

    return {
        "jobs": score.jobs,
        "positives": score.positives,
        "accuracy": score.accuracy,
        "accuracy_interval": score.interval,
        **asdict(score),
        "false_positive_rate": score.false_positive_rate,
    }


def percent(share: float | None) -> str | None:
    """Format a share with two decimals, where accuracies differ.

    >>> percent(0.9962)
    '99.62 %'
    """
    return None if share is None else f"{100 * share:.2f} %"


def interval(score: VerdictScore) -> str | None:
    """Return the interval of the accuracy as text."""
    if score.interval is None:
        return None
    low, high = score.interval
    return f"{100 * low:.2f} to {100 * high:.2f} %"


def _show(
    arguments: Arguments, scores: Sequence[ClassAccuracy], judged: int, ambiguous: int
) -> None:
    from tachograph.annexes.lab.accuracy import CHOSEN_ON

    thresholds = (
        f"those of {arguments.config}"
        if arguments.config
        else f"built in, chosen on seed {CHOSEN_ON}"
    )
    telemetry = "telemetry with defects"
    if arguments.counters != "all":
        telemetry = f"counters {arguments.counters}, {telemetry}"
    output.print_text(
        f"{arguments.jobs:,} simulated jobs, seed {arguments.seed}, {telemetry}; "
        f"{judged:,} judged, "
        f"{ambiguous:,} left out because their GPUs are not recorded.\nThresholds: "
        f"{thresholds}.\n\n"
    )
    headings = [
        "class",
        ">jobs",
        ">positives",
        ">accuracy",
        ">95 % interval",
        ">false positives",
        ">false negatives",
        ">unknown",
        ">published (jobs, false positives)",
    ]
    output.print_table(
        headings, [_cells(accuracy) for accuracy in scores], no_color=arguments.no_color
    )
    output.print_text("\n")
    headings = ["class", *CONFUSION_HEADINGS, ">too near to call"]
    rows = [
        [accuracy.code, *confusion_cells(accuracy.score), f"{accuracy.too_near:,}"]
        for accuracy in scores
    ]
    output.print_table(headings, rows, no_color=arguments.no_color)


def _cells(accuracy: ClassAccuracy) -> list[str | None]:
    score, paper = accuracy.score, accuracy.published
    published = (
        None
        if paper is None
        else f"{100 * paper.accuracy:.1f} % ({paper.jobs}, {paper.false_positives})"
    )
    counts = (score.false_positives, score.false_negatives, score.unknown)
    return [
        accuracy.code,
        f"{score.jobs:,}",
        f"{score.positives:,}",
        percent(score.accuracy),
        interval(score),
        *(f"{count:,}" for count in counts),
        published,
    ]


def confusion_cells(score: VerdictScore) -> list[str]:
    """Return counts as text: verdicts yes, no, unknown on jobs of the class, then on others."""
    counts = (
        score.true_positives,
        score.false_negatives,
        score.unknown_positives,
        score.false_positives,
        score.true_negatives,
        score.unknown_negatives,
    )
    return [f"{count:,}" for count in counts]
