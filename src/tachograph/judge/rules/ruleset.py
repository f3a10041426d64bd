"""The rules in use: files of the catalogue and of a site, parameters and their values."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import msgspec

from tachograph.catalog.codes import RENAMED
from tachograph.catalog.config import RuleOptions
from tachograph.catalog.errors import ConfigError, NotFoundError, UsageError
from tachograph.catalog.tables import JOBS
from tachograph.catalog.units import refuse_unclear_fraction
from tachograph.judge.check import Check
from tachograph.judge.finding import SEVERITIES, Severity
from tachograph.judge.rules.compiler import RuleProgram
from tachograph.judge.rules.documents import place_of
from tachograph.judge.rules.metrics import OFFERED
from tachograph.judge.rules.model import Pattern, PatternRule, RuleProblem
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import compile_rule
from tachograph.judge.rules.sources import (
    RuleSource,
    folder_sources,
    parameters_of,
    read_source,
    shipped_sources,
)

_AT = re.compile(r"\(at line (\d+), column (\d+)\)$")


class RuleParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A threshold of a rule: its value unless the site sets another."""

    default: float
    unit: str = ""
    meaning: str = ""


def read_parameters(
    source: RuleSource | None,
) -> tuple[dict[str, dict[str, RuleParameter]], list[RuleProblem]]:
    """Return {tag: {parameter: declaration}} of a parameters.toml, and its errors."""
    if source is None:
        return {}, []
    if source.text is None:
        return {}, [RuleProblem(source.name, 1, 1, "", source.problem)]
    try:
        tables = tomllib.loads(source.text)
    except (RecursionError, ValueError) as error:
        at = _AT.search(str(error))
        line, column = (int(at[1]), int(at[2])) if at else (1, 1)
        message = f"not valid TOML: {_AT.sub('', str(error)).strip()}"
        return {}, [RuleProblem(source.name, line, column, "", message)]
    declared: dict[str, dict[str, RuleParameter]] = {}
    problems = []
    for tag, parameters in tables.items():
        try:
            declared[tag] = msgspec.convert(parameters, dict[str, RuleParameter])
        except msgspec.ValidationError as error:
            message = f"{tag}: {str(error).replace('`', '')}"
            problems.append(RuleProblem(source.name, 1, 1, "", message))
    return declared, problems


_OF_ACCOUNTING = frozenset([*JOBS.schema, "attribution", "gpu_model"])


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """A rule in use: program, parameters, values. shipped: it is part of Tachograph."""

    rule: PatternRule
    pattern: Pattern
    program: RuleProgram
    declared: Mapping[str, RuleParameter]
    values: Mapping[str, float]
    shipped: bool

    @property
    def code(self) -> str:
        """Id of the rule (its tag, if unique); its name in findings, configuration and commands."""
        return self.rule.id

    def is_called(self, name: str) -> bool:
        """Whether it is meant by its id, or by a tag that it shares with others."""
        return name in (self.rule.id, self.rule.tag)

    @property
    def advice(self) -> str | None:
        """What to do where it holds: of the rule itself, else the cures of its pattern."""
        return self.rule.advice or " ".join(self.pattern.cures) or None

    @property
    def severity(self) -> Severity:
        """How urgent it is where it holds."""
        known = (severity for severity in SEVERITIES if severity == self.rule.severity)
        return next(known, "hint")

    @property
    def check(self) -> Check:
        """Check that it decides: its own, or that named by its key `check`.

        Its family is that of its key `family`; without one it is a family by itself.
        """
        code = self.rule.check or self.code
        return Check(
            code,
            self.rule.family or code,
            self.severity,
            self.rule.name,
            None if self.severity == "fact" else self.advice,
            of_samples=not _OF_ACCOUNTING.issuperset(self.counters),
            deciders=() if code == self.code else (self.code,),
        )

    @property
    def counters(self) -> tuple[str, ...]:
        """Counters, and columns of accounting, that its metrics are made of."""
        return counters_of(self.program.needs)

    def with_values(self, values: Mapping[str, float]) -> RuleEntry:
        """Return it with some values replaced."""
        return replace(self, values={**self.values, **values})


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in use, in the order of reports, those that are switched off, and what is wrong."""

    entries: tuple[RuleEntry, ...] = ()
    disabled: tuple[RuleEntry, ...] = ()
    problems: tuple[RuleProblem, ...] = ()

    @property
    def metrics(self) -> frozenset[str]:
        """Everything its rules read."""
        return frozenset(name for entry in self.entries for name in entry.program.needs)

    @property
    def errors(self) -> tuple[RuleProblem, ...]:
        """Why rules are left out."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    def called(self, name: str) -> tuple[RuleEntry, ...]:
        """Return the rules `name`, also disabled ones: one by id, or all with this tag.

        Errors: NotFoundError naming those close to it.
        """
        every = (*self.entries, *self.disabled)
        found = tuple(entry for entry in every if entry.code == name) or tuple(
            e for e in every if e.is_called(name)
        )
        if not found:
            raise NotFoundError(
                f"no rule {name!r}", do=_meant(name, [entry.code for entry in every])
            )
        return found

    def only(self, names: Collection[str]) -> RuleSet:
        """Return these rules alone, in the order of the names.

        Errors: NotFoundError.
        """
        chosen = dict.fromkeys(entry.code for name in names for entry in self.called(name))
        every = {entry.code: entry for entry in (*self.entries, *self.disabled)}
        return replace(self, entries=tuple(every[code] for code in chosen), disabled=())


