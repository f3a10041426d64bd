"""Files of advice: who may read them, what is in them, and what becomes of them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_lake import add_run, job_lake

from madelake import summarized
from tachograph.annexes.act import advice_table
from tachograph.annexes.act.advice_table import (
    BEGIN,
    MOST_BYTES,
    AdviceRow,
    ShownLine,
    WrittenAdvice,
    advice_file,
    refresh_advice,
    rows_of_past_jobs,
    write_advice,
)
from tachograph.api.advice import read_past_jobs, read_site
from tachograph.catalog.config import ActOptions, Configuration, SlurmOptions
from tachograph.catalog.errors import ExportError
from tachograph.judge.advice.advise import SiteFacts
from tachograph.judge.advice.past_jobs import PastJob
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter

SHARED = Configuration(slurm=SlurmOptions(shared=("*",)))
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
NOW = datetime(2026, 11, 23, tzinfo=UTC)
NUMBERS = {"ann": 60001, "ben": 60002, "me": os.geteuid()}


def row(user: str, name: str = "train", text: str = "request one GPU") -> AdviceRow:
    return AdviceRow(user, name, "gpu", (ShownLine(text, "gpus", 1),))


@AS_ROOT
def test_a_file_belongs_to_its_user_and_nobody_else_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "advice"
    written = write_advice(folder, [row("ann"), row("ben")], now=NOW, user_number=NUMBERS.get)
    assert written == WrittenAdvice(2, 0)
    for user in ("ann", "ben"):
        found = (folder / str(NUMBERS[user])).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NUMBERS[user], 0o400)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711


@pytest.mark.slow
@AS_ROOT
def test_a_service_needs_no_more_than_the_right_to_give_files_away(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    script = (
        "import os; from datetime import UTC, datetime; from pathlib import Path\n"
        "from tachograph.annexes.act.advice_table import ShownLine, AdviceRow, write_advice\n"
        "os.umask(0o027)\n"
        "rows = [AdviceRow(user, 'train', '*', (ShownLine('one GPU'),)) for user in ('ann', "
        "'ben')]\n"
        "for _ in range(2):\n"
        f"    made = write_advice(Path({str(tmp_path / 'a')!r}), rows, now=datetime.now(UTC),\n"
        "        user_number={'ann': 60001, 'ben': 60002}.get)\n"
        "assert (made.written, made.refused) == (2, ()), made\n"
    )
    user = (
        "--reuid=60003",
        "--regid=60003",
        "--clear-groups",
        "--inh-caps=+chown",
        "--ambient-caps=+chown",
    )
    command = ["setpriv", *user, sys.executable, "-c"]
    if subprocess.run([*command, "import tachograph"], capture_output=True, timeout=120).returncode:
        pytest.skip("other users cannot run this interpreter")
    subprocess.run([*command, script], check=True, timeout=120)
    owners = {
        entry.name: (entry.stat().st_uid, entry.stat().st_mode & 0o777)
        for entry in (tmp_path / "a").iterdir()
    }
    assert owners == {"60001": (60001, 0o400), "60002": (60002, 0o400)}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o711


@AS_ROOT
def test_without_rights_only_the_own_file_is_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        os.setgid(60001)
        os.setuid(60001)
        written = write_advice(
            tmp_path / "a", [row("ann"), row("ben")], now=NOW, user_number=NUMBERS.get
        )
        os._exit(0 if (written.written, written.refused) == (1, ("ben",)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(entry.name for entry in (tmp_path / "a").iterdir()) == ["60001"]


def test_users_without_rows_have_no_file(tmp_path: Path) -> None:
    write_advice(tmp_path, [row("me")], now=NOW, user_number=NUMBERS.get)
    (tmp_path / ".77.new").write_text("left by a killed process")
    (tmp_path / "README").write_text("of the site")
    (tmp_path / "78").mkdir()
    written = write_advice(tmp_path, [row("unknown")], now=NOW, user_number=NUMBERS.get)
    assert written == WrittenAdvice(0, 1, ("unknown",))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["78", "README"]


def test_a_reader_sees_the_old_or_the_new_file(tmp_path: Path) -> None:
    write_advice(tmp_path, [row("me", text="old")], now=NOW, user_number=NUMBERS.get)
    with (tmp_path / str(os.geteuid())).open(encoding="utf-8") as reader:
        write_advice(tmp_path, [row("me", text="new")], now=NOW, user_number=NUMBERS.get)
        assert "old" in reader.read()
    assert "new" in (tmp_path / str(os.geteuid())).read_text()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    folder, precious = tmp_path / "advice", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("precious")
    for name in (str(os.geteuid()), f".{os.geteuid()}.new"):
        (folder / name).symlink_to(precious)
    write_advice(folder, [row("me")], now=NOW, user_number=NUMBERS.get)
    assert precious.read_text() == "precious"
    assert not (folder / str(os.geteuid())).is_symlink()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="file"):
        write_advice(tmp_path / "file", [row("me")], now=NOW, user_number=NUMBERS.get)


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(
        st.builds(
            AdviceRow,
            st.just("me"),
            st.text(max_size=20),
            st.text(min_size=1, max_size=5),
            st.lists(st.builds(ShownLine, st.text(max_size=300)), max_size=5).map(tuple),
        ),
        max_size=5,
    )
)
def test_any_text_makes_a_whole_file(rows: list[AdviceRow]) -> None:
    lines = advice_file(rows, now=NOW).split("\n")
    assert (lines[0], lines[-2], lines[-1]) == (f"{BEGIN} 1795392000", f"end {len(lines) - 3}", "")
    for line in lines[1:-2]:
        assert line.isprintable() or line.count("\t") == 5
        assert len(line.split("\t")) == 6


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    content = advice_file(
        [row("me", f"train{number}", "x" * 200) for number in range(1000)], now=NOW
    )
    assert len(content.encode()) <= MOST_BYTES
    assert "\ntrain0\t" in content
    assert "\ntrain999\t" not in content


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a lake in which a user ran four times on four GPUs and used one."""
    folder = tmp_path_factory.mktemp("runs") / "lake"
    job_lake(folder, 104, runs=4)
    return folder


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    return Lake.open(str(shutil.copytree(template, tmp_path / "lake")))


