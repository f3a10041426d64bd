"""Every rule of the catalogue: a job that has it, one just short of it, one in which what it
needs was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ruled_jobs import SHIPPED, Job, Row, found

from tachograph.judge.finding import SEVERITIES

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "rules.md"


@dataclass(frozen=True)
class Case:
    code: str
    has: Job
    short: Job
    missing: Job
    needs: tuple[str, ...]
    phrase: str  # in the sentence of the job that has it


def util(*means: float | None, **others: float | None) -> list[Row]:
    return [
        {"gpu_util_mean": mean, "gpu_util_max": 1.0 if mean else mean} | others for mean in means
    ]


def on_nodes(**means: float) -> list[Row]:
    return [
        {"node": node, "gpu": 0, "gpu_util_mean": mean, "gpu_util_max": 1.0}
        for node, mean in means.items()
    ]


NOTHING = Job(gpus=[{}, {}])
CLOCKS = util(0.9, 0.9, 0.9, 0.9)
WAITING = util(0.4, 0.4, pcie_rx_bytes_per_s_mean=1e8)
KERNELS = util(0.9, 0.9, sm_active_mean=0.1)
# clocks of a board of 700 W that drew 90 % of it
AT_LIMIT = {"throttle_reasons_mean": 0.1, "throttle_reasons_max": 0x4, "power_w_max": 630.0,
            "gpu_model": "H100 SXM 80GB"}  # fmt: skip

CASES = (
    Case(
        "unused_time_limit",
        Job({"elapsed_s": 7200.0, "timelimit_s": 86400.0}),
        Job({"elapsed_s": 8640.0, "timelimit_s": 86400.0}),
        Job({"timelimit_s": None}),
        ("timelimit_s",),
        "8.3 % of the 24 h",
    ),
    Case(
        "heat_throttling",
        Job(gpus=[{"throttle_reasons_mean": 0.0, "throttle_reasons_max": 0},
                  {"throttle_reasons_mean": 0.1, "throttle_reasons_max": 0x40}]),
        Job(gpus=[{"throttle_reasons_mean": 0.09, "throttle_reasons_max": 0x40},
                  {"throttle_reasons_mean": 0.5, "throttle_reasons_max": 0x4}]),
        NOTHING,
        ("throttle_reasons",),
        "GPU 1: ",
    ),
    Case(
        "power_throttling",
        Job(gpus=[AT_LIMIT]),
        Job(gpus=[AT_LIMIT | {"power_w_max": 629.0}]),
        Job(gpus=[AT_LIMIT | {"power_w_max": None}]),
        ("power_w", "gpu_model"),
        "GPU 0: ",
    ),
    Case("hot_gpu", Job(gpus=[{"gpu_temp_c_max": 60.0}, {"gpu_temp_c_max": 85.0}]),
         Job(gpus=[{"gpu_temp_c_max": 84.0}]), NOTHING, ("gpu_temp_c",), "GPU 1: "),
    Case("small_kernels", Job(gpus=KERNELS), Job(gpus=util(0.9, 0.9, sm_active_mean=0.3)),
         Job(gpus=util(0.9)), ("sm_active",), "90 % of the time"),
    Case(
        "low_occupancy",
        Job(gpus=[{"sm_active_mean": 0.5, "sm_occupancy_mean": 0.09, "tensor_active_mean": 0.0}]),
        Job(gpus=[{"sm_active_mean": 0.5, "sm_occupancy_mean": 0.10, "tensor_active_mean": 0.0}]),
        Job(gpus=[{"sm_active_mean": 0.5, "tensor_active_mean": 0.0}]),
        ("sm_occupancy",),
        "9 % of the warps",
    ),
    # two GPUs for 2 h: missed 0.5 of 2 x 7200 s is over 0.2 of what there is; 0.39 is not
    Case("load_imbalance_waste", Job(gpus=util(0.9, 0.4)), Job(gpus=util(0.9, 0.51)), NOTHING, ("gpu_util",), "25%"),
    Case("load_imbalance_spread", Job(gpus=util(0.5, 0.5, 0.61)), Job(gpus=util(0.5, 0.5, 0.59)), NOTHING,
         ("gpu_util",), "GPU 2"),
    Case("load_imbalance_two_sided", Job(gpus=util(0.5, 0.5, 0.39)), Job(gpus=util(0.5, 0.5, 0.41)), NOTHING,
         ("gpu_util",), "GPU 2"),
    Case("stalled_input", Job(gpus=WAITING), Job(gpus=util(0.6, 0.6, pcie_rx_bytes_per_s_mean=1e8)),
         Job(gpus=util(0.4, 0.4)), ("pcie_rx_bytes_per_s",), "40 % of the time"),
    Case(
        "host_traffic",
        Job(gpus=[{"pcie_rx_bytes_per_s_mean": 4e9, "pcie_tx_bytes_per_s_mean": 1e9, "sm_active_mean": 0.4}]),
        Job(gpus=[{"pcie_rx_bytes_per_s_mean": 4e9, "pcie_tx_bytes_per_s_mean": 0.9e9, "sm_active_mean": 0.4}]),
        Job(gpus=[{"pcie_rx_bytes_per_s_mean": 9e9, "sm_active_mean": 0.4}]),
        ("pcie_tx_bytes_per_s",),
        "5.00 GB/s",
    ),
    Case(
        "cpus_hold_gpus_up",
        Job(gpus=on_nodes(n1=0.4, n2=0.9), hosts={"n1": {"cpu_user": 0.9}, "n2": {"cpu_user": 0.9}}),
        Job(gpus=on_nodes(n1=0.4, n2=0.4), hosts={"n1": {"cpu_user": 0.84}, "n2": {"cpu_user": 0.2}}),
        Job(gpus=on_nodes(n1=0.4, n2=0.4)),
        ("cpu_user_s",),
        "n1: ",
    ),
    Case("uneven_nodes", Job(gpus=on_nodes(n1=0.9, n2=0.59)), Job(gpus=on_nodes(n1=0.9, n2=0.61)),
         Job(gpus=[{"node": "n1"}, {"node": "n2"}]), ("gpu_util",), "n2"),
    Case(
        "slow_gpu",
        Job(gpus=[row | {"sm_clock_mhz_mean": clock} for row, clock in zip(CLOCKS, (1400.0, 1400.0, 1400.0, 1100.0),
                                                                         strict=True)]),
        Job(gpus=[row | {"sm_clock_mhz_mean": clock} for row, clock in zip(CLOCKS, (1400.0, 1400.0, 1400.0, 1200.0),
                                                                         strict=True)]),
        Job(gpus=CLOCKS),
        ("sm_clock_mhz",),
        "GPU 3",
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ({}, "yes"),
        ({"power_w_max": 380.0}, "no"),
        ({"throttle_reasons_max": 0x44}, "no"),
        ({"throttle_reasons_mean": 0.09, "gpu_model": None}, "no"),
        ({"gpu_model": None}, "unknown"),
        ({"gpu_model": "GH200 96GB"}, "unknown"),  # no limit is published
    ],
)
def test_the_power_limit_is_reached_near_the_board_s_power(columns: Row, verdict: str) -> None:
    assert found(Job(gpus=[AT_LIMIT | columns]), "power_throttling").verdict == verdict


def test_every_rule_has_its_case() -> None:
    assert sorted(case.code for case in CASES) == sorted(entry.code for entry in SHIPPED.entries)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_job_that_has_it(case: Case) -> None:
    one = found(case.has, case.code)
    assert (one.verdict, one.kind, one.severity) == (
        "yes",
        "check",
        SHIPPED.called(case.code)[0].severity,
    )
    assert case.phrase in one.sentence
    assert (one.advice is None) == (one.severity == "fact")
    assert one.checks
    assert one.needs == ()
    assert all(check.holds is not None for check in one.checks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_job_just_short_of_it(case: Case) -> None:
    one = found(case.short, case.code)
    assert one.verdict == "no", one.sentence
    assert one.advice is None
    assert one.evidence == {}
    assert one.sentence.startswith("Not triggered")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_job_in_which_it_was_not_measured(case: Case) -> None:
    one = found(case.missing, case.code)
    assert one.verdict == "unknown", one.sentence
    assert set(case.needs) <= set(one.needs)
    assert set(one.needs) <= set(SHIPPED.called(case.code)[0].counters)
    assert one.sentence.startswith("Unknown")


@pytest.mark.parametrize("entry", SHIPPED.entries, ids=lambda entry: entry.code)
def test_a_rule_says_what_people_need_to_know(entry: object) -> None:
    rule = next(one for one in SHIPPED.entries if one is entry)
    assert rule.pattern.description
    assert rule.pattern.criterion
    assert rule.pattern.cures
    assert rule.severity in SEVERITIES
    assert rule.rule.template.text
    for name in rule.values:
        assert rule.declared[name].meaning, name
        assert rule.declared[name].unit, name
    assert f"| `{rule.code}` |" in DOCS.read_text(encoding="utf-8")


def test_nothing_is_wrong_with_the_catalogue() -> None:
    assert SHIPPED.errors == ()
    # the published second rule divides by the median, as published
    assert {problem.file for problem in SHIPPED.problems} == {"load_imbalance.json"}
    assert len(SHIPPED.entries) >= 13
    assert len({entry.code for entry in SHIPPED.entries}) == len(SHIPPED.entries)


def test_no_declared_parameter_is_without_a_rule() -> None:
    from tachograph.judge.rules.ruleset import read_parameters
    from tachograph.judge.rules.sources import shipped_sources

    declared, problems = read_parameters(shipped_sources()[1])
    assert problems == []
    used = {
        (tag, name)
        for entry in SHIPPED.entries
        for tag in (entry.code, entry.rule.tag)
        for name in entry.values
    }
    assert [
        (tag, name) for tag, of in declared.items() for name in of if (tag, name) not in used
    ] == []


def test_a_value_from_the_configuration_moves_the_line() -> None:
    entry = SHIPPED.called("uneven_nodes")[0].with_values({"behind_threshold": 0.2})
    changed = replace(SHIPPED, entries=(entry,))
    job = Job(gpus=on_nodes(n1=0.9, n2=0.65))
    assert found(job, "uneven_nodes").verdict == "no"
    one = found(job, "uneven_nodes", changed)
    assert one.verdict == "yes"
    assert {
        check.threshold
        for check in one.checks
        if check.name in ("widest difference", "activity below the busiest node")
    } == {0.2}


def test_the_evidence_says_which_ranks_and_how_much() -> None:
    one = found(Job(gpus=util(0.5, 0.5, 0.61)), "load_imbalance_spread")
    assert one.evidence == {"gpu_hours": 6.0, "gpus_affected": 1}
    shown = {check.name: (check.relation, check.threshold, check.holds) for check in one.checks}
    assert shown["work above the median"] == (">", 0.2, True)


def test_the_published_waste_is_that_of_plain_arithmetic() -> None:
    means = (0.9, 0.4, 0.7)
    one = found(Job({"elapsed_s": 10_000.0}, util(*means)), "load_imbalance_waste")
    work = [mean * 10_000 for mean in means]
    missed = sum(max(work) - each for each in work)
    values = {check.name: check.value for check in one.checks}
    assert values["missed over available work"] == pytest.approx(missed / (3 * 10_000))
    assert values["missed work beyond the tolerance"] == pytest.approx(missed - 3600)
    assert "Ratio 23%" in one.sentence
