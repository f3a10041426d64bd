"""JSON with comments, in which every value knows its line and column."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

LARGEST = 65_536  # characters of a file
DEEPEST = 16
MOST_TOKENS = 4_000  # values, names and marks of a file
MOST_MISTAKES = 20
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\ufeff]+|//[^\n]*|/\*[^*]*(?:\*(?!/)[^*]*)*\*/)
    |(?P<string>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"?)
    |(?P<mark>[{}\[\]:,])
    |(?P<word>[^\s{}\[\]:,"/]+|.)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt])|(.))')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Item:
    """A value: text, number, true, false, null, a list of Items, or an object as a list of (name, value) Items.

    line, column: where it begins, from 1. raw: a text as it is written between its quotes.
    """

    value: str | float | bool | list[Item] | Members | None
    line: int
    column: int
    raw: str = ""

    def column_of(self, at: int) -> int:
        """Return the column of the character `at` of a text, which escapes before it move.

        >>> Item('a"b', 1, 5, 'a\\\\"b').column_of(2)
        9
        """
        if len(self.raw) == len(str(self.value)):
            return self.column + 1 + at
        steps = [0, *(found.end() for found in re.finditer(r"\\u[0-9a-fA-F]{4}|\\.|.", self.raw))]
        return self.column + 1 + steps[min(at, len(steps) - 1)]


class Members(list[tuple[Item, Item]]):
    """The members of an object, in order."""


class Mistake(NamedTuple):
    """What is no JSON, and where."""

    line: int
    column: int
    message: str


class _StopError(Exception):
    """No way on."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int
    end: int


