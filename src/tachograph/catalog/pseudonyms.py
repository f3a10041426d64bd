"""Pseudonyms: stable replacements of names under a secret key, and their replacement in text.

A pseudonym is a kind and the first 80 bits of HMAC-SHA256(key, kind, name), RFC 2104: without the
key it can neither be computed from a name nor be undone by trying all names. Who has the key can do
both; names that were replaced for good are listed in a file beside the key, and each line is
checked against its pseudonym when it is read.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from tachograph.catalog.config import read_secret
from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import ConfigError, UsageError

PseudonymKind = Literal["user", "account", "job", "node"]
KINDS: tuple[PseudonymKind, ...] = ("user", "account", "job", "node")
REMOVED = "removed"  # stands for a name where nothing shall
NAMES_SUFFIX = ".names"  # of the file beside a key
_LEAST_BYTES, _BYTES = 32, 10  # of a key, of a pseudonym
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class PseudonymKey:
    """A secret key and the file that holds it."""

    secret: bytes = field(repr=False)
    file: Path

    @classmethod
    def read(cls, file: str) -> PseudonymKey:
        """Return the key in a file.

        Errors: ConfigError if it is unreadable, too short, or readable by others.
        """
        secret = read_secret(file, "the pseudonym key").strip()
        if len(secret) < _LEAST_BYTES:
            what = f"the pseudonym key has {len(secret)} bytes, fewer than {_LEAST_BYTES}"
            raise ConfigError(
                what, where=file, do="create one with `tachograph lake forget --new-key FILE`"
            )
        return cls(secret, Path(file))

    @classmethod
    def create(cls, file: str) -> PseudonymKey:
        """Return a new key, written to a new private file. Errors: UsageError if it exists."""
        secret = secrets.token_hex(_LEAST_BYTES).encode()
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(secret + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            sync_folder(Path(file).parent)
        except OSError as problem:
            raise UsageError(
                f"{file}: {problem.strerror}", do="name a new file for the key"
            ) from None
        return cls(secret, Path(file))

    def pseudonym(self, kind: PseudonymKind, name: str) -> str:
        """Return the pseudonym of a name.

        >>> PseudonymKey(b"0" * 32, Path("key")).pseudonym("user", "ann")
        'user-6qapuzkkssd3w5nl'
        """
        digest = hmac.digest(self.secret, f"{kind}\0{name}".encode(), "sha256")
        return f"{kind}-{base64.b32encode(digest[:_BYTES]).decode().lower()}"

    @property
    def names_file(self) -> Path:
        """The file of names that were replaced for good: lines of a pseudonym and a name."""
        return self.file.with_name(self.file.name + NAMES_SUFFIX)

    def remember(self, kind: PseudonymKind, name: str) -> None:
        """Append a name to the file beside the key, durably. Errors: ConfigError."""
        pseudonym = self.pseudonym(kind, name)
        if pseudonym in self.remembered():
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            with os.fdopen(os.open(self.names_file, flags, 0o600), "ab") as stream:
                stream.write(f"{pseudonym}\t{name}\n".encode())
                stream.flush()
                os.fsync(stream.fileno())
            sync_folder(self.names_file.parent)
        except OSError as problem:
            what = f"cannot be written: {problem.strerror}"
            raise ConfigError(what, where=self.names_file, do="make its folder writable") from None

    def remembered(self) -> dict[str, str]:
        """Return {pseudonym: name} of the file beside the key, without lines of other keys."""
        pseudonyms = {}
        with suppress(OSError):
            for line in self.names_file.read_text(encoding="utf-8", errors="replace").splitlines():
                pseudonym, _, name = line.partition("\t")
                if any(pseudonym == self.pseudonym(kind, name) for kind in KINDS):
                    pseudonyms[pseudonym] = name
        return pseudonyms

    def reveal(self, pseudonym: str, names: Iterable[str] = ()) -> str | None:
        """Return the name of a pseudonym: remembered, or one of `names`; else None."""
        remembered = self.remembered().get(pseudonym)
        if remembered is not None:
            return remembered
        kind = next((kind for kind in KINDS if pseudonym.startswith(f"{kind}-")), None)
        return (
            None
            if kind is None
            else next((name for name in names if self.pseudonym(kind, name) == pseudonym), None)
        )


class NameReplacer:
    """Replaces names that stand as whole words in text, in upper or lower case.

    >>> NameReplacer({"ann": "user-x", "b.lee": "user-y"}).text("of Ann/ann_1 of annex; b.lee, b.leek")
    'of user-x/user-x_1 of annex; user-y, b.leek'
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        replaced = {name: stands for name, stands in names.items() if name}
        self._exact = replaced
        self._words = {
            name.lower(): stands for name, stands in replaced.items() if _WORD.fullmatch(name)
        }
        self._others = {
            name.lower(): stands for name, stands in replaced.items() if not _WORD.fullmatch(name)
        }
        parts = "|".join(re.escape(name) for name in sorted(self._others, key=len, reverse=True))
        self._other = (
            re.compile(rf"(?<![^\W_])(?:{parts})(?![^\W_])", re.IGNORECASE) if parts else None
        )

    def text(self, written: str) -> str:
        """Return a text with names replaced."""
        if written in self._exact:
            return self._exact[written]
        if self._other is not None:
            written = self._other.sub(lambda match: self._others[match[0].lower()], written)
        return _WORD.sub(lambda match: self._words.get(match[0].lower(), match[0]), written)

    def column(self, values: pl.Series) -> pl.Series:
        """Return a column of texts, or of lists of texts, with names replaced; null stays null."""
        is_list = isinstance(values.dtype, pl.List)
        every = (values.explode() if is_list else values).drop_nulls().unique()
        texts = {text: self.text(text) for text in every.to_list()}
        new = {text: pseudonym for text, pseudonym in texts.items() if pseudonym != text}
        if not new:
            return values
        return values.list.eval(pl.element().replace(new)) if is_list else values.replace(new)


def holds_word(column: pl.Expr, name: str) -> pl.Expr:
    """True for texts that have a name as `NameReplacer` replaces it; null never does."""
    pattern = rf"(?i)(^|[^\p{{L}}\p{{N}}]){pl.escape_regex(name)}($|[^\p{{L}}\p{{N}}])"
    return ((column == name) | column.str.contains(pattern)).fill_null(value=False)
