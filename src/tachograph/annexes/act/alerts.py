"""Alerts to operators: new and resolved ones, each delivered once per receiver, in order.

The book of alerts is a file beside the ledger: open incidents, and messages that are not delivered
yet. It is written before anything is sent, so a message is the same after a kill, and the ledger
knows what became of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
import polars as pl

from tachograph.annexes.act.alert_conditions import (
    HANG,
    HEALTH_COUNTERS,
    WINDOW,
    AlertState,
    failing_gpus,
    hung_jobs,
    merged,
    nodes_without_samples,
)
from tachograph.annexes.act.alert_message import AlertMessage, Incident, Status
from tachograph.annexes.act.ledger import MOST_ATTEMPTS, ActionLedger, ActionRecord
from tachograph.annexes.act.webhooks import Webhook
from tachograph.catalog.config import Configuration
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import ConfigError, ExportError, LakeError, TachographError
from tachograph.lake.delta import Lake
from tachograph.lake.places import in_accounting, read_same_clusters
from tachograph.lake.query import SampleReader, read_summaries, read_verdicts

KIND = "webhook"
BOOK_FILE = "alerts.json"
DRY_BOOK_FILE = "alerts-dry-run.json"
# An alert that comes and goes is over when it did not hold for so long.
HOLD = timedelta(minutes=15)
LEAST_GPUS = 8  # of a job: fewer make no alert when it hangs
HUNG_FOR = timedelta(hours=1)
WITHOUT_SAMPLES = timedelta(minutes=15)  # of a node
FORGOTTEN = timedelta(days=7)  # without any data: over
_MOST_A_ROUND = 50  # messages to one receiver
_OPEN_ROUNDS = 4  # missed rounds after which Alertmanager resolves an alert
_JOB = (
    "job_key",
    "display_id",
    "job_id",
    "cluster",
    "user",
    "partition",
    "gpus",
    "end",
    "as_of",
    "seq",
)


class Outgoing(msgspec.Struct, frozen=True):
    """A message and the name of its receiver."""

    receiver: str
    message: AlertMessage


class AlertBook(msgspec.Struct, frozen=True):
    """Open incidents, and undelivered messages, oldest first."""

    incidents: tuple[Incident, ...] = ()
    outbox: tuple[Outgoing, ...] = ()

    def without(self, *done: Outgoing) -> AlertBook:
        """Return the book without some messages."""
        undelivered = tuple(outgoing for outgoing in self.outbox if outgoing not in done)
        return msgspec.structs.replace(self, outbox=undelivered)


def alert_state(lake: Lake, *, now: datetime) -> AlertState:
    """Return the current conditions, with the accounting's names of clusters. Errors: LakeError."""
    reader = SampleReader(lake)
    recorded = reader.read_columns(now - WINDOW, HEALTH_COUNTERS)
    samples = in_accounting(recorded, read_same_clusters(lake))
    by_node = samples.group_by("node", "cluster").agg(pl.col("t").max())
    last = {(node, cluster): at for node, cluster, at in by_node.iter_rows()}
    newest = reader.span[1] if reader.span else None
    return merged(
        [
            failing_gpus(samples, now=now),
            nodes_without_samples(last, newest, now=now, limit=WITHOUT_SAMPLES),
            _hung(lake, now=now),
        ]
    )


def _hung(lake: Lake, *, now: datetime) -> AlertState:
    try:
        jobs = read_summaries(lake, _JOB)
    except LakeError:  # nothing was analyzed yet
        return AlertState()
    recent = jobs.filter(pl.col("end").is_null() | (pl.col("end") >= now - FORGOTTEN))
    running = recent.filter(pl.col("end").is_null())
    columns = ("job_key", "code", "verdict", "sentence", "begin", "end")
    findings = read_verdicts(lake, running, pl.col("code") == HANG, columns)
    return hung_jobs(recent, findings, now=now, least_gpus=LEAST_GPUS, limit=HUNG_FOR)


def send_alerts(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
) -> list[ActionRecord]:
    """Send new, resolved and undelivered alerts; return the ledger lines.

    Errors: ConfigError; LakeError where the lake cannot be read, after what waits was sent.
    """
    if not configuration.act.alert:
        return []
    webhooks = [Webhook.of(options) for options in configuration.webhook]
    if len({webhook.options.name for webhook in webhooks}) < len(webhooks):
        raise ConfigError("webhook: two receivers have one name", do="give each its own name")
    if not webhooks:
        raise ConfigError("act.alert: no receiver is configured", do="add [[webhook]]")
    dry_run = configuration.act.dry_run
    file = ledger.folder / (DRY_BOOK_FILE if dry_run else BOOK_FILE)
    book, problem = _read_book(file), None
    try:
        book = updated(book, alert_state(lake, now=now), webhooks, now=now)
    except TachographError as error:
        problem = error
    _write_book(file, book)
    records: list[ActionRecord] = []
    for webhook in webhooks:
        book = _deliver(ledger, webhook, book, file, records, configuration, now)
    names = {webhook.options.name for webhook in webhooks}
    lost = [outgoing for outgoing in book.outbox if outgoing.receiver not in names]
    result = "the receiver is no longer configured"
    for undelivered in lost:
        title = undelivered.message.title
        records.append(
            ledger.note(
                _key(undelivered),
                KIND,
                "failed",
                undelivered.receiver,
                title,
                result,
                MOST_ATTEMPTS,
            )
        )
    if lost:
        _write_book(file, book.without(*lost))
    if problem is not None:
        raise problem
    if not dry_run:
        _post_again(webhooks, book, configuration, now)
    return records


