"""The backtest of advice as text and JSON: its effect on past jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tachograph.catalog.units import gpu_hours_text, plural, printable, text
from tachograph.judge.advice.backtest import FAILURES, BacktestReport, BacktestSums
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

_WHAT = {
    "gpus": ("fewer GPUs", "too few GPUs"),
    "gpu_memory": ("smaller GPUs", "out of GPU memory"),
    "time": ("time limit", "time limit"),
    "host_memory": ("host memory", "out of host memory"),
}
_LISTED = 5


def backtest_lines(report: BacktestReport, *, top: int | None = 10, width: int = 100) -> list[Line]:
    """Return sums, failures, and tables by user and partition; `top`: rows per table."""
    total = report.total
    lines = [line for sentence in _sentences(total) for line in wrapped(sentence, width)]
    lines += [plain("")]
    lines += fit_table(
        [
            TextColumn("advice", [_WHAT[topic][0] for topic in FAILURES]),
            TextColumn("jobs", [f"{total.followed[topic]:,}" for topic in FAILURES], right=True),
            TextColumn("failed", [f"{total.broken[topic]:,}" for topic in FAILURES], right=True),
            TextColumn(
                "not measured",
                [f"{total.undecided[topic]:,}" for topic in FAILURES],
                right=True,
                hide=1,
            ),
        ],
        width,
    ).lines
    levels = [level for level in ("high", "medium") if level in report.confidence]
    if levels:
        lines += [plain("")]
        counts = [report.confidence[level] for level in levels]
        lines += fit_table(
            [
                TextColumn("confidence", levels),
                TextColumn("lines", [f"{lines_:,}" for lines_, _ in counts], right=True),
                TextColumn("failed", [f"{failed:,}" for _, failed in counts], right=True),
                TextColumn(
                    "share",
                    [text(failed / lines_, "fraction") for lines_, failed in counts],
                    right=True,
                ),
            ],
            width,
        ).lines
    for title, groups in (("user", report.by_user), ("partition", report.by_partition)):
        lines += [plain(""), *_table(title, groups, top, width)]
    if report.broken:
        lines += [plain("")]
    for one in report.broken[:_LISTED]:
        unit = {"gpus": "", "time": "s"}.get(one.topic, "MiB")
        whose = f"{one.job.label} of {one.job.user} ({one.job.name})"
        used = (
            f"{_WHAT[one.topic][1]}: needed {text(one.used, unit)}, advised "
            f"{text(one.advised, unit)}"
        )
        lines += wrapped(
            printable(f"{whose}: {used}, confidence {one.confidence}"), width, indent="  "
        )
    return lines


def _sentences(total: BacktestSums) -> Iterator[str]:
    """What following the advice would have meant; nothing on what no job had."""
    yield (
        f"{plural(total.jobs, 'job')}, {total.grouped:,} with past jobs of their name. Advice would "
        f"have changed the request of {total.advised:,}"
        + (
            f"; {total.broken_jobs:,} of them ({text(total.broken_share, 'fraction')}) would have "
            "failed."
            if total.advised
            else "."
        )
    )
    if total.saved or total.followed["gpus"]:
        yield f"It would have saved {text(total.saved, 'h')} of {gpu_hours_text(total.gpu_hours)}."
    if total.large_saved:
        yield (
            f"Of {gpu_hours_text(total.large_hours)} with large memory, "
            f"{text(total.large_saved, 'h')} would have moved to smaller GPUs."
        )
    if not total.recoverable:
        return
    yield (
        f"{gpu_hours_text(total.recoverable)} were recoverable. Advice named the cause of "
        f"{text(total.named_all_share, 'fraction')} of them before the job ran. At most "
        f"{text(total.known_share, 'fraction')} could be named: no past job of its user shows the "
        "rest."
    )
    if total.with_history:
        yield (
            f"In jobs with past jobs of their name {text(total.with_history, 'h')} were "
            f"recoverable, and {text(total.named_share, 'fraction')} of them were named."
        )
    named, known = _percents(total.worth_named_share, total.worth_known_share)
    if total.minor and (named, known) != _percents(total.named_all_share, total.known_share):
        yield (
            "Without causes below 2 % of a job's GPU time and below 1 h, advice named "
            f"{named} of the hours, and past jobs show the cause of {known}."
        )
    if total.warned:
        yield (
            f"Advice named a cause for {plural(total.warned, 'job')}, and was right for "
            f"{total.warned_right:,}."
        )


def _percents(*shares: float | None) -> tuple[str, ...]:
    return tuple(text(share, "fraction") for share in shares)


def _table(
    title: str, groups: Mapping[str, BacktestSums], top: int | None, width: int
) -> list[Line]:
    order = sorted(groups, key=lambda name: (-groups[name].saved - groups[name].large_saved, name))
    shown = [(name, groups[name]) for name in order[:top]]
    table = fit_table(
        [
            TextColumn(title, [printable(name) or "–" for name, _ in shown], least=8),
            TextColumn("jobs", [f"{sums.jobs:,}" for _, sums in shown], right=True),
            TextColumn("advised", [f"{sums.advised:,}" for _, sums in shown], right=True),
            TextColumn("failed", [f"{sums.broken_jobs:,}" for _, sums in shown], right=True),
            TextColumn("saved", [text(sums.saved, "h") for _, sums in shown], right=True),
            TextColumn(
                "large memory",
                [text(sums.large_saved, "h") for _, sums in shown],
                right=True,
                hide=2,
            ),
            TextColumn(
                "recoverable",
                [text(sums.recoverable, "h") for _, sums in shown],
                right=True,
                hide=1,
            ),
            TextColumn(
                "named",
                [text(sums.named_share, "fraction") for _, sums in shown],
                right=True,
                hide=3,
            ),
        ],
        width,
    )
    more = len(order) - len(shown)
    return table.with_note(
        *([f"{len(shown)} of {len(order)} {title}s"] if more else []), width=width
    )


def backtest_json(report: BacktestReport) -> dict[str, Any]:
    """Return the backtest as JSON values; shares are null without jobs."""
    return json_values(
        {
            "total": _sums(report.total),
            "by_user": {name: _sums(sums) for name, sums in sorted(report.by_user.items())},
            "by_partition": {
                name: _sums(sums) for name, sums in sorted(report.by_partition.items())
            },
            "confidence": {
                level: {"lines": lines, "failed": failed}
                for level, (lines, failed) in report.confidence.items()
            },
            "failed": [
                {
                    "job_key": one.job.key,
                    "user": one.job.user,
                    "name": one.job.name,
                    "topic": one.topic,
                    "advised": one.advised,
                    "needed": one.used,
                    "confidence": one.confidence,
                }
                for one in report.broken
            ],
        }
    )


def _sums(sums: BacktestSums) -> dict[str, Any]:
    return {
        "jobs": sums.jobs,
        "with_past_jobs": sums.grouped,
        "advised": sums.advised,
        "failed": sums.broken_jobs,
        "failed_share": sums.broken_share,
        "lines": {topic: sums.followed[topic] for topic in FAILURES},
        "failed_lines": {topic: sums.broken[topic] for topic in FAILURES},
        "not_measured": {topic: sums.undecided[topic] for topic in FAILURES},
        "gpu_hours": sums.gpu_hours,
        "gpu_hours_saved": sums.saved,
        "large_memory_gpu_hours": sums.large_hours,
        "large_memory_gpu_hours_saved": sums.large_saved,
        "recoverable": sums.recoverable,
        "recoverable_with_past_jobs": sums.with_history,
        "named": sums.named,
        "named_share": sums.named_share,
        "named_of_all": sums.named_all,
        "named_of_all_share": sums.named_all_share,
        "known_causes": sums.known,
        "known_causes_share": sums.known_share,
        "minor": sums.minor,
        "worth_naming_named_share": sums.worth_named_share,
        "worth_naming_known_share": sums.worth_known_share,
        "warned": sums.warned,
        "warned_right": sums.warned_right,
    }
