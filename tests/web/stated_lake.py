"""A lake with jobs in the states that pages are designed for: huge, ambiguous, of two clusters,
not analyzed yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from madelake import fill, held, job, make_lake, summarized, utc
from tachograph.lake.delta import Lake

HUGE, AMBIGUOUS, TWICE, NEW, NEWEST = "900512", "900001", "900700", "900800", "900801"
ANN, BOB, DAN, EVA = "ann", "bob", "dan", "eva"
UNKNOWN = "900003"  # the only job of Eva and of her account: not even its GPUs are known
_START = utc(20, 8)
_END = _START + timedelta(minutes=10)


def _of_huge() -> Iterator[dict[str, Any]]:
    """Of 64 nodes with 8 GPUs: busy, less on each node, and one node idle."""
    for node in range(64):
        for gpu in range(8):
            util = 0.0 if node == 63 else 0.95 - node / 200
            for minute in range(10):
                t = _START + timedelta(minutes=minute, seconds=30)
                memory = 30_000.0 + 100 * node
                yield {
                    "t": t, "node": f"gpu{node:03}", "gpu": gpu, "gpu_util": util, "power_w": 100 + 500 * util,
                    "hbm_used_mib": memory, "sm_active": util * 0.9, "dram_active": util * 0.4,
                    "tensor_active": util * 0.5,
                }  # fmt: skip


def _of_node(node: str, gpus: int) -> Iterator[dict[str, Any]]:
    for gpu in range(gpus):
        for minute in range(10):
            yield {
                "t": _START + timedelta(minutes=minute, seconds=30),
                "node": node,
                "gpu": gpu,
                "gpu_util": 0.5,
            }


def stated_lake(folder: Path) -> Lake:
    """Return an analyzed lake, and jobs in its accounting that came after the analysis."""
    twice = [
        job(TWICE, _START, _END, user=user, cluster=cluster, gpus=1, name="twice", node_list=node)
        for user, cluster, node in ((ANN, "east", "e1"), (BOB, "west", "w1"))
    ]
    lake = make_lake(
        folder,
        gpu_samples=[*_of_huge(), *_of_node("shared1", 2), *_of_node("e1", 1), *_of_node("w1", 1)],
        devices=[
            *({"node": f"gpu{n:03}", "gpu": g, "model": "NVIDIA A100-SXM4-40GB"} for n in range(64) for g in range(8)),
            *({"node": node, "gpu": 0, "model": "NVIDIA A40"} for node in ("shared1", "e1", "w1")),
            {"node": "shared1", "gpu": 1, "model": "NVIDIA A40"},
        ],
        jobs=[
            job(HUGE, _START, _END, user=ANN, account="acct", partition="gpu", name="wide", gpus=512, nodes=64,
                node_list="gpu[000-063]", cluster="east"),
            job(AMBIGUOUS, _START, _END, user=ANN, account="acct", partition="shared", name="one", gpus=1,
                node_list="shared1", cluster="east"),
            job("900002", _START, _END, user=BOB, account="acct", partition="shared", name="two", gpus=1,
                node_list="shared1", cluster="east"),
            job(UNKNOWN, _START, _END, user=EVA, account="solo", partition="shared", name="three", gpus=1,
                node_list="shared1", cluster="east"),
            *twice,
        ],
        allocations=[
            *(row for n in range(64) for row in held(HUGE, f"gpu{n:03}", range(8), _START, _END, cluster="east")),
            *held(AMBIGUOUS, "shared1", cluster="east"),
            *(row for id_ in ("900002", UNKNOWN) for row in held(id_, "shared1", cluster="east")),
            *held(TWICE, "e1", [0], _START, _END, cluster="east"),
            *held(TWICE, "w1", [0], _START, _END, cluster="west"),
        ],
        steps=[
            {"cluster": "east", "job_id": HUGE, "step": "0", "name": "train", "start": _START, "end": _END,
             "nodes": 64, "node_list": "gpu[000-063]"},
        ],
    )  # fmt: skip
    summarized(lake)
    later = [
        job(
            NEW,
            _END,
            None,
            user=ANN,
            cluster="east",
            gpus=4,
            partition="gpu",
            name="fresh",
            node_list="gpu000",
        ),
        job(
            NEWEST,
            _END,
            None,
            user=DAN,
            cluster="east",
            gpus=4,
            partition="gpu",
            name="first",
            node_list="gpu001",
        ),
    ]
    fill(lake, {"jobs": later}, chunk="later")
    return lake
