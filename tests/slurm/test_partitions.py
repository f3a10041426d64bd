"""Partitions and nodes as `scontrol` of Slurm 22.05 printed them, and as JSON of later versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from row_lines import row_lines
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.partitions import (
    SlurmNode,
    SlurmPartition,
    gives_whole_nodes,
    parse_partitions,
    read_partitions,
)

RECORDED = Path(__file__).parent / "recorded"
OF_22_05 = RECORDED / "22.05.8" / "scontrol_show_partition_and_node.txt"


def lines_of(partitions: Mapping[str, SlurmPartition]) -> str:
    """Return what is known of each partition, and its smallest node."""
    lines = []
    for found in partitions.values():
        values = {one.name: getattr(found, one.name) for one in fields(found)}
        known = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in values.items()
        }
        derived = {"node": found.node, "memory_mib": found.memory_mib}
        lines.append(row_lines([{**known, **derived}]))
    return "".join(lines)


def test_recorded_text(snapshot: SnapshotAssertion) -> None:
    assert lines_of(read_partitions(str(OF_22_05))) == snapshot


@pytest.mark.parametrize("version", ["24.11.5", "26.05.5"])
def test_recorded_nodes_of_later_versions(version: str) -> None:
    nodes = (RECORDED / version / "scontrol_show_node_d.txt").read_text()
    (gpu,) = parse_partitions(f"{nodes}\nPartitionName=gpu\n   Nodes=gpu[01-02]\n").values()
    assert gpu.nodes == (SlurmNode(4, 64, 512_000.0),) * 2


def described(partition: Mapping[str, object]) -> SlurmPartition:
    (found,) = parse_partitions(json.dumps({"partitions": [partition]})).values()
    return found


def test_json_of_both_commands_in_one_file(snapshot: SnapshotAssertion) -> None:
    number = {"set": True, "infinite": False}
    partition = {
        "name": "gpu",
        "nodes": {"configured": "gpu[1-2]"},
        "accounts": {"allowed": "ml,cfd", "deny": ""},
        "qos": {"allowed": "", "deny": "low"},
        "groups": {"allowed": ""},
        "minimums": {"nodes": 1},
        "maximums": {
            "nodes": number | {"number": 4},
            "time": number | {"number": 90},
            "cpus_per_node": {"set": False, "infinite": True, "number": 0},
            "partition_memory_per_node": number | {"number": 400_000},
            "shares": 0,
        },
        "defaults": {"job": "DefMemPerGPU=60000"},
    }
    nodes = [
        {"name": f"gpu{n}", "gres": "gpu:h100:8(S:0-1)", "cpus": 96, "real_memory": 900_000}
        for n in (1, 2)
    ]
    written = f"{json.dumps({'partitions': [partition]})}\n{json.dumps({'nodes': nodes})}\n"
    assert lines_of(parse_partitions(written)) == snapshot
    partition["maximums"] |= {"shares": 1}  # type: ignore[operator]
    assert described(partition).whole_nodes is False


@pytest.mark.parametrize(
    ("written", "closed"),
    [
        ("State=UP RootOnly=NO ReqResv=NO", False),
        ("", False),
        ("State=DOWN", True),
        ("State=DRAIN", True),
        ("State=INACTIVE", True),
        ("State=UP RootOnly=YES", True),
        ("State=UP ReqResv=YES", True),
    ],
)
def test_partitions_that_start_no_job_of_a_user(written: str, closed: bool) -> None:
    (gpu,) = parse_partitions(f"PartitionName=gpu\n   Nodes=a1 {written}\n").values()
    assert gpu.closed is closed


def test_state_and_flags_in_json() -> None:
    partition: dict[str, object] = {"name": "gpu", "partition": {"state": ["DOWN"]}}
    gpu = described(partition)
    assert (gpu.closed, gpu.of_one_user) == (True, None)
    partition |= {"partition": {"state": ["UP"]}, "flags": ["EXCLUSIVE_USER"]}
    gpu = described(partition)
    assert (gpu.closed, gpu.of_one_user) == (False, True)


def test_memory_of_a_node_by_its_cpus() -> None:
    node = "NodeName=a1 CPUTot=8 RealMemory=100000 Gres=gpu:2"
    for limits, memory_mib in (
        ("MaxMemPerCPU=2000 MaxCPUsPerNode=UNLIMITED", 16_000.0),
        ("MaxMemPerCPU=2000 MaxCPUsPerNode=4", 8000.0),
        ("MaxMemPerCPU=50000 MaxCPUsPerNode=4", 100_000.0),
    ):
        written = f"PartitionName=gpu\n   Nodes=a1 {limits}\n\n{node}"
        assert parse_partitions(written)["gpu"].memory_mib == memory_mib


def test_nodes_that_are_not_described_are_unknown() -> None:
    written = "PartitionName=gpu\n   Nodes=a[1-2]\n\nNodeName=a1 CPUTot=8 RealMemory=100 Gres=gpu:2"
    assert parse_partitions(written)["gpu"].nodes == ()
    assert parse_partitions("PartitionName=gpu\n   Nodes=(null)")["gpu"].node is None


@pytest.mark.parametrize("written", ["", "{", "slurm_load_partitions error: Unable to contact"])
def test_file_without_partitions_is_an_error(written: str, tmp_path: Path) -> None:
    file = tmp_path / "partitions.txt"
    file.write_text(written)
    with pytest.raises(InputError, match="names no partition"):
        read_partitions(str(file))
    with pytest.raises(InputError, match="cannot be read"):
        read_partitions(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("partition", "qos", "whole"),
    [
        ("gpu_s1", None, False),  # configured before it is recorded, shared before exclusive
        ("gpu", None, True),
        ("gpu", "part", False),
        ("cpu,gpu", None, True),
        ("recorded", None, True),
        ("recorded", "part", False),
        ("recorded", "all", True),
        ("unrecorded", None, None),
        ("unrecorded", "all", True),
        ("half", None, None),
        (None, None, None),
    ],
)
def test_who_gives_whole_nodes(partition: str | None, qos: str | None, whole: bool | None) -> None:
    slurm = SlurmOptions(shared=("gpu_s*", "part"), exclusive=("gpu*", "all"))
    recorded = {
        "gpu_s1": SlurmPartition("gpu_s1", whole_nodes=True),
        "recorded": SlurmPartition("recorded", whole_nodes=True),
        "half": SlurmPartition("half"),
    }
    assert gives_whole_nodes(slurm, recorded, partition=partition, qos=qos) is whole
