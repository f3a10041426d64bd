"""Every ```console block of the documentation is run, page by page; see `doc_pages`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from doc_pages import (
    DEMO,
    PAGES,
    REPOSITORY,
    Step,
    matches,
    prepare,
    refreshed,
    run_all,
    run_step,
    shows,
    steps,
    words_of,
    written_anew,
)


def every_page() -> list[object]:
    named = [(page, str(page.relative_to(REPOSITORY))) for page in PAGES]
    return [pytest.param(page, id=name) for page, name in named]


@pytest.mark.slow
@pytest.mark.parametrize("page", every_page())
def test_the_commands_of_the_page_do_what_it_shows(page: Path, demo: Path, tmp_path: Path) -> None:
    for step, done in run_all(prepare(page, demo, tmp_path), tmp_path):
        assert done.returncode == 0, f"{page.name}: {step.command}\n{done.stderr}"
        if step.printed:
            assert matches(done.stdout, step.printed), (
                f"{page.name}: {step.command} prints\n{done.stdout}\n`make docs` writes it "
                "into the page"
            )


def test_a_page_is_read_as_people_read_it() -> None:
    page = (
        "text\n```console\n$ tachograph a \\\n> --b\nline 1\n\nline 2\n$ "
        "ls\n```\n```python\n$ tachograph no\n```\n"
    )
    assert steps(page) == [Step("tachograph a --b", "line 1\n\nline 2"), Step("ls", "")]


def test_a_file_is_written_as_in_a_shell() -> None:
    page = "```console\n$ cat > a.csv <<END\n> a,b\n> 1,2\n> END\n$ cat a.csv\na,b\n1,2\n```\n"
    assert steps(page) == [
        Step("cat > a.csv <<END\na,b\n1,2\nEND", ""),
        Step("cat a.csv", "a,b\n1,2"),
    ]


@pytest.mark.slow
def test_cd_holds_for_what_follows(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    todo = steps("```console\n$ cd here\n$ pwd\n```\n```python\nprint(7)\n```\n", python=True)
    printed = [done.stdout.strip() for _, done in run_all(todo, tmp_path)]
    assert printed == [str(tmp_path / "here"), "7"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tachograph jobs --where 'gpu_hours>20'", (["jobs", "--where", "gpu_hours>20"], None)),
        ("tachograph jobs --csv > jobs.csv", (["jobs", "--csv"], "jobs.csv")),
        ("tachograph jobs > jobs.txt 2>&1", None),
        ("tachograph jobs | head -1", None),
        ("tachograph jobs --columns $COLUMNS", None),
        ("TACHOGRAPH_LAKE=lake tachograph jobs", None),
        ("tachograph watch --once", None),
        ("ls jobs", None),
    ],
)
def test_what_takes_a_shell_has_one(
    command: str, words: tuple[list[str], str | None] | None
) -> None:
    assert words_of(command) == words


@pytest.mark.slow
def test_a_command_in_this_process_prints_what_it_prints_in_a_shell(demo: Path) -> None:
    step = Step("tachograph jobs --user user003 --limit 2", "")
    here, shell = run_step(step, demo), run_step(step, demo, in_shell=True)
    assert (here.returncode, here.stdout, here.stderr) == (0, shell.stdout, shell.stderr)
    assert here.stdout.count("\n") > 2


@pytest.mark.slow
def test_what_a_command_writes_into_a_file_is_there_as_from_a_shell(
    demo: Path, tmp_path: Path
) -> None:
    command = f"tachograph jobs --lake {demo}/lake --user user003 --csv >"
    for name, in_shell in (("here.csv", False), ("shell.csv", True)):
        done = run_step(Step(f"{command} {name}", ""), tmp_path, in_shell=in_shell)
        assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "shell.csv").read_bytes() != b""


def questions() -> list[tuple[str, str]]:
    """Return questions of the first page with a command that answers each."""
    text = (REPOSITORY / "docs/index.md").read_text("utf-8")
    rows = re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE)
    return [
        (question, command)
        for question, answers in rows
        for command in re.findall(r"`(tachograph [^`]+)`", answers)
    ]


@pytest.mark.slow
def test_every_question_has_an_answer_in_the_demo(demo: Path, tmp_path: Path) -> None:
    prepare(REPOSITORY / "docs/index.md", demo, tmp_path)
    assert len(questions()) > 20
    for question, command in questions():
        done = run_step(Step(command, ""), tmp_path / DEMO)
        assert (done.returncode == 0) is ("the demo has no sources" not in question), done.stderr
        assert done.stdout.startswith("No matching jobs; the newest of ") is (
            "none in the demo" in question
        ), command


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a 1\nb 2\n", "a 1\nb 2", True),
        ("a 1   \nb 2\n", "a 1\nb 2", True),
        ("a 17.3 s\n", "a ... s", True),
        ("a\nb\nc\nd\n", "a\n...\nd", True),
        ("a\nd\n", "a\n...\nd", True),
        ("{\n  b\n  c\n}\n", "{\n  ...\n}", True),
        ("other 1\nwords 2\n", "a 1\nb 2", True),  # they are those of test_printed_words
        ("wrapped at another\nword 1\n", "wrapped at another word 1", True),
        ("a 1\nb 2\n", "a 1", False),
        ("a 1\n", "a 1\nb 2", False),
        ("a 2\n", "a 1", False),
        ("a+1\n", "a.1", False),
        ("a 1.5 h\n", "a 15 h", False),
        ("idle_gpus\n", "idle_nodes", False),
        ('{"jobs": true}\n', '{"nodes": true}', False),
        ("job  state\none  failed\n", "job  state\none  failed\ntwo  failed", False),
        ("12 of 40 jobs\n", "... of 40 jobs", True),
        ("12 of 40 jobs\n", "... of 41 jobs", False),
        ("4.25 s\n", "4.2... s", True),
        ("1\n2\n3\n2\n3\n4\n", "1\n...\n2\n3\n...\n3\n4", True),
        ("1\n2\n3\n4\n", "1\n...\n2\n3\n...\n3\n4", False),
        # what differs is found at once, however much is hidden
        ("7 8\n" * 300, "7\n...\n8 7\n" * 20 + "9", False),
    ],
)
def test_structure_and_numbers_must_be_those_of_the_page(
    printed: str, expected: str, same: bool
) -> None:
    assert matches(printed, expected) is same


@pytest.mark.parametrize(
    ("shown", "printed", "anew"),
    [
        ("3 jobs found\n...\nin all 7 h", "3 jobs\na\nb\nin all 9 h\n", "3 jobs\n...\nin all 9 h"),
        ("a ... s\nb 1", "a 17.3 s\nb 2\n", "a ... s\nb 2"),
        ("first\nsecond line 2", "first\nnew 3\nsecond line 2\n", "first\nnew 3\nsecond line 2"),
        ("first\nold words here\nlast", "first\nlast\n", "first\nlast"),
        ("...\nend 1", "x\nend 2\n", "...\nend 2"),
    ],
)
def test_a_page_is_written_anew_with_what_it_hides_hidden(
    shown: str, printed: str, anew: str
) -> None:
    assert refreshed(shown, printed) == anew
    assert shows(printed, anew)
    page = f"# A\n\n```console\n$ cd here\n$ tachograph a \\\n> --b\n{shown}\n$ ls\n```\n\nend\n"
    assert written_anew(page, [None, printed, "x\n"]) == page.replace(shown, anew)


def test_the_page_people_see_first_is_run() -> None:
    assert REPOSITORY / "README.md" in PAGES
