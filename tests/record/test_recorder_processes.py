"""Real processes: the command behind `tachograph record` notices nothing of it, whatever happens
to either.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ending import ending_all

import tachograph
from tachograph.catalog.errors import InputError
from tachograph.catalog.spool import SpoolRows, read_spool
from tachograph.catalog.tables import GPU_SAMPLES, JOBS
from tachograph.lake.delta import Lake

# the command ends when the test has seen what it wants, and some minutes after a test that was
# killed
UNTIL_GO = "n=0; while [ ! -e go ] && [ $((n += 1)) -lt 3000 ]; do sleep 0.05; done"
# the command ends when it has been recorded for two seconds, however long the recorder took to
# start
RECORDED = (
    "n=0; until ls run/recordings/*.spool || [ $((n += 1)) -gt 600 ]; do sleep 0.1; done "
    ">/dev/null 2>&1; sleep 2"
)
RECORD = [
    *(sys.executable, "-m", "tachograph", "record"),
    *("--simulate", "4", "--interval", "0.1", "--quiet"),
]
COUNT_SIGNALS = """
import os, signal, sys, time
seen = []
def note(number, frame):
    seen.append(signal.Signals(number).name)
    with open("seen", "a") as file:
        print(seen[-1], file=file)
for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"):
    signal.signal(getattr(signal, name), note)
print("ready", os.getpid(), flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and "SIGUSR2" not in seen:
    time.sleep(0.02)
time.sleep(0.5)
print(*seen, flush=True)
"""


@pytest.fixture(autouse=True)
def nothing_survives() -> Iterator[None]:
    with ending_all():
        yield


def environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TACHOGRAPH_", "SLURM_"))
    }
    return kept | {"NO_COLOR": "1", "PYTHONWARNINGS": "error"}


def start(
    folder: Path, *command: str, options: tuple[str, ...] = (), **how: object
) -> subprocess.Popen[str]:
    given = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "stdin": subprocess.DEVNULL,
        **how,
    }
    line = [*RECORD, "-o", str(folder / "run"), *options, "--", *command]
    return subprocess.Popen(line, text=True, env=environment(), cwd=folder, **given)  # type: ignore[call-overload, no-any-return]


def run_in(folder: Path, line: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end."""
    return subprocess.run(
        line, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )


def record_without_room(folder: Path, *, blocks: int) -> subprocess.CompletedProcess[str]:
    """Record a command where files have so many blocks at most."""
    limited = f'ulimit -f {blocks}; PYTHONDONTWRITEBYTECODE=1 exec "$@"'
    command = ["sh", "-c", "sleep 4; exit 6"]
    done = run_in(folder, ["bash", "-c", limited, "bash", *RECORD, "-o", "run", "--", *command])
    assert done.returncode == 6
    return done


def record(
    folder: Path, *command: str, options: tuple[str, ...] = (), given: str = ""
) -> tuple[int, str, str]:
    process = start(folder, *command, options=options, stdin=subprocess.PIPE)
    out, err = process.communicate(given, timeout=300)
    return process.returncode, out, err


def children(pid: int) -> dict[int, str]:
    """{process: its command line} of the children of a process."""
    recorded = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        int(one): Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for one in recorded
    }


def recorder_of(process: subprocess.Popen[str]) -> int:
    """The process that records: a fork, so it is called as its parent."""
    return next(pid for pid, line in children(process.pid).items() if " tachograph record " in line)