@dataclass(slots=True)
class _Collected:
    """Rules of folders, one after the other."""

    entries: list[RuleEntry] = field(default_factory=list)
    problems: list[RuleProblem] = field(default_factory=list)
    taken: dict[str, str] = field(default_factory=dict)  # {id: where}

    @property
    def broken(self) -> bool:
        """Whether rules are left out."""
        return any(problem.severity == "error" for problem in self.problems)

    def add(
        self, sources: Iterable[RuleSource], parameters: RuleSource | None, *, shipped: bool
    ) -> None:
        """Take the rules of one folder."""
        declared, problems = read_parameters(parameters)
        self.problems += problems
        for source in sources:
            if source.text is None:
                self.problems.append(RuleProblem(source.name, 1, 1, "", source.problem))
                continue
            loaded = load_patterns(source.text, source.name)
            self.problems += loaded.problems
            for pattern in loaded.patterns:
                for rule in pattern.rules:
                    own = {**declared.get(rule.tag, {}), **declared.get(rule.id, {})}
                    self._take(rule, pattern, own, shipped=shipped)

    def _take(
        self,
        rule: PatternRule,
        pattern: Pattern,
        declared: Mapping[str, RuleParameter],
        *,
        shipped: bool,
    ) -> None:
        if rule.id in self.taken:
            text = (
                f"the name {rule.id!r} is taken by {self.taken[rule.id]}; give it another tag or id"
            )
            self.problems.append(RuleProblem(rule.file, *place_of(rule.written_tag), "", text))
        entry, problems = _entry(rule, pattern, declared, shipped=shipped)
        self.problems += problems
        if entry is not None and rule.id not in self.taken:
            self.taken[rule.id] = rule.file
            self.entries.append(entry)


def _entry(
    rule: PatternRule,
    pattern: Pattern,
    declared: Mapping[str, RuleParameter],
    *,
    shipped: bool,
) -> tuple[RuleEntry | None, tuple[RuleProblem, ...]]:
    """Return a rule with its program, and what is wrong with it; None where that is an error."""
    chosen = {name: declared[name].default for name in rule.parameters if name in declared}
    program, problems = compile_rule(rule, OFFERED, chosen)
    if program is None:
        return None, problems
    return RuleEntry(rule, pattern, program, declared, chosen, shipped), problems


@cache
def _shipped_rules() -> _Collected:
    """Return the rules of the package, which are read once: to be copied, not changed."""
    collected = _Collected()
    collected.add(*shipped_sources(), shipped=True)
    return collected


def read_rules(settings: RuleOptions, *, reserved: Collection[str] = ()) -> RuleSet:
    """Return the selected rules. `reserved`: codes of other findings, forbidden for site rules.

    Errors: ConfigError for a folder that cannot be read, and for tags and parameters that no rule
    has.
    """
    shipped = _shipped_rules()
    collected = _Collected(list(shipped.entries), list(shipped.problems))
    off = frozenset(settings.disabled)
    collected.taken = dict.fromkeys(reserved, "a finding of Tachograph") | {
        entry.code: "a shipped rule"
        for entry in collected.entries
        if not off & {entry.code, entry.rule.tag}
    }
    if settings.folder:
        collected.add(*folder_sources(settings.folder), shipped=False)
    entries = [_configured(entry, settings) for entry in collected.entries]
    _check_names(
        settings,
        {name for entry in entries for name in (entry.code, entry.rule.tag)},
        collected.broken,
    )
    disabled = tuple(entry for entry in entries if entry.shipped and any(map(entry.is_called, off)))
    return RuleSet(
        tuple(entry for entry in entries if entry not in disabled),
        disabled,
        tuple(collected.problems),
    )


def read_files(paths: Iterable[Path], *, reserved: Collection[str] = ()) -> RuleSet:
    """Return the rules of files or folders, as in a site's folder, and their errors.

    Parameters are those of the parameters.toml beside each file.
    """
    taken = dict.fromkeys(reserved, "a finding of Tachograph")
    taken |= dict.fromkeys((entry.code for entry in _shipped_rules().entries), "a shipped rule")
    collected = _Collected(taken=taken)
    for folder, files_of in _by_folder(paths).items():
        collected.add(files_of, parameters_of(folder), shipped=False)
    return RuleSet(tuple(collected.entries), (), tuple(collected.problems))


