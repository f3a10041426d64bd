"""Weekly digests of users, account managers and staff: what each sees, to whom they are sent, and
that each is sent once, also where the program is killed.
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
from tachograph.annexes.act.digest import WIDTH, Digest, DigestTemplates, digest_json, user_digest
from tachograph.annexes.act.digests import (
    due_week,
    group_digests,
    send_digests,
    send_group_digests,
    user_digests,
)
from tachograph.annexes.act.group_digest import GroupDigest
from tachograph.annexes.act.ledger import LEDGER_FILE, ActionLedger, ActionRecord, read_ledger
from tachograph.annexes.act.mail import Mail, Mailer
from tachograph.annexes.act.service import NOTHING_ON
from tachograph.annexes.act.unsubscribe import OPT_OUT_FILE
from tachograph.api.managers import managers_of
from tachograph.catalog.config import (
    ActOptions,
    Configuration,
    MailOptions,
    ServeOptions,
    SiteOptions,
)
from tachograph.catalog.errors import ConfigError, ExportError
from tachograph.judge.usage import USAGE_COLUMNS
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_verdicts, select_jobs

Audience = Literal["users", "managers", "staff"]
WEEK = date(2026, 11, 16)
BEGIN = datetime(2026, 11, 17, 8, tzinfo=UTC)
NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
NASTY = "<b>x</b>\nBcc: eve@example.org\u202etxt"
ZOE = "zoe<b>z</b>\u202e"  # a user without an address
# (user, account, busy GPUs of four, weeks before WEEK) of a job of six hours each
JOBS = (
    ("ann", "physics", 1, 0),
    ("bob", "chemistry", 4, 0),
    (ZOE, "physics", 1, 0),
    ("cid", "biology", 1, 1),
    ("dan", "physics", 4, 1),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The jobs, each on a node of its own; a GPU of bob's fell off the bus."""
    folder = tmp_path_factory.mktemp("digests")
    (folder / "managers").write_text("max physics\nmia empty\nann chemistry\n")
    lake = Lake.create(str(folder / "lake"))
    rows, allocations, samples, devices = [], [], [], []
    for number, (user, account, busy, weeks) in enumerate(JOBS, 1):
        node, begin = f"gpu{number:02}", BEGIN - timedelta(weeks=weeks)
        end = begin + timedelta(hours=6)
        facts = {"cluster": "testing", "user": user, "account": account, "partition": "gpu"}
        facts |= {"name": NASTY, "node_list": node}
        rows.append(job(str(number), begin, end, **facts, gpus=4, timelimit_s=30000.0))
        allocations += held(str(number), node, range(4), begin, end, cluster="testing")
        for gpu in range(4):
            works = gpu < busy
            devices.append({"t": begin, "node": node, "gpu": gpu, "model": "NVIDIA A100-SXM4-80GB"})
            samples += [
                {
                    "t": begin + timedelta(minutes=minute),
                    "node": node,
                    "gpu": gpu,
                    "gpu_util": 0.9 if works else 0.0,
                    "hbm_used_mib": 60000.0 if works else 2.0,
                    "power_w": 300.0 if works else 60.0,
                    "xid": 79 if user == "bob" and gpu == 2 and minute > 300 else 0,
                }
                for minute in range(361)
            ]
    tables = {"jobs": rows, "allocations": allocations, "gpu_samples": samples, "devices": devices}
    fill(lake, tables, now=NOW)
    summarized(lake, now=NOW)
    return lake


@pytest.fixture
def sink() -> Iterator[MailSink]:
    with mail_sink() as one:
        yield one


def configured(
    lake: Lake, port: int, digests: tuple[Audience, ...] = ("users",), *, dry_run: bool = False
) -> Configuration:
    mail = MailOptions(
        f"127.0.0.1:{port}", "none", sender="gpu@example.org", address="{user}@example.org"
    )
    staff = ("a@example.org", "b@example.org")
    receivers = tuple(name for name in digests if name != "staff")
    act = ActOptions(dry_run=dry_run, digest=receivers + staff if "staff" in digests else receivers)
    managers = str(Path(lake.location).parent / "managers")
    return Configuration(mail=mail, act=act, serve=ServeOptions(managers=managers))


def sent(
    lake: Lake, folder: Path, configuration: Configuration, now: datetime = NOW
) -> list[ActionRecord]:
    """What a round does; ZOE, who has no address, is left out of it."""
    with ActionLedger(folder, clock=lambda: NOW) as ledger:
        made = [
            *send_digests(ledger, lake, configuration, now=now),
            *send_group_digests(ledger, lake, configuration, now=now),
        ]
    return [record for record in made if record.target != ZOE]


# -------------------- what each has in it


def test_one_thing_to_change_with_its_hours(lake: Lake) -> None:
    ann, bob, _ = user_digests(lake, Configuration(), WEEK)
    assert (ann.user, ann.jobs, ann.is_worth_sending) == ("ann", 1, True)
    assert ann.change is not None
    assert ann.change.gpu_hours == pytest.approx(18.0, rel=0.02)
    assert ann.lost == pytest.approx(18.0, rel=0.02)
    assert (bob.user, bob.change, bob.is_worth_sending) == ("bob", None, False)
    assert bob.good
    before = user_digests(lake, Configuration(), WEEK - timedelta(weeks=1))
    assert [digest.user for digest in before] == ["cid", "dan"]


