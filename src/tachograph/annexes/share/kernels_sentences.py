"""Sentences on profiled kernels that text and page share: numbers, limits, co-location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tachograph.annexes.share.advice import times
from tachograph.annexes.share.demand import Estimate, Sharing
from tachograph.annexes.share.kernel_facts import (
    GpuPart,
    KernelFact,
    total_s,
)
from tachograph.annexes.share.kernel_limits import KernelLimits, Limit
from tachograph.annexes.share.kernel_metrics import PIPE_NAMES
from tachograph.annexes.share.utilization import Pitfall, Sensitivity
from tachograph.catalog.units import plural, text

RESOURCE_NAMES: Mapping[str, str] = {
    "issue": "issue", "dram": "DRAM", "l2_bandwidth": "L2 bandwidth", "l1_bandwidth": "L1 bandwidth", "l2": "L2",
    "l1": "L1", "blocks": "block slots", "sms": "SMs", "small_grid": "small grid", **PIPE_NAMES,
}  # fmt: skip
_NUMBER_LABELS = {
    "ipc": "IPC", "ipc_left": "IPC left", "ipc_of_copy": "IPC of a copy", "nvidia_smi": "nvidia-smi",
    "sm_share": "SMs busy", "sms_reached_share": "SMs with a block",
}  # fmt: skip
SLOWDOWN_LEGEND = (
    "slowdown: run time beside the others over run time alone; worst: the others are served first, "
    "and unmeasured resources are contended; bottleneck: the limiting resource."
)
_SUMS = 6  # resources named
MOST_NUMBERS = 8  # kernels named by number in a line, of more only how many there are


def fact_text(fact: KernelFact) -> str:
    """Return the value of a fact as text, the same in every format.

    >>> fact_text(KernelFact("ipc", "IPC", 3.45, "of 4", "")), fact_text(KernelFact("score", "", 61.78, "score", ""))
    ('3.45 of 4', '62')
    """
    if fact.unit == "score":
        return text(fact.value, "count")
    if fact.unit.startswith("of "):
        return f"{text(fact.value, 'ratio')} {fact.unit}" if fact.value is not None else text(None)
    return text(fact.value, fact.unit)


def launches_text(count: int) -> str:
    """Return a number of launches.

    >>> launches_text(1), launches_text(1200)
    ('1 launch', '1,200 launches')
    """
    return f"{count:,} launch{'' if count == 1 else 'es'}"


def duration_text(seconds: float | None) -> str:
    """Return a time from nanoseconds to days.

    >>> duration_text(0.012), duration_text(9.2e-05), duration_text(2.5), duration_text(None)
    ('12 ms', '92 µs', '2.5 s', 'time not reported')
    """
    if seconds is None:
        return "time not reported"
    if seconds >= 1 or seconds == 0:
        return text(seconds, "s")
    return text(seconds * 1e3, "ms") if seconds >= 1e-3 else text(seconds * 1e6, "µs")


def resource_name(resource: str) -> str:
    """Return the display name of a resource.

    >>> resource_name("fma"), resource_name("blocks")
    ('FMA', 'block slots')
    """
    return RESOURCE_NAMES.get(resource, resource)


def limits_sentence(found: KernelLimits) -> str:
    """Return what limits a kernel, in a sentence."""
    most = waits = few = ""
    if found.resources:
        fullest = found.resources[0]
        most = f" (most: {resource_name(fullest.resource)} {text(fullest.demand, 'fraction')})"
    if found.stall is not None:
        share = text(found.stall.share, "fraction")
        waits = f", most of all for {found.stall.reason} ({share})"
    if found.small_grid is not None:
        few = f" {_small_grid(*found.small_grid)}"
    if found.limiting is not None:
        name, used = resource_name(found.limiting.resource), text(found.limiting.demand, "fraction")
        measured = {limit.resource for limit in found.resources}
        unmeasured = [
            resource_name(resource) for resource in ("issue", "dram") if resource not in measured
        ]
        lacks = f" Not measured, and perhaps fuller: {', '.join(unmeasured)}." if unmeasured else ""
        left = text(found.limiting.head_room, "fraction")
        return (
            f"{name}: {used} of {_capacity_text(found.limiting)} is used, {left} is left to "
            f"others.{lacks}{few}"
        )
    if found.bound == "small_grid":
        return f"{few.strip()} Nothing else is near its limit{most}."
    if found.bound == "latency":
        return f"Latency: nothing is near its limit{most}; its warps wait{waits}."
    return f"Undetermined: issue slots or DRAM were not measured{most}."


def _small_grid(blocks: int, sms: int) -> str:
    """Return the idle part of a grid with fewer blocks than SMs.

    >>> _small_grid(1, 128)
    'Small grid: 1 block for 128 SMs, 99 % of the SMs have none.'
    """
    idle = text(1 - blocks / sms, "fraction")
    return f"Small grid: {plural(blocks, 'block')} for {sms} SMs, {idle} of the SMs have none."


def _capacity_text(limit: Limit) -> str:
    """Return the capacity that a load is a share of.

    >>> _capacity_text(Limit("dram", 0.69, 0.31, "", "NVIDIA H100 NVL")), _capacity_text(Limit("issue", 0.5, 0.5, ""))
    ('what can be achieved (as measured on NVIDIA H100 NVL)', 'it')
    """
    if limit.measured_on is not None:
        return f"what can be achieved (as measured on {limit.measured_on})"
    return "what other GPUs can achieve" if limit.resource == "dram" else "it"


def sensitivity_sentence(sensitivity: Sensitivity) -> str:
    """Return a kernel's sensitivity to a resource, with the number or the missing counter."""
    number = "" if sensitivity.value is None else f"{text(sensitivity.value, 'fraction')}: "
    lacks = f" (collect it with ncu {sensitivity.missing})" if sensitivity.missing else ""
    return f"{number}{sensitivity.why}{lacks}"


