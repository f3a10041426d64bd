"""`tachograph act`: sends digests and alerts, applies policies; a dry run by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.errors import ExportError
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json, configuration_of

if TYPE_CHECKING:
    import polars as pl

    from tachograph.annexes.act.advice_table import WrittenAdvice
    from tachograph.annexes.act.service import ActApi
    from tachograph.catalog.config import Configuration
    from tachograph.lake.delta import Lake
    from tachograph.report.job import JobReport


def add_arguments(parser: Parser) -> None:
    """Declare `--once`, `--ledger`, `--json`."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--once", action="store_true", help="one round")
    what.add_argument("--ledger", action="store_true", help="list what was done, oldest first")
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Run rounds until a signal, or one round; or list past actions."""
    import os
    import threading
    from datetime import UTC, datetime

    from tachograph.annexes.act.service import ActRound, act, act_once
    from tachograph.catalog import config
    from tachograph.collect.collector import stopping_on_signals
    from tachograph.collect.status import state_folder
    from tachograph.collect.systemd import SystemdNotifier
    from tachograph.lake.delta import Lake

    configuration = configuration_of(arguments)
    location = config.lake_location(arguments.lake, configuration)
    folder = state_folder(location, configuration.collect.state)
    if arguments.ledger:
        return _list(arguments, str(folder), configuration.site.time_zone)

    def clock() -> datetime:
        return datetime.now(UTC)

    if arguments.once:
        result = act_once(
            ActRound(Lake.open(location), configuration, folder, clock(), _api(configuration)),
            clock,
        )
        if arguments.json:
            output.print_json(result)
        else:
            output.print_text(f"{result.line}\n")
        failed = any(step.problem or step.states.get("failed") for step in result.steps)
        return ExportError.exit_code if failed else 0
    stopping = threading.Event()
    with stopping_on_signals(stopping, kill=lambda: None):
        say = Narrator.of(arguments).say
        notifier = SystemdNotifier.of(os.environ)
        act(
            lambda: Lake.open(location),
            configuration,
            folder,
            _api(configuration),
            clock=clock,
            stopping=stopping,
            say=say,
            notifier=notifier,
        )
    return 0


def _api(configuration: Configuration) -> ActApi:
    """Reports and advice, as steps need them."""
    from datetime import UTC, datetime, timedelta
    from pathlib import Path

    from tachograph.annexes.act.advice_table import refresh_advice
    from tachograph.annexes.act.service import ActApi
    from tachograph.api.advice import read_past_jobs, read_site
    from tachograph.api.job_report import read_job
    from tachograph.api.managers import managers_of
    from tachograph.lake.filters import JobFilter

    def report_of(lake: Lake, job_key: str) -> JobReport:
        return read_job(lake, job_key, now=datetime.now(UTC), configuration=configuration)

    def write_advice(lake: Lake) -> WrittenAdvice:
        now = datetime.now(UTC)
        since = now - timedelta(days=configuration.advice.days)
        return refresh_advice(
            Path(configuration.act.advice_folder),
            lake,
            lambda users: read_past_jobs(
                lake, configuration, JobFilter(users=tuple(users), since=since)
            ),
            read_site(lake, configuration),
            configuration.advice,
            as_of=now,
            now=now,
        )

    return ActApi(report_of, write_advice, managers_of(configuration.serve), visible_to)


def visible_to(name: str, accounts: frozenset[str]) -> pl.Expr:
    """Return which jobs a manager of accounts may see: as on served pages."""
    from tachograph.api.viewer import Role, Viewer

    return Viewer(name, Role.MANAGER, accounts).visible()


def _list(arguments: Arguments, folder: str, zone_name: str) -> int:
    from pathlib import Path

    from tachograph.annexes.act.ledger import read_ledger
    from tachograph.catalog.columns import local_time

    records = read_ledger(Path(folder))
    if arguments.json:
        output.print_json(records)
        return 0
    if not records:
        output.print_text("No action was taken yet.\n")
        return 0
    rows = [
        (
            local_time(record.t, zone_name),
            record.state,
            record.kind,
            record.target,
            record.why,
            record.result,
        )
        for record in records
    ]
    output.print_table(
        ("time", "state", "kind", "target", "why", "result"), rows, no_color=arguments.no_color
    )
    return 0
