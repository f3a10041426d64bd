"""Lakes that are absent, damaged, not permitted or on a full disk: one line, nothing lost, and
on it goes.
"""

from __future__ import annotations

import ctypes
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bad_input import (
    SACCT,
    assert_one_line,
    contents,
    csv,
    data_files,
    job,
    results,
    rows,
    tachograph,
)

from tachograph.collect.lock import CollectLock

_LIBC = ctypes.CDLL(None)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of one analyzed job."""
    folder = tmp_path_factory.mktemp("prepared")
    lake = folder / "lake"
    for source, file in (
        ("ldms", csv(folder, "a.csv", rows(60))),
        ("sacct", csv(folder, "jobs.txt", job(1), header=SACCT)),
        ("allocation-map", csv(folder, "map.csv", "1,n1,0\n", header="job_id,node,gpu\n")),
    ):
        assert tachograph("ingest", source, file, "--lake", lake).code == 0
    assert tachograph("analyze", "--lake", lake).code == 0
    return lake


@pytest.fixture
def lake(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "lake"))


@pytest.mark.parametrize(
    "command", [("lake",), ("jobs",), ("job", "1"), ("analyze",), ("lake", "compact")]
)
def test_a_missing_lake_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert_one_line(
        tachograph(*command, "--lake", tmp_path / "nowhere"),
        5,
        "nowhere: there is no lake",
        "--lake",
    )


def test_a_folder_or_a_file_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "folder" / "gpu_samples").mkdir(parents=True)
    (tmp_path / "file").write_text("not a folder")
    for name in ("folder", "file"):
        assert_one_line(
            tachograph("lake", "--lake", tmp_path / name), 5, f"{name}: there is no lake"
        )
    file = csv(tmp_path, "a.csv", rows(1))
    assert_one_line(tachograph("ingest", "ldms", file, "--lake", tmp_path / "file"), 5, "file: ")
    assert tachograph("ingest", "ldms", file, "--lake", tmp_path / "folder").code == 0


def without_log(lake: Path) -> None:
    shutil.rmtree(lake / "gpu_samples" / "_delta_log")


def cut_log(lake: Path) -> None:
    last = sorted((lake / "gpu_samples" / "_delta_log").glob("*.json"))[-1]
    last.write_bytes(last.read_bytes()[:40])


def empty_log(lake: Path) -> None:
    sorted((lake / "gpu_samples" / "_delta_log").glob("*.json"))[-1].write_bytes(b"")


def wrong_log(lake: Path) -> None:
    last = sorted((lake / "gpu_samples" / "_delta_log").glob("*.json"))[-1]
    last.write_text('{"add": garbage\n')


def without_first_log(lake: Path) -> None:
    sorted((lake / "gpu_samples" / "_delta_log").glob("*.json"))[0].unlink()


def without_data(lake: Path) -> None:
    data_files(lake, "gpu_samples")[0].unlink()


def cut_data(lake: Path) -> None:
    file = data_files(lake, "gpu_samples")[0]
    file.write_bytes(file.read_bytes()[:300])


def empty_data(lake: Path) -> None:
    data_files(lake, "gpu_samples")[0].write_bytes(b"")


LOG = "the table's log cannot be used"
TORN = "empty or cut off"


@pytest.mark.parametrize(
    ("damage", "what", "do", "ingest_too"),
    [
        (without_log, "the table's _delta_log is gone", "backup", True),
        (cut_log, TORN, "lake --repair", True),
        (wrong_log, TORN, "lake --repair", True),
        (empty_log, TORN, "lake --repair", True),
        (without_first_log, LOG, "backup", True),
        (without_data, "the data file is missing", "lake --repair", False),
        (cut_data, "the data file is cut off", "lake --repair", False),
        (empty_data, "the data file is empty", "lake --repair", False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_table_is_named_and_takes_more_once_restored(
    prepared: Path, lake: Path, damage: Callable[[Path], None], what: str, do: str, ingest_too: bool
) -> None:
    damage(lake)
    assert_one_line(tachograph("lake", "--lake", lake), 5, "gpu_samples", what, do)
    more = csv(lake.parent, "more.csv", rows(10, first=60))
    done = tachograph("ingest", "ldms", more, "--lake", lake)
    if ingest_too:
        assert_one_line(done, 5, "gpu_samples", what, do)
        shutil.rmtree(lake / "gpu_samples")
        shutil.copytree(prepared / "gpu_samples", lake / "gpu_samples")
        assert tachograph("ingest", "ldms", more, "--lake", lake).code == 0
    else:  # what is new is appended, what is damaged stays
        assert (done.code, done.printed) == (0, "")
        [damaged] = data_files(prepared, "gpu_samples")
        shutil.copy(damaged, lake / damaged.relative_to(prepared))
    assert contents(lake)["gpu_samples"] == 70


def test_a_torn_log_is_repaired_by_the_command_once(lake: Path) -> None:
    before = contents(lake)
    file = csv(lake.parent, "more.csv", rows(10, first=60))
    assert tachograph("ingest", "ldms", file, "--lake", lake).code == 0
    empty_log(lake)
    with CollectLock(lake / "_collect").held(now=datetime.now(UTC), pause=lambda _: None):
        assert_one_line(
            tachograph("lake", "--repair", "--lake", lake), 5, "collects into the lake", "stop it"
        )
    done = tachograph("lake", "--repair", "--lake", lake)
    assert (done.code, done.printed) == (0, "")
    assert "gpu_samples: 00000000000000000002.json put aside: version 2, torn" in done.out
    assert tachograph("lake", "--repair", "--lake", lake).out == "Nothing to repair.\n"
    assert contents(lake) == before
    other = csv(lake.parent, "other.csv", rows(10, node="n2"))
    assert tachograph("ingest", "ldms", other, "--lake", lake).code == 0
    assert contents(lake)["gpu_samples"] == 70


def test_damaged_results_do_not_stop_the_ingest(lake: Path) -> None:
    [file] = data_files(lake, "job_summaries")
    whole = file.read_bytes()
    file.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    for command in (("jobs",), ("job", "1")):
        assert_one_line(tachograph(*command, "--lake", lake), 5, "job_summaries", "lake --repair")
    assert (
        tachograph(
            "ingest", "ldms", csv(lake.parent, "b.csv", rows(5, node="n2")), "--lake", lake
        ).code
        == 0
    )
    file.write_bytes(whole)
    assert contents(lake)["gpu_samples"] == 65


def limited(size: int) -> Callable[[], None]:
    """Files of a child may not be larger; a write beyond gives an error (Python ignores the
    signal).
    """
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.slow
@pytest.mark.parametrize("size", [200, 12_000])
def test_where_files_cannot_grow_the_lake_stays_as_it_was(lake: Path, size: int) -> None:
    before = contents(lake)
    big = csv(lake.parent, "big.csv", *(rows(3000, node=f"n{node}") for node in range(2, 5)))
    done = tachograph("ingest", "ldms", big, "--lake", lake, before=limited(size))
    assert_one_line(done, 5, str(lake), "free some space")
    assert contents(lake) == before
    orphans = len(data_files(lake, "gpu_samples"))
    assert tachograph("ingest", "ldms", big, "--lake", lake).code == 0
    assert contents(lake)["gpu_samples"] == before["gpu_samples"] + 9000
    assert len(data_files(lake, "gpu_samples")) == orphans + 1 == 2


@pytest.mark.slow
def test_an_analysis_that_cannot_write_leaves_the_results_as_they_were(lake: Path) -> None:
    before = results(lake)
    done = tachograph("analyze", "--full", "--lake", lake, before=limited(6_000))
    assert_one_line(done, 5, str(lake), "free some space")
    assert results(lake) == before


def obedient() -> None:
    """Let the superuser, too, be held by the permissions of files: what is dropped here does not
    come back.
    """
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        _LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.fixture
def closed_lake(lake: Path) -> Iterator[Path]:
    """A lake that may be read and not written."""
    folders = [lake, *(path for path in lake.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    held = (
        subprocess.run(
            ["touch", str(lake / "x")], preexec_fn=obedient, capture_output=True
        ).returncode
        != 0
    )
    if held:
        yield lake
    for folder in folders:
        folder.chmod(0o755)
    if not held:
        pytest.skip("permissions do not hold here")


NOT_PERMITTED = "not permitted; request permission, or name another lake with --lake"


@pytest.mark.slow
def test_a_lake_that_may_not_be_written_is_named_and_can_be_read(closed_lake: Path) -> None:
    before = contents(closed_lake)
    more = csv(closed_lake.parent, "more.csv", rows(10, first=60))
    for command in (("ingest", "ldms", more), ("analyze", "--full")):
        done = tachograph(*command, "--lake", closed_lake, before=obedient)
        assert_one_line(done, 5, f"{closed_lake}/", NOT_PERMITTED)
    assert contents(closed_lake) == before
    done = tachograph("jobs", "--lake", closed_lake, before=obedient)
    assert (done.code, done.printed) == (0, "")


@pytest.mark.slow
def test_what_may_not_be_read_or_made_is_named(closed_lake: Path) -> None:
    more = csv(closed_lake.parent, "more.csv", rows(10, first=60))
    done = tachograph("ingest", "ldms", more, "--lake", closed_lake / "below", before=obedient)
    assert_one_line(done, 5, f"{closed_lake / 'below'}: {NOT_PERMITTED}")
    closed_lake.chmod(0)
    done = tachograph("lake", "--lake", closed_lake, before=obedient)
    closed_lake.chmod(0o555)
    assert_one_line(done, 5, f"{closed_lake}: {NOT_PERMITTED}")
    more.chmod(0)
    done = tachograph("ingest", "ldms", more, "--lake", closed_lake.parent / "new", before=obedient)
    assert_one_line(done, 4, f"{more}: Permission denied", "name a readable file")


@pytest.mark.slow
def test_two_analyses_at_once_leave_what_one_leaves(lake: Path) -> None:
    before = results(lake)
    command = [sys.executable, "-m", "tachograph", "analyze", "--full", "--lake", str(lake)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], ended
    assert ended[0] == ended[1]
    assert results(lake) == before
    assert contents(lake)["analyses"] == 3
