"""Change the core at random places, one at a time, and count the changes that no test notices.

    make mutants ARGS='--mutants 2000 --seed 1'

The rooms are `judge`, `pipeline` and `sources`. A first run of the fast tests of TESTS notes which
test executes which line. Then every mutation of the sample (`mutations.py` has what is changed)
runs the tests of its statement, those first that noticed another mutation of the same function,
then those that are about its file, then the cheapest, until one fails (killed) or `--budget`
seconds of processor time are used (survived). A statement that no test executes is not reached.

Nothing is imported twice: one process that has collected all tests replaces the code of the changed
function, and puts it back (a fork for each would hang: importing the package starts threads of
polars). What is evaluated at import (constants, defaults) is changed in a process forked before
that, which has imported the libraries alone. Functions that numba compiles run as Python.

Results are lines of `--state`, from which the next run goes on; survivors are run again where its
budget is larger. `--report` prints the numbers per room, and the survivors of a file.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import importlib.machinery
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import coverage
import pytest

from mutations import Mutation, mutated, mutations

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "tachograph"
ROOMS = ("judge", "pipeline", "sources")
TESTS = (
    *("attribute", "waste", "culprit", "classes", "scores", "rules_language", "rules", "summarize"),
    *("advice", "advise", "workload", "slurm", "sources", "tune", "reduce", "hosts", "policy"),
    *("exporter", "prometheus", "report", "hand_checked", "live_judge", "live_numbers"),
    *(
        "recorded_judgement",
        "evidence",
        "devices",
        "collect",
        "record",
        "live_sources",
        "watch",
        "pm_sampling",
        "fuzz",
        "workers",
    ),
)
COSTLY_S = 30.0  # tests that take longer are not run for mutations
LIMIT_S = 4.0  # processor time of a test, with TIMES its usual one: then it hangs
TIMES = 5.0
WAIT_S = 60.0  # how long a test may take on a machine that is busy with other things
WALL_S = 400.0  # a process that makes no progress is started anew

Line = tuple[str, int]
TestMap = dict[str, "TestRun"]


class TestRun:
    """A test that passes: seconds of processor time, and the lines of the rooms it executes."""

    __test__ = False

    def __init__(self, seconds: float, lines: frozenset[Line]) -> None:
        self.seconds = seconds
        self.lines = lines


# --- what runs in a forked process


def forked(work: Callable[[], object], progress: Callable[[], object], wall_s: float) -> bool:
    """Run a function in a forked process; False if it made no progress for so long, or broke."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    ended = os.pidfd_open(pid)
    before, until = progress(), time.monotonic() + wall_s
    while not select.select([ended], [], [], 1.0)[0] and time.monotonic() < until:
        if progress() != before:
            before, until = progress(), time.monotonic() + wall_s
    os.close(ended)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1] == 0


class OverLimit(BaseException):
    """A test used too much processor time."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OverLimit in what uses more processor time, as a loop without end does, or waits."""

    def end(number: int, frame: object) -> None:
        raise OverLimit

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, WAIT_S),
    )
    before = [signal.signal(number, end) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit, 10.0)
    try:
        try:
            yield
        finally:
            for _, timer, _ in timers:
                signal.setitimer(timer, 0.0)
    except OverLimit:  # between two tests, or while the timers were stopped
        pass
    for (number, timer, _), handler in zip(timers, before, strict=True):
        signal.setitimer(timer, 0.0)
        signal.signal(number, handler)


