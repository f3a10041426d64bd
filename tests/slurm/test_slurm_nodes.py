"""States of nodes as real Slurm printed them: read, polled, and what people write decides nothing."""

from __future__ import annotations

import argparse
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from feeding import Landing
from slurm_reading import MADE, VERSIONS
from syrupy.assertion import SnapshotAssertion

from row_lines import row_lines
from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.tables import NODE_STATES, STATE_HOLDS_S, WAITING_JOBS
from tachograph.sources import slurm_nodes
from tachograph.sources.recognition import source_of
from tachograph.sources.slurm.nodes import NodeReading, read_events, read_nodes, timed_documents
from tachograph.sources.slurm.records import SlurmCluster, SlurmRow
from tachograph.sources.slurm_nodes import SlurmNodesSettings

AT = datetime(2026, 11, 29, 21, 56, 20, tzinfo=UTC)
MADE_22 = MADE / "22.05.8"


def reading_of(content: bytes, **more: Any) -> NodeReading:
    options = {"where": "a file", "cluster": SlurmCluster("here"), "at": AT, **more}
    return read_nodes(content, **options)


def time_of(row: SlurmRow, name: str = "start") -> datetime:
    value = row[name]
    assert isinstance(value, datetime)
    return value


def lines_of(reading: NodeReading) -> str:
    """Return the rows, the reasons of those that were rejected, and what was passed over."""
    rejected = "".join(f"rejected {place}: {reason}\n" for place, reason, _ in reading.rejected)
    rows = row_lines([*reading.states, *reading.waiting])
    return f"{reading.rows_read} read\n{rows}{rejected}passed over: {dict(reading.passed)}\n"


