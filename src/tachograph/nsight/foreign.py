"""What a file is that is no report of Nsight Compute, and what to do about it."""

from __future__ import annotations

import re
from typing import NamedTuple


class Foreign(NamedTuple):
    """What a file is, and what to do."""

    what: str
    do: str


_EXPORT = "write its details with ncu --import FILE --csv --page raw"
_PROFILE = "profile with ncu -o REPORT or ncu --csv"

_BINARIES: tuple[tuple[bytes, Foreign], ...] = (
    (b"SQLite format 3", Foreign("this is a database, as nsys exports it: a timeline without metrics", _PROFILE)),
    (b"PK\x03\x04", Foreign("this is a ZIP archive", "unpack it and name what is in it")),
    (b"PAR1", Foreign("this is a Parquet file", _PROFILE)),
    (b"%PDF", Foreign("this is a PDF", _PROFILE)),
    (b"\xd0\xcf\x11\xe0", Foreign("this is a workbook of a spreadsheet", _EXPORT)),
    (
        b"version https://git-lfs",
        Foreign("this stands for a file that was not downloaded", "fetch it with git lfs pull"),
    ),
)
_TEXTS: tuple[tuple[re.Pattern[str], Foreign], ...] = (
    (
        re.compile(r"^\ufeff?\"?(Process )?ID\"?[;\t].*Kernel Name", re.M),
        Foreign("its cells are separated by ; or tabs: another program wrote it anew", _EXPORT),
    ),
    (
        re.compile(r"^==\d+== (NVPROF|Profiling|Generated)|\"Time\(%\)\"|\"Event Name\",|^\"Device\",\"Kernel\"", re.M),
        Foreign("this is output of nvprof, which has other metrics", _PROFILE),
    ),
    (
        re.compile(r"Time \(%\)\"?,\"?Total Time \(ns\)|Total Time \(ns\)\"?,\"?(Instances|Num Calls|Count)|nsys-rep"),
        Foreign("this is a summary of nsys: times without metrics", _PROFILE),
    ),
    (
        re.compile(r"\A# (HELP|TYPE) |^DCGM_FI_\w+\{", re.M),
        Foreign("this is a page for Prometheus", "read it with tachograph ingest; here, name reports of ncu"),
    ),
    (
        re.compile(r"^\s+Section: |^\s*-{5,}\s+-{5,}\s+-{5,}", re.M),
        Foreign("this is the page for people, whose numbers are rounded", "export it again with ncu --csv"),
    ),
    (
        re.compile(r"(\"Address\"|\"Source\"|\"SASS\"|\"# Samples\")", re.M),
        Foreign("this is the source page, which has a row per instruction", _EXPORT),
    ),
    (
        re.compile(r"\"Metric Name\"|Metric Name,"),
        Foreign("this table does not say of which kernel its metrics are", "keep the column Kernel Name"),
    ),
    (re.compile(r"\A\s*[\[{]"), Foreign("this is JSON", _PROFILE)),
    (re.compile(r"\A\s*<"), Foreign("this is HTML or XML", _PROFILE)),
)
_MOST_ZEROS = 8
_MOST_CONTROLS = 0.05  # of the first bytes
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))  # a log in colour has escapes


def foreign(start: bytes, head: str) -> Foreign:
    """Return what the file is. `start`: its first bytes. `head`: its first lines, where it is a text."""
    for magic, known in _BINARIES:
        if start.startswith(magic):
            return known
    for pattern, known in _TEXTS:
        if pattern.search(head):
            return known
    if _is_binary(start[:512]):
        return Foreign("this is a binary file of another kind", "name files written by ncu -o, or by ncu --csv")
    return Foreign("no table of Nsight Compute is in it", "write one with ncu --csv, or ncu --import FILE --csv")


def _is_binary(start: bytes) -> bool:
    """Whether the bytes are no text; of UTF-16 every other byte may be zero."""
    controls = len(start) - len(start.translate(None, _CONTROLS))
    odd = start.count(0) > _MOST_ZEROS or controls > _MOST_CONTROLS * len(start)
    return odd and not start.startswith((b"\xff\xfe", b"\xfe\xff"))


_PERMISSION = (
    "ask the administrator to load the kernel module nvidia with NVreg_RestrictProfilingToAdminUsers=0, or run ncu as"
    " root"
)
# words of the profiler: what to do
_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile("ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance"),
        _PERMISSION,
    ),
    (
        re.compile("driver resource was unavailable", re.I),
        "another profiler holds the counters: end it, or pause DCGM with dcgmi profiling --pause, and profile again",
    ),
    (
        re.compile("No kernels were profiled|No metrics to collect", re.I),
        "check the filters of ncu (-k, --launch-skip, --nvtx-include), and add --target-processes all",
    ),
    (
        re.compile("returned an error code|application.*(terminated|failed)", re.I),
        "the application failed: run it without ncu first",
    ),
    (
        re.compile("not supported|unsupported|InterfaceUnsupported|no compatible", re.I),
        "use a version of ncu that knows this GPU and its driver",
    ),
    (
        re.compile("Failed to find metric|Unknown metric|invalid metric", re.I),
        "ask ncu --query-metrics which metrics this GPU has",
    ),
)


def advice(error: str) -> str:
    """Return what to do about an error of the profiler.

    >>> advice("Profiling failed because a driver resource was unavailable.")[:40]
    'another profiler holds the counters: end'
    """
    return next((do for pattern, do in _ADVICE if pattern.search(error)), "profile again")