def run_pytest(arguments: Sequence[str], plugin: object, basetemp: Path) -> None:
    """Collect tests; the plugin decides what becomes of them."""
    from hypothesis import Phase, settings

    settings_of_numba: Any = importlib.import_module("numba").config
    settings_of_numba.DISABLE_JIT = True
    # the first example that fails is enough
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    settings.register_profile("mutants", phases=phases, report_multiple_bugs=False)
    settings.load_profile("mutants")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    options = (
        "-q",
        "--tb=native",
        "-m",
        "not slow",
        "--benchmark-disable",
        "-p",
        "no:cacheprovider",
    )
    # a limit that ends a test inside a hook or a destructor is no error of theirs
    hooks = (
        *("-W", "ignore::pluggy.PluggyTeardownRaisedWarning"),
        *("-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
    )
    imported = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    words = [*options, *hooks, *imported, "--basetemp", str(basetemp), *arguments]
    if pytest.main(words, plugins=[plugin]) == pytest.ExitCode.INTERNAL_ERROR:
        raise RuntimeError("pytest broke off")


class Watching:
    """Notes of every test whether it passed, and what it cost."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.failure = ""

    def pytest_internalerror(self, excrepr: object) -> None:
        """Write why pytest breaks off: its own output is silenced."""
        print(excrepr, file=sys.stderr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome of the phases of a test."""
        if report.when == "call" or report.outcome != "passed":
            self.failure = str(report.longrepr)
            before = self.outcomes.get(report.nodeid, "passed")
            self.outcomes[report.nodeid] = before if before == "failed" else report.outcome


class CoverageRun(Watching):
    """Runs all tests once and notes the lines of each, with those of its fixtures."""

    def __init__(self, target: Path) -> None:
        super().__init__()
        self._target = target
        rooms = [str(PACKAGE / room / "*") for room in ROOMS]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=rooms)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._context = ""
        self._of_fixtures: dict[str, tuple[float, set[Line]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: Any, request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Keep the lines of a fixture that is made for several tests."""
        if fixturedef.scope == "function":
            return (yield)
        key = f"{fixturedef.baseid}::{fixturedef.argname}"
        outer = self._context
        self._switch(f"fixture {key}")
        began = _processor_s()
        try:
            return (yield)
        finally:
            seconds, lines = self._of_fixtures.get(key, (0.0, set()))
            self._of_fixtures[key] = (max(seconds, _processor_s() - began), lines)
            self._switch(outer)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests in their order and write the map."""
        runs: list[tuple[pytest.Item, float]] = []
        known = _mapped(self._target)
        items = [item for item in session.items if item.nodeid not in known]
        self._coverage.start()
        for item, following in zip(items, [*items, None][1:], strict=True):
            self._switch(item.nodeid)
            began = _processor_s()
            with time_limit(COSTLY_S):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            runs.append((item, _processor_s() - began))
            if following is None or following.path != item.path:
                self._write(runs)
                runs.clear()
        self._coverage.stop()
        return True

    def _switch(self, context: str) -> None:
        """Count lines for a test or a fixture from now on."""
        self._context = context
        self._coverage.switch_context(context)

    def _write(self, runs: list[tuple[pytest.Item, float]]) -> None:
        """Write the tests of a file, with what their fixtures cost and execute."""
        executed = self._executed()
        for key, (_, lines) in self._of_fixtures.items():
            lines |= executed.get(f"fixture {key}", set())
        with self._target.open("a", encoding="utf-8") as file:
            for item, seconds in runs:
                lines = executed.get(item.nodeid, set())
                for key in _fixtures(item):
                    cost, more = self._of_fixtures.get(key, (0.0, set()))
                    seconds, lines = seconds + cost, lines | more
                outcome = self.outcomes.get(item.nodeid, "failed")
                row = [item.nodeid, outcome, round(seconds, 4), sorted(lines)]
                file.write(json.dumps(row) + "\n")

    def _executed(self) -> dict[str, set[Line]]:
        """{test or fixture: its lines} since the last call."""
        self._coverage.stop()
        data = self._coverage.get_data()
        executed: dict[str, set[Line]] = defaultdict(set)
        for name in data.measured_files():
            path = Path(name).relative_to(PACKAGE).as_posix()
            for line, contexts in data.contexts_by_lineno(name).items():
                for context in contexts:
                    executed[context].add((path, line))
        self._coverage.erase()
        self._coverage.start()
        return executed


def _mapped(path: Path) -> set[str]:
    """Names of the tests that a map has."""
    if not path.exists():
        return set()
    with path.open(encoding="utf-8") as file:
        return {json.loads(text)[0] for text in file}


def _fixtures(item: pytest.Item) -> list[str]:
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return []
    return [
        f"{fixture.baseid}::{fixture.argname}"
        for fixtures in info.name2fixturedefs.values()
        for fixture in fixtures
    ]


def _processor_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def read_map(path: Path, folders: Sequence[str]) -> TestMap:
    """Return the tests of folders that pass and are not too costly."""
    starts = tuple(f"{name.rstrip('/')}{end}" for name in folders for end in ("/", "::"))
    tests = {}
    with path.open(encoding="utf-8") as file:
        for text in file:
            name, outcome, seconds, lines = json.loads(text)
            if outcome == "passed" and seconds <= COSTLY_S and name.startswith(starts):
                tests[name] = TestRun(seconds, frozenset((path, line) for path, line in lines))
    return tests


class FirstFailure(Watching):
    """Runs chosen tests until one fails."""

    def __init__(self, tests: Mapping[str, float]) -> None:
        super().__init__()
        self._tests = tests
        self.answer: dict[str, object] = {"outcome": "survived", "by": "", "tests": 0}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run those that were collected."""
        self.answer = self.run({item.nodeid: item for item in session.items})
        return True

    @property
    def names(self) -> list[str]:
        """The tests."""
        return list(self._tests)

    def run(self, items: Mapping[str, pytest.Item]) -> dict[str, object]:
        """Return the outcome, the test that failed, and how many were run."""
        done = 0
        for name, seconds in self._tests.items():
            item = items.get(name)  # none where its parameters are of a constant that is changed
            done += 1
            if item is None or not self.passes(item, seconds):
                return {"outcome": "killed", "by": name, "tests": done}
        return {"outcome": "survived", "by": "", "tests": done}

    def passes(self, item: pytest.Item, seconds: float) -> bool:
        """Run a test."""
        self.outcomes.pop(item.nodeid, None)
        with time_limit(LIMIT_S + TIMES * seconds):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self.outcomes.get(item.nodeid) in ("passed", "skipped")


class Warm(FirstFailure):
    """Collects all tests, then changes one function after the other and puts it back.

    What a killed mutation left behind (in a cache, a global) must not kill the next: the test that
    failed is run again without it, and if that fails the process ends, to be started anew.
    """

    def __init__(self, run: MutationRun) -> None:
        super().__init__({})
        self._run = run

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what is left of the sample."""
        items = {item.nodeid: item for item in session.items}
        for path in sorted({mutation.path for mutation in self._run.left(at_import=False)}):
            # Some are imported when they are first used: their functions are to be known before.
            importlib.import_module(f"tachograph.{_module(path)}")
        functions = _live_functions()
        caches = [
            value
            for value in gc.get_objects()
            if isinstance(value, functools._lru_cache_wrapper)
            and str(getattr(value, "__module__", "")).startswith("tachograph.")
        ]
        for mutation in self._run.left(at_import=False):
            self._tests = self._run.tests_of(mutation)
            self._run.begin(mutation)
            undo = _replace(mutation, functions)
            answer = self.run(items)
            for function, code in undo:
                function.__code__ = code
            for cache in caches:
                cache.cache_clear()
            killer = str(answer["by"])
            if killer and not self.passes(items[killer], self._tests[killer]):
                self._run.note(f"{killer} fails after {mutation.name}:\n{self.failure}")
                return True
            self._run.finish(mutation, answer)
        return True


def _live_functions() -> dict[tuple[str, str, int], list[types.FunctionType]]:
    functions = defaultdict(list)
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType):
            functions[_key(function.__code__)].append(function)
    return functions


def _key(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _replace(
    mutation: Mutation, functions: Mapping[tuple[str, str, int], list[types.FunctionType]]
) -> list[tuple[types.FunctionType, types.CodeType]]:
    """Give functions the changed code; return what they had."""
    path = PACKAGE / mutation.path
    tree = mutated(path.read_text(encoding="utf-8"), mutation)
    before = []
    for code in _codes(compile(tree, str(path), "exec", dont_inherit=True)):
        if not _is_inside(code, mutation):
            continue
        for function in functions.get(_key(code), ()):
            if len(function.__code__.co_freevars) == len(code.co_freevars):
                before.append((function, function.__code__))
                function.__code__ = code
    return before


def _module(path: str) -> str:
    """Name of a module below the package."""
    name = Path(path).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


def _is_inside(code: types.CodeType, mutation: Mutation) -> bool:
    outermost = code.co_qualname.split(".<locals>")[0]
    return outermost == mutation.function and code.co_firstlineno >= mutation.first_line


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _import_changed(mutation: Mutation) -> None:
    """Let the import of a file give the changed module."""
    path = PACKAGE / mutation.path
    tree = mutated(path.read_text(encoding="utf-8"), mutation)
    load = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> Any:
        if Path(self.path) == path:
            return compile(tree, str(path), "exec", dont_inherit=True)
        return load(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]


# --- the sample


def sample(count: int, seed: int) -> list[Mutation]:
    """Return mutations of the rooms: the same for the same sources, count and seed."""
    paths = sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))
    everything = [mutation for path in paths for mutation in mutations(path, PACKAGE)]
    return random.Random(seed).sample(everything, min(count, len(everything)))


