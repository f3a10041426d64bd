"""Tachograph: the flight recorder for GPU jobs."""

from tachograph.catalog.version import __version__ as __version__

# Nothing is imported from elsewhere: `python -m tachograph` runs this file while modules may come
# from the working directory, `typing` and `__future__` too.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import pandas
    import polars

    from tachograph.api.open_lake import OpenLake


def open(lake: str | None = None, config: str | None = None) -> "OpenLake":  # noqa: A001 as in gzip.open
    """Return a lake to work with in Python: `lake`, or the configured one.

    `config` is the configuration's file, else `$TACHOGRAPH_CONFIG`, else `./tachograph.toml`.
    Errors: ConfigError, LakeError where there is no lake.
    """
    # Only now: it brings what a command's help does not need.
    from tachograph.api.open_lake import open_lake

    return open_lake(lake, config)


def to_pandas(frame: "polars.DataFrame") -> "pandas.DataFrame":
    """Return a table of the lake, such as `lake.jobs()`, as a pandas frame.

    Null becomes NaN, None or NaT.

    Errors: UsageError where pandas or pyarrow is not installed: the extra `pandas` brings both.
    """
    try:
        # pyarrow looks for pandas at its first use only, and fails there with another error.
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as absent:
        from tachograph.catalog.errors import UsageError

        raise UsageError(
            f"a pandas frame needs pandas and pyarrow: {absent}",
            do="pip install 'tachograph[pandas]'",
        ) from None
    return frame.to_pandas()
