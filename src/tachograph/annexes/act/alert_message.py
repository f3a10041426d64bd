"""Messages about alerts, in the formats of their receivers: JSON, Slack, Matrix, Alertmanager."""

from __future__ import annotations

import html
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from tachograph.annexes.act.alert_conditions import ALERT_KINDS, Alert
from tachograph.catalog.units import plural, printable
from tachograph.report.tables import cut

MOST_LISTED = 20  # alerts of a message that are written out
MOST_SENTENCE = 500  # characters of each

Status = Literal["firing", "resolved"]


class Incident(msgspec.Struct, frozen=True, omit_defaults=True):
    """An alert with its begin and end. last_seen: when last observed; id: constant."""

    id: str
    alert: Alert
    started: datetime
    last_seen: datetime
    ended: datetime | None = None


class AlertMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Incidents of one code that began or ended together. repeated: may have been sent before."""

    id: str
    status: Status
    code: str
    incidents: tuple[Incident, ...]
    repeated: bool = False

    @property
    def title(self) -> str:
        """Title of the message, one line."""
        count = f" ({len(self.incidents):,})" if len(self.incidents) > 1 else ""
        again = ", possibly repeated" if self.repeated else ""
        return f"{'Resolved: ' if self.status == 'resolved' else ''}{ALERT_KINDS[self.code].title}{count}{again}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """One for each incident, at most MOST_LISTED, and how many are left."""
        shown = [_sentence(incident) for incident in self.incidents[:MOST_LISTED]]
        further = len(self.incidents) - len(shown)
        return (*shown, *([f"and {plural(further, 'further alert')}"] if further else []))

    @property
    def runbook(self) -> str:
        """Steps to take; "" once resolved."""
        return "" if self.status == "resolved" else ALERT_KINDS[self.code].runbook


def _sentence(incident: Incident) -> str:
    sentence = cut(printable(incident.alert.sentence), MOST_SENTENCE)
    begun = _utc_text(incident.started)
    if incident.ended is None:
        return f"{sentence} (since {begun})"
    return f"{sentence} ({begun} to {_utc_text(incident.ended)})"


def _utc_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M UTC}"


def alert_json(message: AlertMessage, url: str = "") -> dict[str, Any]:
    """Return the message as JSON values; the contract of `format = "json"`."""
    return {
        "version": 1,
        "id": message.id,
        "status": message.status,
        "code": message.code,
        "severity": ALERT_KINDS[message.code].severity,
        "title": message.title,
        "runbook": message.runbook,
        "alerts": [
            {
                "id": incident.id,
                "target": incident.alert.target,
                "sentence": incident.alert.sentence,
                "labels": incident.alert.labels,
                "started": incident.started.isoformat(),
                "ended": None if incident.ended is None else incident.ended.isoformat(),
                "url": _link(incident, url) or None,
            }
            for incident in message.incidents
        ],
    }


def alert_slack(message: AlertMessage, url: str = "") -> dict[str, Any]:
    """Return the webhook message for Slack, Mattermost or Rocket.Chat: mrkdwn, no mentions."""
    lines = [f"*{slack_escaped(message.title)}*"]
    for sentence, link in _with_links(message, url):
        lines.append(
            f"• {slack_escaped(sentence)}{f' <{slack_escaped(link)}|page>' if link else ''}"
        )
    if message.runbook:
        lines.append(f"What to do: {slack_escaped(message.runbook)}")
    return {"text": "\n".join(lines)}


def slack_escaped(written: str) -> str:
    """Return text without links, mentions or commands of Slack.

    Source: Slack, "Formatting text for app surfaces": these three characters are control
    characters.

    >>> slack_escaped("<!channel> a & b")
    '&lt;!channel&gt; a &amp; b'
    """
    return written.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def alert_matrix(message: AlertMessage, url: str = "") -> dict[str, Any]:
    """Return the content of an event m.room.message: a notice, as text and HTML."""
    todo = [f"What to do: {message.runbook}"] if message.runbook else []
    items = []
    for sentence, link in _with_links(message, url):
        page = f' <a href="{html.escape(link)}">page</a>' if link else ""
        items.append(f"<li>{html.escape(sentence)}{page}</li>")
    paragraph = "".join(f"<p>{html.escape(line)}</p>" for line in todo)
    return {
        "msgtype": "m.notice",
        "body": "\n".join(
            [message.title, *(f"- {sentence}" for sentence in message.sentences), *todo]
        ),
        "format": "org.matrix.custom.html",
        "formatted_body": f"<strong>{html.escape(message.title)}</strong><ul>{''.join(items)}</ul>{paragraph}",
    }


def alert_manager(
    incidents: tuple[Incident, ...], *, until: datetime, url: str = ""
) -> list[dict[str, Any]]:
    """Return incidents as alerts for Alertmanager's API v2; open ones end at `until`."""
    posted = []
    for incident in incidents:
        kind, alert = ALERT_KINDS[incident.alert.code], incident.alert
        link = _link(incident, url)
        posted.append(
            {
                "labels": {
                    "alertname": "Tachograph" + "".join(map(str.capitalize, alert.code.split("_"))),
                    "severity": kind.severity,
                    "service": "tachograph",
                    "target": printable(alert.target),
                    **{name: printable(value) for name, value in alert.labels.items()},
                },
                "annotations": {
                    "summary": kind.title,
                    "description": printable(alert.sentence),
                    "runbook": kind.runbook,
                },
                "startsAt": incident.started.isoformat(),
                "endsAt": (incident.ended or until).isoformat(),
                **({"generatorURL": link} if link else {}),
            }
        )
    return posted


def _with_links(message: AlertMessage, url: str) -> Iterator[tuple[str, str]]:
    """Sentences with the URLs of their pages; the one on further alerts has none."""
    links = (_link(incident, url) for incident in message.incidents)
    return zip(message.sentences, chain(links, [""]), strict=False)


def _link(incident: Incident, url: str) -> str:
    """URL of the page, if pages are served."""
    if "://" not in url or not incident.alert.path:
        return ""
    return f"{url.rstrip('/')}{quote(incident.alert.path)}"
