"""`tachograph help`, suggestions for what is misspelt, and one exit code per kind of mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from in_process import run_here
from tachograph.catalog import errors
from tachograph.catalog.errors import EXIT_CODES, TachographError
from tachograph.cli.help import overview
from tachograph.cli.options import Parser, parsers
from tachograph.cli.registry import COMMANDS, GROUPS, CommandEntry
from tachograph.cli.tree import program_parser

COMMANDS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
COMMON = ("--lake DIR", "--config FILE", "--time-zone ZONE", "--quiet", "--no-color", "--version")


def tachograph(*words: str, folder: Path | None = None) -> tuple[int, str, str]:
    done = run_here(words, folder or Path.cwd(), {"COLUMNS": "100"})
    return done.returncode, done.stdout, done.stderr


def test_help_is_what_the_option_prints() -> None:
    assert tachograph("help") == tachograph("--help") == tachograph() == (0, overview(), "")


def test_help_shows_what_people_meet_first_and_all_of_it_on_request() -> None:
    shown = listed(tachograph("help")[1])
    assert len(shown) <= 12
    assert {"demo", "ingest", "analyze", "job", "jobs"} <= set(shown)
    sections = {part.split(":\n")[0]: part for part in tachograph("help", "--all")[1].split("\n\n")}
    for group, heading in GROUPS.items():
        lines = [(command.name, command.sentence) for command in COMMANDS if command.group == group]
        assert (
            re.findall(
                r"^  ([a-z]+(?: [a-z]+)?) {2,}(.+)$", sections.get(heading, ""), re.MULTILINE
            )
            == lines
        )


def listed(printed: str) -> list[str]:
    """The commands of a help text, each on a line of two blanks, its name and its sentence."""
    return re.findall(r"^  ([a-z]+(?: [a-z]+)?) {2,}[a-z]", printed, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_a_command(command: CommandEntry) -> None:
    code, printed, problem = tachograph("help", *command.name.split())
    assert (code, printed, problem) == tachograph(*command.name.split(), "--help")
    assert (code, problem) == (0, "")
    assert [option for option in COMMON if option not in printed and "ACTION" not in printed] == []


@pytest.mark.parametrize(
    "words",
    [("lab", "rules", "run"), ("ingest", "ldms"), ("export", "csv"), ("act", "policy", "check")],
)
def test_help_of_an_action_a_source_a_target(words: tuple[str, ...]) -> None:
    code, printed, problem = tachograph("help", *words)
    assert (code, problem) == (0, "")
    assert printed.startswith(f"usage: tachograph {' '.join(words)} ")
    assert [option for option in COMMON if option not in printed] == []


def test_an_old_name_is_answered_with_the_new_one_of_the_page() -> None:
    section = COMMANDS_PAGE.read_text(encoding="utf-8").partition("## Renamed since 0.1.0\n")[2]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if "`" in line]
    names = [[re.findall("`(.+?)`", cell) for cell in row] for row in rows]
    renamed = {old: new for olds, news in names for old, new in zip(olds, news, strict=True)}
    assert len(renamed) >= 16
    for old, new in renamed.items():
        meant = f"tachograph: unknown command '{old}'; it is `tachograph {new}`\n"
        assert tachograph(old) == (2, "", meant)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("cuonters", "unknown command 'cuonters'; did you mean `tachograph lake counters`?"),
        ("counters", "unknown command 'counters'; it is `tachograph lake counters`"),
        ("rules list", "unknown command 'rules'; it is `tachograph lab rules list`"),
        ("lab compact", "unknown command 'lab compact'; it is `tachograph lake compact`"),
        ("colocat", "unknown command 'colocat'; did you mean `tachograph share colocate`?"),
        ("lake compct", "unknown command 'lake compct'; did you mean `tachograph lake compact`?"),
        ("lake conters", "unknown command 'lake conters'; did you mean `tachograph lake counters`?"),
        ("lab xyzzy", "unknown command 'lab xyzzy'; see `tachograph help lab`"),
        ("jbos", "unknown command 'jbos'; did you mean `tachograph jobs`?"),
        ("help jbos", "unknown command 'jbos'; did you mean `tachograph jobs`?"),
        ("jobs --limt 3", "unrecognized arguments: --limt 3; did you mean --limit?"),
        ("jobs --LIMIT=3", "unrecognized arguments: --LIMIT=3; did you mean --limit?"),
        ("jobs --no-colour", "unrecognized arguments: --no-colour; did you mean --no-color?"),
        ("seff --jsn", ("the following arguments are required: ID; there is no option --jsn; did you "
        "mean --json?")),
        ("lab rules run --quite", "unrecognized arguments: --quite; did you mean --quiet?"),
        ("lab rules rn", ("(choose from list, check, run, backtest, import-clustercockpit); did you mean "
        "run?")),
        ("ingest lmds", "unknown source 'lmds'; did you mean ldms?"),
        ("ingest ldms --show-rejects x", ("unrecognized arguments: --show-rejects; did you mean "
        "--show-rejected?")),
        ("export postgres", "unknown target 'postgres'; did you mean postgresql?"),
        ("watch --source nvlm", "did you mean nvml?"),
        ("serve --prot 8000", "tachograph: there is no option --prot; did you mean --port?"),
        ("serve --xyzzy x", "there is no option --xyzzy; see `tachograph serve --help`"),
        ("serve tokne", "invalid choice: 'tokne' (choose from token); did you mean token?"),
        ("jobs --xyzzy", "unrecognized arguments: --xyzzy; see `tachograph jobs --help`"),
        ("lake counters --js", "unrecognized arguments: --js; did you mean --json?"),
        ("lake counters --lake", "argument --lake: expected one argument; see `tachograph lake counters --help`"),
        ("--json counters", "option --json before the command; write `tachograph COMMAND [options]`"),
        ("xyzzy", "unknown command 'xyzzy'; see `tachograph help`"),
        ("frobnicate", "unknown command 'frobnicate'; see `tachograph help`"),
        ("lake frobnicate", "unknown command 'lake frobnicate'; see `tachograph help lake`"),
        ("colo", "unknown command 'colo'; did you mean `tachograph share colocate`?"),
    ],
)  # fmt: skip
def test_what_is_misspelt_is_suggested(words: str, meant: str) -> None:
    code, printed, problem = tachograph(*words.split())
    assert (code, printed, problem.count("\n")) == (2, "", 1)
    assert problem.startswith("tachograph: ")
    assert problem.endswith(f"{meant}\n")


def test_options_of_a_recorded_command_are_not_ours() -> None:
    assert "did you mean" not in tachograph("record", "--gpus", "x", "--", "ls", "--jsn")[2]


def kinds(of: type[TachographError] = TachographError) -> Iterator[type[TachographError]]:
    for kind in of.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from kinds(kind)


def test_each_kind_of_mistake_has_its_exit_code() -> None:
    # Others are special cases of these.
    own = (kind for kind in kinds() if "exit_code" in vars(kind))
    codes = {kind: kind.exit_code for kind in own}
    assert sorted(codes.values()) == list(range(2, 2 + len(codes)))
    assert set(EXIT_CODES) == {0, 1, *codes.values(), 130, 141}
    for kind, code in codes.items():
        assert re.search(rf"^ +{kind.__name__} +exit {code} ", str(errors.__doc__), re.MULTILINE)


MISTAKES = {
    2: (
        "nonsense",
        "jobs --limit x",
        "jobs --since someday",
        "jobs --until someday",
        "jobs --time-zone Mars",
        "jobs --verdict maybe --finding job_hang",
        "jobs --state DOING",
        "jobs --attribution guess",
        "jobs --where nonsense",
        "waste --by nonsense",
        "waste --jobs nonsense",
        "study --pipe nonsense",
        "study --window 7",
        "study --format nonsense",
        "study --variant nonsense",
        "study --no-filter nonsense",
        "export nonsense",
        "ingest nonsense",
        "waste --json --csv",
        "waste --json --html=x",
        "jobs --json --csv",
        "jobs --json -ox",
        "job 1 --json --html=x",
    ),
    3: ("jobs --config nonsense.toml",),
    4: ("ingest ldms nonsense.csv", "share kernels nonsense.csv"),
    5: ("jobs --lake nonsense",),
    6: (
        "job 99999999",
        "jobs --finding nonsense",
        "jobs --sort nonsense",
        "jobs --columns nonsense",
        "jobs --where nonsense>1",
        "study --figure nonsense",
        "share colocate --pair no such",
    ),
}


@pytest.mark.parametrize(
    ("code", "words"), [(code, words) for code, several in MISTAKES.items() for words in several]
)
def test_a_mistake_ends_with_the_code_of_its_kind(
    code: int, words: str, demo: Path, tmp_path: Path
) -> None:
    reads = words.startswith(("job", "waste", "study", "share colocate")) and "--lake" not in words
    given = [*words.split(), *(("--lake", str(demo / "lake")) if reads else ())]
    ended, printed, problem = tachograph(*given, folder=tmp_path)
    assert (ended, printed) == (code, "")
    assert problem.startswith("tachograph: ")


def test_parsers_of_actions_take_what_argparse_passes_from_python_3_14_on() -> None:
    parser = Parser("tachograph rules", "Rules.")
    action = parser.add_subparsers().add_parser("list", description="List.", color=True)
    assert (action.prog, action.color, parser.color) == ("tachograph rules list", True, False)


def numeric_options() -> list[tuple[str, str]]:
    """Every option that takes a number, with its command."""
    return sorted(
        {
            (parser.prog.removeprefix("tachograph "), action.option_strings[-1])
            for parser in parsers(program_parser())
            for action in parser._actions
            if action.type is not None
        }
    )


def test_no_option_takes_any_number() -> None:
    """`int` and `float` also take what no command can work with: -1, nan, 1e300."""
    types = {action.type for parser in parsers(program_parser()) for action in parser._actions}
    assert types.isdisjoint({int, float})
    assert len(numeric_options()) > 30


@pytest.mark.parametrize(("command", "option"), numeric_options())
def test_a_number_that_makes_no_sense_is_one_line_naming_the_option(
    command: str, option: str, tmp_path: Path
) -> None:
    for value in ("nan", "inf", "-1", "1e300", ""):
        code, printed, problem = tachograph(*command.split(), f"{option}={value}", folder=tmp_path)
        assert (code, printed, problem.count("\n")) == (2, "", 1)
        assert option in problem
