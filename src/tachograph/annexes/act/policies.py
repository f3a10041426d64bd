"""Policies for running jobs: warnings, then the action if the evidence still holds.

Before any action, Slurm is queried whether the job still runs, as the same run of the same user. A
stop of work is one case: its warnings and its action have its key in the ledger, so nothing is
repeated, and a job that works again and stops again is warned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

import msgspec
import polars as pl

from tachograph.annexes.act.alert_conditions import FRESH, HEALTH_COUNTERS, WINDOW, Alert
from tachograph.annexes.act.alert_message import AlertMessage, Incident
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.annexes.act.mail import Mail, MailConnection, Mailer
from tachograph.annexes.act.policy import (
    FINDINGS_OF,
    PolicyEvidence,
    exemption,
    fault_evidence,
    idle_evidence,
)
from tachograph.annexes.act.policy_report import job_name, warning_mail
from tachograph.annexes.act.slurm_jobs import SlurmJob, SlurmJobs
from tachograph.annexes.act.webhooks import Webhook
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import (
    ConfigError,
    ExportError,
    InputError,
    RefusedError,
    TachographError,
)
from tachograph.catalog.policies import ON_JOBS, PolicyOptions, matches
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.judge.culprit import find_culprit
from tachograph.lake.delta import Lake
from tachograph.lake.places import in_accounting, read_same_clusters
from tachograph.lake.query import (
    SampleReader,
    read_gpus,
    read_minutes,
    read_summaries,
    read_verdicts,
)

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


KIND = "policy"
RUNNING = (
    *(
        "job_key",
        "seq",
        "job_id",
        "display_id",
        "het_job_id",
        "cluster",
        "name",
        "user",
        "account",
        "partition",
    ),
    *("qos", "state", "start", "end", "as_of", "gpus", "attribution", "time_precision_s"),
)


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """A policy and a running job: evidence, or why there is none. culprit: of a hang, or ""."""

    policy: PolicyOptions
    job: JobSummaryRow
    found: PolicyEvidence | str
    culprit: str = ""

    @property
    def key(self) -> str:
        """Prefix of ledger keys; another run or another stop is another case."""
        since = self.found.since if isinstance(self.found, PolicyEvidence) else self.job["start"]
        start = self.job["start"]
        return f"{KIND}:{self.policy.name}:{self.job['job_key']}:{start.timestamp():.0f}:{since.timestamp():.0f}"

    @property
    def why(self) -> str:
        """The evidence, with the culprit."""
        sentence = self.found.sentence if isinstance(self.found, PolicyEvidence) else self.found
        return f"{sentence} {self.culprit}".strip()


def policy_cases(
    lake: Lake, configuration: Configuration, *, now: datetime
) -> Iterator[PolicyCase]:
    """Yield each policy with each running job that has a fresh result. Errors: LakeError."""
    if lake.version(JOB_SUMMARIES) < 0:
        return  # nothing was analyzed yet
    jobs = read_summaries(lake, RUNNING).filter(
        pl.col("end").is_null(),
        pl.col("state") == "RUNNING",
        pl.col("as_of") >= now - FRESH,
        pl.col("gpus") > 0,
    )
    codes = sorted(
        {code for policy in configuration.policy for code in FINDINGS_OF.get(policy.check, ())}
    )
    verdicts = read_verdicts(
        lake, jobs, pl.col("code").is_in(codes), ("job_key", "code", "verdict")
    )
    holding: dict[str, set[str]] = {}
    for key, code in (
        verdicts.filter(pl.col("verdict") == "yes").select("job_key", "code").iter_rows()
    ):
        holding.setdefault(key, set()).add(code)
    faults = any(policy.check == "failing_gpu" for policy in configuration.policy)
    samples = None
    if faults and jobs.height:
        recorded = SampleReader(lake).read_columns(now - WINDOW, HEALTH_COUNTERS)
        samples = in_accounting(recorded, read_same_clusters(lake))
    for summary in jobs.sort("start", "job_key").partition_by("job_key", maintain_order=True):
        job = cast("JobSummaryRow", summary.row(0, named=True))
        codes_of_job = holding.get(job["job_key"], set())
        tables = _Tables(lake, summary)
        for policy in configuration.policy:
            exempt = exemption(policy, job)
            yield _case(policy, job, exempt, codes_of_job, tables, samples, now)


@dataclass(frozen=True)
class _Tables:
    """GPUs and minutes of a job, read when a policy first needs them."""

    lake: Lake
    job: pl.DataFrame

    @cached_property
    def gpus(self) -> pl.DataFrame:
        return read_gpus(self.lake, self.job)

    @cached_property
    def minutes(self) -> pl.DataFrame:
        return read_minutes(self.lake, self.job)


def _case(
    policy: PolicyOptions,
    job: JobSummaryRow,
    exempt: str,
    codes: set[str],
    tables: _Tables,
    samples: pl.DataFrame | None,
    now: datetime,
) -> PolicyCase:
    if exempt:
        return PolicyCase(policy, job, exempt)
    if policy.check == "failing_gpu":
        if samples is None:
            return PolicyCase(policy, job, "no sample of its GPUs")
        return PolicyCase(policy, job, fault_evidence(policy, job, tables.gpus, samples, now=now))
    if codes.isdisjoint(FINDINGS_OF[policy.check]):
        return PolicyCase(policy, job, f"it is not judged {' or '.join(FINDINGS_OF[policy.check])}")
    evidence = idle_evidence(policy, job, tables.gpus, tables.minutes, now=now)
    culprit = ""
    held = job["gpus"] or 0
    if isinstance(evidence, PolicyEvidence) and policy.check == "hung" and held > 1:
        named = find_culprit(tables.gpus, tables.minutes, held=held)
        culprit = named.line if named.named else ""
    return PolicyCase(policy, job, evidence, culprit)


def apply_policies(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
) -> list[ActionRecord]:
    """Warn and act where a policy's evidence holds; return the ledger lines.

    A job, receiver or server that does not answer leaves the others. Errors: ConfigError;
    LakeError; the last problem of Slurm or of the mail server, after the other cases were treated.
    """
    if not configuration.policy:
        return []
    with ExitStack() as stack:
        acting = _Acting.of(ledger, configuration, now, stack)
        records: list[ActionRecord] = []
        for case in policy_cases(lake, configuration, now=now):
            if isinstance(case.found, PolicyEvidence):
                records += acting.treat(case, case.found)
        if acting.problem is not None:
            raise acting.problem
        return records


@dataclass(slots=True)
class _Acting:
    """Services for acting. silent: Slurm did not answer; problem: why Slurm or mail is unusable."""

    ledger: ActionLedger
    configuration: Configuration
    now: datetime
    stack: ExitStack
    slurm: SlurmJobs
    webhooks: Mapping[str, Webhook]
    mailer: Mailer | None
    connection: MailConnection | None = None
    problem: TachographError | None = None
    silent: bool = False

    @classmethod
    def of(
        cls, ledger: ActionLedger, configuration: Configuration, now: datetime, stack: ExitStack
    ) -> _Acting:
        """Return the configured services that policies need. Errors: ConfigError."""
        receivers = {policy.webhook for policy in configuration.policy if policy.webhook}
        webhooks = {
            webhook.name: Webhook.of(webhook)
            for webhook in configuration.webhook
            if webhook.name in receivers
        }
        mails = any(policy.warned or policy.action == "mail" for policy in configuration.policy)
        live = any(not _is_dry(policy, configuration) for policy in configuration.policy)
        mailer = Mailer.of(configuration.mail) if mails and live else None
        return cls(
            ledger,
            configuration,
            now,
            stack,
            SlurmJobs(configuration.act.slurm_before),
            webhooks,
            mailer,
        )

    def treat(self, case: PolicyCase, evidence: PolicyEvidence) -> list[ActionRecord]:
        """Do the next step of a case: a warning, or the action that follows."""
        policy, dry_run = case.policy, _is_dry(case.policy, self.configuration)
        for number in range(1, policy.warned + 1):
            key = f"{case.key}:warning-{number}"
            last = self.ledger.last(key)
            if last is not None and last.state in ("done", *(("would",) if dry_run else ())):
                if self.now - last.t < timedelta(minutes=policy.warning_minutes):
                    return []
                continue
            mail = partial(self._mail, case, key, number)
            return self._once(
                case, key, "mail", mail, target=str(case.job["user"]), dry_run=dry_run
            )
        key, target = f"{case.key}:{policy.action}", job_name(case.job)
        if policy.action == "mail":
            target = str(case.job["user"])
        if policy.action == "drain":
            target = ", ".join(evidence.nodes)
        acts: dict[str, Callable[[], str]] = {
            "note": lambda: "noted",
            "mail": partial(self._mail, case, key, 0),
            "webhook": partial(self._webhook, case, evidence, key),
            "drain": partial(self._drain, case, evidence.nodes),
        }
        act = acts.get(policy.action, partial(self._command, case))
        return self._once(case, key, policy.action, act, target=target, dry_run=dry_run)

    def _once(
        self,
        case: PolicyCase,
        key: str,
        kind: str,
        act: Callable[[], str],
        *,
        target: str,
        dry_run: bool,
    ) -> list[ActionRecord]:
        """Run one action, if it is due and the job is neither gone nor exempt."""
        if not self.ledger.is_due(key, dry_run=dry_run):
            return []
        why = case.why
        try:
            obstacle = self._answer(case)
        except RefusedError as problem:
            return [self.ledger.note(key, kind, "refused", target, why, str(problem))]
        if obstacle or (obstacle is None and not dry_run):
            return []
        if obstacle is None:
            why += " Slurm was not asked whether it is interactive or in a reservation."
        if kind == "mail" and not dry_run and not self._connected():
            return []
        return [
            self.ledger.once(
                key, kind, act, target=target, why=why, dry_run=dry_run, repeatable=True
            )
        ]

    def _answer(self, case: PolicyCase) -> str | None:
        """Return why not to act on the job, or "".

        None if Slurm does not answer in this round. Errors: RefusedError.
        """
        if self.silent:
            return None
        try:
            job = self._run_of(case)
        except RefusedError:
            raise
        except InputError as problem:
            self.silent = True
            if not _is_dry(case.policy, self.configuration):
                self.problem = problem
            return None
        return job if isinstance(job, str) else ""

    def _run_of(self, case: PolicyCase) -> SlurmJob | str:
        """Return the run from Slurm, or why not to act on it. Errors: InputError: no answer."""
        policy, job = case.policy, self.slurm.job(case.job["job_id"], case.job["cluster"])
        if job is None or not job.is_run(case.job):
            return "it has ended, or is another run"
        if job.is_component and policy.action in ON_JOBS:
            return "it is a part of a heterogeneous job"
        if policy.exempt_interactive and not job.batch:
            return "it is interactive"
        return (
            f"reservation {job.reservation}"
            if matches(job.reservation, policy.exempt_reservations)
            else job
        )

    def _connected(self) -> bool:
        """Whether mail can be sent, by one connection for all."""
        if self.connection is not None and not self.connection.lost:
            return True
        if self.mailer is None:
            return False
        try:
            self.connection = self.stack.enter_context(self.mailer.connected())
        except ExportError as problem:
            self.problem, self.mailer = problem, None  # not tried again in this round
        return self.connection is not None and not self.connection.lost

    def _mail(self, case: PolicyCase, key: str, number: int) -> str:
        if self.mailer is None or self.connection is None:
            raise ExportError("no connection to the mail server")
        text = warning_mail(
            case.policy, case.job, case.why, number=number, url=self.configuration.serve.url
        )
        mail = Mail(self.mailer.address(str(case.job["user"])), text.subject, text.text)
        return self.connection.send(mail, key)

    def _webhook(self, case: PolicyCase, evidence: PolicyEvidence, key: str) -> str:
        job = case.job
        labels = {name: str(job[name]) for name in ("cluster", "user", "partition") if job[name]}
        labels |= {"job": job_name(job, short=True), "policy": case.policy.name}
        alert = Alert(
            "policy",
            f"{case.policy.name} {job['job_key']}",
            case.why,
            labels,
            f"/job/{job['job_key']}",
        )
        incident = Incident(key, alert, evidence.since, evidence.until)
        page = self.configuration.serve.url
        until = self.now + timedelta(seconds=4 * self.configuration.act.interval_s)
        return self.webhooks[case.policy.webhook].send(
            AlertMessage(key, "firing", "policy", (incident,)), until=until, page=page
        )

    def _command(self, case: PolicyCase) -> str:
        """Suspend, requeue or cancel a run after checking it again.

        Errors: InputError, ExportError.
        """
        job = self._run_of(case)
        if isinstance(job, str):
            return f"nothing to do: {job}"
        action = case.policy.action
        assert action in ("suspend", "requeue", "cancel")
        return self.slurm.change(action, job, case.job["cluster"])

    def _drain(self, case: PolicyCase, nodes: Sequence[str]) -> str:
        """Drain the run's present nodes that have the fault. Errors: InputError, ExportError."""
        job, cluster = self._run_of(case), case.job["cluster"]
        if isinstance(job, str):
            return f"nothing to do: {job}"
        results = []
        for node in nodes:
            if not self.slurm.is_on(job, node, cluster):
                raise RefusedError(
                    f"job {job.name} does not run on node {node!r}; it was not drained"
                )
            results.append(
                self.slurm.drain(node, cluster, f"tachograph policy {case.policy.name}: {case.why}")
            )
        return "; ".join(results)


def _is_dry(policy: PolicyOptions, configuration: Configuration) -> bool:
    return policy.dry_run or configuration.act.dry_run


def policy_of(configuration: Configuration, names: Sequence[str]) -> Configuration:
    """Return the configuration with only these policies. Errors: ConfigError: unknown name."""
    policies = {policy.name: policy for policy in configuration.policy}
    for name in names:
        if name not in policies:
            do = f"use one of: {', '.join(policies) or 'none is configured'}"
            raise ConfigError(f"no policy {name!r}", do=do)
    return msgspec.structs.replace(
        configuration, policy=tuple(policies[name] for name in names or policies)
    )
