"""/metrics: what Prometheus reads, every name on the page, alerts and unit files that their own
tools accept.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from servers.process import free_port, program
from tachograph.annexes.serve.server import Listening
from tachograph.catalog.errors import ConfigError
from tachograph.collect.metrics import MOST_HOSTS, metric_names, serve_metrics
from tachograph.collect.status import CollectStatus, PollMinute, SourceStatus, StepStatus

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DEPLOY = REPOSITORY / "deploy"
MOST_EXPOSED = 25  # tenths: what `systemd-analyze security` adds up, 10 without any confinement
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def status() -> CollectStatus:
    """One source with everything, one that was never queried."""
    full = SourceStatus(
        "prometheus:main",
        60.0,
        polls=7,
        skipped=3,
        minutes=[PollMinute(int(NOW.timestamp() // 60), 7, 3, 194.0)],
        errors={"input": 2, "lake": 1},
        last_poll=NOW,
        last_success=NOW - timedelta(seconds=60),
        watermarks={
            "prometheus:main": NOW - timedelta(seconds=90),
            "prometheus:main:late": NOW - timedelta(seconds=300),
        },
        chunks=5,
        chunks_waiting=1,
        rows_read=1000,
        rows={"gpu_samples": 900, "devices": 4},
        rejects={"gpu_samples": {"out_of_range": 3, "not_finite": 2}},
        unreachable={"n1": "refused", "n2": "silent"},
        skew_s={"n1": 0.2, "n2": -3.5, **{f"m{number}": 2.0 for number in range(80)}},
        poll_s=12.5,
        commit_s=2.5,
    )
    steps = {
        "analyze": StepStatus(3, 1, last_success=NOW, last_duration_s=4.5),
        "compact": StepStatus(),
    }
    fresh = SourceStatus('odd "name"\\', 5.0)
    return CollectStatus(
        "1.2.3",
        "lake",
        "host",
        1,
        NOW,
        NOW,
        sources={full.name: full, fresh.name: fresh},
        steps=steps,
    )


@contextmanager
def exposed() -> Iterator[str]:
    """Address of a server that exposes the status."""
    address = f"127.0.0.1:{free_port()}"
    server = serve_metrics(address, status)
    server.serve()
    try:
        yield f"http://{address}/metrics"
    finally:
        server.close()


def requested(url: str, accept: str = "") -> tuple[str, str]:
    """(content type, text)."""
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Accept": accept}), timeout=10
    ) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(text: str, parser: object = plain_text) -> dict[tuple[str, tuple[str, ...]], float]:
    """{(name, label values in order of label): value}."""
    assert callable(parser)
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parser(text)
        for sample in family.samples
    }


def test_every_number_of_the_status_is_there() -> None:
    with exposed() as url:
        kind, text = requested(url)
    assert kind.startswith("text/plain")
    found = samples(text)
    name = "prometheus:main"
    prefix = "tachograph_collect_"
    assert found["tachograph_build_info", ("1.2.3",)] == 1
    for metric, labels, value in (
        ("source_up", (name,), 1.0),
        ("source_interval_seconds", (name,), 60.0),
        ("lag_seconds", (name,), 90.0),
        ("watermark_timestamp_seconds", (name, "prometheus:main:late"), NOW.timestamp() - 300),
        ("last_success_timestamp_seconds", (name,), NOW.timestamp() - 60),
        ("polls_total", (name,), 7),
        ("polls_skipped_total", (name,), 3),
        ("longest_gap_seconds", (name,), 194.0),
        ("errors_total", ("input", name), 2),
        ("errors_total", ("schema", name), 0),
        ("chunks_committed_total", (name,), 5),
        ("chunks_waiting", (name,), 1),
        ("rows_read_total", (name,), 1000),
        ("rows_committed_total", (name, "gpu_samples"), 900),
        ("rejects_total", ("not_finite", name, "gpu_samples"), 2),
        ("unreachable_endpoints", (name,), 2),
        ("poll_seconds_total", (name,), 12.5),
        ("commit_seconds_total", (name,), 2.5),
        ("clock_skew_max_seconds", (name,), 3.5),
        ("skewed_hosts", (name,), 81),
        ("clock_skew_seconds", ("n2", name), -3.5),
        ("step_runs_total", ("analyze",), 3),
        ("step_failures_total", ("analyze",), 1),
        ("step_running", ("analyze",), 0),
        ("step_last_success_timestamp_seconds", ("analyze",), NOW.timestamp()),
        ("step_last_duration_seconds", ("analyze",), 4.5),
    ):
        assert found[prefix + metric, labels] == value, metric


def test_what_is_not_known_has_no_sample_and_hosts_are_few() -> None:
    with exposed() as url:
        found = samples(requested(url)[1])
    fresh = 'odd "name"\\'
    names = {name for name, labels in found if fresh in labels}
    assert not names & {
        f"tachograph_collect_{name}"
        for name in ("lag_seconds", "source_up", "clock_skew_max_seconds")
    }
    assert ("tachograph_collect_polls_total", (fresh,)) in found
    assert sum(name == "tachograph_collect_clock_skew_seconds" for name, _ in found) == MOST_HOSTS


def test_openmetrics_is_served_when_requested() -> None:
    with exposed() as url:
        kind, text = requested(url, "application/openmetrics-text; version=1.0.0")
        plain = samples(requested(url)[1])
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    ours = {
        key: value
        for key, value in samples(text, open_metrics).items()
        if key[0].startswith("tachograph_")
    }
    assert ours == {key: value for key, value in plain.items() if key[0].startswith("tachograph_")}


@pytest.mark.slow
def test_prometheus_finds_nothing_to_object_to() -> None:
    promtool = program("promtool", package="prometheus")
    with exposed() as url:
        text = requested(url)[1]
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_names_are_those_exposed_and_all_are_on_the_page_and_no_others() -> None:
    with exposed() as url:
        text = requested(url)[1]
    exposed_names = set(re.findall(r"^# TYPE (tachograph_\w+) ", text, re.MULTILINE))
    assert exposed_names == set(metric_names())
    page = (REPOSITORY / "docs" / "collect.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(tachograph_\w+)` \|", page, re.MULTILINE)) == set(metric_names())


@pytest.mark.parametrize(
    "listen", ["9798", "here:there", ":9798", "127.0.0.1:65536", "127.0.0.1:²"]
)
def test_an_address_that_is_none_is_named_with_its_key(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"collect\.listen: .*; use host:port"):
        serve_metrics(listen, status)
    with pytest.raises(ConfigError, match="invalid address"):
        Listening.at(listen)
    assert Listening.at("127.0.0.1:65535").port == 65535


@pytest.mark.slow
def test_the_alerts_are_rules_and_name_metrics_that_exist() -> None:
    promtool = program("promtool", package="prometheus")
    rules = DEPLOY / "tachograph.rules.yml"
    done = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    named = set(re.findall(r"tachograph_\w+", rules.read_text(encoding="utf-8")))
    assert named <= set(metric_names())
    assert len(named) >= 6


@pytest.mark.slow
def test_an_alert_comes_when_a_source_is_late_or_fails_and_not_before(tmp_path: Path) -> None:
    promtool = program("promtool", package="prometheus")
    cases = tmp_path / "tests.yml"
    cases.write_text(
        ALERTS.replace("RULES", str(DEPLOY / "tachograph.rules.yml")), encoding="utf-8"
    )
    done = subprocess.run([promtool, "test", "rules", str(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


ALERTS = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'tachograph_build_info{version="1"}', values: '1x120'}
      - {series: 'tachograph_collect_source_up{source="a"}', values: '1x40 0x80'}
      - {series: 'tachograph_collect_source_interval_seconds{source="a"}', values: '60x120'}
      - {series: 'tachograph_collect_last_success_timestamp_seconds{source="a"}', values: '0+60x40 2400x80'}
      - {series: 'tachograph_collect_errors_total{source="a",kind="lake"}', values: '0x120'}
    alert_rule_test:
      - {eval_time: 39m, alertname: TachographSourceFails}
      - {eval_time: 39m, alertname: TachographSourceLate}
      - {eval_time: 50m, alertname: TachographSourceFails}
      - eval_time: 60m
        alertname: TachographSourceFails
        exp_alerts:
          - exp_labels: {severity: warning, source: a}
            exp_annotations:
              summary: a has failed for 15 minutes.
              do: tachograph status names the error
      - {eval_time: 55m, alertname: TachographSourceLate}
      - eval_time: 62m
        alertname: TachographSourceLate
        exp_alerts:
          - exp_labels: {severity: critical, source: a}
            exp_annotations:
              summary: "a: no poll succeeded for 22m 0s."
              do: tachograph status; journalctl -u tachograph-collect
      - {eval_time: 62m, alertname: TachographLakeNotWritten}
      - {eval_time: 62m, alertname: TachographDown}
      - {eval_time: 62m, alertname: TachographAhead}
  - interval: 1m
    input_series:
      - {series: 'tachograph_collect_watermark_timestamp_seconds{source="a",stream="a"}', values: '0+60x20 4800x60'}
      - {series: 'tachograph_collect_watermark_timestamp_seconds{source="b",stream="b"}', values: '4+60x100'}
    alert_rule_test:
      - {eval_time: 20m, alertname: TachographAhead}
      - eval_time: 30m
        alertname: TachographAhead
        exp_alerts:
          - exp_labels: {severity: critical, source: a}
            exp_annotations:
              summary: a was read up to 50m 0s ahead of now; samples until then may be lost.
              do: tachograph status names clocks that differ; fix them, then ingest that time once more
      - {eval_time: 81m, alertname: TachographAhead}
  - interval: 1m
    input_series:
      - {series: 'tachograph_collect_errors_total{source="a",kind="lake"}', values: '0x10 1+1x60'}
      - {series: 'tachograph_collect_rejects_total{source="a",table="gpu_samples",reason="x"}', values: '0+10x200'}
      - {series: 'tachograph_collect_rows_read_total{source="a"}', values: '0+100x200'}
    alert_rule_test:
      - eval_time: 30m
        alertname: TachographLakeNotWritten
        exp_alerts:
          - exp_labels: {severity: critical, source: a, kind: lake}
            exp_annotations:
              summary: Rows of a cannot be written into the lake.
              do: is the disk full? tachograph status names the error
      - eval_time: 150m
        alertname: TachographRejects
        exp_alerts:
          - exp_labels: {severity: warning, source: a}
            exp_annotations:
              summary: More than 5 % of the rows of a are rejected.
              do: tachograph lake shows the reasons, with examples
      - eval_time: 30m
        alertname: TachographDown
        exp_alerts:
          - exp_labels: {severity: critical}
            exp_annotations:
              summary: No collector answers.
              do: systemctl status tachograph-collect; tachograph status
"""


