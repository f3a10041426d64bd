"""Grammar of command-line values by kind, as in Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from tachograph.catalog.errors import RefusedError
from tachograph.catalog.units import printable

# {kind of a value: its pattern}; a new kind is one more row
GRAMMAR: Final[Mapping[str, re.Pattern[str]]] = {
    "cluster": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}"),
    # a single node: Slurm reads brackets, commas, ALL and NONE as several, or as none
    "node": re.compile(r"(?!(?i:all|none)\Z)[A-Za-z0-9][A-Za-z0-9_.-]{0,254}"),
    # a job, a task of an array, a component of a heterogeneous job; never a step or a list
    "job": re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,10}|\+[0-9]{1,4})?"),
    "comment": re.compile(r"[A-Za-z0-9]+:[A-Za-z0-9+/=]+"),
    "reason": re.compile(r"[A-Za-z0-9][A-Za-z0-9_@%+=:,./ -]{0,254}"),
}
# no character of these is read by a shell; \x1f is a delimiter that is never typed
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\x1f-]*")
_VALUE = re.compile(r"\{([a-z_]+)\}")


def fill_in(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the words with `{kind}` replaced by the value of that kind.

    Raises RefusedError for a value that its kind does not have, and for a word that a shell could
    read.

    >>> fill_in(["suspend", "{job}"], {"job": "4711_3"})
    ['suspend', '4711_3']
    """
    return [_fill_in_word(word, values) for word in words]


def _fill_in_word(word: str, values: Mapping[str, str]) -> str:
    if _PLAIN.fullmatch(_VALUE.sub("", word)) is None:
        raise RefusedError(
            f"invalid word of a command: {printable(word, most=60)!r}; nothing was run"
        )
    return _VALUE.sub(lambda match: _checked(match[1], values[match[1]]), word)


def _checked(kind: str, value: str) -> str:
    if GRAMMAR[kind].fullmatch(value) is None:
        raise RefusedError(f"invalid {kind}: {printable(value, most=60)!r}; nothing was run")
    return value


def is_remote(before: Sequence[str]) -> bool:
    """Return whether these words hand a command over to ssh, which joins it for a shell.

    >>> is_remote(["sudo", "/usr/bin/ssh", "login"]), is_remote(["sudo"])
    (True, False)
    """
    return any(PurePosixPath(word).name == "ssh" for word in before)
