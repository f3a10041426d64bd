"""The lake: Delta Lake tables in a directory or object store, readable by any Delta reader."""
