"""Sentences on a job from its row of job_summaries.

Each is a measured value, an estimate that is named so, or a conclusion whose conditions stand
beside it. Three facts are kept apart: not recorded; recorded, but not attributable to this job;
recorded for a part of the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tachograph.catalog.columns import share_text
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.tables import ARITHMETIC, LINK_TRAFFIC, MEMORY, PIPES
from tachograph.catalog.units import capitalized, plural, text
from tachograph.judge.activity import ACTIVITY_NAMES, PIPE_NAMES, activity_counter, number
from tachograph.judge.checks.ambiguous_attribution import AMBIGUOUS_REASONS, names_sentence
from tachograph.judge.limiter import LINKS, MOST, NEITHER
from tachograph.judge.waste import EnergyEstimate
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.report.company import NO_COMPANY, GpuCompany
from tachograph.sources.slurm.recorded_use import recorded_gpus

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


NOT_ATTRIBUTABLE = (
    "Unknown: which GPUs of its nodes were its own is uncertain, "
    "so no sample is counted as its own."
)
HIGH = 0.9  # of GPU memory
ENOUGH = 0.9  # of the expected samples; with fewer sentences name the share
MEASURED = 0.98  # of the run time, from which on an estimate for all of it says nothing more
# traffic of a link is named from this share of its peak on, or this rate (B/s) where the peak is
# not known
MUCH_OF_PEAK, MUCH_TRAFFIC = 0.05, 5e9
_ATTRIBUTION = {
    "explicit": "Its GPUs are known from a map of jobs to GPUs, or job labels of samples.",
    "live_index": "Its GPUs are known from the scheduler, recorded while the job ran.",
    "whole_node": "It had all GPUs of its nodes to itself.",
    "ambiguous": "Its GPUs on shared nodes are unknown.",
}
_EVIDENCE = {  # by attribution and what records where the run was
    ("explicit", "samples"): "Its GPUs are known from samples that name it.",
    (
        "ambiguous",
        "nothing",
    ): "Where it ran is unknown: its accounting has no node list, no sample or map names it.",
    (
        "ambiguous",
        "elsewhere",
    ): "Samples or maps name it only at times other than its accounting: check site.time_zone.",
}
_OF_RECORDINGS = ("local-", "anonymous-")  # prefixes of ids that `tachograph record` makes
_EXCLUDED_BECAUSE = {
    "ambiguous_attribution": "its GPUs are not known",
    "still_running": "it still runs",
    "no_samples": "there are no samples",
    "short": "it was short",
    "idle": "its GPUs were idle",
    "other_partition": "it ran in another partition",
    "staff_account": "its account is a staff account",
    "login_node": "it ran on a login node",
}
_STUDIED_COUNTERS = (
    *ACTIVITY_NAMES,
    *PIPES.values(),
    "dram_active",
    "hbm_used_mib",
    "power_w",
    "energy_j",
)


def use_sentence(row: JobSummaryRow) -> str:
    """Return how busy the GPUs were.

    >>> use_sentence({"gpus": 4, "gpu_util_mean": 0.42})
    'The 4 GPUs were busy 42 % of the time.'
    >>> use_sentence({"gpus": 4, "gpu_util_mean": 0.42, "coverage": 0.05})
    'The 4 GPUs were busy 42 % of the time that was measured.'
    """
    counter, count = activity_counter(row), number(row, "gpus")
    if count is None:
        who = "The GPUs were"
    elif count == 1:
        who = "The GPU was"
    else:
        who = f"The {text(count, 'count')} GPUs were"
    if row.get("attribution") == "ambiguous":
        return NOT_ATTRIBUTABLE
    if counter is None:
        return f"How busy {'the GPU was' if count == 1 else 'the GPUs were'} is not recorded."
    mean = number(row, f"{counter}_mean")
    share = text(mean, "fraction")
    if mean is not None and mean > 1:  # normalised by the profile of a MIG slice
        return f"The mean of {ACTIVITY_NAMES.get(counter, counter)} was {share} of the MIG slice."
    how = "" if counter == "gpu_util" else f" ({ACTIVITY_NAMES[counter]})"
    coverage = number(row, "coverage")
    measured = "" if coverage is None or coverage >= ENOUGH else " that was measured"
    return f"{who} busy {share} of the time{measured}{how}."


# of the means that every report shows: column and label
_MEANS = (
    ("gpu_util_mean", "utilisation", "fraction"),
    ("sm_active_mean", "SMs active", "fraction"),
    ("tensor_active_mean", "tensor", "fraction"),
    ("dram_active_mean", "DRAM", "fraction"),
    ("power_w_mean", "power", "W"),
)


def means_sentence(row: JobSummaryRow) -> str | None:
    """Return the means over GPUs and time that tell most; None if none of them was measured.

    >>> means_sentence({"gpu_util_mean": 0.64, "sm_active_mean": 0.22, "power_w_mean": 250.0})
    'Utilisation 64 %, SMs active 22 %, power 250 W; not recorded: tensor, DRAM.'
    """
    sampled = {**row, "power_w_mean": sampled_power(row)}
    values = [(label, number(sampled, column), unit) for column, label, unit in _MEANS]
    known = [f"{label} {text(value, unit)}" for label, value, unit in values if value is not None]
    if not known:
        return None
    missing = [label for label, value, _ in values if value is None]
    message = ", ".join(known)
    if missing:
        message += f"; not recorded: {', '.join(missing)}"
    return f"{capitalized(message)}."


def sampled_power(row: JobSummaryRow) -> float | None:
    """Return the mean of power samples, as of each GPU; without samples the mean by the energy."""
    sampled = number(row, "power_w_sampled_mean")
    return number(row, "power_w_mean") if sampled is None else sampled


def limiter_sentence(
    row: JobSummaryRow, shares: Mapping[str, float | None], *, idle: bool = False
) -> str | None:
    """Return a sentence on the limiter; None if the job did no work.

    `shares`: see judge.limiter.shares_of_job.

    >>> limiter_sentence({"limiter": "memory", "dram_at_work": 0.6}, {"memory": 0.75})
    'Memory: at work, it moved data 60 % of the time, 75 % of what is achievable.'
    """
    limiter, pipe = row.get("limiter"), row.get("main_pipe")
    if idle:
        return None
    if row.get("attribution") == "ambiguous":
        return NOT_ATTRIBUTABLE
    at_work, traffic = (
        text(number(row, name), "fraction") for name in ("main_pipe_at_work", "dram_at_work")
    )
    share = shares.get(str(limiter))  # none of a job that an earlier version analyzed
    reached = "" if share is None else f", {text(share, 'fraction')} of what is achievable"
    carried = "".join(f" {sentence}" for sentence in _link_sentences(row, shares, limiter))
    if limiter == "compute" and pipe:
        level = f"Compute: at work, the {PIPE_NAMES[pipe]} were active {at_work} of the time"
        return f"{level}{reached}.{carried}"
    if limiter == "memory":
        return f"Memory: at work, it moved data {traffic} of the time{reached}.{carried}"
    if isinstance(limiter, str) and limiter in LINKS:
        return f"{LINKS[limiter]}:{carried}"
    if limiter == NEITHER:
        return f"{' '.join(_neither_sentences(row))}{carried}"
    missing = [
        name for name in (*PIPES.values(), "dram_active") if number(row, f"{name}_mean") is None
    ]
    if missing:
        return f"Unknown: {', '.join(missing)} not recorded.{carried}"
    return f"Unknown: no arithmetic was measured on any pipe.{carried}"


def _neither_sentences(row: JobSummaryRow) -> Iterator[str]:
    """Sentences on a job without a limiter: what is known, and what to record to know more."""
    yield "Neither arithmetic nor memory was near its peak for most of the time."
    units = PIPE_NAMES.get(row.get("main_pipe") or "", "pipes")
    levels = []
    for what, resource in ((f"the {units} were active", ARITHMETIC), ("memory moved data", MEMORY)):
        level, share = number(row, resource.at_work), number(row, resource.share)
        if level is not None and share is not None:
            part = f" (at work in {text(share, 'fraction')} of the run)" if share < MOST else ""
            levels.append(f"{what} {text(level, 'fraction')} of the time{part}")
    if levels:
        yield f"At work, {', '.join(levels)}."
    sms = number(row, "sm_active_mean")
    if sms is not None:
        yield f"The SMs were active {text(sms, 'fraction')} of the time."
    device = DEVICES_BY_NAME.get(row.get("gpu_model") or "")
    counters = ["sm_active"]
    for link, traffic in LINK_TRAFFIC.items():
        if device is None or getattr(device, f"{link}_bytes_per_s") is not None:
            counters += traffic.counters
    missing = [name for name in counters if number(row, f"{name}_mean") is None]
    advice = f"record {', '.join(missing)}" if missing else "profile a part of it (Nsight Systems)"
    yield f"What set the speed is unknown: {advice} to know more."


def _link_sentences(
    row: JobSummaryRow, shares: Mapping[str, float | None], limiter: object
) -> Iterator[str]:
    """Sentences on heavy link traffic."""
    for link, name in LINKS.items():
        traffic, peak = LINK_TRAFFIC[link], shares.get(link)
        rates = [number(row, f"{counter}_mean") for counter in traffic.counters]
        rate = max((rate for rate in rates if rate is not None), default=0.0)
        level = number(row, traffic.at_work)
        if peak is not None and (peak >= MUCH_OF_PEAK or limiter == link):
            share = f"{text(peak, 'fraction')} of what is achievable"
            yield f"{name} carried {text(level, 'B/s')} per GPU at work, {share}."
        elif rate >= MUCH_TRAFFIC:
            yield f"{name} carried {text(rate, 'B/s')} per GPU."


def balance_sentences(row: JobSummaryRow) -> tuple[str, ...]:
    """Return how evenly the work was spread over GPUs and over time."""
    spatial, temporal = number(row, "spatial_imbalance"), number(row, "temporal_imbalance")
    sentences = []
    if row.get("attribution") == "ambiguous":
        return (NOT_ATTRIBUTABLE,)
    if number(row, "gpus") == 1:
        sentences.append("Across GPUs: it had one GPU.")
    elif spatial is None:
        sentences.append("Across GPUs: not known.")
    else:
        sentences.append(
            f"Across GPUs: {text(spatial, 'ratio')}, {evenness(spatial)} (0: all GPUs alike)."
        )
    if temporal is None:
        sentences.append("Over time: not known.")
    else:
        sentences.append(
            f"Over time: {text(temporal, 'ratio')}, {steadiness(temporal)} (0: constant)."
        )
    return tuple(sentences)


_LEVELS = (0.1, 0.3, 0.5)  # of an imbalance: from each on the next word


def evenness(imbalance: float) -> str:
    """Return a spatial imbalance in words."""
    return ("even", "mostly even", "uneven", "very uneven")[bisect_right(_LEVELS, imbalance)]


def steadiness(imbalance: float) -> str:
    """Return a temporal imbalance in words."""
    return ("steady", "mostly steady", "varying", "strongly varying")[
        bisect_right(_LEVELS, imbalance)
    ]


def memory_sentence(row: JobSummaryRow) -> str:
    """Return the peak of memory used.

    >>> memory_sentence({"hbm_peak_fraction": 0.5, "hbm_used_mib_max": 20480.0, "hbm_mib": 40960.0})
    'At the peak 50 % of the memory of a GPU was in use (20.0 GiB of 40.0 GiB).'
    """
    peak, used, capacity = (
        number(row, name) for name in ("hbm_peak_fraction", "hbm_used_mib_max", "hbm_mib")
    )
    if row.get("attribution") == "ambiguous":
        return NOT_ATTRIBUTABLE
    if peak is None and used is None:
        return "Unknown: memory was not recorded."
    if peak is None:
        return (
            f"At the peak {text(used, 'MiB')} of the memory of a GPU was in use; its "
            "capacity is not known."
        )
    amounts = (
        ""
        if used is None or capacity is None
        else f" ({text(used, 'MiB')} of {text(capacity, 'MiB')})"
    )
    return f"At the peak {text(peak, 'fraction')} of the memory of a GPU was in use{amounts}."


def shares_of_work(row: JobSummaryRow) -> tuple[tuple[str, float], ...]:
    """Return (workload class, share of GPU time) in order; empty if unknown.

    >>> shares_of_work({"workload_fractions": [1.0, *[0.0] * 12]})[0]
    ('idle', 1.0)
    """
    shares = row.get("workload_fractions")
    return tuple(zip(WORKLOAD_CLASSES, shares, strict=True)) if shares else ()


def energy_sentence(row: JobSummaryRow, *, slices: bool = False) -> str:
    """Return measured energy and power of the GPUs, and the estimate where it differs.

    `slices`: whether it had MIG slices; power and energy are measured of whole GPUs only.

    >>> energy_sentence({"energy_j": 7.2e6, "energy_j_estimated": 7.2e6, "power_w_mean": 250.0})
    'The GPUs used 2.00 kWh, 250 W per GPU on average.'
    >>> energy_sentence({"energy_j": 1.8e6, "energy_j_estimated": 7.2e6})
    'The GPUs used 0.50 kWh in the measured 25 % of the time; scaled to the run time an estimated 2.00 kWh.'
    """
    joules, estimate, watts = (
        number(row, name) for name in ("energy_j", "energy_j_estimated", "power_w_mean")
    )
    if row.get("attribution") == "ambiguous":
        return NOT_ATTRIBUTABLE
    if joules is None:
        return _unknown_energy(row, slices=slices)
    gpus, per_gpu = "The GPUs", "per GPU "
    if number(row, "gpus") == 1:
        gpus, per_gpu = "The GPU", ""
    mean = "" if watts is None else f", {text(watts, 'W')} {per_gpu}on average"
    if watts is not None and text(sampled_power(row), "W") != text(watts, "W"):
        mean += ", by energy"
    used = f"{gpus} used {text(joules, 'J')}"
    if estimate is None or joules >= MEASURED * estimate:
        return f"{used}{mean}."
    part = text(joules / estimate, "fraction")
    return (
        f"{used} in the measured {part} of the time{mean}; scaled to the run time an "
        f"estimated {text(estimate, 'J')}."
    )


def node_energy_sentence(row: JobSummaryRow) -> str | None:
    """Return the energy of the nodes, and how it is known; None: unknown.

    >>> node_energy_sentence({"node_energy_j": 7.2e6, "node_energy_source": "accounting"})
    'Its nodes, GPUs included, used 2.00 kWh (ConsumedEnergy of the accounting).'
    """
    joules, part = number(row, "node_energy_j"), number(row, "node_energy_measured")
    if joules is None:
        return None
    amount, how = text(joules, "J"), "ConsumedEnergy of the accounting"
    if row.get("node_energy_source") == "samples":
        how = "samples of their power"
    if part is not None and part < MEASURED:
        amount, how = f"an estimated {amount}", f"{how} in {text(part, 'fraction')} of the time"
    return f"Its nodes, GPUs included, used {amount} ({how})."


def estimate_sentence(estimate: EnergyEstimate | None) -> str | None:
    """Return energy with the site's overhead, and emissions; None without an estimate.

    >>> estimate_sentence(EnergyEstimate(9e6, 1000.0, "gpus", 1.25, 400.0))
    'Estimated with PUE 1.25 and 400 g/kWh, of its GPUs alone: 2.50 kWh, 1.0 kg CO2.'
    """
    if estimate is None:
        return None
    amounts, given = [text(estimate.energy_j, "J")], [f"PUE {estimate.pue:g}"]
    if estimate.co2_g is not None:
        amounts.append(text(estimate.co2_g, "gCO2"))
        given.append(f"{estimate.gco2_per_kwh:g} g/kWh")
    alone = ", of its GPUs alone" if estimate.of == "gpus" else ""
    return f"Estimated with {' and '.join(given)}{alone}: {', '.join(amounts)}."


def _unknown_energy(row: JobSummaryRow, *, slices: bool) -> str:
    """What was recorded of energy and power, and what is missing."""
    watts = number(row, "power_w_sampled_mean")
    if watts is None:
        watts = number(row, "power_w_max")
    counted = number(row, "energy_j_mean") is not None
    if watts is None and not counted:
        return "Unknown: neither energy nor power was recorded."
    recorded = "the energy counter" if watts is None else f"power ({text(watts, 'W')})"
    known = f"Unknown: {recorded} was recorded"
    if slices:
        return f"{known}, but of whole GPUs, and the job had slices of them."
    if (number(row, "samples") or 0.0) <= (number(row, "gpus_seen") or 0.0):
        return f"{known}, but in one sample of a GPU; energy needs two."
    missing = "" if counted else ", and the energy counter was not recorded"
    return f"{known}, but in samples too far apart to add up{missing}."


def _counted_share(row: JobSummaryRow) -> str:
    amount = number(row, "gpu_share")
    if amount is None:
        return "No GPU-hours are counted: what part of a GPU that is, is not known."
    if row.get("share_by") == "time":
        return f"Counted as {amount:.2f} GPUs: the time of each GPU over the jobs on it."
    return f"Counted as {amount:.2f} GPUs, by its part of each."


def caveat_sentences(
    row: JobSummaryRow, evidence: str = "", company: GpuCompany = NO_COMPANY
) -> tuple[str, ...]:
    """Return the limitations of the report's data."""
    attribution = str(row.get("attribution"))
    recorded = attribution == "explicit" and str(row.get("job_id")).startswith(_OF_RECORDINGS)
    because, _ = AMBIGUOUS_REASONS.get(str(row.get("ambiguous_because")), ("", ""))
    if because:
        because = names_sentence(row) or because
    known = _EVIDENCE.get((attribution, evidence)) or because or _ATTRIBUTION.get(attribution, "")
    notes = ["Its GPUs are those that were recorded." if recorded else known]
    share = share_text(row)
    if share and attribution == "ambiguous":
        notes = [
            (
                f"It had a share ({share}) of GPUs that other jobs held at the same time, or may "
                "have held."
            )
        ]
    elif share:
        if attribution == "whole_node":
            notes = ["Its nodes have one GPU each."]
        notes.append(
            f"It had a share of them ({share}), and no other job held them: all samples are "
            "its own."
        )
    if company.sentence:
        notes.append(company.sentence)
    notes += company.handovers
    if share:
        notes.append(_counted_share(row))
    coverage, interval, samples = (
        number(row, name) for name in ("coverage", "interval_s", "samples")
    )
    if samples:
        counted = f"{text(samples, 'count')} samples"
        if interval is not None:
            counted += f", one per GPU every {text(interval, 's')}"
        if coverage is not None:
            counted += f"; {text(coverage, 'fraction')} of the expected ones"
        notes.append(f"{counted}.")
    if row.get("state") == "RUNNING":
        notes.append("The job still runs: all numbers are those so far.")
    if row.get("energy_source") == "power":
        notes.append("Energy is integrated from samples of power.")
    missing = [name for name in _STUDIED_COUNTERS if number(row, f"{name}_mean") is None]
    if row.get("ambiguous_because") == "unplaced":
        notes.append("No sample is shown.")
    elif attribution == "ambiguous":
        notes.append("No sample is shown: those of its nodes may belong to other jobs.")
    elif samples and missing:
        notes.append(f"Not recorded: {', '.join(missing)}.")
    if excluded := row.get("excluded"):
        reasons = (_EXCLUDED_BECAUSE.get(name, name) for name in excluded.split(","))
        notes.append(f"Left out of studies: {', '.join(reasons)}.")
    return tuple(sentence for sentence in notes if sentence)


