"""job_hang, cold_start, stall: golden rows from GPU telemetry and from host characteristics."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from made_jobs import (
    BUSY_HOST,
    QUIET_HOST,
    RESTING,
    WAITING,
    WORKING,
    Levels,
    gpu_minutes,
    node_minutes,
    phases,
    verdicts,
)

from jobframes import START
from tachograph.catalog.config import ClassOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.units import text
from tachograph.judge.job_classes import JOB_CLASSES
from tachograph.report.findings import interval_text

HUNG = ("job_hang", "cold_start", "stall")
HANGING = ((70, WORKING), (80, RESTING))
STARTING = ((80, RESTING), (70, WORKING))
STALLING = ((50, WORKING), (80, RESTING), (50, WORKING))
EXAMPLES = {"job_hang": HANGING, "cold_start": STARTING, "stall": STALLING}
Parts = tuple[tuple[int, Levels | None], ...]


@pytest.mark.parametrize("code", HUNG)
def test_a_job_that_has_it(code: str) -> None:
    found = verdicts(gpu_minutes(phases(*EXAMPLES[code])))
    assert {each: found[each].verdict for each in HUNG} == {
        each: "yes" if each == code else "no" for each in HUNG
    }
    finding = found[code]
    begin = {"job_hang": 70, "cold_start": 0, "stall": 50}[code]
    assert (finding.begin, finding.end) == (
        START + timedelta(minutes=begin),
        START + timedelta(minutes=begin + 80),
    )
    assert finding.evidence["interval_begin_s"] == begin * 60
    assert finding.evidence["interval_s"] == 80 * 60
    assert (finding.evidence["voted_yes"], finding.evidence["voted"]) == (6, 6)
    assert finding.severity == ("problem" if code == "job_hang" else "hint")
    assert {check.name for check in finding.checks if check.holds} == {
        *("power", "sm_active", "tensor_active", "dram_active", "pcie", "nvlink")
    }
    power = next(check for check in finding.checks if check.name == "power")
    assert power.value == pytest.approx(60 / 400)
    assert (power.relation, power.threshold, power.unit) == ("<", 0.3, "fraction")
    assert "1 h 20 min" in finding.sentence
    assert finding.advice


@pytest.mark.parametrize(("ended_s", "minutes"), [(45, 77), (59, 77), (60, 78)])
def test_the_sentence_and_the_clock_say_the_same_length(ended_s: int, minutes: int) -> None:
    ended = START + timedelta(minutes=147, seconds=ended_s)
    ran = (ended - START).total_seconds()
    found = verdicts(gpu_minutes(phases((70, WORKING), (78, RESTING))), as_of=ended, elapsed_s=ran)[
        "job_hang"
    ]
    assert f", for {text(minutes * 60, 's')} until the end" in found.sentence
    shown = interval_text(found, START, ended, zone_name="UTC")
    assert shown is not None
    assert shown.endswith(text(minutes * 60, "s"))
    assert found.evidence["interval_s"] == minutes * 60


def test_the_sentence_says_how_short() -> None:
    found = verdicts(gpu_minutes(phases((59, RESTING), (70, WORKING))))
    assert (
        found["cold_start"].sentence
        == "No: GPU activity stayed under 1 % for the first 59 min; a cold start is 1 h or more."
    )
    found = verdicts(gpu_minutes(phases((50, WORKING), (20, RESTING), (50, WORKING))))
    assert (
        found["stall"].sentence
        == "No: between work its GPUs were idle for at most 20 min; a stall is 1 h or more."
    )
    assert (
        found["job_hang"].sentence
        == "No: its GPUs were in use to its end; a hang is 1 h or more without work."
    )


def test_a_job_shorter_than_a_hang_has_none_whatever_was_measured() -> None:
    for found in (
        verdicts(gpu_minutes(phases((30, RESTING), (25, WORKING)))),
        verdicts(elapsed_s=55 * 60.0),
    ):
        assert {found[code].verdict for code in HUNG} == {"no"}
        assert "the job ran 55 min" in found["stall"].sentence


def test_steady_work_is_no_hang() -> None:
    found = verdicts(
        gpu_minutes(phases((60, WORKING), wobble=0.2) + phases((200, WORKING), wobble=0.0))
    )
    assert {found[code].verdict for code in HUNG} == {"no"}


def test_a_hung_collective_looks_busy() -> None:
    finding = verdicts(gpu_minutes(phases((70, WORKING), (80, WAITING))))["job_hang"]
    assert finding.verdict == "yes"
    assert "busy-waiting" in finding.sentence
    assert "utilisation 100 %" in finding.sentence
    assert "NCCL" in (finding.advice or "")
    assert finding.evidence["gpu_util_then"] == 1.0
    assert finding.evidence["power_fraction_then"] == pytest.approx(90 / 400)


# of a recorded job: utilisation 20 %, SM 10 %, power a quarter of the board's, the rest idle
LIGHT = RESTING | {"gpu_util": 0.2, "sm_active": 0.1, "power_w": 97.0}
LITTLE = RESTING | {
    "gpu_util": 0.04,
    "sm_active": 0.025,
    "dram_active": 0.008,
    "tensor_active": 0.003,
}
BLIP = RESTING | {"gpu_util": 0.1, "sm_active": 0.004}


@pytest.mark.parametrize(
    ("code", "verdict", "parts", "minutes"),
    [
        ("job_hang", "no", ((70, WORKING), (80, LIGHT)), None),
        ("job_hang", "no", ((70, WORKING), (90, LITTLE)), None),
        # what wakes a GPU for seconds does not end a rest
        ("cold_start", "yes", ((60, RESTING), (2, BLIP), (58, RESTING), (60, WORKING)), None),
        ("cold_start", "no", ((50, RESTING), (3, BLIP), (50, RESTING), (60, WORKING)), None),
        # a gap is neither flat nor work
        ("job_hang", "yes", ((70, WORKING), (4, None), (80, RESTING)), None),
        ("job_hang", "unknown", ((70, WORKING), (80, None)), 150),
        ("stall", "no", ((70, WORKING), (30, None), (30, WORKING)), None),  # too short to hold one
        ("stall", "unknown", ((70, WORKING), (61, None), (70, WORKING)), None),
        ("cold_start", "unknown", ((80, None), (70, WORKING)), None),
        # the end may be unmeasured for some minutes
        ("job_hang", "yes", HANGING, 153),
        ("job_hang", "unknown", HANGING, 170),
    ],
)
def test_what_is_idle_time_and_what_is_not(
    code: str, verdict: str, parts: Parts, minutes: int | None
) -> None:
    given: dict[str, Any] = {} if minutes is None else {"elapsed_s": minutes * 60.0}
    assert verdicts(gpu_minutes(phases(*parts)), **given)[code].verdict == verdict


def test_one_gpu_of_sixteen_at_work_is_no_hang() -> None:
    idle = [gpu_minutes(phases(*HANGING)) for _ in range(15)]
    rows = [frame.with_columns(gpu=pl.lit(place + 1, pl.Int16)) for place, frame in enumerate(idle)]
    rows.append(gpu_minutes(phases((70, WORKING), (80, WORKING))))
    assert verdicts(pl.concat(rows), gpus=16)["job_hang"].verdict == "no"


def test_a_job_that_never_worked_did_not_hang() -> None:
    found = verdicts(gpu_minutes(phases((200, RESTING))))
    assert {found[code].verdict for code in HUNG} == {"no"}
    assert found["job_hang"].sentence == "No: its GPUs did no work, so none stopped."


def test_a_counter_never_used_has_no_vote() -> None:
    parts = [None if each is None else each | {"tensor_active": 0.0, "nvlink_tx_bytes_per_s": 0.0,
                                               "nvlink_rx_bytes_per_s": 0.0} for each in phases(*HANGING)]  # fmt: skip
    finding = verdicts(gpu_minutes(parts))["job_hang"]
    assert finding.verdict == "yes"
    assert finding.evidence["voted"] == 4
    assert {check.name for check in finding.checks if check.holds is None} == {
        "tensor_active",
        "nvlink",
    }


NVLINK = ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")
PCIE = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")


def test_missing_counters_have_no_vote() -> None:
    # Exactly half are left.
    rows = gpu_minutes(phases(*HANGING), without=(*NVLINK, *PCIE, "power_w"))
    finding = verdicts(rows)["job_hang"]
    assert finding.verdict == "yes"
    assert "3 of 3 characteristics" in finding.sentence
    assert finding.needs == ("power_w", *PCIE, *NVLINK)


def test_less_than_half_of_the_characteristics_do_not_tell() -> None:
    without = (*NVLINK, *PCIE, "sm_active", "tensor_active")
    finding = verdicts(gpu_minutes(phases(*HANGING), without=without))["job_hang"]
    assert finding.verdict == "unknown"
    assert finding.sentence == (
        "Unknown: 2 of 6 characteristics were measured (power, memory traffic); at least 3 are "
        "needed."
    )
    assert (finding.begin, finding.advice) == (None, None)


def test_utilisation_alone_can_show_that_there_is_none() -> None:
    rows = gpu_minutes(
        phases((16, RESTING), (90, WORKING)), without=(*NVLINK, *PCIE, "sm_active", "tensor_active")
    )
    found = verdicts(rows)
    assert found["cold_start"].verdict == "no"
    assert "for the first 16 min" in found["cold_start"].sentence
    assert found["stall"].verdict == "no"
    assert found["job_hang"].verdict == "unknown"  # full utilisation may be waiting


def test_a_running_job_is_judged_as_of_its_last_minute() -> None:
    given = {"state": "RUNNING", "elapsed_s": 165 * 60.0}  # 15 min later than the last sample
    finding = verdicts(gpu_minutes(phases(*HANGING)), **given)["job_hang"]  # type: ignore[arg-type]
    assert finding.verdict == "yes"
    assert "so far" in finding.sentence
    assert finding.end == START + timedelta(minutes=150)
    waiting = verdicts(gpu_minutes(phases((100, RESTING))), state="RUNNING")["cold_start"]
    assert waiting.verdict == "no"
    assert waiting.sentence == "No: the GPUs did no work so far, so none started late."


def test_a_gap_inside_an_interval_does_not_break_it_in_silence() -> None:
    found = verdicts(gpu_minutes(phases((70, WORKING), (40, RESTING), (30, None), (40, RESTING))))[
        "job_hang"
    ]
    assert found.verdict == "unknown"
    assert "30 min of the 3 h were not measured" in found.sentence
    few = verdicts(gpu_minutes(phases((70, WORKING), (40, RESTING), (3, None), (40, RESTING))))[
        "job_hang"
    ]
    assert few.verdict == "yes"
    assert few.evidence["interval_s"] == 83 * 60


def test_an_unknown_device_is_measured_by_its_own_highest_power() -> None:
    finding = verdicts(gpu_minutes(phases(*HANGING)), gpu_model="Some GPU")["job_hang"]
    power = next(check for check in finding.checks if check.name == "power")
    assert power.value == pytest.approx(60 / (280 * 1.2))
    assert "power 18 % of the job's highest power, before that " in finding.sentence
    assert finding.verdict == "yes"


def test_of_ambiguous_jobs_nothing_can_be_told() -> None:
    found = verdicts(gpu_minutes(phases(*HANGING)), attribution="ambiguous")
    assert {code: finding.verdict for code, finding in found.items()} == {
        each.code: "unknown"
        for each in JOB_CLASSES
        if each.code != "idle_nodes"  # of one node it does not apply
    }


def test_thresholds_are_the_sites() -> None:
    rows = gpu_minutes(phases(*HANGING))
    assert verdicts(rows, settings=ClassOptions(hang_minutes=90.0))["job_hang"].verdict == "no"
    only = ClassOptions(characteristics={"job_hang": ("power",)}, level={"power": 0.1})
    found = verdicts(rows, settings=only)
    assert found["job_hang"].verdict == "no"
    assert [check.name for check in found["job_hang"].checks] == ["power"]


@pytest.mark.parametrize(
    "settings",
    [
        ClassOptions(theta={"powr": 1.0}),
        ClassOptions(level={"power": 30}),
        ClassOptions(busy={"cpu_user": 1.01}),
        ClassOptions(characteristics={"job_hang": ("cpu_user",)}),
        ClassOptions(characteristics={"hang": ("power",)}),
        ClassOptions(characteristics={"job_hang": ()}),
        ClassOptions(window_minutes=90),
    ],
)
def test_thresholds_that_cannot_be_are_refused(settings: ClassOptions) -> None:
    with pytest.raises(ConfigError, match="classes"):
        verdicts(gpu_minutes(phases(*HANGING)), settings=settings)


HOST_EXAMPLES: dict[str, Parts] = {
    "job_hang": ((90, BUSY_HOST), (80, QUIET_HOST)),
    "cold_start": ((80, QUIET_HOST), (90, BUSY_HOST)),
    "stall": ((60, BUSY_HOST), (80, QUIET_HOST), (60, BUSY_HOST)),
}


@pytest.mark.parametrize("code", HUNG)
def test_a_job_whose_hosts_have_it(code: str) -> None:
    found = verdicts(nodes=node_minutes(phases(*HOST_EXAMPLES[code])))
    assert {each: found[f"{each}_host"].verdict for each in HUNG} == {
        each: "yes" if each == code else "no" for each in HUNG
    }
    assert found[f"{code}_host"].evidence["interval_s"] >= 80 * 60
    assert "stayed flat" in found[f"{code}_host"].sentence
    assert found[code].verdict == "unknown"  # the GPUs were not measured


def test_a_host_that_worked_for_less_than_an_hour_did_not_hang() -> None:
    """Before the hang an interval longer than T must not be flat: its windows reach 15 minutes
    into the hang.
    """
    worked = {
        minutes: verdicts(nodes=node_minutes(phases((minutes, BUSY_HOST), (80, QUIET_HOST))))[
            "job_hang_host"
        ].verdict
        for minutes in (30, 90)
    }
    assert worked == {30: "no", 90: "yes"}


def test_hosts_without_half_of_the_characteristics() -> None:
    without = ("l1_misses_per_s", "llc_misses_per_s", "network_rx_packets_per_s")
    found = verdicts(nodes=node_minutes(phases(*HOST_EXAMPLES["job_hang"]), without=without))
    assert found["job_hang_host"].verdict == "unknown"
    assert found["job_hang_host"].needs == ("l1_misses", "llc_misses", "network_rx_packets")


def test_no_minutes_of_nodes_no_host_form() -> None:
    assert not [code for code in verdicts(gpu_minutes(phases(*HANGING))) if code.endswith("_host")]
