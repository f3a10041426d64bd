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
    configuration_of,
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
    action("status", "list what was done, oldest first", _of_status)


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


def _of_status(parser: argparse.ArgumentParser) -> None:
    _add_names(parser)


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="only these (default: all)")


def run(arguments: Arguments) -> int:
    """Run the action."""
    return {"check": _check, "backtest": _backtest, "status": _status}[arguments.action](arguments)


def _chosen(arguments: Arguments, configuration: Configuration) -> Configuration:
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
    configuration = _chosen(arguments, opened.configuration)
    cases = list(policy_cases(opened.lake, configuration, now=opened.clock))
    shown = [case for case in cases if arguments.every or isinstance(case.found, PolicyEvidence)]
    if arguments.json:
        policies = [
            {"name": policy.name, "sentence": policy_sentence(policy)}
            for policy in configuration.policy
        ]
        output.print_json({"policies": policies, "jobs": [_case(case) for case in shown]})
        return 0
    for one in configuration.policy:
        output.print_text(f"{one.name}: {policy_sentence(one)}\n")
    applies = sum(isinstance(case.found, PolicyEvidence) for case in cases)
    jobs = len({case.job["job_key"] for case in cases})
    output.print_text(
        f"{applies:,} of {len(cases):,} cases apply, of {jobs:,} running jobs with fresh results.\n"
    )
    if shown:
        rows = [
            (
                case.policy.name,
                job_name(case.job, short=True),
                case.job["user"] or "",
                _applies(case),
                case.why,
            )
            for case in shown
        ]
        output.print_table(
            ("policy", "job", "user", "applies", "why"), rows, no_color=arguments.no_color
        )
    return 0


def _applies(case: PolicyCase) -> str:
    return "no" if isinstance(case.found, str) else "yes"


def _case(case: PolicyCase) -> dict[str, Any]:
    return {
        "policy": case.policy.name,
        "job_key": case.job["job_key"],
        "applies": not isinstance(case.found, str),
        "why": case.why,
    }


def _backtest(arguments: Arguments) -> int:
    from tachograph.annexes.act.policy_replays import backtest_policy
    from tachograph.annexes.act.policy_report import backtest_json, backtest_lines

    opened = open_lake(arguments)
    configuration = _chosen(arguments, opened.configuration)
    wanted, narrator = job_filter(arguments, opened), Narrator.of(arguments)
    found = []
    for policy in configuration.policy:
        if policy.check == "failing_gpu":
            narrator.say(f"{policy.name}: not replayed: faults of GPUs are not kept by minute")
            continue

        def progress(done: int, jobs: int, name: str = policy.name) -> None:
            narrator.say(f"{name}: {done:,} of {jobs:,} jobs")

        found.append(backtest_policy(opened.lake, policy, wanted, progress=progress))
    if arguments.json:
        output.print_json([backtest_json(one) for one in found])
        return 0
    for place, one in enumerate(found):
        if place:
            output.print_text("\n")
        lines = backtest_lines(one, top=arguments.top, width=min(output.width(), 100))
        output.print_lines(lines, no_color=arguments.no_color)
    return 0


def _status(arguments: Arguments) -> int:
    from pathlib import Path

    from tachograph.annexes.act.ledger import read_ledger
    from tachograph.annexes.act.policies import KIND
    from tachograph.catalog import config
    from tachograph.catalog.columns import local_time
    from tachograph.collect.status import state_folder

    configuration = configuration_of(arguments)
    location = config.lake_location(arguments.lake, configuration)
    folder = Path(state_folder(location, configuration.collect.state))
    records = [record for record in read_ledger(folder) if record.key.startswith(f"{KIND}:")]
    if arguments.policies:
        records = [record for record in records if record.key.split(":")[1] in arguments.policies]
    if arguments.json:
        output.print_json(records)
        return 0
    if not records:
        output.print_text("No policy has acted yet.\n")
        return 0
    zone = configuration.site.time_zone
    rows = [
        (
            local_time(record.t, zone),
            record.key.split(":")[1],
            record.state,
            record.kind,
            record.target,
            record.why,
            record.result,
        )
        for record in records
    ]
    headings = ("time", "policy", "state", "action", "target", "why", "result")
    output.print_table(headings, rows, no_color=arguments.no_color)
    return 0