class MutationRun:
    """A sample, the map of the tests, and what is known already."""

    def __init__(self, chosen: list[Mutation], tests: TestMap, state: Path, budget: float) -> None:
        self._chosen = chosen
        self._tests = tests
        self._state = state
        self._budget = budget
        self.known = read_state(state)
        self._by_line: dict[Line, list[str]] = defaultdict(list)
        for name, run in tests.items():
            for line in run.lines:
                self._by_line[line].append(name)
        self._killers: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for row in self.known.values():
            self._count_killer(row)
        self._files_about: dict[str, set[str]] = {}
        self._mentions = _mentions()
        self._began = state.with_suffix(".began")
        self._broken = ""
        self.temporary = Path(tempfile.mkdtemp(prefix="mutants-"))

    def left(self, *, at_import: bool) -> Iterator[Mutation]:
        """The mutations that are still to be run."""
        for mutation in self._chosen:
            row = self.known.get(mutation.name)
            again = row is None or (row["outcome"] == "survived" and row["budget"] < self._budget)
            if again and at_import == (mutation.first_line == 0):
                yield mutation

    def tests_of(self, mutation: Mutation) -> dict[str, float]:
        """Return the tests of a mutation and what they cost, in the order they are run."""
        lines = [(mutation.path, line) for line in range(mutation.start, mutation.end + 1)]
        names = {name for line in lines for name in self._by_line.get(line, ())}
        if mutation.first_line == 0:
            names = self._tests_of_names(mutation)
        killers = self._killers[mutation.path, mutation.function]
        of_file = self._killers[mutation.path, ""]
        about = self._about(mutation.path)
        order = sorted(
            names,
            key=lambda name: (
                -killers[name],
                name.split("::")[0] not in about,
                -of_file[name],
                self._tests[name].seconds,
                name,
            ),
        )
        used = 0.0
        tests: dict[str, float] = {}
        for name in order:
            used += self._tests[name].seconds
            if used > self._budget and tests:
                break
            tests[name] = self._tests[name].seconds
        return tests

    def _about(self, path: str) -> set[str]:
        """Files of tests that name the changed file or stand in a folder of its name."""
        if path not in self._files_about:
            stem = Path(path).stem.removeprefix("__init__") or Path(path).parent.name
            module = _module(path)
            files = {name.split("::")[0] for name in self._tests}
            self._files_about[path] = {
                file
                for file in files
                if stem in Path(file).parts
                or stem in Path(file).stem
                or module in (REPOSITORY / file).read_text(encoding="utf-8")
            }
        return self._files_about[path]

    def _tests_of_names(self, mutation: Mutation) -> set[str]:
        """Tests of the lines that mention what a statement at import defines; else of its file."""
        names = _defined(mutation)
        lines = {line for name in names for line in self._mentions.get(name, ())}
        found = {name for line in lines for name in self._by_line.get(line, ())}
        if found:
            return found
        return {
            name
            for line, tests in self._by_line.items()
            if line[0] == mutation.path
            for name in tests
        }

    def _count_killer(self, row: Mapping[str, Any]) -> None:
        if row["outcome"] == "killed":
            path = row["name"].split(":")[0]
            self._killers[path, row["function"]][row["by"]] += 1
            self._killers[path, ""][row["by"]] += 1

    def note(self, text: str) -> None:
        """Write what went wrong beside the results."""
        with self._state.with_suffix(".notes").open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def begin(self, mutation: Mutation) -> None:
        """Write which mutation is run: it is the one that hangs, if it is the last that began."""
        self._began.write_text(mutation.name, encoding="utf-8")

    def finish_last(self) -> None:
        """A process ended, or hung, at a mutation: that counts as killed the second time."""
        name = self._began.read_text(encoding="utf-8") if self._began.exists() else ""
        self.known = read_state(self._state)
        if name == self._broken:
            mutation = next(one for one in self._chosen if one.name == name)
            self.finish(mutation, {"outcome": "killed", "by": "limit", "tests": 0})
        self._broken = name

    def progress(self) -> object:
        """What changes whenever a mutation was run."""
        return self._state.stat().st_size if self._state.exists() else 0

    def finish(self, mutation: Mutation, answer: Mapping[str, object]) -> None:
        """Write what came out."""
        row: dict[str, Any] = dict(answer)
        if row["outcome"] == "survived" and not row["tests"]:
            row["outcome"] = "not reached"
        row |= {"name": mutation.name, "function": mutation.function, "text": mutation.text}
        self._count_killer(row)
        row["budget"] = self._budget
        self.known[mutation.name] = row
        with self._state.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        for path in self.temporary.iterdir():
            shutil.rmtree(path, ignore_errors=True)


