"""How the steps of a day start programs: the Python, the paths, the time that is left, the
stand-ins of a rehearsal.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
_PR_SET_PDEATHSIG = 1
_FACTS = (
    "import json, pynvml as n\n"
    "n.nvmlInit()\n"
    "text = lambda value: value.decode() if isinstance(value, bytes) else str(value)\n"
    "handle = n.nvmlDeviceGetHandleByIndex({gpu})\n"
    "print(json.dumps({{'device': text(n.nvmlDeviceGetName(handle)), 'uuid': "
    "text(n.nvmlDeviceGetUUID(handle)),\n"
    "                  'driver': text(n.nvmlSystemGetDriverVersion())}}))\n"
)


class StepError(Exception):
    """Why a part of a step was not measured; the others go on."""


@dataclass(frozen=True, slots=True)
class DayTools:
    """What a step works with. until: by the monotonic clock, in s. pm_site: packages of PM
    sampling, None: the usual.

    few: only these workloads, all where empty.
    """

    out: Path
    gpu: int
    until: float
    rehearse: bool
    environment: Mapping[str, str]
    pm_site: Path | None = None
    few: tuple[str, ...] = ()

    @property
    def left_s(self) -> float:
        """Seconds until the step has to end."""
        return self.until - time.monotonic()

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that are asked for."""
        return [name for name in names if not self.few or name in self.few]

    def python(self, file: str, *words: str) -> list[str]:
        """A program of this folder."""
        return [sys.executable, str(HERE / file), *words]

    def tachograph(self, *words: str) -> list[str]:
        """A command of Tachograph, in this Python."""
        return [sys.executable, "-m", "tachograph", *words]

    def pm_environment(self) -> dict[str, str]:
        """The environment of PM sampling: cupti-python needs another version of cuda-bindings
        than the bench.
        """
        if self.pm_site is None:
            return dict(self.environment)
        path = os.pathsep.join(
            filter(None, [str(self.pm_site), self.environment.get("PYTHONPATH")])
        )
        return {**self.environment, "PYTHONPATH": path}

    def run(
        self,
        command: Sequence[str],
        limit_s: float,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program to its end, for as long as the step has at most; return what it printed.

        Errors: StepError.
        """
        limit_s = min(limit_s, self.left_s)
        if limit_s <= 0:
            raise StepError("the time of the step was up")
        with started(command, environment or self.environment) as process:
            try:
                printed, problem = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                raise StepError(f"{_name(command)} did not end within {limit_s:.0f} s") from None
        if process.returncode:
            words = (problem.strip() or printed.strip() or "no message").splitlines()[-1]
            raise StepError(f"{_name(command)} ended with {process.returncode}: {words}")
        return printed


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], *, output: IO[str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a session of its own; at the end of the block it and its children are
    gone. output: a file for what it prints.

    Errors: StepError where it cannot be started.
    """
    try:
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output or subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 steps have no threads
        )  # fmt: skip
    except OSError as problem:
        raise StepError(f"{_name(command)} cannot be started: {problem}") from None
    try:
        yield process
    finally:
        end_session(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def end_with_parent() -> None:
    """Let this process get SIGTERM when the one that started it is gone, however that ended.
    Linux only.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_session(process: subprocess.Popen[Any], patience_s: float = 10.0) -> None:
    """End a process and all of its session: by SIGTERM, so that counters are given back, then by
    SIGKILL.
    """
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _name(command: Sequence[str]) -> str:
    words = [
        Path(word).name for word in command if not word.startswith("-") and "import " not in word
    ]
    return " ".join(words[1:3] if len(words) > 1 and words[0].startswith("python") else words[:2])


def gpu_facts(tools: DayTools) -> dict[str, str]:
    """Return device, uuid and driver as NVML reports them. Errors: StepError."""
    found: dict[str, str] = json.loads(
        tools.run([sys.executable, "-c", _FACTS.format(gpu=tools.gpu)], 60.0)
    )
    return found


def pm_gpu(tools: DayTools) -> str:
    """Return the GPU as PM sampling finds it: by UUID, as CUDA may see this one alone. Errors:
    StepError.
    """
    return "0" if tools.rehearse else gpu_facts(tools)["uuid"]


def has_torch(tools: DayTools) -> str | None:
    """Return why PyTorch cannot be used; None where it can."""
    if tools.rehearse:
        return None
    try:
        tools.run(
            [
                sys.executable,
                "-c",
                "from workloads import load_torch; load_torch().zeros(1, device='cuda')",
            ],
            120.0,
        )
    except StepError as problem:
        return f"PyTorch with CUDA cannot be used ({problem})"
    return None


def ncu_command(tools: DayTools) -> list[str]:
    """Return the program that profiles kernels. Errors: StepError where it is absent."""
    if tools.rehearse:
        return tools.python("rehearsal_ncu.py")
    program = shutil.which("ncu", path=tools.environment.get("PATH"))
    if program is None:
        raise StepError("Nsight Compute (`ncu`) is not installed")
    return [program]


def profile(tools: DayTools, name: str, limit_s: float) -> Path:
    """Return the report of one step of a workload, made unless it is there: raw page as CSV.

    The clocks are left alone. Errors: StepError.
    """
    target = tools.out / "profiles" / f"{name}.csv"
    if target.exists():
        return target
    target.parent.mkdir(exist_ok=True)
    options = ["--set", "full", "--metrics", ",".join(PROFILED), "--clock-control", "none"]
    options += ["--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"]
    printed = tools.run(
        [*ncu_command(tools), *options, *tools.python("profiled.py", name)], limit_s
    )
    if '"Kernel Name"' not in printed:
        raise StepError(
            f"ncu profiled no kernel: {(printed.strip() or 'no message').splitlines()[-1]}"
        )
    new = target.with_suffix(".new")
    new.write_text(without_paths(printed), encoding="utf-8")
    new.replace(target)
    return target


def without_paths(printed: str) -> str:
    """Return what `ncu` printed without its progress, which names the program by its path, often
    with a user in it.

    >>> without_paths('==PROF== Connected to process 7 (/usr/bin/python3.12)\\n"ID","Kernel Name"\\n')
    '"ID","Kernel Name"\\n'
    """
    return "".join(
        line for line in printed.splitlines(keepends=True) if not line.startswith("==PROF==")
    )


# cycles that PM sampling counts as well, as `ncu` names them; the rest of a report is that of its
# set `full`
PROFILED = (
    "sm__cycles_active.avg", "gpc__cycles_elapsed.max", "sm__warps_active.avg", "dram__cycles_active.avg",
    "dram__cycles_elapsed.avg", "gpu__time_duration.sum", "sm__cycles_elapsed.avg",
)  # fmt: skip


@dataclass(slots=True)
class JsonLines:
    """Lines of JSON that a program prints, as they come; what is cut off is left out."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, printed: str) -> JsonLines:
        """Those of a text.

        >>> JsonLines.of('{"a": 1}\\nnone\\n[2]\\n{"b"').rows
        [{'a': 1}]
        """
        found = cls()
        for line in printed.splitlines():
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    found.rows.append(row)
        return found
