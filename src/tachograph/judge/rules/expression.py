"""Expressions of rules, as trees: the grammar, and what stands in them.

The parser is lark's LALR parser, which needs no recursion; depth and length are limited before anything is walked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Literal, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from tachograph.catalog.units import printable

LONGEST = 2_000  # characters of an expression
DEEPEST = 40  # brackets, calls, and signs within each other
LONGEST_NAME = 64
SLIPS: Mapping[str, str] = MappingProxyType(  # of the rules as they were published: {written: meant}
    {
        "make_tupel": "make_tuple",
        "Overall": "OverAll",
        "missed_work_per_prcess": "missed_work_per_process",
        "tollerance_wasted_work": "tolerance_wasted_work",
        "load_imbalance_altert": "load_imbalance_alert",
    }
)
GRAMMAR = r"""
start: either
?either: both | both ("or" both)+
?both: denied | denied ("and" denied)+
?denied: comparison | "not" denied -> negation
?comparison: total | total COMPARE total
?total: product | product (PLUS product)+
?product: signed | signed (TIMES signed)+
?signed: part | PLUS signed -> sign
?part: atom | part "." NAME
?atom: NUMBER -> number
     | STRING -> string
     | TRUE -> truth
     | FALSE -> truth
     | NAME -> name
     | DOLLAR -> name
     | NAME "(" arguments ")" -> call
     | OR "(" arguments ")" -> call
     | AND "(" arguments ")" -> call
     | "(" either ")"
arguments: [either (SEPARATOR either)*]
COMPARE: "<=" | ">=" | "==" | "!=" | "<" | ">"
PLUS: "+" | "-"
TIMES: "*" | "/"
SEPARATOR: "," | ";"
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
_BRACKETS = re.compile(rf"\"[^\"]*\"|'[^']*'|[()]|(?:(?:[-+]|not\b)\s*){{{DEEPEST}}}")
_HINTS = {
    "=": "use == to compare",
    "&": "use and",
    "|": "use or",
    "!": "use not, or != to compare",
    "%": "a fraction 0..1 is meant by every number",
    "^": "there are no powers",
    "[": "a value of a list cannot be taken out",
    "{": "{...} is for texts; write the name alone",
}


class MalformedError(Exception):
    """What stands there is no expression: what is wrong, and at which character of it."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    at: int
    value: float


@dataclass(frozen=True, slots=True)
class Words:
    """A text in quotes."""

    at: int
    value: str


@dataclass(frozen=True, slots=True)
class Truth:
    """true or false."""

    at: int
    value: bool


@dataclass(frozen=True, slots=True)
class Name:
    """A term, a parameter or a metric; `$name` and `name` are the same."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """first, then each (operator, operand) from left to right; only + and -, or only * and /."""

    at: int
    first: Node
    rest: tuple[tuple[str, Node, int], ...]  # operator, operand, where the operator stands


@dataclass(frozen=True, slots=True)
class Compare:
    """left, a comparison, right."""

    at: int
    relation: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Logic:
    """Values joined by `and` or `or`."""

    at: int
    word: Literal["and", "or"]
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """A value behind -, + or not."""

    at: int
    operator: str
    inner: Node


@dataclass(frozen=True, slots=True)
class TuplePart:
    """`.first` or `.second` of a tuple."""

    at: int
    inner: Node
    part: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function and what it is given; separators: a comma or semicolon between each two."""

    at: int
    function: str
    arguments: tuple[Node, ...]
    separators: str


Node = Number | Words | Truth | Name | Chain | Compare | Logic | Unary | TuplePart | FunctionCall


@v_args(inline=True)
class _Tree(Transformer[Token, Node]):
    """Makes nodes while the parser runs, so that no tree has to be walked."""

    def start(self, node: Node) -> Node:
        return node

    def number(self, token: Token) -> Node:
        if len(token) > 100 or float(token) == float("inf"):
            raise MalformedError(_at(token), "a number as large as that cannot be computed with")
        return Number(_at(token), float(token))

    def string(self, token: Token) -> Node:
        return Words(_at(token), token[1:-1])

    def truth(self, token: Token) -> Node:
        return Truth(_at(token), token == "true")

    def name(self, token: Token) -> Node:
        name = token.removeprefix("$")
        if len(name) > LONGEST_NAME:
            raise MalformedError(_at(token), f"a name longer than {LONGEST_NAME} letters")
        return Name(_at(token), SLIPS.get(name, name))

    def either(self, *items: Node) -> Node:
        return Logic(items[0].at, "or", items)

    def both(self, *items: Node) -> Node:
        return Logic(items[0].at, "and", items)

    def negation(self, inner: Node) -> Node:
        return Unary(inner.at, "not", inner)

    def comparison(self, left: Node, relation: Token, right: Node) -> Node:
        return Compare(_at(relation), str(relation), left, right)

    def total(self, first: Node, *rest: Node | Token) -> Node:
        operators, operands = cast("tuple[Token, ...]", rest[::2]), cast("tuple[Node, ...]", rest[1::2])
        return Chain(
            first.at,
            first,
            tuple((str(sign), node, _at(sign)) for sign, node in zip(operators, operands, strict=True)),
        )

    product = total

    def sign(self, token: Token, inner: Node) -> Node:
        return Unary(_at(token), str(token), inner)

    def part(self, inner: Node, name: Token) -> Node:
        return TuplePart(_at(name), inner, str(name))

    def call(self, name: Token, arguments: tuple[tuple[Node, ...], str]) -> Node:
        return FunctionCall(_at(name), SLIPS.get(name, str(name)), *arguments)

    def arguments(self, *items: Node | Token | None) -> tuple[tuple[Node, ...], str]:
        nodes = tuple(item for item in items if item is not None and not isinstance(item, Token))
        return nodes, "".join(item for item in items if isinstance(item, Token))


