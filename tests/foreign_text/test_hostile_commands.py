"""Every command, in every format that it has, on a site where every text that others write is
hostile.

A command of the registry needs an entry here: what it is run with, or why it shows no text of
others. Its formats are taken from its options, so that a new one is walked, too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from hostile_lake import ENVIRONMENT, MARK, PAYLOADS, PLAIN_JOBS, STRONG, STRONG_JOBS
from written import assert_json, assert_page, assert_plain, assert_table, texts_of

from in_process import run_here
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.cli.registry import COMMANDS, find, load, parser_of

NAMES = list(PAYLOADS.values())
USERS = [name for name in NAMES if not name.startswith("-")]  # an option, to argparse
_TEXTS = [name for name, dtype in JOB_SUMMARIES.schema.items() if dtype == pl.String]
COLUMNS = ",".join(_TEXTS)
_OF_A_JOB = ((), ("--checks",), ("--steps",), ("--ticket",), ("--mail",))
_SCRIPTS = [(list(PAYLOADS).index(kind), PAYLOADS[kind]) for kind in STRONG]

# {command: what it is run with}; formats are added
WALKS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "analyze": (("--full",),),
    "lake compact": ((), ("--expire", "--dry-run")),
    "status": ((),),
    "lake": (("--nodes",),),
    "lake forget": tuple(("--user", f"{name}{more}", "--remove") for name in USERS[:9:4] for more in ("", " of none")),
    "jobs": ((), ("--columns", COLUMNS), *(("--user", name) for name in USERS[:2])),
    "job": (
        *((job, *more) for job in STRONG_JOBS for more in _OF_A_JOB),
        *((job, *_OF_A_JOB[place % 5]) for place, job in enumerate(PLAIN_JOBS) if job not in STRONG_JOBS),
    ),
    "seff": tuple((job, *more) for job in STRONG_JOBS for more in ((), ("--brief",))),
    "lab classify": (("--all",),),
    "lab tune": (("--lake-labels",), ("--propose",)),
    "lab rules": (("run",), ("run", "--show", "unknown")),
    "waste": tuple(("--by", by, "--jobs", "idle") for by in ("user", "account", "partition")),
    "advise": tuple(
        (f"script{place}.sh", "--user", name, "--as-of", "2026-04-25") for place, name in _SCRIPTS
    ),
    "act comment": (tuple(PLAIN_JOBS),),
    "act digest": tuple(
        (*whose, "--as-of", "2026-04-28") for whose in (("--staff",), *((name,) for name in USERS[::4]))
    ),
    "act": (("--once",), ("--ledger",)),
    "act policy": (("check",), ("backtest",), ("status",)),
    "share kernels": (("kernels.csv",), ("kernels.csv", "--matrix"), ("kernels.csv", "--explain", "1")),
    "share colocate": (("--runs", "1", "--all"), ("--runs", "1", "--matrix")),
    "watch": (("--recording", "lake", "--once"),),
}  # fmt: skip
# {command: why it is not walked}
ELSEWHERE: Mapping[str, str] = {
    "demo": "its own simulated jobs",
    "help": "its own text",
    "completion": "its own text",
    "init": "its own text",
    "version": "versions of libraries",
    "lake counters": "its own catalogue",
    "lake devices": "its own catalogue",
    "lab simulate": "its own simulated jobs",
    "lab accuracy": "its own simulated jobs",
    "record": "the report is that of `job`",
    "lab scores": "scores of a job, and the name of a report: see `share kernels`",
    "ingest": "not walked: what it reads is in the lake of the others, its counts are in `lake`",
    "collect": "not walked: its errors are in `status`",
    "export": "see test_hostile_exports.py",
    "serve": "not walked: see tests/web/test_known_holes.py",
    "mcp": "not walked: see tests/web/test_assistants.py",
    "study": "numbers, and models of GPUs: see tests/figures/test_names_in_figures.py",
}


@dataclass(frozen=True)
class Case:
    """A command with its words, in a format."""

    command: str
    words: tuple[str, ...]
    form: str

    @property
    def codes(self) -> tuple[int, ...]:
        """How it may end: not all jobs have been analyzed, ended, or have what is looked for."""
        if self.command == "status":
            return (1,)
        return (
            (0, 2, 4, 6)
            if self.command in ("lake forget", "act digest", "lab tune", "advise", "act")
            else (0,)
        )

    @property
    def name(self) -> str:
        shown = " ".join(self.words).encode("ascii", "replace").decode()
        return f"{self.command} {re.sub(r'[^ -~]', '.', shown)[:50]} {self.form}"


def options_of(command: str, words: tuple[str, ...]) -> set[str]:
    """The options of a command, or of the action that its first word is."""
    entry = find(command.split())
    parser: argparse.ArgumentParser = parser_of(entry, load(entry))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            parser = action.choices[words[0]]
    return {option for action in parser._actions for option in action.option_strings}


def cases() -> Iterator[Case]:
    for command, walks in WALKS.items():
        # Each format once for each action: all show the same texts.
        walked: set[tuple[str, tuple[str, ...]]] = set()
        for words in walks:
            taken = set(words) & {"--ticket", "--mail", "--brief", "--steps"}
            forms = [
                "",
                *sorted(options_of(command, words) & {"--json", "--csv", "--html", "--sbatch"}),
            ]
            few = command == "job" and words[0] not in STRONG_JOBS  # for most, plain text alone
            for form in forms if not (taken or few) else [""]:
                if not form or command == "job" or (form, words[:1]) not in walked:
                    walked.add((form, words[:1]))
                    yield Case(command, words, form)


def test_every_command_is_walked() -> None:
    assert {command.name for command in COMMANDS} == WALKS.keys() | ELSEWHERE.keys()
    assert not WALKS.keys() & ELSEWHERE.keys()


def run(case: Case, folder: Path) -> str:
    """What a command prints, or the file that it writes; what it says on stderr is checked."""
    more = (
        [] if not case.form else [case.form, "page.html"] if case.form == "--html" else [case.form]
    )
    done = run_here([*case.command.split(), *case.words, *more], folder, ENVIRONMENT)
    assert_plain(done.stderr, case.name)
    assert done.returncode in case.codes, (case.name, done.stderr)
    if case.form == "--html" and done.returncode == 0:
        return (folder / "page.html").read_text(encoding="utf-8")
    return done.stdout


def check(case: Case, written: str) -> None:
    if not written:
        return
    match case.form:
        case "--json":
            assert_json(written, case.name)
        case "--csv":
            assert_table(written, case.name)
        case "--html":
            assert_page(written, case.name)
        case _:
            assert_plain(written, case.name)


# of these, many words are walked, or drawing takes long
LONG_WALKS = frozenset({"act comment", "advise", "analyze", "job", "jobs", "lab rules", "seff"})


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.slow) if name in LONG_WALKS else name for name in WALKS],
)
def test_no_text_of_others_steers(command: str, site: Path) -> None:
    seen = []
    for case in cases():
        if case.command == command:
            written = run(case, site)
            check(case, written)
            seen.append((case.form, MARK in written))
    assert command in _SILENT or any(marked for _, marked in seen), "no hostile text came so far"


# commands that show numbers and names of their own of this site, and texts of others in errors
# alone
_SILENT = frozenset({"analyze", "lake compact", "lab tune", "act", "act policy", "share colocate"})


def test_json_has_every_text_as_it_was_recorded(site: Path) -> None:
    rows = assert_json(run(Case("jobs", ("--columns", COLUMNS), "--json"), site), "jobs --json")
    assert {row["name"] for row in rows} == set(NAMES)
    assert {row["user"] for row in rows} == set(NAMES)
    every = set(
        texts_of(
            assert_json(
                run(Case("share kernels", ("kernels.csv",), "--json"), site), "kernels --json"
            )
        )
    )
    assert {name for name in NAMES if name.isprintable() and len(name) < 9_000} <= every
    assert PAYLOADS["bidi"] in every


def test_csv_has_every_text_as_it_was_recorded_where_raw_is_asked_for(site: Path) -> None:
    words = ("--columns", "name,gpus,user", "--raw")
    rows = assert_table(run(Case("jobs", words, "--csv"), site), "jobs --csv --raw", raw=True)
    assert {row[0] for row in rows[1:]} == {row[2] for row in rows[1:]} == set(NAMES)
    rows = assert_table(run(Case("jobs", words[:2], "--csv"), site), "jobs --csv")
    cells = {row[0] for row in rows[1:]}
    assert {
        "'=cmd|'/c calc'!A1 qz",
        "'+1+cmd|qz",
        "'-2+3+cmd|qz",
        "'@SUM(1+1)*qz",
        "''=1+1 qz",
    } <= cells
    assert {row[1] for row in rows[1:]} == {"1"}
