"""Files as frames: bounded pieces, bad lines counted, damaged files named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from tachograph.catalog.errors import InputError
from tachograph.sources.files import (
    TableLayout,
    format_of,
    parquet_columns,
    read_csv,
    read_json,
    read_parquet,
    records,
)


def _write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


CSV_FILES: Mapping[str, bytes | str] = {
    "of Windows": b"\xef\xbb\xbf#Time, node,v\r\n\r\n1,a,2\r\n2, b ,\r\n",
    # One empty cell too many is none too many.
    "ragged lines": "a,b\n1,2\n1,2,3\n7\n3,4\n5,6,\n",
    "quoted cells": 'a,b\n"x,\ny",2\n1,"he said ""no"""\n5,"open\n6,7\n',
    "lines that are no text": b"a,b\n1,2\n\xff\xfe,3\n\0\0\0\n3,4\n",
    "a line of a million characters": f"a,b\n{'x' * 1_000_000}\n1,2\n",
    "a repeated header": "a,b\n1,2\na,b\n3,4\n",
}


def test_csv_files(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    read = []
    for what, content in CSV_FILES.items():
        (frame,) = read_csv(_write(tmp_path, "a.csv", content))
        rejects = [(one.reason, one.count, one.example) for one in frame.rejects]
        read += [f"{what}: {frame.rows_read} read", *map(repr, [*frame.rows.to_dicts(), *rejects])]
    assert "\n".join(read) == snapshot


def test_a_header_of_a_million_characters_is_named_in_short(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no header line") as caught:
        list(read_csv(_write(tmp_path, "b.csv", b"y" * 1_000_000 + b"\n1\n")))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(range(256)) * 40, "binary"),
        (b"\n\n", "no line"),
        (b"a,b,a\n1,2,3\n", "names a twice"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-10], "damaged gzip"),
    ],
    ids=["binary", "empty", "repeated", "gzip"],
)
def test_csv_files_that_cannot_be_read(tmp_path: Path, content: bytes, said: str) -> None:
    path = _write(tmp_path, "bad.csv", content)
    with pytest.raises(InputError, match=said) as caught:
        list(read_csv(path))
    assert str(path) in str(caught.value)


def test_other_encodings_delimiters_comments_and_no_header(tmp_path: Path) -> None:
    path = _write(tmp_path, "a.csv", "! von Hand\nä;1,5\n! mehr\nö;2,5\n".encode("latin-1"))
    layout = TableLayout(delimiter=";", comment="!", names=("name", "v"), encoding="latin-1")
    (frame,) = read_csv(path, layout)
    assert frame.rows.rows() == [("ä", "1,5"), ("ö", "2,5")]
    with pytest.raises(InputError, match="klingon"):
        list(read_csv(path, TableLayout(encoding="klingon")))


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.text('ab,"\n é', max_size=6)), min_size=1, max_size=30
    ),
    st.data(),
)
def test_blocks_of_any_size_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    quoted = "".join(f'{number},"{text.replace(chr(34), chr(34) * 2)}"\n' for number, text in rows)
    path.write_text("n,s\n" + quoted)
    expected = [(str(number), text) for number, text in rows]
    block = data.draw(st.integers(1, len(quoted) + 10))
    for size in (None, block):
        frames = list(read_csv(path, block_bytes=size))
        assert sum(frame.rows_read for frame in frames) == len(rows)
        assert [(n, s or "") for frame in frames for n, s in frame.rows.rows()] == expected
        assert [f.first_row for f in frames] == [
            sum(g.rows_read for g in frames[:i]) for i in range(len(frames))
        ]


def test_parquet_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"x": range(10), "y": [0.5] * 10}).write_parquet(path, row_group_size=3)
    assert list(parquet_columns(path)) == ["x", "y"]
    frames = list(read_parquet(path, ["x"], rows=4))
    assert [(f.first_row, f.rows_read) for f in frames] == [(0, 4), (4, 4), (8, 2)]
    assert pl.concat(f.rows for f in frames).rows() == [(x,) for x in range(10)]


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.99])
def test_parquet_cut_off(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"x": range(1000)}).write_parquet(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut)])
    assert format_of(path) == "parquet"
    with pytest.raises(InputError, match="cut off"):
        parquet_columns(path)


