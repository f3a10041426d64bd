"""The only module that writes stderr: errors, remarks, and progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tachograph.catalog.errors import BREAK, TachographError
from tachograph.catalog.secrets import redacted

if TYPE_CHECKING:
    from argparse import Namespace


def error(problem: TachographError) -> None:
    """Write one line, whatever the message holds, and one per point of it."""
    remark(str(problem))


def interrupted() -> None:
    """Write that the user interrupted the command."""
    sys.stderr.write("\ntachograph: interrupted; the lake is consistent\n")


def remark(text: str) -> None:
    """Write one line, and one per point of the text, with `--quiet` too."""
    from tachograph.catalog.units import printable

    points = (printable(" ".join(point.split())) for point in redacted(text).split(BREAK))
    sys.stderr.write(f"tachograph: {BREAK.join(points)}\n")


def on_terminal() -> bool:
    """Return whether stderr, on which screens are drawn, is a terminal."""
    return sys.stderr.isatty()


@dataclass(frozen=True, slots=True)
class Narrator:
    """Writes progress on stderr; with `quiet` nothing."""

    quiet: bool = False
    no_color: bool = False

    @classmethod
    def of(cls, arguments: Namespace) -> Narrator:
        """Return the narrator for these options."""
        return cls(quiet=arguments.quiet, no_color=arguments.no_color)

    def say(self, remark: str, *, secret: bool = False) -> None:
        """Write one line. `secret`: it contains a secret for the reader, such as a login link."""
        from tachograph.catalog.units import printable

        if not self.quiet:
            sys.stderr.write(f"{printable(remark if secret else redacted(remark))}\n")

    @contextmanager
    def steps(self, *, logged: bool = False) -> Iterator[Callable[[str, int, int], None]]:
        """Show a progress bar; yields a function to call with (step, done, total).

        Off a terminal, such as in the log of a batch job, `logged` steps are a line each; others
        show nothing.
        """
        if self.quiet or not sys.stderr.isatty():
            yield (
                lambda doing, done, total: (
                    self.say(f"{doing} ({done + 1} of {total})") if logged else None
                )
            )
            return
        from rich.console import Console
        from rich.progress import Progress

        console = Console(file=sys.stderr, no_color=self.no_color or None)
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("")
            yield lambda doing, done, total: bar.update(
                task, description=_step(doing), completed=done, total=total
            )

    @contextmanager
    def progress(
        self, doing: str, *, total: float | None = None
    ) -> Iterator[Callable[[float], None]]:
        """Show a progress bar; yields a function to call with each amount done.

        Nothing is shown off a terminal.
        """
        if self.quiet or not sys.stderr.isatty():
            yield _ignore
            return
        from rich.console import Console
        from rich.progress import Progress

        console = Console(file=sys.stderr, no_color=self.no_color or None)
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(_step(doing), total=total)
            yield lambda amount: bar.advance(task, amount)


def _step(doing: str) -> str:
    """Return the name of a step, with brackets in file names escaped from styling."""
    from rich.markup import escape

    from tachograph.catalog.units import printable

    return escape(printable(doing))


def _ignore(amount: float) -> None:
    """No progress is shown."""
