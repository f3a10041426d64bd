"""Job classes of ClusterCockpit translated into rules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tachograph.catalog.units import MB_PER_MIB
from tachograph.judge.rules.metrics import VOCABULARY
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import check

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
    """Something without counterpart here: the message names it."""


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
    """Return an expression in the language of rules; `name` and `text` return what names and texts in it become.

    Errors: UntranslatableError naming what has no counterpart.

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


Limits = Mapping[str, Mapping[str, float]]  # {metric: {peak, normal, caution, alert: value}}
LIMITS = ("peak", "normal", "caution", "alert")
_PERCENT = {"peak": "100"}
_OF_NODES = "mean(GatherFromAllRanks(SelectMetric({}, OverAll)))"


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What a metric of ClusterCockpit is here: its statistics, and limits that need no cluster, in its unit."""

    avg: str
    max: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)


def _percent(counter: str) -> Counterpart:
    return Counterpart(f"{counter}_mean * 100", f"{counter}_max * 100", _PERCENT)


def _plain(counter: str, mean: str = "") -> Counterpart:
    return Counterpart(mean or f"{counter}_mean", f"{counter}_max")


def _nodes(factor: str, *metrics: str) -> Counterpart:
    total = " + ".join(_OF_NODES.format(metric) for metric in metrics)
    return Counterpart(f"({total}) * {factor}" if len(metrics) > 1 else f"{total} * {factor}")


_MEMORY = Counterpart(
    f"hbm_used_mib_mean * {MB_PER_MIB}", f"hbm_used_mib_max * {MB_PER_MIB}", {"peak": f"(hbm_mib * {MB_PER_MIB})"}
)
METRICS: Mapping[str, Counterpart] = MappingProxyType(
    {
        **dict.fromkeys(("acc_utilization", "acc_used", "nv_util", "gpu_util"), _percent("gpu_util")),
        **dict.fromkeys(("acc_mem_used", "nv_fb_mem_used", "nv_fb_memory"), _MEMORY),
        **dict.fromkeys(("acc_power", "nv_power_usage", "nv_power"), _plain("power_w", "power_w_sampled_mean")),
        **dict.fromkeys(("acc_temp", "nv_temp"), _plain("gpu_temp_c")),
        "nv_mem_util": _percent("mem_copy_util"),
        "nv_sm_clock": _plain("sm_clock_mhz"),
        "nv_mem_clock": _plain("mem_clock_mhz"),
        **{f"acc_{name}": _percent(name) for name in ("sm_active", "sm_occupancy", "dram_active", "tensor_active")},
        **{f"acc_{name}": _percent(name) for name in ("fp64_active", "fp32_active", "fp16_active")},
        "cpu_user": Counterpart(_nodes("100", "node_cpu_user").avg, limits=_PERCENT),
        "cpu_load": _nodes("1", "node_load_average"),
        "net_bw": _nodes("1e-6", "node_network_rx_bytes_per_s", "node_network_tx_bytes_per_s"),
        "file_bw": _nodes("1e-6", "node_fs_read_bytes_per_s", "node_fs_write_bytes_per_s"),
    }
)
_JOB: Mapping[str, str] = MappingProxyType(
    {
        "job.duration": "walltime",
        "job.numNodes": "number_of_nodes",
        "job.numAcc": "number_of_available_compute_units",
        "job.jobState": "state",
    }
)
_STATES = ("completed", "failed", "cancelled", "timeout", "out_of_memory", "node_fail", "running", "preempted")
_SHARING = re.compile(r"job\.(shared|exclusive)\s*(?:==|!=|>|>=)\s*(?:\"\w*\"|'\w*'|\d+|true|false)")
_PLACE = re.compile(r"\{\{-?(.*?)-?\}\}", re.DOTALL)
_DOTTED = re.compile(r"\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_PRINTF = re.compile(r"printf\s+\"[^\"]*\"\s+\(?\s*(\.[\w.]+)\s*\)?")
_AFTER = re.compile(r"^(\s?)(%|h(?![A-Za-z0-9])|cpuh|gpuh|CPU-h|GPU-h)")  # what would be taken for a unit
_TAG = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Translated:
    """A job class as a rule: text of its file (None: it has no counterpart), values of its parameters.

    missing: what has no counterpart here. remarks: what was left out or is meant a little differently.
    """

    file: str
    tag: str
    text: str | None
    parameters: Mapping[str, float]
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(slots=True)
class _Class:
    """One job class on its way."""

    file: str
    given: Mapping[str, Any]
    parameters: Mapping[str, float]
    limits: Limits
    terms: dict[str, str] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)

    def name_in_expression(self, name: str) -> str:
        """Return the name of a metric in the rule; one without counterpart is reported, and reading goes on."""
        try:
            return self.name(name)
        except UntranslatableError as problem:
            self.missing[str(problem)] = None
            return "0"

    def name(self, name: str) -> str:
        """Return what a name of an expression is called in the rule; what it means becomes a term before it.

        Errors: UntranslatableError.
        """
        if name in self.terms:
            return name
        if name in _list(self.given.get("parameters")):
            return self.parameter(name)
        if name in _JOB:
            return _JOB[name]
        metric, _, rest = name.partition(".")
        if rest.startswith("limits."):
            return self.term(name, self.limit(metric, rest.removeprefix("limits.")))
        if metric in _list(self.given.get("metrics")) and rest:
            return self.term(name, self.statistic(metric, rest))
        raise UntranslatableError(f"{'property' if metric == 'job' else 'name'} {name}")

    def term(self, name: str, expression: str) -> str:
        called = name.replace(".", "_")
        self.terms.setdefault(called, expression)
        return called

    def parameter(self, name: str) -> str:
        if name not in self.parameters:
            raise UntranslatableError(f"parameter {name}, which parameters.json does not give")
        self.used[name] = self.parameters[name]
        return name

    def statistic(self, metric: str, statistic: str) -> str:
        counterpart = METRICS.get(metric)
        if counterpart is None:
            raise UntranslatableError(f"metric {metric}")
        found = {"avg": counterpart.avg, "max": counterpart.max}.get(statistic)
        if not found:
            raise UntranslatableError(f"{metric}.{statistic}")
        return found

    def limit(self, metric: str, limit: str) -> str:
        own = METRICS[metric].limits.get(limit) if metric in METRICS else None
        given = self.limits.get(metric, {}).get(limit)
        if given is not None:
            return _written(given)
        if own is None:
            where = "; a cluster.json gives it" if limit in LIMITS else ""
            raise UntranslatableError(f"limit {metric}.limits.{limit}{where}")
        return own

    def words(self, words: str) -> str:
        """Return a text of an expression: states are those of Slurm."""
        word = words.upper() if words in _STATES else words
        return f"'{word}'" if "'" not in word else f'"{word}"'

    def expression(self, source: Any, what: str) -> str | None:
        """Return an expression; None, and a report, where it has no counterpart."""
        if not isinstance(source, str):
            self.missing[f"{what} is no text"] = None
            return None
        try:
            return translate(source, name=self.name_in_expression, text=self.words)
        except UntranslatableError as problem:
            self.missing[str(problem)] = None
            return None

    def required(self) -> list[str]:
        """Return what must hold before the rule is looked at."""
        found = []
        for requirement in _list(self.given.get("requirements")):
            if isinstance(requirement, str) and _SHARING.fullmatch(requirement.strip()):
                text = "left out: counters are those of the job's own GPUs, on shared nodes too"
                self.remarks[f"{requirement.strip()} {text}"] = None
                continue
            found.append(self.expression(requirement, "a requirement"))
        return [one for one in found if one is not None]

    def variables(self) -> None:
        for variable in _list(self.given.get("variables")):
            if not isinstance(variable, dict) or not isinstance(variable.get("name"), str):
                self.missing["a variable without name and expr"] = None
                continue
            expression = self.expression(variable.get("expr"), f"variable {variable['name']}")
            if expression is not None:
                self.terms[variable["name"]] = expression

    def hint(self) -> str:
        """Return the hint as a template: what it shows are terms, parameters and metrics."""
        hint, shown, at = str(self.given.get("hint") or ""), "", 0
        for place in _PLACE.finditer(hint):
            shown += _plain_text(hint[at : place.start()], behind=shown)
            shown += self.place(place[1].strip())
            at = place.end()
        return shown + _plain_text(hint[at:], behind=shown)

    def place(self, written: str) -> str:
        formatted = _PRINTF.fullmatch(written)
        found = _DOTTED.fullmatch(formatted[1] if formatted else written)
        if found:
            try:
                return f"{{{self.name(found[1])}}}"
            except UntranslatableError as problem:
                self.remarks[f"the hint shows {problem}, which is left out"] = None
                return "..."
        self.remarks[f"the hint holds {{{{{written}}}}}, which is left out"] = None
        return "..."


def translate_class(text: str, file: str, parameters: Mapping[str, float], limits: Limits | None = None) -> Translated:
    """Return a job class as a rule. `parameters`: of parameters.json. `limits`: of metrics, by the cluster's."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as problem:
        return Translated(file, "", None, {}, (f"not valid JSON: {problem}",))
    if not isinstance(given, dict) or not isinstance(given.get("rule"), str) or not isinstance(given.get("tag"), str):
        message = "no job class: it needs a tag and a rule"
        if isinstance(given, dict) and "terms" in given:
            message = "a job class of an older kind, with terms in place of a rule"
        return Translated(file, "", None, {}, (message,))
    one = _Class(file, given, parameters, limits or {})
    tag = _TAG.sub("_", given["tag"]) or "rule"
    required = one.required()
    one.variables()
    rule = one.expression(given["rule"], "the rule")
    hint = one.hint()
    if one.missing or rule is None:
        return Translated(file, tag, None, {}, tuple(one.missing), tuple(one.remarks))
    written = _document(one, tag, [*required, rule], hint)
    if not _is_text(written):
        return Translated(file, tag, None, {}, ("a text in it holds half a character",), tuple(one.remarks))
    problems = _problems(written, file, one.used)
    if problems:
        return Translated(file, tag, None, {}, problems, tuple(one.remarks))
    return Translated(file, tag, written, dict(one.used), (), tuple(one.remarks))


