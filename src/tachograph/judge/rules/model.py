"""What rules are made of, problems in them, and what comes of evaluating one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from tachograph.catalog.arrays import Flags, Longs
from tachograph.judge.rules.documents import RuleError, place_of
from tachograph.judge.rules.expression import Node

RuleLevel = Literal["job", "gpu", "node"]


class RulePair(NamedTuple):
    """What `make_tuple(first, second)` returns."""

    first: Scalar
    second: Scalar


Scalar = float | bool | str | None  # None: unknown
Value = Scalar | RulePair | list[float | bool | str | RulePair | None]
ProblemSeverity = Literal["error", "warning"]
VERDICTS: Mapping[bool | None, Literal["yes", "no", "unknown"]] = {
    True: "yes",
    False: "no",
    None: "unknown",
}  # of alerts
LONGEST_TEXT = 200  # characters of a name or text of a job; what is longer is cut


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """Something wrong in a file of rules. line and column begin at 1. term: "" where it is in none.

    A rule with an error is not run; one with warnings is.
    """

    file: str
    line: int
    column: int
    term: str
    message: str
    severity: ProblemSeverity = "error"

    def __str__(self) -> str:
        """`file:line:column: error: message (term x)`.

        >>> str(RuleProblem("a.json", 3, 7, "waste", "unknown name 'wrk'"))
        "a.json:3:7: error: unknown name 'wrk' (term waste)"
        """
        term = f" (term {self.term})" if self.term else ""
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}{term}"


@dataclass(slots=True)
class ProblemList:
    """Collects the problems of a file. term: the one that is read at the moment."""

    file: str
    problems: list[RuleProblem] = field(default_factory=list)
    term: str = ""

    def add_error(self, error: RuleError) -> None:
        """Note an error."""
        problem = RuleProblem(self.file, *error.place, self.term, error.message)
        self.problems.append(problem)

    def warn(self, message: str, text: str, at: int | None = None) -> None:
        """Note a warning about a text of the file, or a character of it."""
        place = place_of(text, at)
        self.problems.append(RuleProblem(self.file, *place, self.term, message, "warning"))


@dataclass(frozen=True, slots=True)
class RuleMetric:
    """One metric that rules may use, with one value per job, GPU or node, by its level.

    positive: it is never 0 nor negative, so that dividing by it is safe.
    """

    name: str
    level: RuleLevel
    unit: str = ""
    text: bool = False
    positive: bool = False


@dataclass(frozen=True, slots=True)
class RuleTerm:
    """One term: its name with slips corrected, its expression as text and as a tree."""

    name: str
    text: str
    node: Node

    @property
    def source(self) -> str:
        """The expression as it is written."""
        return str(self.text)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of a user text: plain `text`, a value, or a conditional part.

    `node`: the value, shown in `unit` ("", "%", "h" or of bytes); or the condition of `inner`. Beside a
    `node`, `text` is its source.
    """

    text: str = ""
    node: Node | None = None
    unit: str = ""
    inner: tuple[TextPiece, ...] | None = None


@dataclass(frozen=True, slots=True)
class RuleText:
    """A text for the user as it is written, and in pieces."""

    text: str = ""
    pieces: tuple[TextPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class PatternRule:
    """One rule as it stands in a file, its expressions parsed.

    tag: its short name, by which it is switched off and given parameters; rules may share one; written_tag: with its
    place in the file. id:
    its own name, the tag where it has none. level: what is judged; below the job, each GPU or node
    by itself. metrics: {name in the rule: metric} of its `metric(...)` keys. parameters: the names
    it lists. output: the term that alerts. labels:
    {term, or part of one: what people call it}. The last four are "" where it does not say.
    """

    name: str
    tag: str
    written_tag: str
    id: str
    level: RuleLevel
    terms: tuple[RuleTerm, ...]
    output: str
    file: str
    metrics: Mapping[str, str]
    parameters: tuple[str, ...]
    labels: Mapping[str, str]
    output_metric: RuleText
    template: RuleText
    severity: str
    advice: str
    check: str
    family: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A performance pattern: description, symptoms, false positives, remedies, its rules."""

    name: str
    description: str
    criterion: str
    false_positives: tuple[str, ...]
    cures: tuple[str, ...]
    rules: tuple[PatternRule, ...]


@dataclass(frozen=True, slots=True)
class LoadedPatterns:
    """Patterns of a file, and its errors; without rules that cannot be parsed."""

    patterns: tuple[Pattern, ...]
    problems: tuple[RuleProblem, ...]

    @property
    def rules(self) -> tuple[PatternRule, ...]:
        """The rules of all patterns."""
        return tuple(rule for pattern in self.patterns for rule in pattern.rules)


class Ranks(Protocol):
    """A job's data for rules. Sequences are in the order of `labels(kind)`; None: not measured."""

    def labels(self, kind: RuleLevel) -> Sequence[str]:
        """Return the names of the job's GPUs or nodes."""

    def of_ranks(self, metric: str) -> Sequence[float | str | None] | None:
        """Return a metric over the whole job by GPU or node; None without any."""

    def of_job(self, metric: str) -> float | str | None:
        """Return a metric of the job."""


class JobMetrics(Protocol):
    """Data of `count` jobs for rules; that of their ranks one job behind the other."""

    @property
    def count(self) -> int:
        """The number of jobs."""

    def rank_counts(self, level: RuleLevel) -> Longs:
        """Return the number of GPUs or nodes of each job."""

    def labels(self, level: RuleLevel) -> Sequence[str]:
        """Return the names of all GPUs or nodes."""

    def values(self, metric: str, level: RuleLevel, *, is_text: bool) -> tuple[Flags, Any]:
        """Return which values of a metric are known, and the values, by job, GPU or node."""


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """What came of one rule over one job.

    alert: None where undetermined; then `unknown` names missing metrics, `reasons` gives the
    reasons. values: of every term that was computed (None: unknown). output: of what
    `output_metric` and `template` show, by its source. ranks: labels of the GPUs or nodes that
    alert, of rules below the job, and those that `output_metric` names. text: for the user, both
    texts; "" without alert.
    """

    alert: bool | None
    values: Mapping[str, Value] = field(default_factory=dict)
    output: Mapping[str, Value] = field(default_factory=dict)
    ranks: tuple[str, ...] = ()
    text: str = ""
    unknown: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["yes", "no", "unknown"]:
        """The alert as a verdict of findings."""
        return VERDICTS[self.alert]
