"""`tachograph rules`: list, check, run, back-test and import performance-pattern rules. No stored verdict changes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.filters import add_filters
from tachograph.cli.options import Arguments, Parser, actions_of
from tachograph.errors import InputError
from tachograph.units import printable

if TYPE_CHECKING:
    from tachograph.config import Configuration
    from tachograph.rules.ruleset import RuleSet


def add_arguments(parser: Parser) -> None:
    """Declare the actions, each with its own options."""
    action = actions_of(parser)
    action("list", "show the rules in use: what each looks for, its parameters, what it needs", _of_list)
    action("check", "look for mistakes in files of rules, without any job", _of_check)
    action("run", "judge stored jobs by rules; nothing is written", _of_run)
    action("backtest", "show which jobs change verdict when a parameter, or the rule, changes", _of_backtest)
    action("import-clustercockpit", "translate job classes of ClusterCockpit", _of_import)


def _of_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", nargs="*", metavar="RULE", help="tell all about these")
    _add_folder(parser)


def _of_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of rules, or folders of some")


def _of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", nargs="*", metavar="RULE", help="only these")
    add_filters(parser)
    _add_folder(parser)
    _add_set(parser)
    parser.add_argument("--show", choices=("yes", "no", "insufficient"), help="jobs with this verdict (default: yes)")


def _of_backtest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", metavar="RULE", help="a rule, or the tag of several")
    add_filters(parser)
    _add_folder(parser)
    _add_set(parser)
    parser.add_argument("--file", metavar="FILE", help="the changed rule: the one of this name in FILE")
    parser.add_argument("--labels", metavar="FILE", help="what people said of jobs: CSV with job_id, class, label")


def _of_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder of job classes, with their parameters.json")
    parser.add_argument("-o", "--output", metavar="DIR", help="write the rules into this folder")
    parser.add_argument("--cluster", metavar="FILE", help="cluster.json, of which limits of metrics are taken")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", metavar="DIR", help="the site's own rules, in place of rules.folder")


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changed",
        metavar="PARAMETER=VALUE",
        help="another value, also RULE.PARAMETER=VALUE; repeatable",
    )


def run(arguments: Arguments) -> int:
    """Do what the action says."""
    actions: dict[str, Callable[[Arguments], int]] = {
        "list": _list,
        "check": _check,
        "run": _run,
        "backtest": _backtest,
        "import-clustercockpit": _import,
    }
    return actions[arguments.action](arguments)


def _list(arguments: Arguments) -> int:
    from tachograph import config
    from tachograph.rules.shown import rules_json, rules_text

    ruleset = ruleset_of(arguments, config.load(arguments.config))
    chosen = ruleset.only(arguments.rules) if arguments.rules else ruleset
    if arguments.json:
        output.print_json(rules_json(chosen))
    elif arguments.rules:
        output.print_text(rules_text(chosen, width=min(output.width(), 110)))
    else:
        _show_rules(ruleset, arguments)
    return 0


def _show_rules(ruleset: RuleSet, arguments: Arguments) -> None:
    from tachograph.rules.shown import parameter_text

    headings = [output.Heading(name) for name in ("rule", "what", "of", "urgency", "parameter", "value", "needs")]
    rows = []
    for entry in (*ruleset.entries, *ruleset.disabled):
        state = "off" if entry in ruleset.disabled else entry.severity
        first = [entry.code, entry.rule.name, entry.rule.level, state]
        lines = [parameter_text(entry, name) for name in entry.values] or [("", "")]
        needs = ", ".join(entry.counters)
        for place, (name, value) in enumerate(lines):
            rows.append([*(first if not place else [""] * 4), name, value, "" if place else needs])
    output.print_table(headings, rows, no_color=arguments.no_color)
    tell_left_out(ruleset)


def tell_left_out(ruleset: RuleSet) -> None:
    """Say which rules are left out, and why."""
    from tachograph.cli import narrate

    for problem in ruleset.errors:
        narrate.remark(f"a rule was left out: {problem}")


def _check(arguments: Arguments) -> int:
    from pathlib import Path

    from tachograph.analyze.rules import RESERVED
    from tachograph.rules.ruleset import read_files
    from tachograph.rules.shown import rules_json

    ruleset = read_files(map(Path, arguments.files), reserved=RESERVED)
    if arguments.json:
        output.print_json(rules_json(ruleset))
    else:
        for problem in ruleset.problems:
            output.print_text(f"{printable(str(problem))}\n")
        for entry in ruleset.entries:
            needs = ", ".join(entry.counters) or "nothing"
            output.print_text(f"{entry.rule.file}: {entry.code} is fine; of each {entry.rule.level}; needs {needs}\n")
    if not ruleset.entries and not ruleset.problems:
        raise InputError("no rules there", where=", ".join(arguments.files), do="name files of rules, or their folder")
    return InputError.exit_code if ruleset.errors else 0


def _run(arguments: Arguments) -> int:
    from tachograph.cli.rules_run import run_rules

    return run_rules(arguments)


def _backtest(arguments: Arguments) -> int:
    from tachograph.cli.rules_run import backtest

    return backtest(arguments)


def _import(arguments: Arguments) -> int:
    from tachograph.cli.rules_import import import_classes

    return import_classes(arguments)


def ruleset_of(arguments: Arguments, configuration: Configuration) -> RuleSet:
    """The rules in use; `--folder` stands for the folder of the configuration."""
    import msgspec

    from tachograph.analyze.rules import rules_in_use

    if arguments.folder is not None:
        rules = msgspec.structs.replace(configuration.rules, folder=arguments.folder)
        configuration = msgspec.structs.replace(configuration, rules=rules)
    return rules_in_use(configuration)