def pitfall_sentence(pitfall: Pitfall) -> str:
    """Return a pitfall, with its numbers."""
    return f"{pitfall.why} ({pitfall_numbers(pitfall)})"


def pitfall_numbers(pitfall: Pitfall) -> str:
    """Return the numbers of a pitfall; of two of a kind only their total demand."""
    of_two = {
        name.removesuffix("_of_two"): value
        for name, value in pitfall.numbers.items()
        if name.endswith("_of_two")
    }
    quoted = of_two or dict(list(pitfall.numbers.items())[:2])
    message = (
        (
            f"{_NUMBER_LABELS.get(name, RESOURCE_NAMES.get(name, name.replace('_', ' ')))} "
            f"{_number(name, value)}"
        )
        for name, value in quoted.items()
    )
    return f"{'two: ' if of_two else ''}{', '.join(message)}"


def _number(name: str, value: float) -> str:
    return text(value, "ratio" if name.startswith("ipc") else "fraction")


def calibration_sentence(part: GpuPart) -> str:
    """Return the calibration of the estimates, in a sentence."""
    calibration = part.calibration
    if calibration.measured_on is None:
        return "Estimated with published values of the H100 NVL: nothing was measured on this GPU."
    measured_on, published = calibration.measured_on, calibration.source == "published"
    if published:
        words = f"Estimated with published values of the {measured_on.removeprefix('NVIDIA ')}"
    else:
        words = f"Estimated with values measured on {measured_on} ({calibration.source})"
    same = part.gpu.name == measured_on
    return words + (
        "."
        if same
        else ", which is another GPU: measure this one with `make calibrate` in a clone."
    )


def part_of_time(gain: float | None) -> str:
    """Return time together as a share of sequential time, `?` if unknown.

    >>> part_of_time(2.0), part_of_time(0.88), part_of_time(None)
    ('50 %', '114 %', '?')
    """
    return "?" if gain is None or not gain > 0 else f"{100 / gain:.0f} %"


def factor(value: float | None) -> str:
    """Return a factor without its sign, `?` if unknown.

    >>> factor(1.0), factor(15.84), factor(None)
    ('1.00', '15.8', '?')
    """
    return "?" if value is None else text(value, "times").removesuffix("x")


