"""The words of what is printed, in one snapshot: findings, help, and the commands people use first.

A change of words changes this snapshot (`make test ARGS='tests/project/test_printed_words.py
--snapshot-update'`) and the pages that show them (`make docs`); other tests compare numbers, codes
and structure.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from doc_pages import environment
from in_process import run_here
from tachograph.api.open_lake import open_lake
from tachograph.cli.registry import COMMANDS

SHOWN = (
    "jobs --limit 5",
    "jobs --user nobody",
    "job 1000316",
    "waste",
    "waste --by user --top 3",
    "lab rules list",
    "share colocate --top 2",
)


def words(folder: Path, line: str) -> str:
    done = run_here(line.split(), folder, environment())
    assert done.returncode == 0, done.stderr
    return f"{done.stdout}{done.stderr}"


def test_findings(demo: Path, snapshot: SnapshotAssertion) -> None:
    """Of each code and verdict the first job: title, sentence, advice."""
    findings = open_lake(str(demo / "lake")).findings(verdict=None)
    first = findings.sort("code", "verdict", "job_key").unique(
        ["code", "verdict"], keep="first", maintain_order=True
    )
    rows = first.select("code", "verdict", "severity", "title", "sentence", "advice").iter_rows()
    assert "\n\n".join("\n".join(str(value) for value in row) for row in rows) == snapshot


@pytest.mark.parametrize("line", SHOWN)
def test_a_command(demo: Path, line: str, snapshot: SnapshotAssertion) -> None:
    assert words(demo, line) == snapshot


@pytest.mark.parametrize("name", ["", *(command.name for command in COMMANDS)])
def test_help(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert words(tmp_path, f"{name} --help") == snapshot
