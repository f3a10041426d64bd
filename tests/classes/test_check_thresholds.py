"""Every check just below, at and just above the number that decides it, judged as an analysis
judges jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from made_jobs import RESTING, WAITING, WORKING, gpu_minutes, phases

from jobframes import frame, gpus, minutes, summary
from tachograph.catalog.config import Configuration, SlurmOptions, load
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.checks import CHECKS
from tachograph.judge.finding import EVIDENCE, Finding, read_findings
from tachograph.judge.job_judge import JobJudge
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import timelines_of

MODEL = "A100 SXM 40GB"
MEASURED: dict[str, Any] = {"dram_active_mean": 0.5, "fp64_active_mean": 0.1}
PARTITIONS = (
    Path(__file__).parents[1] / "slurm/recorded/22.05.8/scontrol_show_partition_and_node.txt"
)
HEAT = 0x40  # of the reasons why clocks are lowered
BELOW, AT, ABOVE = (True, False, False), (False, True, False), (False, False, True)
FROM, UP_TO = (False, True, True), (True, True, False)


@dataclass(frozen=True)
class PlantedJob:
    """Rows of one job."""

    summary: dict[str, Any] = field(default_factory=dict)
    gpus: Sequence[dict[str, Any]] = ()
    minutes: pl.DataFrame | None = None


@dataclass(frozen=True)
class Boundary:
    """Where a finding begins or ends to hold: jobs with the limit, and a step below and above
    it.
    """

    code: str
    limit: float
    step: float
    job: Callable[[float], PlantedJob]
    holds: tuple[bool, bool, bool]

    @property
    def values(self) -> tuple[float, float, float]:
        """Just below, at, just above."""
        return self.limit - self.step, self.limit, self.limit + self.step


def of_summary(
    name: str, gpu_rows: Sequence[dict[str, Any]] = (), **others: Any
) -> Callable[[float], PlantedJob]:
    """Return jobs with a value in a column of their summary."""
    return lambda value: PlantedJob(others | {name: value}, gpu_rows)


def of_gpu(name: str, **others: Any) -> Callable[[float], PlantedJob]:
    """Return jobs with a value in a column of their second GPU."""
    device = {"gpu_model": MODEL, "samples": 100}
    return lambda value: PlantedJob(gpus=[device, device | {name: value} | others])


def used(*means: float, **summary_columns: Any) -> PlantedJob:
    """Return a job whose GPUs were busy for these shares of the time."""
    mean = sum(means) / len(means)
    rows = [{"gpu_util_mean": each, "gpu_util_max": 1.0 if each else 0.0} for each in means]
    columns = {
        "gpu_util_mean": mean,
        "gpu_util_max": 1.0,
        "gpus": len(means),
        "gpus_seen": len(means),
    }
    return PlantedJob(columns | summary_columns, rows)


def levels(*parts: tuple[float, float]) -> pl.DataFrame:
    """Return the minutes of a GPU: (minutes, utilisation)."""
    return minutes([level for length, level in parts for _ in range(round(length))])


def spinning(length: float) -> PlantedJob:
    """Return a job that worked, then looked busy for some minutes without doing anything."""
    return PlantedJob({"gpu_util_mean": 1.0, "gpu_util_max": 1.0}, minutes=gpu_minutes(
        phases((50, WORKING | {"gpu_util": 1.0}), (round(length), WAITING), wobble=0)))  # fmt: skip


def bursts(periods: float, idle: int = 2, busy: int = 5, imbalance: float = 0.6) -> PlantedJob:
    """Return a job that works for some minutes between periods of waiting."""
    once = [(busy, 0.9), (idle, 0.0)]
    return PlantedJob(
        {"temporal_imbalance": imbalance}, minutes=levels(*once * round(periods), (busy, 0.9))
    )


def node_means(least: float) -> PlantedJob:
    """Return a job on two nodes of which one did all that it could."""
    names = ("gpu_util_mean", "sm_active_mean", "dram_active_mean")
    rows = [{"node": node, "gpu": 0, "gpu_model": MODEL, "power_w_mean": 400.0 * share}
            | dict.fromkeys(names, share) for node, share in (("n1", 1.0), ("n2", least))]  # fmt: skip
    return PlantedJob({"nodes": 2, "gpus": 2}, rows)


def unsteady(away: float) -> PlantedJob:
    """Return a job of 100 minutes of which some are far from the mean."""
    low = {name: 0.8 * value for name, value in WORKING.items()}
    return PlantedJob(
        minutes=gpu_minutes(phases((100 - round(away), WORKING), (round(away), low), wobble=0))
    )


BOUNDARIES = (
    Boundary("idle_job", 0.01, 0.001, of_summary("gpu_util_mean"), BELOW),
    Boundary("one_gpu_of_many", 0.01, 0.001, lambda mean: used(0.8, mean), BELOW),
    Boundary("gpus_never_used", 0.01, 0.001, lambda mean: used(0.8, 0.8, mean), BELOW),
    Boundary("job_hang", 10, 1, lambda length: PlantedJob(minutes=levels((50, 0.9), (length, 0))), FROM),
    Boundary("busy_waiting", 10, 1, spinning, FROM),
    Boundary("cold_start", 10, 1, lambda length: PlantedJob(minutes=levels((length, 0), (50, 0.9))), FROM),
    Boundary("stall", 10, 1, lambda length: PlantedJob(minutes=levels((9, 0.9), (length, 0), (9, 0.9))), FROM),
    Boundary("bursty", 0.5, 0.01, lambda imbalance: bursts(4, imbalance=imbalance), FROM),
    Boundary("bursty", 3, 1, bursts, FROM),
    Boundary("bursty", 2, 1, lambda idle: bursts(4, idle=round(idle)), FROM),
    # five times two idle minutes of six times 15 at work and these: 10 % of the time
    Boundary("bursty", 15, 1, lambda busy: bursts(5, busy=round(busy)), UP_TO),
    Boundary("idle_nodes", 0.5, 0.01, node_means, UP_TO),
    Boundary("imbalanced_gpus", 0.5, 0.01, lambda imbalance: used(0.9, 0.2, spatial_imbalance=imbalance), FROM),
    # half of the GPU time beyond the mean of the busiest: 0.2 of it is too little, by the published
    # rule
    Boundary("load_imbalance_waste", 0.5, 0.01, lambda mean: used(0.9, mean), BELOW),
    Boundary("low_utilisation", 0.3, 0.001, of_summary("gpu_util_mean"), BELOW),
    Boundary("xid_error", 1, 1, of_summary("xid_events"), FROM),
    Boundary("row_remap_failure", 1, 1, of_summary("row_remap_failure_max"), FROM),
    Boundary("remapped_rows", 1, 1, of_gpu("remapped_rows_uncorrectable_max"), FROM),
    Boundary("remapped_rows_correctable", 1, 1, of_gpu("remapped_rows_correctable_max"), FROM),
    Boundary("gpu_memory_fault", 1, 1, of_gpu("remapped_rows_uncorrectable_last"), FROM),
    Boundary("throttled", 0.1, 0.001, of_summary("throttle_reasons_mean", throttle_reasons_max=HEAT), FROM),
    Boundary("throttled", 0.1, 0.001, of_gpu("throttle_reasons_mean", throttle_reasons_max=HEAT), FROM),
    Boundary("gpu_overheated", 93, 1, of_gpu("gpu_temp_c_max"), FROM),
    Boundary("hot_gpu", 85, 1, of_gpu("gpu_temp_c_max"), FROM),
    Boundary("pcie_replays", 1, 1, of_gpu("pcie_replays_max"), FROM),
    Boundary("nvlink_errors", 1, 1, of_gpu("nvlink_errors_max"), FROM),
    Boundary("ecc_corrected", 1, 1, of_gpu("ecc_sbe_max"), FROM),
    Boundary("gpu_memory_fault", 1, 1, of_gpu("ecc_dbe_max"), FROM),
    # 0.6 of the practical peak, which is 0.8 of the theoretical one
    Boundary("memory_bound", 0.48, 0.01,
             of_summary("dram_at_work", **MEASURED, dram_work_fraction=0.9), FROM),
    Boundary("memory_bound", 0.5, 0.01, of_summary("dram_work_fraction", **MEASURED, dram_at_work=0.8), FROM),
    Boundary("no_tensor_use", 0.2, 0.01,
             of_summary("fp32_active_mean", fp16_active_mean=0.0, tensor_active_max=0.0), FROM),
    Boundary("no_tensor_use", 0.005, 0.001,
             of_summary("tensor_active_max", fp16_active_mean=0.0, fp32_active_mean=0.3), BELOW),
    Boundary("low_memory", 0.2, 0.01, of_summary("hbm_peak_fraction", hbm_request="80g"), BELOW),
    Boundary("low_memory", 64, 1, lambda tier: PlantedJob({"hbm_peak_fraction": 0.1, "hbm_request": f"{tier:.0f}g"}),
             FROM),
    Boundary("memory_nearly_full", 0.95, 0.01, of_summary("hbm_peak_fraction"), ABOVE),
    # A GPU of its nodes has 16 CPUs; of two GPUs' shares beside it one is left.
    Boundary("stranded_gpus", 32, 1, of_summary("cpus", partition="shared", nodes=1, gpus=1, exclusive=False), FROM),
    Boundary("ambiguous_attribution", 1, 1,
             lambda known: PlantedJob({"attribution": ("explicit", "ambiguous", "whole_node")[round(known)]}), AT),
    Boundary("no_samples", 1, 1, of_summary("samples"), BELOW),
    Boundary("low_coverage", 0.8, 0.01, of_summary("coverage", samples=9), BELOW),
    Boundary("low_coverage", 4, 1, of_summary("gpus_seen", samples=9, coverage=1.0), BELOW),
    Boundary("short_job", 180, 1, of_summary("elapsed_s"), BELOW),
    Boundary("time_precision", 60, 1, of_summary("time_precision_s"), FROM),
    Boundary("stable", 5, 1, unsteady, UP_TO),
)  # fmt: skip
# {class: minutes of a stop -> a job with it}
STOPS: dict[str, Callable[[int], pl.DataFrame]] = {
    "job_hang": lambda length: gpu_minutes(phases((70, WORKING), (length, RESTING))),
    "cold_start": lambda length: gpu_minutes(phases((length, RESTING), (70, WORKING))),
    "stall": lambda length: gpu_minutes(phases((50, WORKING), (length, RESTING), (50, WORKING))),
}
# {minutes of a stop: confidence}: an hour as published, ten minutes by the threshold `idle_minutes`
CONFIDENCE = {9: None, 10: "low", 15: "low", 59: "low", 60: "high", 90: "high"}


def judged(jobs: Sequence[PlantedJob]) -> list[dict[str, Finding]]:
    """Return {code: finding} of each job, those that do not hold as well."""
    summaries, gpu_rows, minute_rows = [], [gpus()], [minutes()]
    for index, job in enumerate(jobs):
        key = {"job_key": f"c:{index:04}:1", "job_id": str(index)}
        as_key = {name: pl.lit(value) for name, value in key.items()}
        known = (
            {}
            if job.minutes is None
            else {"elapsed_s": 60.0 * (int(str(job.minutes["minute"].max())) + 1)}
        )
        summaries.append(
            summary(
                **(
                    {"gpu_model": MODEL, "samples": 100, "coverage": 1.0}
                    | known
                    | job.summary
                    | key
                )
            )
        )
        gpu_rows.append(gpus(*job.gpus).with_columns(**as_key))
        minute_rows.append(minutes() if job.minutes is None else job.minutes.with_columns(**as_key))
    configuration = Configuration(slurm=SlurmOptions(partitions_file=str(PARTITIONS)))
    tables = JobTables(
        frame(JOB_SUMMARIES, summaries),
        pl.concat(gpu_rows),
        timelines_of(pl.concat(minute_rows), idle_util=configuration.thresholds.idle_util),
        JOB_NODE_MINUTES.empty(),
    )
    judged_jobs = JobJudge(configuration)(tables)
    found: list[dict[str, Finding]] = [{} for _ in jobs]
    for row in judged_jobs.findings.partition_by("job_key"):
        found[int(str(row["job_id"][0]))] = {
            finding.code: finding for finding in read_findings(row)
        }
    return found


@pytest.fixture(scope="module")
def boundaries() -> list[tuple[Finding, ...]]:
    """Return the findings of each boundary, below it, at it, and above."""
    jobs = [boundary.job(value) for boundary in BOUNDARIES for value in boundary.values]
    found = judged(jobs)
    codes = [boundary.code for boundary in BOUNDARIES for _ in range(3)]
    findings = [of_job[code] for of_job, code in zip(found, codes, strict=True)]
    return list(zip(findings[::3], findings[1::3], findings[2::3], strict=True))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_holds_from_its_threshold_on(
    check: Any, boundaries: list[tuple[Finding, ...]]
) -> None:
    of_check = [index for index, boundary in enumerate(BOUNDARIES) if boundary.code == check.code]
    assert of_check, "a new check needs a row in BOUNDARIES"
    for index in of_check:
        expected = BOUNDARIES[index]
        assert tuple(finding.verdict == "yes" for finding in boundaries[index]) == expected.holds, (
            expected
        )
        for finding in boundaries[index]:
            if finding.verdict == "yes":
                assert set(finding.evidence) <= set(EVIDENCE)
                assert (finding.severity, finding.title) == (check.severity, check.title)


def test_rules_that_say_the_same_as_a_check_hold_from_their_thresholds_on(
    boundaries: list[tuple[Finding, ...]],
) -> None:
    codes = {check.code for check in CHECKS}
    rules = [index for index, boundary in enumerate(BOUNDARIES) if boundary.code not in codes]
    assert len(rules) == 1
    for index in rules:
        assert (
            tuple(finding.verdict == "yes" for finding in boundaries[index])
            == BOUNDARIES[index].holds
        )


def test_a_threshold_in_percent_is_refused_with_the_fraction(tmp_path: Path) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text("[thresholds]\nlow_util = 1\n")
    assert load(str(file), {}).thresholds.low_util == 1.0
    file.write_text("[thresholds]\nlow_util = 30\n")
    with pytest.raises(ConfigError, match=r"30 % or 3000 %\?; write 0\.3$") as refused:
        load(str(file), {})
    assert refused.value.where == str(file)


FROM_0 = "write a number from 0 to 1e+12"


@pytest.mark.parametrize(
    ("line", "named", "do"),
    [
        ("[thresholds]\nlow_util = nan", "thresholds.low_util is nan", FROM_0),
        ("[thresholds]\nidle_minutes = -1", "thresholds.idle_minutes is -1", FROM_0),
        ("[thresholds]\nidle_minutes = 1e300", "thresholds.idle_minutes is 1e+300", FROM_0),
        ("[waste.prices]\nA100 = -0.5", "waste.prices.A100 is -0.5", FROM_0),
        (
            "[classes.theta]\ngpu_util = inf",
            "classes.theta.gpu_util is inf",
            "write a number from 0 to 1e+18",
        ),
        (
            "[rules.parameters.hot_gpu]\nhot_c = nan",
            "rules.parameters.hot_gpu.hot_c is nan",
            "write a finite number",
        ),
    ],
)
def test_a_number_that_cannot_be_names_file_and_key(
    line: str, named: str, do: str, tmp_path: Path
) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text(line)
    with pytest.raises(ConfigError) as refused:
        load(str(file), {})
    assert str(refused.value) == f"{file}: {named}; {do}"


def test_bytes_of_a_job_and_rates_of_a_link_are_no_impossible_numbers(tmp_path: Path) -> None:
    """100 GB/s for a day are 8.6e15 bytes; NVLink of a node moves more than 1e12 bytes/s."""
    file = tmp_path / "tachograph.toml"
    file.write_text(
        "[classes.level]\nnvlink = 2e12\n[rules.parameters.own]\nmost_bytes = 8.6e15\nslope = -0.1\n"
    )
    configuration = load(str(file), {})
    assert configuration.classes.level == {"nvlink": 2e12}
    assert configuration.rules.parameters == {"own": {"most_bytes": 8.6e15, "slope": -0.1}}


def test_a_stop_is_found_with_high_confidence_from_an_hour_on() -> None:
    planted = [(code, length) for code in STOPS for length in CONFIDENCE]
    found = judged([PlantedJob(minutes=STOPS[code](length)) for code, length in planted])
    for (code, length), of_job in zip(planted, found, strict=True):
        finding = of_job[code]
        assert finding.confidence == CONFIDENCE[length], (code, length)
        assert (finding.verdict == "yes") == (finding.confidence is not None)
        if finding.verdict == "yes":
            assert finding.evidence["interval_s"] == length * 60
            assert finding.begin is not None
            assert finding.end is not None
            assert (finding.end - finding.begin).total_seconds() == length * 60
            assert {other for other in STOPS if of_job[other].verdict == "yes"} == {code}
