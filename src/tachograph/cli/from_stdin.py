"""Reports that come by a pipe: kept in a file while they are read, and told of as stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from tachograph.errors import InputError, UsageError

if TYPE_CHECKING:
    from tachograph.nsight.launch import Report

NAME = "stdin"


@dataclass(frozen=True, slots=True)
class Kept:
    """The file; what is said of it names stdin."""

    path: Path

    def named(self, report: Report) -> Report:
        """The report under the name that people know."""
        if report.file != str(self.path):
            return report
        launches = tuple(replace(launch, report=NAME) for launch in report.launches)
        return replace(report, file=NAME, launches=launches)

    def telling(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """The same, for lines that name the file."""
        return lambda line: tell(self._renamed(line))

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Errors of the block name stdin."""
        try:
            yield
        except InputError as problem:
            raise InputError(self._renamed(problem.what), where=self._renamed(problem.where), do=problem.do) from None

    def _renamed(self, words: str) -> str:
        return words.replace(str(self.path), NAME)


@contextmanager
def stdin_as_file(*, wanted: bool, stdin: BinaryIO | None = None) -> Iterator[Kept]:
    """Have a file with all that comes on stdin while the block runs: reports are known by content, and read twice.

    Errors: UsageError where stdin is a terminal, on which nobody would type a report, or is closed. Where it is not
    `wanted` nothing is read.
    """
    if not wanted:
        yield Kept(Path(NAME))
        return
    if stdin is None:
        stdin = None if sys.stdin is None else sys.stdin.buffer
    if stdin is None or stdin.isatty():
        what = "stdin is closed" if stdin is None else "stdin is a terminal, no report comes from there"
        raise UsageError(what, where="-", do="write ncu --csv ... | tachograph kernels -")
    with TemporaryDirectory(prefix="tachograph-") as folder:
        path = Path(folder) / NAME
        with path.open("wb") as file:
            copyfileobj(stdin, file)
        yield Kept(path)
