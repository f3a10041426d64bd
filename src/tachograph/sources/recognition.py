"""Which source reads a file: by its content, never by its name alone."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tachograph.catalog.errors import InputError, unreadable
from tachograph.catalog.spool import SPOOL_SUFFIX
from tachograph.sources.clustercockpit import is_archive
from tachograph.sources.columns import recognise
from tachograph.sources.files import (
    BROKEN_GZIP,
    format_of,
    open_file,
    parquet_columns,
    read_json,
)
from tachograph.sources.gpu_tool_names import QUERY_FIELDS
from tachograph.sources.gpu_tools import NAME as GPU_TOOLS
from tachograph.sources.gpu_tools import document_columns, tool_of
from tachograph.sources.kernel_log import NAME as KERNEL_LOG
from tachograph.sources.kernel_log import is_kernel_log
from tachograph.sources.line_protocol import is_collector_text
from tachograph.sources.nvidia_smi import field_names
from tachograph.sources.schedulers.flux import is_flux
from tachograph.sources.schedulers.lsf import is_lsf
from tachograph.sources.schedulers.pbs import LOG_LINE
from tachograph.sources.slurm.exports import TelemetryError, detect, slurm_output
from tachograph.sources.slurm.fields import json_objects, json_text, json_value
from tachograph.sources.slurm.nodes import is_node_text, names_of
from tachograph.sources.table.job_columns import job_meaning

# Samples come first: GPU numbers of maps and of accounting refer to the devices that they name.
ORDER: Final = (
    "recording",
    "clustercockpit",
    "ldms",
    "prometheus",
    "dcgm-exporter",
    "nvidia-smi",
    "gpu-tools",
    "kernel-log",
    "sacct",
    "pbs",
    "flux",
    "lsf",
    "kubernetes",
    "allocation-map",
    "slurm-nodes",
)
_HEAD_BYTES = 65536  # of text; its first lines decide
_DMON = re.compile(r"^#[^\n]*\bgpu\s+(?:pwr|sm|pid)\b", re.MULTILINE)
_SMI_UNIT = re.compile(r"\[(?:%|MiB|W|MHz)\]")
_DELIMITERS = ",;\t|"


def files_below(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the named files and all files of named folders, sorted; what is whole is one folder.

    Hidden files and folders are left out, except where they are named themselves. Errors:
    InputError for a path that does not exist.
    """
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise InputError("no such file or folder", where=path, do="check the name")
        if not path.is_dir() or source_of_folder(path):
            yield path
        else:
            yield from _files_of(path)


