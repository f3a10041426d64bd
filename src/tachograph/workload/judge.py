"""Jobs judged: the classes of their GPUs' time, the health of their GPUs, and a finding of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tachograph.finding import Check, Finding, Severity, findings_frame
from tachograph.reduce.kernel import Floats
from tachograph.units import plural, text
from tachograph.workload.health import (
    CRIT,
    HOT,
    INPUTS,
    OK,
    STATES,
    UNKNOWN,
    WARN,
    Limits,
    health_states,
    limits_of,
    needed,
    worst,
)
from tachograph.workload.reading import DECIDING, enabling
from tachograph.workload.shares import shares_of, workload_finding

# column of job_gpus that holds each of INPUTS, of a job
OF_JOB: Mapping[str, str] = {
    "row_remap_failure": "row_remap_failure_max",
    "remapped_rows_uncorrectable": "remapped_rows_uncorrectable_last",
    "pcie_replays": "pcie_replays_max",
    "gpu_temp_c": "gpu_temp_c_max",
    "mem_temp_c": "mem_temp_c_max",
}
# advice that tells the same already: then the health is no more than a fact
TOLD: Mapping[str, tuple[str, ...]] = {CRIT: ("row_remap_failure", "remapped_rows"), WARN: (), HOT: ("throttled",)}
_TITLES = {
    CRIT: "A GPU has faulty memory",
    WARN: "The PCIe link of a GPU repeated packets",
    HOT: "A GPU was at the temperature at which clocks are lowered",
    OK: "Its GPUs are healthy",
    UNKNOWN: "It cannot be told whether its GPUs are healthy",
}
_ADVICE = {
    CRIT: "Tell the support staff of your site: the GPU should be taken out of service. Check the results of this job.",
    WARN: "Tell the support staff of your site if your job was slow: the slot or cable may need attention.",
    HOT: "Tell the support staff of your site: cooling of the node may need attention.",
}
_EVIDENCE = ("row_remap_failure", "remapped_rows_uncorrectable", "pcie_replays", "gpu_temp_c_max", "mem_temp_c_max")


@dataclass(frozen=True, slots=True)
class JudgedWorkload:
    """Summaries and GPUs with what is judged here, and findings."""

    jobs: pl.DataFrame
    gpus: pl.DataFrame
    findings: pl.DataFrame


def judge(jobs: pl.DataFrame, gpus: pl.DataFrame, told: pl.DataFrame) -> JudgedWorkload:
    """Return rows of job_summaries with `workload`, `workload_fractions`, `health`, and of job_gpus with `health`.

    `told`: (job_key, code, severity) of the advice that is given. Null: no samples. One finding of kind workload, one
    of kind health per job.
    """
    keys = jobs.get_column("job_key")
    shares = shares_of(keys, gpus)
    values, limits = _inputs(gpus)
    seen = (gpus.get_column("samples") > 0).fill_null(value=False).to_list()
    states = [
        STATES[int(state)] if there else None
        for state, there in zip(health_states(values, limits), seen, strict=True)
    ]  # fmt: skip
    of_job: dict[str, list[int]] = {}
    for row, (key, there) in enumerate(zip(gpus.get_column("job_key").to_list(), seen, strict=True)):
        if there:
            of_job.setdefault(key, []).append(row)
    problems = told.filter(pl.col("severity") == "problem").select("job_key", "code")
    advised = {key: set(codes) for key, codes in problems.group_by("job_key").agg("code").iter_rows()}
    summaries = jobs.select("job_key", "job_id", "gpu_util_mean", *(f"{name}_mean" for name in DECIDING))
    healths = [worst([states[row] or UNKNOWN for row in of_job.get(key, ())]) for key in keys]

    def findings() -> Iterator[tuple[Mapping[str, Any], list[Finding]]]:
        for place, summary in enumerate(summaries.iter_rows(named=True)):
            key = summary["job_key"]
            rows = of_job.get(key, [])
            work = workload_finding(summary, shares.fractions[place], int(shares.gpus[place]))
            mine = {name: column[rows] for name, column in values.items()}
            health = _health_finding(
                healths[place], [states[row] for row in rows], mine, [limits[row] for row in rows],
                advised.get(key, set()),
            )  # fmt: skip
            yield summary, [work, health]

    fractions = [row if number else None for row, number in zip(shares.fractions.tolist(), shares.gpus, strict=True)]
    return JudgedWorkload(
        jobs.with_columns(
            pl.Series("workload", shares.largest(), dtype=pl.String),
            pl.Series("workload_fractions", fractions, dtype=pl.List(pl.Float64)),
            pl.Series("health", healths, dtype=pl.String),
        ),
        gpus.with_columns(pl.Series("health", states, dtype=pl.String)),
        findings_frame(findings()),
    )


def _inputs(gpus: pl.DataFrame) -> tuple[dict[str, Floats], list[Limits]]:
    """What decides about each GPU (NaN: missing), and its temperatures."""
    values = {
        name: gpus.get_column(column).cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for name, column in OF_JOB.items()
    }
    return values, [limits_of(model) for model in gpus.get_column("gpu_model").to_list()]


def _health_finding(
    state: str | None, states: list[str | None], values: Mapping[str, Floats], limits: list[Limits], advised: set[str]
) -> Finding:
    """The health of a job's GPUs: yes where one is not OK, no where all are, insufficient where it cannot be told."""
    evidence = _evidence(values)
    if state is None or state == UNKNOWN:
        lacking = _lacking(values, limits) if limits else INPUTS
        sentence = f"No problem was seen, but not all was measured: {enabling(lacking)}."
        if state is None:
            sentence = "No sample of its GPUs tells how they are."
        return Finding(
            "health", "fact", _TITLES[UNKNOWN], sentence, None, evidence,
            kind="health", verdict="insufficient", needs=lacking,
        )  # fmt: skip
    if state == OK:
        sentence = (
            f"{_gpus(len(states))}: no fault of the memory, no repeated packets, no temperature that is too high."
        )
        checks = _temperature_checks(values, limits)
        return Finding("health", "fact", _TITLES[OK], sentence, None, evidence, "health", "no", checks=checks)
    count = states.count(state)
    evidence["gpus_affected"] = float(count)
    severity: Severity = "problem" if state == CRIT else "hint"
    if advised.intersection(TOLD[state]):
        severity = "fact"
    sentence = f"{state}: {count} of {_gpus(len(states))}; {_seen(state, values, limits)}."
    return Finding(
        "health", severity, _TITLES[state], sentence, _ADVICE[state], evidence,
        kind="health", verdict="yes", checks=_temperature_checks(values, limits) if state == HOT else (),
    )  # fmt: skip


