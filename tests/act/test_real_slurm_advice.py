"""Advice at submission on a real Slurm: what is shown, and that a job is submitted whatever is
wrong.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from job_lake import job_lake
from slurm_client import SlurmClient, slurm_client

from in_process import run_here
from servers.slurm import SlurmCluster
from tachograph.annexes.act.advice_table import AdviceRow, ShownLine, write_advice

pytestmark = pytest.mark.slow

GPUS = ShownLine("next time --gpus=1: 1 of 8 GPUs worked (job 7)", "gpus", 1)
TIME = ShownLine("next time --time=00:20:00: it ran for 12 min, 25 % on top (job 7)", "time", 1200)
MEMORY = ShownLine("next time --mem=2G: its tasks held at most 1 GiB (job 7)", "mem", 2048)
ROWS = (
    AdviceRow("daemon", "train", "gpu", (GPUS, TIME, MEMORY)),
    AdviceRow("daemon", "train_#", "*", (TIME,)),
    AdviceRow("daemon", "wrap", "cpu", (ShownLine("of another partition"),)),
    AdviceRow("daemon", "wrap", "gpu", (ShownLine("of a job without a name"),)),
    AdviceRow("daemon", "true", "*", (ShownLine("of a program"),)),
    AdviceRow("daemon", "interactive", "*", (ShownLine("of a shell"), ShownLine("and more"))),
    AdviceRow("daemon", "sized", "gpu", (ShownLine("of four GPUs"),), gpus=4),
    AdviceRow("daemon", "sized", "gpu", (ShownLine("of two GPUs"),), gpus=2),
    AdviceRow("games", "train", "*", (ShownLine("of somebody else"),)),
)
SCRIPT = "#!/bin/sh\n#SBATCH --job-name=train --gres=gpu:2 --time=01:00:00 --mem=3G\ntrue\n"


@pytest.fixture(scope="module")
def client(slurm: SlurmCluster) -> Iterator[SlurmClient]:
    """A host where jobs are submitted, with advice for two users."""
    with tempfile.TemporaryDirectory(prefix="client-") as folder:
        made = slurm_client(slurm, Path(folder), wait_s=60.0)
        write_advice(made.advice, ROWS, now=datetime.now(UTC))
        yield made


@pytest.fixture(scope="module")
def shipped(slurm: SlurmCluster) -> Iterator[SlurmClient]:
    """The same with the filter as shipped: it may show nothing where the machine is loaded."""
    with tempfile.TemporaryDirectory(prefix="client-") as folder:
        made = slurm_client(slurm, Path(folder))
        write_advice(made.advice, ROWS, now=datetime.now(UTC))
        yield made


@pytest.fixture
def changed(client: SlurmClient) -> Iterator[Path]:
    """The file of the user, to be damaged; it is whole again afterwards."""
    yield client.file()
    write_advice(client.advice, ROWS, now=datetime.now(UTC))


def advice(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command showed, once it is certain that it submitted."""
    assert done.returncode == 0, done.stderr
    return re.findall(r"tachograph: (.*)", done.stderr)


def test_a_batch_job_gets_the_lines_of_what_it_requests_too_much_of(client: SlurmClient) -> None:
    assert advice(client.run("sbatch", given=SCRIPT)) == [GPUS.text, TIME.text, MEMORY.text]
    fewer = client.run("sbatch", "--gres=gpu:1", "--mem=1G", given=SCRIPT)
    assert advice(fewer) == [TIME.text]
    assert advice(client.run("sbatch", "--gres=gpu:1", "--mem=1G", "--time=20", given=SCRIPT)) == []
    assert advice(client.run("sbatch", "--job-name=other", given=SCRIPT)) == []
    assert advice(client.run("sbatch", "--job-name=train_12", given=SCRIPT)) == [TIME.text]
    # The default one is not known.
    assert advice(client.run("sbatch", "--wrap=true")) == ["of another partition"]
    assert advice(client.run("sbatch", "--wrap=true", "--partition=gpu")) == [
        "of a job without a name"
    ]
    assert advice(client.run("sbatch", given=SCRIPT, user="games")) == ["of somebody else"]
    assert advice(client.run("sbatch", given=SCRIPT, user="mail")) == []


