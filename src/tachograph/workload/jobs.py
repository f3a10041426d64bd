"""Jobs judged: the classes of their GPUs' time, the health of their GPUs, and a finding of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from tachograph.finding import Check, Finding, Severity, findings_frame
from tachograph.units import plural, text
from tachograph.workload.health import (
    CRIT,
    HOT,
    INPUTS,
    OK,
    STATES,
    UNKNOWN,
    WARN,
    WORST_FIRST,
    health_states,
    limit_columns,
    limits_of,
    needed,
)
from tachograph.workload.reading import enabling
from tachograph.workload.rules import DECIDING
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
    rated = _rated(gpus)
    of_job = {row["job_key"]: row for row in _of_jobs(rated).iter_rows(named=True)}
    problems = told.filter(pl.col("severity") == "problem").select("job_key", "code")
    advised = {key: set(codes) for key, codes in problems.group_by("job_key").agg("code").iter_rows()}
    summaries = jobs.select("job_key", "job_id", "gpu_util_mean", *(f"{name}_mean" for name in DECIDING))
    healths = [of_job[key]["state"] if key in of_job else None for key in keys]

    def findings() -> Iterator[tuple[Mapping[str, Any], list[Finding]]]:
        for place, summary in enumerate(summaries.iter_rows(named=True)):
            key = summary["job_key"]
            work = workload_finding(summary, shares.fractions[place], int(shares.gpus[place]))
            yield summary, [work, _health_finding(of_job.get(key), advised.get(key, set()))]

    fractions = [row if number else None for row, number in zip(shares.fractions.tolist(), shares.gpus, strict=True)]
    return JudgedWorkload(
        jobs.with_columns(
            pl.Series("workload", shares.largest(), dtype=pl.String),
            pl.Series("workload_fractions", fractions, dtype=pl.List(pl.Float64)),
            pl.Series("health", healths, dtype=pl.String),
        ),
        gpus.with_columns(health=pl.when(rated.get_column("seen")).then(rated.get_column("state"))),
        findings_frame(findings()),
    )


def _rated(gpus: pl.DataFrame) -> pl.DataFrame:
    """Per row of job_gpus: its job, whether it has samples (`seen`), INPUTS, `state`, limits, what it `lacks_...`."""
    columns = {name: gpus.get_column(column).cast(pl.Float64) for name, column in OF_JOB.items()}
    limits = [limits_of(model) for model in gpus.get_column("gpu_model").to_list()]
    values = {name: column.fill_null(float("nan")).to_numpy() for name, column in columns.items()}
    asked = [set(needed(one)) for one in limits]
    states = health_states(values, limit_columns(limits))
    return pl.DataFrame(
        {
            "job_key": gpus.get_column("job_key"),
            "seen": (gpus.get_column("samples") > 0).fill_null(value=False),
            **columns,
            "state": pl.Series([STATES[place] for place in states], dtype=pl.String),
            "gpu_limit": pl.Series([one.warning_c for one in limits], dtype=pl.Float64),
            "mem_limit": pl.Series([one.memory_warning_c for one in limits], dtype=pl.Float64),
            **{
                f"lacks_{name}": column.is_null() & pl.Series([name in one for one in asked], dtype=pl.Boolean)
                for name, column in columns.items()
            },
        }
    )


def _of_jobs(rated: pl.DataFrame) -> pl.DataFrame:
    """One row per job with samples: GPUs, worst state and how many have it, largest inputs, the closest to limits."""
    seen = rated.filter("seen").with_columns(pl.col("state").cast(pl.Enum(WORST_FIRST)))
    worst_of = pl.col("state").to_physical().min()
    closest = [
        pl.col(column).sort_by(pl.col(value) - pl.col(limit), descending=True, nulls_last=True).first().alias(name)
        for value, limit in (("gpu_temp_c", "gpu_limit"), ("mem_temp_c", "mem_limit"))
        for column, name in ((value, f"{value}_closest"), (limit, f"{limit}_closest"))
    ]
    return seen.group_by("job_key").agg(
        pl.len().alias("gpus"),
        (pl.col("state").to_physical() == worst_of).sum().alias("affected"),
        pl.col("state").sort().first().cast(pl.String),
        *(pl.col(name).max() for name in INPUTS),
        pl.col("pcie_replays").sum().alias("replays_sum"),
        pl.col("remapped_rows_uncorrectable").sum().alias("rows_sum"),
        *closest,
        *(pl.col(f"lacks_{name}").any() for name in INPUTS),
    )


def _health_finding(job: Mapping[str, Any] | None, advised: set[str]) -> Finding:
    """The health of a job's GPUs: yes where one is not OK, no where all are, insufficient where it cannot be told."""
    if job is None:
        sentence = "No sample of its GPUs tells how they are."
        return Finding(
            "health", "fact", _TITLES[UNKNOWN], sentence, kind="health", verdict="insufficient", needs=INPUTS
        )
    state = job["state"]
    evidence = {name: job[of] for name, of in zip(_EVIDENCE, INPUTS, strict=True) if job[of] is not None}
    if state == UNKNOWN:
        lacking = tuple(name for name in INPUTS if job[f"lacks_{name}"])
        sentence = f"No problem was seen, but not all was measured: {enabling(lacking)}."
        return Finding(
            "health", "fact", _TITLES[UNKNOWN], sentence, None, evidence,
            kind="health", verdict="insufficient", needs=lacking,
        )  # fmt: skip
    if state == OK:
        sentence = f"{plural(job['gpus'], 'GPU')}: no fault of the memory, no repeated packets, not too hot."
        checks = _temperature_checks(job)
        return Finding("health", "fact", _TITLES[OK], sentence, None, evidence, "health", "no", checks=checks)
    evidence["gpus_affected"] = float(job["affected"])
    severity: Severity = "problem" if state == CRIT else "hint"
    if advised.intersection(TOLD[state]):
        severity = "fact"
    sentence = f"{state}: {job['affected']} of {plural(job['gpus'], 'GPU')}; {_seen(state, job)}."
    return Finding(
        "health", severity, _TITLES[state], sentence, _ADVICE[state], evidence,
        kind="health", verdict="yes", checks=_temperature_checks(job) if state == HOT else (),
    )  # fmt: skip


def _temperature_checks(job: Mapping[str, Any]) -> tuple[Check, ...]:
    """Of each of both temperatures the GPU that is closest to its limit."""
    pairs = (("gpu_temp_c", "gpu_limit_closest"), ("mem_temp_c", "mem_limit_closest"))
    return tuple(
        Check(f"{name}_max", value, ">=", job[limit], "C", value >= job[limit])
        for name, limit in pairs
        if (value := job[f"{name}_closest"]) is not None
    )


def _seen(state: str, job: Mapping[str, Any]) -> str:
    """What was seen, with its numbers."""
    if state == CRIT:
        told = ["remapping a faulty memory row has failed"] if (job["row_remap_failure"] or 0) > 0 else []
        if job["rows_sum"] > 0:
            rows = plural(job["rows_sum"], "memory row")
            told.append(f"{rows} remapped after uncorrectable errors, up to the end of the job")
        return ", ".join(told)
    if state == WARN:
        return f"{plural(job['replays_sum'], 'PCIe replay')} during the job"
    names = {"gpu_temp_c_max": "GPU", "mem_temp_c_max": "memory"}
    return ", ".join(
        f"{names[check.name]} at {text(check.value, 'C')}, limit {text(check.threshold, 'C')}"
        for check in _temperature_checks(job)
        if check.holds
    )
