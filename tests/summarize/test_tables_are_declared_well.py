"""Declarations of all tables: a column named twice would be one column with the other's values."""

from __future__ import annotations

import pytest

from tachograph.catalog.tables import ALL_TABLES, LakeTable


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_each_column_once(table: LakeTable) -> None:
    names = [column.name for column in table.columns]
    assert sorted(names) == sorted(set(names))
    assert set(table.key) <= set(names)
    assert set(table.sort) <= set(names)
