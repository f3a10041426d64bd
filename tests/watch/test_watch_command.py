"""`tachograph watch` in a process of its own, polling a real exporter: it prints what was
served.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from servers.exporter import Exporter, exporter
from tachograph.cli import main

TACHOGRAPH = [sys.executable, "-W", "error", "-m", "tachograph", "watch"]


def values(gpu: int) -> dict[str, float]:
    """What dcgm-exporter tells by its usual file: no SM activity."""
    return {
        "DCGM_FI_DEV_GPU_UTIL": 20.0 * gpu,
        "DCGM_FI_DEV_FB_USED": 1000.0 * (gpu + 1),
        "DCGM_FI_DEV_FB_FREE": 80000.0 - 1000.0 * (gpu + 1),
        "DCGM_FI_DEV_POWER_USAGE": 100.5 + gpu,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.1 * gpu,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.05 * gpu,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.02 * gpu,
    }


@pytest.fixture(scope="module")
def served() -> Iterator[Exporter]:
    with exporter(
        {node: {gpu: values(gpu) for gpu in range(4)} for node in ("n1", "n2")}
    ) as server:
        server.hold("n1", 2, "4711")
        server.hold("n2", 0, "4711")
        yield server


def environment(folder: Path, **more: str) -> dict[str, str]:
    """No job, no Slurm, no configuration of others."""
    dropped = ("SLURM_", "CUDA_", "TACHOGRAPH_", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PATH": str(folder), "NO_COLOR": "1", **more}


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


Watch = Callable[..., Done]


class Started(subprocess.Popen[str]):
    """The command in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*TACHOGRAPH, *options]
        super().__init__(command, cwd=folder, env=environment(folder), text=True, **pipes)
        assert self.stdout is not None
        assert self.stderr is not None
        self.out, self.err = self.stdout, self.stderr


