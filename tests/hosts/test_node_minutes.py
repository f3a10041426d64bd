"""Minutes of nodes: every characteristic recomputed in plain Python, whatever way the samples came."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from host_reference import node_minutes
from random_hosts import random_hosts

from madelake import configured, make_lake, summarized
from tachograph.analyze.results import read_node_minutes, read_summaries
from tachograph.config import Analysis
from tachograph.lake import Lake
from tachograph.summarize.schema import HOST_CHARACTERISTICS

Key = tuple[str, str, int]
GAP = 3.5  # intervals; samples are a whole number of them apart, or far from this
WIDE = configured(analysis=Analysis(max_gap_intervals=GAP))


def read(lake: Lake) -> dict[Key, dict[str, Any]]:
    rows = [read_node_minutes(lake, summary) for summary in read_summaries(lake).iter_rows(named=True)]
    starts = dict(read_summaries(lake).select("job_key", "start").iter_rows())
    found = {}
    for row in pl.concat(rows).iter_rows(named=True):
        assert row["t"] == starts[row["job_key"]] + timedelta(minutes=row["minute"])
        key = (row["job_id"], row["node"], row["minute"])
        assert key not in found
        found[key] = {name: row[name] for name in HOST_CHARACTERISTICS}
    return found


def compare(found: dict[Key, dict[str, Any]], expected: dict[Key, dict[str, Any]]) -> None:
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        for name, value in values.items():
            assert (found[key][name] is None) == (value is None), (key, name)
            assert value is None or abs(found[key][name] - value) <= 1e-5 * abs(value) + 1e-9, (key, name)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_characteristic_is_what_plain_loops_make_of_it(seed: int, tmp_path: Path) -> None:
    hosts = random_hosts(seed)
    lake = make_lake(tmp_path / "lake", **hosts.tables())
    summarized(lake, WIDE)
    found = read(lake)
    compare(found, node_minutes(hosts.samples, hosts.stays, intervals=GAP))
    for name in HOST_CHARACTERISTICS:
        told = [values[name] for values in found.values()]
        assert any(value is not None and value > 0 for value in told), name
        assert any(value is None for value in told), name
    assert {node for _, node, _ in found} == {"n1", "n2", "n3"}
