"""What goes to stdout and stderr, on a terminal and off it."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from tachograph.catalog.errors import InputError
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator

HEADINGS = ("job", ">GPUs")


def test_a_table_off_a_terminal_is_never_cropped(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 500
    output.print_table(HEADINGS, [(name, "4"), ("b", "16")])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["job", "GPUs"]
    assert first == f"{name}     4"
    assert second == f"b{' ' * 499}    16"


def test_cells_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(HEADINGS, [("nid[001-004] [bold]x[/]", None), ("a\x1b[2Jb\nc", "1")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("nid[001-004] [bold]x[/]")
    assert lines[1].endswith("–")
    assert lines[2].startswith("a\\x1b[2Jb\\nc")


def test_a_table_without_rows_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(HEADINGS, [])
    assert capsys.readouterr().out.splitlines()[0].split() == ["job", "GPUs"]


def test_json_keeps_null_and_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json(
        [
            {
                "a": None,
                "b": float("nan"),
                "c": float("inf"),
                "t": datetime(2026, 4, 23, 7, tzinfo=UTC),
            }
        ]
    )
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed == [{"a": None, "b": None, "c": None, "t": "2026-04-23T07:00:00Z"}]


def on_terminal(script: str, **environment: str) -> str:
    """What a Python script shows on a terminal of 40 columns (stdout and stderr)."""
    ours, theirs = pty.openpty()
    given = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40", **environment}
    given.pop("NO_COLOR" if "NO_COLOR" not in environment else "", None)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=given
    ):
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


TABLE = (
    "from tachograph.cli.output import print_table\n"
    "row = ['w' * 100, *['123456'] * 6]\n"
    "print_table(['job', '>n1', '>n2', '>n3', '>n4', '>n5', '>n6'], [row], no_color={no_color})"
)


def test_a_table_on_a_terminal_folds_texts_and_hides_numbers() -> None:
    shown = on_terminal(TABLE.format(no_color=False))
    assert shown.count("w") == 100
    assert shown.count("123456") == 3
    assert "hidden columns: n4, n5, n6" in shown
    assert "\x1b[1m" in shown


@pytest.mark.parametrize(("no_color", "environment"), [(True, {}), (False, {"NO_COLOR": "1"})])
def test_colours_can_be_turned_off(no_color: bool, environment: dict[str, str]) -> None:
    assert "\x1b[31m" not in on_terminal(STYLED.format(no_color=no_color), **environment)


STYLED = (
    "from tachograph.cli.output import print_lines\nprint_lines([(('w' * 100, 'red'),)], "
    "no_color={no_color})"
)


def test_styled_lines_are_coloured_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    shown = on_terminal(STYLED.format(no_color=False))
    assert "\x1b[31m" in shown
    assert "w" * 100 in shown
    output.print_lines([(("5 [GPUs]", "red"),), (("line 2", ""),)])
    assert capsys.readouterr().out == "5 [GPUs]\nline 2\n"


def test_a_line_is_as_long_as_the_terminal_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert output.width() == 72


@pytest.mark.parametrize(
    ("encoding", "poor"), [("ascii", True), ("latin-1", True), ("utf-8", False)]
)
def test_a_terminal_that_cannot_draw_is_known(
    encoding: str, poor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert output.ascii_only() is poor


PROGRESS = (
    "from tachograph.cli.narrate import Narrator\n"
    "with Narrator(quiet={quiet}).progress('reading', total=2) as advance:\n    advance(1)\n   "
    " advance(1)\n"
)


def test_progress_is_shown_on_a_terminal() -> None:
    assert "reading" in on_terminal(PROGRESS.format(quiet=False))


def test_quiet_shows_no_progress() -> None:
    assert on_terminal(PROGRESS.format(quiet=True)) == ""


def test_progress_is_not_shown_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Narrator().progress("reading", total=2) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


def test_remarks_go_to_stderr_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    Narrator().say("wrote x")
    Narrator(quiet=True).say("wrote y")
    assert capsys.readouterr() == ("", "wrote x\n")


def test_errors_are_reported_with_quiet_too(capsys: pytest.CaptureFixture[str]) -> None:
    narrate.error(InputError("cut off", where="a.csv", do="copy it again"))
    assert capsys.readouterr() == ("", "tachograph: a.csv: cut off; copy it again\n")
