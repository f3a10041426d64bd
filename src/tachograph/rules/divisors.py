"""What is divided by, in words: a rule that divides by 0 says what was 0."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tachograph.rules.expression import Call, Name, Node
from tachograph.rules.model import Metric, Rule

_STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "max": "largest",
        "min": "smallest",
        "sum": "summed",
        "mean": "mean",
        "median": "median",
        "lower_quartile": "lower quartile of",
        "upper_quartile": "upper quartile of",
    }
)
_RANKS: Mapping[str, str] = MappingProxyType({"gpu": "GPUs", "node": "nodes"})


def in_words(node: Node, rule: Rule, metrics: Mapping[str, Metric]) -> str:
    """Return what a divisor is: `the median work of its GPUs`, the name of a term or metric, or `a divisor`."""
    meant = _defined(node, rule)
    return _statistic(meant, rule, metrics) or (node.name if isinstance(node, Name) else "a divisor")


def _defined(node: Node, rule: Rule) -> Node:
    """What a term's name stands for, one step back; else the expression itself."""
    if not isinstance(node, Name):
        return node
    return next((term.node for term in rule.terms if term.name == node.name), node)


def _statistic(node: Node, rule: Rule, metrics: Mapping[str, Metric]) -> str:
    """Words for a statistic of a metric of all ranks; empty for anything else."""
    if not isinstance(node, Call) or len(node.arguments) != 1 or node.function not in _STATISTICS:
        return ""
    gathered = _defined(node.arguments[0], rule)
    if not isinstance(gathered, Call) or gathered.function != "GatherFromAllRanks" or not gathered.arguments:
        return ""
    selected = gathered.arguments[0]
    name = selected.arguments[0] if isinstance(selected, Call) and selected.function == "SelectMetric" else None
    metric = metrics.get(rule.metrics.get(name.name, name.name)) if isinstance(name, Name) else None
    if metric is None or metric.kind not in _RANKS:
        return ""
    return f"the {_STATISTICS[node.function]} {metric.name} of its {_RANKS[metric.kind]}"
