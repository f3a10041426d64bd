"""Interface of the pages that annexes and site packages add to the served pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import polars as pl

from tachograph.api.open_lake import OpenLake
from tachograph.api.parameters import JobChoiceParameters, Parameters
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.config import Configuration

T = TypeVar("T")
A = ParamSpec("A")
C = TypeVar("C", bound=JobChoiceParameters)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PageEntry:
    """A page: its path, the name of its template, its title, the least role that opens it.

    menu: heading in the menu; "" for a page that is reached by links. writes: the least role that
    may send its form; None for a page without. module: where the page is made, named whole; "" for
    a page of the server itself. Templates are looked for in the folder `templates` beside it.
    """

    path: str
    name: str
    title: str
    least: Role
    menu: str = ""
    writes: Role | None = None
    module: str = ""

    @property
    def methods(self) -> list[str]:
        """HTTP methods of the page."""
        return ["GET"] if self.writes is None else ["GET", "POST"]


@dataclass(frozen=True, slots=True)
class Document:
    """A file that is served: its bytes, their type, headers such as for caches."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200

    @classmethod
    def elsewhere(cls, address: str) -> Document:
        """Return the way to another page, whose address is relative to this one."""
        return cls(b"", "text/plain", {"Location": address}, 303)


@dataclass(slots=True)
class Pending:
    """A report in progress: its current step; `done` of `total` steps are complete, 0: unknown."""

    doing: str = ""
    done: int = 0
    total: int = 0

    def note(self, doing: str, done: int, total: int) -> None:
        """Note the progress."""
        self.doing, self.done, self.total = doing, done, total


class PageView(Protocol):
    """A viewer's view of one lake version, as pages get it."""

    @property
    def viewer(self) -> Viewer:
        """The viewer."""
        ...

    @property
    def version(self) -> object:
        """Version of the lake; its text identifies everything derived from it."""
        ...

    @property
    def opened(self) -> OpenLake:
        """The lake as in notebooks, restricted to visible jobs."""
        ...

    @property
    def jobs(self) -> Sized:
        """The visible jobs."""
        ...

    @property
    def configuration(self) -> Configuration:
        """Configuration of the service."""
        ...

    @property
    def now(self) -> datetime:
        """The time from which pages look back: the clock's, or that of a lake that ended."""
        ...

    @property
    def clock(self) -> datetime:
        """When the request came, UTC."""
        ...

    @property
    def zone_name(self) -> str:
        """The zone of shown times."""
        ...

    def made(
        self,
        function: Callable[Concatenate[PageView, Progress, A], T],
        *arguments: A.args,
        **named: A.kwargs,
    ) -> T | Pending:
        """Return a module function's result on this view, computed once per version by a worker.

        Returns Pending while it is being computed.
        """
        ...

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return the server's shared object `name`, created at first use, closed with the
        server.
        """
        ...

    def of_recent(self, parameters: C) -> C:
        """Return the job filter; without a time and with many jobs, limited to the newest 30
        days.
        """
        ...

    def running(self) -> pl.DataFrame:
        """Return the visible running jobs under each name that live sources use.

        Each has its cluster, name, user, account and partition, and whether several clusters have a
        job of the name.
        """
        ...


class PageModule(Protocol):
    """Interface of a page's module; FORM and `submit` only of pages that write."""

    PARAMETERS: type[Parameters]
    FORM: type[Parameters]

    def content(self, view: Any, parameters: Any) -> Mapping[str, Any] | Document:
        """Return the values of the template, or a file; `view` is a PageView.

        Errors: TachographError, shown as a page with its status.
        """
        ...

    def submit(self, view: Any, form: Any) -> str:
        """Execute the submitted form; return the query of the page to show next.

        Errors: TachographError.
        """
        ...
