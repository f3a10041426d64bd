"""An empty list says which option no job meets, and what to try."""

from __future__ import annotations

from pathlib import Path

import pytest

from in_process import run_here
from madelake import held, job, make_lake, summarized, utc
from tachograph.lake.delta import Lake

TRY = "Leave it out or widen it; `tachograph jobs` lists all jobs.\n"
NONE = "No matching jobs; the newest of 2 jobs began 2026-04-03.\n"


@pytest.fixture(scope="module")
def small_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two jobs without samples, of users with names that may steer a terminal."""
    jobs = [
        job("1", utc(2), utc(2, 6), user="annalena", partition="gpu", gpus=1),
        job("2", utc(3), utc(3, 6), user="\x1b[2Jbob", partition="gpu", gpus=4),
    ]
    allocations = [*held("1", "n1", (0,), utc(2), utc(2, 6)), *held("2", "n1", range(4), utc(3))]
    lake = make_lake(
        tmp_path_factory.mktemp("no-match") / "lake", jobs=jobs, allocations=allocations
    )
    summarized(lake)
    return lake


def listed(lake: Lake, *words: str) -> str:
    """Return what a command prints for the lake; it must end well, with nothing on stderr."""
    done = run_here([*words, "--lake", lake.location], Path(lake.location).parent, {})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--user anna", f"No job meets: user anna; did you mean annalena?\n{TRY}"),
        ("--partition cpu-only", f"No job meets: partition cpu-only\n{TRY}"),
        ("--since 2099-01-01", f"No job meets: since 2099-01-01 00:00:00 UTC\n{TRY}"),
        ("--until 2020-01-01", f"No job meets: until 2020-01-01 00:00:00 UTC\n{TRY}"),
        (
            "--user x --where gpus>8",
            f"No job meets: user x\nNo job meets: where gpus>8\n{TRY}",
        ),
        (
            "--user annalena --where gpus=4",
            "Some jobs meet each of these, none all of them: user annalena; where gpus=4\n"
            + TRY.replace("Leave it", "Leave one"),
        ),
        (
            "--finding idle_job",
            "No job meets: finding idle_job; unknown for 2 jobs, see --verdict unknown\n" + TRY,
        ),
        ("--in-study", f"No job meets: in studies\n{TRY}"),
    ],
)
def test_jobs_names_the_options_that_no_job_meets(small_lake: Lake, words: str, why: str) -> None:
    assert listed(small_lake, "jobs", *words.split()) == NONE + why


def test_names_of_others_do_not_steer_the_terminal(small_lake: Lake) -> None:
    printed = listed(small_lake, "jobs", "--user", "\x1b[2Jbo")
    assert "No job meets: user \\x1b[2Jbo; did you mean \\x1b[2Jbob?\n" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    "words",
    ["waste", "waste --jobs hung --by user", "share colocate", "lab classify", "lab rules run"],
)
def test_every_command_with_a_job_filter_says_why(small_lake: Lake, words: str) -> None:
    printed = listed(small_lake, *words.split(), "--user", "nobody")
    assert printed.startswith(f"{NONE}No job meets: user nobody\n{TRY}")


def test_exports_stay_data(small_lake: Lake) -> None:
    assert listed(small_lake, "jobs", "--user", "nobody", "--json") == "[]\n"
    csv = listed(small_lake, "jobs", "--user", "nobody", "--csv", "--columns", "job_id,user")
    assert csv == "job_id,user\n"


def test_a_lake_without_jobs_says_how_to_fill_it(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", jobs=[])
    summarized(lake)
    printed = listed(lake, "jobs", "--user", "ann")
    assert printed == (
        "No jobs in the lake: `tachograph ingest` reads the accounting and samples, `tachograph "
        "analyze` summarizes them.\n"
    )
