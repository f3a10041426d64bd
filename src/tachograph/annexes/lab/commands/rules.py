"""`tachograph lab rules`: lists, checks, runs, back-tests and imports rules; read-only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.units import column_texts, plural, printable
from tachograph.cli import narrate, output
from tachograph.cli.options import (
    Arguments,
    OpenedLake,
    Parser,
    actions_of,
    add_filters,
    configuration_of,
    job_filter,
    open_lake,
)

if TYPE_CHECKING:
    import polars as pl

    from tachograph.catalog.config import Configuration
    from tachograph.catalog.rows import FindingRow
    from tachograph.judge.rules.clustercockpit import Translated
    from tachograph.judge.rules.ruleset import RuleSet
    from tachograph.lake.delta import Lake
    from tachograph.lake.filters import JobFilter

BATCH = 10_000  # jobs whose GPUs are in memory at a time
_LIMIT = 40  # rows of a printed table
_WHOSE = ("display_id", "user", "account")
_PARAMETERS = "parameters.json"  # of ClusterCockpit


def add_arguments(parser: Parser) -> None:
    """Declare the actions, each with its own options."""
    action = actions_of(parser)
    action("list", "list the rules in use with parameters and needed counters", _of_list)
    action("check", "validate files of rules", _of_check)
    action("run", "judge stored jobs by rules; no stored verdict changes", _of_run)
    action("backtest", "list the jobs whose verdict changes with a parameter or rule", _of_backtest)
    action("import-clustercockpit", "translate job classes of ClusterCockpit", _of_import)


def _of_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", nargs="*", metavar="RULE", help="only these rules")
    _add_folder(parser)


def _of_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="files or folders of rules")


def _of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", nargs="*", metavar="RULE", help="only these rules")
    add_filters(parser)
    _add_folder(parser)
    _add_set(parser)
    parser.add_argument(
        "--show", choices=("yes", "no", "unknown"), help="jobs with this verdict (default: yes)"
    )


def _of_backtest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", metavar="RULE", help="a rule, or the tag of several")
    add_filters(parser)
    _add_folder(parser)
    _add_set(parser)


def _of_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", help="folder of job classes, with their parameters.json"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write the rules into this folder")
    parser.add_argument("--cluster", metavar="FILE", help="cluster.json with the limits of metrics")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", metavar="DIR", help="folder of the site's rules (default: rules.folder)"
    )


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changed",
        metavar="PARAMETER=VALUE",
        help="override a parameter, also RULE.PARAMETER=VALUE; repeatable",
    )


def run(arguments: Arguments) -> int:
    """Run the action."""
    actions: dict[str, Callable[[Arguments], int]] = {
        "list": _list,
        "check": _check_rules,
        "run": _run,
        "backtest": _backtest,
        "import-clustercockpit": _import_classes,
    }
    return actions[arguments.action](arguments)


def _list(arguments: Arguments) -> int:
    from tachograph.judge.rules.listing import rules_json

    ruleset = _ruleset_of(arguments, configuration_of(arguments))
    selected = ruleset.only(arguments.rules) if arguments.rules else ruleset
    if arguments.json:
        output.print_json(rules_json(selected))
    else:
        _show_rules(selected, arguments)
    return 0


def _show_rules(ruleset: RuleSet, arguments: Arguments) -> None:
    from tachograph.judge.rules.listing import parameter_text

    headings = ("rule", "name", "level", "severity", "parameter", "value", "counters")
    rows = []
    for entry in (*ruleset.entries, *ruleset.disabled):
        state = "off" if entry in ruleset.disabled else entry.severity
        first = [entry.code, entry.rule.name, entry.rule.level, state]
        lines = [parameter_text(entry, name) for name in entry.values] or [("", "")]
        needs = ", ".join(entry.counters)
        for index, (name, value) in enumerate(lines):
            rows.append([*(first if not index else [""] * 4), name, value, "" if index else needs])
    output.print_table(headings, rows, no_color=arguments.no_color)
    _remark_skipped(ruleset)


def _remark_skipped(ruleset: RuleSet) -> None:
    """Report the rules that were skipped, and why."""

    for problem in ruleset.errors:
        narrate.remark(f"rule skipped: {problem}")


def _check_rules(arguments: Arguments) -> int:
    from tachograph.judge.judge import RESERVED
    from tachograph.judge.rules.listing import rules_json
    from tachograph.judge.rules.ruleset import read_files

    ruleset = read_files(map(Path, arguments.files), reserved=RESERVED)
    if arguments.json:
        output.print_json(rules_json(ruleset))
    else:
        for problem in ruleset.problems:
            output.print_text(f"{printable(str(problem))}\n")
        for entry in ruleset.entries:
            needs = ", ".join(entry.counters) or "none"
            output.print_text(
                f"{entry.rule.file}: {entry.code} valid; level: {entry.rule.level}; counters: "
                f"{needs}\n"
            )
    if not ruleset.entries and not ruleset.problems:
        raise InputError(
            "no rules found",
            where=", ".join(arguments.files),
            do="name files of rules, or their folder",
        )
    return InputError.exit_code if ruleset.errors else 0


def _ruleset_of(arguments: Arguments, configuration: Configuration) -> RuleSet:
    """The rules in use; `--folder` replaces the folder of the configuration."""
    import msgspec

    from tachograph.judge.judge import rules_in_use

    if arguments.folder is not None:
        rules = msgspec.structs.replace(configuration.rules, folder=arguments.folder)
        configuration = msgspec.structs.replace(configuration, rules=rules)
    return rules_in_use(configuration)


def _run(arguments: Arguments) -> int:
    """Judge the chosen jobs by the chosen rules; print findings and the number of jobs by
    verdict.
    """
    import polars as pl

    from tachograph.judge.rules.ruleset import with_settings
    from tachograph.judge.rules.verdicts import judge_rules

    opened = open_lake(arguments)
    ruleset = _ruleset_of(arguments, opened.configuration)
    ruleset = with_settings(
        ruleset.only(arguments.rules) if arguments.rules else ruleset, arguments.changed
    )
    which = job_filter(arguments, opened)
    jobs = _jobs(opened, which)
    if jobs.is_empty() and not arguments.json:
        from tachograph.cli.no_match import no_match_lines

        lines = no_match_lines(opened, which)
        output.print_text("".join(f"{line}\n" for line in lines))
        return 0
    parts = [judge_rules(*tables, ruleset) for tables in _batches(opened.lake, jobs, ruleset)]
    names = jobs.select("job_key", *_WHOSE, "gpu_hours")
    verdicts = pl.concat(parts).join(names, on="job_key", how="left", maintain_order="left")
    if arguments.show or not arguments.json:
        verdicts = verdicts.filter(pl.col("verdict") == (arguments.show or "yes"))
    counted = pl.concat(parts).group_by("code", "verdict", maintain_order=True).agg(jobs=pl.len())
    if arguments.json:
        from tachograph.judge.rules.listing import verdict_json

        rows = cast("list[FindingRow]", verdicts.to_dicts())
        output.print_json({"verdicts": list(map(verdict_json, rows)),
                           "counts": counted.to_dicts(), "problems": list(map(str, ruleset.problems))})  # fmt: skip
        return 0
    _show_verdicts(verdicts, arguments)
    _show_counts(counted, [entry.code for entry in ruleset.entries], arguments)
    _remark_skipped(ruleset)
    return 0


def _show_verdicts(verdicts: pl.DataFrame, arguments: Arguments) -> None:
    if verdicts.is_empty():
        verdict = arguments.show or "yes"
        output.print_text(f"No job with verdict {verdict}; `--show` lists another verdict.\n")
        return
    _print_jobs(verdicts, ("sentence",), ("finding",), arguments)


def _print_jobs(
    rows: pl.DataFrame,
    columns: Sequence[str],
    headings: Sequence[str],
    arguments: Arguments,
    *,
    title: str = "",
) -> None:
    """Print jobs with their users and the rule; on a terminal the first of them."""
    shown = rows.head(_LIMIT) if output.is_shown() else rows
    _, hours = column_texts(shown.get_column("gpu_hours").to_list(), "h")
    cells = []
    for row, gpu_hours in zip(shown.iter_rows(named=True), hours, strict=True):
        others = [row[name] for name in columns]
        job = row["display_id"] or row["job_id"]
        cells.append([job, row["user"], row["account"], row["code"], gpu_hours, *others])
    output.print_table(
        ("job", "user", "account", "rule", ">GPU-h", *headings),
        cells,
        title=title,
        no_color=arguments.no_color,
    )
    if rows.height > shown.height:
        output.print_text(f"... and {rows.height - shown.height} more: see --json\n")


def _show_counts(counted: pl.DataFrame, codes: Sequence[str], arguments: Arguments) -> None:
    from tachograph.judge.finding import VERDICTS

    numbers = {(code, verdict): jobs for code, verdict, jobs in counted.iter_rows()}
    rows = []
    for code in codes:
        jobs_by_verdict = [str(numbers.get((code, verdict), 0)) for verdict in VERDICTS]
        rows.append([code, *jobs_by_verdict])
    output.print_text("\n")
    output.print_table(
        ["rule", *(f">{verdict}" for verdict in VERDICTS)],
        rows,
        title="Jobs by verdict",
        no_color=arguments.no_color,
    )


def _backtest(arguments: Arguments) -> int:
    """Judge the chosen jobs by a rule before and after a change; print the differences."""
    import polars as pl

    from tachograph.judge.rules.ruleset import with_settings
    from tachograph.judge.rules.verdicts import compare

    opened = open_lake(arguments)
    before = _ruleset_of(arguments, opened.configuration).only([arguments.rule])
    after = with_settings(before, arguments.changed)
    if after == before:
        raise UsageError(
            "the rule is unchanged",
            do="give --set PARAMETER=VALUE with another value",
        )
    jobs = _jobs(opened, job_filter(arguments, opened))
    compared = pl.concat(
        [compare(*tables, before, after) for tables in _batches(opened.lake, jobs, before, after)]
    )
    names = jobs.select("job_key", "job_id", *_WHOSE)
    compared = compared.join(names, on="job_key", how="left", maintain_order="left")
    _show_backtest(compared, arguments)
    return 0


def _show_backtest(compared: pl.DataFrame, arguments: Arguments) -> None:
    from tachograph.judge.rules.verdicts import changes, counts

    changed, counted = changes(compared), counts(compared)
    if arguments.json:
        output.print_json({"changes": changed.to_dicts(), "counts": counted.to_dicts()})
        return
    columns, headings = ("before", "after", "sentence_after"), ("before", "after", "finding after")
    _print_jobs(changed, columns, headings, arguments, title="Jobs whose verdict changes")
    _, hours = column_texts(counted.get_column("gpu_hours").to_list(), "h")
    rows = [[row["code"], row["before"], row["after"], str(row["jobs"]), held]
            for row, held in zip(counted.iter_rows(named=True), hours, strict=True)]  # fmt: skip
    output.print_text("\n")
    output.print_table(
        ("rule", "before", "after", ">jobs", ">GPU-h"),
        rows,
        title="Jobs by verdict",
        no_color=arguments.no_color,
    )


def _batches(
    lake: Lake, jobs: pl.DataFrame, *rulesets: RuleSet
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]]:
    """Yield jobs with their GPUs, and with node minutes if a rule names host metrics."""
    from tachograph.catalog.tables import JOB_NODE_MINUTES
    from tachograph.judge.rules.metrics import OF_HOSTS
    from tachograph.lake.query import read_gpus, read_node_minutes

    hosts = any(not OF_HOSTS.isdisjoint(ruleset.metrics) for ruleset in rulesets)
    for first in range(0, max(1, jobs.height), BATCH):
        batch = jobs.slice(first, BATCH)
        nodes = read_node_minutes(lake, batch) if hosts else JOB_NODE_MINUTES.empty()
        yield batch, read_gpus(lake, batch), nodes


def _jobs(opened: OpenedLake, which: JobFilter) -> pl.DataFrame:
    """Summaries of the jobs that the filters choose, in order of start."""
    from tachograph.lake.query import select_jobs

    return select_jobs(opened.lake, which).jobs.sort("start", "job_key")


def _import_classes(arguments: Arguments) -> int:
    """Translate job classes, report, write them if a folder is named.

    Errors: InputError for a folder without job classes, or if none can be translated.
    """
    from tachograph.judge.rules.clustercockpit import limits_of

    folder = Path(arguments.folder)
    texts = _classes(folder)
    parameters = _parameters(folder / _PARAMETERS)
    limits = limits_of(_json(Path(arguments.cluster))) if arguments.cluster else {}
    classes = _without_taken_tags(
        [_translated(source, text, parameters, limits) for source, text in texts]
    )
    if arguments.output:
        _write(Path(arguments.output), classes)
    if arguments.json:
        output.print_json([_as_json(translated) for translated in classes])
    else:
        _report(classes, arguments)
    if not any(translated.text for translated in classes):
        raise InputError(
            "no job class could be translated", where=str(folder), do="see the missing parts above"
        )
    return 0


def _classes(folder: Path) -> list[tuple[str, str | None]]:
    """Names and texts of the files of job classes; None: unreadable."""
    from tachograph.judge.rules.sources import read_source

    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise InputError(what, where=str(folder), do="name the folder of job classes, jobclasses/")
    files = [path for path in sorted(folder.glob("*.json")) if path.name != _PARAMETERS]
    if not files:
        raise InputError(
            "no job classes found", where=str(folder), do="name the folder with their .json files"
        )
    return [(path.name, read_source(path).text) for path in files]


def _translated(
    name: str,
    text: str | None,
    parameters: Mapping[str, float],
    limits: Mapping[str, Mapping[str, float]],
) -> Translated:
    from tachograph.judge.rules.clustercockpit import Translated, translate_class

    if text is None:
        return Translated(name, "", None, {}, ("unreadable text",))
    return translate_class(text, name, parameters, limits)


def _without_taken_tags(classes: Sequence[Translated]) -> list[Translated]:
    """Return the translated classes, each tag only once."""
    from tachograph.catalog.config import Configuration
    from tachograph.judge.judge import RESERVED, rules_in_use

    taken = dict.fromkeys(RESERVED, "Tachograph")
    taken |= {entry.code: "a shipped rule" for entry in rules_in_use(Configuration()).entries}
    classes_kept = []
    for translated in classes:
        if translated.text is not None and translated.tag in taken:
            taken_by = f"tag {translated.tag} is used by {taken[translated.tag]}: choose another"
            classes_kept.append(replace(translated, text=None, missing=(taken_by,)))
            continue
        if translated.text is not None:
            taken[translated.tag] = translated.file
        classes_kept.append(translated)
    return classes_kept


def _parameters(path: Path) -> dict[str, float]:
    from tachograph.judge.rules.clustercockpit import is_number

    if not path.exists():
        return {}
    content = _json(path)
    if not isinstance(content, dict):
        raise InputError(
            "not an object of parameters", where=str(path), do='write {"name": number, ...}'
        )
    return {str(name): float(value) for name, value in content.items() if is_number(value)}


def _json(path: Path) -> Any:
    from tachograph.judge.rules.sources import read_source

    source = read_source(path)
    if source.text is None:
        raise InputError(source.problem, where=str(path), do="name a file of JSON")
    try:
        return json.loads(source.text)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"invalid JSON: {problem}", where=str(path), do="fix it") from None


def _write(folder: Path, classes: Sequence[Translated]) -> None:
    """Write rules and parameters; no file is overwritten.

    Errors: UsageError where a file of that name exists.
    """
    from tachograph.judge.rules.clustercockpit import parameters_toml
    from tachograph.judge.rules.sources import PARAMETERS

    documents = {
        translated.file: translated.text for translated in classes if translated.text is not None
    }
    documents[PARAMETERS] = parameters_toml(classes)
    there = [name for name in documents if (folder / name).exists()]
    if there:
        raise UsageError(
            "file exists", where=str(folder / there[0]), do="name a new folder with -o"
        )
    with output.writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            (folder / name).write_text(text or "", encoding="utf-8")


def _as_json(translated: Translated) -> dict[str, Any]:
    return {
        "file": translated.file,
        "rule": translated.tag if translated.text is not None else None,
        "parameters": translated.parameters,
        "missing": translated.missing,
        "remarks": translated.remarks,
    }


def _report(classes: Sequence[Translated], arguments: Arguments) -> None:
    for translated in classes:
        state = f"rule {translated.tag}" if translated.text is not None else "not translated"
        output.print_text(f"{printable(translated.file)}: {state}\n")
        for what, lines in (("no counterpart", translated.missing), ("remark", translated.remarks)):
            output.print_text("".join(f"  {what}: {printable(line)}\n" for line in lines))
    done = sum(translated.text is not None for translated in classes)
    where = f", written to {arguments.output}" if arguments.output else "; write them with -o DIR"
    narrate.Narrator.of(arguments).say(
        f"{done} of {plural(len(classes), 'job class').replace('classs', 'classes')} "
        f"translated{where}"
    )
