"""Alerts: when they hold and are over, each format, each sent once whatever is down or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import polars as pl
import pytest

from madelake import fill, held, job, summarized
from servers.alertmanager import alertmanager
from servers.webhook import WebhookReceiver, webhook_receiver
from tachograph.annexes.act.alert_conditions import (
    ALERT_KINDS,
    Alert,
    AlertState,
    failing_gpus,
    hung_jobs,
    nodes_without_samples,
)
from tachograph.annexes.act.alert_message import (
    MOST_LISTED,
    AlertMessage,
    Incident,
    alert_json,
    alert_manager,
    alert_matrix,
    alert_slack,
)
from tachograph.annexes.act.alerts import (
    BOOK_FILE,
    HOLD,
    AlertBook,
    alert_state,
    send_alerts,
    updated,
)
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord, read_ledger
from tachograph.annexes.act.webhooks import Webhook
from tachograph.catalog.config import ActOptions, Configuration, WebhookOptions, load
from tachograph.catalog.errors import ConfigError, LakeError
from tachograph.lake.delta import Lake

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
NASTY = "<!channel> & <script>\u202e\n*b*"


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as one:
        yield one


def samples(
    *rows: tuple[str, int, datetime, float | None, float | None, float | None],
) -> pl.DataFrame:
    names = ("node", "gpu", "t", "xid", "remapped_rows_uncorrectable", "row_remap_failure")
    floats = dict.fromkeys(names[3:], pl.Float64)
    frame = pl.DataFrame(list(rows), names, orient="row", schema_overrides=floats)
    unknown = {
        "ecc_dbe": pl.lit(None, dtype=pl.Float64),
        "mig": pl.lit(None, dtype=pl.Int16),
        "cluster": pl.lit(None, dtype=pl.String),
    }
    return frame.with_columns(**unknown)


def targets(state: AlertState) -> list[str]:
    return [alert.target for alert in state.firing]


# ------------------------------------------------------------------------------------------------------- when they hold


def test_gpus_with_new_faults_and_those_without() -> None:
    before, last = NOW - timedelta(hours=3), NOW - timedelta(minutes=1)
    state = failing_gpus(
        samples(
            # Old errors: nothing new.
            ("a", 0, before, 31.0, 2.0, 0.0), ("a", 0, last, 31.0, 2.0, 0.0),
            ("a", 1, before, None, 2.0, 0.0), ("a", 1, last, None, 5.0, 0.0),
            ("a", 2, before, 0.0, None, None), ("a", 2, last, 79.0, None, None),
            # Often the program.
            ("a", 3, before, 0.0, None, None), ("a", 3, last, 31.0, None, None),
            ("b", 0, last, None, None, 1.0),
            ("b", 1, last, None, None, None),  # nothing measured
            ("b", 2, NOW - timedelta(hours=2), 0.0, 0.0, 0.0),  # too old to be clear
            ("b", 3, before, None, 9.0, 0.0), ("b", 3, last, None, 0.0, 0.0),  # another GPU
        ),
        now=NOW,
    )  # fmt: skip
    assert targets(state) == ["a GPU 1", "a GPU 2", "b GPU 0"]
    assert "3 memory rows remapped" in state.firing[0].sentence
    assert "XID 79, GPU has fallen off the bus" in state.firing[1].sentence
    assert {target for _, target in state.clear} == {"a GPU 0", "a GPU 3", "b GPU 3"}


def test_uncorrectable_errors_of_the_window_are_a_fault() -> None:
    last = NOW - timedelta(minutes=1)
    counts: list[list[float | None]] = [
        [0, 0, 0],
        [4, 4, 4],
        [4, None, 5],
        [4, 1, 3],
    ]  # of which the last began again
    rows = [("a", gpu, last - timedelta(hours=hours), None, None, None)
            for gpu in range(4) for hours in (2, 1, 0)]  # fmt: skip
    errors = pl.Series("ecc_dbe", [count for gpu in counts for count in gpu], dtype=pl.Float64)
    state = failing_gpus(samples(*rows).with_columns(errors), now=NOW)
    assert [(alert.target, alert.sentence) for alert in state.firing] == [
        ("a GPU 2", "a GPU 2: 1 uncorrectable ECC error in 24 h."),
        ("a GPU 3", "a GPU 3: 2 uncorrectable ECC errors in 24 h."),
    ]
    assert {target for _, target in state.clear} == {"a GPU 0", "a GPU 1"}


def test_a_cluster_is_named_as_in_the_accounting(tmp_path: Path) -> None:
    lake, begin = Lake.create(str(tmp_path / "lake")), NOW - timedelta(hours=1)
    telemetry = {"node": "a", "cluster": "exporter-north", "gpu": 0}
    fill(
        lake,
        {
            "gpu_samples": [{**telemetry, "t": NOW - timedelta(minutes=1), "row_remap_failure": 1}],
            "devices": [{**telemetry, "last": NOW}],
            "jobs": [job("7", begin, None, cluster="north", user="ann", gpus=1)],
            "allocations": held("7", "a", (0,), begin, None, cluster="north"),
        },
        now=NOW,
    )
    summarized(lake, now=NOW)
    [alert] = alert_state(lake, now=NOW).firing
    assert alert.labels["cluster"] == "north"
    assert (alert.target, alert.path) == ("a of north GPU 0", "/node/a?cluster=north")


def test_nodes_without_samples_and_all_of_them() -> None:
    limit = timedelta(minutes=15)
    last = {
        ("a", None): NOW,
        ("a", "north"): NOW - timedelta(minutes=17),
        ("b", None): NOW - timedelta(minutes=16),
        ("c", None): NOW - timedelta(minutes=14),
    }
    state = nodes_without_samples(last, NOW, now=NOW, limit=limit)
    assert targets(state) == ["a of north", "b"]
    assert state.firing[0].path == "/node/a?cluster=north"
    assert ("node_without_samples", "c") in state.clear
    stopped = nodes_without_samples(last, NOW, now=NOW + timedelta(hours=1), limit=limit)
    assert [(alert.code, alert.target) for alert in stopped.firing] == [("no_samples", "all nodes")]
    assert stopped.clear == frozenset()
    assert nodes_without_samples({}, None, now=NOW, limit=limit) == AlertState()


def _hung(
    *, gpus: int = 8, minutes: int = 90, age: int = 5, ended: bool = False, verdict: str = "yes"
) -> AlertState:
    as_of = NOW - timedelta(minutes=age)
    jobs = pl.DataFrame(
        {
            "job_key": ["c:7:1"], "display_id": ["7_1"], "job_id": ["8"], "cluster": ["c"], "user": [NASTY],
            "partition": [None], "gpus": [gpus], "end": [as_of if ended else None], "as_of": [as_of],
        },
        schema_overrides={"end": pl.Datetime("us", "UTC"), "partition": pl.String},
    )  # fmt: skip
    begin = as_of - timedelta(minutes=minutes)
    findings = pl.DataFrame(
        {"job_key": ["c:7:1"], "code": ["job_hang"], "verdict": [verdict], "sentence": ["The GPUs were idle."],
         "begin": [begin], "end": [as_of]}
    )  # fmt: skip
    return hung_jobs(jobs, findings, now=NOW, least_gpus=8, limit=timedelta(hours=1))


def test_large_running_jobs_that_hang() -> None:
    (alert,) = _hung().firing
    assert (alert.target, alert.labels["job"], alert.path) == ("c:7:1", "7_1", "/job/c:7:1")
    assert "The GPUs were idle." in alert.sentence
    assert "partition" not in alert.labels
    assert _hung().clear == frozenset()
    for neither in (_hung(gpus=4), _hung(minutes=59), _hung(age=31), _hung(verdict="unknown")):
        assert neither == AlertState()
    for over in (_hung(ended=True), _hung(verdict="no")):
        assert over == AlertState((), frozenset({("hung_job", "c:7:1")}))


def test_of_a_lake(tmp_path: Path) -> None:
    """One GPU of one node fails, another node stopped, and a running job hangs."""
    begin = NOW - timedelta(hours=5)
    rows: list[dict[str, Any]] = []
    for place in range(60 * 5):
        t, works = begin + timedelta(minutes=place), place < 120
        for gpu in range(8):
            fault = {"xid": 79 if gpu == 3 and place > 200 else 0, "remapped_rows_uncorrectable": 0}
            use = {
                "gpu_util": 0.9 if works else 0.0,
                "power_w": 400.0 if works else 60.0,
                "hbm_used_mib": 4e4,
            }
            rows.append({"t": t, "node": "a", "gpu": gpu, **fault, **use})
        if place < 200:
            rows.append({"t": t, "node": "b", "gpu": 0, "gpu_util": 0.5})
    facts = {"cluster": "c", "user": "ann", "partition": "gpu", "gpus": 8, "node_list": "a"}
    lake = Lake.create(str(tmp_path / "lake"))
    allocations = held("7", "a", range(8), begin, None, cluster="c")
    tables = {
        "gpu_samples": rows,
        "jobs": [job("7", begin, None, **facts)],
        "allocations": allocations,
    }
    fill(lake, tables, now=NOW)
    state = alert_state(lake, now=NOW)
    assert {alert.code for alert in state.firing} == {"failing_gpu", "node_without_samples"}
    summarized(lake, now=NOW)
    state = alert_state(lake, now=NOW)
    assert [(alert.code, alert.labels.get("job") or alert.target) for alert in state.firing] == [
        ("failing_gpu", "a GPU 3"),
        ("node_without_samples", "b"),
        ("hung_job", "7"),
    ]
    assert alert_state(Lake.create(str(tmp_path / "empty")), now=NOW) == AlertState()


# ---------------------------------------------------------------------------------------------------------- the formats


def message(*, ended: bool = False, count: int = 1, sentence: str = NASTY) -> AlertMessage:
    incidents = tuple(
        Incident(str(place), Alert("failing_gpu", f"a GPU {place}", sentence, {"node": "a"}, "/node/a b"), NOW, NOW,
                 NOW if ended else None)
        for place in range(count)
    )  # fmt: skip
    return AlertMessage("0123", "resolved" if ended else "firing", "failing_gpu", incidents)


def test_slack_sees_no_mention_and_no_link_of_others() -> None:
    shown = alert_slack(message(), "https://hpc.example.org")["text"]
    assert "<!channel>" not in shown
    assert "&lt;!channel&gt; &amp; &lt;script&gt;" in shown
    assert shown.count("<") == 1
    assert "<https://hpc.example.org/node/a%20b|page>" in shown
    assert "\u202e" not in shown
    assert f"What to do: {ALERT_KINDS['failing_gpu'].runbook}" in shown
    over = alert_slack(message(ended=True))["text"]
    assert over.startswith("*Resolved: ")
    assert "What to do" not in over
    assert len(alert_slack(message(count=5000, sentence="x" * 5000))["text"]) < 40_000  # of Slack


def test_matrix_has_text_and_escaped_html() -> None:
    content = alert_matrix(message(), "https://hpc.example.org")
    assert (content["msgtype"], content["format"]) == ("m.notice", "org.matrix.custom.html")
    assert "<script>" not in content["formatted_body"]
    assert "&lt;script&gt;" in content["formatted_body"]
    # Of an event.
    assert len(msgspec.json.encode(alert_matrix(message(count=5000, sentence="é" * 5000)))) < 65_536


def test_json_is_the_contract() -> None:
    shown = alert_json(message(count=2))
    assert list(shown) == [
        "version",
        "id",
        "status",
        "code",
        "severity",
        "title",
        "runbook",
        "alerts",
    ]
    assert shown["title"] == "GPU with memory or hardware faults (2)"
    assert shown["alerts"][0]["sentence"] == NASTY
    assert shown["alerts"][0]["url"] is None
    assert message(count=MOST_LISTED + 2).sentences[-1] == "and 2 further alerts"


# ------------------------------------------------------------------------------------------------------ each sent once


class Round:
    """Rounds of alerts, of states that the test gives."""

    state: AlertState | None = AlertState()  # None: the lake cannot be read

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *webhooks: WebhookOptions
    ) -> None:
        self.folder, self.now = folder, NOW
        self.configuration = Configuration(
            act=ActOptions(dry_run=False, alert=True), webhook=webhooks
        )
        monkeypatch.setattr("tachograph.annexes.act.alerts.alert_state", self._look)

    def _look(self, lake: Lake, *, now: datetime) -> AlertState:
        if self.state is None:
            raise LakeError("cannot be read")
        return self.state

    def __call__(self, minutes: float = 5) -> list[ActionRecord]:
        self.now += timedelta(minutes=minutes)
        with ActionLedger(self.folder, clock=lambda: self.now) as ledger:
            return send_alerts(ledger, Lake("unused"), self.configuration, now=self.now)

    def fires(self, *names: str, code: str = "failing_gpu") -> None:
        self.state = AlertState(tuple(Alert(code, name, f"{name} fails.") for name in names))

    def is_over(self, *names: str, code: str = "failing_gpu") -> None:
        self.state = AlertState((), frozenset((code, name) for name in names))


def of(receiver: WebhookReceiver, name: str = "ops", **more: Any) -> WebhookOptions:
    return WebhookOptions(name, url=f"{receiver.url}/hook", **{"timeout_s": 5.0} | more)


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: WebhookReceiver) -> Round:
    """Rounds that send to the receiver."""
    return Round(tmp_path, monkeypatch, of(receiver))


def sent(receiver: WebhookReceiver) -> list[list[str]]:
    """The targets of each message that arrived."""
    return [[alert["target"] for alert in one.content["alerts"]] for one in receiver.received]


def test_grouped_sent_once_and_resolved(
    rounds: Round, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    rounds.fires("x", "y")
    for _ in range(4):
        rounds()
    rounds.fires("x", "y", "z")
    rounds()
    rounds.is_over("x")  # y and z are not known: they stay
    rounds()
    assert len(receiver.received) == 2  # not over before HOLD
    rounds(HOLD.total_seconds() / 60)
    assert sent(receiver) == [["x", "y"], ["z"], ["x"]]
    states = [one.content["status"] for one in receiver.received]
    assert states == ["firing", "firing", "resolved"]
    ids = {one.headers["idempotency-key"] for one in receiver.received}
    assert len(ids) == 3
    assert [record.state for record in read_ledger(tmp_path)] == ["begun", "done"] * 3
    rounds.is_over("x", "y", "z")
    rounds(8 * 24 * 60)
    assert receiver.received[-1].content["status"] == "resolved"
    assert b'"incidents":[]' in (tmp_path / BOOK_FILE).read_bytes()


def test_a_receiver_that_is_down_gets_everything_in_order_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: WebhookReceiver
) -> None:
    with webhook_receiver() as other:
        rounds = Round(tmp_path, monkeypatch, of(receiver), of(other, "other"))
        receiver.status = 500
        receiver.answer = b"\x1b[2Jinternal"
        rounds.fires("x")
        for _ in range(12):
            made = rounds()
        assert made[0].state == "failed"
        assert "answered 500" in made[0].result
        assert "\x1b" not in made[0].result
        rounds.fires("x", "y")
        rounds()
        receiver.status = 200
        receiver.received.clear()
        rounds(60)
        assert sent(receiver) == sent(other) == [["x"], ["y"]]
        assert rounds() == []


def test_a_refused_message_blocks_the_next_for_some_attempts_alone(
    rounds: Round, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    receiver.status = 404
    rounds.fires("x")
    for _ in range(7):
        rounds(100)
    assert len(receiver.received) == 5
    assert read_ledger(tmp_path)[-1].attempt == 5
    receiver.status = 200
    rounds.fires("x", "y")
    rounds()
    assert sent(receiver)[-1] == ["y"]


def test_redirects_are_not_followed_and_slow_answers_end(
    rounds: Round, receiver: WebhookReceiver
) -> None:
    with webhook_receiver() as elsewhere:
        receiver.status, receiver.headers = 307, {"Location": f"{elsewhere.url}/stolen"}
        rounds.fires("x")
        (made,) = rounds()
        assert "redirects are not followed" in made.result
        assert elsewhere.received == []
    receiver.status, receiver.drip_s = 200, 0.1
    webhook = Webhook.of(of(receiver, timeout_s=0.3))
    begun = time.monotonic()
    with pytest.raises(Exception, match=r"not within 0\.3 s"):
        webhook.send(message(), until=NOW)
    assert time.monotonic() - begun < 100  # the whole answer would take eight minutes


def test_a_dry_run_sends_nothing_and_what_still_holds_is_sent_when_it_ends(
    rounds: Round, receiver: WebhookReceiver
) -> None:
    live = rounds.configuration
    rounds.configuration = msgspec.structs.replace(
        live, act=msgspec.structs.replace(live.act, dry_run=True)
    )
    rounds.fires("x")
    assert [record.state for record in rounds()] == ["would"]
    assert rounds() == []
    assert receiver.received == []
    rounds.configuration = live
    assert [record.state for record in rounds()] == ["done"]


def test_an_unreadable_lake_delays_no_delivery(rounds: Round, receiver: WebhookReceiver) -> None:
    receiver.status = 503
    rounds.fires("x")
    rounds()
    receiver.status, rounds.state = 200, None
    with pytest.raises(LakeError, match="cannot be read"):
        rounds(20)
    assert len(receiver.received) == 2


def test_a_receiver_gets_the_codes_that_it_takes(receiver: WebhookReceiver) -> None:
    webhook = Webhook.of(of(receiver, alerts=("hung_job",)))
    state = AlertState((Alert("hung_job", "j", "."), Alert("failing_gpu", "g", ".")))
    book = updated(AlertBook(), state, [webhook], now=NOW)
    assert [one.message.code for one in book.outbox] == ["hung_job"]
    assert len(book.incidents) == 2


def test_matrix_puts_with_the_same_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: WebhookReceiver
) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    token.chmod(0o600)
    receiver.answer = b'{"event_id": "$abc"}'
    options = WebhookOptions(
        "ops", "matrix", receiver.url + "/", token_file=str(token), room="!r/x:example.org"
    )
    rounds = Round(tmp_path, monkeypatch, options)
    rounds.fires("x")
    receiver.status = 429
    rounds()
    receiver.status = 200
    made = rounds(20)
    first, second = receiver.received
    assert first.path == second.path
    assert first.path.startswith(
        "/_matrix/client/v3/rooms/%21r%2Fx%3Aexample.org/send/m.room.message/"
    )
    assert (first.method, first.headers["authorization"]) == ("PUT", "Bearer secret-token")
    assert made[0].result == "event $abc"
    assert "secret-token" not in (tmp_path / "actions.jsonl").read_text() + repr(
        Webhook.of(options)
    )


_KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from tachograph.catalog.config import load
from tachograph.annexes.act.alert_conditions import Alert, AlertState
from tachograph.lake.delta import Lake
from tachograph.annexes.act import alerts, webhooks
from tachograph.annexes.act.ledger import ActionLedger
alerts.alert_state = lambda *given, **more: AlertState((Alert("failing_gpu", "x", "x fails."),))
real = webhooks.Webhook.send
def send(self, *given, **more):
    if sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, *given, **more)
    os.kill(os.getpid(), signal.SIGKILL)
webhooks.Webhook.send = send
now = datetime(2026, 11, 23, 9, tzinfo=UTC)
folder = Path(sys.argv[1])
with ActionLedger(folder, clock=lambda: now) as ledger:
    alerts.send_alerts(ledger, Lake("unused"), load(sys.argv[2]), now=now)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "form"), [("before", "slack"), ("after", "json")])
def test_killed_around_the_sending_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: WebhookReceiver, when: str, form: str
) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text(
        "[act]\ndry_run = false\nalert = true\n"
        f'[[webhook]]\nname = "ops"\nformat = "{form}"\nurl = "{receiver.url}/hook"\n'
    )
    command = [sys.executable, "-c", _KILLED, str(tmp_path), str(file), when]
    assert subprocess.run(command, env=dict(os.environ), timeout=300).returncode == -signal.SIGKILL
    before = len(receiver.received)
    assert before == (when == "after")
    rounds = Round(tmp_path, monkeypatch)
    rounds.configuration = load(str(file))
    rounds.fires("x")
    assert rounds()[-1].state == "done"
    assert rounds() == []
    assert len(receiver.received) == before + 1
    if form == "json":  # the receiver recognizes it
        assert len({one.headers["idempotency-key"] for one in receiver.received}) == 1
    else:
        assert "possibly repeated" in receiver.received[-1].content["text"]


def test_the_configuration_is_checked_without_showing_secrets(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ftp://hooks.example.org/T000/very-secret")
    secret.chmod(0o600)
    open_secret = tmp_path / "open"
    open_secret.write_text("x")
    open_secret.chmod(0o644)
    for wrong, words in (
        (WebhookOptions("a"), "one of url and url_file"),
        (WebhookOptions("a", url="http://x", url_file="y"), "one of url and url_file"),
        (WebhookOptions("", url="http://x"), "name"),
        (WebhookOptions("a", url="file:///etc/passwd"), "no address of HTTP"),
        (WebhookOptions("a", url="http://"), "no address of HTTP"),
        (WebhookOptions("a", url="http://x:99999/"), "no address of HTTP"),
        (WebhookOptions("a", url="http://x/\r\nHost: y"), "no address of HTTP"),
        (WebhookOptions("a", url="https://u:very-secret@x"), "a password in the address"),
        (WebhookOptions("a", url_file=str(secret)), "no address of HTTP"),
        (WebhookOptions("a", url_file=str(open_secret)), "every user"),
        (WebhookOptions("a", "matrix", "http://x"), "room or token_file"),
        (WebhookOptions("a", url="http://x", alerts=("nothing",)), "unknown alert 'nothing'"),
        (WebhookOptions("a", url="http://x", timeout_s=0), "timeout_s"),
    ):
        with pytest.raises(ConfigError, match=words) as raised:
            Webhook.of(wrong)
        assert "very-secret" not in str(raised.value)
    file = tmp_path / "tachograph.toml"
    file.write_text('[[webhook]]\nname = "a"\nurl_file = "secret"\n')
    assert load(str(file)).webhook[0].url_file == str(tmp_path / "secret")
    file.write_text('[[webhook]]\nname = "a"\nformat = "smoke"\n')
    with pytest.raises(ConfigError):
        load(str(file))


def test_a_damaged_book_is_one_line(rounds: Round, tmp_path: Path) -> None:
    (tmp_path / BOOK_FILE).write_text("{")
    with pytest.raises(LakeError, match="damaged"):
        rounds()
    (tmp_path / BOOK_FILE).unlink()
    rounds.configuration = msgspec.structs.replace(rounds.configuration, webhook=())
    with pytest.raises(ConfigError, match=r"\[\[webhook\]\]"):
        rounds()


@pytest.mark.slow
def test_the_real_alertmanager_fires_and_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alertmanager(tmp_path) as url:
        rounds = Round(tmp_path, monkeypatch, WebhookOptions("ops", "alertmanager", url))
        rounds.now = datetime.now(UTC) - timedelta(minutes=15)
        rounds.fires("x", NASTY)
        assert [record.state for record in rounds(5)] == ["done"]

        def active() -> list[dict[str, Any]]:
            answer = httpx2.get(f"{url}/api/v2/alerts", timeout=60)
            found: list[dict[str, Any]] = answer.raise_for_status().json()
            return sorted(found, key=lambda one: str(one["labels"]["target"]))

        one = next(one for one in active() if one["labels"]["target"] == "x")
        assert one["labels"]["alertname"] == "TachographFailingGpu"
        assert one["annotations"]["runbook"] == ALERT_KINDS["failing_gpu"].runbook
        assert len(active()) == 2
        ends = one["endsAt"]
        assert rounds(5) == []  # nothing new; posted again all the same
        assert next(one for one in active() if one["labels"]["target"] == "x")["endsAt"] > ends
        rounds.is_over("x", NASTY)
        book = msgspec.json.decode((tmp_path / BOOK_FILE).read_bytes(), type=AlertBook)
        seen = tuple(
            msgspec.structs.replace(each, last_seen=rounds.now - HOLD) for each in book.incidents
        )
        (tmp_path / BOOK_FILE).write_bytes(msgspec.json.encode(AlertBook(seen)))
        assert [record.state for record in rounds(4)] == ["done"]
        assert active() == []


def test_alertmanager_gets_open_alerts_with_an_end(receiver: WebhookReceiver) -> None:
    (posted,) = alert_manager(message().incidents, until=NOW + timedelta(minutes=20))
    assert (posted["startsAt"], posted["endsAt"]) == (
        "2026-11-23T09:00:00+00:00",
        "2026-11-23T09:20:00+00:00",
    )
    assert all(isinstance(value, str) for value in posted["labels"].values())
