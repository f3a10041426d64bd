"""Job classes of ClusterCockpit translated into rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tachograph.judge.rules.metrics import OFFERED
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import compile_rule

# A name of an expression, also with dots, or a text. The rest means the same in a rule.
_NAME = re.compile(
    r"""(?<![\w.])(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?!\w|\s*\()|(?P<text>"[^"]*"|'[^']*')"""
)
_WORDS = frozenset({"and", "or", "not", "true", "false"})


class UntranslatableError(Exception):
    """Something without counterpart here: the message names it."""


Limits = Mapping[str, Mapping[str, float]]  # {metric: {peak, normal, caution, alert: value}}
LIMITS = ("peak", "normal", "caution", "alert")
_PERCENT = {"peak": "100"}
_OF_NODES = "mean(GatherFromAllRanks(SelectMetric({}, OverAll)))"


@dataclass(frozen=True, slots=True)
class Counterpart:
    """Tachograph's counterpart of a ClusterCockpit metric: statistics, cluster-free limits."""

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


# cc-metric-collector divides bytes by 1024 * 1024, though it calls the unit MByte.
_MEMORY = Counterpart("hbm_used_mib_mean", "hbm_used_mib_max", {"peak": "hbm_mib"})
METRICS: Mapping[str, Counterpart] = {
    **dict.fromkeys(("acc_utilization", "acc_used", "nv_util", "gpu_util"), _percent("gpu_util")),
    **dict.fromkeys(("acc_mem_used", "nv_fb_mem_used", "nv_fb_memory"), _MEMORY),
    **dict.fromkeys(
        ("acc_power", "nv_power_usage", "nv_power"), _plain("power_w", "power_w_sampled_mean")
    ),
    **dict.fromkeys(("acc_temp", "nv_temp"), _plain("gpu_temp_c")),
    "nv_mem_util": _percent("mem_copy_util"),
    "nv_sm_clock": _plain("sm_clock_mhz"),
    "nv_mem_clock": _plain("mem_clock_mhz"),
    **{
        f"acc_{name}": _percent(name)
        for name in ("sm_active", "sm_occupancy", "dram_active", "tensor_active")
    },
    **{f"acc_{name}": _percent(name) for name in ("fp64_active", "fp32_active", "fp16_active")},
    "cpu_user": Counterpart(_nodes("100", "node_cpu_user").avg, limits=_PERCENT),
    "cpu_load": _nodes("1", "node_load_average"),
    "net_bw": _nodes("1e-6", "node_network_rx_bytes_per_s", "node_network_tx_bytes_per_s"),
    "file_bw": _nodes("1e-6", "node_fs_read_bytes_per_s", "node_fs_write_bytes_per_s"),
}
_JOB: Mapping[str, str] = {
    "job.duration": "walltime",
    "job.numNodes": "number_of_nodes",
    "job.numAcc": "number_of_available_compute_units",
    "job.jobState": "state",
}
_STATES = (
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "out_of_memory",
    "node_fail",
    "running",
    "preempted",
)
_SHARING = re.compile(
    r"job\.(shared|exclusive)\s*(?:==|!=|>|>=)\s*(?:\"\w*\"|'\w*'|\d+|true|false)"
)
_PLACE = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_DOTTED = re.compile(r"\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_PRINTF = re.compile(r"printf\s+\"[^\"]*\"\s+\(?\s*(\.[\w.]+)\s*\)?")
# What would be taken for a unit.
_AFTER = re.compile(r"^(\s?)(%|h(?![A-Za-z0-9])|cpuh|gpuh|CPU-h|GPU-h)")
_TAG = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Translated:
    """A job class as a rule: file text (None: no counterpart), parameter values.

    missing: what has no counterpart here. remarks: what was left out or differs a little.
    """

    file: str
    tag: str
    text: str | None
    parameters: Mapping[str, float]
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class _JobClassVariable(msgspec.Struct, frozen=True):
    """A variable of a job class."""

    name: str
    expr: str


class _JobClassDocument(msgspec.Struct, frozen=True):
    """The keys of a job class that are read."""

    tag: str
    rule: str
    name: str = ""
    parameters: list[str] = []
    metrics: list[str] = []
    requirements: list[str] = []
    variables: list[_JobClassVariable] = []
    hint: str = ""