@given(
    places=st.lists(st.tuples(st.integers(4, 10**6), st.integers(0, 255)), min_size=1, max_size=20)
)
def test_parquet_with_wrong_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    pl.DataFrame({"x": range(500), "node": ["n"] * 500}).write_parquet(path)
    content = bytearray(path.read_bytes())
    for place, value in places:
        content[4 + place % (len(content) - 4)] = value
    path.write_bytes(content)
    try:
        said = f"read {len(list(read_parquet(path, list(parquet_columns(path)))))}"
    except InputError as problem:  # any other exception is a fault
        said = str(problem)
    assert said == "read 1" or f"{path}: damaged Parquet" in said


def test_formats_are_known_by_content_before_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not Parquet"):
        format_of(_write(tmp_path, "a.parquet", "time,node\n1,2\n"))
    with pytest.raises(InputError, match="empty"):
        format_of(_write(tmp_path, "b.csv", b""))
    assert format_of(_write(tmp_path, "c", ' \n[{"a":1}]')) == "json"
    assert format_of(_write(tmp_path, "d", "a,b\n")) == "csv"
    assert format_of(_write(tmp_path, "e.json.gz", gzip.compress(b"[]"))) == "json"


def test_json_with_nan_lines_and_gzip(tmp_path: Path) -> None:
    rows, rejects = read_json(_write(tmp_path, "a.json", '[{"v": NaN}, {"v": 1}]'))
    assert rejects == ()
    assert records(rows, origin="a").get_column("v").is_nan().to_list() == [True, False]
    rows, rejects = read_json(
        _write(tmp_path, "b.jsonl.gz", gzip.compress(b'{"v":1}\n{"v":2}\n{"v":'))
    )
    assert rows == [{"v": 1}, {"v": 2}]
    assert [(r.reason, r.count) for r in rejects] == [("unreadable_line", 1)]


@pytest.mark.parametrize(
    "cut", ['{\n "a": 2,\n "b": {', '{\n "a": "x', '{\n "a": 2,', "[\n 1, nul"]
)
def test_documents_behind_one_that_is_cut_off_are_read(tmp_path: Path, cut: str) -> None:
    whole = '{\n "a": 1,\n "b": [\n  {}\n ]\n}\n'
    first = {"a": 1, "b": [{}]}
    for text, values, cuts in (
        (f"{whole}{cut}\n{whole}{whole}", [first] * 3, 1),
        (f"{whole}{cut}\n{whole}{cut}\n{whole}{cut}", [first] * 3, 3),
        (f"{cut}\n{whole}", [first], 1),
    ):
        found, rejects = read_json(_write(tmp_path, "a.json", text))
        assert found == values
        assert [(r.reason, r.count) for r in rejects] == [("unreadable_line", cuts)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"data": [1, 2', "cut off"),
        ('[\n{"a": 1},\n{"a": oops},\n{"a": 3},\n{"a": 4}\n]', "line 3"),
        ("[" * 100_000, "nested too deeply"),
        ("  ", "empty"),
        (b"\x80\x81[", "not text|not valid"),
    ],
)
def test_json_that_is_none(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_json(_write(tmp_path, "a.json", content))


def test_records_keep_what_they_cannot_type() -> None:
    rows = [{"a": 1, "b": 1}, {"a": 2.5, "b": "x", "c": {"d": 1}}, {"c": [1]}, {"a": None, "c": 7}]
    frame = records(rows, origin="here")
    assert frame.get_column("a").to_list() == [1.0, 2.5, None, None]
    assert frame.get_column("b").to_list() == ["1", "x", None, None]
    assert frame.get_column("c").to_list() == [None, json.dumps({"d": 1}), "[1]", "7"]
    with pytest.raises(InputError, match="here: not a list of records"):
        records([1, 2], origin="here")
