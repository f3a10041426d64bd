"""Data files that are missing, empty, cut off, changed, or no files: named by all commands, and
given up on demand.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from bad_input import Done, assert_one_line, data_files, results, tachograph
from every_command import SmallSite

from tachograph.catalog.tables import ALL_TABLES, COMPUTED, TABLES
from tachograph.lake.delta import Lake


def missing(file: Path) -> None:
    file.unlink()


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:300])


def linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def flipped_pages(file: Path) -> None:
    """Change bytes of the headers of pages and of what is compressed in them."""
    content = bytearray(file.read_bytes())
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in (*range(4, 9), *range(20, end, 37)):
        content[place] ^= 0x55
    file.write_bytes(content)


def flipped_footer(file: Path) -> None:
    """Change bytes of what describes the columns."""
    content = bytearray(file.read_bytes())
    for place in range(
        len(content) - 8 - int.from_bytes(content[-8:-4], "little"), len(content) - 8, 41
    ):
        content[place] ^= 0x55
    file.write_bytes(content)


DAMAGES: Mapping[Callable[[Path], None], str] = {
    missing: "missing",
    emptied: "empty",
    cut: "cut off: 300 of ",
    linked: "a symbolic link",
    folder: "a folder",
    flipped_pages: "damaged: its bytes have changed",
    flipped_footer: "damaged: its bytes have changed",
}


LOST_COMPUTED = (*COMPUTED, "analyses")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> SmallSite:
    return SmallSite.filled(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture
def site(filled: SmallSite, tmp_path: Path) -> SmallSite:
    """A copy whose lake may be damaged."""
    return SmallSite(Path(shutil.copytree(filled.folder, tmp_path / "site")))


def run(site: SmallSite, words: Sequence[str]) -> Done:
    return tachograph(*words, environment=site.environment, cwd=site.folder)


def rows(site: SmallSite) -> dict[str, list[tuple[object, ...]]]:
    """What readers see of each table that sources fill."""
    lake = Lake.open(str(site.lake))
    frames = {name: lake.latest(table).sort(table.key) for name, table in TABLES.items()}
    return {
        name: frame.drop("seq", "origin", strict=False).rows() for name, frame in frames.items()
    }


def test_the_repair_names_each_and_changes_nothing(site: SmallSite) -> None:
    """A table per kind of damage."""
    names = [table.name for table in ALL_TABLES if data_files(site.lake, table.name)]
    expected = []
    for name, (damage, what) in zip(names, DAMAGES.items(), strict=False):
        file = data_files(site.lake, name)[0]
        expected.append(f"{name}: {file.relative_to(site.lake / name)} is {what}")
        damage(file)
    assert len(expected) == len(DAMAGES)
    before = sorted(site.lake.rglob("*"))
    done = run(site, ("lake", "--repair"))
    assert (done.code, done.printed) == (5, "")
    lines = done.out.splitlines()
    for line in expected:
        assert [shown for shown in lines if shown.startswith(line)], (line, done.out)
    [of_samples] = [line for line in lines if line.startswith("gpu_samples: ")]
    assert "; 61 rows lost from " in of_samples
    assert f"Files lost: {len(DAMAGES)}; nothing was changed." in done.out
    assert "\n  gpu_samples: ingest the recordings" in done.out
    assert "\n  job_summaries: tachograph analyze --full\n" in done.out
    assert sorted(site.lake.rglob("*")) == before
    report = json.loads(run(site, ("lake", "--repair", "--json")).out)
    assert sorted(file["table"] for file in report["lost"]) == sorted(names[: len(DAMAGES)])
    assert [file["rows"] for file in report["lost"] if file["table"] == "gpu_samples"] == [61]
    assert not report["given_up"]


@pytest.mark.parametrize(
    ("table", "damage"),
    [
        (None, missing),
        pytest.param("analyses", missing, marks=pytest.mark.slow),
    ],
)
def test_computed_tables_come_back_by_an_analysis(
    site: SmallSite, table: str | None, damage: Callable[[Path], None]
) -> None:
    files = [
        file
        for name in ([table] if table else LOST_COMPUTED)
        for file in data_files(site.lake, name)
    ]
    if not files:
        pytest.skip("the job has no rows of it")
    before = results(site.lake)
    for file in files:
        damage(file)
    assert run(site, ("lake", "--repair", "--give-up-lost")).code == 5
    assert run(site, ("lake", "--repair")).out == "Nothing to repair.\n"
    assert run(site, ("analyze", "--full")).code == 0
    assert results(site.lake) == before


@pytest.mark.parametrize(
    ("table", "damage"),
    [("gpu_samples", missing)]
    + [
        pytest.param(table, damage, marks=pytest.mark.slow)
        for table, damage in (
            (None, cut),
            ("jobs", flipped_footer),
        )
    ],
)
def test_sources_come_back_by_ingesting_again(
    site: SmallSite, table: str | None, damage: Callable[[Path], None]
) -> None:
    before, judged = rows(site), results(site.lake)
    for name in [table] if table else TABLES:
        for file in data_files(site.lake, name):
            damage(file)
    assert run(site, ("lake", "--repair", "--give-up-lost")).code == 5
    assert run(site, ("lake", "--repair")).out == "Nothing to repair.\n"
    for words in (*site.ingests, *site.ingests):
        assert run(site, words).code == 0
        lake = Lake.open(str(site.lake))
        for each in TABLES.values():  # as they lie: nothing is there twice
            lying = lake.scan(each).collect()
            assert each is TABLES["rejects"] or lying.height == lying.unique(each.key).height
    assert rows(site) == before
    assert run(site, ("analyze", "--full")).code == 0
    assert results(site.lake) == judged


def test_giving_up_is_asked_for_with_the_repair(site: SmallSite) -> None:
    assert_one_line(run(site, ("lake", "--give-up-lost")), 2, "--give-up-lost goes with --repair")
    assert run(site, ("lake", "--repair", "--give-up-lost")).out == "Nothing to repair.\n"


def test_a_file_that_is_not_lost_is_read_again_only_for_what_is_missing(site: SmallSite) -> None:
    """After a loss every file is accepted once more; those whose rows are there add nothing, and
    say so.
    """
    missing(data_files(site.lake, "allocations")[0])
    run(site, ("lake", "--repair", "--give-up-lost"))
    done = run(site, (*site.ingests[0], "--json"))
    report = json.loads(done.out)
    assert (report["rows_read"], report["rows_known"], report["duplicates"]) == (61, 61, 0)
    assert sum(report["rows"].values()) == 0


# commands that read no table, write a lake of their own, or answer on stdin (mcp)
ELSEWHERE = {
    "completion", "demo", "help", "init", "lab accuracy", "lab simulate", "lake counters",
    "lake devices", "mcp", "record", "share kernels", "version", "watch",
}  # fmt: skip


def assert_named(site: SmallSite, what: str, name: str) -> None:
    """Run a command on the damaged lake: it succeeds, or ends with one line that names the file
    and the repair.
    """
    done = run(site, site.calls()[name])
    # Nothing answers for the first, beside `collect`; the second is said of old data.
    besides = ("dcgm-exporter", "the data of this lake end at")
    lines = [line for line in done.lines if not any(text in line for text in besides)]
    named = [line for line in lines if "the data file is" in line]
    assert "cannot be read" not in done.printed, done
    assert "a file of the lake is missing" not in done.printed, done
    if named:
        assert (done.code, lines) == (5, named[:1]), done
        assert f"the data file is {what}" in named[0]
        assert named[0].endswith("; run `tachograph lake --repair`")


@pytest.mark.parametrize(
    ("name", "table", "damage"),
    [
        ("lake", "gpu_samples", missing),
        ("jobs", "job_summaries", flipped_pages),
        ("job", "findings", missing),
        ("analyze", "jobs", flipped_pages),
    ],
)
def test_a_command_names_the_file(
    site: SmallSite,
    name: str,
    table: str,
    damage: Callable[[Path], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    [file, *_] = data_files(site.lake, table)
    damage(file)
    done = run(site, site.calls()[name])
    assert_one_line(
        done, 5, f"{file}: the data file is {DAMAGES[damage]}", "run `tachograph lake --repair`"
    )
    assert capfd.readouterr().err == ""  # neither does a library that panics write there


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "damage"),
    [
        (None, cut),
        ("jobs", flipped_pages),
        ("job_summaries", missing),
    ],
)
def test_no_command_ends_with_a_traceback(
    site: SmallSite,
    table: str | None,
    damage: Callable[[Path], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    files = [
        data_files(site.lake, name)[:1]
        for name in ([table] if table else [each.name for each in ALL_TABLES])
    ]
    if not any(files):
        pytest.skip("the site has no rows of it")
    for [file] in filter(None, files):
        damage(file)
    damaged = shutil.copytree(site.lake, site.folder / "damaged", symlinks=True)
    for name in site.calls():
        if name in ELSEWHERE:
            continue
        assert_named(site, DAMAGES[damage], name)
        assert capfd.readouterr().err == "", name
        shutil.rmtree(site.lake)
        shutil.copytree(damaged, site.lake, symlinks=True)
