"""Rules and verdicts as text and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from tachograph.catalog.units import text
from tachograph.judge.rules.ruleset import RuleEntry, RuleSet

if TYPE_CHECKING:
    from tachograph.catalog.rows import FindingRow


def parameter_text(entry: RuleEntry, name: str) -> tuple[str, str]:
    """Return a parameter's name and value, with the default if the site changed it."""
    declared, value = entry.declared[name], entry.values[name]
    if declared.default == value:
        return name, text(value, declared.unit)
    return name, f"{text(value, declared.unit)} (default {text(declared.default, declared.unit)})"


def rules_json(ruleset: RuleSet) -> dict[str, Any]:
    """Return rules and problems as `--json` writes them."""
    return {
        "rules": [
            *(_rule_json(entry, in_use=True) for entry in ruleset.entries),
            *(_rule_json(entry, in_use=False) for entry in ruleset.disabled),
        ],
        "problems": msgspec.to_builtins(ruleset.problems),
    }


def _rule_json(entry: RuleEntry, *, in_use: bool) -> dict[str, Any]:
    return {
        "rule": entry.code,
        "tag": entry.rule.tag,
        "name": entry.rule.name,
        "file": entry.rule.file,
        "shipped": entry.shipped,
        "in_use": in_use,
        "level": entry.rule.level,
        "severity": entry.severity,
        "check": entry.check.code,
        "family": entry.check.family,
        "description": entry.pattern.description,
        "criterion": entry.pattern.criterion,
        "false_positives": entry.pattern.false_positives,
        "cures": entry.pattern.cures,
        "parameters": {
            name: {"value": value, **msgspec.to_builtins(entry.declared[name])}
            for name, value in entry.values.items()
        },
        "metrics": entry.program.needs,
        "needs": entry.counters,
        "terms": {term.name: term.source for term in entry.rule.terms},
    }


def verdict_json(row: FindingRow) -> dict[str, Any]:
    """Return a findings row for `--json`, with evidence and checks as objects."""
    return {**row, "evidence": json.loads(row["evidence"]), "checks": json.loads(row["checks"])}