def spool_of(folder: Path) -> Path:
    """The spool, once samples are in it."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for spool in (folder / "run" / "recordings").glob("*.spool"):
            with suppress(InputError):  # it has no head yet
                if sum(isinstance(one, SpoolRows) for one in read_spool(spool)) > 2:
                    return spool
        time.sleep(0.05)
    raise AssertionError("no spool grows")


def wait_until_seen(folder: Path, signal_name: str) -> None:
    """Of signals that wait together, the one of the lowest number comes first: the next is sent
    when this one came.
    """
    until = time.monotonic() + 60
    while (
        not (folder / "seen").exists() or signal_name not in (folder / "seen").read_text().split()
    ):
        assert time.monotonic() < until, f"no {signal_name} came"
        time.sleep(0.02)


def wait_for_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_streams_and_exit_code_are_those_of_the_command(tmp_path: Path) -> None:
    script = f"read line; echo out $line; echo err >&2; {UNTIL_GO}; exit 7"
    process = start(tmp_path, "sh", "-c", script, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    spool_of(tmp_path)
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (7, "out hello\n", "err\n")
    job = Lake.open(str(tmp_path / "run")).latest(JOBS).row(0, named=True)
    assert (job["exit_code"], job["state"], job["gpus"], job["nodes"]) == (7, "FAILED", 4, 1)
    assert "read line" in job["name"]
    samples = Lake.open(str(tmp_path / "run")).latest(GPU_SAMPLES)
    assert samples.height >= 4 * 3
    assert not list((tmp_path / "run" / "recordings").glob("*.spool"))


def reported(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    line = [one for one in RECORD if one != "--quiet"]
    return run_in(folder, [*line, "-o", "run", "--", *command])


@pytest.mark.slow
def test_the_end_of_the_command_is_reported_before_the_report(tmp_path: Path) -> None:
    done = reported(tmp_path, "sh", "-c", f"{RECORDED}; exit 3")
    ended, head, *_ = done.stderr.splitlines()
    recorded = re.fullmatch(r"sh: exit code 3 after ([\d.]+) s; reading \d+ samples \.\.\.", ended)
    assert recorded is not None
    assert float(recorded[1]) >= 2
    assert head.startswith("Job local-")
    assert re.search(r"More: tachograph job local-\S+ --lake run --checks", done.stderr)
    assert done.returncode == 3
    opened = tachograph.open(str(tmp_path / "run"))
    assert opened.jobs().height == 1
    assert repr(opened.job(opened.jobs()["job_id"][0])).startswith("Job local-")


@pytest.mark.slow
def test_a_command_shorter_than_the_first_sample_is_reported_in_a_line(tmp_path: Path) -> None:
    done = reported(tmp_path, "false")
    printed = r"tachograph: false: exit code 1 after [\d.]+ s; nothing was recorded: it ended before the first sample\n"
    assert re.fullmatch(printed, done.stderr)
    assert done.returncode == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_death_by_a_signal_is_passed_on(tmp_path: Path, name: str) -> None:
    code, _, _ = record(tmp_path, "sh", "-c", f"kill -{name[3:]} $$")
    assert code == -getattr(signal, name)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/", 126)])
def test_what_cannot_be_started_ends_as_in_a_shell(tmp_path: Path, command: str, code: int) -> None:
    given, out, err = record(tmp_path, command)
    assert (given, out) == (code, "")
    assert err.startswith(f"tachograph: {command}: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_script_without_interpreter_is_run_by_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text("echo run by $0\n")
    script.chmod(0o755)
    assert record(tmp_path, "./job")[:2] == (0, "run by ./job\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "names"),
    [
        (os.kill, "SIGUSR1 SIGHUP SIGTERM SIGINT SIGWINCH SIGCONT SIGUSR2"),
        # as `kill %1`, `scancel` and the end of a time limit do
        (os.killpg, "SIGUSR1 SIGTERM SIGHUP SIGUSR2"),
    ],
    ids=["to us alone", "to the group"],
)
def test_a_signal_reaches_the_command_once(
    tmp_path: Path, send: Callable[[int, int], None], names: str
) -> None:
    process = start(tmp_path, sys.executable, "-c", COUNT_SIGNALS, "240", start_new_session=True)
    wait_for_line(process)
    spool_of(tmp_path)
    for name in names.split():
        send(process.pid, getattr(signal, name))
        wait_until_seen(tmp_path, name)
    out, _ = process.communicate(timeout=300)
    assert out.split() == names.split()
    assert process.returncode == 0
    assert Lake.open(str(tmp_path / "run")).latest(JOBS)["exit_code"].to_list() == [0]


class Terminal:
    """An interactive shell on a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.pid, self.master = pty.fork()
        if not self.pid:
            os.chdir(folder)
            recorded = environment() | {"PS1": "prompt> ", "TERM": "dumb"}
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], recorded)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait(self, pattern: str, seconds: float = 60) -> str:
        """What was shown up to the pattern, which is then forgotten."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            found = re.search(pattern, self.seen)
            if found:
                shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
                return shown
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        raise AssertionError(f"no {pattern!r} in {self.seen!r}")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.master)
        os.waitpid(self.pid, 0)


@pytest.mark.slow
def test_keys_of_a_terminal_work_as_without_us(tmp_path: Path) -> None:
    """Ctrl-Z stops, fg goes on, Ctrl-C ends, once; the shell sees how."""
    script = tmp_path / "count.py"
    script.write_text(COUNT_SIGNALS)
    terminal = Terminal(tmp_path)
    try:
        terminal.wait("prompt> ")
        terminal.type(f"{' '.join(RECORD)} -o run -- {sys.executable} count.py 240\r")
        terminal.wait(r"ready \d+")
        spool_of(tmp_path)
        terminal.type("\x1a")
        terminal.wait("Stopped")
        terminal.wait("prompt> ")
        terminal.type("fg\r")
        wait_until_seen(tmp_path, "SIGCONT")
        terminal.type("\x03")
        wait_until_seen(tmp_path, "SIGINT")
        terminal.type("\x1a")
        terminal.wait("Stopped")
        terminal.wait("prompt> ")
        terminal.type("kill -USR2 %1; fg\r")
        shown = terminal.wait(r"SIG[A-Z0-9 ]*SIGUSR2[A-Z0-9 ]*\r\n")
        recorded = re.findall(r"SIG\w+", shown[shown.rindex("SIGCONT SIGINT") :])
        assert recorded.count("SIGINT") == 1
        assert recorded.count("SIGUSR2") == 1
        assert recorded.count("SIGCONT") == 2
        terminal.wait("prompt> ", 60)
        terminal.type("echo code $?; sleep 0\r")
        terminal.wait(r"code 0\r\n")
        terminal.type(f"{' '.join(RECORD)} -o run2 -- sh -c 'echo begun; exec sleep 60'\r")
        terminal.wait(r"\nbegun\r\n")
        terminal.type("\x03")
        terminal.wait("prompt> ", 60)
        terminal.type("echo code $?\r")
        terminal.wait(r"code 130\r\n")
    finally:
        terminal.close()


HANGING = """
import sys, time
from pathlib import Path
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.record import recorder

