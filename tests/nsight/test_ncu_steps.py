"""While reports are read, progress reports the bytes that were read, up to all of them."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from ncu_csv import LAUNCHES, MULTIPLY, raw

from tachograph.nsight import reports
from tachograph.nsight.reports import read_reports


def steps_of(paths: list[Path]) -> list[tuple[str, int, int]]:
    steps: list[tuple[str, int, int]] = []
    read_reports(paths, progress=lambda *step: steps.append(step))
    return steps


def test_bytes_of_all_files_rise_to_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_BLOCK", 500)
    many = [replace(MULTIPLY, number=number) for number in range(300)]
    (tmp_path / "a.csv").write_text(raw(many))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(raw([MULTIPLY]).encode()))
    (tmp_path / "c.csv").write_text(raw(many))  # the same as the first: not read, and done with
    (tmp_path / "d.txt").write_text("nothing")
    paths = sorted(tmp_path.iterdir())
    steps = steps_of(paths)
    total = sum(path.stat().st_size for path in paths)
    done = [step[1] for step in steps]
    assert {(doing, of) for doing, _, of in steps} == {("read reports", total)}
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, total)
    within = [count for count in done if 0 < count < paths[0].stat().st_size]
    assert len(set(within)) >= 2


def test_a_file_that_is_not_there_has_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(raw(LAUNCHES))
    steps = steps_of([tmp_path / "missing.csv", path])
    assert steps[-1] == ("read reports", path.stat().st_size, path.stat().st_size)