RECORDED_BY = {
    "jobstats": "jobstats' comment in the accounting",
    "tachograph": "Tachograph's comment in the accounting",
}
_NAMED_GPUS = 8


def recorded_sentence(row: JobSummaryRow) -> str | None:
    """Return what others recorded of a job's GPUs, without samples; None without that.

    >>> recorded_sentence({"recorded_by": "jobstats", "recorded_gpu_util_mean": 0.42})
    "No samples; by jobstats' comment in the accounting the GPUs were busy 42 % of the time."
    >>> recorded_sentence({"task_gpu_util_max": 1.98, "task_gpu_mem_mib_max": 2048.0})
    'Slurm polled at most 198 % utilisation and 2.0 GiB of device memory of one task, over its GPUs.'
    """
    sentences = []
    busy, used, peak = (
        number(row, f"recorded_{name}")
        for name in ("gpu_util_mean", "hbm_used_mib_max", "hbm_peak_fraction")
    )
    parts = [] if busy is None else [f"the GPUs were busy {text(busy, 'fraction')} of the time"]
    if used is not None:
        share = "" if peak is None else f" ({text(peak, 'fraction')})"
        parts.append(f"device memory peaked at {text(used, 'MiB')}{share}")
    if source := RECORDED_BY.get(str(row.get("recorded_by"))):
        sentences.append(f"No samples; by {source} {' and '.join(parts)}.")
        sentences += _gpus_recorded(row)
    busy, used = number(row, "task_gpu_util_max"), number(row, "task_gpu_mem_mib_max")
    polled = [] if busy is None else [f"{text(busy, 'fraction')} utilisation"]
    polled += [] if used is None else [f"{text(used, 'MiB')} of device memory"]
    if polled:
        most = " and ".join(polled)
        sentences.append(f"Slurm polled at most {most} of one task, over its GPUs.")
    return " ".join(sentences) or None


