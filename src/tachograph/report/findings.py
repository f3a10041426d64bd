"""Findings as text: groups by result, intervals, values against thresholds, missing counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from tachograph.catalog import counters
from tachograph.catalog.codes import known_codes
from tachograph.catalog.columns import local_time
from tachograph.catalog.counters import DCGM_PREFIX, HOST_COUNTERS
from tachograph.catalog.tables import HOST_CHARACTERISTICS
from tachograph.catalog.units import capitalized, shown_s, text, zone
from tachograph.judge.finding import (
    EVIDENCE,
    SEVERITIES,
    CheckedValue,
    Finding,
    apart,
    relation_holds,
)

# groups of checks, in their order
REPORTED_CHECKS, COVERED, FACTS, UNKNOWN, NOT_TRIGGERED = CHECK_GROUPS = (
    "Reported",
    "Covered by a more specific finding",
    "Facts",
    "Unknown",
    "Not triggered",
)
_OF_NODES = frozenset([*HOST_CHARACTERISTICS, *(counter.name for counter in HOST_COUNTERS)])
_OWN_UNITS = ("time", "percent", "code")  # of `value_text`
# behind a comparison whose result is not that of the check
_OTHERWISE = {
    True: ", but its other conditions hold",
    False: ", but its other conditions do not hold",
}
# begins sentences of a group, whose name says the same
_BEGINNINGS = {UNKNOWN: ("Unknown: ",), NOT_TRIGGERED: ("Not triggered: ", "No: ")}
SHOWN_CHECKS = 4  # in short
SHOWN_COUNTERS = 3  # of GPUs, of nodes, of others, in short


def group_of(finding: Finding) -> str:
    """Return the group of CHECK_GROUPS that a finding belongs to.

    >>> group_of(Finding("stable", "fact", "", "Steady load."))
    'Facts'
    """
    if finding.verdict != "yes":
        return UNKNOWN if finding.verdict == "unknown" else NOT_TRIGGERED
    if finding.severity == "fact":
        return FACTS
    return COVERED if finding.covered_by else REPORTED_CHECKS


def by_group(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by CHECK_GROUPS; within one by urgency if they hold, others by family."""
    places = {code: place for place, code in enumerate(known_codes())}

    def place(finding: Finding) -> tuple[int, int, int]:
        urgency = SEVERITIES.index(finding.severity) if finding.verdict == "yes" else 0
        return CHECK_GROUPS.index(group_of(finding)), urgency, places.get(finding.code, len(places))

    return tuple(sorted(findings, key=place))


def severity_text(finding: Finding) -> str:
    """Return the severity of a finding, and that its confidence is low.

    >>> severity_text(Finding("stall", "hint", "", "", confidence="low"))
    'hint, low confidence'
    """
    return (
        f"{finding.severity}, low confidence" if finding.confidence == "low" else finding.severity
    )


