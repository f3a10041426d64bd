"""Expressions of rules as trees of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from lark import Lark, Token, Transformer, Tree, UnexpectedCharacters, UnexpectedToken

from tachograph.catalog.units import printable
from tachograph.judge.rules.documents import RuleError

LONGEST = 2_000  # characters of an expression
DEEPEST = 40  # brackets, calls, and signs within each other
LONGEST_NAME = 64
# Of the rules as they were published: {written: meant}.
SLIPS: Mapping[str, str] = {
    "make_tupel": "make_tuple",
    "Overall": "OverAll",
    "missed_work_per_prcess": "missed_work_per_process",
    "tollerance_wasted_work": "tolerance_wasted_work",
    "load_imbalance_altert": "load_imbalance_alert",
}
# Each alias behind an arrow is the kind of a node. `&&`, `||`, `!` and `a ? b : c` are those of
# ClusterCockpit; as there, `!` binds closer than a comparison.
GRAMMAR = r"""
?start: choice
?choice: disjunction | disjunction QUESTION choice ":" choice -> choice
?disjunction: conjunction | conjunction ((OR | BARS) conjunction)+ -> operation
?conjunction: negation | negation ((AND | AMPERSANDS) negation)+ -> operation
?negation: comparison | NOT negation -> not
?comparison: sum | sum RELATION sum -> operation
?sum: product | product (PLUS product)+ -> operation
?product: signed | signed (TIMES signed)+ -> operation
?signed: selected | PLUS signed -> sign | EXCLAMATION signed -> not
?selected: atom | selected "." NAME -> part
?atom: NUMBER -> number
     | STRING -> text
     | (TRUE | FALSE) -> truth
     | (NAME | DOLLAR) -> name
     | NAME "(" [choice ((COMMA | SEMICOLON) choice)*] ")" -> call
     | (OR | AND) "(" choice (COMMA choice)* ")" -> call
     | "(" choice ")"
RELATION: "<=" | ">=" | "==" | "!=" | "<" | ">"
PLUS: "+" | "-"
TIMES: "*" | "/"
QUESTION: "?"
COMMA: ","
SEMICOLON: ";"
TRUE: "true"
FALSE: "false"
OR: "or"
BARS: "||"
AND: "and"
AMPERSANDS: "&&"
NOT: "not"
EXCLAMATION: "!"
NUMBER: /(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
STRING: /"[^"]*"|'[^']*'/
DOLLAR: /\$[A-Za-z_][A-Za-z0-9_]*/
NAME: /[A-Za-z_][A-Za-z0-9_]*/
%ignore /[ \t\r\n]+/
"""
_OPERATORS = {"&&": "and", "||": "or", "!": "not"}
_HINTS = {
    "=": "; use == to compare",
    "%": "; write a fraction 0..1",
    "^": "; there are no powers",
    "[": "; a value of a list cannot be taken out",
    "{": "; {...} is for texts; write the name alone",
    '"': "; the closing quote of this text is missing",
    "'": "; the closing quote of this text is missing",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an expression.

    kind: as it is parsed operation, not, sign, part (of a tuple), call, name, or constant; the
    compiler makes further kinds of calls and names. at: its first own character. word: its name,
    function or sign. marks: operators between the parts of an operation, or separators of a call.
    parts: its operands or arguments. value: of a constant. level: the ranks that it is of.
    """

    kind: str
    at: int
    word: str = ""
    marks: tuple[str, ...] = ()
    parts: tuple[Node, ...] = ()
    value: float | bool | str | None = None
    level: Literal["job", "gpu", "node"] = "job"


class _NodeBuilder(Transformer[Token, Node]):
    """Makes nodes while the parser runs."""

    def __default__(self, data: str, children: list[Any], meta: object) -> Any:
        if data.startswith("_"):
            # Lark's own rule of a repetition, which it puts into the rule around.
            return Tree(data, children)
        tokens = [child for child in children if isinstance(child, Token)]
        parts = tuple(child for child in children if isinstance(child, Node))
        at = tokens[0].start_pos or 0
        words = [_OPERATORS.get(token, str(token)) for token in tokens]
        if data == "operation":
            return Node(data, at, marks=tuple(words), parts=parts)
        if data == "choice":
            return Node("call", at, "if", (";", ";"), parts)
        word = words[0].removeprefix("$")
        if data in ("name", "call"):
            if len(word) > LONGEST_NAME:
                raise RuleError(f"a name longer than {LONGEST_NAME} letters", at=at)
            return Node(data, at, word, tuple(words[1:]), parts)
        if data in ("number", "text", "truth"):
            return Node("constant", at, value=_constant(data, words[0], at))
        return Node(data, at, word, parts=parts)


def _constant(kind: str, word: str, at: int) -> float | bool | str:
    if kind == "text":
        return word[1:-1]
    if kind == "truth":
        return word == "true"
    number = float(word)
    if len(word) > 100 or number == float("inf"):
        raise RuleError("a number too large to compute with", at=at)
    return number


@cache
def _parser() -> Lark:
    builder = cast("Any", _NodeBuilder())
    return Lark(
        GRAMMAR, parser="lalr", lexer="basic", transformer=builder, maybe_placeholders=False
    )


def parse(text: str, begin: int = 0, end: int | None = None) -> Node:
    """Return the tree of an expression, or of one that stands in a text from `begin` to `end`.

    Raises RuleError for the first mistake.

    >>> parse("a + 2 * b").parts[1].marks
    ('*',)
    """
    expression = " " * begin + text[begin:end]  # so nodes have their place in the text
    if len(expression) > LONGEST:
        message = f"an expression longer than {LONGEST} characters; divide it into terms"
        raise RuleError(message, text, 0)
    try:
        node = cast("Node", _parser().parse(expression))
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise RuleError(_odd_character(expression[at]), text, at) from None
    except UnexpectedToken as error:
        at = len(expression) if error.token.type == "$END" else error.token.start_pos or 0
        raise RuleError(_unexpected(error), text, at) from None
    except RuleError as error:
        raise RuleError(error.message, text, error.at) from None
    for inner, depth in walk(node):
        if depth > DEEPEST:
            message = f"nested deeper than {DEEPEST} levels; divide it into terms"
            raise RuleError(message, text, inner.at)
    return node


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield every node of a tree with its depth, left to right, without recursion.

    >>> [(node.kind, depth) for node, depth in walk(parse("max(a) + 1"))]
    [('operation', 0), ('call', 1), ('name', 2), ('constant', 1)]
    """
    stack = [(node, 0)]
    while stack:
        inner, depth = stack.pop()
        yield inner, depth
        stack += [(part, depth + 1) for part in reversed(inner.parts)]


def _odd_character(letter: str) -> str:
    if letter.isalpha():
        return f"names are made of letters a to z, digits and _, not of {letter!a}"
    return f"{printable(letter)} has no meaning here{_HINTS.get(letter, '')}"


def _unexpected(error: UnexpectedToken) -> str:
    token, accepted = error.token, error.accepts or error.expected
    if token.type == "$END":
        missing = "a )" if "RPAR" in accepted else "a value"
        return f"the expression ends too early: {missing} is missing"
    if token.type == "RPAR" and "$END" in accepted:
        return "this ) has no ( before it"
    if token.type == "RELATION" and "$END" in accepted:
        return f"{token} is a second comparison: an `and` is missing between them"
    missing = "an operator" if "TIMES" in accepted else "a value"
    return f"{missing} is missing before {str(token)[:40]}"
