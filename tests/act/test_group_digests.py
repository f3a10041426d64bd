"""Digests of account managers and staff: what each sees, what is new, once a week."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from in_process import run_here
from madelake import fill, held, job, summarized
from servers.mail_sink import MailSink, mail_sink
from tachograph.annexes.act.commands.act import visible_to
from tachograph.annexes.act.digest import WIDTH, DigestTemplates
from tachograph.annexes.act.digests import OPT_OUT_FILE
from tachograph.annexes.act.group_digest import GroupDigest
from tachograph.annexes.act.group_digests import group_digests, send_group_digests
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.catalog.config import ActOptions, Configuration, MailOptions
from tachograph.catalog.errors import ConfigError
from tachograph.lake.delta import Lake

WEEK = date(2026, 11, 16)
NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
MANAGERS = {
    "max": frozenset({"physics"}),
    "mia": frozenset({"empty"}),
    "ann": frozenset({"chemistry"}),
}
NASTY = "<b>z</b>\u202e"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """ann and NASTY in physics used one of four GPUs, bob in chemistry all four; one of his GPUs
    fell off the bus.
    """
    lake = Lake.create(str(tmp_path_factory.mktemp("groups") / "lake"))
    rows, allocations, samples = [], [], []
    begin = datetime(2026, 11, 17, 8, tzinfo=UTC)
    for number, (user, account, busy, weeks) in enumerate(
        [
            ("ann", "physics", 1, 0),
            (NASTY, "physics", 1, 0),
            ("bob", "chemistry", 4, 0),
            ("ann", "physics", 4, 1),
        ],
        1,
    ):
        node, start = f"gpu{number:02}", begin - timedelta(weeks=weeks)
        end = start + timedelta(hours=6)
        facts = {
            "cluster": "testing",
            "user": user,
            "account": account,
            "partition": "gpu",
            "name": "train",
        }
        rows.append(
            job(str(number), start, end, **facts, gpus=4, node_list=node, timelimit_s=30000.0)
        )
        allocations += held(str(number), node, range(4), start, end, cluster="testing")
        samples += [
            {
                "t": start + timedelta(minutes=place), "node": node, "gpu": gpu,
                "gpu_util": 0.9 if gpu < busy else 0.0, "hbm_used_mib": 60000.0 if gpu < busy else 2.0,
                "xid": 79 if user == "bob" and gpu == 2 and place > 300 else 0,
            }
            for place in range(361)
            for gpu in range(4)
        ]  # fmt: skip
    fill(lake, {"jobs": rows, "allocations": allocations, "gpu_samples": samples}, now=NOW)
    summarized(lake, now=NOW)
    return lake


def digests(lake: Lake) -> dict[str, GroupDigest]:
    found = group_digests(lake, Configuration(), WEEK, MANAGERS, visible_to)
    return {one.name: one for one in found}


def configured(port: int = 1, *, dry_run: bool = True) -> Configuration:
    mail = MailOptions(
        f"127.0.0.1:{port}", "none", sender="gpu@example.org", address="{user}@example.org"
    )
    staff = ("a@example.org", "b@example.org")
    act = ActOptions(dry_run=dry_run, digest=("managers", "staff"), digest_staff=staff)
    return Configuration(mail=mail, act=act)


def sent(lake: Lake, folder: Path, configuration: Configuration) -> list[ActionRecord]:
    with ActionLedger(folder, clock=lambda: NOW) as ledger:
        return send_group_digests(
            ledger,
            lake,
            configuration,
            folder=folder,
            now=NOW,
            managers=lambda: MANAGERS,
            visible=visible_to,
        )


@pytest.fixture
def sink() -> Iterator[MailSink]:
    with mail_sink() as one:
        yield one


def test_staff_sees_all_and_a_manager_their_accounts(lake: Lake) -> None:
    found = digests(lake)
    assert list(found) == ["staff", "ann", "max"]
    staff, manager = found["staff"], found["max"]
    assert (staff.jobs, manager.jobs) == (3, 2)
    assert staff.gpu_hours == pytest.approx(72, rel=0.02)
    assert manager.lost == pytest.approx(36, rel=0.05)
    assert {one.user for one in manager.users} == {"ann", NASTY}
    assert manager.share == pytest.approx(0.75, rel=0.05)
    assert manager.share_before == pytest.approx(0, abs=0.05)
    assert any(one.is_new for one in manager.problems)
    assert "bob" not in json.dumps([str(one) for one in (manager.users, manager.problems)])
    assert len(staff.sick) == 1
    assert staff.sick[0].startswith("gpu03 GPU 2: ")
    assert "XID 79, GPU has fallen off the bus" in staff.sick[0]
    assert manager.sick == ()
    # ann's own jobs are of an account that she does not manage
    assert (found["ann"].jobs, found["ann"].is_worth_sending) == (1, False)


def test_text_and_html_escape_names(lake: Lake) -> None:
    templates = DigestTemplates.of()
    for digest in digests(lake).values():
        text, html = templates.text(digest), templates.html(digest)
        assert max(map(len, text.splitlines())) <= WIDTH
        assert "<b>z" not in html
        assert "\u202e" not in text + html
    assert "Unhealthy GPUs" in templates.html(digests(lake)["staff"])


def test_each_is_sent_once(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    configuration = configured(sink.port, dry_run=False)
    for _ in range(3):
        made = sent(lake, tmp_path, configuration)
    assert made == []
    assert sorted(message["To"] for message in sink.messages) == [
        "a@example.org",
        "b@example.org",
        "max@example.org",
    ]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / OPT_OUT_FILE).write_text("max\n")
    assert [record.target for record in sent(lake, tmp_path / "b", configured())] == [
        "a@example.org",
        "b@example.org",
    ]


def test_a_dry_run_and_wrong_addresses(lake: Lake, tmp_path: Path) -> None:
    assert {record.state for record in sent(lake, tmp_path, configured())} == {"would"}
    for staff in ((), ("nobody",)):
        wrong = Configuration(act=ActOptions(digest=("staff",), digest_staff=staff))
        with pytest.raises(ConfigError, match="digest_staff"):
            sent(lake, tmp_path, wrong)
    assert sent(lake, tmp_path, Configuration()) == []


def test_the_same_visibility_as_on_pages() -> None:
    jobs = pl.DataFrame(
        {"user": ["max", "ann", "bob", None], "account": ["other", "physics", "chemistry", None]}
    )
    seen = jobs.filter(visible_to("max", frozenset({"physics"})))
    assert seen.get_column("user").to_list() == ["max", "ann"]


def test_the_command_shows_them(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "managers").write_text("max physics\n")
    (tmp_path / "tachograph.toml").write_text('[serve]\nmanagers = "managers"\n')
    environment = {"TACHOGRAPH_LAKE": lake.location}
    at = ["--as-of", "2026-11-23"]
    assert (
        "Unhealthy GPUs"
        in run_here(
            ["act", "digest", "--staff", *at, "--html", "s.html"], tmp_path, environment
        ).stdout
    )
    assert "gpu03" in (tmp_path / "s.html").read_text()
    shown = run_here(["act", "digest", "--manager", "max", "--json", *at], tmp_path, environment)
    assert json.loads(shown.stdout)["accounts"] == ["physics"]
    assert (
        run_here(["act", "digest", "--manager", "eve", *at], tmp_path, environment).returncode == 6
    )
    assert run_here(["act", "digest", "ann", "--staff", *at], tmp_path, environment).returncode == 2
    assert (
        run_here(
            ["act", "digest", "--staff", "--as-of", "2020-01-01"], tmp_path, environment
        ).returncode
        == 6
    )


_KILLED = """
import os, signal, sys
from pathlib import Path
from tachograph.lake.delta import Lake
from tachograph.annexes.act import mail
import test_group_digests as here
real, sent = mail.MailConnection.send, []
def send(self, *given):
    if len(sent) == 1 and sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    sent.append(real(self, *given))
    if len(sent) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return sent[-1]
mail.MailConnection.send = send
here.sent(Lake.open(sys.argv[1]), Path(sys.argv[2]), here.configured(int(sys.argv[4]), dry_run=False))
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_second_mail_the_others_are_sent_and_none_twice(
    lake: Lake, tmp_path: Path, sink: MailSink, when: str
) -> None:
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", _KILLED, lake.location, str(tmp_path), when, str(sink.port)]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    made = sent(lake, tmp_path, configured(sink.port, dry_run=False))
    assert sorted(record.state for record in made).count("unknown") == 1
    assert sent(lake, tmp_path, configured(sink.port, dry_run=False)) == []
    receivers = [message["To"] for message in sink.messages]
    assert len(receivers) == len(set(receivers)) == 3 - (when == "before")
