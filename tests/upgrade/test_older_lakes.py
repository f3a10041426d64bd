"""Lakes that earlier versions of the program wrote: read as they are, and carried on.

`lakes/*.tar.xz`: a lake each, of the input beside them, and what `tachograph jobs --json` of that
version printed. `record_lake.py` records one more.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from in_process import run_here
from tachograph.catalog.tables import JOBS
from tachograph.lake.log_format import FORMAT, FORMAT_PROPERTY
from unpacked import unpack

HERE = Path(__file__).parent
LAKES = sorted((HERE / "lakes").glob("*.tar.xz"))
LATER = ("as_of",)  # when it was analyzed
READERS = (("lake",), ("jobs",), ("waste",))
WRITERS = (("analyze",), ("lake", "compact"))

pytestmark = pytest.mark.slow


def tachograph(folder: Path, *words: str, lake: str = "lake") -> subprocess.CompletedProcess[str]:
    return run_here(
        [*words, "--lake", lake, "--config", "input/tachograph.toml"], folder, os.environ.copy()
    )


def printed(folder: Path, *words: str, lake: str = "lake") -> Any:
    done = tachograph(folder, *words, "--json", lake=lake)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a lake, with what was printed of it, beside its input."""
    unpack(HERE / "input.tar.xz", tmp_path)
    unpack(request.param, tmp_path)
    return tmp_path


def of_both(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The jobs, with the columns that both have."""
    known = sorted((then[0].keys() & now[0].keys()) - set(LATER))
    assert len(known) > 100
    return [[{name: as_today(job[name]) for name in known} for job in jobs] for jobs in (then, now)]


def as_today(value: Any) -> Any:
    """A value as it is read: what was a note is a hint."""
    return "hint" if value == "note" else value


@pytest.mark.parametrize(
    "folder", LAKES, ids=lambda path: path.name.partition(".")[0], indirect=True
)
def test_an_older_lake_is_read_and_carried_on(folder: Path) -> None:
    before, after = of_both(json.loads((folder / "jobs.json").read_text()), printed(folder, "jobs"))
    assert before == after
    # what is there is known, and judged anew it is what a lake of today makes of it
    again = tachograph(folder, "ingest", "ldms", "input/telemetry")
    assert (again.returncode, "nothing new" in again.stdout) == (0, True)
    printed(folder, "analyze", "--full")
    assert tachograph(folder, "lake", "compact").returncode == 0
    for words in (("ldms", "input/telemetry"), ("sacct", "input/accounting", "--trusted")):
        assert tachograph(folder, "ingest", *words, lake="today").returncode == 0
    printed(folder, "analyze", lake="today")
    carried, made = of_both(printed(folder, "jobs"), printed(folder, "jobs", lake="today"))
    assert [job["job_id"] for job in carried] == [job["job_id"] for job in made]
    telemetry = (
        "gpu_util_mean",
        "sm_active_mean",
        "samples",
        "energy_j",
        "spatial_imbalance",
        "attribution",
    )
    assert [[job[name] for name in telemetry] for job in carried] == [
        [job[name] for name in telemetry] for job in made
    ]


@pytest.mark.parametrize("folder", LAKES[-1:], indirect=True)
@pytest.mark.parametrize("words", [*READERS, *WRITERS], ids=lambda words: words[0])
def test_a_lake_of_a_later_format_is_refused_in_one_line(
    folder: Path, words: tuple[str, ...]
) -> None:
    for entry in (folder / "lake").glob("*/_delta_log/*.json"):
        text = entry.read_text(encoding="utf-8")
        entry.write_text(
            text.replace(f'"{FORMAT_PROPERTY}":"{FORMAT}"', f'"{FORMAT_PROPERTY}":"{FORMAT + 1}"')
        )
    version = DeltaTable(str(folder / "lake" / JOBS.name)).version()
    done = tachograph(folder, *words)
    assert done.returncode == 5
    assert done.stderr.startswith("tachograph: ")
    assert done.stderr.count("\n") == 1
    assert f"format {FORMAT + 1}" in done.stderr
    assert "update" in done.stderr
    assert DeltaTable(str(folder / "lake" / JOBS.name)).version() == version
