"""The command line in a process of its own: help, imports, errors, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from work_counts import ACCEPT, STORED, differences, measure

from own_time import starting_seconds
from tachograph import __version__

HEAVY = {
    "polars",
    "numpy",
    "numba",
    "deltalake",
    "pyarrow",
    "matplotlib",
    "rich",
    "jinja2",
    "msgspec",
    "ClusterShell",
}


def tachograph(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tachograph", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def imported_by(*commands: str, cwd: Path | None = None) -> set[str]:
    """The modules that a process has imported when it has run these commands one after the other."""
    script = (
        "import sys\nfrom tachograph.cli import main\n"
        f"for command in {commands!r}:\n"
        "    assert main(command.split()) == 0, command\n"
        "sys.stderr.write('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, check=True, capture_output=True, text=True
    )
    return set(done.stderr.split())


def test_help_imports_neither_commands_nor_anything_heavy() -> None:
    imported = imported_by("--help")
    assert imported & HEAVY == set()
    assert {name for name in imported if name.startswith("tachograph.")} == {
        *(
            "tachograph.cli",
            "tachograph.cli.help",
            "tachograph.cli.narrate",
            "tachograph.cli.options",
        ),
        *(
            "tachograph.cli.output",
            "tachograph.cli.registry",
            "tachograph.catalog",
            "tachograph.catalog.errors",
        ),
        *(
            "tachograph.catalog.secrets",
            "tachograph.catalog.suggestions",
            "tachograph.catalog.units",
        ),
        "tachograph.catalog.doors",
        "tachograph.catalog.version",
    }


def test_light_commands_read_no_table_library() -> None:
    imported = imported_by("lake counters --help", "lake devices --help", "lake counters --json")
    assert imported & (HEAVY - {"msgspec"}) == set()


def test_commands_that_look_import_no_compiler_no_grammar_no_drawing(demo: Path) -> None:
    look = ("jobs --json", "jobs --csv", "job 1000316", "job 1000316 --json")
    imported = imported_by(*look, "lake --json", "waste --json", cwd=demo)
    assert "polars" in imported
    assert (
        imported & {"numba", "lark", "matplotlib", "jinja2", "dask", "textual", "httpx2"} == set()
    )


def test_a_list_of_jobs_imports_no_arrays_and_a_file_no_styles(demo: Path) -> None:
    imported = imported_by("jobs", "jobs --limit 3 --worst", "job 1000316", cwd=demo)
    assert "rich" not in imported
    assert "tachograph.judge.checks.nvlink_errors" not in imported  # only those that hold
    imported = imported_by("jobs", "jobs --limit 3 --worst", "jobs --json", cwd=demo)
    assert imported & {"numpy", "tachograph.judge.check"} == set()


def test_the_work_of_the_main_paths_is_what_was_recorded() -> None:
    changed = differences(json.loads(STORED.read_text()), measure())
    assert not changed, "\n".join([*changed, ACCEPT])


def test_help_is_there_at_once() -> None:
    # 0.02 s of a Python that does nothing where this was written, 0.06 s of the help, 0.3 s where
    # it imports Polars
    limit = max(0.2, 10 * starting_seconds([sys.executable, "-c", "pass"]))
    assert starting_seconds([sys.executable, "-m", "tachograph", "--help"], enough=limit) < limit


@pytest.mark.parametrize("arguments", [("--version",), ("lake", "counters", "--version")])
def test_version(arguments: tuple[str, ...]) -> None:
    done = tachograph(*arguments)
    assert (done.returncode, done.stdout) == (0, f"tachograph {__version__}\n")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    script = f"{sys.executable} -m tachograph lake counters --json | true; echo ${{PIPESTATUS[0]}}"
    for _ in range(3):  # whether the writer or the reader is first differs
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.stderr == ""
        assert done.stdout.strip() in {"0", "141"}


def test_a_closed_pipe_ends_it_with_the_code_of_the_signal() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tachograph", "lake", "counters"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])  # "": what was not written is tried again at exit
def test_a_full_disk_is_one_line(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tachograph", "lake", "counters"], stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    line = "tachograph: the disk is full; free some space, then run the command again\n"
    assert (done.returncode, done.stderr) == (5, line)


BOUNDARY = """
import sys, types
from tachograph.cli import main, registry
{define}
module = types.SimpleNamespace(add_arguments=lambda parser: None, run=run)
sys.modules["tachograph.cli.planted"] = module
registry.COMMANDS += (registry.CommandEntry("planted", ".planted", "fail", "start"),)
import tachograph.cli
sys.exit(main(["planted"]))
"""


def planted(define: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a command that is defined so."""
    return subprocess.run(
        [sys.executable, "-c", BOUNDARY.format(define=define)], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (
            "errors.InputError('cut off', where='a.csv', do='copy it again')",
            4,
            "tachograph: a.csv: cut off; copy it again\n",
        ),
        ("errors.NotFoundError('no job 7')", 6, "tachograph: no job 7\n"),
        ("errors.ConfigError('two\\nlines \\x1b[2J')", 3, "tachograph: two lines \\x1b[2J\n"),
        (
            "PermissionError(13, 'Permission denied', 'lake')",
            5,
            "tachograph: lake: permission denied; use a folder you may read and write\n",
        ),
        ("KeyboardInterrupt()", 130, "\ntachograph: interrupted; the lake is consistent\n"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(raised: str, code: int, line: str) -> None:
    done = planted(
        f"from tachograph.catalog import errors\ndef run(arguments):\n    raise {raised}"
    )
    assert (done.returncode, done.stderr) == (code, line)


@pytest.mark.parametrize(
    "raised", ["KeyError('x')", "OSError(5, 'Input/output error')", "FileNotFoundError(2, 'x')"]
)
def test_a_defect_keeps_its_traceback(raised: str) -> None:
    done = planted(f"def run(arguments):\n    raise {raised}")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith(raised.split("(")[0])


def test_an_interrupt_from_the_keyboard_ends_it_with_one_line() -> None:
    script = BOUNDARY.format(
        define=(
            "import time\ndef run(arguments):\n    print('ready', flush=True)\n    time.sleep(30)"
        )
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed.strip()) == (
        130,
        b"tachograph: interrupted; the lake is consistent",
    )


def test_a_terminal_that_knows_ascii_only_gets_the_rest_written_out() -> None:
    done = tachograph("lake", "counters", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "sm_clock_mhz" in done.stdout
    done = tachograph("größe", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.startswith("tachograph: unknown command 'gr\\xf6\\xdfe'")


def test_the_versions_of_the_parts() -> None:
    versions = json.loads(tachograph("version", "--json").stdout)
    assert versions["tachograph"] == __version__
    assert set(versions) == {"tachograph", "python", "polars", "deltalake", "numba", "numpy"}


def test_a_thread_left_in_native_code_does_not_crash_the_end(tmp_path: Path) -> None:
    """Finalizing a million lists takes long enough for the thread to return while the
    interpreter is finalized.
    """
    script = (
        "import sys, threading\nimport polars as pl\nfrom deltalake import DeltaTable\n"
        "from tachograph.cli import end_process\n"
        "pl.DataFrame({'a': [1]}).write_delta(sys.argv[1])\n"
        "lists, began = [[] for _ in range(1_000_000)], threading.Event()\n"
        "def work():\n    while True:\n        DeltaTable(sys.argv[1])\n        began.set()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "began.wait()\nsys.stdout.write('all of it')\nend_process(3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "all of it", "")
