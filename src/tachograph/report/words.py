"""Sentences about one job, each from its row of job_summaries. Numbers go through units.text.

A sentence about something nobody measured says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.advice import Finding, main_pipe
from tachograph.advice.reading import ACTIVITY_NAMES, activity_counter, number
from tachograph.summarize.schema import PIPES
from tachograph.units import plural, text
from tachograph.workload.classes import CLASSES

PIPE_NAMES = {"fp64": "FP64 units", "fp32": "FP32 units", "fp16": "FP16 units", "tensor": "tensor cores"}
_ATTRIBUTION = {
    "explicit": "Its GPUs are known from a map of jobs to GPUs.",
    "live_index": "Its GPUs are known from the scheduler, recorded while the job ran.",
    "whole_node": "Its GPUs are all GPUs of its nodes, which it had to itself.",
    "ambiguous": "It is not known which GPUs of its shared nodes were its own.",
}
_OF_RECORDINGS = ("local-", "anonymous-")  # so ids begin that `tachograph record` makes
_LEFT_OUT = {
    "ambiguous_attribution": "its GPUs are not known",
    "still_running": "it still runs",
    "no_samples": "there are no samples",
    "short": "it was short",
    "idle": "its GPUs were idle",
    "other_partition": "it ran in another partition",
    "staff_account": "it is of a staff account",
    "login_node": "it ran on a login node",
}
_STUDIED = (*ACTIVITY_NAMES, *PIPES.values(), "dram_active", "hbm_used_mib", "power_w", "energy_j")


def headline(row: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Return the report in one or two sentences."""
    counts = [
        plural(sum(finding.severity == severity for finding in findings), severity)
        for severity in ("problem", "hint")
        if any(finding.severity == severity for finding in findings)
    ]
    verdict = " and ".join(counts) + " below" if counts else "Nothing stands out"
    if row.get("attribution") == "ambiguous" or not number(row, "samples"):
        verdict = "Little can be said about this job; see the notes"
    return f"{use(row)} {verdict}."


def use(row: Mapping[str, Any]) -> str:
    """Return how busy the GPUs were.

    >>> use({"gpus": 4, "gpu_util_mean": 0.42})
    'The 4 GPUs were busy 42 % of the time.'
    """
    counter, count = activity_counter(row), number(row, "gpus")
    who = "The GPUs were" if count is None else "The GPU was" if count == 1 else f"The {text(count, 'count')} GPUs were"
    if counter is None:
        return f"How busy {'the GPU was' if count == 1 else 'the GPUs were'} is not known."
    share = text(number(row, f"{counter}_mean"), "fraction")
    how = "" if counter == "gpu_util" else f" ({ACTIVITY_NAMES[counter]})"
    return f"{who} busy {share} of the time{how}."


def bound(row: Mapping[str, Any]) -> str:
    """Return what set the speed, arithmetic or memory, and what that means; on the most used pipe."""
    if number(row, "dram_active_mean") is None or all(number(row, f"{c}_mean") is None for c in PIPES.values()):
        return "Not known: arithmetic or memory traffic was not measured."
    pipe = main_pipe(row)
    if pipe is None:
        return "No arithmetic was measured on the FP64, FP32, FP16 units or tensor cores."
    end = "" if pipe == "fp64" else f"_{pipe}"
    label = row.get(f"bound{end}")
    judged = f"(judged by the {PIPE_NAMES[pipe]}, the most used ones)"
    match label:
        case "memory":
            share = text(number(row, f"memory_fraction{end}"), "fraction")
            return (
                f"Memory-bound: in {share} of the samples with work, moving data took longer than computing {judged}. "
                "Fewer bytes per operation or faster memory would speed it up; faster arithmetic would not."
            )
        case "compute":
            share = text(number(row, f"compute_fraction{end}"), "fraction")
            return (
                f"Compute-bound: in {share} of the samples with work, computing took longer than moving data {judged}. "
                "Fewer or cheaper operations (smaller types, tensor cores) would speed it up; faster memory would not."
            )
        case _:
            return f"Neither: no kind of sample is in the majority {judged}."