@pytest.mark.slow
@pytest.mark.parametrize("unit", sorted(DEPLOY.glob("*.service")), ids=lambda unit: unit.stem)
def test_units_are_such_as_systemd_takes_and_confine_the_program(
    unit: Path, tmp_path: Path
) -> None:
    analyze = program("systemd-analyze", package="systemd")
    copied = tmp_path / unit.name
    written = unit.read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=(\S+) ", written, re.MULTILINE)
    # Verify looks for the program.
    copied.write_text(written.replace(command, "/bin/true"), encoding="utf-8")
    for judge in (
        ["verify", "--man=no"],
        ["security", "--offline=true", f"--threshold={MOST_EXPOSED}"],
    ):
        done = subprocess.run([analyze, *judge, str(copied)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert unit.name not in done.stderr


def test_the_image_copies_existing_files_and_runs_unprivileged() -> None:
    steps = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    copied = [
        name
        for line in re.findall(r"^COPY (?!--)(.+) \S+$", steps, re.MULTILINE)
        for name in line.split()
    ]
    assert copied
    assert [name for name in copied if not (REPOSITORY / name).exists()] == []
    assert re.search(r"^USER 10001$", steps, re.MULTILINE)
    assert re.search(r'^HEALTHCHECK .*CMD \["tachograph", "status"', steps, re.MULTILINE)
    assert "requirements/run.txt" in steps