class Hanging(SimulatedSource):
    def read(self):
        time.sleep(600)

recorder._END_S = recorder._BEGIN_S = 1.0
connect = {"connects": lambda: time.sleep(600), "reads": Hanging}[sys.argv[1]]
command = ["sh", "-c", sys.argv[2]]
plan = recorder.plan_recording(command, folder="run")
print(recorder.record_command(command, connect, plan).result.problem)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "command", "problem"),
    [
        (
            "connects",
            "true",
            "the recording process was not ready 1 s after the end of the command",
        ),
        (
            "reads",
            "while [ ! -e run/recordings ]; do sleep 0.1; done; sleep 1",
            "the recording process did not finish within 1 s of the end of the command",
        ),
    ],
)
def test_a_recorder_that_hangs_is_ended_and_that_is_reported(
    tmp_path: Path, where: str, command: str, problem: str
) -> None:
    done = run_in(tmp_path, [sys.executable, "-c", HANGING, where, command])
    assert (done.stdout, done.stderr) == (f"{problem}\n", "")


@pytest.mark.slow
def test_a_killed_recorder_does_not_affect_the_command(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", f"{UNTIL_GO}; echo done; exit 4")
    spool = spool_of(tmp_path)
    os.kill(recorder_of(process), signal.SIGKILL)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (4, "done\n")
    assert "the recording is incomplete: the recording process died (signal 9)" in err
    assert not spool.exists()
    lake = Lake.open(str(tmp_path / "run"))
    assert lake.latest(GPU_SAMPLES).height > 10
    assert lake.latest(JOBS)["job_id"].len() == 1


@pytest.mark.slow
def test_where_the_parent_is_killed_command_and_recording_go_on(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", f"{UNTIL_GO}; touch finished", stderr=subprocess.DEVNULL)
    spool = spool_of(tmp_path)
    recorder = recorder_of(process)
    process.kill()
    process.wait()
    samples = spool.stat().st_size
    time.sleep(1.5)
    assert spool.stat().st_size > samples
    (tmp_path / "go").touch()
    process.communicate()
    until = time.monotonic() + 120
    while (
        Path(f"/proc/{recorder}/stat").exists()
        and " Z " not in Path(f"/proc/{recorder}/stat").read_text()
    ):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert (tmp_path / "finished").exists()
    ingest = [sys.executable, "-m", "tachograph", "ingest", "recording", "run", "--lake", "run"]
    subprocess.run(ingest, cwd=tmp_path, env=environment(), check=True, capture_output=True)
    job = Lake.open(str(tmp_path / "run")).latest(JOBS).row(0, named=True)
    assert spool.exists()
    assert job["elapsed_s"] > 1.5
    assert (job["exit_code"], job["state"]) == (None, None)


@pytest.mark.slow
def test_a_full_disk_does_not_affect_the_command(tmp_path: Path) -> None:
    done = record_without_room(tmp_path, blocks=1)
    assert "tachograph: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_a_source_the_command_runs_and_a_line_gives_the_reason(tmp_path: Path) -> None:
    source = ["--source", "dcgm-exporter", "--url", "http://127.0.0.1:9/metrics"]
    done = run_in(tmp_path, [*RECORD[:4], *source, "--", "sh", "-c", "exit 3"])
    assert done.returncode == 3
    assert done.stderr.startswith("tachograph: nothing was recorded: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
