"""`tachograph kernels` on reports that come by a pipe, and on very many: messages stay short."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nsight_reports import PUBLISHED, raw_csv, sample
from tachograph.catalog.errors import UsageError
from tachograph.cli import main
from tachograph.cli.kernels import stdin_as_file

COUNT = 70


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def piped(folder: Path, content: bytes, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tachograph", "kernels", *arguments]
    done = subprocess.run(command, input=content, capture_output=True, cwd=folder, timeout=300, check=False)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.slow
def test_a_report_comes_by_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(sample(), encoding="utf-8")
    got = piped(tmp_path, b"output of the program\n" + sample().encode(), "-", "--json")
    assert got.returncode == 0
    values = json.loads(got.stdout)
    named = json.loads(piped(tmp_path, b"", "good.csv", "--json").stdout)
    assert [one["file"] for one in values["files"]] == ["stdin"]
    assert all(kernel["reports"] == ["stdin"] for kernel in values["gpus"][0]["kernels"])
    for one, other in zip(values["gpus"][0]["kernels"], named["gpus"][0]["kernels"], strict=True):
        assert one["uses"] == other["uses"]


def test_what_cannot_be_read_of_a_pipe_is_reported_of_stdin(tmp_path: Path) -> None:
    got = piped(tmp_path, b"no report\n", "-")
    assert got.returncode == 4
    assert "- stdin: no table of Nsight Compute is in it" in got.stderr
    assert "tmp" not in got.stderr


def test_stdin_is_read_once_and_from_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for twice in (["-", "-"], ["-", "--with", "-"]):
        assert main(["kernels", *twice]) == 2
        assert "stdin can be read once only" in capsys.readouterr().err
    with pytest.raises(UsageError, match="is a terminal"), stdin_as_file(wanted=True, stdin=Terminal()):
        pass
    with stdin_as_file(wanted=False, stdin=Terminal()) as kept:
        assert not kept.path.exists()


def test_the_file_of_a_pipe_is_gone_in_the_end() -> None:
    with stdin_as_file(wanted=True, stdin=io.BytesIO(b"x")) as kept:
        assert kept.path.read_bytes() == b"x"
    assert not kept.path.parent.exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As many good files as bad ones and others that are there twice."""
    for place in range(COUNT):
        good = raw_csv((replace(PUBLISHED[0], ms=1.0 + place),))
        (tmp_path / f"a{place:03}.csv").write_text(good, encoding="utf-8")
        (tmp_path / f"same{place:03}.csv").write_text(good, encoding="utf-8")
        (tmp_path / f"error{place:03}.csv").write_text(f"==ERROR== number {place}\n", encoding="utf-8")
        (tmp_path / f"odd{place:03}.csv").write_text(
            f"==ERROR== number {place}\n{good.replace('1,', '2,', 1)}", encoding="utf-8"
        )
    return tmp_path


def test_many_files_are_reported_in_few_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", str(folder)]) == 0
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 2 * 21
    counted = [
        int(found.group(1)) for line in messages if (found := re.search(r"and (\d+) more lines like these", line))
    ]
    assert counted == [2 * COUNT - 20, COUNT - 20]  # there twice, or errors only; failed while others were read
    assert main(["kernels", str(folder), "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    assert len(values["problems"]) == COUNT
    assert len(values["files"]) == 2 * COUNT
    assert len(printed.err.splitlines()) == 21


def test_the_page_lists_few_of_many_files(folder: Path, tmp_path: Path) -> None:
    assert main(["kernels", str(folder), "--html", str(tmp_path / "page.html"), "--quiet"]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count(".csv: 1 launch<") == 50
    assert f"and {2 * COUNT - 50} more files; JSON has them all" in page
    assert f"and {COUNT - 50} more; JSON has them all" in page
