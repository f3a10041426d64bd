"""Workload classes and health of jobs: shares of GPU time, and one finding of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.units import plural, text
from tachograph.judge.completions import missing_samples
from tachograph.judge.finding import CheckedValue, Finding, JudgedRows, Verdict, findings_frame
from tachograph.judge.health import (
    HEALTH_UNKNOWN,
    HOT,
    INPUTS,
    OK,
    STATES,
    WORST_FIRST,
    health_states,
    limit_columns,
    limits_of,
    needed,
)
from tachograph.judge.workload.classes import DECIDING, UNKNOWN, WORKLOAD_CLASSES, WORKLOAD_CODES
from tachograph.judge.workload.rules import enabling

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


# {code of the finding: its title}
WORKLOAD_TITLES: Mapping[str, str] = {"workload": "What its GPUs did", "health": "GPU health"}
NAMED = 4  # classes in a sentence
LEAST_SHARE = 0.005  # of a class that is named


@dataclass(frozen=True, slots=True)
class Shares:
    """Per job: GPU time shares of CLASSES (NaN without samples), number of GPUs with samples."""

    fractions: NDArray[np.float64]
    gpus: NDArray[np.int64]

    def largest(self, unmeasured: NDArray[np.float64]) -> list[str | None]:
        """Return the class with the largest share of each job, the first of equals, or None.

        `unmeasured`: the share of each job's time without samples: where all of it in the second
        class would make that the largest, the class is unknown.
        """
        fractions = np.nan_to_num(self.fractions)
        places = np.argmax(fractions, axis=1)
        second, first = np.sort(fractions, axis=1)[:, -2:].T
        certain = (first - second) * (1 - unmeasured) >= unmeasured
        return [
            (WORKLOAD_CLASSES[place] if is_certain else UNKNOWN) if count else None
            for place, is_certain, count in zip(places, certain, self.gpus, strict=True)
        ]


def shares_of(keys: pl.Series, gpus: pl.DataFrame) -> Shares:
    """Return the shares of jobs `keys`: means over GPUs of their shares of samples.

    All GPUs have equal weight, however often they were sampled. `gpus`: rows of job_gpus; those
    without samples are ignored.
    """
    counted = gpus.filter(pl.col("workload_samples").list.sum() > 0)
    fractions, number = np.zeros((len(keys), len(WORKLOAD_CLASSES))), np.zeros(len(keys), np.int64)
    if counted.height:
        samples = (
            counted.get_column("workload_samples")
            .list.to_array(len(WORKLOAD_CLASSES))
            .to_numpy()
            .astype(np.float64)
        )
        places = pl.DataFrame({"job_key": keys}).with_row_index("place")
        joined = counted.select("job_key").join(
            places, on="job_key", how="left", maintain_order="left"
        )
        place = joined.get_column("place").to_numpy()
        np.add.at(fractions, place, samples / samples.sum(axis=1, keepdims=True))
        np.add.at(number, place, 1)
    with np.errstate(invalid="ignore"):
        return Shares(fractions / number[:, None], number)


def workload_finding(summary: JobSummaryRow, fractions: NDArray[np.float64], gpus: int) -> Finding:
    """Return what a job did with its GPUs, as a fact; unknown where most of it was not measured.

    summary: `<counter>_mean` of what decides. fractions: along CLASSES.
    """
    if not gpus:
        return _of("unknown", "There is no sample of its GPUs.", {}, DECIDING)
    order = [int(place) for place in np.argsort(-fractions, kind="stable") if fractions[place] > 0]
    evidence = {
        f"workload_{WORKLOAD_CODES[place]}": round(float(fractions[place]), 6) for place in order
    }
    evidence["gpus_seen"] = float(gpus)
    unknown = float(fractions[-1])
    missing = tuple(name for name in DECIDING if _absent(summary, name)) if unknown else ()
    because = f"; {enabling(missing)}" if missing else ""
    if WORKLOAD_CLASSES[order[0]] == UNKNOWN:
        sentence = f"{text(unknown, 'fraction')} of the GPU time is undetermined{because}."
        return _of("unknown", sentence, evidence, missing)
    known = [place for place in order if WORKLOAD_CLASSES[place] != UNKNOWN]
    named = [place for place in known if fractions[place] >= LEAST_SHARE][:NAMED]
    phrases = [
        f"{text(float(fractions[place]), 'fraction')} {WORKLOAD_CLASSES[place]}" for place in named
    ]
    rest = sum(float(fractions[place]) for place in known[len(named) :])
    if rest >= LEAST_SHARE:
        phrases.append(f"{text(rest, 'fraction')} other")
    sentence = f"Of the time of {plural(gpus, 'GPU')}: {', '.join(phrases)}."
    if unknown >= LEAST_SHARE:
        sentence += f" {text(unknown, 'fraction')} is undetermined{because}."
    return _of("yes", sentence, evidence, ())


def _absent(summary: JobSummaryRow, name: str) -> bool:
    """Return whether a counter was not measured; utilisation replaces engine activity."""
    stand_in = summary.get("gpu_util_mean") if name == "gr_engine_active" else None
    return summary.get(f"{name}_mean") is None and stand_in is None


def _of(
    verdict: Verdict, sentence: str, evidence: Mapping[str, float], needs: tuple[str, ...]
) -> Finding:
    return Finding(
        "workload",
        "fact",
        WORKLOAD_TITLES["workload"],
        sentence,
        None,
        evidence,
        kind="workload",
        verdict=verdict,
        needs=needs,
    )


# column of job_gpus that holds each of INPUTS, of a job
OF_JOB: Mapping[str, str] = {
    "row_remap_failure": "row_remap_failure_max",
    "remapped_rows_uncorrectable": "remapped_rows_uncorrectable_last",
    "pcie_replays": "pcie_replays_max",
    "gpu_temp_c": "gpu_temp_c_max",
    "mem_temp_c": "mem_temp_c_max",
    "ecc_dbe": "ecc_dbe_max",
    "ecc_sbe": "ecc_sbe_max",
    "nvlink_errors": "nvlink_errors_max",
}
_EVIDENCE = tuple(f"{name}_max" if name.endswith("_temp_c") else name for name in INPUTS)


def judge_workload(jobs: pl.DataFrame, gpus: pl.DataFrame) -> JudgedRows:
    """Return job_summaries and job_gpus with workload and health columns, and findings.

    Null: no samples. One finding of kind workload, one of kind health per job.
    """
    keys = jobs.get_column("job_key")
    shares = shares_of(keys, gpus)
    single = 1.0 - 60.0 / pl.col("elapsed_s")  # without an interval a sample is one of a minute
    missing = pl.coalesce(missing_samples(), single).clip(0.0, 1.0)
    unmeasured = jobs.select(missing.fill_null(0.0).fill_nan(0.0)).to_series().to_numpy()
    rated = _rated(gpus)
    of_job = {row["job_key"]: row for row in _of_jobs(rated).iter_rows(named=True)}
    summaries = jobs.select(
        "job_key", "job_id", "gpu_util_mean", *(f"{name}_mean" for name in DECIDING)
    )
    healths = [of_job[key]["state"] if key in of_job else None for key in keys]

    rows = cast("Iterator[JobSummaryRow]", summaries.iter_rows(named=True))

    def findings() -> Iterator[tuple[JobSummaryRow, list[Finding]]]:
        for place, summary in enumerate(rows):
            key = summary["job_key"]
            work = workload_finding(summary, shares.fractions[place], int(shares.gpus[place]))
            yield summary, [work, _health_finding(of_job.get(key))]

    fractions = [
        row if number else None
        for row, number in zip(shares.fractions.tolist(), shares.gpus, strict=True)
    ]
    return JudgedRows(
        jobs.with_columns(
            pl.Series("workload", shares.largest(unmeasured), dtype=pl.String),
            pl.Series("workload_fractions", fractions, dtype=pl.List(pl.Float64)),
            pl.Series("health", healths, dtype=pl.String),
        ),
        gpus.with_columns(health=pl.when(rated.get_column("seen")).then(rated.get_column("state"))),
        findings_frame(findings()),
    )


def _rated(gpus: pl.DataFrame) -> pl.DataFrame:
    """Per row of job_gpus: job, `seen` (has samples), INPUTS, `state`, limits, `lacks_...`."""
    columns = {name: gpus.get_column(column).cast(pl.Float64) for name, column in OF_JOB.items()}
    models = gpus.get_column("gpu_model").to_list()
    limits = [limits_of(model) for model in models]
    values = {name: column.fill_null(float("nan")).to_numpy() for name, column in columns.items()}
    reports = {model: set(needed(limits_of(model))) for model in dict.fromkeys(models)}
    states = health_states(values, limit_columns(limits))
    lacks: dict[str, pl.Series] = {}
    for name, column in columns.items():
        needs = pl.Series([name in reports[model] for model in models], dtype=pl.Boolean)
        lacks[f"lacks_{name}"] = column.is_null() & needs
    return pl.DataFrame(
        {
            "job_key": gpus.get_column("job_key"),
            "seen": (gpus.get_column("samples") > 0).fill_null(value=False),
            **columns,
            "state": pl.Series([STATES[place] for place in states], dtype=pl.String),
            "gpu_limit": pl.Series([limit.warning_c for limit in limits], dtype=pl.Float64),
            "mem_limit": pl.Series([limit.memory_warning_c for limit in limits], dtype=pl.Float64),
            **lacks,
        }
    )


def _of_jobs(rated: pl.DataFrame) -> pl.DataFrame:
    """One row per job with samples: GPUs, worst state and its count, extreme inputs."""
    seen = rated.filter("seen").with_columns(pl.col("state").cast(pl.Enum(WORST_FIRST)))
    worst_of = pl.col("state").to_physical().min()
    closest = [
        pl.col(column)
        .sort_by(pl.col(value) - pl.col(limit), descending=True, nulls_last=True)
        .first()
        .alias(name)
        for value, limit in (("gpu_temp_c", "gpu_limit"), ("mem_temp_c", "mem_limit"))
        for column, name in ((value, f"{value}_closest"), (limit, f"{limit}_closest"))
    ]
    return seen.group_by("job_key").agg(
        pl.len().alias("gpus"),
        (pl.col("state").to_physical() == worst_of).sum().alias("affected"),
        pl.col("state").sort().first().cast(pl.String),
        *(pl.col(name).max() for name in INPUTS),
        *closest,
        *(pl.col(f"lacks_{name}").any() for name in INPUTS),
    )


def _health_finding(job: Mapping[str, Any] | None) -> Finding:
    """Return GPU health as a fact: yes if one is not OK; problems have their own checks."""
    if job is None:
        return _health("unknown", "There is no sample of its GPUs.", {}, needs=INPUTS)
    state = job["state"]
    evidence = {
        name: job[of] for name, of in zip(_EVIDENCE, INPUTS, strict=True) if job[of] is not None
    }
    if state == HEALTH_UNKNOWN:
        lacking = tuple(name for name in INPUTS if job[f"lacks_{name}"])
        return _health(
            "unknown",
            f"No problem was seen, but not all was measured: {enabling(lacking)}.",
            evidence,
            needs=lacking,
        )
    checks = _temperature_checks(job)
    if state == OK:
        sentence = (
            f"{plural(job['gpus'], 'GPU')}: no fault of the memory, no repeated packets, "
            "not too hot."
        )
        return _health("no", sentence, evidence, checks=checks)
    evidence["gpus_affected"] = float(job["affected"])
    sentence = f"{state}: {job['affected']} of {plural(job['gpus'], 'GPU')}."
    return _health("yes", sentence, evidence, checks=checks if state == HOT else ())


def _health(
    verdict: Verdict,
    sentence: str,
    evidence: Mapping[str, float],
    *,
    needs: tuple[str, ...] = (),
    checks: tuple[CheckedValue, ...] = (),
) -> Finding:
    return Finding(
        "health",
        "fact",
        WORKLOAD_TITLES["health"],
        sentence,
        None,
        evidence,
        "health",
        verdict,
        checks=checks,
        needs=needs,
    )


def _temperature_checks(job: Mapping[str, Any]) -> tuple[CheckedValue, ...]:
    """Of each of both temperatures the GPU that is closest to its limit."""
    pairs = (("gpu_temp_c", "gpu_limit_closest"), ("mem_temp_c", "mem_limit_closest"))
    checks: list[CheckedValue] = []
    for name, limit in pairs:
        value = job[f"{name}_closest"]
        if value is not None:
            holds = value >= job[limit]
            checks.append(CheckedValue(f"{name}_max", value, ">=", job[limit], "C", holds))
    return tuple(checks)
