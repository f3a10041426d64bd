"""Images of large lakes' jobs: cached, or made by a child process.

python -m tachograph.annexes.serve.images PARENT LAKE FOLDER
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from tachograph.annexes.serve.jobs import ResidentJobs
from tachograph.annexes.serve.resident import (
    NO_JOBS,
    Progress,
    open_image,
    remove_image,
    write_image,
)
from tachograph.catalog.durable import sync_file
from tachograph.catalog.errors import LakeError
from tachograph.catalog.processes import python_command
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES
from tachograph.collect.child import NICE, end_with_parent
from tachograph.lake.delta import Lake
from tachograph.lake.forget import FORGOTTEN

_WHOLE, _PART = "jobs-", "writing-"
_LOCK = "writer.lock"


class JobImages:
    """Images of a lake. cache: the user's folder, None: a temporary one."""

    def __init__(self, lake: Lake, cache: Path | None) -> None:
        self._lake = lake
        self._cache = cache
        self._writing: threading.Thread | None = None
        self.writer: subprocess.Popen[str] | None = None  # the newest process
        self.finished: ResidentJobs | None = None  # jobs of the image that was written last
        self.problem = ""  # of the last attempt to write one
        self.progress = 0.0  # of an image in progress

    @property
    def name(self) -> str:
        """The lake's folder in the cache; it changes after names were forgotten.

        Errors: LakeError.
        """
        return self._name_after(self.forgotten)

    @property
    def forgotten(self) -> int:
        """Number of times names were forgotten; older cached rows are invalid."""
        return self._lake.mark(JOB_SUMMARIES, FORGOTTEN) or 0

    def _name_after(self, forgotten: int) -> str:
        delta = self._lake.delta(JOB_SUMMARIES)
        name = (
            f"{self._lake.location} {'' if delta is None else delta.metadata().id} "
            f"{forgotten or ''}"
        ).rstrip(" ")
        return hashlib.sha256(name.encode()).hexdigest()[:16]

    def remove_forgotten(self) -> int:
        """Remove images older than the last forgotten name; return their number. Errors:
        LakeError.
        """
        names = [self._name_after(before) for before in range(self.forgotten)]
        removed = 0
        for base, name in product(self._bases(), names):
            if (base / name).is_dir():
                shutil.rmtree(base / name, ignore_errors=True)
                removed += 1
        return removed

    def _bases(self) -> list[Path]:
        """Folders of images, the first that can be used is."""
        temporary = Path(tempfile.gettempdir(), f"tachograph-{os.geteuid()}")
        return [temporary] if self._cache is None else [self._cache, temporary]

    @property
    def is_writing(self) -> bool:
        """Whether an image is being written."""
        return self._writing is not None and self._writing.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the image that is being written is there, at most so long."""
        if self._writing is not None:
            self._writing.join(timeout_s)

    def open(self) -> ResidentJobs:
        """Return the jobs of the newest complete image; None without one."""
        with contextlib.suppress(OSError, LakeError):
            folder = self._folder()
            for image in sorted(
                folder.glob(f"{_WHOLE}*"), key=lambda path: path.stat().st_mtime, reverse=True
            ):
                jobs = open_image(image)
                if jobs is not None:
                    return jobs
        return NO_JOBS

    def write(self) -> None:
        """Begin to write an image of the present lake, unless one is in progress."""
        if self.is_writing:
            return
        self.progress, self.problem = 0.0, ""
        self._writing = threading.Thread(target=self._write, name="image", daemon=True)
        self._writing.start()

    def close(self) -> None:
        """End the writer; what it has written is removed."""
        if self.writer is not None:
            self.writer.kill()
            self.join()

    def _write(self) -> None:
        try:
            folder, forgotten = self._folder(), self.forgotten
            command = python_command(__name__, str(os.getpid()), self._lake.location, str(folder))
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                self.writer = process
                for line in process.stdout:
                    self.progress = float(line)
                self.problem = "\n".join(process.stderr.read().splitlines()[-1:])
            if process.returncode:
                _remove_parts(folder, of=process.pid)
            stale = process.returncode or self.forgotten != forgotten
            self.finished = None if stale else self.open()
            self.problem = self.problem if process.returncode else ""
        except (OSError, LakeError) as problem:
            self.problem = str(problem)

    def _folder(self) -> Path:
        """Folder of this lake, readable by this user only: it has all users' jobs. Errors:
        OSError.
        """
        bases = self._bases()
        for base in bases:
            folder = base / self.name
            with contextlib.suppress(OSError):
                base.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                if _is_own(base, 0o022) and _is_own(folder, 0o077):
                    return folder
        raise PermissionError(f"no writable, private folder for rows of jobs: {bases[-1]}")


def write_beside(lake: Lake, folder: Path, progress: Progress) -> None:
    """Write an image into a folder, and remove those that were there once it is whole.

    Of several processes one writes; the others wait for its image, and write none.

    Errors: LakeError where the lake cannot be read; OSError where the folder cannot be written.
    """
    images = set(folder.glob(f"{_WHOLE}*"))
    with _lock(folder):
        if set(folder.glob(f"{_WHOLE}*")) - images:
            return
        _remove_parts(folder)
        part = Path(tempfile.mkdtemp(prefix=f"{_PART}{os.getpid()}-", dir=folder))
        whole = part.with_name(part.name.replace(_PART, _WHOLE))
        try:
            write_image(lake, lake.files(JOB_SUMMARIES), lake.files(FINDINGS), part, progress)
            for file in part.iterdir():
                sync_file(file)
            part.rename(whole)
        finally:
            remove_image(part)
        for old in images:
            remove_image(old)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder's writer. A file system without locks has none."""
    with (folder / _LOCK).open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_parts(folder: Path, *, of: int | None = None) -> None:
    """Remove what writers left that were killed: the one with the process id `of`, or all."""
    for part in folder.glob(f"{_PART}*"):
        pid = part.name.removeprefix(_PART).split("-")[0]
        if pid == str(of) or (of is None and not _is_alive(pid)):
            remove_image(part)


def _is_own(folder: Path, others: int) -> bool:
    """Return whether a folder, not a link, belongs to this user and denies others `others`."""
    about = folder.lstat()
    return (
        stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & others
    )


def _is_alive(pid: str) -> bool:
    """Whether a process of this number runs."""
    with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
        os.kill(int(pid), 0)
        return True
    return False


def _report(share: float) -> None:
    os.write(1, f"{share}\n".encode())


def main(argv: Sequence[str]) -> None:
    """Write an image: arguments are the parent's process id, the lake, the folder."""
    end_with_parent(int(argv[0]))
    os.nice(NICE)
    try:
        write_beside(Lake.open(argv[1]), Path(argv[2]), _report)
    except (OSError, LakeError) as problem:
        sys.exit(str(problem))


def remove_forgotten_images(lake: Lake, cache: Path | None) -> int:
    """Remove images in a cache that were made before a user was forgotten; return how many."""
    return JobImages(lake, cache).remove_forgotten()


if __name__ == "__main__":
    main(sys.argv[1:])
