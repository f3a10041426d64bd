"""The recipes of CONTRIBUTING.md, applied word for word to a copy of the tree.

The line above a code block reports where the block goes:

    New file `PATH`:                     it is the file
    In `PATH`, at the end of `NAME`:     before the line that closes NAME
    In `PATH`, below `TEXT`:             below the only line that is TEXT
    In `PATH`, at the end:               below the last line

All recipes of `APPLIED` go into one copy. Then `make docs` is run there, lint, and the tests that
the recipes name. Other recipes are followed step by step in a copy of the package alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import OUTER_RUN, made_once

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TESTS = REPOSITORY / "tests"
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
APPLIED = (
    "A counter",
    "A device",
    "A check",
    "A rule of the catalogue",
    "A figure",
    "An export",
    "An exporter",
    "A page",
    "An endpoint",
)
MOST_FILES = 3
# A copy has no compiled code yet, and compiling takes longer than these jobs.
UNCOMPILED = {"NUMBA_DISABLE_JIT": "1"}
_EDIT = re.compile(
    r"^(?:New file|In) `(?P<path>[^`]+)`"
    r"(?:, at the end of `(?P<name>\w+)`|, below `(?P<line>[^`]+)`|(?P<end>, at the end))?:\n\n"
    r"```\w+\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CLOSING = re.compile(r"^(?:\)|\]|\}|    \})", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """One code block of a recipe, and where it goes."""

    path: str
    text: str
    name: str | None
    line: str | None
    at_end: bool

    def apply(self, tree: Path) -> None:
        file = tree / self.path
        if not (self.name or self.line or self.at_end):
            assert not file.exists(), f"{self.path} is no new file"
            file.write_text(self.text, encoding="utf-8")
            return
        text = file.read_text(encoding="utf-8")
        at = len(text)
        if self.name:
            begin = re.search(rf"^{self.name}\b.*$", text, re.MULTILINE)
            assert begin, f"{self.path} has no {self.name}"
            closing = _CLOSING.search(text, begin.end())
            assert closing, f"{self.path}: {self.name} has no end"
            at = closing.start()
        elif self.line:
            assert text.count(f"{self.line}\n") == 1, (
                f"{self.path} has no single line {self.line!r}"
            )
            at = text.index(f"{self.line}\n") + len(self.line) + 1
        file.write_text(text[:at] + self.text + text[at:], encoding="utf-8")


def recipe(title: str) -> str:
    """The section called `title`."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING.md has no section {title!r}"
    return found[1]


def edits(title: str) -> list[Edit]:
    """The code blocks of a recipe, in order."""
    found = [
        Edit(part["path"], part["text"], part["name"], part["line"], part["end"] is not None)
        for part in _EDIT.finditer(recipe(title))
    ]
    assert len(found) == recipe(title).count("```") // 2, "a code block without a place"
    return found


def area(title: str) -> list[str]:
    """The tests that a recipe names."""
    (named,) = re.findall(r"`make test\s+ARGS='([^']+)'`", recipe(title))
    return str(named).split()


