"""Reads the jobs of a lake into server memory.

Of many jobs the frame lies in files of a folder (`write_image`) that are mapped into memory; what
is analyzed later is added to it (`extended`), and rows that no longer count are masked.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tachograph.annexes.serve.jobs import (
    REPORTED_COUNT,
    SEVERITIES,
    VERDICT_OF,
    WORST,
    CodedVerdict,
    ResidentJobs,
)
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.columns import LOST_COLUMN
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.filters import lost_hours
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import as_of_now

_SLICE_ROWS = 1 << 20  # of findings that are decoded at a time
_SLICE_JOBS = 1 << 17  # jobs whose columns are rewritten at a time
_GROUP_BYTES = 500  # of a row, about: columns that are rewritten at a time
_MANIFEST, _FORMAT = "manifest.json", 3
_KEYS = ("job_key", "seq")
_MAPPED: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()  # files of images that are in use

Progress = Callable[[float], None]


def new_rows(lake: Lake, files: Sequence[DataFile], before: ResidentJobs) -> pl.DataFrame:
    """Return (job_key, seq) of current summaries in `files` that are not in `before`."""
    new = [file for file in files if file.path not in before.files]
    with lake_errors(lake.uri(JOB_SUMMARIES)):
        read = (
            lake.read_files(JOB_SUMMARIES, new, _KEYS)
            .group_by("job_key")
            .agg(pl.col("seq").max())
            .collect()
        )
    there = before.frame.select(_KEYS)
    there = there if before.counting is None else there.filter(before.counting)
    joined = read.join(there.rename({"seq": "before"}), on="job_key", how="left")
    return (
        joined.filter((pl.col("seq") > pl.col("before")).fill_null(value=True))
        .select(_KEYS)
        .sort("job_key")
    )


def extended(
    lake: Lake,
    before: ResidentJobs,
    files: Sequence[DataFile],
    findings: Sequence[DataFile],
    fresh: pl.DataFrame | None = None,
) -> ResidentJobs:
    """Return the jobs of a version, updated from those `before` it.

    `files`, `findings`: data files of job_summaries and findings at that version; `fresh`: see
    `new_rows`. Errors: LakeError if a file vanished meanwhile.
    """
    fresh = new_rows(lake, files, before) if fresh is None else fresh
    paths = frozenset(file.path for file in files)
    new = [file for file in files if file.path not in before.files]
    counting = before.counting
    if before.frame.height:
        stays = ~pl.col("job_key").is_in(fresh["job_key"].implode())
        if before.files - paths:  # rows were rewritten or removed
            with lake_errors(lake.uri(JOB_SUMMARIES)):
                there = lake.read_files(JOB_SUMMARIES, files, _KEYS).collect()
            marked = before.frame.select(_KEYS).join(
                there.unique().with_columns(there=pl.lit(value=True)),
                on=_KEYS,
                how="left",
                maintain_order="left",
            )
            stays &= pl.lit(marked["there"].fill_null(value=False))
        remaining = before.frame.select(stays.alias("counting"))["counting"]
        remaining = remaining if counting is None else remaining & counting
        counting = None if remaining.all() else remaining
    if fresh.is_empty():
        return ResidentJobs(before.frame, before.mapped, counting, paths)
    with lake_errors(lake.uri(JOB_SUMMARIES)):
        is_fresh = pl.col("job_key").is_in(fresh["job_key"].implode())
        rows = (
            lake.read_files(JOB_SUMMARIES, new)
            .filter(is_fresh)
            .join(fresh.lazy(), on=_KEYS, how="semi")
            .collect()
        )
    rows = rows.unique("job_key", keep="last").sort("job_key")
    rows = _with_totals(
        pl.concat([rows, verdict_columns(lake, findings, rows.select(_KEYS))], how="horizontal")
    )
    if counting is not None:
        counting = pl.concat(
            [counting, pl.repeat(value=True, n=rows.height, eager=True).alias("counting")]
        )
    frame = pl.concat([before.frame.slice(before.mapped), rows], how="diagonal").rechunk()
    if before.mapped:
        frame = pl.concat([before.frame.head(before.mapped), frame], how="diagonal")
    return ResidentJobs(frame, before.mapped, counting, paths)


def verdict_columns(
    lake: Lake, files: Sequence[DataFile], jobs: pl.DataFrame, progress: Progress = lambda _: None
) -> pl.DataFrame:
    """Return one column of coded verdicts per code, aligned with `jobs`: (job_key, seq)."""
    least = jobs["seq"].min() if jobs.height else 0
    relevant = [
        file for file in files if file.rows and isinstance(least, int) and file.seq >= least
    ]
    rows, done = sum(file.rows for file in relevant), 0
    placed = jobs.with_row_index("place").lazy()
    columns: dict[str, np.ndarray[Any, np.dtype[np.int8]]] = {}
    for part, height in _slices(lake, relevant):
        with lake_errors(lake.uri(FINDINGS)):
            verdicts = (
                part.join(placed, on=_KEYS, how="inner")
                .select("place", "code", value=_coded())
                .collect()
            )
        for (code,), of_code in verdicts.group_by("code"):
            column = columns.setdefault(str(code), np.zeros(jobs.height, np.int8))
            column[of_code["place"].to_numpy()] = of_code["value"].to_numpy()
        done += height
        progress(done / rows)
    return pl.DataFrame([pl.Series(VERDICT_OF + code, columns[code]) for code in sorted(columns)])


def _slices(lake: Lake, files: Sequence[DataFile]) -> Iterator[tuple[pl.LazyFrame, int]]:
    """Rows of findings, some at a time, small files together."""
    together: list[DataFile] = []
    for file in files:
        if file.rows <= _SLICE_ROWS:
            if together and sum(small.rows for small in together) + file.rows > _SLICE_ROWS:
                yield (
                    _short(lake.read_files(FINDINGS, together)),
                    sum(small.rows for small in together),
                )
                together = []
            together.append(file)
            continue
        for begin in range(0, file.rows, _SLICE_ROWS):
            height = min(_SLICE_ROWS, file.rows - begin)
            yield _short(lake.read_files(FINDINGS, [file]).slice(begin, height)), height
    if together:
        yield _short(lake.read_files(FINDINGS, together)), sum(small.rows for small in together)


def _short(rows: pl.LazyFrame) -> pl.LazyFrame:
    return as_of_now(rows).select(*_KEYS, "code", "verdict", "severity", "covered_by")


def _coded() -> pl.Expr:
    severity = pl.col("severity").replace_strict(
        SEVERITIES, default=CodedVerdict.HINT, return_dtype=pl.Int8
    )
    verdict = pl.col("verdict")
    return (
        pl.when(REPORTED.fill_null(value=False))
        .then(severity)
        .when(verdict == "yes")
        .then(CodedVerdict.UNREPORTED)
        .when(verdict == "no")
        .then(CodedVerdict.NO)
        .when(verdict == "unknown")
        .then(CodedVerdict.UNKNOWN)
        .otherwise(CodedVerdict.NONE)
        .cast(pl.Int8)
    )


def _with_totals(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the number of reported findings, the worst severity (or null), GPU-hours lost."""
    verdicts = [pl.col(name) for name in rows.columns if name.startswith(VERDICT_OF)]
    are_reported = [(verdict >= CodedVerdict.HINT) for verdict in verdicts]
    worst = pl.max_horizontal(verdicts) if verdicts else pl.lit(0, dtype=pl.Int8)
    return rows.with_columns(
        (pl.sum_horizontal(are_reported) if are_reported else pl.lit(0))
        .cast(pl.Int16)
        .alias(REPORTED_COUNT),
        pl.when(worst >= CodedVerdict.HINT).then(worst).alias(WORST),
        lost_hours().alias(LOST_COLUMN),
    )