RECORDED = {
    f"{version}/{name}": MADE / version / name
    for version, names in (
        ("22.05.8", ("sinfo.json", "scontrol_show_node.txt", "sacctmgr_show_event.txt",
                     "scontrol_show_reservation.txt")),
        ("24.11.5", ("squeue.json",)),
        ("26.05.5", ("squeue.json",)),
    )
    for name in names
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_answers_of_a_real_controller(name: str, snapshot: SnapshotAssertion) -> None:
    """A reservation that may still be removed counts up to when it was seen."""
    content = RECORDED[name].read_bytes()
    assert lines_of(reading_of(content, trusted=name.endswith("node.txt"))) == snapshot


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_of_each_version_are_read_as_a_plain_search_finds_them(version: str) -> None:
    file = MADE / version / "scontrol_show_node_d.txt"
    if not file.exists():
        file = MADE / version / "scontrol_show_node.txt"
    text = file.read_text(encoding="utf-8")
    found = {}
    for block in text.split("\n\n"):
        gres = re.search(r"Gres=gpu:(?:(\w+):)?(\d+)", block)
        if gres:
            name = re.findall(r"NodeName=(\S+)", block)[0]
            held = re.search(r"AllocTRES=\S*?gres/gpu=(\d+)", block)
            found[name] = (gres[1], int(gres[2]), int(held[1]) if held else 0)
    reading = reading_of(file.read_bytes(), trusted=True)
    rows = {row["node"]: (row["gpu_type"], row["gpus"], row["gpus_held"]) for row in reading.states}
    assert rows == found
    assert not reading.rejected


def test_events_are_in_the_time_of_the_site() -> None:
    content = (MADE_22 / "sacctmgr_show_event.txt").read_bytes()
    berlin = reading_of(content, cluster=SlurmCluster("here", "Europe/Berlin")).states[0]
    assert time_of(berlin) == time_of(reading_of(content).states[0]) - timedelta(hours=1)


HOSTILE = (
    "x\nNodeName=gpu77 Gres=gpu:77 State=IDLE CPUTot=1 CPUAlloc=0 [root@2026-11-29T21:56:00]\n\n"
)


@pytest.mark.parametrize("name", ["Reason", "Comment", "Extra"])
@pytest.mark.parametrize("lines", [False, True])
def test_text_with_what_people_wrote_is_refused(name: str, lines: bool) -> None:
    record = f"NodeName=gpu01 Gres=gpu:4 State=IDLE CPUTot=4 CPUAlloc=0 {name}={HOSTILE}"
    text = record if lines else record.replace(f" {name}=", f"\n   {name}=")
    with pytest.raises(InputError, match="may imitate records"):
        reading_of(text.encode())


def test_in_json_a_reason_is_never_read() -> None:
    node = {
        "name": "gpu01",
        "state": ["IDLE"],
        "gres": "gpu:4",
        "reason": HOSTILE,
        "extra": HOSTILE,
    }
    reading = reading_of(json.dumps({"nodes": [node]}).encode())
    assert [row["node"] for row in reading.states] == ["gpu01"]


def test_the_name_of_a_reservation_moves_nothing() -> None:
    name = "x StartTime=2020-01-01T00:00:00 Nodes=gpu[01-99] Flags=MAINT"
    real = "StartTime=2026-11-29T21:00:00 EndTime=2026-11-29T21:30:00 Nodes=gpu04 Flags=SPEC_NODES"
    (row,) = reading_of(f"ReservationName={name} {real}\n".encode()).states
    assert (row["node"], row["state"], time_of(row).year) == ("gpu04", "reserved", 2026)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PartitionName=gpu", "no answer about nodes"),
        (b'{"other": 1}', "holds no nodes"),
        (b'{"nodes": [', "no JSON, or cut off"),
        (b"Cluster|NodeName|TimeStart|TimeEnd|State|Reason\n", "no reasons, which people write"),
        (b'{"nodes": [{"name": "n", "state": ["IDLE"], "gres": "gpu:1"}]}', "time of these states"),
    ],
)
def test_other_content_is_refused_in_a_line(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as problem:
        reading_of(content, at=None)
    assert "\n" not in str(problem.value)


def test_a_record_that_cannot_be_read_is_counted(snapshot: SnapshotAssertion) -> None:
    nodes = [
        {"name": "a", "state": ["SLEEPY"], "gres": "gpu:1"},
        {"name": "b[1-2]", "state": ["IDLE"], "gres": "gpu:1"},
        {"name": "c", "state": ["IDLE"], "gres": "gpu:1.5"},
        {"name": "d", "state": ["FUTURE"], "gres": "gpu:1"},
        {"name": "e", "state": ["IDLE"], "gres": "gpu:1", "tres_used": None},
        {"name": "f", "state": "idle", "gres": "gpu:1"},
        {"name": "g", "state": "idle", "gres": "gpu:1", "tres": "cpu=4", "tres_used": "cpu=1"},
    ]
    # GPUs held are not known where they are not named, or the cluster does not track GPUs.
    assert lines_of(reading_of(json.dumps({"nodes": nodes}).encode())) == snapshot


def test_lines_of_seconds_name_the_time_of_each_answer(tmp_path: Path) -> None:
    text = "1795989600\nNodeName=n1 Gres=gpu:2 State=IDLE\n1795990200\nNodeName=n1 Gres=gpu:2 State=DOWN\n"
    document = json.dumps({"nodes": [{"name": "n1", "state": ["DOWN"], "gres": "gpu:2"}]})
    for content in (text, f"1795989600\n{document}\n1795990200\n{document}\n"):
        reading = reading_of(content.encode(), at=None)
        times = [time_of(row).timestamp() for row in reading.states]
        assert times == [1795989600, 1795990200]
        file = tmp_path / "saved.txt"
        file.write_text(content, encoding="utf-8")
        assert source_of(file) == "slurm-nodes"
    several = tmp_path / "polls.json"
    several.write_text(f"{document}\n{document}\n", encoding="utf-8")
    assert source_of(several) == "slurm-nodes"


class UncopiedText(str):
    """Text of which only a few characters may be copied at a time."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> str:
        part = super().__getitem__(index)
        assert len(part) < len(self) // 2, "the rest of the text was copied"
        return part


def test_the_rest_of_a_file_is_not_copied_per_document() -> None:
    text = UncopiedText("1795989600\n {}\n\t\u00a0{} \n" * 20)
    found = [document for document, _ in timed_documents(text, "a file")]
    assert found == [{}] * 40


@pytest.mark.parametrize(
    "name", ["sinfo.json", "scontrol_show_node.txt", "scontrol_show_reservation.txt"]
)
def test_saved_answers_are_recognised(name: str) -> None:
    assert source_of(MADE_22 / name) == "slurm-nodes"
    assert source_of(MADE_22 / "sacctmgr_show_event.txt") == "slurm-nodes"


# --------------------------------------------------------------------------------------- the feed

SCRIPTS = {
    "scontrol": """\
case "$*" in
  *--json*) echo "scontrol: unrecognized option '--json'" >&2; exit 1;;
  *reservation*) cat {made}/scontrol_show_reservation.txt;;
