"""Advice for the next job as text, JSON, and lines for a job script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from tachograph.catalog.units import capitalized, plural, printable, slurm_duration, text
from tachograph.judge.advice.advise import RECOVERABLE, Advice, AdviceLine
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, plain, wrapped

TITLES: Mapping[str, str] = {
    "gpus": "GPUs",
    "gpu_memory": "GPU memory",
    "sharing": "Share of a GPU",
    "time": "Time limit",
    "host_memory": "Host memory",
    "cores": "CPUs",
    "expected": "Expected",
    "problems": "Problems",
}
_LABEL = 16  # characters
_GROUPS = {
    "exact": "of this name, partition and number of GPUs",
    "pattern": "of this pattern of names and number of GPUs",
    "user": "of this user, of other names or sizes",
}


def advice_headline(advice: Advice) -> str:
    """Return on which past jobs the advice rests."""
    group = advice.group
    if group.level is None:
        if advice.request.user is None:
            return "No advice: the user is not known."
        known = group.counted.get("user", 0)
        what = "No advice on the request" if group.few else "No advice"
        return f"{what}: {plural(known, 'past job')} of the user, too few."
    since = (
        "" if group.since is None else f" since {datetime.fromtimestamp(group.since, UTC):%Y-%m-%d}"
    )
    return f"{plural(len(group.jobs), 'past job')} {_GROUPS[group.level]}{since}"


def advice_lines(advice: Advice, *, width: int = 100) -> list[Line]:
    """Return headline and one entry per topic, and the lines for a script."""
    request = advice.request
    name = f"{request.name or '(no name)'} of {request.user or '(unknown user)'}"
    lines = [
        *wrapped(printable(name), width, style="bold"),
        *wrapped(advice_headline(advice), width),
        plain(""),
    ]
    for line in advice.lines:
        first = f"{TITLES[line.topic]:<{_LABEL}}"
        style = "bold" if line.value is not None and line.followed else ""
        lines += wrapped(
            printable(advice_sentence(line)), width, first=first, indent=" " * _LABEL, style=style
        )
        if line.value is not None:
            lines += wrapped(
                printable(evidence_sentence(line)), width, first=" " * _LABEL, indent=" " * _LABEL
            )
    if request.unread:
        lines += wrapped(printable(f"Not understood: {', '.join(request.unread)}"), width)
    if advice.options:
        lines += [plain(""), *(plain(written) for written in sbatch_lines(advice))]
    return lines


def sbatch_lines(advice: Advice) -> list[str]:
    """Return `#SBATCH` lines for advice of confidence high or medium."""
    return [f"#SBATCH {option}" for option in advice.options]


def advice_sentence(line: AdviceLine) -> str:
    """Return the advice as a sentence, or why there is none."""
    if line.value is None:
        return f"no advice: {line.reason}"
    return _SENTENCES[line.topic](line)


def evidence_sentence(line: AdviceLine) -> str:
    """Return the evidence of an advice line: runs, margin, confidence, jobs."""
    parts = [f"{line.runs} of {plural(line.of, 'run')}"]
    if line.margin:
        parts.append(f"margin {text(line.margin, 'fraction')}")
    parts.append(f"confidence {line.confidence}")
    if line.jobs:
        parts.append(f"jobs {', '.join(line.jobs)}")
    return "; ".join(parts)


def _number(line: AdviceLine, name: str) -> float | None:
    value = line.evidence.get(name)
    return value if isinstance(value, int | float) else None


def _gpus(line: AdviceLine) -> str:
    gain = line.evidence.get("gain")
    return (
        f"{line.value:.0f} of {line.asked or 0:.0f}: no run used more than "
        f"{text(_number(line, 'gpus_used_max'))}{f'; {gain}' if gain else ''}"
    )


def _gpu_memory(line: AdviceLine) -> str:
    tier = f"GPUs of {text(line.value, 'MiB')} suffice instead of {text(line.asked, 'MiB')}"
    ran = _number(line, "completed_on_mib")
    if ran is not None:
        return f"{tier}: the job completed on such GPUs"
    peak = text(_number(line, "hbm_peak_mib_max"), "MiB")
    return (
        f"{tier}: at most {peak} were used on one (with what PyTorch caches, which is more "
        "than it needs)"
    )


def _sharing(line: AdviceLine) -> str:
    profile, active = line.evidence.get("profile"), text(_number(line, "sm_active_max"), "fraction")
    return f"a MIG slice {profile} may suffice: SM activity was {active} on average at most"


def _time(line: AdviceLine) -> str:
    instead = "" if line.asked is None else f" instead of {slurm_duration(line.asked)}"
    longest, usual = (text(_number(line, f"elapsed_s_{name}"), "s") for name in ("max", "p95"))
    hung = _number(line, "hung_left_out")
    left_out = f"; {plural(hung, 'run')} that hung left out" if hung else ""
    most = "" if usual == longest else f", 95 % within {usual}"
    return f"{slurm_duration(line.value or 0)}{instead}: longest run {longest}{most}{left_out}"


def _host_memory(line: AdviceLine) -> str:
    instead = "" if line.asked is None else f" instead of {text(line.asked, 'MiB')}"
    killed = _number(line, "killed")
    if killed:
        return (
            f"{text(line.value, 'MiB')} of a node{instead}: "
            f"{plural(killed, 'run')} ran out of memory"
        )
    peak = text(_number(line, "mem_peak_mib_max"), "MiB")
    return f"{text(line.value, 'MiB')} of a node{instead}: tasks held at most {peak} when polled"


def _cores(line: AdviceLine) -> str:
    busy = text(_number(line, "cpus_busy_max"))
    return (
        f"{line.value:.0f} instead of {line.asked or 0:.0f} may suffice: {busy} were busy "
        "on average at most"
    )


def _expected(line: AdviceLine) -> str:
    parts = []
    for name, unit, what in (
        ("gpu_hours", "h", "GPU time"),
        ("energy_j", "J", "energy"),
        ("power_w", "W", "of each GPU"),
    ):
        low, middle, high = (_number(line, f"{name}_{end}") for end in ("p05", "median", "p95"))
        if middle is not None:
            parts.append(f"{text(middle, unit)} {what} ({text(low, unit)} to {text(high, unit)})")
    return ", ".join(parts)


def _problems(line: AdviceLine) -> str:
    seen, lost = list[str](), list[str]()
    for code, runs in line.evidence.items():
        if isinstance(runs, int | float):
            cause = code.removeprefix(RECOVERABLE)
            if cause != code:
                lost.append(f"{cause.replace('_', ' ')} {text(runs, 'fraction')}")
            else:
                seen.append(f"{code} {runs:.0f}")
    parts = [
        *([", ".join(seen)] if seen else []),
        *([f"recoverable GPU time: {', '.join(lost)}"] if lost else []),
    ]
    return f"in {line.value:.0f} of {plural(line.of, 'run')}: {'; '.join(parts)}"


_SENTENCES: Mapping[str, Callable[[AdviceLine], str]] = {
    "gpus": _gpus,
    "gpu_memory": _gpu_memory,
    "sharing": _sharing,
    "time": _time,
    "host_memory": _host_memory,
    "cores": _cores,
    "expected": _expected,
    "problems": _problems,
}


def advice_json(advice: Advice) -> dict[str, Any]:
    """Return request, group and lines as JSON values; `value` null: no advice, for the `reason`."""
    group = advice.group
    rows = []
    for line in advice.lines:
        row = {
            name: value for name, value in asdict(line).items() if name not in {"evidence", "jobs"}
        }
        row |= {
            "jobs": list(line.jobs),
            "evidence": dict(line.evidence),
            "sentence": capitalized(advice_sentence(line)),
        }
        rows.append(row | {"followed": line.followed})
    since = None if group.since is None else datetime.fromtimestamp(group.since, UTC)
    return json_values(
        {
            "request": asdict(advice.request),
            "group": {
                "level": group.level,
                "runs": len(group.jobs),
                "since": since,
                "counted": dict(group.counted),
            },
            "headline": advice_headline(advice),
            "lines": rows,
            "sbatch": sbatch_lines(advice),
        }
    )
