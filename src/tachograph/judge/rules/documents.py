"""Documents of rules: JSON with comments, in which every text has its line and column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from typing import Any

import msgspec
from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken

from tachograph.catalog.units import printable

LARGEST = 32_768  # characters of a file
# A text may lack its closing quote, and a word may be anything: then the message names what stands
# there.
GRAMMAR = r"""
?start: value
?value: object | array | STRING | WORD -> word
object: "{" [member ("," member)* [","]] "}"
array: "[" [value ("," value)* [","]] "]"
member: STRING ":" value
STRING: /"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"?/
WORD: /[^\s{}\[\]:,"\/]+/
COMMENT.2: /\/\/[^\n]*|\/\*[^*]*(?:\*(?!\/)[^*]*)*\*\//
SPACE: /[\s\ufeff]+/
%ignore COMMENT
%ignore SPACE
"""
_MEANINGS = {
    "COLON": "a colon",
    "COMMA": "a comma",
    "LBRACE": "{",
    "LSQB": "[",
    "RBRACE": "}",
    "RSQB": "]",
    "STRING": "a text in quotes",
    "$END": "the end of the file",
}


class RuleError(Exception):
    """A mistake in a file of rules.

    text: the text of the file that holds it, with its place; at: its first character there.
    """

    def __init__(self, message: str, text: str = "", at: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.at = at

    @property
    def place(self) -> tuple[int, int]:
        """Line and column; where a text has escapes, those of its beginning."""
        return place_of(self.text, self.at)


def place_of(text: str, at: int | None = None) -> tuple[int, int]:
    """Return line and column, from 1, of a text of a document, or of a character within it.

    >>> (text,) = read('["a word"]')
    >>> place_of(text), place_of(text, 2), place_of("of no document")
    ((1, 2), (1, 5), (1, 1))
    """
    if not isinstance(text, Token):
        return 1, 1
    line, column = text.line or 1, text.column or 1
    as_written = (text.end_column or 0) - column == len(text) + 2
    if at is not None and as_written:
        column += 1 + at
    return line, column


class Members(dict[str, Any]):
    """An object of a document. written: its keys with their places."""

    def __init__(self, members: Iterable[tuple[Token, Any]]) -> None:
        super().__init__()
        self.written: dict[str, Token] = {}
        for name, value in members:
            if name in self:
                raise RuleError(f"{cut(name)} stands here twice", name)
            self[str(name)] = value
            self.written[str(name)] = name


class _DocumentBuilder(Transformer[Token, Any]):
    """Makes lists and dictionaries while the parser runs."""

    array = list
    object = Members
    member = tuple

    def word(self, children: list[Token]) -> Any:
        try:
            return msgspec.json.decode(children[0].encode())
        except (msgspec.DecodeError, UnicodeEncodeError):
            message = f"{cut(children[0])} is not a value; a text needs quotes"
            raise RuleError(message, children[0]) from None


def _decoded(token: Token) -> Token:
    """Return what a text in quotes says."""
    if len(token) < 2 or not token.endswith('"'):
        raise RuleError(f"the closing quote of {cut(token)} is missing", token)
    try:
        value = msgspec.json.decode(token.encode(), type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        message = f"{cut(token)} is no text of JSON; write \\\\ for a backslash"
        raise RuleError(message, token) from None
    return token.update(value=value)


@cache
def _parser() -> Lark:
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_DocumentBuilder(),
        lexer_callbacks={"STRING": _decoded},
        maybe_placeholders=False,
    )


def read(text: str) -> Any:
    """Return what a JSON text holds. Comments and a comma after the last value are allowed.

    Texts know their places. Raises RuleError for the first mistake.

    >>> read('[1, "x"] // two values')
    [1, Token('STRING', 'x')]
    """
    if len(text) > LARGEST:
        raise RuleError(f"longer than {LARGEST} characters; divide the file")
    try:
        return _parser().parse(text)
    except UnexpectedCharacters as error:
        token = Token("STRING", "", line=error.line, column=error.column)
        raise RuleError("a comment is // to the end of the line, or /* ... */", token) from None
    except UnexpectedToken as error:
        raise _unexpected(text, error.token, error.accepts or set()) from None


def _unexpected(text: str, token: Token, accepted: set[str]) -> RuleError:
    """Return the error message: a missing comma or colon is placed after the previous token."""
    ending = token.type == "$END"
    # No further: what follows may hold mistakes of its own.
    at = len(text) if ending else token.start_pos or 0
    lexed: Iterator[Any] = _parser().lex(text)
    tokens = list(takewhile(lambda other: other.start_pos < at, lexed))
    name = "the end of the file" if ending else cut(token)
    if token.type == "STRING":
        name = f'"{name}"'
    open_brackets: list[Token] = []
    for bracket in tokens:
        if bracket.type in ("LBRACE", "LSQB"):
            open_brackets.append(bracket)
        elif bracket.type in ("RBRACE", "RSQB"):
            open_brackets.pop()
    starts_value = token.type in ("STRING", "WORD", "LBRACE", "LSQB")
    if token.type == "COLON" and "RSQB" in accepted:
        bracket = open_brackets[-1]
        where = f"[ of {bracket.line}:{bracket.column} is open"
        return RuleError(f"a : within a list; ] is missing before: {where}", token)
    for type_ in ("COLON", "COMMA"):
        if type_ in accepted and (starts_value or ending):
            behind = Token("", "", line=tokens[-1].end_line, column=tokens[-1].end_column)
            return RuleError(f"{_MEANINGS[type_]} is missing before {name}", behind)
    if "WORD" in accepted:
        return RuleError(f"a value is missing before {name}", token)
    meanings = " or ".join(sorted(_MEANINGS[type_] for type_ in accepted))
    return RuleError(f"{name} where {meanings} is missing", token)


def cut(text: str, length: int = 40) -> str:
    """Return the beginning of a text for a message, as printable characters."""
    return printable(text if len(text) <= length else f"{text[: length - 3]}...")
