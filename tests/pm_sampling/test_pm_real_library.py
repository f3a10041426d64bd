"""The stand-in has the signatures of the real package, and answers as its host library does: where
that is installed, or in the folder that TACHOGRAPH_PM_PACKAGES names.
"""

from __future__ import annotations

import ast
import json
import os
from importlib import metadata, util
from pathlib import Path

import pytest
from pm_node import STAND_IN, PmNode
from record_passes import RECORD, answers, by_answers

from servers.process import program
from tachograph.annexes.watch.pm_sampling.library import LEAST_VERSION, PACKAGE, release
from tachograph.annexes.watch.pm_sampling.metrics import choose_metrics

# {module: what of it is used}
USED: dict[str, dict[str, tuple[str, ...]]] = {
    "pm_sampling": {
        "Collector": ("enable", "configure", "start", "stop", "decode", "disable", "__init__")
    },
    "profiler_host": {
        "ProfilerHost": ("__init__", "initialize", "deinitialize", "create_config_image"),
        "get_num_of_passes": (),
    },
}


def installed() -> Path:
    """The folder of the real package."""
    if folder := os.environ.get("TACHOGRAPH_PM_PACKAGES"):
        return Path(folder) / "cupti"
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed")
    if release(version) < LEAST_VERSION:
        pytest.skip(f"{PACKAGE} {version} has no PM sampling")
    found = util.find_spec("cupti")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


def signatures(folder: Path, module: str) -> dict[str, list[tuple[str, str | None]]]:
    """{function or Class.method: [(parameter, its default as written)]}, without importing
    anything.
    """
    tree = ast.parse((folder / f"{module}.py").read_text(encoding="utf-8"))
    found = {}
    for top in tree.body:
        for one in top.body if isinstance(top, ast.ClassDef) else [top]:
            if isinstance(one, ast.FunctionDef):
                name = f"{top.name}.{one.name}" if isinstance(top, ast.ClassDef) else one.name
                found[name] = _parameters(one.args)
    return found


def _parameters(arguments: ast.arguments) -> list[tuple[str, str | None]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    pairs = [
        *zip(positional, defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return [(one.arg, None if default is None else ast.unparse(default)) for one, default in pairs]


@pytest.mark.parametrize("module", USED)
def test_signatures_are_those_of_the_package(module: str) -> None:
    real, ours = signatures(installed(), module), signatures(STAND_IN / "cupti", module)
    for name, methods in USED[module].items():
        for used in [f"{name}.{method}" for method in methods] or [name]:
            assert ours[used] == real[used], used


@pytest.mark.slow
def test_the_host_library_answers_as_recorded(tmp_path: Path) -> None:
    """Of every chip: what fits into one pass, and which passes are chosen from that."""
    packages = installed().parent
    program("gcc", package="gcc libc6-dev")
    found = answers(packages)
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    if found["version"] == recorded["version"]:
        assert by_answers(found["chips"]) == recorded["chips"]
    with PmNode(tmp_path).library() as library:
        for chip, answer in found["chips"].items():
            chosen = choose_metrics(library, chip)
            assert answer["passes"] == [list(each.values()) for each in chosen.passes], chip
