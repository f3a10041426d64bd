"""Files of patterns as rules: terms, texts with placeholders, and every mistake with its line
and column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from tachograph.judge.rules.documents import Item, MalformedDocumentError, cut, read
from tachograph.judge.rules.expression import (
    LONGEST_NAME,
    SLIPS,
    MalformedError,
    Node,
    parse,
    slips,
)
from tachograph.judge.rules.model import (
    LoadedPatterns,
    Pattern,
    PatternRule,
    ProblemSeverity,
    RuleLevel,
    RuleProblem,
    RuleTerm,
    RuleText,
    TextPiece,
)

LONGEST_TEXT = 2_000  # characters of a text
DEEPEST = 4  # conditions within each other
MOST_RULES = 64  # of a file
MOST_TERMS = 64  # of a rule
_MOST_PROBLEMS = 50
DETAILS = ("severity", "advice", "check", "family")
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{LONGEST_NAME - 1}}}")
_METRIC = re.compile(r"metric\((.*)\)")
_PLACE = re.compile(
    r"(?P<twice>\$\$|\{\{|\}\})"
    r"|\{\$?(?P<braced>[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second))?)\}"
    r"|\$(?P<dollar>[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second)\b)?)"
    r"|(?P<condition>(?<![A-Za-z0-9_])if\()"
)
_PERCENT = re.compile(r"\s?%")
_HOURS = re.compile(r"\s?(?:cpuh|gpuh|CPU-h|GPU-h|h)(?![A-Za-z0-9])")
_PATH = re.compile(r"\.(\w+)|\[(\d+)\]")

_Tag = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{_NAME.pattern}$")]
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
    rule_terms: Annotated[list[Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=1)]],
                          msgspec.Meta(max_length=MOST_TERMS)]  # fmt: skip
    output: str
    id: _Tag = ""
    type: Literal["bool", "boolean"] = "bool"
    level: RuleLevel = "job"
    parameter: list[_Name] = []
    output_metric: str = ""
    template: str = ""
    severity: str = ""
    advice: _Lines = ""
    check: str = ""
    family: str = ""


def pieces_of(text: str) -> tuple[TextPiece, ...]:
    """Return a text in pieces; `{name}` and `$name` are placeholders, `if(condition;text)` a part
    under a condition.

    `$$`, `{{` and `}}` stand for the characters themselves. A placeholder before % is shown in
    percent, one before `cpuh`, `GPU-h` or `h` in hours. Raises MalformedError.

    >>> [piece.text for piece in pieces_of("ratio {ratio}%")]
    ['ratio ', 'ratio', '%']
    """
    if len(text) > LONGEST_TEXT:
        raise MalformedError(0, f"a text longer than {LONGEST_TEXT} characters")
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
        else:
            semicolon, start = condition
            if depth >= DEEPEST:
                raise MalformedError(
                    match.start(), f"conditions within conditions, more than {DEEPEST} deep"
                )
            source = text[match.end() : semicolon]
            inner = tuple(_pieces(text, semicolon + 1, start - 1, depth + 1))
            yield TextPiece(source, _parsed(source, match.end()), inner=inner, start=match.end())
        plain = start
    if plain < end:
        yield TextPiece(text[plain:end])


def _placeholder(text: str, match: re.Match[str], end: int) -> TextPiece:
    group = "braced" if match["braced"] else "dollar"
    name, _, part = match[group].partition(".")
    name = SLIPS.get(name, name)
    node = Node("name", 0, name)
    if part:
        node = Node("part", len(name) + 1, part, "", (node,))
    unit = ""
    if match.end() < end and _PERCENT.match(text, match.end()):
        unit = "%"
    elif match.end() < end and _HOURS.match(text, match.end()):
        unit = "h"
    return TextPiece(f"{name}.{part}" if part else name, node, unit, start=match.start(group))


def _parsed(source: str, start: int) -> Node:
    try:
        return parse(source)
    except MalformedError as error:
        raise MalformedError(start + error.at, error.message) from None


def _condition(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return where the semicolon of `if(condition;text)` stands, and where it ends; None where
    it has none.
    """
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


