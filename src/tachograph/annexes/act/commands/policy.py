"""`tachograph act policy`: check, backtest and list policies for running jobs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tachograph.catalog.errors import ConfigError
from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import (
    Arguments,
    Parser,
    actions_of,
    add_filters,
    job_filter,
    open_lake,
)

if TYPE_CHECKING:
    from tachograph.annexes.act.policies import PolicyCase
    from tachograph.catalog.config import Configuration


def add_arguments(parser: Parser) -> None:
    """Declare the actions."""
    action = actions_of(parser)
    action(
        "check",
        "show what the policies do, and to which running jobs they apply now (dry run)",
        _of_check,
    )
    action(
        "backtest",
        "replay policies on past jobs: which jobs they would have hit, which recovered",
        _of_backtest,
    )
    action("status", "list what was done, oldest first", _add_names)


def _of_check(parser: argparse.ArgumentParser) -> None:
    _add_names(parser)
    parser.add_argument(
        "--every",
        action="store_true",
        help="also list jobs to which no policy applies, with the reason",
    )


def _of_backtest(parser: argparse.ArgumentParser) -> None:
    _add_names(parser)
    add_filters(parser)
    parser.add_argument(
        "--top",
        type=whole_number(1),
        default=10,
        metavar="N",
        help="number of jobs listed (default 10)",
    )


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="only these (default: all)")


def run(arguments: Arguments) -> int:
    """Run the action."""
    return {"check": _check, "backtest": _backtest, "status": _status}[arguments.action](arguments)


def _selected_policies(arguments: Arguments, configuration: Configuration) -> Configuration:
    from tachograph.annexes.act.policies import policy_of

    if not configuration.policy:
        raise ConfigError(
            "no policy is configured", do="add [[policy]] with name, check and action"
        )
    return policy_of(configuration, arguments.policies)


def _check(arguments: Arguments) -> int:
    from tachograph.annexes.act.policies import policy_cases
    from tachograph.annexes.act.policy import PolicyEvidence
    from tachograph.annexes.act.policy_report import job_name, policy_sentence

    opened = open_lake(arguments)
    configuration = _selected_policies(arguments, opened.configuration)
    cases = list(policy_cases(opened.lake, configuration, now=opened.clock))
    applying = [case for case in cases if isinstance(case.found, PolicyEvidence)]
    shown = cases if arguments.every else applying
    if arguments.json:
        policies = [
            {"name": policy.name, "sentence": policy_sentence(policy)}
            for policy in configuration.policy
        ]
        output.print_json({"policies": policies, "jobs": [_case(case) for case in shown]})
        return 0
    for entry in configuration.policy:
        output.print_text(f"{entry.name}: {policy_sentence(entry)}\n")
    jobs = len({case.job["job_key"] for case in cases})
    output.print_text(
        f"{len(applying):,} of {len(cases):,} cases apply, of {jobs:,} running jobs with fresh "
        "results.\n"
    )
    if shown:
        rows = [
            (
                case.policy.name,
                job_name(case.job, short=True),
                case.job["user"] or "",
                "no" if isinstance(case.found, str) else "yes",
                case.why,
            )
            for case in shown
        ]
        output.print_table(
            ("policy", "job", "user", "applies", "why"), rows, no_color=arguments.no_color
        )
    return 0


def _case(case: PolicyCase) -> dict[str, Any]:
    return {
        "policy": case.policy.name,
        "job_key": case.job["job_key"],
        "applies": not isinstance(case.found, str),
        "why": case.why,
    }


def _backtest(arguments: Arguments) -> int:
    from tachograph.annexes.act.policy_backtest import (
        backtest_json,
        backtest_lines,
        backtest_policy,
    )

    opened = open_lake(arguments)
    configuration = _selected_policies(arguments, opened.configuration)
    which, narrator = job_filter(arguments, opened), Narrator.of(arguments)
    backtests = []
    for policy in configuration.policy:
        if policy.check == "failing_gpu":
            narrator.say(f"{policy.name}: not replayed: faults of GPUs are not kept by minute")
            continue

        def progress(done: int, jobs: int, name: str = policy.name) -> None:
            narrator.say(f"{name}: {done:,} of {jobs:,} jobs")

        backtests.append(backtest_policy(opened.lake, policy, which, progress=progress))
    if arguments.json:
        output.print_json([backtest_json(backtest) for backtest in backtests])
        return 0
    for number, backtest in enumerate(backtests):
        if number:
            output.print_text("\n")
        lines = backtest_lines(backtest, top=arguments.top, width=min(output.width(), 100))
        output.print_lines(lines, no_color=arguments.no_color)
    return 0


def _status(arguments: Arguments) -> int:
    from tachograph.annexes.act.commands.act import list_actions

    return list_actions(arguments, none="No policy has acted yet.", policies=arguments.policies)
