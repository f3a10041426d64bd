"""Sentences on profiled kernels that text and page share: numbers, limits, co-location."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tachograph.annexes.share.calibration import measured_on
from tachograph.annexes.share.demand import CorunOutcome, Sharing
from tachograph.annexes.share.kernel_facts import (
    GpuPart,
    KernelFact,
    KernelView,
    PairEstimate,
    total_s,
)
from tachograph.annexes.share.kernel_limits import KernelLimits
from tachograph.annexes.share.kernel_metrics import PIPE_NAMES
from tachograph.annexes.share.utilization import Pitfall, Sensitivity
from tachograph.catalog.units import plural, printable, text

RESOURCE_NAMES: Mapping[str, str] = {
    "dram": "DRAM", "l2_bandwidth": "L2 bandwidth", "l1_bandwidth": "L1 bandwidth", "l2": "L2",
    "l1": "L1", "blocks": "block slots", "sms": "SMs", "small_grid": "small grid", "ipc": "IPC",
    "ipc_left": "IPC left", "ipc_of_copy": "IPC of a copy", **PIPE_NAMES,
}  # fmt: skip
SLOWDOWN_LEGEND = (
    "slowdown: run time beside the other over run time alone, both launched again and again; "
    "interval: holds nine of ten; bottleneck: the limiting resource; `block slots`: a kernel waits "
    "until the blocks of the other end."
)
_SUMS = 6  # resources named
_LISTED = 8  # items named in a line, of more only how many there are


def fact_text(fact: KernelFact) -> str:
    """Return the value of a fact as text, the same in every format.

    >>> fact_text(KernelFact("ipc", "IPC", 3.45, "ratio", "")), fact_text(KernelFact("score", "", 61.78, "score", ""))
    ('3.45', '62')
    """
    return text(fact.value, "count" if fact.unit == "score" else fact.unit)


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


def limits_sentence(limits: KernelLimits) -> str:
    """Return what limits a kernel, in a sentence."""
    grid = fullest_text = waits = lacks = ""
    if limits.small_grid is not None:
        blocks, sms = limits.small_grid
        idle = text(1 - blocks / sms, "fraction")
        grid = f"Small grid: {plural(blocks, 'block')} for {sms} SMs, {idle} of the SMs have none."
    if limits.limiting is not None:
        measured = {limit.resource for limit in limits.resources}
        unmeasured = [resource_name(name) for name in ("issue", "dram") if name not in measured]
        if unmeasured:
            lacks = f" Not measured, and perhaps fuller: {', '.join(unmeasured)}."
        limiting = limits.limiting
        of = "what can be achieved" if limiting.resource == "dram" else "it"
        use, rest = text(limiting.demand, "fraction"), text(limiting.head_room, "fraction")
        name = resource_name(limiting.resource)
        return f"{name}: {use} of {of} is used, {rest} is left to others.{lacks} {grid}".rstrip()
    if limits.resources:
        fullest = limits.resources[0]
        fullest_text = (
            f" (most: {resource_name(fullest.resource)} {text(fullest.demand, 'fraction')})"
        )
    if limits.bound == "small_grid":
        return f"{grid} Nothing else is near its limit{fullest_text}."
    if limits.bound is None:
        return f"Undetermined: issue slots or DRAM were not measured{fullest_text}."
    if limits.stall is not None:
        part = text(limits.stall.share, "fraction")
        waits = f", most of all for {limits.stall.reason} ({part})"
    return f"Latency: nothing is near its limit{fullest_text}; its warps wait{waits}."


def sensitivity_sentence(sensitivity: Sensitivity) -> str:
    """Return a kernel's sensitivity to a resource, with the number or the missing counter."""
    number = "" if sensitivity.value is None else f"{text(sensitivity.value, 'fraction')}: "
    lacks = f" (collect it with ncu {sensitivity.missing})" if sensitivity.missing else ""
    return f"{number}{sensitivity.why}{lacks}"


