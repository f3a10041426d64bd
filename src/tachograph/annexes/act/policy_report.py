"""Texts about policies: the mail to a user, the list of running jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from tachograph.catalog.policies import ON_JOBS, PolicyOptions
from tachograph.catalog.units import plural, printable, text
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
