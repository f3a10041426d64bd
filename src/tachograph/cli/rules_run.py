"""`tachograph rules run` and `rules backtest`: rules over stored jobs. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from tachograph.cli import output
from tachograph.cli.filters import wanted
from tachograph.cli.open import Opened, open_lake
from tachograph.cli.options import Arguments
from tachograph.cli.rules import ruleset_of, tell_left_out
from tachograph.errors import InputError, UsageError
from tachograph.rules.ruleset import RuleSet
from tachograph.units import text

_LIMIT = 40  # rows of a printed table
_BATCH = 10_000  # jobs whose GPUs are in memory at a time


def run_rules(arguments: Arguments) -> int:
    """Judge the chosen jobs by the chosen rules; print those that hold, and how many jobs have which verdict."""
    from tachograph.rules.judge import judge

    opened = open_lake(arguments)
    ruleset = ruleset_of(arguments, opened.configuration)
    ruleset = _changed(ruleset.only(arguments.rules) if arguments.rules else ruleset, arguments.changed)
    jobs = _jobs(arguments, opened)
    parts = [judge(*tables, ruleset) for tables in _batches(opened, jobs, ruleset)]
    names = jobs.select("job_key", "display_id", "user", "gpu_hours")
    found = pl.concat(parts).join(names, on="job_key", how="left", maintain_order="left")
    if arguments.show or not arguments.json:
        found = found.filter(pl.col("verdict") == (arguments.show or "yes"))
    counted = pl.concat(parts).group_by("code", "verdict", maintain_order=True).agg(jobs=pl.len())
    if arguments.json:
        from tachograph.rules.shown import verdict_json

        output.print_json({"verdicts": list(map(verdict_json, found.iter_rows(named=True))),
                           "counts": counted.to_dicts(), "problems": list(map(str, ruleset.problems))})  # fmt: skip
        return 0
    _show_verdicts(found, arguments)
    _show_counts(counted, [entry.code for entry in ruleset.entries], arguments)
    tell_left_out(ruleset)
    return 0


def _show_verdicts(found: pl.DataFrame, arguments: Arguments) -> None:
    if found.is_empty():
        output.print_text(f"No job with the verdict {arguments.show or 'yes'}.\n")
        return
    headings = [output.Heading("job"), output.Heading("rule"), output.Heading("GPU-h", right=True)]
    rows = [
        [row["display_id"] or row["job_id"], row["code"], text(row["gpu_hours"], "h"), row["sentence"]]
        for row in found.head(_LIMIT).iter_rows(named=True)
    ]
    output.print_table([*headings, output.Heading("what")], rows, no_color=arguments.no_color)
    if found.height > _LIMIT:
        output.print_text(f"... and {found.height - _LIMIT} more: see --json\n")


def _show_counts(counted: pl.DataFrame, codes: Sequence[str], arguments: Arguments) -> None:
    numbers = {(code, verdict): jobs for code, verdict, jobs in counted.iter_rows()}
    verdicts = ("yes", "no", "insufficient")
    headings = [output.Heading("rule"), *(output.Heading(verdict, right=True) for verdict in verdicts)]
    rows = [[code, *(str(numbers.get((code, verdict), 0)) for verdict in verdicts)] for code in codes]
    output.print_table(headings, rows, title="Jobs by verdict", no_color=arguments.no_color)


def backtest(arguments: Arguments) -> int:
    """Judge the chosen jobs by a rule as it is and as it would be; print what changes."""
    from tachograph.rules.backtest import compare

    opened = open_lake(arguments)
    before = ruleset_of(arguments, opened.configuration).only([arguments.rule])
    after = _changed(_replaced(before, arguments.file), arguments.changed)
    if after == before:
        raise UsageError("nothing changes", do="give --set PARAMETER=VALUE with another value, or --file FILE")
    jobs = _jobs(arguments, opened)
    labels = _labels(arguments.labels, before, jobs)
    compared = pl.concat([compare(*tables, before, after) for tables in _batches(opened, jobs, before, after)])
    compared = compared.join(jobs.select("job_key", "job_id", "display_id", "user"), on="job_key", how="left",
                             maintain_order="left")  # fmt: skip
    _show_backtest(compared, labels, arguments)
    return 0


def _show_backtest(compared: pl.DataFrame, labels: Mapping[str, Mapping[str, bool]], arguments: Arguments) -> None:
    from tachograph.rules.backtest import changes, counts

    changed, counted, agreed = changes(compared), counts(compared), list(_agreements(compared, labels))
    if arguments.json:
        output.print_json({"changes": changed.to_dicts(), "counts": counted.to_dicts(), "labels": agreed})
        return
    headings = [output.Heading("job"), output.Heading("rule"), output.Heading("GPU-h", right=True)]
    rows = [
        [row["display_id"] or row["job_id"], row["code"], text(row["gpu_hours"], "h"),
         row["before"], row["after"], row["sentence_after"]]
        for row in changed.head(_LIMIT).iter_rows(named=True)
    ]  # fmt: skip
    headings += [output.Heading(name) for name in ("before", "after", "what it says then")]
    output.print_table(headings, rows, title="Jobs whose verdict changes", no_color=arguments.no_color)
    if changed.height > _LIMIT:
        output.print_text(f"... and {changed.height - _LIMIT} more: see --json\n")
    headings = [output.Heading(name) for name in ("rule", "before", "after")]
    rows = [[row["code"], row["before"], row["after"], str(row["jobs"]), text(row["gpu_hours"], "h")]
            for row in counted.iter_rows(named=True)]  # fmt: skip
    headings += [output.Heading(name, right=True) for name in ("jobs", "GPU-h")]
    output.print_table(headings, rows, title="Jobs by verdict", no_color=arguments.no_color)
    for one in agreed:
        share = text(one["accuracy"], "fraction")
        output.print_text(
            f"{one['code']} {one['when']}: {share} of the decided labels right; wrong yes {one['wrong_yes']}, "
            f"wrong no {one['wrong_no']}, undecided {one['undecided']}\n"
        )


def _agreements(compared: pl.DataFrame, labels: Mapping[str, Mapping[str, bool]]) -> Iterator[dict[str, Any]]:
    """How verdicts agree with labels, before and after."""
    from dataclasses import asdict

    from tachograph.rules.backtest import agreement

    for code, said in labels.items():
        mine = compared.filter(pl.col("code") == code)
        for when in ("before", "after"):
            found = agreement(dict(mine.select("job_key", when).iter_rows()), said)
            yield {"code": code, "when": when, **asdict(found), "accuracy": found.accuracy}


def _labels(file: str | None, ruleset: RuleSet, jobs: pl.DataFrame) -> Mapping[str, Mapping[str, bool]]:
    """{code: {job_key: whether it is so}}; lines that are not used are told."""
    if file is None:
        return {}
    from tachograph.cli import narrate
    from tachograph.tune.labels import match, read_labels, reasons

    labels, refused = read_labels(file, [entry.code for entry in ruleset.entries])
    labelled = match(labels, refused, jobs)
    for line in reasons(labelled.refused, file):
        narrate.remark(line)
    return labelled.of


def _replaced(before: RuleSet, file: str | None) -> RuleSet:
    """The rules as they stand in a file.

    Errors: InputError where it is broken or holds none of them.
    """
    if file is None:
        return before
    from dataclasses import replace
    from pathlib import Path

    from tachograph.rules.ruleset import read_changed

    entries, problems = read_changed(Path(file), before.entries)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise InputError(str(errors[0]), do="mend it; `tachograph rules check` shows all mistakes")
    if not entries:
        names = ", ".join(entry.code for entry in before.entries)
        raise InputError(f"holds no rule called {names}", where=file, do="give the rule the same tag or id")
    return replace(before, entries=entries)


def _changed(ruleset: RuleSet, given: Sequence[str]) -> RuleSet:
    """The rules with other values.

    Errors: UsageError for what is no number or becomes negative, and for a parameter that none of them has.
    """
    from dataclasses import replace

    entries = list(ruleset.entries)
    for words in given:
        name, value = _setting(words)
        rule, _, parameter = name.rpartition(".")
        places = [
            place
            for place, entry in enumerate(entries)
            if parameter in entry.values and (not rule or entry.is_called(rule))
        ]
        if not places:
            if rule and not any(entry.is_called(rule) for entry in entries):
                names = ", ".join(entry.code for entry in entries)
                raise UsageError(f"--set {words}: {rule!r} is not among the rules", do=f"these are: {names}")
            known = sorted({name for entry in entries for name in entry.values if not rule or entry.is_called(rule)})
            raise UsageError(f"--set {words}: no such parameter", do=f"there are: {', '.join(known) or 'none'}")
        for place in places:
            if value < 0 <= entries[place].values[parameter]:
                raise UsageError(f"--set {words}: less than 0", do=f"{parameter} is a number from 0 on")
            entries[place] = entries[place].with_values({parameter: value})
    return replace(ruleset, entries=tuple(entries))


def _setting(words: str) -> tuple[str, float]:
    from math import isfinite

    name, equals, value = words.partition("=")
    try:
        number = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        number = float("nan")
    if not equals or not name.strip() or not isfinite(number):
        raise UsageError(f"--set {words}: no number is given", do="write PARAMETER=VALUE, such as low_activity=0.2")
    return name.strip(), number


def _jobs(arguments: Arguments, opened: Opened) -> pl.DataFrame:
    """Summaries of the jobs that the filters choose, in order of their start."""
    from tachograph.analyze.results import of_one_moment, read_summaries, read_verdicts
    from tachograph.report.filters import filter_jobs

    which = wanted(arguments, opened)

    def read() -> tuple[pl.DataFrame, pl.DataFrame]:
        summaries = read_summaries(opened.lake)
        return summaries, read_verdicts(opened.lake, summaries if which.findings else summaries.clear())

    summaries, findings = of_one_moment(opened.lake, read)
    return filter_jobs(summaries, findings, which).sort("start", "job_key")


def _batches(
    opened: Opened, jobs: pl.DataFrame, *rulesets: RuleSet
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]]:
    """Jobs with their GPUs and minutes of nodes, some at a time; minutes are read where a rule names host metrics."""
    from tachograph.analyze.results import read_gpus
    from tachograph.analyze.stored import read_nodes
    from tachograph.rules.metrics import OF_HOSTS
    from tachograph.summarize.schema import JOB_NODE_MINUTES

    hosts = any(not OF_HOSTS.isdisjoint(ruleset.metrics) for ruleset in rulesets)
    for first in range(0, max(1, jobs.height), _BATCH):
        some = jobs.slice(first, _BATCH)
        nodes = read_nodes(opened.lake, some) if hosts else JOB_NODE_MINUTES.empty()
        yield some, read_gpus(opened.lake, some), nodes