@dataclass(slots=True)
class _JobClassTranslator:
    """Translates a job class.

    terms: {name: expression}, in order; used: parameters; missing, remarks: in order.
    """

    document: _JobClassDocument
    parameters: Mapping[str, float]
    limits: Limits
    terms: dict[str, str] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)

    def name(self, name: str) -> str:
        """Return the rule's name for a name of an expression, whose meaning becomes a term.

        Raises UntranslatableError.
        """
        if name in self.terms:
            return name
        if name in self.document.parameters:
            if name not in self.parameters:
                raise UntranslatableError(f"parameter {name}, which parameters.json does not give")
            self.used[name] = self.parameters[name]
            return name
        if name in _JOB:
            return _JOB[name]
        metric, _, rest = name.partition(".")
        if rest.startswith("limits."):
            expression = self.limit(metric, rest.removeprefix("limits."))
        elif metric in self.document.metrics and rest:
            expression = _statistic(metric, rest)
        else:
            raise UntranslatableError(f"{'property' if metric == 'job' else 'name'} {name}")
        term = name.replace(".", "_")
        self.terms.setdefault(term, expression)
        return term

    def limit(self, metric: str, limit: str) -> str:
        """Return a metric's limit: the cluster's, else the natural one."""
        of_cluster = self.limits.get(metric, {}).get(limit)
        if of_cluster is not None:
            return _written(of_cluster)
        by_nature = METRICS[metric].limits.get(limit) if metric in METRICS else None
        if by_nature is None:
            where = "; a cluster.json gives it" if limit in LIMITS else ""
            raise UntranslatableError(f"limit {metric}.limits.{limit}{where}")
        return by_nature

    def expression(self, source: str) -> str:
        """Return an expression. What has no counterpart is noted, and reading goes on."""

        def replaced(match: re.Match[str]) -> str:
            name = match["name"]
            if name is None:
                return _state_text(match["text"][1:-1])
            if name in _WORDS:
                return name
            try:
                return self.name(name)
            except UntranslatableError as error:
                self.missing[str(error)] = None
                return "0"

        return _NAME.sub(replaced, source)

    def requirements(self) -> list[str]:
        """Return what must hold before the rule is evaluated."""
        conditions = []
        for requirement in self.document.requirements:
            if _SHARING.fullmatch(requirement.strip()):
                text = "left out: counters are those of the job's own GPUs, on shared nodes too"
                self.remarks[f"{requirement.strip()} {text}"] = None
            else:
                conditions.append(self.expression(requirement))
        return conditions

    def hint(self) -> str:
        """Return the hint as a template: what it shows are terms, parameters and metrics."""
        hint, template, end = self.document.hint, "", 0
        for match in _PLACE.finditer(hint):
            template += _plain_text(hint[end : match.start()], before=template)
            template += self.placeholder(match[1])
            end = match.end()
        return template + _plain_text(hint[end:], before=template)

    def placeholder(self, written: str) -> str:
        """Return what a hint shows of one value."""
        printed = _PRINTF.fullmatch(written)
        name = _DOTTED.fullmatch(printed[1] if printed else written)
        if name is None:
            self.remarks[f"the hint holds {{{{{written}}}}}, which is left out"] = None
            return "..."
        try:
            return f"{{{self.name(name[1])}}}"
        except UntranslatableError as error:
            self.remarks[f"the hint shows {error}, which is left out"] = None
            return "..."

    def rule_text(self, tag: str) -> str:
        """Return the file of the rule."""
        conditions = {
            f"requirement_{index}": text for index, text in enumerate(self.requirements(), 1)
        }
        for variable in self.document.variables:
            self.terms[variable.name] = self.expression(variable.expr)
        conditions["matches"] = self.expression(self.document.rule)
        name = self.document.name or tag
        template = self.hint() or f"{name}."
        terms = {**self.terms, **conditions, "alert": " and ".join(conditions)}
        rule = {
            "name": name,
            "type": "bool",
            "tag": tag,
            "level": "job",
            "severity": "hint",
            "parameter": sorted(self.used),
            "rule_terms": [{term: expression} for term, expression in terms.items()],
            "output": "alert",
            "template": template,
        }
        pattern = {
            "name": name,
            "description": f"Job class {tag} of ClusterCockpit.",
            "criterion": self.document.rule,
            "false_positives": [],
            "cures": [],
            "rules": [rule],
        }
        return json.dumps(pattern, indent=2, ensure_ascii=False) + "\n"