NO_JOBS = ResidentJobs(_with_totals(JOB_SUMMARIES.empty()), 0, None, frozenset())


# ------------------------------------------------------------------------------------------------------------ images


class ImageManifest(msgspec.Struct, frozen=True):
    """The manifest of an image, written last: an image without one is incomplete."""

    format: int
    schema: list[str]
    rows: int
    files: list[str]
    parts: dict[str, int]  # {name of a file of columns: bytes}
    beside: int  # number of files with columns of the same rows


def write_image(
    lake: Lake,
    files: Sequence[DataFile],
    findings: Sequence[DataFile],
    folder: Path,
    progress: Progress = lambda _: None,
) -> None:
    """Write the jobs of a version into an empty folder, some columns at a time.

    Errors: LakeError if a file vanished meanwhile; OSError if writing fails.
    """
    with lake_errors(lake.uri(JOB_SUMMARIES)):
        keys = lake.read_files(JOB_SUMMARIES, files, _KEYS).with_row_index("place").collect()
    keys = keys.sort(_KEYS, maintain_order=True).unique("job_key", keep="last", maintain_order=True)
    numbers = keys["place"]
    parts: dict[str, int] = {}

    def write(frame: pl.DataFrame) -> None:
        name = f"{len(parts):03d}.arrow"
        frame.write_ipc(folder / name, record_batch_size=max(1, frame.height))
        parts[name] = (folder / name).stat().st_size

    def gathered(names: Sequence[str], taken: pl.Series) -> pl.DataFrame:
        first, last = (taken.min(), taken.max()) if taken.len() else (0, -1)
        assert isinstance(first, int)
        assert isinstance(last, int)
        # Rows are about in this order, so they lie close to each other.
        with lake_errors(lake.uri(JOB_SUMMARIES)):
            rows = (
                lake.read_files(JOB_SUMMARIES, files, names)
                .slice(first, last - first + 1)
                .collect()
            )
        return rows[taken - first]

    waste = sorted(set(lost_hours().meta.root_names()))
    groups = list(_column_groups())
    slices = range(0, max(1, keys.height), _SLICE_JOBS)
    verdicts = verdict_columns(
        lake, findings, keys.select(_KEYS), lambda share: progress(share / 2)
    )
    for number, begin in enumerate(slices):
        taken = numbers.slice(begin, _SLICE_JOBS)
        for written, names in enumerate(groups):
            write(gathered(names, taken))
            progress((1 + (number + (written + 1) / len(groups)) / len(slices)) / 2)
        columns = [gathered(waste, taken), verdicts.slice(begin, _SLICE_JOBS)]
        write(_with_totals(pl.concat(columns, how="horizontal")).drop(waste))
    manifest = ImageManifest(
        _FORMAT,
        list(JOB_SUMMARIES.schema),
        keys.height,
        [file.path for file in files],
        parts,
        len(groups) + 1,
    )
    (folder / _MANIFEST).write_bytes(msgspec.json.encode(manifest))


