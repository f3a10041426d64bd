"""How samples are laid out in a file that is written once and read often: small, and no slower to read.

Parquet writes a column as a dictionary and indexes into it, as it is, or as something in between; which of them suits
a counter depends on how it counts. A fraction or a level of few digits repeats itself: dictionary. Where the
dictionary grows beyond 16 KiB the rest of the column is written as it is. Bytes per second and cumulative counters
hardly repeat, but neighbours share their leading bytes: BYTE_STREAM_SPLIT puts those side by side, where zstd finds
them. It would make fractions smaller, too, but doubles the time it takes to read them. Times advance evenly:
DELTA_BINARY_PACKED.
What was tried, and what it gave: benchmarks/RESULTS.md.

Sources: Apache Parquet, "Encodings"; Apache Arrow's writer, which Delta brings along (Polars' own chooses by type).
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
from deltalake import ColumnProperties, WriterProperties, write_deltalake

from tachograph.schema import Table

ZSTD_LEVEL = 6  # 9 saves 0.3 % more and takes half as long again
PAGE_BYTES = 1 << 20
DICTIONARY_BYTES = 1 << 14  # 4,096 values of four bytes
_ONE_FILE = 1 << 40
_RATE = "B/s"


def write_compact(
    frame: pl.DataFrame, table: Table, folder: Path, *, row_group_rows: int, level: int = ZSTD_LEVEL
) -> Path:
    """Write `frame` as one Parquet file somewhere in `folder`, which is empty; return where.

    Values are read back bit by bit as they are. Errors: DeltaError, OSError (disk full, no permission).
    """
    properties = WriterProperties(
        compression="ZSTD",
        compression_level=level,
        max_row_group_size=row_group_rows,
        data_page_size_limit=PAGE_BYTES,
        data_page_row_count_limit=row_group_rows,
        dictionary_page_size_limit=DICTIONARY_BYTES,
        column_properties=_properties(table),
    )
    # Delta's writer writes tables, not files: this one is thrown away, all but its only file
    write_deltalake(str(folder), frame, writer_properties=properties, target_file_size=_ONE_FILE)
    (file,) = folder.glob("*.parquet")
    return file


def _properties(table: Table) -> dict[str, ColumnProperties]:
    """Encodings of the columns for which Parquet's default does not do."""
    chosen = {"t": ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")}
    for column in table.columns:
        if column.dtype == pl.Float64 or (column.dtype == pl.Float32 and column.unit == _RATE):
            chosen[column.name] = ColumnProperties(encoding="BYTE_STREAM_SPLIT")
    return chosen