def _document(one: _Class, tag: str, conditions: list[str], hint: str) -> str:
    """The file of the rule."""
    name = str(one.given.get("name") or tag)
    terms = dict(one.terms)
    for place, condition in enumerate(conditions[:-1], 1):
        terms[f"requirement_{place}"] = condition
    terms["matches"] = conditions[-1]
    terms["alert"] = " and ".join([*(f"requirement_{place}" for place in range(1, len(conditions))), "matches"])
    pattern = {
        "name": name,
        "description": f"Job class {tag} of ClusterCockpit.",
        "criterion": str(one.given["rule"]),
        "false_positives": [],
        "cures": [],
        "rules": [
            {
                "name": name,
                "type": "bool",
                "tag": tag,
                "level": "job",
                "severity": "hint",
                "parameter": sorted(one.used),
                "rule_terms": [{term: expression} for term, expression in terms.items()],
                "output": "alert",
                "template": hint or f"{name}.",
            }
        ],
    }
    return json.dumps(pattern, indent=2, ensure_ascii=False) + "\n"


def parameters_toml(classes: Iterable[Translated]) -> str:
    """Return the parameters.toml of translated job classes."""
    lines = ["# Values from parameters.json of ClusterCockpit."]
    for one in classes:
        if one.text is None or not one.parameters:
            continue
        lines += ["", f"[{one.tag}]"]
        for name, value in sorted(one.parameters.items()):
            unit = "s" if name.endswith("_seconds") else ""
            lines.append(
                f'{name} = {{ default = {_written(value)}, unit = "{unit}", meaning = "as in ClusterCockpit" }}'
            )
    return "\n".join(lines) + "\n"


