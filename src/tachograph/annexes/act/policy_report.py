"""Texts about policies: the mail to a user, the list of running jobs, the backtest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tachograph.annexes.act.policy_backtest import PolicyBacktest, PolicyReplay
from tachograph.catalog.policies import ON_JOBS, PolicyOptions
from tachograph.catalog.units import plural, printable, text
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table
from tachograph.sources.job_ids import is_slurm_job

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


_DONE = {"suspend": "suspended", "requeue": "requeued", "cancel": "cancelled"}
_WHAT = {
    "hung": "has stopped working and seems to hang",
    "held_idle": "holds GPUs that do no work",
    "failing_gpu": "runs on a GPU with faults",
}
_NEXT_STEPS = {
    "hung": "Look at its output and at its processes. If it hangs, cancel it{how}.",
    "held_idle": ("If it needs no GPUs now, end it{how} and ask for GPUs where they are used."),
    "failing_gpu": "Check its results: they may be wrong. Staff looks after the GPU.",
}


@dataclass(frozen=True, slots=True)
class MailText:
    """Subject and text of a mail."""

    subject: str
    text: str


def job_name(job: JobSummaryRow, *, short: bool = False) -> str:
    """Return how a job is called.

    >>> job_name({"display_id": "7_1", "job_id": "8"}), job_name({"display_id": None, "job_id": "8"}, short=True)
    ('job 7_1', '8')
    """
    name = str(job["display_id"] or job["job_id"])
    return name if short else f"job {name}"


def warning_mail(
    policy: PolicyOptions, job: JobSummaryRow, why: str, *, number: int, url: str = ""
) -> MailText:
    """Return the mail to a job's user. number: of the warning; 0: mail is the only action.

    why: the evidence. url: address of the served pages.
    """
    short = job_name(job, short=True)
    written = job.get("name")
    name = f" ({printable(written)})" if written else ""
    lines = [f"Your job {short}{name} {_WHAT[policy.check]}.", "", printable(why), ""]
    if number and policy.action in ON_JOBS:
        remaining = policy.warned - number
        after = text(policy.warning_minutes * 60, "s")
        then = (
            f"you get {plural(remaining, 'further warning')}, and then it is"
            if remaining
            else "it is"
        )
        lines += [f"If this is still so {after} from now, {then} {_DONE[policy.action]}.", ""]
    how = f" (scancel {short})" if is_slurm_job(str(job["job_id"])) else ""
    lines += [_NEXT_STEPS[policy.check].format(how=how)]
    if "://" in url:
        lines += ["", f"Its page: {url.rstrip('/')}/job/{quote(str(job['job_key']))}"]
    lines += [
        "",
        "This mail was sent automatically, based on measurements. If it is wrong, please reply.",
    ]
    subject = f"Job {short} {_WHAT[policy.check]}"
    return MailText(subject, "\n".join(lines) + "\n")


def policy_sentence(policy: PolicyOptions) -> str:
    """Return a sentence that describes a policy.

    >>> policy_sentence(PolicyOptions("a", "hung", action="cancel", gpu_hours=8))
    'Cancel a job that is hung in two windows of 60 min, after 8.0 h GPU time without work, 1 warning; a dry run.'
    """
    does = {
        "note": "Note",
        "mail": "Mail the user of",
        "webhook": f"Send to {policy.webhook}",
        "drain": "Drain the nodes of",
    }.get(policy.action, policy.action.capitalize())
    what = {
        "hung": "is hung",
        "held_idle": "holds GPUs idle",
        "failing_gpu": "runs on a failing GPU",
    }[policy.check]
    after = [f"{text(policy.gpu_hours, 'h')} GPU time without work"] if policy.gpu_hours else []
    after += [plural(policy.warned, "warning")] if policy.warned else []
    then = f", after {', '.join(after)}" if after else ""
    dry_run = "; a dry run" if policy.dry_run else ""
    return f"{does} a job that {what} in two windows of {policy.minutes} min{then}{dry_run}."


def backtest_lines(found: PolicyBacktest, *, top: int = 10, width: int = 100) -> list[Line]:
    """Return the effects of a policy on past jobs; `top`: listed hits."""
    counts, again = found.counts, found.worked_again
    hits = f"{plural(len(found.hits), 'job')} of {found.jobs:,} would have been acted on"
    first = f"{found.policy.name}: {hits}, {len(again):,} of them worked again afterwards."
    second = (
        f"Recovered: {text(found.recovered, 'h')} of {text(found.gpu_hours, 'h')} GPU time. "
        f"{plural(found.warnings, 'warning')}; {plural(counts.get('warned', 0), 'job')} warned "
        "and left alone; "
        f"not measured: {counts.get('not_measured', 0):,}; exempt: {counts.get('exempt', 0):,}."
    )
    lines = [*wrapped(first, width), *wrapped(second, width)]
    if found.hits:
        shown = found.hits[:top]
        table = fit_table(
            [
                TextColumn("job", [job_name(hit.job, short=True) for hit in shown], least=6),
                TextColumn("user", [printable(hit.job["user"] or "–") for hit in shown], least=6),
                TextColumn(
                    "partition", [printable(hit.job["partition"] or "–") for hit in shown], hide=1
                ),
                TextColumn("GPUs", [f"{hit.job['gpus']:,}" for hit in shown], right=True),
                TextColumn(
                    "action after", [text((hit.at or 0) * 60, "s") for hit in shown], right=True
                ),
                TextColumn(
                    "to its end", [text(hit.gpu_hours_after, "h") for hit in shown], right=True
                ),
                TextColumn("worked again", ["yes" if hit.worked_again else "no" for hit in shown]),
            ],
            width,
        )
        more = len(found.hits) - len(shown)
        notes = [f"{len(shown)} of {plural(len(found.hits), 'job')}"] if more else []
        lines += [plain(""), *table.with_note(*notes, width=width)]
    return lines


def backtest_json(found: PolicyBacktest) -> dict[str, Any]:
    """Return the same as JSON values."""
    return json_values(
        {
            "policy": found.policy.name,
            "check": found.policy.check,
            "action": found.policy.action,
            "jobs": found.jobs,
            "gpu_hours": found.gpu_hours,
            "hits": len(found.hits),
            "worked_again": len(found.worked_again),
            "gpu_hours_recovered": found.recovered,
            "warnings": found.warnings,
            "warned_and_left": found.counts.get("warned", 0),
            "not_measured": found.counts.get("not_measured", 0),
            "exempt": found.counts.get("exempt", 0),
            "jobs_hit": [_hit(hit) for hit in found.hits],
        }
    )


def _hit(hit: PolicyReplay) -> dict[str, Any]:
    return {
        **{
            name: hit.job[name]
            for name in ("job_key", "display_id", "user", "account", "partition", "gpus")
        },
        "after_s": None if hit.at is None else hit.at * 60.0,
        "warnings": hit.warnings,
        "worked_again": hit.worked_again,
        "gpu_hours_after": hit.gpu_hours_after,
    }
