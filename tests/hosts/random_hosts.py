"""Nodes, jobs and host samples from a seed: resets, gaps, samplers of their own times, shared
nodes, two midnights.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from host_reference import CPU, RATES, Stay

from madelake import held, job, utc

BEGIN = utc(23, 21, 7, 13)
GPUS = 2
SAMPLERS = (
    CPU,
    ("load_average",),
    tuple(RATES.values())[:2],
    tuple(RATES.values())[2:6],
    tuple(RATES.values())[6:],
)


@dataclass(frozen=True, slots=True)
class Hosts:
    """What was recorded of nodes, who was there when."""

    samples: list[dict[str, Any]]
    gpu_samples: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    allocations: list[dict[str, Any]]
    stays: list[Stay]

    def tables(self, *, hosts: bool = True) -> dict[str, list[dict[str, Any]]]:
        """Arguments of `make_lake`."""
        named = {
            "gpu_samples": self.gpu_samples,
            "jobs": self.jobs,
            "allocations": self.allocations,
        }
        return named | ({"node_samples": self.samples} if hosts else {})


def random_hosts(seed: int, *, hours: float = 30) -> Hosts:
    """Four nodes of two GPUs: n1 with one job after the other, n2 shared, n3 with a job over two
    nodes, n4 of no job.

    Times of samplers: n1 one row for all, n2 and n3 a row per sampler, seconds apart.
    """
    dice = random.Random(seed)
    end = BEGIN + timedelta(hours=hours)
    samples = [row for node in ("n1", "n2", "n3", "n4") for row in _node(dice, node, end)]
    stays: list[tuple[str, str, int, datetime, datetime]] = []  # job, node, GPU
    for gpus in (range(GPUS), [0], [1]):
        node = "n1" if len(gpus) == GPUS else "n2"
        at = BEGIN + timedelta(seconds=dice.randint(-400, 900))
        while at < end:
            until = at + timedelta(seconds=dice.choice([45, 150, 1400, 6100, 40_000]))
            number = f"{len({stay[0] for stay in stays}) + 100}"
            stays += [(number, node, gpu, at, until) for gpu in gpus]
            at = until + timedelta(seconds=dice.choice([0, 37, 600]))
    wide = BEGIN + timedelta(seconds=77), end - timedelta(hours=2, seconds=11)
    stays += [("99", "n3", 0, *wide), ("99", "n1", 7, wide[0], wide[0])]
    return Hosts(samples, _gpu_samples(end), _jobs(stays), _allocations(stays), _stays(stays))


def _node(dice: random.Random, node: str, end: datetime) -> list[dict[str, Any]]:
    """One row per sampler and time; those of n1 in one row."""
    rows = []
    counters: dict[str, float] = {
        name: dice.uniform(0, 1e6) for sampler in SAMPLERS for name in sampler
    }
    at = BEGIN - timedelta(minutes=20) + timedelta(seconds=dice.uniform(0, 60))
    while at < end:
        at += timedelta(seconds=round(60 * dice.uniform(0.98, 1.02), 6))
        if dice.random() < 0.01:
            at += timedelta(seconds=dice.choice([70, 100, 400, 3000]))
        merged: dict[str, Any] = {"t": at, "node": node}
        for number, sampler in enumerate(SAMPLERS):
            values: dict[str, Any] = {}
            for name in sampler:
                grown = dice.choice([0.0, dice.uniform(0, 1e6)])
                counters[name] = 0.0 if dice.random() < 0.004 else counters[name] + grown
                values[name] = None if dice.random() < 0.01 else counters[name]
            if "load_average" in values:
                values["load_average"] = dice.uniform(0, 200)
            if node == "n1":
                merged |= values
            elif dice.random() < 0.98:
                rows.append({"t": at + timedelta(seconds=number * 1.5), "node": node} | values)
        if node == "n1":
            rows.append(merged)
    return rows


def _gpu_samples(end: datetime) -> list[dict[str, Any]]:
    """A few, so that the GPUs are known; none on the last day."""
    times = [BEGIN + timedelta(minutes=30 * step) for step in range(20)]
    return [
        {"t": t, "node": node, "gpu": gpu, "gpu_util": 0.5}
        for t in times
        for node in ("n1", "n2", "n3", "n4")
        for gpu in range(GPUS)
    ]


def _jobs(stays: list[tuple[str, str, int, datetime, datetime]]) -> list[dict[str, Any]]:
    spans = {number: (start, end) for number, node, gpu, start, end in stays if start < end}
    gpus = {
        number: sum(1 for stay in stays if stay[0] == number and stay[3] < stay[4])
        for number in spans
    }
    return [job(number, start, end, gpus=gpus[number]) for number, (start, end) in spans.items()]


def _allocations(stays: list[tuple[str, str, int, datetime, datetime]]) -> list[dict[str, Any]]:
    return [
        row
        for n, node, gpu, start, end in stays
        if start < end
        for row in held(n, node, [gpu], start, end)
    ]


def _stays(stays: list[tuple[str, str, int, datetime, datetime]]) -> list[Stay]:
    places = {(number, node, start, end) for number, node, gpu, start, end in stays if start < end}
    return sorted(
        (Stay(*place, zero=place[2]) for place in places), key=lambda stay: (stay.node, stay.start)
    )