def balance(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how evenly the work was spread over GPUs and over time."""
    spatial, temporal = number(row, "spatial_imbalance"), number(row, "temporal_imbalance")
    sentences = []
    if number(row, "gpus") == 1:
        sentences.append("Across GPUs: there is one GPU only.")
    elif spatial is None:
        sentences.append("Across GPUs: not known.")
    else:
        sentences.append(f"Across GPUs: {text(spatial, 'ratio')}, {_evenness(spatial)} (0: all GPUs alike).")
    if temporal is None:
        sentences.append("Over time: not known.")
    else:
        sentences.append(f"Over time: {text(temporal, 'ratio')}, {_steadiness(temporal)} (0: constant).")
    return tuple(sentences)


def _evenness(imbalance: float) -> str:
    return (
        "even"
        if imbalance < 0.1
        else "mostly even"
        if imbalance < 0.3
        else "uneven"
        if imbalance < 0.5
        else "very uneven"
    )


def _steadiness(imbalance: float) -> str:
    return (
        "steady"
        if imbalance < 0.1
        else "mostly steady"
        if imbalance < 0.3
        else "varying"
        if imbalance < 0.5
        else "strongly varying"
    )


def memory(row: Mapping[str, Any]) -> str:
    """Return the peak of memory used.

    >>> memory({"hbm_peak_fraction": 0.5, "hbm_used_mib_max": 20480.0, "hbm_mib": 40960.0})
    'At the peak 50 % of the memory of a GPU was in use (20.0 GiB of 40.0 GiB).'
    """
    peak, used, capacity = (number(row, name) for name in ("hbm_peak_fraction", "hbm_used_mib_max", "hbm_mib"))
    if peak is None and used is None:
        return "Not known: memory was not measured."
    if peak is None:
        return f"At the peak {text(used, 'MiB')} of the memory of a GPU was in use; its capacity is not known."
    amounts = "" if used is None or capacity is None else f" ({text(used, 'MiB')} of {text(capacity, 'MiB')})"
    return f"At the peak {text(peak, 'fraction')} of the memory of a GPU was in use{amounts}."


def shares_of_work(row: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return kinds of work and the share of GPU time in each, in their order; empty where they are not known.

    >>> shares_of_work({"workload_fractions": [1.0, *[0.0] * 12]})[0]
    ('idle', 1.0)
    """
    shares = row.get("workload_fractions")
    return tuple(zip(CLASSES, shares, strict=True)) if shares else ()


def energy(row: Mapping[str, Any]) -> str:
    """Return energy and power of the GPUs.

    >>> energy({"energy_j": 7.2e6, "power_w_mean": 250.0})
    'The GPUs took 2.00 kWh, 250 W per GPU on average.'
    """
    joules, watts = number(row, "energy_j"), number(row, "power_w_mean")
    if joules is None:
        return "Not known: neither energy nor power was measured."
    one = number(row, "gpus") == 1
    mean = "" if watts is None else f", {text(watts, 'W')} {'' if one else 'per GPU '}on average"
    return f"{'The GPU' if one else 'The GPUs'} took {text(joules, 'J')}{mean}."


def caveats(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a reader must know about the data behind the report."""
    attribution = str(row.get("attribution"))
    recorded = attribution == "explicit" and str(row.get("job_id")).startswith(_OF_RECORDINGS)
    told = ["Its GPUs are those that were recorded." if recorded else _ATTRIBUTION.get(attribution, "")]
    coverage, interval, samples = (number(row, name) for name in ("coverage", "interval_s", "samples"))
    if samples:
        every = "" if interval is None else f", one per GPU every {text(interval, 's')}"
        share = "" if coverage is None else f"; {text(coverage, 'fraction')} of the expected ones"
        told.append(f"{text(samples, 'count')} samples{every}{share}.")
    if row.get("state") == "RUNNING":
        told.append("The job still runs: all numbers are those so far, energy that of the time with samples.")
    if row.get("energy_source") == "power":
        told.append("Energy is integrated from samples of power.")
    missing = [name for name in _STUDIED if number(row, f"{name}_mean") is None]
    if samples and missing:
        told.append(f"Not measured: {', '.join(missing)}.")
    if row.get("excluded"):
        reasons = (_LEFT_OUT.get(name, name) for name in row["excluded"].split(","))
        told.append(f"Left out of studies: {', '.join(reasons)}.")
    return tuple(sentence for sentence in told if sentence)
