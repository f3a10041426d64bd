"""`tachograph act`: sends digests and alerts, applies policies; a dry run by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tachograph.catalog.errors import ExportError
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json, configuration_of

if TYPE_CHECKING:
    from pathlib import Path

    from tachograph.catalog.config import Configuration


def add_arguments(parser: Parser) -> None:
    """Declare `--once`, `--ledger`, `--json`."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--once", action="store_true", help="one round")
    what.add_argument("--ledger", action="store_true", help="list what was done, oldest first")
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Run rounds until a signal, or one round; or list past actions.

    Errors: LakeError without a lake, unless a service manager started it.
    """
    import os
    import threading
    from datetime import UTC, datetime

    from tachograph.annexes.act.service import NOTHING_ON, act, act_once, is_switched_on
    from tachograph.collect.collector import stopping_on_signals
    from tachograph.collect.systemd import SystemdNotifier
    from tachograph.lake.delta import Lake

    if arguments.ledger:
        return list_actions(arguments, none="No action was taken yet.")
    configuration, location, folder = _locations(arguments)

    def clock() -> datetime:
        return datetime.now(UTC)

    if arguments.once:
        result = act_once(Lake.open(location), configuration, folder, clock=clock)
        if arguments.json:
            output.print_json(result)
        else:
            off = "" if is_switched_on(configuration) else f": {NOTHING_ON}"
            output.print_text(f"{result.line}{off}\n")
        failed = any(step.problem or step.states.get("failed") for step in result.steps)
        return ExportError.exit_code if failed else 0
    notifier = SystemdNotifier.of(os.environ)
    if not notifier.address:
        # A service waits for a lake that is mounted or created later; a person made a mistake.
        Lake.open(location)
    stopping = threading.Event()
    with stopping_on_signals(stopping, kill=lambda: None):
        act(
            lambda: Lake.open(location),
            configuration,
            folder,
            clock=clock,
            stopping=stopping,
            say=Narrator.of(arguments).say,
            notifier=notifier,
        )
    return 0


def _locations(arguments: Arguments) -> tuple[Configuration, str, Path]:
    """Configuration, location of the lake, folder of the ledger; the lake may be absent."""
    from tachograph.catalog import config
    from tachograph.collect.status import state_folder

    configuration = configuration_of(arguments)
    location = config.lake_location(arguments.lake, configuration)
    return configuration, location, state_folder(location, configuration.collect.state)


def list_actions(arguments: Arguments, *, none: str, policies: Sequence[str] | None = None) -> int:
    """Print the ledger, or `none` without lines.

    policies: only lines of these, of all if empty; None: lines of all kinds.
    """
    from tachograph.annexes.act.ledger import read_ledger
    from tachograph.annexes.act.policies import KIND
    from tachograph.catalog.columns import local_time

    configuration, _, folder = _locations(arguments)
    records = read_ledger(folder)
    if policies is not None:
        records = [
            record
            for record in records
            if record.key.startswith(f"{KIND}:")
            and (not policies or record.key.split(":")[1] in policies)
        ]
    if arguments.json:
        output.print_json(records)
        return 0
    if not records:
        output.print_text(f"{none}\n")
        return 0
    zone_name = configuration.site.time_zone
    columns = {
        "time": [local_time(record.t, zone_name) for record in records],
        "policy": None if policies is None else [record.key.split(":")[1] for record in records],
        "state": [record.state for record in records],
        "kind" if policies is None else "action": [record.kind for record in records],
        "target": [record.target for record in records],
        "why": [record.why for record in records],
        "result": [record.result for record in records],
    }
    shown = {heading: cells for heading, cells in columns.items() if cells is not None}
    rows = zip(*shown.values(), strict=True)
    output.print_table(list(shown), rows, no_color=arguments.no_color)
    return 0
