"""After a job on a real Slurm: its summary in AdminComment, the report in the mail of Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from job_lake import job_lake
from slurm_client import LUA

from in_process import run_here
from servers.mail_sink import MailSink, mail_sink
from servers.slurm import SlurmCluster
from tachograph.annexes.act.comments import KIND
from tachograph.annexes.act.ledger import read_ledger
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.report.job_comment import read_comment

pytestmark = pytest.mark.slow


# How many tests need a job that has ended.
ENDED = 4


@pytest.fixture(scope="module")
def ended_jobs(slurm: SlurmCluster) -> Iterator[int]:
    """Jobs that have ended, each for one test."""
    return iter(slurm.ended_jobs(ENDED, "--job-name=train"))


@pytest.fixture
def ended(ended_jobs: Iterator[int]) -> int:
    """A job that has ended, and that no other test has."""
    return next(ended_jobs)


def ended_lake(slurm: SlurmCluster, job: int, folder: Path) -> Lake:
    """A lake with a job of the cluster, which the accounting has at the times of the lake."""
    lake = job_lake(folder, job, hosts=True)
    (row,) = read_summaries(lake, ("submit", "start", "end")).iter_rows(named=True)
    times = ", ".join(f"time_{name}={int(time.timestamp())}" for name, time in row.items())
    change = f"update slurm_acct_db.testing_job_table set {times} where id_job={job}"
    client = ["mariadb", "--no-defaults", f"--socket={slurm.plan.database_socket}", "-e", change]
    subprocess.run(client, check=True, timeout=60)
    return lake


def comment_of(slurm: SlurmCluster, job: int) -> str:
    return slurm.command("sacct", "-X", "-n", "-P", "-o", "AdminComment", "-j", str(job)).strip()


def set_comment(slurm: SlurmCluster, job: int, comment: str) -> None:
    slurm.command(
        "sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", f"AdminComment={comment}"
    )


def tachograph(
    slurm: SlurmCluster, lake: Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        **slurm.environment,
        "TACHOGRAPH_LAKE": str(lake),
        **more,
    }
    return run_here([*words, "--no-color"], lake.parent, environment)


def test_after_a_job_the_accounting_has_its_summary(
    slurm: SlurmCluster, ended: int, tmp_path: Path
) -> None:
    ended_lake(slurm, ended, tmp_path / "lake")
    recorded = tmp_path / "partitions.txt"
    recorded.write_text(slurm.command("scontrol", "show", "partition"))
    url = {
        "TACHOGRAPH_SERVE_URL": "https://tachograph.example.org/gpu",
        "TACHOGRAPH_SLURM_PARTITIONS_FILE": str(recorded),
    }
    shown = tachograph(slurm, tmp_path / "lake", "act", "comment", "--json", **url)
    assert comment_of(slurm, ended) == ""  # a dry run
    done = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write", **url)
    assert (done.returncode, done.stdout) == (0, "1 comment written, 0 failed\n")
    summary = read_comment(comment_of(slurm, ended))
    assert summary is not None
    assert [summary] == [one["summary"] for one in json.loads(shown.stdout)]
    assert summary["tachograph"]["next_time"] == "--gpus=1 --time=01:15:00 --mem=12G"
    assert summary["tachograph"]["link"].startswith("https://tachograph.example.org/gpu/job/")
    assert summary["nodes"]["gpu01"]["gpu_utilization"] == {"0": 90.0, "1": 0.0, "2": 0.0, "3": 0.0}
    again = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write", **url)
    assert again.stdout == "0 comments written, 0 failed\n"
    lines = read_ledger(tmp_path / "lake" / "_collect")
    assert [(line.state, line.kind, line.target) for line in lines] == [
        ("begun", "comment", f"job {ended}"),
        ("done", "comment", f"job {ended}"),
    ]


def test_a_comment_of_somebody_else_stays(slurm: SlurmCluster, ended: int, tmp_path: Path) -> None:
    ended_lake(slurm, ended, tmp_path / "lake")
    set_comment(slurm, ended, "by phone")
    done = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write")
    assert done.returncode == 7
    assert "AdminComment already holds another text" in done.stdout
    assert comment_of(slurm, ended) == "by phone"


def test_killed_in_between_the_comment_is_written_again(
    slurm: SlurmCluster, ended: int, tmp_path: Path
) -> None:
    ended_lake(slurm, ended, tmp_path / "lake")
    assert tachograph(slurm, tmp_path / "lake", "act", "comment", "--write").returncode == 0
    before = comment_of(slurm, ended)
    folder = tmp_path / "lake" / "_collect"
    ledger_file = folder / "actions.jsonl"
    # Killed before it was noted; before small letters were seen.
    for left in (before, "js1:h4siaaaa"):
        set_comment(slurm, ended, left)
        ledger_file.write_bytes(ledger_file.read_bytes().splitlines(keepends=True)[0])
        done = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write")
        assert done.stdout == "1 comment written, 0 failed\n"
        assert comment_of(slurm, ended) == before
        assert [line.state for line in read_ledger(folder)] == ["begun", "begun", "done"]


def test_while_the_accounting_is_down_no_job_is_tried(
    slurm: SlurmCluster, ended: int, tmp_path: Path
) -> None:
    ended_lake(slurm, ended, tmp_path / "lake")
    failed = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write", PATH=str(tmp_path))
    assert failed.returncode == 4
    assert failed.stderr.startswith("tachograph: sacctmgr: cannot be run")
    assert read_ledger(tmp_path / "lake" / "_collect") == []
    later = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write")
    assert later.stdout == "1 comment written, 0 failed\n"


def test_a_job_that_the_accounting_lacks_is_no_success(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_lake(tmp_path / "lake", 4000000)
    done = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write")
    assert done.returncode == 7
    assert "not in the accounting" in done.stdout
    soon = tachograph(slurm, tmp_path / "lake", "act", "comment", "--write")
    assert soon.stdout == "0 comments written, 0 failed\n"
    (record,) = [
        line for line in read_ledger(tmp_path / "lake" / "_collect") if line.state == "failed"
    ]
    assert record.key.startswith(f"{KIND}:")
    assert record.attempt == 1


# ------------------------------------------------------------------------------------------------------------ mail


@pytest.fixture(scope="module")
def sink() -> Iterator[MailSink]:
    with mail_sink() as made:
        yield made


@pytest.fixture
def wrapper(sink: MailSink) -> Iterator[Callable[..., Path]]:
    """Installs tachograph-mail with settings; of which `program` is the command of this
    environment.
    """
    sink.messages.clear()
    with tempfile.TemporaryDirectory(prefix="mail-") as name:
        folder = Path(name)

        def install(**settings: str) -> Path:
            script = folder / "tachograph-mail"
            script.write_bytes((LUA / "tachograph-mail").read_bytes())
            script.chmod(0o755)
            program = folder / "tachograph"
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tachograph "$@"\n')
            program.chmod(0o755)
            mailer = sink.program(folder / "mail")
            lines = {
                "mailer": str(mailer),
                "program": str(program),
                "config": "",
                "limit_s": "60",
                **settings,
            }
            (folder / "tachograph-mail.conf").write_text(
                "".join(f"{key}='{value}'\n" for key, value in lines.items())
            )
            return script

        yield install


@contextmanager
def mailing(slurm: SlurmCluster, script: Path) -> Iterator[None]:
    """The controller with a MailProg for the time of the block."""
    configuration = slurm.plan.folder / "etc" / "slurm.conf"
    before = configuration.read_text()
    configuration.write_text(before.replace("MailProg=/bin/true", f"MailProg={script}"))
    slurm.command("scontrol", "reconfigure")
    try:
        yield
    finally:
        configuration.write_text(before)
        slurm.command("scontrol", "reconfigure")


def wait_for(sink: MailSink, count: int, within_s: float = 120.0) -> None:
    until = time.monotonic() + within_s
    while len(sink.messages) < count:
        assert time.monotonic() < until, sink.messages
        time.sleep(0.1)


def called(
    script: Path, job: int | str, subject: str = "Slurm Job_id=7 Ended", **more: str
) -> None:
    """Call it as Slurm does at the end of a job."""
    variables = {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_RUN_TIME": "01:00:00",
        "PATH": os.environ["PATH"],
        **more,
    }
    done = subprocess.run(
        [script, "-s", subject, "daemon"], env=variables, stdin=subprocess.DEVNULL, timeout=300
    )
    assert done.returncode == 0


def text_of(sink: MailSink) -> str:
    (message,) = sink.messages
    return str(message.get_payload()).strip()


def test_the_mail_of_slurm_has_the_report(
    slurm: SlurmCluster, sink: MailSink, wrapper: Callable[..., Path], tmp_path: Path
) -> None:
    release = slurm.jobs / f"go.{tmp_path.name}"
    waiting = f"while [ ! -e {release} ]; do sleep 0.1; done"
    config = slurm.jobs / f"{tmp_path.name}.toml"
    config.write_text(
        '[serve]\nurl = "https://tachograph.example.org"\n[slurm]\nshared = ["gpu"]\n'
    )
    script = wrapper(lake=str(tmp_path / "lake"), config=str(config))
    with mailing(slurm, script):
        job = slurm.submit(
            waiting, "--mail-type=BEGIN,END", "--mail-user=daemon@localhost", "--job-name=train"
        )
        wait_for(sink, 1)
        job_lake(tmp_path / "lake", job)
        release.touch()
        wait_for(sink, 2)
    began, done = sink.messages
    assert "Began" in began["Subject"]
    assert str(began.get_payload()).strip() == ""
    assert done["To"] == "daemon@localhost"
    assert f"Job_id={job} Name=train Ended" in done["Subject"]
    payload = bytes(done.get_payload(decode=True)).decode()
    assert "1 of 4 GPUs used" in payload
    assert "Next time: #SBATCH --gpus=1" in payload
    assert "More: https://tachograph.example.org/job/" in payload


@pytest.mark.parametrize(
    "settings",
    [
        {"program": "/bin/false"},
        {"program": "/bin/true"},
        {"lake": "/nowhere/lake"},
    ],
    ids=str,
)
def test_without_a_report_the_mail_is_plain(
    sink: MailSink, wrapper: Callable[..., Path], settings: Mapping[str, str]
) -> None:
    began = time.monotonic()
    called(wrapper(**settings), 7)
    assert text_of(sink) == ""
    assert sink.messages[0]["Subject"] == "Slurm Job_id=7 Ended"
    assert time.monotonic() - began < 60.0


def test_a_report_that_takes_too_long_is_left_out(
    sink: MailSink, wrapper: Callable[..., Path], tmp_path: Path
) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\ntrap '' TERM\necho part\nsleep 300\n")
    hangs.chmod(0o755)
    began = time.monotonic()
    called(wrapper(program=str(hangs), limit_s="1"), 7)
    assert text_of(sink) == ""
    assert time.monotonic() - began < 60.0


def test_other_mails_and_running_jobs_are_plain(
    sink: MailSink, wrapper: Callable[..., Path], tmp_path: Path
) -> None:
    job_lake(tmp_path / "lake", 7, ended=False)
    script = wrapper(lake=str(tmp_path / "lake"))
    called(script, 7)
    called(script, "7; touch /tmp/x")
    called(script, 7, SLURM_JOB_RUN_TIME="")
    called(script, 7, subject="Slurm Array Summary Job_id=7_* (7) Ended")
    assert [str(message.get_payload()).strip() for message in sink.messages] == [""] * 4


@pytest.mark.parametrize("program", ["echo '~!touch {made}'; echo .", "/bin/false"])
def test_no_line_of_a_mail_is_a_command(
    sink: MailSink, wrapper: Callable[..., Path], tmp_path: Path, program: str
) -> None:
    """A job's name, also one with line breaks, is in the subject, and the subject in the text."""
    prints, made = tmp_path / "prints", tmp_path / "executed"
    prints.write_text(f"#!/bin/sh\n{program.format(made=made)}\n")
    prints.chmod(0o755)
    called(
        wrapper(program=str(prints)),
        7,
        subject=f"~!touch {made}\n~!touch {made}\r\nBcc: a@b\n.\n Ended",
    )
    (message,) = sink.messages
    assert message["Bcc"] is None
    text = str(message.get_payload())
    assert [line for line in text.splitlines() if line.startswith(("~", "."))] == []
    if program != "/bin/false":
        assert text.count("\n ~!touch ") == 1


@pytest.mark.parametrize(
    "address", ["-A/etc/passwd", "|sh", "/tmp/file", "a b", "a\nb", "", "+x", "$(id)"]
)
def test_what_is_no_address_gets_no_mail(
    sink: MailSink, wrapper: Callable[..., Path], address: str
) -> None:
    words: list[str | Path] = [wrapper(), "-s", "Slurm Job_id=7 Ended", address]
    done = subprocess.run(
        words, env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, timeout=60
    )
    assert (done.returncode, sink.messages) == (1, [])


def test_the_analysis_of_the_job_is_waited_for(
    sink: MailSink, wrapper: Callable[..., Path], tmp_path: Path
) -> None:
    quick = tmp_path / "sleep"
    quick.write_text("#!/bin/sh\nexec /bin/sleep 0.2\n")
    quick.chmod(0o755)
    script = wrapper(lake=str(tmp_path / "lake"), wait_s="200")
    called(script, 7, PATH=f"{tmp_path}:{os.environ['PATH']}")  # returns at once
    job_lake(tmp_path / "made", 7)
    assert sink.messages == []
    (tmp_path / "made").rename(tmp_path / "lake")
    wait_for(sink, 1)
    assert "1 of 4 GPUs used" in text_of(sink)
