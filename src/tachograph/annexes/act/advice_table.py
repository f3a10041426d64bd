"""The table of advice that `sbatch` reads: a small file per user, written anew after each analysis.

Its reader is contrib/slurm/cli_filter.lua, which knows nothing of the lake. A file, called as the
user's number:

    tachograph-advice 1 SECONDS-SINCE-1970
    NAME <tab> PARTITION <tab> GPUS <tab> QUANTITY <tab> VALUE <tab> TEXT
    end NUMBER-OF-ROWS

NAME is that of a job, its pattern (see name_pattern), or `*`; PARTITION a name or `*`, GPUS a
number or `*`. TEXT is shown where more than VALUE is requested of QUANTITY (`gpus`, `time` in s,
`mem` in MiB of a node), or for `any` always. Of the rows that match a submission, those with the
first three columns of the first one are used. A file that has not been written for two weeks is not
used: the service is down.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import polars as pl

from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.api.advice import read_past_jobs, read_site
from tachograph.catalog.config import AdviceOptions, Configuration
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import ExportError
from tachograph.catalog.units import plural, printable
from tachograph.judge.advice.advise import AdviceLine, SiteFacts, advise
from tachograph.judge.advice.past_jobs import History, PastJob
from tachograph.judge.advice.request import JobRequest, name_pattern
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_summaries
from tachograph.report.advice import advice_sentence

BEGIN = "tachograph-advice 1"
MOST_BYTES = 65536  # of a file, as in cli_filter.lua
MOST_TEXT = 200  # characters of a line
MOST_LINES = 3  # of a row
# After so long the files of all users are written, not only those with new jobs.
ALL_AGAIN = timedelta(days=7)
STATE_FILE = ".analyzed"
KIND = "advice"
_OF_USER = 200  # names of jobs, the last ones
_USERS = 200  # whose jobs are read at a time

Quantity = Literal["gpus", "time", "mem", "any"]
_QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {"gpus": "gpus", "time": "time", "host_memory": "mem"}
)


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line for who requests more than `value` of `quantity`: GPUs, seconds, MiB of a node."""

    text: str
    quantity: Quantity = "any"
    value: int = 0


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """At most three lines for jobs of a user.

    name: of the job, its pattern, or `*`. partition: `*` for every one. gpus: requested ones, None
    for any number. The order of a user's rows is that in which they are tried.
    """

    user: str
    name: str
    partition: str
    lines: tuple[ShownLine, ...]
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenAdvice:
    """Result of writing users' files. unknown: users without an account; refused: no permission."""

    written: int
    removed: int
    unknown: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------------------------- the files


def write_advice(
    folder: Path,
    rows: Iterable[AdviceRow],
    *,
    now: datetime,
    users: Collection[str] | None = None,
    user_number: Callable[[str], int | None] | None = None,
) -> WrittenAdvice:
    """Write a file per user with rows, and remove files of users without.

    Each belongs to its user and no other user can read it: names of jobs are private. Owners are
    set by root, or who has CAP_CHOWN; anybody else writes their own file alone. Readers see the old
    or the new file. Errors: ExportError.
    """
    of_user: dict[str, list[AdviceRow]] = defaultdict(list)
    for row in rows:
        of_user[row.user].append(row)
    number_of = user_number or _user_number
    written, unknown, refused = set(), [], []
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o711)  # whatever the umask: users find their own file and see no other
        for user, theirs in sorted(of_user.items()):
            number = number_of(user)
            if number is None:
                unknown.append(user)
                continue
            if not _replace(folder / str(number), advice_file(theirs, now=now), number):
                refused.append(user)
                continue
            written.add(str(number))
        among = (
            None
            if users is None
            else {str(number) for number in map(number_of, users) if number is not None}
        )
        removed = _remove_others(folder, written, among)
    except OSError as problem:
        where, do = str(problem.filename or folder), "choose another folder with act.advice_folder"
        raise ExportError(
            f"advice cannot be written: {problem.strerror}", where=where, do=do
        ) from None
    return WrittenAdvice(len(written), removed, tuple(unknown), tuple(refused))


def advice_file(rows: Sequence[AdviceRow], *, now: datetime) -> str:
    r"""Return a user's file, without the last rows if it would exceed MOST_BYTES.

    >>> from datetime import UTC
    >>> row = AdviceRow("ann", "train", "gpu", (ShownLine("request one GPU", "gpus", 1),))
    >>> advice_file([row], now=datetime(2026, 11, 23, tzinfo=UTC))
    'tachograph-advice 1 1795392000\ntrain\tgpu\t*\tgpus\t1\trequest one GPU\nend 1\n'
    """
    lines, size = [], len(BEGIN) + 40
    for row in rows:
        if not row.lines or not _is_word(row.name) or not _is_word(row.partition):
            continue
        key = f"{row.name}\t{row.partition}\t{'*' if row.gpus is None else row.gpus}"
        group = [
            f"{key}\t{line.quantity}\t{line.value}\t{printable(line.text)[:MOST_TEXT]}"
            for line in row.lines[:MOST_LINES]
        ]
        size += sum(len(line.encode()) + 1 for line in group)
        if size > MOST_BYTES:
            break
        lines += group
    return "\n".join([f"{BEGIN} {int(now.timestamp())}", *lines, f"end {len(lines)}", ""])


def _is_word(name: str) -> bool:
    """Whether it can stand in a file: names with control characters cannot."""
    return bool(name) and name.isprintable()