def _files_of(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as problem:
        raise unreadable(problem, folder) from None
    for entry in entries:
        if entry.is_symlink() and entry.is_dir():
            continue  # it may lead to a folder above
        if entry.is_dir() and not source_of_folder(entry):
            yield from _files_of(entry)
        elif entry.is_dir() or entry.is_file():
            yield entry


def source_of_folder(path: Path) -> str | None:
    """Return the name of the source that reads a folder as a whole, None if its files are read."""
    written = (f"*{SPOOL_SUFFIX}", "*/_delta_log")  # by `tachograph record`
    if path.is_dir() and any(any(path.glob(name)) for name in written):
        return "recording"
    return "clustercockpit" if is_archive(path) else None


def source_of(path: Path) -> str | None:
    """Return the name of the source that reads a file or a whole folder; None if none does.

    Errors: InputError for a file that cannot be read or is damaged.
    """
    if path.is_dir():
        return source_of_folder(path)
    if path.name.endswith(SPOOL_SUFFIX):
        return "recording"
    match format_of(path):
        case "parquet":
            return _of_columns(parquet_columns(path))
        case "json":
            return _of_json(path)
        case "csv":
            return _of_text(path)


def _of_json(path: Path) -> str | None:
    try:
        document, _ = read_json(path)
    except InputError:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
        if '"nodes"' in head and '"gres"' in head:  # several documents, one after the other
            return "slurm-nodes"
        if ".json" in path.suffixes:
            raise
        return None  # another format that begins with a bracket, such as TOML
    if tool_of("", document) is not None:
        return GPU_TOOLS
    if is_kernel_log(document):
        return KERNEL_LOG
    scheduler = _scheduler_of(document)
    if scheduler is not None:
        return scheduler
    with path.open("rb") as file:
        content = file.read()
    if names_of(document):
        return "slurm-nodes"
    try:
        detect(content, where=str(path))
    except TelemetryError as telemetry:
        return telemetry.source
    except InputError:
        rows = json_objects(document)
        return _of_columns(rows[0]) if rows else None
    written = slurm_output(content, job_meaning)
    return None if written is None else written[1]


def _scheduler_of(document: object) -> str | None:
    """Return the source of accounting that is not Slurm's; None for other documents."""
    if json_value(document, "pbs_version") is not None:
        return "pbs"
    if is_lsf(document):
        return "lsf"
    if _lists_pods(document):
        return "kubernetes"
    return "flux" if is_flux(document) else None


def _lists_pods(document: object) -> bool:
    """Whether a document lists pods, perhaps among other objects, as kubectl saves them.

    Its source is not imported here: it brings a client for HTTP.
    """
    if json_text(document, "kind") not in ("List", "PodList"):
        return False
    kinds = {json_text(item, "kind") for item in json_objects(document, "items")}
    return not kinds.isdisjoint({None, "Pod"})  # items of a PodList have none


def _of_text(path: Path) -> str | None:
    with open_file(path) as file:
        try:
            head = file.read(_HEAD_BYTES)
        except BROKEN_GZIP:
            raise InputError("damaged gzip", where=path, do="copy it again") from None
    if b"\0" in head:
        return None
    text = head.decode("utf-8-sig", "replace")
    if tool_of(text) is not None:
        return GPU_TOOLS
    if is_collector_text(text):
        return "dcgm-exporter"
    if LOG_LINE.match(text):
        return "pbs"
    if is_node_text(text):
        return "slurm-nodes"
    try:
        detected = detect(head, where=str(path))
    except TelemetryError as telemetry:
        return telemetry.source
    except InputError:
        return None
    if detected.kind == "map":
        return "allocation-map"
    written = slurm_output(head, job_meaning)
    if written is not None:
        return written[1]
    return "nvidia-smi" if _is_nvidia_smi(text) else _of_columns(_header_names(text))


def table_columns(path: Path) -> list[str]:
    """Return the columns of a table, or the names of values in JSON; [] for other files."""
    match format_of(path):
        case "parquet":
            return list(parquet_columns(path))
        case "json":
            try:
                return document_columns(read_json(path)[0])
            except InputError:
                return []
        case "csv":
            with open_file(path) as file:
                head = file.read(_HEAD_BYTES)
            names = [] if b"\0" in head else _header_names(head.decode("utf-8-sig", "replace"))
            return names if len(names) > 1 else []


def _is_nvidia_smi(text: str) -> bool:
    """Return whether a text is of `dmon`, or its first line names fields of --query-gpu with units.

    Other programs write units in brackets, too.
    """
    first = text.lstrip().partition("\n")[0]
    has_fields = any(name in QUERY_FIELDS for name in field_names(first.split(",")))
    return bool(_DMON.search(text) or (_SMI_UNIT.search(first) and has_fields))


def _header_names(text: str) -> list[str]:
    """Return the cells of the first line."""
    first = text.lstrip().partition("\n")[0].lstrip("#").strip()
    delimiter = max(_DELIMITERS, key=first.count)
    try:
        names = next(csv.reader([first], delimiter=delimiter), [])
    except csv.Error:
        return []
    return [name.strip() for name in names]


def _of_columns(names: Iterable[str]) -> str | None:
    columns = recognise(names)
    has_values = columns.counters or columns.node_values or columns.host
    return "ldms" if has_values and columns.time and columns.node else None