@pytest.fixture
def watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Watch:
    """Runs the command in this process, with the environment that is given and no other."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str, **more: str) -> Done:
        for name in set(os.environ) - set(environment(tmp_path)):
            monkeypatch.delenv(name)
        for name, value in environment(tmp_path, **more).items():
            monkeypatch.setenv(name, value)
        code = main(["watch", *options])
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


def configured(folder: Path, text: str) -> None:
    (folder / "tachograph.toml").write_text(text)


def exporter_at(*urls: str) -> str:
    """The entry of a configuration that names exporters."""
    return f'[[sources]]\nsource = "dcgm-exporter"\nurls = {json.dumps(urls)}\n'


def test_what_a_source_cannot_see_is_told_with_what_to_do(
    served: Exporter, watch: Watch, tmp_path: Path
) -> None:
    configured(tmp_path, exporter_at(served.url("n1")))
    done = watch("--once")
    assert done.returncode == 0, done.stderr
    first, *others = done.stderr.splitlines()
    assert "dcgm-exporter" in first
    assert first.endswith("4 GPUs; all shown")
    assert any(
        "for workload classes" in line and "DCGM_FI_PROF_SM_ACTIVE" in line and "restart" in line
        for line in others
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "GPU",
        "n1:0",
        "n1:1",
        "n1:2",
        "n1:3",
    ]
    assert watch("--once", "--quiet").stderr == ""


def test_a_job_is_shown_on_all_its_nodes(served: Exporter, watch: Watch, tmp_path: Path) -> None:
    configured(tmp_path, exporter_at(*served.urls))
    done = watch("--job", "4711", "--once", "--csv", "node,gpu_id,job_id")
    assert done.stdout == "node,gpu_id,job_id\nn1,2,4711\nn2,0,4711\n"
    assert "2 of 8 GPUs, those of job 4711 on 2 nodes" in done.stderr
    done = watch("--job", "12", "--once", "--csv")
    assert (done.returncode, done.stdout) == (6, "")
    assert "job 12 has no GPU in view; jobs in view: 4711" in done.stderr


def test_ones_own_job_is_shown_inside_it(served: Exporter, watch: Watch, tmp_path: Path) -> None:
    configured(tmp_path, exporter_at(served.url("n1")))
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_GPUS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "USER": "ana",
    }
    done = watch("--once", "--csv", "gpu_id,job_id,user", **job)
    assert done.stdout == "gpu_id,job_id,user\n2,4711,ana\n"
    assert "1 of 4 GPUs, those of job 4711" in done.stderr
    everything = watch("--once", "--csv", "gpu_id", "--all", **job)
    assert everything.stdout.split() == ["gpu_id", "0", "1", "2", "3"]


def test_rounds_go_on_until_they_are_interrupted(served: Exporter, tmp_path: Path) -> None:
    options = [
        "--url",
        served.url("n1"),
        "--csv",
        "timestamp,gpu_id,power_w",
        "--interval",
        "0.2",
    ]
    with Started(tmp_path, *options) as process:
        lines = [process.out.readline() for _ in range(21)]
        process.send_signal(signal.SIGINT)
        rest, message = process.out.read(), process.err.read()
        assert process.wait(60) == 130
    read = list(csv.DictReader(io.StringIO("".join(lines))))
    assert [one["gpu_id"] for one in read] == ["0", "1", "2", "3"] * 5
    times = [float(one["timestamp"]) for one in read[::4]]
    gaps = [later - before for before, later in pairwise(times)]
    assert min(gaps) > 0
    assert 0.1 < median(gaps) < 20  # one that comes late comes nearer to the next
    assert "Traceback" not in message
    assert rest == "" or rest.endswith("\n")


def test_a_reader_that_goes_ends_it_quietly(tmp_path: Path) -> None:
    options = ["--simulate", "500", "--csv", "all", "--interval", "0.1", "--quiet"]
    with Started(tmp_path, *options) as process:
        assert process.out.readline().startswith("timestamp,gpu_id")
        process.out.close()
        assert process.err.read() == ""
        assert process.wait(60) == 141


@pytest.mark.slow
def test_an_exporter_that_falls_silent_is_told_once(tmp_path: Path) -> None:
    with exporter({"n9": {0: values(1)}}, slow_s=0.1) as server:
        options = [
            "--url",
            server.url("n9"),
            "--csv",
            "gpu_id,gpu_util_pct",
            "--interval",
            "0.5",
        ]
        with Started(tmp_path, *options) as process:
            assert [process.out.readline() for _ in range(2)] == [
                "gpu_id,gpu_util_pct\n",
                "0,20.00\n",
            ]
            server.fail("n9", "status")
            reported = ""
            while "500" not in reported:  # behind what the source cannot see
                reported = process.err.readline()
                assert reported, "it ended"
            assert server.url("n9").split("/")[2] in reported
            time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            message = process.err.read()
            assert process.wait(60) == 130
    assert "500" not in message
    assert "Traceback" not in message


def test_on_a_terminal_a_screen_opens_and_q_ends_it(tmp_path: Path) -> None:
    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [*TACHOGRAPH, "--simulate", "4", "--quiet"]
    shown = b""
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path, TERM="xterm"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        until = time.monotonic() + 120
        while b"sim001:3" not in shown and time.monotonic() < until:
            shown += _more(main_end)
        os.write(main_end, b"q")
        while _more(main_end):
            pass
        assert process.wait(60) == 0
    os.close(main_end)
    assert b"Traceback" not in shown


def _more(terminal: int) -> bytes:
    """What is shown next; nothing within seconds, or of a program that has ended: there reading
    fails (Linux).
    """
    try:
        return os.read(terminal, 65536) if select.select([terminal], [], [], 15)[0] else b""
    except OSError:
        return b""


def test_without_a_terminal_it_is_told_what_to_give(watch: Watch) -> None:
    done = watch("--simulate", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tachograph: the screen needs a terminal; give --once, --json or --csv\n"


def test_without_a_source_all_that_was_tried_is_listed(watch: Watch) -> None:
    for options in ((), ("--once",)):  # the source is reported before a missing terminal
        done = watch(*options)
        assert (done.returncode, done.stdout) == (6, "")
        first, *points = done.stderr.splitlines()
        assert first == "tachograph: no GPU telemetry source found; tried:"
        begins = (
            "  - nvml: ",
            "  - dcgm-exporter: http://localhost:9400/metrics: connection refused",
            "  - dmon: ",
            "  - what to do: run it on",
        )
        assert [point.startswith(begin) for point, begin in zip(points, begins, strict=True)] == [
            True
        ] * 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpus", "0", "--all"), "not allowed with"),
        (("--url", "http://x", "--simulate", "2"), "not allowed with"),
        (("--once", "--json", "--csv"), "--json excludes --csv"),
        (("--once", "--simulate", "2", "--source", "nvml"), "--source"),
        (("--once", "--simulate", "0"), "--simulate: '0' is not a number from 1 to"),
        (("--once", "--simulate", "2", "--csv", "nope"), "unknown column 'nope'"),
        (
            ("--once", "--simulate", "2", "--interval", "0.01"),
            "'0.01' is not a number from 0.1 to 3,600",
        ),
        (("--once", "--simulate", "2", "--interval", "nan"), "'nan' is not a number from 0.1"),
        (("--once", "--simulate", "2", "--interval", "1e9"), "'1e9' is not a number from 0.1"),
        (("--once", "--simulate", "2", "--weights", "sm"), "invalid weight"),
        (
            ("--once", "--simulate", "2", "--preset", "hpc", "--weights", "sm=1"),
            "--preset excludes --weights",
        ),
        (("--once", "--simulate", "2", "--gpus", "x"), "invalid GPU"),
    ],
)
def test_what_does_not_fit_is_refused(options: tuple[str, ...], words: str, watch: Watch) -> None:
    done = watch(*options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.slow
def test_weights_decide_about_real_utilisation(watch: Watch) -> None:
    def real(*options: str) -> list[float]:
        done = watch("--simulate", "6", "--once", "--json", *options)
        reported = json.loads(done.stdout)
        weights = {
            "sm_active": 0.35,
            "tensor_active": 0.35,
            "dram_active": 0.2,
            "gr_engine_active": 0.1,
        }
        if options:
            weights = {"sm_active": 0.75, "dram_active": 0.25}
        for one in reported:
            weighed = sum(weight * one[name] for name, weight in weights.items())
            assert one["real_utilisation"] == pytest.approx(weighed, abs=1e-6)
        return [one["real_utilisation"] for one in reported]

    assert real() != real("--weights", "sm=3,dram=1")


def test_the_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from tachograph.cli import main; code = main(['watch', '--help']); "
        "heavy = {'numpy', 'polars', 'numba', 'textual', 'msgspec', 'rich'} & set(sys.modules); "
        "sys.exit(code or (repr(heavy) if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--simulate N" in done.stdout


def test_a_table_is_printed_without_what_it_does_not_need(tmp_path: Path) -> None:
    program = (
        "import sys; from tachograph.cli import main; code = main(['watch', '--simulate', '2', "
        "'--once']); "
        "heavy = {'polars', 'numba', 'textual', 'matplotlib'} & set(sys.modules); "
        "sys.exit(code or (repr(heavy) if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
