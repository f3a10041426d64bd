"""The part of PromQL that is answered: selectors, functions over time, aggregations, arithmetic with numbers.

    avg by (node) (tachograph_job_gpu_util{user="ann", gpu=~"0|1"})
    100 * max_over_time(tachograph_job_sm_active[10m])

The parser is lark's LALR parser; number of tokens and length are limited before anything is walked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError

from tachograph.catalog.errors import UsageError

LONGEST = 4_000  # characters
MOST_TOKENS = 150
SUPPORTED = (
    'supported: selectors such as tachograph_job_gpu_util{user="ann"} with =, !=, =~, !~; sum, avg, min, max, count '
    "with by or without; avg_over_time, min_over_time, max_over_time, sum_over_time, count_over_time; "
    "+ - * / with a number"
)
GRAMMAR = r"""
?start: sum
?sum: product
    | sum PLUS product -> binary
    | sum MINUS product -> binary
?product: unary
    | product STAR unary -> binary
    | product SLASH unary -> binary
?unary: atom
    | MINUS unary -> negative
    | PLUS unary -> positive
?atom: NUMBER -> number
    | selector
    | over_time
    | aggregation
    | "(" sum ")"
over_time: OVER "(" selector "[" DURATION "]" ")"
aggregation: AGGREGATE "(" sum ")"
    | AGGREGATE grouping "(" sum ")" -> grouped_before
    | AGGREGATE "(" sum ")" grouping -> grouped_behind
grouping: GROUPING "(" [NAME ("," NAME)* [","]] ")"
selector: NAME ["{" [matchers] "}"]
    | "{" matchers "}" -> nameless
matchers: matcher ("," matcher)* [","]
matcher: NAME MATCH STRING
AGGREGATE.3: /(?:sum|avg|min|max|count)(?![\w:])/
OVER.3: /(?:avg|min|max|sum|count)_over_time(?![\w:])/
GROUPING.3: /(?:by|without)(?![\w:])/
NUMBER.2: /(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])/
DURATION: /(?:[0-9]+(?:ms|[smhdwy]))+/
NAME: /[a-zA-Z_:][a-zA-Z0-9_:]*/
MATCH: "=~" | "!~" | "!=" | "="
STRING: /"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`/
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
COMMENT: /#[^\n]*/
%ignore COMMENT
%ignore /[ \t\r\n]+/
"""
_DURATIONS_MS = {
    "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000,
}  # fmt: skip
_PART = re.compile(r"([0-9]+)(ms|[smhdwy])")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """`name op value`; op: =, !=, =~ (the whole value matches the expression), !~. An absent label is ""."""

    name: str
    op: str
    value: str


@dataclass(frozen=True, slots=True)
class SeriesSelector:
    """Series whose labels meet all matchers; the name of the metric is the label __name__."""

    matchers: tuple[LabelMatcher, ...]


@dataclass(frozen=True, slots=True)
class OverTime:
    """`function` (avg, min, max, sum, count) over the samples of the last `length_ms`."""

    function: str
    selector: SeriesSelector
    length_ms: int


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`function` over series that have the same `labels`; without: that have the same other labels."""

    function: str
    inner: PromExpression
    labels: tuple[str, ...] = ()
    without: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left op right`, of which one at least is a number."""

    op: str
    left: PromExpression
    right: PromExpression


PromExpression: TypeAlias = float | SeriesSelector | OverTime | Aggregation | Arithmetic


def parse_promql(written: str) -> PromExpression:
    """Return what a query means.

    >>> parse_promql('sum by (node) (m{gpu!="0"})').labels
    ('node',)

    Errors: UsageError with the place, and what is supported.
    """
    if len(written) > LONGEST:
        raise UsageError(f"the query has {len(written):,} characters", do=f"write at most {LONGEST:,}")
    try:
        tokens = sum(1 for _ in _parser().lex(written, dont_ignore=False))
    except UnexpectedInput as problem:
        raise _wrong(written, problem) from None
    if tokens > MOST_TOKENS:
        raise UsageError(f"the query has {tokens} words and marks", do=f"write at most {MOST_TOKENS}")
    try:
        tree = _parser().parse(written)
    except UnexpectedInput as problem:
        raise _wrong(written, problem) from None
    try:
        parsed: PromExpression = _Meaning().transform(tree)
    except VisitError as problem:
        raise problem.orig_exc from None
    return parsed


def parse_selector(written: str) -> SeriesSelector:
    """Return the selector of `match[]`. Errors: UsageError where it is another expression."""
    parsed = parse_promql(written)
    if not isinstance(parsed, SeriesSelector):
        raise UsageError(f"{written!r} is no selector of series", do=SUPPORTED)
    return parsed


def duration_ms(written: str) -> int:
    """Return milliseconds.

    >>> duration_ms("1h30m")
    5400000
    """
    return sum(int(number) * _DURATIONS_MS[unit] for number, unit in _PART.findall(written))


def is_duration(written: str) -> bool:
    """Whether it is written as one.

    >>> is_duration("1h30m"), is_duration("15")
    (True, False)
    """
    return bool(written) and not _PART.sub("", written)


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=False)


def _wrong(written: str, problem: UnexpectedInput) -> UsageError:
    at = -1 if problem.pos_in_stream is None else problem.pos_in_stream
    if at < 0 or (isinstance(problem, UnexpectedToken) and problem.token.type == "$END"):
        at = len(written)
    where = f"unexpected {written[at : at + 20]!r}" if at < len(written) else "unexpected end"
    return UsageError(f"parse error: 1:{at + 1}: {where}", do=SUPPORTED)


def _text(token: str) -> str:
    if token[0] == "`":
        return token[1:-1]

    def one(found: re.Match[str]) -> str:
        name = found[1]
        if name[0] in "xu" and len(name) > 1:
            return chr(int(name[1:], 16))
        if name not in _ESCAPED:
            raise UsageError(f"parse error: unknown escape sequence \\{name}", do="write \\\\ for a backslash")
        return _ESCAPED[name]

    return _ESCAPE.sub(one, token[1:-1])


