"""A lake that the version before wrote, byte by byte: every command that reads lakes reads it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tachograph.cli import main
from tachograph.service.collect.status import STATUS_FILE, CollectStatus, read_status, write_status
from unpacked import unpack

NUMBERS = {
    "gpu_util_mean": 0.1738157907598897,
    "gpu_hours": 12.614444444444445,
    "samples": 76,
    "energy_j": 3661538.532671526,
}
# nine jobs on four A100; analyzed by that version, without samples, which would be large
LAKE = Path(__file__).parent / "lake_of_version_before.tar.xz"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    unpack(LAKE, folder)
    return folder / "lake"


def output_of(lake: Path, *command: object) -> str:
    """What a command writes to stdout; its exit code must be 0."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, command), "--lake", str(lake)])
    assert code == 0, err.getvalue()
    return out.getvalue()


def test_jobs_have_the_numbers_of_then(lake: Path) -> None:
    jobs = {row["job_id"]: row for row in json.loads(output_of(lake, "jobs", "--json"))}
    assert len(jobs) == 9
    assert {name: jobs["1000006"][name] for name in NUMBERS} == pytest.approx(NUMBERS, rel=1e-12)
    assert jobs["1000006"]["findings"] == ["one_gpu_of_many"]
    assert jobs["1000002"]["findings"] == ["memory_bound"]
    assert jobs["1000007"]["gpu_util_mean"] is None


@pytest.mark.parametrize(
    "command",
    [
        *(("jobs",), ("job", "1000006"), ("job", "1000006", "--checks"), ("lake",), ("waste",), ("waste", "--csv")),
        *(
            ("lab", "classify"),
            ("lab", "rules", "run"),
            ("share", "colocate", "--runs", "1"),
            ("jobs", "--finding", "one_gpu_of_many"),
        ),
    ],
    ids=" ".join,
)
def test_a_command_reads_it(lake: Path, command: tuple[str, ...]) -> None:
    assert output_of(lake, *command)


@pytest.mark.parametrize("target", ["csv", "parquet", "jsonl"])
def test_it_is_exported(lake: Path, target: str, tmp_path: Path) -> None:
    assert "9 job_summaries written" in output_of(lake, "export", target, "--to", tmp_path)


def test_the_status_file_of_a_collector_is_read(tmp_path: Path) -> None:
    """Keys of that version that are named otherwise now are left out."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    write_status(tmp_path, CollectStatus("0", "lake", "node", 7, started=now, updated=now))
    written = msgspec.json.decode((tmp_path / STATUS_FILE).read_bytes())
    written["sources"] = {"one": {"name": "one", "every_s": 60.0, "polls": 3, "land_s": 1.5}}
    written["steps"] = {"analyze": {"runs": 1, "said": "3 jobs summarized"}}
    (tmp_path / STATUS_FILE).write_bytes(msgspec.json.encode(written))
    status = read_status(tmp_path)
    assert status is not None
    assert (status.sources["one"].polls, status.steps["analyze"].runs) == (3, 1)


def test_verdicts_have_the_names_of_now(lake: Path) -> None:
    verdicts = json.loads(output_of(lake, "job", "1000006", "--json"))["verdicts"]
    assert {row["verdict"] for row in verdicts} == {"yes", "no", "unknown"}
    undecided = json.loads(output_of(lake, "jobs", "--finding", "stable", "--verdict", "unknown", "--json"))
    assert len(undecided) == 9
