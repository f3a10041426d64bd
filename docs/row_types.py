"""The types of rows of the lake for `tachograph.catalog.rows`, from the tables of the catalogue."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

import polars as pl

from tachograph.catalog.table_columns import TIME, LakeTable, TableColumn
from tachograph.catalog.tables import (
    DEVICES,
    FINDINGS,
    GPU_SCORES,
    JOB_GPUS,
    JOB_NODES,
    JOB_SUMMARIES,
    JOBS,
    NODE_STATES,
    PROFILES,
    STEP_SUMMARIES,
    WAITING_JOBS,
)

# {name of the type: table whose rows are read one by one}
ROW_TYPES: Mapping[str, LakeTable] = {
    "GpuScoreRow": GPU_SCORES,
    "DeviceRow": DEVICES,
    "JobRow": JOBS,
    "NodeStateRow": NODE_STATES,
    "WaitingJobRow": WAITING_JOBS,
    "JobSummaryRow": JOB_SUMMARIES,
    "JobGpuRow": JOB_GPUS,
    "JobNodeRow": JOB_NODES,
    "StepSummaryRow": STEP_SUMMARIES,
    "FindingRow": FINDINGS,
    "ProfileRow": PROFILES,
}
_HEAD = '''\
"""Types of rows of the lake: made from its tables by `make docs`, a change here is overwritten.

A reader selects columns, and lakes of earlier versions lack some: a key may be missing. A value is
None only where the table gives null a meaning. Import them where types are checked
(`TYPE_CHECKING`): a program that runs does not need them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict
'''
_WIDTH = 100
_PYTHON_TYPES: Mapping[pl.DataType, str] = {
    pl.String(): "str",
    pl.Boolean(): "bool",
    pl.Int16(): "int",
    pl.Int32(): "int",
    pl.Int64(): "int",
    pl.Float32(): "float",
    pl.Float64(): "float",
    TIME: "datetime",
}


def rows_module() -> str:
    """Return the text of `tachograph/catalog/rows.py`: a TypedDict per table of ROW_TYPES."""
    classes = ("\n".join(_class_lines(*item)) for item in ROW_TYPES.items())
    return "\n\n".join((_HEAD, *classes))


def _class_lines(name: str, table: LakeTable) -> Iterator[str]:
    yield f"class {name}(TypedDict, total=False):"
    yield from _docstring(f"Row of {table.name}: {table.grain}.")
    yield ""
    for column in table.columns:
        yield f"    {column.name}: {annotation(column)}"
    yield ""


def _docstring(sentence: str) -> Iterator[str]:
    """Yield a docstring, its closing quotes on a line of their own where it has several lines."""
    lines = textwrap.wrap(f'    """{sentence}', _WIDTH - 3, subsequent_indent="    ")
    if len(lines) == 1:
        yield f'{lines[0]}"""'
        return
    yield from lines
    yield '    """'


def annotation(column: TableColumn) -> str:
    """Return the type of a column in Python; null is None.

    >>> annotation(JOBS.columns[0]), annotation(JOBS.columns[1])
    ('str | None', 'str')
    """
    if isinstance(column.dtype, pl.List):
        (inner,) = (kind for kind in _PYTHON_TYPES if kind == column.dtype.inner)
        name = f"list[{_PYTHON_TYPES[inner]}]"
    else:
        name = _PYTHON_TYPES[column.dtype]
    return name if column.null is None else f"{name} | None"
