"""Which format a file is, known by its content; and for what this project reads elsewhere, by which source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tachograph.errors import InputError
from tachograph.sources.slurm.documents import at, objects, parse, text
from tachograph.sources.slurm.explicit import header
from tachograph.sources.slurm.nersc import is_iris, is_superfacility

Kind = Literal["text", "database", "superfacility", "iris", "controller", "scontrol", "map", "prolog"]

NOTHING_FOUND = 9003  # ESLURM_REST_EMPTY_RESULT of slurm_errno.h: an answer, no failure
_HEAD = 65536  # bytes that are looked at
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
_PROLOG = re.compile(r"^\S+ (?:prolog|epilog) \S*=", re.MULTILINE)
_EXPORTER = re.compile(r"^(?:# (?:HELP|TYPE) |(?:DCGM_FI_|nvidia_|node_)\w+[{ ])", re.MULTILINE)
_DMON = re.compile(r"^#\s*Entity\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Found:
    """A format, the document where it is JSON, and whether all its text was UTF-8."""

    kind: Kind
    document: object = None
    clean: bool = True


def detect(content: bytes, *, where: str) -> Found:
    """Return the format of a file.

    Errors: InputError for packed files, telemetry (naming the source that reads it), other JSON, broken JSON.
    """
    for magic, name in _PACKED.items():
        if content.startswith(magic):
            raise InputError(f"the file is packed with {name}", where=where, do="unpack it first")
    if content.startswith(b"PAR1"):
        raise InputError("this is Parquet, no Slurm accounting", where=where, do="name the export of sacct")
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start in {b"{", b"["}:
        document, clean = parse(content, where=where)
        return Found(_document_kind(document, where), document, clean)
    return Found(_text_kind(content[:_HEAD].decode("utf-8", "replace"), where))


def _text_kind(head: str, where: str) -> Kind:
    first = next((line for line in head.split("\n") if line.strip()), "").lower()
    if not first:
        raise InputError("the file holds nothing but blanks", where=where, do="export it again")
    columns = set(header(first)[1])
    if {"job_id", "node", "gpu"} <= columns:
        return "map"
    if head.lstrip().startswith("JobId="):
        return "scontrol"
    if _PROLOG.match(head.lstrip()):
        return "prolog"
    if _EXPORTER.match(head.lstrip()):
        raise _telemetry("metrics of an exporter", "dcgm-exporter", where)
    if _DMON.search(head):
        raise _telemetry("output of `dcgmi dmon`", None, where)
    if "gpu_id" in columns or any(name.startswith("nersc_ldms_dcgm_") for name in columns):
        raise _telemetry("a telemetry export", "ldms", where)
    return "text"


def _document_kind(document: object, where: str) -> Kind:
    if isinstance(at(document, "jobs"), list):
        return _jobs_kind(document, where)
    if isinstance(at(document, "metrics"), list) and isinstance(at(document, "data"), list):
        raise _telemetry("a telemetry export", "ldms", where)
    if at(document, "data", "resultType") is not None or at(document, "errorType") is not None:
        raise _telemetry("an answer of Prometheus", "prometheus", where)
    if is_iris(document):
        return "iris"
    if is_superfacility(document):
        return "superfacility"
    rows = objects(document) or (objects(next(iter(document.values()), None)) if isinstance(document, dict) else [])
    if rows and any(name.startswith("nersc_ldms") or name == "gpu_id" for name in rows[0]):
        raise _telemetry("a telemetry export", "ldms", where)
    raise InputError(
        "this JSON is no answer of Slurm or NERSC that is known",
        where=where,
        do="export with `sacct --json` or `sacct --parsable2`",
    )


def _jobs_kind(document: object, where: str) -> Kind:
    jobs = objects(at(document, "jobs"))
    problems = [
        text(at(problem, "description")) or text(at(problem, "error"))
        for problem in objects(at(document, "errors"))
        if at(problem, "error_number") != NOTHING_FOUND
    ]
    if not jobs and problems:
        raise InputError(f"Slurm answered with an error: {problems[0]}", where=where, do="ask it again")
    asked_controller = jobs and not isinstance(jobs[0].get("time"), dict) and "job_state" in jobs[0]
    empty_controller = not jobs and (
        at(document, "last_update") is not None or "slurmctld" in str(at(document, "meta"))
    )
    return "controller" if asked_controller or empty_controller else "database"


def _telemetry(what: str, source: str | None, where: str) -> InputError:
    do = f"read it with `tachograph ingest {source}`" if source else "no source reads it yet"
    return InputError(f"this is {what}, no accounting", where=where, do=do)