def pitfall_numbers(pitfall: Pitfall) -> str:
    """Return the numbers of a pitfall.

    >>> pitfall_numbers(Pitfall("occupancy", "", {"occupancy": 0.12, "occupancy_of_two": 0.24}))
    'occupancy 12 %, occupancy of two 24 %'
    """
    numbers = []
    for name, value in pitfall.numbers.items():
        resource = name.removesuffix("_of_two")
        label = name.replace(resource, resource_name(resource)).replace("_", " ")
        numbers.append(f"{label} {text(value, 'ratio' if 'IPC' in label else 'fraction')}")
    return ", ".join(numbers)


def calibration_sentence(part: GpuPart) -> str:
    """Return the calibration of the estimates, in a sentence."""
    calibration = part.calibration
    if measured_on(calibration, part.gpu):
        return f"Estimated with values that were measured on an {calibration.measured_on}."
    of = calibration.measured_on or "an H100"
    return (
        f"Estimated with {calibration.source} values of {of}, another GPU: measure this one with "
        "`make calibrate` in a clone."
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
    counts = f"{plural(len(part.kernels), 'kernel')}, {launches_text(launches)}"
    return f"{part.gpu.name}{sms}: {counts}, {duration_text(total_s(part))}{more}"


def first_of(items: Iterable[str]) -> str:
    """Return the first of some items, and how many more there are.

    >>> first_of("123456789"), first_of(["a"])
    ('1, 2, 3, 4, 5, 6, 7, 8 and 1 more', 'a')
    """
    listed = list(items)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more


def where_it_ran(view: KernelView) -> str:
    """Return GPU, shape and time of a kernel, in a sentence."""
    kernel, footprint = view.kernel, view.kernel.shape.footprint
    shape = "unknown shape"
    if footprint is not None:
        shape = f"{plural(footprint.blocks, 'block')} of {plural(footprint.threads, 'thread')}"
    if kernel.variants > 1:
        shape += f" (the longest of {kernel.variants} shapes)"
    share = "" if view.share is None else f", {text(view.share, 'fraction')} of the time"
    spent = f"{launches_text(kernel.launches)}, {duration_text(kernel.seconds)}{share}"
    return printable(f"{kernel.gpu.name}; {shape}; {spent}; {', '.join(kernel.reports)}")


def together_heading(sharing: Sharing) -> str:
    """Return how kernels run together.

    >>> together_heading(Sharing()), together_heading(Sharing("mps", (0.5, 0.25)))
    ('Together, as streams of one process', 'Together, as processes under MPS, with 50 % + 25 % of the SMs')
    """
    if sharing.shares is None:
        return "Together, as streams of one process"
    shares = " + ".join(text(share, "fraction") for share in sharing.shares)
    return f"Together, as processes under MPS, with {shares} of the SMs"


def interval(outcome: CorunOutcome) -> str:
    """Return the interval of a slowdown.

    >>> interval(CorunOutcome("a", 1.5, 1.2, 2.0, None))
    '1.20x to 2.00x'
    """
    return f"{text(outcome.low, 'times')} to {text(outcome.high, 'times')}"


def bottleneck(outcome: CorunOutcome) -> str:
    """Return what binds a kernel beside another one."""
    if outcome.binding:
        return resource_name(outcome.binding)
    return "nothing" if outcome.slowdown else "–"


def together_sentences(together: PairEstimate) -> list[str]:
    """Return the total demand, the time together, whether it is safe, and what is not known."""
    estimate = together.estimate
    worst = text(max(outcome.high or 0.0 for outcome in estimate.members), "times")
    gain = "Time together: undetermined."
    if estimate.gain is not None:
        gain = (
            f"Together they take {part_of_time(estimate.gain)} of the time that they take one "
            "after the other."
        )
    safe = f"Not safe: a slowdown of {worst} is possible."
    if estimate.safe:
        safe = f"Safe: no slowdown is above {worst}."
    if estimate.may_thrash:
        safe = f"{safe} They may thrash the L2."
    largest = sorted(estimate.sums.items(), key=lambda item: -item[1])[:_SUMS]
    sums = [
        f"{resource_name(name)} {text(share, 'fraction')}" for name, share in largest if share > 0
    ]
    total = [f"Total demand: {', '.join(sums)}."] if sums else []
    return [f"{gain} {safe}", *total, *(f"Not known: {unknown}" for unknown in estimate.unknown)]