@dataclass(slots=True)
class _Reader:
    """Reads on after a mistake where it can tell what was meant: then one run finds several."""

    text: str
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[Mistake] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    tokens: Iterator[_Token] = field(default_factory=lambda: iter(()))
    now: _Token = field(default_factory=lambda: _Token("end", "", 0, 0))
    before: int = 0  # end of the token before
    read: int = 0  # tokens

    def __post_init__(self) -> None:
        self.starts = [0, *(found.end() for found in re.finditer("\n", self.text))]
        self.tokens = (
            _Token(found.lastgroup or "", found[0], found.start(), found.end())
            for found in _TOKEN.finditer(self.text)
            if found.lastgroup != "space"
        )
        self.move()

    def move(self) -> _Token:
        """Return the token that was next, and go to the one after it."""
        gone, self.before = self.now, self.now.end
        self.read += 1
        if self.read > MOST_TOKENS:
            raise self.stop(gone.at, f"more than {MOST_TOKENS} values, names and marks; divide the file")
        end = len(self.text)
        self.now = next(self.tokens, _Token("end", "", end, end))
        return gone

    def place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self.starts, at)
        return line, at - self.starts[line - 1] + 1

    def mistake(self, at: int, message: str) -> None:
        self.mistakes.append(Mistake(*self.place(at), message))
        if len(self.mistakes) >= MOST_MISTAKES:
            raise _StopError

    def stop(self, at: int, message: str) -> _StopError:
        self.mistakes.append(Mistake(*self.place(at), message))
        return _StopError()

    def value(self, depth: int) -> Item:
        """Read a value."""
        token = self.now
        if token.kind == "string":
            return self.string()
        if token.text in ("{", "["):
            if depth >= DEEPEST:
                raise self.stop(token.at, f"nested deeper than {DEEPEST} levels")
            line, column = self.place(token.at)
            return Item(self.object(depth) if token.text == "{" else self.list(depth), line, column)
        if token.kind == "word":
            self.move()
            return Item(self.word(token), *self.place(token.at))
        raise self.stop(token.at, f"a value is missing before {_shown(token)}")

    def word(self, token: _Token) -> float | bool | None:
        if token.text in _WORDS:
            return _WORDS[token.text]
        if _NUMBER.fullmatch(token.text):
            number = float(token.text)
            if abs(number) < float("inf"):
                return number
        if token.text.startswith("/"):
            raise self.stop(token.at, "a comment is // to the end of the line, or /* ... */")
        self.mistake(token.at, f"{_shown(token)} is no value; a text needs quotes")
        return None

    def string(self) -> Item:
        token = self.move()
        line, column = self.place(token.at)
        raw = token.text[1:-1]
        if len(token.text) < 2 or not token.text.endswith('"') or _escaped_quote(token.text):
            raise self.stop(token.at, f"the closing quote of {_cut(token.text)} is missing")
        return Item(self.unescaped(raw, token.at + 1) if "\\" in raw else raw, line, column, raw)

    def unescaped(self, raw: str, at: int) -> str:
        def one(found: re.Match[str]) -> str:
            code, known, other = found.groups()
            if other is not None:
                self.mistake(at + found.start(), f"\\{other} is no escape; write \\\\ for a backslash")
                return ""
            if code is None:
                return _ESCAPED[known]
            if 0xD800 <= int(code, 16) < 0xE000:
                self.mistake(at + found.start(), f"\\u{code} is half a character; write the character itself")
                return ""
            return chr(int(code, 16))

        return _ESCAPE.sub(one, raw)

    def object(self, depth: int) -> Members:
        opened, members = self.move(), Members()
        names: set[str] = set()
        while self.goes_on("}", opened, first=not members):
            if self.now.kind != "string":
                raise self.stop(self.now.at, f"a name in quotes is missing before {_shown(self.now)}")
            at, name = self.now.at, self.string()
            if str(name.value) in names:
                self.mistake(at, f"{_cut(str(name.value))} stands here twice")
            names.add(str(name.value))
            if self.now.text == ":":
                self.move()
            else:
                self.mistake(self.before, f"a colon is missing before {_shown(self.now)}")
            members.append((name, self.value(depth + 1)))
        return members

    def list(self, depth: int) -> list[Item]:
        opened = self.move()
        items: list[Item] = []
        while self.goes_on("]", opened, first=not items):
            items.append(self.value(depth + 1))
        return items

    def goes_on(self, close: str, opened: _Token, *, first: bool) -> bool:
        """Whether another member follows; the comma before it, or the bracket that ends all, is read."""
        if self.now.text == close and self.now.kind == "mark":
            self.move()
            return False
        if first:
            return self.still_open(close, opened)
        if self.now.text == "," and self.now.kind == "mark":
            comma = self.move()
            if self.now.text == close and self.now.kind == "mark":
                self.warnings.append(Mistake(*self.place(comma.at), f"the comma before {close} is one too many"))
                self.move()
                return False
            return self.still_open(close, opened)
        if self.still_open(close, opened):
            if self.now.text == ":" and close == "]":
                line, column = self.place(opened.at)
                raise self.stop(self.now.at, f"a : within a list; ] is missing before: [ of {line}:{column} is open")
            self.mistake(self.before, f"a comma is missing before {_shown(self.now)}")
        return True

    def still_open(self, close: str, opened: _Token) -> bool:
        if self.now.kind == "end" or self.now.text in ("}", "]"):
            line, column = self.place(opened.at)
            found = _shown(self.now)
            raise self.stop(self.now.at, f"{found} where {close} is missing: {opened.text} of {line}:{column} is open")
        return True


def _escaped_quote(text: str) -> bool:
    """Whether the last quote of a text belongs to it: an odd number of backslashes stands before it."""
    body = text[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _shown(token: _Token) -> str:
    return "the end of the file" if token.kind == "end" else _cut(token.text)


def _cut(text: str) -> str:
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read(text: str) -> tuple[Item | None, tuple[Mistake, ...], tuple[Mistake, ...]]:
    """Return what a text of JSON holds (None: that cannot be told), its mistakes, and what is only odd in it.

    Comments and a comma too many at an end are allowed. Where a comma, a colon is missing, reading goes on.

    >>> read('[1 2]')[1]
    (Mistake(line=1, column=3, message='a comma is missing before 2'),)
    """
    if len(text) > LARGEST:
        return None, (Mistake(1, 1, f"longer than {LARGEST} characters"),), ()
    reader = _Reader(text)
    item = None
    try:
        item = reader.value(0)
        if reader.now.kind != "end":
            reader.mistake(reader.now.at, f"{_shown(reader.now)} where the file should end")
    except _StopError:
        pass
    return item, tuple(sorted(reader.mistakes)), tuple(reader.warnings)
