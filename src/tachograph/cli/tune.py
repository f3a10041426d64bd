"""`tachograph tune`: thresholds of the job classes for this site, from labelled jobs or from recorded minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.units import plural
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from tachograph.catalog.config import ClassOptions
    from tachograph.cli.options import OpenedLake
    from tachograph.judge.tune.labels import Labelled
    from tachograph.judge.tune.population import Population
    from tachograph.judge.tune.propose import ThresholdProposal
    from tachograph.judge.tune.search import Tuned

LATEST = 4000  # jobs that thresholds are proposed from


def add_arguments(parser: Parser) -> None:
    """Declare labels, bound, split, and output file."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("labels", nargs="?", metavar="LABELS.csv", help="job_id, class, label (yes or no), cluster")
    what.add_argument(
        "--truth", metavar="DIR", help="folder of a simulated cluster whose jobs are in the lake, instead of labels"
    )
    what.add_argument(
        "--lake-labels",
        action="store_true",
        help="findings that were confirmed or rejected on pages, instead of a file",
    )
    what.add_argument("--propose", action="store_true", help="propose thresholds from jobs without labels")
    parser.add_argument(
        "--max-false-positives",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="largest false-positive rate of a class (default 0.01)",
    )
    parser.add_argument(
        "--split", default="user", metavar="HOW", help="test set: other users (user) or later jobs (time)"
    )
    parser.add_argument("--length", action="store_true", help="also search T, the minimum length of a hang")
    parser.add_argument(
        "--jobs", type=int, default=LATEST, metavar="N", help=f"with --propose: the latest N jobs (default {LATEST})"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the settings as a configuration")
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Search or propose; print the scores or the proposals; write the configuration."""
    from tachograph.cli.options import open_lake

    if not (arguments.labels or arguments.truth or arguments.lake_labels or arguments.propose):
        raise UsageError("no labels", do="name a CSV file of labels, or give --lake-labels, --truth DIR or --propose")
    if arguments.output:
        from tachograph.judge.tune.configuration import check_target

        check_target(arguments.output)  # before the long search
    opened = open_lake(arguments)
    if arguments.propose:
        return _propose(arguments, opened)
    return _tune(arguments, opened)


def _tune(arguments: Arguments, opened: OpenedLake) -> int:
    from tachograph.judge.tune.search import tune

    narrator = Narrator.of(arguments)
    origin = str(arguments.labels or arguments.truth or opened.lake.location)
    jobs, labelled = _labels(arguments, opened, origin)
    population = _population(opened, jobs)
    with narrator.steps() as progress:
        tuned = tune(
            population,
            labelled.of,
            opened.configuration.classes,
            split=arguments.split,
            max_false_positives=arguments.max_false_positives,
            tune_length=arguments.length,
            progress=lambda done, total: progress("tune", done, total),
        )
    for code, why in tuned.not_tuned.items():
        narrate.remark(f"{code} stays as it is: too few labels ({why})")
    _write(arguments, tuned.settings, list(_comments(tuned, origin)))
    if arguments.json:
        output.print_json(_tuned_json(tuned, labelled, origin))
    else:
        _show_tuned(tuned, arguments)
    return 0


def _labels(arguments: Arguments, opened: OpenedLake, origin: str) -> tuple[pl.DataFrame, Labelled]:
    """The labelled jobs in order of start, and their labels."""
    import polars as pl

    from tachograph.judge.job_classes import CLASS_CODES
    from tachograph.judge.tune.labels import labels_of_lake, match, read_labels, reasons
    from tachograph.lake.labels import read_labels as read_labels_of_lake
    from tachograph.lake.query import read_summaries

    summaries = read_summaries(opened.lake)
    if arguments.truth:
        labelled = _truth(arguments.truth, summaries)
    elif arguments.lake_labels:
        labelled = labels_of_lake(read_labels_of_lake(opened.lake), CLASS_CODES, summaries)
    else:
        labelled = match(*read_labels(arguments.labels, CLASS_CODES), summaries)
    for line in reasons(labelled.refused, origin):
        narrate.remark(line)
    keys = {key for labels in labelled.of.values() for key in labels}
    known = pl.col("job_key").is_in(list(keys)) & (pl.col("attribution") != "ambiguous")
    jobs = summaries.filter(known).sort("start", "job_key")
    if jobs.is_empty():
        raise InputError("no labelled job has stored minutes", where=origin, do="label jobs of this lake")
    return jobs, labelled


def _truth(folder: str, summaries: pl.DataFrame) -> Labelled:
    from pathlib import Path

    import polars as pl

    from tachograph.judge.accuracy import labels_of, with_keys
    from tachograph.judge.tune.labels import Labelled
    from tachograph.simulate.truth import CLASSES_FILE

    file = Path(folder) / "truth" / CLASSES_FILE
    if not file.is_file():
        raise InputError(
            "no ground truth of job classes",
            where=folder,
            do="name DIR/cluster of `tachograph accuracy --keep DIR`",
        )
    return Labelled(labels_of(with_keys(pl.read_parquet(file), summaries)))


def _population(opened: OpenedLake, jobs: pl.DataFrame) -> Population:
    from tachograph.judge.tune.population import Population
    from tachograph.pipeline.minutes import read_stored

    configuration = opened.configuration
    stored = read_stored(opened.lake, jobs, idle_util=configuration.thresholds.idle_util)
    return Population(jobs, *stored, window_minutes=configuration.classes.window_minutes)


def _propose(arguments: Arguments, opened: OpenedLake) -> int:
    import polars as pl

    from tachograph.judge.tune.propose import propose, settings
    from tachograph.lake.query import read_summaries

    if arguments.jobs < 1:
        raise UsageError(f"invalid --jobs {arguments.jobs}", do="give 1 or more")
    known = read_summaries(opened.lake).filter((pl.col("attribution") != "ambiguous") & (pl.col("samples") > 0))
    jobs = known.sort("start", "job_key").tail(min(arguments.jobs, known.height))
    population = _population(opened, jobs)
    proposals = propose(population)
    proposed = settings(proposals, opened.configuration.classes)
    comment = (
        f"Proposed by `tachograph tune --propose` from {plural(jobs.height, 'job')}, "
        f"{population.minutes:,} minutes, without labels."
    )
    _write(arguments, proposed, [comment])
    if arguments.json:
        rows = {"jobs": jobs.height, "minutes": population.minutes, "proposals": proposals, "settings": proposed}
        output.print_json(rows)
    else:
        _show_proposals(proposals, arguments, jobs.height, population.minutes)
    return 0


def _write(arguments: Arguments, settings: ClassOptions, comments: list[str]) -> None:
    from tachograph.judge.tune.configuration import to_toml, write

    if arguments.output:
        write(arguments.output, to_toml(settings, comments))


def _comments(tuned: Tuned, origin: str) -> Iterator[str]:
    yield f"Chosen by `tachograph tune` from {origin}: searched on {plural(tuned.jobs[0], 'job')}, measured on"
    yield (
        f"{plural(tuned.jobs[1], 'job')} (split by {tuned.split}), false-positive rate at most "
        f"{tuned.max_false_positives:g}."
    )
    for code, sides in tuned.after.items():
        score = sides.test
        share = "no verdict decided" if score.accuracy is None else f"accuracy {100 * score.accuracy:.2f} %"
        wrong = f"{score.false_positives} false positives, {score.false_negatives} false negatives"
        yield f"{code}: {share} on {score.jobs} jobs, {wrong}"


def _tuned_json(tuned: Tuned, labelled: Labelled, origin: str) -> dict[str, Any]:
    from tachograph.cli.accuracy import score_json

    return {
        "labels": origin,
        "not_used": labelled.refused,
        "not_tuned": tuned.not_tuned,
        "split": tuned.split,
        "max_false_positives": tuned.max_false_positives,
        "jobs": {"train": tuned.jobs[0], "test": tuned.jobs[1]},
        "users": {"train": tuned.users[0], "test": tuned.users[1], "on_both": tuned.users_on_both},
        "minutes": tuned.minutes,
        "classes": {
            code: {
                side: {
                    "built_in": score_json(getattr(tuned.before[code], side)),
                    "tuned": score_json(getattr(after, side)),
                }
                for side in ("train", "test")
            }
            for code, after in tuned.after.items()
        },
        "settings": tuned.settings,
    }


def _show_tuned(tuned: Tuned, arguments: Arguments) -> None:
    from tachograph.cli.accuracy import interval, percent

    output.print_text(
        f"Searched on {plural(tuned.jobs[0], 'job')} of {plural(tuned.users[0], 'user')}, measured on "
        f"{plural(tuned.jobs[1], 'job')} of {plural(tuned.users[1], 'user')}, {tuned.users_on_both} on both.\n\n"
    )
    headings = (
        *("class", "on", "settings", ">jobs", ">positives: yes", ">no", ">unknown", ">negatives: yes", ">no"),
        *(">unknown", ">accuracy", ">95 % interval"),
    )
    rows: list[list[str | None]] = []
    for code in tuned.after:
        for side in ("train", "test"):
            for name, sides in (("built in", tuned.before[code]), ("tuned", tuned.after[code])):
                score = getattr(sides, side)
                of_class = (score.true_positives, score.false_negatives, score.undecided_positives)
                others = (score.false_positives, score.true_negatives, score.undecided_negatives)
                cells = [
                    *(f"{count:,}" for count in (score.jobs, *of_class, *others)),
                    percent(score.accuracy),
                    interval(score),
                ]
                rows.append([code, side, name, *cells])
    output.print_table(headings, rows, no_color=arguments.no_color)
    changed = list(_changes(tuned.built_in, tuned.settings))
    output.print_text("\nChanged settings" + (":\n" if changed else ": none\n"))
    output.print_text("".join(f"  {line}\n" for line in changed))
    _print_target(arguments)


def _changes(before: ClassOptions, after: ClassOptions) -> Iterator[str]:
    if before.hang_minutes != after.hang_minutes:
        yield f"classes.hang_minutes {before.hang_minutes:g} -> {after.hang_minutes:g}"
    for key in ("theta", "level", "busy"):
        now = getattr(after, key)
        for name, value in getattr(before, key).items():
            if name in now and now[name] != value:
                yield f"classes.{key}.{name} {value:g} -> {now[name]:g}"
    for code, names in before.characteristics.items():
        chosen = after.characteristics[code]
        if set(chosen) != set(names):
            yield f"classes.characteristics.{code} {', '.join(names)} -> {', '.join(chosen)}"


def _show_proposals(proposals: Sequence[ThresholdProposal], arguments: Arguments, jobs: int, minutes: int) -> None:
    output.print_text(f"From {plural(jobs, 'job')} with {minutes:,} minutes, without labels.\n\n")
    headings = (
        *("key", ">built in", ">proposed", ">idle", ">busy", ">idle minutes", ">busy minutes", ">jobs"),
        "why not proposed",
    )
    rows = [
        [
            f"classes.{each.key}.{each.name}",
            *(None if value is None else f"{value:.3g}" for value in (each.built_in, each.value, each.rest, each.work)),
            *(f"{count:,}" if count else None for count in (each.rest_minutes, each.work_minutes, each.jobs)),
            each.why,
        ]
        for each in proposals
    ]
    output.print_table(headings, rows, no_color=arguments.no_color)
    _print_target(arguments)


def _print_target(arguments: Arguments) -> None:
    if arguments.output:
        output.print_text(f"\nWritten to {arguments.output}.\n")
    else:
        output.print_text("\nNot written; name a file with -o.\n")