def _replace(file: Path, content: str, owner: int) -> bool:
    """Replace the old file; return whether the owner could be set."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o400)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(descriptor, 0o400)
            if os.geteuid() != owner:
                os.fchown(descriptor, owner, -1)
            os.fsync(descriptor)
        fresh.replace(file)  # the folder is synced with the state, which is written last
    except PermissionError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


def _remove_others(folder: Path, kept: set[str], among: set[str] | None) -> int:
    """Remove files of users without rows, and leftovers of killed processes."""
    removed = 0
    for entry in os.scandir(folder):
        number = entry.name.removeprefix(".").removesuffix(".new")
        if among is not None and entry.name == number and number not in among:
            continue
        if (
            number.isdecimal()
            and entry.name not in kept
            and stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
        ):
            with suppress(FileNotFoundError):
                Path(entry.path).unlink()
            removed += entry.name == number
    return removed


def _user_number(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # unknown, or with a null character
        return None


# ------------------------------------------------------------------------------------------------- rows, from past jobs


def advise_users(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
) -> list[ActionRecord]:
    """Write the files, if enabled; return the ledger line: one a day, and one of each failure.

    Errors: those of `refresh_advice`.
    """
    folder = configuration.act.advice_folder
    if not folder:
        return []
    key = f"advice:{now.date().isoformat()}"
    if configuration.act.dry_run:
        return [ledger.once(key, KIND, str, target=folder, dry_run=True)]
    return note_advice(ledger, key, folder, refresh_advice(lake, configuration, as_of=now, now=now))


def note_advice(
    ledger: ActionLedger, key: str, folder: str, written: WrittenAdvice
) -> list[ActionRecord]:
    """Note that the files were written; return the line, none if the day has one already."""
    last = ledger.last(key)
    changed = written.written or written.removed or written.refused
    if last is not None and last.state == "done" and not changed:
        return []
    result = (
        f"{written.written:,} written, {written.removed:,} removed, "
        f"{len(written.refused):,} refused"
    )
    if not written.refused:
        return [ledger.note(key, KIND, "done", folder, result=result)]
    result += ": only root, or a process with CAP_CHOWN, can write files for other users"
    return [ledger.note(key, KIND, "failed", folder, result=result)]


def refresh_advice(
    lake: Lake, configuration: Configuration, *, as_of: datetime, now: datetime
) -> WrittenAdvice:
    """Write the files of users with newly analyzed jobs; of all users once a week.

    as_of: up to when jobs count. Errors: those of write_advice, LakeError.
    """
    folder, options = Path(configuration.act.advice_folder), configuration.advice
    since = as_of - timedelta(days=options.days)
    jobs = read_summaries(lake, ("job_key", "seq", "user", "end")).drop_nulls(["user", "end"])
    last, complete = _read_state(folder)
    everybody = now.timestamp() - complete > ALL_AGAIN.total_seconds()
    users = (
        (jobs if everybody else jobs.filter(pl.col("seq") > last))
        .get_column("user")
        .unique()
        .sort()
        .to_list()
    )
    site = read_site(lake, configuration)
    rows: list[AdviceRow] = []
    for first in range(0, len(users), _USERS):
        of_users = JobFilter(users=tuple(users[first : first + _USERS]), since=since)
        past = read_past_jobs(lake, configuration, of_users, site)
        rows += rows_of_past_jobs(past, site, options, as_of=as_of)
    written = write_advice(folder, rows, now=now, users=None if everybody else users)
    newest = max([last, *jobs.get_column("seq").to_list()])
    _write_state(folder, newest, now.timestamp() if everybody else complete)
    return written


def rows_of_past_jobs(
    jobs: Sequence[PastJob], site: SiteFacts, options: AdviceOptions, *, as_of: datetime
) -> list[AdviceRow]:
    """Return advice for the last job of each (user, name, partition, number of GPUs).

    Only lines whose evidence suffices. Names come first, then their patterns in any partition;
    newest first.
    """
    history = History.of(jobs, options)
    named: dict[str, dict[tuple[object, ...], JobRequest]] = defaultdict(dict)
    alike: dict[str, dict[tuple[object, ...], JobRequest]] = defaultdict(dict)
    for job in sorted(jobs, key=lambda job: (job.end, job.key), reverse=True):
        pattern = name_pattern(job.name)
        named[job.user].setdefault((job.name, job.partition, job.gpus), job.request)
        alike[job.user].setdefault(
            (pattern, job.gpus), replace(job.request, name=pattern, partition=None)
        )
    rows = []
    for user, requests in named.items():
        for request in [*[*requests.values()][:_OF_USER], *[*alike[user].values()][:_OF_USER]]:
            advice = advise(request, history, as_of.timestamp(), site, options, brief=True)
            lines = tuple(_shown(line) for line in advice.lines if line.followed)
            if lines and request.name:
                rows.append(
                    AdviceRow(user, request.name, request.partition or "*", lines, request.gpus)
                )
    return rows


def _shown(line: AdviceLine) -> ShownLine:
    option = f"{line.option}: " if line.option else ""
    message = f"{option}{advice_sentence(line)} ({line.runs} of {plural(line.of, 'run')})"
    quantity = _QUANTITIES.get(line.topic, "any")
    return ShownLine(message, quantity, 0 if quantity == "any" else int(line.value or 0))


def _read_state(folder: Path) -> tuple[int, float]:
    """Number of the last analysis, and time when all files were written; 0: unknown."""
    with suppress(OSError, ValueError):
        last, complete = (folder / STATE_FILE).read_text(encoding="ascii").split()
        return int(last), float(complete)
    return 0, 0.0


def _write_state(folder: Path, last: int, complete: float) -> None:
    state = folder / STATE_FILE
    try:
        replace_file(state, f"{last} {complete:.0f}\n".encode(), mode=0o644)
    except OSError as problem:
        raise ExportError(
            f"cannot be written: {problem.strerror}", where=str(state), do="see its folder"
        ) from None