def headline(part: GpuPart) -> str:
    """Return a sentence on the data of a GPU."""
    launches = sum(view.kernel.launches for view in part.kernels)
    sms = f", {part.gpu.sms} SMs" if part.gpu.sms else ""
    less = "took less time" if total_s(part) is not None else "not shown"
    more = f"; {plural(part.left_out, 'more kernel')} {less}" if part.left_out else ""
    counts = (
        f"{plural(len(part.kernels), 'kernel')}, {launches_text(launches)}, "
        f"{duration_text(total_s(part))}"
    )
    return f"{part.gpu.name}{sms}: {counts}{more}"


def numbers_text(numbers: Sequence[int], of: int) -> str:
    """Return which kernels are meant, by their numbers.

    >>> numbers_text([1, 2, 5], 9), numbers_text([1, 2], 2), numbers_text([1], 1)
    ('kernels 1, 2, 5', 'all kernels', 'the kernel')
    """
    if len(numbers) == of:
        return "all kernels" if of > 1 else "the kernel"
    if len(numbers) > MOST_NUMBERS:
        return f"{len(numbers)} kernels"
    return f"kernel{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def together_heading(sharing: Sharing) -> str:
    """Return how kernels run together.

    >>> together_heading(Sharing()), together_heading(Sharing("mps", (0.5, 0.25)))
    ('Together, as streams of one process', 'Together, as processes under MPS, with 50 % + 25 % of the SMs')
    """
    way = "streams of one process" if sharing.mode == "streams" else "processes under MPS"
    shares = (
        ""
        if sharing.shares is None
        else " + ".join(text(share, "fraction") for share in sharing.shares)
    )
    return f"Together, as {way}" + (f", with {shares} of the SMs" if shares else "")


def sums_sentence(sums: Mapping[str, float]) -> str:
    """Return the total demand of all kernels, largest first.

    >>> sums_sentence({"dram": 0.84, "issue": 1.9, "fp64": 0.0})
    'Total demand: issue 190 %, DRAM 84 %.'
    """
    largest = sorted(sums.items(), key=lambda item: -item[1])[:_SUMS]
    named = ", ".join(
        f"{resource_name(name)} {text(share, 'fraction')}" for name, share in largest if share > 0
    )
    return f"Total demand: {named}."


def gain_sentence(gain: float | None, worst: float | None) -> str:
    """Return how long all take together, in a sentence.

    >>> gain_sentence(1.8, 1.0)
    'Together they take 56 % of the time that they take one after the other, at the worst 100 %.'
    """
    if gain is None:
        return "Time together: undetermined."
    at_worst = "" if worst is None else f", at the worst {part_of_time(worst)}"
    return (
        f"Together they take {part_of_time(gain)} of the time that they take one after the "
        f"other{at_worst}."
    )


def safe_sentence(found: Estimate) -> str:
    """Return whether the set is safe, with the worst slowdown and resources at their limit.

    >>> from tachograph.annexes.share.demand import CorunOutcome
    >>> pair = (CorunOutcome("a", 1.0, 1.05, None), CorunOutcome("b", 1.7, 2.1, "l2_bandwidth"))
    >>> safe_sentence(Estimate(pair[:1], {}, None, None, safe=True, unknown=()))
    'Safe: no slowdown is above 1.05x.'
    >>> safe_sentence(Estimate(pair, {}, None, None, safe=False, unknown=(), reached=("l2_bandwidth", "dram")))
    'Not safe: a slowdown of 2.10x is possible; near the limit: L2 bandwidth, DRAM.'
    """
    worst = [outcome.worst for outcome in found.members]
    most = times(
        None
        if None in worst
        else max((value for value in worst if value is not None), default=None)
    )
    if found.safe:
        return f"Safe: no slowdown is above {most}."
    possible = (
        "slowdowns are undetermined" if None in worst else f"a slowdown of {most} is possible"
    )
    near = (
        f"; near the limit: {', '.join(map(resource_name, found.reached))}" if found.reached else ""
    )
    return f"Not safe: {possible}{near}."