def load_patterns(text: str, file: str) -> LoadedPatterns:
    """Return the patterns of a file (JSON, comments allowed) and what is wrong in it; it never
    raises.

    The text holds one rule, one pattern (`description`, `criterion`, `false_positives`, `cures`,
    `rules`), or a list.
    """
    loader = _PatternLoader(file)
    try:
        document = read(text)
    except MalformedDocumentError as error:
        return LoadedPatterns((), (RuleProblem(file, error.line, error.column, "", error.message),))
    items = document.value if isinstance(document.value, list) else [document]
    patterns = [pattern for item in items if (pattern := loader.pattern(item)) is not None]
    problems = sorted(loader.problems, key=lambda problem: (problem.line, problem.column))
    return LoadedPatterns(tuple(patterns), tuple(problems[:_MOST_PROBLEMS]))


@dataclass(slots=True)
class _PatternLoader:
    """Reads the rules of a file, and collects what is wrong."""

    file: str
    problems: list[RuleProblem] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def problem(
        self,
        item: Item,
        message: str,
        *,
        term: str = "",
        at: int | None = None,
        severity: ProblemSeverity = "error",
    ) -> None:
        """Note a problem of a value, or of the character `at` of a text."""
        column = item.column if at is None else item.column_of(at)
        self.problems.append(RuleProblem(self.file, item.line, column, term, message, severity))

    @property
    def errors(self) -> int:
        """Number of errors so far."""
        return sum(problem.severity == "error" for problem in self.problems)

    def pattern(self, item: Item) -> Pattern | None:
        """Return a pattern, or a rule that stands alone as one; None where it has an error."""
        if not isinstance(item.value, dict):
            self.problem(item, "a rule or a pattern is an object: {...}")
            return None
        if "rules" not in item.value:
            rule = self.rule(item)
            about = None if rule is None else self.converted(item, _PatternDocument)
            return None if about is None else _pattern(about, [rule])
        members = dict(item.value)
        listed = members.pop("rules")[1]
        self.warn_of_unknown(members, (*_PatternDocument.__struct_fields__,))
        about = self.converted(item, _PatternDocument)
        if not isinstance(listed.value, list):
            self.problem(listed, "rules is a list: [...]")
            return None
        return (
            None
            if about is None
            else _pattern(about, [self.rule(member) for member in listed.value])
        )

    def converted(self, item: Item, document_type: type[Any]) -> Any:
        """Return an object of the file in its type; None, and a problem at its value, where it
        does not fit.
        """
        try:
            return msgspec.convert(item.plain(), document_type)
        except msgspec.ValidationError as error:
            message, _, path = str(error).replace("`", "'").partition(" - at ")
            for key, index in _PATH.findall(path):
                if isinstance(item.value, dict) and key in item.value:
                    item = item.value[key][1]
                elif isinstance(item.value, list) and index:
                    item = item.value[int(index)]
            message = cut(message, 120)  # it may quote a value of any length
            key = path.strip("'$.")
            self.problem(item, f"{key}: {message}" if key else message)
            return None

    def warn_of_unknown(
        self, members: dict[str, tuple[Item, Item]], known: tuple[str, ...]
    ) -> None:
        """Warn of keys that mean nothing."""
        for key, (name, _) in members.items():
            if key not in known and not _METRIC.fullmatch(key):
                self.problem(name, f"unknown key {cut(key)!r}", severity="warning")

    def rule(self, item: Item) -> PatternRule | None:
        """Return the rule; None where it has an error."""
        if not isinstance(item.value, dict):
            self.problem(item, "a rule is an object: {...}")
            return None
        if len(self.ids) >= MOST_RULES:
            self.problem(item, f"a file with more than {MOST_RULES} rules; divide it")
            return None
        document = self.converted(item, _RuleDocument)
        if document is None:
            return None
        errors = self.errors
        values = {key: value for key, (_, value) in item.value.items()}
        self.warn_of_unknown(item.value, _RuleDocument.__struct_fields__)
        terms = self.terms(values["rule_terms"])
        rule = PatternRule(
            name=document.name,
            tag=document.tag,
            id=document.id or document.tag,
            level=document.level,
            terms=terms,
            output=self.output(values["output"], {term.name for term in terms}),
            file=self.file,
            item=item,
            metrics=self.metrics(item.value),
            parameters=self.parameters(values.get("parameter"), terms),
            output_metric=self.text(values, "output_metric"),
            template=self.text(values, "template"),
            details={key: _joined(getattr(document, key)) for key in DETAILS if key in values},
        )
        if rule.id in self.ids:
            self.problem(item, f"a second rule called {rule.id}; give each an `id`")
        self.ids.add(rule.id)
        return rule if self.errors == errors else None

    def metrics(self, members: dict[str, tuple[Item, Item]]) -> dict[str, str]:
        """Return {name in the rule: metric} of the keys `metric(X)`."""
        metrics = {}
        for key, (_, item) in members.items():
            if not (match := _METRIC.fullmatch(key)):
                continue
            name = str(item.value)
            if _NAME.fullmatch(name) and _NAME.fullmatch(match[1]):
                metrics[SLIPS.get(name, name)] = match[1]
            else:
                self.problem(item, "metric(NAME) takes the name that the metric has in this rule")
        return metrics

    def parameters(self, item: Item | None, terms: tuple[RuleTerm, ...]) -> tuple[str, ...]:
        """Return the listed parameters, and the one that was published without being listed."""
        names: dict[str, None] = {}
        for listed in item.value if item is not None and isinstance(item.value, list) else []:
            self.warn_of_slips(listed, "")
            name = str(listed.value)
            names[SLIPS.get(name, name)] = None
        meant = "tolerance_wasted_work"
        for term in terms:
            if meant not in names and "tollerance_wasted_work" in term.source:
                message = f"parameter {meant} is not listed"
                self.problem(term.item, message, term=term.name, severity="warning")
                names[meant] = None
        return tuple(names)

    def terms(self, listed: Item) -> tuple[RuleTerm, ...]:
        """Return the terms that can be parsed."""
        terms: dict[str, RuleTerm] = {}
        for item in listed.value if isinstance(listed.value, list) else []:
            assert isinstance(item.value, dict)
            ((name, expression),) = item.value.values()
            term = self.term(name, expression)
            if term is not None and term.name in terms:
                self.problem(name, f"a second term called {term.name}", term=term.name)
            elif term is not None:
                terms[term.name] = term
        return tuple(terms.values())

    def term(self, name: Item, expression: Item) -> RuleTerm | None:
        """Return a term; None where it cannot be parsed."""
        written = str(name.value)
        if not _NAME.fullmatch(written) or written in ("and", "or", "not", "true", "false", "RANK"):
            message = (
                f"{cut(written)!r} cannot name a term; use letters a to z, digits and _, "
                "no word of the language"
            )
            self.problem(name, message)
            return None
        meant = SLIPS.get(written, written)
        self.warn_of_slips(name, meant)
        self.warn_of_slips(expression, meant)
        try:
            return RuleTerm(meant, parse(str(expression.value)), expression)
        except MalformedError as error:
            self.problem(expression, error.message, term=meant, at=error.at)
            return None

    def warn_of_slips(self, item: Item, term: str) -> None:
        """Warn of the known slips in a text."""
        for at, slip in slips(str(item.value)):
            self.problem(
                item, f"{slip} is taken as {SLIPS[slip]}", term=term, at=at, severity="warning"
            )

    def output(self, item: Item, terms: set[str]) -> str:
        """Return the term that is the answer."""
        self.warn_of_slips(item, "")
        name = SLIPS.get(str(item.value), str(item.value))
        if name == "load_imbalance_alert" and name not in terms and "load_imbalance" in terms:
            name = "load_imbalance"  # so published
            self.problem(item, f"there is no such term; {name} is taken", severity="warning")
        if name not in terms:
            self.problem(item, f"the output {cut(name)!r} is not a term; name one of rule_terms")
        return name

    def text(self, values: dict[str, Item], key: str) -> RuleText:
        """Return a text for the user; without pieces where the rule has none."""
        item = values.get(key)
        if item is None:
            return RuleText(Item("", 1, 1))
        self.warn_of_slips(item, "")
        try:
            return RuleText(item, pieces_of(str(item.value)))
        except MalformedError as error:
            self.problem(item, f"{key}: {error.message}", at=error.at)
            return RuleText(item)


def _pattern(about: _PatternDocument, rules: list[PatternRule | None]) -> Pattern:
    return Pattern(
        about.name,
        _joined(about.description),
        _joined(about.criterion),
        _listed(about.false_positives),
        _listed(about.cures),
        tuple(rule for rule in rules if rule is not None),
    )


def _listed(lines: _Lines) -> tuple[str, ...]:
    if isinstance(lines, str):
        return (lines,) if lines else ()
    return tuple(lines)


def _joined(lines: _Lines) -> str:
    return "\n".join(_listed(lines))