def _gpus(gpus: int) -> str:
    return plural(gpus, "GPU")


def _most(column: Floats) -> float | None:
    return None if np.isnan(column).all() else float(np.nanmax(column))


def _evidence(values: Mapping[str, Floats]) -> dict[str, float]:
    """Largest of the GPUs, of what is known."""
    found = {name: _most(values[of]) if len(values[of]) else None for name, of in zip(_EVIDENCE, INPUTS, strict=True)}
    return {name: value for name, value in found.items() if value is not None}


def _lacking(values: Mapping[str, Floats], limits: list[Limits]) -> tuple[str, ...]:
    """What some GPU lacks that it could tell."""
    lacking = {name for row, one in enumerate(limits) for name in needed(one) if np.isnan(values[name][row])}
    return tuple(name for name in INPUTS if name in lacking)


def _temperature_checks(values: Mapping[str, Floats], limits: list[Limits]) -> tuple[Check, ...]:
    """Of each of both temperatures the GPU that is closest to its limit."""
    checks = []
    for name, warnings in (
        ("gpu_temp_c", [one.warning_c for one in limits]),
        ("mem_temp_c", [one.memory_warning_c for one in limits]),
    ):
        over = values[name] - np.array(warnings)
        if not np.isnan(over).all():
            row = int(np.nanargmax(over))
            value = float(values[name][row])
            checks.append(Check(f"{name}_max", value, ">=", float(warnings[row]), "C", value >= warnings[row]))
    return tuple(checks)


def _seen(state: str, values: Mapping[str, Floats], limits: list[Limits]) -> str:
    """What was seen, with its numbers."""
    if state == CRIT:
        told = ["remapping a faulty memory row has failed"] if np.nansum(values["row_remap_failure"]) > 0 else []
        rows = float(np.nansum(values["remapped_rows_uncorrectable"]))
        told += (
            [f"{plural(rows, 'memory row')} remapped after uncorrectable errors by the end of the job"] if rows else []
        )
        return ", ".join(told)
    if state == WARN:
        return f"{plural(float(np.nansum(values['pcie_replays'])), 'PCIe replay')} during the job"
    hot = [check for check in _temperature_checks(values, limits) if check.holds]
    names = {"gpu_temp_c_max": "GPU", "mem_temp_c_max": "memory"}
    return ", ".join(
        f"{names[check.name]} at {text(check.value, 'C')}, limit {text(check.threshold, 'C')}" for check in hot
    )