def test_a_job_that_lost_hours_to_no_problem_is_not_called_good(lake: Lake) -> None:
    wanted, columns = JobFilter(users=("ann",)), (*USAGE_COLUMNS, "seq", "end")
    jobs = select_jobs(lake, wanted, tuple(dict.fromkeys(columns))).jobs
    findings = read_verdicts(lake, jobs).clear()
    ann = user_digest(jobs, findings, user="ann", week=WEEK)
    assert ann is not None
    assert (round(ann.lost), ann.clean, ann.good) == (18, 0, ())


def of_groups(lake: Lake) -> dict[str, GroupDigest]:
    managers = managers_of(configured(lake, 1).serve)()
    return {one.name: one for one in group_digests(lake, Configuration(), WEEK, managers)}


def test_staff_sees_all_and_a_manager_their_accounts(lake: Lake) -> None:
    found = of_groups(lake)
    assert list(found) == ["staff", "ann", "max"]
    staff, manager = found["staff"], found["max"]
    assert (staff.jobs, manager.jobs) == (3, 2)
    assert staff.gpu_hours == pytest.approx(72, rel=0.02)
    assert manager.lost == pytest.approx(36, rel=0.05)
    assert {one.user for one in manager.users} == {"ann", ZOE}
    assert manager.share == pytest.approx(0.75, rel=0.05)
    assert manager.share_before == pytest.approx(0, abs=0.05)
    assert any(one.is_new for one in manager.problems)
    assert "bob" not in json.dumps([str(one) for one in (manager.users, manager.problems)])
    assert len(staff.sick) == 1
    assert staff.sick[0].startswith("gpu02 GPU 2: ")
    assert "XID 79, GPU has fallen off the bus" in staff.sick[0]
    assert manager.sick == ()
    # ann's own jobs are of an account that she does not manage
    assert (found["ann"].jobs, found["ann"].is_worth_sending) == (1, False)


def test_text_and_html_show_the_same_and_escape_names(lake: Lake) -> None:
    (ann,) = user_digests(lake, Configuration(), WEEK, users=["ann"])
    templates, groups = DigestTemplates.of(), of_groups(lake)
    digests: tuple[Digest, ...] = (ann, *groups.values())
    for digest in digests:
        text, html = templates.text(digest), templates.html(digest)
        assert max(map(len, text.splitlines())) <= WIDTH
        assert "<b>" not in html
        for shown in (text, html):
            assert "\u202e" not in shown
            assert "\nBcc" not in shown
    for shown in (templates.text(ann), templates.html(ann)):
        assert "18.0 GPU-hours" in shown
        assert not [other for other in ("bob", "cid", "dan", "zoe") if other in shown]
    assert "Unhealthy GPUs" in templates.html(groups["staff"])
    assert ann.change is not None
    assert digest_json(ann)["change"]["code"] == ann.change.code


# -------------------- each sent once


def test_each_is_sent_once_to_its_user_alone(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    for _ in range(3):
        sent(lake, tmp_path, configured(lake, sink.port))
    (message,) = sink.messages
    assert message["To"] == "ann@example.org"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["List-Unsubscribe"] == "<mailto:gpu@example.org?subject=unsubscribe>"
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.walk()][1:] == ["text/plain", "text/html"]
    records = {record.key: record for record in read_ledger(tmp_path)}
    done, failed = (records[f"digest:2026-W47:{user}"] for user in ("ann", ZOE))
    assert (done.state, done.result) == ("done", message["Message-ID"])
    assert (failed.state, failed.attempt) == ("failed", 1)
    assert "no address of this user is known" in failed.result