def _at(token: Token) -> int:
    return token.start_pos or 0


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=cast("Any", _Tree()), maybe_placeholders=False)


@lru_cache(maxsize=256)
def parse(text: str) -> Node:
    """Return the tree of an expression.

    Errors: MalformedError, for what is no expression, too long, or nested too deeply.

    >>> parse("$a > 0.5")
    Compare(at=3, relation='>', left=Name(at=0, name='a'), right=Number(at=5, value=0.5))
    """
    if len(text) > LONGEST:
        raise MalformedError(0, f"an expression longer than {LONGEST} characters; divide it into terms")
    if not text.strip():
        raise MalformedError(0, "the expression is empty")
    _brackets(text)
    try:
        node = cast("Node", _parser().parse(text))
    except UnexpectedCharacters as problem:
        at = problem.pos_in_stream or 0
        raise MalformedError(at, _odd_character(text[at])) from None
    except UnexpectedToken as problem:
        raise _unexpected(text, problem.token) from None
    for inner, depth in walk(node):
        if depth > DEEPEST:
            raise MalformedError(inner.at, f"nested deeper than {DEEPEST} levels; divide it into terms")
    return node


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield every node of a tree and how deep it lies, from left to right; without recursion, so of any tree.

    >>> [(type(node).__name__, depth) for node, depth in walk(parse("max(a) + 1"))]
    [('Chain', 0), ('FunctionCall', 1), ('Name', 2), ('Number', 1)]
    """
    stack = [(node, 0)]
    while stack:
        now, depth = stack.pop()
        yield now, depth
        stack += [(inner, depth + 1) for inner in reversed(_inside(now))]


def _inside(node: Node) -> tuple[Node, ...]:
    match node:
        case Chain():
            return node.first, *(operand for _, operand, _ in node.rest)
        case Compare():
            return node.left, node.right
        case Logic():
            return node.items
        case Unary() | TuplePart():
            return (node.inner,)
        case FunctionCall():
            return node.arguments
        case _:
            return ()


def slips(text: str) -> Iterator[tuple[int, str]]:
    """Yield the known slips in an expression or a text for users, and where they stand."""
    for found in re.finditer(r"[A-Za-z_]+", text):
        if found[0] in SLIPS:
            yield found.start(), found[0]


def _brackets(text: str) -> None:
    """Look at brackets, and at signs and `not`s one behind the other, before the parser does."""
    opened: list[int] = []
    for found in _BRACKETS.finditer(text):
        if found[0] == "(":
            opened.append(found.start())
            if len(opened) > DEEPEST:
                raise MalformedError(found.start(), f"brackets within brackets, more than {DEEPEST} deep")
        elif found[0] == ")":
            if not opened:
                raise MalformedError(found.start(), "this ) has no ( before it")
            opened.pop()
        elif found[0][0] not in "\"'":
            raise MalformedError(found.start(), f"more than {DEEPEST} signs one behind the other")
    if opened:
        raise MalformedError(opened[-1], "this ( has no ) behind it")


def _odd_character(letter: str) -> str:
    if letter in "\"'":
        return "the closing quote of this text is missing"
    if hint := _HINTS.get(letter):
        return f"{letter} has no meaning here; {hint}"
    if letter.isalpha():
        return f"names are made of letters a to z, digits and _, not of {letter!a}"
    return f"{printable(letter)} has no meaning here"


def _unexpected(text: str, token: Token) -> MalformedError:
    if token.type == "$END":
        return MalformedError(len(text), "the expression ends too early: a value is missing")
    at, shown = _at(token), str(token)[:40]
    if token.type == "COMPARE":
        return MalformedError(at, f"a value is missing before {shown}, or two comparisons need an `and` between them")
    if token.type in ("NAME", "DOLLAR", "NUMBER", "STRING", "LPAR"):
        return MalformedError(at, f"an operator is missing before {shown}")
    return MalformedError(at, f"a value is missing before {shown}")
