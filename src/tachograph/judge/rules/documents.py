"""Documents of rules: JSON with comments, in which every value has its line and column.

The grammar takes commas and colons as they come, so that one run finds every one that is missing or too many.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from lark import Lark, Token, Tree, UnexpectedInput, UnexpectedToken

from tachograph.catalog.units import printable

LARGEST = 65_536  # characters of a file
DEEPEST = 16
MOST_TOKENS = 4_000  # values, names and marks of a file
MOST_MISTAKES = 20
GRAMMAR = r"""
?start: value
?value: object | array | STRING | WORD
object: LBRACE (member | COMMA)* RBRACE
array: LSQB (value | COMMA)* RSQB
member: STRING [COLON] value
STRING: /"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"?/
WORD: /[^\s{}\[\]:,"\/]+|[^\s{}\[\]:,"]/
COMMA: ","
COLON: ":"
LBRACE: "{"
RBRACE: "}"
LSQB: "["
RSQB: "]"
COMMENT.2: /\/\/[^\n]*|\/\*[^*]*(?:\*(?!\/)[^*]*)*\*\//
SPACE: /[\s\ufeff]+/
%ignore COMMENT
%ignore SPACE
"""
_CLOSES = {"LBRACE": Token("RBRACE", "}"), "LSQB": Token("RSQB", "]")}
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


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", lexer="basic", maybe_placeholders=False)


_Node = Tree[Token] | Token


@dataclass(slots=True)
class _Reader:
    """Makes a parsed document Items, and takes down what is wrong with it."""

    text: str
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[Mistake] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self.starts, at)
        return line, at - self.starts[line - 1] + 1

    def mistake(self, at: int, message: str) -> None:
        self.mistakes.append(Mistake(*self.place(at), message))
        if len(self.mistakes) >= MOST_MISTAKES:
            raise _StopError

    def parsed(self) -> tuple[_Node | None, bool]:
        """Return the tree, and whether it is whole: brackets that are open where it ends are closed for it."""
        parser: Any = _parser().parse_interactive(self.text)  # of which lark types a part
        opened: list[Token] = []
        try:
            for number, token in enumerate(parser.lexer_thread.lex(parser.parser_state)):
                if number >= MOST_TOKENS:
                    self.mistake(_at(token), f"more than {MOST_TOKENS} values, names and marks; divide the file")
                    return None, False
                if token.type in _CLOSES:
                    opened.append(token)
                    if len(opened) > DEEPEST:
                        self.mistake(_at(token), f"nested deeper than {DEEPEST} levels")
                        return None, False
                parser.feed_token(token)
                if token.type in ("RBRACE", "RSQB"):
                    opened.pop()
            return parser.feed_eof(), True
        except UnexpectedToken as problem:
            self.mistake(_at(problem.token, len(self.text)), self.unexpected(problem, opened))
        try:
            for token in reversed(opened):
                parser.feed_token(_CLOSES[token.type])
            return parser.feed_eof(), False
        except UnexpectedInput:
            return None, False

    def unexpected(self, problem: UnexpectedToken, opened: list[Token]) -> str:
        """What is wrong where brackets, or values and names do not fit."""
        found = "the end of the file" if problem.token.type == "$END" else cut(str(problem.token))
        expected = problem.accepts or problem.expected
        if expected == {"$END"}:
            return f"{found} where the file should end"
        if not opened or not {"RBRACE", "RSQB"} & set(expected):
            return f"a value is missing before {found}"
        bracket, close = opened[-1], _CLOSES[opened[-1].type]
        line, column = self.place(_at(bracket))
        if problem.token.type in ("$END", "RBRACE", "RSQB"):
            return f"{found} where {close} is missing: {bracket} of {line}:{column} is open"
        if problem.token.type == "COLON":
            return f"a : within a list; {close} is missing before: {bracket} of {line}:{column} is open"
        return f"a name in quotes is missing before {found}"

    def item(self, node: _Node) -> Item:
        """Return a value."""
        if isinstance(node, Token):
            return self.string(node) if node.type == "STRING" else Item(self.word(node), *self.place(_at(node)))
        parts = node.children[1:-1]
        self.separators(node)
        values = [part for part in parts if not (isinstance(part, Token) and part.type == "COMMA")]
        line, column = self.place(_at(node))
        if node.data == "array":
            return Item([self.item(value) for value in values], line, column)
        return Item(self.members([value for value in values if isinstance(value, Tree)]), line, column)

    def members(self, nodes: list[Tree[Token]]) -> Members:
        members, names = Members(), set[str]()
        for node in nodes:
            name, value = node.children[0], node.children[-1]
            assert isinstance(name, Token)
            if len(node.children) == 2:
                self.mistake(_end(name), f"a colon is missing before {_first_text(value)}")
            read = self.string(name)
            if str(read.value) in names:
                self.mistake(_at(name), f"{cut(str(read.value))} stands here twice")
            names.add(str(read.value))
            members.append((read, self.item(value)))
        return members

    def separators(self, node: Tree[Token]) -> None:
        """Check that one comma stands between two values; one before the closing bracket is only odd."""
        for before, part in pairwise(node.children):
            commas = [isinstance(each, Token) and each.type == "COMMA" for each in (before, part)]
            first, last = before is node.children[0], part is node.children[-1]
            if commas[1] and (commas[0] or first):
                self.mistake(_at(part), "a value is missing before ,")
            elif commas[0] and last:
                self.warnings.append(Mistake(*self.place(_at(before)), f"the comma before {part} is one too many"))
            elif not any(commas) and not first and not last:
                self.mistake(_end(before), f"a comma is missing before {_first_text(part)}")

    def word(self, token: Token) -> float | bool | None:
        if token in _WORDS:
            return _WORDS[token]
        if _NUMBER.fullmatch(token):
            number = float(token)
            if abs(number) < float("inf"):
                return number
        if token.startswith("/"):
            self.mistake(_at(token), "a comment is // to the end of the line, or /* ... */")
        else:
            self.mistake(_at(token), f"{cut(token)} is no value; a text needs quotes")
        return None

    def string(self, token: Token) -> Item:
        line, column = self.place(_at(token))
        raw = token[1:-1]
        if len(token) < 2 or not token.endswith('"') or _escaped_quote(token):
            self.mistake(_at(token), f"the closing quote of {cut(token)} is missing")
            raise _StopError
        return Item(self.unescaped(raw, _at(token) + 1) if "\\" in raw else raw, line, column, raw)

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


def _first(node: _Node) -> Token:
    return node if isinstance(node, Token) else _first(node.children[0])


def _at(node: _Node, otherwise: int = 0) -> int:
    token = _first(node)
    return otherwise if token.type == "$END" or token.start_pos is None else token.start_pos


def _end(node: _Node) -> int:
    """Where a value ends; a bracket that was closed for it has no place."""
    if isinstance(node, Tree):
        return _end(node.children[-1])
    return node.end_pos or 0


def _escaped_quote(text: str) -> bool:
    """Whether the last quote of a text belongs to it: an odd number of backslashes stands before it."""
    body = text[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _first_text(node: _Node) -> str:
    return cut(str(_first(node)))


def cut(text: str) -> str:
    """Return the begin of a text for a message, as printable characters."""
    return printable(text if len(text) <= 40 else f"{text[:37]}...")


def read(text: str) -> tuple[Item | None, tuple[Mistake, ...], tuple[Mistake, ...]]:
    """Return what a text of JSON holds (None: undetermined), its mistakes, and what is only odd in it.

    Comments and a comma too many at an end are allowed. Where a comma or a colon is missing, reading goes on.

    >>> read('[1 2]')[1]
    (Mistake(line=1, column=3, message='a comma is missing before 2'),)
    """
    if len(text) > LARGEST:
        return None, (Mistake(1, 1, f"longer than {LARGEST} characters"),), ()
    reader, item = _Reader(text), None
    try:
        tree, whole = reader.parsed()
        made = None if tree is None else reader.item(tree)
        item = made if whole else None
    except _StopError:
        pass
    return item, tuple(sorted(reader.mistakes)), tuple(sorted(reader.warnings))