@v_args(inline=True)
class _Meaning(Transformer[Token, Any]):
    """Makes a tree an expression."""

    def number(self, token: Token) -> float:
        return float(token)

    def negative(self, _: Token, value: PromExpression) -> PromExpression:
        return Arithmetic("*", -1.0, value)

    def positive(self, _: Token, value: PromExpression) -> PromExpression:
        return value

    def binary(self, left: PromExpression, op: Token, right: PromExpression) -> Arithmetic:
        return Arithmetic(str(op), left, right)

    def matcher(self, name: Token, op: Token, value: Token) -> LabelMatcher:
        return LabelMatcher(str(name), str(op), _text(value))

    def matchers(self, *found: LabelMatcher) -> Sequence[LabelMatcher]:
        return found

    def selector(self, name: Token, matchers: Sequence[LabelMatcher] = ()) -> SeriesSelector:
        return SeriesSelector((LabelMatcher("__name__", "=", str(name)), *matchers))

    def nameless(self, matchers: Sequence[LabelMatcher]) -> SeriesSelector:
        return SeriesSelector(tuple(matchers))

    def over_time(self, name: Token, selector: SeriesSelector, length: Token) -> OverTime:
        return OverTime(name.removesuffix("_over_time"), selector, duration_ms(length))

    def grouping(self, kind: Token, *labels: Token) -> tuple[bool, tuple[str, ...]]:
        return kind == "without", tuple(map(str, labels))

    def aggregation(self, name: Token, inner: PromExpression) -> Aggregation:
        return Aggregation(str(name), inner)

    def grouped_before(self, name: Token, grouping: tuple[bool, tuple[str, ...]], inner: PromExpression) -> Aggregation:
        return Aggregation(str(name), inner, grouping[1], grouping[0])

    def grouped_behind(self, name: Token, inner: PromExpression, grouping: tuple[bool, tuple[str, ...]]) -> Aggregation:
        return self.grouped_before(name, grouping, inner)