def _gpus_recorded(row: JobSummaryRow) -> list[str]:
    """Return the utilisation of each GPU in a sentence, where there are several but not many."""
    gpus = [gpu for gpu in recorded_gpus(row.get("recorded_gpus")) if gpu.gpu_util_mean is not None]
    if not 1 < len(gpus) <= _NAMED_GPUS:
        return []
    several = len({gpu.node for gpu in gpus}) > 1
    named = (
        f"{f'{gpu.node} ' if several else ''}GPU {gpu.gpu.replace(':', '/')} "
        f"{text(gpu.gpu_util_mean, 'fraction')}"
        for gpu in gpus
    )
    return [f"By GPU: {', '.join(named)}."]


def host_sentence(row: JobSummaryRow) -> str | None:
    """Return CPU efficiency and host memory, from samples of its cgroups or the accounting.

    Memory of a node by samples is that of all its tasks there. None: neither is known.

    >>> host_sentence({"cpus": 64, "cpu_efficiency": 0.12, "max_rss_mib": 20480.0, "mem_requested_mib": 262144.0})
    '64 CPUs were busy 12 % of the time; the largest task peaked at 20.0 GiB of host memory, 256.0 GiB were requested.'
    """
    efficiency, cpus = number(row, "cpu_efficiency"), number(row, "cpus")
    peak, requested = number(row, "max_rss_mib"), number(row, "mem_requested_mib")
    of_node, nodes = number(row, "memory_mib_max"), number(row, "nodes")
    until = ""
    if efficiency is None:
        efficiency, until = number(row, "cpu_efficiency_sampled"), " up to its last sample"
    parts = []
    if efficiency is not None:
        busy = "its CPUs were" if cpus is None else f"{plural(cpus, 'CPU')} were"
        busy = "1 CPU was" if cpus == 1 else busy
        parts.append(f"{busy} busy {text(efficiency, 'fraction')} of the time{until}")
    if of_node is not None:
        share = None if requested is None or not nodes else requested / nodes
        asked = "" if share is None else f", {text(share, 'MiB')} were requested there"
        parts.append(f"it had at most {text(of_node, 'MiB')} of host memory on a node{asked}")
    elif peak is not None:
        asked = "" if requested is None else f", {text(requested, 'MiB')} were requested"
        parts.append(f"the largest task peaked at {text(peak, 'MiB')} of host memory{asked}")
    if not parts:
        return None
    message = "; ".join(parts)
    return f"{capitalized(message)}."
