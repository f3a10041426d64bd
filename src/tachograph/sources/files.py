"""Files as sources find them: opened with errors that say what to do, and known by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tachograph.errors import InputError


def expand(paths: Iterable[str | Path], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files named, and those with one of `suffixes` inside the folders named, in order of name.

    Errors: InputError for a path that does not exist, or a folder without such files.
    """
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(suffixes))
            if not found:
                raise InputError(f"no file ending in {', '.join(suffixes)}", where=str(path), do="name the files")
            yield from found
        elif path.exists():
            yield path
        else:
            raise InputError("no such file", where=str(path), do="check the name")


def fingerprint(path: Path, *parts: str) -> str:
    """Return the SHA-256 of the content and of `parts` (options that change what is read), as 32 hex digits.

    Errors: InputError when the file cannot be read or is empty.
    """
    digest = hashlib.sha256("\0".join(parts).encode())
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
            if file.tell() == 0:
                raise InputError("the file is empty", where=str(path), do="export it again")
    except OSError as problem:
        raise InputError(problem.strerror or str(problem), where=str(path), do="name a readable file") from None
    return digest.hexdigest()[:32]


def read_bytes(path: Path) -> bytes:
    """Return the content.

    Errors: InputError when the file cannot be read or is empty.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise InputError(problem.strerror or str(problem), where=str(path), do="name a readable file") from None
    if not content:
        raise InputError("the file is empty", where=str(path), do="export it again")
    return content
