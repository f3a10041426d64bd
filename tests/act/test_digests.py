"""Weekly digests: their content, to whom they are sent, and that each is sent once, also where
it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from in_process import run_here
from madelake import fill, held, job, summarized
from servers.mail_sink import MailSink, mail_sink
from tachograph.annexes.act.digest import WIDTH, DigestTemplates, digest_json, user_digest
from tachograph.annexes.act.digests import OPT_OUT_FILE, due_week, send_digests, user_digests
from tachograph.annexes.act.ledger import LEDGER_FILE, ActionLedger, ActionRecord, read_ledger
from tachograph.annexes.act.mail import Mail, Mailer
from tachograph.catalog.config import ActOptions, Configuration, MailOptions, SiteOptions
from tachograph.catalog.errors import ConfigError, ExportError
from tachograph.judge.usage import USAGE_COLUMNS
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_verdicts, select_jobs

WEEK = date(2026, 11, 16)
BEGIN = datetime(2026, 11, 17, 8, tzinfo=UTC)
NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
NASTY = "<b>x</b>\nBcc: eve@example.org\u202etxt"


def clock() -> datetime:
    return NOW


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """ann used one of four GPUs for six hours; bob all of them; cid's job ended the week before."""
    folder = tmp_path_factory.mktemp("digests") / "lake"
    lake = Lake.create(str(folder))
    rows, allocations, samples, devices = [], [], [], []
    for number, (user, busy, begin) in enumerate(
        [("ann", 1, BEGIN), ("bob", 4, BEGIN), ("cid", 1, BEGIN - timedelta(weeks=1))], 1
    ):
        node, end = f"gpu{number:02}", begin + timedelta(hours=6)
        facts = {
            "cluster": "testing",
            "user": user,
            "account": "physics",
            "partition": "gpu",
            "name": NASTY,
        }
        rows.append(
            job(str(number), begin, end, **facts, gpus=4, node_list=node, timelimit_s=30000.0)
        )
        allocations += held(str(number), node, range(4), begin, end, cluster="testing")
        devices += [
            {"t": begin, "node": node, "gpu": gpu, "model": "NVIDIA A100-SXM4-80GB"}
            for gpu in range(4)
        ]
        samples += [
            {
                "t": begin + timedelta(minutes=place),
                "node": node,
                "gpu": gpu,
                "gpu_util": 0.9 if gpu < busy else 0.0,
                "hbm_used_mib": 60000.0 if gpu < busy else 2.0,
                "power_w": 300.0 if gpu < busy else 60.0,
            }
            for place in range(361)
            for gpu in range(4)
        ]
    fill(
        lake,
        {"jobs": rows, "allocations": allocations, "gpu_samples": samples, "devices": devices},
        now=NOW,
    )
    summarized(lake, now=NOW)
    return lake


@pytest.fixture
def sink() -> Iterator[MailSink]:
    with mail_sink() as one:
        yield one


def configured(port: int, *, dry_run: bool = False) -> Configuration:
    mail = MailOptions(
        f"127.0.0.1:{port}", "none", sender="gpu@example.org", address="{user}@example.org"
    )
    return Configuration(mail=mail, act=ActOptions(dry_run=dry_run, digest=("users",)))


def sent(
    lake: Lake, folder: Path, configuration: Configuration, now: datetime = NOW
) -> list[ActionRecord]:
    with ActionLedger(folder, clock=clock) as ledger:
        return send_digests(ledger, lake, configuration, folder=folder, now=now)


def test_one_thing_to_change_with_its_hours(lake: Lake) -> None:
    ann, bob = user_digests(lake, Configuration(), WEEK)
    assert (ann.user, ann.jobs, ann.change is not None, ann.is_worth_sending) == (
        "ann",
        1,
        True,
        True,
    )
    assert ann.change is not None
    assert ann.change.gpu_hours == pytest.approx(18.0, rel=0.02)
    assert ann.lost == pytest.approx(18.0, rel=0.02)
    assert (bob.user, bob.change, bob.is_worth_sending) == ("bob", None, False)
    assert bob.good
    (cid,) = user_digests(lake, Configuration(), WEEK - timedelta(weeks=1))
    assert cid.user == "cid"


def test_a_job_that_lost_hours_to_no_problem_is_not_called_good(lake: Lake) -> None:
    wanted, columns = JobFilter(users=("ann",)), (*USAGE_COLUMNS, "seq", "end")
    jobs = select_jobs(lake, wanted, tuple(dict.fromkeys(columns))).jobs
    findings = read_verdicts(lake, jobs).clear()
    ann = user_digest(jobs, findings, user="ann", week=WEEK)
    assert ann is not None
    assert (round(ann.lost), ann.clean, ann.good) == (18, 0, ())


