"""Settings of the job classes as a configuration that can be read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tachograph.catalog.config import ClassOptions
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import UsageError


def to_toml(settings: ClassOptions, comments: Sequence[str] = ()) -> str:
    """Return the section [classes] with every value of `settings`, headed by comments.

    Read back by `tachograph.catalog.config` it gives exactly these values.

    >>> to_toml(ClassOptions(theta={"power": 0.03}), ["from labels"]).splitlines()[:3]
    ['# from labels', '[classes]', '']
    """
    lines = []
    for comment in comments:
        lines += [f"# {line}".rstrip() for line in comment.splitlines()]
    lines.append("[classes]")
    for key in ("theta", "level", "busy"):
        lines += _table(
            key, {name: repr(float(value)) for name, value in getattr(settings, key).items()}
        )
    lines += _table(
        "characteristics",
        {code: json.dumps(names) for code, names in settings.characteristics.items()},
    )
    return "\n".join(lines) + "\n"


def _table(key: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        yield ""
        yield f"[classes.{key}]"
        for name in sorted(values):
            yield f"{name} = {values[name]}"


def check_target(path: str | Path) -> None:
    """Raise UsageError if the file cannot be written, or was not written by `tune`."""
    file = Path(path)
    try:
        head = file.read_bytes()[:200]
    except FileNotFoundError:
        if os.access(file.parent, os.W_OK):
            return
        what = "its folder does not exist, or cannot be written into"
        raise UsageError(what, where=str(file), do="name another file") from None
    except OSError as problem:
        what = problem.strerror or str(problem)
        raise UsageError(what, where=str(file), do="name another file") from None
    if head and b"by `tachograph lab tune" not in head.split(b"\n")[0]:
        raise UsageError(
            "exists, and tune did not write it", where=str(file), do="name a new file, or remove it"
        )


def write(path: str | Path, text: str) -> None:
    """Write a configuration whole or not at all. Errors: UsageError where it cannot be written."""
    try:
        replace_file(Path(path), text.encode())
    except OSError as problem:
        raise UsageError(
            problem.strerror or str(problem), where=str(path), do="name a file that can be written"
        ) from None