def translate_class(
    text: str, file: str, parameters: Mapping[str, float], limits: Limits | None = None
) -> Translated:
    """Return a job class as a rule.

    `parameters`: of parameters.json. `limits`: of metrics, by the cluster's.
    """
    try:
        document = msgspec.json.decode(text.encode(errors="surrogatepass"), type=_JobClassDocument)
    except (msgspec.DecodeError, RecursionError) as error:
        return Translated(
            file, "", None, {}, (f"not a job class: {str(error).replace('`', chr(39))}",)
        )
    translator = _JobClassTranslator(document, parameters, limits or {})
    tag = _TAG.sub("_", document.tag) or "rule"
    written = translator.rule_text(tag)
    missing = tuple(translator.missing) or _problems(written, file, translator.used)
    remarks = tuple(translator.remarks)
    if missing:
        return Translated(file, tag, None, {}, missing, remarks)
    return Translated(file, tag, written, dict(translator.used), (), remarks)


def _statistic(metric: str, statistic: str) -> str:
    counterpart = METRICS.get(metric)
    if counterpart is None:
        raise UntranslatableError(f"metric {metric}")
    expression = {"avg": counterpart.avg, "max": counterpart.max}.get(statistic)
    if not expression:
        raise UntranslatableError(f"{metric}.{statistic}")
    return expression


def _state_text(text: str) -> str:
    """Return a text of an expression: states are those of Slurm."""
    text = text.upper() if text in _STATES else text
    return f'"{text}"' if "'" in text else f"'{text}'"


def parameters_toml(classes: Iterable[Translated]) -> str:
    """Return the parameters.toml of translated job classes."""
    lines = ["# Values from parameters.json of ClusterCockpit."]
    for translated in classes:
        if translated.text is None or not translated.parameters:
            continue
        lines += ["", f"[{translated.tag}]"]
        for name, value in sorted(translated.parameters.items()):
            unit = "s" if name.endswith("_seconds") else ""
            declared = (
                f'default = {_written(value)}, unit = "{unit}", meaning = "as in ClusterCockpit"'
            )
            lines.append(f"{name} = {{ {declared} }}")
    return "\n".join(lines) + "\n"


def limits_of(document: Any) -> dict[str, dict[str, float]]:
    """Return {metric: limits} of a cluster.json; of a metric without a limit it is not there."""
    found: dict[str, dict[str, float]] = {}
    metrics = document.get("metricConfig") if isinstance(document, dict) else None
    for metric in metrics if isinstance(metrics, list) else []:
        if isinstance(metric, dict) and isinstance(metric.get("name"), str):
            numbers = {limit: metric[limit] for limit in LIMITS if is_number(metric.get(limit))}
            found[metric["name"]] = {limit: float(value) for limit, value in numbers.items()}
    return found


def _problems(text: str, file: str, parameters: Mapping[str, float]) -> tuple[str, ...]:
    """Problems of a translation; none unless a name or type has no counterpart."""
    loaded = load_patterns(text, file)
    found = [*loaded.problems]
    for rule in loaded.rules:
        found += compile_rule(rule, OFFERED, parameters)[1]
    return tuple(dict.fromkeys(problem.message for problem in found if problem.severity == "error"))


def _plain_text(text: str, *, before: str) -> str:
    """Text of a hint; writes out a percent sign or hours after a number, as its unit is that."""
    escaped = text.replace("{", "{{").replace("}", "}}").replace("$", "$$")
    if before.endswith("}") and (unit := _AFTER.match(escaped)):
        spelled = " percent" if unit[2] == "%" else " hours"
        escaped = spelled + escaped[unit.end() :]
    return escaped


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number that rules may compute with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _written(value: float) -> str:
    """A number as both TOML and the language of rules read it."""
    return repr(float(value))
