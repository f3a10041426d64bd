"""Job classes, by a job's minutes. A class is a check with a `job_class`.

Each is judged from GPU telemetry, and from host characteristics where those were recorded (codes
that end in _host). `judge` makes findings; to search thresholds, compute `series`, `spreads` and
`units` once and vote as often as needed.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import polars as pl
from msgspec.structs import replace

from tachograph.catalog.config import ClassOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.units import text
from tachograph.judge.checks import CHECKS
from tachograph.judge.classes.characteristics import class_limits
from tachograph.judge.classes.inputs import ClassInput, JobClass
from tachograph.judge.classes.kernel import NO, YES
from tachograph.judge.classes.series import (
    Series,
    Units,
    gpu_series,
    gpu_units,
    host_series,
    host_units,
    idle_times,
    node_units,
)
from tachograph.judge.classes.windows import VERDICT_OF, level_windows, spreads
from tachograph.judge.completions import Completed
from tachograph.judge.finding import Finding, Verdict, findings_frame, verdicts_frame

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


JOB_CLASSES: tuple[JobClass, ...] = tuple(check.job_class for check in CHECKS if check.job_class)
CLASS_CODES: tuple[str, ...] = tuple(code for job_class in JOB_CLASSES for code in job_class.codes)
_ADVICE: Mapping[str, str | None] = {
    check.job_class.code: check.advice for check in CHECKS if check.job_class
}
CLASS_BY_CODE: Mapping[str, JobClass] = {code: each for each in JOB_CLASSES for code in each.codes}

_NO_SAMPLE = "Unknown: there is no sample of its GPUs."
_OF_JOBS = (
    "job_key",
    "job_id",
    "state",
    "start",
    "as_of",
    "elapsed_s",
    "gpus",
    "gpus_seen",
    "samples",
    "nodes",
    "gpu_model",
)


def judge_classes(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    node_minutes: pl.DataFrame,
    settings: ClassOptions,
) -> pl.DataFrame:
    """Return the findings of jobs: one row per (job_key, code), FINDINGS without `seq`.

    `jobs`: rows of job_summaries. `gpus`: their rows of job_gpus. `timelines`: one row per
    (job_key, minute), jobs together, as `reduce.timelines` returns them. `node_minutes`: their rows
    of job_node_minutes. Every class that applies has a row, also those that do not hold; of hosts
    where the job has minutes of nodes, idle_nodes and idle_gpus where there are two or more. Of a
    job whose GPUs are unknown (ambiguous), or without samples, all are undetermined. A running
    job is judged as of its last minute. Errors: ConfigError for thresholds of characteristics that
    do not exist.
    """
    return findings_frame(_found(jobs, gpus, timelines, node_minutes, settings, JOB_CLASSES))


def class_verdicts(
    whole: Completed, settings: ClassOptions, questions: Collection[str]
) -> pl.DataFrame:
    """Return (job_key, code, verdict) of completed jobs: at least of the checks in question.

    What minutes decide is judged once for completions that have the same.
    """
    tables = whole.tables
    classes = _deciding(questions)
    same = pl.DataFrame(
        list(whole.same_minutes.items()), {"job_key": pl.String, "same": pl.String}, orient="row"
    )
    parts = []
    for of_minutes in (True, False):
        selected = [each for each in classes if each.of_minutes == of_minutes]
        jobs = tables.jobs
        if of_minutes:
            jobs = jobs.join(same, on="job_key", how="anti", maintain_order="left")
        rows = [
            (str(row["job_key"]), finding.code, finding.verdict)
            for row, findings in _of_ambiguous(jobs, settings, selected)
            for finding in findings
        ]
        for form in class_inputs(
            jobs, tables.gpus, tables.timelines, tables.node_minutes, settings, selected
        ):
            for job_class in _of_form(form, selected):
                found, code = job_class.judge(job_class, form), form.code(job_class.code)
                for place, answer in zip(
                    found.places.tolist(), found.answers.tolist(), strict=True
                ):
                    row = form.rows[place]
                    verdict = "unknown" if _unsampled(form, row, answer) else VERDICT_OF[answer]
                    rows.append((str(row["job_key"]), code, verdict))
        parts.append(verdicts_frame(rows))
    copies = (
        parts[0]
        .join(same, left_on="job_key", right_on="same")
        .select(job_key="job_key_right", code="code", verdict="verdict")
    )
    return pl.concat([*parts, copies])


def _deciding(codes: Collection[str]) -> tuple[JobClass, ...]:
    """Return the classes that decide checks with these codes."""
    checks = [check for check in CHECKS if not set(check.codes).isdisjoint(codes)]
    return tuple(check.job_class for check in checks if check.job_class is not None)


def class_inputs(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    node_minutes: pl.DataFrame,
    settings: ClassOptions,
    job_classes: Sequence[JobClass] = JOB_CLASSES,
) -> tuple[ClassInput, ...]:
    """Return the inputs: all jobs' GPU form, and the host form of jobs with node minutes.

    Jobs whose GPUs are unknown are in neither.
    """
    unknown = sorted(set(settings.characteristics) - set(CLASS_CODES))
    if unknown:
        raise ConfigError(
            f"classes.characteristics: unknown class {', '.join(unknown)}",
            do=f"use {', '.join(CLASS_CODES)}",
        )
    known = jobs.filter(pl.col("attribution") != "ambiguous")
    with_nodes = known.join(
        node_minutes.select("job_key").unique(), on="job_key", how="semi", maintain_order="left"
    )
    of_hosts = node_minutes
    if not any(each.of_minutes for each in job_classes):
        # without a class that reads minutes jobs have none
        known, with_nodes = (jobs.with_columns(as_of="start") for jobs in (known, with_nodes))
        timelines, node_minutes = timelines.clear(), node_minutes.clear()
    series = gpu_series(known, timelines, gpus=gpus)
    units = node_units(series.job_keys, gpus), gpu_units(series.job_keys, gpus)
    form = _form(known, series, units, settings, job_classes, host=False)
    levels = level_windows(series, width=settings.window_minutes)
    found = [dataclasses.replace(form, levels=levels)]
    if with_nodes.height:
        series = host_series(with_nodes, node_minutes, timelines)
        nodes = host_units(series.job_keys, of_hosts, gpus)
        found.append(_form(with_nodes, series, (nodes, nodes), settings, job_classes, host=True))
    return tuple(found)


def _found(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    node_minutes: pl.DataFrame,
    settings: ClassOptions,
    job_classes: Sequence[JobClass],
) -> Iterator[tuple[JobSummaryRow, list[Finding]]]:
    per_job: dict[str, tuple[JobSummaryRow, list[Finding]]] = {}
    for form in class_inputs(jobs, gpus, timelines, node_minutes, settings, job_classes):
        of_form: dict[int, list[Finding]] = defaultdict(list)
        for job_class in _of_form(form, job_classes):
            advice, found = _ADVICE[job_class.code], job_class.judge(job_class, form)
            for place, answer in zip(found.places.tolist(), found.answers.tolist(), strict=True):
                finding = found.finding(place, answer)
                if _unsampled(form, form.rows[place], answer):
                    finding = replace(finding, verdict="unknown", sentence=_NO_SAMPLE)
                elif answer == YES:
                    finding = replace(finding, advice=advice)
                of_form[place].append(finding)
        for place, findings in sorted(of_form.items()):
            row = form.rows[place]
            per_job.setdefault(row["job_key"], (row, []))[1].extend(findings)
    yield from per_job.values()
    yield from _of_ambiguous(jobs, settings, job_classes)


def _of_form(form: ClassInput, job_classes: Sequence[JobClass]) -> Sequence[JobClass]:
    """Return the classes that are judged in a form."""
    return [each for each in job_classes if each.host or not form.host]


def _unsampled(form: ClassInput, row: JobSummaryRow, answer: int) -> bool:
    """Whether a class cannot be denied as the job has no samples at all."""
    return answer == NO and not form.host and row["samples"] == 0


def _of_ambiguous(
    jobs: pl.DataFrame, settings: ClassOptions, job_classes: Sequence[JobClass]
) -> Iterator[tuple[JobSummaryRow, list[Finding]]]:
    """Yield the findings of jobs whose GPUs are unknown."""
    ambiguous = jobs.filter(pl.col("attribution") == "ambiguous").select(_OF_JOBS)
    for row in cast("Iterator[JobSummaryRow]", ambiguous.iter_rows(named=True)):
        single = {"idle_nodes": row["nodes"] == 1, "idle_gpus": row["gpus"] == 1}
        judged = [each for each in job_classes if not single.get(each.code)]
        yield row, [_undetermined(each, row, settings) for each in judged]


def _undetermined(job_class: JobClass, row: JobSummaryRow, settings: ClassOptions) -> Finding:
    """Verdict for a job without recorded GPUs; one too short for a hang has no hang."""
    message, ran = "Unknown: which GPUs were its own is not recorded.", row["elapsed_s"]
    verdict: Verdict = "unknown"
    if job_class.where is not None and isinstance(ran, float) and ran < settings.hang_minutes * 60:
        long = text(settings.hang_minutes * 60, "s")
        message, verdict = (
            f"No: the job ran {text(ran, 's')}; {long} or more would be needed.",
            "no",
        )
    return Finding(job_class.code, job_class.severity, job_class.title, message, verdict=verdict)


def _form(
    jobs: pl.DataFrame,
    series: Series,
    units: tuple[Units, Units],
    settings: ClassOptions,
    job_classes: Sequence[JobClass],
    *,
    host: bool,
) -> ClassInput:
    """Return a form with the windows of the characteristics that vote on hung classes."""
    limits = class_limits(settings, host=host)
    voting: set[str] = set()
    for job_class in job_classes:
        if job_class.where is not None:
            code, built_in = job_class.code, job_class.gpu
            if host:
                code, built_in = job_class.codes[-1], job_class.host
            voting.update(limits.names(code, built_in))
    names = tuple(name for name in limits.known if name in voting)
    return ClassInput(
        host=host,
        rows=cast("list[JobSummaryRow]", jobs.select(_OF_JOBS).to_dicts()),
        series=series,
        windows=spreads(series, names, width=settings.window_minutes),
        idle_times=idle_times(series),
        nodes=units[0],
        gpus=units[1],
        limits=limits,
    )