def code(section: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def copy_of_the_tree(folder: Path) -> None:
    """Copy what git tracks, and what was compiled; apply all recipes; write the generated pages."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=REPOSITORY, check=True,
                            capture_output=True, text=True)  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    for cache in (REPOSITORY / "src").rglob("__pycache__"):
        shutil.copytree(cache, folder / cache.relative_to(REPOSITORY), dirs_exist_ok=True)
    if (REPOSITORY / ".mypy_cache").is_dir():
        shutil.copytree(REPOSITORY / ".mypy_cache", folder / ".mypy_cache")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    for title in APPLIED:
        for edit in edits(title):
            edit.apply(folder)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    in_tree(folder, "docs/generate.py")


def in_tree(tree: Path, *arguments: str, **more: str) -> None:
    """Run a program of the tree with its package; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")} | more
    environment.setdefault("TACHOGRAPH_RECORDED", str(REPOSITORY.parent / "shared" / "data"))
    for name in (
        "PYTEST_XDIST_WORKER",
        "PYTEST_XDIST_WORKER_COUNT",
        "PYTEST_CURRENT_TEST",
        "PYTEST_ADDOPTS",
    ):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all applied recipes, made once for all workers."""
    return made_once(tmp_path_factory, "recipes", copy_of_the_tree)


@pytest.mark.parametrize("title", APPLIED)
def test_a_recipe_changes_few_files(title: str) -> None:
    assert 1 <= len({edit.path for edit in edits(title)}) <= MOST_FILES
    assert [file for file in area(title) if not (REPOSITORY / file).exists()] == []


@pytest.mark.slow
def test_style_of_the_tree_with_all_recipes(tree: Path) -> None:
    in_tree(tree, "-m", "ruff", "check", "--no-cache", "src", "tests", "docs")
    in_tree(tree, "-m", "ruff", "format", "--no-cache", "--check", "src", "tests", "docs")


@pytest.mark.slow
def test_layers_of_the_tree_with_all_recipes(tree: Path) -> None:
    in_tree(tree, str(Path(sys.executable).parent / "lint-imports"), "--no-cache")


@pytest.mark.slow
def test_types_of_the_tree_with_all_recipes(tree: Path) -> None:
    """Of the files that recipes write or change, and what these import."""
    files = {
        edit.path for title in APPLIED for edit in edits(title) if edit.path.startswith("src/")
    }
    in_tree(tree, "-m", "mypy", "--strict", *sorted(file for file in files if file.endswith(".py")))


@pytest.mark.slow
@pytest.mark.usefixtures("exported", "study_lake")
def test_the_tests_that_recipes_name_pass_with_all_recipes(tree: Path, demo: Path) -> None:
    """On lakes that were made without the recipes, as those of sites are."""
    files = sorted({file for title in APPLIED for file in area(title)})
    chosen = ("-m", "not slow and not hypothesis", "--benchmark-disable")
    words = ("-m", "pytest", "-q", "--assert=plain", "-p", "no:cacheprovider", *chosen, *files)
    in_tree(tree, *words, **UNCOMPILED, **{OUTER_RUN: str(demo.parents[2])})


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package to change."""
    shutil.copytree(
        REPOSITORY / "src" / "tachograph",
        tmp_path / "tachograph",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return tmp_path / "tachograph"


def add_to_end_of_tuple(file: Path, name: str, row: str) -> None:
    text = file.read_text(encoding="utf-8")
    begin = text.index(f"\n{name}")
    end = text.index("\n)", begin) + 1
    file.write_text(text[:end] + row + text[end:], encoding="utf-8")


def replace(file: Path, changes: Mapping[str, str]) -> None:
    """Put other words in place of some that stand there once."""
    text = file.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def python(package: Path, *arguments: str, **more: str) -> str:
    """What a program prints that takes the changed package, and the made-up jobs of these tests."""
    folders = (package.parent, TESTS, TESTS / "classes")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))} | more
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_file_and_one_line_add_a_command(package: Path) -> None:
    file, line = code(recipe("A command"))
    (package / "cli" / "hello.py").write_text(file, encoding="utf-8")
    add_to_end_of_tuple(package / "cli" / "registry.py", "COMMANDS", line)
    assert python(package, "-m", "tachograph", "hello", "you") == "hello you\n"
    assert re.search(
        r"^  hello +greet somebody$",
        python(package, "-m", "tachograph", "help", "--all"),
        re.MULTILINE,
    )
    assert "Greet somebody." in python(package, "-m", "tachograph", "hello", "--help")


def test_a_row_and_its_condition_add_a_workload_class(package: Path) -> None:
    """Between compute-active and memory-active."""
    workload = package / "judge" / "workload"
    replace(
        workload / "classes.py",
        {
            '    WorkloadClass("memory-active"': '    WorkloadClass("half-active", "half_active",'
            ' "mixed", "SM >= 40",\n'
            '                  {"sm": (0.4, 1)}, (0.45, 0, 0.2, 0.8, 0, 0)),\n    WorkloadClass("memory-active"'
        },
    )
    replace(
        workload / "classes.py",
        {'    (_at("dram", MEMORY_ACTIVE),),': '    (_at("sm", 0.4),),\n    (_at("dram", MEMORY_ACTIVE),),'},
    )  # fmt: skip
    code = (
        "import numpy as np\n"
        "from tachograph.judge.workload.classes import WORKLOAD_CLASSES\n"
        "from tachograph.judge.workload.rules import GpuReading, classify\n"
        "from tachograph.judge.workload.settings import WorkloadSettings\n"
        "from tachograph.judge.workload.arrays import MinuteLabeller\n"
        "known = dict(tensor_active=0, dram_active=0.1, gr_engine_active=0.5, fp64_active=0, "
        "tensor_dfma_active=0,\n"
        "             pcie_tx_bytes_per_s=0, pcie_rx_bytes_per_s=0)\n"
        "for sm in (0.45, 0.35):\n"
        "    values = {name: np.array([value], np.float32) for name, value in (known | "
        "{'sm_active': sm}).items()}\n"
        "    place = MinuteLabeller(WorkloadSettings())(values, 1)[0]\n"
        "    print(classify(GpuReading(**known, sm_active=sm)).name, WORKLOAD_CLASSES[place])"
    )
    reported = python(package, "-c", code, **UNCOMPILED).splitlines()
    assert reported == ["half-active half-active", "mixed / moderate mixed / moderate"]


