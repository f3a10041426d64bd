"""`[[policy]]`: actions on running jobs judged hung, idle, or on a failing GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from tachograph.catalog.errors import ConfigError

PolicyCheck = Literal["hung", "held_idle", "failing_gpu"]
PolicyAction = Literal["note", "mail", "webhook", "suspend", "requeue", "cancel", "drain"]
# Actions that change a job.
ON_JOBS: frozenset[PolicyAction] = frozenset({"suspend", "requeue", "cancel"})
SHORTEST = 10  # minutes of a window: a shorter time without work is not unusual


class PolicyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Actions on running jobs. Names match users, accounts, ... as patterns, `*` allowed."""

    name: str
    check: PolicyCheck
    action: PolicyAction = "note"
    # Only records what it would do; to act, act.dry_run must be off, too.
    dry_run: bool = True
    minutes: int = 60  # of a window: the evidence must hold in two, one right after the other
    gpu_hours: float = 0.0  # least GPU-hours without work; of failing_gpu none are counted
    partitions: tuple[str, ...] = ()  # empty: all
    exempt_users: tuple[str, ...] = ()
    exempt_accounts: tuple[str, ...] = ()
    exempt_qos: tuple[str, ...] = ()
    exempt_reservations: tuple[str, ...] = ()
    exempt_interactive: bool = True  # jobs without a batch script: salloc, srun
    warnings: int = 1  # mails to the user before a job is suspended, requeued or cancelled
    warning_minutes: float = 60.0  # from one to the next, and from the last to the action
    webhook: str = ""  # name of the receiver, of action = "webhook"

    @property
    def warned(self) -> int:
        """Number of mails before the action: none before one that changes no job."""
        return self.warnings if self.action in ON_JOBS else 0


def check_policies(policies: Sequence[PolicyOptions], webhooks: Iterable[str], where: str) -> None:
    """Check what single values cannot show. webhooks: names of receivers; where: the file.

    Errors: ConfigError naming the policy.
    """
    names, receivers = [policy.name for policy in policies], set(webhooks)
    for policy in policies:
        key = f"policy {policy.name!r}"
        if not policy.name or not policy.name.isprintable() or ":" in policy.name:
            raise ConfigError(
                f"{key}: no name", where=where, do='write name = "cancel-hung", without colons'
            )
        if names.count(policy.name) > 1:
            raise ConfigError(
                f"{key}: two policies have this name", where=where, do="give each its own name"
            )
        if policy.minutes < SHORTEST:
            raise ConfigError(
                f"{key}: minutes is below {SHORTEST}",
                where=where,
                do="write 60: two windows are two hours",
            )
        if (policy.action == "webhook") != bool(policy.webhook) or (
            policy.webhook and policy.webhook not in receivers
        ):
            receiver_names = ", ".join(sorted(receivers)) or "none"
            do = (
                'write webhook = "NAME" with action = "webhook", and only there; '
                f"known: {receiver_names}"
            )
            raise ConfigError(
                f"{key}: webhook {policy.webhook!r} is no receiver", where=where, do=do
            )
        if policy.action == "drain" and policy.check != "failing_gpu":
            raise ConfigError(
                f"{key}: only failing_gpu drains a node",
                where=where,
                do='write check = "failing_gpu"',
            )
        if policy.check == "failing_gpu" and policy.gpu_hours:
            raise ConfigError(
                f"{key}: gpu_hours without work is nothing of a failing GPU",
                where=where,
                do="leave it out",
            )


def matches(value: str | None, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of the patterns; an unknown name matches none.

    >>> matches("gpu-debug", ["gpu*"]), matches(None, ["*"]), matches("gpu", [])
    (True, False, False)
    """
    return value is not None and any(fnmatchcase(value, pattern) for pattern in patterns)