def read_state(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last row of each mutation."""
    rows = {}
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(text)
            rows[row["name"]] = row
    return rows


def _mentions() -> dict[str, set[Line]]:
    """{name: the lines of the rooms that mention it}."""
    lines: dict[str, set[Line]] = defaultdict(set)
    for room in ROOMS:
        for path in (PACKAGE / room).rglob("*.py"):
            relative = path.relative_to(PACKAGE).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Name(id=name) | ast.Attribute(attr=name):
                        lines[name].add((relative, node.lineno))
                    case ast.keyword(arg=str(name)):
                        lines[name].add((relative, node.lineno))
    return lines


def _defined(mutation: Mutation) -> set[str]:
    """Names that the statement of a mutation defines."""
    tree = ast.parse((PACKAGE / mutation.path).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) != mutation.start:
            continue
        match node:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names


# --- the command


def report(chosen: Sequence[Mutation], known: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the numbers per room, as a table of Markdown, and all survivors by file."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for mutation in sorted(chosen):
        row = known.get(mutation.name)
        outcome = row["outcome"] if row else "not run"
        counts[mutation.path.split("/")[0]][outcome] += 1
        counts["all"][outcome] += 1
        if outcome in ("survived", "not reached"):
            place = f"{mutation.path}:{mutation.line}:{mutation.column}"
            change = f"{mutation.operator} {mutation.part}"
            survivors.append(f"- {place} {change}, {outcome}: `{mutation.text}`")
    lines = ["| room | mutants | killed | survived | not reached | killed % |", "|" + "---|" * 6]
    for room in (*ROOMS, "all"):
        tally = counts[room]
        run = sum(tally[name] for name in ("killed", "survived", "not reached"))
        killed = 100 * tally["killed"] / max(run, 1)
        cells = (run, tally["killed"], tally["survived"], tally["not reached"], f"{killed:.1f}")
        lines.append(f"| {room} | " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join([*lines, "", *survivors])


def options() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(prog="mutants.py", description="mutation test of the core")
    parser.add_argument("--mutants", type=int, default=2000, metavar="N", help="how many (2000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (1)")
    parser.add_argument(
        "--budget", type=float, default=10.0, metavar="S", help="seconds of tests of each (10)"
    )
    parser.add_argument(
        "--state", type=Path, default=Path(".mutants.jsonl"), metavar="FILE", help="results"
    )
    parser.add_argument("--map", type=Path, metavar="FILE", help="which test runs which line")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="of the sample: paths that contain this"
    )
    parser.add_argument("--keep-map", action="store_true", help="add no tests to the map")
    parser.add_argument("tests", nargs="*", metavar="FOLDER", help="of tests (those of TESTS)")
    parser.add_argument("--report", action="store_true", help="print results, run nothing")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run what is left of the sample and print the numbers."""
    chosen_options = options().parse_args(arguments)
    state = chosen_options.state.absolute()
    test_map = (chosen_options.map or state.with_suffix(".map")).absolute()
    os.chdir(REPOSITORY)
    chosen = [
        mutation
        for mutation in sample(chosen_options.mutants, chosen_options.seed)
        if chosen_options.only in mutation.path
    ]
    if not chosen_options.report:
        folders = chosen_options.tests or [f"tests/{name}" for name in TESTS]
        _run_all(
            chosen,
            state,
            test_map,
            chosen_options.budget,
            folders,
            keep_map=chosen_options.keep_map,
        )
    print(report(chosen, read_state(state)))
    return 0


def _run_all(
    chosen: list[Mutation],
    state: Path,
    test_map: Path,
    budget: float,
    folders: Sequence[str],
    *,
    keep_map: bool,
) -> None:
    _import_libraries()
    day_s = 86400.0
    temporary = Path(tempfile.mkdtemp(prefix="mutants-"))
    while not keep_map:
        mapped = len(_mapped(test_map))
        mapping = CoverageRun(test_map)
        if forked(functools.partial(run_pytest, folders, mapping, temporary), lambda: 0, day_s):
            break
        # a limit that ends a test inside pytest ends the process: the next goes on
        if len(_mapped(test_map)) == mapped:
            raise RuntimeError("the map of tests is not whole, and a new process does not go on")
    run = MutationRun(chosen, read_map(test_map, folders), state, budget)
    while any(run.left(at_import=False)):
        forked(lambda: run_pytest(folders, Warm(run), run.temporary), run.progress, WALL_S)
        run.finish_last()
    for mutation in run.left(at_import=True):
        run.begin(mutation)
        plugin = FirstFailure(run.tests_of(mutation))
        forked(functools.partial(_run_changed, mutation, plugin, run), run.progress, WALL_S)
        run.known = read_state(state)
        if mutation.name not in run.known:
            run.finish(mutation, {"outcome": "killed", "by": "limit", "tests": 0})
    shutil.rmtree(run.temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def _run_changed(mutation: Mutation, plugin: FirstFailure, run: MutationRun) -> None:
    _import_changed(mutation)
    plugin.answer = {"outcome": "killed", "by": "import", "tests": 0}
    if plugin.names:
        run_pytest(plugin.names, plugin, run.temporary)
    else:
        plugin.answer = {"outcome": "survived", "by": "", "tests": 0}
    run.finish(mutation, plugin.answer)


def _import_libraries() -> None:
    """Import what takes long and is not changed."""
    for name in ("deltalake", "httpx2", "hypothesis", "numba", "polars", "rich", "starlette"):
        importlib.import_module(name)
    for name in ("starlette.testclient", "textual.app", "matplotlib.figure"):
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