def test_an_expression_and_a_column_add_a_score(package: Path) -> None:
    replace(
        package / "judge" / "scores.py",
        {
            "    return inputs.with_columns(": (
                "    return inputs.with_columns(score_sm=_limited(1 - pl.col('sm')),"
            ),
        },
    )
    replace(
        package / "catalog" / "tables.py",
        {
            '"score_gpumem", "score_gpumem_normalized")': '"score_gpumem", "score_gpumem_normalized", "score_sm")',
        },
    )
    replace(
        package / "catalog" / "table_columns.py",
        {
            'it needs was not measured"\n    return (\n': 'it needs was not measured"\n    return (\n'
            '        real("score_sm", "percent", "SMs at rest.", null),\n',
        },
    )
    code = (
        "import polars as pl\n"
        "from jobframes import frame, gpus, summary\n"
        "from tachograph.judge.scores import judge_scores\n"
        "from tachograph.catalog.tables import JOB_SUMMARIES\n"
        "of = gpus({'sm_active_mean': 0.2}, {'sm_active_mean': 0.4, 'dram_active_mean': 0.1}, {})\n"
        "scored = judge_scores(frame(JOB_SUMMARIES, [summary()]), of)\n"
        "print(scored.gpus['score_sm'].round(3).to_list(), "
        "scored.jobs['score_sm'].round(3).to_list())"
    )
    # Of a job: of GPUs that report both.
    assert python(package, "-c", code).strip() == "[80.0, 60.0, None] [60.0]"


def test_a_name_and_a_share_of_a_minute_add_a_cause(package: Path) -> None:
    replace(
        package / "catalog" / "tables.py",
        {'        "idle": "GPUs': '        "half": "half of what is left",\n        "idle": "GPUs'},
    )
    replace(
        package / "judge" / "waste.py",
        {
            '        "idle": idle_s,\n': '        "half": others * rest * scale / 2,\n        "idle": idle_s,\n',
            '        "energy_idle": ': '        "energy_half": pl.lit(0.0),\n        "energy_idle": ',
        },
    )
    code = (
        "from jobframes import frame, gpus, minutes, summary\n"
        "from tachograph.judge.waste import judge_waste\n"
        "from tachograph.pipeline.timelines import timelines_of\n"
        "from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES\n"
        "job = frame(JOB_SUMMARIES, [summary(gpus=1, elapsed_s=3600.0)])\n"
        "of, never = timelines_of(minutes([1.0] * 60), idle_util=0.1), gpus({'gpu_util_max': "
        "1.0})\n"
        "found = judge_waste(job, never, of, frame(FINDINGS, []), uneven=[], idle_util=0.1, "
        "idle_minutes=9)\n"
        "print(found['gpu_hours_half'].item(), found['gpu_hours_in_use_unknown'].item())"
    )
    assert python(package, "-c", code, **UNCOMPILED).strip() == "0.5 0.5"


def test_a_row_adds_a_label_of_nsight_compute(package: Path) -> None:
    row = '        "Replayed Instructions": "smsp__inst_replayed.sum",'
    replace(
        package / "annexes" / "share" / "nsight" / "metrics.py",
        {'    "Instruction Statistics": {': f'    "Instruction Statistics": {{\n{row}'},
    )
    code = (
        "from tachograph.annexes.share.nsight.metrics import metric_of\n"
        "print(metric_of('Instruction Statistics', 'Replayed Instructions'))"
    )
    assert python(package, "-c", code).strip() == "smsp__inst_replayed.sum"


def test_a_name_adds_a_pipeline_to_the_estimator(package: Path) -> None:
    replace(
        package / "annexes" / "share" / "demand.py", {'"uniform", "xu")': '"uniform", "xu", "ray")'}
    )
    code = (
        "from tachograph.annexes.share.demand import H100_NVL, Demand, Footprint\n"
        "from tachograph.annexes.share.estimate import estimate, matrix\n"
        "small = Footprint(blocks=132, threads=128, registers=32, shared_bytes=0.0)\n"
        "rays = Demand(name='rays', cycles={'issue': 0.1, 'ray': 0.75}, footprint=small)\n"
        "member = estimate([rays, rays], gpu=H100_NVL).members[0]\n"
        "print(member.binding, round(member.slowdown, 2), matrix([rays], gpu=H100_NVL).slowdown.round(2))"
    )
    assert python(package, "-c", code, **UNCOMPILED).strip() == "ray 1.5 [[1.5]]"


@pytest.mark.parametrize(
    "title",
    [
        *APPLIED,
        "A source",
        "A workload class, a health limit",
        *(
            "A score",
            "A cause of waste",
            "A label of Nsight Compute",
            "A resource of the estimator",
        ),
        *("A micro-benchmark", "A renderer", "A command"),
    ],
)
def test_a_recipe_is_short_and_its_files_exist(title: str) -> None:
    section = recipe(title)
    steps = re.findall(r"^\d+\. ", section, re.MULTILINE)
    assert len(steps) <= 10
    named = re.findall(r"`((?:src/tachograph|research)/[\w/.]+)`", section)
    assert named
    made = {edit.path for edit in edits(title)} if title in APPLIED else set()
    assert [path for path in named if path not in made and not (REPOSITORY / path).exists()] == []
