"""Files of patterns as rules: terms, texts with placeholders, and mistakes with line and column.

Of each rule the first mistake is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from lark import Token

from tachograph.judge.rules.documents import Members, RuleError, cut, read
from tachograph.judge.rules.expression import LONGEST_NAME, SLIPS, Node, parse
from tachograph.judge.rules.model import (
    LoadedPatterns,
    Pattern,
    PatternRule,
    ProblemList,
    RuleLevel,
    RuleTerm,
    RuleText,
    TextPiece,
)

LONGEST_TEXT = 2_000  # characters of a text
DEEPEST = 4  # conditions within each other
MOST_RULES = 64  # of a file
MOST_TERMS = 64  # of a rule
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{LONGEST_NAME - 1}}}")
_WORDS = frozenset({"and", "or", "not", "true", "false", "RANK"})
_METRIC = re.compile(r"metric\((.*)\)")
_PLACE = re.compile(
    r"(?P<twice>\$\$|\{\{|\}\})"
    r"|\{\$?(?P<braced>[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second))?)\}"
    r"|\$(?P<dollar>[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second)\b)?)"
    r"|(?P<condition>(?<![A-Za-z0-9_])if\()"
)
_PERCENT = re.compile(r"\s?%")
_BYTES = re.compile(r"\s?(B/s|B)(?![A-Za-z0-9])")
_HOURS = re.compile(r"\s?(?:cpuh|gpuh|CPU-h|GPU-h|h)(?![A-Za-z0-9])")
_PATH = re.compile(r"\.(\w+)|\[(\d+)\]")
# `Overall` is a slip where it is the second of SelectMetric, and a word of a text elsewhere.
_SLIP = re.compile(rf"\b(?:{'|'.join(SLIPS)})\b".replace("Overall", r"Overall(?=\s*\))"))

_Tag = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{_NAME.pattern}\Z")]
_Term = Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=1)]
_Lines = str | list[str]


class _PatternDocument(msgspec.Struct):
    """Keys of a pattern, which a rule that stands alone may have as well."""

    name: str
    description: _Lines = ""
    criterion: _Lines = ""
    false_positives: _Lines = ""
    cures: _Lines = ""


class _RuleDocument(_PatternDocument, kw_only=True):
    """Keys of a rule, besides `metric(X)`."""

    tag: _Tag
    rule_terms: Annotated[list[_Term], msgspec.Meta(max_length=MOST_TERMS)]
    output: str
    id: _Tag = ""
    type: Literal["bool", "boolean"] = "bool"
    level: RuleLevel = "job"
    parameter: list[_Name] = []
    labels: dict[str, str] = {}
    output_metric: str = ""
    template: str = ""
    severity: str = ""
    advice: _Lines = ""
    check: str = ""
    family: str = ""


_DocumentType = TypeVar("_DocumentType", bound=_PatternDocument)


def load_patterns(text: str, file: str) -> LoadedPatterns:
    """Return the patterns of a file (JSON with comments) and its errors; never raises.

    The text holds one rule, one pattern (`description`, `criterion`, `false_positives`, `cures`,
    `rules`), or a list.
    """
    loader = _PatternLoader(ProblemList(file))
    patterns: list[Pattern] = []
    try:
        document = read(text)
        items = document if isinstance(document, list) else [document]
        patterns.extend(map(loader.pattern, items))
    except RuleError as error:
        loader.problems.add_error(error)
    problems = sorted(loader.problems.problems, key=lambda problem: (problem.line, problem.column))
    return LoadedPatterns(tuple(patterns), tuple(problems))


@dataclass(slots=True)
class _PatternLoader:
    """Reads the rules of a file, and collects what is wrong."""

    problems: ProblemList
    ids: set[str] = field(default_factory=set)

    def pattern(self, item: Any) -> Pattern:
        """Return a pattern, or a rule that stands alone as one. Raises RuleError."""
        if not isinstance(item, Members):
            raise RuleError("a rule or a pattern is an object: {...}")
        about = _converted(item, _PatternDocument)
        rules = [item]
        if "rules" in item:
            rules = item["rules"]
            self.warn_of_unknown(item, ("rules", *_PatternDocument.__struct_fields__))
            if not isinstance(rules, list):
                raise RuleError("rules is a list: [...]", item.written["rules"])
        loaded = [self.rule(rule, about.name) for rule in rules]
        return Pattern(
            str(about.name),
            _joined(about.description),
            _joined(about.criterion),
            _listed(about.false_positives),
            _listed(about.cures),
            tuple(rule for rule in loaded if rule is not None),
        )

    def rule(self, item: Any, pattern: str) -> PatternRule | None:
        """Return a rule; None, and its first mistake is noted, where it has one."""
        try:
            if not isinstance(item, Members):
                raise RuleError("a rule is an object: {...}", pattern)
            return self.read_rule(item)
        except RuleError as error:
            self.problems.add_error(error)
            return None
        finally:
            self.problems.term = ""

    def read_rule(self, item: Members) -> PatternRule:
        """Return a rule. Raises RuleError for its first mistake."""
        document = _converted(item, _RuleDocument)
        self.warn_of_unknown(item, _RuleDocument.__struct_fields__)
        identity = document.id or document.tag
        if identity in self.ids:
            raise RuleError(f"a second rule called {identity}; give each an `id`", identity)
        if len(self.ids) >= MOST_RULES:
            raise RuleError(f"a file with more than {MOST_RULES} rules; divide it", identity)
        self.ids.add(identity)
        terms: dict[str, RuleTerm] = {}
        parameters = [str(self.corrected(name)) for name in document.parameter]
        for member in item["rule_terms"]:  # those of the document do not know their places
            (name,), (expression,) = member.written.values(), member.values()
            term = self.term(name, expression)
            if term.name in terms:
                raise RuleError(f"a second term called {term.name}", name)
            terms[term.name] = term
            unlisted = "tolerance_wasted_work"  # so published
            if "tollerance_wasted_work" in expression and unlisted not in parameters:
                self.problems.warn(f"parameter {unlisted} is not listed", expression)
                parameters.append(unlisted)
        self.problems.term = ""
        return PatternRule(
            name=str(document.name),
            tag=str(document.tag),
            written_tag=document.tag,
            id=str(identity),
            level=document.level,
            terms=tuple(terms.values()),
            output=self.output(document.output, terms),
            file=self.problems.file,
            metrics=self.metrics(item),
            parameters=tuple(dict.fromkeys(parameters)),
            labels=_labels(document.labels, terms),
            output_metric=self.text(document.output_metric),
            template=self.text(document.template),
            severity=str(document.severity),
            advice=_joined(document.advice),
            check=str(document.check),
            family=str(document.family),
        )

    def term(self, name: str, expression: str) -> RuleTerm:
        """Return a term."""
        self.problems.term = str(SLIPS.get(name, name))
        if not _NAME.fullmatch(name) or name in _WORDS:
            self.problems.term = ""
            message = (
                f"{cut(name)!r} cannot name a term; use letters a to z, digits and _, "
                "no word of the language"
            )
            raise RuleError(message, name)
        meant = self.corrected(expression)
        return RuleTerm(str(self.corrected(name)), meant, parse(meant))

    def output(self, written: str, terms: Mapping[str, RuleTerm]) -> str:
        """Return the term that is the answer."""
        name = str(self.corrected(written))
        if name == "load_imbalance_alert" and name not in terms and "load_imbalance" in terms:
            name = "load_imbalance"  # so published
            self.problems.warn(f"there is no such term; {name} is taken", written)
        if name not in terms:
            message = f"the output {cut(name)!r} is not a term; name one of rule_terms"
            raise RuleError(message, written)
        return name

    def text(self, written: str) -> RuleText:
        """Return a text for the user; without pieces where the rule has none."""
        text = self.corrected(written)
        return RuleText(text, pieces_of(text))

    def metrics(self, item: Members) -> dict[str, str]:
        """Return {name in the rule: metric} of the keys `metric(X)`."""
        metrics = {}
        for key, name in item.items():
            match = _METRIC.fullmatch(key)
            if match is None:
                continue
            if (
                not isinstance(name, str)
                or not _NAME.fullmatch(name)
                or not _NAME.fullmatch(match[1])
            ):
                message = "metric(NAME) takes the name that the metric has in this rule"
                raise RuleError(message, item.written[key])
            metrics[str(self.corrected(name))] = match[1]
        return metrics

    def corrected(self, text: str) -> str:
        """Return a text with the known slips corrected, each with a warning."""
        slips = list(_SLIP.finditer(text))
        if not slips or not isinstance(text, Token):
            return text
        for slip in slips:
            self.problems.warn(f"{slip[0]} is taken as {SLIPS[slip[0]]}", text, slip.start())
        return text.update(value=_SLIP.sub(lambda slip: SLIPS[slip[0]], text))

    def warn_of_unknown(self, members: Members, known: tuple[str, ...]) -> None:
        """Warn of keys that mean nothing."""
        for key, written in members.written.items():
            if key not in known and not _METRIC.fullmatch(key):
                self.problems.warn(f"unknown key {cut(key)!r}", written)


def _converted(item: Members, document_type: type[_DocumentType]) -> _DocumentType:
    """Return an object of the file in its type. Raises RuleError with the key that does not fit."""
    try:
        return msgspec.convert(item, document_type)
    except msgspec.ValidationError as error:
        message, _, path = str(error).replace("`", "'").partition(" - at ")
        message = cut(message, 120)  # it may quote a value of any length
        name = path.strip("'$.")
        key = _PATH.match(path.strip("'$"))
        first = next(iter(item.written.values()), "")
        text = item.written.get(key[1], first) if key else first
        raise RuleError(f"{name}: {message}" if name else message, text) from None


def pieces_of(text: str) -> tuple[TextPiece, ...]:
    """Return a text in pieces: `{name}`, `$name`, and conditional `if(condition;text)`.

    `$$`, `{{` and `}}` stand for the characters themselves. A placeholder before % is shown in
    percent, one before `cpuh`, `GPU-h` or `h` in hours, one before `B` or `B/s` as GB or GB/s.
    Raises RuleError.

    >>> [piece.text for piece in pieces_of("ratio {ratio}%")]
    ['ratio ', 'ratio', '%']
    """
    if len(text) > LONGEST_TEXT:
        raise RuleError(f"a text longer than {LONGEST_TEXT} characters", text)
    return tuple(_pieces(text, 0, len(text), 0))


def _pieces(text: str, start: int, end: int, depth: int) -> Iterator[TextPiece]:
    plain = start
    while match := _PLACE.search(text, start, end):
        start = match.end()
        condition = _condition(text, match.end(), end) if match["condition"] else None
        if match["condition"] and condition is None:
            continue  # `if(` without a semicolon is text as any other
        if plain < match.start():
            yield TextPiece(text[plain : match.start()])
        if match["twice"]:
            yield TextPiece(match["twice"][0])
        elif condition is None:
            yield _placeholder(text, match, end)
            if unit := _BYTES.match(text, start, end):
                start = unit.end()  # shown with the value
        else:
            semicolon, start = condition
            if depth >= DEEPEST:
                message = f"conditions within conditions, more than {DEEPEST} deep"
                raise RuleError(message, text, match.start())
            node = parse(text, match.end(), semicolon)
            inner = tuple(_pieces(text, semicolon + 1, start - 1, depth + 1))
            yield TextPiece(text[match.end() : semicolon], node, inner=inner)
        plain = start
    if plain < end:
        yield TextPiece(text[plain:end])


def _placeholder(text: str, match: re.Match[str], end: int) -> TextPiece:
    group = "braced" if match["braced"] else "dollar"
    source, at = match[group], match.start(group)
    name, _, part = source.partition(".")
    node = Node("name", at, name)
    if part:
        node = Node("part", at + len(name) + 1, part, parts=(node,))
    unit = ""
    if _PERCENT.match(text, match.end(), end):
        unit = "%"
    elif _HOURS.match(text, match.end(), end):
        unit = "h"
    elif bytes_unit := _BYTES.match(text, match.end(), end):
        unit = bytes_unit[1]
    return TextPiece(source, node, unit)


def _condition(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the positions of semicolon and end of `if(condition;text)`; None without it."""
    depth, semicolon = 0, -1
    for index in range(start, end):
        letter = text[index]
        if letter == "(":
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif letter == ")":
            return (semicolon, index + 1) if semicolon >= 0 else None
        elif letter == ";" and not depth and semicolon < 0:
            semicolon = index
    return None


def _labels(labels: Mapping[str, str], terms: Mapping[str, RuleTerm]) -> dict[str, str]:
    for name, label in labels.items():
        if name.partition(".")[0] not in terms:
            raise RuleError(f"a label of {cut(name)!r}, which is not a term", label)
    return {name: str(label) for name, label in labels.items()}


def _listed(lines: _Lines) -> tuple[str, ...]:
    if isinstance(lines, str):
        return (str(lines),) if lines else ()
    return tuple(map(str, lines))


def _joined(lines: _Lines) -> str:
    return "\n".join(_listed(lines))
