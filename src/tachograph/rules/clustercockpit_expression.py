"""Expressions of ClusterCockpit's job classes (the language of expr-lang) as expressions of rules.

Numbers, texts, names with dots, `+ - * /`, comparisons, `&& || !` and their words, `c ? a : b`, abs, min and max are
translated; of whatever else there is, is told that it cannot be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

LONGEST, DEEPEST = 2_000, 30
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<text>"[^"\\]*"|'[^'\\]*')
    |(?P<name>[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)*)
    |(?P<mark>&&|\|\||==|!=|<=|>=|\*\*|\.\.|\?\?|\?\.|[-+*/%^<>!?:(),\[\]{}.\#|]))""",
    re.VERBOSE,
)
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_WORDS = {"&&": "and", "||": "or", "!": "not"}
_FUNCTIONS = {"abs": 1, "min": 2, "max": 2}  # {function: least arguments}


class UntranslatableError(Exception):
    """What has no counterpart here, in words."""


@dataclass(slots=True)
class _Translator:
    """Reads an expression once, from left to right."""

    tokens: list[tuple[str, str]]
    name: Callable[[str], str]
    text: Callable[[str], str]
    at: int = 0

    @property
    def now(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ("", "")

    def expect(self, mark: str) -> None:
        kind, token = self.take()
        if token != mark or kind == "text":
            raise UntranslatableError(f"{mark} is missing before {token or 'the end'}")

    def choice(self, depth: int) -> str:
        if depth > DEEPEST:
            raise UntranslatableError(f"brackets more than {DEEPEST} deep")
        condition = self.joined(depth, 0)
        if self.now != "?":
            return condition
        self.take()
        then = self.choice(depth + 1)
        self.expect(":")
        return f"if({condition}; {then}; {self.choice(depth + 1)})"

    def joined(self, depth: int, level: int) -> str:
        """`or` binds least, then `and`, comparisons, sums, products."""
        if level == len(_LEVELS):
            return self.signed(depth)
        left = self.joined(depth, level + 1)
        while self.now in _LEVELS[level]:
            operator = self.take()[1]
            right = self.joined(depth, level + 1)
            left = f"{left} {_WORDS.get(operator, operator)} {right}"
            if level == 2 and self.now in _LEVELS[level]:
                raise UntranslatableError(f"two comparisons in a row: {operator} and {self.now}")
        return left

    def signed(self, depth: int) -> str:
        if depth > DEEPEST:
            raise UntranslatableError(f"brackets more than {DEEPEST} deep")
        if self.now in ("!", "not"):
            self.take()
            return f"(not {self.signed(depth + 1)})"
        if self.now in ("-", "+"):
            sign = self.take()[1]
            return f"{'-' if sign == '-' else ''}{self.signed(depth + 1)}"
        return self.single(depth)

    def single(self, depth: int) -> str:
        kind, token = self.take()
        if kind == "number":
            return token.replace("_", "")
        if kind == "text":
            return self.text(token[1:-1])
        if kind == "name":
            found = self.call(token, depth) if self.now == "(" else token if token in _TRUTHS else self.name(token)
            if self.now in ("[", ".", "?.", "|", ".."):
                raise UntranslatableError(f"{token}{self.now} has no counterpart")
            return found
        if token == "(":
            inner = self.choice(depth + 1)
            self.expect(")")
            return f"({inner})"
        raise UntranslatableError(f"{token or 'the end'} where a value is expected")

    def call(self, function: str, depth: int) -> str:
        if function not in _FUNCTIONS:
            raise UntranslatableError(f"function {function}")
        self.take()
        given = [self.choice(depth + 1)]
        while self.now == ",":
            self.take()
            given.append(self.choice(depth + 1))
        self.expect(")")
        if len(given) < _FUNCTIONS[function] or (function == "abs" and len(given) > 1):
            raise UntranslatableError(f"{function} of {len(given)} values")
        return f"{function}({', '.join(given)})"


_LEVELS = (("||", "or"), ("&&", "and"), _COMPARISONS, ("+", "-"), ("*", "/"))
_TRUTHS = ("true", "false")


def translate(source: str, *, name: Callable[[str], str], text: Callable[[str], str]) -> str:
    """Return an expression in the language of rules; `name` and `text` say what names and texts in it become.

    Errors: UntranslatableError, saying what has no counterpart.

    >>> translate("a.avg > 0.5 && !(b == 1)", name=lambda n: n.replace(".", "_"), text=repr)
    'a_avg > 0.5 and (not (b == 1))'
    """
    translator = _Translator(_tokens(source), name, text)
    found = translator.choice(0)
    if translator.now:
        raise UntranslatableError(f"operator {translator.now}")
    return found


def _tokens(source: str) -> list[tuple[str, str]]:
    if len(source) > LONGEST:
        raise UntranslatableError(f"an expression longer than {LONGEST} characters")
    tokens, at = [], 0
    source = source.rstrip()
    while at < len(source):
        found = _TOKEN.match(source, at)
        if not found:
            raise UntranslatableError(f"{source[at : at + 1].strip() or source[at + 1 : at + 2]!r} has no meaning")
        tokens.append((found.lastgroup or "", found[found.lastgroup or 0]))
        at = found.end()
    return tokens