def test_rows_are_of_a_number_of_gpus(client: SlurmClient) -> None:
    for gpus, shown in ((4, ["of four GPUs"]), (2, ["of two GPUs"]), (1, [])):
        assert (
            advice(client.run("sbatch", f"--gpus={gpus}", "--job-name=sized", "--wrap=true"))
            == shown
        )


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--gpus=8"], True),
        (["--gpus=1"], False),
        (["--gpus-per-node=1", "--nodes=2"], True),
        (["--gpus-per-node=1"], False),
        (["--gpus-per-task=1", "--ntasks=3"], True),
        (["--gres=gpu:1", "--nodes=2-3"], True),
        (["--gres=gpu"], False),
        ([], False),
    ],
)
def test_gpus_are_counted_in_every_way_to_request_them(
    client: SlurmClient, options: list[str], *, shown: bool
) -> None:
    done = client.run(
        "sbatch", "--job-name=train", "--time=10", "--mem=1G", "--wrap=true", "--parsable", *options
    )
    assert (GPUS.text in done.stderr) == shown
    assert done.returncode == 0, done.stderr


def test_the_job_is_the_same_as_without(client: SlurmClient) -> None:
    facts = []
    for plain in (True, False):
        done = client.run("sbatch", "--parsable", "--hold", given=SCRIPT, plain=plain)
        assert done.stdout.strip().isdecimal(), done
        assert bool(advice(done)) != plain
        job = client.cluster.command("scontrol", "show", "job", done.stdout.strip())
        facts.append(
            {
                fact
                for fact in job.split()
                if not re.match(r"JobId|Priority|.*Time=20|LastSched|.*slurm-\d", fact)
            }
        )
        client.cluster.command("scancel", done.stdout.strip())
    assert facts[0] == facts[1]


def test_steps_arrays_shells_and_components(client: SlurmClient) -> None:
    array = client.run("sbatch", "--array=1-4", "--parsable", given=SCRIPT)
    assert advice(array) == [GPUS.text, TIME.text, MEMORY.text]
    assert advice(client.run("srun", "--gpus=1", "true")) == ["of a program"]
    # The step of a job has its resources.
    shell = client.run("salloc", "--ntasks=1", "srun", "true")
    assert advice(shell) == ["of a shell", "and more"]
    components = client.run(
        "sbatch", "--gres=gpu:1", ":", "--gres=gpu:2", "--job-name=train", given=SCRIPT
    )
    assert len(advice(components)) == 3
    client.cluster.wait(int(array.stdout), within_s=240)


def test_an_analysis_is_all_that_it_takes(client: SlurmClient, tmp_path: Path) -> None:
    job_lake(tmp_path / "lake", 104, runs=4)
    switches = {
        "TACHOGRAPH_LAKE": str(tmp_path / "lake"),
        "TACHOGRAPH_ACT_ADVICE_FOLDER": str(client.advice),
        "TACHOGRAPH_SLURM_SHARED": "gpu",
    }
    environment = {"PATH": os.environ.get("PATH", os.defpath), **switches}
    try:
        assert run_here(["analyze", "--threads", "1"], tmp_path, environment).returncode == 0
        (shown,) = advice(
            client.run("sbatch", "--gpus=4", "--time=75", "--job-name=train", "--wrap=true")
        )
        assert shown.startswith("--gpus=1: 1 of 4: ")
        assert (
            advice(client.run("sbatch", "--gpus=1", "--time=75", "--job-name=train", "--wrap=true"))
            == []
        )
    finally:
        (client.advice / ".analyzed").unlink(missing_ok=True)
        write_advice(client.advice, ROWS, now=datetime.now(UTC))


