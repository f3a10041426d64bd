"""No word of a record becomes code or an option of a program that is started; nothing else
starts programs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

import tachograph
from jobframes import job_row
from tachograph.annexes.act.comments import AdminComments
from tachograph.annexes.act.slurm_jobs import QUEUE_FIELDS, JobAction, SlurmJob, SlurmJobs
from tachograph.catalog.errors import RefusedError, TachographError
from tachograph.sources.slurm.commands import AccountingSpan, SacctCommand, SiteProgram

# {file: what is in the words of the programs that it starts}. Values of records go through
# SiteProgram alone.
STARTERS = {
    "sources/slurm/commands.py": (
        "SiteProgram: words of the configuration, and values by their kind"
    ),
    "annexes/watch/record/foreground.py": "the command that the user wrote after `tachograph record`",
    "annexes/watch/record/recorder.py": "a fork of itself",
    "collect/children.py": "this program, with the location of the lake",
    "catalog/processes.py": "workers of this program",
    "annexes/serve/images.py": "this program, with folders of its own",
    "annexes/serve/workers.py": "workers of this program",
    "annexes/share/nsight/ncu_rep.py": "this program, with the name of a report that the user wrote",
    "pipeline/dask_workers.py": "sbatch --test-only, with the name of a file of its own",
    "annexes/watch/live/sources/dmon.py": "dcgmi, with words of its own and numbers of counters",
    "annexes/watch/pm_sampling/process.py": "this program, with a request as JSON",
}
_STARTING = {
    "subprocess": {
        "Popen",
        "run",
        "call",
        "check_call",
        "check_output",
        "getoutput",
        "getstatusoutput",
    },
    "os": {"fork", "forkpty", "system", "popen", "startfile", "posix_spawn", "posix_spawnp"},
    "pty": {"fork", "spawn"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "multiprocessing": {"Process", "Pool", "get_context", "parent_process"},
}
_ALWAYS = {"ProcessPoolExecutor", "get_context"}
# only such files are parsed, which takes long
_MENTIONED = re.compile(
    r"subprocess|multiprocessing|ProcessPool|\bpty\b|from os import|os\.(fork|exec|spawn|posix|system|popen)"
)


def _starts(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return bool(names & (_STARTING.get(node.module or "", set()) | _ALWAYS))
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    module, name = node.value.id, node.attr
    return name in _STARTING.get(module, ()) or (
        module == "os" and name.startswith(("exec", "spawn"))
    )


def test_only_these_files_start_programs() -> None:
    root = Path(tachograph.__file__).parent
    starters = set()
    for file in sorted(root.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if _MENTIONED.search(text) and any(map(_starts, ast.walk(ast.parse(text)))):
            starters.add(str(file.relative_to(root)))
    assert starters == set(STARTERS)


HOSTILE = (
    # what a shell reads
    *("$(touch X)", "`touch X`", "7;touch X", "| touch X", "'; touch X; '", '"$(touch X)"'),
    # options, further words
    *("a b", "--help", "-u root", "--clusters=other", "cluster=other", "a\nb", "\na", "a\r"),
    # several, patterns, words of Slurm's own
    *(
        "7,8",
        "7 8",
        "*",
        "[1-9]",
        "gpu[01-04]",
        "7_[0-9]",
        "7.0",
        "ALL",
        "none",
        "",
        " ",
        "\x1f",
        "\x00",
        "a|b",
        "~root",
    ),
    *("é", "7" * 5000),
)
ROW: Mapping[str, Any] = {
    "job_id": "7",
    "display_id": "7",
    "cluster": "alpha",
    "user": "ann",
    "time_precision_s": None,
    "submit": datetime(2026, 11, 20, tzinfo=UTC),
}
SUMMARY = {"nodes": {}, "gpus": 1, "tachograph": {"v": 1}}
SPAN = AccountingSpan(datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC))
JOB = SlurmJob("7", "7", "7", "RUNNING", None, 0, True, False, "ann", None)

Call = Callable[[tuple[str, ...], str], object]  # words before a command, a value


def _job(**values: str) -> SlurmJob:
    return SlurmJob(**{**{name: getattr(JOB, name) for name in JOB.__slots__}, **values})


def _change(action: JobAction) -> Call:
    def change(before: tuple[str, ...], value: str) -> object:
        with suppress(RefusedError):
            return SlurmJobs(before).change(action, JOB, value)
        return SlurmJobs(before).change(action, _job(group=value), None)

    return change


# {field of a command: how it is called with a value, one that is good}; a new command with values
# is a line here. Others (scontrol show, sacctmgr show) have no words but ours, of which
# test_a_word_that_a_shell_reads has the rule
CALLS: Mapping[str, tuple[Call, str]] = {
    "squeue job": (lambda before, value: SlurmJobs(before).job(value, None), "7"),
    "squeue cluster": (lambda before, value: SlurmJobs(before).job("7", value), "alpha"),
    "squeue node": (lambda before, value: SlurmJobs(before).is_on(JOB, value, None), "gpu01"),
    "squeue job on a node": (
        lambda before, value: SlurmJobs(before).is_on(_job(name=value), "gpu01", None),
        "7",
    ),
    "drain node": (lambda before, value: SlurmJobs(before).drain(value, None, "x"), "gpu01"),
    "drain cluster": (lambda before, value: SlurmJobs(before).drain("gpu01", value, "x"), "alpha"),
    "drain reason": (lambda before, value: SlurmJobs(before).drain("gpu01", None, value), "XID 79"),
    "cancel job": (
        lambda before, value: SlurmJobs(before).change("cancel", _job(name=value), None),
        "7",
    ),
    **{f"{action} cluster": (_change(action), "7") for action in get_args(JobAction)},
    "comment job": (
        lambda before, value: AdminComments(before).write(
            job_row(**{**ROW, "job_id": value, "display_id": None}), SUMMARY
        ),
        "7",
    ),
    "comment name": (
        lambda before, value: AdminComments(before).write(
            job_row(**{**ROW, "display_id": value}), SUMMARY
        ),
        "7",
    ),
    "comment cluster": (
        lambda before, value: AdminComments(before).write(
            job_row(**{**ROW, "cluster": value}), SUMMARY
        ),
        "alpha",
    ),
    "sacct clusters": (
        lambda before, value: SacctCommand.of(
            (*before, "sacct"), timeout_s=30, clusters=(value,)
        ).fetch(SPAN),
        "alpha",
    ),
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with programs that write their words into `words`, one a line, and `ssh`, which
    does what ssh does.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    widths = QUEUE_FIELDS
    values = {
        "JobID": "7",
        "State": "RUNNING",
        "BatchFlag": "1",
        "UserName": "ann",
        "ArrayTaskID": "N/A",
    }
    line = "".join(values.get(field, "").ljust(width) for field, width in widths.items())
    answers = {
        "squeue": line,
        "sinfo": "gpu01=idle",
        "sacct": f"7|{ROW['submit'].timestamp():.0f}|ann",
    }
    for name in ("squeue", "sinfo", "sacct", "sacctmgr", "scontrol", "scancel"):
        script = programs / name
        prints = f"printf '%s\\n' '{answers.get(name, '')}'"
        script.write_text(
            f"#!/bin/sh\nprintf '%s\\n' {name} \"$@\" END >> {tmp_path}/words\n{prints}\n"
        )
    remote = programs / "ssh"
    remote.write_text(f'#!/bin/sh\nshift\nPATH={programs}:$PATH exec sh -c "$*"\n')
    local = programs / "prefix"
    local.write_text(f'#!/bin/sh\nPATH={programs}:$PATH exec "$@"\n')
    joining = programs / "on-login"  # of a site: calls ssh
    joining.write_text(f'#!/bin/sh\nexec {remote} login "$@"\n')
    for script in programs.iterdir():
        script.chmod(0o755)
    return tmp_path


def _started(site: Path) -> list[list[str]]:
    """The words of each program that was started; a word with a line break would be several."""
    file = site / "words"
    commands = file.read_text(encoding="utf-8").split("END\n")[:-1] if file.exists() else []
    file.unlink(missing_ok=True)
    return [command.splitlines() for command in commands]


def _options(command: list[str]) -> list[str]:
    """The program, its options without their values, and how many words there are."""
    named = [word.partition("=")[0] for word in command if word.startswith("-") or "=" in word]
    return [command[0], str(len(command)), *named]


@pytest.mark.parametrize(
    ("field", "before"),
    [*((field, "ssh") for field in CALLS), ("drain reason", "on-login")],
)
def test_hostile_values_run_nothing_and_add_no_option(site: Path, field: str, before: str) -> None:
    call, good = CALLS[field]
    words = (str(site / "programs" / before), *(("login",) if before == "ssh" else ()))
    _try(call, words, good)
    usual = [_options(command) for command in _started(site)]
    assert usual, "the good value starts the program"
    for value in HOSTILE:
        if not value and "cluster" in field:
            continue  # there is none
        _try(call, words, value.replace("X", str(site / "executed")))
        assert not (site / "executed").exists(), value
        for command in _started(site):
            assert _options(command) in usual, (value, command)


def _try(call: Call, words: tuple[str, ...], value: str) -> None:
    with suppress(TachographError):
        call(words, value)


def test_a_word_that_a_shell_reads_is_refused_without_a_kind() -> None:
    for word in ("a b", "$HOME", "a;b", "`id`", "a\nb", "(a)", "{", "a{b c}"):
        with pytest.raises(RefusedError, match="invalid word of a command"):
            SiteProgram(("sacct",)).command(word)


def test_behind_ssh_a_text_arrives_as_it_is_and_elsewhere_without_blanks(site: Path) -> None:
    reasons = []
    for before in (("ssh", "login"), ("prefix",), ("on-login",)):
        program, *more = before
        jobs = SlurmJobs((str(site / "programs" / program), *more))
        with suppress(TachographError):
            jobs.drain("gpu01", None, "-- XID 79; State=RESUME $(id)")
        reasons += [
            word for command in _started(site) for word in command if word.startswith("Reason=")
        ]
    assert reasons == ["Reason=XID 79 State=RESUME id", *["Reason=XID_79_State=RESUME_id"] * 2]
