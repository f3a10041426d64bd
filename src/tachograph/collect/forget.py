"""Forget a user outside the tables: state files, advice files, replaced lake files."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tachograph.catalog.config import Configuration
from tachograph.catalog.doors import annex_function
from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import LakeError
from tachograph.catalog.pseudonyms import REMOVED, NameReplacer
from tachograph.collect.lock import HOLDER_FILE, LOCK_FILE, CollectLock
from tachograph.collect.newest import clear_newest
from tachograph.collect.status import state_folder, utc_now
from tachograph.lake.delta import Lake
from tachograph.lake.forget import ForgottenTable, delete_replaced, file_has, files_with, forget
from tachograph.lake.store import is_remote


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Changes made, or planned.

    changed: files of state. deleted: files of advice. replaced: files of the lake that hold the
    name until they are vacuumed; None: they were not searched. others: files of the site that have
    the name and are not changed.
    """

    tables: list[ForgottenTable]
    changed: list[Path]
    deleted: list[Path]
    replaced: list[Path] | None
    others: list[Path]


def forget_user(
    lake: Lake,
    configuration: Configuration,
    name: str,
    stands: str | None,
    *,
    clock: Callable[[], datetime],
    dry_run: bool = False,
    at_once: bool = False,
) -> Forgotten:
    """Forget a user in a lake and its side files; `stands`: as in `lake.forget`.

    `at_once`: delete replaced files now. Neither a collector nor `tachograph act` may run. Errors:
    LakeError naming the process that does, or where something cannot be written; run it again then.
    """
    collecting = state_folder(lake.location, configuration.collect.state)
    lock = (
        nullcontext() if dry_run else CollectLock(collecting).held(now=utc_now(), pause=time.sleep)
    )
    replacer = NameReplacer({name: REMOVED if stands is None else stands})
    with lock:
        if not dry_run:
            clear_newest(collecting)  # of a collector that was killed
        tables = forget(lake, name, stands, dry_run=dry_run)
        own_files = [
            path for path in _files_below(collecting) if path.name not in (LOCK_FILE, HOLDER_FILE)
        ]
        changed = [path for path in own_files if file_has(path, name)]
        deleted = list(_advice(configuration.act.advice_folder, name))
        if not dry_run:
            for path in changed:
                with annex_function("held_file")(path, clock):
                    _rewrite(path, replacer)
            for path in deleted:
                path.unlink(missing_ok=True)
            if at_once:
                delete_replaced(lake)
    others = [
        path
        for path in _files_of_site(configuration)
        if path not in own_files and file_has(path, name)
    ]
    searched = not dry_run and not is_remote(lake.location)
    return Forgotten(tables, changed, deleted, files_with(lake, name) if searched else None, others)


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _files_of_site(configuration: Configuration) -> Iterator[Path]:
    """Files that the site writes or keeps."""
    mail, serve = configuration.mail, configuration.serve
    for name in (mail.addresses, serve.managers, serve.token_file, serve.access_log):
        if name and Path(name).is_file():
            yield Path(name)


def _advice(folder: str, name: str) -> Iterator[Path]:
    """Advice files of a user, or naming the user; recreated for their owners."""
    if not folder or not Path(folder).is_dir():
        return
    try:
        number = str(pwd.getpwnam(name).pw_uid)
    except KeyError:
        number = ""
    for path in sorted(Path(folder).iterdir()):
        if path.is_file() and (path.name == number or file_has(path, name)):
            yield path


def _rewrite(path: Path, replacer: NameReplacer) -> None:
    """Replace a file of text in one step; owner and permissions stay. Errors: LakeError."""
    written = path.with_name(f".{path.name}.forget")
    try:
        text = path.read_bytes().decode("utf-8", errors="surrogateescape")
        status = path.stat()
        with os.fdopen(
            os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
        ) as stream:
            stream.write(replacer.text(text).encode("utf-8", errors="surrogateescape"))
            os.fchmod(stream.fileno(), status.st_mode & 0o777)
            if os.geteuid() == 0:
                os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            stream.flush()
            os.fsync(stream.fileno())
        written.replace(path)
        sync_folder(path.parent)
    except OSError as problem:
        written.unlink(missing_ok=True)
        raise LakeError(
            f"cannot be changed: {problem.strerror}", where=str(path), do="run it again"
        ) from None