@pytest.fixture
def refreshed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[WrittenAdvice, list[str]]]:
    """Refreshes so many days from now; what was written, and users whose jobs were read."""
    act = ActOptions(advice_folder=str(tmp_path / "advice"))
    configuration = msgspec.structs.replace(SHARED, act=act)
    read: list[str] = []

    def reading(
        lake: Lake, configuration: Configuration, wanted: JobFilter, site: SiteFacts
    ) -> list[PastJob]:
        read.extend(wanted.users)
        return read_past_jobs(lake, configuration, wanted, site)

    def refresh(days: float = 0.0) -> tuple[WrittenAdvice, list[str]]:
        read.clear()
        now = datetime.now(UTC)
        later = now + timedelta(days=days)
        return refresh_advice(lake, configuration, as_of=now, now=later), [*read]

    monkeypatch.setattr(advice_table, "read_past_jobs", reading)
    return refresh


def test_rows_are_those_of_jobs_like_the_last(lake: Lake) -> None:
    site, options, now = (
        read_site(lake, SHARED),
        Configuration().advice,
        datetime.now(UTC),
    )
    jobs = read_past_jobs(lake, Configuration(), JobFilter(), site)
    named, alike = rows_of_past_jobs(jobs, site, options, as_of=now)
    assert (named.name, named.partition, named.gpus, alike.partition) == ("train", "gpu", 4, "*")
    gpus = named.lines[0]
    assert (gpus.quantity, gpus.value) == ("gpus", 1)
    assert gpus.text.startswith("--gpus=1: 1 of 4: ")
    assert gpus.text.endswith("(4 of 4 runs)")
    for few in (jobs[:2], []):  # not enough runs for advice
        assert rows_of_past_jobs(few, site, options, as_of=now) == []
    assert (
        rows_of_past_jobs(jobs, site, options, as_of=now + timedelta(days=options.days + 1)) == []
    )
    numbered = [replace(job, name=f"train_{number}") for number, job in enumerate(jobs * 3)]
    patterns = rows_of_past_jobs(numbered, site, options, as_of=now)
    assert "train_#" in {row.name for row in patterns}


@AS_ROOT
def test_only_files_of_users_with_new_jobs_are_written(
    lake: Lake, tmp_path: Path, refreshed: Callable[..., tuple[WrittenAdvice, list[str]]]
) -> None:
    folder = tmp_path / "advice"
    assert refreshed() == (WrittenAdvice(1, 0), ["daemon"])
    (folder / "60001").write_text("of a user without new jobs")
    assert refreshed() == (WrittenAdvice(0, 0), [])
    assert (folder / "1").exists()
    add_run(lake, 105, datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1))
    summarized(lake, now=datetime.now(UTC))
    assert refreshed() == (WrittenAdvice(1, 0), ["daemon"])
    assert "(5 of 5 runs)" in (folder / "1").read_text()
    assert refreshed(days=8) == (WrittenAdvice(1, 1), ["daemon"])  # all again
    (folder / ".analyzed").write_text("no numbers")
    assert refreshed() == (WrittenAdvice(1, 0), ["daemon"])
