"""The lake: Delta Lake tables in one directory or object store, readable by anything that reads Delta."""

from tachograph.lake.tables import DataFile, Lake

__all__ = ["DataFile", "Lake"]
