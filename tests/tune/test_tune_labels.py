"""Labels of people: what is read, what is refused with its line, what is an error."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tachograph.annexes.lab.tune.labels import read_labels, reasons
from tachograph.catalog.errors import InputError

CLASSES = ("job_hang", "stall")


def jobs(*rows: tuple[str, str, str, str, int]) -> pl.DataFrame:
    """Rows (job_id, display_id, cluster, job_key, day of submission)."""
    names = ("job_id", "display_id", "cluster", "job_key")
    table = pl.DataFrame(rows, {**dict.fromkeys(names, pl.String), "day": pl.Int64}, orient="row")
    return table.with_columns(submit=pl.datetime(2026, 1, "day"), start=pl.lit(None))


def written(folder: Path, text: str) -> Path:
    file = folder / "labels.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_labels_are_matched_by_what_people_write_and_by_raw_id(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "\ufeffclass, job_id ,label,by\nstall,7_1,Yes,ann\nstall,9,0,ann\njob_hang,9,true,bob\n",
    )
    table = jobs(
        ("8", "7_1", "c", "c:8:1", 1), ("9", "9", "c", "c:9:1", 1), ("9", "9", "c", "c:9:2", 2)
    )
    found = read_labels(file, CLASSES, table)
    assert sorted(found.rows.rows()) == [
        ("c:8:1", "stall", True),
        ("c:9:2", "job_hang", True),
        ("c:9:2", "stall", False),
    ]
    assert not found.refused


@pytest.mark.parametrize("between", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_labels_of_any_spreadsheet_are_read(tmp_path: Path, between: str, end: str) -> None:
    lines = (("job_id", "class", "label"), ("9", "stall", "no"))
    file = tmp_path / "labels.csv"
    file.write_bytes(("\ufeff" + end.join(between.join(line) for line in lines) + end).encode())
    found = read_labels(file, CLASSES, jobs(("9", "9", "c", "c:9:1", 1)))
    assert (found.rows.rows(), found.refused) == ([("c:9:1", "stall", False)], ())


def test_what_cannot_be_used_is_counted_with_its_line(tmp_path: Path) -> None:
    lines = [
        "job_id,class,label,cluster",
        "1,job_hang,yes,",  # 2: contradicted by line 7
        "404,stall,no,",  # 3: not there
        "1,hung,yes,",  # 4: no such class
        "1,stall,perhaps,",  # 5: neither
        "2,stall,yes,",  # 6: on two clusters
        "1,job_hang,no,",  # 7
        "2,stall,yes,b",  # 8: used
        ",stall,yes,",  # 9: no id
        "1,stall,no,",  # 10: used, twice the same
        "1,stall,no,",
    ]
    table = jobs(("1", "1", "a", "a:1", 1), ("2", "2", "a", "a:2", 1), ("2", "2", "b", "b:2", 1))
    found = read_labels(written(tmp_path, "\n".join(lines)), CLASSES, table)
    assert sorted(found.rows.rows()) == [("a:1", "stall", False), ("b:2", "stall", True)]
    assert [(each.line, each.what) for each in found.refused] == [
        *((2, "1"), (3, "404"), (4, "hung"), (5, "perhaps"), (6, "2"), (7, "1"), (9, "")),
    ]
    lines = list(reasons(found.refused, "labels.csv"))
    assert (
        "2 labels not used, labels that contradict each other: labels.csv:2 (1), labels.csv:7 (1)"
        in lines
    )
    assert "1 label not used, a job that is not in the lake: labels.csv:3 (404)" in lines
    assert sum(int(line.split()[0]) for line in lines) == len(found.refused)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("job_id,class,label\n", "holds no labels"),
        ("job_id,class,label\n\n\n", "holds no labels"),
        ("job,class\n1,stall\n", "no column job_id, label"),
        ("job_id|class|label\n1|stall|yes\n", "no column job_id, class, label"),
    ],
)
def test_files_that_hold_no_labels_are_errors(tmp_path: Path, content: str, message: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(InputError, match=message) as raised:
        read_labels(file, CLASSES, jobs())
    assert str(file) in str(raised.value)


def test_a_file_that_is_no_text_or_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("binary.csv", "absent.csv"):
        with pytest.raises(InputError, match=name):
            read_labels(tmp_path / name, CLASSES, jobs())
