"""Pauses DCGM's profiling during sampling if requested, and always resumes it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tachograph.annexes.watch.pm_sampling.faults import TAKE_DCGM, PmSamplingError

PROGRAM = ("dcgmi",)
REFUSED = "dcgm_program"  # code of what DCGM did not do
_ANSWER_S = 10.0


def pause_dcgm(program: Sequence[str] = PROGRAM) -> None:
    """Pause DCGM profiling on this node; all its readers get no new values.

    Errors: PmSamplingError where that is refused.
    """
    _profile(program, "--pause")


def resume_dcgm(program: Sequence[str] = PROGRAM) -> None:
    """Resume DCGM's profiling. Errors: PmSamplingError with manual steps."""
    _profile(program, "--resume")


def _profile(program: Sequence[str], action: str) -> None:
    command = [*program, "profile", action]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_S,
            check=False,
        )
    except FileNotFoundError:
        raise PmSamplingError(
            REFUSED, "dcgmi not found", "install DCGM's programs, or leave out --pause-dcgm"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise PmSamplingError(
            REFUSED, f"{' '.join(command)} fails: {problem}", _by_hand(action)
        ) from None
    if done.returncode:
        message = " ".join(done.stdout.decode("utf-8", "replace").split())[:200]
        raise PmSamplingError(
            REFUSED, f"{' '.join(command)} fails: {message or done.returncode}", _by_hand(action)
        )


def _by_hand(action: str) -> str:
    return (
        "run `dcgmi profile --resume` by hand"
        if action == "--resume"
        else f"run it as root, or {TAKE_DCGM}"
    )
