"""The types of rows of the lake are those of its tables."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from tachograph.catalog import rows
from tachograph.catalog.tables import JOB_SUMMARIES

DOCS = Path(__file__).parents[2] / "docs"


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
