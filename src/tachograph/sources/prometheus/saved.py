"""Answers that somebody saved: of an instant query, of a range query, or an export of VictoriaMetrics."""

from __future__ import annotations

from pathlib import Path

from tachograph.sources import Chunk
from tachograph.sources.files import fingerprint, read_bytes
from tachograph.sources.http import Answer
from tachograph.sources.prometheus.decode import Run, Runs, read_export, read_result
from tachograph.sources.prometheus.rows import Memory, parts
from tachograph.sources.prometheus.settings import NAME


def read_saved(path: Path, memory: Memory) -> Chunk:
    """Return the rows of one file; answers of one instant, one metric each, complete each other in the lake.

    An instant query tells when it was asked. Whoever asks for one metric after the other means one instant, so its
    times are taken in whole seconds.
    Errors: InputError for a file that cannot be read, or that holds an error or no answer.
    """
    chunk_id = f"{NAME}:{fingerprint(path, NAME, repr(memory.legend.names), repr(memory.legend.own))}"
    found = _decode(read_bytes(path), str(path))
    if found.instant:
        found.runs = [Run(run.labels, run.t // 1000 * 1000, run.values) for run in found.runs]
    return Chunk(chunk_id, NAME, str(path), parts(found, memory, overlaps=False), rows_read=found.points)


def _decode(content: bytes, where: str) -> Runs:
    """An export has a series per line, an answer is one object that tells its status."""
    first = content.lstrip()[:4096].partition(b"\n")[0]
    if first.startswith(b'{"metric"'):
        return read_export(content.split(b"\n"), where)
    return read_result(Answer(content, where, kind="a file"))
