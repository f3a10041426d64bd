"""The types of rows of the lake are those of its tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from tachograph.catalog import rows
from tachograph.catalog.tables import ALL_TABLES, JOB_SUMMARIES

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
SOURCES = REPOSITORY / "src" / "tachograph"
COMPUTED_COLUMNS = {"node_gpus"}  # of judge.partitions.with_nodes


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = spec_from_file_location("row_types", DOCS / "row_types.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_is_what_make_docs_writes(generator: ModuleType) -> None:
    assert Path(rows.__file__).read_text(encoding="utf-8") == generator.rows_module()


def test_null_is_allowed_where_the_table_gives_it_a_meaning() -> None:
    types = get_type_hints(rows.JobSummaryRow)
    assert list(types) == list(JOB_SUMMARIES.schema)
    required = {
        name for name, kind in types.items() if type(None) not in getattr(kind, "__args__", ())
    }
    assert required == set(JOB_SUMMARIES.required)


def test_numbers_are_read_from_columns_that_exist() -> None:
    """`number(row, "name")` takes any text: the names that stand in the code are columns."""
    columns = {name for table in ALL_TABLES for name in table.schema} | COMPUTED_COLUMNS
    names: dict[str, set[str]] = {}
    for file in SOURCES.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "judge.activity import" in text or "judge.check import" in text:
            names[str(file)] = set(_names_of_numbers(ast.parse(text)))
    assert len(set().union(*names.values())) > 50
    unknown = {file: texts - columns for file, texts in names.items()}
    assert {file: texts for file, texts in unknown.items() if texts} == {}


def _names_of_numbers(module: ast.Module) -> Iterator[str]:
    """Yield the texts in calls of `number`, and of the methods by which a check reads its job."""
    for call in ast.walk(module):
        match call:
            case ast.Call(func=ast.Name("number"), args=[_, ast.Constant(str(name))]):
                yield name
            case ast.Call(
                func=ast.Attribute(ast.Name("job"), "number" | "measured"),
                args=[ast.Constant(str(name))],
            ):
                yield name
            case ast.Call(func=ast.Attribute(ast.Name("job"), "evidence"), args=names):
                yield from (str(name.value) for name in names if isinstance(name, ast.Constant))