esac""",
    "sinfo": "cat {folder}/nodes.json",
    "squeue": "cat {made}/squeue.pending.json",
    "sacctmgr": 'echo "$@" >> {folder}/asked; cat {made}/sacctmgr_show_event.txt',
}


def commands(folder: Path, **instead: str) -> tuple[str, ...]:
    """The recorded controller as programs of a folder."""
    (folder / "nodes.json").write_bytes((MADE_22 / "sinfo.json").read_bytes())
    for name, script in {**SCRIPTS, **instead}.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script.format(made=MADE_22, folder=folder)}\n")
        file.chmod(0o755)
    return (str(folder / "scontrol"),)


def feed_of(command: tuple[str, ...]) -> slurm_nodes.NodesFeed:
    settings = SlurmNodesSettings(source="slurm-nodes", command=command)
    site = SiteOptions(cluster="here", time_zone="UTC")
    return slurm_nodes.connect(settings, configuration=Configuration(site=site))


def test_polls_that_see_the_same_are_one_row(tmp_path: Path) -> None:
    feed, landing = feed_of(commands(tmp_path)), Landing()
    for minutes in (0, 5, 10):
        landing.poll(feed, AT + timedelta(minutes=minutes))
    document = json.loads((tmp_path / "nodes.json").read_text())
    for node in document["nodes"]:
        node["state"], node["state_flags"] = "idle", []
    (tmp_path / "nodes.json").write_text(json.dumps(document))
    landing.poll(feed, AT + timedelta(minutes=15))
    landing.poll(feed, AT + timedelta(minutes=60))  # too long after: what was between is not known
    polls = landing.table(NODE_STATES).filter(provenance="poll", node="gpu01").sort("start")
    times = [
        tuple(int((time - AT).total_seconds() // 60) for time in (row["start"], row["end"]))
        for row in polls.iter_rows(named=True)
    ]
    assert list(zip(polls["state"], times, strict=True)) == [
        ("down", (0, 10)), ("up", (15, 15)), ("up", (60, 60))
    ]  # fmt: skip
    assert not feed.outcome.unreachable
    reasons = landing.table(WAITING_JOBS).sort("job_id", "start")
    assert reasons["reason"].unique().sort().to_list() == ["Dependency", "JobHeldUser", "Resources"]
    assert reasons.filter(job_id="2").height == 2
    first, second, *_ = (tmp_path / "asked").read_text().splitlines()
    month = int((AT - timedelta(days=30)).timestamp())
    assert f"start=uts{month}" in first  # of a lake that has nothing yet
    assert f"start=uts{int(AT.timestamp())}" in second
    assert "Reason" not in first


def test_nodes_count_where_the_accounting_or_squeue_is_missing(tmp_path: Path) -> None:
    broken = {"sacctmgr": "echo no slurmdbd >&2; exit 1", "squeue": "exit 3"}
    feed, landing = feed_of(commands(tmp_path, **broken)), Landing()
    landing.poll(feed, AT)
    assert landing.table(NODE_STATES).filter(provenance="poll").height == 4
    assert {Path(where).name for where in feed.outcome.unreachable} == {"sacctmgr", "squeue"}
    down = feed_of(commands(tmp_path, sinfo="echo 'slurm_load_node error' >&2; exit 1"))
    with pytest.raises(InputError, match="slurm_load_node"):
        landing.poll(down, AT + timedelta(minutes=5))


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_holds_no_events(text: str) -> None:
    reading = NodeReading()
    read_events(text, reading, cluster=SlurmCluster("here"))
    assert (reading.states, reading.rows_read) == ([], 0)


@pytest.mark.parametrize(
    ("script", "events"),
    [("exit 0", 0), ("sed 's/^[^|]*|gpu01|/caf\\xe9|gpu01|/' {made}/sacctmgr_show_event.txt", 2)],
)
def test_nodes_count_beside_events_that_are_empty_or_no_utf8(
    tmp_path: Path, script: str, events: int
) -> None:
    feed, landing = feed_of(commands(tmp_path, sacctmgr=script)), Landing()
    landing.poll(feed, AT)
    states = landing.table(NODE_STATES)
    assert states.filter(provenance="poll").height == 4
    assert states.filter(provenance="event").height == events
    assert not feed.outcome.unreachable


def test_polls_so_rare_that_nothing_is_known_between_them_are_refused() -> None:
    settings = SlurmNodesSettings(source="slurm-nodes", every_s=3600)
    with pytest.raises(ConfigError, match="every_s is 3600"):
        slurm_nodes.connect(settings, configuration=Configuration())


def test_a_saved_file_is_one_chunk_which_its_content_names(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_bytes((MADE_22 / "sinfo.json").read_bytes())
    options = argparse.Namespace(files=[str(file)], at="2026-11-29T21:56:20Z", trusted=False)
    first, again = (
        list(slurm_nodes.read(options, configuration=Configuration(), now=AT)) for _ in range(2)
    )
    assert [chunk.id for chunk in first] == [chunk.id for chunk in again]
    assert first[0].parts[0].frame["start"].unique().to_list() == [AT]


EVENTS = b"""Cluster|NodeName|TimeStart|TimeEnd|State
c||1795989000|1795989600|
c|n1|1795989000|1795989600|DOWN
c|n1|Unknown|1795989600|DOWN
c|n1
c|n2|1795989000|1795989600|IDLE
"""


RECORDS_OF_NODES = (
    b"NodeName=n1 Gres=gpu:2 State=IDLE\n",
    b"NodeName=n1 Gres=gpu:2\n",
    b"ReservationName=r Nodes=n1 StartTime=2026-11-29T20:00:00\n",
    b'{"nodes": [{"name": "a", "state": ["IDLE"], "gres": "gpu:1"}, {"state": "IDLE"}], "jobs": []}',
    b'{"reservations": [{"node_list": "n[1-2]", "start_time": 1795980000, "end_time": 1795990000}]}',
    EVENTS,
)


def test_every_record_of_nodes_is_counted(snapshot: SnapshotAssertion) -> None:
    assert "\n".join(lines_of(reading_of(content)) for content in RECORDS_OF_NODES) == snapshot


def test_what_scontrol_and_settings_do_wrong_is_an_error(tmp_path: Path) -> None:
    broken = "echo slurm_load_node: Unable to contact >&2; exit 1"
    feed = feed_of(commands(tmp_path, scontrol=broken))
    with pytest.raises(InputError, match="Unable to contact"):  # sinfo is there, too
        Landing().poll(feed, AT)
    with pytest.raises(ConfigError, match="command is empty"):
        feed_of(())


@pytest.mark.parametrize(("wait_s", "rows"), [(STATE_HOLDS_S, 1), (STATE_HOLDS_S + 1, 2)])
def test_two_polls_are_one_row_as_long_as_a_state_is_known(
    tmp_path: Path, wait_s: int, rows: int
) -> None:
    feed, landing = feed_of(commands(tmp_path)), Landing()
    for seconds in (0, wait_s):
        landing.poll(feed, AT + timedelta(seconds=seconds))
    assert landing.table(NODE_STATES).filter(provenance="poll", node="gpu01").height == rows
    # A reservation has its own times; what people write into it adds no node.
    held = landing.table(NODE_STATES).filter(provenance="reservation")
    recorded = reading_of((MADE_22 / "scontrol_show_reservation.txt").read_bytes(), trusted=True)
    assert set(held["node"]) == {row["node"] for row in recorded.states}
