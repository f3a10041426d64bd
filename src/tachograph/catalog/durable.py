"""Files that survive a power cut: complete or absent, and in the order they were written.

Until `fsync` a file system may write names and contents in any order: after a power cut a new name
may be gone, or lead to an empty file, also behind a rename (ext4: delayed allocation). So contents
are synced before their name is made, and the folder before success is reported. Permissions follow
the folder: what others may not enter or read there they may not read in a file of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MOST = 0o664  # of a file: no folder makes it writable for everyone


def sync_file(path: Path, *, mode: int | None = None) -> None:
    """Sync a file to the disk. `mode`: its new permissions. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if mode is not None:
            set_mode(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """Set the permissions of an open file, where it is one's own and its file system has any."""
    if os.fstat(descriptor).st_mode & 0o777 != mode:
        with suppress(PermissionError):
            os.fchmod(descriptor, mode)


def sync_folder(path: Path) -> None:
    """Return once the names in a folder are on the disk. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, *, mode: int | None = None) -> None:
    """Create a folder and its missing parents, synced to the disk. Errors: OSError.

    `mode`: permissions of a new one; None: those of the folder above.
    """
    if path.is_dir():
        return
    above = path.parent
    make_folder(above, mode=mode)
    permissions = above.stat().st_mode & 0o777 if mode is None else mode
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # created by another process meanwhile; or a file has this name
        if not path.is_dir():
            raise
    else:
        path.chmod(
            permissions | path.stat().st_mode & 0o7000
        )  # the group bit that is inherited stays
        sync_folder(path)
    sync_folder(above)


def mode_within(folder: Path) -> int:
    """Return the permissions of a file in a folder: the folder's, without x and w for others."""
    return folder.stat().st_mode & _MOST


def write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write or replace a file, with its content (not its name) synced. Errors: OSError."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        set_mode(stream.fileno(), mode)
        os.fsync(stream.fileno())


def replace_file(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a file atomically, synced to the disk; readers see the old or the new one.

    `mode`: its permissions; None: those of `mode_within` its folder.
    Errors: OSError; then the older one is still there.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_new(partial, content, mode=mode_within(path.parent) if mode is None else mode)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def publish_file(written: Path, path: Path) -> None:
    """Rename a written and closed file to its final name, synced to the disk. Errors: OSError."""
    sync_file(written, mode=mode_within(path.parent))
    written.replace(path)
    sync_folder(path.parent)


def create_file(path: Path, content: bytes, *, staged: Path) -> bool:
    """Write a file under a new name, completely or not at all; False if the name exists.

    `staged`: a name on the same disk that the file has before. Errors: OSError.
    """
    try:
        write_new(staged, content, mode=mode_within(path.parent))
        try:
            os.link(staged, path)
        except FileExistsError:
            return False
    finally:
        with suppress(OSError):
            staged.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True
