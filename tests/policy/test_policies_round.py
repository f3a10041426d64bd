"""Policies in rounds: warnings, receivers, dry runs, what is down; Slurm's answers are files of
its output.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hung_lake import hung_lake

from in_process import run_here
from jobframes import job_row
from servers.mail_sink import mail_sink
from servers.process import free_port
from servers.webhook import webhook_receiver
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord, read_ledger
from tachograph.annexes.act.policies import apply_policies, policy_cases
from tachograph.annexes.act.policy_report import warning_mail
from tachograph.annexes.act.slurm_jobs import QUEUE_FIELDS, SlurmJobs
from tachograph.catalog.config import ActOptions, Configuration, MailOptions, WebhookOptions, load
from tachograph.catalog.errors import ConfigError, ExportError, InputError, RefusedError
from tachograph.catalog.policies import PolicyOptions
from tachograph.lake.delta import Lake

START = datetime(2026, 11, 20, 8, tzinfo=UTC)
NOW = START + timedelta(minutes=51)
POLICY = PolicyOptions("p", "hung", "mail", dry_run=False, minutes=10)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that all tests read and none changes."""
    return hung_lake(tmp_path_factory.mktemp("hung") / "lake", 7, START)


def queue_line(**values: str) -> str:
    """A line of `squeue --Format` of a running job, with some values replaced."""
    known = {
        "State": "RUNNING",
        "StartTime": f"{START.timestamp():.0f}",
        "RestartCnt": "0",
        "BatchFlag": "1",
    }
    known |= {
        "ArrayTaskID": "N/A",
        "HetJobID": "N/A",
        "HetJobOffset": "N/A",
        "UserName": "daemon",
        **values,
    }
    return (
        "".join(known.get(field, "").ljust(width) for field, width in QUEUE_FIELDS.items()) + "\n"
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of which `squeue` prints the file `queue`: of fixed width, as it was recorded."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "queue").write_text(queue_line(JobID="7"))
    before = programs / "of-site"
    before.write_text(
        '#!/bin/sh\nwhile case "$1" in env|*=*) true;; *) false;; esac; do shift; done\n'
        f'echo "$@" >> {programs}/calls\n[ "$1" = squeue ] && cat {programs}/queue\n'
        f'[ "$1" = scancel ] && : > {programs}/queue\nexit 0\n'
    )
    before.chmod(0o755)
    return programs


def configured(
    site: Path, *policies: PolicyOptions, port: int = 25, url: str = "", **act: bool
) -> Configuration:
    return Configuration(
        act=msgspec.structs.replace(
            ActOptions(dry_run=False, slurm_before=(str(site / "of-site"),)), **act
        ),
        policy=policies,
        mail=MailOptions(
            host=f"127.0.0.1:{port}",
            tls="none",
            sender="gpu@example.org",
            address="{user}@example.org",
        ),
        webhook=(WebhookOptions("staff", url=url),) if url else (),
    )


def applied(
    lake: Lake, state: Path, configuration: Configuration, now: datetime = NOW
) -> list[ActionRecord]:
    with ActionLedger(state, clock=lambda: now) as ledger:
        return apply_policies(ledger, lake, configuration, now=now)


def test_a_mail_is_sent_once(lake: Lake, site: Path, tmp_path: Path) -> None:
    with mail_sink() as sink:
        configuration = configured(site, POLICY, port=sink.port)
        (made,) = applied(lake, tmp_path / "state", configuration)
        assert (made.state, made.target) == ("done", "daemon")
        assert applied(lake, tmp_path / "state", configuration, NOW + timedelta(minutes=5)) == []
        (message,) = sink.messages
        assert message["Subject"] == "Job 7 has stopped working and seems to hang"
        payload = str(message.get_payload())
        assert payload.startswith("Your job 7 (train) has stopped working and seems to hang.\n")
        assert "cancelled" not in payload
    assert (site / "calls").read_text().count("squeue") == 1


def test_while_the_mail_server_is_down_other_policies_act(
    lake: Lake, site: Path, tmp_path: Path
) -> None:
    note = PolicyOptions("n", "hung", dry_run=False, minutes=10)
    configuration = configured(site, POLICY, note, port=free_port())
    with pytest.raises(ExportError, match="mail server"):
        applied(lake, tmp_path / "state", configuration)
    assert [(one.kind, one.state) for one in read_ledger(tmp_path / "state")] == [
        ("note", "begun"),
        ("note", "done"),
    ]


def test_warnings_keep_their_distance_and_dry_runs_count_for_nothing(
    lake: Lake, site: Path, tmp_path: Path
) -> None:
    policy = PolicyOptions(
        "p", "hung", "cancel", dry_run=False, minutes=10, warnings=2, warning_minutes=10
    )
    dry = msgspec.structs.replace(policy, dry_run=True)
    state = tmp_path / "state"
    kinds = [
        [
            (one.kind, one.state)
            for one in applied(lake, state, configured(site, dry), NOW + timedelta(minutes=later))
        ]
        for later in (0, 5, 10, 20, 25)
    ]
    assert kinds == [[("mail", "would")], [], [("mail", "would")], [("cancel", "would")], []]
    with mail_sink() as sink:
        real = configured(site, policy, port=sink.port)
        for later, expected in ((0, ["mail"]), (5, []), (10, ["mail"]), (20, ["cancel"])):
            made = applied(lake, state, real, NOW + timedelta(minutes=later))
            assert [one.kind for one in made] == expected, later
        assert "you get 1 further warning, and then it is cancelled" in str(
            sink.messages[0].get_payload()
        ).replace("\n", " ")
    assert (site / "calls").read_text().count("scancel") == 1


def test_a_receiver_gets_the_case(lake: Lake, site: Path, tmp_path: Path) -> None:
    policy = PolicyOptions(
        "tell-staff", "hung", "webhook", dry_run=False, minutes=10, webhook="staff"
    )
    with webhook_receiver() as receiver:
        configuration = configured(site, policy, url=receiver.url)
        receiver.status = 503
        (failed,) = applied(lake, tmp_path / "state", configuration)
        assert (failed.state, failed.attempt) == ("failed", 0)
        receiver.status = 200
        (made,) = applied(lake, tmp_path / "state", configuration, NOW + timedelta(minutes=11))
        assert made.state == "done"
        content = receiver.received[-1].content
    assert content["code"] == "policy"
    assert content["alerts"][0]["labels"]["policy"] == "tell-staff"
    assert "4 GPUs did no work" in content["alerts"][0]["sentence"]


def test_what_slurm_says_now_decides(lake: Lake, site: Path, tmp_path: Path) -> None:
    cancel = PolicyOptions("p", "hung", "cancel", dry_run=False, minutes=10, warnings=0)
    changes = (
        {"State": "SUSPENDED"},
        {"StartTime": f"{START.timestamp() + 60:.0f}"},
        {"UserName": "nobody"},
        {"BatchFlag": "0"},
        {"HetJobID": "6", "HetJobOffset": "1"},
        {"JobID": "8"},
    )
    for change in changes:
        (site / "queue").write_text(queue_line(**{"JobID": "7", **change}))
        assert applied(lake, tmp_path / "state", configured(site, cancel)) == [], change
    (site / "of-site").write_text("#!/bin/sh\necho down >&2\nexit 1\n")
    with pytest.raises(InputError, match="squeue"):
        applied(lake, tmp_path / "state", configured(site, cancel))
    assert not read_ledger(tmp_path / "state")
    (would,) = applied(lake, tmp_path / "state", configured(site, cancel, dry_run=True))
    assert would.why.endswith("Slurm was not asked whether it is interactive or in a reservation.")


@pytest.mark.parametrize(
    "word", ["7.0", "7_[0-2]", "7,8", "-u daemon", "--user=daemon", "0", "7\n8", "$(id)"]
)
def test_a_word_that_is_no_job_is_part_of_no_command(site: Path, word: str) -> None:
    with pytest.raises(RefusedError, match=r"invalid job: .*; nothing was run"):
        SlurmJobs((str(site / "of-site"),)).job(word, None)
    assert not (site / "calls").exists()


@pytest.mark.parametrize("job_id", ["7_[0-2]", "--user=daemon"])
def test_a_record_with_a_word_that_slurm_does_not_have_is_refused(
    site: Path, tmp_path: Path, job_id: str
) -> None:
    cancel = PolicyOptions("p", "hung", "cancel", dry_run=False, minutes=10, warnings=0)
    lake = hung_lake(tmp_path / "lake", job_id, START)
    (record,) = applied(lake, tmp_path / "state", configured(site, cancel))
    assert record.state == "refused"
    assert record.result.startswith("invalid job: ")
    assert record.result.endswith("; nothing was run")
    assert (
        applied(lake, tmp_path / "state", configured(site, cancel), NOW + timedelta(minutes=11))
        == []
    )
    assert not (site / "calls").exists()


def test_old_results_and_other_jobs_are_no_cases(lake: Lake, site: Path) -> None:
    configuration = configured(site, POLICY)
    assert [isinstance(case.found, str) for case in policy_cases(lake, configuration, now=NOW)] == [
        False
    ]
    assert list(policy_cases(lake, configuration, now=NOW + timedelta(hours=1))) == []


def test_a_busy_job_is_no_case(site: Path, tmp_path: Path) -> None:
    lake = hung_lake(tmp_path / "busy", 7, START, course="W" * 50)
    (case,) = policy_cases(lake, configured(site, POLICY), now=NOW)
    assert case.found == "it is not judged job_hang"
    assert (
        applied(Lake.create(str(tmp_path / "new")), tmp_path / "state", configured(site, POLICY))
        == []
    )


# -------------------------------------------------------------------------------------------------- files and commands


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('name = "a:b"', "no name"),
        ("minutes = 5", "minutes is below 10"),
        ('action = "webhook"', "is no receiver"),
        ('action = "drain"', "only failing_gpu"),
        ("warnings = -1", "warnings is -1; write a number from 0"),
        ('action = "reboot"', "cannot be 'reboot'"),
        ('exempt_user = ["ann"]', "unknown field"),
        ('check = "failing_gpu"\ngpu_hours = 2', "gpu_hours"),
    ],
)
def test_wrong_policies_are_refused(line: str, message: str, tmp_path: Path) -> None:
    keys = {"name": '"p"', "check": '"hung"'} | {
        part.split(" = ")[0]: part.split(" = ", 1)[1] for part in line.split("\n")
    }
    file = tmp_path / "tachograph.toml"
    file.write_text("[[policy]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()))
    with pytest.raises(ConfigError, match=message):
        load(str(file))


def test_the_written_configuration_takes_policies_and_receivers(tmp_path: Path) -> None:
    run_here(["init"], tmp_path, {})
    with (tmp_path / "tachograph.toml").open("a") as file:
        file.write(
            '[[policy]]\nname = "p"\ncheck = "hung"\n[[webhook]]\nname = "w"\nurl = "http://h"\n'
        )
    assert [one.name for one in load(str(tmp_path / "tachograph.toml")).policy] == ["p"]


def test_commands(lake: Lake, site: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'lake = "{lake.location}"\n[collect]\nstate = "{tmp_path}/state"\n[act]\nslurm_before = ["{site}/of-site"]\n'
        '[[policy]]\nname = "p"\ncheck = "hung"\naction = "cancel"\nminutes = 10\n'
    )
    words = ["--config", str(config)]
    shown = run_here(["act", "policy", "check", *words], tmp_path, {})
    assert shown.stdout.startswith(
        "p: Cancel a job that is hung in two windows of 10 min, after 1 warning; a dry run.\n"
    )
    assert (
        run_here(["act", "policy", "status", *words], tmp_path, {}).stdout
        == "No policy has acted yet.\n"
    )
    assert "0 jobs of 0" in run_here(["act", "policy", "backtest", *words], tmp_path, {}).stdout
    assert run_here(["act", "policy", "check", "q", *words], tmp_path, {}).returncode == 3
    found = json.loads(
        run_here(["act", "policy", "backtest", "--json", *words], tmp_path, {}).stdout
    )
    assert found[0]["hits"] == 0
    none = run_here(["act", "policy", "check", "--lake", lake.location], tmp_path, {})
    assert "no policy is configured" in none.stderr


@pytest.mark.parametrize("check", ["hung", "held_idle"])
def test_mails_name_commands_of_slurm_for_jobs_of_slurm_alone(
    check: Literal["hung", "held_idle"],
) -> None:
    policy = PolicyOptions("p", check, "mail", dry_run=False, minutes=10, warnings=0)
    for job_id, is_named in (("7", True), ("7.pbs", False), ("train.ml", False)):
        row = job_row(job_id=job_id, display_id=job_id, name=None, job_key="k")
        text = warning_mail(policy, row, "It did nothing.", number=0).text
        assert (f"(scancel {job_id})" in text) == is_named
        assert ("scancel" in text) == is_named
