"""Labels: the class of a job by a person, in a file or on a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tachograph.catalog.errors import InputError

NEEDED = ("job_id", "class", "label")
COLUMNS = (*NEEDED, "cluster")
_YES, _NO = frozenset({"yes", "true", "1"}), frozenset({"no", "false", "0"})
_DO = f"write a table with the columns {', '.join(NEEDED)} and, where ids repeat, cluster"


@dataclass(frozen=True, slots=True)
class Label:
    """One label: whether a job is of a class. `job_id`: displayed or raw."""

    line: int
    job_id: str
    cluster: str | None
    code: str
    holds: bool


@dataclass(frozen=True, slots=True)
class RejectedLabel:
    """A line that is not used, and why."""

    line: int
    reason: str
    what: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labels by class, {code: {job_key: holds}}, and the lines that are not used."""

    of: Mapping[str, Mapping[str, bool]]
    refused: tuple[RejectedLabel, ...] = ()


def read_labels(
    path: str | Path, classes: Iterable[str]
) -> tuple[list[Label], list[RejectedLabel]]:
    """Return the labels of a CSV file, and its lines that cannot be used.

    Columns: job_id, class, label (yes or no, true or false, 1 or 0); cluster where ids repeat;
    others are not read. Commas, semicolons or tabs separate them. Errors: InputError for a file
    that cannot be read, is empty, or lacks a column.
    """
    file, known = Path(path), frozenset(classes)
    try:
        text = file.read_bytes().decode("utf-8-sig")
        delimiter = _delimiter(text.partition("\n")[0])
        reader = csv.DictReader(
            io.StringIO(text, newline=""), skipinitialspace=True, delimiter=delimiter
        )
        names = [(name or "").strip() for name in reader.fieldnames or ()]
        _check_columns(names, str(file))
        reader.fieldnames = names
        rows = []
        for row in reader:
            cells = {key: (row[key] or "").strip() for key in names if key in COLUMNS}
            rows.append((reader.line_num, cells))
    except OSError as problem:
        raise InputError(
            problem.strerror or str(problem), where=str(file), do="name a readable file"
        ) from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"not a CSV file in UTF-8: {problem}", where=str(file), do=_DO) from None
    if not rows:
        raise InputError("holds no labels", where=str(file), do=_DO)
    labels: list[Label] = []
    rejected: list[RejectedLabel] = []
    for line, cells in rows:
        label = _label(line, cells, known)
        if isinstance(label, Label):
            labels.append(label)
        else:
            rejected.append(label)
    return labels, rejected


def _delimiter(head: str) -> str:
    """Column delimiter: comma, or semicolon or tab of spreadsheets.

    >>> _delimiter("job_id;class;label"), _delimiter("job_id"), _delimiter("")
    (';', ',', ',')
    """
    return max(",;\t", key=head.count)


def _check_columns(names: list[str], where: str) -> None:
    if not any(names):
        raise InputError("is empty", where=where, do=_DO)
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise InputError(f"no column {', '.join(missing)}", where=f"{where}:1", do=_DO)


def _label(line: int, row: Mapping[str, str], known: frozenset[str]) -> Label | RejectedLabel:
    text = row["label"].lower()
    if not row["job_id"]:
        return RejectedLabel(line, "no job id", "")
    if row["class"] not in known:
        return RejectedLabel(line, "no such class", row["class"])
    if text not in _YES | _NO:
        return RejectedLabel(line, "a label that is neither yes nor no", row["label"])
    return Label(line, row["job_id"], row.get("cluster") or None, row["class"], text in _YES)


def match(
    labels: Iterable[Label], refused: Iterable[RejectedLabel], jobs: pl.DataFrame
) -> Labelled:
    """Return the labels by class and run; a job with several runs: its latest run.

    `jobs`: rows of job_summaries. Rejected are labels of jobs that are not there, of ids that exist
    on several clusters, and all labels of a job and class that contradict each other.
    """
    runs = _runs(jobs)
    found: dict[tuple[str, str], list[Label]] = {}
    not_used = list(refused)
    for label in labels:
        keys = runs.get(label.job_id, {})
        here = {cluster: key for cluster, key in keys.items() if label.cluster in (None, cluster)}
        if len(here) == 1:
            found.setdefault((label.code, next(iter(here.values()))), []).append(label)
        else:
            reason = "an id on several clusters" if here else "a job that is not in the lake"
            not_used.append(RejectedLabel(label.line, reason, label.job_id))
    of: dict[str, dict[str, bool]] = {}
    for (code, key), same in found.items():
        if len({label.holds for label in same}) > 1:
            not_used += [
                RejectedLabel(label.line, "labels that contradict each other", label.job_id)
                for label in same
            ]
        else:
            of.setdefault(code, {})[key] = same[0].holds
    return Labelled(of, tuple(sorted(not_used, key=lambda each: (each.line, each.reason))))


def labels_of_lake(rows: pl.DataFrame, classes: Iterable[str], jobs: pl.DataFrame) -> Labelled:
    """Return the labels from pages by class and run, without those of other checks.

    rows: of the table of labels. `jobs`: rows of job_summaries. Rejected are labels of jobs that
    are not there.
    """
    known, runs = frozenset(classes), set(jobs.get_column("job_key"))
    of: dict[str, dict[str, bool]] = {}
    refused = []
    for line, (key, code, holds) in enumerate(
        rows.select("job_key", "code", "holds").iter_rows(), 1
    ):
        if code not in known:
            continue
        if key in runs:
            of.setdefault(code, {})[key] = holds
        else:
            refused.append(RejectedLabel(line, "a job that is not in the lake", key))
    return Labelled(of, tuple(refused))


def _runs(jobs: pl.DataFrame) -> dict[str, dict[str | None, str]]:
    """{displayed or raw id: {cluster: job_key of the latest run}}; displayed ids take priority."""
    ordered = jobs.sort("submit", "start", nulls_last=False).select(
        "job_id", "display_id", "cluster", "job_key"
    )
    raw: dict[str, dict[str | None, str]] = {}
    written: dict[str, dict[str | None, str]] = {}
    for job_id, display_id, cluster, key in ordered.iter_rows():
        raw.setdefault(job_id, {})[cluster] = key
        if display_id:
            written.setdefault(display_id, {})[cluster] = key
    return raw | written


_NAMED = 3  # lines of a reason


def reasons(refused: Iterable[RejectedLabel], where: str) -> Iterator[str]:
    """Yield a line for each reason: how many labels, and the first lines with their content.

    >>> rejected = [RejectedLabel(4, "no such class", "hung"), RejectedLabel(9, "no such class", "slow")]
    >>> list(reasons(rejected, "labels.csv"))
    ['2 labels not used, no such class: labels.csv:4 (hung), labels.csv:9 (slow)']
    """
    grouped: dict[str, list[str]] = {}
    for label in refused:
        content = f" ({label.what})" if label.what else ""
        grouped.setdefault(label.reason, []).append(f"{where}:{label.line}{content}")
    for reason, places in grouped.items():
        first = ", ".join(places[:_NAMED])
        more = f", and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        noun = "label" if len(places) == 1 else "labels"
        yield f"{len(places)} {noun} not used, {reason}: {first}{more}"