def updated(
    book: AlertBook, state: AlertState, webhooks: Sequence[Webhook], *, now: datetime
) -> AlertBook:
    """Return the new state: incidents that began or ended, and a message per receiver."""
    open_ones = {
        (incident.alert.code, incident.alert.target): incident for incident in book.incidents
    }
    begun, ended = [], []
    for alert in state.firing:
        target = (alert.code, alert.target)
        if target in open_ones:
            # as first reported: later changes of the text are not sent
            open_ones[target] = msgspec.structs.replace(open_ones[target], last_seen=now)
        else:
            number = _digest(alert.code, alert.target, now.isoformat())
            open_ones[target] = Incident(number, alert, now, now)
            begun.append(open_ones[target])
    firing = {(alert.code, alert.target) for alert in state.firing}
    for target, open_incident in list(open_ones.items()):
        unseen = now - open_incident.last_seen
        if target not in firing and (
            (target in state.clear and unseen >= HOLD) or unseen >= FORGOTTEN
        ):
            ended.append(msgspec.structs.replace(open_ones.pop(target), ended=now))
    outbox = list(book.outbox)
    for webhook in webhooks:
        outbox += _messages(webhook, "firing", begun)
        outbox += _messages(webhook, "resolved", ended)
    return AlertBook(tuple(open_ones.values()), tuple(outbox))


def _messages(webhook: Webhook, status: Status, incidents: Iterable[Incident]) -> list[Outgoing]:
    """One message per code, for receivers that want it."""
    by_code: dict[str, list[Incident]] = {}
    for incident in incidents:
        if webhook.takes(incident.alert.code):
            by_code.setdefault(incident.alert.code, []).append(incident)
    name = webhook.options.name
    messages = []
    for code, of_code in by_code.items():
        digest = _digest(name, status, *(incident.id for incident in of_code))
        messages.append(Outgoing(name, AlertMessage(digest, status, code, tuple(of_code))))
    return messages


def _deliver(
    ledger: ActionLedger,
    webhook: Webhook,
    book: AlertBook,
    file: Path,
    records: list[ActionRecord],
    configuration: Configuration,
    now: datetime,
) -> AlertBook:
    """Send a receiver's messages in order until one fails; return the state without them."""
    mine = [outgoing for outgoing in book.outbox if outgoing.receiver == webhook.options.name]
    for waiting in mine[:_MOST_A_ROUND]:
        record = _send_once(ledger, webhook, waiting, configuration, now)
        records.append(record)
        if record.state == "failed" and record.attempt < MOST_ATTEMPTS:
            break
        book = book.without(waiting)
        _write_book(file, book)
    return book


def _send_once(
    ledger: ActionLedger,
    webhook: Webhook,
    outgoing: Outgoing,
    configuration: Configuration,
    now: datetime,
) -> ActionRecord:
    """Send a message once; if killed meanwhile, it is sent again, marked as repeated.

    A receiver that recognizes the id ignores the repetition.
    """
    key, message = _key(outgoing), outgoing.message
    for again in (False, True):
        shown = msgspec.structs.replace(message, repeated=True) if again else message
        send = partial(
            webhook.send, shown, until=_until(configuration, now), page=configuration.serve.url
        )
        record = ledger.once(
            f"{key}:again" if again else key,
            KIND,
            send,
            target=outgoing.receiver,
            why=f"{message.title}: {'; '.join(message.sentences)}",
            dry_run=configuration.act.dry_run,
            repeatable=webhook.is_idempotent,
        )
        if record.state != "unknown":
            break
    return record


def _post_again(
    webhooks: Iterable[Webhook], book: AlertBook, configuration: Configuration, now: datetime
) -> None:
    """Post all open incidents to Alertmanager, which only keeps them in memory.

    Errors: ExportError.
    """
    for webhook in webhooks:
        waiting = any(outgoing.receiver == webhook.options.name for outgoing in book.outbox)
        if webhook.options.format != "alertmanager" or waiting:
            continue
        mine = tuple(incident for incident in book.incidents if webhook.takes(incident.alert.code))
        for start in range(0, len(mine), 200):
            part = mine[start : start + 200]
            webhook.post_open(part, until=_until(configuration, now), page=configuration.serve.url)


def _until(configuration: Configuration, now: datetime) -> datetime:
    return now + timedelta(seconds=_OPEN_ROUNDS * max(60.0, configuration.act.interval_s))


def _key(outgoing: Outgoing) -> str:
    return f"alert:{outgoing.receiver}:{outgoing.message.id}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


# ------------------------------------------------------------------------------------------------------- the book


def _read_book(file: Path) -> AlertBook:
    """Read the book, empty if there is no file. Errors: LakeError if it is damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=AlertBook)
    except FileNotFoundError:
        return AlertBook()
    except OSError as problem:
        raise LakeError(
            f"the state file of alerts cannot be read: {problem.strerror}", where=str(file)
        ) from None
    except msgspec.DecodeError:
        raise LakeError(
            "the state file of alerts is damaged", where=str(file), do="move the file away"
        ) from None


def _write_book(file: Path, book: AlertBook) -> None:
    """Write the book, on the disk when this returns. Errors: ExportError; then nothing is sent."""
    try:
        replace_file(file, msgspec.json.encode(book), mode=0o600)
    except OSError as problem:
        raise ExportError(
            f"the state file of alerts cannot be written: {problem.strerror}", where=str(file)
        ) from None
