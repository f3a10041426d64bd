"""What can go wrong, as one tree.

    TachographError                a user's mistake or a broken input: a line on stderr, no traceback
      UsageError         exit 2    the command line: an unknown option or value, options that do not fit together
        SeveralJobsError           a job id that several clusters have: names them
      ConfigError        exit 3    the configuration: names the file and the key
        ListenError                a server cannot listen: the address is taken or not permitted
      InputError         exit 4    a recording or an accounting file cannot be read: names file and place
        SchemaError                a table has unknown columns or wrong types: names them
        RefusedError               a value is none of its kind, or names more than it may: nothing was run or changed
      LakeError          exit 5    the lake is absent, damaged, not permitted, or the disk is full
      NotFoundError      exit 6    no such job, finding, column, figure, job group
        NotAnalyzedError           a job of the accounting without results yet
      ExportError        exit 7    the target of an export does not take it: a database, a file, a gateway
        UnreachableError           the target is down or overloaded: tried again for as long as it takes
      WorkersError       exit 8    workers of an analysis do not come, cannot be used, or die

Every message states what is wrong, where, and what to do.
Anything that is not a TachographError is a defect and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tachograph.catalog.secrets import redacted

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobRow


# {exit code of the program: what it means}; one per kind of mistake
EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "done",
        1: (
            "a defect, with its traceback; of `status`: the collector or a source is late or "
            "failing"
        ),
        2: "the command line: unknown command, option or value; options that do not fit together",
        3: "the configuration",
        4: "an input: a recording, an accounting file or a server's answer cannot be read",
        5: "the lake: absent, damaged, not analyzed, not permitted; a full disk",
        6: (
            "not found: no job, finding, column, figure or job group of that name, or no job to "
            "report (an empty list is 0)"
        ),
        7: "an export that its target rejects",
        8: "workers of an analysis: none started, or all died",
        130: "interrupted (Ctrl-C)",
        141: "the reader of stdout closed it (as in `| head`)",
    }
)

# Before each point of a message that has several; all other white space is shown as one space.
BREAK = "\n  - "


class TachographError(Exception):
    """Root of every error that is printed as one line, plus one line per point.

    Secrets are not in it: libraries and servers repeat what they were sent.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | Path = "", do: str = "") -> None:
        self.what = redacted(what)
        self.where = redacted(str(where))
        self.do = redacted(do)
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle it: without `__init__`, whose arguments differ by class."""
        return type(self).__new__, (type(self), str(self)), self.__dict__

    def __str__(self) -> str:
        """`where: what; do`, without unknown parts; in a message with points, `do` is last."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        if self.do and BREAK in head:
            return f"{head}{BREAK}what to do: {self.do}"
        return f"{head}; {self.do}" if self.do else head


class UsageError(TachographError):
    """An unknown option or value, or options that do not fit together."""

    exit_code = 2


class SeveralJobsError(UsageError):
    """A job id that exists on several clusters. `candidates`: (cluster, job_key) of latest runs."""

    def __init__(self, what: str, *, candidates: Sequence[tuple[str, str]]) -> None:
        super().__init__(what, do="name the cluster")
        self.candidates = tuple(candidates)


class ConfigError(TachographError):
    """The configuration file or an environment override is wrong."""

    exit_code = 3


class ListenError(ConfigError):
    """A server cannot listen: its address is taken or not permitted."""


class InputError(TachographError):
    """A recording or an accounting file cannot be read."""

    exit_code = 4


class SchemaError(InputError):
    """A table has unknown columns or wrong types."""


class RefusedError(InputError):
    """A value is invalid, or an action would hit something else: nothing was run or changed."""


class LakeError(TachographError):
    """The lake is absent, damaged, not permitted, or its disk is full."""

    exit_code = 5


class NotFoundError(TachographError):
    """No such job, finding, column, figure or job group."""

    exit_code = 6


class NotAnalyzedError(NotFoundError):
    """A job that is in the accounting and was not analyzed yet. `row`: of the table `jobs`."""

    def __init__(self, what: str, *, row: JobRow) -> None:
        super().__init__(what, do="run `tachograph analyze`")
        self.row = row


class ExportError(TachographError):
    """The target of an export does not take it: a database, a file, a gateway."""

    exit_code = 7


class UnreachableError(ExportError):
    """The target is down or overloaded; the same may succeed later."""


class WorkersError(TachographError):
    """Workers of an analysis do not come, cannot be used, or die."""

    exit_code = 8


def unreadable(problem: OSError, path: str | Path) -> InputError:
    """Return the error of a file that cannot be read."""
    return InputError(problem.strerror or str(problem), where=path, do="name a readable file")


_CURES = {
    errno.EACCES: "get permission to write there",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit of file sizes",
    errno.ENOENT: "create its folder",
    errno.ENOSPC: "free some space",
    errno.EPERM: "get permission to write there",
}


def cure_unwritable(problem: OSError, otherwise: str) -> str:
    """Return what to do about a place that cannot be written, `otherwise` as the last resort.

    >>> cure_unwritable(OSError(errno.ENOSPC, "No space left on device"), "name another with --to")
    'free some space, or name another with --to'
    >>> cure_unwritable(OSError(errno.EROFS, "Read-only file system"), "name another with --to")
    'name another with --to'
    """
    cure = _CURES.get(problem.errno or 0)
    return f"{cure}, or {otherwise}" if cure else otherwise