def test_it_is_switched_off(client: SlurmClient) -> None:
    for switch in ("off", "OFF", "0", "no"):
        assert (
            advice(client.run("sbatch", given=SCRIPT, environment={"TACHOGRAPH_ADVICE": switch}))
            == []
        )
    assert advice(client.run("sbatch", "--quiet", given=SCRIPT)) == []
    switch_file = client.home("daemon") / ".tachograph-no-advice"
    switch_file.touch()
    assert advice(client.run("sbatch", given=SCRIPT)) == []
    switch_file.unlink()
    assert advice(client.run("sbatch", given=SCRIPT)) != []


def _huge(file: Path) -> None:
    rows = "".join(f"train\tgpu\t*\tany\t0\tline {number}\n" for number in range(100_000))
    file.write_text(f"tachograph-advice 1 9999999999\n{rows}end 100000\n")


def _other_owner(file: Path) -> None:
    os.chown(file, pwd.getpwnam("games").pw_uid, -1)


def _endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "a row less": lambda file: file.write_text(
        "".join(file.read_text().splitlines(keepends=True)[:2]) + "end 2\n"
    ),
    "old": lambda file: file.write_text(
        re.sub(r"1 \d+\n", "1 1700000000\n", file.read_text(), count=1)
    ),
    "later version": lambda file: file.write_text(file.read_text().replace("advice 1", "advice 2")),
    "escapes": lambda file: file.write_text(
        "tachograph-advice 1 9999999999\ntrain\tgpu\t*\tany\t0\t\x1b[2J\nend 1\n"
    ),
    "huge": _huge,
    "of another user": _other_owner,
    "endless": _endless,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_table_costs_its_lines_and_nothing_else(
    client: SlurmClient, changed: Path, name: str
) -> None:
    DAMAGE[name](changed)
    done = client.run("sbatch", "--parsable", given=SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().isdecimal()
    changed.unlink(missing_ok=True)


def test_a_table_that_is_not_delivered_is_not_waited_for(shipped: SlurmClient) -> None:
    file = shipped.file()
    file.unlink()
    os.mkfifo(file, 0o644)
    command = ("sbatch", "--parsable", "--hold", "--wrap=true")
    began = time.monotonic()
    shipped.run(*command, plain=True)
    plain_s = time.monotonic() - began
    began = time.monotonic()
    done = shipped.run(*command)
    waited_s = time.monotonic() - began - plain_s
    assert (done.returncode, done.stderr) == (0, "")
    assert waited_s < 30.0  # 0.15 s on an idle machine
    file.unlink()
    write_advice(shipped.advice, ROWS, now=datetime.now(UTC))
    shipped.cluster.command("scancel", "--user=daemon")


def test_who_reads_the_table_may_hang(shipped: SlurmClient) -> None:
    hanging = shipped.folder / "hanging"
    hanging.mkdir()
    (hanging / "timeout").write_text("#!/bin/sh\nexec sleep 120\n")
    (hanging / "timeout").chmod(0o755)
    path = {"PATH": f"{hanging}:{os.environ.get('PATH', os.defpath)}"}
    began = time.monotonic()
    assert advice(shipped.run("sbatch", given=SCRIPT, environment=path)) == []
    assert time.monotonic() - began < 60.0  # 0.2 s on an idle machine


def test_errors_of_a_submission_stay_its_own(client: SlurmClient) -> None:
    wrong = client.run("sbatch", "--partition=nowhere", given=SCRIPT)
    plain = client.run("sbatch", "--partition=nowhere", given=SCRIPT, plain=True)
    assert (wrong.returncode, plain.returncode) == (1, 1)
    assert wrong.stderr.endswith(plain.stderr)
    closed = client.run("sh", "-c", "exec sbatch --parsable --job-name=train --wrap=true 2>&-")
    assert closed.returncode == 0
    assert closed.stdout.strip().isdecimal()
    unread = "(sleep 1; sbatch --job-name=train --wrap=true >/dev/null; echo $? >ended) 2>&1 | true"
    assert client.run("sh", "-c", f"{unread}; cat ended; rm ended").stdout.split() == ["0"]