def limits_of(document: Any) -> dict[str, dict[str, float]]:
    """Return {metric: limits} of a cluster.json; of a metric without a limit it is not there."""
    found: dict[str, dict[str, float]] = {}
    metrics = document.get("metricConfig") if isinstance(document, dict) else None
    for metric in _list(metrics):
        if isinstance(metric, dict) and isinstance(metric.get("name"), str):
            numbers = {limit: metric[limit] for limit in LIMITS if _is_number(metric.get(limit))}
            found[metric["name"]] = {limit: float(value) for limit, value in numbers.items()}
    return found


def _problems(text: str, file: str, parameters: Mapping[str, float]) -> tuple[str, ...]:
    """Problems of a translation, by the checker; none, unless a name or a type has no counterpart after all."""
    loaded = load_patterns(text, file)
    found = [*loaded.problems, *(problem for rule in loaded.rules for problem in check(rule, VOCABULARY, parameters))]
    return tuple(dict.fromkeys(problem.message for problem in found if problem.severity == "error"))


def _plain_text(text: str, *, behind: str) -> str:
    """Text of a hint; a percent sign or hours behind a number are written out, since its value is in that unit."""
    escaped = text.replace("{", "{{").replace("}", "}}").replace("$", "$$")
    if behind.endswith("}") and (unit := _AFTER.match(escaped)):
        word = " percent" if unit[2] == "%" else " hours"
        escaped = word + escaped[unit.end() :]
    return escaped


def _is_text(text: str) -> bool:
    """Whether it can be written: JSON may hold halves of characters that no encoding has."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _written(value: float) -> str:
    """A number as both TOML and the language of rules read it."""
    return repr(float(value))
