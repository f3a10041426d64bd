"""Expressions of rules as trees: the grammar, and the nodes.

The parser is lark's LALR parser, which needs no recursion; the depth is limited before a tree is
walked recursively.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, cast

from lark import Lark, Token, Transformer, Tree, UnexpectedCharacters, UnexpectedToken

from tachograph.catalog.units import printable

LONGEST = 2_000  # characters of an expression
DEEPEST = 40  # brackets, calls, and signs within each other
LONGEST_NAME = 64
# Of the rules as they were published: {written: meant}.
SLIPS: Mapping[str, str] = MappingProxyType(
    {
        "make_tupel": "make_tuple",
        "Overall": "OverAll",
        "missed_work_per_prcess": "missed_work_per_process",
        "tollerance_wasted_work": "tolerance_wasted_work",
        "load_imbalance_altert": "load_imbalance_alert",
    }
)
# Each alias behind an arrow is the kind of a node.
GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction | conjunction ("or" conjunction)+ -> or
?conjunction: negation | negation ("and" negation)+ -> and
?negation: comparison | "not" negation -> not
?comparison: sum | sum RELATION sum -> compare
?sum: product | product (PLUS product)+ -> chain
?product: signed | signed (TIMES signed)+ -> chain
?signed: selected | PLUS signed -> sign
?selected: atom | selected "." NAME -> part
?atom: NUMBER -> number
     | STRING -> text
     | (TRUE | FALSE) -> truth
     | (NAME | DOLLAR) -> name
     | NAME "(" [disjunction ((COMMA | SEMICOLON) disjunction)*] ")" -> call
     | (OR | AND) "(" disjunction (COMMA disjunction)* ")" -> call
     | "(" disjunction ")"
RELATION: "<=" | ">=" | "==" | "!=" | "<" | ">"
PLUS: "+" | "-"
TIMES: "*" | "/"
COMMA: ","
SEMICOLON: ";"
TRUE: "true"
FALSE: "false"
OR: "or"
AND: "and"
NUMBER: /(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
STRING: /"[^"]*"|'[^']*'/
DOLLAR: /\$[A-Za-z_][A-Za-z0-9_]*/
NAME: /[A-Za-z_][A-Za-z0-9_]*/
%ignore /[ \t\r\n]+/
"""
_HINTS = {
    "=": "use == to compare",
    "&": "use and",
    "|": "use or",
    "!": "use not, or != to compare",
    "%": "write a fraction 0..1",
    "^": "there are no powers",
    "[": "a value of a list cannot be taken out",
    "{": "{...} is for texts; write the name alone",
    '"': "the closing quote of this text is missing",
    "'": "the closing quote of this text is missing",
}


class MalformedError(Exception):
    """The text is not an expression: what is wrong, and at which character of it."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an expression.

    kind: or, and, not, compare, chain (only + and -, or only * and /), sign, part (of a tuple),
    call, number, text, truth, or name. at: its first own character. word: its operator, name,
    function or text. marks: the further operators of a chain, or the separators of a call. parts:
    its operands or arguments.
    """

    kind: str
    at: int
    word: str = ""
    marks: str = ""
    parts: tuple[Node, ...] = ()

    @property
    def number(self) -> float:
        """The value of a number."""
        return float(self.word)


class _NodeBuilder(Transformer[Token, Node]):
    """Makes nodes while the parser runs."""

    def __default__(self, data: str, children: list[Any], meta: object) -> Any:
        if data.startswith("_"):
            # Lark's own rule of a repetition, which it puts into the rule around.
            return Tree(data, children)
        tokens = [child for child in children if isinstance(child, Token)]
        parts = tuple(child for child in children if isinstance(child, Node))
        if not tokens:
            return Node(data, parts[0].at, "", "", parts)
        at = tokens[0].start_pos or 0
        word = str(tokens[0])
        if data == "text":
            return Node(data, at, word[1:-1])
        if data in ("name", "call"):
            word = word.removeprefix("$")
            word = SLIPS.get(word, word)
        if data == "name" and len(word) > LONGEST_NAME:
            raise MalformedError(at, f"a name longer than {LONGEST_NAME} letters")
        if data == "number" and (len(word) > 100 or float(word) == float("inf")):
            raise MalformedError(at, "a number too large to compute with")
        kind = word if data == "call" and word in ("and", "or") else data
        return Node(kind, at, word, "".join(tokens[1:]), parts)


@cache
def _parser() -> Lark:
    builder = cast("Any", _NodeBuilder())
    return Lark(
        GRAMMAR, parser="lalr", lexer="basic", transformer=builder, maybe_placeholders=False
    )


def parse(text: str) -> Node:
    """Return the tree of an expression.

    Raises MalformedError with the first mistake.

    >>> parse("a + 2 * b").parts[1].word
    '*'
    """
    if len(text) > LONGEST:
        raise MalformedError(
            0, f"an expression longer than {LONGEST} characters; divide it into terms"
        )
    try:
        node = cast("Node", _parser().parse(text))
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise MalformedError(at, _odd_character(text[at])) from None
    except UnexpectedToken as error:
        raise _unexpected(text, error) from None
    for inner, depth in walk(node):
        if depth > DEEPEST:
            raise MalformedError(
                inner.at, f"nested deeper than {DEEPEST} levels; divide it into terms"
            )
    return node


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield every node of a tree and its depth, from left to right; without recursion, so of any
    tree.

    >>> [(node.kind, depth) for node, depth in walk(parse("max(a) + 1"))]
    [('chain', 0), ('call', 1), ('name', 2), ('number', 1)]
    """
    stack = [(node, 0)]
    while stack:
        inner, depth = stack.pop()
        yield inner, depth
        stack += [(part, depth + 1) for part in reversed(inner.parts)]


def slips(text: str) -> Iterator[tuple[int, str]]:
    """Yield the known slips in an expression or a text for users, and where they stand."""
    for word in re.finditer(r"[A-Za-z_]+", text):
        if word[0] in SLIPS:
            yield word.start(), word[0]


def _odd_character(letter: str) -> str:
    if letter.isalpha():
        return f"names are made of letters a to z, digits and _, not of {letter!a}"
    hint = _HINTS.get(letter, "")
    return f"{printable(letter)} has no meaning here{'; ' if hint else ''}{hint}"


def _unexpected(text: str, error: UnexpectedToken) -> MalformedError:
    token, accepted = error.token, error.accepts or error.expected
    at, shown = token.start_pos or 0, str(token)[:40]
    if token.type == "$END":
        missing = "a )" if "RPAR" in accepted else "a value"
        return MalformedError(len(text), f"the expression ends too early: {missing} is missing")
    if token.type == "RPAR" and "$END" in accepted:
        return MalformedError(at, "this ) has no ( before it")
    if token.type == "RELATION":
        return MalformedError(
            at, f"a value is missing before {shown}, or two comparisons need an `and` between them"
        )
    if "PLUS" in accepted and "TIMES" in accepted:
        return MalformedError(at, f"an operator is missing before {shown}")
    return MalformedError(at, f"a value is missing before {shown}")
