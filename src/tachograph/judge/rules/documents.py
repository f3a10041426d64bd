"""Documents of rules: JSON with comments, in which every value has its line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedToken

from tachograph.catalog.units import printable

LARGEST = 32_768  # characters of a file
DEEPEST = 16
# A text may lack its closing quote, and a word may be anything: then the message names what stands
# there.
GRAMMAR = r"""
?start: value
?value: object | array | STRING -> text | WORD -> word
object: LBRACE [member (COMMA member)* [COMMA]] RBRACE
array: LSQB [value (COMMA value)* [COMMA]] RSQB
member: STRING COLON value
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
_CLOSES = {"LBRACE": "}", "LSQB": "]"}
_CLOSED_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_CHARACTER = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_HALF = re.compile(r"[\ud800-\udfff]")
_WORDS = {"true": True, "false": False, "null": None}


class MalformedDocumentError(Exception):
    """The text is not a JSON document: the place of the first mistake, and what is wrong there."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.message = message


@dataclass(frozen=True, slots=True)
class Item:
    """A value: a text, a number, true, false, null, a list of Items, or an object as {name: (name
    Item, value Item)}.

    line, column: where it begins, from 1. raw: a text as it is written between its quotes.
    """

    value: str | float | bool | list[Item] | dict[str, tuple[Item, Item]] | None
    line: int
    column: int
    raw: str = ""

    def column_of(self, index: int) -> int:
        """Return the column of the character `index` of a text, which escapes before it shift.

        >>> Item('a"b', 1, 5, 'a\\\\"b').column_of(2)
        9
        """
        ends = [0, *(character.end() for character in _CHARACTER.finditer(self.raw))]
        return self.column + 1 + ends[min(index, len(ends) - 1)]

    def plain(self) -> Any:
        """Return the value as Python's own lists and dictionaries."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {name: item.plain() for name, (_, item) in self.value.items()}
        return self.value


class _ItemBuilder(Transformer[Token, Item]):
    """Makes Items while the parser runs."""

    def text(self, children: list[Token]) -> Item:
        (token,) = children
        try:
            value = json.loads(token, strict=False)
        except json.JSONDecodeError as error:
            column = (token.column or 1) + error.pos
            raise MalformedDocumentError(
                token.line or 1, column, f"{error.msg}; write \\\\ for a backslash"
            ) from None
        if _HALF.search(value):
            raise _malformed(
                token, f"{cut(token)} holds half a character; write the character itself"
            )
        return Item(value, token.line or 1, token.column or 1, token[1:-1])

    def word(self, children: list[Token]) -> Item:
        (token,) = children
        if token in _WORDS:
            return Item(_WORDS[token], token.line or 1, token.column or 1)
        try:
            number = json.loads(token, parse_int=float)
        except ValueError:
            number = None
        if not isinstance(number, float) or not abs(number) < float("inf"):
            raise _malformed(token, f"{cut(token)} is not a value; a text needs quotes")
        return Item(number, token.line or 1, token.column or 1)

    def member(self, children: list[Any]) -> tuple[Item, Item]:
        return self.text(children[:1]), children[2]

    def array(self, children: list[Any]) -> Item:
        bracket = children[0]
        return Item(
            [child for child in children if isinstance(child, Item)], bracket.line, bracket.column
        )

    def object(self, children: list[Any]) -> Item:
        bracket = children[0]
        members: dict[str, tuple[Item, Item]] = {}
        for child in children:
            if not isinstance(child, tuple):
                continue
            name = child[0]
            if name.value in members:
                raise MalformedDocumentError(
                    name.line, name.column, f"{cut(name.value)} stands here twice"
                )
            members[name.value] = child
        return Item(members, bracket.line, bracket.column)


@cache
def _parser() -> Lark:
    return Lark(
        GRAMMAR, parser="lalr", lexer="basic", transformer=_ItemBuilder(), maybe_placeholders=False
    )


def read(text: str) -> Item:
    """Return what a JSON text holds. Comments and a comma after the last value are allowed.

    Raises MalformedDocumentError with the place of the first mistake.

    >>> read('[1, "x"] // two values').plain()
    [1.0, 'x']
    """
    if len(text) > LARGEST:
        raise MalformedDocumentError(1, 1, f"longer than {LARGEST} characters; divide the file")
    parser: Any = _parser().parse_interactive(text)  # lark types only a part of it
    opened: list[Token] = []
    previous: Token | None = None
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            if token.type == "STRING" and not _CLOSED_TEXT.fullmatch(token):
                raise _malformed(token, f"the closing quote of {cut(token)} is missing")
            if token.startswith("/"):
                raise _malformed(token, "a comment is // to the end of the line, or /* ... */")
            parser.feed_token(token)
            if token.type in _CLOSES:
                opened.append(token)
            elif token.type in ("RBRACE", "RSQB"):
                opened.pop()
            if len(opened) > DEEPEST:
                raise _malformed(token, f"nested deeper than {DEEPEST} levels")
            previous = token
        item: Item = parser.feed_eof()
    except UnexpectedToken as error:
        raise _unexpected(error.token, parser.accepts(), opened, previous) from None
    return item


def _unexpected(
    token: Token, accepted: Set[str], opened: list[Token], previous: Token | None
) -> MalformedDocumentError:
    """Return what is missing, and where: a comma and a colon behind the token before them, all
    else at the token.
    """
    end = (1, 1) if previous is None else (previous.end_line or 1, previous.end_column or 1)
    at_end = token.type == "$END"
    name = "the end of the file" if at_end else cut(token)
    line, column = end if at_end else (token.line or 1, token.column or 1)
    starts_value = token.type in ("STRING", "WORD", "LBRACE", "LSQB")
    if "$END" in accepted:
        message = f"{name} where the file should end"
    elif "COLON" in accepted:
        (line, column), message = end, f"a colon is missing before {name}"
    elif "COMMA" in accepted and starts_value:
        (line, column), message = end, f"a comma is missing before {name}"
    elif token.type == "COLON" and "RSQB" in accepted:
        message = f"a : within a list; ] is missing before: {_open_bracket(opened)}"
    elif {"RBRACE", "RSQB"} & accepted and (at_end or token.type in ("RBRACE", "RSQB")):
        message = f"{name} where {_CLOSES[opened[-1].type]} is missing: {_open_bracket(opened)}"
    elif "STRING" in accepted and "WORD" not in accepted:
        message = f"a name in quotes is missing before {name}"
    else:
        message = f"a value is missing before {name}"
    return MalformedDocumentError(line, column, message)


def _open_bracket(opened: list[Token]) -> str:
    bracket = opened[-1]
    return f"{bracket} of {bracket.line}:{bracket.column} is open"


def _malformed(token: Token, message: str) -> MalformedDocumentError:
    return MalformedDocumentError(token.line or 1, token.column or 1, message)


def cut(text: str, length: int = 40) -> str:
    """Return the beginning of a text for a message, as printable characters."""
    return printable(text if len(text) <= length else f"{text[: length - 3]}...")
