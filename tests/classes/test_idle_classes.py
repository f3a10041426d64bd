"""idle_nodes and idle_gpus: the busiest against the least busy."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from made_jobs import BUSY_HOST, QUIET_HOST, node_minutes, phases, verdicts

from jobframes import gpus
from tachograph.judge.finding import Finding


def means(util: float, share: float = 1.0, **given: Any) -> dict[str, Any]:
    """A row of job_gpus: at `util`, and at `share` of full work."""
    row = {"gpu_util_mean": util, "sm_active_mean": 0.6 * share, "dram_active_mean": 0.3 * share}
    return row | {"power_w_mean": 50 + 200 * share, "gpu_model": "A100 SXM 40GB"} | given


def idle(*rows: dict[str, Any], **given: Any) -> Finding:
    return verdicts(of_gpus=gpus(*rows), **given)["idle_gpus"]


def test_gpus_beside_a_busy_one() -> None:
    finding = idle(means(0.9), means(0.9), means(0.0, 0.0), means(0.4, 0.4))
    assert (finding.verdict, finding.severity) == ("yes", "hint")
    assert finding.sentence.startswith(
        "2 of 4 GPUs did at most half of what the busiest did (GPU 2, GPU 3):"
    )
    assert "utilisation 0 % against 90 %" in finding.sentence
    assert finding.evidence == {
        "units": 4, "units_affected": 2, "gpus": 4, "nodes": 1,
        "busiest_gpu_mean": pytest.approx(0.9), "idlest_gpu_mean": 0.0,
    }  # fmt: skip
    checks = {check.name: check for check in finding.checks}
    assert checks["gpu_util_busiest"].holds
    assert checks["gpu_util_busiest"].threshold == 0.5
    share = checks["gpu_util_least_over_busiest"]
    assert (share.value, share.relation, share.threshold, share.holds) == (0.0, "<=", 0.5, True)


def test_half_of_the_characteristics_suffice() -> None:
    assert (
        idle(means(0.9), means(0.9) | {"sm_active_mean": 0.1, "dram_active_mean": 0.01}).verdict
        == "yes"
    )
    finding = idle(means(0.9), means(0.9) | {"sm_active_mean": 0.1})
    assert finding.verdict == "no"
    assert "in 1 of 4 characteristics" in finding.sentence


def test_where_none_is_busy_none_is_idle_beside_it() -> None:
    finding = idle(means(0.3, 0.2), means(0.0, 0.0))
    assert finding.verdict == "no"
    assert (
        finding.sentence
        == "No: even the busiest GPU was not busy on average (utilisation 30 %, not above 50 %)."
    )


def test_missing_counters_have_no_vote() -> None:
    lacking = {"sm_active_mean": None, "dram_active_mean": None}
    finding = idle(means(0.9) | lacking, means(0.0, 0.0) | lacking)
    assert finding.verdict == "yes"
    assert finding.needs == ("sm_active", "dram_active")
    few = lacking | {"power_w_mean": None}
    finding = idle(means(0.9) | few, means(0.0, 0.0) | few)
    assert finding.verdict == "unknown"
    assert "1 of 4 characteristics was measured (utilisation)" in finding.sentence


def test_a_gpu_that_left_no_samples_may_be_the_idle_one() -> None:
    finding = idle(means(0.9), means(0.9), {"samples": 0})
    assert finding.verdict == "unknown"
    assert "1 of 3 GPUs left no samples" in finding.sentence
    assert idle(means(0.9), means(0.0, 0.0), {"samples": 0}).verdict == "yes"


def test_one_gpu_is_not_asked() -> None:
    assert "idle_gpus" not in verdicts(of_gpus=gpus(means(0.9)))
    assert "idle_nodes" not in verdicts(of_gpus=gpus(means(0.9), means(0.1)))


def test_nodes_are_compared_by_the_mean_of_their_gpus() -> None:
    rows = [means(0.9, node="n1", gpu=0), means(0.7, node="n1", gpu=1)]
    even = [means(0.8, node="n2", gpu=0), means(0.8, node="n2", gpu=1)]
    other = [means(0.8, 0.4, node="n2", gpu=0), means(0.0, 0.0, node="n2", gpu=1)]
    assert verdicts(of_gpus=gpus(*rows, *even))["idle_nodes"].verdict == "no"
    found = verdicts(of_gpus=gpus(*rows, *other), nodes=None)["idle_nodes"]
    assert found.verdict == "yes"
    assert "1 of 2 nodes did at most half of what the busiest did (n2)" in found.sentence


def test_nodes_by_their_hosts_and_the_utilisation_of_their_gpus() -> None:
    nodes = [
        node_minutes(phases((30, BUSY_HOST)), node="n1"),
        node_minutes(phases((30, QUIET_HOST)), node="n2"),
    ]
    rows = gpus({"node": "n1", "gpu_util_mean": 0.9}, {"node": "n2", "gpu_util_mean": 0.0})
    finding = verdicts(of_gpus=rows, nodes=pl.concat(nodes))["idle_nodes_host"]
    assert finding.verdict == "yes"
    assert {check.threshold for check in finding.checks if check.name.endswith("busiest")} == {
        0.05,
        1e6,
        1e5,
        0.5,
    }
    even = [nodes[0], node_minutes(phases((30, BUSY_HOST)), node="n2")]
    half = verdicts(of_gpus=rows, nodes=pl.concat(even))["idle_nodes_host"]
    assert half.verdict == "no"  # by one of four
    few = [frame.with_columns(pl.lit(None, pl.Float32).alias("cpu_user")) for frame in nodes]
    assert verdicts(of_gpus=rows, nodes=pl.concat(few))["idle_nodes_host"].verdict == "yes"
    assert "idle_gpus_host" not in verdicts(of_gpus=rows, nodes=pl.concat(nodes))


def test_values_of_checks_are_null_where_nothing_was_measured_or_done() -> None:
    many = idle(means(0.9), *[means(0.0, 0.0)] * 6)
    assert "(GPU 1, GPU 2, GPU 3, GPU 4 and 2 more)" in many.sentence
    half = {check.name: check for check in idle(means(0.8), means(0.4, 0.5)).checks}
    share = half["gpu_util_least_over_busiest"]
    assert share.value == pytest.approx(0.5)
    assert share.holds
    none = {"sm_active_mean": None}
    resting = {check.name: check for check in idle(*[means(0.0, 0.0) | none] * 2).checks}
    values = {name: (check.value, check.holds) for name, check in resting.items()}
    assert values["gpu_util_busiest"] == (0.0, False)
    assert values["gpu_util_least_over_busiest"] == (None, True)
    assert values["sm_active_busiest"] == (None, None)
    assert values["sm_active_least_over_busiest"] == (None, None)