def test_a_week_without_jobs_names_the_newest(lake: Lake, tmp_path: Path) -> None:
    for words in (
        ["act", "digest", "ann", "--as-of", "2026-12-30"],
        ["advise", "--name", "train", "--user", "nobody"],
    ):
        done = run_here([*words, "--lake", lake.location], tmp_path, {})
        assert "he newest of 3 jobs began 2026-11-17" in f"{done.stdout}{done.stderr}"


def test_text_and_html_show_the_same_and_escape_names(lake: Lake) -> None:
    (ann,) = user_digests(lake, Configuration(), WEEK, users=["ann"])
    templates = DigestTemplates.of()
    text, html = templates.text(ann), templates.html(ann)
    assert max(map(len, text.splitlines())) <= WIDTH
    for shown in (text, html):
        assert "18.0 GPU-hours" in shown
        assert "\u202e" not in shown
        assert "\nBcc" not in shown
        assert "bob" not in shown
        assert "cid" not in shown
    assert "<b>x</b>" not in html
    assert ann.change is not None
    assert digest_json(ann)["change"]["code"] == ann.change.code


def test_each_is_sent_once_to_its_user_alone(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    configuration = configured(sink.port)
    for _ in range(3):
        sent(lake, tmp_path, configuration)
    (message,) = sink.messages
    assert message["To"] == "ann@example.org"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["List-Unsubscribe"] == "<mailto:gpu@example.org?subject=unsubscribe>"
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.walk()][1:] == ["text/plain", "text/html"]
    done = read_ledger(tmp_path)[-1]
    assert (done.key, done.state, done.result) == (
        "digest:2026-W47:ann",
        "done",
        message["Message-ID"],
    )


