"""Labels: the class of a job by a person, in a file or on a page."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tachograph.catalog.errors import InputError
from tachograph.catalog.units import plural

NEEDED = ("job_id", "class", "label")
COLUMNS = (*NEEDED, "cluster")
_LABELS = {
    **dict.fromkeys(("yes", "true", "1"), True),
    **dict.fromkeys(("no", "false", "0"), False),
}
_DO = f"write a table with the columns {', '.join(NEEDED)} and, where ids repeat, cluster"
_NOT_THERE = "a job that is not in the lake"
_SCHEMA = {"job_key": pl.String(), "code": pl.String(), "truth": pl.Boolean()}


@dataclass(frozen=True, slots=True)
class RejectedLabel:
    """A line that is not used, and why."""

    line: int
    reason: str
    what: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labels of runs, rows (job_key, code, truth), and the lines that are not used."""

    rows: pl.DataFrame
    refused: tuple[RejectedLabel, ...] = ()


def read_labels(path: str | Path, classes: Sequence[str], jobs: pl.DataFrame) -> Labelled:
    """Return the labels of a CSV file by class and run; a job with several runs: its latest run.

    Columns: job_id, class, label (yes or no, true or false, 1 or 0); cluster where ids repeat;
    others are not read. Commas, semicolons or tabs separate them. `jobs`: rows of job_summaries.
    Rejected are labels of jobs that are not there, of ids that exist on several clusters, and all
    labels of a job and class that contradict each other. Errors: InputError for a file that cannot
    be read, is empty, or lacks a column.
    """
    runs = _runs(jobs)
    refused: list[RejectedLabel] = []
    labels_of_runs: dict[tuple[str, str], list[tuple[int, str, bool]]] = defaultdict(list)
    for line, row in _read(Path(path)):
        job_id, code, text = (row[name] for name in NEEDED)
        holds, clusters = _LABELS.get(text.lower()), runs.get(job_id, {})
        named_cluster = row.get("cluster")
        keys = [
            key
            for cluster, key in clusters.items()
            if not named_cluster or named_cluster == cluster
        ]
        if not job_id:
            refused.append(RejectedLabel(line, "no job id", ""))
        elif code not in classes:
            refused.append(RejectedLabel(line, "no such class", code))
        elif holds is None:
            refused.append(RejectedLabel(line, "a label that is neither yes nor no", text))
        elif len(keys) != 1:
            reason = "an id on several clusters" if keys else _NOT_THERE
            refused.append(RejectedLabel(line, reason, job_id))
        else:
            labels_of_runs[keys[0], code].append((line, job_id, holds))
    rows = []
    for (key, code), labels in labels_of_runs.items():
        if len({holds for _, _, holds in labels}) == 1:
            rows.append((key, code, labels[0][2]))
            continue
        for line, job_id, _ in labels:
            refused.append(RejectedLabel(line, "labels that contradict each other", job_id))
    refused.sort(key=lambda label: label.line)
    return Labelled(pl.DataFrame(rows, schema=_SCHEMA, orient="row"), tuple(refused))


def _read(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the lines of a file with their numbers."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
        # Comma, or semicolon or tab of spreadsheets.
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.DictReader(
            io.StringIO(text, newline=""), skipinitialspace=True, delimiter=delimiter
        )
        names = [(name or "").strip() for name in reader.fieldnames or ()]
        if not any(names):
            raise InputError("is empty", where=str(file), do=_DO)
        missing = [name for name in NEEDED if name not in names]
        if missing:
            raise InputError(f"no column {', '.join(missing)}", where=f"{file}:1", do=_DO)
        reader.fieldnames = names
        count = 0
        for row in reader:
            count += 1
            yield (
                reader.line_num,
                {key: (row[key] or "").strip() for key in names if key in COLUMNS},
            )
    except OSError as problem:
        raise InputError(
            problem.strerror or str(problem), where=str(file), do="name a readable file"
        ) from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"not a CSV file in UTF-8: {problem}", where=str(file), do=_DO) from None
    if not count:
        raise InputError("holds no labels", where=str(file), do=_DO)


def labels_of_lake(rows: pl.DataFrame, classes: Sequence[str], jobs: pl.DataFrame) -> Labelled:
    """Return the labels from pages by class and run, without those of other checks.

    rows: of the table of labels. `jobs`: rows of job_summaries. Rejected are labels of jobs that
    are not there.
    """
    numbered = rows.with_row_index("line", offset=1).filter(pl.col("code").is_in(classes))
    there = numbered.join(jobs, on="job_key", how="semi", maintain_order="left")
    gone = numbered.join(jobs, on="job_key", how="anti", maintain_order="left")
    return Labelled(
        there.select("job_key", "code", truth="holds"),
        tuple(
            RejectedLabel(line, _NOT_THERE, key)
            for line, key in gone.select("line", "job_key").iter_rows()
        ),
    )


def _runs(jobs: pl.DataFrame) -> dict[str, dict[str | None, str]]:
    """{displayed or raw id: {cluster: job_key of the latest run}}; displayed ids take priority."""
    ordered = jobs.sort("submit", "start", nulls_last=False)
    runs: dict[str, dict[str | None, str]] = {}
    for name in ("job_id", "display_id"):
        of_name: dict[str, dict[str | None, str]] = defaultdict(dict)
        for job_id, cluster, key in ordered.select(name, "cluster", "job_key").iter_rows():
            of_name[job_id][cluster] = key
        runs |= of_name
    return runs


_NAMED = 3  # lines of a reason


def reasons(refused: Iterable[RejectedLabel], where: str) -> Iterator[str]:
    """Yield a line for each reason: how many labels, and the first lines with their content.

    >>> rejected = [RejectedLabel(4, "no such class", "hung"), RejectedLabel(9, "no such class", "slow")]
    >>> list(reasons(rejected, "labels.csv"))
    ['2 labels not used, no such class: labels.csv:4 (hung), labels.csv:9 (slow)']
    """
    grouped: dict[str, list[str]] = defaultdict(list)
    for label in refused:
        content = f" ({label.what})" if label.what else ""
        grouped[label.reason].append(f"{where}:{label.line}{content}")
    for reason, lines in grouped.items():
        first = ", ".join(lines[:_NAMED])
        more = f", and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
        yield f"{plural(len(lines), 'label')} not used, {reason}: {first}{more}"
