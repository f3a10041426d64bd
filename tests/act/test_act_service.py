"""The service of what acts: its steps, everything down at once, signals, the service manager."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from job_lake import job_lake

from in_process import run_here
from servers.process import free_port
from servers.webhook import webhook_receiver
from tachograph.annexes.act.advice_table import WrittenAdvice, note_advice
from tachograph.annexes.act.ledger import ActionLedger, read_ledger
from tachograph.annexes.act.service import NOTHING_ON, RoundResult, act
from tachograph.catalog.config import ActOptions, Configuration, MailOptions, WebhookOptions
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import JOBS
from tachograph.collect.systemd import SystemdNotifier
from tachograph.lake.delta import Lake

ENVIRONMENT = {"TACHOGRAPH_COLLECT_STATE": "state"}


def test_comments_and_advice_are_steps(tmp_path: Path) -> None:
    """Both are off, then a dry run, then advice is written and the accounting that is down is
    one line.
    """
    lake = job_lake(tmp_path / "lake", 7, runs=4)
    environment = {"TACHOGRAPH_LAKE": lake.location, **ENVIRONMENT}
    off = run_here(["act", "--once"], tmp_path, environment).stdout
    assert off == f"dry run: nothing to do: {NOTHING_ON}\n"
    advice = tmp_path / "advice"
    on = environment | {
        "TACHOGRAPH_ACT_COMMENT": "true",
        "TACHOGRAPH_ACT_ADVICE_FOLDER": str(advice),
        "TACHOGRAPH_ACT_SLURM_BEFORE": "/bin/false",
    }
    shown = run_here(["act", "--once"], tmp_path, on)
    assert shown.stdout == "dry run: comment: 4 would, advice: 1 would\n"
    assert not advice.exists()
    acted = run_here(
        ["act", "--once", "--json"], tmp_path, on | {"TACHOGRAPH_ACT_DRY_RUN": "false"}
    )
    assert acted.returncode == 7
    steps = {one["step"]: one for one in json.loads(acted.stdout)["steps"]}
    assert "sacctmgr" in steps["comment"]["problem"]
    assert steps["advice"]["states"] == {"done": 1}
    assert stat.S_ISDIR(advice.stat().st_mode)
    (last,) = [
        one
        for one in read_ledger(tmp_path / "state")
        if one.kind == "advice" and one.state == "done"
    ]
    assert "written" in last.result


def test_refused_files_of_advice_are_a_failure(tmp_path: Path) -> None:
    outcomes = (WrittenAdvice(1, 0, refused=("ann",)), WrittenAdvice(2, 0), WrittenAdvice(0, 0))
    with ActionLedger(tmp_path, clock=lambda: datetime(2026, 11, 23, tzinfo=UTC)) as ledger:
        made = [note_advice(ledger, "advice:day", "folder", outcome) for outcome in outcomes]
    assert [[record.state for record in records] for records in made] == [["failed"], ["done"], []]


def test_a_missing_lake_ends_the_command_with_one_line(tmp_path: Path) -> None:
    """The command does not wait for a lake unless a service manager started it, and makes none."""
    ended = run_here(["act", "--quiet"], tmp_path, {"TACHOGRAPH_LAKE": str(tmp_path / "absent")})
    assert ended.returncode == LakeError.exit_code
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert "there is no lake; fill one with `tachograph ingest`" in line
    assert not (tmp_path / "absent").exists()


def test_the_first_round_is_reported_with_the_interval(tmp_path: Path) -> None:
    lake = job_lake(tmp_path / "lake", 7)
    loop = Loop(Configuration(), tmp_path / "state", lambda: lake)
    loop.run(lambda rounds: False)
    assert loop.said == ["dry run: nothing to do; a round every 5 min", "stopped after 1 round"]


class Loop:
    """Rounds of the service in this process; `then(number)` runs after each, until it returns
    False.
    """

    def __init__(
        self, configuration: Configuration, folder: Path, open_lake: Callable[[], Lake]
    ) -> None:
        self.said: list[str] = []
        self.now = datetime.now(UTC)
        self._configuration, self._folder, self._open = configuration, folder, open_lake

    def run(self, then: Callable[[int], bool]) -> None:
        stopping = threading.Event()

        def say(line: str) -> None:
            self.said.append(line)
            self.now += timedelta(minutes=20)
            if not line.startswith("stopped") and not then(len(self.said)):
                stopping.set()

        act(
            self._open,
            self._configuration,
            self._folder,
            clock=lambda: self.now,
            stopping=stopping,
            say=say,
        )


def test_everything_is_down_then_up_again(tmp_path: Path) -> None:
    """No lake, no mail server, no Slurm, no receiver: a line for each, and it goes on; lake and
    receiver recover.
    """
    made = job_lake(tmp_path / "elsewhere", 7)
    absent = tmp_path / "lake"
    with webhook_receiver() as receiver:
        receiver.status = 500
        configuration = Configuration(
            act=ActOptions(
                dry_run=False, interval_s=0.01, alert=True, comment=True, digest=("users",),
                slurm_before=("/bin/false",),
            ),
            mail=MailOptions(f"127.0.0.1:{free_port()}", "none", sender="a@example.org", address="{user}@example.org"),
            webhook=(WebhookOptions("ops", url=receiver.url, timeout_s=5),),
        )  # fmt: skip
        loop = Loop(configuration, tmp_path / "state", lambda: Lake.open(str(absent)))
        ended = made.latest(JOBS).get_column("end").item()
        monday = (ended + timedelta(days=7 - ended.weekday())).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        loop.now = monday + timedelta(hours=8)  # the job ended in the week before

        def then(number: int) -> bool:
            if number == 1:
                Path(made.location).rename(absent)
            if number == 2:
                receiver.status = 200
            return number < 3

        loop.run(then)
    assert loop.said[0].startswith("lake: ")
    assert "alert: 1 failed" in loop.said[1]
    assert "alert: 1 done" in loop.said[2]
    for line in loop.said[1:3]:
        assert "digest: 127.0.0.1" in line
        assert "no connection to the mail server" in line
    assert all("\n" not in line for line in loop.said)
    status = json.loads((tmp_path / "state" / "act-status.json").read_text())
    assert [one["step"] for one in status["steps"]] == [
        "alert",
        "policy",
        "comment",
        "advice",
        "digest",
        "group digest",
        "ledger",
    ]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(240)
        yield channel


@pytest.mark.slow
def test_the_process_is_ready_alive_and_stops(tmp_path: Path, manager: socket.socket) -> None:
    """Without any lake it is ready all the same, reports each round, and a signal ends it with
    0.
    """
    environment = {
        **os.environ, "TACHOGRAPH_LAKE": str(tmp_path / "absent"), "TACHOGRAPH_COLLECT_STATE": str(tmp_path / "state"),
        "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000",
    }  # fmt: skip
    environment.pop("WATCHDOG_PID", None)
    with subprocess.Popen(
        [sys.executable, "-m", "tachograph", "act"], env=environment, stderr=subprocess.PIPE
    ) as one:
        try:
            assert manager.recv(4096) == b"READY=1"
            assert manager.recv(4096).startswith(b"WATCHDOG=1\nSTATUS=dry run: lake: ")
            assert manager.recv(4096) == b"WATCHDOG=1"
            one.send_signal(signal.SIGTERM)
            while (got := manager.recv(4096)) == b"WATCHDOG=1":
                pass
            assert got == b"STOPPING=1"
            _, printed = one.communicate(timeout=240)
        finally:
            one.kill()
    assert one.returncode == 0
    assert b"stopped after 1 round" in printed
    assert b"Traceback" not in printed


def test_a_round_is_one_line() -> None:
    assert RoundResult(datetime.now(UTC), True, ()).line == "dry run: nothing to do"
    assert SystemdNotifier.of({"WATCHDOG_USEC": "400000"}).watchdog_s == 0.2
