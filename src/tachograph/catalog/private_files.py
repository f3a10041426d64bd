"""Protect the program from foreign code: no module or setting from the working directory.

Some libraries read settings from the folder they are started in, which may be a stranger's; numba's
name the folder of compiled functions, which it runs. They are imported as if the working directory
were empty.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from threading import RLock, get_ident
from types import MappingProxyType, ModuleType

from tachograph.catalog.durable import make_folder
from tachograph.catalog.errors import ConfigError

# {module that reads a file of the working directory when it is imported: its variable that names a
# file to read later}
READERS: Mapping[str, str] = MappingProxyType(
    {"numba.core.config": "_config_fname", "matplotlib": ""}
)
_hiding = RLock()


class _Loader(SourceFileLoader):
    """Runs a module for which no relative path exists."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and let it read no file of the working directory later."""
        with _no_relative_path_exists():
            super().exec_module(module)
        if variable := READERS[module.__name__]:
            setattr(module, variable, os.devnull)


class _Finder:
    """Finds the modules of READERS."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of READERS is loaded; None for others."""
        if fullname not in READERS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


@contextmanager
def _no_relative_path_exists() -> Iterator[None]:
    """Inside the block, make `os.path.exists` false for relative paths, in this thread only.

    To change the working directory meanwhile would change it for them, too.
    """
    thread = get_ident()
    with _hiding:
        exists = os.path.exists

        def exists_elsewhere(path: int | str | bytes | os.PathLike[str]) -> bool:
            relative = not isinstance(path, int) and not os.fsdecode(path).startswith(os.sep)
            return not (relative and get_ident() == thread) and exists(path)

        os.path.exists = exists_elsewhere  # type: ignore[assignment]
        try:
            yield
        finally:
            os.path.exists = exists


def ignore_working_directory() -> None:
    """Have the modules of READERS imported as if the working directory were empty, from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the cache folder of the service manager or of the user; None if there is none.

    >>> cache_folder({"CACHE_DIRECTORY": "/var/cache/tachograph"}), cache_folder({"XDG_CACHE_HOME": "/srv/ann"})
    (PosixPath('/var/cache/tachograph'), PosixPath('/srv/ann/tachograph'))

    A relative path would be of the working directory, and counts as none.
    """
    if environment.get("CACHE_DIRECTORY"):
        return Path(environment["CACHE_DIRECTORY"].split(":")[0])
    bases = (
        Path(environment.get("XDG_CACHE_HOME", "")),
        Path(environment.get("HOME", ""), ".cache"),
    )
    return next((base / "tachograph" for base in bases if base.is_absolute()), None)


def compiled_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of compiled functions, or None: $NUMBA_CACHE_DIR or `cache_folder`."""
    named = environment.get("NUMBA_CACHE_DIR")
    base = cache_folder(environment)
    if named:
        return Path(named)
    return None if base is None else base / "compiled"


def why_not_private(folder: Path) -> str:
    """Return who else could write code into a folder; "" if only this user can.

    It and all above it must belong to this user or to root, and let no one else write; above it a
    sticky folder, such as /tmp, may. The group that some systems make for each user is nobody else.
    Links are followed: what they lead to counts.
    """
    whole = folder.resolve()
    trusted = _trusted_owners()
    for path in (whole, *whole.parents):
        try:
            status = path.stat()
        except OSError:  # not there yet
            continue
        if status.st_uid not in trusted or (path == whole and status.st_uid != os.geteuid()):
            return f"{path} belongs to {_name(status.st_uid)}"
        sticky = path != whole and status.st_mode & stat.S_ISVTX
        others_write = stat.S_IWOTH if _is_own_group(status.st_gid) else stat.S_IWOTH | stat.S_IWGRP
        if status.st_mode & others_write and not sticky:
            return f"other users may write into {path}"
    return ""


def private_folder(folder: Path) -> Path | None:
    """Return a folder that only this user can write, created if missing; None if impossible."""
    if why_not_private(folder):
        return None
    whole = folder.resolve()
    try:
        make_folder(whole, mode=0o700)
    except OSError:
        return None
    return None if why_not_private(whole) or not os.access(whole, os.W_OK) else whole


def refuse_foreign_configuration(file: Path) -> None:
    """Refuse a configuration in the working directory that belongs to another user.

    Raises ConfigError unless it belongs to this user or to root.
    """
    try:
        owner = file.stat().st_uid
    except OSError:
        return  # who reads it reports that
    if owner not in _trusted_owners():
        what = f"it belongs to {_name(owner)}, and a configuration names programs to run"
        raise ConfigError(
            what, where=file.name, do=f"if you trust it, name it: --config {file.name}"
        )


def _is_own_group(gid: int) -> bool:
    """Return whether a group is private to this user: same name, no other members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        user.pw_gid == gid
        and group.gr_name == user.pw_name
        and not {*group.gr_mem} - {user.pw_name}
    )


def _trusted_owners() -> set[int]:
    return {0, os.geteuid()} | _unmapped_owners()


def _unmapped_owners() -> set[int]:
    """Return the uid that stands for the host's root in a user namespace without it."""
    try:
        mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        owner = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return set()
    return set() if mapped[2:3] == [str(2**32 - 1)] else {owner}


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


ignore_working_directory()