def test_each_of_a_group_is_sent_once(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    for _ in range(3):
        made = sent(lake, tmp_path, configured(lake, sink.port, ("managers", "staff")))
    assert made == []
    staff = ["a@example.org", "b@example.org"]
    assert sorted(message["To"] for message in sink.messages) == [*staff, "max@example.org"]


def test_a_dry_run_sends_nothing(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    dry = configured(lake, sink.port, ("users", "staff"), dry_run=True)
    made = sent(lake, tmp_path, dry)
    assert [record.target for record in made] == ["ann", "a@example.org", "b@example.org"]
    assert {record.state for record in made} == {"would"}
    assert sent(lake, tmp_path, dry) == []
    assert sink.messages == []
    live = sent(lake, tmp_path, configured(lake, sink.port))
    assert [record.state for record in live] == ["done"]
    assert sent(lake, tmp_path, Configuration()) == []


def test_who_opted_out_gets_none(lake: Lake, tmp_path: Path, sink: MailSink) -> None:
    configuration = configured(lake, sink.port, ("users", "managers"))
    (tmp_path / OPT_OUT_FILE).write_text("ann\nmax\n")
    assert sent(lake, tmp_path, configuration) == []
    (tmp_path / OPT_OUT_FILE).write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match="the list of users without digests"):
        sent(lake, tmp_path, configuration)
    assert sink.messages == []


def test_a_server_that_is_down_uses_up_no_attempt(
    lake: Lake, tmp_path: Path, sink: MailSink
) -> None:
    for _ in range(7):
        with pytest.raises(ExportError, match="no connection"):
            sent(lake, tmp_path, configured(lake, 1))
    made = sent(lake, tmp_path, configured(lake, sink.port))
    assert [record.state for record in made] == ["done"]


def test_addresses_of_staff_are_checked(lake: Lake, tmp_path: Path) -> None:
    wrong = Configuration(act=ActOptions(digest=("ops@example.org, nobody",)))
    with pytest.raises(ConfigError, match=r"act\.digest: .* is not an address"):
        sent(lake, tmp_path, wrong)


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
    mailer = Mailer.of(
        MailOptions("h", "none", sender="gpu@example.org", address="{user}@example.org")
    )
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
from tachograph.lake.delta import Lake
from tachograph.annexes.act import mail
import test_digests as here
lake, state, when, port, nth, *audiences = sys.argv[1:]
real, sent = mail.MailConnection.send, []
def send(self, *given):
    sent.append(given)
    if len(sent) == int(nth) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(self, *given)
    if len(sent) == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
    return result
mail.MailConnection.send = send
lake = Lake.open(lake)
here.sent(lake, Path(state), here.configured(lake, int(port), tuple(audiences)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("audiences", "nth", "mails"), [(("users",), 1, 1), (("managers", "staff"), 2, 3)]
)
def test_killed_around_the_sending_the_others_are_sent_and_none_twice(
    lake: Lake,
    tmp_path: Path,
    sink: MailSink,
    when: str,
    audiences: tuple[Audience, ...],
    nth: int,
    mails: int,
) -> None:
    words = [lake.location, str(tmp_path), when, str(sink.port), str(nth), *audiences]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    killed = subprocess.run([sys.executable, "-c", _KILLED, *words], env=environment, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert read_ledger(tmp_path)[-1].state == "begun"
    configuration = configured(lake, sink.port, audiences)
    made = sent(lake, tmp_path, configuration)
    assert sorted(record.state for record in made) == ["done"] * (mails - nth) + ["unknown"]
    assert sent(lake, tmp_path, configuration) == []
    receivers = [message["To"] for message in sink.messages]
    assert len(receivers) == len(set(receivers)) == mails - (when == "before")


# -------------------- the commands


def test_a_week_without_jobs_names_the_newest(lake: Lake, tmp_path: Path) -> None:
    for words in (
        ["act", "digest", "ann", "--as-of", "2026-12-30"],
        ["advise", "--name", "train", "--user", "nobody"],
    ):
        done = run_here([*words, "--lake", lake.location], tmp_path, {})
        assert "he newest of 5 jobs began 2026-11-17" in f"{done.stdout}{done.stderr}"


def test_the_service_acts_in_rounds(lake: Lake, tmp_path: Path) -> None:
    """The commands: a dry run by default, `--ledger`, a step that fails, the status file."""
    environment = {
        "TACHOGRAPH_LAKE": lake.location,
        "TACHOGRAPH_COLLECT_STATE": str(tmp_path / "state"),
    }
    off = run_here(["act", "--once"], tmp_path, environment)
    assert (off.returncode, off.stdout) == (0, f"dry run: nothing to do: {NOTHING_ON}\n")
    status = json.loads((tmp_path / "state" / "act-status.json").read_text())
    assert (status["dry_run"], status["steps"][-1]["step"]) == (True, "ledger")
    assert (
        run_here(["act", "--ledger"], tmp_path, environment).stdout == "No action was taken yet.\n"
    )
    sent(lake, tmp_path / "state", configured(lake, 1, dry_run=True))
    listed = run_here(["act", "--ledger", "--json"], tmp_path, environment)
    assert [one["target"] for one in json.loads(listed.stdout)] == ["ann", ZOE]
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
    assert shown.stdout.splitlines()[-1] == "2026-W47: 2 digests of 3 users"
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


def test_the_command_shows_digests_of_groups(lake: Lake, tmp_path: Path) -> None:
    managers = Path(lake.location).parent / "managers"
    (tmp_path / "tachograph.toml").write_text(f'[serve]\nmanagers = "{managers}"\n')

    def digest(*words: str) -> subprocess.CompletedProcess[str]:
        given = ["act", "digest", "--as-of", "2026-11-23", *words]
        return run_here(given, tmp_path, {"TACHOGRAPH_LAKE": lake.location})

    assert "Unhealthy GPUs" in digest("--staff", "--html", "s.html").stdout
    assert "gpu02" in (tmp_path / "s.html").read_text()
    assert json.loads(digest("--manager", "max", "--json").stdout)["accounts"] == ["physics"]
    assert digest("--manager", "eve").returncode == 6
    assert digest("ann", "--staff").returncode == 2
    assert digest("--staff", "--as-of", "2020-01-01").returncode == 6
