"""The demo fills a lake of its own, and removes nothing that somebody else wrote."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tachograph.annexes.lab.commands.demo import (
    _without_overrides,
    begin_anew,
    configure,
    reach_program,
)
from tachograph.catalog.errors import UsageError
from tachograph.cli.narrate import Narrator


def test_the_demo_forgets_the_lake_of_the_environment_while_it_runs() -> None:
    environment = {
        "TACHOGRAPH_LAKE": "s3://ours/lake",
        "TACHOGRAPH_CONFIG": "ours.toml",
        "HOME": "home",
    }
    before = dict(environment)
    seen = []
    with _without_overrides(environment):
        seen.append(dict(environment))
    assert seen == [{"HOME": "home"}]
    assert environment == before


def test_a_demo_made_anew_leaves_files_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, narrator = tmp_path / "demo", Narrator(quiet=False)
    begin_anew(folder, narrator)
    configure(folder, 'lake = "lake"\n', narrator)
    for name in ("lake", "cluster", "history"):
        (folder / name / "inside").mkdir(parents=True)
        (folder / name / "inside" / "file").write_text("of the demo")
    (folder / "mine.csv").write_text("mine")
    (folder / "notes").mkdir()
    (folder / "notes" / "today.md").write_text("mine, too")
    assert capsys.readouterr().err == ""

    begin_anew(folder, narrator)
    configure(folder, 'lake = "lake"\n', narrator)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {".tachograph-demo", "mine.csv", "notes/today.md", "tachograph.toml"}
    said = capsys.readouterr().err
    assert "lake, cluster, history of the earlier demo are made anew" in said
    assert "was changed" not in said


def test_a_changed_configuration_of_a_demo_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrator = Narrator(quiet=False)
    begin_anew(tmp_path, narrator)
    for round_of in ("first", "second"):
        (tmp_path / "tachograph.toml").write_text(f'note = "{round_of}"\n')
        configure(tmp_path, 'lake = "lake"\n', narrator)
    assert (tmp_path / "tachograph.toml").read_text() == 'lake = "lake"\n'
    assert (tmp_path / "tachograph.toml.old1").read_text() == 'note = "first"\n'
    assert (tmp_path / "tachograph.toml.old2").read_text() == 'note = "second"\n'
    assert "it is kept as tachograph.toml.old2" in capsys.readouterr().err


def test_no_demo_is_made_in_a_folder_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="not empty and not from a demo"):
        begin_anew(tmp_path, Narrator(quiet=True))
    assert (tmp_path / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("folder", ["bin", "with space"])
@pytest.mark.parametrize("has_program", [True, False])
def test_what_comes_next_works_when_pasted(
    tmp_path: Path, folder: str, *, has_program: bool
) -> None:
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "of $*"\n')
    python.chmod(0o755)
    if has_program:
        program = python.with_name("tachograph")
        program.write_text('#!/bin/sh\necho "of -m tachograph $*"\n')
        program.chmod(0o755)
    (command,) = reach_program(None, python)
    script = f"{command}\ntachograph jobs\n"
    done = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "of -m tachograph jobs\n"


def test_the_program_on_the_path_is_written_as_its_name() -> None:
    assert reach_program("/usr/bin/tachograph", Path("/usr/bin/python")) == []