def worth_knowing(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that are reported, most urgent first."""
    holding = (finding for finding in findings if finding.reported)
    return tuple(sorted(holding, key=lambda finding: SEVERITIES.index(finding.severity)))


def as_reported(finding: Finding) -> Finding:
    """Return a finding as reported: one that is covered only refers to the other.

    >>> made = Finding("low_utilisation", "hint", "Low use", "7.5 GPU-h unused.", covered_by="bursty")
    >>> as_reported(made).sentence
    'Low use; reported as bursty.'
    """
    if not finding.covered_by:
        return finding
    return msgspec.structs.replace(
        finding, sentence=f"{finding.title}; reported as {finding.covered_by}.", checks=()
    )


def as_listed(finding: Finding) -> Finding:
    """Return a finding as a list of its group has it: nothing of it is said twice.

    The sentence is empty where it says no more than the group, or than the values below it.
    `needs`: empty where the sentence names them.

    >>> of_xid = {"verdict": "unknown", "needs": ("xid",)}
    >>> as_listed(Finding("xid_error", "problem", "", "Not measured: xid.", **of_xid)).needs
    ()
    >>> denied = Finding("slow_gpu", "hint", "", "Not triggered: it is 0 %.", verdict="no")
    >>> as_listed(denied).sentence
    'It is 0 %.'
    """
    finding = as_reported(finding)
    group = group_of(finding)
    sentence = finding.sentence
    for beginning in _BEGINNINGS.get(group, ()):
        if sentence.startswith(beginning):
            sentence = capitalized(sentence.removeprefix(beginning))
    of_values = bool(finding.checks) and finding.sentence.startswith(f"{NOT_TRIGGERED}: ")
    if sentence == f"{group}." or of_values:
        sentence = ""
    is_named = all(name in sentence for name in finding.needs)
    needs = () if is_named else finding.needs
    return msgspec.structs.replace(finding, sentence=sentence, needs=needs)


def missing_counters(
    verdicts: Iterable[Finding],
    *,
    recorded: Callable[[str], bool] | None = None,
    at_most: int | None = None,
) -> tuple[str, ...]:
    """Return the missing counters that checks need, each once, and how to record them: sentences.

    Those that most checks need come first; `at_most` of GPUs, of nodes and of others are named, the
    rest counted. `recorded`: whether one was, for too little of the time: it is not missing.

    >>> made = Finding("score_gpu", "hint", "", "", verdict="unknown", needs=("sm_occupancy", "cpu_user"))
    >>> missing_counters([made, made])[1]
    'Of the nodes: cpu_user. Have node_exporter or LDMS record them.'
    """
    waiting: Counter[str] = Counter()
    for finding in verdicts:
        if finding.verdict == "unknown":
            waiting.update(dict.fromkeys(finding.needs, 1))
    names = [name for name, _ in waiting.most_common() if recorded is None or not recorded(name)]
    of_gpus = [name for name in names if name in counters.COUNTERS_BY_NAME]
    of_nodes = [name for name in names if name in _OF_NODES]
    others = [
        name for name in names if name not in counters.COUNTERS_BY_NAME and name not in _OF_NODES
    ]
    phrases = []
    if of_gpus:
        listed = _first([_with_field(name) for name in of_gpus], at_most)
        phrases.append(f"Of the GPUs: {listed}. Have dcgm-exporter or LDMS record these fields.")
    if of_nodes:
        phrases.append(
            f"Of the nodes: {_first(of_nodes, at_most)}. Have node_exporter or LDMS record them."
        )
    if others:
        phrases.append(f"Not known: {_first(others, at_most)}.")
    return tuple(phrases)


def _first(names: Sequence[str], at_most: int | None) -> str:
    shown = names if at_most is None else names[:at_most]
    more = len(names) - len(shown)
    return f"{', '.join(shown)}, and {more} more, see --checks" if more else ", ".join(shown)


def _with_field(name: str) -> str:
    field = counters.COUNTERS_BY_NAME[name].dcgm_name
    return f"{name} ({DCGM_PREFIX}{field})" if field else name


def interval_text(
    finding: Finding, start: datetime | None, until: datetime | None, *, zone_name: str
) -> str | None:
    """Return the interval of a finding in the site's time zone; None for the whole job.

    `start`, `until`: of the job; they replace an open begin or end of the finding. The date is
    given unless it is that of the job's start.

    >>> begin, end = datetime(2026, 4, 23, 21, 5, tzinfo=UTC), datetime(2026, 4, 23, 22, 40, tzinfo=UTC)
    >>> made = Finding("job_hang", "problem", "", "", begin=begin, end=end)
    >>> interval_text(made, begin, end, zone_name="America/Los_Angeles")
    'from 14:05 to 15:40, 1 h 35 min'
    """
    if finding.begin is None and finding.end is None:
        return None
    begin, end = finding.begin or start, finding.end or until
    if begin is None or end is None:
        return None
    local = [moment.astimezone(zone(zone_name)) for moment in (begin, end)]
    changed = local[0].utcoffset() != local[1].utcoffset()  # clocks were changed in between
    day = (start or begin).astimezone(zone(zone_name)).date()
    times = []
    for moment in local:
        date = "" if moment.date() == day else f"{moment:%Y-%m-%d} "
        times.append(f"{date}{moment:%H:%M}{f' {moment:%Z}' if changed else ''}")
        day = moment.date()
    return f"from {times[0]} to {times[1]}, {text(shown_s(begin, end), 's')}"


def check_text(check: CheckedValue, *, zone_name: str = "UTC") -> str:
    """Return a value against its threshold.

    >>> check_text(CheckedValue("sm_active", 0.004, "<", 0.01, "fraction", True))
    'sm_active 0.4 % < 1 %'
    >>> check_text(CheckedValue("power_w", 250.0, "<", 90.0, "W", False))
    'power_w 250 W, not < 90 W'
    >>> check_text(CheckedValue("gpu_util", 0.9487, ">=", 0.95, "fraction", False))
    'gpu_util 94.9 %, not >= 95 %'
    >>> check_text(CheckedValue("pcie", None, "<", 5.0, "B/s", None))
    'pcie not measured (< 5 B/s)'

    Where `holds` takes more than this value, it may differ from the comparison.

    >>> check_text(CheckedValue("power", 0.24, "<", 0.3, "fraction", False))
    'power 24 % < 30 %, but its other conditions do not hold'
    """
    threshold = f"{check.relation} {value_text(check.threshold, check.unit, zone_name=zone_name)}"
    if check.value is None:
        return f"{check.name} not measured ({threshold})"
    value = value_text(check.value, check.unit, zone_name=zone_name)
    if check.unit not in _OWN_UNITS:
        value = apart(check.value, check.threshold, check.unit)
    if check.holds is None:
        return f"{check.name} {value}, undecided ({threshold})"
    compared = relation_holds(check.value, check.relation, check.threshold)
    message = (
        f"{check.name} {value} {threshold}"
        if compared
        else f"{check.name} {value}, not {threshold}"
    )
    if compared != check.holds:
        message += _OTHERWISE[check.holds]
    return message


def checks_text(finding: Finding, *, zone_name: str = "UTC") -> str:
    """Return values and thresholds of a finding, deciding ones first; empty without any.

    If the finding holds, only checks that hold: a rule may need one of several.
    """
    holding = [check for check in finding.checks if check.holds]
    if finding.verdict == "yes":
        ordered = holding
    else:
        ordered = sorted(finding.checks, key=lambda check: check.holds is not False)
    shown = ordered[:SHOWN_CHECKS]
    more = len(ordered) - len(shown)
    message = "; ".join(check_text(check, zone_name=zone_name) for check in shown)
    return f"{message}; and {more} more" if more else message


def evidence_texts(finding: Finding, zone_name: str) -> tuple[tuple[str, str, str], ...]:
    """Return the evidence of a finding as (name, label, text)."""
    return tuple(
        (name, EVIDENCE[name][0], value_text(value, EVIDENCE[name][1], zone_name=zone_name))
        for name, value in finding.evidence.items()
        if name in EVIDENCE
    )


def value_text(value: float, unit: str, *, zone_name: str = "UTC") -> str:
    """Return a number of a finding; those with unit `time` are seconds since 1970."""
    if unit == "time":
        return local_time(datetime.fromtimestamp(value, UTC), zone_name)
    if unit == "percent":
        return text(value / 100, "fraction")
    return f"{value:.0f}" if unit == "code" else text(value, unit)
