"""`tachograph share kernels` on very many reports: messages stay short."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nsight_reports import PUBLISHED, raw_csv
from tachograph.cli import main

COUNT = 70


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As many good files as bad ones and others that are there twice."""
    for place in range(COUNT):
        good = raw_csv((replace(PUBLISHED[0], ms=1.0 + place),))
        (tmp_path / f"a{place:03}.csv").write_text(good, encoding="utf-8")
        (tmp_path / f"same{place:03}.csv").write_text(good, encoding="utf-8")
        (tmp_path / f"error{place:03}.csv").write_text(
            f"==ERROR== number {place}\n", encoding="utf-8"
        )
        (tmp_path / f"odd{place:03}.csv").write_text(
            f"==ERROR== number {place}\n{good.replace('1,', '2,', 1)}", encoding="utf-8"
        )
    return tmp_path


def test_many_files_are_reported_in_few_lines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["share", "kernels", str(folder)]) == 0
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 2 * 21
    counted = [
        int(found.group(1))
        for line in messages
        if (found := re.search(r"and (\d+) more lines like these", line))
    ]
    assert counted == [COUNT - 20, 2 * COUNT - 20]  # there twice; errors, with launches or without
    assert main(["share", "kernels", str(folder), "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    assert len(values["problems"]) == 2 * COUNT
    assert len(values["files"]) == 3 * COUNT
    assert len(printed.err.splitlines()) == 21