def open_image(folder: Path) -> ResidentJobs | None:
    """Return a memory-mapped image of jobs; None if damaged or of another program version.

    Rows are those of the version it was written from; `extended` adds later ones.
    """
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=ImageManifest)
        whole = all((folder / name).stat().st_size == size for name, size in manifest.parts.items())
        if manifest.format != _FORMAT or manifest.schema != list(JOB_SUMMARIES.schema) or not whole:
            return None
        frame = _mapped(folder, list(manifest.parts), manifest.beside)
    except (OSError, ValueError, msgspec.DecodeError, pl.exceptions.PolarsError):
        return None
    return (
        ResidentJobs(frame, frame.height, None, frozenset(manifest.files))
        if frame.height == manifest.rows
        else None
    )


def resident_file_mib() -> int:
    """Return this process's memory in file pages (MiB); 0 if not reported."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssFile"))) // 1024
    return 0


def release_pages() -> None:
    """Release the resident pages of images; they are reloaded from the page cache."""
    for mapped in tuple(_MAPPED):
        mapped.madvise(mmap.MADV_DONTNEED)


def remove_image(folder: Path) -> None:
    """Delete an image; processes that have it open keep their mapping."""
    shutil.rmtree(folder, ignore_errors=True)


def _column_groups() -> Iterator[list[str]]:
    """Columns of job_summaries that are rewritten together."""
    group: list[str] = []
    size = 0
    for name, dtype in JOB_SUMMARIES.schema.items():
        if isinstance(dtype, pl.List):
            column_size = 400
        elif dtype == pl.String:
            column_size = 40
        else:
            column_size = 8
        if group and size + column_size > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += column_size
    yield group


def _mapped(folder: Path, parts: Sequence[str], files_of_rows: int) -> pl.DataFrame:
    """Columns of files side by side, `files_of_rows` for some rows, then those of further rows.

    They are read as they are used, or whole where pyarrow is not installed.
    """
    frames = [_part(folder / name) for name in parts]
    rows = [
        pl.concat(frames[at : at + files_of_rows], how="horizontal")
        for at in range(0, len(frames), files_of_rows)
    ]
    return pl.concat(rows)


def _part(file: Path) -> pl.DataFrame:
    try:
        import pyarrow as pa
    except ImportError:
        return pl.read_ipc(file)
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    _MAPPED.add(mapped)
    frame = pl.from_arrow(pa.ipc.open_file(pa.py_buffer(mapped)).read_all())
    return frame if isinstance(frame, pl.DataFrame) else frame.to_frame()