def test_a_dry_run_sends_nothing(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    made = sent(lake, tmp_path, configured(sink.port, dry_run=True))
    assert [(record.target, record.state) for record in made] == [("ann", "would")]
    assert sent(lake, tmp_path, configured(sink.port, dry_run=True)) == []
    assert sink.messages == []
    assert [record.state for record in sent(lake, tmp_path, configured(sink.port))] == ["done"]


def test_who_opted_out_gets_none(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    (tmp_path / OPT_OUT_FILE).write_text("ann\n")
    assert sent(lake, tmp_path, configured(sink.port)) == []
    (tmp_path / OPT_OUT_FILE).write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match="the list of users without digests"):
        sent(lake, tmp_path, configured(sink.port))
    assert sink.messages == []


def test_a_server_that_is_down_uses_up_no_attempt(
    lake: Lake, tmp_path: Path, sink: MailSink
) -> None:
    for _ in range(7):
        with pytest.raises(ExportError, match="no connection"):
            sent(lake, tmp_path, configured(1))
    assert [record.state for record in sent(lake, tmp_path, configured(sink.port))] == ["done"]


def test_not_before_day_and_hour() -> None:
    configuration = Configuration(site=SiteOptions(time_zone="Europe/Berlin"))
    assert due_week(datetime(2026, 11, 23, 5, 59, tzinfo=UTC), configuration) is None
    assert due_week(datetime(2026, 11, 23, 6, 0, tzinfo=UTC), configuration) == WEEK
    assert due_week(datetime(2026, 11, 29, 3, 0, tzinfo=UTC), configuration) == WEEK


@pytest.mark.parametrize(
    ("host", "tls", "place"),
    [
        ("mail.example.org", "tls", ("mail.example.org", 465)),
        ("mail.example.org", "starttls", ("mail.example.org", 587)),
        ("mail.example.org:2525", "none", ("mail.example.org", 2525)),
        ("mail.example.org:65535", "none", ("mail.example.org", 65535)),
        ("::1", "none", ("::1", 25)),
        ("[::1]:26", "none", ("::1", 26)),
    ],
)
def test_a_port_stands_behind_the_host(
    host: str, tls: Literal["starttls", "tls", "none"], place: object
) -> None:
    mailer = Mailer.of(MailOptions(host, tls, sender="a@b"))
    assert (mailer.host, mailer.port) == place


def test_headers_cannot_be_injected() -> None:
    mailer = Mailer.of(configured(25).mail)
    message = mailer.message(Mail("ann@example.org", NASTY * 9, "text"), "key")
    assert message["Bcc"] is None
    assert b"\nBcc" not in message.as_bytes()
    assert (
        message["Message-ID"]
        == mailer.message(Mail("ann@example.org", "", ""), "key")["Message-ID"]
    )
    for user in ("ann\nBcc: eve", "ann, eve@example.org", "", "ann eve"):
        with pytest.raises(ExportError, match="no address"):
            mailer.address(user)


def test_the_configuration_of_mail_is_checked(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("x")
    secret.chmod(0o644)
    for wrong, key in (
        (MailOptions(), "host"),
        (MailOptions("h", sender="nobody"), "sender"),
        *((MailOptions(f"h:{port}", sender="a@b"), "host") for port in ("x", "0", "65536")),
        (MailOptions("h", sender="a@b", address="{user}"), "address"),
        (MailOptions("h", sender="a@b", tls="none", user="ann"), "user"),
        (MailOptions("h", sender="a@b", user="ann", password_file=str(secret)), "password_file"),
        (MailOptions("h", sender="a@b", addresses=str(tmp_path / "absent")), "addresses"),
    ):
        with pytest.raises(ConfigError, match=f"mail.{key}"):
            Mailer.of(wrong)


_KILLED = """
import os, signal, sys
from pathlib import Path
from datetime import datetime, UTC
from tachograph.catalog.config import load
from tachograph.lake.delta import Lake
from tachograph.annexes.act import digests, mail
from tachograph.annexes.act.ledger import ActionLedger
real = mail.MailConnection.send
def send(self, *given):
    if sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, *given)
    os.kill(os.getpid(), signal.SIGKILL)
mail.MailConnection.send = send
now = datetime(2026, 11, 23, 9, tzinfo=UTC)
with ActionLedger(Path(sys.argv[2]), clock=lambda: now) as ledger:
    digests.send_digests(ledger, Lake.open(sys.argv[1]), load(sys.argv[4]), folder=Path(sys.argv[2]), now=now)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_sending_no_digest_comes_twice(
    lake: Lake, tmp_path: Path, sink: MailSink, when: str
) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text(
        f'[mail]\nhost = "127.0.0.1:{sink.port}"\ntls = "none"\nsender = "gpu@example.org"\n'
        'address = "{user}@example.org"\n[act]\ndry_run = false\ndigest = ["users"]\n'
    )
    state = tmp_path / "state"
    command = [sys.executable, "-c", _KILLED, lake.location, str(state), when, str(file)]
    killed = subprocess.run(command, env=dict(os.environ), timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert (state / LEDGER_FILE).read_bytes().count(b"\n") == 1
    made = sent(lake, state, configured(sink.port))
    assert [record.state for record in made] == ["unknown"]
    assert sent(lake, state, configured(sink.port)) == []
    assert len(sink.messages) == (when == "after")


def test_the_service_acts_in_rounds(lake: Lake, tmp_path: Path) -> None:
    """The commands: a dry run by default, `--ledger`, a step that fails, the status file."""
    environment = {
        "TACHOGRAPH_LAKE": lake.location,
        "TACHOGRAPH_COLLECT_STATE": str(tmp_path / "state"),
    }
    off = run_here(["act", "--once"], tmp_path, environment)
    assert (off.returncode, off.stdout) == (0, "dry run: nothing to do\n")
    status = json.loads((tmp_path / "state" / "act-status.json").read_text())
    assert (status["dry_run"], status["steps"][-1]["step"]) == (True, "ledger")
    assert (
        run_here(["act", "--ledger"], tmp_path, environment).stdout == "No action was taken yet.\n"
    )
    sent(lake, tmp_path / "state", configured(1, dry_run=True))
    listed = run_here(["act", "--ledger", "--json"], tmp_path, environment)
    assert [one["target"] for one in json.loads(listed.stdout)] == ["ann"]
    (tmp_path / "state" / LEDGER_FILE).write_text("no action\n")
    broken = run_here(["act", "--once", "--json"], tmp_path, environment)
    assert broken.returncode == 7
    assert "is not an action" in json.loads(broken.stdout)["steps"][0]["problem"]


def test_digest_shows_and_opts_out(lake: Lake, tmp_path: Path) -> None:
    environment = {
        "TACHOGRAPH_LAKE": lake.location,
        "TACHOGRAPH_COLLECT_STATE": str(tmp_path / "state"),
    }
    shown = run_here(["act", "digest", "--as-of", "2026-11-23"], tmp_path, environment)
    assert shown.stdout.splitlines()[-1] == "2026-W47: 1 digest of 2 users"
    one = run_here(
        ["act", "digest", "--preview", "ann", "--as-of", "2026-11-23", "--html", "a.html"],
        tmp_path,
        environment,
    )
    assert "One thing to change" in one.stdout
    assert "<h2" in (tmp_path / "a.html").read_text()
    absent = run_here(["act", "digest", "eve", "--as-of", "2026-11-23"], tmp_path, environment)
    assert absent.returncode == 6
    assert (
        run_here(["act", "digest", "--opt-out", "ann"], tmp_path, environment).stdout
        == "ann gets no digests\n"
    )
    assert (tmp_path / "state" / OPT_OUT_FILE).read_text() == "ann\n"
    assert (
        run_here(["act", "digest", "--opt-in", "ann"], tmp_path, environment).stdout
        == "ann gets digests\n"
    )
    assert (tmp_path / "state" / OPT_OUT_FILE).read_text() == ""