def _by_folder(paths: Iterable[Path]) -> dict[Path, list[RuleSource]]:
    found: dict[Path, list[RuleSource]] = {}
    for path in paths:
        if path.is_dir():
            found.setdefault(path, []).extend(folder_sources(str(path))[0])
        else:
            found.setdefault(path.parent, []).append(read_source(path))
    return found


def counters_of(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the counters, and columns of accounting, that metrics are made of, each once.

    >>> counters_of(["work", "activity", "sm_active"])
    ('gpu_util', 'sm_active')
    """
    known = (OFFERED[name] for name in metrics if name in OFFERED)
    return tuple(dict.fromkeys(counter for offered in known for counter in offered.needs))


def _configured(entry: RuleEntry, settings: RuleOptions) -> RuleEntry:
    """The rule with the values of the configuration."""
    given = {
        **settings.parameters.get(entry.rule.tag, {}),
        **settings.parameters.get(entry.code, {}),
    }
    unknown = [name for name in given if name not in entry.values]
    if unknown:
        raise ConfigError(
            f"rule {entry.code} has no parameter {unknown[0]!r}",
            where=f"rules.parameters.{entry.code}",
            do=_meant(unknown[0], entry.values),
        )
    values: dict[str, float] = {}
    for name, written in given.items():
        where = f"rules.parameters.{entry.code}.{name}"
        value = values[name] = _number(written) if isinstance(written, str) else written
        if not math.isfinite(value) or value < 0 <= entry.values[name]:
            raise ConfigError(
                f"{written} is no threshold", where=where, do="write a number from 0 on"
            )
        if _is_unclear(entry, name, value, written):
            refuse_unclear_fraction(value, name=name, error=ConfigError, where=where, quote='"')
    return entry.with_values(values)


def _is_unclear(entry: RuleEntry, parameter: str, value: float, written: float | str) -> bool:
    """Return whether the value of a fraction may be meant in percent, as its default is none.

    A difference of fractions may be negative. One above 1 is clear with a percent sign.
    """
    declared = entry.declared.get(parameter)
    if declared is None or declared.unit != "fraction" or declared.default > 1:
        return False
    return value > 1 and not str(written).endswith("%")


def _check_names(settings: RuleOptions, known: Collection[str], broken: bool) -> None:
    """A name that no rule has is a mistake, unless the rule may be one that could not be read."""
    if broken:
        return
    for where, tags in (
        ("rules.disabled", settings.disabled),
        ("rules.parameters", settings.parameters),
    ):
        for tag in tags:
            if tag not in known:
                raise ConfigError(f"no rule {tag!r}", where=where, do=_meant(tag, known))


def _meant(name: str, known: Iterable[str]) -> str:
    if name in RENAMED and name not in known:
        return f"the check {RENAMED[name]} has its place; remove it"
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"use one of: {', '.join(names) or 'none'}"


def with_settings(ruleset: RuleSet, given: Sequence[str]) -> RuleSet:
    """Return the rules with other parameter values: PARAMETER=VALUE, or RULE.PARAMETER=VALUE.

    Errors: UsageError for an invalid or negative number, for a bare number above 1 as a fraction,
    and for an unknown parameter.
    """
    entries = list(ruleset.entries)
    for option in given:
        name, value = _setting(option)
        rule, _, parameter = name.rpartition(".")
        places = [
            place
            for place, entry in enumerate(entries)
            if parameter in entry.values and (not rule or entry.is_called(rule))
        ]
        if not places:
            if rule and not any(entry.is_called(rule) for entry in entries):
                names = ", ".join(entry.code for entry in entries)
                raise UsageError(
                    f"--set {option}: unknown rule '{rule}'", do=f"use one of: {names}"
                )
            parameters: set[str] = set()
            for entry in entries:
                if not rule or entry.is_called(rule):
                    parameters.update(entry.values)
            known = ", ".join(sorted(parameters)) or "none"
            raise UsageError(f"--set {option}: unknown parameter", do=f"use one of: {known}")
        for place in places:
            if value < 0 <= entries[place].values[parameter]:
                raise UsageError(
                    f"--set {option}: negative value", do=f"{parameter} must be 0 or more"
                )
            if _is_unclear(entries[place], parameter, value, option):
                refuse_unclear_fraction(value, name=f"--set {option}: it", error=UsageError)
            entries[place] = entries[place].with_values({parameter: value})
    return replace(ruleset, entries=tuple(entries))


def _setting(option: str) -> tuple[str, float]:
    name, equals, value = option.partition("=")
    number = _number(value)
    if not equals or not name.strip() or not math.isfinite(number):
        raise UsageError(
            f"--set {option}: invalid number", do="write PARAMETER=VALUE, such as low_activity=0.2"
        )
    return name.strip(), number


def _number(written: str) -> float:
    """Return a number, or that of a percentage; NaN where it is none.

    >>> _number("0.5"), _number("150%"), _number("high")
    (0.5, 1.5, nan)
    """
    try:
        return float(written[:-1]) / 100 if written.endswith("%") else float(written)
    except ValueError:
        return math.nan
