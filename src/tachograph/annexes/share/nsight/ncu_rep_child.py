"""Child process that writes the content of a report, read by NVIDIA's library, to stdout.

The library never raises. Of a damaged file it reads nothing, or launches without metrics, or it
ends the process by a signal; its error messages are on standard error.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tachograph.annexes.share.nsight.launches import DEFAULT_DOMAIN, DEVICE_ATTRIBUTE, encodable

NO_LIBRARY = 66  # exit code
DISPLAY_NAME = f"{DEVICE_ATTRIBUTE}display_name"
_ADDRESS_SPACE_BYTES = 4 << 30  # of the library, Python and what a small report needs
_ADDRESS_SPACE_PER_BYTE = 24  # of the report: about three times what was measured


class NcuActionRecord(msgspec.Struct, array_like=True, frozen=True):
    """One result of a report, in file order, as a line of JSON.

    `names` are those of the metrics, written only where they differ from the names of the result
    before. `values`: one per name; None: no number.
    """

    kernel: str
    is_kernel: bool
    names: list[str] | None
    values: list[float | None]
    device: str | None
    ranges: list[str]


def action_records(
    ranges: Iterable[Iterable[Any]], *, numbers: frozenset[int]
) -> Iterator[NcuActionRecord]:
    """Yield a record per result. `numbers`: the kinds of values that are numbers.

    `ranges`: of results, IAction of the library, which has no types.
    """
    before: list[str] | None = None
    for actions in ranges:
        for action in actions:
            # The library refuses a name that is not UTF-8.
            names = [name for name in action.metric_names() if encodable(name) == name]
            device = action.metric_by_name(DISPLAY_NAME) if DISPLAY_NAME in names else None
            yield NcuActionRecord(
                kernel=_name(action),
                is_kernel=action.workload_type() == action.WorkloadType_KERNEL,
                names=None if names == before else names,
                values=[_number(action.metric_by_name(name), numbers) for name in names],
                device=None if device is None else encodable(device.as_string() or ""),
                ranges=_ranges(action.nvtx_state()),
            )
            before = names


def _number(metric: Any, numbers: frozenset[int]) -> float | None:
    """Return the metric's own value, not those of its instances; None if absent or text."""
    if metric is None:
        return None
    value: float = metric.as_double()
    if value == 0.0 and not (metric.kind() in numbers and metric.has_value()):
        return None  # the library returns 0 for text and for no value, too
    return value


def _name(action: Any) -> str:
    for base in (action.NameBase_DEMANGLED, action.NameBase_FUNCTION, action.NameBase_MANGLED):
        if name := action.name(base):
            return encodable(name)
    return ""


def _ranges(state: Any) -> list[str]:
    """Return open NVTX ranges, push/pop first; in a named domain as domain@range."""
    ranges = []
    for number in state.domains() if state is not None else ():
        domain = state.domain_by_id(number)
        if domain is None:
            continue
        prefix = "" if domain.name() in ("", DEFAULT_DOMAIN) else f"{domain.name()}@"
        names = (*domain.push_pop_ranges(), *domain.start_end_ranges())
        ranges += [encodable(prefix + name) for name in names]
    return ranges


def _limit_memory(report_bytes: int) -> None:
    limit_bytes = _ADDRESS_SPACE_BYTES + _ADDRESS_SPACE_PER_BYTE * report_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    # A crash of the library on a damaged file leaves no core.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Write the records of the report named by the only argument, one per line."""
    report = sys.argv[1]
    _limit_memory(os.stat(report).st_size)  # noqa: PTH116 as pathlib is not needed here
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what a library prints must not be taken for results
        try:
            import ncu_report
        except ImportError as problem:
            os.write(2, f"{problem}\n".encode())
            sys.exit(NO_LIBRARY)
        kinds = ncu_report.IMetric
        numbers = frozenset(
            {
                kinds.ValueKind_FLOAT,
                kinds.ValueKind_DOUBLE,
                kinds.ValueKind_UINT32,
                kinds.ValueKind_UINT64,
            }
        )
        encoder = msgspec.json.Encoder()
        for record in action_records(ncu_report.load_report(report), numbers=numbers):
            out.write(encoder.encode(record) + b"\n")


if __name__ == "__main__":
    main()
