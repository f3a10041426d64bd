"""The long runs in short: kills of every command, full disks, readers beside a writer, mutations
of every input.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from story import KILLED_ALONE

TESTS = Path(__file__).resolve().parent.parent


def played(script: str, *options: str) -> dict[str, Any]:
    """Run one of the long runs in a process of its own; return what it prints."""
    path = TESTS / script
    done = subprocess.run(
        [sys.executable, path.name, *options], cwd=path.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def reported() -> dict[str, Any]:
    """What came of kills and of disks over one story."""
    return played("chaos/in_short.py")


@pytest.mark.slow
def test_killed_commands_leave_the_lake_of_a_run_never_killed(reported: dict[str, Any]) -> None:
    found = reported["kills"]
    assert found["trials_of_several_at_once"] == 1
    assert found["kills_at"]["moment"] >= 6
    assert all(found["kills_of_step"][name] >= 1 for name in KILLED_ALONE)
    assert found["wrong"] == []


@pytest.mark.slow
def test_full_disks_and_read_only_lakes_are_reported_in_one_line(reported: dict[str, Any]) -> None:
    found = reported["disks"]
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert found["wrong"] == []
    assert sum(found["full"].values()) >= 3
    assert list(found["read_only"].values()).count(5) == 3


@pytest.mark.slow
def test_readers_beside_a_writer_see_whole_chunks() -> None:
    found = played("chaos/readers.py", "--minutes", "0.05", "--readers", "3")
    assert found["written"]["chunks"] >= 1
    assert set(found["reads"]) == {"read_chunks", "read_results", "read_command"}
    assert found["wrong"] == []


@pytest.mark.slow
def test_a_killed_server_starts_again_and_lists_are_whole_while_the_lake_changes() -> None:
    found = played("chaos/serving.py", "--kills", "3", "--seconds", "2", "--clients", "2")
    assert set(found["killed"]["kills"].values()) == {1}
    assert found["killed"]["wrong"] == []
    assert len(found["killed"]["left"]) == 1
    assert found["paged"]["walks"] >= 2
    assert set(found["paged"]["codes"]) == {"200"}
    assert found["paged"]["wrong"] == []


@pytest.mark.slow
def test_mutations_break_no_reader(recorded: Path) -> None:
    found = played(
        "fuzz/fuzz.py", "--mutations", "400", "--minutes", "0.2", "--recorded", str(recorded)
    )
    assert found["mutations"] >= 100
    assert found["failures"] == []
    assert 0 < found["refused"] < found["mutations"]


@pytest.mark.slow
def test_after_a_power_cut_all_that_was_reported_is_there() -> None:
    found = played("chaos/power_cuts.py", "--cuts", "3", "--seconds", "5")
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert found["cuts"] == 3
    assert found["reported_as_written"] > 3
    assert found["wrong"] == []
