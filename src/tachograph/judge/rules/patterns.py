"""Files of patterns as rules: terms, texts with placeholders, and every mistake with its line and column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tachograph.judge.rules.documents import Item, Members, cut, read
from tachograph.judge.rules.expression import (
    LONGEST,
    LONGEST_NAME,
    SLIPS,
    MalformedError,
    Name,
    Node,
    TuplePart,
    parse,
    slips,
    walk,
)
from tachograph.judge.rules.model import (
    LEVELS,
    LoadedPatterns,
    Pattern,
    PatternRule,
    ProblemSeverity,
    RuleLevel,
    RuleProblem,
    RuleTerm,
    Text,
    TextPiece,
)

LONGEST_TEXT = 2_000  # characters of a text
DEEPEST = 4  # conditions within each other
MOST_CONDITIONS = 20
MOST_PLACES = 40  # where a $ or { may stand for a value
_PLACE = re.compile(
    r"(?P<twice>\$\$|\{\{|\}\})"
    r"|\{(?P<braced>\$?[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second))?)\}"
    r"|(?P<dollar>\$[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second)\b)?)"
    r"|(?P<condition>(?<![A-Za-z0-9_])if\()"
)
_PERCENT = re.compile(r"\s?%")
_HOURS = re.compile(r"\s?(?:cpuh|gpuh|CPU-h|GPU-h|h)(?![A-Za-z0-9])")


def pieces_of(text: str) -> tuple[TextPiece, ...]:
    """Return a text in pieces; `{name}` and `$name` are placeholders, `if(condition;text)` a part under a condition.

    `$$`, `{{` and `}}` stand for the characters themselves. A placeholder before % is shown in percent, one before
    `cpuh`, `GPU-h` or `h` in hours. Errors: MalformedError.

    >>> [piece.text for piece in pieces_of("ratio {ratio}%")]
    ['ratio ', 'ratio', '%']
    """
    if len(text) > LONGEST_TEXT:
        raise MalformedError(0, f"a text longer than {LONGEST_TEXT} characters")
    if text.count("if(") > MOST_CONDITIONS:
        raise MalformedError(0, f"a text with more than {MOST_CONDITIONS} conditions")
    if sum(1 for found in _PLACE.finditer(text) if not found["condition"]) > MOST_PLACES:
        raise MalformedError(0, f"a text with more than {MOST_PLACES} placeholders")
    return _pieces(text, 0, len(text), 0)


def _pieces(text: str, at: int, end: int, depth: int) -> tuple[TextPiece, ...]:
    pieces: list[TextPiece] = []
    plain = at
    while found := _PLACE.search(text, at, end):
        at = found.end()
        condition = _condition(text, found.end(), end) if found["condition"] else None
        if found["condition"] and condition is None:
            continue  # `if(` without a semicolon is text as any other
        pieces += _plain(text[plain : found.start()])
        if found["twice"]:
            pieces.append(TextPiece(found["twice"][0]))
        elif condition is None:
            pieces.append(_placeholder(text, found, end))
        else:
            semicolon, at = condition
            if depth >= DEEPEST:
                raise MalformedError(found.start(), f"conditions within conditions, more than {DEEPEST} deep")
            node = _parsed(text[found.end() : semicolon], found.end())
            inner = _pieces(text, semicolon + 1, at - 1, depth + 1)
            pieces.append(TextPiece(text[found.end() : semicolon], node, inner=inner, at=found.end()))
        plain = at
    return (*pieces, *_plain(text[plain:end]))


def _plain(text: str) -> list[TextPiece]:
    return [TextPiece(text)] if text else []


def _placeholder(text: str, found: re.Match[str], end: int) -> TextPiece:
    name = found["braced"] or found["dollar"]
    at = found.start("braced" if found["braced"] else "dollar")
    unit: Literal["", "%", "h"] = ""
    if found.end() < end:
        unit = "%" if _PERCENT.match(text, found.end()) else "h" if _HOURS.match(text, found.end()) else ""
    name, _, part = name.removeprefix("$").partition(".")
    node: Node = Name(at, SLIPS.get(name, name))
    if part:
        node = TuplePart(at, node, part)
    return TextPiece(f"{name}.{part}" if part else name, node, unit, at=at)


def _parsed(source: str, at: int) -> Node:
    try:
        return parse(source)
    except MalformedError as problem:
        raise MalformedError(at + problem.at, problem.message) from None


def _condition(text: str, at: int, end: int) -> tuple[int, int] | None:
    """Return where the semicolon of `if(condition;text)` stands, and where it ends; None where it has none."""
    depth, semicolon = 0, -1
    for place in range(at, end):
        letter = text[place]
        if letter == "(":
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif letter == ")":
            return (semicolon, place + 1) if semicolon >= 0 else None
        elif letter == ";" and not depth and semicolon < 0:
            semicolon = place
    return None


MOST_RULES = 64  # of a file
MOST_TERMS = 64  # of a rule
MOST_TERMS_OF_FILE = 200
MOST_EXPRESSIONS = 2_500  # characters of all expressions and conditions of a file
MOST_PROBLEMS = 50
DETAILS = ("title", "severity", "advice", "hint", "unit", "check", "family")
_ABOUT = ("description", "criterion", "false_positives", "cures")
_RULE_KEYS = (
    *("name", "type", "tag", "id", "level", "parameter", "rule_terms"),
    *("output", "output_metric", "template"),
)
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{LONGEST_NAME - 1}}}")
_METRIC = re.compile(r"metric\((.*)\)")
_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")


def load_patterns(text: str, file: str) -> LoadedPatterns:
    """Return the patterns of a file (JSON, comments allowed) and what is wrong in it; it never raises.

    The text holds one rule, one pattern (`description`, `criterion`, `false_positives`, `cures`, `rules`), or a list.
    """
    loading = _Loading(file)
    item, mistakes, warnings = read(text)
    for mistake in mistakes:
        loading.problems.append(RuleProblem(file, mistake.line, mistake.column, "", mistake.message))
    for odd in warnings[:MOST_PROBLEMS]:
        loading.problems.append(RuleProblem(file, odd.line, odd.column, "", odd.message, "warning"))
    first = len(loading.problems)  # they explain much of what else is wrong
    patterns = tuple(loading.patterns(item)) if item is not None else ()
    others = sorted(loading.problems[first:], key=lambda problem: (problem.line, problem.column))
    return LoadedPatterns(() if mistakes else patterns, (*loading.problems[:first], *others))


@dataclass(slots=True)
class _Loading:
    """What was found in a file so far."""

    file: str
    problems: list[RuleProblem] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)  # {severity: problems}, also of those not kept
    expressions: int = 0  # characters
    rules: int = 0
    all_terms: int = 0
    ids: set[str] = field(default_factory=set)

    def problem(
        self, item: Item, message: str, *, term: str = "", at: int = -1, severity: ProblemSeverity = "error"
    ) -> None:
        """Note a problem of a value, or of the character `at` of a text."""
        self.counted[severity] += 1
        if self.counted[severity] > MOST_PROBLEMS:
            return
        column = item.column if at < 0 else item.column_of(at)
        self.problems.append(RuleProblem(self.file, item.line, column, term, message, severity))

    def patterns(self, item: Item) -> Iterator[Pattern]:
        for one in item.value if isinstance(item.value, list) and not isinstance(item.value, Members) else [item]:
            if not isinstance(one.value, Members):
                self.problem(one, "a rule or a pattern is an object: {...}")
                continue
            members = {str(name.value): (name, value) for name, value in one.value}
            if "rules" in members:
                yield self.pattern(one, members)
            elif (rule := self.rule(one, members)) is not None:
                yield self.about(members, rule.name, (rule,))

    def pattern(self, item: Item, members: dict[str, tuple[Item, Item]]) -> Pattern:
        for key, (name, _) in members.items():
            if key not in (*_ABOUT, "name", "rules"):
                self.problem(name, f"unknown key {cut(key)!r} of a pattern", severity="warning")
        rules = []
        for one in self.items(members["rules"][1], "rules"):
            if not isinstance(one.value, Members):
                self.problem(one, "a rule is an object: {...}")
                continue
            rule = self.rule(one, {str(name.value): (name, value) for name, value in one.value})
            rules += [] if rule is None else [rule]
        if "name" not in members:
            self.problem(item, "a pattern needs a name")
        return self.about(members, self.text(members, "name"), tuple(rules))

    def about(self, members: dict[str, tuple[Item, Item]], name: str, rules: tuple[PatternRule, ...]) -> Pattern:
        """Return the pattern with its descriptions."""
        false, cures = (tuple(self.lines(members, key)) for key in ("false_positives", "cures"))
        return Pattern(
            name, self.joined(members, "description"), self.joined(members, "criterion"), false, cures, rules
        )

    def items(self, item: Item, key: str) -> list[Item]:
        if isinstance(item.value, list) and not isinstance(item.value, Members):
            return item.value
        self.problem(item, f"{key} is a list: [...]")
        return []

    def text(self, members: dict[str, tuple[Item, Item]], key: str, default: str = "") -> str:
        if key not in members:
            return default
        item = members[key][1]
        if isinstance(item.value, str):
            return item.value
        self.problem(item, f"{key} is a text")
        return default

    def lines(self, members: dict[str, tuple[Item, Item]], key: str) -> Iterator[str]:
        """Yield the lines of a text, or of a list of texts."""
        if key not in members:
            return
        item = members[key][1]
        for one in [item] if isinstance(item.value, str) else self.items(item, key):
            if isinstance(one.value, str):
                yield one.value
            else:
                self.problem(one, f"{key} holds texts")

    def joined(self, members: dict[str, tuple[Item, Item]], key: str) -> str:
        return "\n".join(self.lines(members, key))

    def rule(self, item: Item, members: dict[str, tuple[Item, Item]]) -> PatternRule | None:
        """Return the rule; None where it has an error."""
        errors = self.counted["error"]
        self.rules += 1
        if self.rules > MOST_RULES:
            self.problem(item, f"a file with more than {MOST_RULES} rules; divide it")
            return None
        for key in ("name", "tag", "rule_terms", "output"):
            if key not in members:
                self.problem(item, f"a rule needs {key!r}")
        terms = self.terms(members["rule_terms"][1]) if "rule_terms" in members else ()
        tag = self.tag(members, "tag", "")
        made = PatternRule(
            name=self.text(members, "name"),
            tag=tag,
            id=self.tag(members, "id", tag),
            level=self.level(members),
            terms=terms,
            output=self.output(members, {term.name for term in terms}),
            file=self.file,
            line=item.line,
            column=item.column,
            metrics=self.metrics(members),
            parameters=self.parameters(members, terms),
            output_metric=self.template(members, "output_metric"),
            template=self.template(members, "template"),
            details={key: self.joined(members, key) for key in DETAILS if key in members},
        )
        if made.id in self.ids:
            self.problem(item, f"a second rule called {made.id}; give each an `id`")
        self.ids.add(made.id)
        return made if self.counted["error"] == errors else None

    def tag(self, members: dict[str, tuple[Item, Item]], key: str, default: str) -> str:
        tag = self.text(members, key, default)
        if key in members and not _TAG.fullmatch(tag):
            self.problem(members[key][1], f"{key} is made of up to 64 letters a to z, digits, _ and -")
            return default
        return tag

    def level(self, members: dict[str, tuple[Item, Item]]) -> RuleLevel:
        if self.text(members, "type", "bool") not in ("bool", "boolean"):
            self.problem(members["type"][1], 'the type of a rule is "bool"')
        written = self.text(members, "level", "job")
        for level in LEVELS:
            if level == written:
                return level
        self.problem(members["level"][1], f"level is one of {', '.join(LEVELS)}")
        return "job"

    def metrics(self, members: dict[str, tuple[Item, Item]]) -> dict[str, str]:
        """Return {name in the rule: metric}; report keys that mean nothing."""
        metrics = {}
        for key, (name, value) in members.items():
            if found := _METRIC.fullmatch(key):
                if not _NAME.fullmatch(found[1]):
                    self.problem(name, f"{cut(found[1])!r} is no name of a metric")
                elif isinstance(value.value, str) and _NAME.fullmatch(value.value):
                    metrics[SLIPS.get(value.value, value.value)] = found[1]
                else:
                    self.problem(value, f"what {found[1]} is called in the rule is a name")
            elif key not in (*_RULE_KEYS, *DETAILS, *_ABOUT):
                self.problem(name, f"unknown key {cut(key)!r}", severity="warning")
        return metrics

    def parameters(self, members: dict[str, tuple[Item, Item]], terms: tuple[RuleTerm, ...]) -> tuple[str, ...]:
        names: dict[str, None] = {}
        listed = self.items(members["parameter"][1], "parameter") if "parameter" in members else []
        for one in listed:
            if isinstance(one.value, str) and _NAME.fullmatch(one.value):
                self.slips(one, "")
                names[SLIPS.get(one.value, one.value)] = None
            else:
                self.problem(one, "a parameter is a name")
        meant = "tolerance_wasted_work"  # published with this slip, and not listed
        used = (term for term in terms for node, _ in walk(term.node) if isinstance(node, Name) and node.name == meant)
        if meant not in names and (term := next(used, None)) is not None and "tollerance" in term.source:
            item = Item(term.source, term.line, term.column, term.raw)
            self.problem(item, f"parameter {meant} is not listed", term=term.name, severity="warning")
            names[meant] = None
        return tuple(names)

    def terms(self, item: Item) -> tuple[RuleTerm, ...]:
        found: dict[str, RuleTerm] = {}
        listed = self.items(item, "rule_terms")
        if len(listed) > MOST_TERMS:
            self.problem(item, f"a rule with more than {MOST_TERMS} terms")
            return ()
        self.all_terms += len(listed)
        if self.all_terms > MOST_TERMS_OF_FILE:
            self.problem(item, f"a file with more than {MOST_TERMS_OF_FILE} terms; divide it")
            return ()
        for one in listed:
            if not isinstance(one.value, Members) or len(one.value) != 1:
                self.problem(one, 'a term is an object with one member: {"name": "expression"}')
                continue
            term = self.term(*one.value[0])
            if term is not None and term.name in found:
                self.problem(one.value[0][0], f"a second term called {term.name}", term=term.name)
            elif term is not None:
                found[term.name] = term
        return tuple(found.values())

    def term(self, name: Item, value: Item) -> RuleTerm | None:
        written = str(name.value)
        if not _NAME.fullmatch(written) or written in ("and", "or", "not", "true", "false", "RANK"):
            self.problem(
                name, f"{cut(written)!r} is no name of a term: letters a to z, digits and _, no word of the language"
            )
            return None
        called = SLIPS.get(written, written)
        if not isinstance(value.value, str):
            self.problem(value, "an expression is a text", term=called)
            return None
        self.slips(name, called)
        self.slips(value, called)
        try:
            if len(value.value) <= LONGEST:
                self.count(len(value.value))
            return RuleTerm(called, value.value, parse(value.value), value.line, value.column, value.raw)
        except MalformedError as problem:
            self.problem(value, problem.message, term=called, at=problem.at)
            return None

    def count(self, characters: int) -> None:
        self.expressions += characters
        if self.expressions > MOST_EXPRESSIONS:
            raise MalformedError(0, f"more than {MOST_EXPRESSIONS} characters of expressions in a file; divide it")

    def slips(self, item: Item, term: str) -> None:
        for at, slip in slips(str(item.value)):
            self.problem(item, f"{slip} is taken as {SLIPS[slip]}", term=term, at=at, severity="warning")

    def output(self, members: dict[str, tuple[Item, Item]], terms: set[str]) -> str:
        written = self.text(members, "output")
        if "output" not in members:
            return written
        item = members["output"][1]
        self.slips(item, "")
        meant = SLIPS.get(written, written)
        if meant == "load_imbalance_alert" and meant not in terms and "load_imbalance" in terms:
            meant = "load_imbalance"  # so published
            self.problem(item, f"there is no such term; {meant} is taken", severity="warning")
        if meant not in terms:
            self.problem(item, f"the output {cut(meant)!r} is no term")
        return meant

    def template(self, members: dict[str, tuple[Item, Item]], key: str) -> Text:
        source = self.text(members, key)
        if not source:
            return Text("")
        item = members[key][1]
        self.slips(item, "")
        try:
            self.count(len(source) if "if(" in source else 0)
            return Text(source, pieces_of(source), item.line, item.column, item.raw)
        except MalformedError as problem:
            self.problem(item, f"{key}: {problem.message}", at=problem.at)
            return Text("")
